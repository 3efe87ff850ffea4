"""The reference page of the guards, made from the list."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tests.mutants.guard import Guard

PAGE = "docs/reference/guards.md"

HEAD = """# Guards

A guard is a line of code whose only purpose is to keep something safe. Every guard below has a *mutant*, a copy of the
code in which that one line is sabotaged, and a test that must go red for it. `make mutants` breaks all of them, one
after the other, and fails when a single mutant survives. A check that can be removed without any test noticing is
either not needed or not tested; both are mistakes.

This page is made from the list in `tests/mutants` by `python -m tests.mutants --page`.
"""

ROOMS = {
    "stores": "Stores",
    "kernel": "Kernel",
    "engine": "Engine",
    "handlers": "Handlers",
    "blobs": "Blobs",
    "expressions": "Expressions",
    "security": "Security",
    "observe": "Observation",
    "cli": "The command line",
    "bootstrap.py": "What belongs together",
    "front.py": "The blocking front",
    "settings.py": "Settings",
}


def page(guards: Sequence[Guard]) -> str:
    """The page as Markdown: a table per room of the house, each guard with its reason and its test."""
    parts = [HEAD]
    for room, members in groupby(guards, key=lambda guard: guard.file.partition("/")[0]):
        rows = "\n".join(f"| {guard.name} | {guard.why} | {shown(guard)} |" for guard in members)
        parts.append(f"## {ROOMS[room]}\n\n| guard | why it exists | test |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def shown(guard: Guard) -> str:
    """Where the guard stands and which test watches over it."""
    path, _, name = guard.test.partition("::")
    return f"`{name.rpartition('::')[2]}` in `{path}`, over `{guard.file}`"
