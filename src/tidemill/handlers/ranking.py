"""Ranking texts by the words of a query: BM25, with words as people of any language would compare them.

Case and accents do not count. Scripts without spaces between words are taken character by character. The order of
the result depends on the texts and the query alone.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

SATURATION = 1.2
"""How soon a word that is repeated stops counting for more (`k1`)."""
LENGTH_SHARE = 0.75
"""How much the length of a text counts against it (`b`)."""
DIGITS = 6
"""Digits of a score that are kept: beyond them machines may differ."""

_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese."""
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_ACCENTS = re.compile(r"[\u0300-\u036f]")


class Hit(NamedTuple):
    """A text that has something to do with the query."""

    score: float
    number: int


def words(text: str) -> list[str]:
    """Split a text into words; one that has been folded can be compared with another."""
    folded = text.casefold()
    if not folded.isascii():
        plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", folded))
        folded = unicodedata.normalize("NFC", plain)
    return _WORD.findall(folded)


def rank(texts: Sequence[Mapping[str, str]], query: str, weights: Mapping[str, float]) -> list[Hit]:
    """Rank texts, each given as parts by name, of which some count for more; those without any of the words are out."""
    wanted = list(dict.fromkeys(words(query)))
    counted = [_counted(parts, weights) for parts in texts]
    lengths = [sum(counts.values()) for counts in counted]
    average = sum(lengths) / len(lengths) if lengths else 0.0
    hits: list[Hit] = []
    rarity = {word: _rarity(sum(word in counts for counts in counted), len(counted)) for word in wanted}
    for number, counts in enumerate(counted):
        relative = lengths[number] / average if average else 0.0
        found = (rarity[word] * _weight(counts[word], relative) for word in wanted if word in counts)
        score = round(math.fsum(found), DIGITS)
        if score > 0:
            hits.append(Hit(score, number))
    return sorted(hits, key=lambda hit: (-hit.score, hit.number))


def _counted(parts: Mapping[str, str], weights: Mapping[str, float]) -> dict[str, float]:
    counts: dict[str, float] = {}
    for name, text in parts.items():
        weight = weights.get(name, 1.0)
        for word, times in Counter(words(text)).items():
            counts[word] = counts.get(word, 0.0) + weight * times
    return counts


def _rarity(holders: int, total: int) -> float:
    return math.log(1 + (total - holders + 0.5) / (holders + 0.5))


def _weight(times: float, relative: float) -> float:
    return times * (SATURATION + 1) / (times + SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * relative))
