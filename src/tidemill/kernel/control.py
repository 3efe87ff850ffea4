"""Acts on a run as a whole: start, pause, resume, cancel, relabel, repair, and the rendering of its outputs."""

from __future__ import annotations

import msgspec

from tidemill.kernel.commands import Cancel, Done, Pause, Relabel, Rendered, Repair, Resume, Start
from tidemill.kernel.endings import after_end, cancel_run, unread
from tidemill.kernel.events import (
    Error,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunLabelled,
    RunPaused,
    RunRepaired,
    RunResumed,
)
from tidemill.kernel.jobs import DISPATCHING, expected_jobs, key_of, system_job
from tidemill.kernel.layers import everything
from tidemill.kernel.messages import served
from tidemill.kernel.pen import Pen
from tidemill.kernel.undoing import stop_rollback
from tidemill.kernel.visits import make_ready


def start_run(pen: Pen, start: Start) -> None:
    """Create the run and give every entry node its token."""
    flow = pen.flow
    deadline = None if flow.limits.deadline_ms is None else pen.now + flow.limits.deadline_ms
    created = RunCreated(
        at_ms=pen.now,
        actor=start.actor,
        command=start.id,
        workflow=flow.name,
        version=start.version,
        digest=start.digest,
        inputs=start.inputs,
        entries=flow.entries,
        counter=len(flow.entries),
        submitted_by=start.submitted_by,
        labels=start.labels,
        correlation_id=start.correlation_id,
        trace=start.trace,
        tag_used=start.tag_used,
        deadline_at_ms=deadline,
    )
    if start.parent is not None:
        created = msgspec.structs.replace(created, parent=start.parent, close=start.close, depth=start.depth)
    pen.emit(created)
    if deadline is not None:
        pen.put(system_job("deadline", deadline))
    pen.cause = pen.state.seq
    for name in flow.entries:
        if pen.state.live:
            make_ready(pen, flow.by_id[name], pen.state.peek(name))


def pause_run(pen: Pen, pause: Pause) -> None:
    """Dispatch nothing more."""
    if pen.state.status == "PAUSED" and pause.id is None:
        return
    # Attempts that already run are finished; back-offs are timers and stay.
    for put in list(expected_jobs(pen.flow, pen.state)):
        if put.task.kind in DISPATCHING and not put.ready_at_ms:
            pen.withdraw(put.key)
    pen.emit(RunPaused(at_ms=pen.now, actor=pause.actor, command=pause.id, reason=pause.reason))


def resume_run(pen: Pen, resume: Resume) -> None:
    """Go on after a pause, with everything the state calls for."""
    if pen.state.status != "PAUSED" and resume.id is None:
        return
    pen.emit(RunResumed(at_ms=pen.now, actor=resume.actor, command=resume.id, reason=resume.reason))
    for put in expected_jobs(pen.flow, pen.state):
        pen.put(put)


def cancel(pen: Pen, cancel: Cancel) -> None:
    """End the run, or stop its rollback. A child that a later attempt has asked for goes on."""
    if cancel.attempt and served(everything(pen.state.commands)) > cancel.attempt:
        return
    if pen.state.live:
        cancel_run(pen, cancel.reason, compensate=cancel.compensate)
    elif pen.state.rollback == "running":
        stop_rollback(pen)


def relabel(pen: Pen, relabel: Relabel) -> None:
    """Change what the run can be found by."""
    labels = {name: text for name, text in pen.state.labels.items() if name not in relabel.remove} | relabel.labels
    if labels != pen.state.labels or relabel.id is not None:
        pen.emit(RunLabelled(at_ms=pen.now, actor=pen.actor, command=pen.command, labels=labels))


def repair(pen: Pen, repair: Repair) -> None:
    """Put right what the audit found, as far as the state still agrees with it."""
    if repair.seq and repair.seq != pen.state.seq:
        return
    expected = {put.key: put for put in expected_jobs(pen.flow, pen.state)}
    restored = [expected[key] for key in repair.missing if key in expected]
    dropped = [key for key in repair.surplus if key not in expected]
    for put in restored:
        pen.put(put)
    for key in dropped:
        pen.drop(key)
    if not pen.state.live or not (restored or dropped):
        # What is left over from a run that has ended is removed without a word: its log is closed.
        return
    pen.emit(
        RunRepaired(
            at_ms=pen.now,
            actor=repair.actor,
            command=repair.id,
            reason=repair.reason,
            restored=tuple(put.key for put in restored),
            dropped=tuple(dropped),
        )
    )


def rendered(pen: Pen, rendered: Rendered) -> None:
    """The outputs are there, or never will be."""
    if not pen.state.rendering:
        return
    outcome = rendered.outcome
    if isinstance(outcome, Done):
        pen.emit(
            RunCompleted(
                at_ms=pen.now,
                cause=pen.state.seq,
                outputs=outcome.output,
                consumed=1,
                tolerated=pen.state.tolerated,
                unread=unread(pen),
            )
        )
    else:
        error = Error("outputs_failed", outcome.error.message, outcome.error.type, causes=(outcome.error.code,))
        pen.emit(
            RunFailed(at_ms=pen.now, cause=pen.state.seq, node="", visit=0, error=error, consumed=1, unread=unread(pen))
        )
    if pen.state.deadline_ms is not None:
        pen.drop(key_of("deadline"))
    automatic = pen.flow.compensate == "automatic" and pen.state.status == "FAILED"
    after_end(pen, compensate=automatic)
