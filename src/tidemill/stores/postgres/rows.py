"""Index rows in SQL: how they are written and found.

A row has an index entry per term: the hash of tenant, kind and term, at the row's place in the order. `find` walks the
entries of the rarest term and keeps those that the other terms have too. A hash may mean two terms, so the terms of a
row that was found are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from tidemill.stores.contract import Page, Place, Row, cursor_after, cursor_at, place_of
from tidemill.stores.postgres.database import SQL, Bigints, Byteas, Readers, Texts

WALKED_AT_ONCE = 5_000
"""Index entries that one statement visits when rows are counted."""
STEPS = (300, 1_500, 2_000)
"""Index entries that the statements of a page visit: terms that often coincide need few, and where they rarely do, a
page is short rather than slow."""
TOP: Place = ((1 << 63) - 1, "\U0010ffff" * 4)
"""A place above every row."""
RARE, LESS_RARE = 200, 2_000
"""Entries counted per term to find the rarest: before a page begins, and where its first step does not fill it."""

_pack = msgspec.msgpack.Encoder().encode
_terms = msgspec.msgpack.Decoder(tuple[str, ...]).decode


@lru_cache(maxsize=65_536)
def mark_of(tenant: str, kind: str, term: str | None) -> int:
    """The hash of a term; None is the term that every row has."""
    named = _pack((tenant, kind, term))
    return int.from_bytes(blake2b(named, digest_size=8).digest(), "little", signed=True)


@lru_cache(maxsize=4_096)
def _written(tenant: str, kind: str, terms: tuple[str, ...]) -> tuple[bytes, str]:
    """The terms of a row as they are stored, and their hashes as an array."""
    marks = dict.fromkeys(mark_of(tenant, kind, term) for term in (None, *terms))
    return _pack(terms), "{" + ",".join(map(str, marks)) + "}"


class RowArrays:
    """Rows as the arrays of a call."""

    def __init__(self) -> None:
        self.arrays: tuple[Any, ...] = (
            *(Bigints(), Texts(), Texts(), Texts(), Bigints(), Bigints(), Byteas(), Texts(), Byteas()),
        )

    def add(self, commit: int, tenant: str, row: Row) -> None:
        terms, marks = (b"", "{}") if row.deleted else _written(tenant, row.kind, row.terms)
        values = (commit, tenant, row.kind, row.key, row.sort, int(row.deleted), terms, marks, row.body)
        for array, value in zip(self.arrays, values, strict=True):
            array.append(value)


async def find(readers: Readers, tenant: str, kind: str, terms: Sequence[str], after: str | None, limit: int) -> Page:
    below = TOP if after is None else place_of(after)
    limit = max(limit, 1)
    rows: list[Row] = []
    for number, walked in enumerate((min(STEPS[0], 8 * limit), *STEPS[1:])):
        if number < 2:
            along, others = await _rarest_first(readers, tenant, kind, terms, LESS_RARE if number else RARE)
        found, end = await _step(readers, tenant, kind, along, others, below, limit + 1, walked)
        for sort, key, row_sort, packed, body in found:
            if packed is None or row_sort != sort:
                continue
            names = _terms(packed)
            if not set(terms).issubset(names):
                continue
            if len(rows) == limit:
                return Page(rows=tuple(rows), after=cursor_after(rows[-1]))
            rows.append(Row(kind=kind, key=key, sort=sort, terms=names, body=body))
        if end is None:
            return Page(rows=tuple(rows))
        below = end
    return Page(rows=tuple(rows), after=cursor_at(below))


async def _step(
    readers: Readers, tenant: str, kind: str, along: int, others: Sequence[int], below: Place, wanted: int, walked: int
) -> tuple[list[tuple[Any, ...]], Place | None]:
    """The next rows that have all terms, and where to continue; None at the end."""
    if not others:
        found = await readers.fetch(SQL["walk"], (along, *below, wanted, tenant, kind), tenant=tenant)
        return found, found[-1][:2] if len(found) == wanted else None
    values = _entries(along, others, below, max(walked, wanted)) | {"limit": wanted, "tenant": tenant, "kind": kind}
    lines = await readers.fetch(SQL["walk_all"], values, tenant=tenant)
    found = [line[:5] for line in lines if line[5] == 1]
    if len(found) == wanted:
        return found, found[-1][:2]
    last = next((line[:2] for line in lines if line[5] == 0), None)
    return found, last


def _entries(along: int, others: Sequence[int], below: Place, walked: int) -> dict[str, Any]:
    return {"along": along, "others": Bigints(others), "sort": below[0], "key": below[1], "walked": walked}


async def count(readers: Readers, tenant: str, kind: str, terms: Sequence[str], at_most: int) -> int:
    """Count the rows that have all terms, by the index."""
    along, others = await _rarest_first(readers, tenant, kind, terms, LESS_RARE)
    if not others:
        found = await readers.fetch(SQL["count_terms"], (at_most, Bigints([along])), tenant=tenant)
        return int(found[0][1])
    counted, below = 0, TOP
    while counted < at_most:
        values = _entries(along, others, below, WALKED_AT_ONCE)
        ((matched, walked, sort, key),) = await readers.fetch(SQL["count_all"], values, tenant=tenant)
        counted += matched
        if walked < WALKED_AT_ONCE:
            break
        below = sort, key
    return min(counted, at_most)


async def _rarest_first(
    readers: Readers, tenant: str, kind: str, terms: Sequence[str], most: int
) -> tuple[int, list[int]]:
    marks = [mark_of(tenant, kind, term) for term in dict.fromkeys(terms)] or [mark_of(tenant, kind, None)]
    if len(marks) > 1:
        sizes: dict[int, int] = dict(await readers.fetch(SQL["count_terms"], (most, Bigints(marks)), tenant=tenant))
        marks.sort(key=sizes.__getitem__)
    return marks[0], marks[1:]
