"""How facts about people, signals and children change the state."""

from __future__ import annotations

import msgspec

from tidemill.kernel.approval import folded
from tidemill.kernel.events import (
    ApprovalEscalated,
    ApprovalEvents,
    ApprovalRequested,
    BlobRef,
    ChildFinished,
    ChildStarted,
    NodeWaiting,
    SignalReceived,
)
from tidemill.kernel.state import Buffered, State, edit_at, notes, peek_at

SIGNAL_ID = "signal:"
"""What the id of a signal is remembered under, beside those of commands."""


def approval_changed(state: State, event: ApprovalEvents) -> None:
    """Any event of an approval; a new one also keeps the visit's time-out in step."""
    act = edit_at(state.edit(event.node), event.index)
    act.approval = folded(act.approval, event)
    if isinstance(event, ApprovalRequested):
        state.approvals += 1
        state.blobs += type(event.form) is BlobRef
    elif isinstance(event, ApprovalEscalated) and act.wait is not None:
        act.wait = msgspec.structs.replace(act.wait, expires_ms=event.expires_ms)


def signal_awaited(state: State, event: NodeWaiting) -> None:
    """Listen for a signal, behind those that do so already; or take one that was kept."""
    if event.signal:
        state.signals = tuple(kept for kept in state.signals if kept.signal != event.signal)
        return
    at, waiting = (event.node, event.visit, event.index), state.listening.get(event.name, ())
    if event.attempt > 1:
        # It listened before, without success: it has not waited since then.
        waiting = tuple(each for each in waiting if each != at)
    first = next((n for n, each in enumerate(waiting) if listens(state, event.name, each)), len(waiting))
    notes(state, "listening")[event.name] = (*waiting[first:], at)


def listens(state: State, name: str, at: tuple[str, int, int]) -> bool:
    """Whether an activation that began to wait for a signal still does."""
    node, visit, index = at
    cell = state.peek(node)
    act = peek_at(cell, index) if cell.visit == visit else None
    return act is not None and act.wait is not None and act.wait.on == "signal" and act.wait.name == name


def signal_received(state: State, event: SignalReceived) -> None:
    """Kept until somebody asks for it, unless somebody was waiting."""
    notes(state, "commands")[SIGNAL_ID + event.signal] = state.seq
    state.blobs += type(event.payload) is BlobRef
    waiting = state.listening.get(event.name, ())
    if event.node:
        taker = (event.node, event.visit, event.index)
        notes(state, "listening")[event.name] = waiting[waiting.index(taker) + 1 :] if taker in waiting else waiting
    else:
        if waiting:
            notes(state, "listening")[event.name] = ()
        state.signals = (*state.signals, Buffered(event.name, event.signal, event.payload, state.seq))


def child_started(state: State, event: ChildStarted) -> None:
    act = edit_at(state.edit(event.node), event.index)
    if act.wait is not None:
        act.wait = msgspec.structs.replace(act.wait, started=True)


def child_finished(state: State, event: ChildFinished) -> None:
    """What follows for the visit is said by the event behind this one."""
