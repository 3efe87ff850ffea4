"""The graph of a workflow, and of a run with its statuses, times and the edges it took, as SVG.

Solid links were taken, dashed ones were not; thin ones are undecided. A stack of boxes is a map, a double frame a child
workflow. Links of loops lead up again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from tidemill.kernel.model import Node, NodeType, Workflow
from tidemill.pictures import DRAWN_NODES_MAX
from tidemill.pictures.figure import (
    BOLD,
    DASHED,
    KIND_SIGNS,
    MIDDLE,
    SMALL_SIZE,
    STATUS_SIGNS,
    TEXT_SIZE,
    Content,
    Heading,
    Sign,
    escaped,
    figure,
    line_at,
    number,
    page,
    rect_at,
    sign_at,
    text_at,
)
from tidemill.pictures.history import EventData, History
from tidemill.pictures.labels import condition_text, duration, edges_of, fitted, inline, text_width, type_name
from tidemill.pictures.layout import Box, Link, Point, Route, place

TEXT_WIDTH_MAX = 216.0
BOX_WIDTH_MIN = 104.0
LABEL_WIDTH_MAX = 240.0
LABEL_HEIGHT = 17.0
LOOP_ROOM = 26.0
"""On each side of a box that loops to itself."""
EXITS = ("rejection_path", "changes_path")
MAJORS = range(1, 100)
NOT_REACHED = "upstream_failed"
"""The code of a node that failed because a node before it did."""


class RunFacts(Protocol):
    """What is drawn of a run: a `RunView` has it."""

    run_id: str
    workflow: str
    version: int
    revision: int
    created_ms: int
    ended_ms: int | None
    last_event_ms: int
    failed_node: str | None
    waiting_for: tuple[str, ...]
    nodes: dict[str, dict[str, Any]]
    rollback: dict[str, Any]
    graph: Workflow | None
    traces: dict[str, tuple[int, tuple[str, ...] | None]]

    @property
    def status(self) -> str: ...


class AnyNodeType(Mapping[str, Sequence[NodeType]]):
    """Every name is a node type: a drawing needs no code."""

    def __getitem__(self, name: str) -> Sequence[NodeType]:
        return [NodeType(name=name, major=major, exits=EXITS) for major in MAJORS]

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def compiled(document: Any) -> Workflow:
    """The workflow of a document: a mapping, its YAML or JSON text, its file, a workflow in Python, or a compiled one.

    Text without a line break that is not a JSON object is the path of a file.
    """
    from tidemill.kernel.compile.compiler import compile_document
    from tidemill.kernel.document.normalize import with_stand_ins
    from tidemill.kernel.document.reader import format_of, read_document

    if isinstance(document, Workflow):
        return document
    if callable(authored := getattr(document, "document", None)):
        document = authored()
    if isinstance(document, str) and "\n" not in document and not document.lstrip().startswith("{"):
        document = Path(document)
    if isinstance(document, Path):
        document = read_document(document.read_bytes(), format=format_of(document.suffix))
    elif isinstance(document, str):
        document = read_document(document, format=None)
    return compile_document(with_stand_ins(document)[0], AnyNodeType()).workflow


def graph_svg(document: Any) -> str:
    """Draw a workflow: a mapping, YAML or JSON text, the path of a file, a workflow in Python, or a compiled one.

    Node types need not be installed. Raises Rejected for a document that is not valid.
    """
    workflow = compiled(document)
    return figure(_workflow_heading(workflow), _graph(workflow, None))


def graph_for_notebook(flow: Any) -> str:
    """The graph of a workflow in Python; of a large one, and of one that is wrong, the name and the reason."""
    try:
        size = len(flow.document()["nodes"])
        if size <= DRAWN_NODES_MAX:
            return f'<div style="overflow-x: auto">{graph_svg(flow)}</div>'
        said = f"{size} nodes"
    except Exception as error:
        said = str(error)
    return f"<pre>{escaped(f'{flow!r}: {said}')}</pre>"


def graph_html(document: Any) -> str:
    """An HTML page with the drawing of a workflow."""
    workflow = compiled(document)
    return page(workflow.name, graph_svg(workflow))


def run_svg(view: RunFacts, events: Iterable[EventData] = (), *, now_ms: int | None = None) -> str:
    """Draw a run: its graph with statuses, times, attempts and the edges it took.

    With the run's events, times include waits, and all passes of loops count. `now_ms` is until when a run that has not
    ended is drawn; by default, its last event.
    """
    history = History(events, now_ms if view.ended_ms is None else None)
    return run_figure(view, history, now_ms)


def run_figure(view: RunFacts, history: History, now_ms: int | None = None) -> str:
    if view.graph is None:
        raise ValueError("this view of a run has no graph: ask for it with `mill.show(run_id)`")
    return figure(run_heading(view, now_ms), _graph(view.graph, RunState(view, history)))


def _workflow_heading(workflow: Workflow) -> Heading:
    count = len(workflow.nodes)
    about = f"{count:,} node{'s' * (count != 1)}"
    return Heading(workflow.name, f"{workflow.description} · {about}" if workflow.description else about)


def run_heading(view: RunFacts, now_ms: int | None = None) -> Heading:
    sign = STATUS_SIGNS.get(view.status, STATUS_SIGNS["PENDING"])
    end_ms = view.ended_ms or max(now_ms or 0, view.last_event_ms)
    words = {"COMPLETED": "completed in", "RUNNING": "running for", "PAUSED": "paused,"}.get(view.status)
    spent = f"{words or sign.word + ' after'} {duration(end_ms - view.created_ms)}"
    began = datetime.fromtimestamp(view.created_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    patched = f"+{view.revision}" if view.revision else ""
    return Heading(f"{view.workflow}@{view.version}{patched}", f"{spent} · {began} · run {view.run_id}", sign)


_WAITS = {"human": "a decision", "signal": "a signal", "child": "a child run", "timer": "a timer", "loop": "its loop"}

Fate = Literal["plain", "error", "taken", "handled", "dead", "open"]


class RunState:
    """What is known of the nodes and edges of a run."""

    def __init__(self, view: RunFacts, history: History) -> None:
        self._view, self._history = view, history
        self._undone = {key.rsplit("/", 2)[0] for key in view.rollback["undone"]}
        self._elapsed = {row.node: row.elapsed_ms for row in history.rows if not row.undo}
        self._waits = {
            name.removesuffix(")"): what for what, _, name in (each.partition(" (") for each in view.waiting_for)
        }

    def status(self, node: Node) -> str:
        found = self._view.nodes.get(node.id, {})
        status: str = found.get("status", "PENDING")
        if status == "FAILED" and (found.get("error") or {}).get("code") == NOT_REACHED:
            return "PENDING"
        if status == "FAILED" and node.on_error != "fail" and node.id != self._view.failed_node:
            return "HANDLED"
        if status == "COMPLETED" and node.id in self._undone:
            return "UNDONE"
        return "RETRYING" if status == "QUEUED" and found.get("error") else status

    def fate(self, node: Node, target: str) -> Fate:
        edge = (node.id, target)
        _, went = self._view.traces.get(node.id, (0, None))
        status = self._view.nodes.get(node.id, {}).get("status")
        if edge in self._history.taken or (went is not None and target in went):
            return "handled" if target in node.error_path else "taken"
        ended = status in ("COMPLETED", "FAILED", "SKIPPED", "CANCELLED")
        return "dead" if edge in self._history.dead or ended else "open"

    def passes(self, node: Node) -> int:
        return int(self._view.nodes.get(node.id, {}).get("visits", 1))

    def word(self, node: Node) -> str:
        return STATUS_SIGNS[self.status(node)].word

    def lines(self, node: Node) -> list[str]:
        status = self.status(node)
        facts: Iterable[str] = () if status in ("PENDING", "SKIPPED") else self.facts(node)
        lines = [" · ".join((type_name(node), *facts))]
        error = self._view.nodes.get(node.id, {}).get("error") or {}
        if error and status not in ("CANCELLED", "PENDING"):
            lines.append(str(error.get("code", "")))
        elif status == "WAITING" and node.id in self._waits:
            what = self._waits[node.id]
            lines.append(f"waits for {_WAITS.get(what, what)}")
        return lines

    def facts(self, node: Node) -> Iterator[str]:
        """Items, passes, attempts and time, as far as there is something to say."""
        found = self._view.nodes.get(node.id, {})
        if items := found.get("items"):
            count, done = items["count"], items["done"]
            yield f"{count:,} items" if done + items["failed"] >= count else f"{done:,} of {count:,} items"
            if items["failed"]:
                yield f"{items['failed']:,} failed"
        if found.get("visits", 1) > 1:
            yield f"{found['visits']:,} {'passes' if node.loops else 'visits'}"
        elif found.get("attempts", 0) > 1:
            yield f"{found['attempts']:,} attempts"
        spent = self._elapsed.get(node.id, self._view.traces.get(node.id, (0, None))[0])
        if spent:
            yield duration(spent)

    def tooltip(self, node: Node) -> str:
        found = self._view.nodes.get(node.id, {})
        error = found.get("error") or {}
        said = f"\n{error.get('message', '')} [{error.get('code', '')}]" if error else ""
        return f"\n{self.word(node)}{said}"


class _NodeBox(NamedTuple):
    node: Node
    sign: Sign
    name: str
    lines: list[str]
    box: Box
    tooltip: str
    status: str = ""
    loops: bool = False

    @property
    def width(self) -> float:
        return self.box.width - 2 * LOOP_ROOM * self.loops


def _node_box(node: Node, state: RunState | None) -> _NodeBox:
    notes = [note for note in _notes(node) if note]
    if state is None:
        kind = "branch" if node.branch is not None else type_name(node)
        sign, lines, status = KIND_SIGNS.get(kind, KIND_SIGNS["step"]), [_type_words(node), *notes], ""
    else:
        status = state.status(node)
        sign, lines = STATUS_SIGNS[status], state.lines(node)
    name = fitted(node.id, TEXT_SIZE, TEXT_WIDTH_MAX, bold=True)
    lines = [fitted(line, SMALL_SIZE, TEXT_WIDTH_MAX) for line in lines]
    text = max(text_width(name, TEXT_SIZE, bold=True), *(text_width(line, SMALL_SIZE) for line in lines))
    loops = node.loop is not None and node.loop.back_to == node.id
    width = max(BOX_WIDTH_MIN, text + 52.0) + 2 * LOOP_ROOM * loops
    tooltip = "\n".join([f"{node.id} · {type_name(node)}", *notes]) + (state.tooltip(node) if state else "")
    return _NodeBox(node, sign, name, lines, Box(width, 33.0 + 15.0 * len(lines)), tooltip, status, loops)


def _type_words(node: Node) -> str:
    config = node.config if isinstance(node.config, dict) else {}
    named = config.get({"workflow": "workflow", "python": "function"}.get(type_name(node), ""))
    return f"{type_name(node)} {named}" if isinstance(named, str) and "{{" not in named else type_name(node)


def _notes(node: Node) -> Iterator[str]:
    if node.when is not None:
        yield f"only if {condition_text(node.when)}"
    if node.map is not None:
        yield f"for each of {inline(node.map.over).removeprefix('{{').removesuffix('}}').strip()}"
        yield f"{node.map.max_parallel} at a time" if node.map.max_parallel is not None else ""
        yield f"{node.map.tolerate:,} may fail" if node.map.tolerate else ""
    if node.loop is not None and node.loop.back_to == node.id:
        yield f"↺ while {condition_text(node.loop.condition)}"
    if node.join != "all" and len(node.inbound) > 1:
        yield f"needs {node.quorum} of {len(node.inbound)}" if node.join == "quorum" else f"join: {node.join}"
    if node.on_error == "continue":
        yield "failure tolerated"


class _LinkStyle(NamedTuple):
    role: str
    width: float = 1.5
    more: str = ""


_LINK_STYLES: dict[Fate, _LinkStyle] = {
    "plain": _LinkStyle("link"),
    "error": _LinkStyle("bad", 1.5, DASHED),
    "taken": _LinkStyle("soft", 2.0),
    "handled": _LinkStyle("wait", 2.0),
    "dead": _LinkStyle("faint", 1.5, DASHED),
    "open": _LinkStyle("faint", 1.2),
}
_LOOP, _LOOP_UNUSED = _LinkStyle("loop", 1.6), _LinkStyle("loop", 1.2, DASHED)
_ORDER: list[Fate] = ["dead", "open", "error", "plain", "taken", "handled"]
"""Links that matter more are drawn over the others."""


class _DrawnLink(NamedTuple):
    link: Link
    style: _LinkStyle
    label: str
    layer: int
    said: str = ""
    """The label in full, where it was cut."""


def _graph(workflow: Workflow, state: RunState | None) -> Content:
    boxes = [_node_box(node, state) for node in workflow.nodes]
    links = list(_links(workflow, state))
    layout = place([each.box for each in boxes], [each.link for each in links])
    parts: list[str] = []
    labels: list[str] = []
    for drawn, route in sorted(zip(links, layout.routes, strict=True), key=lambda pair: pair[0].layer):
        parts.append(_link(route, drawn.style))
        if route.label is not None and drawn.label:
            labels.append(_label(route.label, drawn))
    parts += labels
    for each, centre in zip(boxes, layout.boxes, strict=True):
        parts += _drawn_box(each, centre, state)
    return Content(layout.width, layout.height, parts, _key(boxes, links, state))


def _links(workflow: Workflow, state: RunState | None) -> Iterator[_DrawnLink]:
    index = {node.id: position for position, node in enumerate(workflow.nodes)}
    for source, node in enumerate(workflow.nodes):
        for edge in edges_of(node):
            fate: Fate = state.fate(node, edge.target) if state is not None else "error" if edge.error else "plain"
            label = fitted(edge.label, SMALL_SIZE, LABEL_WIDTH_MAX)
            link = Link(source, index[edge.target], _label_box(label))
            said = edge.label if label.endswith("…") else ""
            yield _DrawnLink(link, _LINK_STYLES[fate], label, _ORDER.index(fate), said)
        loop = node.loop
        if loop is not None and loop.back_to != node.id:
            again = 0 if state is None else state.passes(node) - 1
            most = "↺" if loop.max_iterations is None else f"↺ at most {loop.max_iterations:,} passes"
            label = most if state is None else f"↺ {again:,} time{'s' * (again != 1)}"
            style = _LOOP if state is None or again else _LOOP_UNUSED
            yield _DrawnLink(Link(source, index[loop.back_to], _label_box(label), True), style, label, len(_ORDER))


def _label_box(label: str) -> Box | None:
    return Box(text_width(label, SMALL_SIZE) + 12.0, LABEL_HEIGHT) if label else None


def _link(route: Route, style: _LinkStyle) -> str:
    *points, last = route.points
    tip = 1.0 if last.y >= points[-1].y else -1.0
    path = [f"M{number(points[0].x)} {number(points[0].y)}"]
    before = points[0]
    for point in (*points[1:], last._replace(y=last.y - 5.0 * tip)):
        if point.x == before.x:
            path.append(f"V{number(point.y)}")
        else:
            middle = number((before.y + point.y) / 2)
            x, y = number(point.x), number(point.y)
            path.append(f"C{number(before.x)} {middle} {x} {middle} {x} {y}")
        before = point
    return line_at("".join(path), style.role, style.width, style.more) + _arrow(last, tip, style.role)


def _arrow(at: Point, tip: float, role: str) -> str:
    base = number(at.y - 8.0 * tip)
    corners = f"M{number(at.x)} {number(at.y)}L{number(at.x - 4)} {base}L{number(at.x + 4)} {base}Z"
    return f'<path d="{corners}" class="f-{role}"/>'


def _label(at: Point, drawn: _DrawnLink) -> str:
    box = drawn.link.label or Box(0, 0)
    back = rect_at(at.x - box.width / 2, at.y - box.height / 2, box.width, box.height, "f-page", ' rx="4"')
    role = drawn.style.role if drawn.style.role in ("loop", "bad", "wait") else "soft"
    text = back + text_at(at.x, at.y + 4.0, drawn.label, role, more=MIDDLE)
    return f"<g><title>{escaped(drawn.said)}</title>{text}</g>" if drawn.said else text


_PALE = {"done": "done-pale", "bad": "bad-pale", "busy": "busy-pale", "wait": "wait-pale"}


def _drawn_box(each: _NodeBox, centre: Point, state: RunState | None) -> Iterator[str]:
    width, height = each.width, each.box.height
    left, top = centre.x - width / 2, centre.y - height / 2
    quiet = each.status in ("SKIPPED", "PENDING", "CANCELLED")
    border = each.sign.role if state is not None and not quiet else "faint" if quiet else "link"
    fill = "page" if quiet else _PALE.get(each.sign.role, "plain")
    more = ' rx="8" stroke-width="1.2"' + DASHED * (each.status == "SKIPPED")
    yield f"<g><title>{escaped(each.tooltip)}</title>"
    if each.node.map is not None:
        for step in (6.0, 3.0):
            yield rect_at(left + step, top + step, width, height, f"f-{fill} s-{border}", more)
    yield rect_at(left, top, width, height, f"f-{fill} s-{border}", more)
    if type_name(each.node) == "workflow":
        thin = ' rx="5.5" fill="none" stroke-width="0.8"'
        yield rect_at(left + 3, top + 3, width - 6, height - 6, f"s-{border}", thin)
    yield sign_at(left + 19, top + 18.5, each.sign)
    yield text_at(left + 35, top + 23, each.name, "soft" if quiet else "text", TEXT_SIZE, BOLD)
    for row, line in enumerate(each.lines):
        is_error = row > 0 and each.status == "FAILED"
        yield text_at(left + 35, top + 39 + 15 * row, line, "bad" if is_error else "soft")
    if each.loops:
        style = _LOOP if state is None or state.passes(each.node) > 1 else _LOOP_UNUSED
        yield _self_loop(left + width, centre.y, style)
    yield "</g>"


def _self_loop(x: float, y: float, style: _LinkStyle) -> str:
    far, low, high = number(x + LOOP_ROOM - 4), y + 8, y - 8
    path = f"M{number(x)} {number(low)}C{far} {number(low + 5)} {far} {number(high - 5)} {number(x + 5)} {number(high)}"
    head = f"M{number(x)} {number(high)}L{number(x + 8)} {number(high - 4)}L{number(x + 8)} {number(high + 4)}Z"
    return line_at(path, style.role, style.width, style.more) + f'<path d="{head}" class="f-{style.role}"/>'


def _key(boxes: Sequence[_NodeBox], links: Sequence[_DrawnLink], state: RunState | None) -> list[tuple[str, str]]:
    signs: Iterable[Sign] = dict.fromkeys(
        sign for sign in (*STATUS_SIGNS.values(), *KIND_SIGNS.values()) if any(each.sign is sign for each in boxes)
    )
    key = [(sign_at(0, 0, sign), sign.word) for sign in signs]
    if state is None and len(key) < 2:
        key = []
    words: dict[_LinkStyle, str] = {
        _LINK_STYLES["taken"]: "taken",
        _LINK_STYLES["handled"]: "taken after a failure",
        _LINK_STYLES["dead"]: "not taken",
        _LINK_STYLES["error"]: "after a failure",
        _LOOP: "loop",
    }
    used = {each.style for each in links}
    if any(each.loops for each in boxes):
        used.add(_LOOP)
    for style, word in words.items():
        if style in used:
            key.append((line_at("M-10 0H10", style.role, style.width, style.more), word))
    return key
