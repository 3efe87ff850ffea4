"""Items of a map that are kept as bytes: nothing of them is lost, and what has a story is kept whole."""

from __future__ import annotations

import msgspec
import pytest

from tidemill.kernel.activation import QUEUED_ITEM, Activation
from tidemill.kernel.events import BlobRef, Error
from tidemill.kernel.items import SHELF, MapState
from tidemill.kernel.layers import Layer, merged

DONE = Activation(
    status="COMPLETED",
    attempt=2,
    token=77,
    reported=77,
    output=b'{"x":1}',
    since_ms=1_760_000_000_000,
    ended_seq=9,
    duration_ms=12,
)


def holding(item: Activation) -> MapState:
    items = MapState(count=3, items=b"[1,2,3]", window=3, next=3, at={1: item})
    items.settle(1)
    return items


def test_a_completed_item_is_kept_as_bytes_and_read_as_it_was() -> None:
    items = holding(DONE)
    assert isinstance(items.at[1], bytes)
    assert items.get(1) == DONE
    assert list(items.known()) == [(1, DONE)]
    assert items.get(0) is None


@pytest.mark.parametrize(
    "story",
    [
        {"failures": 1},
        {"reported": 76},
        {"discarded": 1},
        {"checkpoint": b"1"},
        {"error": Error("failed", "it failed")},
        {"status": "FAILED"},
        {"output": BlobRef("sha256:" + "0" * 64, 70_000)},
        {"output": None},
        {"duration_ms": 1 << 32},
        {"token": 1 << 64, "reported": 1 << 64},
    ],
    ids=str,
)
def test_an_item_with_a_story_is_kept_whole(story: dict[str, object]) -> None:
    item = msgspec.structs.replace(DONE, **story)
    items = holding(item)
    assert items.at[1] is item
    assert items.get(1) == item


def test_an_item_is_written_to_in_front_of_the_state_it_was_drawn_from() -> None:
    base = holding(DONE)
    drawn = msgspec.structs.replace(base, at=Layer(base.at))
    drawn.edit(1).discarded = 3
    drawn.edit(0).status = "RUNNING"
    assert base.get(1) == DONE
    assert base.get(0) is None
    assert QUEUED_ITEM.status == "QUEUED"
    assert [item.discarded for _, item in drawn.known()] == [3, 0]
    assert drawn.edit(1).discarded == 3, "what was changed once is changed again in place"


def many(count: int) -> MapState:
    return MapState(count=count, items=b"[]", window=count, next=count)


def done(index: int) -> Activation:
    return msgspec.structs.replace(DONE, ended_seq=index, output=b'"%d"' % index * (1 + index % 3))


def complete(items: MapState, *indexes: int) -> None:
    for index in indexes:
        items.at[index] = done(index)
        items.settle(index)


@pytest.mark.parametrize("count", [1, SHELF - 1, SHELF, SHELF + 1, 3 * SHELF])
@pytest.mark.parametrize("order", ["forwards", "backwards", "mixed"])
def test_items_that_have_completed_share_a_shelf_and_are_read_as_they_were(count: int, order: str) -> None:
    items, indexes = many(count), list(range(count))
    if order != "forwards":
        indexes = indexes[::-1] if order == "backwards" else [*indexes[::2], *indexes[1::2]]
    complete(items, *indexes)
    assert len(items.at) == -(-count // SHELF), "one string for all items of a stretch"
    assert [items.get(index) for index in range(count)] == [done(index) for index in range(count)]
    assert sorted(items.known()) == [(index, done(index)) for index in range(count)]
    assert items.get(count) is None
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(items), type=MapState) == items


def test_one_item_with_a_story_keeps_its_stretch_off_the_shelf() -> None:
    items = many(2 * SHELF)
    items.at[3] = msgspec.structs.replace(DONE, failures=1)
    complete(items, *(index for index in range(2 * SHELF) if index != 3))
    assert len(items.at) == SHELF + 1
    assert items.get(3) == items.at[3]
    assert [index for index, _ in items.known() if index >= SHELF] == list(range(SHELF, 2 * SHELF))


def test_an_item_is_taken_from_its_shelf_when_it_changes() -> None:
    items = many(SHELF)
    complete(items, *range(SHELF))
    items.edit(5).discarded = 2
    assert [item.discarded for _, item in sorted(items.known())] == [0] * 5 + [2] + [0] * (SHELF - 6)
    items.settle(5)
    assert items.get(5) == msgspec.structs.replace(done(5), discarded=2)
    assert items.get(4) == done(4)


def test_a_draft_fills_a_shelf_in_front_of_the_state_it_was_drawn_from() -> None:
    """What its base still has of an item is older than the shelf."""
    base = many(SHELF)
    complete(base, *range(SHELF - 2))
    base.edit(SHELF - 2).status = "RUNNING"
    before = dict(base.at)
    drawn = msgspec.structs.replace(base, at=Layer(base.at))
    complete(drawn, SHELF - 2, SHELF - 1)
    assert [drawn.get(index) for index in range(SHELF)] == [done(index) for index in range(SHELF)]
    assert sorted(drawn.known()) == [(index, done(index)) for index in range(SHELF)]
    assert base.at == before
    at_once = many(SHELF)
    complete(at_once, *range(SHELF))
    assert merged(drawn.at) == at_once.at


def test_an_item_that_was_just_put_on_a_shelf_can_be_written() -> None:
    drawn = msgspec.structs.replace(many(SHELF), at=Layer({}))
    complete(drawn, *range(SHELF))
    drawn.edit(0).discarded = 1
    assert drawn.get(0) == msgspec.structs.replace(done(0), discarded=1)
    assert drawn.get(1) == done(1)
