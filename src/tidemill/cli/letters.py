"""A dead letter in text: what failed with which input, and what can be done about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tidemill.cli.ages import moment
from tidemill.cli.asking import Asking
from tidemill.cli.ending import pretty
from tidemill.cli.tables import print_facts, print_hint, print_title

INPUT_LINES_MAX = 40


def tell_letter(asking: Asking, letter: Mapping[str, Any]) -> None:
    """Print a dead letter and what can be done about it."""
    item = f" item {letter['index']}" if letter["index"] is not None else ""
    print_title(f"{letter['workflow']} · {letter['node']}{item}", f"run {letter['run_id']}")
    print_facts(_facts(letter))
    if letter["status"] == "open":
        which = ("--item", str(letter["index"])) if item else ()
        print()
        print_hint(asking.command("dlq", "retry", "--run", letter["run_id"]))
        print_hint(asking.command("dlq", "discard", letter["run_id"], letter["node"], *which))


def _facts(letter: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    error = letter["error"]
    yield "status", letter["status"]
    if letter["closed_ms"] is not None:
        by = f"by {letter['closed_by']} " if letter["closed_by"] else ""
        yield "closed", f"{by}{moment(letter['closed_ms'])}"
    yield "reason", letter["reason"]
    yield "failed", moment(letter["at_ms"])
    yield "visit", letter["visit"] if letter["visit"] > 1 else None
    yield "attempts", letter["attempts"]
    yield "error", f"{error['message']} [{error['code']}]"
    yield "hint", error.get("hint")
    yield "cause", "\n".join(error.get("causes", ()))
    if letter["input"] is not None:
        lines = pretty(letter["input"]).split("\n")
        more = f"\n… {len(lines) - INPUT_LINES_MAX} more lines; --json has them" * (len(lines) > INPUT_LINES_MAX)
        yield "input", "\n".join(lines[:INPUT_LINES_MAX]) + more
