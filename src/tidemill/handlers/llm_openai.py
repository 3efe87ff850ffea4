"""The provider `openai`: any endpoint that speaks the OpenAI protocol, called through the fetcher.

Nothing is sent that the node's config does not name, redirects are not followed, and the engine alone retries.
"""

from __future__ import annotations

import asyncio
import codecs
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tidemill.ambient import wall_clock_ms
from tidemill.handlers.answers import failure
from tidemill.handlers.contract import Fail
from tidemill.handlers.llm_errors import ProviderRefused, failure_of, refusal
from tidemill.handlers.llm_provider import Ask, Hear, Question, Reply, Settings
from tidemill.handlers.llm_wire import PATH, Assembly, Completion, body_of, without
from tidemill.security.egress import CallFailed, shown
from tidemill.security.fetcher import Call, Fetcher, Streamed, read_url

NOT_JSON = (msgspec.MsgspecError, ValueError, RecursionError)
REFUSAL_BYTES_MAX = 65_536
"""How much of a refusal is read."""
_DONE = "[DONE]"
_CLOSING_SECONDS = 1.0
"""How long to wait, after the last event, for the end of the response, so that the connection can be used again."""
_TIMER_SLACK_MS = 60_000
"""`_timed` limits the whole answer; the fetcher's own timer must not fire first."""


def openai_provider(fetcher: Fetcher, now_ms: Callable[[], int] = wall_clock_ms) -> Ask:
    """The provider over a fetcher, whose rules hold for its calls."""

    async def ask(question: Question, hear: Hear) -> Reply:
        # Loading the HTTP library would keep other tasks waiting, and is not the model's time.
        await asyncio.to_thread(import_module, "tidemill.security.wire")
        fetcher.transport()
        try:
            return await _timed(question, hear, lambda assembly: _fill(fetcher, question, assembly, now_ms))
        except CallFailed as error:
            raise failure(error) from error
        except ProviderRefused as error:
            raise failure_of(error, now_ms()) from error

    return ask


async def _timed(question: Question, hear: Hear, fill: Callable[[Assembly], Awaitable[None]]) -> Reply:
    """A reply within the time that it may take, and with a first word within the time for that."""
    settings = question.settings
    first_s = settings.first_token_seconds if question.stream else None
    host = shown(settings.base_url)
    try:
        async with asyncio.timeout(settings.timeout_seconds) as whole, asyncio.timeout(first_s) as first:

            def heard(part: str) -> None:
                first.reschedule(None)
                hear(part)

            assembly = Assembly(heard)
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
    """Send a request, and send it again without what the endpoint does not know."""
    body: dict[str, Any] | None = body_of(question)
    while body is not None:
        try:
            async with fetcher.stream(_call(question.settings, body)) as answer:
                await _read(answer, body["stream"], assembly, now_ms)
            return
        except ProviderRefused as error:
            body = without(body, error.text) if error.status in (400, 422) else None
            if body is None:
                raise


def _call(settings: Settings, body: dict[str, Any]) -> Call:
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
        total_ms=round(settings.timeout_seconds * 1_000) + _TIMER_SLACK_MS,
        redirects_max=0,
    )


async def _read(answer: Streamed, stream: bool, assembly: Assembly, now_ms: Callable[[], int]) -> None:
    headers = dict(answer.headers)
    if not 200 <= answer.status < 300:
        raise ProviderRefused(answer.status, await _beginning(answer), headers)
    if stream and "json" not in headers.get("content-type", ""):
        await _follow(answer, assembly, now_ms)
    else:
        _take(b"".join([chunk async for chunk in answer.chunks()]), assembly, now_ms)


async def _beginning(answer: Streamed) -> bytes:
    read = b""
    async for chunk in answer.chunks():
        read += chunk
        if len(read) > REFUSAL_BYTES_MAX:
            break
    return read[:REFUSAL_BYTES_MAX]


def _take(body: bytes, assembly: Assembly, now_ms: Callable[[], int]) -> None:
    """Read an answer that came as a whole."""
    try:
        completion = msgspec.json.decode(body, type=Completion)
    except NOT_JSON as error:
        raise _unreadable(body, error) from error
    if completion.error:
        raise refusal(0, completion.error, {}, now_ms())
    if not completion.choices:
        raise _unreadable(body, ValueError("it has no choices"))
    assembly.add(completion)


async def _follow(answer: Streamed, assembly: Assembly, now_ms: Callable[[], int]) -> None:
    """Read an answer part by part. One that ends without an end was cut."""
    chunks = answer.chunks()
    try:
        async for data in events(chunks):
            if data.startswith(_DONE):
                await _finish(chunks)
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
    """The data of server-sent events. The last one counts only if a blank line ends it."""
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


async def _finish(chunks: AsyncIterator[bytes]) -> None:
    """Read what follows the last event; whatever happens to the connection now, the answer is complete."""
    with suppress(TimeoutError, CallFailed):
        async with asyncio.timeout(_CLOSING_SECONDS):
            async for _ in chunks:
                pass


def _cut() -> Fail:
    return Fail("stream_cut", "the answer was cut off before its end", retryable=True)


def _unreadable(body: bytes, error: Exception) -> Fail:
    message = f"this is not what an OpenAI-compatible endpoint answers: {error}"
    page = body.lstrip().startswith(b"<")
    hint = "see `base_url`: there is a web page at that address; it mostly ends with /v1" if page else ""
    return Fail("response_invalid", message, retryable=not page, hint=hint)
