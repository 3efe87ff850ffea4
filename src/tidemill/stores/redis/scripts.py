"""The Lua scripts, the keys they touch, and calls that are executed once.

All keys of a partition share a hash tag, and every script declares the keys it touches, so that a cluster serves it. A
fenced call carries a number that only grows: the server answers one that it has seen before with what it answered then,
and refuses older ones. So a call whose connection was cut is simply sent again, and one that arrives late does nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from hashlib import blake2b, sha1
from importlib.resources import files
from secrets import token_hex
from typing import Any, NamedTuple

from tidemill.errors import TidemillError
from tidemill.stores.contract import Stream
from tidemill.stores.redis.database import Argument, Link, Nodes, Script

FORMAT = 1
"""Of the keys and values."""

Head = tuple[Argument, Argument, Argument, Argument]
"""The first arguments of a script that touches jobs: store, time, channel, process."""


@cache
def script(name: str) -> Script:
    text = _included(name)
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest())


def _included(name: str) -> bytes:
    text = files("tidemill.stores").joinpath("lua", f"{name}.lua").read_bytes()
    return re.sub(rb"(?m)^-- include (\w+)$", lambda found: _included(found[1].decode()), text)


# Names as bytes: each ends with two zero bytes, and their order is that of the names by code point.


@lru_cache(maxsize=65_536)
def encoded(name: str) -> bytes:
    return name.encode().replace(b"\0", b"\0\xff") + b"\0\0"


@lru_cache(maxsize=4_096)
def encoded_stream(stream: Stream) -> bytes:
    return encoded(stream.kind) + encoded(stream.tenant) + encoded(stream.key)


def decoded(packed: bytes) -> list[str]:
    names = []
    while packed:
        end = packed.index(b"\0\0")
        names.append(packed[:end].replace(b"\0\xff", b"\0").decode())
        packed = packed[end + 2 :]
    return names


def root_of(key: str) -> str:
    """The run to whose tree a key belongs: children, logs and rows of a run begin with its name."""
    return re.split(r"[./]", key, maxsplit=1)[0]


class Partition:
    """The keys of one partition, and the connections that serve it: one for writes and claims, one for reads."""

    def __init__(self, nodes: Nodes, number: int) -> None:
        self.number = number
        self.tag = f"{nodes.place.prefix}:{{p{number}}}:".encode()
        self.meta, self.jobs, self.rows, self.terms, self.streams = (
            self.tag + name for name in (b"meta", b"jobs", b"rows", b"terms", b"streams")
        )
        others = (b"due", b"line", b"lanes", b"turns", b"listed", b"served", b"caps", b"waiting")
        self.of_jobs: tuple[bytes, ...] = (self.meta, self.jobs, *(self.tag + name for name in others))
        self.of_writes = (*self.of_jobs, self.rows, self.terms, self.streams)
        self.writes, self.reads = Link(nodes, number), Link(nodes, number)

    def records(self, stream: bytes) -> bytes:
        return self.tag + b"r:" + stream

    def rest(self, stream: bytes) -> bytes:
        return self.tag + b"h:" + stream

    async def close(self) -> None:
        await self.writes.close()
        await self.reads.close()


@lru_cache(maxsize=65_536)
def partition_of(tenant: str, root: str, partitions: int) -> int:
    if partitions == 1:
        return 0
    return int.from_bytes(blake2b(f"{tenant}\0{root}".encode(), digest_size=8).digest(), "big") % partitions


class Call(NamedTuple):
    """A script with what it is called with."""

    script: Script
    keys: Sequence[bytes]
    head: Head
    arguments: Sequence[Argument]


class Settlement(NamedTuple):
    """How to learn what became of a call: by one that does nothing, under the same number; and what to do about it."""

    call: Call
    undo: Callable[[Any], Awaitable[None]] | None = None


class Session:
    """Fenced calls to one partition, one at a time."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.name = f"s:{token_hex(9)}"
        self.turn = asyncio.Lock()
        self._batch = 0
        self._settle: Callable[[], Awaitable[None]] | None = None
        """What to do about the last call, whose outcome is unknown."""

    async def call(
        self, call: Call, settlement: Callable[[], Settlement], otherwise: Callable[[], Call] | None = None
    ) -> Any:
        """Execute a call once, or `otherwise` if it answers None because it does not apply.

        After a failure the next call first has the server forget this one, or undoes it.
        """
        if self._settle is not None:
            await self._settle()
        self._batch += 1
        try:
            reply = await self.partition.writes.execute(self._command(call), call.script)
            if reply is None and otherwise is not None:
                reply = await self._send(otherwise())
        except BaseException:
            self._settle = lambda: self._learn(settlement())
            raise
        return reply

    async def _learn(self, settlement: Settlement) -> None:
        """The same number: either the server answers what it has executed, or this stands for it."""
        reply = await self._send(settlement.call)
        self._settle = None
        if settlement.undo is not None:
            await settlement.undo(reply)

    async def _send(self, call: Call) -> Any:
        return await self.partition.writes.execute(self._command(call), call.script)

    def _command(self, call: Call) -> tuple[Argument, ...]:
        keys = call.keys
        fence = (self.name, self._batch)
        return ("EVALSHA", call.script.digest, len(keys), *keys, *call.head, *fence, *call.arguments)

    async def close(self) -> None:
        if self._batch:
            with suppress(TidemillError):
                await self.partition.writes.call("HDEL", self.partition.meta, self.name, seconds=0.0)
