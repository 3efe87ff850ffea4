"""Fork: a run of its own that begins with what another one has done.

The first events are taken over as they are, under the new run's name; nothing is ever written to the other run.
What was under way there begins anew here, with effect keys of its own, and is undone, if it ever has to be, by
this run alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from tidemill.errors import Problem
from tidemill.kernel.commands import Fork
from tidemill.kernel.events import AnyEvent, RunCompleted, RunCreated, RunForked
from tidemill.kernel.evolve import replay
from tidemill.kernel.jobs import expected_jobs
from tidemill.kernel.patching import apply_patch
from tidemill.kernel.patching import problems as patch_problems
from tidemill.kernel.pen import Pen
from tidemill.kernel.reopening import reopen, rewind_run, schedule
from tidemill.kernel.state import ENDED


def refuse_fork(pen: Pen, fork: Fork) -> Problem | None:
    """Why no run can be branched off like this."""
    if not fork.prefix or not isinstance(fork.prefix[0], RunCreated):
        return Problem(code="event_unknown", message="a fork begins with the other run's first event")
    if any(isinstance(event, RunCompleted) for event in fork.prefix):
        hint = "name a node to begin at, or an earlier event"
        return Problem(code="nothing_to_fork", message="the run is COMPLETED at this event", hint=hint)
    if fork.rewind:
        problem = _refuse_beginning(pen, fork)
        if problem is not None:
            return problem
    if fork.patch is None:
        return None
    trial = Pen(pen.flow, pen.state, pen.now)
    _take_over(trial, fork)
    return next(patch_problems(trial.flow, trial.state, fork.patch), None)


def _refuse_beginning(pen: Pen, fork: Fork) -> Problem | None:
    if fork.rewind not in pen.flow.by_id:
        return Problem(code="node_unknown", message=f"the workflow has no node {fork.rewind}")
    cell = replay(fork.prefix).peek(fork.rewind)
    if not cell.fired and cell.status not in ENDED:
        return Problem(code="node_not_begun", message=f"node {fork.rewind} had not begun at this event")
    return None


def shared_prefix(events: Sequence[AnyEvent], *, rewinds: bool) -> int:
    """How many events a fork takes over when nobody says: all, but for the end of a run that completed."""
    ends = (number for number, event in enumerate(events) if isinstance(event, RunCompleted))
    return next(ends, len(events)) if rewinds else len(events)


def fork_run(pen: Pen, fork: Fork) -> None:
    """Take over the prefix, and go on from it."""
    begin = _take_over(pen, fork)
    if fork.patch is not None:
        begin |= dict.fromkeys(apply_patch(pen, fork.patch))
    for put in expected_jobs(pen.flow, pen.state):
        pen.put(put)
    schedule(pen, begin)


def _take_over(pen: Pen, fork: Fork) -> dict[str, None]:
    """Write the shared events and what makes them this run's own; answers the nodes that are to begin."""
    for event in _renamed(fork):
        pen.emit(event)
    deadline = None if pen.flow.limits.deadline_ms is None else pen.now + pen.flow.limits.deadline_ms
    pen.emit(
        RunForked(
            at_ms=pen.now,
            actor=pen.actor,
            command=pen.command,
            run=fork.run,
            at=len(fork.prefix),
            deadline_at_ms=deadline,
            reason=fork.reason,
        )
    )
    pen.cause = pen.state.seq
    begin: dict[str, None] = {}
    if not pen.state.live:
        # What nobody knows about the other run's effects is no question here: these are effects of its own.
        begin |= dict.fromkeys(reopen(pen, fork.reason, tuple(pen.flow.by_id)))
    if fork.rewind:
        begin |= dict.fromkeys(rewind_run(pen, fork.rewind, fork.reason))
    return begin


def _renamed(fork: Fork) -> Iterator[AnyEvent]:
    """The shared events; the first says whose they are now."""
    first = fork.prefix[0]
    assert isinstance(first, RunCreated), "it was not refused"
    yield msgspec.structs.replace(
        first,
        inputs=first.inputs if fork.inputs is None else fork.inputs,
        labels=first.labels if fork.labels is None else fork.labels,
        submitted_by=fork.submitted_by or first.submitted_by,
        forked_from=(fork.run, len(fork.prefix)),
        parent=None,
        close="",
        depth=0,
    )
    yield from fork.prefix[1:]
