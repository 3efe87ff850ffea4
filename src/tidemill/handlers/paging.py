"""Answers that come in pages: where the next page is, what is on each, and when to stop.

`next` is `link`, for the `Link` header, or a JSONPath into the body. What it finds is a URL, or with `parameter` a
cursor for that parameter of the query. Pages of another origin are asked for without credentials.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

import msgspec

from tidemill.handlers.contract import Fail
from tidemill.security.fetcher import HARMLESS, Answer, Call, same_origin, without_key

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
    from tidemill.expressions.jsonpath_syntax import read_query

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
