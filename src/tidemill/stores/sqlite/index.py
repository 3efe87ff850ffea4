"""Whether every row stands where `find` looks for it, and how it comes to stand there again.

`terms` follows from `rows`, so the two are compared as they are at one moment, in a thread and on a connection of its
own. A few places are put right one by one. When that is not enough, or a page of either table is damaged, both tables
are made anew at once and filled, a slice at a time, with every old row that can be read. The old ones are only taken
out of the schema: to free the pages of a damaged tree could free those of a sound one. `VACUUM` brings the space back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import apsw
import msgspec

from tidemill.errors import Rejected
from tidemill.stores.mending import Flaws
from tidemill.stores.sqlite.file import connect, errors_of, one
from tidemill.stores.sqlite.rows import add_old_row, numbers_of
from tidemill.stores.sqlite.writer import Operation, Transaction
from tidemill.stores.statements import statements

SQL = statements("sqlite")

ONE_BY_ONE_MAX = 2_000
"""Rows and places that are put right one by one."""
SLICE = 500
"""Rows that one transaction deals with: whoever writes must not wait long."""
TABLES = ("rows", "terms")
ASIDE = "rows_aside"
BOTTOM, TOP = ("", "", ""), ("\U0010ffff", "", "")

Name = tuple[str, str, str]
"""Tenant, kind and key of a row."""
Place = tuple[int, int, str]

_ILLEGIBLE = (apsw.CorruptError, UnicodeDecodeError)


class Write(Protocol):
    """How a store has an operation written."""

    def __call__(self, operation: Operation[Any], *, durable: bool) -> Coroutine[Any, Any, Any]:
        """Do it in a transaction."""
        ...


class Compared(msgspec.Struct, frozen=True):
    """What is wrong, by name."""

    unreadable: str = ""
    missing: list[Name] = []
    stray: list[Place] = []
    rows_of_strays: list[Name] = []
    """The rows that a stray place might belong to by now."""

    @property
    def few(self) -> bool:
        """Whether it can be put right one by one."""
        most = max(len(self.missing), len(self.stray), len(self.rows_of_strays) // 10)
        sane = all(tuple(map(type, place)) == (int, int, str) for place in self.stray)
        return not self.unreadable and sane and most <= ONE_BY_ONE_MAX

    def flaws(self) -> Flaws:
        """As others see it."""
        return Flaws(unreadable=self.unreadable, missing=len(self.missing), stray=len(self.stray))


class PlacesInFile:
    """An `Index` of a file."""

    def __init__(self, path: Path, write: Write) -> None:
        self._path, self._write = path, write

    async def flaws(self) -> Flaws:
        """What is wrong."""
        return (await self._compared()).flaws()

    async def mend(self) -> Flaws:
        """Put it right: one by one if that is enough, else anew."""
        found = await self._compared()
        flaws = found.flaws()
        if not flaws.sound and found.few:
            # Writing may meet damage that reading does not.
            with suppress(Rejected):
                await self._put_right(found)
            found = await self._compared()
        if not found.flaws().sound:
            await self._build_anew()
        return flaws

    async def _compared(self) -> Compared:
        return await asyncio.to_thread(_compare, self._path)

    async def _put_right(self, found: Compared) -> None:
        await self._write(partial(_remove_strays, strays=found.stray, names=found.rows_of_strays), durable=True)
        for at in range(0, len(found.missing), SLICE):
            await self._write(partial(_place, names=found.missing[at : at + SLICE]), durable=True)

    async def _build_anew(self) -> None:
        await self._write(_set_aside, durable=True)
        # From both ends, each until it meets a row that cannot be read; what is between two of them comes from logs.
        await self._salvage(BOTTOM, up=True)
        await self._salvage(TOP, up=False)
        await self._write(partial(_take_out, name=ASIDE), durable=True)

    async def _salvage(self, place: Name, *, up: bool) -> None:
        more = True
        while more:
            with errors_of(self._path):
                rows, more = await asyncio.to_thread(_old_rows, self._path, up=up, place=place)
            await self._write(partial(_keep, rows=rows), durable=True)
            place = rows[-1][:3] if rows else place


def _compare(path: Path) -> Compared:
    """Read all rows and all places; both are of the same moment."""
    connection = connect(path, read_only=True)
    try:
        with errors_of(path):
            execute = connection.cursor().execute
            execute("PRAGMA temp_store = FILE")
            execute(SQL["make_expected"])
            execute("BEGIN")
            try:
                return _differences(connection, execute)
            except _ILLEGIBLE as error:
                return Compared(" ".join(str(error).split()))
    finally:
        connection.close()


def _differences(connection: apsw.Connection, execute: Callable[..., Any]) -> Compared:
    if one(execute(SQL["table"], (ASIDE,))) is not None:
        return Compared("it was being built anew and that has not ended")
    rows = connection.cursor().execute(SQL["every_row"])
    connection.cursor().executemany(SQL["add_expected"], _expected(rows))
    missing = execute(SQL["missing_places"], (ONE_BY_ONE_MAX + 1,)).fetchall()
    stray = execute(SQL["stray_places"], (ONE_BY_ONE_MAX + 1,)).fetchall()
    kinds = execute(SQL["kinds_of_rows"]).fetchall() if stray else []
    keys = dict.fromkeys(key for _, _, key in stray)
    return Compared("", missing, stray, [(tenant, kind, key) for key in keys for tenant, kind in kinds])


def _expected(rows: Iterable[Any]) -> Iterator[tuple[int, int, str, str, str]]:
    before = BOTTOM
    for tenant, kind, key, sort, terms in rows:
        name = (tenant, kind, key)
        if name <= before:
            raise apsw.CorruptError("rows are out of order")
        before = name
        for number in _numbers(name, sort, terms):
            yield number, sort, key, tenant, kind


def _numbers(name: Name, sort: Any, terms: Any) -> tuple[int, ...]:
    """Along which terms a row stands; a row that was damaged may stand nowhere, and is written again by its log."""
    return numbers_of(name[0], name[1], terms) if isinstance(sort, int) else ()


def _remove_strays(tx: Transaction, strays: list[Place], names: list[Name]) -> None:
    """Remove places, but none that a row has come to stand at since."""
    tx.places.update(dict.fromkeys(strays, False))
    _place(tx, names)


def _place(tx: Transaction, names: list[Name]) -> None:
    """Have rows stand wherever they belong."""
    for name in names:
        sort, terms = one(tx.execute(SQL["row"], name)) or (None, b"")
        tx.places.update({(number, sort, name[2]): True for number in _numbers(name, sort, terms)})


def _set_aside(tx: Transaction) -> None:
    """Begin with empty tables, unless somebody has begun already and was interrupted."""
    if one(tx.execute(SQL["table"], (ASIDE,))) is not None:
        return
    for name in TABLES:
        ((text,),) = tx.execute(SQL["table"], (name,)).fetchall()
        tx.execute(f"ALTER TABLE {name} RENAME TO {name}_aside")
        tx.execute(text)
    _take_out(tx, "terms_aside")


def _take_out(tx: Transaction, name: str) -> None:
    """Take a table out of the schema and leave its pages alone."""
    ((version,),) = tx.execute("PRAGMA schema_version").fetchall()
    tx.execute("PRAGMA writable_schema = ON")
    try:
        tx.execute("DELETE FROM sqlite_schema WHERE tbl_name = ?", (name,))
        # Every other connection reads the schema again.
        tx.execute(f"PRAGMA schema_version = {version + 1}")
    finally:
        tx.execute("PRAGMA writable_schema = RESET")


def _old_rows(path: Path, *, up: bool, place: Name) -> tuple[list[Any], bool]:
    """The next old rows behind a place, and whether there are more that can be read; nobody writes to them any more."""
    connection, rows = connect(path, read_only=True), list[Any]()
    try:
        connection.execute("BEGIN")
        if one(connection.execute(SQL["table"], (ASIDE,))) is None:
            # Somebody else does the same, and has ended.
            return rows, False
        for row in connection.execute(SQL["rows_aside_up" if up else "rows_aside_down"], (*place, SLICE)):
            if row[:3] == place or (row[:3] > place) is not up:
                # A tree that is out of order could be walked for ever.
                return rows, False
            place = row[:3]
            rows.append(row)
    except _ILLEGIBLE:
        return rows, False
    finally:
        connection.close(True)
    return rows, len(rows) == SLICE


def _keep(tx: Transaction, rows: list[Any]) -> None:
    """Keep old rows that nobody has written anew."""
    for tenant, kind, key, sort, terms, body in rows:
        add_old_row(tx, (tenant, kind, key), sort, terms, body)
