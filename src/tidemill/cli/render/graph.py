"""A workflow drawn in text: one line per node, ways out as an indented tree, joins back at the level above.

    ● receive                  value
    ├─● stock                  python    → decide
    ├─◆ fraud                  python
    │ ├─ if output.score > 80
    │ │ ● review               human     → decide
    │ ╰─ otherwise → decide
    ● decide                   value     ← stock, review, fraud

Loops are brackets on the left. A node hangs below its *dominator*, the last node that all paths to it share: a node
with one way in is an arm of it, one with several a join, which continues at the dominator's own level. Lines are made
without recursion and nesting is drawn to a limit: O(edges · log nodes), however deep the graph is. The Mermaid
flowchart keeps ids that Mermaid can read and escapes the rest; dashed arrows are error paths, thick ones loops.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Collection, Iterator
from functools import reduce
from heapq import heapify, heappop, heappush
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tidemill.cli.render.terminal import console, one_line, sanitize, supports_unicode
from tidemill.errors import rejected
from tidemill.kernel.model import Loop, Map, Node, Workflow
from tidemill.pictures.labels import Edge, condition_text, edges_of, inline, type_name

if TYPE_CHECKING:
    from tidemill.client import Tidemill
    from tidemill.pictures.svg import RunState

LANES_MAX = 6
"""Loops nested deeper than this have no bracket; the words at their looping node still tell."""


class LoopSpan(NamedTuple):
    top: int
    bottom: int


def loop_brackets(spans: list[LoopSpan], height: int) -> list[str]:
    """What stands left of each line. Outer loops are further left; loops of one node are a mark of their own."""
    lanes = _lanes([span for span in spans if span.top < span.bottom])
    alone = {span.bottom for span in spans if span.top >= span.bottom}
    if not lanes and not alone:
        return [""] * height
    width = max(1, len(lanes))
    rows = [[" "] * (2 * width) for _ in range(height)]
    for number, lane in enumerate(lanes):
        column = 2 * number
        for span in lane:
            rows[span.top][column : column + 2] = "╭▶"
            rows[span.bottom][column : column + 2] = "╰─"
            for line in range(span.top + 1, span.bottom):
                rows[line][column] = "│"
    for line in alone:
        # A loop of one node inside the innermost bracket, on its first or last line, keeps only its words.
        if rows[line][-1] == " ":
            rows[line][-1] = "↺"
    return ["".join(row) for row in rows]


def _lanes(spans: list[LoopSpan]) -> list[list[LoopSpan]]:
    """Give each span the leftmost lane in which it meets no other, the longest first."""
    lanes: list[list[LoopSpan]] = []
    ends: list[int] = []
    for span in sorted(spans, key=lambda span: (span.top, -span.bottom)):
        free = next((number for number, end in enumerate(ends) if end < span.top), None)
        if free is not None:
            lanes[free].append(span)
            ends[free] = span.bottom
        elif len(lanes) < LANES_MAX:
            lanes.append([span])
            ends.append(span.bottom)
    return lanes


START = -1
"""The imaginary node before all entries."""


class DominatorTree:
    """Positions in `workflow.nodes`: for each node its arms and joins, and how many nodes hang below it."""

    def __init__(self, workflow: Workflow) -> None:
        nodes = workflow.nodes
        self.index = {node.id: number for number, node in enumerate(nodes)}
        self.order = _topological(workflow, self.index)
        tree = _Ancestry(len(nodes))
        for number in self.order:
            above = [self.index[name] for name in nodes[number].inbound]
            tree.hang(number, reduce(tree.meet, above) if above else START)
        parents = tree.parents
        self.arms: dict[int, list[int]] = {}
        self.joins: dict[int, list[int]] = {}
        for number in self.order:
            kind = self.joins if len(nodes[number].inbound) > 1 else self.arms
            kind.setdefault(parents[number], []).append(number)
        self.sizes = [1] * len(nodes)
        for number in reversed(self.order):
            if parents[number] != START:
                self.sizes[parents[number]] += self.sizes[number]


def _topological(workflow: Workflow, index: dict[str, int]) -> list[int]:
    """Every node after the nodes before it; among several the one that was written first."""
    open_edges = [len(node.inbound) for node in workflow.nodes]
    ready = [number for number, count in enumerate(open_edges) if not count]
    heapify(ready)
    order = []
    while ready:
        number = heappop(ready)
        order.append(number)
        for name in workflow.nodes[number].outbound:
            target = index[name]
            open_edges[target] -= 1
            if not open_edges[target]:
                heappush(ready, target)
    return order


class _Ancestry:
    """A growing tree that finds the last common ancestor of two nodes in O(log depth).

    Each node remembers its parent and one ancestor further up, placed so that jumps of doubling length exist
    at every depth (skew-binary jump pointers). The root is START, stored at the end of each list.
    """

    def __init__(self, size: int) -> None:
        self.parents = [START] * (size + 1)
        self._jumps = [START] * (size + 1)
        self._depths = [0] * (size + 1)

    def hang(self, node: int, parent: int) -> None:
        jump = self._jumps[parent]
        even = self._depths[parent] - self._depths[jump] == self._depths[jump] - self._depths[self._jumps[jump]]
        self.parents[node], self._depths[node] = parent, self._depths[parent] + 1
        self._jumps[node] = self._jumps[jump] if even else parent

    def meet(self, one: int, other: int) -> int:
        one, other = self._lifted(one, self._depths[other]), self._lifted(other, self._depths[one])
        while one != other:
            if self._jumps[one] != self._jumps[other]:
                one, other = self._jumps[one], self._jumps[other]
            else:
                one, other = self.parents[one], self.parents[other]
        return one

    def _lifted(self, node: int, depth: int) -> int:
        while self._depths[node] > depth:
            node = self._jumps[node] if self._depths[self._jumps[node]] >= depth else self.parents[node]
        return node


CONDITION_COLUMNS_MAX = 56


def condition_words(condition: Any, columns_max: int = CONDITION_COLUMNS_MAX) -> str:
    return one_line(condition_text(condition), columns_max)


def notes_of(node: Node) -> list[str]:
    found = []
    if node.when is not None:
        found.append(f"only if {condition_words(node.when)}")
    if node.map is not None:
        found.append(map_words(node.map))
    if node.loop is not None:
        found.append(loop_words(node, node.loop))
    if node.on_error == "continue":
        found.append("failure tolerated")
    return found


def map_words(over: Map) -> str:
    words = f"for each of {one_line(inline(over.over), CONDITION_COLUMNS_MAX)}"
    if over.max_parallel is not None:
        words += f", {over.max_parallel} at a time"
    if over.tolerate:
        words += f", {over.tolerate} may fail"
    return words


def loop_words(node: Node, loop: Loop) -> str:
    where = "again" if loop.back_to == node.id else f"back to {loop.back_to}"
    limit = "" if loop.max_iterations is None else f", at most {loop.max_iterations} passes"
    return f"↺ {where} while {condition_words(loop.condition)}{limit}"


def join_words(node: Node, names_max: int = 6) -> str:
    """Where the tokens of a join come from, and how many of them it needs."""
    inbound = node.inbound
    names = ", ".join(inbound[:names_max])
    if len(inbound) > names_max:
        names += f" and {len(inbound) - names_max} more"
    match node.join:
        case "all":
            return f"← {names}"
        case "quorum":
            return f"← {node.quorum} of {names}"
        case kind:
            return f"← {kind} of {names}"


NESTING_MAX = 24
"""Deeper arms are drawn at this level, and say where they come from."""
MAIN_LINE_MIN = 6
"""An arm of at least this many nodes, twice as many as its sisters together, continues at its parent's level."""
NAME_COLUMNS_MAX = 52
NAMES_MAX = 4


class Line(NamedTuple):
    """One line of the drawing in its parts, so that a terminal can colour them."""

    brackets: str
    rails: str
    marker: str
    name: str
    kind: str
    notes: str
    node: int = START

    @property
    def head(self) -> str:
        return f"{self.brackets}{self.rails}{self.marker}{' ' if self.marker else ''}{self.name}"


class _Task(NamedTuple):
    """A node still to be drawn: what stands before it on its own line, and before the lines below."""

    node: int
    first: str
    rest: str
    depth: int
    note: str = ""


class _Way(NamedTuple):
    """A way out of a node: a label and, where it is drawn below, an arm."""

    edge: Edge
    arm: int | None


def draw(workflow: Workflow) -> list[Line]:
    lines = list(_Drawing(workflow).lines())
    at = {line.node: number for number, line in enumerate(lines) if line.node != START}
    index = {node.id: number for number, node in enumerate(workflow.nodes)}
    spans = [
        LoopSpan(at[index[node.loop.back_to]], at[index[node.id]]) for node in workflow.nodes if node.loop is not None
    ]
    bracket_columns = loop_brackets(spans, len(lines))
    return [line._replace(brackets=brackets) for line, brackets in zip(lines, bracket_columns, strict=True)]


def as_text(lines: list[Line]) -> Iterator[str]:
    head, kind = columns(lines)
    for line in lines:
        yield f"{line.head:<{head}}  {line.kind:<{kind}}  {line.notes}".rstrip()


def columns(lines: list[Line]) -> tuple[int, int]:
    """The widths of the first two columns; a few long names do not push everything to the right."""
    heads = [len(line.head) for line in lines if line.kind]
    return min(max(heads, default=0), NAME_COLUMNS_MAX), max((len(line.kind) for line in lines), default=0)


def drawing_text(heading: str, lines: list[Line]) -> str:
    return "".join(f"{line}\n" for line in (heading, "", *as_text(lines)))


PictureForm = Literal["text", "mermaid", "svg", "html"]
_FORMS: dict[str, PictureForm] = {
    ".svg": "svg",
    ".html": "html",
    ".htm": "html",
    ".mmd": "mermaid",
    ".md": "mermaid",
    ".txt": "text",
}


def form_of(output: str | None) -> PictureForm | None:
    """What a file should hold, by the end of its name. Raises Rejected for one that says something else."""
    suffix = "" if output is None else PurePath(output).suffix.lower()
    if suffix and suffix not in _FORMS:
        hint = f"name a file that ends in {', '.join(_FORMS)}, or give --format"
        raise rejected("format_unknown", f"no picture is written as {suffix}", hint=hint)
    return _FORMS.get(suffix)


def check_screen(form: PictureForm, output: str | None, name: str) -> None:
    """Refuse the source of a picture on a terminal, which does not draw it; `name` is what a file could be called."""
    if output is None and form in ("svg", "html") and sys.stdout.isatty():
        hint = f"name a file for it: -o {name}.{form}, or use -o - to print it anyway"
        raise rejected("usage", f"a terminal does not show {form}", path="/output", hint=hint)


def print_picture(picture: str, output: str | None) -> None:
    """Write a picture to a file, or to standard output if there is none. Raises Rejected."""
    if output is None:
        sys.stdout.write(picture)
        return
    from tidemill.cli.inputs import writing

    with writing(output, as_json=False) as (file, _):
        file.write(picture.encode())


_MARKERS = {
    **dict.fromkeys("◆◷↻!", "yellow"),
    **dict.fromkeys("○⊘", "dim"),
    "✓": "green",
    "✗": "red",
    "↶": "magenta",
}


def print_drawing(heading: str, lines: list[Line]) -> None:
    """Print a drawing, in colours where there is a terminal."""
    if not supports_unicode():
        sys.stdout.write(drawing_text(heading, lines))
        return
    from rich.text import Text

    screen = console()
    head, kind = columns(lines)
    screen.print(Text(heading, style="bold"), end="\n\n")
    for line in lines:
        text = Text()
        text.append(line.brackets, "magenta")
        text.append(line.rails, "blue")
        text.append(line.marker + (" " if line.marker else ""), _MARKERS.get(line.marker, "blue"))
        text.append(line.name, "bold" if line.kind else "italic yellow")
        text.append(" " * max(2, head - len(line.head) + 2))
        text.append(f"{line.kind:<{kind}}  ", "cyan")
        text.append(line.notes, "dim")
        text.rstrip()
        screen.print(text, no_wrap=True, overflow="ellipsis")


_SIGNS = {
    "COMPLETED": "✓",
    "FAILED": "✗",
    "HANDLED": "!",
    "RETRYING": "↻",
    "WAITING": "◷",
    "QUEUED": "◌",
    "PENDING": "○",
    "SKIPPED": "⊘",
    "CANCELLED": "⊘",
    "UNDONE": "↶",
}


def draw_run(workflow: Workflow, state: RunState) -> list[Line]:
    """The drawing of a run: each node with its status and what there is to say about it."""
    return [
        line if line.node == START else _with_status(line, workflow.nodes[line.node], state) for line in draw(workflow)
    ]


def _with_status(line: Line, node: Node, state: RunState) -> Line:
    notes = " · ".join((state.word(node), *state.facts(node)))
    return line._replace(marker=_SIGNS.get(state.status(node), "●"), notes=sanitize(notes))


class RunPicture(NamedTuple):
    run_id: str
    form: PictureForm
    picture: str
    file: str | None
    """Where it was written; None for standard output."""
    drawing: tuple[str, list[Line]] | None = None
    """A picture in text in its parts: the heading, and the lines."""

    def to_dict(self) -> dict[str, Any]:
        where = {"picture": self.picture} if self.file is None else {"file": self.file}
        return {"run_id": self.run_id, "format": self.form, **where}


def draw_run_picture(
    mill: Tidemill,
    run_id: str,
    *,
    form: PictureForm | None,
    timeline: bool,
    output: str | None,
    at: int | None,
    as_json: bool,
) -> RunPicture:
    """Draw a run as it is, or as it was after event `at`, and write it to `output` if that is a file."""
    from tidemill.pictures import run_html, run_svg, timeline_svg
    from tidemill.pictures.history import History
    from tidemill.pictures.svg import RunState, run_heading

    form = form or form_of(output) or ("svg" if timeline else "text")
    if form == "mermaid" or (timeline and form == "text"):
        message = "a timeline is drawn as svg or html" if timeline else "a run is drawn as text, svg or html"
        raise rejected("usage", message, path="/format", hint="say --format svg")
    if not as_json:
        check_screen(form, output, "timeline" if timeline else "run")
    view = mill.show(run_id, at=at)
    events = mill.events(view.run_id, limit=at)
    now_ms = time.time_ns() // 1_000_000 if at is None and view.ended_ms is None else None
    drawing = None
    if form == "html":
        picture = run_html(view, events, now_ms=now_ms)
    elif form == "svg":
        picture = (timeline_svg if timeline else run_svg)(view, events, now_ms=now_ms)
    else:
        assert view.graph is not None, "a run that is shown has a graph"
        heading = " · ".join(run_heading(view, now_ms)[:2])
        drawing = (sanitize(heading), draw_run(view.graph, RunState(view, History(events, now_ms))))
        picture = drawing_text(*drawing)
    if output is not None:
        print_picture(picture, output)
    return RunPicture(view.run_id, form, picture, output, drawing if output is None else None)


class _Drawing:
    def __init__(self, workflow: Workflow) -> None:
        self._nodes = workflow.nodes
        self._outline = DominatorTree(workflow)
        self._tasks: list[_Task | Line] = []

    def lines(self) -> Iterator[Line]:
        """Draw from the entries on. The stack holds finished lines and nodes to draw, the next one last."""
        self._begin()
        while self._tasks:
            task = self._tasks.pop()
            if isinstance(task, Line):
                yield task
                continue
            node = self._nodes[task.node]
            arms = {self._nodes[arm].id: arm for arm in self._outline.arms.get(task.node, ())}
            ways = [_Way(edge, arms.get(edge.target)) for edge in edges_of(node, condition_words)]
            below = [way for way in ways if way.arm is not None or way.edge.label]
            beside = [way.edge.target for way in ways if way.arm is None and not way.edge.label]
            yield _line(task, node, beside)
            self._descend(task, below)

    def _begin(self) -> None:
        entries, joins = self._outline.arms.get(START, []), self._outline.joins.get(START, [])
        if len(entries) == 1 and not joins:
            self._tasks.append(_Task(entries[0], "", "", 0))
            return
        root = _Task(START, "", "", 0)
        self._descend(root, [_Way(Edge(self._nodes[entry].id), entry) for entry in entries])
        self._tasks.append(Line("", "", "○", "start", "", ""))

    def _descend(self, task: _Task, ways: list[_Way]) -> None:
        """Put what hangs below a node on the stack: arms first, then joins, each at its level."""
        joins = self._outline.joins.get(task.node, [])
        main = None if joins else self._main_line(ways, task.depth)
        sides = [way for way in ways if way is not main]
        plan: list[_Task | Line] = []
        for number, way in enumerate(sides):
            last = number == len(sides) - 1 and main is None and not joins
            plan.extend(self._side(task, way, last))
        if main is not None and main.arm is not None:
            plan.append(_Task(main.arm, task.rest, task.rest, task.depth))
        plan.extend(_Task(join, task.rest, task.rest, task.depth) for join in joins)
        self._tasks.extend(reversed(plan))

    def _main_line(self, ways: list[_Way], depth: int) -> _Way | None:
        """The way that goes straight on below its node: the only one, or one that outweighs all others."""
        sizes = self._outline.sizes
        weights = [0 if way.arm is None else sizes[way.arm] for way in ways]
        best = max(range(len(ways)), key=weights.__getitem__, default=None)
        if best is None or ways[best].arm is None or ways[best].edge.label:
            return None
        others = sum(weights) - weights[best]
        if len(ways) == 1 or (weights[best] >= MAIN_LINE_MIN and weights[best] >= 2 * others):
            return ways[best]
        return None

    def _side(self, task: _Task, way: _Way, last: bool) -> Iterator[_Task | Line]:
        edge, rails = way.edge, task.rest
        dash = "╌" if edge.error else "─"
        corner = ("╰" if last else "├") + dash
        if way.arm is None:
            yield Line("", f"{rails}{corner} ", "", f"{edge.label} → {edge.target}", "", "")
            return
        if task.depth >= NESTING_MAX:
            source = f"← {self._nodes[task.node].id}" + (f" {edge.label}" if edge.label else "")
            yield _Task(way.arm, rails, rails, task.depth, source)
            return
        inner = rails + ("  " if last else "│ ")
        if edge.label:
            yield Line("", f"{rails}{corner} ", "", edge.label, "", "")
            yield _Task(way.arm, inner, inner, task.depth + 1)
        else:
            yield _Task(way.arm, rails + corner, inner, task.depth + 1)


def _line(task: _Task, node: Node, beside: list[str]) -> Line:
    notes = []
    if len(node.inbound) > 1:
        notes.append(join_words(node))
    elif task.note:
        notes.append(task.note)
    if beside:
        more = f" and {len(beside) - NAMES_MAX} more" if len(beside) > NAMES_MAX else ""
        notes.append(f"→ {', '.join(beside[:NAMES_MAX])}{more}")
    notes.extend(notes_of(node))
    marker = "◆" if node.branch is not None else "●"
    return Line("", task.first, marker, node.id, type_name(node), " · ".join(notes), task.node)


_SAFE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_RESERVED = frozenset(
    {"call", "class", "classdef", "click", "default", "direction", "end", "flowchart", "graph", "href"}
    | {"interpolate", "linkstyle", "style", "subgraph"}
)
_ESCAPED = str.maketrans(
    {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;", "|": "#124;", "\\": "#92;"}
)


def mermaid_lines(workflow: Workflow, waiting: Collection[str] = ()) -> Iterator[str]:
    """The flowchart, line by line. `waiting` names the types that wait without working, which look different."""
    names = {node.id: _name(node.id, number) for number, node in enumerate(workflow.nodes)}
    yield "---"
    yield f"title: {workflow.name}"
    yield "---"
    yield "flowchart TD"
    for node in workflow.nodes:
        yield f"    {names[node.id]}{_shape(node, waiting)}"
    for node in workflow.nodes:
        for edge in edges_of(node, condition_words):
            label = f'|"{_quoted(edge.label)}"|' if edge.label else ""
            yield f"    {names[node.id]} {'-.->' if edge.error else '-->'}{label} {names[edge.target]}"
        if node.loop is not None:
            label = _quoted(loop_words(node, node.loop))
            yield f'    {names[node.id]} ==>|"{label}"| {names[node.loop.back_to]}'


def _name(node_id: str, number: int) -> str:
    if _SAFE.fullmatch(node_id) and node_id.lower() not in _RESERVED and not node_id.startswith("node_"):
        return node_id
    return f"node_{number}"


def _shape(node: Node, waiting: Collection[str]) -> str:
    """Rhombus: branch. Hexagon: loop. Double edge: map. Rounded: waits. Rectangle: everything else."""
    text = f"{_quoted(node.id)}<br/><small>{_quoted(type_name(node))}</small>"
    if node.map is not None:
        text += f"<br/><small>{_quoted(map_words(node.map))}</small>"
    shapes = (
        (node.branch is not None, '{"', '"}'),
        (node.loop is not None, '{{"', '"}}'),
        (node.map is not None, '[["', '"]]'),
        (type_name(node) in waiting, '(["', '"])'),
        (True, '["', '"]'),
    )
    begin, end = next((begin, end) for applies, begin, end in shapes if applies)
    return begin + text + end


def _quoted(text: str) -> str:
    return text.translate(_ESCAPED)
