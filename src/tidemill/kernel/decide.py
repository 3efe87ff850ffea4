"""The one place where a command becomes facts.

`decide` is total and pure: for any workflow, state and command it returns a decision or a refusal, it never
raises, and it never changes the state it is given. The order of the day is always the same: is the command
known already, does it fit, write its facts, draw the consequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import msgspec

from tidemill.errors import Problem
from tidemill.kernel.attempts import (
    take_begin,
    take_checkpoint,
    take_lost,
    take_result,
    wait_expired,
    wait_over,
)
from tidemill.kernel.commands import (
    AnyCommand,
    Begin,
    Cancel,
    Checkpoint,
    DeadlineReached,
    Done,
    Expire,
    Lost,
    Pause,
    Rendered,
    Repair,
    Result,
    Resume,
    Shelve,
    Start,
    ToActivation,
    Wake,
)
from tidemill.kernel.endings import cancel_run, fail_run
from tidemill.kernel.events import (
    Error,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunPaused,
    RunRepaired,
    RunResumed,
)
from tidemill.kernel.jobs import DISPATCHING, Put, expected_jobs, key_of, run_job, system_job, wait_job
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.pen import Decision, Pen
from tidemill.kernel.routing import owns_job
from tidemill.kernel.standing import phase_of, standing
from tidemill.kernel.state import DISPATCHED, State, peek_at
from tidemill.kernel.visits import make_ready, settle

NULL = b"null"


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
    pen = Pen(flow, state, now_ms)
    problems = [_take(pen, command) for command in commands]
    return pen.decision(), problems


def _take(pen: Pen, command: AnyCommand) -> Problem | None:
    if command.id is not None and command.id in pen.state.commands:
        return None
    problem = _refusal(pen, command)
    if problem is None:
        pen.take_up(command)
        _carry_out(pen, command)
        settle(pen)
    return problem


def _refusal(pen: Pen, command: AnyCommand) -> Problem | None:
    """Why a command cannot be carried out, before anything is written."""
    state = pen.state
    if not state.seq:
        return None if isinstance(command, Start) else _problem("run_unknown", "there is no such run", "start it first")
    if isinstance(command, ToActivation):
        if command.node not in pen.flow.by_id and not isinstance(command, Shelve):
            return _problem("node_unknown", f"the workflow has no node {command.node}")
        if isinstance(command, (Begin, Checkpoint)):
            return _stale(pen, command)
    elif isinstance(command, Start):
        return _problem("run_exists", "the run was started already")
    elif isinstance(command, (Pause, Resume)) and not state.live:
        return _problem("run_ended", f"the run is {state.status}", "start a new run")
    elif isinstance(command, Cancel) and state.status in ("COMPLETED", "FAILED"):
        return _problem("run_ended", f"the run is {state.status}", "there is nothing left to cancel")
    return None


def _stale(pen: Pen, command: Begin | Checkpoint) -> Problem | None:
    """Why an attempt may not go on."""
    node = pen.flow.by_id[command.node]
    status = standing(pen.state, command.node, command.visit, command.index, command.token)
    if status == "current" and phase_of(node, pen.state.peek(command.node), command.index) != "call":
        return _problem("attempt_stale", "no handler is called at this point of the visit", "stop working on it")
    if status == "current" and _announced(node, pen.state, command):
        status = "stale"
    if status == "current":
        return None
    return _problem("attempt_stale", f"the attempt no longer counts: {status}", "stop working on it")


def _announced(node: Node, state: State, command: Begin | Checkpoint) -> bool:
    """Whether an at-most-once attempt has begun under another lease, so that nobody may begin it again."""
    act = peek_at(state.peek(node.id), command.index)
    return node.delivery == "at_most_once" and act is not None and act.running and act.token != command.token


def _problem(code: str, message: str, hint: str = "") -> Problem:
    return Problem(code=code, message=message, hint=hint)


def _carry_out(pen: Pen, command: AnyCommand) -> None:
    match command:
        case Result():
            take_result(pen, pen.flow.by_id[command.node], command)
        case Begin():
            take_begin(pen, command)
        case Lost():
            _lost(pen, command)
        case Checkpoint():
            take_checkpoint(pen, command)
        case Wake() | Expire():
            _timer(pen, command)
        case Shelve():
            _shelve(pen, command)
        case Rendered():
            _rendered(pen, command)
        case Start():
            _start(pen, command)
        case Cancel():
            if pen.state.live:
                cancel_run(pen, command.reason)
        case Pause():
            _pause(pen, command)
        case Resume():
            _resume(pen, command)
        case DeadlineReached():
            if pen.state.live:
                fail_run(pen, "", 0, Error("deadline_exceeded", "the run's deadline has passed"))
        case Repair():
            _repair(pen, command)
        case _ as never:
            assert_never(never)


def _start(pen: Pen, start: Start) -> None:
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
    pen.emit(created if start.parent is None else msgspec.structs.replace(created, parent=start.parent))
    if deadline is not None:
        pen.put(system_job("deadline", deadline))
    pen.cause = pen.state.seq
    for name in flow.entries:
        if pen.state.live:
            make_ready(pen, flow.by_id[name], pen.state.peek(name))


def _pause(pen: Pen, pause: Pause) -> None:
    if pen.state.status == "PAUSED" and pause.id is None:
        return
    # Attempts that already run are finished; back-offs are timers and stay.
    for put in list(expected_jobs(pen.flow, pen.state)):
        if put.task.kind in DISPATCHING and not put.ready_at_ms:
            pen.withdraw(put.key)
    pen.emit(RunPaused(at_ms=pen.now, actor=pause.actor, command=pause.id, reason=pause.reason))


def _resume(pen: Pen, resume: Resume) -> None:
    if pen.state.status != "PAUSED" and resume.id is None:
        return
    pen.emit(RunResumed(at_ms=pen.now, actor=resume.actor, command=resume.id, reason=resume.reason))
    for put in expected_jobs(pen.flow, pen.state):
        pen.put(put)


def _repair(pen: Pen, repair: Repair) -> None:
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


def _lost(pen: Pen, lost: Lost) -> None:
    status = standing(pen.state, lost.node, lost.visit, lost.index, lost.token)
    if status == "current":
        take_lost(pen, pen.flow.by_id[lost.node], lost)


def _timer(pen: Pen, timer: Wake | Expire) -> None:
    """A timer came due: it counts only while its visit still waits for it."""
    cell = pen.state.peek(timer.node)
    act = peek_at(cell, timer.index) if cell.visit == timer.visit else None
    if not pen.state.live or act is None or act.status != "WAITING" or act.wait is None:
        return
    node = pen.flow.by_id[timer.node]
    pen.cause = pen.state.seq
    if isinstance(timer, Expire) and act.wait.on != "loop":
        wait_expired(pen, node, timer.index)
    elif isinstance(timer, Wake) and act.wait.until_ms is not None:
        wait_over(pen, node, timer.index, NULL)


def _shelve(pen: Pen, shelve: Shelve) -> None:
    """Put a job back that nobody may run now, if the state still calls for it; a paused run waits for its resume."""
    put = _called_for(pen, shelve)
    if put is not None and (pen.state.status == "RUNNING" or (pen.state.live and put.task.kind not in DISPATCHING)):
        pen.put(put)


def _called_for(pen: Pen, shelve: Shelve) -> Put | None:
    """The job as the state wants it, or None when nothing calls for it any more."""
    state = pen.state
    if shelve.kind == "outputs":
        return system_job("outputs") if state.rendering else None
    if shelve.kind == "deadline":
        return None if state.deadline_ms is None else system_job("deadline", state.deadline_ms)
    cell, node = state.peek(shelve.node), pen.flow.by_id.get(shelve.node)
    act = peek_at(cell, shelve.index) if cell.visit == shelve.visit else None
    if act is None or node is None:
        return None
    if shelve.kind != "run":
        return wait_job(node.id, cell.visit, shelve.index, act)
    if act.status not in DISPATCHED or (act is cell and not owns_job(cell)):
        return None
    return run_job(node, cell.visit, shelve.index, act.retry_at_ms or 0)


def _rendered(pen: Pen, rendered: Rendered) -> None:
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
            )
        )
    else:
        error = Error("outputs_failed", outcome.error.message, outcome.error.type, causes=(outcome.error.code,))
        pen.emit(RunFailed(at_ms=pen.now, cause=pen.state.seq, node="", visit=0, error=error, consumed=1))
    if pen.state.deadline_ms is not None:
        pen.drop(key_of("deadline"))
