"""Rewind: a node of an unfinished run, and everything behind it, happens anew in its next visit."""

from __future__ import annotations

import msgspec
import pytest

from tests.fixtures.kernel.operator_steps import OperatorSteps
from tests.fixtures.kernel.tables import loop, rows
from tidemill.kernel import events as ev
from tidemill.kernel.commands import Done, Result, Rewind


def anew(run: OperatorSteps) -> str:
    """What the latest rewind begins again, as `b#2*1`: a node, its visit and its tokens."""
    return " ".join(f"{each.node}#{each.visit}*{each.tokens}" for each in run.of(ev.RunRewound)[-1].nodes)


def test_a_node_and_its_descendants_get_their_next_visit() -> None:
    run = OperatorSteps("a > b > c > d; x").begun()
    run.end("a", "b", "c")
    assert run.rewind("b", reason="wrong list") == rows(
        "NodeCancelled d counter=1; RunRewound; NodeScheduled b#2; drop run d; put run b#2"
    )
    assert (anew(run), run.counter) == ("b#2*1 c#2*0 d#2*0", 2)
    assert run.nodes() == "a=COMPLETED b=QUEUED c=PENDING d=PENDING x=QUEUED"
    assert run.act("b").attempt == 0
    run.end("b", "c", "d", "x")
    assert (run.status, run.cell("c").visit) == ("COMPLETED", 2)


def test_an_entry_node_begins_with_its_own_token() -> None:
    run = OperatorSteps("a > b; c").begun()
    run.done("a")
    assert run.rewind("a")[-3:] == rows("NodeScheduled a#2; drop run b; put run a#2")
    assert (run.counter, run.cell("a").has_start_token) == (2, True)


def test_in_flight_attempts_are_fenced_off() -> None:
    run = OperatorSteps("a > b").begun()
    run.done("a")
    run.begin("b", token=50)
    run.rewind("b")
    assert run.done("b#1", token=50) == rows("ResultDiscarded b outcome=Done reason=visit_ended")
    run.done("b")
    assert run.status == "COMPLETED"


def test_waits_and_children_go_with_their_visits() -> None:
    run = OperatorSteps("a > t c", {"c": {"type": "workflow", "config": {"workflow": "x"}}}).begun()
    run.done("a")
    run.wait("t")
    run.call("c")
    dropped = [row for row in run.rewind("a") if row.startswith(("drop", "put"))]
    assert dropped == rows("drop wake t; drop child c; put close c; put run a#2")


def test_a_map_is_expanded_anew() -> None:
    run = OperatorSteps("a > m", {"m": {"map": {"over": [1]}}}).begun()
    run.done("a")
    run.expand("m", 3)
    run.done("m[1]")
    run.rewind("m")
    assert (run.jobs, run.cell("m").map, run.kernel.state.items) == ("run m#2", None, 0)
    run.expand("m", 1)
    run.done("m[0]")
    run.assemble("m")
    assert run.status == "COMPLETED"


def test_letters_of_what_happens_anew_are_closed() -> None:
    run = OperatorSteps("a > b > c; x", {"b": {"map": {"over": [1], "tolerate": 1}}}).begun()
    run.done("a")
    run.expand("b", 2)
    run.fail("b[0]")
    run.letter("b[0]")
    assert "DeadLetterClosed b[0]" in run.rewind("a")
    assert run.letters == ""


def test_edges_from_outside_stay_decided_and_bring_their_token_again() -> None:
    run = OperatorSteps("a > b; x > b; b > z").begun()
    run.end("a", "x", "b")
    run.rewind("a")
    assert (run.edges("b"), anew(run)) == ("a:undecided x:taken", "a#2*1 b#2*1 z#2*0")
    run.end("a", "b", "z")
    assert run.status == "COMPLETED"


def test_tokens_that_stood_at_a_join_are_counted_once() -> None:
    run = OperatorSteps("a b c > j").begun()
    run.end("a", "b")
    run.rewind("a")
    event = run.of(ev.RunRewound)[-1]
    assert (event.consumed, event.emitted, run.counter) == (2, 2, 3)
    run.end("a", "c", "j")
    assert run.status == "COMPLETED"


def test_an_any_join_fires_at_once_by_the_edge_that_stays() -> None:
    run = OperatorSteps("a b > j > z", {"j": {"join": "any"}}).begun()
    run.end("a", "j", "b")
    run.rewind("b")
    assert (anew(run), run.nodes()) == ("b#2*1 j#2*1 z#2*0", "a=COMPLETED b=QUEUED j=QUEUED z=PENDING")
    run.end("b", "j", "z")
    assert run.status == "COMPLETED"


def test_the_rendering_of_outputs_is_withdrawn() -> None:
    run = OperatorSteps("a > b", outputs={"x": 1}).begun()
    run.end("a", "b")
    assert run.rewind("b") == rows("RunRewound; NodeScheduled b#2; drop outputs; put run b#2")
    assert run.counter == 1
    assert run.done("b")[1] == "NodeCompleted b#2 counter=1 renders"


def test_while_paused_nothing_is_dispatched() -> None:
    run = OperatorSteps("a > b").begun()
    run.done("a")
    run.pause()
    assert run.rewind("a") == rows("NodeCancelled b counter=0; RunRewound; NodeScheduled a#2; drop run b")
    assert run.resume() == rows("RunResumed; put run a#2")


def test_the_queue_of_held_nodes_stays_in_order() -> None:
    run = OperatorSteps("a > b c d e", limits={"max_parallel": 1}).begun()
    run.done("a")
    assert run.kernel.state.first_held == "c"
    run.rewind("d")
    order = []
    for _ in range(4):
        order.append(run.jobs)
        run.done(run.jobs.removeprefix("run ").removesuffix("#2"))
    assert order == ["run b", "run c", "run e", "run d#2"]
    assert run.status == "COMPLETED"


def test_a_limit_may_be_met_on_the_way_back() -> None:
    run = OperatorSteps("a > b", limits={"max_visits": 2}).begun()
    run.done("a")
    run.rewind("a")
    assert (run.status, run.nodes(), run.counter) == ("FAILED", "a=CANCELLED b=CANCELLED", 0)


def looped(graph: str = "s > e > x > l > z; w", back_to: str = "e") -> OperatorSteps:
    return OperatorSteps(graph, {"l": {"loop": loop(4, back_to=back_to)}}).begun()


def test_inside_a_loop_the_pass_goes_on_counting() -> None:
    run = looped()
    run.end("s", "e", "x")
    run.done("l", again=True)
    run.done("e")
    run.rewind("e")
    assert (run.cell("l").passes, run.cell("e").visit, run.jobs) == (1, 3, "run e#3; run w")
    run.end("e", "x")
    assert "iteration=2" in run.done("l", again=True)[2]


def test_before_a_loop_it_begins_anew_at_its_first_pass() -> None:
    run = looped()
    run.end("s", "e", "x")
    run.done("l", again=True)
    run.done("e")
    run.rewind("s")
    assert run.of(ev.RunRewound)[-1].restarted == ("l",)
    assert (run.cell("l").passes, run.cell("e").has_start_token) == (0, False)
    run.end("s", "e", "x")
    assert "iteration=1" in run.done("l", again=True)[2]


def test_a_loop_that_had_ended_goes_on() -> None:
    run = looped()
    run.end("s", "e", "x", "l")
    run.rewind("x")
    run.done("x")
    run.done("l", again=True)
    assert run.nodes() == "s=COMPLETED e=QUEUED x=PENDING l=PENDING z=PENDING w=QUEUED"


def test_a_looping_node_that_waits_for_its_body_is_rewound_with_it() -> None:
    run = OperatorSteps("e > x y > l > z", {"l": {"join": "any", "loop": loop(back_to="e")}}).begun()
    run.end("e", "x")
    run.done("l", again=True)
    run.rewind("x")
    run.done("y")
    assert run.nodes() == "e=COMPLETED x=QUEUED y=COMPLETED l=QUEUED z=PENDING"
    run.end("l", "x", "z")
    assert run.status == "COMPLETED"


def escaping(join: str) -> OperatorSteps:
    """`s` has an error path to `t`, outside of the loop over e, s, x and l; `t` also waits for `y`."""
    nodes = {"s": {"on_error": {"route": ["t"]}}, "l": {"loop": loop(back_to="e")}, "t": {"join": join}}
    run = OperatorSteps("e > s x > l > z; y > t > u", nodes).begun()
    run.end("e", "s", "x", "l")
    assert run.edges("t") == "s:dead y:undecided"
    return run


@pytest.mark.parametrize("join", ["all", "any"])
def test_an_error_path_that_died_with_its_loop_is_open_again_when_the_loop_goes_on(join: str) -> None:
    run = escaping(join)
    run.rewind("x")
    assert (run.of(ev.RunRewound)[-1].undecided, run.edges("t")) == ((("s", "t"),), "s:undecided y:undecided")
    run.done("x")
    run.done("l", again=True)
    run.done("e")
    run.fail("s")
    assert run.edges("t") == "s:taken y:undecided"
    run.done("y")
    run.end("x", "l", "z", "t", "u")
    assert (run.status, run.counter) == ("COMPLETED", 0)


def test_and_dies_again_when_the_loop_ends_again() -> None:
    run = escaping("all")
    run.rewind("x")
    run.done("x")
    assert run.done("l")[1] == "NodeCompleted l#2 taken=z escapes=s>t counter=2"
    run.end("y", "t", "u", "z")
    assert run.status == "COMPLETED"


def test_what_an_earlier_pass_took_out_of_the_loop_stays() -> None:
    nodes = {"s": {"on_error": {"route": ["t"]}}, "l": {"join": "any", "loop": loop(back_to="e")}}
    run = OperatorSteps("e > s x > l > z; s > t > u", nodes).begun()
    run.done("e")
    run.fail("s")
    run.end("x", "t")
    run.done("l", again=True)
    run.rewind("e")
    assert (run.edges("t"), run.nodes("t")) == ("s:taken", "t=QUEUED")
    run.end("e", "s", "x", "l", "t", "u", "z")
    assert (run.status, run.counter) == ("COMPLETED", 0)


def test_what_is_refused() -> None:
    run = OperatorSteps("a > b > c").begun()
    assert run.refused(Rewind(node="b")) == "node_not_begun"
    assert run.refused(Rewind(node="nobody")) == "node_unknown"
    run.end("a", "b", "c")
    assert run.refused(Rewind(node="a")) == "run_ended"
    run = OperatorSteps("a").begun()
    run.cancel()
    assert run.refused(Rewind(node="a")) == "run_ended"


def test_a_rewind_is_done_once_per_command() -> None:
    run = OperatorSteps("a > b").begun()
    run.done("a")
    run.rewind("a", id="w1")
    assert run.rewind("a", id="w1") == []
    assert run.cell("a").visit == 2


def test_rewinds_use_up_no_hops() -> None:
    run = OperatorSteps("a > b", limits={"max_hops": 2}).begun()
    for _ in range(3):
        run.rewind("a")
    run.end("a", "b")
    assert run.status == "COMPLETED"


def test_a_repeated_result_of_a_visit_that_was_taken_back_leaves_nothing() -> None:
    run = OperatorSteps("a > b").begun()
    result = Result(node="a", visit=1, token=7, outcome=Done(output=b"1"))
    run.do(result, "run/a/1/-1")
    run.rewind("a")
    assert run.do(msgspec.structs.replace(result, again=True)) == []
