"""What other runs and the outside world tell a run: signals, and what becomes of its children."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.errors import Problem
from tidemill.kernel.activation import Activation
from tidemill.kernel.commands import ChildBegan, ChildEnded, Signal
from tidemill.kernel.endings import ABANDON
from tidemill.kernel.events import NOT_AN_ITEM, ChildFinished, ChildStarted, Error, Payload, SignalReceived
from tidemill.kernel.fold_waits import listens
from tidemill.kernel.jobs import close_job
from tidemill.kernel.outcomes import fail_for_good
from tidemill.kernel.pen import Pen
from tidemill.kernel.reports import Facts
from tidemill.kernel.state import peek_at
from tidemill.kernel.waits import leave_wait, wait_over

SIGNALS_MAX = 1_000
"""Signals that a run keeps for nodes that have not asked for them yet."""

AGAIN = "again:"
"""What a child remembers the later attempts of its parent under, beside the ids of commands."""
COMPLETED = "COMPLETED"
CAUSES_MAX = 8
CHILD_FAILED = "child_failed"

NULL = b"null"


# Signals


def refuse_signal(pen: Pen, signal: Signal) -> Problem | None:
    """Why a signal cannot be taken or kept. A name is known from the document, or because a handler asked for it."""
    state = pen.state
    if not state.live:
        return Problem(code="run_ended", message=f"the run is {state.status}", hint="nobody is left to be told")
    known = pen.flow.signals
    if known is not None and signal.name not in known and state.listening.get(signal.name) is None:
        names = ", ".join(sorted(known)) or "none"
        return Problem(
            code="signal_unknown", message=f"no node waits for a signal {signal.name}", hint=f"signals: {names}"
        )
    if len(state.signals) >= SIGNALS_MAX and _taker(pen, signal.name) is None:
        message = f"the run keeps {SIGNALS_MAX} signals that nobody has taken"
        return Problem(code="signals_full", message=message, hint="wait until nodes have taken some")
    return None


def take_signal(pen: Pen, signal: Signal) -> None:
    """Hand a signal to the node that has waited longest for it, or keep it."""
    taker = _taker(pen, signal.name)
    node, visit, index = taker or ("", 0, NOT_AN_ITEM)
    pen.emit(
        SignalReceived(
            at_ms=pen.now,
            actor=pen.actor,
            command=pen.command,
            name=signal.name,
            signal=signal.signal,
            payload=signal.payload,
            node=node,
            visit=visit,
            index=index,
        )
    )
    if taker is not None:
        pen.cause = pen.state.seq
        wait_over(pen, pen.flow.by_id[node], index, signal.payload)


def _taker(pen: Pen, name: str) -> tuple[str, int, int] | None:
    """Who has waited longest for a signal; those that wait no more are passed over."""
    waiting: tuple[tuple[str, int, int], ...] = pen.state.listening.get(name, ())
    return next((at for at in waiting if listens(pen.state, name, at)), None)


# Children


def _waiting_for(pen: Pen, message: ChildBegan | ChildEnded) -> Activation | None:
    """The activation that waits for this very child."""
    cell = pen.state.peek(message.node)
    act = peek_at(cell, message.index) if cell.visit == message.visit else None
    if not pen.state.live or act is None or act.wait is None:
        return None
    if isinstance(message, ChildEnded) and message.status != COMPLETED and 0 < message.attempt < act.attempt:
        # How it ended for an attempt that is over says nothing about this one: it was asked again.
        return None
    return act if act.wait.on == "child" and act.wait.name == message.child else None


def served(commands: Mapping[str, int]) -> int:
    """Which attempt of its parent a child works for: the last one that has asked for it."""
    return max((int(name.removeprefix(AGAIN)) for name in commands if name.startswith(AGAIN)), default=1)


def child_began(pen: Pen, message: ChildBegan) -> None:
    """The child exists. If nobody waits for it by now, it is told so."""
    act = _waiting_for(pen, message)
    if act is None:
        if message.close != ABANDON:
            pen.put(close_job(message.node, message.visit, message.index, message.attempt))
    else:
        _note_start(pen, act, message)


def _note_start(pen: Pen, act: Activation, message: ChildBegan | ChildEnded) -> None:
    """Write down that the child exists, once; a child may have ended before anybody heard of it."""
    if act.wait is None or act.wait.started or not message.digest:
        return
    pen.emit(
        ChildStarted(
            at_ms=pen.now,
            node=message.node,
            visit=message.visit,
            index=message.index,
            child=message.child,
            workflow=message.workflow,
            version=message.version,
            digest=message.digest,
        )
    )


def child_ended(pen: Pen, message: ChildEnded) -> None:
    """The child has ended: its outputs are the visit's, its failure is the visit's failure."""
    act = _waiting_for(pen, message)
    if act is None:
        return
    node = pen.flow.by_id[message.node]
    _note_start(pen, act, message)
    pen.emit(
        ChildFinished(
            at_ms=pen.now,
            node=message.node,
            visit=message.visit,
            index=message.index,
            child=message.child,
            status=message.status,
            error=message.error,
        )
    )
    pen.cause = pen.state.seq
    if message.status == COMPLETED:
        output: Payload = NULL if message.output is None else message.output
        wait_over(pen, node, message.index, output)
        return
    leave_wait(pen, node, message.index)
    fail_for_good(pen, node, message.index, _child_error(message), Facts(cause=pen.cause))


def _child_error(message: ChildEnded) -> Error:
    error = message.error
    if error is None:
        return Error(CHILD_FAILED, f"child {message.child} is {message.status}")
    # A child that failed because of its own child has named it already: the story stays short in a large family.
    causes = tuple(dict.fromkeys((error.code, *error.causes)))[:CAUSES_MAX]
    said = error.message if error.code == CHILD_FAILED else f"child {message.child}: {error.message}"
    return Error(CHILD_FAILED, said, error.type, hint=error.hint, causes=causes)
