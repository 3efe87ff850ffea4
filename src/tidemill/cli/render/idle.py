"""Says, while a run is watched, that nodes of it wait for a worker that is not there or lacks what they need."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from tidemill.cli.render.board import RunProgress
from tidemill.cli.render.why import command_of
from tidemill.cli.session import StoreSession
from tidemill.client import Tidemill
from tidemill.errors import TidemillError
from tidemill.kernel.explain.blockers import Worker

LOOK_SECONDS = 2.0
HOPELESS = frozenset({"no_worker", "no_queue", "no_type", "lacking"})
"""What waiting does not end: somebody has to start a worker."""


class IdleReport:
    """Asks why a run waits whenever it has not moved for a while; use it in a `with`. Says everything once."""

    def __init__(self, mill: Tidemill, session: StoreSession, board: RunProgress, say: Callable[[str], None]) -> None:
        self._mill, self._session, self._board, self._say = mill, session, board, say
        self._told: set[tuple[str, ...]] = set()
        self._over, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._look_often, name="tidemill-idle", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join(LOOK_SECONDS)

    def look(self) -> None:
        """Say what waits in vain for a worker, if anything new does."""
        try:
            found = self._mill.why(self._board.run_id).blockers
        except TidemillError:
            return  # The run is gone, or the store does not answer: whoever follows the run reports that.
        for each in found:
            if isinstance(each, Worker) and each.need in HOPELESS and self._is_new(each):
                self._say(f"◷ {each.words} · {command_of(self._session, self._board.run_id, each.command)}")

    def _is_new(self, blocker: Worker) -> bool:
        """Whether this has not been said yet, of any node."""
        lacks = "" if blocker.lacking is None else blocker.lacking.message
        what = (blocker.need, blocker.queue, blocker.type, lacks)
        with self._lock:
            new = what not in self._told
            self._told.add(what)
        return new

    def _look_often(self) -> None:
        seen = -1
        while not self._over.wait(LOOK_SECONDS):
            if self._board.seq == seen:
                self.look()
            seen = self._board.seq
