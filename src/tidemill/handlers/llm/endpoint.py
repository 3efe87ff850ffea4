"""What the providers over HTTP share: a request, its answer whole or as a stream, errors and rate limits.

A protocol is a `WireFormat`; everything else is here. Endpoints with the same protocol differ, so only the few response
fields that are used are decoded, and an error is classified by status, code and text together. Nothing is sent that the
question does not name, except that a request is sent again without optional fields that the endpoint rejects.
Redirects are not followed, and only the engine retries.
"""

from __future__ import annotations

import asyncio
import codecs
import io
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tidemill.ambient import wall_clock_ms
from tidemill.expressions.errors import shorten
from tidemill.handlers.contract import Fail, truncate
from tidemill.handlers.http.exchange import RETRY_AFTER_MS_MAX, failure, retry_after_ms
from tidemill.handlers.llm.provider import (
    NOT_JSON,
    Ask,
    OnText,
    Question,
    Reply,
    Settings,
    ToolCall,
    Usage,
    bounded_usage,
)
from tidemill.net.egress import CallFailed, shown
from tidemill.net.http_client import Call, Fetcher, Streamed, read_url

# Errors and rate limits.

_SAID_MAX = 300
_WORDS_MAX = 2_000
_TOO_LONG = re.compile(
    r"context[ _](length|limit|window|size)|maximum context|too many (input )?tokens|prompt is too long", re.IGNORECASE
)
_REFUSED = re.compile(r"content[ _](filter|policy|management)|safety (system|policy)|moderation", re.IGNORECASE)
_NO_MODEL = re.compile(
    r"model_not_found|not_found_error model\b|\bmodel\b.*\b(not (exist|found|available|supported)|unknown|invalid)",
    re.IGNORECASE | re.DOTALL,
)
_NO_MONEY = re.compile(r"insufficient[ _](quota|funds|balance|credit)|credit balance", re.IGNORECASE)
_OVERLOADED = re.compile(r"overloaded|rate.?limit", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,12}(\.\d{1,9})?")
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000, 1)


class ProviderRefused(Exception):
    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.status, self.headers, self.text = status, headers, body.decode("utf-8", "replace")
        super().__init__(f"{status}: {truncate(self.text, _SAID_MAX)}")

    @property
    def body(self) -> Any:
        """The error object of the response; its text if it is not JSON."""
        try:
            decoded = msgspec.json.decode(self.text)
        except NOT_JSON:
            return self.text
        return decoded.get("error", decoded) if isinstance(decoded, dict) else self.text


class Fault(NamedTuple):
    code: str
    retryable: bool = False
    hint: str = ""


def refusal(status: int, body: Any, headers: Mapping[str, str], now_ms: int, otherwise: str = "") -> Fail:
    """The failure of an attempt whose call the provider refused; status 0 if the response had already begun."""
    if isinstance(body, Mapping):
        said, code, kind = (str(body.get(key) or "") for key in ("message", "code", "type"))
        quoted, words = _short(said or code or otherwise), f"{code} {kind} {said}"
    else:
        words = body if isinstance(body, str) else otherwise
        quoted = _short(words)
    fault = _fault(status, words[:_WORDS_MAX])
    message = f"the provider answered with {status}: {quoted}" if status else f"the provider broke off: {quoted}"
    asked = wait_ms(headers, now_ms) if fault.retryable else None
    wait = None if asked is None else min(asked, RETRY_AFTER_MS_MAX)
    return Fail(fault.code, message, retryable=fault.retryable, retry_after_ms=wait, hint=fault.hint)


def _short(text: str) -> str:
    return shorten(" ".join(truncate(text, _WORDS_MAX).split()), _SAID_MAX) or "nothing more"


_OUTAGE = "allow more attempts with `retry`, or name `fallbacks` to use instead"


def _fault(status: int, words: str) -> Fault:
    if status in (401, 403):
        return Fault("auth_failed", hint="check `api_key`: it is missing, wrong or not allowed to use this model")
    if status == 402 or (_NO_MONEY.search(words) and status < 500):
        return Fault("quota_exhausted", hint="check your account at the provider")
    if status == 429 or (not status and _OVERLOADED.search(words)):
        return Fault(
            "rate_limited", True, "send fewer requests, e.g. with `limits.max_parallel`, or allow more attempts"
        )
    if status >= 500 or status in (408, 409, 425):
        return Fault("provider_unavailable", True, _OUTAGE)
    if status == 413 or _TOO_LONG.search(words):
        return Fault("context_too_long", hint="shorten the messages, or use a model with a longer context")
    if _REFUSED.search(words):
        return Fault("content_refused", hint="say it differently")
    if _NO_MODEL.search(words):
        return Fault("model_unknown", hint="check `model`: the provider has no model of this name")
    if not status:
        return Fault("provider_unavailable", True, _OUTAGE)
    wrong_place = status == 404 or status < 400
    hint = "check `base_url`: it usually ends with /v1, and redirects are not followed" if wrong_place else ""
    return Fault("provider_refused", hint=hint)


_LIMITS = (
    *((f"x-ratelimit-reset{name}", f"x-ratelimit-remaining{name}") for name in ("", "-requests", "-tokens")),
    *(
        (f"anthropic-ratelimit-{name}-reset", f"anthropic-ratelimit-{name}-remaining")
        for name in ("requests", "tokens", "input-tokens", "output-tokens")
    ),
)
"""Headers that say when a limit resets, each with the one that says how much of it remains."""


def wait_ms(headers: Mapping[str, str], now_ms: int) -> int | None:
    """How long the provider asks to wait, by the most exact header; None if it does not say."""
    exact = headers.get("retry-after-ms", "").strip()
    if _NUMBER.fullmatch(exact):
        return round(float(exact))
    after = headers.get("retry-after", "").strip()
    if _NUMBER.fullmatch(after):
        return round(float(after) * 1_000)
    asked = retry_after_ms(after, now_ms) if after else None
    if asked is not None:
        return asked
    # Until the exhausted limit resets; if none is reported as exhausted, until all of them do.
    known = {
        remaining: wait
        for reset, remaining in _LIMITS
        if (wait := duration_ms(headers.get(reset, ""), now_ms)) is not None
    }
    spent = [wait for remaining, wait in known.items() if headers.get(remaining, "").strip() == "0"]
    return max(spent or known.values(), default=None)


def duration_ms(text: str, now_ms: int) -> int | None:
    """Parse the duration of a header: `20ms`, `6m0s`, seconds, or the end of it as Unix time or by RFC 3339."""
    text = text.strip()
    if not text:
        return None
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        # So many seconds are an absolute time, not a duration.
        return max(0, round(seconds * 1_000 - (now_ms if seconds >= 1_000_000_000 else 0)))
    if found := _DURATION.fullmatch(text):
        return round(sum(float(part) * unit for part, unit in zip(found.groups(), _UNITS_MS, strict=True) if part))
    try:
        end = datetime.fromisoformat(text)
        end = end if end.tzinfo else end.replace(tzinfo=UTC)
        return max(0, round(end.timestamp() * 1_000) - now_ms)
    except (ValueError, OverflowError):
        return None


# Protocols.


class WireFormat(NamedTuple):
    """How a protocol writes a question and reads an answer."""

    title: str
    """Who answers like this, in an error."""
    path: str
    credentials: Callable[[Settings], dict[str, str]]
    """Headers with the key."""
    body: Callable[[Question], dict[str, Any]]
    """The request, with `stream`; its order is that in which providers cache: what changes stands last."""
    dispensable: Mapping[str, tuple[str, ...]]
    """Fields that may be left out, each with the words by which an error shows that the endpoint rejects it."""
    read: Callable[[bytes, Assembly], None]
    """Reads a whole answer."""
    read_event: Callable[[str, Assembly], bool]
    """Reads an event of a stream; true if nothing follows it."""
    remembered: frozenset[str] = frozenset()
    """Dispensable fields that a model rejects always or never, whatever the question is."""


class BrokenOff(Exception):
    """The provider reports an error in an answer that had begun well."""

    def __init__(self, body: Any) -> None:
        super().__init__("the provider reports an error")
        self.body = body


class _PartialCall:
    """A tool call whose arguments arrive in pieces."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self, id_: str) -> None:
        self.id, self.name = id_, ""
        self.arguments: list[str] = []

    def call(self) -> ToolCall:
        return ToolCall(self.id, self.name, "".join(self.arguments))


class Assembly:
    """A reply as far as it has arrived. A `WireFormat` fills it."""

    def __init__(self, on_text: OnText, on_begin: Callable[[], None]) -> None:
        self._on_text, self._on_begin = on_text, on_begin
        self._texts: list[str] = []
        self._refusals: list[str] = []
        self._calls: list[_PartialCall] = []
        self._calls_by_index: dict[int | None, _PartialCall] = {}
        self.tokens: list[tuple[str, float]] = []
        self.model = self.finish_reason = ""
        self.usage: Usage | None = None
        self.native: list[dict[str, Any]] = []
        """The parts of a reply that the provider wants back as they are."""
        self.begun = False
        """Whether any part of the answer itself has arrived."""
        self.parts: dict[int, Any] = {}
        """For the wire format: unfinished parts of the answer."""
        self.counts: dict[str, int] = {}
        """For the wire format: tokens that were counted so far."""

    def begin(self) -> None:
        if not self.begun:
            self.begun = True
            self._on_begin()

    def add_text(self, part: str | None) -> None:
        if part:
            self.begin()
            self._texts.append(part)
            self._on_text(part)

    def replace_text(self, whole: str) -> None:
        """Set the text of the reply; followers get it if they have got nothing of it."""
        if not self._texts:
            self.add_text(whole)
        self._texts = [whole]

    def add_refusal(self, part: str | None) -> None:
        if part:
            self.begin()
            self._refusals.append(part)

    def add_call(self, index: int | None, id_: str | None, name: str | None, arguments: str | None) -> None:
        """Begin a tool call, or continue the one with this index. Some endpoints give all of them the same index."""
        self.begin()
        known = self._calls_by_index.get(index)
        if known is None or (id_ and known.id and id_ != known.id):
            known = self._calls_by_index[index] = _PartialCall(id_ or "")
            self._calls.append(known)
        known.id = known.id or id_ or ""
        known.name = known.name or name or ""
        if arguments:
            known.arguments.append(arguments)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(each.call() for each in self._calls)

    def call_at(self, index: int) -> ToolCall:
        return self._calls_by_index[index].call()

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def reply(self, question: Question) -> Reply:
        settings = question.settings
        # An id that the endpoint left out must differ from those of earlier turns.
        turn = len(question.conversation)
        calls = [
            call if call.id else msgspec.structs.replace(call, id=f"call_{turn}_{number}")
            for number, call in enumerate(self.calls, 1)
        ]
        native = {"provider": settings.provider, "model": settings.model, "content": self.native}
        return Reply(
            text=self.text,
            model=self.model or settings.model,
            finish_reason=self.finish_reason,
            refusal="".join(self._refusals),
            usage=None if self.usage is None else bounded_usage(self.usage),
            logprobs=tuple(self.tokens),
            tool_calls=tuple(calls),
            native=native if self.native else None,
        )


# Calls.

REFUSAL_BYTES_MAX = 65_536
"""How much of an error response is read."""
_REMEMBERED_MAX = 1_000


def endpoint_provider(wire: WireFormat, fetcher: Fetcher, now_ms: Callable[[], int] = wall_clock_ms) -> Ask:
    """The provider that speaks a protocol, over a fetcher, which enforces the egress policy."""
    return _Endpoint(wire, fetcher, now_ms).ask


def _unreachable(settings: Settings, cause: str) -> str:
    """What to look at when no model answers at an address."""
    configured = "`base_url` of the node" if settings.base_url else f"the address of `provider: {settings.provider}`"
    what = f"no model answers at {shown(settings.url)}, {configured}: check that it runs and is reachable from here"
    more = "correct `base_url`, or name `fallbacks` to use instead"
    return "; ".join(part for part in (what, more, cause) if part)


class _Endpoint:
    def __init__(self, wire: WireFormat, fetcher: Fetcher, now_ms: Callable[[], int]) -> None:
        self._wire, self._fetcher, self._now_ms = wire, fetcher, now_ms
        self._rejected: dict[tuple[str, str, bool], set[str]] = {}
        """Remembered fields that a model rejects, by endpoint, model and whether it was given tools."""

    async def ask(self, question: Question, on_text: OnText) -> Reply:
        # In a thread, because loading the HTTP library would block the event loop; before the timers start.
        await asyncio.to_thread(import_module, "tidemill.net.transport")
        self._fetcher.transport()
        try:
            return await self._timed(question, on_text)
        except CallFailed as error:
            failed = failure(error)
            if error.code in ("connection_failed", "host_unreachable"):
                failed.hint = _unreachable(question.settings, failed.hint)
            raise failed from error
        except ProviderRefused as error:
            raise refusal(error.status, error.body, error.headers, self._now_ms(), error.text) from error
        except BrokenOff as error:
            raise refusal(0, error.body, {}, self._now_ms()) from None

    async def _timed(self, question: Question, on_text: OnText) -> Reply:
        """Limit the time of the whole answer and, for a stream, of its first token."""
        settings = question.settings
        first_s = settings.first_token_seconds if question.stream else None
        host = shown(settings.url)
        try:
            async with asyncio.timeout(settings.timeout_seconds) as whole, asyncio.timeout(first_s) as first:
                assembly = Assembly(on_text, lambda: first.reschedule(None))
                await self._fill(question, assembly)
                return assembly.reply(question)
        except TimeoutError as error:
            if first.expired() and not assembly.begun:
                message = f"{host} did not begin to answer within {first_s:g} s"
                raise Fail("first_token_late", message, retryable=True) from error
            if whole.expired():
                message = f"{host} did not answer within {settings.timeout_seconds:g} s"
                raise Fail("timeout", message, retryable=True, hint="raise timeout_seconds, or stream") from error
            raise

    async def _fill(self, question: Question, assembly: Assembly) -> None:
        """Send a request, and again without optional fields that the endpoint rejects."""
        body = self._wire.body(question)
        model = (question.settings.url, question.settings.model, bool(question.tools))
        for field in self._rejected.get(model, ()):
            body.pop(field, None)
        while True:
            try:
                async with self._fetcher.stream(self._call(question, body)) as answer:
                    await self._read(answer, body["stream"], assembly)
                return
            except ProviderRefused as error:
                named = self._named(body, error.text) if error.status in (400, 422) else set()
                if not named:
                    raise
                if remembered := named & self._wire.remembered:
                    if len(self._rejected) >= _REMEMBERED_MAX:
                        self._rejected.clear()
                    self._rejected.setdefault(model, set()).update(remembered)
                body = {key: value for key, value in body.items() if key not in named}

    def _named(self, body: dict[str, Any], text: str) -> set[str]:
        """The dispensable fields of a request that an error text names."""
        dispensable = self._wire.dispensable
        return {field for field in dispensable if field in body and any(word in text for word in dispensable[field])}

    def _call(self, question: Question, body: dict[str, Any]) -> Call:
        settings = question.settings
        read_url(settings.url)
        base = urlsplit(settings.url)
        url = base._replace(path=base.path.rstrip("/") + self._wire.path, fragment="").geturl()
        if not (settings.base_url or settings.api_key or settings.headers):
            hint = "set `api_key`, such as {{ secrets.MODEL_KEY }}, which the operator grants"
            raise Fail("auth_failed", f"there is no API key for {shown(settings.url)}", hint=hint)
        credentials = self._wire.credentials(settings) | {name.lower(): text for name, text in settings.headers.items()}
        encoded, forbidden_at = msgspec.json.encode(body), question.forbidden_at
        if forbidden_at is not None:
            # An attempt may read the keys of several endpoints; those that this request holds are for this one.
            forbidden_at = partial(forbidden_at, texts=(settings.url, *credentials.values(), encoded.decode()))
        return Call(
            method="POST",
            url=url,
            headers={
                "accept": "text/event-stream, application/json" if body["stream"] else "application/json",
                "content-type": "application/json",
            },
            credentials=credentials,
            body=encoded,
            # `_timed` limits the whole answer; the fetcher's own timer must not fire first.
            total_ms=round(settings.timeout_seconds * 1_000) + 60_000,
            redirects_max=0,
            forbidden_at=forbidden_at,
        )

    async def _read(self, answer: Streamed, stream: bool, assembly: Assembly) -> None:
        headers = dict(answer.headers)
        if not 200 <= answer.status < 300:
            said = b""
            async for chunk in answer.chunks():
                said += chunk
                if len(said) > REFUSAL_BYTES_MAX:
                    break
            raise ProviderRefused(answer.status, said[:REFUSAL_BYTES_MAX], headers)
        if stream and "json" not in headers.get("content-type", ""):
            await self._read_stream(answer, assembly)
            return
        body = b"".join([chunk async for chunk in answer.chunks()])
        try:
            self._wire.read(body, assembly)
        except NOT_JSON as error:
            raise self._unreadable(body, error) from error

    async def _read_stream(self, answer: Streamed, assembly: Assembly) -> None:
        """Read a stream of events. One without a finish reason was cut."""
        chunks = answer.chunks()
        try:
            async for data in events(chunks):
                if self._wire.read_event(data, assembly):
                    # Read to the end, so that the connection can be used again; errors do not matter any more.
                    with suppress(TimeoutError, CallFailed):
                        async with asyncio.timeout(1.0):
                            async for _ in chunks:
                                pass
                    break
        except NOT_JSON as error:
            raise self._unreadable(b"a part of the answer", error) from error
        except CallFailed as error:
            if error.retryable and assembly.begun:
                raise _cut() from error
            raise
        if not assembly.finish_reason:
            raise _cut()

    def _unreadable(self, body: bytes, error: Exception) -> Fail:
        message = f"this is not what {self._wire.title} answers: {error}"
        page = body.lstrip().startswith(b"<")
        hint = "check `base_url`: there is a web page at that address; it usually ends with /v1" if page else ""
        return Fail("response_invalid", message, retryable=not page, hint=hint)


def _cut() -> Fail:
    return Fail("stream_cut", "the answer was cut off before its end", retryable=True)


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The data of server-sent events; an event without a final blank line is dropped."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True)
    pieces: list[str] = []
    data: list[str] = []
    async for chunk in chunks:
        first, *rest = decoder.decode(chunk).split("\n")
        pieces.append(first)
        for later in rest:
            line, pieces = "".join(pieces), [later]
            field, _, value = line.partition(":")
            if field == "data":
                data.append(value.removeprefix(" "))
            elif not line and data:
                text, data = "\n".join(data), []
                if text:
                    yield text
