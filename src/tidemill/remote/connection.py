"""A connection to a server: requests that are repeated after a failure, problems, and values in both directions."""

from __future__ import annotations

import asyncio
import random
import typing
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import httpx2
import msgspec

from tidemill.engine.views import ApprovalView, RunView
from tidemill.errors import Problem, Rejected, Unavailable

API = "/api/v1"
TRIES = 5
FIRST_PAUSE_S = 0.2
TIMEOUT_S = 30.0
SILENCE_S = 60.0
"""How long a stream may be silent; the server says something more often."""
_RETRIED = frozenset({429, 502, 503, 504})


class Connection:
    """Sends requests to one server, and repeats those that can be repeated."""

    def __init__(self, url: str, key: str | None) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx2.AsyncClient(base_url=url.rstrip("/") + API, headers=headers, timeout=TIMEOUT_S)
        self.url = url

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None, **options: Any
    ) -> httpx2.Response:
        """The answer of the server. Raises Rejected with its problems, or Unavailable if it does not answer."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {**options.pop("headers", {})}
        if content is not None:
            headers["Content-Type"] = "application/json"
        for attempt in range(1, TRIES + 1):
            try:
                response = await self._client.request(
                    method, path, params=query, content=content, headers=headers, **options
                )
            except httpx2.HTTPError as error:
                if attempt == TRIES:
                    raise Unavailable(f"{self.url} does not answer: {error}") from error
                await asyncio.sleep(_pause_s(attempt, None))
                continue
            if response.status_code in _RETRIED and attempt < TRIES:
                await asyncio.sleep(_pause_s(attempt, response.headers.get("Retry-After")))
                continue
            raise_problem(response)
            return response
        raise AssertionError("the last attempt returns or raises")

    def stream(self, path: str, headers: Mapping[str, str]) -> AbstractAsyncContextManager[httpx2.Response]:
        timeout = httpx2.Timeout(TIMEOUT_S, read=SILENCE_S)
        return self._client.stream("GET", path, headers=dict(headers), timeout=timeout)


def _pause_s(attempt: int, retry_after: str | None) -> float:
    told = float(retry_after) if retry_after is not None and retry_after.isdecimal() else 0.0
    return max(told, FIRST_PAUSE_S * float(2 ** (attempt - 1)) * random.uniform(0.5, 1.0))


def raise_problem(response: httpx2.Response) -> None:
    """Raise what the server refused."""
    if response.status_code < 400:
        return
    try:
        listed = msgspec.json.decode(response.content)["problems"]
        problems = [msgspec.convert(each, Problem) for each in listed]
    except (msgspec.MsgspecError, KeyError, TypeError):
        raise Unavailable(f"the server answered {response.status_code}, and no problem") from None
    if response.status_code >= 500:
        raise Unavailable(str(problems[0]))
    raise Rejected(problems)


def sent(value: Any) -> Any:
    """An argument as JSON."""
    if isinstance(value, (timedelta, datetime)):
        return f"{int(value.total_seconds())}s" if isinstance(value, timedelta) else value.isoformat()
    if isinstance(value, (set, frozenset, tuple)) or (isinstance(value, Iterable) and not isinstance(value, _WHOLE)):
        return list(value)
    return value


_WHOLE = (str, bytes, Mapping, list)


def received(kind: Any, value: Any) -> Any:
    """A JSON value as the type that a method declares; the opposite of `views.plain`."""
    if kind in (RunView, ApprovalView):
        return kind.from_dict(value)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = hints(kind)
        return kind(**{name: received(fields[name], value[name]) for name in kind.__struct_fields__ if name in value})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (list, Sequence, tuple) and isinstance(value, list):
        same = origin is not tuple or Ellipsis in arguments
        items = [received(arguments[0] if same else arguments[at], each) for at, each in enumerate(value)]
        return tuple(items) if origin is tuple else items
    if origin in (dict, Mapping):
        return {name: received(arguments[1], each) for name, each in value.items()}
    if type(None) in arguments:
        (inner,) = [each for each in arguments if each is not type(None)][:1]
        return None if value is None else received(inner, value)
    if isinstance(kind, type) and issubclass(kind, str) and kind is not str:
        return kind(value)
    return value


@cache
def hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


async def frames(response: httpx2.Response) -> AsyncIterator[tuple[str, int | None, Any]]:
    """The frames of an event stream: kind, seq if it is an event of the log, and data."""
    kind, seq, data = "", None, ""
    async for line in response.aiter_lines():
        if not line:
            if data:
                yield kind, seq, msgspec.json.decode(data)
            kind, seq, data = "", None, ""
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "id" and value.isdecimal():
            seq = int(value)
        elif name == "data":
            data += value
