"""A web server on loopback that says what a test wants it to say, byte by byte, and remembers who came."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

REASONS = {200: "OK", 302: "Found", 404: "Not Found", 429: "Too Many Requests", 503: "Service Unavailable"}


@dataclass(frozen=True)
class Asked:
    """A request as it came in."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


Writer = Callable[[bytes], Awaitable[None]]
Script = Callable[[Asked, Writer], Awaitable[None]]


def reply(body: bytes = b"", status: int = 200, **headers: str) -> Script:
    """Answer with a status, headers (`_` is `-`) and a body."""
    return reply_with(body, status, headers)


def reply_with(body: bytes, status: int, headers: dict[str, str], length: int | None = None) -> Script:
    """The same with headers as a dict; `length` may lie about the body."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Whatever')}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    return raw(("\r\n".join(lines) + "\r\n\r\n").encode() + body)


def json_reply(value: Any, status: int = 200, **headers: str) -> Script:
    return reply_with(msgspec.json.encode(value), status, {"Content-Type": "application/json", **headers})


def raw(*parts: bytes | float) -> Script:
    """Send bytes; a number is a pause in seconds."""

    async def script(asked: Asked, write: Writer) -> None:
        for part in parts:
            if isinstance(part, bytes):
                await write(part)
            else:
                await asyncio.sleep(part)

    return script


def in_turn(*scripts: Script) -> Script:
    """One script for each request."""
    left = list(scripts)

    async def script(asked: Asked, write: Writer) -> None:
        await left.pop(0)(asked, write)

    return script


def redirect(location: str, status: int = 302) -> Script:
    return reply(b"", status, Location=location)


@dataclass
class Web:
    """The server: scripts by path, and the requests that came."""

    port: int
    scheme: str = "http"
    routes: dict[str, Script] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    greeting: bytes = b""

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1

        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        try:
            await write(self.greeting)
            while (asked := await _read(reader)) is not None:
                self.asked.append(asked)
                await self.routes.get(asked.path, reply(b"nothing here", 404))(asked, write)
                if asked.headers.get("x-close"):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, Cut):
            pass
        finally:
            self.open -= 1
            writer.close()


class Cut(Exception):
    """Ends the connection at once."""


async def cut(asked: Asked, write: Writer) -> None:
    raise Cut


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, target, headers, body)


@asynccontextmanager
async def web(routes: dict[str, Script] | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Web]:
    """A server, as long as the block lasts."""
    served = Web(0, "https" if tls else "http", routes or {})
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0, ssl=tls)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
