"""Edges: the truth table of joins in every interleaving, late tokens, skips and branches."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product
from typing import Any

import pytest

from tests.fixtures.kernel.tables import Run, agent, begun, choose, flow, loop, rows
from tidemill.kernel.commands import Done, Result, SkipRequested
from tidemill.kernel.events import NodeCompleted, NodeScheduled, NodeSkipped, Route
from tidemill.kernel.queries import path, visible_output
from tidemill.kernel.state import COPIED_EDGES_MAX

Json = Any
Rule = Callable[[int, int, int], bool]

# The table of 2.3, word by word: (taken, dead, undecided) of the edges, and the quorum where there is one.
FIRES: dict[str, Rule] = {
    "all": lambda taken, dead, undecided: undecided == 0 and taken >= 1,
    "strict": lambda taken, dead, undecided: dead == undecided == 0,
    "any": lambda taken, dead, undecided: taken >= 1,
    "quorum 1": lambda taken, dead, undecided: taken >= 1,
    "quorum 2": lambda taken, dead, undecided: taken >= 2,
    "quorum 3": lambda taken, dead, undecided: taken >= 3,
}
SKIPPED: dict[str, Rule] = {
    "all": lambda taken, dead, undecided: taken == undecided == 0,
    "strict": lambda taken, dead, undecided: dead >= 1 and undecided == 0,
    "any": lambda taken, dead, undecided: taken == undecided == 0,
    "quorum 1": lambda taken, dead, undecided: taken + undecided < 1,
    "quorum 2": lambda taken, dead, undecided: taken + undecided < 2,
    "quorum 3": lambda taken, dead, undecided: taken + undecided < 3,
}


def written(join: str) -> Json:
    return {"quorum": int(join[-1])} if join.startswith("quorum") else join


def joining(sources: int, join: str) -> Run:
    """`sources` nodes that each take or kill their edge to `j`."""
    names = [f"s{number}" for number in range(sources)]
    nodes: dict[str, Json] = {name: {"branch": choose("j")} for name in names}
    return Run(flow(f"{' '.join(names)}; j > k", nodes | {"j": {"join": written(join)}}))


SIZES = [(count, join) for count in (1, 2, 3) for join in FIRES if count >= int(join[-1] if " " in join else 1)]


@pytest.mark.parametrize(("count", "join"), SIZES)
def test_every_interleaving(count: int, join: str) -> None:
    """All ways to decide the edges, in all orders: the verdict after each arrival, once, and no token left over."""
    workflow = joining(count, join).flow
    seen = 0
    for ways, order in product(product("td", repeat=count), permutations(range(count))):
        run = begun(workflow)
        for position, number in enumerate(order):
            run.done(f"s{number}", "j" if ways[number] == "t" else "")
            decided = [ways[other] for other in order[: position + 1]]
            expect(run, join, decided.count("t"), decided.count("d"), count - len(decided))
        assert len(run.of(NodeScheduled)) - count + len([e for e in run.of(NodeSkipped) if e.node == "j"]) == 1
        if run.status == "RUNNING":
            # Those that made it fire wait for its end; those that came later are gone.
            made_it_fire = {"any": 1, "quorum 1": 1, "quorum 2": 2, "quorum 3": 3}.get(join, ways.count("t"))
            assert run.counter == run.cell("j").tokens == made_it_fire
            run.end("j", "k")
        assert (run.status, run.counter) == ("COMPLETED", 0)
        seen += 1
    assert seen == {1: 2, 2: 8, 3: 48}[count]


def expect(run: Run, join: str, taken: int, dead: int, undecided: int) -> None:
    """What the table says of the edges decided so far; a join that has fired stays fired."""
    status = run.cell("j").status
    if FIRES[join](taken, dead, undecided):
        assert status == "QUEUED"
    elif SKIPPED[join](taken, dead, undecided):
        assert status == "SKIPPED"
    else:
        assert status == ("QUEUED" if run.cell("j").fired else "PENDING")


def test_any_fires_on_the_first_token_and_absorbs_the_rest() -> None:
    run = begun("a b > j", {"j": {"join": "any"}})
    assert run.done("a") == rows("NodeStarted a; NodeCompleted a taken=j counter=2; NodeScheduled j; put run j")
    # Emitted and consumed at once: the counter loses only the token of `b` itself.
    assert run.done("b") == rows("NodeStarted b; NodeCompleted b taken=j counter=1")
    assert run.done("j") == rows("NodeStarted j; NodeCompleted j counter=0; RunCompleted")


def test_a_token_is_absorbed_also_after_the_join_has_ended() -> None:
    run = begun("a b > j > k", {"j": {"join": "any"}})
    run.end("a", "j")
    assert run.done("b") == rows("NodeStarted b; NodeCompleted b taken=j counter=1")
    assert run.cell("j").visit == 1
    assert run.nodes("j k") == "j=COMPLETED k=QUEUED"


def test_a_token_is_absorbed_by_a_join_that_was_skipped() -> None:
    run = begun("a b c; j > k", {name: {"branch": choose("j")} for name in "abc"} | {"j": {"join": {"quorum": 2}}})
    run.done("a", "")
    assert run.done("b", "") == rows(
        "NodeStarted b; NodeCompleted b dead=j counter=1; NodeSkipped j dead=k counter=1; NodeSkipped k counter=1"
    )
    assert run.done("c", "j") == rows("NodeStarted c; NodeCompleted c taken=j counter=0; RunCompleted")


def test_a_skipped_join_consumes_the_tokens_parked_at_it() -> None:
    run = begun("a b; j", {name: {"branch": choose("j")} for name in "ab"} | {"j": {"join": "strict"}})
    assert run.done("a", "j") == rows("NodeStarted a; NodeCompleted a taken=j counter=2")
    assert run.done("b", "") == rows(
        "NodeStarted b; NodeCompleted b dead=j counter=1; NodeSkipped j counter=0; RunCompleted"
    )


def test_a_quorum_consumes_what_made_it_fire() -> None:
    run = begun("a b c > j", {"j": {"join": {"quorum": 2}}})
    assert run.done("b") == rows("NodeStarted b; NodeCompleted b taken=j counter=3")
    assert run.done("c") == rows("NodeStarted c; NodeCompleted c taken=j counter=3; NodeScheduled j; put run j")
    assert run.done("a") == rows("NodeStarted a; NodeCompleted a taken=j counter=2")
    assert run.done("j") == rows("NodeStarted j; NodeCompleted j counter=0; RunCompleted")


def test_joins_look_at_edges_and_never_at_statuses() -> None:
    """A tolerated failure's taken edge counts as taken, also for `strict`."""
    run = begun("a b > j", {"a": {"on_error": "continue"}, "j": {"join": "strict"}})
    run.done("b")
    assert run.fail("a") == rows(
        "NodeStarted a; NodeFailed a code=boom tolerated taken=j counter=2;NodeScheduled j; put run j"
    )
    assert run.edges("j") == "a:taken b:taken"


@pytest.mark.parametrize(("waits", "join"), [(True, "all"), (False, "any")])
def test_wait_for_all_is_another_spelling(waits: bool, join: str) -> None:
    assert flow("a b > j", {"j": {"wait_for_all": waits}}).by_id["j"].join == join


@pytest.mark.parametrize(("join", "fires_after"), [("all", 40), ("strict", 40), ("any", 1), ("quorum", 35)])
def test_a_wide_join_fires_once(join: str, fires_after: int) -> None:
    """Wider than what a draft copies whole."""
    count = 40
    assert count > COPIED_EDGES_MAX
    names = [f"s{number}" for number in range(count)]
    run = begun(f"{' '.join(names)} > j", {"j": {"join": {"quorum": 35} if join == "quorum" else join}})
    for number, name in enumerate(names, 1):
        assert ("NodeScheduled j" in run.done(name)) == (number == fires_after)
    run.done("j")
    assert (run.status, run.counter) == ("COMPLETED", 0)
    assert len(run.of(NodeScheduled)) == count + 1


@pytest.mark.parametrize("join", ["all", "strict", "any", {"quorum": 2}])
def test_a_token_that_reaches_a_join_already_fired_or_skipped_in_this_visit_is_absorbed(join: Json) -> None:
    """Of whatever kind: even an `all` join can be reached late, by an escape that is taken a second time."""
    nodes: Json = {"e": {"on_error": {"route": ["j"]}}, "l": {"join": "any", "loop": loop(4, "a")}, "j": {"join": join}}
    run = begun("x > j; a > e f > l; y > j", nodes)
    run.end("x", "y", "a", "f")
    run.fail("e")
    assert run.nodes("j") == "j=QUEUED"
    run.done("l", again=True)
    run.end("a", "f")
    before = run.counter
    run.fail("e")
    assert (run.counter, run.cell("j").visit, run.cell("j").taken) == (before - 1, 1, 3)


def completion(node: str, token: int, output: bytes = b"1") -> Result:
    return Result(node=node, visit=1, token=token, outcome=Done(output=output))


def test_join_twice_in_one_decision() -> None:
    run = begun("a b > j")
    gathered = run.together(completion("a", 5), completion("b", 6))
    assert gathered == rows(
        "NodeStarted a; NodeCompleted a taken=j counter=2; NodeStarted b; NodeCompleted b taken=j counter=2;"
        "NodeScheduled j; put run j"
    )


def test_join_twice_by_a_repeated_arrival() -> None:
    """A fan-in counted messages, not dependencies: a repeated message made it fire too early."""
    run = begun("a b > j")
    run.done("a", token=5)
    for token in (5, 6, 7):
        run.do(completion("a", token))
    assert (run.edges("j"), run.nodes("j"), run.counter) == ("a:taken b:undecided", "j=PENDING", 2)


def test_a_false_when_skips_without_an_attempt() -> None:
    run = begun("a > b", {"a": {"when": "inputs.go"}})
    assert run.skip("a") == rows("NodeSkipped a dead=b counter=0; NodeSkipped b counter=0; RunCompleted")
    assert (run.cell("a").attempt, run.cell("b").attempt) == (0, 0)


def test_a_handler_may_skip_its_visit_and_that_was_an_attempt() -> None:
    run = begun("a > b")
    assert run.skip("a", called=True) == rows(
        "NodeStarted a; NodeSkipped a dead=b counter=0; NodeSkipped b counter=0; RunCompleted"
    )
    assert run.cell("a").attempt == 1


def test_a_skip_stops_at_a_join_that_has_a_taken_edge() -> None:
    run = begun("a > b c > d", {"b": {"when": "inputs.go"}})
    run.done("a")
    assert run.skip("b") == rows("NodeSkipped b dead=d counter=1")
    assert run.done("c") == rows("NodeStarted c; NodeCompleted c taken=d counter=1; NodeScheduled d; put run d")
    assert run.edges("d") == "b:dead c:taken"


def test_a_skip_may_decide_a_join_that_waited() -> None:
    """The last edge of an `all` join is dead, another is taken: the skip itself makes it fire."""
    run = begun("a > b c > d", {"b": {"when": "inputs.go"}})
    run.end("a", "c")
    assert run.skip("b") == rows("NodeSkipped b dead=d counter=1; NodeScheduled d; put run d")


def test_a_dead_diamond_is_skipped_node_by_node_once() -> None:
    run = begun("r; a > b c > d; e", {"r": {"branch": choose("a", "e")}})
    assert run.done("r", "e") == rows(
        "NodeStarted r; NodeCompleted r taken=e dead=a counter=1; NodeScheduled e; NodeSkipped a dead=b,c counter=1;"
        "NodeSkipped b dead=d counter=1; NodeSkipped c dead=d counter=1; NodeSkipped d counter=1; put run e"
    )
    assert len([event for event in run.of(NodeSkipped) if event.node == "d"]) == 1


def test_edges_are_decided_before_consequences_are_drawn() -> None:
    """`c` hangs on `a` directly and through `b`: it sees both edges dead, and never fires in between."""
    run = begun("a > b > c; a > c", {"a": {"branch": choose("b c")}})
    assert run.done("a", "") == rows(
        "NodeStarted a; NodeCompleted a dead=b,c counter=0; NodeSkipped b dead=c counter=0;"
        "NodeSkipped c counter=0; RunCompleted"
    )


def test_a_skip_says_why() -> None:
    run = begun("a b; j", {name: {"branch": choose("j")} for name in "ab"} | {"j": {"join": "strict"}})
    run.done("a", "j")
    run.done("b", "")
    [skipped] = run.of(NodeSkipped)
    assert skipped.reason == "join strict"
    run = begun("a > b")
    run.result("a", SkipRequested(reason="nothing to do"), called=True)
    first, second = run.of(NodeSkipped)
    assert (first.reason, second.reason) == ("nothing to do", "no inbound edge was taken")
    assert run.cell("b").why == "no inbound edge was taken"


def test_the_output_of_a_skipped_node_is_undefined() -> None:
    run = begun("a > b c > d", {"d": {"config": "{{ b.output | default(1) }}"}})
    run.done("a")
    run.skip("b")
    run.done("c")
    assert visible_output(run.flow, run.kernel.state, run.node("d"), "b") == "was skipped"


def test_a_skipped_node_was_visited_once_but_never_made_ready() -> None:
    run = begun("a > b")
    run.skip("a")
    assert (run.cell("b").visit, run.cell("b").fired, run.kernel.state.visits) == (1, False, 1)
    assert [(step.node, step.went) for step in path(run.kernel.events)] == [("a", ()), ("b", ())]


def test_a_wide_skip_leaves_no_token() -> None:
    wide = " ".join(f"n{number}" for number in range(50))
    run = begun(f"a > {wide} > z")
    shown = run.skip("a")
    assert shown[0].startswith("NodeSkipped a dead=n0,n1")
    assert shown[-2:] == rows("NodeSkipped z counter=0; RunCompleted")
    assert len(run.of(NodeSkipped)) == 52


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
    run = begun("a; b; c; d", WAYS)
    shown = run.done("a", branch)
    assert shown[:2] == ["NodeStarted a", f"NodeCompleted a {edges}"]
    taken = edges.split()[0].removeprefix("taken=").split(",")
    assert [row for row in shown if row.startswith("put")] == [f"put run {name}" for name in taken]


def test_without_a_default_all_conditional_edges_are_dead() -> None:
    run = begun("a > p; b", {"a": {"branch": choose("b")}})
    assert run.done("a", "") == rows(
        "NodeStarted a; NodeCompleted a taken=p dead=b counter=1; NodeScheduled p; NodeSkipped b counter=1; put run p"
    )


def test_plain_edges_are_taken_beside_the_branch() -> None:
    run = begun("a > p; b; c", {"a": {"branch": choose("b", "c")}})
    assert run.done("a", "c") == rows(
        "NodeStarted a; NodeCompleted a taken=p,c dead=b counter=2;"
        "NodeScheduled p; NodeScheduled c; NodeSkipped b counter=2; put run p; put run c"
    )


def test_an_edge_named_by_several_rules_is_one_edge() -> None:
    """Taken when any rule that applies takes it: here the branch, or the way out of the loop."""
    nodes: dict[str, Json] = {"a": {"loop": loop(3, break_path="b"), "branch": choose("b", "c")}}
    for branch, taken in (("b", "taken=b dead=c counter=1"), ("c", "taken=b,c counter=2"), ("", "taken=b dead=c")):
        run = begun("a; b; c", nodes)
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
    run = begun("a; b; c; d", AGENT)
    assert run.done("a", chosen)[1] == f"NodeCompleted a {edges}"


def test_the_route_and_its_reason_are_recorded() -> None:
    run = begun("a; b; c; d", WAYS)
    route = Route(None, ("b",), 0, "inputs.x == 0")
    run.done("a", route=route)
    [completed] = run.of(NodeCompleted)
    assert completed.route == route


LOOP: dict[str, Json] = {"a": {"loop": loop(3)}}
BOTH: dict[str, Json] = {"a": {"loop": loop(3), "branch": choose("b", "c", default="d")}}
PLAIN: dict[str, Json] = {}
ILLEGAL = [
    ("an unknown target", WAYS, Route(None, ("nobody",), 0)),
    ("targets of another rule", WAYS, Route(None, ("b",), 1)),
    ("a part of a rule's targets", WAYS, Route(None, ("c",), 1)),
    ("no such rule", WAYS, Route(None, ("b",), 2)),
    ("no rule, but not the default", WAYS, Route(None, ("b",), -1)),
    ("nothing although there is a default", WAYS, Route(None, (), -1)),
    ("a branch that was not evaluated", WAYS, Route(None, None)),
    ("no route at all", WAYS, None),
    ("a loop that is not there", WAYS, Route(False, ("b",), 0)),
    ("a node that an agent may not choose", AGENT, Route(None, ("b", "e"))),
    ("a conditional edge of somebody else", AGENT, Route(None, ("e",))),
    ("a default beside a choice", AGENT, Route(None, ("b", "d"))),
    ("a loop that was not evaluated", LOOP, Route(None)),
    ("a branch on a node that has only a loop", LOOP, Route(False, ("b",))),
    ("a branch before the last pass", BOTH, Route(True, ("b",), 0)),
    ("a loop left without its branch", BOTH, Route(False, None)),
    ("a route on a node without conditions", PLAIN, Route(None, ("b",))),
]


@pytest.mark.parametrize(("nodes", "route"), [case[1:] for case in ILLEGAL], ids=[case[0] for case in ILLEGAL])
def test_an_illegal_route_fails_the_visit(nodes: dict[str, Json], route: Route | None) -> None:
    run = begun("a > e; b; c; d", nodes)
    shown = run.done("a", route=route)
    others = len(run.flow.entries) - 1
    assert shown[:3] == rows(
        f"NodeStarted a; NodeFailed a code=route_not_allowed counter={others};"
        "DeadLettered a code=route_not_allowed attempts=1"
    )
    assert (run.status, run.cell("e").status) == ("FAILED", "FAILED")


def test_a_route_that_is_not_allowed_is_not_retried_and_on_error_applies() -> None:
    run = begun("a > e; b; h", {"a": {"branch": choose("b"), "on_error": {"route": ["h"]}}})
    assert run.done("a", route=Route(None, ("h",), 0)) == rows(
        "NodeStarted a; NodeFailed a code=route_not_allowed tolerated taken=h dead=e,b counter=1;"
        "NodeScheduled h; NodeSkipped e counter=1; NodeSkipped b counter=1; put run h"
    )


def test_an_empty_choice_of_an_agent_means_the_default() -> None:
    """The worker applies the default; an empty route beside one is not what the document says."""
    run = begun("a; b; c; d", AGENT)
    shown = run.done("a", route=Route(None, ()))
    assert "taken=d" in shown[1] or "code=route_not_allowed" in shown[1]
