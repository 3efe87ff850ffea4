"""Fork: create a run that starts with the events of another one.

The prefix is copied as it is; the other run is never written to. Whatever was in flight there starts again here, with
effect keys of this run, and only this run compensates it. Any event may be the last of the prefix: consequences that
the same commit had drawn from it are drawn again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tidemill.errors import Problem
from tidemill.kernel import events
from tidemill.kernel.commands import Fork
from tidemill.kernel.decide.builder import DecisionBuilder
from tidemill.kernel.decide.operations import reopen, rewind_run, schedule
from tidemill.kernel.decide.patch import apply_patch
from tidemill.kernel.decide.patch import problems as patch_problems
from tidemill.kernel.decide.visits import item_over
from tidemill.kernel.events import AnyEvent
from tidemill.kernel.jobs import expected_jobs
from tidemill.kernel.state import State, find_activation, key_at


def refuse_fork(builder: DecisionBuilder, fork: Fork) -> Problem | None:
    if not fork.prefix or not isinstance(fork.prefix[0], events.RunCreated):
        return Problem(code="event_unknown", message="a fork begins with the other run's first event")
    if events.RunCompleted in map(type, fork.prefix):
        hint = "name a node to begin at, or an earlier event"
        return Problem(code="nothing_to_fork", message="the run is COMPLETED at this event", hint=hint)
    if fork.rewind and fork.rewind not in builder.flow.by_id:
        hint = f"nodes: {', '.join(list(builder.flow.by_id)[:20])}"
        return Problem(code="node_unknown", message=f"the workflow has no node {fork.rewind}", hint=hint)
    if fork.rewind and not _has_begun(_complete_prefix(fork.prefix), fork.rewind):
        message = f"node {fork.rewind} had not begun at this event"
        return Problem(code="node_not_begun", message=message, hint="fork at a later event")
    if fork.patch is None and not fork.undone:
        return None
    trial = DecisionBuilder(builder.flow, builder.state, builder.now)
    _copy_prefix(trial, fork)
    gone = [key for key in fork.undone if _shares(trial.state, key)]
    if gone:
        message = f"the run has undone what {', '.join(dict.fromkeys(key.rsplit('/', 2)[0] for key in gone))} did"
        hint = "begin at a node before that, or start a new run"
        return Problem(code="results_undone", message=message, hint=hint)
    if fork.patch is None:
        return None
    return next(patch_problems(trial.flow, trial.state, fork.patch), None)


def _shares(state: State, key: str) -> bool:
    act = find_activation(state, key)
    return act is not None and act.status == "COMPLETED"


def _has_begun(prefix: tuple[AnyEvent, ...], node: str) -> bool:
    """Whether a node's latest visit had started: its last event in the prefix decides."""
    for event in reversed(prefix):
        if isinstance(event, events.LoopContinued):
            if node in event.body:
                return False
        elif isinstance(event, events.NodeEvent):
            if event.node == node and not isinstance(
                event, (events.ResultDiscarded, events.DeadLettered, events.DeadLetterClosed)
            ):
                return True
        elif isinstance(event, (events.RunRetried, events.RunRewound)) and any(
            again.node == node for again in event.nodes
        ):
            return False
    return False


def shared_prefix(log: Sequence[AnyEvent], *, rewinds: bool) -> int:
    """How many events a fork copies by default: all, except the end of a completed run."""
    kinds: list[type] = list(map(type, log)) if rewinds else []
    return kinds.index(events.RunCompleted) if events.RunCompleted in kinds else len(log)


def undone(log: Iterable[AnyEvent]) -> Iterator[str]:
    for event in log:
        if isinstance(event, events.CompensationCompleted):
            yield key_at(event.node, event.visit, event.index)


def graph_after(prefix: Sequence[AnyEvent]) -> str:
    for event in reversed(prefix):
        if type(event) is events.RunPatched or type(event) is events.RunCreated:
            return event.digest
    return ""


def _complete_prefix(prefix: tuple[AnyEvent, ...]) -> tuple[AnyEvent, ...]:
    """The prefix without trailing events that are incomplete without their successors.

    These are a half-written end of the run, an answer that has not reached its waiting visit, and the end of a pass
    whose next pass has not started. What was settled for a rollback decided no edges, and concerns the other run alone.
    """
    length = _settled_for_rollback(prefix)
    while length > 1 and _ends_run(prefix, length - 1):
        length -= 1
    return prefix[: length - _needs_successor(prefix[length - 1])]


def _settled_for_rollback(prefix: tuple[AnyEvent, ...]) -> int:
    """The number of events before the first unknown outcome that was settled for a rollback; all, if none was."""
    rolled_back = False
    for number, event in enumerate(prefix):
        rolled_back = isinstance(event, events.RollbackStarted) or (rolled_back and type(event) is not events.RunForked)
        if rolled_back and isinstance(event, events.NodeOverridden):
            return number
    return len(prefix)


def _ends_run(prefix: tuple[AnyEvent, ...], at: int) -> bool:
    """Whether an event belongs to the end of a run or map, which takes several events."""
    event = prefix[at]
    if isinstance(event, events.DeadLettered):
        return _ends_run(prefix, at - 1)
    if isinstance(event, events.NodeFailed):
        return event.retry_at_ms is None and event.output is None
    return isinstance(event, events.NodeCancelled)


def _needs_successor(event: AnyEvent) -> bool:
    """Whether the next event completes this one and cannot be derived from it."""
    match event:
        case events.SignalReceived():
            return bool(event.node)
        case events.NodeWaiting():
            return bool(event.signal) or event.on == "human"
        case events.NodeCompleted():
            return event.route is not None and bool(event.route.again) and not event.taken
        case _:
            return isinstance(
                event, (events.ApprovalDecided, events.ApprovalReturned, events.ApprovalExpired, events.ChildFinished)
            )


def fork_run(builder: DecisionBuilder, fork: Fork) -> None:
    _copy_prefix(builder, fork)
    if fork.patch is not None:
        apply_patch(builder, fork.patch)
    for job in expected_jobs(builder.flow, builder.state):
        builder.add_job(job)
    # Draw the consequences of edges, items and passes that the prefix may lack.
    for node in builder.flow.nodes:
        visit = builder.state.peek(node.id)
        if visit.status == "RUNNING" and visit.map is not None:
            item_over(builder, node)
        elif visit.wait is not None and visit.wait.on == "loop":
            builder.loops.append(node.id)
    schedule(builder, builder.flow.by_id)


def _copy_prefix(builder: DecisionBuilder, fork: Fork) -> None:
    """Emit the copied events and those that adapt them to this run; schedules nothing."""
    prefix = _complete_prefix(fork.prefix)
    for event in _adapted(fork, prefix):
        builder.emit(event)
    deadline = None if builder.flow.limits.deadline_ms is None else builder.now + builder.flow.limits.deadline_ms
    fields = builder.command_fields
    builder.emit(events.RunForked(run=fork.run, at=len(prefix), deadline_at_ms=deadline, reason=fork.reason, **fields))
    builder.cause = builder.state.seq
    if not builder.state.live:
        # Unknown outcomes of the other run do not matter: the effect keys here are new.
        reopen(builder, fork.reason, tuple(builder.flow.by_id))
    if fork.rewind:
        rewind_run(builder, fork.rewind, fork.reason)


def _adapted(fork: Fork, prefix: tuple[AnyEvent, ...]) -> Iterator[AnyEvent]:
    """The copied events; the first is adapted to this run."""
    first = prefix[0]
    assert isinstance(first, events.RunCreated), "it was not refused"
    yield msgspec.structs.replace(
        first,
        inputs=first.inputs if fork.inputs is None else fork.inputs,
        labels=first.labels if fork.labels is None else fork.labels,
        submitted_by=fork.submitted_by or first.submitted_by,
        forked_from=(fork.run, len(prefix)),
        parent=None,
        close="",
        depth=0,
        root="",
        budget=None,
    )
    yield from prefix[1:]
