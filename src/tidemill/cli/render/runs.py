"""A run in text: its status and nodes, how it ended, and what an action did to it or would do."""

from __future__ import annotations

import json
import os.path
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import IO, Any

import msgspec

from tidemill.cli.render.board import NOT_REACHED, RunProgress, blame, duration, items_told
from tidemill.cli.render.board import SIGNS as PHASE_SIGNS
from tidemill.cli.render.tables import (
    EXCEPTION,
    Column,
    Line,
    cost_text,
    dotted,
    error_words,
    label_words,
    moment,
    names,
    now_ms,
    print_facts,
    print_hint,
    print_rows,
    print_table,
    print_title,
    print_traceback,
    snippet,
    traceback_lines,
)
from tidemill.cli.render.terminal import (
    GREEN,
    YELLOW,
    Styler,
    columns,
    console,
    counted,
    one_line,
    print_warning,
    print_warnings,
    sanitize,
    supports_unicode,
    text_lines,
)
from tidemill.cli.session import StoreSession
from tidemill.engine.services.bulk import BulkOutcome
from tidemill.engine.services.dead_letters import Reprocessed
from tidemill.engine.services.inspection import Comparison
from tidemill.engine.services.patches import PatchOutcome
from tidemill.engine.views import RunView
from tidemill.errors import offered, rejected
from tidemill.kernel.decide.waits import CHILD_FAILED
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.explain.ended import IN_THE_DOCUMENT
from tidemill.pictures.history import VisitTimes

STEP_COLUMNS = 200
"""Columns for names of steps."""
COMPACT_BYTES_MAX = 1_000_000
OUTPUT_LINES_MAX = 400
"""Lines of outputs shown on a terminal; a file or pipe gets all of them."""

NOTE = "note: "
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


def print_end(view: RunView, board: RunProgress, why: str = "", patch: str = "") -> None:
    """Print how a run ended; `why` is the command that explains a failure, `patch` the one that applies a document."""
    tolerated = f" · {board.tolerated} tolerated failure{'s' if board.tolerated != 1 else ''}" * bool(board.tolerated)
    elapsed_ms = board.elapsed_ms(time.time_ns() // 1_000_000)
    match view.status:
        case "COMPLETED":
            _say(f"✓ completed in {duration(elapsed_ms)}{tolerated}", "bold green")
            for warning in view.warnings:
                print_warning(warning)
            print_outputs(view.outputs)
        case "CANCELLED":
            _say(f"⊘ cancelled after {duration(elapsed_ms)}", "bold")
        case _:
            _print_failure(board, duration(elapsed_ms))
    for kind, words in (("undone", "↶ undone"), ("left", "! not undone")):
        if steps := view.rollback[kind]:
            print(f"{words}: {names(map(step_name, steps), STEP_COLUMNS)}")
    for line in not_undone(view.rollback):
        print(f"  {line}")
    if patch and view.status == "FAILED" and view.error is not None and view.error["code"] in IN_THE_DOCUMENT:
        print_hint(f"correct the document, then patch the run, because a retry alone fails again: {patch}")
    if why and view.status == "FAILED":
        print_hint(f"what to do about it: {why}")


def not_undone(rollback: Mapping[str, Any]) -> list[str]:
    """The first steps of a rollback that could not be undone, and why."""
    errors = {key: error_words(error) for key, error in rollback.get("errors", {}).items()}
    errors |= dict.fromkeys(rollback.get("unknown", ()), "its outcome is unknown: settle it, then roll back again")
    shown = islice(errors.items(), UNDO_ERRORS_MAX)
    return [f"{step_name(key)}: {one_line(why, columns() - 2)}" for key, why in shown]


UNDO_ERRORS_MAX = 5


def step_name(key: str) -> str:
    """A visit or item that a rollback is about, as `node`, `node#2` or `node[3]`."""
    node, visit, index = key.rsplit("/", 2)
    return node + (f"#{visit}" if visit != "1" else "") + (f"[{index}]" if index != "-1" else "")


def print_quietly(view: RunView, board: RunProgress) -> None:
    """Print the outputs and nothing else; what went wrong goes to stderr."""
    if view.status == "COMPLETED":
        print(pretty(view.outputs))
        for warning in view.warnings:
            print_warning(warning, sys.stderr)
    else:
        print_trouble(view, board)


def print_trouble(view: RunView, board: RunProgress) -> None:
    """Say on stderr what went wrong, if anything did."""
    if view.status == "FAILED":
        _print_plainly(f"failed {_where(board)}", board, sys.stderr)
    elif view.status != "COMPLETED":
        print("⊘ cancelled", file=sys.stderr)


def explained(board: RunProgress) -> list[tuple[str, str]]:
    """The first failure in labelled lines: what, where, what to do, what caused it; what a row has told is left out."""
    error: Mapping[str, Any] = board.error or {}
    code, message = error.get("code", ""), str(error.get("message", ""))
    kind, index, row = error.get("type"), error.get("index", -1), board.rows.get(board.failed_node)
    # A cause that only repeats the message says nothing.
    causes = [cause for cause in error.get("causes", ()) if not (message and cause.endswith(f": {message}"))]
    if code == CHILD_FAILED:
        # Codes only: the message and the traceback are those of the child.
        causes = []
    said = error_words(error)
    told = row is not None and board.told == row.name and blame(row) == sanitize(said)
    facts = (
        ("error", "" if told else said),
        ("type", kind if kind != "Fail" and code != EXCEPTION else ""),
        ("item", str(index) if index >= 0 else ""),
        ("at", _place(error.get("traceback") or "")),
        ("hint", error.get("hint")),
        *_reasons(causes),
        ("tries", f"{row.attempt} attempts" if row is not None and row.attempt > 1 and not told else ""),
    )
    return [(label, sanitize(text)) for label, text in facts if text]


def _reasons(causes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The causes of an error, and the notes that were added to it, each under its own label."""
    notes = [cause.removeprefix(NOTE) for cause in causes if cause.startswith(NOTE)]
    others = [cause for cause in causes if not cause.startswith(NOTE)]
    yield "note", "\n".join(notes)
    yield "cause", "\n".join(others)


def pretty(value: Any) -> str:
    """A JSON value on several lines; control characters are written as JSON escapes them, so it can be read back."""
    return _visible(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _compact(value: Any, width: int, margin: int = 0) -> str:
    """A JSON value on lines of this width: what fits into one stays there, and short items of a list share lines."""
    flat = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, (list, dict)) or margin + len(flat) <= width:
        return flat
    inner = " " * (margin + 2)
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(key, ensure_ascii=False)}: {_compact(each, width, margin + 2)}" for key, each in value.items()
        ]
        return f"{{\n{inner}" + f",\n{inner}".join(parts) + f"\n{' ' * margin}}}"
    lines, line = [], ""
    for part in (_compact(each, width, margin + 2) for each in value):
        if line and ("\n" in part or len(inner) + len(line) + len(part) + 3 > width):
            lines.append(line)
            line = part
        else:
            line += f", {part}" if line else part
    return f"[\n{inner}" + f",\n{inner}".join([*lines, line]) + f"\n{' ' * margin}]"


def _visible(shown: str) -> str:
    return "".join(letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1] for letter in shown)


def _where(board: RunProgress) -> str:
    return f"at {board.failed_node}" if board.failed_node else "as a whole"


def _place(traceback: str) -> str:
    """The innermost line of the author's own code that a traceback names."""
    frames = [match for match in _FRAME.finditer(traceback) if "site-packages" not in match["file"]]
    own = [frame for frame in frames if f"{os.sep}tidemill{os.sep}" not in frame["file"]] or frames
    if not own:
        return ""
    last = own[-1]
    near = os.path.relpath(last["file"])
    return f"{near if not near.startswith('..') else last['file']}:{last['line']}, in {last['function']}"


def _say(text: str, style: str) -> None:
    if supports_unicode():
        console().print(f"\n{text}", style=style)
    else:
        print(text)


def print_outputs(outputs: Any) -> None:
    """Print what a run returned; on a terminal in colours and only its first lines."""
    if not supports_unicode():
        print(pretty(outputs))
        return
    is_short = len(msgspec.json.encode(outputs)) <= COMPACT_BYTES_MAX
    text = _visible(_compact(outputs, columns())) if is_short else pretty(outputs)
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    lines = text.split("\n")
    shown = Text("\n".join(lines[:OUTPUT_LINES_MAX]))
    JSONHighlighter().highlight(shown)
    screen = console()
    screen.print(shown, soft_wrap=True)
    if len(lines) > OUTPUT_LINES_MAX:
        screen.print(f"… {len(lines) - OUTPUT_LINES_MAX:,} more lines; --json prints everything", style="dim")


def _print_failure(board: RunProgress, elapsed: str) -> None:
    title = f"failed {_where(board)} after {elapsed}"
    if not supports_unicode():
        _print_plainly(title, board, sys.stdout)
        return
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    facts, lines = explained(board), traceback_lines(board.error)
    if not facts and not lines:
        _say(f"✗ {title}", "bold red")
        return
    table = Table.grid(padding=(0, 2))
    for label, text in facts:
        table.add_row(Text(label, style="dim"), Text(text, style="bold" if label == "error" else ""))
    body = Group(table, Text("\n".join(["", *lines]), style="dim")) if lines else table
    console().print(Panel(body, title=f"✗ {title}", title_align="left", border_style="red", expand=False))


def _print_plainly(title: str, board: RunProgress, stream: IO[str]) -> None:
    print(f"✗ {title}", file=stream)
    for label, text in explained(board):
        for number, line in enumerate(text.split("\n")):
            print(f"  {'' if number else label:<6} {line}".rstrip(), file=stream)
    print_traceback(board.error, indent=2, stream=stream)


NODES_SHOWN_MAX = 200
NAME_COLUMNS = 500
"""Columns for names in a row; more than one line of them is folded."""
DURATION_COLUMNS = len("59 m 59 s")
ENDED = ("COMPLETED", "FAILED", "CANCELLED")
UNREACHED = "not reached"
"""The status in text of a node that failed only because one before it did: there is one failure, not many."""
TOLERATED = "tolerated"
"""The status in text of a node that failed and did not fail the run."""
SIGNS: dict[str, str] = {
    **PHASE_SIGNS,
    "QUEUED": "○",
    "RUNNING": "●",
    UNREACHED: PHASE_SIGNS["UNREACHED"],
    TOLERATED: PHASE_SIGNS["TOLERATED"],
}


@dataclass(frozen=True, slots=True)
class RunDetails:
    """A run, and what else is needed to print it."""

    view: RunView
    past: bool = False
    """It is shown as it was, so there is nothing to do about it."""
    path: Sequence[Mapping[str, Any]] = ()
    """The way it went, for why its nodes ended as they did."""
    events: Sequence[Mapping[str, Any]] = ()
    """What happened, for how long its nodes took."""

    def to_dict(self) -> dict[str, Any]:
        return self.view.to_dict()


def print_run(session: StoreSession, details: RunDetails) -> None:
    view, shown = details.view, details.to_dict()
    print_title(reference(view.workflow, view.version, shown.get("revision")), f"run {view.run_id}")
    print_facts([*_times(details), *_facts(shown)])
    print()
    whys = {step["node"]: step["why"] for step in details.path}
    undone = {key.rsplit("/", 2)[0] for key in view.rollback["undone"]}
    whys |= {name: dotted(whys.get(name, ""), "undone") for name in undone}
    times = VisitTimes(details.events)
    took = {name: spent for name in view.nodes if (spent := times.elapsed_ms(name)) is not None}
    _print_nodes(view, whys, took, past=details.past)
    print_traceback(view.error)
    if view.status == "COMPLETED":
        print()
        for warning in view.warnings:
            print_warning(warning)
        if view.outputs_missing:
            print_hint(f"outputs are missing: {view.outputs_missing}")
        print_outputs(view.outputs)
    elif not details.past:
        print()
        print_hint(_next(session, view))


def reference(workflow: str, version: int, revision: int | None) -> str:
    """A workflow with its version and how often the run itself was patched."""
    return f"{workflow}@{version}" + (f"+{revision}" if revision else "")


def spending_words(spent: Mapping[str, Any] | None) -> str:
    """What was spent on models; empty if nothing."""
    if not spent:
        return ""
    tokens = f"{spent['tokens']:,} tokens" + (f" ({spent['cached_tokens']:,} cached)" if spent["cached_tokens"] else "")
    cost = f" · cost {cost_text(spent['cost'])}" if spent["cost"] else ""
    return f"{counted(spent['calls'], 'call')} · {tokens}{cost}"


def _facts(shown: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if (rollback := shown["rollback"])["status"] != "none":
        left = names(map(step_name, rollback["left"]))
        words = rollback["status"] + (f", not undone: {left}" if left else "")
        yield "rollback", "\n".join((words, *not_undone(rollback)))
    yield "stuck", shown.get("stuck")
    yield "waits for", names(shown.get("waiting_for") or (), NAME_COLUMNS)
    yield "by", shown.get("submitted_by")
    yield "labels", label_words(shown["labels"], NAME_COLUMNS)
    yield "inputs", snippet(shown["inputs"], columns()) if shown["inputs"] else None
    yield "spent", spending_words(shown.get("spent"))
    yield "parent", shown.get("parent")
    if shown.get("forked_from"):
        origin, seq = shown["forked_from"]
        yield "forked from", f"{origin} after event {seq}"
    if (error := shown["error"]) is not None:
        where = f"{shown['failed_node']}: " if shown.get("failed_node") else ""
        yield "error", f"{where}{error_words(error)}"
        yield "hint", error.get("hint")
        yield from _reasons(error.get("causes", ()))
    counts = Counter(_status(node) for node in shown["nodes"].values())
    nodes = ", ".join(f"{count} {status.lower()}" for status, count in counts.items())
    yield "nodes", f"{nodes} · {counted(shown['events'], 'event')}"


def _times(details: RunDetails) -> Iterator[tuple[str, Any]]:
    began, last = details.view.created_ms, details.view.last_event_ms
    yield "status", details.view.status
    yield "started", moment(began)
    if details.view.status in ENDED:
        yield "took", duration((details.view.ended_ms or last) - began)
    else:
        yield "last change", moment(last)


def _print_nodes(view: RunView, whys: Mapping[str, str], took: Mapping[str, int], *, past: bool) -> None:
    """Print the nodes; of many, those that are not completed first."""
    chosen = list(view.nodes.items())
    if len(chosen) > NODES_SHOWN_MAX:
        chosen.sort(key=lambda entry: entry[1]["status"] in ("COMPLETED", "SKIPPED", "PENDING"))
    spent = {name: duration(took[name]) for name, node in chosen if name in took and node["status"] in ENDED}
    times = Column("", number=True, least=DURATION_COLUMNS if spent else 0)
    heads = (Column(""), Column("", gives=True), Column("", status=True), times, Column("", gives=True))
    lines = []
    for name, node in chosen:
        status = _status(node)
        # The facts above the nodes have the error of the run.
        is_told = name == view.failed_node and node["error"] == view.error
        about = _about(node | {"error": None} if is_told else node, whys.get(name, ""), past=past)
        lines.append(Line((SIGNS.get(status, " "), name, status, spent.get(name, ""), about)))
    print_table(heads, lines[:NODES_SHOWN_MAX])
    if len(lines) > NODES_SHOWN_MAX:
        print_hint(f"and {len(lines) - NODES_SHOWN_MAX:,} more nodes; --json shows them all")


@dataclass(frozen=True, slots=True)
class FailedItems:
    """The items of the latest visit of a map that failed for good, each with its error."""

    node: str
    failed: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, node: str, view: RunView, events: Iterable[Mapping[str, Any]]) -> FailedItems:
        """Find them among the events of a run; an item that completed after a retry is none of them."""
        if node not in view.nodes:
            raise rejected("node_unknown", f"the run has no node {node}", hint=offered(node, view.nodes))
        visit, found = view.nodes[node]["visits"], dict[int, Mapping[str, Any]]()
        for event in events:
            if event.get("node") != node or event.get("visit") != visit or event.get("index", NOT_AN_ITEM) < 0:
                continue
            if event["type"] == "NodeFailed" and event.get("retry_at_ms") is None:
                found[event["index"]] = event
            elif event["type"] in ("NodeStarted", "NodeCompleted", "NodeOverridden"):
                found.pop(event["index"], None)
        return cls(node, tuple(found[index] for index in sorted(found)))

    def to_dict(self) -> dict[str, Any]:
        rows = [{name: event[name] for name in ("index", "attempt", "error")} for event in self.failed]
        return {"node": self.node, "failed": rows}


def print_failed_items(found: FailedItems) -> None:
    """Print each item with its attempts and its error."""
    if not found.failed:
        print(f"no item of {sanitize(found.node)} has failed")
        return
    heads = (
        Column("ITEM", itemgetter("index"), number=True),
        Column("ATTEMPTS", itemgetter("attempt"), number=True),
        Column("ERROR", lambda event: error_words(event["error"]), gives=True),
    )
    print_rows(heads, found.failed)


def tolerated_failures(view: RunView) -> dict[str, int]:
    """The nodes that failed and were tolerated, each with how many of its items did."""
    failed = {name: node.get("items", {}).get("failed", 0) for name, node in view.nodes.items()}
    whole = {name for name, node in view.nodes.items() if _status(node) == TOLERATED}
    return {name: count for name, count in failed.items() if name != view.failed_node and (count or name in whole)}


def _status(node: Mapping[str, Any]) -> str:
    """The status of a node in text: of all that are FAILED, only those that fail a run are called so."""
    if node["status"] != "FAILED":
        return str(node["status"])
    if (node["error"] or {}).get("code") == NOT_REACHED:
        return UNREACHED
    return TOLERATED if node.get("tolerated") else "FAILED"


def _about(node: Mapping[str, Any], why: str, *, past: bool) -> str:
    items, result = "", ""
    if counts := node.get("items"):
        ended = (counts["count"], counts["done"], counts["failed"], counts.get("cancelled", 0))
        items = items_told(*ended, completed=node["status"] == "COMPLETED")
    if (node["error"] or {}).get("code") == NOT_REACHED:
        result = str(node["error"]["message"])
    elif node["error"] is not None:
        result = error_words(node["error"])
    elif node.get("output_missing"):
        result = f"output missing: {node['output_missing']}"
    elif node["output"] is not None:
        result = snippet(node["output"], columns())
    return dotted(
        why if node["status"] in ("COMPLETED", "SKIPPED") else "",
        items,
        f"visit {node['visits']}" if node["visits"] > 1 else "",
        f"{node['attempts']} attempts" if node["attempts"] > 1 else "",
        f"for {duration(max(0, now_ms() - node['since_ms']))}" if node.get("since_ms") and not past else "",
        f"waits for {node['waiting_for']}" if node.get("waiting_for") else "",
        f"begun {moment(node['begun_ms'])}" if node.get("begun_ms") else "",
        result,
    )


def _next(session: StoreSession, view: RunView) -> str:
    run_id = view.run_id
    match view.status:
        case "CANCELLED" if view.rollback["status"] == "none":
            return session.command("runs", "retry", run_id)
        case "FAILED" | "CANCELLED":
            # What was rolled back is not retried; the explanation says what can be done.
            return f"what to do about it: {session.command('why', run_id)}"
        case "PAUSED":
            return session.command("runs", "resume", run_id)
        case _:
            return f"what it waits for: {session.command('why', run_id)}"


NAMES_COLUMNS_MAX = 600
COMPARED_DEPTH = 3
FIELDS_SHOWN_MAX = 20
"""Of one node that differs."""
ABSENT = "(not there)"
DIFFERENCES_SHOWN_MAX = 50


def say(text: str) -> None:
    print(f"{Styler()('✓', GREEN)} {sanitize(text)}")


def print_patch(run_id: str, outcome: PatchOutcome) -> None:
    if outcome.applied:
        say(f"patched; run {run_id} is at revision {outcome.revision}")
    else:
        print(f"{Styler()('○', YELLOW)} this patch can be applied; nothing was done")
    fields = {"added": "added", "removed": "removed", "changed": "changed", "re-run": "rerun", "kept": "kept"}
    facts = [(label, names(getattr(outcome, name), NAMES_COLUMNS_MAX) or "—") for label, name in fields.items()]
    print_facts([*facts, ("digest", outcome.digest)], indent=2)
    print_warnings(outcome.warnings, sys.stderr)
    if outcome.needs_retry:
        print_hint("the run has ended: add --retry to apply the patch and continue the run")
    if outcome.published is not None:
        print_hint(f"published as {outcome.published.name}@{outcome.published.version}")


def print_reprocessed(outcome: Reprocessed, *, dry_run: bool) -> None:
    runs = outcome.runs
    if not runs:
        print("no open dead letter matches")
        return
    retried = sum(run.result != "refused" for run in runs)
    columns = (Column("RUN", "run_id"), Column("LETTERS", "letters", number=True), Column("RESULT", "result"))
    print_rows(columns, runs, lambda run: f"{run.problem} [{run.code}]" if run.problem else "")
    verb = "would be retried" if dry_run else "retried"
    print_hint(f"{counted(outcome.matched, 'dead letter')} in {counted(len(runs), 'run')}, {retried} {verb}")
    if any(run.code in ("run_completed", "run_rolled_back") for run in runs):
        print_hint("a run that is completed or rolled back stays as it is: tidemill runs fork RUN --node NODE")
        print_hint("to close its dead letter: tidemill dlq discard RUN NODE")
    if outcome.more:
        print_hint("there are more: repeat the command, or raise --limit")


def print_bulk(outcome: BulkOutcome) -> None:
    runs = outcome.runs
    if not runs:
        print("nothing was done: no run matches")
        return
    columns = (
        Column("RUN", "run_id"),
        Column("WORKFLOW", "workflow"),
        Column("WAS", "status"),
        Column("RESULT", "result"),
    )
    print_rows(columns, runs, lambda run: f"{run.problem} [{run.code}]" if run.problem else "")
    done = "would be done" if any(run.result == "would be done" for run in runs) else "done"
    print_hint(f"{outcome.action}: {outcome.done} of {counted(len(runs), 'run')} {done}")
    if outcome.more:
        print_hint("there are more: repeat the command, or raise --limit")


def print_comparison(run_id: str, other_id: str, found: Comparison) -> None:
    nodes = found.nodes
    different = [node for node in nodes if not node["same"]]
    print_facts((("left", run_id), ("right", other_id)))
    lines = list(_both_sides("(inputs)", _apart("input", *found.inputs)))
    lines += [line for node in different[:DIFFERENCES_SHOWN_MAX] for line in _differing(node)]
    if lines:
        print()
        heads = (Column("NODE", gives=True), Column("LEFT", gives=True), Column("RIGHT", gives=True))
        print_table(heads, lines)
        print()
    if len(different) > DIFFERENCES_SHOWN_MAX:
        print_hint(f"{len(different) - DIFFERENCES_SHOWN_MAX} more differ; --json lists them all")
    same = counted(len(nodes) - len(different), "node")
    first = f"first difference at {found.first_divergence} · " if found.first_divergence else ""
    inputs = "the same inputs" if found.inputs_same else "other inputs"
    outputs = "the same outputs" if found.outputs_same else "other outputs"
    print(*text_lines(f"{first}{len(different)} different, {same} the same · {inputs}, {outputs}", 0), sep="\n")


def _differing(node: Mapping[str, Any]) -> Iterator[Line]:
    """One line per field in which a node differs."""
    left, right = node["left"], node["right"]
    name = str(node["node"])
    if left is None or right is None:
        yield Line((name, *(ABSENT if side is None else str(side.get("status", "")) for side in (left, right))))
        return
    sides = [node | {"error": error_words(node["error"]) if node.get("error") else None} for node in (left, right)]
    facts = ("status", "visits", "attempts", "error", "output")
    yield from _both_sides(name, (pair for fact in facts for pair in _apart(fact, *(side.get(fact) for side in sides))))


def _both_sides(name: str, pairs: Iterable[tuple[str, Any, Any]]) -> Iterator[Line]:
    room = columns() // 2
    for field, *values in islice(pairs, FIELDS_SHOWN_MAX):
        yield Line((name, *(f"{field} {snippet(value, room)}" for value in values)))
        name = ""


def _apart(field: str, left: Any, right: Any, depth: int = 0) -> Iterator[tuple[str, Any, Any]]:
    """The places in which two values differ, each with both sides; two mappings are compared key by key."""
    if left == right:
        return
    if not (isinstance(left, dict) and isinstance(right, dict)) or depth == COMPARED_DEPTH:
        yield field, left, right
        return
    for key in dict.fromkeys((*left, *right)):
        yield from _apart(f"{field}.{key}", left.get(key, ABSENT), right.get(key, ABSENT), depth + 1)
