"""The one place where a command becomes facts.

`decide` is total and pure: for any workflow, state and command it returns a decision or a refusal, it never
raises, and it never changes the state it is given. The order of the day is always the same: is the command
known already, does it fit, write its facts, draw the consequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from tidemill.errors import Problem, offered
from tidemill.kernel import claims, control, deciding, messages, overriding, patching, undoing
from tidemill.kernel import reopening as acts
from tidemill.kernel.attempts import take_begin, take_checkpoint, take_result
from tidemill.kernel.commands import (
    AnyCommand,
    Begin,
    Cancel,
    Checkpoint,
    ChildBegan,
    ChildEnded,
    CloseLetter,
    DeadlineReached,
    Decide,
    Delegate,
    Delivered,
    Expire,
    Fork,
    Lost,
    Override,
    Patch,
    Pause,
    Relabel,
    Rendered,
    Repair,
    Result,
    Resume,
    Retry,
    Rewind,
    Rollback,
    Shelve,
    Signal,
    Start,
    ToActivation,
    UndoLost,
    Undone,
    Wake,
)
from tidemill.kernel.endings import fail_run
from tidemill.kernel.events import (
    Error,
)
from tidemill.kernel.fold_waits import SIGNAL_ID
from tidemill.kernel.forking import fork_run, refuse_fork
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.pen import Decision, Pen
from tidemill.kernel.standing import phase_of, standing
from tidemill.kernel.state import State, peek_at
from tidemill.kernel.visits import settle


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
    if _known(pen.state, command):
        return None
    problem = _refusal(pen, command)
    if problem is None:
        pen.take_up(command)
        _carry_out(pen, command)
        settle(pen)
    return problem


def _known(state: State, command: AnyCommand) -> bool:
    """Whether a command was carried out before: then it is answered like the first time, and changes nothing."""
    if command.id is not None and state.commands.get(command.id) is not None:
        return True
    return isinstance(command, Signal) and state.commands.get(SIGNAL_ID + command.signal) is not None


def _refusal(pen: Pen, command: AnyCommand) -> Problem | None:
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


def _activation_refusal(pen: Pen, command: ToActivation) -> Problem | None:
    if isinstance(command, (Shelve, Undone, UndoLost, ChildBegan, ChildEnded)):
        # A patch may have removed the node since; these say something all the same, or nothing.
        return None
    if isinstance(command, CloseLetter):
        return acts.refuse_closing(pen, command)
    if command.node not in pen.flow.by_id:
        hint = offered(command.node, pen.flow.by_id)
        return _problem("node_unknown", f"the workflow has no node {command.node}", hint)
    if isinstance(command, (Begin, Checkpoint)):
        return _stale(pen, command)
    if isinstance(command, (Decide, Delegate)):
        return deciding.refusal(pen, command)
    return overriding.refuse_override(pen, command) if isinstance(command, Override) else None


def _run_refusal(pen: Pen, command: AnyCommand) -> Problem | None:
    state = pen.state
    match command:
        case Pause() | Resume() if not state.live:
            return _problem("run_ended", f"the run is {state.status}", "start a new run")
        case Cancel():
            return _refuse_cancel(state, command)
        case Signal():
            return messages.refuse_signal(pen, command)
        case Retry():
            return acts.refuse_reopening(pen, command.sure)
        case Rewind():
            return acts.refuse_rewind(pen, command)
        case Patch():
            return patching.refusal(pen, command)
        case Rollback():
            return undoing.refuse_rollback(pen)
        case _:
            return None


def _refuse_cancel(state: State, cancel: Cancel) -> Problem | None:
    if state.rollback == "running":
        hint = "force it: what is not undone yet then stays as it is"
        return None if cancel.force else _problem("rollback_running", "the run is being rolled back", hint)
    if state.status in ("COMPLETED", "FAILED"):
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


def _problem(code: str, message: str, hint: str) -> Problem:
    return Problem(code=code, message=message, hint=hint)


def _carry_out(pen: Pen, command: AnyCommand) -> None:
    match command:
        case Result():
            take_result(pen, pen.flow.by_id[command.node], command)
        case Begin():
            take_begin(pen, command)
        case Lost():
            claims.worker_lost(pen, command)
        case Checkpoint():
            take_checkpoint(pen, command)
        case Wake() | Expire():
            claims.timer_due(pen, command)
        case Shelve():
            claims.shelve(pen, command)
        case Rendered():
            control.rendered(pen, command)
        case Start():
            control.start_run(pen, command)
        case Cancel():
            control.cancel(pen, command)
        case Pause():
            control.pause_run(pen, command)
        case Resume():
            control.resume_run(pen, command)
        case DeadlineReached():
            if pen.state.live:
                fail_run(pen, "", 0, Error("deadline_exceeded", "the run's deadline has passed"))
        case Repair():
            control.repair(pen, command)
        case Relabel():
            control.relabel(pen, command)
        case Delivered():
            pass
        case _:
            _carry_out_further(pen, command)


def _carry_out_further(
    pen: Pen,
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
    | Undone
    | UndoLost
    | CloseLetter,
) -> None:
    """What people and other runs ask for, which is rare beside what workers report."""
    match command:
        case Decide():
            deciding.take_decision(pen, pen.flow.by_id[command.node], command)
        case Delegate():
            deciding.take_delegation(pen, pen.flow.by_id[command.node], command)
        case Signal():
            messages.take_signal(pen, command)
        case ChildBegan():
            messages.child_began(pen, command)
        case ChildEnded():
            messages.child_ended(pen, command)
        case Retry():
            acts.retry_run(pen, command)
        case Rewind():
            acts.schedule(pen, acts.rewind_run(pen, command.node, command.reason))
        case Override():
            overriding.override(pen, command)
        case Patch():
            acts.schedule(pen, patching.apply_patch(pen, command))
        case Fork():
            fork_run(pen, command)
        case Rollback():
            undoing.start_rollback(pen, command.reason)
        case Undone():
            undoing.take_undone(pen, command)
        case UndoLost():
            undoing.take_undo_lost(pen, command)
        case CloseLetter():
            acts.discard_letter(pen, command)
        case _ as never:
            assert_never(never)
