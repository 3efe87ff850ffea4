"""The checker of logs bites: every law it knows is broken once, by one change to a log that obeys all of them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.kernel import test_log_checker_acts, test_log_checker_waits
from tests.kernel.changes import Change, Log, again, behind, change, drop, law_names
from tests.kernel.tables import Run, flow, loop
from tidemill.kernel.events import (
    DeadLettered,
    Error,
    LoopContinued,
    NodeCancelled,
    NodeCompleted,
    NodeExpanded,
    NodeFailed,
    NodeScheduled,
    NodeSkipped,
    NodeStarted,
    ResultDiscarded,
    RunCompleted,
    RunCreated,
    RunPaused,
)
from tidemill.kernel.laws import check_log
from tidemill.kernel.model import Limits, Workflow

# Logs that are in order


def diamond() -> Run:
    run = Run("a > b c > d")
    run.start()
    run.end("a", "b", "c", "d")
    return run


def mapped() -> Run:
    run = Run("a", {"a": {"map": {"over": [1], "max_parallel": 2}}})
    run.start()
    run.expand("a", 3)
    for index in range(3):
        run.done(f"a[{index}]")
    run.assemble("a")
    return run


def retried() -> Run:
    run = Run("a > b")
    run.start()
    run.fail("a", retryable=True)
    run.end("a", "b")
    return run


def looped() -> Run:
    run = Run("a > b > z", {"b": {"loop": loop(9, "a")}})
    run.start()
    run.done("a")
    run.done("b", again=True)
    run.end("a", "b", "z")
    return run


def skipped() -> Run:
    run = Run("a > b", {"a": {"when": "inputs.go"}})
    run.start()
    run.skip("a")
    return run


def failed() -> Run:
    run = Run("a > b; c")
    run.start()
    run.fail("a")
    return run


# Changes


def cut(length: int) -> Change:
    return lambda log: log[:length]


def late(times: int) -> Change:
    discarded = ResultDiscarded(node="a", visit=1, attempt=1, token=1, outcome="Done", reason="stale")
    return lambda log: [*log, *[discarded] * times]


LETTER = DeadLettered(node="a", visit=1, attempts=1, error=Error("x", ""))
FINAL = Error("boom", "", retryable=False)
UNKNOWN = Error("unknown_outcome", "", retryable=True)

BROKEN: list[tuple[str, Callable[[], Run], Change]] = [
    ("first", diamond, drop(RunCreated)),
    ("first", diamond, again(RunCreated)),
    ("cause", diamond, change(NodeScheduled, cause=99)),
    ("terminal", diamond, behind(RunCompleted, RunPaused())),
    ("node", diamond, change(NodeScheduled, node="nobody")),
    ("node", diamond, change(NodeCompleted, node="nobody")),
    ("visit", diamond, change(NodeStarted, visit=2)),
    ("tokens", diamond, change(RunCreated, counter=5)),
    ("entries", diamond, change(RunCreated, entries=("b",))),
    ("discards", diamond, late(11)),
    ("dead-letter", diamond, behind(NodeStarted, LETTER)),
    ("counter-zero", diamond, lambda log: cut(4)(change(NodeCompleted, consumed=3)(log))),
    ("settled", diamond, lambda log: drop(NodeCompleted, 3)(log)),
    ("skip", skipped, change(NodeSkipped, dead=())),
    ("skip", skipped, drop(NodeSkipped, 1)),
    ("join-once", diamond, again(NodeScheduled, 1)),
    ("join-once", diamond, again(NodeScheduled, 1, held=True)),
    ("ended-once", diamond, again(NodeCompleted)),
    ("join", diamond, drop(NodeCompleted, 1)),
    ("join", diamond, change(NodeCompleted, 0, taken=("c",), dead=("b",))),
    ("map", mapped, drop(NodeExpanded)),
    ("map-order", mapped, again(NodeScheduled, 1)),
    ("map-bounds", mapped, change(NodeExpanded, count=1)),
    ("map-window", mapped, change(NodeExpanded, window=1)),
    ("map-once", mapped, again(NodeExpanded)),
    ("attempts", diamond, change(NodeStarted, attempt=3)),
    ("attempts", retried, change(NodeStarted, 1, attempt=1)),
    ("one-attempt", diamond, again(NodeStarted, attempt=2, token=99)),
    ("fence", retried, change(NodeStarted, 1, token=1)),
    ("fence", retried, change(NodeCompleted, 0, token=1)),
    ("ready", diamond, drop(NodeScheduled)),
    ("ready", mapped, drop(NodeScheduled, 1)),
    ("counter", diamond, change(NodeCompleted, counter=9)),
    ("counter-negative", diamond, change(NodeCompleted, consumed=9)),
    ("retry-edges", retried, change(NodeFailed, taken=("b",))),
    ("item-edges", mapped, change(NodeCompleted, emitted=1)),
    ("retry", retried, change(NodeFailed, error=FINAL)),
    ("edge", diamond, change(NodeCompleted, taken=("b", "d"))),
    ("edge", diamond, change(NodeCompleted, dead=("nobody",))),
    ("edge-once", skipped, again(NodeSkipped)),
    ("loop", looped, change(LoopContinued, entry="b")),
    ("loop-pass", looped, change(LoopContinued, iteration=2)),
    ("loop-busy", looped, drop(NodeCompleted)),
    ("loop", looped, change(LoopContinued, node="nobody")),
    ("counter-end", diamond, change(RunCompleted, counter=1)),
    ("consumed", diamond, change(NodeCompleted, 3, consumed=1)),
    ("emitted", diamond, change(NodeCompleted, emitted=3)),
    ("emitted", looped, change(NodeCompleted, 1, emitted=0)),
    ("renders", diamond, change(NodeCompleted, renders=True)),
    ("join-due", diamond, cut(5)),
    ("ended-all", failed, drop(NodeCancelled)),
    ("ended-all", diamond, drop(NodeCompleted, 3)),
]

STRICTER: list[tuple[str, Callable[[], Run], Callable[[], Workflow]]] = [
    ("max-visits", diamond, lambda: limited(diamond().flow, max_visits=3)),
    ("max-hops", diamond, lambda: limited(diamond().flow, max_hops=2)),
    ("max-fanout", mapped, lambda: limited(mapped().flow, max_fanout=2)),
    ("retry-count", retried, lambda: flow("a > b", {"a": {"retry": {"max_attempts": 1}}})),
    ("loop-limit", looped, lambda: flow("a > b > z", {"b": {"loop": loop(1, "a")}})),
]


def limited(workflow: Workflow, **limits: int) -> Workflow:
    return msgspec.structs.replace(workflow, limits=Limits(**limits))


def broken_laws(workflow: Workflow, log: Log) -> set[str]:
    return {violation.law for violation in check_log(workflow, log)}


@pytest.mark.parametrize("make", [diamond, mapped, retried, looped, skipped, failed])
def test_a_log_that_is_in_order_breaks_no_law(make: Callable[[], Run]) -> None:
    run = make()
    assert check_log(run.flow, run.kernel.events) == []


@pytest.mark.parametrize(("law", "make", "changed"), BROKEN, ids=[f"{n}-{case[0]}" for n, case in enumerate(BROKEN)])
def test_a_broken_law_is_named(law: str, make: Callable[[], Run], changed: Change) -> None:
    run = make()
    assert law in broken_laws(run.flow, changed(list(run.kernel.events)))


@pytest.mark.parametrize(("law", "make", "stricter"), STRICTER, ids=[case[0] for case in STRICTER])
def test_a_log_that_a_stricter_document_forbids(
    law: str, make: Callable[[], Run], stricter: Callable[[], Workflow]
) -> None:
    assert law in broken_laws(stricter(), make().kernel.events)


def test_an_unknown_outcome_is_never_tried_again() -> None:
    run = Run("a > b", {"a": {"delivery": "at_most_once"}})
    run.start()
    run.begin("a", token=5)
    run.fail("a", retryable=True, token=5)
    run.begin("a", token=6)
    log = change(NodeFailed, error=UNKNOWN)(list(run.kernel.events))
    assert broken_laws(run.flow, log) == {"at-most-once"}


def test_every_law_of_the_checker_is_broken_somewhere() -> None:
    tables = (BROKEN, test_log_checker_waits.BROKEN, test_log_checker_acts.BROKEN)
    tried = {case[0] for table in tables for case in table} | {case[0] for case in STRICTER}
    by_themselves = {"patch-node", "relisted"}
    assert law_names() == tried | by_themselves


def test_a_log_that_breaks_a_law_is_reported() -> None:
    run = Run("a > b")
    run.start()
    run.end("a")
    sound = run.kernel.events
    assert check_log(run.flow, sound) == []
    assert {found.law for found in check_log(run.flow, [*sound, *sound[-3:]])} >= {"attempts", "ended-once"}
