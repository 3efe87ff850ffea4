"""The sweeper: retires old runs now and then, beside everything else that a process does."""

from __future__ import annotations

import asyncio
import logging

from tidemill.ambient import Ambient
from tidemill.engine.retiring import Retirer
from tidemill.errors import Unavailable

LOG = logging.getLogger(__name__)

SWEEP_EVERY_MS = 60_000


class Sweeper:
    """Sweeps once a minute, more or less, so that the workers of a store do not do it all at the same time."""

    def __init__(self, retirer: Retirer, ambient: Ambient, *, every_ms: int = SWEEP_EVERY_MS) -> None:
        self._retirer, self._ambient, self._every_ms = retirer, ambient, every_ms
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._forever(), name="tidemill-sweeper")

    async def close(self) -> None:
        """Stop, wherever it is: the next sweep goes on from there."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _forever(self) -> None:
        while True:
            await self._ambient.sleep(self._every_ms * (0.5 + self._ambient.chance()))
            try:
                swept = await self._retirer.sweep()
            except Unavailable as error:
                LOG.warning("old runs could not be retired and will be later: %s", error)
            except Exception:
                LOG.exception("retiring old runs failed and will be repeated")
            else:
                if swept.retired:
                    LOG.info("%s old runs were retired", len(swept.retired))
                for run_id, why in swept.left:
                    if run_id in swept.failed:
                        LOG.error("run %s cannot be archived, so it stays: %s", run_id, why)
