"""Laws of dead letters: written for what has failed for good, closed once, and by a retry of what they are about."""

from __future__ import annotations

from tidemill.kernel.events import DeadLetterClosed, DeadLettered, RunForked, RunRetried
from tidemill.kernel.laws.books import Books, Key, Section, key_of


class Letters(Section):
    """Reads dead letters."""

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self.open: dict[str, dict[Key, None]] = {}
        """By node: letters that nobody has taken care of."""
        self.due: dict[Key, None] = {}
        """Letters that a retry has to close in its commit."""

    def written(self, event: DeadLettered) -> None:
        """A failure that nobody will try again by itself."""
        final = self.books.act(event).final
        self._law("dead-letter", final == "FAILED", "a dead letter follows a failure for good")
        self.open.setdefault(event.node, {})[key_of(event)] = None

    def closed(self, event: DeadLetterClosed) -> None:
        """Somebody took care of it."""
        letters = self.open.get(event.node, {})
        self._law("letter-open", key_of(event) in letters, f"{event.node} has no such letter that is open")
        self._law("letter-open", event.status in ("reprocessed", "discarded"), f"no letter is {event.status}")
        letters.pop(key_of(event), None)
        self.due.pop(key_of(event), None)

    def retried(self, event: RunRetried) -> None:
        """What is tried again is no dead letter any more; a tolerated failure stays as it is."""
        for opened in event.nodes:
            for key in self.open.get(opened.node, ()):
                if key[1] == opened.visit and not self.books.acts[key].tolerated:
                    self.due[key] = None

    def forked(self, event: RunForked) -> None:
        """The letters are the other run's."""
        self.open.clear()
        self.due.clear()

    def finish(self) -> None:
        """A retry has closed the letters of what it reopened."""
        for node, visit, index in self.due:
            self._law("letter-due", False, f"the letter of {node}/{visit}/{index} is open, though it is tried again")
        self.due.clear()
