"""What a run that is watched waits for from outside: told once, and asked for where somebody can answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tidemill.cli.asking import Asking
from tidemill.cli.logbook import where
from tidemill.cli.prompt import ask_person, can_ask, may_decide
from tidemill.cli.snippets import names
from tidemill.errors import Rejected
from tidemill.front import Tidemill
from tidemill.kernel.events import NOT_AN_ITEM

PRIVATE = "nobody else can reach a memory:// store: run it on a terminal as somebody who may decide, or with --store"
DEAF = "nobody else can reach a memory:// store: run it with --store"
_ASKING = ("ApprovalRequested", "ApprovalEscalated", "ApprovalDelegated")


class Stage(Protocol):
    """Where a run is watched: lines can be said there, and it can be left for a conversation."""

    def say(self, text: str) -> None: ...

    def leave(self) -> None: ...

    def enter(self) -> None: ...


class Helper:
    """Sees every event of a run, and helps where it waits for somebody outside."""

    def __init__(
        self, mill: Tidemill, asking: Asking, stage: Stage, *, actor: str, roles: tuple[str, ...], talks: bool
    ) -> None:
        self._mill, self._asking, self._stage = mill, asking, stage
        self._actor, self._roles = actor, roles
        self._talks = talks and can_ask()

    def see(self, run_id: str, event: Mapping[str, Any]) -> None:
        """Look at one event."""
        kind = event["type"]
        if kind in _ASKING:
            self._decision(run_id, event)
        elif kind == "NodeWaiting" and event["on"] == "signal" and not event.get("signal"):
            command = self._asking.command("runs", "signal", run_id, event["name"])
            how = DEAF if self._asking.alone else command
            self._stage.say(f"◷ {where(event)} waits for the signal {event['name']} · {how}")

    def _decision(self, run_id: str, event: Mapping[str, Any]) -> None:
        index = event.get("index", NOT_AN_ITEM)
        try:
            view = self._mill.approval(
                run_id, event["node"], visit=event["visit"], index=None if index == NOT_AN_ITEM else index
            )
        except Rejected:
            # It has gone on since.
            return
        if view.status != "pending":
            return
        if self._talks and may_decide(view, self._actor, self._roles):
            self._stage.leave()
            try:
                ask_person(self._mill, view, self._actor, self._roles)
            finally:
                self._stage.enter()
            return
        item = () if index == NOT_AN_ITEM else ("--item", str(index))
        command = self._asking.command("approvals", "decide", run_id, view.node, "approve", *item)
        asked = names(view.approval.approvers or ("anyone",))
        how = PRIVATE if self._asking.alone else command
        self._stage.say(f"◷ {where(event)} waits for a decision by {asked} · {how}")
