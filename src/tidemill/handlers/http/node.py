"""Node type `http`: one HTTP request, or one per page.

The fetcher enforces the rules of the deployment: hosts, time and size. This module defines what a node may ask for, and
what becomes of the response. `pagination.next` is `link` (the `Link` header) or a JSONPath into the body; what it finds
is a URL or, with `parameter`, a cursor. A page of another origin is requested without credentials.
"""

from __future__ import annotations

import asyncio
import codecs
import re
from collections.abc import Awaitable, Callable, Iterator
from itertools import combinations
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

import msgspec

from tidemill.ambient import wall_clock_ms
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.limits import json_excess
from tidemill.expressions.sandbox.pool import NoSandbox, SandboxExecutor, run_query
from tidemill.expressions.scope import is_template
from tidemill.handlers.contract import (
    Blob,
    Done,
    Fail,
    Handler,
    HandlerOutcome,
    NodeContext,
    is_media_type,
    object_schema,
)
from tidemill.handlers.control import check_query
from tidemill.handlers.http import exchange
from tidemill.kernel.document.reader import paused_collector
from tidemill.kernel.model import ConfigProblem, NodeType
from tidemill.net.egress import CallFailed, Limits
from tidemill.net.http_client import Answer, Call, Fetcher, harmless, read_url, same_origin, too_large, without_key

# Pagination.

PAGES_MAX = 1_000
ITEMS_MAX = 100_000
LINK = "link"
LINK_CHARACTERS_MAX = 8_192
_RELATION = re.compile(r'<([^<>]*)>((?:\s*+;\s*+[^\s;,="]++\s*+(?:=\s*+(?:"[^"]*+"|[^\s;,"]*+))?)*+)')
_NEXT = re.compile(r';\s*rel\s*=\s*(?:"(?:[^"]*\s)?next(?:\s[^"]*)?"|next)(?:\s*;|\s*$)', re.IGNORECASE)

PAGINATION_SCHEMA = object_schema(
    ("next",),
    next={"type": "string", "minLength": 1, "maxLength": 1_000},
    parameter={"type": "string", "minLength": 1, "maxLength": 200},
    items={"type": "string", "minLength": 1, "maxLength": 1_000, "default": "$"},
    max_pages={"type": "integer", "minimum": 1, "maximum": PAGES_MAX, "default": 100},
    max_items={"type": "integer", "minimum": 1, "maximum": ITEMS_MAX, "default": 10_000},
)


class Paging(msgspec.Struct, frozen=True, kw_only=True):
    next: str
    parameter: str = ""
    items: str = "$"
    max_pages: int = 100
    max_items: int = 10_000

    async def items_of(self, body: Any, executor: SandboxExecutor) -> list[Any]:
        """The items of a page: the list that the query finds, or else all values that it finds."""
        found = await _find(self.items, body, executor)
        return found[0] if len(found) == 1 and isinstance(found[0], list) else found

    async def following(self, call: Call, answer: Answer, body: Any, executor: SandboxExecutor) -> Call | None:
        """The call for the next page; None after the last one."""
        if self.next == LINK:
            links = _RELATION.finditer(answer.header("link")[:LINK_CHARACTERS_MAX])
            targets: list[Any] = [match[1] for match in links if _NEXT.search(match[2])]
        else:
            targets = await _find(self.next, body, executor)
        target = next(iter(targets), None)
        if target is None or target in ("", False):
            return None
        if self.parameter:
            parts = urlsplit(call.url)
            pairs = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] != self.parameter]
            query = urlencode([*pairs, (self.parameter, str(target))])
            return msgspec.structs.replace(call, url=urlunsplit(parts._replace(query=query)))
        if not isinstance(target, str):
            raise Fail("response_invalid", f"{self.next} is not a URL but {type(target).__name__}")
        return _at_url(call, urljoin(answer.url, target))


async def _find(path: str, body: Any, executor: SandboxExecutor) -> list[Any]:
    try:
        return await run_query(path, body, executor)
    except ExpressionError as failure:
        raise Fail("query_failed", f"{path}: {failure.message}", hint=failure.hint) from None


def _at_url(call: Call, url: str) -> Call:
    """The same call for another URL; another origin gets neither credentials nor body."""
    if same_origin(call.url, url):
        return msgspec.structs.replace(call, url=url)
    if call.body:
        raise Fail("response_invalid", "the next page of a call with a body is on another host")
    # Nothing is left in it that is secret.
    headers = harmless(call.headers, read_url(url), call.forbidden_at)
    repeatable = without_key(call.repeatable)
    return msgspec.structs.replace(
        call, url=url, headers=headers, credentials={}, repeatable=repeatable, forbidden_at=None
    )


# The node type.

VALUES_MAX = 1_000_000
"""Lists, objects and what is in them, in a JSON answer."""
READ_HERE_MAX = 65_536
"""Bytes of a body that are read in the event loop."""
_CODEC = re.compile(
    r"ascii|utf-(8|8-sig|16|16-le|16-be|32|32-le|32-be)|iso8859-\d+|cp(12\d\d|437|850|866|874|932|949|950)"
    r"|koi8-[ru]|mac-roman|gb2312|gbk|gb18030|big5|shift_jis|euc_(jp|kr)|iso2022_jp"
)
_CREDENTIALS = frozenset(
    (
        *("set-cookie", "set-cookie2", "cookie", "authorization", "proxy-authorization", "authentication-info"),
        *("proxy-authentication-info", "x-api-key", "x-auth-token", "x-access-token", "x-csrf-token", "x-xsrf-token"),
        *("x-amz-security-token", "x-vault-token"),
    )
)
"""Response headers that let their holder act: they are stored only if the node names them."""

_SCALAR = {"type": ["string", "number", "boolean", "null"]}
_FIELDS = {"type": "object", "additionalProperties": {"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR}]}}
_TEXT = {"type": "string"}


def _check(config: Any) -> Iterator[ConfigProblem]:
    yield from exchange.check_url(config.get("url"))
    yield from exchange.check_headers(config.get("headers"))
    yield from _literal_credentials(config)
    pagination = config.get("pagination")
    for key in ("next", "items") if isinstance(pagination, dict) else ():
        path = pagination.get(key)
        if isinstance(path, str) and path != LINK:
            yield from check_query(path, f"/pagination/{key}")


def _literal_credentials(config: Any) -> Iterator[ConfigProblem]:
    """Warn of keys that are written in the document: everyone who may read it sees them."""
    headers, auth = config.get("headers"), config.get("auth")
    found = {f"/headers/{name}": text for name, text in headers.items()} if isinstance(headers, dict) else {}
    found = {path: text for path, text in found.items() if _KEY_HEADER.search(path)}
    if isinstance(auth, dict) and isinstance(auth.get("bearer"), str):
        found["/auth/bearer"] = auth["bearer"]
    for path, text in found.items():
        if isinstance(text, str) and text and not is_template(text):
            message = "a credential stands in the document, where all its readers see it"
            yield ConfigProblem(path, message, "write {{ secrets.NAME }}", code="literal_credential", warning=True)


_KEY_HEADER = re.compile(r"/(?:proxy-)?(?:authorization|(?:x-)?api-key|x-auth-token)$", re.IGNORECASE)


def http_type(limits: Limits) -> NodeType:
    """The node type under the limits of a deployment."""
    return NodeType(
        name="http",
        title="HTTP request",
        icon="globe",
        description="Calls a URL and returns status, headers and body.",
        secret_fields=("url", "headers", "query", "auth", "body"),
        check=_check,
        # A node may lower the limits of the deployment, never raise them.
        config_schema=object_schema(
            ("url",),
            url={"type": "string", "minLength": 1},
            method={"enum": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]},
            headers=exchange.HEADERS_SCHEMA,
            query=_FIELDS,
            body={
                "type": "object",
                "description": "{json: …}, {text: …} or {form: …}",
                "properties": {"json": True, "text": _TEXT, "form": _FIELDS, "$blob": _TEXT},
                "minProperties": 1,
                "not": {
                    "anyOf": [{"required": list(pair)} for pair in combinations(("json", "text", "form", "$blob"), 2)]
                },
            },
            auth=object_schema(
                (),
                bearer=_TEXT,
                basic=object_schema(("username", "password"), username=_TEXT, password=_TEXT),
                header=object_schema(("name", "value"), name=_TEXT, value=_TEXT),
            )
            | {"minProperties": 1, "maxProperties": 1},
            expect=exchange.EXPECT_SCHEMA | {"default": ["2xx"]},
            response_headers={"type": "array", "items": _TEXT, "maxItems": 100},
            parse={"enum": ["auto", "json", "text", "bytes"], "default": "auto"},
            pagination=PAGINATION_SCHEMA,
            idempotency_header={
                "anyOf": [{"type": "string", "pattern": "^[A-Za-z0-9-]+$"}, {"const": False}],
                "default": exchange.IDEMPOTENCY_HEADER,
            },
            timeout_seconds=exchange.TIMEOUT_SCHEMA | {"default": limits.total_ms / 1_000},
            max_bytes={"type": "integer", "minimum": 1, "maximum": limits.bytes_max, "default": limits.bytes_max},
            max_redirects={"type": "integer", "minimum": 0, "maximum": (most := limits.redirects_max), "default": most},
        ),
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


def http_handler(
    fetcher: Fetcher, executor: SandboxExecutor | None = None, now_ms: Callable[[], int] = wall_clock_ms
) -> Handler:
    queries = executor or NoSandbox()

    async def ask(context: NodeContext, call: Call) -> tuple[Answer, Any]:
        answer = await fetcher.fetch(call)
        exchange.check_status(answer, call.method, context.config.get("expect"), now_ms())
        return answer, await _parsed(answer, context.config.get("parse", "auto"))

    async def work(context: NodeContext) -> HandlerOutcome:
        try:
            call = await exchange.call_of(context)
            if "pagination" in context.config:
                return Done(await _all_pages(ask, context, call, fetcher.egress.limits.bytes_max, queries))
            answer, body = await ask(context, call)
            return Done(_output(answer, body, context.config.get("response_headers")))
        except CallFailed as error:
            raise exchange.failure(error) from error

    return Handler(http_type(fetcher.egress.limits), work, close=fetcher.close)


Ask = Callable[[NodeContext, Call], Awaitable[tuple[Answer, Any]]]


async def _all_pages(
    ask: Ask, context: NodeContext, first: Call, bytes_max: int, executor: SandboxExecutor
) -> dict[str, Any]:
    """Request pages up to the last one or the configured maximum. The size limit is for all bodies together."""
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
        items += await paging.items_of(body, executor)
        context.progress(None, f"page {pages}")
        following = await paging.following(call, answer, body, executor)
        if following is not None and following.url in seen:
            message = f"page {pages} leads back to a page that was read before"
            raise Fail("response_invalid", message, hint="check pagination.next: it must change from page to page")
        seen |= {following.url} if following is not None else set()
    more = following is not None or len(items) > paging.max_items
    output = _output(answer, items[: paging.max_items], context.config.get("response_headers"))
    return {**output, "pages": pages, "more": more}


def _output(answer: Answer, body: Any, wanted: list[str] | None) -> dict[str, Any]:
    """The output, with the headers that the node asks for, else with all but credentials."""
    headers = {name: "***" if name in _CREDENTIALS else answer.header(name) for name, _ in answer.headers}
    if wanted is not None:
        asked = {name.lower() for name in wanted}
        headers = {name: answer.header(name) for name, _ in answer.headers if name in asked}
    return {"status": answer.status, "headers": headers, "body": body, "url": answer.url}


async def _parsed(answer: Answer, parse: str) -> Any:
    """The body in the form that the node asks for; null if it is empty. Much of it is read in a thread."""
    if len(answer.body) > READ_HERE_MAX:
        return await asyncio.to_thread(_read_body, answer, parse)
    return _read_body(answer, parse)


def _read_body(answer: Answer, parse: str) -> Any:
    media_type, _, parameters = answer.header("content-type").lower().partition(";")
    media_type = media_type.strip() or "application/octet-stream"
    kind = _kind(media_type) if parse == "auto" else parse
    if not answer.body and parse != "bytes":
        return None
    if kind == "json":
        return _json(answer)
    if kind == "text":
        charset = re.search(r'charset="?([\w.:-]{1,40})', parameters)
        return answer.body.decode(_codec(charset[1] if charset else "utf-8"), "replace")
    # An invalid media type is no reason to lose the response.
    return Blob(answer.body, media_type if is_media_type(media_type) else "application/octet-stream")


def _codec(charset: str) -> str:
    """The codec of a charset that the web knows, else UTF-8: some of Python's others take quadratic time."""
    try:
        name = codecs.lookup(charset).name
    except (LookupError, ValueError):
        return "utf-8"
    return name if _CODEC.fullmatch(name) else "utf-8"


def _kind(media_type: str) -> str:
    if media_type.endswith(("/json", "+json")):
        return "json"
    textual = ("/xml", "+xml", "/javascript", "-www-form-urlencoded")
    return "text" if media_type.startswith("text/") or media_type.endswith(textual) else "bytes"


def _json(answer: Answer) -> Any:
    # Nothing interrupts the parser, and every other run waits for it.
    values = 0 if len(answer.body) <= VALUES_MAX else sum(map(answer.body.count, (b",", b"[", b"{")))
    if values > VALUES_MAX:
        hint = "ask for less, or set parse to text or bytes"
        raise Fail("response_too_large", f"the answer has more than {VALUES_MAX} values", hint=hint)
    if excess := json_excess(answer.body):
        hint = "ask for less, or set parse to text or bytes"
        raise Fail("response_too_large", f"the answer cannot be read: {excess}", hint=hint)
    try:
        with paused_collector():
            return msgspec.json.decode(answer.body.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        hint = "set parse to text if the server sends no JSON on purpose"
        message = f"the answer is not JSON: {error}; it begins: {exchange.excerpt(answer.body)}"
        raise Fail("response_invalid", message, hint=hint) from error
