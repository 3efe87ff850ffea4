"""A connection to a server: requests that are repeated after a failure, problems, and values in both directions."""

from __future__ import annotations

import asyncio
import random
import types
import typing
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import date, timedelta
from functools import cache
from typing import Any

import httpx2
import msgspec

from tidemill.engine.index_rows import RunRow
from tidemill.engine.views import ApprovalView, RunView
from tidemill.errors import Problem, Rejected, ServerUnavailable
from tidemill.kernel.document.diff import GraphDiff

API = "/api/v1"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
PATIENCE_S = 30.0
"""How long a request is repeated while the server does not answer, as it does when it is restarted."""
CONNECT_PATIENCE_S = 0.5
"""The same for the first request of a connection: a wrong address is reported at once."""
TIMEOUT_S = 60.0
CONNECTIONS_MAX, CONNECTIONS_KEPT = 1_000, 20
"""Each wait for the end of a run, and each stream, holds a connection."""
SILENCE_S = 60.0
"""How long a stream may be silent; the server says something more often."""
CutOff = httpx2.TransportError
"""The connection broke, or could not be opened."""
_OVERLOADED = 429
_RETRIED = frozenset({_OVERLOADED, 502, 503, 504})


class Connection:
    """Sends requests to one server, and repeats those that can be repeated."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx2.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_KEPT)
        self._client = httpx2.AsyncClient(base_url=self.url + API, headers=headers, timeout=TIMEOUT_S, limits=limits)

    async def open(self) -> None:
        """Ask the server for the caller, so that a wrong address or key is refused first."""
        await self.ask("GET", "/me", patience_s=CONNECT_PATIENCE_S)

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        repeats: bool = True,
        patience_s: float = PATIENCE_S,
        **options: Any,
    ) -> httpx2.Response:
        """The answer of the server. Raises Rejected with its problems, or Unavailable if it does not answer.

        A request that cannot be repeated is sent again only if the server has not received it, or refused it as one
        too many.
        """
        if body is not None:
            options["content"] = msgspec.json.encode(body)
            options["headers"] = {"Content-Type": "application/json", **options.get("headers", {})}
        loop, attempt = asyncio.get_running_loop(), 0
        until = loop.time() + patience_s
        while True:
            attempt += 1
            told = 0.0
            try:
                response = await self._client.request(method, path, params=query, **options)
            except CutOff as error:
                unsent = isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout))
                if not (repeats or unsent) or loop.time() >= until:
                    raise ServerUnavailable(f"the server at {self.url} does not answer: {_words(error)}") from error
            else:
                again = response.status_code in (_RETRIED if repeats else {_OVERLOADED})
                if not again or loop.time() >= until:
                    self.raise_problem(response)
                    return response
                told = _seconds(response.headers.get("Retry-After"))
            await asyncio.sleep(max(told, pause_s(attempt)))

    def stream(
        self, path: str, *, query: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        timeout = httpx2.Timeout(TIMEOUT_S, read=SILENCE_S)
        return self._client.stream("GET", path, params=query, headers=dict(headers or {}), timeout=timeout)

    def raise_problem(self, response: httpx2.Response) -> None:
        """Raise what the server refused."""
        if response.status_code < 400:
            return
        try:
            listed = msgspec.json.decode(response.content)["problems"]
            problems = [msgspec.convert(each, Problem) for each in listed]
        except (msgspec.MsgspecError, KeyError, TypeError):
            message = f"{self.url} answered {response.status_code}, but not like a Tidemill server"
            raise ServerUnavailable(message) from None
        if response.status_code >= 500:
            raise ServerUnavailable(f"the server at {self.url} could not do it: {problems[0].message}")
        raise Rejected(problems)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def pause_s(attempt: int) -> float:
    """How long to wait before the next attempt."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(2 ** min(attempt - 1, 10))) * random.uniform(0.5, 1.0)


def _seconds(retry_after: str | None) -> float:
    return min(float(retry_after), PATIENCE_S) if retry_after is not None and retry_after.isdecimal() else 0.0


def sent(value: Any) -> Any:
    """An argument as JSON; a run is its id."""
    if isinstance(value, (RunView, RunRow)):
        return value.run_id
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return f"{seconds:.0f}s" if seconds.is_integer() else f"{seconds:.3f}s"
    if isinstance(value, date):
        return value.isoformat()
    return list(value) if isinstance(value, (set, frozenset, tuple)) else value


def received(kind: Any, value: Any) -> Any:
    """A JSON value as the type that a method declares; the opposite of `views.plain`."""
    if value is None or kind in (Any, object):
        return value
    if kind in (RunView, ApprovalView):
        return kind.from_dict(value)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = hints(kind)
        return kind(**{name: received(fields[name], value[name]) for name in kind.__struct_fields__ if name in value})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return received(_meant(arguments, value), value)
    if origin in (list, Sequence, tuple):
        same = origin is not tuple or Ellipsis in arguments
        items = [received(arguments[0] if same else arguments[at], each) for at, each in enumerate(value)]
        return tuple(items) if origin is tuple else items
    if origin in (dict, Mapping):
        return {received(arguments[0], name): received(arguments[1], each) for name, each in value.items()}
    return int(value) if kind is int and isinstance(value, str) else value


def _meant(kinds: Sequence[Any], value: Any) -> Any:
    """The type of a union that a value has: of several structs the one with its tag."""
    kinds = [kind for kind in kinds if kind is not type(None)]
    if len(kinds) == 1 or not isinstance(value, dict):
        return kinds[0]
    tagged = (kind for kind in kinds if getattr(kind, "__struct_config__", None) is not None)
    return next((kind for kind in tagged if kind.__struct_config__.tag == value.get("kind")), Any)


@cache
def hints(kind: Any) -> dict[str, Any]:
    # What a module imports for type checkers only.
    from tidemill.agents.transcript import Transcript
    from tidemill.kernel.explain.ended import NodeHistory
    from tidemill.kernel.explain.explain import Explanation

    named: dict[str, Any] = {each.__name__: each for each in (GraphDiff, Explanation, NodeHistory, Transcript)}
    return typing.get_type_hints(kind, localns=named)


async def frames(response: httpx2.Response) -> AsyncIterator[tuple[str, int | None, Any]]:
    """The frames of an event stream: kind, seq if it is an event of the log, and data."""
    async for each in httpx2.EventSource(response, max_event_size=None):
        if each.data:
            # An id holds for the frames behind it, too.
            is_event = each.event == "message" and each.id.isdecimal()
            yield each.event, int(each.id) if is_event else None, msgspec.json.decode(each.data)
