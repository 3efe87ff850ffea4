"""What protects the service from its clients: bounded bodies, rate limits, refusals under load, security headers.

`Protection` is ASGI middleware around the whole application. When a route asks for the body of a request, which it does
once it has admitted the caller, the body is read as a whole, except that of a blob, and refused if it is too large, too
slow, encoded, of a wrong type or nested too deeply.
`LoadGuard` is asked once the caller is known: a limit by an unproven name could be used up by anyone.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from itertools import accumulate
from typing import Any, Literal
from urllib.parse import unquote

from limits import RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemill.api.server_settings import ServerLimits
from tidemill.engine.engine import Engine
from tidemill.errors import Problem, Rejected, rejected
from tidemill.security.roles import Principal
from tidemill.stores.contract import Backlog

SECURITY_HEADERS: Mapping[bytes, bytes] = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}
"""Default headers of a response."""
HSTS = b"max-age=31536000"
JSON_TYPE = re.compile(r"application/(?:[a-z0-9.+-]+\+)?json")
TEXT_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "text/plain"})

DRAINED_BYTES, DRAINED_SECONDS = 64 << 20, 2.0
"""What is read of a refused body at most."""

BodyKind = Literal["json", "document", "blob"]


class Protection:
    """`documents` and `blobs` are the paths of requests with other bodies than JSON."""

    def __init__(
        self, app: ASGIApp, *, limits: ServerLimits, documents: frozenset[str] = frozenset(), blobs: str = ""
    ) -> None:
        self._app, self._limits, self._documents, self._blobs = app, limits, documents, blobs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        scope = _with_whole_segments(scope)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        is_whole = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
        checked: Receive | None = None

        async def receive_noting() -> Message:
            nonlocal is_whole
            message = await receive()
            is_whole = is_whole or not message.get("more_body", False)
            return message

        async def receive_checked() -> Message:
            nonlocal checked
            if checked is None:
                checked = receive if is_whole else await self._checked(scope, headers, receive_noting)
            return await checked()

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                if not is_whole and "expect" not in headers:
                    await _drain(receive_noting)
                _add_headers(message, secure=scope["scheme"] == "https", last=not is_whole)
            await send(message)

        await self._app(scope, receive_checked, send_protected)

    async def _checked(self, scope: Scope, headers: Mapping[str, str], receive: Receive) -> Receive:
        """The source of the body for the application, once it is checked."""
        length = headers.get("content-length", "")
        if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            message = "a body with a Content-Encoding is not accepted"
            raise rejected("content_encoding_unsupported", message, hint="send it uncompressed")
        kind, path = self._kind_of(scope), f"{scope['method']} {scope['path']}"
        bytes_max = self._limits.blob_bytes if kind == "blob" else self._limits.body_bytes
        if length.isdecimal() and (len(length) > 15 or int(length) > bytes_max):
            raise _too_large(bytes_max)
        if kind == "blob":
            return _bounded(receive, bytes_max)
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                body = await _read(receive, bytes_max)
        except TimeoutError:
            message = f"the body of {path} did not arrive within {self._limits.body_seconds:g} s"
            raise rejected("body_slow", message, hint="send it faster, or send less") from None
        if body:
            self._check_type(headers.get("content-type", ""), kind, body)
        return _replayed(body, receive)

    def _kind_of(self, scope: Scope) -> BodyKind:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["method"] == "POST" and path == self._blobs:
            return "blob"
        return "document" if path in self._documents else "json"

    def _check_type(self, content_type: str, kind: BodyKind, body: bytes) -> None:
        media_type = content_type.partition(";")[0].strip().lower()
        if JSON_TYPE.fullmatch(media_type):
            self._check_json(body)
            if kind == "json":
                # The reader of documents says where it is.
                _check_characters(body)
        elif kind != "document" or media_type not in TEXT_TYPES:
            hint = "send Content-Type: application/json" + (" or application/yaml" if kind == "document" else "")
            message = (
                f"a body of type {media_type[:80]!r} is not accepted here" if media_type else "the body has no type"
            )
            raise rejected("content_type_unsupported", message, hint=hint)

    def _check_json(self, body: bytes) -> None:
        """Refuse JSON that is nested too deeply or has too many keys, before anything is built of it."""
        depth_max, keys_max = self._limits.json_depth, self._limits.json_keys
        deep, wide = body.count(b"{") + body.count(b"[") > depth_max, body.count(b":") > keys_max
        if not deep and not wide:
            return
        # Brackets and colons within texts do not count.
        bare = _TEXT.sub(b"", body)
        if bare.count(b":") > keys_max:
            message = f"the body has more than {keys_max:,} keys"
            raise rejected("body_too_complex", message, hint="send it in parts, or as a blob")
        steps = memoryview(bare.translate(_STEPS, _NO_BRACKETS)).cast("b")
        if max(accumulate(steps, initial=0)) > depth_max:
            message = f"the body is nested more than {depth_max} levels deep"
            raise rejected("body_too_complex", message, hint="flatten the data")


ESCAPED = "tidemill.escaped"
"""In the scope of a request whose path has segments with escapes: those that the client has escaped."""


def _with_whole_segments(scope: Scope) -> Scope:
    """A scope in which a slash that was sent as %2F, of the id of a run, separates no segments."""
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" not in raw.lower():
        return scope
    path = "/".join(unquote(part).replace("%", "%25").replace("/", "%2F") for part in raw.decode("latin-1").split("/"))
    return {**scope, "path": path, ESCAPED: True}


def unescaped(values: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of such a path."""
    return {name: unquote(value) if isinstance(value, str) else value for name, value in values.items()}


def _check_characters(body: bytes) -> None:
    """Refuse JSON that is not UTF-8, which would be counted wrongly, and halves of surrogate pairs."""
    try:
        # UTF-16 without a mark can be read as UTF-8, as far as its bytes go.
        is_utf8 = b"\0" not in body and bool(body.decode())
    except UnicodeDecodeError:
        is_utf8 = False
    if not is_utf8:
        raise rejected("body_malformed", "the body is not JSON in UTF-8", hint="send it as UTF-8")
    if re.search(rb"\\u[dD]", body) and any(_SURROGATE.findall(body)):
        message = "half of a surrogate pair is not a character"
        raise rejected("body_malformed", message, hint="send the whole character")


_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A text, also one that does not end: else each quotation mark within it would be tried as the beginning of another."""
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(sorted({*range(256)} - {*b"[{]}"}))
_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
"""An escape; its group is half of a pair without the other."""


def _add_headers(message: MutableMapping[str, Any], *, secure: bool, last: bool) -> None:
    """`last`: the connection is of no more use, as the rest of a body may come yet."""
    headers = list(message.get("headers", ()))
    present = {name.lower() for name, _ in headers}
    headers += [(name, value) for name, value in SECURITY_HEADERS.items() if name not in present]
    if secure:
        headers.append((b"strict-transport-security", HSTS))
    if last:
        headers.append((b"connection", b"close"))
    message["headers"] = headers


def _too_large(bytes_max: int) -> Rejected:
    hint = "send less, or large values as blobs; the operator raises the limit under `[server.limits]`"
    return rejected("body_too_large", f"the body is longer than {bytes_max:,} bytes", hint=hint)


async def _read(receive: Receive, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise rejected("body_malformed", "the body was cut off", hint="send the whole request again")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > bytes_max:
            raise _too_large(bytes_max)
        if not message.get("more_body", False):
            return b"".join(parts)


async def _drain(receive: Receive) -> None:
    """Read the rest of a refused body, within bounds: a client that is still sending does not read the refusal."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAINED_SECONDS):
            while size <= DRAINED_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return


def _replayed(body: bytes, receive: Receive) -> Receive:
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_message


def _bounded(receive: Receive, bytes_max: int) -> Receive:
    size = 0

    async def next_message() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > bytes_max:
            raise _too_large(bytes_max)
        return message

    return next_message


# Load

CHECK_SECONDS = 1.0
"""How often the backlog is read at most."""
WINDOW_MS = 10_000
"""Commits that count for how slow the store is."""
COMMITS_MIN = 5
JUDGED_FOR_MS = 200
"""How often the times of commits are looked at."""
EXPENSIVE = 20
"""The weight of a request that reads thousands of rows."""
STARTING = "runs:start"
"""The permission of requests that start new work."""


class TooMany(Rejected):
    """The caller has to wait for `retry_after_s` seconds."""

    def __init__(self, problem: Problem, retry_after_s: int) -> None:
        super().__init__(problem)
        self.retry_after_s = retry_after_s


class LoadGuard:
    """Refuses requests of callers that ask too often, and new runs while there is too much work. One per process."""

    def __init__(self, engine: Engine, limits: ServerLimits) -> None:
        self._engine, self._limits = engine, limits
        self._windows = FixedWindowRateLimiter(MemoryStorage())
        self._rates = [
            (kind, RateLimitItemPerSecond(number))
            for kind, number in (
                ("key", limits.key_requests_per_second),
                ("tenant", limits.tenant_requests_per_second),
            )
            if number
        ]
        self._slow, self._judged_ms = False, float("-inf")
        self._read_at = float("-inf")
        self._backlog: list[Backlog] = []
        self._reading = asyncio.Lock()

    async def admit(self, principal: Principal, permission: str, weight: int = 1) -> None:
        """Raises Rejected (`rate_limited`, `backlog_full`, `store_slow`). It counts as `weight` requests."""
        who = {"key": principal.key_id or principal.name, "tenant": principal.tenant}
        for kind, rate in self._rates:
            # What counts for more than a second has can be asked once in it.
            if not self._windows.hit(rate, kind, principal.tenant, who[kind], cost=min(weight, rate.amount)):
                message = f"more than {rate.amount} requests of the {kind} in a second"
                message += f"; this one counts as {weight}" if weight > 1 else ""
                raise TooMany(Problem(code="rate_limited", message=message, hint="slow down"), 1)
        if permission == STARTING:
            self._check_commits()
            await self._check_backlog(principal.tenant)

    def _check_commits(self) -> None:
        now = self._engine.context.ambient.monotonic_ms()
        if now - self._judged_ms >= JUDGED_FOR_MS:
            took = sorted(ms for at, ms in self._engine.turns.commit_times if now - at < WINDOW_MS)
            slow = len(took) >= COMMITS_MIN and took[len(took) * 95 // 100] > self._limits.commit_ms
            self._slow, self._judged_ms = slow, now
        if self._slow:
            message = f"the store takes longer than {self._limits.commit_ms} ms to commit"
            problem = Problem(code="store_slow", message=message, hint="send the same request again later")
            raise TooMany(problem, 5)

    async def _check_backlog(self, tenant: str) -> None:
        jobs = sum(each.ready + each.leased for each in await self.backlog() if each.tenant == tenant)
        if jobs > self._limits.backlog_jobs:
            message = f"more than {self._limits.backlog_jobs:,} jobs of the tenant are waiting or running"
            hint = "add workers, or send the same request again later"
            raise TooMany(Problem(code="backlog_full", message=message, hint=hint), 5)

    async def backlog(self) -> list[Backlog]:
        """The work of all tenants, as it was within the last second."""
        if self._reading.locked() and self._backlog:
            return self._backlog
        async with self._reading:
            if time.monotonic() - self._read_at >= CHECK_SECONDS:
                self._backlog, self._read_at = await self._engine.context.store.backlog(), time.monotonic()
            return self._backlog
