"""The services of an engine as requests to a server.

The arguments of a method keep their names, in the path, the query or the body of its request, and the answer is decoded
into the type that the method declares. The credential determines who acts, so `actor`, `roles`, `author` and
`submitted_by` are not sent. A request that changes something carries an id of its own, and may be repeated; the few
that have none are not.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, NoReturn
from urllib.parse import quote
from uuid import uuid4

import msgspec

from tidemill.blobs.payloads import NotJson, encode_given
from tidemill.engine.services.run_actions import UNSET
from tidemill.errors import rejected
from tidemill.remote.connection import Connection, hints, received, sent

PAGE = 500
BATCH = 1_000
"""Runs that one request starts."""
BATCH_BYTES = 500_000
"""Bytes of their inputs, unless one run alone has more: servers bound the size and the keys of a body."""
WAIT_S = 30.0
"""How long one request waits for the end of a run."""
LONG_S = 600.0
"""How long a request may take that acts on many runs."""
LOOK_S = 0.5
LOG_LINES = 10_000
CHUNK = 1 << 20
TRIES = 10
"""Connections in a row that may break before a download is given up."""
FROM_CREDENTIAL = frozenset({"actor", "roles", "submitted_by", "author"})
"""Arguments that the server takes from the credential."""
YAML = "application/yaml"


class Route(NamedTuple):
    method: str
    path: str
    """With the names of arguments in braces; the others go into the query of a GET or DELETE, else into the body."""
    within: str = ""
    """The key of the answer that holds the result; empty for the whole answer."""
    repeats: bool = True
    """Whether a repetition of the request changes nothing more."""
    nulls: bool = False
    """Whether None is sent; elsewhere it means that the argument is not given."""


class RemoteService:
    """The methods of a service as requests, by the table `ROUTES`; what differs is a method of a subclass."""

    SERVICE: ClassVar[type]
    ROUTES: ClassVar[Mapping[str, Route]] = {}

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.SERVICE, name)
        route = self.ROUTES.get(name)
        if route is None:
            return partial(refuse, name)
        return lambda *args, **kwargs: self._call(method, route, args, kwargs)

    async def _call(
        self, method: Callable[..., Any], route: Route, args: Sequence[Any], given: Mapping[str, Any]
    ) -> Any:
        signature = inspect.signature(method)
        left_out = {"self"} if route.method == "GET" else {"self", *FROM_CREDENTIAL}
        arguments = {
            name: sent(value)
            for name, value in signature.bind(self, *args, **given).arguments.items()
            if name not in left_out and value is not UNSET and (route.nulls or value is not None)
        }
        if route.method != "GET" and "command_id" in signature.parameters and not arguments.get("command_id"):
            arguments["command_id"] = uuid4().hex
        is_list = route.method == "GET" and "limit" in arguments
        answer = await (self._page if is_list else self._ask)(route, arguments)
        kind = hints(method).get("return")
        if kind is type(None):
            return None
        if isinstance(answer, dict) and "items" in answer and "next" in answer:
            return page_of(kind, answer)
        return received(kind, answer[route.within] if route.within else answer)

    async def _ask(self, route: Route, arguments: dict[str, Any], headers: Mapping[str, str] = {}) -> Any:
        """The decoded answer of a request with these arguments in its path, and in its query or body."""
        names = [name for name in arguments if f"{{{name}}}" in route.path]
        path = route.path.format(**{name: quote(str(arguments.pop(name)), safe="") for name in names})
        options: dict[str, Any] = {"query": arguments} if route.method in ("GET", "DELETE") else {"body": arguments}
        if not route.repeats:
            options |= {"repeats": False, "timeout": LONG_S}
        response = await self._connection.ask(route.method, path, headers=dict(headers), **options)
        return msgspec.json.decode(response.content or b"null")

    async def _page(self, route: Route, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A page of a list; one that is longer than a server answers takes several requests."""
        limit, items = arguments.get("limit", 0), list[Any]()
        while limit - len(items) > PAGE:
            page = await self._ask(route, {**arguments, "limit": PAGE})
            items += page["items"]
            if page["next"] is None:
                return {"items": items, "next": None}
            arguments = {**arguments, "after": page["next"]}
        page = await self._ask(route, {**arguments, **({"limit": limit - len(items)} if items else {})})
        return {"items": [*items, *page["items"]], "next": page["next"]}

    async def _all(self, path: str, **query: Any) -> list[Any]:
        """The items of all pages."""
        items: list[Any] = []
        query = {"limit": PAGE, **query}
        while True:
            page = msgspec.json.decode((await self._connection.ask("GET", path, query=query)).content)
            items += page["items"]
            if page["next"] is None:
                return items
            query["after"] = page["next"]


async def refuse(name: str, *args: Any, **kwargs: Any) -> NoReturn:
    hint = "open the store directly: --store URL, or tidemill.open(URL)"
    raise rejected("not_remote", f"a server does not offer `{name}`", hint=hint)


def page_of(kind: Any, answer: Mapping[str, Any]) -> Any:
    """A page as the method answers it: its rows and the cursor of the next one; or its rows alone."""
    if typing.get_origin(kind) is tuple:
        return received(typing.get_args(kind)[0], answer["items"]), answer["next"]
    return received(kind, answer["items"])


def given_only(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that were given, as JSON, without those that the server takes from the credential."""
    return {name: sent(value) for name, value in arguments.items() if value is not None and name not in FROM_CREDENTIAL}


def json_value(value: Any, code: str, path: str) -> Any:
    """A value of the caller, refused here as the engine refuses it."""
    try:
        return msgspec.Raw(encode_given(value))
    except NotJson as error:
        raise rejected(code, str(error), path=path) from None
