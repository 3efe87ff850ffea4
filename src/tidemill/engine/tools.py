"""What the attempts of a worker share: whom they may ask, and how they say that they do not count."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tidemill.ambient import Ambient
from tidemill.blobs.contract import Blobs
from tidemill.engine.lacks import Lack, Lacks
from tidemill.engine.stage import Stage
from tidemill.engine.utterances import Air
from tidemill.engine.values import Values
from tidemill.expressions.isolation import Isolation
from tidemill.handlers.contract import Lacking
from tidemill.observe.overhearing import Overhearing
from tidemill.security.secrets import Secrets

if TYPE_CHECKING:
    from tidemill.engine.attempt import Attempt


class Stale(Exception):
    """The attempt does not count any more, so its handler must not be called."""


class Elsewhere(Exception):
    """A worker cannot do it, and another one may."""


class Recorder(Protocol):
    """Who can write to the log while an attempt runs."""

    async def record_start(self, attempt: Attempt) -> bool:
        """Commit that the attempt has begun; False when it no longer counts."""
        ...

    async def record_checkpoint(self, attempt: Attempt, value: Any) -> None:
        """Commit how far the attempt has come."""
        ...


class Surroundings(msgspec.Struct, frozen=True):
    """What a process offers to those who work in it."""

    others: Callable[[Lacking], Awaitable[bool]]
    """Whether another worker may have what this one lacks."""
    isolation: Isolation
    """Who decides the conditions that could hurt this process."""
    secrets: Secrets
    air: Air
    stage: Stage = msgspec.field(default_factory=Stage)
    overhearing: Overhearing = msgspec.field(default_factory=Overhearing)
    lacks: Lacks = msgspec.field(default_factory=Lacks)

    def open(self) -> None:
        """Begin to listen, in the loop that runs now."""
        self.air.open()
        self.overhearing.begin()

    async def leave(self, lacking: Lacking, lack: Lack, now_ms: int) -> None:
        """Have another worker do it, where one may: `Elsewhere` is raised then."""
        if await self.others(lacking):
            self.lacks.note(lack, now_ms)
            raise Elsewhere

    async def close(self) -> None:
        """Let go of everything; nobody works any more."""
        self.overhearing.end()
        await self.stage.close()
        await self.isolation.close()
        await self.air.close()


class Tools(msgspec.Struct, frozen=True):
    """What every attempt of a worker uses."""

    ambient: Ambient
    blobs: Blobs
    values: Values
    recorder: Recorder
    worker: str
    clock: Callable[[], int]
    """The store's: by it events are dated, and a worker's own may be wrong by a day."""
    around: Surroundings
