"""Arguments of functions have the types of their hints, and results become JSON."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple, NewType, Optional, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

import tidemill
from tidemill.handlers.python.conversion import (
    CONVERTED,
    OPAQUE,
    PLAIN,
    conversion_of,
    convert,
    converter,
    fields_of,
    hints_of,
    json_kinds,
    to_json,
)


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Item:
    sku: str
    count: int = 1


@dataclass
class Order:
    id: UUID
    at: datetime
    items: list[Item] = field(default_factory=list)
    colour: Colour | None = None


class Point(msgspec.Struct):
    x: float
    y: float


class Pair(NamedTuple):
    left: int
    right: int


class Row(TypedDict):
    name: str


class Dated(TypedDict):
    at: datetime


class Model:
    """Behaves as a Pydantic model does."""

    def __init__(self, n: int) -> None:
        self.n = n

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        if not isinstance(value, dict) or not isinstance(value.get("n"), int):
            raise ValueError("n: a whole number is wanted")
        return cls(value["n"])

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"n": self.n}


class Foreign:
    pass


Number = NewType("Number", int)


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (Any, PLAIN),
        (int, PLAIN),
        (list[int], PLAIN),
        (dict[str, Any], PLAIN),
        (dict, PLAIN),
        (Sequence[str], PLAIN),
        (Optional[str], PLAIN),  # noqa: UP045
        (int | None, PLAIN),
        (Literal["a", "b"], PLAIN),
        (Number, PLAIN),
        (Row, PLAIN),
        (Dated, CONVERTED),
        (Item, CONVERTED),
        (list[Item], CONVERTED),
        (dict[int, str], CONVERTED),
        (tuple[int, ...], CONVERTED),
        (set, CONVERTED),
        (Colour | None, CONVERTED),
        (datetime, CONVERTED),
        (Model, CONVERTED),
        (Pair, CONVERTED),
        (Foreign, OPAQUE),
        (list[Foreign], OPAQUE),
        (dict[str, Item | Foreign], OPAQUE),
        ("text", OPAQUE),
    ],
)
def test_what_a_hint_asks_for(hint: Any, expected: int) -> None:
    assert conversion_of(hint) == expected
    assert (converter(hint) is not None) is (expected == CONVERTED)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Order, Order(UUID(int=7), datetime(2026, 1, 2, tzinfo=UTC), [Item("a", 2)], Colour.RED)),
        (list[Point], [Point(1.0, 2.5)]),
        (Pair, Pair(1, 2)),
        (set[int], {1, 2}),
        (dict[int, Colour], {3: Colour.RED}),
        (Decimal, Decimal("1.10")),
        (date, date(2026, 1, 2)),
        (timedelta, timedelta(seconds=90)),
        (bytes, b"\x00\xff"),
    ],
)
def test_a_value_survives_the_way_through_json(hint: Any, value: Any) -> None:
    assert convert(hint, msgspec.json.decode(msgspec.json.encode(to_json(value)))) == value


def test_a_model_is_validated_and_dumped_by_its_own_methods() -> None:
    assert convert(Model, to_json(Model(3))).n == 3
    assert [each.n for each in convert(list[Model], [{"n": 1}, {"n": 2}])] == [1, 2]
    with pytest.raises(msgspec.ValidationError, match="a whole number is wanted"):
        convert(Model, {"n": "x"})


def test_a_hint_that_cannot_be_resolved_does_not_hide_the_others() -> None:
    def function(item: Item, other: Unknown) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    assert hints_of(function) == {"item": Item, "return": type(None)}


def test_a_union_that_cannot_be_told_apart_is_left_alone() -> None:
    assert converter(Item | Order) is None


@pytest.mark.parametrize(
    ("hint", "kinds"),
    [(int, {"number"}), (Item, {"object"}), (str | None, {"string", "null"}), (list[int], {"array"}), (Any, None)],
)
def test_the_json_types_of_a_hint(hint: Any, kinds: set[str] | None) -> None:
    assert json_kinds(hint) == kinds


def received(order: Order, model: Model, when: datetime, plain: dict[str, int], colour: Colour = Colour.RED) -> Any:
    assert isinstance(order, Order) and isinstance(order.items[0], Item)
    assert isinstance(model, Model) and isinstance(when, datetime) and colour is Colour.RED
    return {"order": order, "model": [model], "when": when, "plain": plain, "point": Point(1.0, 2.0)}


ARGS = {
    "order": {"id": str(UUID(int=7)), "at": "2026-01-02T00:00:00Z", "items": [{"sku": "a"}]},
    "model": {"n": 3},
    "when": "2026-01-02T03:04:05Z",
    "plain": {"a": 1},
}


def flow(function: str, args: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {
        "name": "f",
        "nodes": [{"id": "a", "type": "python", "config": {"function": function, "args": args, **keys}}],
    }


@pytest.mark.parametrize("isolation", ["inline", "thread", "process"])
def test_a_registered_function_gets_what_its_hints_say(isolation: str) -> None:
    with tidemill.open("memory://", functions=[received]) as mill:
        run = mill.run(flow("received", ARGS, isolation=isolation))
    assert run.error is None
    assert run.outputs["a"] == {
        "order": {**ARGS["order"], "items": [{"sku": "a", "count": 1}], "colour": None},
        "model": [{"n": 3}],
        "when": "2026-01-02T03:04:05Z",
        "plain": {"a": 1},
        "point": {"x": 1.0, "y": 2.0},
    }


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({**ARGS, "when": "noon"}, "`when` does not fit its type hint"),
        ({**ARGS, "order": {"id": 3}}, r"`order` does not fit its type hint: Expected `uuid`, got `int` - at `\$.id`"),
        ({**ARGS, "model": {"n": "x"}}, "a whole number is wanted"),
    ],
)
def test_a_value_that_does_not_fit_fails_the_visit_once(args: dict[str, Any], words: str) -> None:
    with tidemill.open("memory://", functions=[received]) as mill:
        run = mill.run(flow("received", args))
    assert run.error is not None and run.error["code"] == "arguments_invalid"
    assert re.search(words, run.error["message"])
    assert run.nodes["a"]["attempts"] == 1


def test_plain_hints_change_nothing() -> None:
    def loose(n: int, items: list[str], other: Foreign) -> Any:
        return [n, items, other]

    with tidemill.open("memory://", functions=[loose]) as mill:
        args = {"n": "3", "items": {"a": 1}, "other": {"b": 2}}
        assert mill.run(flow("loose", args)).outputs == {"a": ["3", {"a": 1}, {"b": 2}]}


class Line(pydantic.BaseModel):
    sku: str
    count: int = pydantic.Field(default=1, gt=0)


class Basket(pydantic.BaseModel):
    at: datetime
    lines: list[Line]


def counted(basket: Basket, more: list[Line], last: Line | None = None) -> Basket:
    assert isinstance(basket, Basket) and all(isinstance(line, Line) for line in more) and last is None
    return Basket(at=basket.at, lines=[*basket.lines, *more])


def test_pydantic_models_go_both_ways() -> None:
    basket = {"at": "2026-01-02T03:04:05Z", "lines": [{"sku": "a"}]}
    with tidemill.open("memory://", functions=[counted]) as mill:
        run = mill.run(flow("counted", {"basket": basket, "more": [{"sku": "b", "count": 2}]}))
        assert run.outputs == {"a": {**basket, "lines": [{"sku": "a", "count": 1}, {"sku": "b", "count": 2}]}}
        run = mill.run(flow("counted", {"basket": basket, "more": [{"sku": "b", "count": 0}]}))
    assert run.error is not None and run.error["code"] == "arguments_invalid"
    assert "greater than 0" in run.error["message"]
    assert fields_of(Basket) == {"at": datetime, "lines": list[Line]}
