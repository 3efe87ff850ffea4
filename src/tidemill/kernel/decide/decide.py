"""Turn commands into decisions: the entry point of the kernel's rules.

`decide` is total and pure: for any workflow, state and command it returns a decision or a refusal, never raises,
and never changes the state it is given. Every command takes the same steps: recognise a repeated id, check for a
reason to refuse, emit its events, `settle` the consequences. A refused command emits nothing.

Also here: commands to a run as a whole, and jobs that call no handler (timers, lost workers, requeued jobs).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import repeat
from typing import Any

import msgspec

from tidemill.errors import Problem, offered
from tidemill.kernel import commands, events
from tidemill.kernel.activation import DISPATCHED, items_merged
from tidemill.kernel.commands import AnyCommand
from tidemill.kernel.decide import approvals, operations, patch, rollback, waits
from tidemill.kernel.decide.attempts import (
    Began,
    begin,
    refuse_append,
    take_append,
    take_checkpoint,
    take_lost,
    take_result,
)
from tidemill.kernel.decide.builder import Decision, DecisionBuilder, problem
from tidemill.kernel.decide.completion import after_end, cancel_run, fail_run, unread
from tidemill.kernel.decide.edges_and_joins import owns_job
from tidemill.kernel.decide.fencing import attempt_status, phase_of
from tidemill.kernel.decide.fork import fork_run, refuse_fork
from tidemill.kernel.decide.visits import delay_over, make_ready, settle
from tidemill.kernel.decide.waits import NULL, served, wait_expired, wait_over
from tidemill.kernel.evolve_nodes import SIGNAL_ID
from tidemill.kernel.jobs import DISPATCHING, JobKind, JobSpec, expected_jobs, key_of, run_job, system_job, wait_jobs
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.state import State, peek_at


def decide(
    flow: Workflow, state: State, command: AnyCommand, now_ms: int, claimed: Container[str] = ()
) -> Decision | Problem:
    decision, problems = decide_all(flow, state, (command,), now_ms, claimed)
    return problems[0] or decision


def decide_all(
    flow: Workflow, state: State, commands: Sequence[AnyCommand], now_ms: int, claimed: Container[str] = ()
) -> tuple[Decision, list[Problem | None]]:
    """Decide several commands in order, for one commit. A refused command does not affect the others.

    `claimed` are keys of jobs that are not idle; the commit must require that those of `Work.idle` are.
    """
    builder = DecisionBuilder(flow, state, now_ms, claimed)
    problems = list(map(_take, repeat(builder), commands))
    return builder.decision(), problems


def _take(builder: DecisionBuilder, command: AnyCommand) -> Problem | None:
    state, nodes = builder.state, builder.flow.by_id
    if not (type(command) is commands.Result and command.id is None and state.seq and command.node in nodes):
        if _known(state, command):
            return None
        refusal = _refusal(builder, command)
        if refusal is not None:
            return refusal
    # A result, the most frequent command by far, needs no look: `take_result` checks whether it still counts.
    builder.actor, builder.command, builder.cause = command.actor, command.id, 0
    _RULES[type(command)](builder, command)
    settle(builder)
    return None


def _known(state: State, command: AnyCommand) -> bool:
    """Whether the command was carried out before; the repetition succeeds and changes nothing."""
    if command.id is not None and state.commands.get(command.id) is not None:
        return True
    return isinstance(command, commands.Signal) and state.commands.get(SIGNAL_ID + command.signal) is not None


def _refusal(builder: DecisionBuilder, command: AnyCommand) -> Problem | None:
    if not builder.state.seq:
        if isinstance(command, commands.Fork):
            return refuse_fork(builder, command)
        if isinstance(command, commands.Start):
            return None
        return problem("run_unknown", "there is no such run", "see `tidemill runs list`")
    if isinstance(command, (commands.Start, commands.Fork)):
        return problem("run_exists", "the run was started already", "use another id for another run")
    if isinstance(command, commands.ToActivation):
        return _activation_refusal(builder, command)
    return _run_refusal(builder, command)


_FOR_REMOVED_NODES = (
    *(commands.RequeueJob, commands.CompensationResult, commands.CompensationWorkerLost),
    *(commands.ChildBegan, commands.ChildEnded),
)
"""Commands that stay valid, or are ignored later, when a patch has removed the node."""


def _activation_refusal(builder: DecisionBuilder, command: commands.ToActivation) -> Problem | None:
    if isinstance(command, _FOR_REMOVED_NODES):
        return None
    if isinstance(command, commands.CloseDeadLetter):
        return operations.refuse_closing(builder, command)
    if command.node not in builder.flow.by_id:
        hint = offered(command.node, builder.flow.by_id)
        return problem("node_unknown", f"the workflow has no node {command.node}", hint)
    if isinstance(command, (commands.AttemptStarted, commands.Checkpoint)):
        return _stale(builder, command)
    if isinstance(command, commands.Append):
        return _stale(builder, command) or refuse_append(builder, command)
    if isinstance(command, (commands.Decide, commands.Delegate)):
        return approvals.reject_reason(builder, command)
    return operations.refuse_override(builder, command) if isinstance(command, commands.Override) else None


def _run_refusal(builder: DecisionBuilder, command: AnyCommand) -> Problem | None:
    state = builder.state
    match command:
        case commands.Pause() | commands.Resume() if not state.live:
            return problem("run_ended", f"the run is {state.status}", operations.how_to_continue(state))
        case commands.Cancel():
            if state.rollback == "running":
                hint = "force it: what is not undone yet then stays as it is"
                return None if command.force else problem("rollback_running", "the run is being rolled back", hint)
            if state.status in ("COMPLETED", "FAILED"):
                return problem("run_ended", f"the run is {state.status}", "there is nothing left to cancel")
            return None
        case commands.Signal():
            return waits.refuse_signal(builder, command)
        case commands.Retry():
            return operations.refuse_reopening(builder, command.confirmed_not_done)
        case commands.Rewind():
            return operations.refuse_rewind(builder, command)
        case commands.Patch():
            return patch.refusal(builder, command)
        case commands.Rollback():
            return rollback.refuse_rollback(builder)
        case _:
            return None


def _stale(builder: DecisionBuilder, command: Began) -> Problem | None:
    node = builder.flow.by_id[command.node]
    status = attempt_status(builder.state, command.node, command.visit, command.index, command.token)
    if status == "current" and phase_of(node, builder.state.peek(command.node), command.index) != "call":
        return problem("attempt_stale", "no handler is called at this point of the visit", "stop working on it")
    if status == "current" and _announced(node, builder.state, command):
        status = "stale"
    if status == "current":
        return None
    return problem("attempt_stale", f"the attempt no longer counts: {status}", "stop working on it")


def _announced(node: Node, state: State, command: Began) -> bool:
    """Whether an at-most-once attempt was started under another lease, so that it must not start again."""
    act = peek_at(state.peek(node.id), command.index)
    return node.delivery == "at_most_once" and act is not None and act.running and act.token != command.token


def start_run(builder: DecisionBuilder, start: commands.Start) -> None:
    flow = builder.flow
    allowed = [each for each in (flow.limits.deadline_ms, start.deadline_ms) if each is not None]
    deadline = builder.now + min(allowed) if allowed else None
    created = events.RunCreated(
        at_ms=builder.now,
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
        created = msgspec.structs.replace(
            created, parent=start.parent, close=start.close, depth=start.depth, root=start.root, budget=start.budget
        )
    builder.emit(created)
    if deadline is not None:
        builder.add_job(system_job("deadline", deadline))
    builder.cause = builder.state.seq
    for name in flow.entries:
        if builder.state.live:
            make_ready(builder, flow.by_id[name], builder.state.peek(name))


def pause_run(builder: DecisionBuilder, pause: commands.Pause) -> None:
    """Withdraw queued jobs. Running attempts finish; back-offs are timers and stay."""
    if builder.state.status == "PAUSED" and pause.id is None:
        return
    for job in list(expected_jobs(builder.flow, builder.state)):
        if job.task.kind in DISPATCHING and not job.ready_at_ms:
            builder.withdraw_job(job.key)
    builder.emit(events.RunPaused(at_ms=builder.now, actor=pause.actor, command=pause.id, reason=pause.reason))


def resume_run(builder: DecisionBuilder, resume: commands.Resume) -> None:
    """End a pause and add every job that the state needs."""
    if builder.state.status != "PAUSED" and resume.id is None:
        return
    builder.emit(events.RunResumed(at_ms=builder.now, actor=resume.actor, command=resume.id, reason=resume.reason))
    for job in expected_jobs(builder.flow, builder.state):
        builder.add_job(job)


def cancel(builder: DecisionBuilder, cancel: commands.Cancel) -> None:
    """End the run, or stop its rollback. A child that a later attempt of its parent requested continues."""
    if cancel.attempt and served(items_merged(builder.state.commands)) > cancel.attempt:
        return
    if builder.state.live:
        cancel_run(builder, cancel.reason, compensate=cancel.compensate)
    elif builder.state.rollback == "running":
        rollback.stop_rollback(builder)


def relabel(builder: DecisionBuilder, relabel: commands.Relabel) -> None:
    labels = {name: text for name, text in builder.state.labels.items() if name not in relabel.remove} | relabel.labels
    if labels != builder.state.labels or relabel.id is not None:
        builder.emit(events.RunLabelled(labels=labels, **builder.command_fields))


def repair(builder: DecisionBuilder, repair: commands.Repair) -> None:
    """Add missing and remove surplus jobs that the reconciler found, where the state still agrees."""
    if repair.seq and repair.seq != builder.state.seq:
        return
    expected = {job.key: job for job in expected_jobs(builder.flow, builder.state)}
    restored = [expected[key] for key in repair.missing if key in expected]
    dropped = [key for key in repair.surplus if key not in expected]
    for job in restored:
        builder.add_job(job)
    for key in dropped:
        builder.remove_job(key)
    if not builder.state.live or not (restored or dropped):
        # The log of an ended run is closed: its surplus jobs are removed without an event.
        return
    keys = tuple(job.key for job in restored)
    builder.emit(
        events.RunRepaired(reason=repair.reason, restored=keys, dropped=tuple(dropped), **builder.command_fields)
    )


def rendered(builder: DecisionBuilder, rendered: commands.OutputsRendered) -> None:
    if not builder.state.rendering:
        return
    outcome, state = rendered.outcome, builder.state
    end: dict[str, Any] = {"at_ms": builder.now, "cause": state.seq, "consumed": 1, "unread": unread(builder)}
    if isinstance(outcome, commands.Done):
        builder.emit(events.RunCompleted(outputs=outcome.output, tolerated=state.tolerated, **end))
    else:
        cause = outcome.error
        error = events.Error("outputs_failed", cause.message, cause.type, hint=cause.hint, causes=(cause.code,))
        builder.emit(events.RunFailed(node="", visit=0, error=error, **end))
    if builder.state.deadline_ms is not None:
        builder.remove_job(key_of("deadline"))
    after_end(builder, compensate=builder.flow.compensate == "automatic" and builder.state.status == "FAILED")


def on_timer(builder: DecisionBuilder, timer: commands.TimerFired | commands.WaitExpired) -> None:
    """End a wait whose timer is due. Ignore a timer that its visit no longer waits for; requeue an early one."""
    visit = builder.state.peek(timer.node)
    act = peek_at(visit, timer.index) if visit.visit == timer.visit else None
    if not builder.state.live or act is None or act.status != "WAITING" or act.wait is None:
        return
    node, wait = builder.flow.by_id[timer.node], act.wait
    due = wait.until_ms if isinstance(timer, commands.TimerFired) else wait.expires_ms
    if due is None:
        return
    if due > builder.now:
        kind: JobKind = "wake" if isinstance(timer, commands.TimerFired) else "expire"
        builder.add_job(system_job(kind, due, node.id, timer.visit, timer.index))
        return
    builder.cause = builder.state.seq
    if isinstance(timer, commands.TimerFired) and wait.on == "loop":
        delay_over(builder, node)
    elif isinstance(timer, commands.TimerFired):
        wait_over(builder, node, timer.index, NULL)
    elif act.approval is not None and act.approval.status == "pending":
        approvals.timed_out(builder, node, timer.index)
    else:
        wait_expired(builder, node, timer.index)


def requeue(builder: DecisionBuilder, command: commands.RequeueJob) -> None:
    """Put back a claimed job that must not run now, if the state still needs it; a paused run gets it on resume."""
    job = _expected_job(builder, command)
    if job is None:
        return
    if builder.state.status == "RUNNING" or (builder.state.busy and job.task.kind not in DISPATCHING):
        builder.add_job(job)


def _expected_job(builder: DecisionBuilder, command: commands.RequeueJob) -> JobSpec | None:
    state = builder.state
    if command.kind == "outputs":
        return system_job("outputs") if state.rendering else None
    if command.kind == "deadline":
        return None if state.deadline_ms is None else system_job("deadline", state.deadline_ms)
    if command.kind == "undo":
        key = key_of("undo", command.node, command.visit, command.index)
        return next((job for job in expected_jobs(builder.flow, state) if job.key == key), None)
    visit, node = state.peek(command.node), builder.flow.by_id.get(command.node)
    act = peek_at(visit, command.index) if visit.visit == command.visit else None
    if act is None or node is None:
        return None
    if command.kind != "run":
        wait_specs = wait_jobs(node.id, visit.visit, command.index, act)
        return next((job for job in wait_specs if job.task.kind == command.kind), None)
    if act.status not in DISPATCHED or (act is visit and not owns_job(visit)):
        return None
    return run_job(node, visit.visit, command.index, act.retry_at_ms or 0)


def deadline_reached(builder: DecisionBuilder, _: commands.DeadlineReached) -> None:
    if builder.state.live:
        fail_run(builder, "", 0, events.Error("deadline_exceeded", "the run's deadline has passed"))


_RULES: dict[type[AnyCommand], Callable[[DecisionBuilder, Any], None]] = {
    commands.Result: take_result,
    commands.AttemptStarted: begin,
    commands.WorkerLost: take_lost,
    commands.Checkpoint: take_checkpoint,
    commands.Append: take_append,
    commands.TimerFired: on_timer,
    commands.WaitExpired: on_timer,
    commands.RequeueJob: requeue,
    commands.OutputsRendered: rendered,
    commands.Start: start_run,
    commands.Cancel: cancel,
    commands.Pause: pause_run,
    commands.Resume: resume_run,
    commands.DeadlineReached: deadline_reached,
    commands.Repair: repair,
    commands.Relabel: relabel,
    commands.Delivered: lambda builder, command: None,
    commands.Decide: approvals.apply_decision,
    commands.Delegate: approvals.take_delegation,
    commands.Signal: waits.take_signal,
    commands.ChildBegan: waits.child_began,
    commands.ChildEnded: waits.child_ended,
    commands.Retry: lambda builder, command: operations.schedule(
        builder, operations.reopen(builder, command.reason, command.confirmed_not_done)
    ),
    commands.Rewind: lambda builder, command: operations.schedule(
        builder, operations.rewind_run(builder, command.node, command.reason)
    ),
    commands.Override: operations.override,
    commands.Patch: lambda builder, command: operations.schedule(builder, patch.apply_patch(builder, command)),
    commands.Fork: fork_run,
    commands.Rollback: lambda builder, command: rollback.start_rollback(builder, command.reason),
    commands.CompensationResult: rollback.take_compensation_result,
    commands.CompensationWorkerLost: rollback.take_compensation_lost,
    commands.CloseDeadLetter: operations.discard_letter,
}
"""One rule per command; `test_totality` decides a command of every kind."""
