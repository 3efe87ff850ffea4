"""The form of snapshots: stores keep them, so a change of it must not go unnoticed."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from tests.kernel.tables import Run, begun
from tests.kernel.test_maps import DONE
from tidemill.kernel.activation import QUEUED_ITEM, Activation, Wait
from tidemill.kernel.commands import AnyCommand, Done, Expands, Pause, Result
from tidemill.kernel.decide import decide_all
from tidemill.kernel.evolve import replay
from tidemill.kernel.items import SHELF, MapState
from tidemill.kernel.state import UNTOUCHED, Cell, State, decode_state, encode_state

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
    untouched, item = Cell(), Activation(status="QUEUED")
    assert untouched == UNTOUCHED
    run.kernel.do(result("a", 1), "run/a/1/-1")
    run.kernel.do(
        Result(node="m", visit=1, token=2, outcome=Expands(count=2, items=b"[1,2]"), called=False), "run/m/1/-1"
    )
    run.kernel.do(result("m", 3, 0), "run/m/1/0")
    assert (untouched, item) == (UNTOUCHED, QUEUED_ITEM)


def test_time_travel_stops_where_asked() -> None:
    run = begun("a > b")
    run.end("a", "b")
    events = run.kernel.events
    assert [replay(events, until=until).seq for until in range(len(events) + 1)] == list(range(len(events) + 1))
    assert replay(events, until=2).status == "RUNNING"
