"""The only HTTP client: every call over HTTP goes through `Fetcher`.

Redirects are followed here, never by the library: each hop is checked like the first, their number is limited, and
another origin gets neither credentials, nor other than harmless headers, nor the body. Bodies are decompressed piece by
piece, and a call fails as soon as one exceeds its limits, so a decompression bomb is never unpacked.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from tidemill.errors import CONFIG_FILE
from tidemill.expressions.errors import shorten
from tidemill.net.egress import TOO_SLOW, CallFailed, Egress, Limits, shown

if TYPE_CHECKING:
    import httpx2

    from tidemill.net.transport import CheckedTransport, Resolver


# Bounded bodies.

PIECE_BYTES = 65_536
_GZIP_BITS = 31
_RATIO_FROM_BYTES = 262_144
"""Below this size the expansion factor does not matter: a short body may grow a thousandfold."""


async def read_body(chunks: AsyncIterator[bytes], encoding: str, limits: Limits) -> AsyncIterator[bytes]:
    plain = encoding.strip().lower()
    if plain not in ("", "identity", "gzip", "x-gzip"):
        message = f"the answer is encoded as {shorten(plain, 40)!r}, which the request did not accept"
        raise CallFailed("response_invalid", message)
    unpack = Gzip() if plain.endswith("gzip") else None
    received = produced = 0
    async for chunk in chunks:
        received += len(chunk)
        for piece in (chunk,) if unpack is None else unpack(chunk):
            produced += len(piece)
            if produced > limits.bytes_max:
                raise too_large(limits.bytes_max)
            if produced > max(_RATIO_FROM_BYTES, received * limits.ratio_max):
                message = f"the response grows more than {limits.ratio_max} times when decompressed"
                raise CallFailed("response_too_large", message)
            yield piece
    if unpack is not None:
        unpack.end()


def too_large(bytes_max: int) -> CallFailed:
    hint = "ask for less, e.g. page by page; `tidemill nodes show http` shows how far max_bytes can be raised"
    return CallFailed("response_too_large", f"the answer is longer than {bytes_max:,} bytes", hint=hint)


class Gzip:
    """Decoder of one or more gzip members."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_BITS)
        self._begun = False

    def __call__(self, chunk: bytes) -> Iterator[bytes]:
        try:
            while chunk:
                if self._member.eof:
                    self._member = zlib.decompressobj(_GZIP_BITS)
                self._begun = True
                if piece := self._member.decompress(chunk, PIECE_BYTES):
                    yield piece
                chunk = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
        except zlib.error as error:
            raise CallFailed("response_invalid", "the answer says that it is gzip, but is not") from error

    def end(self) -> None:
        if self._begun and not self._member.eof:
            raise CallFailed("response_invalid", "the compressed answer is cut off", retryable=True)


# Calls.

URL_MAX = 8_192
REDIRECTS = frozenset({301, 302, 303, 307, 308})
HARMLESS = frozenset({"accept", "accept-language", "content-type", "user-agent"})
OWN = frozenset(
    {
        *("accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers that belong to the connection; callers may not set them."""
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_NO_URL = re.compile(r"[\x00-\x20\x7f\\]")


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request. Limits default to those of the deployment; a call can only lower size and redirects."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = {}
    credentials: Mapping[str, str] = {}
    """Headers that only the origin of the URL gets."""
    body: bytes = b""
    repeatable: bool | None = None
    """Whether it may be resent on a new connection, as with an idempotency key; None goes by the method."""
    total_ms: int | None = None
    bytes_max: int | None = None
    redirects_max: int | None = None
    forbidden_at: Callable[..., str] | None = None
    """The name of a secret in this call that may not be sent to an origin; empty if there is none. With `texts`, only
    secrets in these count."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    """Names in lower case."""
    url: str
    """The URL after redirects."""
    body: bytes

    def header(self, name: str) -> str:
        """The value of a header; empty if missing."""
        return ", ".join(value for found, value in self.headers if found == name)


class Streamed:
    """A response whose body is streamed."""

    def __init__(self, response: httpx2.Response, url: str, bytes_max: int) -> None:
        self._response, self._bytes_max = response, bytes_max
        self.status, self.reason, self.url = response.status_code, response.reason_phrase, url
        self.headers = tuple((name.lower(), value) for name, value in response.headers.multi_items())

    async def chunks(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._response.aiter_raw():
            size += len(chunk)
            if size > self._bytes_max:
                raise too_large(self._bytes_max)
            yield chunk


class Fetcher:
    """Sends requests under the egress policy. It opens on demand, also after it was closed."""

    def __init__(
        self, egress: Egress | None = None, *, resolver: Resolver | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.egress = egress or Egress()
        self._resolver, self._tls = resolver, tls
        self._opened: tuple[asyncio.AbstractEventLoop, CheckedTransport] | None = None

    def transport(self) -> CheckedTransport:
        """The transport of every request, also for a library with its own client."""
        # Imported here because loading the HTTP library takes a tenth of a second.
        from tidemill.net import transport

        loop = asyncio.get_running_loop()
        if self._opened is None or self._opened[0] is not loop:
            opened = transport.CheckedTransport(self.egress, self._resolver or transport.resolve, self._tls)
            self._opened = (loop, opened)
        return self._opened[1]

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None and opened[0] is asyncio.get_running_loop():
            await opened[1].aclose()

    async def fetch(self, call: Call) -> Answer:
        async with self.stream(call) as coming:
            body = b"".join([chunk async for chunk in coming.chunks()])
        return Answer(status=coming.status, reason=coming.reason, headers=coming.headers, url=coming.url, body=body)

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[Streamed]:
        """Call, and stream the response; the time limit includes reading it."""
        limits = self.egress.limits
        total_ms = limits.total_ms if call.total_ms is None else call.total_ms
        bytes_max = limits.bytes_max if call.bytes_max is None else min(call.bytes_max, limits.bytes_max)
        try:
            async with asyncio.timeout(total_ms / 1_000) as clock:
                response, url = await self._follow_redirects(call)
                try:
                    yield Streamed(response, str(url), bytes_max)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            if not clock.expired():
                raise
            message = f"{call.method} {shown(call.url)} was not answered within {total_ms / 1_000:g} s"
            raise CallFailed("timeout", message, retryable=True, hint=TOO_SLOW) from error

    async def _follow_redirects(self, call: Call) -> tuple[httpx2.Response, httpx2.URL]:
        redirects_max = self.egress.limits.redirects_max
        if call.redirects_max is not None:
            redirects_max = min(call.redirects_max, redirects_max)
        hop = _first_hop(call)
        if call.forbidden_at is not None:
            # A redirect to another origin carries nothing that is secret.
            check_secrets(call.forbidden_at, origin_text(hop.url))
        for _ in range(redirects_max + 1):
            response = await self.transport().handle_async_request(hop.request())
            location = response.headers.get("location")
            if response.status_code not in REDIRECTS or not location or not redirects_max:
                return response, hop.url
            await response.aclose()
            hop = hop.redirected(location, response.status_code, call.forbidden_at)
        message = f"{call.method} {shown(call.url)} was redirected more than {redirects_max} times"
        raise CallFailed("too_many_redirects", message)


class _Hop(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a chain of redirects."""

    method: str
    url: httpx2.URL
    headers: dict[str, str]
    body: bytes
    repeatable: bool | None

    def request(self) -> httpx2.Request:
        import httpx2

        from tidemill.net import transport

        headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        extensions = {transport.REPEATABLE: self.repeatable}
        return httpx2.Request(self.method, self.url, headers=headers, content=self.body, extensions=extensions)

    def redirected(self, location: str, status: int, forbidden_at: Callable[..., str] | None) -> _Hop:
        """The next hop. Another origin gets neither credentials, nor other than harmless headers, nor the body."""
        url, headers, repeatable = read_url(location, self.url), self.headers, self.repeatable
        same = origin(url) == origin(self.url)
        if not same:
            repeatable = without_key(repeatable)
            headers = harmless(headers, url, forbidden_at)
        # Only these redirects repeat the request; the others become a GET.
        if status in (307, 308) or self.method in ("GET", "HEAD"):
            if self.body and not same:
                message = f"{shown(str(self.url))} redirects the body to {url.host}"
                raise CallFailed("egress_refused", message, hint="call that host directly if you intend to")
            return _Hop(method=self.method, url=url, headers=headers, body=self.body, repeatable=repeatable)
        headers = {name: value for name, value in headers.items() if name != "content-type"}
        return _Hop(method="GET", url=url, headers=headers, body=b"", repeatable=without_key(repeatable))


def harmless(headers: Mapping[str, str], url: httpx2.URL, forbidden_at: Callable[..., str] | None) -> dict[str, str]:
    """The headers that another origin may get: none that says who asks, and none with a secret that is not for it."""
    known = {name: value for name, value in headers.items() if name in HARMLESS}
    if forbidden_at is None:
        return known
    there = origin_text(url)
    return {name: value for name, value in known.items() if not forbidden_at(there, texts=(value,))}


def check_secrets(forbidden_at: Callable[[str], str], origin: str) -> None:
    """Refuse to send a secret to an origin that it was not granted for."""
    if name := forbidden_at(origin):
        message = f"the secret {name} may not be sent to {origin}"
        raise CallFailed("origin_not_allowed", message, hint=origin_hint(name, origin))


def origin_hint(secret: str, origin: str) -> str:
    line = f'"{origin}" to `origins` under `[secrets.{secret}]`'
    return f"the operator adds {line} in {CONFIG_FILE}, or to TIDEMILL_SECRET_GRANTS where that names the secret"


def without_key(repeatable: bool | None) -> bool | None:
    """`repeatable` of a call whose idempotency key is not sent."""
    return False if repeatable is False else None


def _first_hop(call: Call) -> _Hop:
    headers: dict[str, str] = {"user-agent": "tidemill"}
    for name, value in (*call.headers.items(), *call.credentials.items()):
        lower = name.lower()
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            message = f"the header {shorten(name, 80)!r} cannot be sent: a character is not allowed"
            raise CallFailed("request_invalid", message)
        if lower in OWN:
            raise CallFailed("request_invalid", f"the header {lower} belongs to the connection and cannot be set")
        headers[lower] = value
    return _Hop(method=call.method, url=read_url(call.url), headers=headers, body=call.body, repeatable=call.repeatable)


# URLs.


def read_url(text: str, base: httpx2.URL | None = None) -> httpx2.URL:
    """Parse a URL, or a redirect from `base`: absolute, with a host, without credentials."""
    import httpx2

    if len(text) > URL_MAX:
        raise CallFailed("url_invalid", f"the URL is longer than {URL_MAX:,} characters")
    # Programs disagree about the meaning of a backslash or a space in a URL.
    if _NO_URL.search(text):
        message = f"{shown(text)} holds a space, a backslash or a control character"
        raise CallFailed("url_invalid", message, hint="write %20 for a space")
    try:
        url = httpx2.URL(text) if base is None else base.join(text)
    except httpx2.InvalidURL:
        # The library's message may quote a part of a password.
        what = shown(text) if base is None else f"{shown(text)}, a redirect,"
        hint = "check its host and port; percent-encode special characters in values"
        raise CallFailed("url_invalid", f"{what} is not a URL", hint=hint) from None
    if not url.scheme:
        raise CallFailed("url_invalid", "the URL has no scheme", hint="begin with https:// and a host")
    if url.userinfo:
        message = f"{shown(str(url))} holds credentials"
        raise CallFailed("url_invalid", message, hint="credentials belong into `auth`, not into a URL")
    return url


def origin(url: httpx2.URL) -> tuple[str, bytes, int | None]:
    """The scope of credentials."""
    return url.scheme, url.raw_host, url.port


def origin_text(url: httpx2.URL) -> str:
    """The same as text, as the operator's grants name it."""
    return f"{url.scheme}://{url.netloc.decode()}"


def same_origin(one: str, other: str) -> bool:
    """Whether credentials for one URL may be sent to the other."""
    return origin(read_url(one)) == origin(read_url(other))
