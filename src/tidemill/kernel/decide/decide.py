"""Decide, decide_all, dispatch; run commands (start, pause, cancel, repair …), timers, lost workers, requeue.

The one place where a command becomes facts.

`decide` is total and pure: for any workflow, state and command it returns a decision or a refusal, it never
raises, and it never changes the state it is given. The order of the day is always the same: is the command
known already, does it fit, write its facts, draw the consequences.

What a claimed job comes to that calls no handler: a timer that is due, a lost worker, a job to put back.

Acts on a run as a whole: start, pause, resume, cancel, relabel, repair, and the rendering of its outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import msgspec

from tidemill.errors import Problem, offered
from tidemill.kernel.activation import DISPATCHED, items_merged
from tidemill.kernel.commands import (
    AnyCommand,
    AttemptStarted,
    Cancel,
    Checkpoint,
    ChildBegan,
    ChildEnded,
    CloseDeadLetter,
    CompensationResult,
    CompensationWorkerLost,
    DeadlineReached,
    Decide,
    Delegate,
    Delivered,
    Done,
    Fork,
    OutputsRendered,
    Override,
    Patch,
    Pause,
    Relabel,
    Repair,
    RequeueJob,
    Result,
    Resume,
    Retry,
    Rewind,
    Rollback,
    Signal,
    Start,
    TimerFired,
    ToActivation,
    WaitExpired,
    WorkerLost,
)
from tidemill.kernel.decide import approvals, operations, patch, rollback, waits
from tidemill.kernel.decide import operations as acts
from tidemill.kernel.decide.attempts import take_begin, take_checkpoint, take_lost, take_result
from tidemill.kernel.decide.builder import Decision, DecisionBuilder
from tidemill.kernel.decide.completion import after_end, cancel_run, fail_run, unread
from tidemill.kernel.decide.fencing import attempt_status, phase_of
from tidemill.kernel.decide.fork import fork_run, refuse_fork
from tidemill.kernel.decide.rollback import stop_rollback
from tidemill.kernel.decide.routing import owns_job
from tidemill.kernel.decide.visits import make_ready, settle
from tidemill.kernel.decide.waits import served, wait_expired, wait_over
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
from tidemill.kernel.evolve_nodes import SIGNAL_ID
from tidemill.kernel.jobs import DISPATCHING, JobSpec, expected_jobs, key_of, run_job, system_job, wait_jobs
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.state import State, peek_at

NULL = b"null"


def on_worker_lost(pen: DecisionBuilder, lost: WorkerLost) -> None:
    """Earlier leases on a job expired."""
    status = attempt_status(pen.state, lost.node, lost.visit, lost.index, lost.token)
    if status == "current":
        take_lost(pen, pen.flow.by_id[lost.node], lost)


def on_timer(pen: DecisionBuilder, timer: TimerFired | WaitExpired) -> None:
    """A timer came due: it counts only while its visit still waits for it, and never before its time."""
    cell = pen.state.peek(timer.node)
    act = peek_at(cell, timer.index) if cell.visit == timer.visit else None
    if not pen.state.live or act is None or act.status != "WAITING" or act.wait is None:
        return
    node, wait = pen.flow.by_id[timer.node], act.wait
    due = wait.until_ms if isinstance(timer, TimerFired) else wait.expires_ms
    if due is None:
        return
    if due > pen.now:
        pen.add_job(
            system_job("wake" if isinstance(timer, TimerFired) else "expire", due, node.id, timer.visit, timer.index)
        )
        return
    pen.cause = pen.state.seq
    if isinstance(timer, TimerFired):
        wait_over(pen, node, timer.index, NULL)
    elif act.approval is not None and act.approval.status == "pending":
        approvals.timed_out(pen, node, timer.index)
    else:
        wait_expired(pen, node, timer.index)


def requeue(pen: DecisionBuilder, shelve: RequeueJob) -> None:
    """Put a job back that nobody may run now, if the state still calls for it; a paused run waits for its resume."""
    put = _expected_job(pen, shelve)
    if put is None:
        return
    if pen.state.status == "RUNNING" or (pen.state.busy and put.task.kind not in DISPATCHING):
        pen.add_job(put)


def _expected_job(pen: DecisionBuilder, shelve: RequeueJob) -> JobSpec | None:
    """The job as the state wants it, or None when nothing calls for it any more."""
    state = pen.state
    if shelve.kind == "outputs":
        return system_job("outputs") if state.rendering else None
    if shelve.kind == "deadline":
        return None if state.deadline_ms is None else system_job("deadline", state.deadline_ms)
    if shelve.kind == "undo":
        key = key_of("undo", shelve.node, shelve.visit, shelve.index)
        return next((put for put in expected_jobs(pen.flow, state) if put.key == key), None)
    cell, node = state.peek(shelve.node), pen.flow.by_id.get(shelve.node)
    act = peek_at(cell, shelve.index) if cell.visit == shelve.visit else None
    if act is None or node is None:
        return None
    if shelve.kind != "run":
        waits = wait_jobs(node.id, cell.visit, shelve.index, act)
        return next((put for put in waits if put.task.kind == shelve.kind), None)
    if act.status not in DISPATCHED or (act is cell and not owns_job(cell)):
        return None
    return run_job(node, cell.visit, shelve.index, act.retry_at_ms or 0)


def start_run(pen: DecisionBuilder, start: Start) -> None:
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
        pen.add_job(system_job("deadline", deadline))
    pen.cause = pen.state.seq
    for name in flow.entries:
        if pen.state.live:
            make_ready(pen, flow.by_id[name], pen.state.peek(name))


def pause_run(pen: DecisionBuilder, pause: Pause) -> None:
    """Dispatch nothing more."""
    if pen.state.status == "PAUSED" and pause.id is None:
        return
    # Attempts that already run are finished; back-offs are timers and stay.
    for put in list(expected_jobs(pen.flow, pen.state)):
        if put.task.kind in DISPATCHING and not put.ready_at_ms:
            pen.withdraw_job(put.key)
    pen.emit(RunPaused(at_ms=pen.now, actor=pause.actor, command=pause.id, reason=pause.reason))


def resume_run(pen: DecisionBuilder, resume: Resume) -> None:
    """Go on after a pause, with everything the state calls for."""
    if pen.state.status != "PAUSED" and resume.id is None:
        return
    pen.emit(RunResumed(at_ms=pen.now, actor=resume.actor, command=resume.id, reason=resume.reason))
    for put in expected_jobs(pen.flow, pen.state):
        pen.add_job(put)


def cancel(pen: DecisionBuilder, cancel: Cancel) -> None:
    """End the run, or stop its rollback. A child that a later attempt has asked for goes on."""
    if cancel.attempt and served(items_merged(pen.state.commands)) > cancel.attempt:
        return
    if pen.state.live:
        cancel_run(pen, cancel.reason, compensate=cancel.compensate)
    elif pen.state.rollback == "running":
        stop_rollback(pen)


def relabel(pen: DecisionBuilder, relabel: Relabel) -> None:
    """Change what the run can be found by."""
    labels = {name: text for name, text in pen.state.labels.items() if name not in relabel.remove} | relabel.labels
    if labels != pen.state.labels or relabel.id is not None:
        pen.emit(RunLabelled(at_ms=pen.now, actor=pen.actor, command=pen.command, labels=labels))


def repair(pen: DecisionBuilder, repair: Repair) -> None:
    """Put right what the audit found, as far as the state still agrees with it."""
    if repair.seq and repair.seq != pen.state.seq:
        return
    expected = {put.key: put for put in expected_jobs(pen.flow, pen.state)}
    restored = [expected[key] for key in repair.missing if key in expected]
    dropped = [key for key in repair.surplus if key not in expected]
    for put in restored:
        pen.add_job(put)
    for key in dropped:
        pen.remove_job(key)
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


def rendered(pen: DecisionBuilder, rendered: OutputsRendered) -> None:
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
        pen.remove_job(key_of("deadline"))
    automatic = pen.flow.compensate == "automatic" and pen.state.status == "FAILED"
    after_end(pen, compensate=automatic)


def decide(flow: Workflow, state: State, command: AnyCommand, now_ms: int) -> Decision | Problem:
    """What follows from one command."""
    decision, problems = decide_all(flow, state, (command,), now_ms)
    return problems[0] or decision


def decide_all(
    flow: Workflow, state: State, commands: Sequence[AnyCommand], now_ms: int
) -> tuple[Decision, list[Problem | None]]:
    """What follows from several commands, decided one after another and committed together.

    A command that is refused leaves no trace and does not touch the others.
    """
    pen = DecisionBuilder(flow, state, now_ms)
    problems = [_take(pen, command) for command in commands]
    return pen.decision(), problems


def _take(pen: DecisionBuilder, command: AnyCommand) -> Problem | None:
    if _known(pen.state, command):
        return None
    problem = _refusal(pen, command)
    if problem is None:
        pen.begin_command(command)
        _carry_out(pen, command)
        settle(pen)
    return problem


def _known(state: State, command: AnyCommand) -> bool:
    """Whether a command was carried out before: then it is answered like the first time, and changes nothing."""
    if command.id is not None and state.commands.get(command.id) is not None:
        return True
    return isinstance(command, Signal) and state.commands.get(SIGNAL_ID + command.signal) is not None


def _refusal(pen: DecisionBuilder, command: AnyCommand) -> Problem | None:
    """Why a command cannot be carried out, before anything is written."""
    if type(command) is Result and pen.state.seq and command.node in pen.flow.by_id:
        # By far the most frequent command: whether it still counts is looked at when it is taken.
        return None
    if not pen.state.seq:
        if isinstance(command, Fork):
            return refuse_fork(pen, command)
        if isinstance(command, Start):
            return None
        return _problem("run_unknown", "there is no such run", "see `tidemill runs list`")
    if isinstance(command, (Start, Fork)):
        return _problem("run_exists", "the run was started already", "use another id for another run")
    if isinstance(command, ToActivation):
        return _activation_refusal(pen, command)
    return _run_refusal(pen, command)


def _activation_refusal(pen: DecisionBuilder, command: ToActivation) -> Problem | None:
    if isinstance(command, (RequeueJob, CompensationResult, CompensationWorkerLost, ChildBegan, ChildEnded)):
        # A patch may have removed the node since; these say something all the same, or nothing.
        return None
    if isinstance(command, CloseDeadLetter):
        return acts.refuse_closing(pen, command)
    if command.node not in pen.flow.by_id:
        hint = offered(command.node, pen.flow.by_id)
        return _problem("node_unknown", f"the workflow has no node {command.node}", hint)
    if isinstance(command, (AttemptStarted, Checkpoint)):
        return _stale(pen, command)
    if isinstance(command, (Decide, Delegate)):
        return approvals.reject_reason(pen, command)
    return operations.refuse_override(pen, command) if isinstance(command, Override) else None


def _run_refusal(pen: DecisionBuilder, command: AnyCommand) -> Problem | None:
    state = pen.state
    match command:
        case Pause() | Resume() if not state.live:
            return _problem("run_ended", f"the run is {state.status}", "start a new run")
        case Cancel():
            return _refuse_cancel(state, command)
        case Signal():
            return waits.refuse_signal(pen, command)
        case Retry():
            return acts.refuse_reopening(pen, command.confirmed_not_done)
        case Rewind():
            return acts.refuse_rewind(pen, command)
        case Patch():
            return patch.refusal(pen, command)
        case Rollback():
            return rollback.refuse_rollback(pen)
        case _:
            return None


def _refuse_cancel(state: State, cancel: Cancel) -> Problem | None:
    if state.rollback == "running":
        hint = "force it: what is not undone yet then stays as it is"
        return None if cancel.force else _problem("rollback_running", "the run is being rolled back", hint)
    if state.status in ("COMPLETED", "FAILED"):
        return _problem("run_ended", f"the run is {state.status}", "there is nothing left to cancel")
    return None


def _stale(pen: DecisionBuilder, command: AttemptStarted | Checkpoint) -> Problem | None:
    """Why an attempt may not go on."""
    node = pen.flow.by_id[command.node]
    status = attempt_status(pen.state, command.node, command.visit, command.index, command.token)
    if status == "current" and phase_of(node, pen.state.peek(command.node), command.index) != "call":
        return _problem("attempt_stale", "no handler is called at this point of the visit", "stop working on it")
    if status == "current" and _announced(node, pen.state, command):
        status = "stale"
    if status == "current":
        return None
    return _problem("attempt_stale", f"the attempt no longer counts: {status}", "stop working on it")


def _announced(node: Node, state: State, command: AttemptStarted | Checkpoint) -> bool:
    """Whether an at-most-once attempt has begun under another lease, so that nobody may begin it again."""
    act = peek_at(state.peek(node.id), command.index)
    return node.delivery == "at_most_once" and act is not None and act.running and act.token != command.token


def _problem(code: str, message: str, hint: str) -> Problem:
    return Problem(code=code, message=message, hint=hint)


def _carry_out(pen: DecisionBuilder, command: AnyCommand) -> None:
    match command:
        case Result():
            take_result(pen, pen.flow.by_id[command.node], command)
        case AttemptStarted():
            take_begin(pen, command)
        case WorkerLost():
            on_worker_lost(pen, command)
        case Checkpoint():
            take_checkpoint(pen, command)
        case TimerFired() | WaitExpired():
            on_timer(pen, command)
        case RequeueJob():
            requeue(pen, command)
        case OutputsRendered():
            rendered(pen, command)
        case Start():
            start_run(pen, command)
        case Cancel():
            cancel(pen, command)
        case Pause():
            pause_run(pen, command)
        case Resume():
            resume_run(pen, command)
        case DeadlineReached():
            if pen.state.live:
                fail_run(pen, "", 0, Error("deadline_exceeded", "the run's deadline has passed"))
        case Repair():
            repair(pen, command)
        case Relabel():
            relabel(pen, command)
        case Delivered():
            pass
        case _:
            _carry_out_further(pen, command)


def _carry_out_further(
    pen: DecisionBuilder,
    command: Decide
    | Delegate
    | Signal
    | ChildBegan
    | ChildEnded
    | Retry
    | Rewind
    | Override
    | Patch
    | Fork
    | Rollback
    | CompensationResult
    | CompensationWorkerLost
    | CloseDeadLetter,
) -> None:
    """What people and other runs ask for, which is rare beside what workers report."""
    match command:
        case Decide():
            approvals.apply_decision(pen, pen.flow.by_id[command.node], command)
        case Delegate():
            approvals.take_delegation(pen, pen.flow.by_id[command.node], command)
        case Signal():
            waits.take_signal(pen, command)
        case ChildBegan():
            waits.child_began(pen, command)
        case ChildEnded():
            waits.child_ended(pen, command)
        case Retry():
            acts.retry_run(pen, command)
        case Rewind():
            acts.schedule(pen, acts.rewind_run(pen, command.node, command.reason))
        case Override():
            operations.override(pen, command)
        case Patch():
            acts.schedule(pen, patch.apply_patch(pen, command))
        case Fork():
            fork_run(pen, command)
        case Rollback():
            rollback.start_rollback(pen, command.reason)
        case CompensationResult():
            rollback.take_undone(pen, command)
        case CompensationWorkerLost():
            rollback.take_undo_lost(pen, command)
        case CloseDeadLetter():
            acts.discard_letter(pen, command)
        case _ as never:
            assert_never(never)
