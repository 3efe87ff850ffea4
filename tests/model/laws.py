"""What must hold after every decision: the log obeys its laws, and the state agrees with the log."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.kernel.activation import DISPATCHED, ENDED
from tidemill.kernel.decide.completion import UPSTREAM_FAILED
from tidemill.kernel.events import NOT_AN_ITEM, AnyEvent, DeadLettered, NodeFailed, RunPatched
from tidemill.kernel.invariants.checker import LogChecker
from tidemill.kernel.model import Workflow
from tidemill.kernel.queries import tokens
from tidemill.kernel.state import State, peek_at


class Laws:
    """The books of one run, kept from its events."""

    def __init__(self, flow: Workflow) -> None:
        self.flow = flow
        self.log = LogChecker(flow)

    def read(self, events: Iterable[AnyEvent], flow: Workflow | None = None) -> None:
        """Note events in the order of the log; `flow` is the graph that they leave the run with."""
        for event in events:
            if isinstance(event, RunPatched) and flow is not None:
                self.flow = self.log.workflow = flow
            self.log.take(event)
        assert not self.log.violations, self.log.violations

    def check(self, state: State) -> None:
        """The state agrees with the books."""
        assert self.log.finish() == []
        assert (state.seq, state.counter) == (self.log.seq, self.log.counter)
        assert len(list(tokens(self.flow, state))) == state.counter, "the tokens are the counter"
        assert state.in_flight == slots_in_use(state), f"{state.in_flight} in flight, counted {slots_in_use(state)}"
        assert state.visits == self.log.visits, "visits counts those that were made ready"
        busy = any(cell.fired and cell.status not in ENDED for cell in state.cells.values()) or state.rendering
        assert (state.counter > 0) == (busy and state.live), "zero if and only if nothing is in flight"
        _check_held(state)


def check_letters(events: Iterable[AnyEvent], state: State) -> None:
    """A decision leaves a dead letter for each final failure that nothing handles, and no other.

    A run with an open one has failed: an operator can do something about it.
    """
    written = [(each.node, each.visit, each.index) for each in events if isinstance(each, DeadLettered)]
    failed = [each for each in events if isinstance(each, NodeFailed) and each.retry_at_ms is None]
    handled = {(each.node, each.visit) for each in failed if each.index == NOT_AN_ITEM and each.tolerated}
    due = [
        (each.node, each.visit, each.index)
        for each in failed
        if not each.tolerated and each.error.code != UPSTREAM_FAILED and (each.node, each.visit) not in handled
        if each.error.index == NOT_AN_ITEM  # The letter of a map that an item failed is the item's.
    ]
    assert written == due, f"dead letters {written}, due {due}"
    assert state.status == "FAILED" or not state.dead_letters, f"{state.dead_letters} open, the run is {state.status}"


def slots_in_use(state: State) -> int:
    """Activations that own a job, counted one by one."""
    if not state.live:
        return state.in_flight
    found = 0
    for cell in state.cells.values():
        between = cell.map is not None and cell.status == "RUNNING"
        found += cell.status in DISPATCHED and not between
        for index in range(cell.map.next if cell.map is not None else 0):
            item = peek_at(cell, index)
            assert item is not None
            found += item.status in DISPATCHED
    return found


def _check_held(state: State) -> None:
    """The queue of held nodes is a list without a cycle, and holds exactly those that say so."""
    walk: list[str] = []
    name = state.first_held
    while name:
        assert name not in walk, "a cycle among the held"
        walk.append(name)
        name = state.peek(name).next_held
    assert state.last_held == (walk[-1] if walk else "")
    if state.live:
        assert set(walk) == {name for name, cell in state.cells.items() if cell.held}
