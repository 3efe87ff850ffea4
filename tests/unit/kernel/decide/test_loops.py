"""Loops: passes, ways out, nested loops, and error edges that leave a loop."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.fixtures.kernel.tables import Run, begun, choose, loop, rows
from tidemill.kernel.events import LoopContinued, NodeCompleted, NodeScheduled
from tidemill.kernel.invariants.checker import check_log
from tidemill.kernel.queries import iteration

Json = Any


def iterations(run: Run, names: str) -> list[int]:
    return [iteration(run.kernel.state, run.node(name)) for name in names.split()]


def test_a_self_loop_goes_on_and_breaks_to_its_plain_edges() -> None:
    run = begun("a > b", {"a": {"loop": loop(3)}})
    assert run.done("a", again=True) == rows(
        "NodeStarted a; NodeCompleted a counter=1; LoopContinued a entry=a iteration=1 body=a;"
        "NodeScheduled a#2; put run a#2"
    )
    assert run.done("a", again=False) == rows(
        "NodeStarted a#2; NodeCompleted a#2 taken=b counter=1; NodeScheduled b; put run b"
    )
    run.done("b")
    assert (run.status, run.cell("a").visit, run.cell("b").visit) == ("COMPLETED", 2, 1)


def test_the_event_that_ends_a_pass_consumes_and_emits_and_the_continuation_changes_nothing() -> None:
    run = begun("a > b", {"a": {"loop": loop(3)}})
    run.done("a", again=True)
    [ended] = run.of(NodeCompleted)
    assert (ended.emitted, ended.consumed, ended.counter, ended.taken, ended.dead) == (1, 1, 1, (), ())
    assert run.edges("b") == "a:undecided"


def test_false_on_the_last_pass_is_a_break() -> None:
    run = begun("a; b; t", {"a": {"loop": loop(2, break_path="b", timeout_path="t")}})
    run.done("a", again=True)
    assert run.done("a", again=False)[1] == "NodeCompleted a#2 taken=b dead=t counter=1"


def test_max_iterations_are_passes_allowed() -> None:
    """One pass allowed means the node runs once and never loops."""
    run = begun("a; t", {"a": {"loop": loop(1, timeout_path="t")}})
    assert run.done("a", again=True)[1] == "NodeCompleted a taken=t counter=1"
    assert run.of(LoopContinued) == []


WAYS_OUT: list[tuple[str, Json, bool, str | None, str]] = [
    ("break to plain edges", {"loop": loop(1)}, False, None, "taken=p counter=1"),
    ("break path and plain edges", {"loop": loop(1, break_path="q")}, False, None, "taken=p,q counter=2"),
    ("the branch beside them", {"loop": loop(1), "branch": choose("q", "r")}, False, "r", "taken=p,r dead=q counter=2"),
    ("time-out path only", {"loop": loop(1, timeout_path="q")}, True, None, "taken=q dead=p counter=1"),
    (
        "time-out path, and no branch",
        {"loop": loop(1, timeout_path="q"), "branch": choose("r", default="r")},
        True,
        None,
        "taken=q dead=p,r counter=1",
    ),
    (
        "break path that is the time-out path too",
        {"loop": loop(1, break_path="q", timeout_path="q")},
        False,
        None,
        "taken=p,q counter=2",
    ),
]


@pytest.mark.parametrize(
    ("more", "again", "branch", "edges"), [case[1:] for case in WAYS_OUT], ids=[c[0] for c in WAYS_OUT]
)
def test_the_ways_out_of_a_loop(more: Json, again: bool, branch: str | None, edges: str) -> None:
    run = begun("a > p; q; r", {"a": more})
    if "r" in run.flow.entries:
        run.done("r")
    if "q" in run.flow.entries:
        run.done("q")
    assert run.done("a", branch, again=again)[1] == f"NodeCompleted a {edges}"


def test_passes_used_up_without_a_time_out_path_fail_the_node() -> None:
    run = begun("a > b", {"a": {"loop": loop(2)}})
    run.done("a", again=True)
    assert run.done("a", again=True) == rows(
        "NodeStarted a#2; NodeFailed a#2 code=loop_exhausted counter=0;"
        "DeadLettered a#2 code=loop_exhausted attempts=1;"
        "NodeFailed b attempt=0 code=upstream_failed counter=0; RunFailed node=a#2 code=loop_exhausted"
    )


def test_loop_exhausted_goes_to_on_error() -> None:
    run = begun("a > b; c", {"a": {"loop": loop(1, break_path="c"), "on_error": "continue"}})
    assert run.done("a", again=True)[1] == "NodeFailed a code=loop_exhausted tolerated taken=b,c counter=2"


def test_an_unlimited_loop_is_bounded_by_visits() -> None:
    run = begun("a", {"a": {"loop": loop("unlimited")}}, limits={"max_visits": 4})
    for _ in range(3):
        run.done("a", again=True)
    assert run.done("a", again=True)[-1] == "RunFailed node=a#5 code=max_visits_exceeded"


def test_every_node_of_the_body_gets_its_next_visit() -> None:
    run = begun("s > a > b c > d > z", {"d": {"loop": loop(3, "a")}})
    run.end("s", "a", "b", "c")
    assert run.done("d", again=True) == rows(
        "NodeStarted d; NodeCompleted d counter=1; LoopContinued d entry=a iteration=1 body=a,b,c,d;"
        "NodeScheduled a#2; put run a#2"
    )
    assert [run.cell(name).visit for name in "sabcdz"] == [1, 2, 2, 2, 2, 1]
    assert run.nodes() == "s=COMPLETED a=QUEUED b=PENDING c=PENDING d=PENDING z=PENDING"
    assert (run.edges("b"), run.edges("d")) == ("a:undecided", "b:undecided c:undecided")
    run.end("a", "b", "c", "d", "z")
    assert (run.status, [run.cell(name).visit for name in "sabcdz"]) == ("COMPLETED", [1, 2, 2, 2, 2, 1])


def test_iterations_count_from_zero_and_only_in_the_loop() -> None:
    run = begun("s > a > b > z", {"b": {"loop": loop(3, "a")}})
    run.end("s", "a")
    assert iterations(run, "s a b z") == [0, 0, 0, 0]
    run.done("b", again=True)
    assert iterations(run, "s a b z") == [0, 1, 1, 0]
    run.done("a")
    run.done("b", again=True)
    assert iterations(run, "s a b z") == [0, 2, 2, 0]
    assert [event.iteration for event in run.of(LoopContinued)] == [1, 2]


def test_the_join_of_the_entry_is_evaluated_for_the_first_pass_only() -> None:
    """Later passes start by the loop's own token, whatever the join says."""
    run = begun("r s > a > b", {"a": {"join": "strict"}, "b": {"loop": loop(3, "a")}})
    run.end("r", "s", "a")
    assert "NodeScheduled a#2" in run.done("b", again=True)
    assert run.cell("a").tokens == 1
    assert run.edges("a") == "r:taken s:taken"


@pytest.mark.parametrize("moment", ["first pass", "between", "second pass", "after"])
def test_late_outside_tokens_are_absorbed_in_any_pass(moment: str) -> None:
    run = begun("r s > a > b > z", {"a": {"join": "any"}, "b": {"loop": loop(3, "a")}})
    run.done("r")
    if moment == "between":
        run.done("a")
        run.done("b", again=True)
    elif moment == "second pass":
        run.done("a")
        run.done("b", again=True)
        run.done("a")
    elif moment == "after":
        run.end("a", "b")
    visits = run.cell("a").visit
    assert run.done("s") == rows(f"NodeStarted s; NodeCompleted s taken=a counter={run.counter}")
    assert (run.cell("a").visit, run.cell("a").taken) == (visits, 2)
    while run.status == "RUNNING":
        run.end(run.jobs.split(";")[0].removeprefix("run ").split("#")[0])
    assert (run.status, run.counter) == ("COMPLETED", 0)


def test_other_joins_of_the_body_are_evaluated_in_every_pass() -> None:
    run = begun("a; b c > d", {"a": {"branch": choose("b", "c")}, "d": {"loop": loop(3, "a")}})
    run.done("a", "b")
    run.done("b")
    assert run.edges("d") == "b:taken c:dead"
    run.done("d", again=True)
    run.done("a", "c")
    assert "NodeScheduled d#2" in run.done("c")
    assert run.edges("d") == "b:dead c:taken"


def busy() -> Run:
    """`d` may decide while `c` is still running."""
    run = begun("a > b c > d > z", {"d": {"join": "any", "loop": loop(3, "a")}})
    run.end("a", "b")
    return run


def test_a_loop_continues_only_when_no_other_visit_of_its_body_is_in_flight() -> None:
    run = busy()
    assert run.done("d", again=True) == rows("NodeStarted d; NodeWaiting d on=loop")
    assert (run.counter, run.nodes("c d")) == (2, "c=QUEUED d=WAITING")
    assert run.done("c") == rows(
        "NodeStarted c; NodeCompleted c taken=d counter=1; NodeCompleted d counter=1;"
        "LoopContinued d entry=a iteration=1 body=a,b,c,d; NodeScheduled a#2; put run a#2"
    )


def test_the_output_and_route_of_the_waiting_pass_are_kept() -> None:
    run = busy()
    run.done("d", again=True, output=b'{"n":7}')
    run.done("c")
    completed = run.of(NodeCompleted)[-1]
    assert (completed.node, completed.output, completed.route.again) == ("d", b'{"n":7}', True)


@pytest.mark.parametrize("how", ["retried", "waits", "skipped", "tolerated"])
def test_a_body_visit_is_in_flight_until_it_ends_however_long_that_takes(how: str) -> None:
    run = Run(
        "a > b c > d",
        {"c": {"on_error": "continue", "type": "value"}, "d": {"join": "any", "loop": loop(3, "a")}},
    )
    run.start()
    run.end("a", "b")
    run.done("d", again=True)
    if how == "retried":
        assert run.fail("c", retryable=True)[-1] == "put run c at=+1000"
        assert "LoopContinued d entry=a iteration=1 body=a,b,c,d" in run.done("c")
    elif how == "waits":
        run.wait("c")
        assert run.cell("d").status == "WAITING"
        assert "NodeScheduled a#2" in run.wake("c")
    elif how == "skipped":
        assert "NodeScheduled a#2" in run.skip("c", called=True)
    else:
        assert "NodeScheduled a#2" in run.fail("c")
    assert run.cell("a").visit == 2


def test_a_break_does_not_wait_for_the_body() -> None:
    run = busy()
    assert run.done("d", again=False) == rows(
        "NodeStarted d; NodeCompleted d taken=z counter=2; NodeScheduled z; put run z"
    )
    run.done("c")
    run.done("z")
    assert (run.status, run.counter) == ("COMPLETED", 0)


def test_a_failure_of_the_body_ends_a_waiting_pass_with_the_run() -> None:
    run = busy()
    run.done("d", again=True)
    assert run.fail("c") == rows(
        "NodeStarted c; NodeFailed c code=boom counter=1; DeadLettered c code=boom attempts=1;"
        "NodeCancelled d counter=0; NodeFailed z attempt=0 code=upstream_failed counter=0;"
        "RunFailed node=c code=boom"
    )


def test_a_waiting_pass_keeps_its_token_and_no_slot() -> None:
    run = begun("a > b c > d > z", {"d": {"join": "any", "loop": loop(3, "a")}}, limits={"max_parallel": 2})
    run.end("a", "b")
    run.done("d", again=True)
    assert (run.kernel.state.in_flight, run.counter, run.jobs) == (1, 2, "run c")


def test_a_map_over_nothing_that_waits_for_its_body_frees_its_slot_once() -> None:
    run = begun("a > b c > d", {"d": {"join": "any", "map": {"over": []}, "loop": loop(3, "a")}})
    run.end("a", "b")
    assert run.expand("d", 0, route=run.route(run.node("d"), None, True, None)) == rows(
        "NodeExpanded d count=0 window=0; NodeWaiting d attempt=0 on=loop"
    )
    assert run.kernel.state.in_flight == 1


def nested() -> Run:
    run = begun("a > b > c > d > z", {"c": {"loop": loop(2, "b")}, "d": {"loop": loop(3, "a")}})
    run.end("a", "b")
    return run


def test_a_nested_loop_starts_counting_again_in_every_outer_pass() -> None:
    run = nested()
    run.done("c", again=True)
    assert iterations(run, "a b c d") == [0, 1, 1, 0]
    run.end("b", "c")
    run.done("d", again=True)
    assert iterations(run, "a b c d") == [1, 0, 0, 1]
    run.end("a", "b")
    assert "NodeScheduled b#4" in run.done("c", again=True)
    assert iterations(run, "a b c d") == [1, 1, 1, 1]
    assert [run.cell(name).visit for name in "abcdz"] == [2, 4, 4, 2, 1]


def test_the_join_of_an_inner_entry_is_evaluated_once_per_outer_pass() -> None:
    run = nested()
    run.done("c", again=True)
    assert run.edges("b") == "a:taken"
    run.end("b", "c")
    run.done("d", again=True)
    assert run.edges("b") == "a:undecided"
    assert "NodeScheduled b#3" in run.done("a")


def test_an_outer_loop_waits_for_the_inner_one() -> None:
    run = begun("a > b x > d", {"b": {"loop": loop(3)}, "d": {"join": "any", "loop": loop(3, "a")}})
    run.end("a", "x")
    assert run.done("d", again=True) == rows("NodeStarted d; NodeWaiting d on=loop")
    assert run.done("b", again=True) == rows(
        "NodeStarted b; NodeCompleted b counter=2; LoopContinued b entry=b iteration=1 body=b; NodeScheduled b#2;"
        "put run b#2"
    )
    assert "LoopContinued d entry=a iteration=1 body=a,b,x,d" in run.done("b", again=False)
    assert [run.cell(name).visit for name in "abxd"] == [2, 3, 2, 2]


def test_a_looping_node_that_is_skipped_ends_its_loop() -> None:
    """No condition is evaluated, its edges are dead, and nothing goes back."""
    run = begun("a > b > z", {"b": {"when": "inputs.go", "loop": loop(3, "a")}})
    run.done("a")
    assert run.skip("b") == rows("NodeSkipped b dead=z counter=0; NodeSkipped z counter=0; RunCompleted")
    assert run.cell("a").visit == 1


def test_when_is_asked_in_every_pass_the_entry_included() -> None:
    run = begun("a > b > z", {"a": {"when": "inputs.go"}, "b": {"loop": loop(3, "a")}})
    run.done("a")
    run.done("b", again=True)
    assert run.skip("a") == rows(
        "NodeSkipped a#2 dead=b counter=0; NodeSkipped b#2 dead=z counter=0; NodeSkipped z counter=0; RunCompleted"
    )


def test_a_thousand_passes_keep_one_cell_and_one_token() -> None:
    run = begun("a > b", {"a": {"loop": loop(1_001)}})
    for _ in range(1_000):
        run.done("a", again=True)
    assert (run.counter, len(run.kernel.state.cells), run.cell("a").visit) == (1, 1, 1_001)
    assert len(run.of(NodeScheduled)) == 1_001


BODY: dict[str, Json] = {"b": {"on_error": {"route": ["h"]}}, "c": {"loop": loop(3, "a")}}
"""a → b → c loops back to a; b's error path leaves to h, and so c is skipped then."""


def escaping() -> Run:
    run = begun("a > b > c > z; h", BODY)
    run.done("a")
    return run


def test_the_compiler_names_the_escape() -> None:
    inner = escaping().node("c").loop
    assert inner is not None and inner.escapes == (("b", "h"),)


def test_an_escape_that_is_not_taken_stays_undecided_while_the_loop_may_come_back() -> None:
    run = escaping()
    assert run.done("b") == rows("NodeStarted b; NodeCompleted b taken=c counter=1; NodeScheduled c; put run c")
    assert run.edges("h") == "b:undecided"
    run.done("c", again=True)
    assert run.edges("h") == "b:undecided"


def test_an_escape_dies_with_the_break_of_its_loop() -> None:
    run = escaping()
    run.done("b")
    assert run.done("c", again=False) == rows(
        "NodeStarted c; NodeCompleted c taken=z escapes=b>h counter=1; NodeScheduled z; NodeSkipped h counter=1;"
        "put run z"
    )


def test_an_escape_that_is_taken_ends_the_loop_by_skipping_the_looping_node() -> None:
    run = escaping()
    assert run.fail("b") == rows(
        "NodeStarted b; NodeFailed b code=boom tolerated taken=h dead=c counter=1;"
        "NodeScheduled h; NodeSkipped c dead=z counter=1;"
        "NodeSkipped z counter=1; put run h"
    )
    assert run.done("h") == rows("NodeStarted h; NodeCompleted h counter=0; RunCompleted tolerated=1")


def test_a_taken_escape_stays_taken_and_taking_it_again_is_absorbed() -> None:
    """With an `any` join the loop continues after the error; the second error meets a handler that has begun."""
    nodes = {"b": {"on_error": {"route": ["h"]}}, "d": {"join": "any", "loop": loop(4, "a")}}
    run = begun("a > b c > d > z; h", nodes)
    run.end("a", "c")
    run.fail("b")
    assert run.edges("h") == "b:taken"
    run.done("d", again=True)
    assert (run.edges("h"), run.cell("h").visit) == ("b:taken", 1)
    run.end("a", "c")
    assert run.fail("b") == rows("NodeStarted b#2; NodeFailed b#2 code=boom tolerated taken=h dead=d counter=2")
    run.done("d", again=True)
    run.end("a", "b", "c")
    assert run.edges("h") == "b:taken"
    run.end("d", "h", "z")
    assert (run.status, run.counter, run.cell("h").visit) == ("COMPLETED", 0, 1)


def test_an_escape_waits_for_its_source_when_the_loop_is_over_first() -> None:
    nodes = {"b": {"on_error": {"route": ["h"]}}, "d": {"join": "any", "loop": loop(4, "a")}}
    run = begun("a > b c > d > z; h", nodes)
    run.end("a", "c")
    assert run.done("d", again=False)[1] == "NodeCompleted d taken=z counter=2"
    assert run.edges("h") == "b:undecided"
    assert run.done("b") == rows("NodeStarted b; NodeCompleted b taken=d dead=h counter=1; NodeSkipped h counter=1")


def test_an_escape_from_two_loops_waits_for_both() -> None:
    nodes = {
        "b": {"on_error": {"route": ["h"]}},
        "c": {"loop": loop(3, "b")},
        "d": {"loop": loop(3, "a")},
    }
    run = begun("a > b > c > d > z; h", nodes)
    run.end("a", "b")
    run.done("c", again=False)
    assert run.edges("h") == "b:undecided"
    assert run.done("d", again=False)[1] == "NodeCompleted d taken=z escapes=b>h counter=1"


def test_an_escape_into_the_outer_body_is_decided_anew_in_every_outer_pass() -> None:
    nodes = {
        "b": {"on_error": {"route": ["h"]}},
        "c": {"loop": loop(3, "b")},
        "d": {"join": "any", "loop": loop(3, "a")},
    }
    run = begun("a > b > c > d > z; h > d", nodes)
    run.end("a", "b")
    assert run.done("c", again=False)[1] == "NodeCompleted c taken=d escapes=b>h counter=1"
    assert run.nodes("h") == "h=SKIPPED"
    run.done("d", again=True)
    assert (run.edges("h"), run.nodes("h")) == ("b:undecided", "h=PENDING")
    run.done("a")
    assert "NodeScheduled h#2" in run.fail("b")
    assert run.nodes("b c h") == "b=FAILED c=SKIPPED h=QUEUED"
    run.end("h", "d", "z")
    assert (run.status, run.counter) == ("COMPLETED", 0)


def test_the_escapes_of_a_loop_that_is_skipped_die_too() -> None:
    run = begun("a > b > c > z; h; g", BODY | {"a": {"on_error": {"route": ["g"]}}})
    shown = run.fail("a")
    assert shown[1:3] == rows("NodeFailed a code=boom tolerated taken=g dead=b counter=1; NodeScheduled g")
    assert "NodeSkipped c dead=z escapes=b>h counter=1" in shown
    assert run.nodes("b c h z") == "b=SKIPPED c=SKIPPED h=SKIPPED z=SKIPPED"


def test_a_tolerated_failure_of_the_looping_node_ends_its_loop_and_its_escapes() -> None:
    run = begun("a > b > c > z; h", {**BODY, "c": {"loop": loop(3, "a"), "on_error": "continue"}})
    run.end("a", "b")
    assert run.fail("c")[1] == "NodeFailed c code=boom tolerated taken=z escapes=b>h counter=1"


def test_passes_used_up_end_the_loop_for_its_escapes() -> None:
    run = begun("a > b > c; z; h", {**BODY, "c": {"loop": loop(1, "a", timeout_path="z")}})
    run.end("a", "b")
    assert run.done("c", again=True)[1] == "NodeCompleted c taken=z escapes=b>h counter=1"


SCRATCHED = {
    "b": {"on_error": {"route": ["h"]}},
    "l": {"loop": loop(5, "e"), "join": "any"},
    "h": {"join": "all"},
}
"""e → (b, c) → l, looping back to e; b's error path and the slow s lead to h."""


def test_an_edge_that_is_taken_twice_arrives_once() -> None:
    run = begun("e > b c > l; s > h", SCRATCHED)
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
    run = begun("e > b c > l; s > h", SCRATCHED)
    run.end("e")
    run.fail("b")
    run.end("c")
    run.done("l", again=True)
    run.end("e", "c")
    run.done("l", again=False)
    # The loop is over before b has ended: b decides all of its edges, except the one it took in an earlier pass.
    run.end("b")
    assert run.edges("h") == "b:taken s:undecided"


def test_a_delay_is_a_timer_between_passes() -> None:
    run = begun("a > b > z", {"b": {"loop": {**loop(3, "a"), "delay_seconds": 5}}})
    run.done("a")
    assert run.done("b", again=True) == rows("NodeStarted b; NodeWaiting b on=loop until=+5000; put wake b at=+5000")
    assert (run.nodes("a b"), run.jobs, run.counter, run.kernel.state.in_flight) == (
        "a=COMPLETED b=WAITING",
        "wake b",
        1,
        0,
    )
    assert run.wake("b") == rows(
        "NodeCompleted b counter=1; LoopContinued b entry=a iteration=1 body=a,b; NodeScheduled a#2; put run a#2"
    )
    run.done("a")
    assert run.done("b", again=False)[1] == "NodeCompleted b#2 taken=z counter=1"
    run.done("z")
    assert (run.status, run.jobs) == ("COMPLETED", "")


@pytest.mark.parametrize(("delay_ms", "until"), [(1_500, "+1500"), (0, "")])
def test_a_delay_that_the_worker_has_computed(delay_ms: int, until: str) -> None:
    run = begun("a > z", {"a": {"loop": {**loop(3), "delay_seconds": "{{ output.s }}"}}})
    found = run.done("a", again=True, delay_ms=delay_ms)
    if until:
        assert found == rows(f"NodeStarted a; NodeWaiting a on=loop until={until}; put wake a at={until}")
        assert check_log(run.flow, run.kernel.events) == []
        found = run.wake("a")
    assert "LoopContinued a entry=a iteration=1 body=a" in found
    run.done("a", again=False)
    run.done("z")
    assert (run.status, run.jobs) == ("COMPLETED", "")


def test_only_a_template_is_a_delay_of_the_worker() -> None:
    run = begun("a", {"a": {"loop": loop(3)}})
    assert "LoopContinued a entry=a iteration=1 body=a" in run.done("a", again=True, delay_ms=9)


def test_a_delay_that_is_over_waits_for_the_rest_of_the_body() -> None:
    run = begun("a > b c > d > z", {"d": {"join": "any", "loop": {**loop(3, "a"), "delay_seconds": 5}}})
    run.end("a", "b")
    run.done("d", again=True)
    assert run.wake("d") == rows("put wake d at=+1000")
    run.done("c")
    assert (run.nodes("d"), run.jobs) == ("d=WAITING", "wake d")
    run.kernel.now += 1_000
    assert "LoopContinued d entry=a iteration=1 body=a,b,c,d" in run.wake("d")


def test_the_end_of_a_run_takes_the_delay_along() -> None:
    run = begun("a", {"a": {"loop": {**loop(3), "delay_seconds": 5}}})
    run.done("a", again=True)
    run.cancel()
    assert (run.status, run.jobs) == ("CANCELLED", "")


def test_a_pass_does_not_begin_before_its_delay_is_over() -> None:
    run = begun("a", {"a": {"loop": {**loop(3), "delay_seconds": 5}}})
    run.done("a", again=True)
    run.wake("a")
    assert check_log(run.flow, run.kernel.events) == []
    early = [
        msgspec.structs.replace(event, at_ms=1_000) if isinstance(event, NodeCompleted) else event
        for event in run.kernel.events
    ]
    assert "timer" in [each.law for each in check_log(run.flow, early)]
