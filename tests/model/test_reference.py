"""Tables for the reference itself: each rule that it models has a case here."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.documents import translate
from tests.model.reference import Done, Expanded, Failed, Lost, Outcome, Reference, SkippedByWhen, Waits

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


def diamond_loop(**more: Json) -> tuple[dict[str, Json], ...]:
    """e → (x, y) → l, looping back to e, then z."""
    return n("e"), n("x", "e"), n("y", "e"), n("l", "x", "y", loop=loop(3, "e"), **more), n("z", "l")


def test_a_loop_continues_only_when_its_body_is_quiet() -> None:
    run = begin(*diamond_loop(join="any"))
    ends(run, "e", "x")
    end(run, "l", Done(again=True))
    assert (flying(run), status(run, "l"), run.counter) == ("y", "WAITING", 2)
    end(run, "y")
    assert (flying(run), run.counter, run.iteration("x")) == ("e", 1, 1)
    assert run.outcomes()["l", 1] == "COMPLETED"


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


def test_lost_workers_do_not_use_up_attempts_but_five_in_a_row_fail() -> None:
    run = begin(n("a", retry={"max_attempts": 2}))
    for outcome in [Lost()] * 4 + [Failed("x", True)] + [Lost()] * 4:
        end(run, "a", outcome)
    assert (run.status, run.nodes()["a"]) == ("RUNNING", ("QUEUED", 1, 9))
    end(run, "a", Lost())
    assert (run.error_code, run.nodes()["a"]) == ("worker_killer", ("FAILED", 1, 10))


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


def test_a_map_fails_at_the_first_failure_beyond_tolerate() -> None:
    run = begin(n("a", map=mapped(tolerate=1), on_error="continue"), n("b", "a"))
    end(run, "a", Expanded(4))
    end(run, "a", Failed("one"), index=0)
    end(run, "a", Failed("flaky", True), index=3)
    assert flying(run) == "a.1 a.2 a.3"
    end(run, "a", Failed("two"), index=1)
    assert (flying(run), run.errors(), run.nodes()["a"]) == ("b", {"a": "two"}, ("FAILED", 1, 1))


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


def test_a_reference_sees_the_latest_ended_visit() -> None:
    run = begin(n("a", loop=loop()), n("b", "a"), outputs={"x": "{{ a.output }}"})
    assert run.visible("b", "a") == "absent"
    end(run, "a", Done(again=True))
    assert run.visible("b", "a") == "value:1"
    end(run, "a", Done(again=False))
    assert (run.visible("b", "a"), run.visible("", "a"), run.visible("a", "b")) == ("value:2", "value:2", "absent")


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(Expanded(1), "cannot end"), (Done(again=True), "loop condition"), (SkippedByWhen(), "no `when`")],
)
def test_nonsense_is_refused(outcome: Outcome, reason: str) -> None:
    run = begin(n("a"))
    with pytest.raises(ValueError, match=reason):
        end(run, "a", outcome)
