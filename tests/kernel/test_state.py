"""The form of snapshots: stores keep them, so a change of it must not go unnoticed."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import pytest

from tests.kernel.test_maps import DONE
from tidemill.kernel.activation import CHUNK_ITEMS, MapState, Wait
from tidemill.kernel.state import SNAPSHOT_FORMAT, SnapshotFormatUnknown, State, Visit, decode_state, encode_state

FORM = "999a5ce65faa29e5"
"""Of the bytes below. When it has changed: raise `SNAPSHOT_FORMAT`, and write the new one here."""


def known() -> State:
    """A state with something in most places."""
    items = MapState(count=CHUNK_ITEMS + 1, items=b"[]", window=4, next=CHUNK_ITEMS + 1)
    for index in range(CHUNK_ITEMS + 1):
        items.by_index[index] = msgspec.structs.replace(DONE, failures=int(index == CHUNK_ITEMS))
        items.settle(index)
    waiting = Visit(status="WAITING", wait=Wait(on="signal", name="go", since_ms=1), edges={"a": True, "b": False})
    return State(seq=9, status="RUNNING", workflow="w", cells={"m": Visit(status="RUNNING", map=items), "s": waiting})


def test_the_form_of_snapshots_is_the_one_of_their_format() -> None:
    raw = encode_state(known())
    assert decode_state(raw) == known()
    assert sha256(raw).hexdigest()[: len(FORM)] == FORM


@pytest.mark.parametrize("state", [State(), known()])
def test_a_snapshot_begins_with_its_format(state: State) -> None:
    raw = encode_state(state)
    assert raw[0] == SNAPSHOT_FORMAT < 0x80, "no msgpack array begins like that"
    for other in (raw[1:], b"", b"\x00" + raw[1:], bytes([SNAPSHOT_FORMAT + 1]) + raw[1:]):
        with pytest.raises(SnapshotFormatUnknown):
            decode_state(other)
