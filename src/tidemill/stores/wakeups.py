"""Who sleeps until there is work, a free place under a cap, or news of a stream, and how they are woken.

Bells ring within one process, across its threads. A store that several processes share must find out by itself
what the others did, and then rings the bells of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable, Iterable
from contextlib import suppress

EVERY_QUEUE = ("every", "queue")
"""What those wait for who take from any queue."""


class Waiter:
    """One sleeping task, which any thread may wake."""

    __slots__ = ("future", "thread")

    def __init__(self) -> None:
        self.future = asyncio.get_running_loop().create_future()
        self.thread = threading.get_ident()

    def notify(self) -> None:
        if self.thread == threading.get_ident():
            self._wake()
        else:
            with suppress(RuntimeError):  # The sleeper's loop is closed, which must not fail whoever commits.
                self.future.get_loop().call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Waiters:
    """Who waits for what: a queue, a cap or a stream. Ringing empties a topic, so a storm wakes a task once.

    Those who wait are woken in the order in which they came: whoever simulates the store can rely on it.
    """

    def __init__(self) -> None:
        self._hung: dict[Hashable, dict[Waiter, None]] = {}

    def add(self, topics: Iterable[Hashable]) -> Waiter:
        bell = Waiter()
        for topic in topics:
            self._hung.setdefault(topic, {})[bell] = None
        return bell

    def notify(self, topic: Hashable) -> None:
        for bell in self._hung.pop(topic, ()):
            bell.notify()

    def ring_all(self) -> None:
        for topic in list(self._hung):
            self.notify(topic)

    def remove(self, bell: Waiter, topics: Iterable[Hashable]) -> None:
        for topic in topics:
            hung = self._hung.get(topic)
            if hung is not None:
                hung.pop(bell, None)
                if not hung:
                    del self._hung[topic]
