"""What a worker was asked for and does not have: a function, a mail server, leave to run commands.

Its log says each of them once, however often the job comes back. Its row tells the others, so that `why` can say what
no live worker has.
"""

from __future__ import annotations

import logging

import msgspec

from tidemill.engine.returns import REST_MS_MAX
from tidemill.kernel.events import Error
from tidemill.kernel.jobs import Task

LOG = logging.getLogger(__name__)

KEPT_MS = 2 * REST_MS_MAX
"""A job that still needs it is met again before."""
KEPT_MAX = 100
SAID_MAX = 1_000
WORDS_MAX = 500


class Lack(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Something that a node needs and a worker does not have. Stored by position, in the worker's row."""

    digest: str
    """Of the workflow's document: what one run of it needs, the others do too."""
    work: str
    """The kind of job and the node, as `run/NODE`."""
    code: str
    message: str
    hint: str = ""


def lack_of(digest: str, task: Task, error: Error) -> Lack:
    """What was missing for a job."""
    return Lack(digest, work_of(task.kind, task.node), error.code, error.message[:WORDS_MAX], error.hint[:WORDS_MAX])


def work_of(kind: str, node: str) -> str:
    """What is to be done, whichever visit or item it is of."""
    return f"{kind}/{node}"


class Lacks:
    """What one worker was found to lack of late."""

    def __init__(self) -> None:
        self._met: dict[tuple[str, str], tuple[Lack, int]] = {}
        """Each with the moment when it was last met, those met longest ago first."""
        self._said: dict[str, None] = {}

    def note(self, lack: Lack, now_ms: int) -> None:
        """Take note that a job was left to others, and say so the first time."""
        place = (lack.digest, lack.work)
        self._met.pop(place, None)
        self._met[place] = (lack, now_ms)
        if len(self._met) > KEPT_MAX:
            del self._met[next(iter(self._met))]
        if lack.message not in self._said:
            LOG.warning("left to other workers: %s", lack.message)
            self._said[lack.message] = None
            if len(self._said) > SAID_MAX:
                del self._said[next(iter(self._said))]

    def known(self, now_ms: int) -> tuple[Lack, ...]:
        """What jobs were left for lately; who needed something before that has found somebody."""
        return tuple(lack for lack, met_ms in self._met.values() if met_ms >= now_ms - KEPT_MS)
