"""The checker of logs: one table of (broken invariant, sound log, change that breaks it)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.fixtures.kernel.log_changes import (
    Change,
    Log,
    Reason,
    again,
    before,
    behind,
    both,
    change,
    check,
    drop,
    law_names,
    play,
    swap,
    told,
    until,
)
from tests.fixtures.kernel.sound_logs import ANN, BOB, EVE, FAILED, LOGS, ONCE, asked
from tests.fixtures.kernel.tables import flow, loop
from tidemill.kernel import events as ev
from tidemill.kernel.invariants.checker import LogChecker, check_log
from tidemill.kernel.model import Limits, Workflow

APPENDED = ev.NodeAppended(node="a", visit=1, attempt=1, value=b"1")


def late(times: int) -> Change:
    discarded = ev.ResultDiscarded(node="a", visit=1, attempt=1, token=1, outcome="Done", reason="stale")
    return lambda log: [*log, *[discarded] * times]


def fields(kind: type, name: str, number: int, **more: Any) -> Change:
    """Change one of the values that a field of an event lists."""

    def apply(log: Log) -> Log:
        event = next(each for each in log if isinstance(each, kind))
        values = list(getattr(event, name))
        values[number] = msgspec.structs.replace(values[number], **more)
        return change(kind, 0, **{name: tuple(values)})(log)

    return apply


def again_in_list(log: Log) -> Log:
    """A join that a patch lists twice."""
    joins = next(event.joins for event in log if isinstance(event, ev.RunPatched))
    return change(ev.RunPatched, joins=(*joins, joins[-1]))(log)


def full(log: Log) -> Log:
    return [*log[:2], *MANY, *log[2:]]


LETTER = ev.DeadLettered(node="a", visit=1, attempts=1, error=ev.Error("x", ""))
FINAL = ev.Error("boom", "", retryable=False)
UNKNOWN = ev.Error("unknown_outcome", "", retryable=True)
RETRY = ev.RunRetried(nodes=(), emitted=0, counter=1)
FORKED = ev.RunForked(run="other", at=3)
LATE = ev.ResultDiscarded(node="a", visit=1, attempt=1, token=1, outcome="Done", reason="run_ended")
REWIND = ev.RunRewound(node="b", nodes=(ev.Reopened("b", 2, 1), ev.Reopened("c", 2)), emitted=1, consumed=0, counter=1)
SETTLED = ev.NodeOverridden(node="e", visit=1, status="COMPLETED", counter=1, consumed=1)
VOTE = ev.ApprovalVoted(node="h", visit=1, by=EVE)
PATCHED = ev.RunPatched(base="", digest="", revision=1, patch=b"[]", actor="bob")
STARTED = ev.ChildStarted(node="z", visit=1, child="kid", workflow="w", version=1, digest="d")
MANY = [ev.SignalReceived(name="paid", signal=f"s{number}", payload=b"1") for number in range(1_000)]
LABELS = ev.RunLabelled(labels={"a": "1"})
SETTLED_EARLY = ev.NodeOverridden(node="a", visit=1, status="COMPLETED", counter=1)
DECIDED = ev.ApprovalDecided(node="h", visit=1, decision="approve", by=ANN)

Case = tuple[str, str, Change]

BROKEN_AMONG_OTHERS: list[Case] = [
    ("first", "diamond", drop(ev.RunCreated)),
    ("cause", "diamond", change(ev.NodeScheduled, cause=99)),
    ("terminal", "diamond", behind(ev.RunCompleted, ev.RunPaused())),
    ("node", "diamond", change(ev.NodeScheduled, node="nobody")),
    ("visit", "diamond", change(ev.NodeStarted, visit=2)),
    ("tokens", "diamond", change(ev.RunCreated, counter=5)),
    ("entries", "diamond", change(ev.RunCreated, entries=("b",))),
    ("discards", "diamond", late(11)),
    ("dead-letter", "diamond", behind(ev.NodeStarted, LETTER)),
    ("counter-zero", "diamond", both(change(ev.NodeCompleted, consumed=3), lambda log: log[:4])),
    ("settled", "diamond", drop(ev.NodeCompleted, 3)),
    ("skip", "skipped", change(ev.NodeSkipped, dead=())),
    ("join-once", "diamond", again(ev.NodeScheduled, 1)),
    ("ended-once", "diamond", again(ev.NodeCompleted)),
    ("join", "diamond", drop(ev.NodeCompleted, 1)),
    ("map", "mapped", drop(ev.NodeExpanded)),
    ("map-order", "mapped", again(ev.NodeScheduled, 1)),
    ("map-bounds", "mapped", change(ev.NodeExpanded, count=1)),
    ("map-window", "mapped", change(ev.NodeExpanded, window=1)),
    ("map-once", "mapped", again(ev.NodeExpanded)),
    ("attempts", "flaky", change(ev.NodeStarted, 1, attempt=1)),
    ("one-attempt", "diamond", again(ev.NodeStarted, attempt=2, token=99)),
    ("fence", "flaky", change(ev.NodeStarted, 1, token=1)),
    ("ready", "diamond", drop(ev.NodeScheduled)),
    ("counter", "diamond", change(ev.NodeCompleted, counter=9)),
    ("counter-negative", "diamond", change(ev.NodeCompleted, consumed=9)),
    ("retry-edges", "flaky", change(ev.NodeFailed, taken=("b",))),
    ("item-edges", "mapped", change(ev.NodeCompleted, emitted=1)),
    ("retry", "flaky", change(ev.NodeFailed, error=FINAL)),
    ("edge", "diamond", change(ev.NodeCompleted, taken=("b", "d"))),
    ("edge-once", "skipped", again(ev.NodeSkipped)),
    ("loop", "looped", change(ev.LoopContinued, entry="b")),
    ("loop-pass", "looped", change(ev.LoopContinued, iteration=2)),
    ("loop-busy", "looped", drop(ev.NodeCompleted)),
    ("counter-end", "diamond", change(ev.RunCompleted, counter=1)),
    ("consumed", "diamond", change(ev.NodeCompleted, 3, consumed=1)),
    ("emitted", "diamond", change(ev.NodeCompleted, emitted=3)),
    ("emitted", "looped", change(ev.NodeCompleted, 1, emitted=0)),
    ("renders", "diamond", change(ev.NodeCompleted, renders=True)),
    ("join-due", "diamond", lambda log: log[:5]),
    ("ended-all", "failed", drop(ev.NodeCancelled)),
]

BROKEN: list[Case] = [
    # A run as a whole
    ("terminal", "retried", drop(ev.RunRetried)),
    ("terminal", "retried", behind(ev.RunFailed, ev.NodeStarted(node="b", visit=1, attempt=2, token=99))),
    ("terminal", "fixed", behind(ev.RunPatched, LATE)),
    ("terminal", "retried", behind(ev.RunCompleted, RETRY)),
    ("reopened", "fixed", until(ev.RunPatched)),
    ("reopened", "forked", until(ev.RunForked)),
    # Retry
    ("retry-ended", "retried", behind(ev.NodeCompleted, RETRY)),
    ("retry-undone", "retried", behind(ev.RunFailed, ev.RollbackStarted(steps=0))),
    ("retry-set", "retried", change(ev.RunRetried, nodes=(ev.Reopened("b", 1, 1), ev.Reopened("e", 1, 1)))),
    ("retry-set", "retried", fields(ev.RunRetried, "nodes", 1, node="a")),
    ("retry-visit", "retried", fields(ev.RunRetried, "nodes", 0, visit=2)),
    ("retry-tokens", "retried", fields(ev.RunRetried, "nodes", 0, tokens=2)),
    ("counter", "retried", change(ev.RunRetried, counter=3)),
    ("attempts", "retried", change(ev.NodeStarted, 2, attempt=1)),
    ("fence", "retried", change(ev.NodeStarted, 2, token=1)),
    ("join-due", "retried", until(ev.DeadLetterClosed)),
    ("renders", "rendered_again", change(ev.RunRetried, renders=False)),
    ("at-most-once", "unknown", change(ev.RunRetried, sure=())),
    ("at-most-once", "cut_off", change(ev.RunRetried, sure=())),
    ("map-order", "retried_map", change(ev.NodeScheduled, 6, index=1)),
    # Rewind
    ("terminal", "discarded", behind(ev.RunFailed, REWIND)),
    ("rewind-set", "rewound", change(ev.RunRewound, nodes=(ev.Reopened("b", 2, 1),))),
    ("rewind-visit", "rewound", fields(ev.RunRewound, "nodes", 0, visit=1)),
    ("rewind-tokens", "rewound", fields(ev.RunRewound, "nodes", 1, tokens=1)),
    ("rewind-tokens", "rewound", change(ev.RunRewound, consumed=0)),
    ("counter", "rewound", change(ev.RunRewound, counter=9)),
    ("rewind-busy", "rewound_in_flight", drop(ev.NodeCancelled)),
    ("rewind-loops", "rewound_loop", change(ev.RunRewound, restarted=())),
    ("rewind-escapes", "rewound_loop", change(ev.RunRewound, undecided=(("a", "b"),))),
    ("rewind-escapes", "rewound_escape", change(ev.RunRewound, undecided=())),
    ("node", "rewound", change(ev.RunRewound, node="nobody")),
    ("join-due", "rewound", until(ev.RunRewound)),
    # Override
    ("override", "overridden", before(ev.NodeStarted, SETTLED_EARLY)),
    ("override", "overridden", change(ev.NodeOverridden, status="FAILED")),
    ("override", "overridden", change(ev.NodeOverridden, index=0, consumed=0)),
    ("override", "overridden_wait", drop(ev.NodeWaiting)),
    ("ended-once", "retried", behind(ev.NodeCompleted, SETTLED, 2)),
    ("override-edges", "overridden_wait", change(ev.NodeOverridden, taken=("b",))),
    ("override-tokens", "overridden_early", change(ev.NodeOverridden, emitted=0, counter=1)),
    ("consumed", "overridden", change(ev.NodeCompleted, consumed=1, counter=1)),
    ("ended-once", "overridden", again(ev.NodeOverridden)),
    # Patch
    ("patch-base", "patched", change(ev.RunPatched, base="sha256:1")),
    ("patch-revision", "patched", change(ev.RunPatched, revision=2)),
    ("graph", "patched", change(ev.RunPatched, digest="sha256:1")),
    ("patch-set", "patched", change(ev.RunPatched, added=())),
    ("patch-set", "fixed", change(ev.RunPatched, removed=())),
    ("patch-set", "fixed", change(ev.RunPatched, changed=())),
    ("patch-join", "patched", change(ev.RunPatched, joins=())),
    ("patch-join", "patched", fields(ev.RunPatched, "joins", 0, edges=(("a", False),))),
    ("patch-join", "patched", fields(ev.RunPatched, "joins", 1, own=True)),
    ("patch-join", "patched", again_in_list),
    ("patch-tokens", "patched", fields(ev.RunPatched, "joins", 1, tokens=0)),
    ("patch-tokens", "patched", change(ev.RunPatched, emitted=3)),
    ("counter", "patched", change(ev.RunPatched, counter=9)),
    # Fork
    ("fork", "forked", change(ev.RunCreated, forked_from=("other", 5))),
    ("fork", "forked", change(ev.RunForked, run="another")),
    ("fork", "retried", behind(ev.NodeStarted, FORKED)),
    ("letter-open", "forked_live", behind(ev.RunForked, ev.DeadLetterClosed(node="a", visit=1, status="discarded"))),
    # Dead letters
    ("letter-open", "discarded", again(ev.DeadLetterClosed)),
    ("letter-open", "discarded", change(ev.DeadLetterClosed, status="lost")),
    ("letter-due", "retried", drop(ev.DeadLetterClosed)),
    # Rollback
    ("undoable", "undone", change(ev.NodeCompleted, undoable=False)),
    ("undoable", "retried", change(ev.NodeCompleted, undoable=True)),
    ("rollback", "undone", before(ev.RunFailed, ev.RollbackStarted(steps=2))),
    ("rollback", "undone", again(ev.RollbackStarted)),
    ("rollback", "undone", behind(ev.RollbackFinished, ev.RollbackStarted(steps=0))),
    ("rollback-steps", "undone", change(ev.RollbackStarted, steps=1)),
    ("rollback-unknown", "left_unknown", change(ev.RollbackStarted, unknown=())),
    ("rollback-unknown", "undone", change(ev.RollbackStarted, unknown=("c/1/-1",))),
    ("rollback-settled", "settled_later", again(ev.NodeOverridden)),
    ("rollback-settled", "settled_later", change(ev.NodeOverridden, emitted=1)),
    ("rollback-settled", "settled_later", change(ev.NodeOverridden, undoable=False)),
    ("rollback-settled", "settled_later", change(ev.NodeOverridden, node="a")),
    ("rollback-order", "undone", swap(ev.CompensationScheduled)),
    ("rollback-order", "undone", change(ev.CompensationScheduled, node="c")),
    ("rollback-of", "undone", change(ev.CompensationScheduled, of=1)),
    ("rollback-one", "undone", drop(ev.CompensationCompleted)),
    ("rollback-one", "undone", change(ev.CompensationCompleted, node="a")),
    ("rollback-left", "undone", change(ev.RollbackFinished, left=("a/1/-1",))),
    ("rollback-left", "partly_undone", change(ev.RollbackFinished, status="done")),
    ("rollback-left", "stopped", change(ev.RollbackFinished, left=("a/1/-1",))),
    ("attempts", "undone", change(ev.CompensationCompleted, attempt=1)),
    ("fence", "undone", change(ev.CompensationCompleted, token=1)),
    ("retry", "undone", change(ev.CompensationFailed, error=ev.Error("boom", ""))),
    ("retry-count", "undone", again(ev.CompensationFailed, attempt=2, token=0)),
    # Waits
    ("approval-asked", "approved", again(ev.ApprovalRequested)),
    ("approval-asked", "approved", before(ev.NodeWaiting, ev.ApprovalRequested(node="h", visit=1, title="?"))),
    ("approval-open", "approved", drop(ev.ApprovalRequested)),
    ("approval-open", "approved", again(ev.ApprovalDecided)),
    ("approval-open", "approved", behind(ev.ApprovalDecided, VOTE)),
    ("approval-open", "expired", before(ev.NodeFailed, DECIDED)),
    ("approval-vote", "approved", change(ev.ApprovalDecided, by=ANN)),
    ("approval-vote", "approved", both(change(ev.ApprovalRequested, quorum=3), again(ev.ApprovalVoted))),
    ("quorum", "approved", drop(ev.ApprovalVoted)),
    ("four-eyes", "approved", change(ev.ApprovalRequested, requester="bob")),
    ("four-eyes", "delegated", change(ev.ApprovalRequested, requester="eve")),
    ("approver", "approved", change(ev.ApprovalVoted, by=EVE)),
    ("approver", "returned", change(ev.ApprovalReturned, by=EVE)),
    ("approver", "delegated", drop(ev.ApprovalDelegated)),
    ("approver", "delegated", change(ev.ApprovalDelegated, by=BOB)),
    ("approver", "delegated", change(ev.ApprovalDelegated, to="role:boss")),
    ("approval-system", "by_system", change(ev.ApprovalDecided, decision="reject")),
    ("approval-system", "approved", change(ev.ApprovalDecided, by="system")),
    ("escalated", "escalated", again(ev.ApprovalEscalated, at_ms=99_000)),
    ("escalated", "escalated", change(ev.ApprovalRequested, on_timeout="fail")),
    ("expired", "escalated", drop(ev.ApprovalEscalated)),
    ("expired", "expired", change(ev.ApprovalRequested, on_timeout="approve")),
    ("timer", "by_system", change(ev.ApprovalDecided, at_ms=5_999)),
    ("timer", "escalated", change(ev.ApprovalEscalated, at_ms=5_999)),
    ("timer", "expired", change(ev.ApprovalExpired, at_ms=5_999)),
    ("timer", "waited", change(ev.NodeCompleted, at_ms=5_999)),
    ("timer", "routed", change(ev.NodeScheduled, 1, at_ms=1_999)),
    ("timer", "too_late", change(ev.NodeFailed, at_ms=3_999)),
    ("append", "appended", before(ev.NodeStarted, APPENDED)),
    ("fence", "appended", change(ev.NodeAppended, 2, token=1)),
    ("wait-once", "waited", again(ev.NodeWaiting)),
    ("wait-end", "approved", until(ev.ApprovalDecided)),
    ("wait-end", "returned", until(ev.ApprovalReturned)),
    ("wait-end", "expired", until(ev.ApprovalExpired)),
    ("wait-end", "approved", drop(ev.ApprovalDecided)),
    ("wait-end", "in_order", until(ev.SignalReceived)),
    ("wait-end", "kept", until(ev.NodeWaiting)),
    ("wait-end", "child", until(ev.ChildFinished)),
    ("wait-end", "too_late", change(ev.NodeWaiting, expires_ms=None)),
    ("wait-end", "waited", before(ev.NodeCompleted, ev.NodeSkipped(node="a", visit=1))),
    ("wait-end", "routed", drop(ev.NodeWaiting)),
    ("recall", "routed", change(ev.NodeScheduled, 1, recall=True)),
    ("signal-once", "in_order", change(ev.SignalReceived, 1, signal="one")),
    ("signal-order", "in_order", swap(ev.SignalReceived)),
    ("signal-order", "in_order", change(ev.SignalReceived, node="", visit=0)),
    ("signal-order", "kept", change(ev.NodeWaiting, signal="two")),
    ("signal-order", "kept", change(ev.SignalReceived, node="c", visit=1)),
    ("signals-max", "kept", full),
    ("unread", "kept", change(ev.RunCompleted, unread=())),
    ("unread", "waited", change(ev.RunCompleted, unread=("paid",))),
    ("child", "child", change(ev.ChildStarted, child="other")),
    ("child", "child", behind(ev.NodeCompleted, STARTED)),
    ("child-once", "child", again(ev.ChildStarted)),
    ("child-once", "child", again(ev.ChildFinished)),
    ("child-started", "child", drop(ev.ChildStarted)),
]

STRICTER: list[tuple[str, str, Callable[[Workflow], Workflow]]] = [
    ("max-visits", "diamond", lambda flow: limited(flow, max_visits=3)),
    ("max-hops", "diamond", lambda flow: limited(flow, max_hops=2)),
    ("max-fanout", "mapped", lambda flow: limited(flow, max_fanout=2)),
    ("retry-count", "flaky", lambda _: flow("a > b", {"a": {"retry": {"max_attempts": 1}}})),
    ("loop-limit", "looped", lambda _: flow("a > b > z", {"b": {"loop": loop(1, "a")}})),
]


def limited(workflow: Workflow, **limits: int) -> Workflow:
    return msgspec.structs.replace(workflow, limits=Limits(**limits))


@pytest.mark.parametrize("name", LOGS)
def test_a_sound_log_breaks_no_invariant(name: str) -> None:
    assert check(LOGS[name]()) == []


def ids(cases: list[Case]) -> list[str]:
    return [f"{number}-{case[0]}" for number, case in enumerate(cases)]


@pytest.mark.parametrize(("law", "name", "changed"), BROKEN, ids=ids(BROKEN))
def test_the_broken_invariant_is_named_first(law: str, name: str, changed: Change) -> None:
    assert check(LOGS[name](), changed)[0].law == law


@pytest.mark.parametrize(("law", "name", "changed"), BROKEN_AMONG_OTHERS, ids=ids(BROKEN_AMONG_OTHERS))
def test_the_broken_invariant_is_named(law: str, name: str, changed: Change) -> None:
    assert law in [found.law for found in check(LOGS[name](), changed)]


@pytest.mark.parametrize(("law", "name", "stricter"), STRICTER, ids=[case[0] for case in STRICTER])
def test_a_log_that_a_stricter_document_forbids(law: str, name: str, stricter: Callable[[Workflow], Workflow]) -> None:
    case = LOGS[name]()
    assert law in {found.law for found in check_log(stricter(case.flow), case.log)}


def test_every_invariant_is_broken_somewhere() -> None:
    tried = {case[0] for case in (*BROKEN, *BROKEN_AMONG_OTHERS, *STRICTER)}
    assert law_names() == tried | {"patch-node", "relisted"}


def test_an_unknown_outcome_is_never_tried_again() -> None:
    run = play("a > b", "begin a token=5; fail a retryable=True token=5; begin a token=6", {"a": ONCE})
    assert {found.law for found in check(told(run), change(ev.NodeFailed, error=UNKNOWN))} == {"at-most-once"}


def test_a_log_that_breaks_a_law_is_reported() -> None:
    run = play("a > b", "end a")
    sound = run.kernel.events
    assert check_log(run.flow, sound) == []
    assert {found.law for found in check_log(run.flow, [*sound, *sound[-3:]])} >= {"attempts", "ended-once"}


def patched_to(new: Workflow, **more: Any) -> str:
    """The invariant that a log breaks first when its patch led to another graph than it says."""
    case = LOGS["patched"]()
    changed = change(ev.RunPatched, digest=new.digest, **more)(case.log)
    return check(Reason(case.flow, changed, {new.digest: new}))[0].law


@pytest.mark.parametrize(
    ("graph", "options", "more"),
    [
        ("a > b > c; a > d > c; e", {"a": {"config": {"value": 2}}}, {"changed": ("a",)}),
        ("a > b > c; a > d > c; e", {"b": {"config": {"value": 2}}}, {"changed": ("b",)}),
        ("a > b > c; a > d > c", {}, {"removed": ("e",), "consumed": 1, "counter": 2}),
    ],
    ids=["a finished node", "a live node", "a live node is removed"],
)
def test_what_has_happened_may_not_be_changed(graph: str, options: dict[str, Any], more: dict[str, Any]) -> None:
    assert patched_to(flow(graph, options), **more) == "patch-node"


def test_a_live_node_may_not_be_put_into_a_loop() -> None:
    new = flow("a > b > c; a > d; e", {"c": {"loop": loop(3, "b")}})
    assert patched_to(new, changed=("c",)) == "patch-node"


def test_no_edge_may_be_added_to_a_join_that_has_fired() -> None:
    assert patched_to(flow("a > b > c; a > d > c; e > b")) == "patch-join"


def test_edges_that_are_the_same_are_not_decided_anew() -> None:
    case = LOGS["patched"]()
    (patch,) = [event for event in case.log if isinstance(event, ev.RunPatched)]
    joins = (*patch.joins, ev.Join("b", (("a", True),), 1))
    assert check(case, change(ev.RunPatched, joins=joins))[0].law == "patch-join"


def test_items_that_have_begun_are_not_made_again_by_another_name() -> None:
    """Whoever completed as item 0 of the old list would complete once more as item 0 of the new one."""
    old = flow("m", {"m": {"map": {"over": [1, 2]}}})
    new = flow("m", {"m": {"map": {"over": [3, 4]}}})
    log: Log = [
        ev.RunCreated(workflow="table", version=1, digest=old.digest, inputs=b"{}", entries=("m",), counter=1),
        ev.NodeScheduled(node="m", visit=1, hop=1),
        ev.NodeExpanded(node="m", visit=1, count=2, items=b"[1,2]", window=2, token=1),
        ev.NodeScheduled(node="m", visit=1, index=0, until=2, hop=1),
        ev.NodeStarted(node="m", visit=1, index=0, attempt=1, token=2),
        ev.NodeCompleted(node="m", visit=1, index=0, attempt=1, output=b"1", token=2, counter=1),
        ev.NodeCancelled(node="m", visit=1, index=1, counter=1),
        ev.NodeCancelled(node="m", visit=1, consumed=1, counter=0),
        ev.RunCancelled(),
        ev.RunPatched(base=old.digest, digest=new.digest, revision=1, patch=b"[]", changed=("m",), relisted=("m",)),
        ev.RunRetried(nodes=(ev.Reopened("m", 1, 1),), emitted=1, counter=1),
        ev.NodeScheduled(node="m", visit=1, hop=1),
    ]
    assert [found.law for found in check(Reason(old, log, {new.digest: new}))] == ["relisted"]


def test_nothing_is_said_about_a_run_behind_a_graph_that_nobody_knows() -> None:
    """One violation says so; the rest of the log is counted and not judged."""
    case = LOGS["patched"]()
    checker = LogChecker(case.flow)
    for event in case.log:
        checker.take(event)
    assert [found.law for found in checker.finish()] == ["graph"]
    assert checker.seq == len(case.log)


def test_graphs_are_known_by_a_mapping_by_a_function_or_one_by_one() -> None:
    case = LOGS["patched"]()
    assert check_log(case.flow, case.log, case.graphs.get) == []
    (graph,) = case.graphs.values()
    told_later = LogChecker(case.flow)
    told_later.workflow = graph
    for checker in (LogChecker(case.flow, case.graphs), told_later):
        for event in case.log:
            checker.take(event)
        assert (checker.workflow, checker.finish()) == (graph, [])


def test_a_fork_of_a_fork_names_where_it_came_from_last() -> None:
    fork = play("a > b > c; e", FAILED).fork().fork()
    assert len(fork.of(ev.RunForked)) == 2
    assert check(told(fork)) == []


def test_what_may_stand_behind_the_end() -> None:
    case = LOGS["discarded"]()
    assert check(Reason(case.flow, [*case.log, LABELS, LATE], {})) == []


def test_whoever_patched_the_run_has_no_second_pair_of_eyes() -> None:
    case = LOGS["approved"]()
    changed = before(ev.ApprovalDecided, PATCHED)(case.log)
    assert check(Reason(case.flow, changed, {"": case.flow}))[-1].law == "four-eyes"


def test_a_role_may_be_anybodys() -> None:
    """Who has a role is not in the log."""
    assert check(asked("approve h zoe boss", approvers=("role:boss",))) == []


def test_waiting_goes_on_while_the_run_is_paused() -> None:
    assert check(LOGS["approved"](), before(ev.ApprovalDecided, ev.RunPaused())) == []


def test_who_waits_anew_waits_at_the_end_of_the_line() -> None:
    """The start of the present wait counts, not the first wait of the node."""
    case = LOGS["in_order"]()
    first, second = (place for place, event in enumerate(case.log) if isinstance(event, ev.NodeWaiting))
    moved = [*case.log[:first], *case.log[first + 1 : second + 1], case.log[first], *case.log[second + 1 :]]
    assert check(Reason(case.flow, moved, {}))[0].law == "signal-order"
