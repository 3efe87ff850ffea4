"""Connections that are checked: the one transport under every HTTP call.

A name is resolved once, each of its addresses is checked, and the connection goes to a checked address; TLS and the
`Host` header keep the name. So there is no moment between the check and the use in which a name could change its
mind, whoever sends the request, redirects included. No proxy, cookie or redirect is known here.

Loading the HTTP library takes a tenth of a second, so this module is imported when the first call is made.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

import httpcore2
import httpx2

from tidemill.security import addresses
from tidemill.security.addresses import Address
from tidemill.security.bodies import read_body
from tidemill.security.egress import SCHEMES, TOO_SLOW, CallFailed, Egress, Limits
from tidemill.security.pool import Connection, Pool
from tidemill.security.streams import HandshakeFailed, HandshakeTimeout, LoopStream, connected, dialed

T = TypeVar("T")
Opener = Callable[[str, int], Awaitable[T]]
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

ADDRESSES_MAX = 8
HEADER_TOO_LONG = 431
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
REPEATABLE = "repeatable"
"""The extension of a request that says whether it may be sent again; without one its method does."""
_UNPACKED = frozenset({b"content-encoding", b"content-length"})


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a name, as the system knows them."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in found]


class Connector:
    """Opens connections, to checked addresses only."""

    def __init__(self, egress: Egress, resolver: Resolver) -> None:
        self._egress, self._resolver = egress, resolver

    async def connect(self, host: str, port: int, seconds: float | None = None) -> LoopStream:
        """A connection for HTTP."""
        return await self._opened(connected, host, port, seconds)

    async def dial(self, host: str, port: int) -> socket.socket:
        """A connection for another protocol."""
        return await self._opened(dialed, host, port, None)

    async def _opened(self, opener: Opener[T], host: str, port: int, seconds: float | None) -> T:
        """Connect to the first address that answers; all of them together have the time of one connection."""
        longest = self._egress.limits.connect_ms / 1_000
        seconds = longest if seconds is None else min(longest, seconds)
        try:
            async with asyncio.timeout(seconds):
                found = await self._resolved(host, port)
                self._egress.check_addresses(host, port, found)
                return await _first_of(found, opener, port, seconds / len(found))
        except TimeoutError as error:
            message = f"{host} did not accept a connection within {seconds:g} s"
            raise CallFailed("connection_failed", message, retryable=True, unsent=True) from error

    async def _resolved(self, host: str, port: int) -> list[Address]:
        address = addresses.literal(host)
        if address is not None:
            return [address]
        try:
            found = await self._resolver(host, port)
        except (OSError, UnicodeError) as error:
            raise CallFailed(
                "host_unreachable", f"{host} cannot be resolved: {error}", retryable=True, hint=_NO_HOST
            ) from error
        parsed = [address for text in dict.fromkeys(found) if (address := addresses.literal(text))]
        if not parsed or len(parsed) < len(set(found)):
            raise CallFailed("host_unreachable", f"{host} has no address", retryable=True, hint=_NO_HOST)
        return parsed


async def _first_of(found: list[Address], opener: Opener[T], port: int, seconds: float) -> T:
    *others, last = [str(address) for address in found[:ADDRESSES_MAX]]
    for address in others:
        with suppress(TimeoutError, httpcore2.ConnectError):
            async with asyncio.timeout(seconds):
                return await opener(address, port)
    return await opener(last, port)


class CheckedTransport(httpx2.AsyncBaseTransport):
    """Sends one request, checked and bounded; everything that goes wrong is a `CallFailed`."""

    def __init__(self, egress: Egress, resolver: Resolver = resolve, tls: ssl.SSLContext | None = None) -> None:
        self._egress = egress
        self._pool = Pool(tls or httpx2.create_ssl_context(), Connector(egress, resolver).connect)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer with a body that is decompressed already, as far as it keeps within the limits."""
        url, limits = request.url, self._egress.limits
        host = url.raw_host.decode("ascii")
        self._egress.check_origin(url.scheme, host, url.port)
        request.headers["accept-encoding"] = "gzip"
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        wanted = httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port or SCHEMES[url.scheme], target=url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions={"timeout": {"connect": limits.connect_ms / 1_000}, **request.extensions},
        )
        repeatable = isinstance(request.stream, httpx2.ByteStream) and _may_be_repeated(request)
        connection, answer = await self._sent(wanted, host, repeatable=repeatable)
        give_back = partial(self._pool.put_back, wanted.url, connection)
        headers = [pair for pair in answer.headers if pair[0].lower() not in _UNPACKED]
        response = httpx2.Response(answer.status, headers=headers, stream=_Body(answer, host, limits, give_back))
        if sum(len(name) + len(value) for name, value in answer.headers) > limits.header_bytes_max:
            await response.aclose()
            message = f"the head of the answer of {host} is longer than {limits.header_bytes_max:,} bytes"
            raise CallFailed("response_too_large", message)
        return response

    async def _sent(
        self, wanted: httpcore2.Request, host: str, *, repeatable: bool
    ) -> tuple[Connection, httpcore2.Response]:
        """Send a request, and once more on a new connection where a kept one has died of it and that does no harm."""
        fresh, seconds = False, wanted.extensions["timeout"].get("connect")
        while True:
            with told(host):
                connection = await self._pool.take(wanted.url, seconds, fresh=fresh)
            try:
                return connection, await connection.handle_async_request(wanted)
            except BaseException as error:
                await self._pool.put_back(wanted.url, connection)
                if not isinstance(error, ERRORS):
                    raise
                if not _was_stale(connection, error) or not (repeatable or connection.unsent):
                    raise failed(error, host, _spoken_plainly(wanted, connection)) from error
                fresh = True

    async def aclose(self) -> None:
        """Close all connections."""
        await self._pool.close()


def _may_be_repeated(request: httpx2.Request) -> bool:
    """Whether it makes no difference if a request is carried out twice (RFC 9110, 9.2.2)."""
    said: bool | None = request.extensions.get(REPEATABLE)
    return request.method in IDEMPOTENT if said is None else said


def _was_stale(connection: Connection, error: Exception) -> bool:
    """Whether a kept connection was dead already: it ended before a byte of the answer came (RFC 9112, 9.3.1)."""
    died = isinstance(error, httpcore2.NetworkError | httpcore2.RemoteProtocolError)
    return died and connection.used and connection.unanswered


def _spoken_plainly(wanted: httpcore2.Request, connection: Connection) -> str:
    """A hint for whoever has called a port without TLS, as far as that may have been the mistake."""
    if wanted.url.scheme == b"https" or connection.used:
        return ""
    if connection.unread.startswith(_ALERT):
        return "it speaks TLS at this port: begin the URL with https://"
    return "if it speaks TLS at this port, begin the URL with https://" if connection.unanswered else ""


class _Body(httpx2.AsyncByteStream):
    """The body of an answer as it is read. Whoever begins to read it again goes on where the first one stopped."""

    def __init__(
        self, answer: httpcore2.Response, host: str, limits: Limits, give_back: Callable[[], Awaitable[None]]
    ) -> None:
        self._answer, self._host, self._limits, self._give_back = answer, host, limits, give_back
        self._closed = False
        self._pieces = self._read()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def _read(self) -> AsyncIterator[bytes]:
        encodings = [value.decode("latin-1") for name, value in self._answer.headers if _is_encoding(name)]
        try:
            async for piece in read_body(self._answer.aiter_stream(), ", ".join(encodings), self._limits):
                yield piece
        except ERRORS as error:
            raise failed(error, self._host) from error

    async def aclose(self) -> None:
        """Let go of the connection, once; it is used again if the answer was read to its end."""
        if not self._closed:
            self._closed = True
            await self._answer.aclose()
            await self._give_back()


def _is_encoding(name: bytes) -> bool:
    return name.lower() == b"content-encoding"


_NO_TLS = "this port does not seem to speak TLS: see the port, or call it with http:// (a mail server with starttls)"
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"})
"""What is wrong with bytes that are no TLS at all, as various versions of OpenSSL say it."""
_ALERT = b"\x15\x03"
"""How an alert of TLS begins, which is what its speakers answer to anything else."""
_CERTIFICATE = "see the certificate of the server, and which authorities this machine trusts"
_NO_HOST = "see the spelling of the host, and whether this machine can resolve names"
ERRORS = (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.UnsupportedProtocol)


def failed(error: Exception, host: str, hint: str = "") -> CallFailed:
    """What the library says, in our words."""
    below = error.__cause__
    if isinstance(below, ssl.SSLError) and not isinstance(below, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return tls_failed(below, host)
    if isinstance(error, HandshakeTimeout):
        message = f"{host} did not begin to encrypt in time"
        return CallFailed("timeout", message, retryable=True, hint=_NO_TLS, unsent=True)
    if isinstance(error, HandshakeFailed):
        message = f"{host} has hung up instead of encrypting"
        return CallFailed("connection_failed", message, retryable=True, hint=_NO_TLS, unsent=True)
    if isinstance(error, httpcore2.TimeoutException):
        return CallFailed("timeout", f"{host} did not answer in time", retryable=True, hint=TOO_SLOW)
    if isinstance(error, httpcore2.ConnectError):
        return CallFailed("connection_failed", f"{host} cannot be reached: {error}", retryable=True, unsent=True)
    if isinstance(error, httpcore2.LocalProtocolError):
        return CallFailed("request_invalid", f"the request cannot be sent: {error}")
    if getattr(below, "error_status_hint", 0) == HEADER_TOO_LONG:
        return CallFailed("response_too_large", f"the head of the answer of {host} has no end")
    return CallFailed("connection_failed", f"the connection to {host} was cut: {error}", retryable=True, hint=hint)


def tls_failed(error: ssl.SSLError, host: str) -> CallFailed:
    """Why there is no secure connection."""
    hint = _NO_TLS if error.reason in _NOT_TLS else _CERTIFICATE
    return CallFailed("tls_failed", f"there is no secure connection to {host}: {_reason(error)}", hint=hint)


@contextmanager
def told(host: str) -> Iterator[None]:
    """Say in our words what the library says."""
    try:
        yield
    except ERRORS as error:
        raise failed(error, host) from error


def _reason(error: ssl.SSLError) -> str:
    return str(getattr(error, "verify_message", "") or error.reason or error)
