"""Node type `search`: ranks rows or documents by the words of a query, with BM25.

Case and accents do not count. Scripts without spaces between words are split into characters. The result depends on
the texts and the query alone: scores are rounded, and equal scores keep the order of the input.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tidemill.expressions.conditions import is_small
from tidemill.expressions.errors import kind_of
from tidemill.expressions.scope import is_template
from tidemill.handlers.contract import Done, Fail, Handler, HandlerOutcome, NodeContext, object_schema
from tidemill.handlers.data.meter import Meter, TableError, metered
from tidemill.handlers.data.pipeline import source_rows
from tidemill.handlers.data.tables import read
from tidemill.kernel.model import ConfigProblem, NodeType

DOCUMENTS_MAX = 100_000
TEXT_MAX = 50_000_000
"""Characters of all documents together."""
LIMIT = 10
LOOP_ITEMS = 2_000
LOOP_TEXT = 20_000
"""What more than this many values or characters hold is searched in a thread."""

_FIELD = {"type": "string", "minLength": 1}


def _check(config: Any) -> Iterator[ConfigProblem]:
    query = config.get("query")
    if isinstance(query, str) and not is_template(query) and not words(query):
        yield ConfigProblem("/query", "there is no word in the query", "words are made of letters and digits")
    if "rows" in config and "documents" in config:
        yield ConfigProblem("/documents", "rows and documents are mutually exclusive", "leave one of them out")


SEARCH = NodeType(
    name="search",
    title="Search",
    icon="search",
    description="Ranks rows or documents by the words of a query.",
    check=_check,
    config_schema=object_schema(
        ("query",),
        query={"type": "string", "maxLength": 10_000},
        rows=True,
        items=_FIELD,
        documents={"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]},
        fields={
            "anyOf": [
                {"type": "array", "items": _FIELD, "minItems": 1},
                {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}},
            ]
        },
        limit={"type": "integer", "minimum": 1, "maximum": 10_000, "default": LIMIT},
        min_score={"type": "number", "minimum": 0, "default": 0},
    ),
    output_schema={
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"score": {"type": "number"}, "index": {"type": "integer"}, "row": True},
            "additionalProperties": False,
        },
    },
)


async def search(context: NodeContext) -> HandlerOutcome:
    config: dict[str, Any] = context.config
    found: list[Any]
    if "documents" in config:
        found = config["documents"]
        if not isinstance(found, list):
            raise Fail("rows_invalid", f"documents are a list of strings, and this is {kind_of(found)}")
    else:
        found = source_rows(config, context)
    try:
        hits = await metered(partial(_hits, found, config), small=is_small(found, LOOP_ITEMS, LOOP_TEXT))
    except TableError as wrong:
        raise Fail(wrong.code, wrong.message, hint=wrong.hint) from None
    least = config.get("min_score", 0)
    best = [hit for hit in hits if hit.score >= least][: config.get("limit", LIMIT)]
    return Done([{"score": hit.score, "index": hit.number, "row": found[hit.number]} for hit in best])


def _hits(found: list[Any], config: dict[str, Any], meter: Meter) -> list[Hit]:
    texts: list[dict[str, str]] = []
    weights: Mapping[str, float] = {}
    if "documents" in config:
        texts = [{"": document} for document in found]
    else:
        fields = config.get("fields") or ()
        weights = fields if isinstance(fields, dict) else dict.fromkeys(fields, 1.0)
        for row in found:
            parts = {field: text for field in weights or row if (text := _text(read(row, field)))}
            meter.work(10 + len(parts) + sum(map(len, parts.values())) // 50)
            texts.append(parts)
    size = sum(len(text) for parts in texts for text in parts.values())
    if len(texts) > DOCUMENTS_MAX or size > TEXT_MAX:
        message = f"there are {len(texts)} documents with {size} characters"
        hint = f"at most {DOCUMENTS_MAX} with {TEXT_MAX} characters can be searched: filter them first"
        raise Fail("rows_too_many", message, hint=hint)
    return rank(texts, config["query"], weights, meter)


def _text(value: Any) -> str:
    """The strings and numbers in a value, also inside lists and objects."""
    pending, found = [value], []
    while pending:
        each = pending.pop()
        if isinstance(each, str):
            found.append(each)
        elif isinstance(each, list):
            pending.extend(reversed(each))
        elif isinstance(each, dict):
            pending.extend(reversed(each.values()))
        elif isinstance(each, int | float) and not isinstance(each, bool):
            found.append(str(each))
    return " ".join(found)


SEARCHING = (Handler(SEARCH, search),)


# BM25.

SATURATION = 1.2
"""`k1`: how soon repetitions of a word stop adding to the score."""
LENGTH_SHARE = 0.75
"""`b`: how much the length of a text lowers its score."""

_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese."""
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


class Hit(NamedTuple):
    score: float
    number: int


PIECE = 1 << 16
"""Characters that are split at once, because that holds the interpreter's lock."""


def pieces(text: str) -> Iterator[str]:
    """Cut a long text between words; a word that is longer than a piece is cut too."""
    start = 0
    while len(text) - start > PIECE:
        end = text.rfind(" ", start, start + PIECE) + 1 or start + PIECE
        yield text[start:end]
        start = end
    yield text[start:]


def words(text: str) -> list[str]:
    """Split a text into case-folded words without accents."""
    folded = text.casefold()
    if not folded.isascii():
        without_accents = re.sub(r"[\u0300-\u036f]", "", unicodedata.normalize("NFKD", folded))
        folded = unicodedata.normalize("NFC", without_accents)
    return _WORD.findall(folded)


def rank(
    texts: Sequence[Mapping[str, str]], query: str, weights: Mapping[str, float], meter: Meter | None = None
) -> list[Hit]:
    """Rank texts, each a mapping of weighted parts; texts without any of the words are left out."""
    meter = meter or Meter()
    wanted = frozenset(words(query))
    counted, lengths = [], []
    for parts in texts:
        counts, length = _counted(parts, weights, wanted, meter)
        counted.append(counts)
        lengths.append(length)
    average = sum(lengths) / len(lengths) if lengths else 0.0
    hits: list[Hit] = []
    holders = Counter(word for counts in counted for word in counts)
    rarity = {word: math.log(1 + (len(counted) - held + 0.5) / (held + 0.5)) for word, held in holders.items()}
    for number, counts in enumerate(counted):
        meter.work(10 + len(counts))
        relative = lengths[number] / average if average else 0.0
        damping = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * relative)
        weights_found = (
            rarity[word] * (times * (SATURATION + 1) / (times + damping)) for word, times in counts.items()
        )
        # Beyond six decimals machines may differ.
        score = round(math.fsum(weights_found), 6)
        if score > 0:
            hits.append(Hit(score, number))
    return sorted(hits, key=lambda hit: (-hit.score, hit.number))


def _counted(
    parts: Mapping[str, str], weights: Mapping[str, float], wanted: frozenset[str], meter: Meter
) -> tuple[dict[str, float], float]:
    """How often a text has each of the wanted words, and how many words it has; both weighted by its parts."""
    counts: dict[str, float] = {}
    length = 0.0
    for name, text in parts.items():
        weight = weights.get(name, 1.0)
        for piece in pieces(text):
            meter.work(5 + len(piece) // 2)
            found = words(piece)
            length += weight * len(found)
            for word, times in Counter(filter(wanted.__contains__, found)).items():
                counts[word] = counts.get(word, 0.0) + weight * times
    return counts, length
