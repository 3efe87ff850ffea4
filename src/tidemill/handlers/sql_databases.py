"""Databases of the operator's as the node type `sql` sees them, and what all of them answer with.

An operator chooses them, by variables of the environment, and a document only names them. So they are not subject to
the guard over outgoing calls, which is there for addresses that come from documents and data.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from tidemill.handlers.contract import Fail, Lacking
from tidemill.handlers.sql_text import Dialect

ROWS_MAX = 10_000
ANSWER_BYTES_MAX = 4_194_304
SQL_HINT = "try the statement by hand with the same parameters"
MISSING_HINT = "add it to parameters"
EXTRAS = {"postgresql": "postgres"}
"""Which extra of the package brings the driver for a dialect."""

Parameters = list[Any] | dict[str, Any]


class Database(Protocol):
    """A database of the operator's."""

    @property
    def dialect(self) -> Dialect:
        """Which SQL it speaks."""
        ...

    async def run(self, text: str, parameters: Parameters) -> Any:
        """Do a statement in a transaction of its own; answers `{rows, count, changed}`.

        When it is cancelled the statement is given up, and nothing of it remains. Raises `Fail`.
        """
        ...

    async def close(self) -> None:
        """Let go of all connections; it can be used again."""
        ...


class LateDatabase:
    """A database whose driver is imported when a statement first needs it."""

    def __init__(self, dialect: Dialect, make: Callable[[], Database]) -> None:
        self.dialect: Dialect = dialect
        self._make = make
        self._made: Database | None = None

    async def run(self, text: str, parameters: Parameters) -> Any:
        """Do a statement."""
        try:
            # Importing takes long enough to keep others waiting.
            made = self._made or self._kept(await asyncio.to_thread(self._make))
        except ImportError as error:
            hint = f'pip install "tidemill[{EXTRAS[self.dialect]}]"'
            raise Lacking("driver_missing", f"the driver for {self.dialect} is not installed", hint=hint) from error
        return await made.run(text, parameters)

    def _kept(self, made: Database) -> Database:
        """Keep the first that was made, if several statements came at once."""
        if self._made is None:
            self._made = made
        return self._made

    async def close(self) -> None:
        """Let go of all connections."""
        if self._made is not None:
            await self._made.close()


def bound(parameters: Parameters) -> Parameters:
    """Give parameters as databases take them: lists and objects as JSON texts."""
    if isinstance(parameters, dict):
        return {name: _bound(value) for name, value in parameters.items()}
    return [_bound(value) for value in parameters]


def _bound(value: Any) -> Any:
    return msgspec.json.encode(value).decode() if isinstance(value, (list, dict)) else value


class Gathered:
    """The rows of an answer, taken one by one, so that too many are noticed before they are all there."""

    def __init__(self, bytes_as: str) -> None:
        self._bytes_as = bytes_as
        """How to ask for bytes, such as `hex({})`."""
        self._columns: tuple[str, ...] = ()
        self._rows: list[dict[str, Any]] = []
        self._size = 0

    def head(self, columns: Sequence[str]) -> None:
        """Take the names of the columns."""
        if len(set(columns)) < len(columns):
            raise Fail("sql_failed", "two columns have one name", hint="rename one of them with AS")
        self._columns = tuple(columns)

    def add(self, values: Sequence[Any]) -> None:
        """Take a row."""
        row = dict(zip(self._columns, values, strict=True))
        for name, value in row.items():
            self._check(name, value)
        self._rows.append(row)
        self._size += len(msgspec.json.encode(row))
        if len(self._rows) > ROWS_MAX or self._size > ANSWER_BYTES_MAX:
            message = f"it answers more than {ROWS_MAX} rows or {ANSWER_BYTES_MAX} bytes"
            raise Fail("sql_answer_too_large", message, hint="ask for less, with WHERE or LIMIT")

    def _check(self, name: str, value: Any) -> None:
        if isinstance(value, list):
            for each in value:
                self._check(name, each)
        elif isinstance(value, bytes):
            hint = f"ask for {self._bytes_as.format(name)}"
            raise Fail("sql_failed", f"the column {name} holds bytes, which JSON does not have", hint=hint)
        elif isinstance(value, float) and not math.isfinite(value):
            raise Fail("sql_failed", f"the column {name} holds a number that JSON does not have")

    def answer(self, changed: int) -> dict[str, Any]:
        """Give the whole answer."""
        return {"rows": self._rows, "count": len(self._rows), "changed": changed}
