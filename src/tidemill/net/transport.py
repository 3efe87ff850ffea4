"""The one transport under every HTTP call: checked connections, and the pool that keeps them.

A name is resolved once, every address is checked, and the connection goes to a checked address, while TLS and `Host`
keep the name: a name cannot change between check and use. No proxies, cookies or redirects here.
The event loop reads ahead, so a hang-up on an idle connection is known without a system call; the library would ask for
all connections before each request. A connection over which more came than the response is not reused, because the
surplus would be taken for the next response. Loading the HTTP library is slow: import this module with the first call.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, TypeVar

import httpcore2
import httpx2

from tidemill.net import egress
from tidemill.net.egress import SCHEMES, TOO_SLOW, Address, CallFailed, Egress, Limits
from tidemill.net.http_client import read_body

# Connections.

AHEAD_BYTES_MAX = 262_144


class HandshakeFailed(httpcore2.ConnectError):
    """The connection is open, but TLS fails."""


class HandshakeTimeout(httpcore2.ConnectTimeout):
    """The connection is open, but the peer does not answer the TLS handshake."""


class Line(asyncio.Protocol):
    """Buffers what the peer sends, and applies back-pressure in both directions."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.data = bytearray()
        self.sent = self.received = 0
        """Bytes so far; they tell how far a failed request got."""
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
        """Wait for bytes; empty means that the peer has closed."""
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
        """Send, and wait while the send buffer is full."""
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
    """A connection with the interface and errors that the library expects."""

    def __init__(self, line: Line) -> None:
        self._line = line

    @property
    def traffic(self) -> tuple[int, int]:
        return self._line.sent, self._line.received

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        try:
            async with asyncio.timeout(timeout):
                return await self._line.read(max_bytes)
        except TimeoutError as error:
            raise httpcore2.ReadTimeout(str(error)) from error
        except OSError as error:
            raise httpcore2.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        try:
            async with asyncio.timeout(timeout):
                await self._line.write(buffer)
        except TimeoutError as error:
            raise httpcore2.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from error

    async def aclose(self) -> None:
        """Close without flushing; the event loop needs one iteration to release the socket."""
        self._line.transport.abort()
        await asyncio.sleep(0)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is the library's.
    ) -> LoopStream:
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
    """Connect to an address, not a name."""
    try:
        _, line = await asyncio.get_running_loop().create_connection(Line, address, port)
    except OSError as error:
        raise httpcore2.ConnectError(str(error)) from error
    return LoopStream(line)


async def dialed(address: str, port: int) -> socket.socket:
    """The same as a socket, for other protocols."""
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


# Pool.

Origin = tuple[bytes, bytes, int | None]
Connect = Callable[[str, int, float | None], Awaitable[LoopStream]]
"""Connects to a host and a port within some seconds."""

KEPT_MAX = 100


class PooledConnection(httpcore2.AsyncHTTP11Connection):
    """A connection that counts the bytes of its last request."""

    def __init__(self, origin: httpcore2.Origin, stream: LoopStream) -> None:
        super().__init__(origin=origin, stream=stream, keepalive_expiry=30)
        self._stream, self._before = stream, stream.traffic
        self.used = False
        """Whether it has served an earlier request."""

    async def handle_async_request(self, request: httpcore2.Request) -> httpcore2.Response:
        self._before = self._stream.traffic
        return await super().handle_async_request(request)

    @property
    def unsent(self) -> bool:
        """Whether nothing of the last request was sent."""
        return self._stream.traffic[0] == self._before[0]

    @property
    def unanswered(self) -> bool:
        """Whether nothing was received since."""
        return self._stream.traffic[1] == self._before[1]

    @property
    def unread(self) -> bytes:
        """Received bytes that belong to no response."""
        return self._h11_state.trailing_data[0]

    @property
    def is_good(self) -> bool:
        """Whether it can be reused: idle, not expired, and nothing unread."""
        return self.is_available() and not self.unread and not self.has_expired()


class Pool:
    """Idle connections by origin; the last used one is reused first."""

    def __init__(self, tls: ssl.SSLContext, connect: Connect) -> None:
        tls.set_alpn_protocols(["http/1.1"])
        self._tls, self._connect = tls, connect
        self._kept: dict[Origin, deque[PooledConnection]] = {}
        self._lent: set[PooledConnection] = set()
        self._size = 0

    async def take(self, url: httpcore2.URL, seconds: float | None, *, fresh: bool = False) -> PooledConnection:
        """A connection for one request: a kept one that is still good, or a new one."""
        lent = self._lent  # Closing the pool while this request connects replaces the set.
        kept = None if fresh else self._kept.get(_origin(url))
        while kept:
            connection = kept.pop()
            self._size -= 1
            if connection.is_good:
                break
            await connection.aclose()
        else:
            connection = PooledConnection(url.origin, await self._opened(url.origin, seconds))
        lent.add(connection)
        return connection

    async def _opened(self, origin: httpcore2.Origin, seconds: float | None) -> LoopStream:
        host = origin.host.decode("ascii")
        stream = await self._connect(host, origin.port, seconds)
        if origin.scheme == b"https":
            stream = await stream.start_tls(self._tls, server_hostname=host, timeout=seconds)
        return stream

    async def put_back(self, url: httpcore2.URL, connection: PooledConnection) -> None:
        """Keep the connection of a finished request, unless it broke or the pool was closed."""
        if connection not in self._lent or not connection.is_good:
            self._lent.discard(connection)
            await connection.aclose()
            return
        self._lent.discard(connection)
        connection.used = True
        self._kept.setdefault(_origin(url), deque()).append(connection)
        self._size += 1
        # Close the oldest connection of the first origin, if there are too many or it has expired.
        origin, kept = next(iter(self._kept.items()))
        if not kept:
            del self._kept[origin]
        elif self._size > KEPT_MAX or kept[0].has_expired():
            self._size -= 1
            await kept.popleft().aclose()

    async def close(self) -> None:
        """Close idle connections; those in use are closed when they are put back."""
        kept, self._kept, self._size, self._lent = self._kept, {}, 0, set()
        for connections in kept.values():
            for connection in connections:
                await connection.aclose()


def _origin(url: httpcore2.URL) -> Origin:
    return url.scheme, url.host, url.port


# Resolving and checking.

T = TypeVar("T")
Opener = Callable[[str, int], Awaitable[T]]
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

REPEATABLE = "repeatable"
"""Request extension: whether it may be resent; by default its method decides."""


async def resolve(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in found]


class Connector:
    """Opens connections to checked addresses only."""

    def __init__(self, egress: Egress, resolver: Resolver) -> None:
        self._egress, self._resolver = egress, resolver

    async def connect(self, host: str, port: int, seconds: float | None = None) -> LoopStream:
        return await self._opened(connected, host, port, seconds)

    async def dial(self, host: str, port: int) -> socket.socket:
        return await self._opened(dialed, host, port, None)

    async def _opened(self, opener: Opener[T], host: str, port: int, seconds: float | None) -> T:
        """Connect to the first address that accepts; the time limit is for all of them together."""
        longest = self._egress.limits.connect_ms / 1_000
        seconds = longest if seconds is None else min(longest, seconds)
        try:
            async with asyncio.timeout(seconds):
                found = await self._resolved(host, port)
                self._egress.check_addresses(host, port, found)
                return await _first_accepting(found, opener, port, seconds / len(found))
        except TimeoutError as error:
            message = f"{host} did not accept a connection within {seconds:g} s"
            raise CallFailed("connection_failed", message, retryable=True, unsent=True) from error

    async def _resolved(self, host: str, port: int) -> list[Address]:
        address = egress.literal(host)
        if address is not None:
            return [address]
        try:
            found = await self._resolver(host, port)
        except (OSError, UnicodeError) as error:
            message = f"{host} cannot be resolved: {error}"
            raise CallFailed("host_unreachable", message, retryable=True, hint=_NO_HOST) from error
        parsed = [address for text in dict.fromkeys(found) if (address := egress.literal(text))]
        if not parsed or len(parsed) < len(set(found)):
            raise CallFailed("host_unreachable", f"{host} has no address", retryable=True, hint=_NO_HOST)
        return parsed


async def _first_accepting(found: list[Address], opener: Opener[T], port: int, seconds: float) -> T:
    *others, last = [str(address) for address in found[:8]]
    for address in others:
        with suppress(TimeoutError, httpcore2.ConnectError):
            async with asyncio.timeout(seconds):
                return await opener(address, port)
    return await opener(last, port)


# The transport.


@cache
def trusted_authorities() -> ssl.SSLContext:
    """The authorities that this machine trusts. Reading them takes a tenth of a second, so a worker does it first."""
    return httpx2.create_ssl_context()


class CheckedTransport(httpx2.AsyncBaseTransport):
    """Sends requests under the egress policy; every error is a `CallFailed`."""

    def __init__(self, egress: Egress, resolver: Resolver = resolve, tls: ssl.SSLContext | None = None) -> None:
        self._egress = egress
        self._pool = Pool(tls or trusted_authorities(), Connector(egress, resolver).connect)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; the body of the response is decompressed and bounded."""
        url, limits = request.url, self._egress.limits
        host = url.raw_host.decode("ascii")
        self._egress.check_origin(url.scheme, host, url.port)
        request.headers["accept-encoding"] = "gzip"
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        port = url.port or SCHEMES[url.scheme]
        wanted = httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions={"timeout": {"connect": limits.connect_ms / 1_000}, **request.extensions},
        )
        repeatable = request.extensions.get(REPEATABLE)
        if repeatable is None:
            # Whether it may be processed twice (RFC 9110, 9.2.2).
            repeatable = request.method in ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE")
        repeatable = repeatable and isinstance(request.stream, httpx2.ByteStream)
        connection, answer = await self._send(wanted, host, repeatable=repeatable)
        give_back = partial(self._pool.put_back, wanted.url, connection)
        headers = [pair for pair in answer.headers if pair[0].lower() not in (b"content-encoding", b"content-length")]
        response = httpx2.Response(answer.status, headers=headers, stream=_Body(answer, host, limits, give_back))
        if sum(len(name) + len(value) for name, value in answer.headers) > limits.header_bytes_max:
            await response.aclose()
            message = f"the head of the answer of {host} is longer than {limits.header_bytes_max:,} bytes"
            raise CallFailed("response_too_large", message)
        return response

    async def _send(
        self, wanted: httpcore2.Request, host: str, *, repeatable: bool
    ) -> tuple[PooledConnection, httpcore2.Response]:
        """Send a request, and again on a new connection if a kept one was stale and repeating is harmless."""
        fresh, seconds = False, wanted.extensions["timeout"].get("connect")
        while True:
            with translate_errors(host):
                connection = await self._pool.take(wanted.url, seconds, fresh=fresh)
            try:
                return connection, await connection.handle_async_request(wanted)
            except BaseException as error:
                await self._pool.put_back(wanted.url, connection)
                if not isinstance(error, ERRORS):
                    raise
                if not _was_stale(connection, error) or not (repeatable or connection.unsent):
                    raise failed(error, host, _tls_hint(wanted, connection)) from error
                fresh = True

    async def aclose(self) -> None:
        await self._pool.close()


def _was_stale(connection: PooledConnection, error: Exception) -> bool:
    """Whether a kept connection ended before a byte of the response came (RFC 9112, 9.3.1)."""
    died = isinstance(error, httpcore2.NetworkError | httpcore2.RemoteProtocolError)
    return died and connection.used and connection.unanswered


def _tls_hint(wanted: httpcore2.Request, connection: PooledConnection) -> str:
    """A hint that the port may expect TLS; empty if that cannot be the reason."""
    if wanted.url.scheme == b"https" or connection.used:
        return ""
    if connection.unread.startswith(_ALERT):
        return "it speaks TLS at this port: begin the URL with https://"
    return "if it speaks TLS at this port, begin the URL with https://" if connection.unanswered else ""


class _Body(httpx2.AsyncByteStream):
    """The body of a response as it is read. A second iteration continues where the first one stopped."""

    def __init__(
        self, answer: httpcore2.Response, host: str, limits: Limits, give_back: Callable[[], Awaitable[None]]
    ) -> None:
        self._answer, self._host, self._limits, self._give_back = answer, host, limits, give_back
        self._closed = False
        self._pieces = self._read()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def _read(self) -> AsyncIterator[bytes]:
        found = [value for name, value in self._answer.headers if name.lower() == b"content-encoding"]
        encoding = b", ".join(found).decode("latin-1")
        try:
            async for piece in read_body(self._answer.aiter_stream(), encoding, self._limits):
                yield piece
        except ERRORS as error:
            raise failed(error, self._host) from error

    async def aclose(self) -> None:
        """Return the connection to the pool, which reuses it if the response was read to its end."""
        if not self._closed:
            self._closed = True
            await self._answer.aclose()
            await self._give_back()


# Errors.

_NO_TLS = "this port does not seem to speak TLS: check the port, or use http:// (for a mail server starttls)"
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"})
"""Reasons that versions of OpenSSL give for bytes that are not TLS."""
_ALERT = b"\x15\x03"
"""Start of a TLS alert, which a TLS server sends in reply to plain HTTP."""
_NO_HOST = "check the spelling of the host, and whether this machine can resolve names"
_NOT_LISTENING = "check that the service runs there, and the port"
ERRORS = (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.UnsupportedProtocol)


def failed(error: Exception, host: str, hint: str = "") -> CallFailed:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return tls_failed(cause, host)
    if isinstance(error, HandshakeTimeout):
        message = f"{host} did not complete the TLS handshake in time"
        return CallFailed("timeout", message, retryable=True, hint=_NO_TLS, unsent=True)
    if isinstance(error, HandshakeFailed):
        message = f"{host} closed the connection during the TLS handshake"
        return CallFailed("connection_failed", message, retryable=True, hint=_NO_TLS, unsent=True)
    if isinstance(error, httpcore2.TimeoutException):
        return CallFailed("timeout", f"{host} did not answer in time", retryable=True, hint=TOO_SLOW)
    if isinstance(error, httpcore2.ConnectError):
        message, hint = f"{host} cannot be reached: {error}", ""
        if isinstance(cause, ConnectionRefusedError):
            message, hint = f"{host} refuses connections: {error}", _NOT_LISTENING
        return CallFailed("connection_failed", message, retryable=True, unsent=True, hint=hint)
    if isinstance(error, httpcore2.LocalProtocolError):
        return CallFailed("request_invalid", f"the request cannot be sent: {error}")
    if getattr(cause, "error_status_hint", 0) == 431:
        return CallFailed("response_too_large", f"the head of the answer of {host} has no end")
    return CallFailed("connection_failed", f"the connection to {host} was cut: {error}", retryable=True, hint=hint)


def tls_failed(error: ssl.SSLError, host: str) -> CallFailed:
    certificate = "check the certificate of the server, and which authorities this machine trusts"
    hint = _NO_TLS if error.reason in _NOT_TLS else certificate
    reason = getattr(error, "verify_message", "") or error.reason or error
    return CallFailed("tls_failed", f"there is no secure connection to {host}: {reason}", hint=hint)


@contextmanager
def translate_errors(host: str) -> Iterator[None]:
    """Raise errors of the library as `CallFailed`."""
    try:
        yield
    except ERRORS as error:
        raise failed(error, host) from error
