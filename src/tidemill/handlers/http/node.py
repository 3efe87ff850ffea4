"""Http node, paging.

Node type `http`: one call over HTTP, or one per page, and what came back.

The fetcher keeps the rules of the deployment: which hosts may be called, how long, how much. This file says what a
node may ask for, and what becomes of the answer.

Answers that come in pages: where the next page is, what is on each, and when to stop.

`next` is `link`, for the `Link` header, or a JSONPath into the body. What it finds is a URL, or with `parameter` a
cursor for that parameter of the query. Pages of another origin are asked for without credentials.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from itertools import combinations
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

import msgspec

from tidemill.ambient import wall_clock_ms
from tidemill.expressions.templates.syntax import is_template
from tidemill.handlers.contract import Blob, Ended, Fail, Handler, NodeContext, Return, is_media_type
from tidemill.handlers.http.exchange import (
    EXPECT_SCHEMA,
    HEADERS_SCHEMA,
    IDEMPOTENCY_HEADER,
    TIMEOUT_SCHEMA,
    call_of,
    check_status,
    failure,
    header_flaws,
    object_schema,
    url_flaws,
)
from tidemill.kernel.model import ConfigProblem, NodeType
from tidemill.net.egress import CallFailed, Limits
from tidemill.net.http_client import HARMLESS, Answer, Call, Fetcher, same_origin, too_large, without_key

PAGES_MAX = 1_000
ITEMS_MAX = 100_000
LINK = "link"
_RELATION = re.compile(r'<([^>]*)>((?:\s*;\s*[^\s;,="]+\s*(?:=\s*(?:"[^"]*"|[^\s;,"]*))?)*)')
_NEXT = re.compile(r';\s*rel\s*=\s*(?:"(?:[^"]*\s)?next(?:\s[^"]*)?"|next)(?:\s*;|\s*$)', re.IGNORECASE)

PAGINATION_SCHEMA = {
    "type": "object",
    "properties": {
        "next": {"type": "string", "minLength": 1, "maxLength": 1_000},
        "parameter": {"type": "string", "minLength": 1, "maxLength": 200},
        "items": {"type": "string", "minLength": 1, "maxLength": 1_000, "default": "$"},
        "max_pages": {"type": "integer", "minimum": 1, "maximum": PAGES_MAX, "default": 100},
        "max_items": {"type": "integer", "minimum": 1, "maximum": ITEMS_MAX, "default": 10_000},
    },
    "required": ["next"],
    "additionalProperties": False,
}


class Paging(msgspec.Struct, frozen=True, kw_only=True):
    """How a node wants to go through pages."""

    next: str
    parameter: str = ""
    items: str = "$"
    max_pages: int = 100
    max_items: int = 10_000

    def items_of(self, body: Any) -> list[Any]:
        """What is on a page: the list that is found, or else everything that is found."""
        found = find(self.items, body)
        return found[0] if len(found) == 1 and isinstance(found[0], list) else found

    def following(self, call: Call, answer: Answer, body: Any) -> Call | None:
        """The call for the next page; None after the last one."""
        target = _linked(answer.header("link")) if self.next == LINK else _single(find(self.next, body))
        if target is None or target in ("", False):
            return None
        if self.parameter:
            return msgspec.structs.replace(call, url=_with_parameter(call.url, self.parameter, str(target)))
        if not isinstance(target, str):
            raise Fail("response_invalid", f"{self.next} is no URL but {type(target).__name__}")
        return _towards(call, urljoin(answer.url, target))


def find(path: str, body: Any) -> list[Any]:
    """Everything that a JSONPath finds."""
    # The library takes a tenth of a second to load, which only those pay who use it.
    from tidemill.expressions.jsonpath.parser import read_query

    return list(read_query(path).find(body, body))


def _single(found: list[Any]) -> Any:
    return found[0] if found else None


def _linked(header: str) -> str | None:
    for match in _RELATION.finditer(header):
        if _NEXT.search(match[2]):
            return match[1]
    return None


def _with_parameter(url: str, name: str, value: str) -> str:
    parts = urlsplit(url)
    pairs = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] != name]
    return urlunsplit(parts._replace(query=urlencode([*pairs, (name, value)])))


def _towards(call: Call, url: str) -> Call:
    """The same call at another URL; what was meant for one origin is not sent to another."""
    if same_origin(call.url, url):
        return msgspec.structs.replace(call, url=url)
    if call.body:
        raise Fail("response_invalid", "the next page of a call with a body is on another host")
    headers = {name: value for name, value in call.headers.items() if name in HARMLESS}
    return msgspec.structs.replace(
        call, url=url, headers=headers, credentials={}, repeatable=without_key(call.repeatable)
    )


_SCALAR = {"type": ["string", "number", "boolean", "null"]}
_FIELDS = {"type": "object", "additionalProperties": {"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR}]}}
_TEXT = {"type": "string"}
_CHARSET = re.compile(r'charset="?([\w.:-]+)')


def _flaws(config: Any) -> Iterator[ConfigProblem]:
    yield from url_flaws(config.get("url"))
    yield from header_flaws(config.get("headers"))
    pagination = config.get("pagination")
    for key in ("next", "items") if isinstance(pagination, dict) else ():
        path = pagination.get(key)
        if isinstance(path, str) and path != LINK and not is_template(path):
            yield from _path_flaws(key, path)


def _path_flaws(key: str, path: str) -> Iterator[ConfigProblem]:
    from tidemill.expressions.jsonpath.parser import QueryFault, read_query

    try:
        read_query(path)
    except QueryFault as fault:
        yield ConfigProblem(f"/pagination/{key}", fault.message, fault.hint)


def http_type(limits: Limits) -> NodeType:
    """The node type where calls are bound to some limits."""
    return NodeType(
        name="http",
        title="HTTP request",
        icon="globe",
        description="Calls a URL and returns status, headers and body.",
        secret_fields=("url", "headers", "query", "auth", "body"),
        check=_flaws,
        config_schema=_schema(limits),
        output_schema=object_schema(
            (),
            status={"type": "integer"},
            headers={"type": "object"},
            url=_TEXT,
            pages={"type": "integer"},
            more={"type": "boolean"},
            body=True,
        ),
    )


def _schema(limits: Limits) -> dict[str, Any]:
    """The schema of a config; a node may want less than the deployment allows, never more."""
    return object_schema(
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
        auth=object_schema(
            (),
            bearer=_TEXT,
            basic=object_schema(("username", "password"), username=_TEXT, password=_TEXT),
            header=object_schema(("name", "value"), name=_TEXT, value=_TEXT),
        )
        | {"minProperties": 1, "maxProperties": 1},
        expect=EXPECT_SCHEMA | {"default": ["2xx"]},
        parse={"enum": ["auto", "json", "text", "bytes"], "default": "auto"},
        pagination=PAGINATION_SCHEMA,
        idempotency_header={
            "anyOf": [{"type": "string", "pattern": "^[A-Za-z0-9-]+$"}, {"const": False}],
            "default": IDEMPOTENCY_HEADER,
        },
        timeout_seconds=TIMEOUT_SCHEMA | {"default": limits.total_ms / 1_000},
        max_bytes={"type": "integer", "minimum": 1, "maximum": limits.bytes_max, "default": limits.bytes_max},
        max_redirects={"type": "integer", "minimum": 0, "maximum": (most := limits.redirects_max), "default": most},
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

    return Handler(http_type(fetcher.egress.limits), work, close=fetcher.close)


Ask = Callable[[NodeContext, Call], Awaitable[tuple[Answer, Any]]]


async def _all_pages(ask: Ask, context: NodeContext, first: Call, bytes_max: int) -> dict[str, Any]:
    """Page after page, until there is none, or as many as are wanted. All bodies together keep within the limit."""
    paging = msgspec.convert(context.config["pagination"], Paging)
    items: list[Any] = []
    following: Call | None = first
    bytes_max = min(bytes_max, first.bytes_max or bytes_max)
    pages = size = 0
    seen = {first.url}
    while following is not None and pages < paging.max_pages and len(items) < paging.max_items:
        call = following
        answer, body = await ask(context, call)
        size, pages = size + len(answer.body), pages + 1
        if size > bytes_max:
            raise too_large(bytes_max)
        items += paging.items_of(body)
        context.progress(None, f"page {pages}")
        following = paging.following(call, answer, body)
        if following is not None and following.url in seen:
            message = f"page {pages} leads back to a page that was read before"
            raise Fail("response_invalid", message, hint="check pagination.next: it must change from page to page")
        seen |= {following.url} if following is not None else set()
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
    # What a server calls it is its own affair, and no reason to lose the answer.
    return Blob(answer.body, media_type if is_media_type(media_type) else "application/octet-stream")


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
