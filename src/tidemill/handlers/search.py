"""Node type `search`: the rows or documents of an input that have most to do with a query."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tidemill.expressions.templates import is_template
from tidemill.expressions.wording import kind_of
from tidemill.handlers.contract import Ended, Fail, Handler, NodeContext, Return
from tidemill.handlers.pipeline import source_rows
from tidemill.handlers.tables import Row, Rows, read
from tidemill.kernel.model import Flaw, NodeType

if TYPE_CHECKING:
    from tidemill.handlers.ranking import Hit

DOCUMENTS_MAX = 100_000
TEXT_MAX = 50_000_000
"""Characters of all documents together."""
LIMIT = 10
LIMIT_MAX = 10_000
THREAD_TEXT = 20_000
"""Characters that are ranked in the loop's own thread; more would keep others waiting."""

_FIELD = {"type": "string", "minLength": 1}


def _empty_query(config: Any) -> Iterator[Flaw]:
    from tidemill.handlers.ranking import words

    query = config.get("query")
    if isinstance(query, str) and not is_template(query) and not words(query):
        yield Flaw("/query", "there is no word in the query", "letters and digits are words")
    if "rows" in config and "documents" in config:
        yield Flaw("/documents", "rows and documents exclude each other", "leave one of them out")


SEARCH = NodeType(
    name="search",
    title="Search",
    icon="search",
    description="Ranks rows or documents by the words of a query.",
    check=_empty_query,
    config_schema={
        "type": "object",
        "properties": {
            "query": {"type": "string", "maxLength": 10_000},
            "rows": True,
            "items": _FIELD,
            "documents": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]},
            "fields": {
                "anyOf": [
                    {"type": "array", "items": _FIELD, "minItems": 1},
                    {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}},
                ]
            },
            "limit": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT},
            "min_score": {"type": "number", "minimum": 0, "default": 0},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
    output_schema={
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"score": {"type": "number"}, "index": {"type": "integer"}, "row": True},
            "additionalProperties": False,
        },
    },
)


async def search(context: NodeContext) -> Ended:
    """Rank, and give the best with their scores and places."""
    # Its patterns know all scripts there are, and are compiled for whoever searches.
    from tidemill.handlers.ranking import rank

    config: dict[str, Any] = context.config
    found: Rows | list[str]
    if "documents" in config:
        found = _documents(config["documents"])
        texts = [{"": document} for document in found]
        weights: Mapping[str, float] = {}
    else:
        found = source_rows(config, context)
        weights = _weights(config.get("fields"))
        texts = [_parts(row, weights) for row in found]
    size = sum(len(text) for parts in texts for text in parts.values())
    if len(texts) > DOCUMENTS_MAX or size > TEXT_MAX:
        message = f"there are {len(texts)} documents with {size} characters"
        hint = f"at most {DOCUMENTS_MAX} with {TEXT_MAX} characters can be searched: filter them first"
        raise Fail("rows_too_many", message, hint=hint)
    query = config["query"]
    hits = rank(texts, query, weights) if size <= THREAD_TEXT else await asyncio.to_thread(rank, texts, query, weights)
    best = _best(hits, config.get("limit", LIMIT), config.get("min_score", 0))
    return Return([{"score": hit.score, "index": hit.number, "row": found[hit.number]} for hit in best])


def _best(hits: list[Hit], limit: int, least: float) -> list[Hit]:
    return [hit for hit in hits if hit.score >= least][:limit]


def _documents(given: Any) -> list[str]:
    if not isinstance(given, list):
        raise Fail("rows_invalid", f"documents are a list of strings, and this is {kind_of(given)}")
    return given


def _weights(fields: Any) -> dict[str, float]:
    return dict(fields) if isinstance(fields, dict) else dict.fromkeys(fields or (), 1.0)


def _parts(row: Row, weights: Mapping[str, float]) -> dict[str, str]:
    """Give the text of the fields that are searched; by default of all of them."""
    return {field: text for field in weights or row if (text := _text(read(row, field)))}


def _text(value: Any) -> str:
    """Give the words in a value: strings, numbers, and all that is in lists and objects."""
    waiting, found = [value], []
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            found.append(each)
        elif isinstance(each, list):
            waiting.extend(reversed(each))
        elif isinstance(each, dict):
            waiting.extend(reversed(each.values()))
        elif isinstance(each, int | float) and not isinstance(each, bool):
            found.append(str(each))
    return " ".join(found)


SEARCHING = (Handler(SEARCH, search),)
