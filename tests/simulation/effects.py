"""What calls of handlers may have done, against what rollbacks say: whatever happened is undone, or named as left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.kernel import events as ev
from tidemill.kernel.decide.completion import UPSTREAM_FAILED
from tidemill.kernel.state import State, key_at
from tidemill.stores.contract import Commit

if TYPE_CHECKING:
    from tests.simulation.scripted_handlers import Ledger
    from tests.simulation.world import World

Name = tuple[str, str]
"""A run, and the key of an activation in it."""


class Effects:
    """Follows the logs of all runs, beside the calls that really happened."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._ended: dict[Name, int] = {}
        """The number of the last call before an end by itself was recorded: those up to it are accounted for."""
        self._begun: set[Name] = set()
        """Attempts that are recorded as started and not as ended."""
        self._lost: set[Name] = set()
        self.refused: set[Name] = set()
        """Jobs that were not idle when a commit needed them to be."""
        self.jobs_lost: set[Name] = set()
        """Jobs that the queue has lost: nobody can know whether a worker had them."""

    def read(self, run: str, event: ev.AnyEvent, commit: Commit) -> str:
        """Take in an event; answers what is wrong with it."""
        if isinstance(event, ev.RunRetried):
            for opened in event.nodes:
                if opened.node in event.sure:
                    self._settle_all(run, opened.node, opened.visit)
        if not isinstance(event, ev.NodeEvent):
            return ""
        key = key_at(event.node, event.visit, event.index)
        name = (run, key)
        wrong = ""
        match event:
            case ev.NodeStarted():
                self._begun.add(name)
                return ""
            case ev.NodeCancelled() if event.unknown:
                leased = {job for job, token in (*commit.acks, *commit.holds) if token}
                known = name in self._begun or name in self._lost or name in self.refused
                if not known and f"run/{key}" not in leased:
                    wrong = f"{key} is named as unknown, and no worker had it"
            case ev.NodeFailed() if event.lost:
                self._lost.add(name)
            case ev.NodeFailed() if event.error.code != UPSTREAM_FAILED:
                self._settle(name)
            case ev.NodeCompleted() | ev.NodeWaiting() | ev.NodeSkipped() | ev.NodeOverridden():
                self._settle(name)
            case _:
                return ""
        self._begun.discard(name)
        return wrong

    def _settle(self, name: Name) -> None:
        self._ended[name] = self._ledger.count
        self._lost.discard(name)

    def _settle_all(self, run: str, node: str, visit: int) -> None:
        for key in self._ledger.acts:
            of, _, rest = key.partition("/")
            if of == run and rest.startswith(f"{node}/{visit}/"):
                self._settle((run, rest))

    def check(self, world: World, run: str, state: State) -> Iterator[str]:
        """Effects that happened, and that a rollback has neither undone nor left by name."""
        if state.rollback not in ("done", "partial"):
            return
        nodes = world.checkers[run].workflow.by_id
        undone = {key for key, step in state.undo.items() if step.status == "done"}
        for effect, numbers in self._ledger.acts.items():
            of, _, key = effect.partition("/")
            node = nodes.get(key.rsplit("/", 2)[0])
            if of != run or node is None or node.compensator is None or (run, key) in self.jobs_lost:
                continue
            late = [number for number in numbers if number > self._ended.get((run, key), 0)]
            if late and key not in undone and key not in state.undo_left:
                yield f"the rollback is {state.rollback} and knows nothing of what {effect} did in call {late[-1]}"
