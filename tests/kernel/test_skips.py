"""Dead edges and skipped nodes: how far a skip reaches, what it leaves behind, and what it costs."""

from __future__ import annotations

from tests.kernel.tables import Run, choose, rows
from tidemill.kernel.commands import Skips
from tidemill.kernel.events import NodeSkipped
from tidemill.kernel.sight import path, visible


def test_a_false_when_skips_without_an_attempt() -> None:
    run = Run("a > b", {"a": {"when": "inputs.go"}})
    run.start()
    assert run.skip("a") == rows("NodeSkipped a dead=b counter=0; NodeSkipped b counter=0; RunCompleted")
    assert (run.cell("a").attempt, run.cell("b").attempt) == (0, 0)


def test_a_handler_may_skip_its_visit_and_that_was_an_attempt() -> None:
    run = Run("a > b")
    run.start()
    assert run.skip("a", called=True) == rows(
        "NodeStarted a; NodeSkipped a dead=b counter=0; NodeSkipped b counter=0; RunCompleted"
    )
    assert run.cell("a").attempt == 1


def test_a_skip_propagates_through_a_chain() -> None:
    run = Run("a > b > c > d")
    run.start()
    assert run.skip("a") == rows(
        "NodeSkipped a dead=b counter=0; NodeSkipped b dead=c counter=0;"
        "NodeSkipped c dead=d counter=0; NodeSkipped d counter=0; RunCompleted"
    )


def test_a_skip_stops_at_a_join_that_has_a_taken_edge() -> None:
    run = Run("a > b c > d", {"b": {"when": "inputs.go"}})
    run.start()
    run.done("a")
    assert run.skip("b") == rows("NodeSkipped b dead=d counter=1")
    assert run.done("c") == rows("NodeStarted c; NodeCompleted c taken=d counter=1; NodeScheduled d; put run d")
    assert run.edges("d") == "b:dead c:taken"


def test_a_skip_may_decide_a_join_that_waited() -> None:
    """The last edge of an `all` join is dead, another is taken: the skip itself makes it fire."""
    run = Run("a > b c > d", {"b": {"when": "inputs.go"}})
    run.start()
    run.end("a", "c")
    assert run.skip("b") == rows("NodeSkipped b dead=d counter=1; NodeScheduled d; put run d")


def test_a_dead_diamond_is_skipped_node_by_node_once() -> None:
    run = Run("r; a > b c > d; e", {"r": {"branch": choose("a", "e")}})
    run.start()
    assert run.done("r", "e") == rows(
        "NodeStarted r; NodeCompleted r taken=e dead=a counter=1; NodeScheduled e; NodeSkipped a dead=b,c counter=1;"
        "NodeSkipped b dead=d counter=1; NodeSkipped c dead=d counter=1; NodeSkipped d counter=1; put run e"
    )
    assert len([event for event in run.of(NodeSkipped) if event.node == "d"]) == 1


def test_edges_are_decided_before_consequences_are_drawn() -> None:
    """`c` hangs on `a` directly and through `b`: it sees both edges dead, and never fires in between."""
    run = Run("a > b > c; a > c", {"a": {"branch": choose("b c")}})
    run.start()
    assert run.done("a", "") == rows(
        "NodeStarted a; NodeCompleted a dead=b,c counter=0; NodeSkipped b dead=c counter=0;"
        "NodeSkipped c counter=0; RunCompleted"
    )


def test_a_skip_says_why() -> None:
    run = Run("a b; j", {name: {"branch": choose("j")} for name in "ab"} | {"j": {"join": "strict"}})
    run.start()
    run.done("a", "j")
    run.done("b", "")
    [skipped] = run.of(NodeSkipped)
    assert skipped.reason == "join strict"
    run = Run("a > b")
    run.start()
    run.result("a", Skips(reason="nothing to do"), called=True)
    first, second = run.of(NodeSkipped)
    assert (first.reason, second.reason) == ("nothing to do", "no inbound edge was taken")
    assert run.cell("b").why == "no inbound edge was taken"


def test_a_skip_names_its_cause() -> None:
    run = Run("a > b > c")
    run.start()
    run.skip("a")
    first, second, third = run.of(NodeSkipped)
    log = run.kernel.events
    assert (log[second.cause - 1], log[third.cause - 1]) == (first, second)


def test_the_output_of_a_skipped_node_is_undefined() -> None:
    run = Run("a > b c > d", {"d": {"config": "{{ b.output | default(1) }}"}})
    run.start()
    run.done("a")
    run.skip("b")
    run.done("c")
    assert visible(run.flow, run.kernel.state, run.node("d"), "b") == "was skipped"


def test_a_skipped_node_was_visited_once_but_never_made_ready() -> None:
    run = Run("a > b")
    run.start()
    run.skip("a")
    assert (run.cell("b").visit, run.cell("b").fired, run.kernel.state.visits) == (1, False, 1)
    assert [(step.node, step.went) for step in path(run.kernel.events)] == [("a", ()), ("b", ())]


def test_nothing_follows_from_a_skip_at_the_end_of_a_graph_but_the_rest() -> None:
    run = Run("a b", {"a": {"when": "inputs.go"}})
    run.start()
    assert run.skip("a") == rows("NodeSkipped a counter=1")
    assert run.done("b") == rows("NodeStarted b; NodeCompleted b counter=0; RunCompleted")
    assert run.nodes() == "a=SKIPPED b=COMPLETED"


def test_a_wide_skip_leaves_no_token() -> None:
    wide = " ".join(f"n{number}" for number in range(50))
    run = Run(f"a > {wide} > z")
    run.start()
    shown = run.skip("a")
    assert shown[0].startswith("NodeSkipped a dead=n0,n1")
    assert shown[-2:] == rows("NodeSkipped z counter=0; RunCompleted")
    assert len(run.of(NodeSkipped)) == 52
