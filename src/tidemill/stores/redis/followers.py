"""Hints between processes by PUBLISH: that there is work, that a stream has records; and live frames.

Hints may be lost: a waiting claim or follower looks by itself every `LOOK_EVERY_MS`. A hint of work is sent only while
a claim waits (see `lua/jobs.lua`), so a busy fleet sends none. The streams that a call has written to are told in one
message, which only processes with followers receive.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any

from tidemill.stores.contract import Stream
from tidemill.stores.redis.database import Answer, Connection, Cut, Nodes, connect
from tidemill.stores.redis.scripts import Partition, encoded_stream, script

LOG = logging.getLogger(__name__)

LOOK_EVERY_MS = 1_000.0
"""How often a waiting claim or follower looks without a hint."""
FRAME_BYTES_MAX = 1 << 20
"""Larger live frames are skipped."""


class Hints:
    """Receives the hints of other processes while a task waits."""

    def __init__(
        self,
        nodes: Nodes,
        work: Callable[[], None],
        records: Callable[[Stream | None], None],
        frames: Callable[[Stream, int, Sequence[bytes]], None],
    ) -> None:
        self._nodes, self._work, self._records, self._frames = nodes, work, records, frames
        self.process = token_hex(6)
        self.channels = f"{nodes.place.prefix}:".encode()
        self._streams: dict[bytes, Stream] = {}
        self._followers: Counter[bytes] = Counter()
        self._connection: Connection | None = None
        self.hears_itself = False
        """The server sends this process the messages about streams, its own too."""
        self._task: asyncio.Task[None] | None = None

    # Sending

    async def publish(self, partition: Partition, stream: Stream, frames: Sequence[bytes]) -> int:
        """Send live frames to other processes; returns the version of the stream."""
        name = encoded_stream(stream)
        sent = [name, *(body for body in frames if len(body) <= FRAME_BYTES_MAX)]
        packed = b"".join(len(part).to_bytes(4, "big") + part for part in sent)
        arguments = (self.channels + b"live", self.process, packed)
        return int(await partition.reads.run(script("publish"), (partition.records(name),), arguments))

    # Receiving

    def listen(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen(), name="tidemill-hints")

    def follow(self, stream: Stream) -> None:
        name = encoded_stream(stream)
        self._followers[name] += 1
        self._streams[name] = stream
        self.listen()
        if self._connection is not None and self._followers.total() == 1:
            self._connection.send("SUBSCRIBE", *self._of_streams())

    def unfollow(self, stream: Stream) -> None:
        name = encoded_stream(stream)
        self._followers[name] -= 1
        if not self._followers[name]:
            del self._followers[name], self._streams[name]
            if self._connection is not None and not self._streams:
                self.hears_itself = False
                self._connection.send("UNSUBSCRIBE", *self._of_streams())

    def _of_streams(self) -> tuple[bytes, bytes]:
        return self.channels + b"records", self.channels + b"live"

    async def _listen(self) -> None:
        pause = 0.05
        while True:
            try:
                made = await connect(self._nodes.place, self._nodes.of(0), self._pushed)
                pause = 0.05
                self._connection = made
                made.send("SUBSCRIBE", self.channels + b"work", *(self._of_streams() if self._streams else ()))
                await asyncio.shield(made.lost)
            except (Answer, Cut, OSError, TimeoutError) as error:
                LOG.debug("notifications of other processes are not received: %s", error)
            self._connection, self.hears_itself = None, False
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    def _pushed(self, message: list[Any]) -> None:
        kind, channel, data = message
        name = channel[len(self.channels) :]
        if kind == b"subscribe":
            # Notifications from before the subscription are lost.
            if name == b"work":
                self._work()
            elif name == b"records":
                self.hears_itself = bool(self._streams)
                self._records(None)
        elif kind == b"message" and data[: len(self.process)] != self.process.encode():
            if name == b"work":
                self._work()
            elif name == b"records":
                self._written(data[len(self.process) :])
            elif name == b"live":
                self._live(data[len(self.process) :])

    def _written(self, names: bytes) -> None:
        """The name of a stream has three parts, each ended by two zero bytes."""
        parts = names.split(b"\0\0")
        for at in range(0, len(parts) - 1, 3):
            stream = self._streams.get(b"\0\0".join((*parts[at : at + 3], b"")))
            if stream is not None:
                self._records(stream)

    def _live(self, data: bytes) -> None:
        parts, at = [], 8
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            parts.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        stream = self._streams.get(parts[0])
        if stream is not None:
            self._frames(stream, int.from_bytes(data[:8], "big"), parts[1:])

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        made, self._connection = self._connection, None
        if made is not None:
            made.close()
            with suppress(asyncio.CancelledError):
                await made.lost
