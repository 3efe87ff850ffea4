"""Branches: rules, default, nothing; an agent's choice; routes that the document does not allow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernel.tables import Run, agent, choose, loop, rows
from tidemill.kernel.events import NodeCompleted, Route

Json = Any

WAYS = {"a": {"branch": choose("b", "b c", default="d")}}


@pytest.mark.parametrize(
    ("branch", "edges"),
    [
        ("b", "taken=b dead=c,d counter=1"),
        ("b c", "taken=b,c dead=d counter=2"),
        (None, "taken=d dead=b,c counter=1"),
    ],
    ids=["first rule", "second rule", "default"],
)
def test_the_rule_that_matched_decides(branch: str | None, edges: str) -> None:
    run = Run("a; b; c; d", WAYS)
    run.start()
    shown = run.done("a", branch)
    assert shown[:2] == ["NodeStarted a", f"NodeCompleted a {edges}"]
    taken = edges.split()[0].removeprefix("taken=").split(",")
    assert [row for row in shown if row.startswith("put")] == [f"put run {name}" for name in taken]


def test_without_a_default_all_conditional_edges_are_dead() -> None:
    run = Run("a > p; b", {"a": {"branch": choose("b")}})
    run.start()
    assert run.done("a", "") == rows(
        "NodeStarted a; NodeCompleted a taken=p dead=b counter=1; NodeScheduled p; NodeSkipped b counter=1; put run p"
    )


def test_plain_edges_are_taken_beside_the_branch() -> None:
    run = Run("a > p; b; c", {"a": {"branch": choose("b", "c")}})
    run.start()
    assert run.done("a", "c") == rows(
        "NodeStarted a; NodeCompleted a taken=p,c dead=b counter=2;"
        "NodeScheduled p; NodeScheduled c; NodeSkipped b counter=2; put run p; put run c"
    )


def test_an_edge_named_by_several_rules_is_one_edge() -> None:
    """Taken when any rule that applies takes it: here the branch, or the way out of the loop."""
    nodes: dict[str, Json] = {"a": {"loop": loop(3, break_path="b"), "branch": choose("b", "c")}}
    for branch, taken in (("b", "taken=b dead=c counter=1"), ("c", "taken=b,c counter=2"), ("", "taken=b dead=c")):
        run = Run("a; b; c", nodes)
        run.start()
        assert run.done("a", branch, again=False)[1].startswith(f"NodeCompleted a {taken}")
        assert run.flow.by_id["b"].inbound == ("a",)


def test_a_target_that_also_lists_the_node_as_a_dependency_changes_nothing() -> None:
    nodes = {"a": {"branch": choose("b", "c")}}
    listed, unlisted = Run("a > b c", nodes), Run("a; b; c", nodes)
    assert listed.flow.digest == unlisted.flow.digest
    listed.start()
    assert listed.done("a", "b") == rows(
        "NodeStarted a; NodeCompleted a taken=b dead=c counter=1; NodeScheduled b; NodeSkipped c counter=1; put run b"
    )


# An agent's choice


AGENT = {"a": {"branch": agent("b c", default="d")}}


@pytest.mark.parametrize(
    ("chosen", "edges"),
    [
        ("b", "taken=b dead=c,d counter=1"),
        ("c b", "taken=b,c dead=d counter=2"),
        (None, "taken=d dead=b,c counter=1"),
    ],
    ids=["one", "both", "none is the default"],
)
def test_an_agent_chooses_from_what_is_available(chosen: str | None, edges: str) -> None:
    run = Run("a; b; c; d", AGENT)
    run.start()
    assert run.done("a", chosen)[1] == f"NodeCompleted a {edges}"


def test_the_route_and_its_reason_are_recorded() -> None:
    run = Run("a; b; c; d", WAYS)
    run.start()
    route = Route(None, ("b",), 0, "inputs.x == 0")
    run.done("a", route=route)
    [completed] = run.of(NodeCompleted)
    assert completed.route == route


# Routes that are not allowed

BRANCH: dict[str, Json] = {"a": {"branch": choose("b", "b c", default="d")}}
CHOICE: dict[str, Json] = {"a": {"branch": agent("b c", default="d")}}
LOOP: dict[str, Json] = {"a": {"loop": loop(3)}}
BOTH: dict[str, Json] = {"a": {"loop": loop(3), "branch": choose("b", "c", default="d")}}
PLAIN: dict[str, Json] = {}

ILLEGAL = [
    ("an unknown target", BRANCH, Route(None, ("nobody",), 0)),
    ("targets of another rule", BRANCH, Route(None, ("b",), 1)),
    ("a part of a rule's targets", BRANCH, Route(None, ("c",), 1)),
    ("no such rule", BRANCH, Route(None, ("b",), 2)),
    ("no rule, but not the default", BRANCH, Route(None, ("b",), -1)),
    ("nothing although there is a default", BRANCH, Route(None, (), -1)),
    ("a branch that was not evaluated", BRANCH, Route(None, None)),
    ("no route at all", BRANCH, None),
    ("a loop that is not there", BRANCH, Route(False, ("b",), 0)),
    ("a node that an agent may not choose", CHOICE, Route(None, ("b", "e"))),
    ("a conditional edge of somebody else", CHOICE, Route(None, ("e",))),
    ("a loop that was not evaluated", LOOP, Route(None)),
    ("a branch on a node that has only a loop", LOOP, Route(False, ("b",))),
    ("a branch before the last pass", BOTH, Route(True, ("b",), 0)),
    ("a loop left without its branch", BOTH, Route(False, None)),
    ("a route on a node without conditions", PLAIN, Route(None, ("b",))),
]


@pytest.mark.parametrize(("nodes", "route"), [case[1:] for case in ILLEGAL], ids=[case[0] for case in ILLEGAL])
def test_an_illegal_route_fails_the_visit(nodes: dict[str, Json], route: Route | None) -> None:
    run = Run("a > e; b; c; d", nodes)
    run.start()
    shown = run.done("a", route=route)
    others = len(run.flow.entries) - 1
    assert shown[:3] == rows(
        f"NodeStarted a; NodeFailed a code=route_not_allowed counter={others};"
        "DeadLettered a code=route_not_allowed attempts=1"
    )
    assert (run.status, run.cell("e").status) == ("FAILED", "FAILED")


def test_a_route_that_is_not_allowed_is_not_retried_and_on_error_applies() -> None:
    run = Run("a > e; b; h", {"a": {"branch": choose("b"), "on_error": {"route": ["h"]}}})
    run.start()
    assert run.done("a", route=Route(None, ("h",), 0)) == rows(
        "NodeStarted a; NodeFailed a code=route_not_allowed tolerated taken=h dead=e,b counter=1;"
        "DeadLettered a code=route_not_allowed attempts=1;"
        "NodeScheduled h; NodeSkipped e counter=1; NodeSkipped b counter=1; put run h"
    )


def test_an_empty_choice_of_an_agent_means_the_default() -> None:
    """The worker applies the default; an empty route beside one is not what the document says."""
    run = Run("a; b; c; d", AGENT)
    run.start()
    shown = run.done("a", route=Route(None, ()))
    assert "taken=d" in shown[1] or "code=route_not_allowed" in shown[1]


def test_an_agent_may_not_choose_a_default_that_is_not_available() -> None:
    """Each choice must be in `available_next_nodes`; the default stands for an empty choice as a whole."""
    run = Run("a; b; c; d", AGENT)
    run.start()
    shown = run.done("a", route=Route(None, ("b", "d")))
    assert "code=route_not_allowed" in shown[1]
