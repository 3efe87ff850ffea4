"""The index rows of the memory store: written at every step of a run, looked at now and then.

So writing is what must be cheap. A row that only changes its body moves nowhere, and a term is kept in order
only when somebody walks along it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence, Set
from itertools import islice

from tidemill.stores.contract import Row
from tidemill.stores.cursors import Place

DEAD_PLACES_MAX = 1024
"""Dead places tolerated in an order beyond its living ones before it is rebuilt."""


class Order:
    """Rows of one term, sorted when somebody looks: writing costs O(1), and the dead are swept in bulk."""

    __slots__ = ("_dead", "_fresh", "_sorted")

    def __init__(self) -> None:
        self._sorted: list[Place] = []
        self._fresh: list[Place] = []
        self._dead: set[Place] = set()

    def __len__(self) -> int:
        return len(self._sorted) + len(self._fresh) - len(self._dead)

    def add(self, place: Place) -> None:
        if place in self._dead:
            self._dead.remove(place)
        else:
            self._fresh.append(place)

    def discard(self, place: Place) -> None:
        self._dead.add(place)
        if len(self._dead) > len(self) + DEAD_PLACES_MAX:
            self._sorted = sorted({*self._sorted, *self._fresh} - self._dead)
            self._fresh, self._dead = [], set()

    def downward(self, below: Place | None) -> Iterator[Place]:
        self._settle()
        end = len(self._sorted) if below is None else bisect_left(self._sorted, below)
        for index in range(end - 1, -1, -1):
            if self._sorted[index] not in self._dead:
                yield self._sorted[index]

    def _settle(self) -> None:
        if len(self._fresh) * 64 < len(self._sorted):
            for place in self._fresh:
                insort(self._sorted, place)
        else:
            self._sorted.extend(self._fresh)
            self._sorted.sort()
        self._fresh = []


class Table:
    """The rows of one kind of one tenant, and an order per term; None stands for the term every row has."""

    __slots__ = ("_orders", "_rows")

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._orders: dict[str | None, Order] = {}

    def write(self, row: Row) -> None:
        """Replace or remove a row, touching only the orders in which it moves."""
        old = self._rows.get(row.key)
        if old is not None and old.terms is row.terms and old.sort == row.sort and not row.deleted:
            # By far the most common write: a run went on and can still be found by the same terms.
            self._rows[row.key] = row
            return
        self._rows.pop(row.key, None)
        if not row.deleted:
            self._rows[row.key] = row
        before, after = _terms(old), _terms(None if row.deleted else row)
        if old is not None and old.sort == row.sort:
            before, after = before - after, after - before
        if old is not None:
            self._leave(before, (old.sort, old.key))
        self._enter(after, (row.sort, row.key))

    def _enter(self, terms: Set[str | None], place: Place) -> None:
        for term in terms:
            order = self._orders.get(term)
            if order is None:
                order = self._orders[term] = Order()
            order.add(place)

    def _leave(self, terms: Set[str | None], place: Place) -> None:
        for term in terms:
            order = self._orders[term]
            order.discard(place)
            if not order:
                del self._orders[term]

    def walk(self, terms: Sequence[str], below: Place | None = None) -> Iterator[Row]:
        """Rows that have all terms, newest first, along the shortest of their orders."""
        orders = [self._orders.get(term) for term in terms or (None,)]
        found = [order for order in orders if order is not None]
        if len(found) == len(orders):
            wanted = set(terms)
            for _, key in min(found, key=len).downward(below):
                if wanted.issubset(self._rows[key].terms):
                    yield self._rows[key]

    def count(self, terms: Sequence[str], at_most: int) -> int:
        """How many rows have all terms; a single order knows its own length."""
        if len(terms) <= 1:
            order = self._orders.get(terms[0] if terms else None)
            return 0 if order is None else min(len(order), at_most)
        return sum(1 for _ in islice(self.walk(terms), at_most))


def _terms(row: Row | None) -> Set[str | None]:
    return frozenset() if row is None else {None, *row.terms}
