"""Optional capabilities of a store: a repairable index, transactional statements, liveness of processes, diagnosis.

A store whose index of rows can be damaged offers `RepairableIndex`; the memory store does not.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from tidemill.stores.contract import Statement, Store, Value


class IndexProblems(Value, frozen=True, kw_only=True):
    """How the term index differs from the rows; counts are bounded."""

    unreadable: str = ""
    """Why rows or index cannot be read; nothing is counted then."""
    missing: int = 0
    """Rows that lack an index entry."""
    stray: int = 0
    """Index entries without a row."""

    @property
    def sound(self) -> bool:
        return not (self.unreadable or self.missing or self.stray)


class Index(Protocol):
    """The term index over the rows of all tenants."""

    async def problems(self) -> IndexProblems:
        """Compare index and rows, both read at one moment."""

    async def repair(self) -> IndexProblems:
        """Repair the index while others write; returns what was wrong. Unreadable rows are missing afterwards."""


@runtime_checkable
class RepairableIndex(Protocol):
    """A store whose index can be damaged."""

    @property
    def index(self) -> Index: ...


async def flaws_of(store: Store) -> IndexProblems:
    return await store.index.problems() if isinstance(store, RepairableIndex) else IndexProblems()


async def repair(store: Store) -> IndexProblems:
    return await store.index.repair() if isinstance(store, RepairableIndex) else IndexProblems()


def bound(parameters: Any) -> Any:
    """The parameters of a statement, by name or position, with lists and objects as JSON texts."""
    if isinstance(parameters, dict):
        return dict(zip(parameters, bound(list(parameters.values())), strict=True))
    return [msgspec.json.encode(each).decode() if isinstance(each, (list, dict)) else each for each in parameters]


KILLED_WORKER = "statement_killed_worker"
"""The code of a refused statement during which a process was lost."""


class TransactionalStatements(Protocol):
    async def dry_run(self, statement: Statement) -> Statement:
        """Execute a statement and roll it back; returns it with its answer. Raises `Rejected` when it fails."""


@runtime_checkable
class InServer(Protocol):
    """A store in a server: each commit suspends its task until the server answers."""

    in_server: bool


@runtime_checkable
class ProcessLiveness(Protocol):
    """A store that detects dead processes at once."""

    async def live_processes(self) -> frozenset[str]:
        """The live processes that take jobs from it, as `host/pid`."""


Severity = Literal["ok", "info", "warning", "error"]


class Finding(Value, frozen=True):
    """The result of one check of a deployment; `code` names the check, whatever its result is."""

    code: str
    severity: Severity
    message: str
    hint: str = ""
    """What to do: a command or a setting."""
    group: str = "store"
    """What the check is about: `store`, `workers`, `work` or `blobs`."""
    partial: bool = False
    """Only a part was looked at, because all of it would take long."""


def judged(
    code: str, group: str, ok: str, bad: str = "", hint: str = "", severity: Severity = "warning", partial: bool = False
) -> Finding:
    """A finding that says `ok` unless there is something `bad` to say, with what to do."""
    return Finding(code, severity, bad, hint, group, partial) if bad else Finding(code, "ok", ok, "", group, partial)


@runtime_checkable
class SelfDiagnosis(Protocol):
    """A store that can check its settings, its disk or server, and its schema."""

    async def diagnose(self) -> list[Finding]:
        """Check without writing, whether the store is open or not.

        Raises what `open` raises for a store that cannot be reached or used. `migrations` is not `ok` when the schema
        is not the one that this version knows.
        """


def migrations_finding(known: int, waiting: int) -> Finding:
    bad = f"{waiting} of {known} migrations are pending, so only the settings were checked" if waiting else ""
    ok, hint = f"the store has schema {known}, as this version expects", "stop older workers, then `tidemill migrate`"
    return judged("migrations", "store", ok, bad, hint)
