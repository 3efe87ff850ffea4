"""The checker of logs bites where operators act: retry, rewind, override, patch, fork, rollback, dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.kernel.changes import Case, Change, Log, Told, again, before, behind, change, check, drop, swap, told, until
from tests.kernel.tables import Run, choose, flow, loop
from tidemill.kernel.commands import (
    Cancel,
    CloseLetter,
    Done,
    Failed,
    Fork,
    Override,
    Patch,
    Retry,
    Rewind,
    Rollback,
    Undone,
)
from tidemill.kernel.events import (
    CompensationCompleted,
    CompensationFailed,
    CompensationScheduled,
    DeadLetterClosed,
    Error,
    Join,
    NodeCancelled,
    NodeCompleted,
    NodeExpanded,
    NodeOverridden,
    NodeScheduled,
    NodeStarted,
    NodeWaiting,
    Reopened,
    ResultDiscarded,
    RollbackFinished,
    RollbackStarted,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunForked,
    RunLabelled,
    RunPatched,
    RunRetried,
    RunRewound,
)
from tidemill.kernel.laws import LogChecker, check_log
from tidemill.kernel.model import Workflow

UNDO = {"compensator": {"type": "value", "retry": {"max_attempts": 2}}}
ONCE = {"delivery": "at_most_once"}


# Logs that are in order


def started(graph: str, nodes: dict[str, dict[str, Any]] | None = None, **top: Any) -> Run:
    run = Run(graph, nodes, **top)
    run.start()
    return run


def failed() -> Run:
    """`a` is done, `b` has failed, `c` with it, and `e` was cancelled."""
    run = started("a > b > c; e")
    run.done("a")
    run.fail("b")
    return run


def retried() -> Told:
    run = failed()
    run.do(Retry())
    run.end("b", "e", "c")
    return told(run)


def retried_map() -> Told:
    run = started("m", {"m": {"map": {"over": [1], "max_parallel": 2}}})
    run.expand("m", 4)
    run.done("m[1]")
    run.fail("m[0]")
    run.do(Retry())
    run.end("m[0]", "m[2]", "m[3]")
    run.assemble("m")
    return told(run)


def rendered_again() -> Told:
    run = started("a", outputs={"x": 1})
    run.done("a")
    run.render("boom")
    run.do(Retry())
    run.render()
    return told(run)


def unknown() -> Told:
    """Nobody knows whether `a` happened, until somebody is sure that it did not."""
    run = started("a", {"a": ONCE})
    run.begin("a", token=5)
    run.time_out("a", token=5)
    run.do(Retry(sure=("a",)))
    run.done("a", token=7)
    return told(run)


def cut_off() -> Told:
    """The run ended while `a` was at it, and nobody knows how far it came."""
    run = started("a e", {"a": ONCE})
    run.begin("a", token=5)
    run.fail("e", token=6)
    run.do(Retry(sure=("a",)))
    run.done("a", token=8)
    run.done("e", token=9)
    return told(run)


def rewound() -> Told:
    run = started("a > b > c; e > c")
    run.end("a", "b")
    run.do(Rewind(node="b"))
    run.end("b", "e", "c")
    return told(run)


def rewound_in_flight() -> Told:
    run = started("a > b > c")
    run.end("a", "b")
    run.do(Rewind(node="b"))
    run.end("b", "c")
    return told(run)


def rewound_loop() -> Told:
    run = started("a > b > z", {"b": {"loop": loop(9)}})
    run.done("a")
    run.done("b", again=True)
    run.done("b")
    run.do(Rewind(node="a"))
    run.end("a", "b", "z")
    return told(run)


def rewound_escape() -> Told:
    """An error path out of a loop died with the loop, and a rewind lets the loop go on."""
    run = started("a > b > c > z; e > x", {"a": {"on_error": {"route": ["x"]}}, "c": {"loop": loop(9, "a")}})
    run.end("a", "b", "c")
    run.do(Rewind(node="b"))
    run.end("b", "c", "z", "e", "x")
    return told(run)


def overridden() -> Told:
    run = started("a > b")
    run.do(Override(node="b", visit=0, output=b"1"))
    run.done("a")
    return told(run)


def overridden_wait() -> Told:
    run = started("a > b c", {"a": {"branch": choose("b", "c")}})
    run.wait("a")
    run.do(Override(node="a", visit=0, output=b"1"))
    run.done("a", "b", called=False)
    run.done("b")
    return told(run)


def overridden_early() -> Told:
    """No token has reached `b` when a value for its conditions is given by hand."""
    run = started("a > b > c", {"b": {"branch": choose("c")}})
    run.do(Override(node="b", visit=0, output=b"1"))
    run.done("b", "c", called=False)
    run.end("a", "c")
    return told(run)


def patched_by(run: Run, new: Workflow, **more: Any) -> None:
    run.do(Patch(base=run.kernel.state.digest, workflow=new, patch=b"[]", **more))


def patched() -> Told:
    run = started("a > b > c; e")
    old, new = run.flow, flow("a > b > c; a > d > c; e")
    run.done("a")
    patched_by(run, new)
    run.end("b", "d", "e", "c")
    return told(run, old, new)


def fixed() -> Told:
    """Fix and continue: what failed is changed, something is added and something is removed."""
    run = failed()
    old, new = run.flow, flow("a > b > d; e", {"b": {"config": {"value": 2}}})
    patched_by(run, new, retry=True)
    run.end("b", "e", "d")
    return told(run, old, new)


def forked(run: Run | None = None, until_: int | None = None, **more: Any) -> Told:
    other = run or failed()
    fork = Run(other.flow)
    fork.do(Fork(run="other", prefix=tuple(other.kernel.events[:until_]), **more))
    fork.end("b", "e", "c")
    return told(fork)


def forked_live() -> Told:
    """Its letter is the other run's, and so is the lease under which `b` runs."""
    run = started("a > b > c; e", {"a": {"on_error": "continue"}})
    run.fail("a")
    run.begin("b", token=9)
    return forked(run)


def undoing(graph: str = "a > b > c", bad: str = "c") -> Run:
    run = started(graph, dict.fromkeys("ab", UNDO))
    run.end("a", "b")
    run.fail(bad)
    run.do(Rollback())
    return run


def undo(run: Run, at: str, code: str = "", *, retryable: bool = False) -> None:
    outcome = Failed(error=Error(code, "", retryable=retryable)) if code else Done(output=b"null")
    run.do(Undone(node=at, visit=1, token=run.kernel.next_token(), outcome=outcome), f"undo/{at}/1/-1")


def undone() -> Told:
    run = undoing()
    undo(run, "b", "flaky", retryable=True)
    undo(run, "b")
    undo(run, "a")
    return told(run)


def partly_undone() -> Told:
    run = undoing()
    undo(run, "b", "boom")
    undo(run, "a")
    return told(run)


def stopped() -> Told:
    run = undoing()
    run.do(Cancel(force=True))
    return told(run)


def left_unknown() -> Told:
    run = started("a > b", {"a": UNDO, "b": {**UNDO, **ONCE}})
    run.done("a")
    run.begin("b", token=9)
    run.time_out("b", token=9)
    run.do(Rollback())
    undo(run, "a")
    return told(run)


def discarded() -> Told:
    run = failed()
    run.do(CloseLetter(node="b", visit=1))
    return told(run)


GOOD = [
    retried, retried_map, rendered_again, unknown, cut_off, rewound, rewound_in_flight, rewound_loop, rewound_escape,
    overridden, overridden_wait, overridden_early, patched, fixed, forked, forked_live, undone, partly_undone, stopped,
    left_unknown, discarded,
]  # fmt: skip


# Changes


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
    joins = next(event.joins for event in log if isinstance(event, RunPatched))
    return change(RunPatched, joins=(*joins, joins[-1]))(log)


LABELS = RunLabelled(labels={"a": "1"})
RETRY = RunRetried(nodes=(), emitted=0, counter=1)
FORKED = RunForked(run="other", at=3)
LATE = ResultDiscarded(node="a", visit=1, attempt=1, token=1, outcome="Done", reason="run_ended")
REWIND = RunRewound(node="b", nodes=(Reopened("b", 2, 1), Reopened("c", 2)), emitted=1, consumed=0, counter=1)
SETTLED = NodeOverridden(node="e", visit=1, status="COMPLETED", counter=1, consumed=1)

BROKEN: list[Case] = [
    # A run as a whole
    ("terminal", retried, drop(RunRetried)),
    ("terminal", retried, behind(RunFailed, NodeStarted(node="b", visit=1, attempt=2, token=99))),
    ("terminal", fixed, behind(RunPatched, LATE)),
    ("terminal", retried, behind(RunCompleted, RETRY)),
    ("reopened", fixed, until(RunPatched)),
    ("reopened", forked, until(RunForked)),
    # Retry
    ("retry-ended", retried, behind(NodeCompleted, RETRY)),
    ("retry-undone", retried, behind(RunFailed, RollbackStarted(steps=0))),
    ("retry-set", retried, change(RunRetried, nodes=(Reopened("b", 1, 1), Reopened("e", 1, 1)))),
    ("retry-set", retried, fields(RunRetried, "nodes", 1, node="a")),
    ("retry-visit", retried, fields(RunRetried, "nodes", 0, visit=2)),
    ("retry-tokens", retried, fields(RunRetried, "nodes", 0, tokens=2)),
    ("retry-tokens", retried, change(RunRetried, emitted=3)),
    ("counter", retried, change(RunRetried, counter=3)),
    ("attempts", retried, change(NodeStarted, 2, attempt=1)),
    ("fence", retried, change(NodeStarted, 2, token=1)),
    ("join-due", retried, until(DeadLetterClosed)),
    ("renders", rendered_again, change(RunRetried, renders=False)),
    ("at-most-once", unknown, change(RunRetried, sure=())),
    ("at-most-once", cut_off, change(RunRetried, sure=())),
    ("map-order", retried_map, change(NodeScheduled, 6, index=1)),
    ("map-order", retried_map, change(NodeScheduled, 5, until=2)),
    # Rewind
    ("terminal", discarded, behind(RunFailed, REWIND)),
    ("rewind-set", rewound, change(RunRewound, nodes=(Reopened("b", 2, 1),))),
    ("rewind-set", rewound, fields(RunRewound, "nodes", 0, node="a")),
    ("rewind-visit", rewound, fields(RunRewound, "nodes", 0, visit=1)),
    ("rewind-tokens", rewound, fields(RunRewound, "nodes", 1, tokens=1)),
    ("rewind-tokens", rewound, change(RunRewound, consumed=0)),
    ("rewind-tokens", rewound, change(RunRewound, emitted=0)),
    ("counter", rewound, change(RunRewound, counter=9)),
    ("rewind-busy", rewound_in_flight, drop(NodeCancelled)),
    ("rewind-loops", rewound_loop, change(RunRewound, restarted=())),
    ("rewind-escapes", rewound_loop, change(RunRewound, undecided=(("a", "b"),))),
    ("rewind-escapes", rewound_escape, change(RunRewound, undecided=())),
    ("node", rewound, change(RunRewound, node="nobody")),
    ("join-due", rewound, until(RunRewound)),
    # Override
    ("override", overridden, before(NodeStarted, NodeOverridden(node="a", visit=1, status="COMPLETED", counter=1))),
    ("override", overridden, change(NodeOverridden, status="FAILED")),
    ("override", overridden, change(NodeOverridden, index=0, consumed=0)),
    ("override", overridden_wait, drop(NodeWaiting)),
    ("ended-once", retried, behind(NodeCompleted, SETTLED, 2)),
    ("override-edges", overridden_wait, change(NodeOverridden, taken=("b",))),
    ("override-tokens", overridden_early, change(NodeOverridden, emitted=0, counter=1)),
    ("consumed", overridden, change(NodeCompleted, consumed=1, counter=1)),
    ("ended-once", overridden, again(NodeOverridden)),
    # Patch
    ("patch-base", patched, change(RunPatched, base="sha256:1")),
    ("patch-revision", patched, change(RunPatched, revision=2)),
    ("graph", patched, change(RunPatched, digest="sha256:1")),
    ("patch-set", patched, change(RunPatched, added=())),
    ("patch-set", fixed, change(RunPatched, removed=())),
    ("patch-set", fixed, change(RunPatched, changed=())),
    ("patch-join", patched, change(RunPatched, joins=())),
    ("patch-join", patched, fields(RunPatched, "joins", 0, edges=(("a", False),))),
    ("patch-join", patched, fields(RunPatched, "joins", 0, node="nobody")),
    ("patch-join", patched, fields(RunPatched, "joins", 1, own=True)),
    ("patch-join", patched, again_in_list),
    ("patch-tokens", patched, fields(RunPatched, "joins", 1, tokens=0)),
    ("patch-tokens", patched, change(RunPatched, emitted=3)),
    ("patch-tokens", patched, change(RunPatched, consumed=1)),
    ("counter", patched, change(RunPatched, counter=9)),
    # Fork
    ("fork", forked, change(RunCreated, forked_from=("other", 5))),
    ("fork", forked, change(RunCreated, forked_from=None)),
    ("fork", forked, change(RunForked, run="another")),
    ("fork", forked, change(RunForked, at=3)),
    ("fork", retried, behind(NodeStarted, FORKED)),
    ("letter-open", forked_live, behind(RunForked, DeadLetterClosed(node="a", visit=1, status="discarded"))),
    # Dead letters
    ("letter-open", discarded, again(DeadLetterClosed)),
    ("letter-open", discarded, change(DeadLetterClosed, index=0)),
    ("letter-open", discarded, change(DeadLetterClosed, status="lost")),
    ("letter-due", retried, drop(DeadLetterClosed)),
    # Rollback
    ("undoable", undone, change(NodeCompleted, undoable=False)),
    ("undoable", retried, change(NodeCompleted, undoable=True)),
    ("rollback", undone, before(RunFailed, RollbackStarted(steps=2))),
    ("rollback", undone, again(RollbackStarted)),
    ("rollback", undone, again(RollbackFinished)),
    ("rollback", undone, behind(RollbackFinished, RollbackStarted(steps=0))),
    ("rollback-steps", undone, change(RollbackStarted, steps=1)),
    ("rollback-unknown", left_unknown, change(RollbackStarted, unknown=())),
    ("rollback-unknown", undone, change(RollbackStarted, unknown=("c/1/-1",))),
    ("rollback-order", undone, swap(CompensationScheduled)),
    ("rollback-order", undone, change(CompensationScheduled, node="c")),
    ("rollback-of", undone, change(CompensationScheduled, of=1)),
    ("rollback-one", undone, drop(CompensationCompleted)),
    ("rollback-one", undone, drop(CompensationScheduled)),
    ("rollback-one", undone, change(CompensationCompleted, node="a")),
    ("rollback-left", undone, change(RollbackFinished, left=("a/1/-1",))),
    ("rollback-left", undone, change(RollbackFinished, status="partial")),
    ("rollback-left", partly_undone, change(RollbackFinished, status="done")),
    ("rollback-left", stopped, change(RollbackFinished, left=("a/1/-1",))),
    ("attempts", undone, change(CompensationCompleted, attempt=1)),
    ("fence", undone, change(CompensationCompleted, token=1)),
    ("retry", undone, change(CompensationFailed, error=Error("boom", ""))),
    ("retry-count", undone, again(CompensationFailed, attempt=2, token=0)),
]


@pytest.mark.parametrize("make", GOOD, ids=[make.__name__ for make in GOOD])
def test_a_log_that_is_in_order_breaks_no_law(make: Callable[[], Told]) -> None:
    assert check(make()) == []


@pytest.mark.parametrize("case", BROKEN, ids=[f"{number}-{case[0]}" for number, case in enumerate(BROKEN)])
def test_the_law_that_is_broken_is_named_first(case: Case) -> None:
    law, make, changed = case
    assert check(make(), changed)[0].law == law


# What a changed graph makes of a log


def patched_to(new: Workflow, *, log: Callable[[], Told] = patched, **more: Any) -> list[str]:
    """The laws that a log breaks when its patch led to another graph than it says."""
    case = log()
    graphs = {new.digest: new}
    return [
        found.law for found in check(Told(case.flow, change(RunPatched, digest=new.digest, **more)(case.log), graphs))
    ]


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
    assert patched_to(flow(graph, options), **more)[0] == "patch-node"


def test_a_live_node_may_not_be_put_into_a_loop() -> None:
    new = flow("a > b > c; a > d; e", {"c": {"loop": loop(3, "b")}})
    assert patched_to(new, changed=("c",))[0] == "patch-node"


def test_no_edge_may_be_added_to_a_join_that_has_fired() -> None:
    assert patched_to(flow("a > b > c; a > d > c; e > b"))[0] == "patch-join"


def test_edges_that_are_the_same_are_not_decided_anew() -> None:
    case = patched()
    joins = (*case.log[nth_patch(case)].joins, Join("b", (("a", True),), 1))  # type: ignore[union-attr]
    assert check(case, change(RunPatched, joins=joins))[0].law == "patch-join"


def nth_patch(case: Told) -> int:
    return next(place for place, event in enumerate(case.log) if isinstance(event, RunPatched))


def test_items_that_have_begun_are_not_made_again_by_another_name() -> None:
    """Whoever completed as item 0 of the old list would complete once more as item 0 of the new one."""
    old = flow("m", {"m": {"map": {"over": [1, 2]}}})
    new = flow("m", {"m": {"map": {"over": [3, 4]}}})
    log: Log = [
        RunCreated(workflow="table", version=1, digest=old.digest, inputs=b"{}", entries=("m",), counter=1),
        NodeScheduled(node="m", visit=1, hop=1),
        NodeExpanded(node="m", visit=1, count=2, items=b"[1,2]", window=2, token=1),
        NodeScheduled(node="m", visit=1, index=0, until=2, hop=1),
        NodeStarted(node="m", visit=1, index=0, attempt=1, token=2),
        NodeCompleted(node="m", visit=1, index=0, attempt=1, output=b"1", token=2, counter=1),
        NodeCancelled(node="m", visit=1, index=1, counter=1),
        NodeCancelled(node="m", visit=1, consumed=1, counter=0),
        RunCancelled(),
        RunPatched(base=old.digest, digest=new.digest, revision=1, patch=b"[]", changed=("m",), relisted=("m",)),
        RunRetried(nodes=(Reopened("m", 1, 1),), emitted=1, counter=1),
        NodeScheduled(node="m", visit=1, hop=1),
    ]
    assert [found.law for found in check(Told(old, log, {new.digest: new}))] == ["relisted"]


def test_nothing_is_said_about_a_run_behind_a_graph_that_nobody_knows() -> None:
    """One violation says so; the rest of the log is counted and not judged."""
    case = patched()
    checker = LogChecker(case.flow)
    for event in case.log:
        checker.take(event)
    assert [found.law for found in checker.finish()] == ["graph"]
    assert checker.seq == len(case.log)


def test_graphs_are_known_by_a_mapping_or_by_a_function() -> None:
    case = patched()
    assert check_log(case.flow, case.log, case.graphs.get) == []
    checker = LogChecker(case.flow, case.graphs)
    for event in case.log:
        checker.take(event)
    assert checker.workflow is next(iter(case.graphs.values()))


def test_a_fork_of_a_fork_names_where_it_came_from_last() -> None:
    first = forked_live()
    fork = Run(first.flow)
    fork.do(Fork(run="fork", prefix=tuple(first.log[:-1])))
    assert [event.run for event in fork.of(RunForked)] == ["other", "fork"]
    assert check(told(fork)) == []


def test_what_may_stand_behind_the_end() -> None:
    case = discarded()
    assert check(Told(case.flow, [*case.log, LABELS, LATE], {})) == []
