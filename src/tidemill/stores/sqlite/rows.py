"""Rows in SQL: written at the steps of a run that change how it is found, read a page at a time.

Beside each row stands one entry per term, in the order in which rows are listed, so that a page is a walk along
one term, from the rarest of those that are asked for. A term is kept as a number, a hash of it: what a row really
has is read from the row itself, so two terms that shared a number could cost time, never give a wrong answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from tidemill.stores.contract import Page, Row
from tidemill.stores.cursors import Place, cursor_after, cursor_at, place_of
from tidemill.stores.sqlite.file import one
from tidemill.stores.sqlite.seals import Damaged, seal, unseal
from tidemill.stores.sqlite.writer import Transaction
from tidemill.stores.statements import statements

LOG = logging.getLogger(__name__)

SQL = statements("sqlite")
_ROW, _SET_ROW, _SET_BODY = SQL["row"], SQL["set_row"], SQL["set_body"]
_ADD_TERM, _REMOVE_TERM, _HAS_TERM = SQL["add_term"], SQL["remove_term"], SQL["has_term"]

WALKED_PER_PAGE_MAX = 10_000
"""Entries that one page looks at: where terms rarely meet, a page is shorter than it might be, not slow."""
RARE = 200
"""Up to so many entries of a term are counted to find the rarest."""

_pack = msgspec.msgpack.Encoder().encode
_terms = msgspec.msgpack.Decoder(tuple[str, ...]).decode

Execute = Callable[..., Any]


@lru_cache(maxsize=65_536)
def number_of(tenant: str, kind: str, term: str | None) -> int:
    """What a term is kept as; None is the term that every row has."""
    named = _pack((tenant, kind, term))
    return int.from_bytes(blake2b(named, digest_size=8).digest(), "little", signed=True)


def write_row(tx: Transaction, tenant: str, row: Row) -> None:
    """Replace or remove a row, touching only the terms along which it moves."""
    execute = tx.execute
    old = one(execute(_ROW, (tenant, row.kind, row.key)))
    terms = b"" if row.deleted else _pack(row.terms)
    if old is not None and not row.deleted and old[0] == row.sort and old[1] == terms:
        body = seal(row.body, _place(tenant, row.kind, row.key, row.sort, terms))
        execute(_SET_BODY, (body, tenant, row.kind, row.key))
        return
    before = set() if old is None else _places_before(tenant, row.kind, row.key, *old)
    after = set() if row.deleted else _places(tenant, row.kind, row.key, row.sort, row.terms)
    for place in before - after:
        execute(_REMOVE_TERM, place)
    for place in after - before:
        execute(_ADD_TERM, place)
    if row.deleted:
        execute(SQL["remove_row"], (tenant, row.kind, row.key))
    else:
        body = seal(row.body, _place(tenant, row.kind, row.key, row.sort, terms))
        execute(_SET_ROW, (tenant, row.kind, row.key, row.sort, terms, body))


def _place(tenant: str, kind: str, key: str, sort: int, terms: bytes) -> bytes:
    """What a row's checksum covers beside its body."""
    return f"{tenant}\0{kind}\0{key}\0{sort}\0".encode() + terms


def _places_before(tenant: str, kind: str, key: str, sort: int, packed: bytes) -> set[tuple[int, int, str]]:
    """Where a row stood; what is left of a damaged one is passed over by whoever looks for it."""
    try:
        return _places(tenant, kind, key, sort, _terms(packed))
    except (TypeError, ValueError):
        return set()


def _places(tenant: str, kind: str, key: str, sort: int, terms: Iterable[str]) -> set[tuple[int, int, str]]:
    return {(number_of(tenant, kind, term), sort, key) for term in (None, *terms)}


def find(execute: Execute, tenant: str, kind: str, terms: Sequence[str], after: str | None, limit: int) -> Page:
    """One page of rows that have all terms."""
    below = None if after is None else place_of(after)
    limit = max(limit, 1)
    along, others = _rarest_first(execute, tenant, kind, terms)
    rows: list[Row] = []
    walked = 0
    while walked < WALKED_PER_PAGE_MAX:
        step = min(max(limit + 1, RARE), WALKED_PER_PAGE_MAX - walked)
        places = _walk(execute, along, below, step)
        for place in places:
            below = place
            row = _row_at(execute, tenant, kind, place, terms, others)
            if row is None:
                continue
            if len(rows) == limit:
                return Page(rows=tuple(rows), after=cursor_after(rows[-1]))
            rows.append(row)
        walked += len(places)
        if len(places) < step:
            return Page(rows=tuple(rows))
    return Page(rows=tuple(rows), after=None if below is None else cursor_at(below))


def count(execute: Execute, tenant: str, kind: str, terms: Sequence[str], at_most: int) -> int:
    """How many rows have all terms; one term alone is counted without looking at rows."""
    if len(terms) <= 1:
        number = number_of(tenant, kind, terms[0] if terms else None)
        return int(execute(SQL["count_term"], (number, at_most)).fetchall()[0][0])
    along, others = _rarest_first(execute, tenant, kind, terms)
    counted, below = 0, None
    while counted < at_most:
        places = _walk(execute, along, below, WALKED_PER_PAGE_MAX)
        counted += sum(1 for place in places if _has_all(execute, place, others))
        if len(places) < WALKED_PER_PAGE_MAX:
            break
        below = places[-1]
    return min(counted, at_most)


def _rarest_first(execute: Execute, tenant: str, kind: str, terms: Sequence[str]) -> tuple[int, list[int]]:
    """The term to walk along, and those to look for in what is met."""
    numbers = [number_of(tenant, kind, term) for term in dict.fromkeys(terms)] or [number_of(tenant, kind, None)]
    if len(numbers) > 1:
        sizes = {number: execute(SQL["count_term"], (number, RARE)).fetchall()[0][0] for number in numbers}
        numbers.sort(key=sizes.__getitem__)
    return numbers[0], numbers[1:]


def _walk(execute: Execute, term: int, below: Place | None, step: int) -> list[Place]:
    named, values = ("walk_from_top", (term, step)) if below is None else ("walk", (term, *below, step))
    places: list[Place] = execute(SQL[named], values).fetchall()
    return places


def _has_all(execute: Execute, place: Place, others: Sequence[int]) -> bool:
    return all(execute(_HAS_TERM, (term, *place)).fetchall() for term in others)


def _row_at(
    execute: Execute, tenant: str, kind: str, place: Place, wanted: Sequence[str], others: Sequence[int]
) -> Row | None:
    if not _has_all(execute, place, others):
        return None
    found = one(execute(SQL["full_row"], (tenant, kind, place[1])))
    if found is None:
        return None
    sort, packed, sealed = found
    try:
        body = unseal(sealed, _place(tenant, kind, place[1], sort, packed), "it")
    except (Damaged, TypeError):
        LOG.warning("the row of %s %s is damaged and left out; `tidemill reindex` writes it again", kind, place[1])
        return None
    terms = _terms(packed)
    if not set(wanted).issubset(terms):
        return None
    return Row(kind=kind, key=place[1], sort=sort, terms=terms, body=body)
