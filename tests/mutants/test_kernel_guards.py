"""Tests for guards of the kernel that its tables do not reach: each goes red when one check is taken away."""

from __future__ import annotations

import msgspec
import pytest

from tests.kernel.tables import Run, loop
from tidemill.errors import Rejected
from tidemill.kernel import codec
from tidemill.kernel.activation import QUEUED_ITEM, Activation
from tidemill.kernel.commands import AnyCommand, Begin, Done, Expands, Pause, Repair, Result
from tidemill.kernel.decide import decide_all
from tidemill.kernel.events import RunCreated, RunPaused
from tidemill.kernel.evolve import replay
from tidemill.kernel.laws import check_log
from tidemill.kernel.sight import Output, visible
from tidemill.kernel.state import UNTOUCHED, Cell, encode_state

SCRATCHED = {
    "b": {"on_error": {"route": ["h"]}},
    "l": {"loop": loop(5, "e"), "join": "any"},
    "h": {"join": "all"},
}
"""e → (b, c) → l, looping back to e; b's error path and the slow s lead to h."""


def result(node: str, token: int, index: int = -1) -> Result:
    return Result(node=node, visit=1, index=index, token=token, outcome=Done(output=b"1"))


def test_a_refused_command_writes_nothing_beside_others() -> None:
    run = Run("a > b")
    run.start()
    run.begin("a", token=5)
    commands: list[AnyCommand] = [Begin(node="a", visit=1, token=3), Begin(node="b", visit=1, token=6), Pause()]
    decision, problems = decide_all(run.flow, run.kernel.state, commands, 2_000)
    assert [problem and problem.code for problem in problems] == ["attempt_stale", "attempt_stale", None]
    assert [type(event) for event in decision.events] == [RunPaused]


def test_a_repair_of_another_version_is_ignored() -> None:
    run = Run("a b")
    run.start()
    seen = run.kernel.state.seq
    run.begin("a")
    assert run.do(Repair(missing=("run/b/1/-1",), reason="lost", seq=seen)) == []
    assert run.do(Repair(missing=("run/b/1/-1",), reason="lost", seq=seen + 1)) != []


def test_an_edge_that_is_taken_twice_arrives_once() -> None:
    run = Run("e > b c > l; s > h", SCRATCHED)
    run.start()
    run.end("e")
    run.fail("b")
    run.end("c")
    run.done("l", again=True)
    assert run.edges("h") == "b:taken s:undecided"
    run.end("e")
    counter = run.counter
    run.fail("b")
    assert (run.counter, run.cell("h").taken, run.cell("h").tokens) == (counter - 1, 1, 1)
    run.end("c")
    run.done("l", again=False)
    run.end("s")
    assert run.nodes("h") == "h=QUEUED"
    run.end("h")
    assert (run.status, run.counter) == ("COMPLETED", 0)


def test_an_edge_that_was_taken_never_dies() -> None:
    run = Run("e > b c > l; s > h", SCRATCHED)
    run.start()
    run.end("e")
    run.fail("b")
    run.end("c")
    run.done("l", again=True)
    run.end("e", "c")
    run.done("l", again=False)
    # The loop is over before b has ended: b decides all of its edges, except the one it took in an earlier pass.
    run.end("b")
    assert run.edges("h") == "b:taken s:undecided"


def test_an_output_of_an_earlier_pass_is_not_shown_as_one_of_this() -> None:
    run = Run("e > x y > l > z", {"l": {"loop": loop(3, "e"), "join": "any"}})
    run.start()
    run.end("e", "x", "y")
    run.done("l", again=True)
    run.end("e", "x")
    state, nodes = run.kernel.state, run.flow.by_id
    assert visible(run.flow, state, nodes["l"], "y") == "has not ended"
    assert isinstance(visible(run.flow, state, nodes["z"], "y"), Output)


def test_a_log_that_breaks_a_law_is_reported() -> None:
    run = Run("a > b")
    run.start()
    run.end("a")
    sound = run.kernel.events
    assert check_log(run.flow, sound) == []
    assert {found.law for found in check_log(run.flow, [*sound, *sound[-3:]])} >= {"attempts", "ended-once"}


def assert_decides_without_a_trace(run: Run, command: AnyCommand) -> None:
    """Decide twice, as a turn does whose first commit was refused."""
    before = encode_state(run.kernel.state)
    for _ in range(2):
        decision, problems = decide_all(run.flow, run.kernel.state, [command], 2_000)
        assert (problems, encode_state(run.kernel.state)) == ([None], before)
        assert decision.events


def test_deciding_changes_nothing() -> None:
    """A commit may always be refused: then the state must be as if nothing had been decided."""
    run = Run("a b m > j", {"m": {"map": {"over": [1, 2]}}})
    run.start()
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


def test_a_repeated_assembly_leaves_nothing() -> None:
    """No handler is called for it, so only the event that completes the map can remember under which lease."""
    run = Run("m > z", {"m": {"map": {"over": [1]}}})
    run.start()
    run.expand("m", 1)
    run.end("m[0]")
    assembly = Result(node="m", visit=1, token=90, outcome=Done(output=b"[1]"), called=False)
    run.do(assembly, "run/m/1/-1")
    assert run.nodes("m z") == "m=COMPLETED z=QUEUED"
    assert run.do(msgspec.structs.replace(assembly, again=True)) == []


def test_time_travel_stops_where_asked() -> None:
    run = Run("a > b")
    run.start()
    run.end("a", "b")
    events = run.kernel.events
    assert [replay(events, until=until).seq for until in range(len(events) + 1)] == list(range(len(events) + 1))
    assert replay(events, until=2).status == "RUNNING"


CREATED = RunCreated(workflow="w", version=1, digest="d", inputs=b"{}", entries=("a",), counter=1)


def test_an_event_of_a_newer_version_is_refused() -> None:
    raw = codec.encode_event(msgspec.structs.replace(CREATED, v=2))
    with pytest.raises(Rejected) as refusal:
        codec.decode_event(raw)
    assert refusal.value.code == "event_newer"


def test_an_event_of_an_older_format_is_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when its fields happen to fit the present format."""
    monkeypatch.setitem(codec.FORMATS, "RunCreated", 2)
    monkeypatch.setitem(codec.UPCASTS, ("RunCreated", 1), lambda fields: [fields[0], 2, *fields[2:6], "W", *fields[7:]])
    lifted = codec.decode_event(codec.encode_event(CREATED))
    assert isinstance(lifted, RunCreated)
    assert (lifted.v, lifted.workflow) == (2, "W")
