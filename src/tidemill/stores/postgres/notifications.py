"""Hints between processes by LISTEN and NOTIFY: that there is work, that a stream has records; and live frames.

A hint is sent after the commit, at most every `HINT_EVERY_MS` by a process, because NOTIFY takes a lock of the whole
server. Hints may be lost: a waiting claim or follower looks by itself every `LOOK_EVERY_MS`. Live frames travel in
notifications, which come in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from secrets import token_hex

import msgspec
import psycopg

from tidemill.errors import TidemillError
from tidemill.stores.contract import Stream
from tidemill.stores.postgres.database import SQL, Link, Place, Readers, Texts

LOG = logging.getLogger(__name__)

HINT_EVERY_MS = 50.0
LOOK_EVERY_MS = 1_000.0
"""How often a waiting claim or follower looks without a hint."""
NAMED_MAX = 100
"""Streams that one hint names; of more it says only that there are some."""
PAYLOAD_BYTES_MAX = 7_900
"""PostgreSQL's own limit is 8,000."""
FRAMES_AT_ONCE = 200


class Hint(msgspec.Struct, array_like=True):
    process: str
    queues: list[str] = []
    caps: bool = False
    streams: list[str] | None = []
    """Digests of names; None is any stream."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Hint).decode


def digest_of(stream: Stream) -> str:
    return blake2b("\0".join(stream).encode(), digest_size=9).hexdigest()


class Hints:
    """Sends the hints of this process, and receives those of others while a task waits."""

    def __init__(
        self,
        place: Place,
        readers: Readers,
        received: Callable[[Hint | None], None],
        frame: Callable[[str, int, bytes], None],
    ) -> None:
        self._readers, self._received, self._frame = readers, received, frame
        self._work, self._live = f"{place.schema}.work", f"{place.schema}.live"
        self._process = token_hex(6)
        self._link = Link(place, f'LISTEN "{self._work}"', f'LISTEN "{self._live}"')
        self._listener: asyncio.Task[None] | None = None
        self.listening = asyncio.Event()
        self._queues: set[str] = set()
        self._streams: set[Stream] = set()
        self._caps = False
        self._sent_at = 0.0
        self._sender: asyncio.Task[None] | None = None
        self._parts: dict[tuple[str, str], list[str]] = {}

    # Sending

    def send(self, queues: Iterable[str] = (), streams: Iterable[Stream] = (), *, caps: bool = False) -> None:
        """Tell other processes soon."""
        self._queues.update(queues)
        self._streams.update(streams)
        self._caps |= caps
        if self._sender is None and (self._queues or self._streams or self._caps):
            self._sender = asyncio.get_running_loop().create_task(self._send(), name="tidemill-hints")

    async def _send(self) -> None:
        try:
            while self._queues or self._streams or self._caps:
                await asyncio.sleep(max(0.0, HINT_EVERY_MS / 1000 - (time.monotonic() - self._sent_at)))
                queues, streams, caps = self._queues, self._streams, self._caps
                self._queues, self._streams, self._caps = set(), set(), False
                named = [digest_of(stream) for stream in streams] if len(streams) <= NAMED_MAX else None
                payload = _encode(Hint(self._process, sorted(queues), caps, named)).decode()
                if len(payload.encode()) > PAYLOAD_BYTES_MAX:
                    payload = _encode(Hint(self._process, [], True, None)).decode()
                self._sent_at = time.monotonic()
                with suppress(TidemillError):
                    await self._readers.fetch(SQL["hint"], (self._work, payload))
        finally:
            self._sender = None

    async def publish(self, stream: Stream, frames: Sequence[bytes]) -> None:
        """Send live frames to other processes. One that does not fit into a notification goes in parts."""
        name = digest_of(stream)
        heads, tails = Texts(), Texts()
        for body in frames:
            text = base64.b64encode(body).decode()
            size = PAYLOAD_BYTES_MAX - 100
            parts = [text[start : start + size] for start in range(0, len(text), size)] or [""]
            for number, part in enumerate(parts, 1):
                heads.append(f"{self._process}:{name}:")
                tails.append(f":{len(parts) - number}:{part}")
        for start in range(0, len(heads), FRAMES_AT_ONCE):
            values = {
                "channel": self._live,
                **stream._asdict(),
                "heads": Texts(heads[start : start + FRAMES_AT_ONCE]),
                "tails": Texts(tails[start : start + FRAMES_AT_ONCE]),
            }
            await self._readers.fetch(SQL["publish"], values, tenant=stream.tenant)

    # Receiving

    def listen(self) -> None:
        if self._listener is None:
            self._listener = asyncio.get_running_loop().create_task(self._listen(), name="tidemill-listener")

    async def _listen(self) -> None:
        while True:
            try:
                connection = await self._link.connect()
                self.listening.set()
                # Notifications from before the subscription are lost.
                self._received(None)
                async for notification in connection.notifies():
                    self._receive(notification.channel, notification.payload)
            except (psycopg.Error, TidemillError, OSError) as error:
                LOG.debug("notifications of other processes are not received: %s", error)
            await self._link.drop()
            self._parts.clear()
            await asyncio.sleep(0.5)

    def _receive(self, channel: str, payload: str) -> None:
        try:
            if channel == self._work:
                hint = _decode(payload)
                if hint.process != self._process:
                    self._received(hint)
                return
            process, name, version, left, part = payload.split(":", 4)
            if process == self._process:
                return
            parts = self._parts.setdefault((process, name), [])
            parts.append(part)
            if left == "0":
                self._frame(name, int(version), base64.b64decode("".join(self._parts.pop((process, name)))))
        except ValueError as error:
            # Another version may say more than this one understands.
            LOG.debug("a notification could not be decoded: %s", error)

    async def close(self) -> None:
        tasks = [task for task in (self._listener, self._sender) if task is not None]
        self._listener = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._link.drop()
