"""Index rows: how they are written and found.

A row has an entry per term in one sorted set of its partition: the hash of tenant, kind and term, then the row's place
in the order. `find` walks the entries of the rarest term, in pages, and keeps those that the other terms have too. A
hash may mean two terms, so the terms of a row that was found are compared.

A row lives in the partition of its own key. Rows of a run are written in one transaction with its events, because their
keys begin with the name of the run; a row with another key (a worker's, removed by another worker) is written after.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b

import msgspec

from tidemill.stores.contract import Page, Row, cursor_at, place_of
from tidemill.stores.redis.database import Argument
from tidemill.stores.redis.scripts import Partition, encoded, script

WALKED_AT_ONCE = 2_500
"""Entries that one call visits where several terms are asked for."""
STEPS_PER_PAGE_MAX = 2
"""Calls per page: where terms rarely coincide a page is short rather than slow."""
LOWEST = -(1 << 63)

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[tuple[str, ...], bytes]).decode
Found = tuple[bytes, Row]


@lru_cache(maxsize=65_536)
def _mark(tenant: str, kind: str, term: str | None) -> bytes:
    """The hash of a term; None is the term that every row has."""
    return blake2b(_pack((tenant, kind, term)), digest_size=8).digest()


@lru_cache(maxsize=4_096)
def _marks(tenant: str, kind: str, terms: tuple[str, ...]) -> bytes:
    return b"".join(dict.fromkeys(_mark(tenant, kind, term) for term in (None, *terms)))


def _place(sort: int, key: str) -> bytes:
    return (sort - LOWEST).to_bytes(8, "big") + key.encode()


def written(tenant: str, row: Row) -> tuple[bytes, bytes, bytes, bytes]:
    """A row as the arguments of a script."""
    field = encoded(tenant) + encoded(row.kind) + row.key.encode()
    if row.deleted:
        return field, _place(0, row.key), b"", b""
    return field, _place(row.sort, row.key), _marks(tenant, row.kind, row.terms), _pack((row.terms, row.body))


def _read(kind: str, place: bytes, stored: bytes) -> Row:
    (count,) = struct.unpack_from(">H", stored)
    terms, body = _unpack(stored[10 + 8 * count :])
    sort = int.from_bytes(place[:8], "big") + LOWEST
    return Row(kind=kind, key=place[8:].decode(), sort=sort, terms=terms, body=body)


class _Walk:
    """How far a page has come in one partition."""

    def __init__(self, partition: Partition, below: bytes) -> None:
        self.partition, self.below = partition, below
        self.done = False
        self.rows: list[Found] = []

    async def step(self, store: str, tenant: str, kind: str, terms: Sequence[str], wanted: int) -> None:
        marks = _asked(tenant, kind, terms)
        steps = WALKED_AT_ONCE if len(marks) > 1 else wanted + 1
        part = self.partition
        arguments: list[Argument] = [store, encoded(tenant) + encoded(kind), self.below, wanted, steps, *marks]
        last, *found = await part.reads.run(script("find"), (part.meta, part.rows, part.terms), arguments)
        for place, stored in zip(found[::2], found[1::2], strict=True):
            row = _read(kind, place, stored)
            if set(terms).issubset(row.terms):
                self.rows.append((place, row))
        self.done, self.below = last is None, last or self.below


def _asked(tenant: str, kind: str, terms: Sequence[str]) -> list[bytes]:
    return [_mark(tenant, kind, term) for term in dict.fromkeys(terms)] or [_mark(tenant, kind, None)]


async def find(
    partitions: Sequence[Partition],
    store: str,
    tenant: str,
    kind: str,
    terms: Sequence[str],
    after: str | None,
    limit: int,
) -> Page:
    limit = max(limit, 1)
    below = b"" if after is None else _place(*place_of(after))
    walks = [_Walk(partition, below) for partition in partitions]
    rows: list[Found] = []
    for _ in range(STEPS_PER_PAGE_MAX):
        under_way = [walk for walk in walks if not walk.done]
        await asyncio.gather(*(walk.step(store, tenant, kind, terms, limit + 1) for walk in under_way))
        # What a partition has not visited yet may come before the rows of others.
        floor = max((walk.below for walk in walks if not walk.done), default=b"")
        rows = sorted((each for walk in walks for each in walk.rows if each[0] >= floor), key=_by_place, reverse=True)
        if len(rows) > limit or not floor:
            break
    if len(rows) > limit:
        last = rows[limit - 1][1]
        return Page(rows=tuple(row for _, row in rows[:limit]), after=cursor_at((last.sort, last.key)))
    place = (int.from_bytes(floor[:8], "big") + LOWEST, floor[8:].decode()) if floor else None
    return Page(rows=tuple(row for _, row in rows), after=None if place is None else cursor_at(place))


def _by_place(found: Found) -> bytes:
    return found[0]


async def count(
    partitions: Iterable[Partition], store: str, tenant: str, kind: str, terms: Sequence[str], at_most: int
) -> int:
    """Count the rows that have all terms, by the index."""
    counted, marks = 0, _asked(tenant, kind, terms)
    for part in partitions:
        below: bytes | None = b""
        while below is not None and counted < at_most:
            arguments: list[Argument] = [store, below, WALKED_AT_ONCE, *marks]
            number, below = await part.reads.run(script("count"), (part.meta, part.terms), arguments)
            counted += number
    return min(counted, at_most)
