"""One TCP connection in the running loop, as the HTTP library wants to see it.

The loop reads ahead, up to a bound. So whether the peer has hung up on an idle connection is known without asking the
system, which the library's pool wants to know of each of them before every request.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import httpcore2

AHEAD_BYTES_MAX = 262_144


class HandshakeFailed(httpcore2.ConnectError):
    """The line is there, and does not become a secure one."""


class HandshakeTimeout(httpcore2.ConnectTimeout):
    """The same, because the peer says nothing."""


class Line(asyncio.Protocol):
    """What has come in and was not read yet, and whether more can be sent."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.data = bytearray()
        self.sent = self.received = 0
        """Bytes in either direction so far, so that one can tell what came of a request that failed."""
        self.ended = False
        self.error: Exception | None = None
        self._paused = False
        self._waiting: set[asyncio.Future[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.received += len(data)
        if len(self.data) > AHEAD_BYTES_MAX:
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self.ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended, self.error, self._paused = True, exc, False
        self._wake()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._wake()

    async def read(self, bytes_max: int) -> bytes:
        """Wait for bytes; none at all means that the peer has ended."""
        while not self.data and not self.ended:
            await self._change()
        if self.error is not None and not self.data:
            raise self.error
        data = bytes(self.data[:bytes_max])
        del self.data[:bytes_max]
        if len(self.data) <= AHEAD_BYTES_MAX:
            self.transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send, and wait while too much is under way."""
        if self.ended:
            raise self.error or ConnectionResetError("the peer has closed the connection")
        self.sent += len(data)
        self.transport.write(data)
        while self._paused:
            await self._change()

    async def _change(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)


class LoopStream(httpcore2.AsyncNetworkStream):
    """A line with the errors that the library expects."""

    def __init__(self, line: Line) -> None:
        self._line = line

    @property
    def traffic(self) -> tuple[int, int]:
        """How many bytes were sent and received."""
        return self._line.sent, self._line.received

    async def read(
        self,
        max_bytes: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is the library's.
    ) -> bytes:
        try:
            if timeout is None:
                return await self._line.read(max_bytes)
            async with asyncio.timeout(timeout):
                return await self._line.read(max_bytes)
        except TimeoutError as error:
            raise httpcore2.ReadTimeout(str(error)) from error
        except OSError as error:
            raise httpcore2.ReadError(str(error)) from error

    async def write(
        self,
        buffer: bytes,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is the library's.
    ) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._line.write(buffer)
        except TimeoutError as error:
            raise httpcore2.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from error

    async def aclose(self) -> None:
        """Close at once: whoever closes has read what it wanted. The loop needs a moment to let go of the socket."""
        self._line.transport.abort()
        await asyncio.sleep(0)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is the library's.
    ) -> LoopStream:
        """Go on encrypted, with a peer that proves to be who it was called as."""
        line, loop = self._line, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                secure = await loop.start_tls(line.transport, line, ssl_context, server_hostname=server_hostname)
        except BaseException as error:
            line.transport.abort()
            if isinstance(error, TimeoutError):
                raise HandshakeTimeout(str(error)) from error
            if isinstance(error, OSError):
                raise HandshakeFailed(str(error)) from error
            raise
        assert secure is not None
        line.transport = secure
        return LoopStream(line)

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return self._line.ended or bool(self._line.data)
        names = {"server_addr": "peername", "client_addr": "sockname"}
        return self._line.transport.get_extra_info(names.get(info, info))


async def connected(address: str, port: int) -> LoopStream:
    """A connection to an address; names are not resolved here."""
    try:
        _, line = await asyncio.get_running_loop().create_connection(Line, address, port)
    except OSError as error:
        raise httpcore2.ConnectError(str(error)) from error
    return LoopStream(line)


async def dialed(address: str, port: int) -> socket.socket:
    """The same as a socket, for a library that speaks another protocol."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (address, port))
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError):
            raise httpcore2.ConnectError(str(error)) from error
        raise
    return sock
