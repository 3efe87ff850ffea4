"""What an act did or would do, in text: patches, dead letters tried again, comparisons, differences."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidemill.cli.paint import DIM, GREEN, RED, YELLOW, Paint, columns
from tidemill.cli.problems import counted, print_problems
from tidemill.cli.snippets import names, snippet
from tidemill.cli.tables import Column, Line, print_facts, print_hint, print_table
from tidemill.cli.terminal import clean
from tidemill.engine.catalog import Diff
from tidemill.engine.changes import PatchOutcome
from tidemill.engine.history import Comparison
from tidemill.engine.letters import Reprocessed, ReprocessedRun
from tidemill.kernel.document.diff import Change, GraphDiff

NAMES_COLUMNS_MAX = 600
DIFFERENCES_SHOWN_MAX = 50


def say(text: str) -> None:
    """Print one line that something was done."""
    print(f"{Paint()('✓', GREEN)} {clean(text)}")


def tell_patch(run_id: str, outcome: PatchOutcome) -> None:
    """Print what a patch did to a run, or would do."""
    if outcome.applied:
        say(f"patched; run {run_id} is at revision {outcome.revision}")
    else:
        print(f"{Paint()('○', YELLOW)} this patch can be applied; nothing was done")
    found = [(name, getattr(outcome, name)) for name in ("added", "removed", "changed", "rerun", "kept")]
    facts = [(_VERDICT[name], names(nodes, NAMES_COLUMNS_MAX) or "—") for name, nodes in found]
    print_facts([*facts, ("digest", outcome.digest)], indent=2)
    if outcome.warnings:
        print_problems(f"! {counted(len(outcome.warnings), 'warning')}", outcome.warnings, sys.stderr, warning=True)
    if outcome.needs_retry:
        print_hint("the run has ended: add --retry to apply the patch and let the run continue")
    if outcome.published is not None:
        print_hint(f"published as {outcome.published.name}@{outcome.published.version}")


_VERDICT = {"added": "added", "removed": "removed", "changed": "changed", "rerun": "re-run", "kept": "kept"}


def tell_reprocessed(outcome: Reprocessed) -> None:
    """Print what became of runs with dead letters."""
    runs = outcome.runs
    if not runs:
        print("no open dead letter matches")
        return
    retried = sum(run.result != "refused" for run in runs)
    heads = (Column("RUN"), Column("LETTERS", number=True), Column("RESULT"))
    print_table(heads, (_reprocessed_line(run) for run in runs))
    verb = "would be retried" if any(run.result == "would retry" for run in runs) else "retried"
    print_hint(f"{counted(outcome.matched, 'dead letter')} in {counted(len(runs), 'run')}, {retried} {verb}")
    if outcome.more:
        print_hint("there are more: the same command again, or a higher --limit")


def _reprocessed_line(run: ReprocessedRun) -> Line:
    note = f"{run.problem} [{run.code}]" if run.problem else ""
    return Line((run.run_id, str(run.letters), run.result), note)


def tell_comparison(run_id: str, other_id: str, found: Comparison) -> None:
    """Print where two runs differ."""
    nodes = found.nodes
    different = [node for node in nodes if not node["same"]]
    print_facts((("left", run_id), ("right", other_id)))
    if different:
        print()
        heads = (Column("NODE", gives=True), Column("LEFT", gives=True), Column("RIGHT", gives=True))
        print_table(heads, (line for node in different[:DIFFERENCES_SHOWN_MAX] for line in _differing(node)))
        print()
    if len(different) > DIFFERENCES_SHOWN_MAX:
        print_hint(f"{len(different) - DIFFERENCES_SHOWN_MAX} more differ; --json lists them all")
    same = counted(len(nodes) - len(different), "node")
    first = f"first difference at {found.first_divergence} · " if found.first_divergence else ""
    outputs = "the same outputs" if found.outputs_same else "other outputs"
    print(clean(f"{first}{len(different)} different, {same} the same · {outputs}"))


def _differing(node: Mapping[str, Any]) -> Iterator[Line]:
    """The fields in which a node differs, one line each."""
    left, right = node["left"], node["right"]
    name = str(node["node"])
    if left is None or right is None:
        yield Line((name, _presence(left), _presence(right)))
        return
    room = columns() // 2
    for field in ("status", "visits", "attempts", "output"):
        if left.get(field) != right.get(field):
            yield Line(
                (name, f"{field} {snippet(left.get(field), room)}", f"{field} {snippet(right.get(field), room)}")
            )
            name = ""


def _presence(side: Mapping[str, Any] | None) -> str:
    return "(not there)" if side is None else str(side.get("status", ""))


def tell_diff(found: Diff) -> None:
    """Print what lies between two versions of a workflow."""
    sides = (("left", found.left), ("right", found.right))
    print_facts((label, f"{side.name}@{side.version}  {side.digest}") for label, side in sides)
    lines = list(_graph_lines(found.graph))
    print()
    if not lines:
        print("they are the same")
        return
    paint = Paint()
    colours = {"+": GREEN, "-": RED, "~": YELLOW}
    for sign, text in lines:
        print(f"{paint(sign, colours.get(sign, DIM))} {clean(text)}".rstrip())


def _graph_lines(graph: GraphDiff) -> Iterator[tuple[str, str]]:
    yield from (("+", f"node {name}") for name in graph.nodes_added)
    yield from (("-", f"node {name}") for name in graph.nodes_removed)
    for change in graph.nodes_changed:
        yield "~", f"node {change.id}"
        yield from (("", f"  {line}") for line in _change_lines(change.fields))
    yield from (("+", f"edge {source} → {target}") for source, target in graph.edges_added)
    yield from (("-", f"edge {source} → {target}") for source, target in graph.edges_removed)
    yield from (("~", line) for line in _change_lines(graph.keys))
    if graph.reordered:
        yield "~", "the order of the nodes"


def _change_lines(changes: Sequence[Change]) -> Iterator[str]:
    for change in changes:
        for place, old, new in _places(change.field, change.old, change.new):
            room = max(16, (columns() - len(place) - 10) // 2)
            yield f"{place}: {_shown(old, room)} → {_shown(new, room)}"


def _places(place: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """The innermost places in which two values differ, as far as both are mappings."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        yield place, old, new
        return
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key, _ABSENT), new.get(key, _ABSENT)
        if before != after:
            yield from _places(f"{place}/{key}", before, after)


def _shown(value: Any, room: int) -> str:
    return "—" if value is _ABSENT else snippet(value, room)


_ABSENT = object()
