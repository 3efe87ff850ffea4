"""Looking after what a store derives from its rows: where each of them stands in the lists that `find` walks along.

A store that keeps such places beside its rows can lose one, or keep one too many, when its disk does. `Indexed` is
what it offers then. A store that cannot lose them (in memory) offers nothing.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tidemill.stores.contract import Statement, Store, Value


class IndexProblems(Value, frozen=True, kw_only=True):
    """What is wrong with the places of rows."""

    unreadable: str = ""
    """Why rows or their places cannot be read as a whole; nothing is counted then."""
    missing: int = 0
    """Rows that do not stand in every list they belong to; counted up to a bound."""
    stray: int = 0
    """Places without their row; counted up to a bound."""

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.unreadable or self.missing or self.stray)


class Index(Protocol):
    """The places of all rows, of all tenants."""

    async def flaws(self) -> IndexProblems:
        """Compare all places with all rows, as they are at one moment."""
        ...

    async def mend(self) -> IndexProblems:
        """Put right what is wrong, beside whoever writes; answers what it was.

        What cannot be read is built anew from the rows that can: rows may be missing afterwards, places are not.
        """
        ...


@runtime_checkable
class RepairableIndex(Protocol):
    """A store whose places can be damaged."""

    @property
    def index(self) -> Index:
        """What looks after them."""
        ...


async def flaws_of(store: Store) -> IndexProblems:
    """What is wrong with the places of a store's rows."""
    return await store.index.flaws() if isinstance(store, RepairableIndex) else IndexProblems()


async def repair(store: Store) -> IndexProblems:
    """Put the places of a store's rows right; answers what was wrong."""
    return await store.index.mend() if isinstance(store, RepairableIndex) else IndexProblems()


class TransactionalStatements(Protocol):
    """A store with a language for statements."""

    async def dry_run(self, statement: Statement) -> bytes:
        """Do a statement and undo it; answers what it said, as JSON. Raises `Rejected` when it fails."""
        ...


@runtime_checkable
class ProcessLiveness(Protocol):
    """A store that knows at once when a process is gone."""

    async def live_processes(self) -> frozenset[str]:
        """The processes that take jobs from it and are there, as `host/pid`."""
        ...
