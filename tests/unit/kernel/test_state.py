"""The form of snapshots: stores keep them, so a change of it must not go unnoticed."""

from __future__ import annotations

from hashlib import sha256
from typing import get_args

import msgspec
import pytest

from tests.fixtures.kernel.tables import Run, begun
from tests.unit.kernel.decide.test_maps import DONE
from tidemill.kernel import events
from tidemill.kernel.activation import CHUNK_ITEMS, QUEUED_ITEM, Activation, MapState, Wait
from tidemill.kernel.codec import SNAPSHOT_FORMAT, SnapshotFormatUnknown, decode_state, encode_state
from tidemill.kernel.commands import AnyCommand, Done, MapExpanded, Pause, Result
from tidemill.kernel.decide.decide import decide_all
from tidemill.kernel.evolve import replay
from tidemill.kernel.spending import Budget, Spend
from tidemill.kernel.state import UNVISITED, State, Visit

FORM = "6a8a84ae38991643"
"""Of the bytes below. When it has changed: raise `SNAPSHOT_FORMAT`, and write the new one here."""


EVENTS = "ce0816c2f3638f4a"
"""Of the types and fields of events, likewise: a snapshot must not hide an event from a version that lacks it."""


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


def test_the_format_of_snapshots_is_that_of_the_events_in_them() -> None:
    parts = (events.BlobRef, events.Error, events.Route, events.Admission, events.Reopened, events.Join, Budget, Spend)
    shape = sorted((kind.__name__, *kind.__struct_fields__) for kind in (*parts, *get_args(events.AnyEvent)))
    assert sha256(repr((SNAPSHOT_FORMAT, shape)).encode()).hexdigest()[: len(EVENTS)] == EVENTS


@pytest.mark.parametrize("state", [State(), known()])
def test_a_snapshot_begins_with_its_format(state: State) -> None:
    raw = encode_state(state)
    assert raw[0] == SNAPSHOT_FORMAT < 0x80, "no msgpack array begins like that"
    for other in (raw[1:], b"", b"\x00" + raw[1:], bytes([SNAPSHOT_FORMAT + 1]) + raw[1:]):
        with pytest.raises(SnapshotFormatUnknown):
            decode_state(other)


def result(node: str, token: int, index: int = -1) -> Result:
    return Result(node=node, visit=1, index=index, token=token, outcome=Done(output=b"1"))


def assert_decides_without_a_trace(run: Run, command: AnyCommand) -> None:
    """Decide twice, as a turn does whose first commit was refused."""
    before = encode_state(run.kernel.state)
    for _ in range(2):
        decision, problems = decide_all(run.flow, run.kernel.state, [command], 2_000)
        assert (problems, encode_state(run.kernel.state)) == ([None], before)
        assert decision.events


def test_deciding_changes_nothing() -> None:
    """A commit may always be refused: then the state must be as if nothing had been decided."""
    run = begun("a b m > j", {"m": {"map": {"over": [1, 2]}}})
    run.end("a")
    assert_decides_without_a_trace(run, Pause(id="p"))
    assert_decides_without_a_trace(run, result("b", 9))
    run.expand("m", 2)
    assert_decides_without_a_trace(run, result("m", 9, 0))
    run.end("m[0]")
    assert_decides_without_a_trace(run, result("m", 9, 1))


def test_what_is_shared_is_never_written() -> None:
    run = Run("a > m > z", {"m": {"map": {"over": [1, 2]}}})
    run.kernel.start()
    untouched, item = Visit(), Activation(status="QUEUED")
    assert untouched == UNVISITED
    run.kernel.do(result("a", 1), "run/a/1/-1")
    run.kernel.do(
        Result(node="m", visit=1, token=2, outcome=MapExpanded(count=2, items=b"[1,2]"), called=False), "run/m/1/-1"
    )
    run.kernel.do(result("m", 3, 0), "run/m/1/0")
    assert (untouched, item) == (UNVISITED, QUEUED_ITEM)


def test_time_travel_stops_where_asked() -> None:
    run = begun("a > b")
    run.end("a", "b")
    events = run.kernel.events
    assert [replay(events, until=until).seq for until in range(len(events) + 1)] == list(range(len(events) + 1))
    assert replay(events, until=2).status == "RUNNING"
