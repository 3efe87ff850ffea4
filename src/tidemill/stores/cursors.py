"""Where a page of rows ends, as text that a caller can hold on to."""

from __future__ import annotations

from tidemill.errors import rejected
from tidemill.stores.contract import Row

Place = tuple[int, str]
"""Where a row stands: its sort and, between equals, its key."""

SORT_BITS = 64


def cursor_after(row: Row) -> str:
    """The cursor of a page that ends with this row."""
    return cursor_at((row.sort, row.key))


def cursor_at(place: Place) -> str:
    """The cursor of a page that ends at a place."""
    return f"{place[0]}:{place[1]}"


def place_of(cursor: str) -> Place:
    """The place behind which a page begins."""
    sort, _, key = cursor.partition(":")
    try:
        number = int(sort)
        number.to_bytes(SORT_BITS // 8, "little", signed=True)
    except (ValueError, OverflowError):
        raise rejected("bad_cursor", "this is not a cursor of an earlier page", hint="start without one") from None
    return number, key
