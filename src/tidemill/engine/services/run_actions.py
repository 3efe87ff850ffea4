"""Actions on a run: pause, cancel, retry, rewind, override, roll back, relabel, signal.

Each action is one command: executed as a whole, or refused with a reason and no trace. With a `command_id` it may be
repeated without harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from tidemill.engine.services.context import ServiceContext, at_index, check_node
from tidemill.engine.validation import check_labels, check_place, check_words
from tidemill.errors import Problem, Rejected, rejected
from tidemill.kernel import events
from tidemill.kernel.commands import (
    AnyCommand,
    Cancel,
    Override,
    Pause,
    Relabel,
    Resume,
    Retry,
    Rewind,
    Rollback,
    Signal,
)
from tidemill.kernel.decide.builder import Decision
from tidemill.kernel.decide.decide import decide
from tidemill.kernel.decide.operations import running_once, unknown_outcomes

NAME_LENGTH_MAX = 200
EVENTS_SHOWN_MAX = 100

ActionName = Literal["cancel", "override", "pause", "resume", "retry", "rewind", "rollback"]


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """What an action would do to a run now."""

    seq: int
    """The last event of the run that was looked at."""
    status: str
    """Of the run right afterwards."""
    again: tuple[str, ...]
    """Nodes that run again, or for the first time."""
    cancelled: tuple[str, ...]
    """Nodes that are under way, and are cancelled."""
    skipped: tuple[str, ...]
    undone: tuple[str, ...]
    """What is compensated, as node/visit/index, in this order."""
    unsure: tuple[str, ...]
    """Nodes with an unknown outcome: it is refused until `did_not_happen` names them, or they are settled manually."""
    events: tuple[str, ...]
    """The types of the events that are recorded at once: the first of them."""
    event_count: int


UNSET: Any = object()
"""No value was given; None is one."""

_REHEARSED: dict[str, type[Cancel | Pause | Resume | Retry | Rollback]] = {
    kind.__name__.lower(): kind for kind in (Cancel, Pause, Resume, Retry, Rollback)
}


class RunActions:
    """The methods of `RunService` that change an existing run."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def signal(
        self, run_id: str, name: str, payload: Any = None, *, signal_id: str | None = None, actor: str = ""
    ) -> str:
        """Send a signal to a run: the first node that waits for `name` takes it, else the run keeps it for a later one.

        Returns the signal's id; a second signal with the same id changes nothing.
        """
        sent = signal_id if signal_id is not None else self._context.ambient.new_id()
        check_words(limit=NAME_LENGTH_MAX, name=name, signal_id=sent)
        if not name or not sent:
            hint = "give it the name that a node waits for"
            raise rejected("signal_invalid", "a signal has a name and an id", path="/name", hint=hint)
        packed = await self._context.packed(
            payload, code="payload_not_json", path="/payload", bytes_max=self._context.input_bytes_max
        )
        await self._context.command(run_id, Signal(actor=actor or None, name=name, signal=sent, payload=packed))
        return sent

    # Operator actions

    async def has_effect(self, action: str, run_id: str) -> bool:
        """Whether `cancel`, `pause`, `resume`, `retry` or `rollback` would change the run now, or raise its refusal."""
        if action == "retry":
            await self._context.check_parent(run_id)
        return bool((await self._context.rehearse(run_id, _REHEARSED[action]())).events)

    async def status_of(self, run_id: str) -> tuple[str, str]:
        """The workflow and the status of a run."""
        state = (await self._context.entry(run_id)).state
        return state.workflow, state.status

    async def cancel(
        self,
        run_id: str,
        *,
        reason: str = "",
        actor: str = "",
        compensate: bool | None = None,
        force: bool = False,
        command_id: str | None = None,
    ) -> None:
        """Cancel the run: running handlers are cancelled, late results discarded. `force` also stops a rollback."""
        cancel = Cancel(id=command_id, reason=reason, actor=actor or None, compensate=compensate, force=force)
        await self._context.command(run_id, cancel, reason=reason)

    async def pause(self, run_id: str, *, reason: str = "", actor: str = "", command_id: str | None = None) -> None:
        """Pause the run: start no new nodes until `resume`; running attempts may finish."""
        await self._context.command(run_id, Pause(id=command_id, reason=reason, actor=actor or None), reason=reason)

    async def resume(self, run_id: str, *, reason: str = "", actor: str = "", command_id: str | None = None) -> None:
        """Resume after a pause."""
        await self._context.command(run_id, Resume(id=command_id, reason=reason, actor=actor or None), reason=reason)

    async def retry(
        self,
        run_id: str,
        *,
        reason: str = "",
        actor: str = "",
        did_not_happen: Sequence[str] = (),
        command_id: str | None = None,
    ) -> None:
        """Retry a FAILED or CANCELLED run from where it stopped; completed nodes keep their results.

        `did_not_happen` names nodes whose outcome is unknown and of which you know that it did not happen.
        """
        await self._context.check_parent(run_id)
        retry = Retry(id=command_id, reason=reason, actor=actor or None, confirmed_not_done=tuple(did_not_happen))
        await self._context.command(run_id, retry, reason=reason)

    async def rewind(
        self,
        run_id: str,
        node: str,
        *,
        reason: str = "",
        actor: str = "",
        did_not_happen: Sequence[str] = (),
        command_id: str | None = None,
    ) -> None:
        """Run a node of an unfinished run, and everything downstream of it, again."""
        sure = tuple(did_not_happen)
        rewind = Rewind(id=command_id, node=node, reason=reason, actor=actor or None, confirmed_not_done=sure)
        await self._context.command(run_id, rewind, reason=reason)

    async def override(
        self,
        run_id: str,
        node: str,
        *,
        value: Any = UNSET,
        skip: bool = False,
        visit: int | None = None,
        index: int | None = None,
        next_nodes: Sequence[str] | None = None,
        reason: str = "",
        actor: str = "",
        command_id: str | None = None,
    ) -> None:
        """Settle a node that has not completed manually: give it a value, or skip it."""
        if skip is (value is not UNSET):
            raise rejected("override_unclear", "either give a value or skip the node", path="/value")
        output = None if skip else await self._context.packed(value, code="value_not_json", path="/value")
        override = Override(
            id=command_id,
            actor=actor or None,
            node=node,
            visit=visit or 0,
            index=at_index(index),
            output=output,
            size=0 if output is None else len(output) if isinstance(output, bytes) else output.size,
            next_nodes=None if next_nodes is None else tuple(next_nodes),
            reason=reason,
        )
        await self._context.command(run_id, override, reason=reason)

    async def rollback(self, run_id: str, *, reason: str = "", actor: str = "", command_id: str | None = None) -> None:
        """Roll back an ended run: run the compensators of its nodes in reverse order."""
        await self._context.command(run_id, Rollback(id=command_id, reason=reason, actor=actor or None), reason=reason)

    async def rehearse(
        self,
        run_id: str,
        action: ActionName,
        *,
        node: str = "",
        visit: int | None = None,
        index: int | None = None,
        skip: bool = False,
        next_nodes: Sequence[str] | None = None,
        compensate: bool | None = None,
        force: bool = False,
        did_not_happen: Sequence[str] = (),
    ) -> Rehearsal:
        """What an action would do now; nothing changes. Raises Rejected with what it would be refused with."""
        check_place(visit, index)
        if action == "retry":
            await self._context.check_parent(run_id)
        entry = await self._context.entry(run_id)
        flow, state = entry.flow.workflow, entry.state
        if action in ("rewind", "override"):
            check_node(flow, node)
        unsure: list[str] = []
        if action == "retry" and not state.live:
            unsure = unknown_outcomes(flow, state)
        elif action == "rewind" and state.live:
            unsure = running_once(flow, state, node)
        sure = tuple(dict.fromkeys((*did_not_happen, *unsure)))
        settled = Override(
            node=node,
            visit=visit or 0,
            index=at_index(index),
            output=None if skip else b"null",
            next_nodes=None if next_nodes is None else tuple(next_nodes),
        )
        commands: dict[ActionName, AnyCommand] = {
            "cancel": Cancel(compensate=compensate, force=force),
            "override": settled,
            "pause": Pause(),
            "resume": Resume(),
            "retry": Retry(confirmed_not_done=sure),
            "rewind": Rewind(node=node, confirmed_not_done=sure),
            "rollback": Rollback(),
        }
        decision = decide(flow, state, commands[action], self._context.store.now_ms())
        if isinstance(decision, Problem):
            raise Rejected(decision)
        return _rehearsal(state.seq, decision, [name for name in unsure if name not in did_not_happen])

    async def relabel(
        self,
        run_id: str,
        set: Mapping[str, str] | None = None,  # noqa: A002 - it is what `remove` is the opposite of
        remove: Sequence[str] = (),
        *,
        actor: str = "",
        command_id: str | None = None,
    ) -> None:
        """Change the labels of a run."""
        labels = check_labels(set or {})
        known = (await self._context.entry(run_id)).state.labels.items()
        check_labels({**{name: text for name, text in known if name not in remove}, **labels})
        await self._context.command(
            run_id, Relabel(id=command_id, actor=actor or None, labels=labels, remove=tuple(remove))
        )


def _rehearsal(seq: int, decision: Decision, unsure: Sequence[str]) -> Rehearsal:
    again: list[str] = []
    cancelled: list[str] = []
    skipped: list[str] = []
    undone: tuple[str, ...] = ()
    for event in decision.events:
        match event:
            case events.RunRetried() | events.RunRewound():
                again += [opened.node for opened in event.nodes]
            case events.NodeCancelled():
                cancelled.append(event.node)
            case events.NodeSkipped():
                skipped.append(event.node)
            case events.NodeOverridden(status="SKIPPED"):
                skipped.append(event.node)
            case events.RollbackStarted():
                undone = decision.after.undo_order
    settled = {event.node for event in decision.events if isinstance(event, events.NodeOverridden)}
    return Rehearsal(
        seq=seq,
        status=decision.after.status,
        again=tuple(name for name in dict.fromkeys(again) if name not in settled),
        cancelled=tuple(dict.fromkeys(cancelled)),
        skipped=tuple(dict.fromkeys(skipped)),
        undone=undone,
        unsure=tuple(unsure),
        events=tuple(str(event.__struct_config__.tag) for event in decision.events[:EVENTS_SHOWN_MAX]),
        event_count=len(decision.events),
    )
