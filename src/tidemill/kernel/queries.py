"""Read-only queries of a state or a log: visible outputs, tokens in flight, the path taken, recorded decisions.

Everything is derived. Workers, inspection and the audit must agree on what a node sees, so the visibility rules are
only here. Conditions are evaluated once, by a worker, and recorded with what they read, so the log alone explains why
a branch was taken, a loop continued or a node was skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, get_args

import msgspec

from tidemill.kernel import events as ev
from tidemill.kernel.activation import ENDED
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.state import State


def payloads_in(event: ev.AnyEvent) -> list[ev.Payload]:
    """Every value in an event, as its text or as a blob reference."""
    return [value for name in payload_fields(type(event)) if (value := getattr(event, name)) is not None]


@lru_cache(maxsize=256)
def payload_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind) if ev.BlobRef in get_args(field.type))


def told(route: ev.Route | None, taken: Sequence[str]) -> str:
    """What the conditions of a visit decided, in words; empty if it has none. `taken`: the edges it took."""
    if route is None:
        return ""
    loop = ""
    if route.again is not None:
        # Only the last pass takes edges.
        continued = "the loop has no pass left" if taken else "the loop continues"
        loop = continued if route.again else "the loop ended"
        loop += f": {route.again_reason}" if route.again_reason else ""
    return "; ".join(part for part in (loop, route.reason) if part)


class AnyError(Protocol):
    @property
    def code(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def message(self) -> str: ...


def message_of(error: AnyError) -> str:
    """The message of an error; that of an exception begins with its class, as Python prints it."""
    named = error.code == "exception" and error.type and error.message != error.type
    return f"{error.type}: {error.message}" if named else error.message


def _why(event: ev.Ending) -> str:
    match event:
        case ev.NodeCompleted():
            return told(event.route, event.taken)
        case ev.NodeSkipped() | ev.NodeCancelled() | ev.NodeOverridden():
            return event.reason
        case ev.NodeFailed():
            return f"{message_of(event.error)} [{event.error.code}]"
        case _:
            return ""


def _reads(event: ev.Ending) -> tuple[ev.Reading, ...]:
    if isinstance(event, ev.NodeSkipped | ev.NodeFailed):
        return event.reads
    return event.route.reads if isinstance(event, ev.NodeCompleted) and event.route is not None else ()


class VisibleOutput(NamedTuple):
    payload: ev.Payload
    visit: int
    status: str


def visible_output(flow: Workflow, state: State, reader: Node, target: str) -> VisibleOutput | str:
    """What `reader` sees of `target`: an output, or the words that complete "node x ..."."""
    visit = state.peek(target)
    if target in reader.reads_past:
        around = flow.by_id[target].loops
        for looping in reader.loops:
            if looping in around:
                past = visit.past.get(looping) if visit.past and state.peek(looping).passes else None
                return (
                    "has no value in the first pass"
                    if past is None
                    else _output_or_reason(past.status, past.output, past.visit)
                )
        return "has not ended"
    if visit.status in ENDED:
        return _output_or_reason(visit.status, visit.output, visit.visit)
    for looping in flow.by_id[target].loops:
        # A loop around the target alone may have started another pass: the result of the previous one counts.
        if looping in reader.loops:
            break
        past = visit.past.get(looping) if visit.past and state.peek(looping).passes else None
        if past is not None:
            return _output_or_reason(past.status, past.output, past.visit)
    return "has not ended"


def _output_or_reason(status: str, output: ev.Payload | None, visit: int) -> VisibleOutput | str:
    if output is not None and status in ("COMPLETED", "FAILED"):
        return VisibleOutput(output, visit, status)
    return {"SKIPPED": "was skipped", "CANCELLED": "was cancelled", "FAILED": "failed"}.get(status, "has not ended")


def iteration(state: State, node: Node) -> int:
    return state.peek(node.loops[0]).passes if node.loops else 0


def upstream(flow: Workflow, state: State, node: Node) -> dict[str, ev.Payload]:
    """Outputs of the parents whose edges were taken, by id."""
    visit = state.peek(node.id)
    found: dict[str, ev.Payload] = {}
    for parent in node.inbound:
        if visit.edges.get(parent):
            seen = visible_output(flow, state, node, parent)
            if isinstance(seen, VisibleOutput):
                found[parent] = seen.payload
    return found


class Token(NamedTuple):
    """A token at `to`, consumed when that visit ends."""

    source: str
    to: str
    visit: int
    hop: int


def tokens(flow: Workflow, state: State) -> Iterator[Token]:
    """The tokens that make up the counter. A start, loop or outputs token has no source node."""
    if state.rendering:
        yield Token("", "outputs", 1, 0)
    for name, visit in state.cells.items():
        if not visit.tokens or name not in flow.by_id:
            continue
        sources = [source for source in flow.by_id[name].inbound if visit.edges.get(source)]
        from_edges = 0 if visit.has_start_token else min(len(sources), visit.tokens)
        for source in sources[:from_edges]:
            yield Token(source, name, visit.visit, visit.hop)
        for _ in range(visit.tokens - from_edges):
            yield Token("", name, visit.visit, visit.hop)


class PathStep(msgspec.Struct, frozen=True, gc=False):
    """A visit that ended: how, which edges it took, and why."""

    node: str
    visit: int
    status: str
    went: tuple[str, ...]
    why: str = ""
    reads: dict[str, str] = {}
    """What the decision read: names with the digests of their texts."""


def path(events: Iterable[ev.AnyEvent]) -> Iterator[PathStep]:
    """The ends of a run's visits, in order. A reopened visit ends more than once."""
    admitted: dict[tuple[str, int], ev.Admission] = {}
    for event in events:
        if isinstance(event, ev.NodeStarted | ev.NodeExpanded) and event.admission is not None:
            admitted[event.node, event.visit] = event.admission
        if not isinstance(event, ev.Ending) or event.index != ev.NOT_AN_ITEM:
            continue
        status = _ENDS.get(type(event), "")
        if isinstance(event, ev.NodeOverridden):
            status = event.status if event.status != "QUEUED" else ""
        if status and not (isinstance(event, ev.NodeFailed) and event.retry_at_ms is not None):
            by = admitted.get((event.node, event.visit), _NO_ADMISSION)
            why = "; ".join(text for text in (by.reason, _why(event)) if text)
            yield PathStep(event.node, event.visit, status, event.taken, why, dict((*by.reads, *_reads(event))))


_NO_ADMISSION = ev.Admission("")


_ENDS: dict[type, str] = {
    ev.NodeCompleted: "COMPLETED",
    ev.NodeFailed: "FAILED",
    ev.NodeSkipped: "SKIPPED",
    ev.NodeCancelled: "CANCELLED",
}


NOT_TAKEN = "no inbound edge was taken"
"""The reason of a visit that was skipped because of those before it."""
DEAD_ENDS_MAX = 3


def dead_ends(flow: Workflow, state: State) -> tuple[str, ...]:
    """Warnings of a run that completed although none of its terminal nodes did: where its way ended, and why."""
    if state.status != "COMPLETED" or any(state.peek(name).output is not None for name in flow.terminals):
        return ()
    return tuple(words for node in flow.nodes if (words := _dead_end(state, node)))[:DEAD_ENDS_MAX]


def _dead_end(state: State, node: Node) -> str:
    visit = state.peek(node.id)
    if visit.status == "SKIPPED" and visit.why != NOT_TAKEN:
        why = f" ({visit.why})" if visit.why else ""
        skipped = f"no terminal node completed: {node.id} was skipped{why}"
        looping = next((name for name in node.loops if state.peek(name).status == "SKIPPED"), None)
        if looping is None:
            return skipped
        with_it = "" if looping == node.id else f" and {looping} with it"
        return f"{skipped}{with_it}, which ended the loop; end the loop with the condition of {looping} instead"
    # With declared outputs, a way may end at a node that leads on only when something goes wrong.
    leads_on = node.plain or node.branch or (node.loop and node.loop.break_path) or state.outputs is None
    if visit.status == "COMPLETED" and node.outbound and leads_on and not visit.edges_taken:
        return f"no terminal node completed: {node.id} chose none of {', '.join(node.outbound)}"
    return ""


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events of a run are wanted: those that meet every condition that is set."""

    node: str = ""
    visit: int | None = None
    index: int | None = None
    types: tuple[str, ...] = ()
    contains: str = ""
    """A text in the record, in any case."""

    def takes(self, event: ev.AnyEvent, record: bytes) -> bool:
        if self.types and type(event).__name__ not in self.types:
            return False
        if self.node and getattr(event, "node", "") != self.node:
            return False
        if self.visit is not None and getattr(event, "visit", 0) != self.visit:
            return False
        if self.index is not None and getattr(event, "index", ev.NOT_AN_ITEM) not in (self.index, ev.NOT_AN_ITEM):
            return False
        return not self.contains or self.contains.lower() in record.decode("utf-8", "replace").lower()


def begun_at(events: Sequence[ev.AnyEvent], node: str, visit: int, index: int) -> int:
    """The seq at which the latest attempt at a visit or item began, or a map knew its items; 0 if none did."""
    for seq in range(len(events), 0, -1):
        match events[seq - 1]:
            case (
                ev.NodeStarted(node=name, visit=number, index=item)
                | ev.NodeExpanded(node=name, visit=number, index=item)
            ):
                if (name, number, item) == (node, visit, index):
                    return seq
    return 0
