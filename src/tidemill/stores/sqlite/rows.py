"""Index rows and their term index: writing, paged lookup, check and rebuild.

Each row has one index entry per term, in list order, so a page walks along the rarest requested term. A term is stored
as a hash; the row itself is compared with the request, so a collision costs time but never a wrong answer. `terms` is
derived from `rows`. A check compares both at one moment, on a connection in a thread. A few differences are repaired
one by one; otherwise both tables are replaced and refilled in slices with every readable old row. The old tables are
only removed from the schema, because freeing pages of a damaged tree could free those of a sound one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import apsw
import msgspec

from tidemill.errors import Rejected
from tidemill.stores.contract import Page, Place, Row, cursor_after, cursor_at, place_of
from tidemill.stores.optional import IndexProblems
from tidemill.stores.sql_files import statements
from tidemill.stores.sqlite.database import Damaged, Execute, checksum, connect, errors_of, fetch_one, verify
from tidemill.stores.sqlite.writer import Operation, Transaction

LOG = logging.getLogger(__name__)

SQL = statements("sqlite")
_ROW, _ADD_ROW, _SET_ROW, _SET_BODY = SQL["row"], SQL["add_row"], SQL["set_row"], SQL["set_body"]

WALKED_AT_ONCE = 5_000
"""Index entries that one statement visits."""
STEPS_PER_PAGE_MAX = 2
"""Statements per page: where terms rarely coincide a page is short rather than slow."""
TOP: Place = ((1 << 63) - 1, "\U0010ffff" * 4)
"""A place above every row."""
RARE, LESS_RARE = 200, 2_000
"""Entries counted per term to find the rarest: before a page begins, and where its first step does not fill it."""

_pack = msgspec.msgpack.Encoder().encode
_terms = msgspec.msgpack.Decoder(tuple[str, ...]).decode


@lru_cache(maxsize=65_536)
def number_of(tenant: str, kind: str, term: str | None) -> int:
    """The hash of a term; None is the term that every row has."""
    named = _pack((tenant, kind, term))
    return int.from_bytes(blake2b(named, digest_size=8).digest(), "little", signed=True)


@lru_cache(maxsize=512)
def numbers_of(tenant: str, kind: str, packed: bytes) -> tuple[int, ...]:
    """The term hashes of a row; none for damaged terms, whose leftover entries `find` skips."""
    try:
        terms = _terms(packed)
    except (TypeError, ValueError):
        return ()
    return tuple(dict.fromkeys(number_of(tenant, kind, term) for term in (None, *terms)))


def add_row(tx: Transaction, tenant: str, row: Row) -> None:
    """Write a row that most likely is new."""
    if not row.deleted:
        kind, key, sort, terms = row.kind, row.key, row.sort, _pack(row.terms)
        body = checksum(row.body, _place(tenant, kind, key, sort, terms))
        tx.execute(_ADD_ROW, (tenant, kind, key, sort, terms, body))
        if tx.connection.changes():
            for number in numbers_of(tenant, kind, terms):
                tx.term_changes[number, sort, key] = True
            return
    write_row(tx, tenant, row)


def write_row(tx: Transaction, tenant: str, row: Row) -> None:
    """Replace or remove a row, touching only the index entries that change."""
    kind, key, sort = row.kind, row.key, row.sort
    old = fetch_one(tx.execute(_ROW, (tenant, kind, key)))
    terms = b"" if row.deleted else _pack(row.terms)
    body = checksum(row.body, _place(tenant, kind, key, sort, terms))
    sort_before, terms_before = old or (None, b"")
    if old is not None and not row.deleted and sort_before == sort and terms_before == terms:
        tx.execute(_SET_BODY, (body, tenant, kind, key))
        return
    before = () if old is None else numbers_of(tenant, kind, terms_before)
    after = () if row.deleted else numbers_of(tenant, kind, terms)
    for number in before:
        if sort_before != sort or number not in after:
            tx.term_changes[number, sort_before, key] = False
    for number in after:
        if sort_before != sort or number not in before:
            tx.term_changes[number, sort, key] = True
    if row.deleted:
        tx.execute(SQL["remove_row"], (tenant, kind, key))
    else:
        tx.execute(_SET_ROW, (tenant, kind, key, sort, terms, body))


def _place(tenant: str, kind: str, key: str, sort: int, terms: bytes) -> bytes:
    return f"{tenant}\0{kind}\0{key}\0{sort}\0".encode() + terms


def find(execute: Execute, tenant: str, kind: str, terms: Sequence[str], after: str | None, limit: int) -> Page:
    below, wanted = TOP if after is None else place_of(after), set(terms)
    limit = max(limit, 1)
    rows: list[Row] = []
    for number in range(STEPS_PER_PAGE_MAX):
        if number < 2:
            along, others = _rarest_first(execute, tenant, kind, terms, LESS_RARE if number else RARE)
        if others:
            asked = (along, *below, WALKED_AT_ONCE, others[0], limit + 1, tenant, kind)
            found = execute(SQL["walk_both"], asked).fetchall()
        else:
            found = execute(SQL["walk"], (along, *below, limit + 1, tenant, kind)).fetchall()
        for _, key, *stored in found:
            row = _row(tenant, kind, key, wanted, *stored)
            if row is None:
                continue
            if len(rows) == limit:
                return Page(rows=tuple(rows), after=cursor_after(rows[-1]))
            rows.append(row)
        end = _end(execute, along, bool(others), below, found, limit + 1)
        if end is None:
            return Page(rows=tuple(rows))
        below = end
    return Page(rows=tuple(rows), after=cursor_at(below))


def _end(execute: Execute, along: int, both: bool, below: Place, found: Sequence[Any], wanted: int) -> Place | None:
    """Where a walk continues that has found these; None at the end."""
    if len(found) == wanted:
        sort, key, *_ = found[-1]
        return sort, key
    return fetch_one(execute(SQL["walk_end"], (along, *below, WALKED_AT_ONCE - 1))) if both else None


def count(execute: Execute, tenant: str, kind: str, terms: Sequence[str], at_most: int) -> int:
    """How many rows have all terms, counted in the index alone."""
    along, others = _rarest_first(execute, tenant, kind, terms, LESS_RARE)
    if not others:
        return int(execute(SQL["count_term"], (along, at_most)).fetchall()[0][0])
    counted, below = 0, TOP
    while counted < at_most:
        asked = (along, *below, WALKED_AT_ONCE, others[0], WALKED_AT_ONCE)
        places: list[Place] = execute(SQL["walk_places"], asked).fetchall()
        counted += sum(1 for place in places if _has_all(execute, place, others[1:]))
        end = _end(execute, along, True, below, places, WALKED_AT_ONCE)
        if end is None:
            break
        below = end
    return min(counted, at_most)


def _rarest_first(execute: Execute, tenant: str, kind: str, terms: Sequence[str], most: int) -> tuple[int, list[int]]:
    numbers = [number_of(tenant, kind, term) for term in dict.fromkeys(terms)] or [number_of(tenant, kind, None)]
    if len(numbers) > 1:
        sizes = {number: execute(SQL["count_term"], (number, most)).fetchall()[0][0] for number in numbers}
        numbers.sort(key=sizes.__getitem__)
    return numbers[0], numbers[1:]


def _has_all(execute: Execute, place: Place, others: Sequence[int]) -> bool:
    return all(execute(SQL["has_term"], (term, *place)).fetchall() for term in others)


def _row(
    tenant: str, kind: str, key: str, wanted: set[str], sort: int | None, packed: bytes, stored: bytes
) -> Row | None:
    """A row as it was read, if it is there, intact, and has the wanted terms."""
    if sort is None:
        return None
    try:
        body = verify(stored, _place(tenant, kind, key, sort, packed), "it")
    except (Damaged, TypeError):
        LOG.warning("the row of %s %s is damaged and left out; `tidemill reindex` rebuilds it", kind, key)
        return None
    terms = _terms(packed)
    return Row(kind=kind, key=key, sort=sort, terms=terms, body=body) if wanted.issubset(terms) else None


# Check and repair

ONE_BY_ONE_MAX = 2_000
"""Rows and index entries that are repaired one by one."""
SLICE = 500
"""Rows per transaction, so that other writers do not wait long."""
ASIDE = "rows_aside"
ROWS_BOTTOM, ROWS_TOP = ("", "", ""), ("\U0010ffff", "", "")

Name = tuple[str, str, str]
"""Tenant, kind and key of a row."""
TermPlace = tuple[int, int, str]

_ILLEGIBLE = (apsw.CorruptError, UnicodeDecodeError)


class Write(Protocol):
    def __call__(self, operation: Operation[Any], *, durable: bool) -> Coroutine[Any, Any, Any]: ...


class Compared(msgspec.Struct, frozen=True):
    """Differences between rows and index, by name."""

    unreadable: str = ""
    missing: list[Name] = []
    stray: list[TermPlace] = []
    rows_of_strays: list[Name] = []
    """Rows that a stray entry may belong to now."""

    @property
    def few(self) -> bool:
        most = max(len(self.missing), len(self.stray), len(self.rows_of_strays) // 10)
        sane = all(tuple(map(type, place)) == (int, int, str) for place in self.stray)
        return not self.unreadable and sane and most <= ONE_BY_ONE_MAX

    def problems(self) -> IndexProblems:
        return IndexProblems(unreadable=self.unreadable, missing=len(self.missing), stray=len(self.stray))


class SqliteTermIndex:
    """The `Index` of a SQLite store."""

    def __init__(self, path: Path, write: Write) -> None:
        self._path, self._write = path, write

    async def problems(self) -> IndexProblems:
        return (await self._compare()).problems()

    async def repair(self) -> IndexProblems:
        found = await self._compare()
        flaws = found.problems()
        if not flaws.sound and found.few:
            # Writing may hit damage that reading does not.
            with suppress(Rejected):
                await self._repair_few(found)
            found = await self._compare()
        if not found.problems().sound:
            await self._write(_set_aside, durable=True)
            # From both ends to the first unreadable row; a reindex restores what is between them from the logs.
            await self._salvage(ROWS_BOTTOM, up=True)
            await self._salvage(ROWS_TOP, up=False)
            await self._write(partial(_drop_from_schema, name=ASIDE), durable=True)
        return flaws

    async def _compare(self) -> Compared:
        return await asyncio.to_thread(_compare, self._path)

    async def _repair_few(self, found: Compared) -> None:
        await self._write(partial(_place_rows, names=found.rows_of_strays, strays=found.stray), durable=True)
        for at in range(0, len(found.missing), SLICE):
            await self._write(partial(_place_rows, names=found.missing[at : at + SLICE]), durable=True)

    async def _salvage(self, place: Name, *, up: bool) -> None:
        more = True
        while more:
            with errors_of(self._path):
                rows, more = await asyncio.to_thread(_old_rows, self._path, up=up, place=place)
            await self._write(partial(_keep, rows=rows), durable=True)
            place = rows[-1][:3] if rows else place


def _compare(path: Path) -> Compared:
    """Compare all rows with all index entries in one read transaction."""
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


def _differences(connection: apsw.Connection, execute: Execute) -> Compared:
    if fetch_one(execute(SQL["table"], (ASIDE,))) is not None:
        return Compared("a rebuild of it has not ended")
    rows = connection.cursor().execute(SQL["every_row"])
    connection.cursor().executemany(SQL["add_expected"], _expected(rows))
    missing = execute(SQL["missing_places"], (ONE_BY_ONE_MAX + 1,)).fetchall()
    stray = execute(SQL["stray_places"], (ONE_BY_ONE_MAX + 1,)).fetchall()
    kinds = execute(SQL["kinds_of_rows"]).fetchall() if stray else []
    keys = dict.fromkeys(key for _, _, key in stray)
    return Compared("", missing, stray, [(tenant, kind, key) for key in keys for tenant, kind in kinds])


def _expected(rows: Iterable[Any]) -> Iterator[tuple[int, int, str, str, str]]:
    before = ROWS_BOTTOM
    for tenant, kind, key, sort, terms in rows:
        name = (tenant, kind, key)
        if name <= before:
            raise apsw.CorruptError("rows are out of order")
        before = name
        for number in _numbers(name, sort, terms):
            yield number, sort, key, tenant, kind


def _numbers(name: Name, sort: Any, terms: Any) -> tuple[int, ...]:
    """The term hashes of a row; none for a damaged row, which a reindex writes again."""
    return numbers_of(name[0], name[1], terms) if isinstance(sort, int) else ()


def _place_rows(tx: Transaction, names: list[Name], strays: Sequence[TermPlace] = ()) -> None:
    """Remove stray index entries, except those that a row has gained since, and add the entries of rows."""
    tx.term_changes.update(dict.fromkeys(strays, False))
    for name in names:
        sort, terms = fetch_one(tx.execute(SQL["row"], name)) or (None, b"")
        tx.term_changes.update({(number, sort, name[2]): True for number in _numbers(name, sort, terms)})


def _set_aside(tx: Transaction) -> None:
    """Start with empty tables, unless an interrupted rebuild already did."""
    if fetch_one(tx.execute(SQL["table"], (ASIDE,))) is not None:
        return
    for name in ("rows", "terms"):
        ((text,),) = tx.execute(SQL["table"], (name,)).fetchall()
        tx.execute(f"ALTER TABLE {name} RENAME TO {name}_aside")
        tx.execute(text)
    _drop_from_schema(tx, "terms_aside")


def _drop_from_schema(tx: Transaction, name: str) -> None:
    """Remove a table from the schema without freeing its pages."""
    ((version,),) = tx.execute("PRAGMA schema_version").fetchall()
    tx.execute("PRAGMA writable_schema = ON")
    try:
        tx.execute("DELETE FROM sqlite_schema WHERE tbl_name = ?", (name,))
        # Makes every other connection read the schema again.
        tx.execute(f"PRAGMA schema_version = {version + 1}")
    finally:
        tx.execute("PRAGMA writable_schema = RESET")


def _old_rows(path: Path, *, up: bool, place: Name) -> tuple[list[Any], bool]:
    """The next old rows after a place, and whether more can be read."""
    connection, rows = connect(path, read_only=True), list[Any]()
    try:
        connection.execute("BEGIN")
        if fetch_one(connection.execute(SQL["table"], (ASIDE,))) is None:
            # Another process has finished the same rebuild.
            return rows, False
        for row in connection.execute(SQL["rows_aside_up" if up else "rows_aside_down"], (*place, SLICE)):
            if row[:3] == place or (row[:3] > place) is not up:
                # A walk along a disordered tree might not end.
                return rows, False
            place = row[:3]
            rows.append(row)
    except _ILLEGIBLE:
        return rows, False
    finally:
        connection.close(True)
    return rows, len(rows) == SLICE


def _keep(tx: Transaction, rows: list[Any]) -> None:
    """Write old rows that are intact and have not been written since."""
    for tenant, kind, key, sort, terms, stored in rows:
        try:
            verify(stored, _place(tenant, kind, key, sort, terms), "it")
        except (Damaged, TypeError):
            continue
        tx.execute(_ADD_ROW, (tenant, kind, key, sort, terms, stored))
        if tx.connection.changes():
            tx.term_changes.update({(number, sort, key): True for number in numbers_of(tenant, kind, terms)})
