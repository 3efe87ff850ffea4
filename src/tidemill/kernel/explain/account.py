"""Why one node is where it is: how its visits ended and what decided it, or what it waits for.

Unlike the explanation of a whole run it reads the log, because only the log holds what conditions decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tidemill.kernel.events import AnyEvent
from tidemill.kernel.explain.blockers import AnyBlocker
from tidemill.kernel.explain.scene import label
from tidemill.kernel.model import Node
from tidemill.kernel.sight import Step, path
from tidemill.kernel.state import State

STEPS_MAX = 20
"""The latest visits that are listed, and the most nodes before it."""


class Account(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a node is where it is."""

    node: str
    status: str
    headline: str
    visits: tuple[Step, ...] = ()
    """Its visits that have ended, the latest last."""
    before: tuple[Step, ...] = ()
    """How the nodes that lead to it ended, each as it did last."""
    blockers: tuple[AnyBlocker, ...] = ()
    """What it waits for, where it does."""


def account_for(state: State, events: Iterable[AnyEvent], node: Node, blockers: Sequence[AnyBlocker]) -> Account:
    """Tell of one node; `blockers` are those of its run."""
    steps = list(path(events))
    latest = {step.node: step for step in steps}
    own = [step for step in steps if step.node == node.id]
    waits = tuple(each for each in blockers if each.node == node.id)
    return Account(
        node=node.id,
        status=state.peek(node.id).status,
        headline=_headline(node.id, own, waits),
        visits=tuple(own[-STEPS_MAX:]),
        before=tuple(latest[name] for name in node.inbound if name in latest)[:STEPS_MAX],
        blockers=waits,
    )


def _headline(name: str, own: Sequence[Step], waits: Sequence[AnyBlocker]) -> str:
    if waits:
        return waits[0].words
    if not own:
        return f"{name} has not begun"
    step = own[-1]
    went = f" and went to {', '.join(step.went)}" if step.went else ""
    why = f": {step.why}" if step.why else ""
    return f"{label(name, step.visit)} {_ENDED[step.status]}{went}{why}"


_ENDED = {"COMPLETED": "completed", "SKIPPED": "was skipped", "FAILED": "failed", "CANCELLED": "was cancelled"}
