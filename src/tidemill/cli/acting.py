"""How acts on runs are carried out and told: what was done, and how the run stands afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidemill.cli.asking import Asking
from tidemill.cli.sources import read_data, read_inputs, read_pairs, read_value
from tidemill.cli.verdicts import say
from tidemill.errors import rejected
from tidemill.front import Tidemill


def act(asking: Asking, run_id: str, done: str, do: Callable[[Tidemill], object]) -> int:
    """Carry out an act on a run, and tell how it stands now."""

    def ask(mill: Tidemill) -> dict[str, Any]:
        do(mill)
        view = mill.show(run_id)
        return {"run_id": run_id, "done": done, "status": view.status, "events": view.events}

    return asking.answer(ask, lambda after: say(f"{done}; run {run_id} is {after['status']}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """How a node is settled by hand; exactly one of the three."""

    value: str | None
    skip: bool
    did_not_happen: bool

    def check(self) -> None:
        """Refuse anything but one way."""
        if (self.value is not None) + self.skip + self.did_not_happen != 1:
            hint = "use one of --value JSON, --skip, --did-not-happen"
            raise rejected("option_invalid", "it is not clear how the node shall be settled", hint=hint)

    def given(self) -> dict[str, Any]:
        """What the engine is told."""
        return {"skip": True} if self.value is None else {"value": read_value("--value", self.value)}

    @property
    def words(self) -> str:
        """What was done, in a word or two."""
        return "is retried" if self.did_not_happen else "is skipped" if self.skip else "has its value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forking:
    """What a new run takes over, and what is different in it."""

    run: str
    at: int | None
    node: str | None
    given: tuple[str, ...]
    patch: str | None
    labels: tuple[str, ...]
    reason: str
    actor: str
    key: str | None


def forked(asking: Asking, forking: Forking) -> int:
    """Fork a run and print the id of the new one."""

    def ask(mill: Tidemill) -> dict[str, Any]:
        new = mill.fork(
            forking.run,
            at=forking.at,
            node=forking.node,
            inputs=read_inputs(forking.given) if forking.given else None,
            patch=None if forking.patch is None else read_data(forking.patch),
            labels=read_pairs("--label", forking.labels) if forking.labels else None,
            reason=forking.reason,
            actor=forking.actor,
            key=forking.key,
        )
        return {"run_id": new, "forked_from": forking.run}

    return asking.answer(ask, lambda found: print(found["run_id"]))
