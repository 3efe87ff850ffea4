"""From the config of a node to a call: URL, query, headers, body, credentials.

Everything is checked by the config's schema already. Credentials are kept apart from the other headers, because they
are meant for one origin only.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from tidemill.handlers.calling import time_ms
from tidemill.handlers.contract import Fail, NodeContext
from tidemill.security.fetcher import Call

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
