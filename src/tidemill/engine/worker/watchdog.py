"""Notices that something blocks the worker's loop, and what.

The loop writes a timestamp twice a second; a thread compares it with the clock. When the loop is late, the
thread logs the stack of the loop's thread, and finds in its frames which attempt is at work: so nothing is paid per
node. The event of that attempt records how long it blocked the loop, and the worker's row shows the last time.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from itertools import islice
from types import FrameType

import msgspec

from tidemill.ambient import Ambient
from tidemill.engine.attempts.attempt import Attempt
from tidemill.engine.attempts.compensation import CompensationAttempt
from tidemill.engine.attempts.runtime import BLOCKED_MS, Place
from tidemill.engine.index_rows import RUN
from tidemill.handlers.contract import NodeContext
from tidemill.kernel.document.problems import shown
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.security.masking import NO_MASK, Mask
from tidemill.stores.contract import Stream

LOG = logging.getLogger(__name__)

BEAT_MS = 500
FRAMES_MAX = 200
FRAMES_SHOWN_MAX = 30
LINE_MAX = 300
PLACES_MAX = 100
"""Attempts of which it is remembered how long they blocked the loop, until they end."""


class Blockage(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Stored by position, in the worker's row."""

    ms: int
    at_ms: int
    """When it was over, by the clock of the process."""
    run_id: str = ""
    node: str = ""
    visit: int = 0
    index: int = NOT_AN_ITEM


class LoopWatchdog:
    """`blocked_ms` and `last` belong to the loop; the thread only logs, and leaves what it found in `_found`."""

    def __init__(self, ambient: Ambient) -> None:
        self._ambient = ambient
        self._due = 0.0
        """When the loop is due to run again."""
        self._found: tuple[float, Place | None] | None = None
        """The time at which the loop was due, and what blocked it."""
        self._blocked: dict[Place, int] = {}
        self.last: Blockage | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Watch the running loop."""
        self._stop = threading.Event()
        self._due = self._ambient.monotonic_ms() + BEAT_MS
        self._beat(asyncio.get_running_loop())
        watch = (threading.get_ident(), self._stop)
        threading.Thread(target=self._watch, args=watch, name="tidemill-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()
        if self._timer is not None:
            self._timer.cancel()

    def blocked_ms(self, place: Place) -> int:
        """How long an attempt that ends now blocked the loop."""
        if self._timer is None:
            return 0
        self._tick()
        return self._blocked.pop(place, 0)

    # In the loop

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._tick()
        self._timer = loop.call_later(BEAT_MS / 1000, self._beat, loop)

    def _tick(self) -> None:
        now, due = self._ambient.monotonic_ms(), self._due
        self._due = now + BEAT_MS
        if now - due >= BLOCKED_MS:
            self._is_over(due, round(now - due))

    def _is_over(self, due: float, ms: int) -> None:
        place: Place | None = None
        if self._found is not None and self._found[0] == due:
            place = self._found[1]
        else:
            # Shorter than two looks of the thread; or that could not run either, because native code kept the
            # interpreter or the process was stopped.
            LOG.warning("the event loop was blocked for %.1f s; the cause is unknown", ms / 1000)
        self.last = Blockage(ms, self._ambient.now_ms(), *(place or ()))
        if place is not None:
            self._blocked[place] = self._blocked.pop(place, 0) + ms
            if len(self._blocked) > PLACES_MAX:
                del self._blocked[next(iter(self._blocked))]

    # In the thread

    def _watch(self, watched: int, stop: threading.Event) -> None:
        woke, reported = self._ambient.monotonic_ms(), 0.0
        while not stop.wait(BEAT_MS / 1000):
            now, before = self._ambient.monotonic_ms(), woke
            woke, due = now, self._due
            # If this thread overslept as well, the loop may have had no chance to run.
            if now - due < BLOCKED_MS or due == reported or now - before >= BLOCKED_MS:
                continue
            reported = due
            try:
                self._report(watched, due, now - due)
            except Exception:
                LOG.exception("the event loop is blocked, and its stack cannot be read")

    def _report(self, watched: int, due: float, late_ms: float) -> None:
        frame = sys._current_frames().get(watched)
        if frame is None:
            # The thread of the loop has ended.
            return
        place, mask = _work_in(frame)
        self._found = (due, place)
        lines = "".join(traceback.format_stack(frame, FRAMES_SHOWN_MAX)).splitlines()
        stack = "\n".join(shown(line, LINE_MAX) for line in mask.text("\n".join(lines)).splitlines())
        LOG.warning("the event loop has been blocked for %.1f s by %s\n%s", late_ms / 1000, _words(place), stack)


def _words(place: Place | None) -> str:
    if place is None:
        return "the process itself"
    run_id, node, visit, index = place
    item = "" if index == NOT_AN_ITEM else f"[{index}]"
    return f"node {node}{item} (visit {visit}) of run {run_id}" if node else f"run {run_id}"


def _work_in(frame: FrameType) -> tuple[Place | None, Mask]:
    """The innermost work in a stack, and what masks its secrets. Types are compared, so that no foreign code runs."""
    run: Place | None = None
    for each, _ in islice(traceback.walk_stack(frame), FRAMES_MAX):
        for value in list(each.f_locals.values()):
            if type(value) is NodeContext:
                mask = getattr(value.voice, "mask", NO_MASK)
                return (value.run_id, value.node, value.visit, value.index), mask
            if type(value) is Attempt or type(value) is CompensationAttempt:
                task = value.task
                mask = value.mask if type(value) is Attempt else NO_MASK
                return (value.lease.stream.key, task.node, task.visit, task.index), mask
            if run is None and type(value) is Stream and value.kind == RUN:
                run = (value.key, "", 0, NOT_AN_ITEM)
    return run, NO_MASK
