"""What attempts share: ProcessRuntime, AttemptRuntime, missing capabilities.

What the attempts of a worker share: whom they may ask, and how they say that they do not count.

What a worker was asked for and does not have: a function, a mail server, leave to run commands.

Its log says each of them once, however often the job comes back. Its row tells the others, so that `why` can say what
no live worker has.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tidemill.ambient import Ambient
from tidemill.blobs.contract import Blobs
from tidemill.engine.attempts.invocation import HandlerHost
from tidemill.engine.attempts.rendering import Values
from tidemill.engine.attempts.streaming import OutputBroadcaster
from tidemill.engine.worker.leases import REST_MS_MAX
from tidemill.expressions.sandbox.pool import Isolation
from tidemill.handlers.contract import CapabilityMissing, enable_node_log
from tidemill.kernel.events import Error
from tidemill.kernel.jobs import JobBody
from tidemill.observability.capture import OutputCapture
from tidemill.security.secrets import Secrets

if TYPE_CHECKING:
    from tidemill.engine.attempts.attempt import Attempt


LOG = logging.getLogger(__name__)

KEPT_MS = 2 * REST_MS_MAX
"""A job that still needs it is met again before."""
KEPT_MAX = 100
WARNED_MAX = 1_000
WORDS_MAX = 500


class MissingCapability(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Something that a node needs and a worker does not have. Stored by position, in the worker's row."""

    digest: str
    """Of the workflow's document: what one run of it needs, the others do too."""
    work: str
    """The kind of job and the node, as `run/NODE`."""
    code: str
    message: str
    hint: str = ""


def missing_for(digest: str, task: JobBody, error: Error) -> MissingCapability:
    """What was missing for a job."""
    return MissingCapability(
        digest, work_key(task.kind, task.node), error.code, error.message[:WORDS_MAX], error.hint[:WORDS_MAX]
    )


def work_key(kind: str, node: str) -> str:
    """What is to be done, whichever visit or item it is of."""
    return f"{kind}/{node}"


class MissingCapabilities:
    """What one worker was found to lack of late."""

    def __init__(self) -> None:
        self._met: dict[tuple[str, str], tuple[MissingCapability, int]] = {}
        """Each with the moment when it was last met, those met longest ago first."""
        self._said: dict[str, None] = {}

    def note(self, lack: MissingCapability, now_ms: int) -> None:
        """Take note that a job was left to others, and say so the first time."""
        place = (lack.digest, lack.work)
        self._met.pop(place, None)
        self._met[place] = (lack, now_ms)
        if len(self._met) > KEPT_MAX:
            del self._met[next(iter(self._met))]
        if lack.message not in self._said:
            LOG.warning("left to other workers: %s", lack.message)
            self._said[lack.message] = None
            if len(self._said) > WARNED_MAX:
                del self._said[next(iter(self._said))]

    def known(self, now_ms: int) -> tuple[MissingCapability, ...]:
        """What jobs were left for lately; who needed something before that has found somebody."""
        return tuple(lack for lack, met_ms in self._met.values() if met_ms >= now_ms - KEPT_MS)


class AttemptSuperseded(Exception):
    """The attempt does not count any more, so its handler must not be called."""


class LeaveToOtherWorker(Exception):
    """A worker cannot do it, and another one may."""


class Recorder(Protocol):
    """Who can write to the log while an attempt runs."""

    async def record_start(self, attempt: Attempt) -> bool:
        """Commit that the attempt has begun; False when it no longer counts."""
        ...

    async def record_checkpoint(self, attempt: Attempt, value: Any) -> None:
        """Commit how far the attempt has come."""
        ...


class ProcessRuntime(msgspec.Struct, frozen=True):
    """What a process offers to those who work in it."""

    another_worker_may_have: Callable[[CapabilityMissing], Awaitable[bool]]
    """Whether another worker may have what this one lacks."""
    isolation: Isolation
    """Who decides the conditions that could hurt this process."""
    secrets: Secrets
    air: OutputBroadcaster
    stage: HandlerHost = msgspec.field(default_factory=HandlerHost)
    overhearing: OutputCapture = msgspec.field(default_factory=OutputCapture)
    lacks: MissingCapabilities = msgspec.field(default_factory=MissingCapabilities)

    def open(self) -> None:
        """Begin to listen, in the loop that runs now."""
        enable_node_log()
        self.air.open()
        self.overhearing.install()

    async def leave(self, lacking: CapabilityMissing, lack: MissingCapability, now_ms: int) -> None:
        """Have another worker do it, where one may: `Elsewhere` is raised then."""
        if await self.another_worker_may_have(lacking):
            self.lacks.note(lack, now_ms)
            raise LeaveToOtherWorker

    async def close(self) -> None:
        """Let go of everything; nobody works any more."""
        self.overhearing.remove()
        await self.stage.close()
        await self.isolation.close()
        await self.air.close()


class AttemptRuntime(msgspec.Struct, frozen=True):
    """What every attempt of a worker uses."""

    ambient: Ambient
    blobs: Blobs
    values: Values
    recorder: Recorder
    worker: str
    clock: Callable[[], int]
    """The store's: by it events are dated, and a worker's own may be wrong by a day."""
    runtime: ProcessRuntime
