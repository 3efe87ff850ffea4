"""Items of a map that are kept as bytes: nothing of them is lost, and what has a story is kept whole."""

from __future__ import annotations

import msgspec
import pytest

from tidemill.kernel.activation import QUEUED_ITEM, Activation
from tidemill.kernel.events import BlobRef, Error
from tidemill.kernel.items import MapState
from tidemill.kernel.layers import Layer

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
