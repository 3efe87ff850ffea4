"""The laws of 2.12 that hold after every event, as one checker that reads the log beside the state.

`Laws.read` is told each event before the state that follows from it is looked at; it keeps its own books (tokens,
attempts, outcomes) from the events alone, so that the kernel's arithmetic is compared with somebody else's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tidemill.kernel.events import (
    NOT_AN_ITEM,
    AnyEvent,
    LoopContinued,
    NodeCancelled,
    NodeCompleted,
    NodeFailed,
    NodeScheduled,
    NodeSkipped,
    NodeStarted,
    NodeWaiting,
    ResultDiscarded,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunRepaired,
)
from tidemill.kernel.model import Workflow
from tidemill.kernel.sight import tokens
from tidemill.kernel.state import DISPATCHED, ENDED, State, peek_at

Key = tuple[str, int, int]

TERMINALS = (RunCompleted, RunFailed, RunCancelled)
AFTER_THE_END = (ResultDiscarded, RunRepaired)
ENDINGS = (NodeCompleted, NodeFailed, NodeSkipped, NodeCancelled)


class Laws:
    """The books of one run, kept from its events."""

    def __init__(self) -> None:
        self.seq = 0
        self.counter = 0
        self.ended = False
        self.outcomes: dict[Key, str] = {}
        self.attempts: Counter[Key] = Counter()
        self.fences: Counter[Key] = Counter()
        self.fired: set[tuple[str, int]] = set()
        self.visits: Counter[str] = Counter()
        self.discards: Counter[tuple[str, int]] = Counter()

    def read(self, events: Iterable[AnyEvent]) -> None:
        """Note events in the order of the log, each judged by those before it."""
        for event in events:
            self._read(event)

    def _read(self, event: AnyEvent) -> None:
        self.seq += 1
        assert (self.seq == 1) == isinstance(event, RunCreated), "RunCreated is the first event and only that"
        assert not self.ended or isinstance(event, AFTER_THE_END), f"{type(event).__name__} after the end"
        assert event.cause < self.seq, "a cause is earlier than what it leads to"
        match event:
            case RunCreated():
                self.counter = event.counter
                assert event.counter == len(event.entries)
                self.visits.update(event.entries)
            case RunCompleted() | RunFailed() | RunCancelled():
                self.counter -= event.consumed
                assert (event.counter, self.counter) == (0, 0), "the counter of every terminal run is 0"
                self.ended = True
            case NodeScheduled() if event.index == NOT_AN_ITEM:
                self.fired.add((event.node, event.visit))
                assert (event.node, event.visit, NOT_AN_ITEM) not in self.outcomes, "a visit that ended is not queued"
            case NodeStarted():
                self._started(event)
            case NodeWaiting():
                self._grows((event.node, event.visit, event.index), event.token)
            case NodeCompleted() | NodeFailed() | NodeSkipped() | NodeCancelled():
                self._ended(event)
            case LoopContinued():
                assert event.node in event.body and event.entry in event.body
            case ResultDiscarded():
                self.discards[event.node, event.visit] += 1
                assert self.discards[event.node, event.visit] <= 10, "at most ten discarded results per visit"

    def _started(self, event: NodeStarted) -> None:
        key = (event.node, event.visit, event.index)
        assert key not in self.outcomes, "an attempt at something that is over"
        assert (event.node, event.visit) in self.fired, "an attempt at something that was never ready"
        assert event.attempt == self.attempts[key] + 1, "attempts count 1, 2, 3"
        self.attempts[key] = event.attempt
        assert event.token > self.fences[key], "a new attempt has a higher fence"
        self.fences[key] = event.token

    def _grows(self, key: Key, token: int) -> None:
        assert not token or token >= self.fences[key], "fences only grow"
        self.fences[key] = max(token, self.fences[key])

    def _ended(self, event: NodeCompleted | NodeFailed | NodeSkipped | NodeCancelled) -> None:
        key = (event.node, event.visit, event.index)
        assert key not in self.outcomes, f"{key} ended twice: {self.outcomes[key]}, {type(event).__name__}"
        self.counter += event.emitted - event.consumed
        assert event.counter == self.counter, "the counter in the event is the sum so far"
        assert not set(event.taken) & set(event.dead)
        if isinstance(event, NodeCompleted | NodeFailed):
            self._grows(key, event.token)
        if isinstance(event, NodeFailed):
            assert self.attempts[key] <= event.attempt or event.index == NOT_AN_ITEM
            self.attempts[key] = max(self.attempts[key], event.attempt)
            if event.retry_at_ms is not None:
                assert not (event.taken or event.dead or event.emitted or event.consumed)
                return
        if event.index != NOT_AN_ITEM:
            assert not (event.taken or event.dead or event.emitted or event.consumed), "items hold no tokens"
        self.outcomes[key] = type(event).__name__

    def check(self, flow: Workflow, state: State) -> None:
        """The state agrees with the books."""
        assert state.seq == self.seq
        assert state.counter == self.counter
        assert state.counter >= 0
        assert len(list(tokens(flow, state))) == state.counter, "the tokens are the counter"
        assert state.live == (not self.ended and self.seq > 0)
        assert state.in_flight == in_flight(state), f"in_flight says {state.in_flight}, there are {in_flight(state)}"
        assert state.visits == len(self.fired), "visits counts those that were made ready"
        busy = any(cell.fired and cell.status not in ENDED for cell in state.cells.values()) or state.rendering
        assert (state.counter == 0) == (not busy or not state.live), "zero if and only if nothing is in flight"
        _check_held(state)


def in_flight(state: State) -> int:
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
        name = state.peek(name).behind
    assert state.last_held == (walk[-1] if walk else "")
    if state.live:
        assert set(walk) == {name for name, cell in state.cells.items() if cell.held}
