"""The form of snapshots: stores keep them, so a change of it must not go unnoticed."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from tests.kernel.test_items import DONE
from tidemill.kernel.activation import Wait
from tidemill.kernel.items import SHELF, MapState
from tidemill.kernel.state import Cell, State, decode_state, encode_state

FORM = "519d124d54224288"
"""Of the bytes below. When it has changed: add a migration that drops snapshots (see 0003_snapshots_anew), which also
keeps processes of earlier versions away, and write the new one here."""


def known() -> State:
    """A state with something in most places."""
    items = MapState(count=SHELF + 1, items=b"[]", window=4, next=SHELF + 1)
    for index in range(SHELF + 1):
        items.at[index] = msgspec.structs.replace(DONE, failures=int(index == SHELF))
        items.settle(index)
    waiting = Cell(status="WAITING", wait=Wait(on="signal", name="go", since_ms=1), edges={"a": True, "b": False})
    return State(seq=9, status="RUNNING", workflow="w", cells={"m": Cell(status="RUNNING", map=items), "s": waiting})


def test_the_form_of_snapshots_is_the_one_that_the_newest_schema_has() -> None:
    raw = encode_state(known())
    assert decode_state(raw) == known()
    assert sha256(raw).hexdigest()[: len(FORM)] == FORM
