"""What the node types over the network share: config to request, response to outcome, schema fields and their checks.

Credentials are kept apart from the other headers, because they are for one origin only. A call without a response is a
failure with the code that the HTTP client gave it. Configs have passed their schemas before they get here.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from tidemill.expressions.scope import is_template
from tidemill.handlers.contract import Fail, NodeContext, truncate
from tidemill.kernel.model import ConfigProblem
from tidemill.net.egress import SCHEMES, CallFailed, invalid_host, shown
from tidemill.net.http_client import OWN, Answer, Call

# Response to outcome.

RETRY_AFTER_MS_MAX = 86_400_000
"""The longest wait that a server can ask for: a day."""
_QUOTED_MAX = 200
_HINTS = {
    401: "check `auth`: the credentials are missing or wrong",
    403: "check `auth`: the credentials lack a permission",
    404: "check `url`, or list 404 under `expect` if it is a valid response",
}
_HINTS_OF_KINDS = {
    3: "raise `max_redirects`, or use the final address as `url`",
    4: "the server rejected the request: read its response, or list the status under `expect`",
    5: "the server failed: `retry` tries again later",
}


def failure(error: CallFailed) -> Fail:
    """A call without a response, as the failure of an attempt."""
    # After these failures the server may have processed the request.
    maybe_sent = error.code in ("timeout", "connection_failed", "response_too_large", "response_invalid")
    unknown = maybe_sent and not error.unsent
    return Fail(error.code, error.message, retryable=error.retryable, hint=error.hint, unknown_outcome=unknown)


def check_status(answer: Answer, method: str, expect: Iterable[int | str] | None, now_ms: int) -> None:
    if any(_covers(each, answer.status) for each in expect or ("2xx",)):
        return
    quoted = excerpt(answer.body)
    message = f"{method} {shown(answer.url)} was answered with {answer.status} {answer.reason}".rstrip()
    raise Fail(
        "http_status",
        f"{message}: {quoted}" if quoted else message,
        retryable=answer.status in (408, 425, 429) or answer.status >= 500,
        retry_after_ms=retry_after_ms(answer.header("retry-after"), now_ms),
        hint=_HINTS.get(answer.status) or _HINTS_OF_KINDS.get(answer.status // 100, ""),
    )


def excerpt(body: bytes) -> str:
    """The beginning of a body on one line, for messages."""
    size = 4 * _QUOTED_MAX
    beginning = body[:size].decode("utf-8", "replace") + ("…" if len(body) > size else "")
    return truncate(" ".join(beginning.split()), _QUOTED_MAX)


def _covers(expected: int | str, status: int) -> bool:
    first, _, last = str(expected).partition("-")
    if first.endswith("xx"):
        return status // 100 == int(first[0])
    return int(first) <= status <= int(last or first)


def retry_after_ms(text: str, now_ms: int) -> int | None:
    """Parse Retry-After, in seconds or a date, at most a day; None if there is none."""
    text = text.strip()
    seconds = re.fullmatch(r"0*([0-9]+)", text)
    if seconds is not None:
        # The number may have any length; its first digits suffice to see that it is too large.
        return min(int(seconds[1][:9]) * 1_000, RETRY_AFTER_MS_MAX)
    # Imported here because it loads slowly, and servers hardly ever send a date.
    from email.utils import parsedate_to_datetime

    try:
        asked_ms = round(parsedate_to_datetime(text).timestamp() * 1_000) - now_ms
        return min(max(0, asked_ms), RETRY_AFTER_MS_MAX)
    except (ValueError, OverflowError):
        return None


# Schema fields and their checks.

EXPECT_SCHEMA = {
    "type": "array",
    "minItems": 1,
    "maxItems": 50,
    "items": {
        "anyOf": [
            {"type": "integer", "minimum": 100, "maximum": 599},
            {"type": "string", "pattern": "^([1-5]xx|[1-5][0-9]{2}(-[1-5][0-9]{2})?)$"},
        ]
    },
}
HEADERS_SCHEMA = {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 100}
TIMEOUT_SCHEMA = {"type": "number", "exclusiveMinimum": 0, "maximum": 3_600}


def time_ms(config: Mapping[str, Any]) -> int | None:
    """The `timeout_seconds` of a config in milliseconds."""
    seconds = config.get("timeout_seconds")
    return None if seconds is None else max(1, round(seconds * 1_000))


def check_url(url: Any, path: str = "/url") -> Iterator[ConfigProblem]:
    if not isinstance(url, str) or is_template(url):
        return
    try:
        parts = urlsplit(url)
        problem = invalid_host((parts.hostname or "").encode("idna").decode())
        has_port = parts.port != 0
    except ValueError:
        yield ConfigProblem(path, "the URL cannot be read", "for example https://example.com/path")
        return
    if parts.scheme not in SCHEMES:
        message = f"{parts.scheme!r} is not a scheme that can be called" if parts.scheme else "the URL has no scheme"
        yield ConfigProblem(path, message, "begin with http:// or https://")
    elif problem or not has_port:
        yield ConfigProblem(path, problem or "there is no port 0", "for example https://example.com/path")
    elif parts.username is not None:
        yield ConfigProblem(path, "a URL must not hold credentials", "write them under `auth`, as secrets")


def check_headers(headers: Any) -> Iterator[ConfigProblem]:
    """Report headers that belong to the connection."""
    for name in headers if isinstance(headers, dict) else ():
        if name.lower() in OWN:
            message = f"{name} belongs to the connection and cannot be set"
            yield ConfigProblem(f"/headers/{name}", message, "leave it out")


def check_not_literal(secret: Any, path: str, what: str) -> Iterator[ConfigProblem]:
    """Report a key or password that is written in the document itself."""
    if isinstance(secret, str) and secret and not is_template(secret):
        yield ConfigProblem(path, f"a {what} must not stand in a document", "write {{ secrets.NAME }}")


# Config to request.

IDEMPOTENCY_HEADER = "Idempotency-Key"


async def call_of(context: NodeContext) -> Call:
    config: dict[str, Any] = context.config
    body, media_type = await _body(config.get("body"), context)
    method = config.get("method") or ("POST" if media_type else "GET")
    headers = {"accept": "application/json, */*;q=0.5"}
    if media_type:
        headers["content-type"] = media_type
    named = config.get("idempotency_header", IDEMPOTENCY_HEADER)
    # Methods without effect need no idempotency key.
    keyed = bool(named) and method not in ("GET", "HEAD", "OPTIONS")
    if keyed:
        headers[named.lower()] = quote(context.effect_key, safe="/:@-._~")
    if context.traceparent:
        headers["traceparent"] = context.traceparent
    headers |= {name.lower(): value for name, value in (config.get("headers") or {}).items()}
    return Call(
        url=with_query(config["url"], config.get("query") or {}),
        method=method,
        headers=headers,
        credentials=_credentials(config.get("auth") or {}),
        body=body,
        repeatable=False if context.at_most_once else keyed or None,
        total_ms=time_ms(config),
        bytes_max=config.get("max_bytes"),
        redirects_max=config.get("max_redirects"),
        forbidden_at=context.forbidden_at,
    )


def with_query(url: str, query: Mapping[str, Any]) -> str:
    """Add parameters to the query of a URL; a list repeats the parameter, null omits it."""
    added = urlencode([(name, text) for name, value in query.items() for text in _texts(value)])
    if not added:
        return url
    address, hash_sign, fragment = url.partition("#")
    joint = "" if address.endswith(("?", "&")) else "&" if "?" in address else "?"
    return f"{address}{joint}{added}{hash_sign}{fragment}"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif value is not None:
        yield str(value).lower() if isinstance(value, bool) else str(value)


async def _body(body: Any, context: NodeContext) -> tuple[bytes, str]:
    """The bytes to send and their media type; both empty without a body."""
    match body:
        case None:
            return b"", ""
        case {"json": value}:
            return msgspec.json.encode(value), "application/json"
        case {"text": str(text)}:
            return text.encode(), "text/plain; charset=utf-8"
        case {"form": fields}:
            pairs = [(name, text) for name, value in fields.items() for text in _texts(value)]
            return urlencode(pairs).encode(), "application/x-www-form-urlencoded"
        case {"$blob": _} if context.read is not None:
            return await context.read(body), body.get("media_type") or "application/octet-stream"
        case _:
            raise Fail("config_invalid", "/body: this is not a body", hint="write json, text or form, or give a file")


def _credentials(auth: dict[str, Any]) -> dict[str, str]:
    match auth:
        case {"bearer": str(token)}:
            return {"authorization": f"Bearer {token}"}
        case {"basic": {"username": str(name), "password": str(password)}}:
            pair = base64.b64encode(f"{name}:{password}".encode()).decode()
            return {"authorization": f"Basic {pair}"}
        case {"header": {"name": str(name), "value": str(value)}}:
            return {name.lower(): value}
        case _:
            return {}
