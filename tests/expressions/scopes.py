"""The scope that most tests of expressions look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tidemill.expressions.conditions import Condition, Verdict, decide
from tidemill.expressions.scope import Absent, Json, Scope, Seen

OUTPUT: Json = {
    "score": 87,
    "ratio": 0.5,
    "name": "Ada",
    "none": None,
    "flag": True,
    "items": [{"id": 1, "n": "a"}, {"id": 2, "n": "b"}],
    "output": {"z": 1},
    "meta": "mine",
    "deep": {"k": {"z": 1}},
    "_private": 5,
}

SCOPE = Scope(
    nodes={
        "enrich": Seen(OUTPUT, {"status": "COMPLETED", "attempts": 2, "duration_ms": 3}),
        "a-b": Seen([1, 2, 3]),
        "text": Seen("plain"),
        "null": Seen(None),
        "skipped": Absent("was skipped"),
        "later": Absent("has not ended"),
    },
    inputs={"customer": "acme", "n": 3, "which": "enrich", "empty": "", "list": [3, 1, 2]},
    run={"id": "r1", "workflow": "w", "version": 4},
    secrets={"TOKEN": "s3cr3t-value"},
)

IN_MAP = replace(SCOPE, has_item=True, item={"id": 9}, index=4)
AFTER = replace(SCOPE, has_output=True, output={"score": 87, "n": 2.5, "tags": ["a", "b"], "none": None}, iteration=2)


class Watched(Mapping[str, Seen | Absent]):
    """Nodes that remember which of them were asked for."""

    def __init__(self, nodes: Mapping[str, Seen | Absent]) -> None:
        self.nodes = nodes
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Seen | Absent:
        self.asked.add(key)
        return self.nodes[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)


def is_plain(value: Any) -> bool:
    """Tell whether a value is JSON made of exact built-in types, as a parser would make it."""
    kind = type(value)
    if kind is dict:
        return all(type(key) is str and is_plain(each) for key, each in value.items())
    if kind is list:
        return all(is_plain(each) for each in value)
    if kind is float:
        return value - value == 0
    if kind is str:
        return value.encode("utf-8", "replace").decode() == value
    return kind in (int, bool) or value is None


def evaluate(condition: Condition, scope: Scope) -> Verdict:
    """Decide a condition that needs nobody else for it."""
    steps = decide(condition, scope)
    try:
        errand = next(steps)
    except StopIteration as ended:
        verdict: Verdict = ended.value
        return verdict
    raise AssertionError(f"not decided here: {errand}")
