"""The provider `openai`: any endpoint that speaks the OpenAI protocol, called through the fetcher.

Endpoints with this protocol differ, so only the few response fields that are used are decoded, and an error is
classified by status, code and text together. Nothing is sent that the config does not name, except that a request is
sent again without optional fields that the endpoint rejects. Redirects are not followed, and only the engine retries.
"""

from __future__ import annotations

import asyncio
import codecs
import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tidemill.ambient import wall_clock_ms
from tidemill.expressions.errors import shorten
from tidemill.handlers.contract import Fail, truncate
from tidemill.handlers.http.exchange import failure, retry_after_ms
from tidemill.handlers.llm.provider import OPENAI_URL, Ask, OnText, Question, Reply, Usage
from tidemill.net.egress import CallFailed, shown
from tidemill.net.http_client import Call, Fetcher, Streamed, read_url

# Errors and rate limits.

_SAID_MAX = 300
_WORDS_MAX = 2_000
_TOO_LONG = re.compile(
    r"context[ _](length|window|size)|maximum context|too many (input )?tokens|prompt is too long", re.IGNORECASE
)
_REFUSED = re.compile(r"content[ _](filter|policy|management)|safety (system|policy)|moderation", re.IGNORECASE)
_NO_MODEL = re.compile(
    r"model_not_found|\bmodel\b.*\b(not (exist|found|available|supported)|unknown|invalid)", re.IGNORECASE | re.DOTALL
)
_NO_MONEY = re.compile(r"insufficient[ _](quota|funds|balance|credit)", re.IGNORECASE)
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
    wait = wait_ms(headers, now_ms) if fault.retryable else None
    return Fail(fault.code, message, retryable=fault.retryable, retry_after_ms=wait, hint=fault.hint)


def _short(text: str) -> str:
    return shorten(" ".join(truncate(text, _WORDS_MAX).split()), _SAID_MAX) or "nothing more"


def _fault(status: int, words: str) -> Fault:
    if status in (401, 403):
        return Fault("auth_failed", hint="see `api_key`: it is missing, wrong or may not use this model")
    if status == 402 or (_NO_MONEY.search(words) and status < 500):
        return Fault("quota_exhausted", hint="see the account at the provider")
    if status == 429 or (not status and _OVERLOADED.search(words)):
        return Fault("rate_limited", True, "ask less often, e.g. with `limits.max_parallel`, or allow more attempts")
    if status >= 500 or status in (408, 409, 425):
        return Fault("provider_unavailable", True)
    if status == 413 or _TOO_LONG.search(words):
        return Fault("context_too_long", hint="shorten the messages, or use a model with a longer context")
    if _REFUSED.search(words):
        return Fault("content_refused", hint="say it differently")
    if _NO_MODEL.search(words):
        return Fault("model_unknown", hint="see `model`: the provider has none of this name")
    if not status:
        return Fault("provider_unavailable", True)
    wrong_place = status == 404 or status < 400
    hint = "see `base_url`: it mostly ends with /v1, and redirects are not followed" if wrong_place else ""
    return Fault("provider_refused", hint=hint)


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
        name: wait
        for name in ("", "-requests", "-tokens")
        if (wait := duration_ms(headers.get(f"x-ratelimit-reset{name}", ""), now_ms)) is not None
    }
    spent = [wait for name, wait in known.items() if headers.get(f"x-ratelimit-remaining{name}", "").strip() == "0"]
    return max(spent or known.values(), default=None)


def duration_ms(text: str, now_ms: int) -> int | None:
    """Parse the duration of a header: `20ms`, `6m0s`, seconds, or a Unix time."""
    text = text.strip()
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        # So many seconds are an absolute time, not a duration.
        return max(0, round(seconds * 1_000 - (now_ms if seconds >= 1_000_000_000 else 0)))
    found = _DURATION.fullmatch(text)
    if not text or not found:
        return None
    return round(sum(float(part) * unit for part, unit in zip(found.groups(), _UNITS_MS, strict=True) if part))


# Wire format.

PATH = "/chat/completions"


class _Text(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None


class _Token(msgspec.Struct):
    token: str
    logprob: float


class _Tokens(msgspec.Struct):
    content: list[_Token] | None = None


class _Choice(msgspec.Struct):
    message: _Text | None = None
    delta: _Text | None = None
    finish_reason: str | None = None
    logprobs: _Tokens | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Used(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None

    def usage(self) -> Usage:
        cached = self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None
        given, made = self.prompt_tokens or 0, self.completion_tokens or 0
        return Usage(input_tokens=given, output_tokens=made, cached_tokens=cached or 0)


class Completion(msgspec.Struct):
    """A response, or one event of a streamed response."""

    choices: list[_Choice] | None = None
    model: str | None = None
    usage: _Used | None = None
    error: Any = None


def body_of(question: Question) -> dict[str, Any]:
    settings = question.settings
    body: dict[str, Any] = {
        **settings.extra,
        "model": settings.model,
        "messages": [*question.messages, *question.correction],
        "stream": question.stream,
    }
    passed_on = {name: getattr(settings, name) for name in ("temperature", "top_p", "stop", "seed")}
    body |= {name: value for name, value in passed_on.items() if value is not None}
    if settings.max_tokens is not None:
        # Newer models of OpenAI require the new name of the field; other endpoints only know the old one.
        name = "max_completion_tokens" if settings.base_url.rstrip("/") == OPENAI_URL else "max_tokens"
        body[name] = settings.max_tokens
    if question.form is not None and settings.response_format == "json_schema":
        wanted = {"name": "answer", "schema": question.form, "strict": settings.strict}
        body["response_format"] = {"type": "json_schema", "json_schema": wanted}
    elif question.form is not None and settings.response_format == "json_object":
        body["response_format"] = {"type": "json_object"}
    if question.logprobs:
        body["logprobs"] = True
    if question.stream:
        body["stream_options"] = {"include_usage": True}
    return body


def without_rejected(body: dict[str, Any], text: str) -> dict[str, Any] | None:
    """The body without the optional fields that an error text names; None if it names none of them."""
    dispensable = ("response_format", "logprobs", "stream_options")
    aliases = {"response_format": "json_schema"}
    named = [field for field in dispensable if field in body and (field in text or aliases.get(field, field) in text)]
    return {key: value for key, value in body.items() if key not in named} if named else None


class Assembly:
    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._texts: list[str] = []
        self._refusals: list[str] = []
        self._tokens: list[tuple[str, float]] = []
        self._model = self._finish_reason = ""
        self._usage: Usage | None = None

    @property
    def begun(self) -> bool:
        return bool(self._texts or self._refusals)

    @property
    def ended(self) -> bool:
        return bool(self._finish_reason)

    def add(self, part: Completion) -> None:
        self._model = part.model or self._model
        self._usage = part.usage.usage() if part.usage is not None else self._usage
        for choice in (part.choices or [])[:1]:
            text = choice.delta or choice.message or _Text()
            if text.content:
                self._texts.append(text.content)
                self._on_text(text.content)
            if text.refusal:
                self._refusals.append(text.refusal)
            self._finish_reason = choice.finish_reason or self._finish_reason
            tokens = choice.logprobs.content if choice.logprobs is not None else None
            self._tokens += [(each.token, each.logprob) for each in tokens or ()]

    def reply(self, question: Question) -> Reply:
        return Reply(
            text="".join(self._texts),
            model=self._model or question.settings.model,
            finish_reason=self._finish_reason,
            refusal="".join(self._refusals),
            usage=self._usage,
            logprobs=tuple(self._tokens),
        )


# Calls.

NOT_JSON = (msgspec.MsgspecError, ValueError, RecursionError)
REFUSAL_BYTES_MAX = 65_536
"""How much of an error response is read."""


def openai_provider(fetcher: Fetcher, now_ms: Callable[[], int] = wall_clock_ms) -> Ask:
    """The provider over a fetcher, which enforces the egress policy."""

    async def ask(question: Question, on_text: OnText) -> Reply:
        # In a thread, because loading the HTTP library would block the event loop; before the timers start.
        await asyncio.to_thread(import_module, "tidemill.net.transport")
        fetcher.transport()
        try:
            return await _timed(question, on_text, lambda assembly: _fill(fetcher, question, assembly, now_ms))
        except CallFailed as error:
            raise failure(error) from error
        except ProviderRefused as error:
            raise refusal(error.status, error.body, error.headers, now_ms(), error.text) from error

    return ask


async def _timed(question: Question, on_text: OnText, fill: Callable[[Assembly], Awaitable[None]]) -> Reply:
    """Limit the time of the whole answer and, for a stream, of its first token."""
    settings = question.settings
    first_s = settings.first_token_seconds if question.stream else None
    host = shown(settings.base_url)
    try:
        async with asyncio.timeout(settings.timeout_seconds) as whole, asyncio.timeout(first_s) as first:

            def on_first_text(part: str) -> None:
                first.reschedule(None)
                on_text(part)

            assembly = Assembly(on_first_text)
            await fill(assembly)
            return assembly.reply(question)
    except TimeoutError as error:
        if first.expired() and not assembly.begun:
            message = f"{host} did not begin to answer within {first_s:g} s"
            raise Fail("first_token_late", message, retryable=True) from error
        if whole.expired():
            message = f"{host} did not answer within {settings.timeout_seconds:g} s"
            raise Fail("timeout", message, retryable=True, hint="raise timeout_seconds, or stream") from error
        raise


async def _fill(fetcher: Fetcher, question: Question, assembly: Assembly, now_ms: Callable[[], int]) -> None:
    """Send a request, and again without optional fields that the endpoint rejects."""
    body: dict[str, Any] | None = body_of(question)
    while body is not None:
        try:
            async with fetcher.stream(_call(question, body)) as answer:
                await _read(answer, body["stream"], assembly, now_ms)
            return
        except ProviderRefused as error:
            body = without_rejected(body, error.text) if error.status in (400, 422) else None
            if body is None:
                raise


def _call(question: Question, body: dict[str, Any]) -> Call:
    settings = question.settings
    read_url(settings.base_url)
    base = urlsplit(settings.base_url)
    credentials = {"authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
    return Call(
        method="POST",
        url=base._replace(path=base.path.rstrip("/") + PATH, fragment="").geturl(),
        headers={
            "accept": "text/event-stream, application/json" if body["stream"] else "application/json",
            "content-type": "application/json",
        },
        credentials=credentials | {name.lower(): value for name, value in settings.headers.items()},
        body=msgspec.json.encode(body),
        # `_timed` limits the whole answer; the fetcher's own timer must not fire first.
        total_ms=round(settings.timeout_seconds * 1_000) + 60_000,
        redirects_max=0,
        forbidden_at=question.forbidden_at,
    )


async def _read(answer: Streamed, stream: bool, assembly: Assembly, now_ms: Callable[[], int]) -> None:
    headers = dict(answer.headers)
    if not 200 <= answer.status < 300:
        said = b""
        async for chunk in answer.chunks():
            said += chunk
            if len(said) > REFUSAL_BYTES_MAX:
                break
        raise ProviderRefused(answer.status, said[:REFUSAL_BYTES_MAX], headers)
    if stream and "json" not in headers.get("content-type", ""):
        await _read_stream(answer, assembly, now_ms)
        return
    body = b"".join([chunk async for chunk in answer.chunks()])
    try:
        completion = msgspec.json.decode(body, type=Completion)
    except NOT_JSON as error:
        raise _unreadable(body, error) from error
    if completion.error:
        raise refusal(0, completion.error, {}, now_ms())
    if not completion.choices:
        raise _unreadable(body, ValueError("it has no choices"))
    assembly.add(completion)


async def _read_stream(answer: Streamed, assembly: Assembly, now_ms: Callable[[], int]) -> None:
    """Read a stream of events. One without a finish reason was cut."""
    chunks = answer.chunks()
    try:
        async for data in events(chunks):
            if data.startswith("[DONE]"):
                # Read to the end, so that the connection can be used again; errors do not matter any more.
                with suppress(TimeoutError, CallFailed):
                    async with asyncio.timeout(1.0):
                        async for _ in chunks:
                            pass
                break
            part = msgspec.json.decode(data, type=Completion)
            if part.error:
                raise refusal(0, part.error, {}, now_ms())
            assembly.add(part)
    except NOT_JSON as error:
        raise _unreadable(b"a part of the answer", error) from error
    except CallFailed as error:
        if error.retryable and assembly.begun:
            raise _cut() from error
        raise
    if not assembly.ended:
        raise _cut()


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


def _cut() -> Fail:
    return Fail("stream_cut", "the answer was cut off before its end", retryable=True)


def _unreadable(body: bytes, error: Exception) -> Fail:
    message = f"this is not what an OpenAI-compatible endpoint answers: {error}"
    page = body.lstrip().startswith(b"<")
    hint = "see `base_url`: there is a web page at that address; it mostly ends with /v1" if page else ""
    return Fail("response_invalid", message, retryable=not page, hint=hint)
