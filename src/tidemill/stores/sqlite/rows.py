"""Rows in SQL: written at the steps of a run that change how it is found, read a page at a time.

Beside each row stands one entry per term, in the order in which rows are listed, so that a page is a walk along
one term, from the rarest of those that are asked for. A term is kept as a number, a hash of it: what a row really
has is read from the row itself, so two terms that shared a number could cost time, never give a wrong answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
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
_ROW, _ADD_ROW, _SET_ROW, _SET_BODY = SQL["row"], SQL["add_row"], SQL["set_row"], SQL["set_body"]
_HAS_TERM = SQL["has_term"]

WALKED_AT_ONCE = 5_000
"""Entries of a term that one statement looks at."""
STEPS_PER_PAGE_MAX = 2
"""Statements of one page: where terms rarely meet, a page is shorter than it might be, not slow."""
TOP: Place = ((1 << 63) - 1, "\U0010ffff" * 4)
"""Above every row."""
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


@lru_cache(maxsize=512)
def numbers_of(tenant: str, kind: str, packed: bytes) -> tuple[int, ...]:
    """Along which terms a row stands that has these; what is left of a damaged one is passed over by whoever looks."""
    try:
        terms = _terms(packed)
    except (TypeError, ValueError):
        return ()
    return tuple(dict.fromkeys(number_of(tenant, kind, term) for term in (None, *terms)))


def add_row(tx: Transaction, tenant: str, row: Row) -> None:
    """Write a row that is most likely not there yet; if it is, it is replaced."""
    if not row.deleted:
        kind, key, sort, terms = row.kind, row.key, row.sort, _pack(row.terms)
        body = seal(row.body, _place(tenant, kind, key, sort, terms))
        tx.execute(_ADD_ROW, (tenant, kind, key, sort, terms, body))
        if tx.connection.changes():
            for number in numbers_of(tenant, kind, terms):
                tx.places[number, sort, key] = True
            return
    write_row(tx, tenant, row)


def write_row(tx: Transaction, tenant: str, row: Row) -> None:
    """Replace or remove a row, touching only the terms along which it moves."""
    kind, key, sort = row.kind, row.key, row.sort
    old = one(tx.execute(_ROW, (tenant, kind, key)))
    terms = b"" if row.deleted else _pack(row.terms)
    body = seal(row.body, _place(tenant, kind, key, sort, terms))
    sort_before, terms_before = old or (None, b"")
    if old is not None and not row.deleted and sort_before == sort and terms_before == terms:
        tx.execute(_SET_BODY, (body, tenant, kind, key))
        return
    before = () if old is None else numbers_of(tenant, kind, terms_before)
    after = () if row.deleted else numbers_of(tenant, kind, terms)
    for number in before:
        if sort_before != sort or number not in after:
            tx.places[number, sort_before, key] = False
    for number in after:
        if sort_before != sort or number not in before:
            tx.places[number, sort, key] = True
    if row.deleted:
        tx.execute(SQL["remove_row"], (tenant, kind, key))
    else:
        tx.execute(_SET_ROW, (tenant, kind, key, sort, terms, body))


def add_old_row(tx: Transaction, name: tuple[str, str, str], sort: int, terms: bytes, sealed: bytes) -> None:
    """Write a row as it was found in an older table, if it is whole and has not been written anew since."""
    tenant, kind, key = name
    try:
        unseal(sealed, _place(tenant, kind, key, sort, terms), "it")
    except (Damaged, TypeError):
        return
    tx.execute(_ADD_ROW, (tenant, kind, key, sort, terms, sealed))
    if tx.connection.changes():
        for number in numbers_of(tenant, kind, terms):
            tx.places[number, sort, key] = True


def _place(tenant: str, kind: str, key: str, sort: int, terms: bytes) -> bytes:
    """What a row's checksum covers beside its body."""
    return f"{tenant}\0{kind}\0{key}\0{sort}\0".encode() + terms


def find(execute: Execute, tenant: str, kind: str, terms: Sequence[str], after: str | None, limit: int) -> Page:
    """One page of rows that have all terms."""
    below = TOP if after is None else place_of(after)
    limit = max(limit, 1)
    along, others = _rarest_first(execute, tenant, kind, terms)
    rows: list[Row] = []
    for _ in range(STEPS_PER_PAGE_MAX):
        places, end = _step(execute, along, others, below, limit + 1)
        for place in places:
            row = _row_at(execute, tenant, kind, place, terms, others)
            if row is None:
                continue
            if len(rows) == limit:
                return Page(rows=tuple(rows), after=cursor_after(rows[-1]))
            rows.append(row)
        if end is None:
            return Page(rows=tuple(rows))
        below = end
    return Page(rows=tuple(rows), after=cursor_at(below))


def _step(
    execute: Execute, along: int, others: Sequence[int], below: Place, wanted: int
) -> tuple[list[Place], Place | None]:
    """Some of the next places of a term which the first of the others has too, and where to go on; None at the end."""
    if not others:
        places: list[Place] = execute(SQL["walk"], (along, *below, wanted)).fetchall()
        return places, places[-1] if len(places) == wanted else None
    places = execute(SQL["walk_both"], (along, *below, WALKED_AT_ONCE, others[0], wanted)).fetchall()
    if len(places) == wanted:
        return places, places[-1]
    return places, one(execute(SQL["walk_end"], (along, *below, WALKED_AT_ONCE - 1)))


def count(execute: Execute, tenant: str, kind: str, terms: Sequence[str], at_most: int) -> int:
    """How many rows have all terms; one term alone is counted without looking at rows."""
    along, others = _rarest_first(execute, tenant, kind, terms)
    if not others:
        return int(execute(SQL["count_term"], (along, at_most)).fetchall()[0][0])
    counted, below = 0, TOP
    while counted < at_most:
        places, end = _step(execute, along, others, below, WALKED_AT_ONCE)
        counted += sum(1 for place in places if _has_all(execute, place, others[1:]))
        if end is None:
            break
        below = end
    return min(counted, at_most)


def _rarest_first(execute: Execute, tenant: str, kind: str, terms: Sequence[str]) -> tuple[int, list[int]]:
    """The term to walk along, and those to look for in what is met."""
    numbers = [number_of(tenant, kind, term) for term in dict.fromkeys(terms)] or [number_of(tenant, kind, None)]
    if len(numbers) > 1:
        sizes = {number: execute(SQL["count_term"], (number, RARE)).fetchall()[0][0] for number in numbers}
        numbers.sort(key=sizes.__getitem__)
    return numbers[0], numbers[1:]


def _has_all(execute: Execute, place: Place, others: Sequence[int]) -> bool:
    return all(execute(_HAS_TERM, (term, *place)).fetchall() for term in others)


def _row_at(
    execute: Execute, tenant: str, kind: str, place: Place, wanted: Sequence[str], others: Sequence[int]
) -> Row | None:
    if not _has_all(execute, place, others[1:]):
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
