"""A workflow drawn in text: one line per node, ways out as an indented tree, joins back at the level above.

    ● receive                  value
    ├─● stock                  python    → decide
    ├─◆ fraud                  python
    │ ├─ if output.score > 80
    │ │ ● review               human     → decide
    │ ╰─ otherwise → decide
    ● decide                   value     ← stock, review, fraud

Loops are brackets in a gutter on the left. Lines are made one after another without recursion, and nesting is
drawn to a limit, so the cost stays proportional to the graph, however deep it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidemill.cli.gutter import Span, gutter_of
from tidemill.cli.outline import START, Outline
from tidemill.cli.sketch import Edge, edges_of, join_words, notes_of, type_name
from tidemill.kernel.model import Node, Workflow

NESTING_MAX = 24
"""Deeper arms are drawn at this level, and say where they come from."""
MAIN_LINE_MIN = 6
"""An arm of at least this many nodes, twice as many as its sisters together, goes on at its parent's level."""
NAME_COLUMNS_MAX = 52
NAMES_MAX = 4


class Line(NamedTuple):
    """One line of the drawing in its parts, so that a terminal can colour them."""

    gutter: str
    rails: str
    marker: str
    name: str
    kind: str
    notes: str
    node: int = START

    @property
    def head(self) -> str:
        """What stands before the column of types."""
        return f"{self.gutter}{self.rails}{self.marker}{' ' if self.marker else ''}{self.name}"


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
    """Draw a workflow."""
    lines = list(_Drawing(workflow).lines())
    at = {line.node: number for number, line in enumerate(lines) if line.node != START}
    index = {node.id: number for number, node in enumerate(workflow.nodes)}
    spans = [Span(at[index[node.loop.back_to]], at[index[node.id]]) for node in workflow.nodes if node.loop is not None]
    gutters = gutter_of(spans, len(lines))
    return [line._replace(gutter=gutter) for line, gutter in zip(lines, gutters, strict=True)]


def as_text(lines: list[Line]) -> Iterator[str]:
    """The drawing as plain lines with aligned columns."""
    head, kind = columns(lines)
    for line in lines:
        yield f"{line.head:<{head}}  {line.kind:<{kind}}  {line.notes}".rstrip()


def columns(lines: list[Line]) -> tuple[int, int]:
    """The widths of the first two columns; a few long names do not push everything to the right."""
    heads = [len(line.head) for line in lines if line.kind]
    return min(max(heads, default=0), NAME_COLUMNS_MAX), max((len(line.kind) for line in lines), default=0)


class _Drawing:
    def __init__(self, workflow: Workflow) -> None:
        self._nodes = workflow.nodes
        self._outline = Outline(workflow)
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
            ways = self._ways(task.node, node)
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

    def _ways(self, number: int, node: Node) -> list[_Way]:
        arms = {self._nodes[arm].id: arm for arm in self._outline.arms.get(number, ())}
        return [_Way(edge, arms.get(edge.target)) for edge in edges_of(node)]

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
