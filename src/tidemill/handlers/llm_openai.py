"""The provider `openai`: any endpoint that speaks the OpenAI protocol, through the openai SDK.

The SDK takes the better part of a second to load, so it is loaded in a thread before the first call. It is kept from
what the engine does itself: it does not retry, does not follow redirects, sends its requests through the guarded
transport, and sends nothing that the node's config does not say. It would else take keys and headers from the
environment of the worker, and hand them to whatever host a document names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.ambient import wall_clock_ms
from tidemill.handlers.answers import failure
from tidemill.handlers.contract import Fail, Lacking
from tidemill.handlers.llm_errors import failure_of, refusal
from tidemill.handlers.llm_provider import Ask, Hear, Question, Reply, Settings
from tidemill.handlers.llm_wire import PATH, Assembly, Completion, body_of, without
from tidemill.security.egress import CallFailed, shown
from tidemill.security.fetcher import Fetcher, read_url

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

NOT_JSON = (msgspec.MsgspecError, ValueError, RecursionError)
_KEPT = frozenset({"accept", "content-length", "content-type", "host"})
_PLACEHOLDER = "none"
"""The SDK insists on a key, and takes one from the environment if it gets none. This one is never sent."""


def openai_provider(fetcher: Fetcher, now_ms: Callable[[], int] = wall_clock_ms) -> Ask:
    """The provider over a fetcher, whose rules hold for its calls."""
    loaded = False

    async def ask(question: Question, hear: Hear) -> Reply:
        nonlocal loaded
        if not loaded:
            await asyncio.to_thread(_load)
            loaded = True
        import openai

        try:
            client = _client(question.settings, fetcher)
            return await _timed(question, hear, lambda assembly: _fill(client, body_of(question), assembly, now_ms))
        except CallFailed as error:
            raise failure(error) from error
        except openai.APIError as error:
            raise failure_of(error, now_ms()) from error

    return ask


def _load() -> None:
    try:
        import openai.resources.chat  # noqa: F401 - it stays loaded.
    except ImportError as error:
        hint = 'pip install "tidemill[agents]", or use the provider scripted'
        raise Lacking(code="provider_missing", message="the openai package is not installed", hint=hint) from error


def _client(settings: Settings, fetcher: Fetcher) -> AsyncOpenAI:
    """A client for one attempt. Its connections belong to the fetcher, so it is not closed."""
    import httpx2
    from openai import AsyncOpenAI

    read_url(settings.base_url)
    http = httpx2.AsyncClient(
        transport=fetcher.transport(),
        trust_env=False,
        follow_redirects=False,
        timeout=None,
        event_hooks={"request": [_sealing(settings)]},
    )
    return AsyncOpenAI(api_key=_PLACEHOLDER, base_url=settings.base_url, max_retries=0, timeout=None, http_client=http)


def _sealing(settings: Settings) -> Callable[[httpx2.Request], Awaitable[None]]:
    """A hook that leaves of the headers of a request those that the protocol needs and those that the config names."""
    wanted = {"user-agent": "tidemill"}
    if settings.api_key:
        wanted["authorization"] = f"Bearer {settings.api_key}"
    wanted |= {name.lower(): value for name, value in settings.headers.items()}

    async def seal(request: httpx2.Request) -> None:
        for name in set(request.headers) - _KEPT:
            del request.headers[name]
        request.headers.update(wanted)

    return seal


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


async def _fill(client: AsyncOpenAI, body: dict[str, Any], assembly: Assembly, now_ms: Callable[[], int]) -> None:
    """Send a request, and send it again without what the endpoint does not know."""
    import openai

    while True:
        try:
            await _send(client, body, assembly, now_ms)
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            simpler = without(body, f"{error.param} {error.message}")
            if simpler is None:
                raise
            body = simpler
        else:
            return


async def _send(client: AsyncOpenAI, body: dict[str, Any], assembly: Assembly, now_ms: Callable[[], int]) -> None:
    if body["stream"]:
        await _follow(client, body, assembly, now_ms)
    else:
        _take(await client.post(PATH, cast_to=str, body=body), assembly, now_ms)


def _take(text: str, assembly: Assembly, now_ms: Callable[[], int]) -> None:
    """Read an answer that came as a whole."""
    try:
        completion = msgspec.json.decode(text, type=Completion)
    except NOT_JSON as error:
        raise _unreadable(text, error) from error
    if completion.error:
        raise refusal(0, completion.error, {}, now_ms())
    if not completion.choices:
        raise _unreadable(text, ValueError("it has no choices"))
    assembly.add(completion)


async def _follow(client: AsyncOpenAI, body: dict[str, Any], assembly: Assembly, now_ms: Callable[[], int]) -> None:
    """Read an answer part by part. One that ends without an end was cut."""
    from openai import AsyncStream

    async with await client.post(PATH, cast_to=object, body=body, stream=True, stream_cls=AsyncStream[object]) as parts:
        if "json" in parts.response.headers.get("content-type", ""):
            _take((await parts.response.aread()).decode("utf-8", "replace"), assembly, now_ms)
            return
        try:
            async for part in parts:
                assembly.add(msgspec.convert(part, Completion))
        except NOT_JSON as error:
            raise _unreadable("a part of the answer", error) from error
        except CallFailed as error:
            if error.retryable and assembly.begun:
                raise _cut() from error
            raise
    if not assembly.ended:
        raise _cut()


def _cut() -> Fail:
    return Fail("stream_cut", "the answer was cut off before its end", retryable=True)


def _unreadable(text: str, error: Exception) -> Fail:
    message = f"this is not what an OpenAI-compatible endpoint answers: {error}"
    page = text.lstrip().startswith("<")
    hint = "see `base_url`: there is a web page at that address; it mostly ends with /v1" if page else ""
    return Fail("response_invalid", message, retryable=not page, hint=hint)
