"""A run as data for pictures that others draw: its present graph, and the segments of its timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tidemill.kernel.activation import Activation, items_merged
from tidemill.kernel.events import NOT_AN_ITEM, AnyEvent
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.state import State, Visit
from tidemill.pictures.history import WORK, History, Row, merged
from tidemill.pictures.labels import edges_of, type_name

SOURCES_SHOWN_MAX = 20
MESSAGE_LENGTH_MAX = 300
TRACKS_MAX = 2_000
"""Items of a map that a timeline shows one by one; of more, those that took longest."""

ChildOf = Callable[[str, int], str]
"""The run that a visit of a node starts."""


def run_graph(workflow: Workflow, state: State, child_of: ChildOf) -> dict[str, Any]:
    """Nodes as they stand, and edges with what became of them."""
    return {
        "status": state.status,
        "seq": state.seq,
        "at_ms": state.last_ms,
        "nodes": [_node(node, state.peek(node.id), child_of) for node in workflow.nodes],
        "edges": list(_edges(workflow, state)),
    }


def _node(node: Node, visit: Visit, child_of: ChildOf) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": node.id,
        "type": node.type,
        "status": visit.status,
        "visits": visit.visit,
        "attempts": visit.attempt,
        "duration_ms": visit.duration_ms,
    }
    if visit.status != "PENDING":
        shown["since_ms"] = visit.since_ms
    if visit.held:
        shown["held"] = True
    if visit.why:
        shown["why"] = visit.why
    if visit.tolerated:
        shown["tolerated"] = True
    if visit.retry_at_ms is not None and visit.status == "QUEUED":
        shown["retry_at_ms"] = visit.retry_at_ms
    if visit.error is not None:
        shown["error"] = {"code": visit.error.code, "message": visit.error.message[:MESSAGE_LENGTH_MAX]}
    if visit.wait is not None and visit.status == "WAITING":
        wait = visit.wait
        shown["wait"] = {"on": wait.on, "name": wait.name, "until_ms": wait.until_ms, "expires_ms": wait.expires_ms}
    if len(node.inbound) > 1:
        shown["join"] = _join(node, visit)
    if node.loop is not None:
        loop = node.loop
        limit = {"back_to": loop.back_to, "body": list(loop.body), "max": loop.max_iterations}
        shown["loop"] = {"pass": visit.passes + 1, **limit}
    if node.map is not None:
        shown["items"] = _items(visit)
    elif type_name(node) == "workflow" and visit.attempt:
        shown["child"] = child_of(node.id, visit.visit)
    return shown


def _join(node: Node, visit: Visit) -> dict[str, Any]:
    undecided = [source for source in node.inbound if source not in visit.edges] if not visit.settled else []
    return {
        "kind": node.join,
        "needs": {"any": 1, "quorum": node.quorum}.get(node.join, len(node.inbound)),
        "of": len(node.inbound),
        "arrived": visit.taken,
        "skipped": visit.dead,
        "settled": visit.settled,
        "waits_for": undecided[:SOURCES_SHOWN_MAX],
    }


def _items(visit: Visit) -> dict[str, int] | None:
    """How many items of a map stand how; None before its list is known."""
    items = visit.map
    if items is None:
        return None
    counts = {"count": items.count, "done": items.done - items.failed, "failed": items.failed}
    counts |= {"running": 0, "waiting": 0, "retrying": 0, "skipped": 0, "queued": items.flying}
    for item in items_merged(items.by_index).values():
        # Completed items are packed; the others are few.
        if isinstance(item, Activation) and (kind := _item_kind(item)):
            counts[kind] += 1
            counts["done" if kind == "skipped" else "queued"] -= 1
    return counts


def _item_kind(item: Activation) -> str:
    if item.status in ("SKIPPED", "CANCELLED"):
        return "skipped"
    if item.status == "WAITING":
        return "waiting"
    if item.status == "RUNNING":
        return "running"
    return "retrying" if item.status == "QUEUED" and item.retry_at_ms is not None else ""


def _edges(workflow: Workflow, state: State) -> Iterator[dict[str, Any]]:
    """Every edge; `taken` is null where it is not decided, and for the way back of a loop."""
    for node in workflow.nodes:
        went = state.peek(node.id).edges_taken
        for edge in edges_of(node):
            taken = None if went is None else edge.target in went
            if taken is False and node.loops and node.id not in state.peek(edge.target).edges:
                # A later pass of the loop may take it.
                taken = None
            yield {"from": node.id, "to": edge.target, "label": edge.label, "kind": "edge", "taken": taken}
        if node.loop is not None:
            yield {"from": node.id, "to": node.loop.back_to, "label": "again", "kind": "loop", "taken": None}


_NEEDED = (
    *("node", "visit", "index", "until", "attempt", "duration_ms", "retry_at_ms"),
    *("taken", "dead", "dead_escapes", "cause"),
)


def run_timeline(events: Iterable[AnyEvent], until_ms: int | None) -> dict[str, Any]:
    """When the nodes of a run were queued, at work, waiting and backing off; row by row, and what followed what."""
    history = History((_light(event, seq) for seq, event in enumerate(events, 1)), until_ms)
    return {
        "begin_ms": history.begin_ms or 0,
        "end_ms": history.end_ms,
        "pauses": history.pauses,
        "last": history.last,
        "rows": [_row(row, history) for row in history.rows],
    }


def _light(event: AnyEvent, seq: int) -> dict[str, Any]:
    """What a timeline needs of an event: payloads are left alone."""
    shown = {name: getattr(event, name) for name in _NEEDED if hasattr(event, name)}
    return {"seq": seq, "type": type(event).__name__, "at_ms": event.at_ms, **shown}


def _row(row: Row, history: History) -> dict[str, Any]:
    tracks, shown = row.tracks, {"node": row.node, "undo": row.undo, "items": row.items, "count": len(row.tracks)}
    if len(tracks) > TRACKS_MAX:
        spans = sorted((part.begin_ms, part.end_ms) for track in tracks for part in track.segments if part.kind in WORK)
        shown["work"] = [list(span) for span in merged(spans)]
        longest = sorted(tracks, key=lambda track: track.segments[0].begin_ms - track.segments[-1].end_ms)
        chosen = {id(track) for track in longest[:TRACKS_MAX]}
        tracks = [track for track in tracks if id(track) in chosen or track.place[3] == NOT_AN_ITEM]
    shown["tracks"] = [
        {
            "visit": track.place[2],
            "index": track.place[3],
            "after": history.after(track),
            "segments": [
                [part.kind, part.begin_ms, part.end_ms, part.attempt, part.under_way] for part in track.segments
            ],
        }
        for track in tracks
    ]
    return shown
