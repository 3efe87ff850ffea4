"""Tables for the reference itself: each rule that it models has a case here."""

from __future__ import annotations

from typing import Any

import pytest

from tests.oracle.documents import translate
from tests.oracle.reference import (
    Done,
    Expanded,
    Failed,
    Lost,
    Outcome,
    Reference,
    SkippedByWhen,
    TimedOut,
    Uncalled,
    Waits,
)

Json = Any


def n(at: str, *dependencies: str, **more: Json) -> dict[str, Json]:
    """One node of a document."""
    return {"id": at, "type": "value", "config": None, "dependencies": list(dependencies), **more}


def loop(passes: int | str = 3, back_to: str | None = None, **more: Json) -> dict[str, Json]:
    target = {} if back_to is None else {"loop_back_to": back_to}
    return {"condition": "true", "max_iterations": passes, **target, **more}


def choose(*ways: str, **more: Json) -> dict[str, Json]:
    """A conditional branch with one rule per way; a way names its targets without spaces."""
    rules = [{"condition": f"inputs.x == {i}", "next_nodes": way.split("+")} for i, way in enumerate(ways)]
    return {"type": "conditional", "rules": rules, **more}


def begin(*nodes: dict[str, Json], **top: Json) -> Reference:
    run = Reference(translate({"name": "t", "nodes": list(nodes), **top}))
    run.start()
    return run


def end(run: Reference, at: str, outcome: Outcome | None = None, index: int | None = None) -> None:
    """End the activation of a node that is in flight; there must be exactly one that fits."""
    [act] = [a for a in run.in_flight() if a.node == at and (index is None or a.index == index)]
    run.finish(act, outcome if outcome is not None else Done())


def ends(run: Reference, *ids: str) -> None:
    for at in ids:
        end(run, at)


def flying(run: Reference) -> str:
    """What is in flight, as `node` or `node.index` or `node:phase`."""
    acts = run.in_flight()
    return " ".join(
        a.node + (f".{a.index}" if a.index >= 0 else "") + ("" if a.phase == "call" else f":{a.phase}") for a in acts
    )


def status(run: Reference, at: str) -> str:
    return run.nodes()[at][0]


def edge(run: Reference, source: str, to: str) -> str:
    return run.edges()[source, to]


# Tokens and the counter.


def test_counter_of_a_diamond() -> None:
    run = begin(n("a"), n("b", "a"), n("c", "a"), n("d", "b", "c"))
    seen = [run.counter]
    for at in "abcd":
        end(run, at)
        seen.append(run.counter)
    assert seen == [1, 2, 2, 2, 0]
    assert run.status == "COMPLETED"


def test_the_start_emits_one_token_per_entry() -> None:
    run = begin(n("a"), n("b"), n("c", "a", "b"))
    assert (run.counter, flying(run)) == (2, "a b")
    ends(run, "a")
    assert (run.counter, flying(run)) == (2, "b")


def test_outputs_hold_one_token() -> None:
    run = begin(n("a"), outputs={"x": "{{ a.output }}"})
    end(run, "a")
    assert (run.status, run.counter, flying(run)) == ("RUNNING", 1, ":outputs")
    end(run, "")
    assert (run.status, run.counter) == ("COMPLETED", 0)


@pytest.mark.parametrize("outcome", [Failed("x", True), Uncalled("template_failed")])
def test_outputs_that_fail_fail_the_run(outcome: Outcome) -> None:
    run = begin(n("a"), outputs={"x": "{{ a.output }}"})
    end(run, "a")
    end(run, "", outcome)
    assert (run.status, run.error_code, run.counter) == ("FAILED", "outputs_failed", 0)
    assert status(run, "a") == "COMPLETED"


# Joins. `t` takes the edge of the source, `d` kills it; sources end in order.


@pytest.mark.parametrize(
    ("join", "arrivals", "verdicts"),
    [
        ("all", "ttt", "--f"),
        ("all", "tdd", "--f"),
        ("all", "ddd", "--s"),
        ("strict", "ttt", "--f"),
        ("strict", "dtt", "--s"),
        ("any", "dtt", "-ff"),
        ("any", "tdd", "fff"),
        ("any", "ddd", "--s"),
        ({"quorum": 2}, "tdt", "--f"),
        ({"quorum": 2}, "ttt", "-ff"),
        ({"quorum": 2}, "ddt", "-ss"),
        ({"quorum": 3}, "tdt", "-ss"),
        ({"quorum": 1}, "dtd", "-ff"),
    ],
)
def test_join(join: Json, arrivals: str, verdicts: str) -> None:
    sources = [n(f"s{i}", branch=choose("j", default=[])) for i in range(3)]
    run = begin(*sources, n("j", join=join))
    for i, (arrival, verdict) in enumerate(zip(arrivals, verdicts, strict=True)):
        end(run, f"s{i}", Done(branch=("j",) if arrival == "t" else ()))
        expected = {"-": "PENDING", "f": "QUEUED", "s": "SKIPPED"}[verdict]
        assert status(run, "j") == expected
    if verdicts[-1] == "f":
        end(run, "j")
    assert (run.status, run.counter) == ("COMPLETED", 0)


def test_a_token_at_a_fired_join_is_absorbed() -> None:
    run = begin(n("a"), n("b"), n("j", "a", "b", join="any"))
    end(run, "a")
    assert run.counter == 2
    end(run, "b")
    assert (run.counter, edge(run, "b", "j")) == (1, "taken")
    end(run, "j")
    assert run.nodes()["j"] == ("COMPLETED", 1, 1)


def test_a_token_after_the_join_has_ended_is_absorbed() -> None:
    run = begin(n("a"), n("b"), n("j", "a", "b", join="any"))
    ends(run, "a", "j")
    assert run.counter == 1
    end(run, "b")
    assert (run.status, run.nodes()["j"]) == ("COMPLETED", ("COMPLETED", 1, 1))


def test_a_token_at_a_skipped_join_is_absorbed_and_parked_ones_are_consumed() -> None:
    run = begin(
        n("a"), n("b", branch=choose("j", default=[])), n("c"), n("j", "a", "c", join={"quorum": 3}), n("k", "j")
    )
    end(run, "a")
    assert run.counter == 3
    end(run, "b", Done(branch=()))
    assert (run.counter, status(run, "j"), status(run, "k")) == (1, "SKIPPED", "SKIPPED")
    end(run, "c")
    assert (run.status, edge(run, "c", "j"), edge(run, "j", "k")) == ("COMPLETED", "taken", "dead")


def test_dead_edges_propagate() -> None:
    run = begin(n("a", branch=choose("b", "c")), n("b"), n("c"), n("d", "c"), n("e", "b", "d"))
    end(run, "a", Done(branch=("b",)))
    assert [status(run, at) for at in "bcde"] == ["QUEUED", "SKIPPED", "SKIPPED", "PENDING"]
    ends(run, "b", "e")
    assert run.status == "COMPLETED"


def test_edges_are_decided_before_consequences_are_drawn() -> None:
    run = begin(n("a", branch=choose("s", "j")), n("s"), n("j", "s"))
    end(run, "a", Done(branch=("j",)))
    assert (status(run, "s"), status(run, "j"), run.counter) == ("SKIPPED", "QUEUED", 1)


def test_an_edge_named_by_several_rules() -> None:
    flow = (n("a", branch=choose("b", "b+c", default=[]), on_error={"route": ["b"]}), n("b", "a"), n("c"))
    for outcome, taken in (
        (Done(branch=("b",)), "b"),
        (Done(branch=("b", "c")), "b c"),
        (Done(branch=()), ""),
        (Failed(), "b"),
    ):
        run = begin(*flow)
        end(run, "a", outcome)
        assert flying(run) == taken


def test_agent_driven_routes() -> None:
    branch = {"type": "agent_driven", "available_next_nodes": ["b", "c"], "default": ["c"]}
    for chosen, taken in ((("b",), "b"), (("c", "b"), "b c"), ((), "c")):
        run = begin(n("a", branch=branch), n("b"), n("c"))
        end(run, "a", Done(branch=chosen))
        assert flying(run) == taken
    run = begin(n("a", branch=branch), n("b"), n("c"), n("d", "b"))
    end(run, "a", Done(branch=("d",)))
    assert (run.status, run.error_code) == ("FAILED", "route_not_allowed")


def test_joins_look_at_edges_never_at_statuses() -> None:
    run = begin(n("a", on_error="continue"), n("b"), n("j", "a", "b", join="strict"))
    end(run, "a", Failed())
    end(run, "b")
    assert (status(run, "a"), flying(run)) == ("FAILED", "j")
    end(run, "j")
    assert run.status == "COMPLETED"


def test_exactly_one_visit_fails_the_run() -> None:
    run = begin(n("a"), n("b"))
    first, second = run.in_flight()
    run.finish(first, Failed("one"))
    run.finish(second, Failed("two"))
    assert (run.error_code, run.error_node, run.errors()) == ("one", "a", {"a": "one"})
    assert status(run, "b") == "CANCELLED"


def test_the_end_of_a_run_consumes_parked_tokens() -> None:
    run = begin(n("a"), n("b"), n("j", "a", "b"))
    end(run, "a")
    end(run, "b", Failed())
    assert (run.counter, run.status, run.errors()) == (0, "FAILED", {"b": "failed", "j": "upstream_failed"})


# Loops.


def test_a_self_loop_counts_its_passes() -> None:
    run = begin(n("a", loop=loop(3)), n("b", "a"))
    for passed in range(2):
        assert run.iteration("a") == passed
        end(run, "a", Done(again=True))
        assert (run.counter, run.nodes()["a"]) == (1, ("QUEUED", passed + 2, 0))
    end(run, "a", Done(again=False))
    assert (flying(run), run.nodes()["a"]) == ("b", ("COMPLETED", 3, 1))


@pytest.mark.parametrize(
    ("more", "last", "taken"),
    [
        ({}, Done(again=False), "p"),
        ({"break_path": ["b"]}, Done(again=False), "b p"),
        ({"break_path": ["b"], "timeout_path": ["t"]}, Done(again=False), "b p"),
        ({"break_path": ["b"], "timeout_path": ["t"]}, Done(again=True), "t"),
        ({"timeout_path": ["b", "t"], "break_path": ["b"]}, Done(again=True), "b t"),
    ],
)
def test_the_ways_out_of_a_loop(more: Json, last: Done, taken: str) -> None:
    named = {to for way in more.values() for to in way}
    others = [n(to, *([] if to in named else ["a"])) for to in ("b", "t", "p") if to in named or to == "p"]
    run = begin(n("a", loop=loop(2, **more)), *others)
    end(run, "a", Done(again=True))
    end(run, "a", last)
    assert flying(run) == taken
    assert status(run, "a") == "COMPLETED"


def test_exhaustion_without_a_path_fails_the_node_and_on_error_applies() -> None:
    run = begin(n("a", loop=loop(1)))
    end(run, "a", Done(again=True))
    assert (run.status, run.error_code, run.nodes()["a"]) == ("FAILED", "loop_exhausted", ("FAILED", 1, 1))
    run = begin(n("a", loop=loop(1, break_path=["b"]), on_error="continue"), n("b"), n("c", "a"))
    end(run, "a", Done(again=True))
    assert (flying(run), run.errors()) == ("b c", {"a": "loop_exhausted"})


def test_break_takes_the_branch_too() -> None:
    run = begin(n("a", loop=loop(2), branch=choose("b", "c")), n("b"), n("c"), n("p", "a"))
    end(run, "a", Done(again=True))
    end(run, "a", Done(again=False, branch=("c",)))
    assert (flying(run), status(run, "b")) == ("c p", "SKIPPED")


def diamond_loop(**more: Json) -> tuple[dict[str, Json], ...]:
    """e → (x, y) → l, looping back to e, then z."""
    return n("e"), n("x", "e"), n("y", "e"), n("l", "x", "y", loop=loop(3, "e"), **more), n("z", "l")


def test_all_nodes_of_the_body_get_a_new_visit() -> None:
    run = begin(*diamond_loop())
    ends(run, "e", "x", "y")
    assert run.counter == 2
    end(run, "l", Done(again=True))
    assert (run.counter, flying(run)) == (1, "e")
    assert {at: run.nodes()[at][:2] for at in "exylz"} == {
        "e": ("QUEUED", 2),
        "x": ("PENDING", 2),
        "y": ("PENDING", 2),
        "l": ("PENDING", 2),
        "z": ("PENDING", 1),
    }
    assert run.edges() == {
        ("e", "x"): "undecided",
        ("e", "y"): "undecided",
        ("x", "l"): "undecided",
        ("y", "l"): "undecided",
        ("l", "z"): "undecided",
    }


def test_a_loop_continues_only_when_its_body_is_quiet() -> None:
    run = begin(*diamond_loop(join="any"))
    ends(run, "e", "x")
    end(run, "l", Done(again=True))
    assert (flying(run), status(run, "l"), run.counter) == ("y", "WAITING", 2)
    end(run, "y")
    assert (flying(run), run.counter, run.iteration("x")) == ("e", 1, 1)
    assert run.outcomes()["l", 1] == "COMPLETED"


def test_a_break_does_not_wait_for_the_body() -> None:
    run = begin(*diamond_loop(join="any"))
    ends(run, "e", "x")
    end(run, "l", Done(again=False))
    assert flying(run) == "y z"
    ends(run, "z", "y")
    assert (run.status, run.nodes()["y"]) == ("COMPLETED", ("COMPLETED", 1, 1))


def test_a_failure_ends_a_looping_visit_that_waits() -> None:
    run = begin(*diamond_loop(join="any"))
    ends(run, "e", "x")
    end(run, "l", Done(again=True))
    end(run, "y", Failed())
    assert [status(run, at) for at in "exylz"] == ["COMPLETED", "COMPLETED", "FAILED", "CANCELLED", "FAILED"]


def test_late_outside_tokens_are_absorbed_by_the_entry_in_any_pass() -> None:
    run = begin(n("a"), n("b"), n("e", "a", "b", join="any"), n("l", "e", loop=loop(3, "e")))
    ends(run, "a", "e")
    end(run, "l", Done(again=True))
    assert (run.counter, edge(run, "b", "e"), edge(run, "a", "e")) == (2, "undecided", "taken")
    end(run, "b")
    assert (run.counter, edge(run, "b", "e"), run.nodes()["e"]) == (1, "taken", ("QUEUED", 2, 0))
    ends(run, "e")
    end(run, "l", Done(again=False))
    assert run.status == "COMPLETED"


def nested_loops(**more: Json) -> tuple[dict[str, Json], ...]:
    """o → (s → i) → k: `i` loops back to `s`, `k` to `o`; then z."""
    inner = n("i", "s", loop=loop(2, "s"), **more)
    return n("o"), n("s", "o"), inner, n("k", "i", loop=loop(2, "o")), n("z", "k")


def test_nested_loops_reset_the_inner_count_and_evaluate_the_inner_join_again() -> None:
    run = begin(*nested_loops())
    for passed in range(2):
        ends(run, "o", "s")
        end(run, "i", Done(again=True))
        assert (run.iteration("s"), run.iteration("k"), run.iteration("o")) == (1, passed, passed)
        assert (edge(run, "o", "s"), edge(run, "s", "i")) == ("taken", "undecided")
        end(run, "s")
        end(run, "i", Done(again=False))
        end(run, "k", Done(again=passed == 0))
        assert run.iteration("s") == (0 if passed == 0 else 1)
    assert (run.nodes()["s"], run.nodes()["o"]) == (("COMPLETED", 4, 1), ("COMPLETED", 2, 1))
    assert flying(run) == "z"


def test_an_outer_loop_waits_for_the_inner_one() -> None:
    run = begin(
        n("o"),
        n("i", "o", loop=loop(5)),
        n("x", "o"),
        n("k", "i", "x", join="any", loop=loop(2, "o")),
    )
    ends(run, "o", "x")
    end(run, "k", Done(again=True))
    end(run, "i", Done(again=True))
    assert (flying(run), status(run, "k"), run.iteration("i")) == ("i", "WAITING", 1)
    end(run, "i", Done(again=False))
    assert (flying(run), run.iteration("i"), run.iteration("k")) == ("o", 0, 1)


# Error edges that leave a loop.


def escaping(join: Json = "all") -> tuple[dict[str, Json], ...]:
    """e → b → l with b's error path to h, and c beside b; l loops back to e; h also waits for l's exit z."""
    return (
        n("e"),
        n("b", "e", on_error={"route": ["h"]}),
        n("c", "e"),
        n("l", "b", "c", loop=loop(3, "e")),
        n("h", join=join),
        n("z", "l"),
    )


def test_an_escape_is_undecided_until_its_loop_is_over() -> None:
    run = begin(*escaping())
    ends(run, "e", "b", "c")
    assert (edge(run, "b", "h"), edge(run, "b", "l")) == ("undecided", "taken")
    end(run, "l", Done(again=True))
    ends(run, "e", "b", "c")
    assert edge(run, "b", "h") == "undecided"
    end(run, "l", Done(again=False))
    assert (edge(run, "b", "h"), status(run, "h")) == ("dead", "SKIPPED")


def test_a_taken_escape_stays_taken_and_is_absorbed_the_second_time() -> None:
    run = begin(*escaping())
    end(run, "e")
    end(run, "b", Failed())
    assert (edge(run, "b", "h"), edge(run, "b", "l"), flying(run)) == ("taken", "dead", "c h")
    end(run, "c")
    end(run, "l", Done(again=True))
    assert (edge(run, "b", "h"), edge(run, "b", "l")) == ("taken", "undecided")
    ends(run, "e")
    counter = run.counter
    end(run, "b", Failed())
    assert (run.counter, edge(run, "b", "h")) == (counter - 1, "taken")
    ends(run, "h", "c")
    end(run, "l", Done(again=True))
    ends(run, "e", "b", "c")
    end(run, "l", Done(again=False))
    assert (edge(run, "b", "h"), run.nodes()["h"]) == ("taken", ("COMPLETED", 1, 1))


def test_an_escape_waits_for_its_source_when_the_loop_is_over_first() -> None:
    run = begin(
        n("e"),
        n("b", "e", on_error={"route": ["h"]}),
        n("c", "e"),
        n("l", "b", "c", join="any", loop=loop(2, "e")),
        n("h"),
    )
    ends(run, "e", "c")
    end(run, "l", Done(again=False))
    assert edge(run, "b", "h") == "undecided"
    end(run, "b")
    assert (edge(run, "b", "h"), run.status) == ("dead", "COMPLETED")


def test_an_escape_of_two_loops_waits_for_both() -> None:
    run = begin(
        n("o"),
        n("b", "o", on_error={"route": ["h"]}),
        n("i", "b", loop=loop(2, "b")),
        n("k", "i", loop=loop(2, "o")),
        n("h"),
    )
    ends(run, "o", "b")
    end(run, "i", Done(again=False))
    assert edge(run, "b", "h") == "undecided"
    end(run, "k", Done(again=True))
    ends(run, "o", "b")
    end(run, "i", Done(again=False))
    assert edge(run, "b", "h") == "undecided"
    end(run, "k", Done(again=False))
    assert (edge(run, "b", "h"), run.status) == ("dead", "COMPLETED")


def test_an_escape_into_an_outer_body_is_undecided_again_in_the_next_outer_pass() -> None:
    run = begin(
        n("o"),
        n("b", "o", on_error={"route": ["h"]}),
        n("i", "b", loop=loop(2, "b")),
        n("h"),
        n("k", "i", "h", loop=loop(2, "o")),
    )
    end(run, "o")
    end(run, "b", Failed())
    assert (status(run, "i"), edge(run, "i", "k"), flying(run)) == ("SKIPPED", "dead", "h")
    end(run, "h")
    end(run, "k", Done(again=True))
    assert (edge(run, "b", "h"), run.nodes()["h"]) == ("undecided", ("PENDING", 2, 0))
    ends(run, "o", "b")
    assert edge(run, "b", "h") == "undecided"
    end(run, "i", Done(again=False))
    assert (edge(run, "b", "h"), status(run, "h"), flying(run)) == ("dead", "SKIPPED", "k")


def test_a_skipped_looping_node_ends_its_loop_and_its_edges_are_dead() -> None:
    run = begin(n("e", on_error={"route": ["h"]}), n("l", "e", loop=loop(3, "e")), n("h"), n("z", "l"))
    end(run, "e")
    end(run, "l", Done(again=True))
    end(run, "e", Failed())
    assert (status(run, "l"), status(run, "z"), flying(run)) == ("SKIPPED", "SKIPPED", "h")


def test_when_is_evaluated_in_every_pass_also_on_the_entry() -> None:
    run = begin(n("e", when="inputs.x"), n("l", "e", loop=loop(3, "e")), n("z", "l"))
    end(run, "e")
    end(run, "l", Done(again=True))
    end(run, "e", SkippedByWhen())
    assert run.status == "COMPLETED"
    assert run.nodes() == {"e": ("SKIPPED", 2, 0), "l": ("SKIPPED", 2, 0), "z": ("SKIPPED", 1, 0)}


# Errors.


def test_continue_evaluates_no_condition() -> None:
    run = begin(
        n("a", on_error="continue", loop=loop(3, break_path=["b"]), branch=choose("c", "d", default=["d"])),
        n("b"),
        n("c"),
        n("d"),
        n("p", "a"),
    )
    end(run, "a", Failed())
    assert (flying(run), status(run, "c"), run.visible("b", "a")) == ("b d p", "SKIPPED", "value:1")


def test_route_takes_only_the_error_edges() -> None:
    run = begin(n("a", on_error={"route": ["h"]}, branch=choose("b", default=["b"])), n("b"), n("p", "a"), n("h"))
    end(run, "a", Failed("x"))
    assert (flying(run), run.visible("h", "a"), run.errors()) == ("h", "value:1", {"a": "x"})
    run = begin(n("a", on_error={"route": ["h"]}), n("p", "a"), n("h"))
    end(run, "a")
    assert (flying(run), status(run, "h")) == ("p", "SKIPPED")


@pytest.mark.parametrize(
    ("outcome", "code", "attempts"),
    [
        (Uncalled("template_failed"), "template_failed", 0),
        (Uncalled("condition_failed"), "condition_failed", 0),
        (Uncalled("condition_failed", called=True), "condition_failed", 1),
        (Failed("boom", retryable=False), "boom", 1),
    ],
)
def test_what_is_never_retried(outcome: Outcome, code: str, attempts: int) -> None:
    run = begin(n("a", on_error="continue"))
    end(run, "a", outcome)
    assert (run.nodes()["a"], run.errors()) == (("FAILED", 1, attempts), {"a": code})


@pytest.mark.parametrize("outcome", [Failed("flaky", retryable=True), TimedOut()])
def test_attempts_are_used_up(outcome: Outcome) -> None:
    run = begin(n("a", retry={"max_attempts": 2}))
    end(run, "a", outcome)
    assert (run.nodes()["a"], flying(run)) == (("QUEUED", 1, 1), "a")
    end(run, "a", outcome)
    assert (run.nodes()["a"], run.status) == (("FAILED", 1, 2), "FAILED")


def test_a_node_overrides_the_default_retry() -> None:
    run = begin(n("a"), n("b", retry={"max_attempts": 2}), defaults={"retry": {"max_attempts": 1}})
    end(run, "b", Failed("x", True))
    assert run.status == "RUNNING"
    end(run, "a", Failed("x", True))
    assert run.error_node == "a"


def test_lost_workers_do_not_use_up_attempts_but_five_in_a_row_fail() -> None:
    run = begin(n("a", retry={"max_attempts": 2}))
    for outcome in [Lost()] * 4 + [Failed("x", True)] + [Lost()] * 4:
        end(run, "a", outcome)
    assert (run.status, run.nodes()["a"]) == ("RUNNING", ("QUEUED", 1, 9))
    end(run, "a", Lost())
    assert (run.error_code, run.nodes()["a"]) == ("worker_killer", ("FAILED", 1, 10))


def test_at_most_once_never_repeats_an_unknown_outcome() -> None:
    for outcome in (Lost(), TimedOut()):
        run = begin(n("a", delivery="at_most_once"))
        end(run, "a", outcome)
        assert (run.error_code, run.nodes()["a"]) == ("unknown_outcome", ("FAILED", 1, 1))
    run = begin(n("a", delivery="at_most_once"))
    end(run, "a", Failed("flaky", True))
    assert flying(run) == "a"


def test_descendants_fail_over_any_edge_and_live_ones_are_cancelled() -> None:
    run = begin(
        n("a"),
        n("b", on_error={"route": ["h"]}),
        n("c", "a"),
        n("h"),
        n("j", "a", "b", join="any"),
        n("k", "h", "j"),
        n("u"),
        n("v", "u"),
    )
    end(run, "a")
    assert flying(run) == "b c j u"
    end(run, "b", Failed())
    end(run, "h", Failed("late"))
    assert run.errors() == {"b": "failed", "h": "late", "k": "upstream_failed"}
    assert {at: status(run, at) for at in "cjuv"} == dict.fromkeys("cjuv", "CANCELLED")


def test_a_skipped_or_completed_descendant_is_left_alone() -> None:
    run = begin(n("a"), n("b", branch=choose("s", default=[])), n("s"), n("j", "a", "s"))
    end(run, "b", Done(branch=()))
    end(run, "a", Failed())
    assert {at: status(run, at) for at in "sj"} == {"s": "SKIPPED", "j": "FAILED"}


# Limits.


def test_the_visit_beyond_max_visits_is_not_dispatched() -> None:
    run = begin(n("a"), n("b", "a"), n("c", "a"), n("s", "a"), limits={"max_visits": 3})
    end(run, "a")
    assert (run.status, run.error_code, run.error_node) == ("FAILED", "max_visits_exceeded", "s")
    assert {at: status(run, at) for at in "bcs"} == dict.fromkeys("bcs", "CANCELLED")


def test_a_loop_that_meets_max_visits_has_continued() -> None:
    run = begin(n("a"), n("l", "a", loop=loop(9, "a")), limits={"max_visits": 2})
    end(run, "a")
    end(run, "l", Done(again=True))
    assert (run.error_node, run.nodes()) == ("a", {"a": ("CANCELLED", 2, 0), "l": ("CANCELLED", 2, 0)})


def test_hops_count_the_longest_way_and_go_on_through_loops() -> None:
    run = begin(n("a"), n("b", "a"), n("c", "a", "b"), limits={"max_hops": 2})
    ends(run, "a", "b")
    assert (run.error_code, run.error_node) == ("max_hops_exceeded", "c")
    run = begin(n("a"), n("b", "a"), n("c", "a", "b", join="any"), limits={"max_hops": 2})
    ends(run, "a", "b", "c")
    assert run.status == "COMPLETED"
    run = begin(n("l", loop=loop("unlimited")), limits={"max_hops": 3})
    for _ in range(3):
        assert run.status == "RUNNING"
        end(run, "l", Done(again=True))
    assert (run.error_code, run.nodes()["l"]) == ("max_hops_exceeded", ("CANCELLED", 4, 0))


def test_max_parallel_holds_ready_nodes_in_order() -> None:
    run = begin(n("a"), n("b"), n("c"), n("d", "a"), limits={"max_parallel": 2})
    assert (flying(run), status(run, "c"), run.counter) == ("a b", "PENDING", 3)
    end(run, "a")
    assert (flying(run), status(run, "d")) == ("b c", "PENDING")
    end(run, "c", Failed("x", True))
    assert flying(run) == "b c"
    end(run, "c")
    assert flying(run) == "b d"


def test_waiting_does_not_count_for_max_parallel() -> None:
    run = begin(n("a"), n("b"), limits={"max_parallel": 1})
    end(run, "a", Waits())
    assert (flying(run), status(run, "a")) == ("a:wait b", "WAITING")
    end(run, "a", TimedOut())
    assert flying(run) == "a b"


def test_a_wait_completes_unless_conditions_remain() -> None:
    run = begin(n("a"))
    end(run, "a", Waits())
    end(run, "a")
    assert (run.status, run.nodes()["a"]) == ("COMPLETED", ("COMPLETED", 1, 1))
    run = begin(n("a", loop=loop()))
    end(run, "a", Waits())
    end(run, "a")
    assert (flying(run), run.nodes()["a"]) == ("a:route", ("QUEUED", 1, 1))
    end(run, "a", Lost())
    end(run, "a", Done(again=False))
    assert (run.status, run.nodes()["a"]) == ("COMPLETED", ("COMPLETED", 1, 1))


# Maps.


def mapped(**more: Json) -> dict[str, Json]:
    return {"over": "{{ inputs.items }}", **more}


def test_a_map_expands_runs_its_window_and_is_assembled() -> None:
    run = begin(n("a", map=mapped(max_parallel=2)), n("b", "a"))
    assert flying(run) == "a:expand"
    end(run, "a", Expanded(3))
    assert (flying(run), run.counter, status(run, "a")) == ("a.0 a.1", 1, "QUEUED")
    end(run, "a", Done(), index=1)
    assert flying(run) == "a.0 a.2"
    end(run, "a", Waits(), index=2)
    end(run, "a", Done(), index=0)
    assert flying(run) == "a.2:wait"
    end(run, "a", Done(), index=2)
    assert flying(run) == "a:assemble"
    end(run, "a")
    assert (flying(run), run.nodes()["a"]) == ("b", ("COMPLETED", 1, 1))


def test_an_empty_map_completes_at_once_unless_it_has_conditions() -> None:
    run = begin(n("a", map=mapped()))
    end(run, "a", Expanded(0))
    assert (run.status, run.nodes()["a"]) == ("COMPLETED", ("COMPLETED", 1, 0))
    run = begin(n("a", map=mapped(), loop=loop()))
    end(run, "a", Expanded(0))
    assert flying(run) == "a:assemble"
    end(run, "a", Done(again=True))
    assert (flying(run), run.iteration("a")) == ("a:expand", 1)


def test_a_map_fails_at_the_first_failure_beyond_tolerate() -> None:
    run = begin(n("a", map=mapped(tolerate=1), on_error="continue"), n("b", "a"))
    end(run, "a", Expanded(4))
    end(run, "a", Failed("one"), index=0)
    end(run, "a", Failed("flaky", True), index=3)
    assert flying(run) == "a.1 a.2 a.3"
    end(run, "a", Failed("two"), index=1)
    assert (flying(run), run.errors(), run.nodes()["a"]) == ("b", {"a": "two"}, ("FAILED", 1, 1))


def test_attempts_of_a_map_are_the_largest_of_its_items() -> None:
    run = begin(n("a", map=mapped(tolerate=1)))
    end(run, "a", Expanded(2))
    for _ in range(3):
        end(run, "a", Failed("flaky", True), index=1)
    end(run, "a", Done(), index=0)
    end(run, "a")
    assert (run.status, run.nodes()["a"]) == ("COMPLETED", ("COMPLETED", 1, 3))


def test_when_of_a_map_is_evaluated_once_before_it() -> None:
    run = begin(n("a", when="inputs.x", map=mapped()))
    end(run, "a", SkippedByWhen())
    assert run.nodes()["a"] == ("SKIPPED", 1, 0)


def test_max_fanout_fails_the_visit() -> None:
    run = begin(n("a", map=mapped(), on_error={"route": ["h"]}), n("h"), limits={"max_fanout": 2})
    end(run, "a", Expanded(3))
    assert (flying(run), run.errors()) == ("h", {"a": "max_fanout_exceeded"})


def test_items_count_for_max_parallel_behind_nodes_that_were_ready_before() -> None:
    run = begin(n("a", map=mapped()), n("b"), n("c"), limits={"max_parallel": 2})
    end(run, "a", Expanded(3))
    assert flying(run) == "b c"
    end(run, "b")
    assert flying(run) == "a.0 c"
    end(run, "a", Failed("x"), index=0)
    assert (run.status, run.errors()) == ("FAILED", {"a": "x"})


# Acts on the run.


def test_cancel_and_deadline_end_everything() -> None:
    flow = (n("a"), n("b", "a"), n("s"), n("t", "s"))
    for act, expected in (("cancel", ("CANCELLED", None)), ("deadline", ("FAILED", "deadline_exceeded"))):
        run = begin(*flow)
        end(run, "s")
        getattr(run, act)()
        assert (run.status, run.error_code, run.counter) == (*expected, 0)
        assert [status(run, at) for at in "abst"] == ["CANCELLED", "CANCELLED", "COMPLETED", "CANCELLED"]
        run.cancel()
        run.deadline()
        assert (run.status, run.error_code) == expected


def test_nothing_is_dispatched_while_paused() -> None:
    run = begin(n("a"), n("b", "a"), n("r"))
    run.pause()
    end(run, "a")
    end(run, "r", Failed("flaky", True))
    assert (flying(run), run.status, status(run, "b"), status(run, "r")) == ("", "PAUSED", "PENDING", "QUEUED")
    run.resume()
    assert flying(run) == "b r"
    ends(run, "b")
    run.pause()
    end(run, "r")
    assert run.status == "COMPLETED"


# What is seen.


def test_a_reference_sees_the_latest_ended_visit() -> None:
    run = begin(n("a", loop=loop()), n("b", "a"), outputs={"x": "{{ a.output }}"})
    assert run.visible("b", "a") == "absent"
    end(run, "a", Done(again=True))
    assert run.visible("b", "a") == "value:1"
    end(run, "a", Done(again=False))
    assert (run.visible("b", "a"), run.visible("", "a"), run.visible("a", "b")) == ("value:2", "value:2", "absent")


def test_a_skipped_visit_hides_older_passes() -> None:
    run = begin(n("e"), n("m", "e", when="inputs.x"), n("l", "e", "m", loop=loop(3, "e")), n("z", "l"))
    ends(run, "e", "m")
    end(run, "l", Done(again=True))
    end(run, "e")
    assert (run.visible("l", "m"), run.visible("e", "m")) == ("absent", "value:1")
    end(run, "m", SkippedByWhen())
    assert (run.visible("l", "m"), run.visible("z", "m")) == ("absent", "absent")
    end(run, "l", Done(again=True))
    assert (run.visible("e", "m"), run.visible("e", "l")) == ("absent", "value:2")


def test_an_ancestor_that_has_not_ended_in_this_pass_is_absent() -> None:
    run = begin(*diamond_loop(join="any"))
    ends(run, "e", "x")
    assert (run.visible("l", "x"), run.visible("l", "y")) == ("value:1", "absent")
    end(run, "y")
    end(run, "l", Done(again=True))
    ends(run, "e", "x")
    assert (run.visible("l", "x"), run.visible("l", "y"), run.visible("z", "y")) == ("value:2", "absent", "value:1")


def test_itself_and_non_ancestors_are_seen_as_the_pass_began() -> None:
    run = begin(*diamond_loop())
    end(run, "e")
    assert (run.visible("e", "e"), run.visible("x", "y")) == ("absent", "absent")
    ends(run, "x", "y")
    assert run.visible("x", "y") == "absent"
    end(run, "l", Done(again=True))
    ends(run, "e", "y")
    assert (run.visible("x", "y"), run.visible("e", "l"), run.visible("e", "e")) == ("value:1", "value:1", "value:1")


def test_a_past_reference_is_absent_in_the_first_inner_pass() -> None:
    run = begin(*nested_loops())
    ends(run, "o", "s")
    end(run, "i", Done(again=True))
    assert (run.visible("s", "i"), run.visible("o", "i")) == ("value:1", "absent")
    end(run, "s")
    end(run, "i", Done(again=False))
    end(run, "k", Done(again=True))
    assert (run.visible("s", "i"), run.visible("o", "i")) == ("absent", "value:2")


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(Expanded(1), "cannot end"), (Done(again=True), "loop condition"), (SkippedByWhen(), "no `when`")],
)
def test_nonsense_is_refused(outcome: Outcome, reason: str) -> None:
    run = begin(n("a"))
    with pytest.raises(ValueError, match=reason):
        end(run, "a", outcome)
