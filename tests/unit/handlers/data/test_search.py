"""The node type `search`: words, scores, order, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.handler_harness import called
from tidemill.errors import Rejected
from tidemill.handlers.contract import Done, Fail
from tidemill.handlers.data import search as search_module
from tidemill.handlers.data.search import SEARCHING, pieces, rank, words
from tidemill.kernel.compile.compiler import compile_document

(SEARCH,) = SEARCHING
BOOKS: list[dict[str, Any]] = [
    {"title": "The Old Man and the Sea", "tags": ["fishing", "Cuba"], "year": 1952},
    {"title": "Moby-Dick", "tags": ["whale", "sea"], "year": 1851, "about": "the sea, the sea and a whale"},
    {"title": "Les Misérables", "tags": [], "year": 1862},
    {"title": "Solaris", "tags": None, "year": 1961, "about": {"place": "an ocean of another world"}},
]


async def found(query: str, **config: Any) -> list[Any]:
    given_rows = {} if "documents" in config else {"rows": BOOKS}
    ended = await called(SEARCH, {"query": query, **given_rows, **config})
    assert isinstance(ended, Done)
    rows: list[Any] = ended.value
    return rows


async def places(query: str, **config: Any) -> list[int]:
    return [hit["index"] for hit in await found(query, **config)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The old-man, 1952!", ["the", "old", "man", "1952"]),
        ("Misérables ÉTÉ", ["miserables", "ete"]),
        ("Straße", ["strasse"]),
        ("snake_case", ["snake", "case"]),
        ("東京タワー", ["東", "京", "タ", "ワ", "ー"]),
        ("iPhone手机 2", ["iphone", "手", "机", "2"]),
        ("ﬁne Ⅳ", ["fine", "iv"]),
        ("서울", ["서울"]),
        ("— … !", []),
        ("", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("sea", [1, 0]),
        ("SEA whale", [1, 0]),
        ("miserables", [2]),
        ("ocean", [3]),
        ("1961", [3]),
        ("fishing", [0]),
        ("zebra", []),
    ],
)
async def test_what_is_found(query: str, expected: list[int]) -> None:
    assert await places(query) == expected


async def test_hits_carry_score_place_and_row() -> None:
    (hit,) = await found("solaris")
    assert hit == {"score": hit["score"], "index": 3, "row": BOOKS[3]} and hit["score"] > 0


async def test_fields_can_be_chosen_and_weighed() -> None:
    rows = [{"a": "red", "b": "green blue"}, {"a": "green", "b": "red blue"}]
    assert await places("red", rows=rows, fields=["a"]) == [0]
    assert await places("red", rows=rows, fields={"a": 3, "b": 1}) == [0, 1]
    assert await places("red", rows=rows, fields={"a": 1, "b": 3}) == [1, 0]
    assert await places("ocean", fields=["about.place"]) == [3]


async def test_documents_are_plain_texts() -> None:
    documents = ["a red house", "a blue house", "a red red car"]
    hits = await found("red house", documents=documents, limit=2)
    assert [(hit["index"], hit["row"]) for hit in hits] == [(0, "a red house"), (2, "a red red car")]


async def test_limit_and_least_score() -> None:
    rows = [{"t": "x"}] * 30
    assert len(await found("x", rows=rows)) == 10
    assert await places("x", rows=rows, limit=3) == [0, 1, 2]
    scores = [hit["score"] for hit in await found("sea")]
    assert await places("sea", min_score=scores[0]) == [1]


async def test_without_rows_it_searches_what_came_before() -> None:
    ended = await called(SEARCH, {"query": "sea"}, upstream={"books": BOOKS})
    assert isinstance(ended, Done) and [hit["index"] for hit in ended.value] == [1, 0]


async def test_what_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Fail) as failed:
        await found("x", documents="not a list")
    assert failed.value.code == "rows_invalid"
    monkeypatch.setattr(search_module, "TEXT_MAX", 10)
    with pytest.raises(Fail) as failed:
        await found("x", documents=["eleven char"])
    assert failed.value.code == "rows_too_many"


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"query": "…"}, "/query"),
        ({"query": "a", "rows": [], "documents": []}, "/documents"),
        ({"rows": []}, ""),
        ({"query": "a", "limit": 0}, "/limit"),
        ({"query": "a", "field": ["x"]}, "/field"),
    ],
)
def test_wrong_configs(config: dict[str, Any], path: str) -> None:
    with pytest.raises(Rejected) as refusal:
        compile_document(
            {"name": "x", "nodes": [{"id": "s", "type": "search", "config": config}]}, {"search": [SEARCH.type]}
        )
    assert [each.path for each in refusal.value.problems] == [f"/nodes/0/config{path}"]


WORDS = st.lists(st.sampled_from(["ab", "cd", "ef", "gh"]), max_size=6).map(" ".join)


@given(st.lists(WORDS, max_size=8), WORDS)
def test_a_rank_is_an_order_of_those_that_share_a_word(texts: list[str], query: str) -> None:
    hits = rank([{"t": text} for text in texts], query, {})
    sharing = {number for number, text in enumerate(texts) if set(words(text)) & set(words(query))}
    assert {hit.number for hit in hits} == sharing
    assert hits == sorted(hits, key=lambda hit: (-hit.score, hit.number))
    assert hits == rank([{"t": text} for text in texts], query, {})


@given(st.lists(WORDS, min_size=1, max_size=5), st.sampled_from(["ab", "cd"]))
def test_more_of_a_word_in_as_many_words_is_never_worse(texts: list[str], word: str) -> None:
    once, twice = f"{word} xx yy", f"{word} {word} yy"
    scores = {hit.number: hit.score for hit in rank([{"t": text} for text in [once, twice, *texts]], word, {})}
    assert scores[1] > scores[0]


def test_a_long_text_is_split_in_pieces_between_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["größe " * 50 + "ende", "x" * 100, "", "日本語" * 40, "a b " * 30]
    whole = [words(text) for text in texts]
    monkeypatch.setattr(search_module, "PIECE", 64)
    assert [[word for piece in pieces(text) for word in words(piece)] for text in texts if text != "x" * 100] == [
        each for each in whole if each != ["x" * 100]
    ]
    assert all("".join(pieces(text)) == text for text in texts)


async def test_a_search_has_a_limit_of_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.handlers.data.meter.SECONDS_MAX", 0.0)
    with pytest.raises(Fail) as failed:
        await called(SEARCH, {"query": "a", "documents": ["a b c " * 1_000] * 30})
    assert failed.value.code == "step_too_long"
