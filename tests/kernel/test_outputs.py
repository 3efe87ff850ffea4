"""The run's outputs: rendered last, by a worker, under one token of their own."""

from __future__ import annotations

import pytest

from tests.kernel.tables import Run, choose, rows
from tidemill.kernel.commands import Done, Rendered
from tidemill.kernel.events import RunCompleted, RunFailed
from tidemill.kernel.sight import Token, tokens


def rendering() -> Run:
    run = Run("a > b", outputs={"o": "{{ b.output }}"})
    run.start()
    run.end("a", "b")
    return run


def test_the_rendering_holds_one_token_until_the_run_completes() -> None:
    run = Run("a > b", outputs={"o": "{{ b.output }}"})
    run.start()
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


def test_without_outputs_the_last_visit_completes_the_run() -> None:
    run = Run("a")
    run.start()
    assert run.done("a") == rows("NodeStarted a; NodeCompleted a counter=0; RunCompleted")
    assert run.kernel.state.outputs is None


@pytest.mark.parametrize("last", ["skip", "tolerated", "absorbed"])
def test_whatever_ends_last_hands_over_to_the_rendering(last: str) -> None:
    nodes = {"b": {"on_error": "continue", "when": "inputs.go"}, "j": {"join": "any"}}
    run = Run("a b > j", nodes, outputs={"o": 1})
    run.start()
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
    run = Run("a; b > c > d", {"a": {"branch": choose("b")}}, outputs={"o": 1})
    run.start()
    shown = run.done("a", "")
    assert shown[1] == "NodeCompleted a dead=b counter=1 renders"
    assert [row for row in shown if "renders" in row or row.startswith("put")] == [shown[1], "put outputs"]
    assert run.nodes("b c d") == "b=SKIPPED c=SKIPPED d=SKIPPED"


def test_a_rendering_that_nobody_asked_for_is_ignored() -> None:
    run = Run("a > b", outputs={"o": 1})
    run.start()
    assert run.do(Rendered(outcome=Done(output=b"1"))) == []
    run = Run("a")
    run.start()
    assert run.do(Rendered(outcome=Done(output=b"1"))) == []


def test_a_repeated_rendering_changes_nothing() -> None:
    run = rendering()
    run.render()
    assert run.do(Rendered(outcome=Done(output=b"2"))) == []
    assert run.kernel.state.outputs == b'{"o":1}'


def test_a_cancel_while_rendering_consumes_the_token() -> None:
    run = rendering()
    assert run.cancel() == rows("RunCancelled; drop outputs")
    assert run.do(Rendered(outcome=Done(output=b"1"))) == []
    assert (run.status, run.kernel.state.outputs, run.counter) == ("CANCELLED", None, 0)


def test_a_failed_run_renders_nothing() -> None:
    run = Run("a", outputs={"o": 1})
    run.start()
    assert run.fail("a")[-1] == "RunFailed node=a code=boom"
    assert run.kernel.state.outputs is None


def test_a_deadline_is_dropped_when_the_outputs_are_there() -> None:
    run = Run("a", outputs={"o": 1}, limits={"deadline_seconds": 5})
    run.start()
    run.done("a")
    assert run.render() == rows("RunCompleted; drop deadline")


def test_default_outputs_hold_every_terminal_node_with_an_output() -> None:
    """Tolerated failures with their envelope, skipped ones absent; a run that is not COMPLETED has none."""
    run = Run("a > x y z", {"y": {"on_error": "continue"}, "z": {"when": "inputs.go"}})
    run.start()
    run.end("a", "x")
    run.fail("y")
    run.skip("z")
    assert (run.status, run.flow.terminals) == ("COMPLETED", ("x", "y", "z"))
    outputs = {name: run.cell(name).output for name in run.flow.terminals if run.cell(name).output is not None}
    assert outputs == {"x": b"1", "y": b'{"error":{"code":"boom","message":"boom happened"}}'}
    assert run.kernel.state.outputs is None
