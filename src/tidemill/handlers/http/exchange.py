"""Config → request, response → outcome, Retry-After, shared schema fields.

From the config of a node to a call: URL, query, headers, body, credentials.

Everything is checked by the config's schema already. Credentials are kept apart from the other headers, because they
are meant for one origin only.

What an answer over HTTP means for an attempt: is it the expected one, is it worth another try, and when?

Shared by the node types that call somebody. A call that came to no answer is a failure too, with the code that the
fetcher gave it.

The fields that node types over the network have in common: their schemas, what can be wrong with them, and time.

Each of these types has a file of its own that says what else it wants, and what it does with it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from tidemill.expressions.templates.syntax import is_template
from tidemill.handlers.contract import Fail, NodeContext, truncate
from tidemill.kernel.model import ConfigProblem
from tidemill.net.egress import SCHEMES, CallFailed, invalid_host, shown
from tidemill.net.http_client import OWN, Answer, Call

_SUCCESS = ("2xx",)
_AGAIN = frozenset({408, 425, 429})
_SECONDS = re.compile(r"0*([0-9]+)")
RETRY_AFTER_MS_MAX = 86_400_000
"""A server that asks for more than a day is asked again after one."""
_DIGITS_MAX = 9
_QUOTED_MAX = 200
_HINTS = {
    401: "see `auth`: the credentials are missing or wrong",
    403: "see `auth`: the credentials do not suffice",
    404: "see `url`, or list 404 under `expect` if it is an answer",
}
_HINTS_OF_KINDS = {
    3: "see `max_redirects`, or name the final place as `url`",
    4: "the request is not what the server expects: see what it said, or list the status under `expect`",
    5: "the server has trouble: `retry` tries again later",
}

MAYBE_SENT = frozenset({"timeout", "connection_failed", "response_too_large", "response_invalid"})
"""After these the other side may have done what it was asked."""


def failure(error: CallFailed) -> Fail:
    """A call that came to no answer, as the failure of an attempt."""
    unknown = error.code in MAYBE_SENT and not error.unsent
    return Fail(error.code, error.message, retryable=error.retryable, hint=error.hint, unknown_outcome=unknown)


def check_status(answer: Answer, method: str, expect: Iterable[int | str] | None, now_ms: int) -> None:
    """Fail unless the status is an expected one."""
    if any(_covers(each, answer.status) for each in expect or _SUCCESS):
        return
    said = truncate(" ".join(_beginning(answer.body).split()), _QUOTED_MAX)
    message = f"{method} {shown(answer.url)} was answered with {answer.status} {answer.reason}".rstrip()
    raise Fail(
        "http_status",
        f"{message}: {said}" if said else message,
        retryable=answer.status in _AGAIN or answer.status >= 500,
        retry_after_ms=retry_after_ms(answer.header("retry-after"), now_ms),
        hint=_HINTS.get(answer.status) or _HINTS_OF_KINDS.get(answer.status // 100, ""),
    )


def _beginning(body: bytes) -> str:
    """So much of an answer as may be quoted, and a mark where it was cut."""
    size = 4 * _QUOTED_MAX
    text = body[:size].decode("utf-8", "replace")
    return text if len(body) <= size else f"{text}…"


def _covers(expected: int | str, status: int) -> bool:
    first, _, last = str(expected).partition("-")
    if first.endswith("xx"):
        return status // 100 == int(first[0])
    return int(first) <= status <= int(last or first)


def retry_after_ms(text: str, now_ms: int) -> int | None:
    """How long a server asks to wait, in seconds or until a date, at most a day; None if it does not say."""
    text = text.strip()
    seconds = _SECONDS.fullmatch(text)
    if seconds is not None:
        # A number of any length may come; the first digits tell that it is too long.
        return min(int(seconds[1][:_DIGITS_MAX]) * 1_000, RETRY_AFTER_MS_MAX)
    # It loads slowly, and hardly anybody sends a date.
    from email.utils import parsedate_to_datetime

    try:
        asked_ms = round(parsedate_to_datetime(text).timestamp() * 1_000) - now_ms
        return min(max(0, asked_ms), RETRY_AFTER_MS_MAX)
    except (ValueError, OverflowError):
        return None


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


def object_schema(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    """The schema of an object that has these fields and no others."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def time_ms(config: Mapping[str, Any]) -> int | None:
    """How long a node gives its call; None if it does not say."""
    seconds = config.get("timeout_seconds")
    return None if seconds is None else max(1, round(seconds * 1_000))


def url_flaws(url: Any, path: str = "/url") -> Iterator[ConfigProblem]:
    """What can be said against a URL that is no template."""
    if not isinstance(url, str) or is_template(url):
        return
    try:
        parts = urlsplit(url)
        fault = invalid_host((parts.hostname or "").encode("idna").decode())
        has_port = parts.port != 0
    except ValueError:
        yield ConfigProblem(path, "the URL cannot be read", "for example https://example.com/path")
        return
    if parts.scheme not in SCHEMES:
        yield ConfigProblem(
            path, f"{parts.scheme or 'nothing'!r} is no scheme to call", "begin with http:// or https://"
        )
    elif fault or not has_port:
        yield ConfigProblem(path, fault or "there is no port 0", "for example https://example.com/path")
    elif parts.username is not None:
        yield ConfigProblem(path, "a URL must not hold credentials", "write them under `auth`, as secrets")


def header_flaws(headers: Any) -> Iterator[ConfigProblem]:
    """Headers that belong to the connection."""
    for name in headers if isinstance(headers, dict) else ():
        if name.lower() in OWN:
            yield ConfigProblem(
                f"/headers/{name}", f"{name} belongs to the connection and cannot be set", "leave it out"
            )


def written_flaws(secret: Any, path: str, what: str) -> Iterator[ConfigProblem]:
    """A key or a password that the document itself holds."""
    if isinstance(secret, str) and secret and not is_template(secret):
        yield ConfigProblem(path, f"a {what} must not stand in a document", "write {{ secrets.NAME }}")


SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing, so that nobody needs to tell repetitions apart."""
IDEMPOTENCY_HEADER = "Idempotency-Key"
_JSON = msgspec.json.Encoder()


async def call_of(context: NodeContext) -> Call:
    """The call that a node of type `http` describes."""
    config: dict[str, Any] = context.config
    body, media_type = await _body(config.get("body"), context)
    method = config.get("method") or ("POST" if media_type else "GET")
    headers = {"accept": "application/json, */*;q=0.5"}
    if media_type:
        headers["content-type"] = media_type
    named = config.get("idempotency_header", IDEMPOTENCY_HEADER)
    keyed = bool(named) and method not in SAFE
    if keyed:
        headers[named.lower()] = header_safe(context.effect_key)
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
    )


def header_safe(text: str) -> str:
    """A key as a header can carry it."""
    return quote(text, safe="/:@-._~")


def with_query(url: str, query: Mapping[str, Any]) -> str:
    """Add parameters to the query of a URL; a list is one parameter several times, null is none."""
    added = urlencode([(name, text) for name, value in query.items() for text in _texts(value)])
    if not added:
        return url
    address, hash_sign, fragment = url.partition("#")
    joint = "" if address.endswith(("?", "&")) else "&" if "?" in address else "?"
    return f"{address}{joint}{added}{hash_sign}{fragment}"


def _texts(value: Any) -> Iterator[str]:
    match value:
        case None:
            return
        case list():
            for each in value:
                yield from _texts(each)
        case bool():
            yield str(value).lower()
        case _:
            yield str(value)


async def _body(body: Any, context: NodeContext) -> tuple[bytes, str]:
    """The bytes to send and what they are; nothing without a body."""
    match body:
        case None:
            return b"", ""
        case {"json": value}:
            return _JSON.encode(value), "application/json"
        case {"text": str(text)}:
            return text.encode(), "text/plain; charset=utf-8"
        case {"form": fields}:
            pairs = [(name, text) for name, value in fields.items() for text in _texts(value)]
            return urlencode(pairs).encode(), "application/x-www-form-urlencoded"
        case {"$blob": _} if context.read is not None:
            return await context.read(body), body.get("media_type") or "application/octet-stream"
        case _:
            raise Fail("config_invalid", "/body: this is no body", hint="write json, text or form, or give a file")


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
