"""The end of a run: failures, `on_error`, dead letters, and the rendering of outputs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.fixtures.kernel.operator_steps import OperatorSteps
from tests.fixtures.kernel.tables import Run, begun, choose, error, flow, loop, rows
from tidemill.kernel import events as ev
from tidemill.kernel.commands import CloseDeadLetter, Done, Failed, OutputsRendered, Result
from tidemill.kernel.decide.builder import error_envelope
from tidemill.kernel.events import DeadLettered, Error, NodeFailed, RunCompleted, RunFailed
from tidemill.kernel.queries import Token, VisibleOutput, tokens, visible_output

Json = Any


def test_a_failure_ends_the_run_at_once() -> None:
    """PENDING descendants fail with it; everything else unfinished is cancelled, and nothing is dispatched."""
    run = begun("a > b > c; d > e; a > e")
    assert run.fail("a") == rows(
        "NodeStarted a; NodeFailed a code=boom counter=1; DeadLettered a code=boom attempts=1;"
        "NodeFailed b attempt=0 code=upstream_failed counter=1; NodeFailed c attempt=0 code=upstream_failed counter=1;"
        "NodeCancelled d counter=0; NodeFailed e attempt=0 code=upstream_failed counter=0;"
        "RunFailed node=a code=boom; drop run d"
    )


@pytest.mark.parametrize(
    ("state", "end"),
    [
        ("queued", "CANCELLED"),
        ("running", "CANCELLED"),
        ("waiting", "CANCELLED"),
        ("back-off", "CANCELLED"),
        ("completed", "COMPLETED"),
        ("skipped", "SKIPPED"),
        ("pending", "FAILED"),
    ],
)
def test_what_becomes_of_a_descendant(state: str, end: str) -> None:
    """`j` hangs on `a` and `s` by an `any` join, so it may be in any state when `a` fails."""
    run = begun("a s > j > k", {"j": {"join": "any"}})
    if state != "pending":
        run.done("s")
    if state == "running":
        run.begin("j")
    elif state == "waiting":
        run.wait("j")
    elif state == "back-off":
        run.fail("j", retryable=True)
    elif state == "completed":
        run.done("j")
    elif state == "skipped":
        run.skip("j")
    run.fail("a")
    assert (run.status, run.cell("j").status) == ("FAILED", end)
    assert (run.counter, run.jobs) == (0, "")


def test_descendants_are_found_over_any_edge_whatever_their_join() -> None:
    """A dead way, an error path, a time-out path: an edge is an edge. Loop-backs are not."""
    nodes: Json = {
        "b": {"branch": choose("c", "d"), "on_error": {"route": ["h"]}, "retry": {"max_attempts": 1}},
        "d": {"loop": loop(2, "a", timeout_path="t")},
    }
    run = begun("x > a > b; c > d; h; t; u", nodes)
    run.fail("x")
    failed = {event.node for event in run.of(NodeFailed) if event.error.code == "upstream_failed"}
    assert failed == set("abcdht")
    assert run.nodes("u") == "u=CANCELLED"


def test_a_loop_back_makes_nobody_a_descendant() -> None:
    run = begun("a > b c > d", {"c": {}, "d": {"join": "any", "loop": loop(2, "a")}})
    run.end("a", "b")
    run.done("d", again=True)
    run.fail("c")
    assert run.nodes() == "a=COMPLETED b=COMPLETED c=FAILED d=CANCELLED"


def test_a_held_node_below_the_failure_fails_with_it() -> None:
    """It is still PENDING, only because of a limit."""
    run = begun("a s > j", {"j": {"join": "any"}}, limits={"max_parallel": 1})
    run.done("a")
    assert run.nodes("s j") == "s=QUEUED j=PENDING"
    run.fail("s")
    assert run.nodes("s j") == "s=FAILED j=FAILED"


def test_the_run_names_the_first_failing_node() -> None:
    run = begun("a b")
    run.fail("b", "late")
    [failed] = run.of(RunFailed)
    assert (failed.node, failed.visit, failed.error.code) == ("b", 1, "late")
    assert (run.kernel.state.failed_node, run.kernel.state.error) == ("b", error("late"))


def test_results_committed_together_are_decided_one_after_another() -> None:
    """Exactly one visit fails the run; the other was cancelled before its result was looked at."""
    run = begun("a b")
    failures = [Result(node=name, visit=1, token=9, outcome=Failed(error=Error(f"{name}_failed", ""))) for name in "ab"]
    shown = run.together(*failures)
    assert shown[-2:] == rows("ResultDiscarded b outcome=Failed reason=run_ended; drop run b")
    assert len(run.of(RunFailed)) == 1
    assert run.nodes() == "a=FAILED b=CANCELLED"


def test_nothing_that_was_put_stays_when_a_later_result_of_the_same_commit_ends_the_run() -> None:
    """The store drops before it inserts, so a job that is both dropped and put would outlive its run."""
    run = begun("a > b; c")
    run.together(
        Result(node="a", visit=1, token=8, outcome=Done(output=b"1")),
        Result(node="c", visit=1, token=9, outcome=Failed(error=error())),
    )
    assert (run.status, run.nodes(), run.jobs) == ("FAILED", "a=COMPLETED b=CANCELLED c=FAILED", "")


def test_continue_takes_the_plain_edges_and_evaluates_nothing() -> None:
    nodes: Json = {"a": {"on_error": "continue", "branch": choose("b", default="c")}}
    run = begun("a > p; b; c", nodes)
    assert run.fail("a") == rows(
        "NodeStarted a; NodeFailed a code=boom tolerated taken=p,c dead=b counter=2;"
        "NodeScheduled p; NodeScheduled c; NodeSkipped b counter=2;"
        "put run p; put run c"
    )
    run.end("p", "c")
    assert (run.status, run.kernel.state.tolerated) == ("COMPLETED", 1)


def test_continue_leaves_a_loop_by_its_break_path() -> None:
    nodes: Json = {"a": {"on_error": "continue", "loop": loop(3, break_path="b", timeout_path="t")}}
    run = begun("a > p; b; t", nodes)
    assert run.fail("a")[1] == "NodeFailed a code=boom tolerated taken=p,b dead=t counter=2"


def test_route_takes_the_error_edges_and_kills_all_others() -> None:
    run = begun("a > b; h; g", {"a": {"on_error": {"route": ["h", "g"]}}})
    assert run.fail("a") == rows(
        "NodeStarted a; NodeFailed a code=boom tolerated taken=h,g dead=b counter=2;"
        "NodeScheduled h; NodeScheduled g; NodeSkipped b counter=2;"
        "put run h; put run g"
    )


def test_an_error_path_that_is_not_needed_is_dead() -> None:
    run = begun("a > b; h", {"a": {"on_error": {"route": ["h"]}}})
    assert run.done("a") == rows(
        "NodeStarted a; NodeCompleted a taken=b dead=h counter=1; NodeScheduled b; NodeSkipped h counter=1; put run b"
    )


def test_an_error_path_may_be_a_way_that_success_takes_too() -> None:
    run = begun("a; b; c", {"a": {"branch": choose("b", "c"), "on_error": {"route": ["b"]}}})
    assert run.fail("a")[1] == "NodeFailed a code=boom tolerated taken=b dead=c counter=1"


@pytest.mark.parametrize("on_error", ["continue", {"route": ["z"]}])
def test_the_output_of_a_tolerated_failure_is_its_envelope(on_error: Json) -> None:
    run = begun("a > z", {"a": {"on_error": on_error}, "z": {"config": "{{ a.output }}"}})
    run.fail("a")
    seen = visible_output(run.flow, run.kernel.state, run.node("z"), "a")
    assert isinstance(seen, VisibleOutput) and isinstance(seen.payload, bytes)
    assert msgspec.json.decode(seen.payload) == {"error": {"code": "boom", "message": "boom happened"}}


def test_an_envelope_always_serialises() -> None:
    wild = Error("x", 'a "quoted" \n \x00 ünïcode 🌊', "KeyError", causes=("ValueError: y",), traceback="…", index=3)
    payload = error_envelope(wild)
    assert isinstance(payload, bytes)
    assert msgspec.json.decode(payload) == {
        "error": {"code": "x", "message": wild.message, "type": "KeyError", "index": 3}
    }


def test_a_dead_letter_holds_the_error_and_the_attempts() -> None:
    run = begun("a", {"a": {"retry": {"max_attempts": 2}}})
    run.fail("a", retryable=True)
    assert run.of(DeadLettered) == []
    run.fail("a", retryable=True)
    [letter] = run.of(DeadLettered)
    assert (letter.node, letter.visit, letter.attempts, letter.error.code) == ("a", 1, 2, "boom")
    assert run.kernel.state.dead_letters == 1


def test_ending_a_run_consumes_parked_tokens() -> None:
    """A token parked at a join that never fired is consumed by the event that ends the join's visit."""
    run = begun("a b c > j")
    run.end("a", "b")
    assert run.counter == 3
    assert run.fail("c") == rows(
        "NodeStarted c; NodeFailed c code=boom counter=2; DeadLettered c code=boom attempts=1;"
        "NodeFailed j attempt=0 code=upstream_failed counter=0; RunFailed node=c code=boom"
    )


def rendering() -> Run:
    run = begun("a > b", outputs={"o": "{{ b.output }}"})
    run.end("a", "b")
    return run


def test_the_rendering_holds_one_token_until_the_run_completes() -> None:
    run = begun("a > b", outputs={"o": "{{ b.output }}"})
    run.done("a")
    assert run.done("b") == rows("NodeStarted b; NodeCompleted b counter=1 renders; put outputs")
    assert (run.status, run.counter) == ("RUNNING", 1)
    assert list(tokens(run.flow, run.kernel.state)) == [Token("", "outputs", 1, 0)]
    assert run.render() == rows("RunCompleted")
    [completed] = run.of(RunCompleted)
    assert (completed.outputs, completed.consumed, completed.counter) == (b'{"o":1}', 1, 0)
    assert run.kernel.state.outputs == b'{"o":1}'


def test_outputs_that_cannot_be_rendered_fail_the_run() -> None:
    run = rendering()
    assert run.render("template_failed") == rows("RunFailed code=outputs_failed")
    [failed] = run.of(RunFailed)
    assert (failed.node, failed.error.causes, run.counter) == ("", ("template_failed",), 0)
    assert run.nodes() == "a=COMPLETED b=COMPLETED"


@pytest.mark.parametrize("last", ["skip", "tolerated", "absorbed"])
def test_whatever_ends_last_hands_over_to_the_rendering(last: str) -> None:
    nodes = {"b": {"on_error": "continue", "when": "inputs.go"}, "j": {"join": "any"}}
    run = begun("a b > j", nodes, outputs={"o": 1})
    if last == "absorbed":
        run.end("a", "j")
        assert run.done("b")[-2:] == rows("NodeCompleted b taken=j counter=1 renders; put outputs")
    else:
        run.done("a")
        run.done("j")
        shown = run.skip("b") if last == "skip" else run.fail("b")
        assert shown[-1] == "put outputs"
    assert run.render() == rows("RunCompleted" + (" tolerated=1" if last == "tolerated" else ""))


def test_a_chain_of_skips_renders_once() -> None:
    run = begun("a; b > c > d", {"a": {"branch": choose("b")}}, outputs={"o": 1})
    shown = run.done("a", "")
    assert shown[1] == "NodeCompleted a dead=b counter=1 renders"
    assert [row for row in shown if "renders" in row or row.startswith("put")] == [shown[1], "put outputs"]
    assert run.nodes("b c d") == "b=SKIPPED c=SKIPPED d=SKIPPED"


def test_a_rendering_that_nobody_asked_for_is_ignored() -> None:
    run = begun("a > b", outputs={"o": 1})
    assert run.do(OutputsRendered(outcome=Done(output=b"1"))) == []
    run = begun("a")
    assert run.do(OutputsRendered(outcome=Done(output=b"1"))) == []


def test_a_repeated_rendering_changes_nothing() -> None:
    run = rendering()
    run.render()
    assert run.do(OutputsRendered(outcome=Done(output=b"2"))) == []
    assert run.kernel.state.outputs == b'{"o":1}'


def test_a_cancel_while_rendering_consumes_the_token() -> None:
    run = rendering()
    assert run.cancel() == rows("RunCancelled; drop outputs")
    assert run.do(OutputsRendered(outcome=Done(output=b"1"))) == []
    assert (run.status, run.kernel.state.outputs, run.counter) == ("CANCELLED", None, 0)


def test_a_failed_run_renders_nothing() -> None:
    run = begun("a", outputs={"o": 1})
    assert run.fail("a")[-1] == "RunFailed node=a code=boom"
    assert run.kernel.state.outputs is None


def test_a_deadline_is_dropped_when_the_outputs_are_there() -> None:
    run = begun("a", outputs={"o": 1}, limits={"deadline_seconds": 5})
    run.done("a")
    assert run.render() == rows("RunCompleted; drop deadline")


def test_default_outputs_hold_every_terminal_node_with_an_output() -> None:
    """Tolerated failures with their envelope, skipped ones absent; a run that is not COMPLETED has none."""
    run = begun("a > x y z", {"y": {"on_error": "continue"}, "z": {"when": "inputs.go"}})
    run.end("a", "x")
    run.fail("y")
    run.skip("z")
    assert (run.status, run.flow.terminals) == ("COMPLETED", ("x", "y", "z"))
    outputs = {name: run.cell(name).output for name in run.flow.terminals if run.cell(name).output is not None}
    assert outputs == {"x": b"1", "y": b'{"error":{"code":"boom","message":"boom happened"}}'}
    assert run.kernel.state.outputs is None


# Dead letters: one for every failure that nobody tries again by itself, until somebody takes care of it


def failed(graph: str = "a > b", nodes: dict[str, Any] | None = None) -> OperatorSteps:
    run = OperatorSteps(graph, nodes).begun()
    run.fail("a")
    return run


def closings(run: OperatorSteps) -> str:
    """What became of letters, as `a/1/-1:reprocessed`."""
    return " ".join(f"{each.node}/{each.visit}/{each.index}:{each.status}" for each in run.of(ev.DeadLetterClosed))


def test_a_letter_is_open_until_somebody_discards_it() -> None:
    run = failed()
    assert (run.letters, run.kernel.state.dead_letters) == ("a/1/-1", 1)
    close = CloseDeadLetter(node="a", visit=1, actor="ann", reason="known", id="c1")
    assert run.do(close) == rows("DeadLetterClosed a")
    event = run.of(ev.DeadLetterClosed)[0]
    assert (event.status, event.actor, event.reason, event.command) == ("discarded", "ann", "known", "c1")
    assert (run.letters, run.kernel.state.dead_letters, run.status) == ("", 0, "FAILED")


def test_discarding_twice_is_once() -> None:
    run = failed()
    run.discard("a")
    assert run.discard("a") == []
    assert run.do(CloseDeadLetter(node="a", visit=1, id="c9")) == []


def test_only_failures_have_letters() -> None:
    run = failed()
    for node, visit, index in (("b", 1, -1), ("a", 2, -1), ("a", 1, 0), ("nobody", 1, -1)):
        assert run.refused(CloseDeadLetter(node=node, visit=visit, index=index)) == "dead_letter_unknown"


def test_a_retry_closes_the_letters_of_what_it_reopens() -> None:
    run = OperatorSteps("a b", {"b": {"on_error": "continue"}}).begun()
    run.fail("b")
    run.fail("a")
    run.retry(reason="fixed")
    assert (closings(run), run.letters) == ("a/1/-1:reprocessed", "")
    assert run.of(ev.DeadLetterClosed)[0].reason == "fixed"


def test_a_letter_that_was_discarded_is_not_closed_again() -> None:
    run = failed()
    run.discard("a")
    run.retry()
    assert closings(run) == "a/1/-1:discarded"


def test_failing_again_opens_it_again() -> None:
    run = failed()
    run.retry()
    run.fail("a", "bang")
    letter = run.kernel.state.letters["a/1/-1"]
    assert (letter.open, letter.attempts, letter.error.code, run.kernel.state.dead_letters) == (True, 2, "bang", 1)
    run.retry()
    assert (closings(run), run.letters) == ("a/1/-1:reprocessed a/1/-1:reprocessed", "")


def test_an_item_that_fails_its_map_leaves_one_letter() -> None:
    run = OperatorSteps("m", {"m": {"map": {"over": [1], "tolerate": 1}}}).begun()
    run.expand("m", 3)
    run.fail("m[2]")
    run.fail("m[0]")
    assert run.letters == "m/1/0"
    run.retry()
    assert (closings(run), run.letters) == ("m/1/0:reprocessed", "")
    run.end("m[0]", "m[1]")
    run.assemble("m")
    assert (run.status, run.letters, run.kernel.state.tolerated) == ("COMPLETED", "", 1)


def test_letters_of_tolerated_items_in_earlier_logs_are_closed_by_a_retry_or_discarded() -> None:
    mapped = {"a": {"map": {"over": [1], "tolerate": 1}}, "l": {"loop": loop(back_to="a")}}
    run = OperatorSteps("a > l", mapped).begun()
    for again in (True, False):
        run.expand("a", 1)
        run.fail("a[0]")
        run.letter("a[0]")
        run.assemble("a")
        if again:
            run.done("l", again=True)
    assert run.letters == "a/1/0 a/2/0"
    run.discard("a#1[0]")
    assert run.letters == "a/2/0"
    run = OperatorSteps("m", {"m": {"map": {"over": [1], "tolerate": 1}}}).begun()
    run.expand("m", 2)
    run.fail("m[0]")
    run.letter("m[0]")
    run.fail("m[1]")
    run.retry()
    assert (run.jobs, run.letters) == ("run m[1]", "")


def test_a_list_that_is_made_anew_leaves_no_letter_behind() -> None:
    """The item failed before anybody called it, so nothing speaks against another list."""
    run = OperatorSteps("m > z", {"m": {"map": {"over": [1]}}}).begun()
    run.expand("m", 2)
    run.fail("m[1]", called=False)
    run.patch(flow("m > z", {"m": {"map": {"over": [1, 2, 3]}}}), retry=True)
    assert (closings(run), run.letters) == ("m/1/1:reprocessed", "")


def test_a_failure_that_the_workflow_handles_is_no_dead_letter() -> None:
    for handled in ("continue", {"route": ["h"]}):
        run = OperatorSteps("a > b; h", {"a": {"on_error": handled}}).begun()
        run.fail("a")
        assert (run.letters, run.kernel.state.dead_letters, run.kernel.state.tolerated) == ("", 0, 1)
        run = OperatorSteps("m > b; h", {"m": {"on_error": handled, "map": {"over": [1], "tolerate": 1}}}).begun()
        run.expand("m", 3)
        run.fail("m[0]")
        run.fail("m[1]")
        assert (run.nodes("m"), run.letters, run.of(ev.DeadLettered)) == ("m=FAILED", "", [])


def test_a_retry_without_the_failed_node_closes_its_letter() -> None:
    run = OperatorSteps("a > b; c").begun()
    run.fail("a")
    run.patch(flow("b; c"), retry=True)
    assert (closings(run), run.letters) == ("a/1/-1:reprocessed", "")
