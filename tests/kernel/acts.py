"""Operators at work on a run: the notation of the tables for their acts, and books that follow a run through them.

The books are kept from the events alone: what every event says about tokens adds up to the counter, no outcome is
written twice unless an act reopened it, attempts and fences only grow. They know nothing of how an act is folded.
Beside them the kernel's own checker reads the same log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tests.kernel.laws import _check_held, slots_in_use
from tests.kernel.tables import Run, error
from tests.kernel.wording import Rows
from tidemill.kernel import events as ev
from tidemill.kernel.activation import ENDED
from tidemill.kernel.commands import (
    CloseDeadLetter,
    CompensationResult,
    CompensationWorkerLost,
    Done,
    Failed,
    Fork,
    Override,
    Patch,
    Request,
    Retry,
    Rewind,
    Rollback,
    WaitRequested,
)
from tidemill.kernel.invariants.checker import LogChecker
from tidemill.kernel.model import Workflow
from tidemill.kernel.queries import tokens
from tidemill.kernel.state import State

Key = tuple[str, int, int]

REOPENED = ("FAILED", "CANCELLED")
STATUSES = {
    ev.NodeCompleted: "COMPLETED",
    ev.NodeFailed: "FAILED",
    ev.NodeSkipped: "SKIPPED",
    ev.NodeCancelled: "CANCELLED",
}
TERMINAL = (ev.RunCompleted, ev.RunFailed, ev.RunCancelled)
ACTS = (ev.RunRetried, ev.RunRewound, ev.RunPatched)


class Books:
    """What a log adds up to, whatever operators did in between."""

    def __init__(self, flow: Workflow, earlier: Iterable[Workflow] = ()) -> None:
        """`earlier` are the graphs that a forked run had before, the first one first."""
        graphs = [*earlier, flow]
        self.flow = flow
        self.graphs = {each.digest: each for each in graphs}
        self.log = LogChecker(graphs[0], self.graphs.get)
        self.seq = 0
        self.counter = 0
        self.visit: dict[str, int] = {}
        self.ends: dict[Key, str] = {}
        self.tolerated: set[Key] = set()
        self.fired: set[tuple[str, int]] = set()
        """Visits that were made ready and not taken back by a retry."""
        self.attempts: dict[Key, int] = defaultdict(int)
        self.fences: dict[Key, int] = defaultdict(int)
        self.undone: dict[Key, int] = defaultdict(int)

    def read(self, events: Iterable[ev.AnyEvent], flow: Workflow | None = None) -> None:
        """Note events in the order of the log; `flow` is the graph that they leave the run with."""
        for event in events:
            self.seq += 1
            assert event.cause < self.seq, "a cause lies in the past"
            if isinstance(event, ev.RunPatched) and flow is not None:
                self.flow = self.graphs[flow.digest] = flow
            self._count(event)
            self._note(event)
            self.log.take(event)
        assert not self.log.violations, self.log.violations

    def _count(self, event: Any) -> None:
        """The counter is the sum over the events."""
        if isinstance(event, ev.RunCreated):
            self.counter = len(event.entries)
        elif isinstance(event, ev.Ending | ev.RunRewound | ev.RunPatched):
            self.counter += event.emitted - event.consumed
        elif isinstance(event, ev.RunRetried):
            self.counter += event.emitted
        elif isinstance(event, TERMINAL):
            self.counter -= event.consumed
            assert self.counter == 0, f"a run ended with counter {self.counter}"
        else:
            return
        assert event.counter == self.counter >= 0, f"{type(event).__name__}: {event.counter}, summed {self.counter}"

    def _note(self, event: Any) -> None:
        match event:
            case ev.NodeScheduled():
                if event.index == ev.NOT_AN_ITEM and event.resumed is None:
                    self._begins(event)
            case ev.NodeStarted():
                self._starts(event)
            case ev.NodeOverridden() if event.status == "QUEUED":
                self._begins(event)
            case ev.NodeFailed() if event.retry_at_ms is not None:
                self.attempts[_key(event)] = event.attempt
            case ev.Ending():
                self._ends(event)
            case ev.RunRetried():
                assert event.emitted == sum(opened.tokens for opened in event.nodes) + event.renders
                for opened in event.nodes:
                    self._reopens(opened)
            case ev.RunRewound():
                assert event.emitted == sum(opened.tokens for opened in event.nodes)
                for opened in event.nodes:
                    assert opened.visit == self.visit.get(opened.node, 1) + 1
                    self.visit[opened.node] = opened.visit
            case ev.LoopContinued():
                for name in event.body:
                    self.visit[name] = self.visit.get(name, 1) + 1
            case ev.RunPatched():
                assert event.emitted == sum(join.tokens for join in event.joins)
            case ev.RunForked():
                self.fences.clear()
            case ev.CompensationCompleted() | ev.CompensationFailed():
                key = _key(event)
                assert event.attempt in (self.undone[key], self.undone[key] + 1), "attempts to undo count on"
                self.undone[key] = event.attempt

    def _begins(self, event: Any) -> None:
        assert _key(event) not in self.ends, f"{event.node} had ended"
        self.fired.add((event.node, event.visit))

    def _starts(self, event: ev.NodeStarted) -> None:
        key = _key(event)
        assert key not in self.ends, f"{key} had ended as {self.ends.get(key)}"
        assert event.attempt == self.attempts[key] + 1, f"attempt {event.attempt} follows {self.attempts[key]}"
        assert event.token > self.fences[key], "fences only grow"
        self.attempts[key], self.fences[key] = event.attempt, event.token

    def _ends(self, event: Any) -> None:
        key = _key(event)
        assert key not in self.ends, f"{key} ended twice: {self.ends.get(key)}"
        self.ends[key] = STATUSES.get(type(event)) or event.status
        self.visit[event.node] = max(event.visit, self.visit.get(event.node, 1))
        if isinstance(event, ev.NodeFailed):
            self.attempts[key] = event.attempt
            if event.output is not None:
                self.tolerated.add(key)

    def _reopens(self, opened: ev.Reopened) -> None:
        """Failures and cancellations are taken back; what completed, was skipped or tolerated stays."""
        key = (opened.node, opened.visit, ev.NOT_AN_ITEM)
        assert key not in self.tolerated and self.ends.get(key, "FAILED") in REOPENED, f"{key} was reopened"
        self.fired.discard(key[:2])
        mine = [each for each in self.ends if each[:2] == key[:2] and each not in self.tolerated]
        for each in mine:
            if self.ends[each] in REOPENED:
                del self.ends[each]

    def check(self, state: State) -> None:
        """The state agrees with the books."""
        assert self.log.finish() == []
        assert (state.seq, state.counter) == (self.seq, self.counter)
        assert len(list(tokens(self.flow, state))) == state.counter, "the tokens are the counter"
        assert state.in_flight == slots_in_use(state), f"{state.in_flight} in flight, counted {slots_in_use(state)}"
        assert state.live or state.in_flight == 0, "nothing is in flight after the end"
        assert state.visits == len(self.fired), f"{state.visits} visits, counted {len(self.fired)}"
        busy = [name for name, cell in state.cells.items() if cell.fired and cell.status not in ENDED]
        assert (state.counter > 0) == ((bool(busy) or state.rendering) and state.live), (state.counter, busy)
        assert all(state.peek(name).tokens for name in busy), "whatever is in flight holds a token"
        assert sum(letter.open for letter in state.letters.values()) == state.dead_letters
        _check_held(state)
        if not state.live:
            unsettled = [node.id for node in self.flow.nodes if state.peek(node.id).status not in ENDED]
            assert not unsettled, f"{unsettled} not settled at the end"


def _key(event: Any) -> Key:
    return event.node, event.visit, event.index


class Acts(Run):
    """A run under a table, with a method for each thing that an operator can do to it."""

    laws: Any

    def __init__(self, graph: str | Workflow, nodes: dict[str, dict[str, Any]] | None = None, **top: Any) -> None:
        super().__init__(graph, nodes, **top)
        self.laws = Books(self.flow)

    def begun(self) -> Acts:
        self.start()
        return self

    def retry(self, **more: Any) -> Rows:
        return self.do(Retry(**more))

    def rewind(self, node: str, **more: Any) -> Rows:
        return self.do(Rewind(node=node, **more))

    def override(self, at: str, output: bytes | None = b"9", **more: Any) -> Rows:
        """Settle an activation by hand; without an output it is skipped."""
        return self.do(self.overriding(at, output, **more))

    def overriding(self, at: str, output: bytes | None = b"9", **more: Any) -> Override:
        return Override(output=output, **self.where(at), **more)

    def patching(self, new: Workflow, **more: Any) -> Patch:
        return Patch(base=self.kernel.state.digest, workflow=new, patch=b"[]", **more)

    def patch(self, new: Workflow, **more: Any) -> Rows:
        return self.do(self.patching(new, **more))

    def rollback(self, **more: Any) -> Rows:
        return self.do(Rollback(**more))

    def undone(self, at: str, code: str = "", *, retryable: bool = False, **more: Any) -> Rows:
        """An attempt to undo an activation ended well, or with this error."""
        outcome = Failed(error=error(code, retryable=retryable)) if code else Done(output=b"null")
        undone = CompensationResult(token=self.kernel.next_token(), outcome=outcome, **self.where(at), **more)
        return self.do(undone, self.key("undo", at))

    def undo_lost(self, at: str, times: int = 1) -> Rows:
        return self.do(
            CompensationWorkerLost(token=self.kernel.next_token(), times=times, **self.where(at)), self.key("undo", at)
        )

    def discard(self, at: str) -> Rows:
        return self.do(CloseDeadLetter(**self.where(at)))

    def ask(self, at: str, **more: Any) -> Rows:
        """A human node's handler asked people."""
        return self.result(at, WaitRequested(on="human", approval=Request(title="may it?", **more)))

    def call(self, at: str, child: str = "child-1", close: str = "cancel") -> Rows:
        """A workflow node's handler asked for a child."""
        return self.result(at, WaitRequested(on="child", name=child, ask=b"{}", close=close))

    def forking(self, until: int | None = None, **more: Any) -> Fork:
        prefix = tuple(self.kernel.events[:until])
        return Fork(run="other", prefix=prefix, **more)

    def fork(self, until: int | None = None, flow: Workflow | None = None, **more: Any) -> Acts:
        """A run of its own that begins with the first events of this one; `flow` is the graph it had by then."""
        other = Acts(flow or self.kernel.flow)
        other.laws = Books(other.flow, self.laws.graphs.values())
        other.kernel.now = self.kernel.now
        other.do(self.forking(until, **more))
        return other

    @property
    def letters(self) -> str:
        """The open dead letters, as `a/1/-1 b/2/0`."""
        return " ".join(key for key, letter in self.kernel.state.letters.items() if letter.open)
