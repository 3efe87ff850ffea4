"""Error paths that leave a loop's body: undecided until taken or until the loop is over, and taken for good."""

from __future__ import annotations

from typing import Any

from tests.kernel.tables import Run, loop, rows

Json = Any

BODY: dict[str, Json] = {"b": {"on_error": {"route": ["h"]}}, "c": {"loop": loop(3, "a")}}
"""a → b → c loops back to a; b's error path leaves to h, and so c is skipped then."""


def escaping() -> Run:
    run = Run("a > b > c > z; h", BODY)
    run.start()
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
        "DeadLettered b code=boom attempts=1; NodeScheduled h; NodeSkipped c dead=z counter=1;"
        "NodeSkipped z counter=1; put run h"
    )
    assert run.done("h") == rows("NodeStarted h; NodeCompleted h counter=0; RunCompleted tolerated=1")


def test_a_taken_escape_stays_taken_and_taking_it_again_is_absorbed() -> None:
    """With an `any` join the loop goes on after the error; the second error meets a handler that has begun."""
    nodes = {"b": {"on_error": {"route": ["h"]}}, "d": {"join": "any", "loop": loop(4, "a")}}
    run = Run("a > b c > d > z; h", nodes)
    run.start()
    run.end("a", "c")
    run.fail("b")
    assert run.edges("h") == "b:taken"
    run.done("d", again=True)
    assert (run.edges("h"), run.cell("h").visit) == ("b:taken", 1)
    run.end("a", "c")
    assert run.fail("b") == rows(
        "NodeStarted b#2; NodeFailed b#2 code=boom tolerated taken=h dead=d counter=2;"
        "DeadLettered b#2 code=boom attempts=1"
    )
    run.done("d", again=True)
    run.end("a", "b", "c")
    assert run.edges("h") == "b:taken"
    run.end("d", "h", "z")
    assert (run.status, run.counter, run.cell("h").visit) == ("COMPLETED", 0, 1)


def test_an_escape_waits_for_its_source_when_the_loop_is_over_first() -> None:
    nodes = {"b": {"on_error": {"route": ["h"]}}, "d": {"join": "any", "loop": loop(4, "a")}}
    run = Run("a > b c > d > z; h", nodes)
    run.start()
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
    run = Run("a > b > c > d > z; h", nodes)
    run.start()
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
    run = Run("a > b > c > d > z; h > d", nodes)
    run.start()
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
    run = Run("a > b > c > z; h; g", BODY | {"a": {"on_error": {"route": ["g"]}}})
    run.start()
    shown = run.fail("a")
    assert shown[1:4] == rows(
        "NodeFailed a code=boom tolerated taken=g dead=b counter=1; DeadLettered a code=boom attempts=1;NodeScheduled g"
    )
    assert "NodeSkipped c dead=z escapes=b>h counter=1" in shown
    assert run.nodes("b c h z") == "b=SKIPPED c=SKIPPED h=SKIPPED z=SKIPPED"


def test_a_tolerated_failure_of_the_looping_node_ends_its_loop_and_its_escapes() -> None:
    run = Run("a > b > c > z; h", {**BODY, "c": {"loop": loop(3, "a"), "on_error": "continue"}})
    run.start()
    run.end("a", "b")
    assert run.fail("c")[1] == "NodeFailed c code=boom tolerated taken=z escapes=b>h counter=1"


def test_passes_used_up_end_the_loop_for_its_escapes() -> None:
    run = Run("a > b > c; z; h", {**BODY, "c": {"loop": loop(1, "a", timeout_path="z")}})
    run.start()
    run.end("a", "b")
    assert run.done("c", again=True)[1] == "NodeCompleted c taken=z escapes=b>h counter=1"


SCRATCHED = {
    "b": {"on_error": {"route": ["h"]}},
    "l": {"loop": loop(5, "e"), "join": "any"},
    "h": {"join": "all"},
}
"""e → (b, c) → l, looping back to e; b's error path and the slow s lead to h."""


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
