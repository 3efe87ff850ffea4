"""The fields that node types over the network have in common: their schemas, what can be wrong with them, and time.

Each of these types has a file of its own that says what else it wants, and what it does with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from tidemill.expressions.templates import is_template
from tidemill.kernel.model import Flaw
from tidemill.security.addresses import misspelled
from tidemill.security.egress import SCHEMES
from tidemill.security.fetcher import OWN

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


def url_flaws(url: Any, path: str = "/url") -> Iterator[Flaw]:
    """What can be said against a URL that is no template."""
    if not isinstance(url, str) or is_template(url):
        return
    try:
        parts = urlsplit(url)
        fault = misspelled((parts.hostname or "").encode("idna").decode())
        has_port = parts.port != 0
    except ValueError:
        yield Flaw(path, "the URL cannot be read", "for example https://example.com/path")
        return
    if parts.scheme not in SCHEMES:
        yield Flaw(path, f"{parts.scheme or 'nothing'!r} is no scheme to call", "begin with http:// or https://")
    elif fault or not has_port:
        yield Flaw(path, fault or "there is no port 0", "for example https://example.com/path")
    elif parts.username is not None:
        yield Flaw(path, "a URL must not hold credentials", "write them under `auth`, as secrets")


def header_flaws(headers: Any) -> Iterator[Flaw]:
    """Headers that belong to the connection."""
    for name in headers if isinstance(headers, dict) else ():
        if name.lower() in OWN:
            yield Flaw(f"/headers/{name}", f"{name} belongs to the connection and cannot be set", "leave it out")


def written_flaws(secret: Any, path: str, what: str) -> Iterator[Flaw]:
    """A key or a password that the document itself holds."""
    if isinstance(secret, str) and secret and not is_template(secret):
        yield Flaw(path, f"a {what} must not stand in a document", "write {{ secrets.NAME }}")
