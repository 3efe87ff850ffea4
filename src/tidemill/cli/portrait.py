"""A run in text: how it stands, its nodes, and what it returned or why it did not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.cli.ages import moment
from tidemill.cli.asking import Asking
from tidemill.cli.ending import step_name, tell_outputs
from tidemill.cli.paint import columns
from tidemill.cli.phrases import duration
from tidemill.cli.problems import counted
from tidemill.cli.snippets import names, snippet
from tidemill.cli.tables import Column, Line, print_facts, print_hint, print_table, print_title
from tidemill.engine.views import RunView

NODES_SHOWN_MAX = 200
ROOM = 500
"""Columns for names in a row; more than one line of them is folded."""
SIGNS = {
    "PENDING": "○",
    "QUEUED": "●",
    "RUNNING": "●",
    "WAITING": "◷",
    "COMPLETED": "✓",
    "FAILED": "✗",
    "CANCELLED": "✗",
    "SKIPPED": "⊘",
}


@dataclass(frozen=True, slots=True)
class Sitting:
    """A run as it is shown."""

    view: RunView
    past: bool = False
    """It is shown as it was, so there is nothing to do about it."""
    path: Sequence[Mapping[str, Any]] = ()
    """The way it went, for why its nodes ended as they did."""

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints: the run's own."""
        return self.view.to_dict()


def tell_run(asking: Asking, sitting: Sitting) -> None:
    """Print a run, all of it that fits, and what to do next."""
    view, shown = sitting.view, sitting.to_dict()
    print_title(reference(shown), f"run {view.run_id}")
    print_facts([*_times(sitting), *_facts(shown)])
    print()
    _tell_nodes(shown["nodes"], {step["node"]: step["why"] for step in sitting.path})
    if view.status == "COMPLETED":
        print()
        if view.outputs_missing:
            print_hint(f"outputs are missing: {view.outputs_missing}")
        tell_outputs(view.outputs)
    elif not sitting.past:
        print()
        print_hint(_next(asking, view))


def reference(shown: Mapping[str, Any]) -> str:
    """A workflow with its version and how often the run itself was patched."""
    revision = shown.get("revision")
    return f"{shown['workflow']}@{shown['version']}" + (f"+{revision}" if revision else "")


def _facts(shown: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if shown["rollback"]["status"] != "none":
        yield "rollback", _rollback(shown["rollback"])
    yield "stuck", shown.get("stuck")
    yield "waits for", names(shown.get("waiting_for") or (), ROOM)
    yield "by", shown.get("submitted_by")
    yield "labels", names((f"{key}={value}" for key, value in sorted(shown["labels"].items())), ROOM)
    yield "parent", shown.get("parent")
    if shown.get("forked_from"):
        origin, seq = shown["forked_from"]
        yield "forked from", f"{origin} after event {seq}"
    if shown["error"] is not None:
        yield from _error(shown["error"], shown.get("failed_node", ""))
    counts = dict.fromkeys(node["status"] for node in shown["nodes"].values())
    told = (
        f"{sum(node['status'] == status for node in shown['nodes'].values())} {status.lower()}" for status in counts
    )
    yield "nodes", f"{', '.join(told)} · {counted(shown['events'], 'event')}"


def _times(sitting: Sitting) -> Iterator[tuple[str, Any]]:
    began, last = sitting.view.created_ms, sitting.view.last_event_ms
    yield "status", sitting.view.status
    yield "started", moment(began)
    if sitting.view.status in ("COMPLETED", "FAILED", "CANCELLED"):
        yield "took", duration(last - began)
    else:
        yield "last change", moment(last)


def _rollback(rollback: Mapping[str, Any]) -> str:
    left = [step_name(key) for key in rollback["left"]]
    return str(rollback["status"]) + (f", not undone: {names(left)}" if left else "")


def _error(error: Mapping[str, Any], node: str) -> Iterator[tuple[str, Any]]:
    where = f"{node}: " if node else ""
    yield "error", f"{where}{error['message']} [{error['code']}]"
    yield "hint", error.get("hint")
    yield "cause", "\n".join(error.get("causes", ()))


def _tell_nodes(nodes: Mapping[str, Mapping[str, Any]], whys: Mapping[str, str]) -> None:
    """Print the nodes; of many, those that are not completed first."""
    chosen = list(nodes.items())
    if len(chosen) > NODES_SHOWN_MAX:
        chosen.sort(key=lambda entry: entry[1]["status"] in ("COMPLETED", "SKIPPED", "PENDING"))
    heads = (Column(""), Column("", gives=True), Column("", status=True), Column("", gives=True))
    lines = [
        Line((SIGNS.get(node["status"], " "), name, node["status"], _about(node, whys.get(name, ""))))
        for name, node in chosen
    ]
    print_table(heads, lines[:NODES_SHOWN_MAX])
    if len(lines) > NODES_SHOWN_MAX:
        print_hint(f"and {len(lines) - NODES_SHOWN_MAX:,} more nodes; --json shows them all")


def _about(node: Mapping[str, Any], why: str) -> str:
    said = []
    if why and node["status"] in ("COMPLETED", "SKIPPED"):
        said.append(why)
    if items := node.get("items"):
        failed = f", {items['failed']:,} failed" if items["failed"] else ""
        said.append(f"{items['done']:,}/{items['count']:,} items{failed}")
    if node["visits"] > 1:
        said.append(f"visit {node['visits']}")
    if node["attempts"] > 1:
        said.append(f"{node['attempts']} attempts")
    if node.get("waiting_for"):
        said.append(f"waits for {node['waiting_for']}")
    if node["error"] is not None:
        said.append(f"{node['error']['message']} [{node['error']['code']}]")
    elif node.get("output_missing"):
        said.append(f"output missing: {node['output_missing']}")
    elif node["output"] is not None:
        said.append(snippet(node["output"], columns()))
    return " · ".join(said)


def _next(asking: Asking, view: RunView) -> str:
    run_id = view.run_id
    match view.status:
        case "CANCELLED" if view.rollback["status"] == "none":
            return asking.command("runs", "retry", run_id)
        case "FAILED" | "CANCELLED":
            # What was rolled back is not retried; the explanation says what can be done.
            return asking.command("runs", "why", run_id)
        case "PAUSED":
            return asking.command("runs", "resume", run_id)
        case _:
            return f"what it waits for: {asking.command('why', run_id)}"
