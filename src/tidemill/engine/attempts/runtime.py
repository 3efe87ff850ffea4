"""What attempts share: `ProcessRuntime`, `AttemptRuntime`, and the capabilities that a worker lacks.

A capability is a function, a secret, a mail server or the permission to run commands. The worker logs each missing one
once, however often the job comes back, and lists it in its row, so that `why` can name what no live worker has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from tidemill.ambient import Ambient
from tidemill.blobs.contract import Blobs
from tidemill.engine.attempts.invocation import HandlerHost
from tidemill.engine.attempts.rendering import Values
from tidemill.engine.attempts.streaming import OutputBroadcaster
from tidemill.engine.worker.leases import REST_MS_MAX
from tidemill.engine.worker.spans import RunSpans
from tidemill.expressions.sandbox.pool import Isolation
from tidemill.handlers.contract import NodeContext, enable_node_log
from tidemill.kernel.events import Error
from tidemill.kernel.jobs import JobBody
from tidemill.kernel.spending import Spend
from tidemill.kernel.state import State
from tidemill.observability.capture import OutputCapture
from tidemill.security.masking import Mask
from tidemill.security.secrets import Secrets
from tidemill.stores.contract import Stream

if TYPE_CHECKING:
    from tidemill.engine.attempts.attempt import Attempt


LOG = logging.getLogger(__name__)

KEPT_MS = 2 * REST_MS_MAX
"""A worker claims a job that still needs the capability again within this time."""
KEPT_MAX = 100
WARNED_MAX = 1_000
WORDS_MAX = 500


class MissingCapability(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A capability that a node needs and a worker lacks. Stored by position, in the worker's row."""

    digest: str
    """Of the workflow's document: all its runs need the same."""
    work: str
    """The kind of job and the node, as `run/NODE`."""
    code: str
    message: str
    hint: str = ""


def _missing_for(digest: str, task: JobBody, error: Error) -> MissingCapability:
    work = f"{task.kind}/{task.node}"
    return MissingCapability(digest, work, error.code, error.message[:WORDS_MAX], error.hint[:WORDS_MAX])


class MissingCapabilities:
    def __init__(self) -> None:
        self._met: dict[tuple[str, str], tuple[MissingCapability, int]] = {}
        """Each with the time it was last met, oldest first."""
        self._warned: dict[str, None] = {}

    def note(self, missing: MissingCapability, now_ms: int) -> None:
        """Record that a job was left to others; logged the first time."""
        key = (missing.digest, missing.work)
        self._met.pop(key, None)
        self._met[key] = (missing, now_ms)
        if len(self._met) > KEPT_MAX:
            del self._met[next(iter(self._met))]
        if missing.message not in self._warned:
            LOG.warning("left to other workers: %s", missing.message)
            self._warned[missing.message] = None
            if len(self._warned) > WARNED_MAX:
                del self._warned[next(iter(self._warned))]

    def known(self, now_ms: int) -> tuple[MissingCapability, ...]:
        """The capabilities that recent jobs lacked; earlier jobs have found a worker since."""
        return tuple(missing for missing, met_ms in self._met.values() if met_ms >= now_ms - KEPT_MS)


Place = tuple[str, str, int, int]
"""An activation: run, node, visit and index."""
BLOCKED_MS = 1_000
"""A loop that does not run for this long is blocked."""


class AttemptSuperseded(Exception):
    """The attempt no longer counts, so its handler must not be called."""


class LeaveToOtherWorker(Exception):
    """Another worker may be able to run the job, and this one is not."""


class AppendedRecords(NamedTuple):
    """The records of a visit as the log has them, and what the wait before gave, if they do not hold it."""

    texts: list[bytes]
    resumed: bytes | None
    child_spent: Spend | None = None
    """What the child run has spent that the wait was for, likewise."""


class AgentServices(Protocol):
    """What the engine gives to the attempts of agents."""

    def serve(self, tenant: str, context: NodeContext, mask: Callable[[], Mask]) -> None:
        """Set `port` and `accounts` of an attempt; the mask hides the secrets that it has read so far."""


class Recorder(Protocol):
    async def record_start(self, attempt: Attempt) -> bool:
        """Commit that the attempt has begun; False when it no longer counts."""

    async def record_checkpoint(self, attempt: Attempt, value: Any) -> None: ...

    async def read_appended(self, attempt: Attempt) -> AppendedRecords:
        """The records that the visit has now; raises `AttemptSuperseded` when the attempt no longer counts."""

    async def record_append(
        self, attempt: Attempt, record: Any, number: int, reserve: Spend | None, spent: Spend | None
    ) -> bytes:
        """Commit a record as the one after `number` others, and return its text."""


class AnotherMayHave(Protocol):
    async def __call__(self, root: Stream, *, retryable: bool) -> bool:
        """Whether another worker may have what this process lacks and a run, or one of its children, needs."""


class ProcessRuntime(msgspec.Struct, frozen=True):
    """What the attempts of a process share, whichever worker runs them."""

    another_worker_may_have: AnotherMayHave
    isolation: Isolation
    """Evaluates the conditions that could harm this process."""
    secrets: Secrets
    broadcaster: OutputBroadcaster
    handler_host: HandlerHost = msgspec.field(default_factory=HandlerHost)
    capture: OutputCapture = msgspec.field(default_factory=OutputCapture)
    missing: MissingCapabilities = msgspec.field(default_factory=MissingCapabilities)
    agents: AgentServices | None = None
    spans: RunSpans | None = None

    def open(self) -> None:
        """Start capturing output, in the running loop."""
        enable_node_log()
        self.broadcaster.open()
        self.capture.install()
        if self.spans is not None:
            self.handler_host.enter_span = self.spans.enter

    async def leave(self, stream: Stream, state: State, task: JobBody, error: Error, now_ms: int) -> None:
        """Raise `LeaveToOtherWorker` if another worker may have the capability."""
        root = stream._replace(key=state.root) if state.root else stream
        if await self.another_worker_may_have(root, retryable=error.retryable):
            self.missing.note(_missing_for(state.digest, task, error), now_ms)
            raise LeaveToOtherWorker

    async def close(self) -> None:
        self.capture.remove()
        await self.handler_host.close()
        await self.isolation.close()
        await self.broadcaster.close()


class AttemptRuntime(msgspec.Struct, frozen=True):
    ambient: Ambient
    blobs: Blobs
    values: Values
    recorder: Recorder
    worker: str
    clock: Callable[[], int]
    """The store's clock: it dates events, and a worker's own may be wrong by a day."""
    runtime: ProcessRuntime
    blocked_ms: Callable[[Place], int]
    """How long an attempt that ends now blocked the loop; asked only if it took longer than `BLOCKED_MS`."""
