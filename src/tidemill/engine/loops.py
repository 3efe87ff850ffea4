"""A loop that foreign code cannot end: what a handler leaves in it may ask the process to exit, or the loop to stop.

asyncio lets `SystemExit` and `KeyboardInterrupt` of a task or a callback through to whoever runs the loop, which ends
with them, although all that it has to do is still there. Nobody waits for such a task, so there is no attempt that it
could fail: it is put on record, and the loop goes on. Otherwise one job would end worker after worker.

One thing cannot be mended: a handler that cancels every task of the loop cancels the engine's own. Then the process
ends, says why, and leaves its jobs to others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidemill.errors import TidemillError

LOG = logging.getLogger(__name__)


class EngineBroken(TidemillError):
    """A handler has cancelled the engine's own tasks, as one does that cancels all tasks of the loop."""

    def __init__(self) -> None:
        super().__init__("a handler has cancelled the engine's own tasks: it may cancel only those that it has made")


def run_until(loop: asyncio.AbstractEventLoop, over: Callable[[], bool]) -> None:
    """Run a loop until it has been stopped and `over` says that this was meant."""
    while not over():
        try:
            loop.run_forever()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
            LOG.error("something that a handler left in the loop has raised %s; the work goes on", said, exc_info=error)
        else:
            if not over():
                LOG.error("a handler has stopped the loop; the work goes on")
