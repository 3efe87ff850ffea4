"""Node type `http`: one call over HTTP, or one per page, and what came back.

The fetcher keeps the rules of the deployment: which hosts may be called, how long, how much. This file says what a
node may ask for, and what becomes of the answer.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from itertools import combinations
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tidemill.ambient import wall_clock_ms
from tidemill.expressions.templates import is_template
from tidemill.handlers.answers import EXPECT_SCHEMA, HEADERS_SCHEMA, TIMEOUT_SCHEMA, check_status, failure
from tidemill.handlers.contract import Blob, Ended, Fail, Handler, NodeContext, Return
from tidemill.handlers.paging import LINK, PAGINATION_SCHEMA, Paging
from tidemill.handlers.requests import call_of
from tidemill.kernel.model import Flaw, NodeType
from tidemill.security.addresses import misspelled
from tidemill.security.bodies import too_large
from tidemill.security.egress import SCHEMES, CallFailed
from tidemill.security.fetcher import OWN, Answer, Call, Fetcher

_SCALAR = {"type": ["string", "number", "boolean", "null"]}
_FIELDS = {"type": "object", "additionalProperties": {"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR}]}}
_TEXT = {"type": "string"}
_CHARSET = re.compile(r'charset="?([\w.:-]+)')


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def url_flaws(url: Any) -> Iterator[Flaw]:
    """What can be said against a URL that is no template."""
    if not isinstance(url, str) or is_template(url):
        return
    try:
        parts = urlsplit(url)
        fault = misspelled((parts.hostname or "").encode("idna").decode())
        has_port = parts.port != 0
    except ValueError:
        yield Flaw("/url", "the URL cannot be read", "for example https://example.com/path")
        return
    if parts.scheme not in SCHEMES:
        yield Flaw("/url", f"{parts.scheme or 'nothing'!r} is no scheme to call", "begin with http:// or https://")
    elif fault or not has_port:
        yield Flaw("/url", fault or "there is no port 0", "for example https://example.com/path")
    elif parts.username is not None:
        yield Flaw("/url", "a URL must not hold credentials", "write them under `auth`, as secrets")


def header_flaws(headers: Any) -> Iterator[Flaw]:
    """Headers that belong to the connection."""
    for name in headers if isinstance(headers, dict) else ():
        if name.lower() in OWN:
            yield Flaw(f"/headers/{name}", f"{name} belongs to the connection and cannot be set", "leave it out")


def _flaws(config: Any) -> Iterator[Flaw]:
    yield from url_flaws(config.get("url"))
    yield from header_flaws(config.get("headers"))
    pagination = config.get("pagination")
    for key in ("next", "items") if isinstance(pagination, dict) else ():
        path = pagination.get(key)
        if isinstance(path, str) and path != LINK and not is_template(path):
            yield from _path_flaws(key, path)


def _path_flaws(key: str, path: str) -> Iterator[Flaw]:
    from tidemill.expressions.jsonpath_syntax import QueryFault, read_query

    try:
        read_query(path)
    except QueryFault as fault:
        yield Flaw(f"/pagination/{key}", fault.message, fault.hint)


HTTP = NodeType(
    name="http",
    title="HTTP request",
    icon="globe",
    description="Calls a URL and returns status, headers and body.",
    secret_fields=("url", "headers", "query", "auth", "body"),
    check=_flaws,
    config_schema=_object(
        ("url",),
        url={"type": "string", "minLength": 1},
        method={"enum": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]},
        headers=HEADERS_SCHEMA,
        query=_FIELDS,
        body={
            "type": "object",
            "properties": {"json": True, "text": _TEXT, "form": _FIELDS, "$blob": _TEXT},
            "minProperties": 1,
            "not": {"anyOf": [{"required": list(pair)} for pair in combinations(("json", "text", "form", "$blob"), 2)]},
        },
        auth=_object(
            (),
            bearer=_TEXT,
            basic=_object(("username", "password"), username=_TEXT, password=_TEXT),
            header=_object(("name", "value"), name=_TEXT, value=_TEXT),
        )
        | {"minProperties": 1, "maxProperties": 1},
        expect=EXPECT_SCHEMA,
        parse={"enum": ["auto", "json", "text", "bytes"]},
        pagination=PAGINATION_SCHEMA,
        idempotency_header={"anyOf": [{"type": "string", "pattern": "^[A-Za-z0-9-]+$"}, {"const": False}]},
        timeout_seconds=TIMEOUT_SCHEMA,
        max_bytes={"type": "integer", "minimum": 1},
        max_redirects={"type": "integer", "minimum": 0, "maximum": 3},
    ),
    output_schema={
        "type": "object",
        "properties": {
            "status": {"type": "integer"},
            "headers": {"type": "object"},
            "url": {"type": "string"},
            "pages": {"type": "integer"},
            "more": {"type": "boolean"},
            "body": True,
        },
        "additionalProperties": False,
    },
)


def http_handler(fetcher: Fetcher, now_ms: Callable[[], int] = wall_clock_ms) -> Handler:
    """The node type over a fetcher."""

    async def ask(context: NodeContext, call: Call) -> tuple[Answer, Any]:
        answer = await fetcher.fetch(call)
        check_status(answer, call.method, context.config.get("expect"), now_ms())
        return answer, _parsed(answer, context.config.get("parse", "auto"))

    async def work(context: NodeContext) -> Ended:
        try:
            call = await call_of(context)
            if "pagination" in context.config:
                return Return(await _all_pages(ask, context, call, fetcher.egress.limits.bytes_max))
            answer, body = await ask(context, call)
            return Return(_output(answer, body))
        except CallFailed as error:
            raise failure(error) from error

    return Handler(HTTP, work, close=fetcher.close)


Ask = Callable[[NodeContext, Call], Awaitable[tuple[Answer, Any]]]


async def _all_pages(ask: Ask, context: NodeContext, first: Call, bytes_max: int) -> dict[str, Any]:
    """Page after page, until there is none, or as many as are wanted. All bodies together keep within the limit."""
    paging = msgspec.convert(context.config["pagination"], Paging)
    items: list[Any] = []
    following: Call | None = first
    bytes_max = min(bytes_max, first.bytes_max or bytes_max)
    pages = size = 0
    while following is not None and pages < paging.max_pages and len(items) < paging.max_items:
        call = following
        answer, body = await ask(context, call)
        size, pages = size + len(answer.body), pages + 1
        if size > bytes_max:
            raise too_large(bytes_max)
        items += paging.items_of(body)
        context.progress(None, f"page {pages}")
        following = paging.following(call, answer, body)
    more = following is not None or len(items) > paging.max_items
    return {**_output(answer, items[: paging.max_items]), "pages": pages, "more": more}


def _output(answer: Answer, body: Any) -> dict[str, Any]:
    headers = {name: answer.header(name) for name, _ in answer.headers}
    return {"status": answer.status, "headers": headers, "body": body, "url": answer.url}


def _parsed(answer: Answer, parse: str) -> Any:
    """The body as the node wants it; nothing at all is null."""
    media_type, _, parameters = answer.header("content-type").lower().partition(";")
    media_type = media_type.strip() or "application/octet-stream"
    kind = _kind(media_type) if parse == "auto" else parse
    if not answer.body and parse != "bytes":
        return None
    if kind == "json":
        return _json(answer)
    if kind == "text":
        charset = _CHARSET.search(parameters)
        return _text(answer.body, charset[1] if charset else "utf-8")
    return Blob(answer.body, media_type)


def _kind(media_type: str) -> str:
    if media_type.endswith(("/json", "+json")):
        return "json"
    textual = media_type.startswith("text/") or media_type.endswith(
        ("/xml", "+xml", "/javascript", "-www-form-urlencoded")
    )
    return "text" if textual else "bytes"


def _json(answer: Answer) -> Any:
    try:
        return msgspec.json.decode(answer.body.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        hint = "set parse to text to see what it is"
        raise Fail("response_invalid", f"the answer is not JSON: {error}", hint=hint) from error


def _text(body: bytes, charset: str) -> str:
    try:
        return body.decode(charset, "replace")
    except LookupError:
        return body.decode("utf-8", "replace")
