"""Laws of waits: what ends one, never before its time; signals, taken once and in order; children, one at a time.

`at_ms` is compared here and nowhere else: the clock of the store is what timers are judged by, and it is that
clock's time which the events of a timer carry.
"""

from __future__ import annotations

from tidemill.kernel.events import (
    ChildFinished,
    ChildStarted,
    NodeCancelled,
    NodeCompleted,
    NodeFailed,
    NodeOverridden,
    NodeScheduled,
    NodeSkipped,
    NodeWaiting,
    RunCancelled,
    RunCompleted,
    RunFailed,
    SignalReceived,
)
from tidemill.kernel.laws.books import ENDED_RUN, Act, Books, Key, Section, key_of

SIGNALS_MAX = 1_000

WaitEnd = NodeCompleted | NodeFailed | NodeSkipped | NodeCancelled | NodeOverridden | NodeScheduled


class Waits(Section):
    """Reads how waits begin and end, whatever they are for."""

    def __init__(self, books: Books, signals: Signals) -> None:
        super().__init__(books)
        self.signals = signals

    def began(self, event: NodeWaiting) -> None:
        """An attempt has ended with a wait."""
        act = self.books.act(event)
        self._law("wait-once", act.wait is None, f"{event.node} waits already")
        act.wait = event
        if event.on == "signal":
            self.signals.wanted(event)

    def resumed(self, event: NodeScheduled) -> None:
        """A wait is over, but its activation is not."""
        if event.resumed is None:
            return
        wait = self.books.act(event).wait
        self._law("wait-end", wait is not None, f"{event.node} is resumed without having waited")
        self._law("recall", wait is None or wait.recall == event.recall, "a handler is called again if it asked for it")
        self.ended(event)

    def ended(self, event: WaitEnd) -> None:
        """Look for what ended a wait: something that was told, or a moment that has come."""
        act = self.books.act(event)
        wait = act.wait
        if wait is None:
            return
        told = self.books.owed.pop(key_of(event), "")
        self._leave(event, act)
        if told or isinstance(event, NodeCancelled):
            return
        if isinstance(event, NodeOverridden):
            self._law("override", wait.on != "loop", f"{event.node} has its result and waits for its loop")
            return
        if wait.on == "loop":
            self._law("wait-end", isinstance(event, NodeCompleted), f"{event.node} has its result")
            return
        # A wait that ends well may still bring more than the run may hold.
        full = isinstance(event, NodeFailed) and event.error.code == "max_bytes_exceeded"
        due = wait.expires_ms if isinstance(event, NodeFailed) and not full else wait.until_ms
        if (
            due is None
            or isinstance(event, NodeSkipped)
            or (wait.on == "human" and isinstance(event, NodeFailed) and not full)
        ):
            self._law("wait-end", False, f"nothing ended the wait of {event.node} for {wait.on}")
        else:
            self._law("timer", event.at_ms >= due, f"{event.node} waits until {due}, not {event.at_ms}")

    def _leave(self, event: WaitEnd, act: Act) -> None:
        if act.wait is not None and act.wait.on == "signal":
            self.signals.left(key_of(event), act.wait.name)
        act.wait = None

    def finish(self) -> None:
        """What was told to a wait has had its consequence."""
        for (node, _, _), told in self.books.owed.items():
            self._law("wait-end", False, f"{node} still waits, though {told}")


class Signals(Section):
    """Reads signals: those that wait for a taker, and those who wait for a signal."""

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self.known: set[str] = set()
        self.kept: dict[str, dict[str, None]] = {}
        """By name: ids of signals that nobody has taken, oldest first."""
        self.count = 0
        self.listening: dict[str, dict[Key, None]] = {}
        """By name: activations that wait for it, longest first."""

    def received(self, event: SignalReceived) -> None:
        """Somebody told the run something: who has waited longest takes it, else it is kept."""
        self._law("signal-once", event.signal not in self.known, f"signal {event.signal} was received before")
        self.known.add(event.signal)
        first = next(iter(self.listening.get(event.name, ())), None)
        if not event.node:
            self._law("signal-order", first is None, f"somebody waits for {event.name}")
            self.kept.setdefault(event.name, {})[event.signal] = None
            self.count += 1
            self._law("signals-max", self.count <= SIGNALS_MAX, f"at most {SIGNALS_MAX} signals are kept")
            return
        taker = (event.node, event.visit, event.index)
        self._law("signal-order", taker == first, f"{first or 'nobody'} has waited longest for {event.name}")
        if taker in self.listening.get(event.name, ()):
            self.books.owed[taker] = "its signal came"

    def wanted(self, event: NodeWaiting) -> None:
        """A node asks for a signal: it takes the oldest that was kept, or waits."""
        kept = self.kept.get(event.name, {})
        oldest = next(iter(kept), "")
        self._law("signal-order", event.signal == oldest, f"the oldest signal {event.name} is {oldest or 'none'}")
        if event.signal in kept:
            del kept[event.signal]
            self.count -= 1
        if event.signal:
            self.books.owed[key_of(event)] = "its signal had come"
        else:
            self.listening.setdefault(event.name, {})[key_of(event)] = None

    def left(self, key: Key, name: str) -> None:
        """An activation waits no more."""
        self.listening.get(name, {}).pop(key, None)

    def ended(self, event: RunCompleted | RunFailed | RunCancelled) -> None:
        """The end of a run names what nobody took."""
        names = sorted(name for name, ids in self.kept.items() if ids)
        self._law("unread", sorted(event.unread) == names, f"unread are {', '.join(names) or 'none'}")


class Children(Section):
    """Reads what became of child runs."""

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self.started_by: dict[Key, NodeWaiting] = {}
        """The wait in which an activation's latest child started."""

    def started(self, event: ChildStarted) -> None:
        """The child that somebody waits for exists."""
        wait = self._awaited(event)
        if wait is not None:
            known = self.started_by.get(key_of(event)) is wait
            self._law("child-once", not known, f"{event.node} has started its child already")
            self.started_by[key_of(event)] = wait

    def finished(self, event: ChildFinished) -> None:
        """The child that somebody waits for has ended, or could not be started."""
        wait = self._awaited(event)
        if wait is None:
            return
        began = self.started_by.get(key_of(event)) is wait
        refused = event.status not in ENDED_RUN and event.error is not None
        self._law("child-started", began or refused, f"child {event.child} ended before it started")
        self._law("child-once", key_of(event) not in self.books.owed, f"child {event.child} ended twice")
        self.books.owed[key_of(event)] = f"child {event.child} has ended"

    def _awaited(self, event: ChildStarted | ChildFinished) -> NodeWaiting | None:
        wait = self.books.act(event).wait
        if wait is not None and wait.on == "child" and wait.name == event.child:
            return wait
        self._law("child", False, f"{event.node} does not wait for child {event.child}")
        return None
