"""Hints between processes by PUBLISH: that there is work, that a stream has records; and live frames.

Hints may be lost: a waiting claim or follower looks by itself every `LOOK_EVERY_MS`. A hint of work is sent only while
a claim waits (see `lua/jobs.lua`), so a busy fleet sends none. A follower subscribes to the channels of its stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any

from tidemill.stores.contract import Stream
from tidemill.stores.redis.database import Answer, Connection, Cut, Nodes, connect
from tidemill.stores.redis.scripts import Partition, decoded, encoded_stream, script

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
        self.channel = f"{nodes.place.prefix}:work".encode()
        self._live = f"{nodes.place.prefix}:live".encode()
        self._streams: dict[Stream, int] = {}
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    # Sending

    async def publish(self, partition: Partition, stream: Stream, frames: Sequence[bytes]) -> int:
        """Send live frames to other processes; answers the version of the stream."""
        name = encoded_stream(stream)
        sent = [body for body in frames if len(body) <= FRAME_BYTES_MAX]
        packed = b"".join(len(body).to_bytes(4, "big") + body for body in sent)
        arguments = (self._live + name, self.process, packed)
        return int(await partition.reads.run(script("publish"), (partition.records(name),), arguments))

    # Receiving

    def listen(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen(), name="tidemill-hints")

    def follow(self, stream: Stream) -> None:
        self._streams[stream] = self._streams.get(stream, 0) + 1
        self.listen()
        if self._streams[stream] == 1 and self._connection is not None:
            self._connection.send("SUBSCRIBE", *self._channels(stream))

    def unfollow(self, stream: Stream) -> None:
        self._streams[stream] -= 1
        if not self._streams[stream]:
            del self._streams[stream]
            if self._connection is not None:
                self._connection.send("UNSUBSCRIBE", *self._channels(stream))

    def _channels(self, stream: Stream) -> tuple[bytes, bytes]:
        name = encoded_stream(stream)
        return self.channel + name, self._live + name

    async def _listen(self) -> None:
        pause = 0.05
        while True:
            try:
                made = await connect(self._nodes.place, self._nodes.of(0), self._pushed)
                pause = 0.05
                self._connection = made
                channels = [name for stream in self._streams for name in self._channels(stream)]
                made.send("SUBSCRIBE", self.channel, *channels)
                await asyncio.shield(made.lost)
            except (Answer, Cut, OSError, TimeoutError) as error:
                LOG.debug("hints of other processes are not heard: %s", error)
            self._connection = None
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    def _pushed(self, message: list[Any]) -> None:
        kind, channel, data = message
        if kind == b"subscribe":
            # What happened before is not told.
            if channel == self.channel:
                self._work()
                self._records(None)
            elif channel.startswith(self.channel):
                self._records(self._stream(channel, self.channel))
            return
        if kind != b"message" or data[:12] == self.process.encode():
            return
        if channel == self.channel:
            self._work()
        elif channel.startswith(self.channel):
            self._records(self._stream(channel, self.channel))
        elif channel.startswith(self._live):
            frames, at = [], 20
            while at < len(data):
                size = int.from_bytes(data[at : at + 4], "big")
                frames.append(data[at + 4 : at + 4 + size])
                at += 4 + size
            self._frames(self._stream(channel, self._live), int.from_bytes(data[12:20], "big"), frames)

    @staticmethod
    def _stream(channel: bytes, prefix: bytes) -> Stream:
        kind, tenant, key = decoded(channel[len(prefix) :])
        return Stream(tenant, kind, key)

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
