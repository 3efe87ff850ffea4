"""The fields that the configs of all node types over models have in common: which model, where, and how it answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tidemill.handlers.calling import HEADERS_SCHEMA, TIMEOUT_SCHEMA, header_flaws, url_flaws, written_flaws
from tidemill.handlers.llm_provider import OPENAI_URL
from tidemill.kernel.model import Flaw

SECRET_FIELDS = ("api_key", "headers", "base_url")
_PRICE = {"type": "number", "minimum": 0}
_COUNT = {"type": "integer", "minimum": 1}
_RESERVED = ("messages", "model", "n", "stream", "tools")


def model_schema(providers: Iterable[str], required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    """The schema of a config that has the common fields and some of its own."""
    return {
        "type": "object",
        "properties": {**_common(providers), **properties},
        "required": list(required),
        "additionalProperties": False,
        "if": {"properties": {"provider": {"const": "scripted"}}, "required": ["provider"]},
        "then": {"required": ["answers"]},
        "else": {"required": ["model"]},
    }


def _common(providers: Iterable[str]) -> dict[str, Any]:
    return {
        "provider": {"enum": sorted(providers), "default": "openai"},
        "model": {"type": "string", "minLength": 1},
        "base_url": {"type": "string", "minLength": 1, "default": OPENAI_URL},
        "api_key": {"type": "string"},
        "headers": HEADERS_SCHEMA,
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
        "max_tokens": _COUNT,
        "seed": {"type": "integer"},
        "extra": {"type": "object", "propertyNames": {"not": {"enum": list(_RESERVED)}}},
        "response_format": {"enum": ["json_schema", "json_object", "none"], "default": "json_schema"},
        "strict": {"type": "boolean", "default": False},
        "timeout_seconds": TIMEOUT_SCHEMA | {"default": 120},
        "prices": {
            "type": "object",
            "properties": {
                "input_per_million": _PRICE,
                "output_per_million": _PRICE,
                "cached_input_per_million": _PRICE,
            },
            "required": ["input_per_million", "output_per_million"],
            "additionalProperties": False,
        },
        "answers": {"anyOf": [{"type": "array", "minItems": 1}, {"type": "object", "minProperties": 1}]},
    }


def model_flaws(config: Any) -> Iterator[Flaw]:
    """What the schema cannot say of the common fields."""
    yield from written_flaws(config.get("api_key"), "/api_key", "key")
    yield from url_flaws(config.get("base_url"), "/base_url")
    yield from header_flaws(config.get("headers"))
