"""The checker of logs bites where runs wait: people, timers, signals and children."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kernel.changes import Case, Log, Told, again, before, behind, both, change, check, drop, swap, told, until
from tests.kernel.tables import Run, choose
from tidemill.kernel.commands import ChildBegan, ChildEnded, Decide, Delegate, Request, Signal, Verb, Waits
from tidemill.kernel.events import (
    ApprovalDecided,
    ApprovalDelegated,
    ApprovalEscalated,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalReturned,
    ApprovalVoted,
    ChildFinished,
    ChildStarted,
    Error,
    NodeCompleted,
    NodeFailed,
    NodeScheduled,
    NodeSkipped,
    NodeWaiting,
    RunCompleted,
    RunCreated,
    RunPatched,
    RunPaused,
    SignalReceived,
)

ANN, BOB, EVE = "user:ann", "user:bob", "user:eve"


# Logs that are in order


def asking(graph: str = "h > z", options: dict[str, Any] | None = None, **request: Any) -> Run:
    run = Run(graph, {"h": options or {"type": "human"}})
    run.start(submitted_by="rita")
    run.result("h", Waits(on="human", approval=Request(title="may it?", **request)))
    return run


def decide(run: Run, verb: Verb, by: str) -> None:
    run.do(Decide(verb=verb, actor=by, node="h", visit=1))


def approved() -> Told:
    run = asking(approvers=(ANN, BOB), quorum=2, four_eyes=True)
    decide(run, "approve", "ann")
    decide(run, "approve", "bob")
    run.done("z")
    return told(run)


def delegated() -> Told:
    run = asking(approvers=(ANN,), four_eyes=True)
    run.do(Delegate(to="eve", actor="ann", node="h", visit=1))
    decide(run, "approve", "eve")
    run.done("z")
    return told(run)


def returned() -> Told:
    run = asking("h > z; y", {"type": "human", "config": {"changes_path": ["y"]}}, approvers=(ANN,))
    decide(run, "changes", "ann")
    run.done("y")
    return told(run)


def timed_out(on_timeout: str) -> Run:
    run = asking(timeout_ms=5_000, on_timeout=on_timeout, escalate_to=(EVE,))
    run.expire("h")
    return run


def by_system() -> Told:
    run = timed_out("approve")
    run.done("z")
    return told(run)


def escalated() -> Told:
    run = timed_out("escalate")
    run.expire("h")
    return told(run)


def expired() -> Told:
    return told(timed_out("fail"))


def waited() -> Told:
    run = Run("a > z")
    run.start()
    run.wait("a", 5_000)
    run.wake("a")
    run.done("z")
    return told(run)


def routed() -> Told:
    run = Run("a; b", {"a": {"branch": choose("b")}})
    run.start()
    run.wait("a")
    run.wake("a")
    run.done("a", "b", called=False)
    return told(run)


def too_late() -> Told:
    run = Run("a", {"a": {"timeout_seconds": 3}})
    run.start()
    run.wait("a", 10_000)
    run.expire("a")
    return told(run)


def signalled(*ids: str) -> Run:
    """Two nodes wait, `a` longer; then signals come."""
    run = Run("a b s", {name: {"type": "signal", "config": {"name": "paid"}} for name in "ab"})
    run.start()
    for name in "ab":
        run.result(name, Waits(on="signal", name="paid"))
    for each in ids:
        run.do(Signal(name="paid", signal=each, payload=b"1"))
    return run


def in_order() -> Told:
    return told(signalled("one", "two"))


def kept() -> Told:
    """Two signals come before anybody asks, and only one is taken."""
    run = Run("a > b; c", {"b": {"type": "signal", "config": {"name": "paid"}}})
    run.start()
    for each in ("one", "two"):
        run.do(Signal(name="paid", signal=each, payload=b"1"))
    run.done("a")
    run.result("b", Waits(on="signal", name="paid"))
    run.done("c")
    return told(run)


def parent(end: ChildEnded | None, *, began: bool = True) -> Told:
    run = Run("c > z")
    run.start()
    run.result("c", Waits(on="child", name="kid", ask=b"{}", close="cancel"))
    if began:
        run.do(ChildBegan(node="c", visit=1, child="kid", workflow="w", version=1, digest="d"), "child/c/1/-1")
    if end is not None:
        run.do(end, "" if began else "child/c/1/-1")
    return told(run)


def child() -> Told:
    return parent(ChildEnded(node="c", visit=1, child="kid", status="COMPLETED", output=b"1"))


def refused() -> Told:
    return parent(ChildEnded(node="c", visit=1, child="kid", status="", error=Error("x", "no")), began=False)


GOOD = [
    approved, delegated, returned, by_system, escalated, expired, waited, routed, too_late, in_order, kept, child,
    refused,
]  # fmt: skip

VOTE = ApprovalVoted(node="h", visit=1, by=EVE)
PATCHED = RunPatched(base="", digest="", revision=1, patch=b"[]", actor="bob")
ASKED = ApprovalRequested(node="z", visit=1, title="?")
STARTED = ChildStarted(node="z", visit=1, child="kid", workflow="w", version=1, digest="d")
MANY = [SignalReceived(name="paid", signal=f"s{number}", payload=b"1") for number in range(1_000)]


def full(log: Log) -> Log:
    return [*log[:2], *MANY, *log[2:]]


BROKEN: list[Case] = [
    ("approval-asked", approved, again(ApprovalRequested)),
    ("approval-asked", approved, before(NodeWaiting, ApprovalRequested(node="h", visit=1, title="?"))),
    ("approval-asked", approved, behind(NodeScheduled, ASKED, 1)),
    ("approval-open", approved, drop(ApprovalRequested)),
    ("approval-open", approved, again(ApprovalDecided)),
    ("approval-open", approved, behind(ApprovalDecided, VOTE)),
    ("approval-open", approved, behind(NodeCompleted, VOTE)),
    ("approval-open", expired, before(NodeFailed, ApprovalDecided(node="h", visit=1, decision="approve", by=ANN))),
    ("approval-vote", approved, change(ApprovalDecided, by=ANN)),
    ("approval-vote", approved, both(change(ApprovalRequested, quorum=3), again(ApprovalVoted))),
    ("quorum", approved, drop(ApprovalVoted)),
    ("quorum", approved, change(ApprovalRequested, quorum=1)),
    ("four-eyes", approved, change(ApprovalRequested, requester="bob")),
    ("four-eyes", approved, change(ApprovalRequested, requester="user:ann")),
    ("four-eyes", delegated, change(ApprovalRequested, requester="eve")),
    ("approver", approved, change(ApprovalVoted, by=EVE)),
    ("approver", approved, change(ApprovalDecided, by=EVE)),
    ("approver", returned, change(ApprovalReturned, by=EVE)),
    ("approver", delegated, drop(ApprovalDelegated)),
    ("approver", delegated, change(ApprovalDecided, by=ANN)),
    ("approver", delegated, change(ApprovalDelegated, by=BOB)),
    ("approver", delegated, change(ApprovalDelegated, to="role:boss")),
    ("approval-system", by_system, change(ApprovalDecided, decision="reject")),
    ("approval-system", approved, change(ApprovalDecided, by="system")),
    ("escalated", escalated, again(ApprovalEscalated, at_ms=99_000)),
    ("escalated", escalated, change(ApprovalEscalated, to=(ANN,))),
    ("escalated", escalated, change(ApprovalRequested, on_timeout="fail")),
    ("expired", escalated, drop(ApprovalEscalated)),
    ("expired", expired, change(ApprovalRequested, on_timeout="approve")),
    ("timer", by_system, change(ApprovalDecided, at_ms=5_999)),
    ("timer", escalated, change(ApprovalEscalated, at_ms=5_999)),
    ("timer", escalated, change(ApprovalExpired, at_ms=6_000)),
    ("timer", expired, change(ApprovalExpired, at_ms=5_999)),
    ("timer", waited, change(NodeCompleted, at_ms=5_999)),
    ("timer", routed, change(NodeScheduled, 1, at_ms=1_999)),
    ("timer", too_late, change(NodeFailed, at_ms=3_999)),
    ("wait-once", waited, again(NodeWaiting)),
    ("wait-end", approved, until(ApprovalDecided)),
    ("wait-end", returned, until(ApprovalReturned)),
    ("wait-end", expired, until(ApprovalExpired)),
    ("wait-end", expired, drop(ApprovalExpired)),
    ("wait-end", approved, drop(ApprovalDecided)),
    ("wait-end", in_order, until(SignalReceived)),
    ("wait-end", in_order, drop(SignalReceived, 1)),
    ("wait-end", kept, until(NodeWaiting)),
    ("wait-end", child, until(ChildFinished)),
    ("wait-end", child, drop(ChildFinished)),
    ("wait-end", too_late, change(NodeWaiting, expires_ms=None)),
    ("wait-end", waited, before(NodeCompleted, NodeSkipped(node="a", visit=1))),
    ("wait-end", routed, drop(NodeWaiting)),
    ("recall", routed, change(NodeScheduled, 1, recall=True)),
    ("signal-once", in_order, change(SignalReceived, 1, signal="one")),
    ("signal-order", in_order, swap(SignalReceived)),
    ("signal-order", in_order, change(SignalReceived, node="", visit=0)),
    ("signal-order", kept, change(NodeWaiting, signal="two")),
    ("signal-order", kept, change(NodeWaiting, signal="")),
    ("signal-order", kept, change(SignalReceived, node="c", visit=1)),
    ("signals-max", kept, full),
    ("unread", kept, change(RunCompleted, unread=())),
    ("unread", kept, change(RunCompleted, unread=("paid", "paid"))),
    ("unread", waited, change(RunCompleted, unread=("paid",))),
    ("child", child, change(ChildStarted, child="other")),
    ("child", child, change(ChildFinished, child="other")),
    ("child", child, behind(NodeCompleted, STARTED)),
    ("child-once", child, again(ChildStarted)),
    ("child-once", child, again(ChildFinished)),
    ("child-started", child, drop(ChildStarted)),
]


@pytest.mark.parametrize("make", GOOD, ids=[make.__name__ for make in GOOD])
def test_a_log_that_is_in_order_breaks_no_law(make: Callable[[], Told]) -> None:
    case = make()
    assert check(case) == []
    assert isinstance(case.log[0], RunCreated)


@pytest.mark.parametrize("case", BROKEN, ids=[f"{number}-{case[0]}" for number, case in enumerate(BROKEN)])
def test_the_law_that_is_broken_is_named_first(case: Case) -> None:
    law, make, changed = case
    assert check(make(), changed)[0].law == law


def test_whoever_patched_the_run_has_no_second_pair_of_eyes() -> None:
    case = approved()
    changed = before(ApprovalDecided, PATCHED)(case.log)
    graphs = {"": case.flow}
    assert [found.law for found in check(Told(case.flow, changed, graphs))][-1] == "four-eyes"


def test_a_role_may_be_anybodys() -> None:
    """Who has a role is not in the log."""
    run = asking(approvers=("role:boss",))
    run.do(Decide(verb="approve", actor="zoe", roles=("boss",), node="h", visit=1))
    assert check(told(run)) == []


def test_waiting_goes_on_while_the_run_is_paused() -> None:
    case = approved()
    assert check(case, before(ApprovalDecided, RunPaused())) == []


def test_who_waits_anew_waits_at_the_end_of_the_line() -> None:
    """What counts is how long the present wait has lasted, not when the node asked first."""
    case = in_order()
    waits = [event for event in case.log if isinstance(event, NodeWaiting)]
    late = [*case.log]
    late.remove(waits[0])
    late.insert(late.index(waits[1]) + 1, waits[0])
    assert check(Told(case.flow, late, {}))[0].law == "signal-order"
