"""Joins: the truth table of 2.3, every interleaving of up to three edges, and what becomes of late tokens."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product
from typing import Any

import pytest

from tests.kernel.tables import Run, choose, flow, loop, rows
from tidemill.kernel.commands import Done, Result
from tidemill.kernel.events import NodeScheduled, NodeSkipped
from tidemill.kernel.model import Node
from tidemill.kernel.routing import join_verdict
from tidemill.kernel.state import COPIED_EDGES_MAX, Cell

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
        run = Run(workflow)
        run.start()
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


VERDICTS = """
join      t  d  u   verdict
all       2  0  0   fire
all       1  1  0   fire
all       0  2  0   skip
all       1  0  1   -
all       0  1  1   -
all       0  0  2   -
strict    2  0  0   fire
strict    1  1  0   skip
strict    0  2  0   skip
strict    1  0  1   -
strict    0  1  1   -
strict    0  0  2   -
any       2  0  0   fire
any       1  1  0   fire
any       1  0  1   fire
any       0  2  0   skip
any       0  1  1   -
any       0  0  2   -
quorum1   1  0  1   fire
quorum1   0  1  1   -
quorum1   0  2  0   skip
quorum2   2  0  0   fire
quorum2   2  0  1   fire
quorum2   1  0  1   -
quorum2   1  1  0   skip
quorum2   1  1  1   -
quorum2   0  1  1   skip
quorum2   0  2  1   skip
quorum2   0  1  2   -
quorum2   0  0  2   -
"""


@pytest.mark.parametrize("row", VERDICTS.strip().splitlines()[1:], ids=lambda row: "-".join(row.split()))
def test_the_verdict_of_a_join(row: str) -> None:
    join, *counts, verdict = row.split()
    taken, dead, undecided = map(int, counts)
    kind: Any = join.rstrip("12")
    inbound = tuple(f"s{number}" for number in range(taken + dead + undecided))
    node = Node(id="j", type="value@1", join=kind, quorum=int(join[-1]) if kind == "quorum" else 0, inbound=inbound)
    assert (join_verdict(node, Cell(taken=taken, dead=dead)) or "-") == verdict


def test_any_fires_on_the_first_token_and_absorbs_the_rest() -> None:
    run = Run("a b > j", {"j": {"join": "any"}})
    run.start()
    assert run.done("a") == rows("NodeStarted a; NodeCompleted a taken=j counter=2; NodeScheduled j; put run j")
    # Emitted and consumed at once: the counter loses only the token of `b` itself.
    assert run.done("b") == rows("NodeStarted b; NodeCompleted b taken=j counter=1")
    assert run.done("j") == rows("NodeStarted j; NodeCompleted j counter=0; RunCompleted")


def test_a_token_is_absorbed_also_after_the_join_has_ended() -> None:
    run = Run("a b > j > k", {"j": {"join": "any"}})
    run.start()
    run.end("a", "j")
    assert run.done("b") == rows("NodeStarted b; NodeCompleted b taken=j counter=1")
    assert run.cell("j").visit == 1
    assert run.nodes("j k") == "j=COMPLETED k=QUEUED"


def test_a_token_is_absorbed_by_a_join_that_was_skipped() -> None:
    run = Run("a b c; j > k", {name: {"branch": choose("j")} for name in "abc"} | {"j": {"join": {"quorum": 2}}})
    run.start()
    run.done("a", "")
    assert run.done("b", "") == rows(
        "NodeStarted b; NodeCompleted b dead=j counter=1; NodeSkipped j dead=k counter=1; NodeSkipped k counter=1"
    )
    assert run.done("c", "j") == rows("NodeStarted c; NodeCompleted c taken=j counter=0; RunCompleted")


def test_a_skipped_join_consumes_the_tokens_parked_at_it() -> None:
    run = Run("a b; j", {name: {"branch": choose("j")} for name in "ab"} | {"j": {"join": "strict"}})
    run.start()
    assert run.done("a", "j") == rows("NodeStarted a; NodeCompleted a taken=j counter=2")
    assert run.done("b", "") == rows(
        "NodeStarted b; NodeCompleted b dead=j counter=1; NodeSkipped j counter=0; RunCompleted"
    )


def test_a_quorum_consumes_what_made_it_fire() -> None:
    run = Run("a b c > j", {"j": {"join": {"quorum": 2}}})
    run.start()
    assert run.done("b") == rows("NodeStarted b; NodeCompleted b taken=j counter=3")
    assert run.done("c") == rows("NodeStarted c; NodeCompleted c taken=j counter=3; NodeScheduled j; put run j")
    assert run.done("a") == rows("NodeStarted a; NodeCompleted a taken=j counter=2")
    assert run.done("j") == rows("NodeStarted j; NodeCompleted j counter=0; RunCompleted")


def test_joins_look_at_edges_and_never_at_statuses() -> None:
    """A tolerated failure's taken edge counts as taken, also for `strict`."""
    run = Run("a b > j", {"a": {"on_error": "continue"}, "j": {"join": "strict"}})
    run.start()
    run.done("b")
    assert run.fail("a") == rows(
        "NodeStarted a; NodeFailed a code=boom tolerated taken=j counter=2; DeadLettered a code=boom attempts=1;"
        "NodeScheduled j; put run j"
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
    run = Run(f"{' '.join(names)} > j", {"j": {"join": {"quorum": 35} if join == "quorum" else join}})
    run.start()
    for number, name in enumerate(names, 1):
        assert ("NodeScheduled j" in run.done(name)) == (number == fires_after)
    run.done("j")
    assert (run.status, run.counter) == ("COMPLETED", 0)
    assert len(run.of(NodeScheduled)) == count + 1


@pytest.mark.parametrize("join", ["all", "strict", "any", {"quorum": 2}])
def test_a_token_that_reaches_a_join_already_fired_or_skipped_in_this_visit_is_absorbed(join: Json) -> None:
    """Of whatever kind: even an `all` join can be reached late, by an escape that is taken a second time."""
    nodes: Json = {"e": {"on_error": {"route": ["j"]}}, "l": {"join": "any", "loop": loop(4, "a")}, "j": {"join": join}}
    run = Run("x > j; a > e f > l; y > j", nodes)
    run.start()
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
    run = Run("a b > j")
    run.start()
    gathered = run.together(completion("a", 5), completion("b", 6))
    assert gathered == rows(
        "NodeStarted a; NodeCompleted a taken=j counter=2; NodeStarted b; NodeCompleted b taken=j counter=2;"
        "NodeScheduled j; put run j"
    )


def test_join_twice_by_a_repeated_arrival() -> None:
    """A fan-in counted messages, not dependencies: a repeated message made it fire too early."""
    run = Run("a b > j")
    run.start()
    run.done("a", token=5)
    for token in (5, 6, 7):
        run.do(completion("a", token))
    assert (run.edges("j"), run.nodes("j"), run.counter) == ("a:taken b:undecided", "j=PENDING", 2)
