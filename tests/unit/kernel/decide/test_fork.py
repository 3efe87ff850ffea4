"""Fork: a run of its own that begins with what another one has done, at any event of it, and goes on by itself."""

from __future__ import annotations

from typing import Any

from tests.fixtures.kernel.operator_steps import OperatorSteps
from tests.fixtures.kernel.tables import choose, flow, loop, rows
from tidemill.kernel import events as ev
from tidemill.kernel.codec import encode_state
from tidemill.kernel.commands import ChildBegan, ChildEnded, Decide, Fork, Rollback, Signal, Start, WaitRequested
from tidemill.kernel.decide.fork import shared_prefix

# What is taken over


def test_the_prefix_is_shared_and_what_was_under_way_begins_anew() -> None:
    run = OperatorSteps("a > b c > d").begun()
    run.end("a", "b")
    run.begin("c", token=77)
    before = encode_state(run.kernel.state)
    other = run.fork(reason="what if", actor="ann")
    assert encode_state(run.kernel.state) == before
    assert other.kernel.events[1 : len(run.kernel.events)] == run.kernel.events[1:]
    assert (other.nodes(), other.jobs, other.counter) == (
        "a=COMPLETED b=COMPLETED c=QUEUED d=PENDING",
        "run c",
        2,
    )
    assert (other.act("c").attempt, other.act("c").token) == (1, 0)
    assert other.done("c", token=1)[0] == "NodeStarted c attempt=2"
    other.done("d")
    assert (other.status, run.status) == ("COMPLETED", "RUNNING")


def test_it_says_whose_it_is() -> None:
    run = OperatorSteps("a").begun()
    other = run.fork(labels={"try": "2"}, inputs=b'{"x":1}', submitted_by="ann", id="f1")
    state, event = other.kernel.state, other.of(ev.RunForked)[0]
    assert (state.forked_from, event.run, event.at) == (("other", 2), "other", 2)
    assert (state.labels, state.inputs, state.submitted_by) == ({"try": "2"}, b'{"x":1}', "ann")
    assert list(state.commands) == ["f1"]


def test_a_fork_is_done_once_per_command() -> None:
    run = OperatorSteps("a").begun()
    other = run.fork(id="f1")
    assert other.do(run.forking(id="f1")) == []
    assert other.refused(run.forking(id="f2")) == "run_exists"


def test_commands_letters_and_steps_to_undo_belong_to_the_other_run() -> None:
    mapped = {"map": {"over": [1], "tolerate": 1}}
    run = OperatorSteps("a > b > c; x", {"a": {"compensator": {"type": "value"}}, "b": mapped})
    run.do(Start(version=1, digest=run.flow.digest, inputs=b"{}", id="s1"))
    run.done("a")
    run.expand("b", 2)
    run.fail("b[0]")
    other = run.fork()
    state = other.kernel.state
    assert (state.commands, state.letters, state.undo, state.dead_letters) == ({}, {}, {}, 0)
    other.cancel()
    assert other.refused(Rollback()) == "nothing_to_roll_back"


def test_a_child_of_another_run_has_no_parent() -> None:
    run = OperatorSteps("a")
    parent = ("p", "n", 1, -1)
    run.do(Start(version=1, digest=run.flow.digest, inputs=b"{}", parent=parent, close="cancel", depth=2))
    other = run.fork()
    assert (other.kernel.state.parent, other.kernel.state.depth) == (None, 0)
    assert other.done("a")[-1] == "RunCompleted"


def test_the_deadline_is_a_fresh_one() -> None:
    run = OperatorSteps("a", limits={"deadline_seconds": 5}).begun()
    run.kernel.now = 5_000
    assert run.fork().kernel.state.deadline_ms == 10_000
    run.deadline()
    other = run.fork()
    assert (other.status, other.kernel.state.deadline_ms, other.jobs) == ("RUNNING", 10_000, "deadline; run a")
    patched = run.fork(patch=run.patching(flow("a", limits={"deadline_seconds": 7})))
    assert patched.kernel.state.deadline_ms == 12_000


def test_a_paused_run_goes_on_in_its_fork() -> None:
    run = OperatorSteps("a b").begun()
    run.pause()
    other = run.fork()
    assert (other.status, other.jobs) == ("RUNNING", "run a; run b")


def test_timers_and_back_offs_are_there_in_the_fork() -> None:
    run = OperatorSteps("a b").begun()
    run.wait("a")
    run.fail("b", retryable=True)
    other = run.fork()
    assert [put.ready_at_ms for put in other.kernel.jobs.values()] == [2_000, 2_000]
    assert other.jobs == "run b; wake a"


def test_a_child_is_asked_for_again() -> None:
    run = OperatorSteps("c", {"c": {"type": "workflow", "config": {"workflow": "x"}}}).begun()
    run.call("c")
    run.do(ChildBegan(node="c", visit=1, child="child-1", workflow="x", version=1, digest="d"), "child/c/1/-1")
    other = run.fork()
    assert (other.nodes(), other.jobs) == ("c=QUEUED", "run c")


def test_a_failed_run_is_taken_up_where_it_stopped() -> None:
    run = OperatorSteps("a > b > c; m", {"b": {"delivery": "at_most_once"}, "m": {"map": {"over": [1]}}}).begun()
    run.done("a")
    run.expand("m", 2)
    run.done("m[1]")
    run.begin("b", token=50)
    run.lost("b")
    other = run.fork()
    assert (other.nodes(), other.jobs) == ("a=COMPLETED b=QUEUED c=PENDING m=RUNNING", "run b; run m[0]")
    other.end("b", "c", "m[0]")
    other.assemble("m")
    assert (other.status, run.status) == ("COMPLETED", "FAILED")


def test_a_completed_run_is_taken_up_at_a_node_or_at_an_earlier_event() -> None:
    run = OperatorSteps("a > b > c", outputs={"x": 1}).begun()
    run.end("a", "b", "c")
    run.render()
    fresh = OperatorSteps(run.flow)
    assert fresh.refused(run.forking()) == "nothing_to_fork"
    until = shared_prefix(run.kernel.events, rewinds=True)
    assert until == len(run.kernel.events) - 1
    other = run.fork(until, rewind="b")
    assert (other.nodes(), other.jobs) == ("a=COMPLETED b=QUEUED c=PENDING", "run b#2")
    other.end("b", "c")
    other.render()
    assert other.status == "COMPLETED"


def test_a_run_that_was_rolled_back_is_taken_up_too() -> None:
    run = OperatorSteps("a > b", {"a": {"compensator": {"type": "value"}}}).begun()
    run.done("a")
    run.fail("b")
    run.rollback()
    other = run.fork()
    assert (other.kernel.state.rollback, other.jobs) == ("none", "run b")


def test_what_was_settled_for_a_rollback_runs_again_in_a_fork() -> None:
    """It decided no edges: a fork that took it over would never reach what follows."""
    once = {"compensator": {"type": "value"}, "delivery": "at_most_once"}
    run = OperatorSteps("a > b", {"a": once}).begun()
    run.begin("a", token=5)
    run.lost("a")
    run.rollback()
    run.override("a")
    other = run.fork()
    assert (other.kernel.state.rollback, other.jobs) == ("none", "run a")
    other.fail("a")
    other.override("a")
    assert other.fork().nodes() == "a=COMPLETED b=QUEUED"


def test_a_fork_may_have_another_graph() -> None:
    run = OperatorSteps("a > b > c").begun()
    run.done("a")
    run.fail("b")
    new = flow("a > b n > c", {"b": {"timeout_seconds": 5}})
    other = run.fork(patch=run.patching(new))
    assert (other.nodes(), other.kernel.flow) == ("a=COMPLETED b=QUEUED n=QUEUED c=PENDING", new)
    other.end("b", "n", "c")
    assert (other.status, run.kernel.flow) == ("COMPLETED", flow("a > b > c"))


def test_a_finished_node_is_changed_by_going_back_to_it() -> None:
    run = OperatorSteps("a > b").begun()
    run.end("a", "b")
    until = shared_prefix(run.kernel.events, rewinds=True)
    new = flow("a > b", {"b": {"timeout_seconds": 5}})
    fresh = OperatorSteps(run.flow)
    assert fresh.refused(run.forking(until, patch=run.patching(new))) == "patch_finished_node"
    changed = flow("a > n > b", {"b": {"timeout_seconds": 5}})
    other = run.fork(until, rewind="b")
    assert other.refused(other.patching(changed)) == "patch_live_node"


def test_what_is_refused() -> None:
    run = OperatorSteps("a > b").begun()
    fresh = OperatorSteps(run.flow)
    assert fresh.refused(Fork(run="x", prefix=())) == "event_unknown"
    assert fresh.refused(Fork(run="x", prefix=tuple(run.kernel.events[1:]))) == "event_unknown"
    assert fresh.refused(run.forking(rewind="b")) == "node_not_begun"
    assert fresh.refused(run.forking(rewind="nobody")) == "node_unknown"
    assert fresh.kernel.events == []


def answered() -> OperatorSteps:
    """A run that waits for people, signals and children, and hears from all of them."""
    nodes: dict[str, Any] = {
        "h": {"type": "human", "config": {"title": "?"}, "branch": choose("x", default="y")},
        "s": {"type": "signal", "config": {"name": "go"}},
        "t": {"type": "signal", "config": {"name": "go"}},
        "c": {"type": "workflow", "config": {"workflow": "w"}},
    }
    run = OperatorSteps("h > x y; s t c > z", nodes).begun()
    run.ask("h")
    run.result("s", WaitRequested(on="signal", name="go"))
    run.do(Signal(name="go", signal="1", payload=b"5"))
    run.do(Signal(name="go", signal="2", payload=b"6"))
    run.result("t", WaitRequested(on="signal", name="go"))
    run.call("c")
    run.do(ChildBegan(node="c", visit=1, child="child-1", workflow="w", version=1, digest="d"), "child/c/1/-1")
    run.do(ChildEnded(node="c", visit=1, child="child-1", status="COMPLETED", output=b"7"))
    run.do(Decide(node="h", visit=1, verb="approve", actor="user:ann"))
    run.done("h", "x", called=False)
    run.end("x", "z")
    assert run.status == "COMPLETED"
    return run


def play_out(run: OperatorSteps) -> None:
    """Give a fork every answer it still waits for."""
    for turn in range(40):
        if not run.kernel.state.live:
            return
        for name, cell in [(node.id, run.cell(node.id)) for node in run.flow.nodes]:
            if cell.status == "QUEUED":
                _attempt(run, name)
            elif cell.wait is not None and cell.wait.on == "signal":
                run.do(Signal(name="go", signal=f"again-{turn}-{name}", payload=b"5" if name == "s" else b"6"))
            elif cell.wait is not None and cell.wait.on == "human":
                run.do(Decide(node=name, visit=1, verb="approve", actor="user:ann"))
            elif cell.wait is not None:
                where = {"node": name, "visit": 1, "child": cell.wait.name}
                began = ChildBegan(workflow="w", version=1, digest="d", **where)
                run.do(began, f"child/{name}/1/-1")
                run.do(ChildEnded(status="COMPLETED", output=b"7", **where))
    raise AssertionError("the fork does not end")


def _attempt(run: OperatorSteps, name: str) -> None:
    if name == "h" and run.cell("h").resumed is None:
        run.ask("h")
    elif name in ("s", "t"):
        run.result(name, WaitRequested(on="signal", name="go"))
    elif name == "c":
        run.call("c")
    else:
        run.done(name, "x" if name == "h" else None, called=name != "h")


def test_a_fork_hears_again_what_it_had_not_heard_by_then() -> None:
    run = answered()
    for until in range(1, len(run.kernel.events)):
        other = run.fork(until)
        play_out(other)
        assert (other.status, other.nodes()) == ("COMPLETED", run.nodes()), until
        assert [other.act(name).output for name in "stc"] == [b"5", b"6", b"7"], until


def test_a_loop_whose_pass_had_just_ended_makes_that_pass_again() -> None:
    run = OperatorSteps("e > l > z", {"l": {"loop": loop(back_to="e")}}).begun()
    run.done("e")
    run.done("l", again=True)
    ended = next(n for n, event in enumerate(run.kernel.events) if isinstance(event, ev.LoopContinued))
    other = run.fork(ended)
    assert (other.nodes(), other.of(ev.RunForked)[0].at) == ("e=COMPLETED l=QUEUED z=PENDING", ended - 1)
    assert run.fork(ended + 1).jobs == "run e#2"


def test_a_loop_that_had_just_waited_for_its_body_goes_on() -> None:
    run = OperatorSteps("e > x y > l > z", {"l": {"join": "any", "loop": loop(back_to="e")}}).begun()
    run.end("e", "x")
    run.done("l", again=True)
    before = len(run.kernel.events)
    run.done("y")
    other = run.fork(before + 2)
    assert (other.of(ev.RunForked)[0].at, other.jobs) == (before + 2, "run e#2")
    other.end("e", "x", "y", "l", "z")
    assert other.status == "COMPLETED"


def test_half_an_end_did_not_happen() -> None:
    run = OperatorSteps("a > b; m", {"m": {"map": {"over": [1]}}}).begun()
    run.expand("m", 3)
    run.done("m[2]")
    begun = len(run.kernel.events)
    run.fail("m[0]")
    for until in range(begun + 2, len(run.kernel.events)):
        other = run.fork(until)
        assert other.jobs == "run a; run m[0]; run m[1]", until
    assert run.fork().kernel.events[-4:] != run.kernel.events[-4:]


def test_the_rows_of_a_fork() -> None:
    run = OperatorSteps("a > b").begun()
    run.done("a")
    fresh = OperatorSteps(run.flow)
    assert fresh.do(run.forking())[-3:] == rows("NodeScheduled b; RunForked; put run b")


def test_a_fork_knows_the_signals_that_its_own_log_has() -> None:
    run = OperatorSteps("s > t", {name: {"type": "signal", "config": {"name": "paid"}} for name in "st"}).begun()
    run.listen("s")
    run.signal("s1")
    other = run.fork()
    other.listen("t")
    assert other.signal("s1") == []
    assert other.signal("s2")[-1] == "RunCompleted"
