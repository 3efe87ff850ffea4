"""Arguments of functions have the types of their hints, and results become JSON."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest

import tidemill
from tidemill.expressions.schema import compile_schema
from tidemill.handlers.python.conversion import (
    CONVERTED,
    OPAQUE,
    PLAIN,
    ConversionError,
    ambiguity,
    conversion_of,
    convert,
    converter,
    fields_of,
    hints_of,
    json_kinds,
    result_check,
    secret_in,
    to_json,
    varied_in,
)
from tidemill.handlers.python.hint_schemas import schemas_of


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

    def model_dump(self, *, mode: str, by_alias: bool = False) -> dict[str, Any]:
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
    assert (converter(hint) is not None) is (expected != OPAQUE and hint is not Any)


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
        (PurePosixPath, PurePosixPath("a/b")),
    ],
)
def test_a_value_survives_the_way_through_json(hint: Any, value: Any) -> None:
    assert convert(hint, msgspec.json.decode(msgspec.json.encode(to_json(value)))) == value


class Planet(enum.Enum):
    EARTH = (5.9e24, 6.3e6)
    MARS = (6.4e23, 3.4e6)


class Pause(enum.Enum):
    SHORT = timedelta(seconds=0.5)
    LONG = timedelta(days=2)


class Mixed(enum.Enum):
    NONE = None
    YES = True
    ONE = 1
    HALF = 0.5
    MAP = {"k": 1}  # noqa: RUF012


class Right(enum.Flag):
    READ = 1
    WRITE = 2
    OWN = 4


@dataclass
class Body:
    planet: Planet
    pause: Pause = Pause.SHORT
    right: Right = Right.READ
    moons: list[Body] = field(default_factory=list)


class Sky(msgspec.Struct, rename="camel"):
    first_body: Body
    others: dict[str, Planet] = {}


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        *((type(each), each) for each in (*Planet, *Pause, *Mixed, Right.READ | Right.OWN, Right(0))),
        (list[Planet | None], [Planet.MARS, None]),
        (Planet | str, "mars"),
        (tuple[Planet, int], (Planet.EARTH, 3)),
        (Body, Body(Planet.MARS, Pause.LONG, Right.READ | Right.WRITE, [Body(Planet.EARTH)])),
        (Sky, Sky(Body(Planet.MARS), {"b": Planet.EARTH})),
    ],
)
def test_an_enum_of_any_values_survives_and_its_schema_allows_it(hint: Any, value: Any) -> None:
    convert_value, (schemas, shared) = converter(hint), schemas_of([hint])
    given = msgspec.json.decode(msgspec.json.encode(to_json(value)))
    assert convert_value is not None and convert_value(given) == value
    assert type(convert_value(given)) is type(value)
    compiled = compile_schema({"allOf": schemas, "$defs": shared})
    assert compiled.accepts(given) and not compiled.accepts([[1]])


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (Planet, [1, 2], r"\[1, 2\] is not a valid Planet"),
        (Body, {"planet": [5.9e24, 6.3e6], "moons": [{"planet": 1}]}, "1 is not a valid Planet"),
        (Body, {}, "missing required field `planet`"),
        (Right, 9, "Invalid enum value 9"),
        (Mixed, False, "False is not a valid Mixed"),
    ],
)
def test_what_is_no_value_of_an_enum(hint: Any, value: Any, message: str) -> None:
    convert_value = converter(hint)
    with pytest.raises(ConversionError, match=message):
        assert convert_value is not None and convert_value(value)


def test_a_number_of_an_enum_may_be_written_in_another_way() -> None:
    convert_value = converter(Planet)
    assert convert_value is not None
    assert convert_value([5.9e24, 6300000]) is Planet.EARTH


def test_a_model_is_validated_and_dumped_by_its_own_methods() -> None:
    assert convert(Model, to_json(Model(3))).n == 3
    assert [each.n for each in convert(list[Model], [{"n": 1}, {"n": 2}])] == [1, 2]
    with pytest.raises(msgspec.ValidationError, match="a whole number is wanted"):
        convert(Model, {"n": "x"})


def test_a_hint_that_cannot_be_resolved_does_not_hide_the_others() -> None:
    def function(item: Item, other: Unknown) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    assert hints_of(function) == {"item": Item, "return": type(None)}


@dataclass
class Counted:
    sku: str
    place: str


@dataclass
class Basket:
    content: Item | Counted


@pytest.mark.parametrize(
    ("hint", "value", "made"),
    [
        (Item | Counted, {"sku": "a"}, Item("a")),
        (Item | Counted, {"sku": "a", "place": "b"}, Counted("a", "b")),
        (Item | Counted | None, None, None),
        (datetime | date, "2026-01-02", date(2026, 1, 2)),
        (date | str, "2026-01-02", date(2026, 1, 2)),
        (date | str, "soon", "soon"),
        (str | date, "2026-01-02", "2026-01-02"),
        (Decimal | str | int, 3, 3),
        (Item | dict[str, Any], {"n": 1}, {"n": 1}),
        (Model | Item, {"n": 1}, Model(1)),
    ],
)
def test_a_union_is_what_fits_first(hint: Any, value: Any, made: Any) -> None:
    convert_ = converter(hint)
    found = value if convert_ is None else convert_(value)
    assert (type(found), getattr(found, "__dict__", found)) == (type(made), getattr(made, "__dict__", made))
    assert not ambiguity(hint)


def test_a_value_that_no_member_fits_is_refused() -> None:
    convert_ = converter(Item | Counted | date)
    assert convert_ is not None
    with pytest.raises(msgspec.ValidationError, match=r"date: .*; Item: .*`sku`; Counted: .*`sku`$"):
        convert_({"x": 1})


@pytest.mark.parametrize("hint", [list[Item | Counted], Basket, Basket | None, dict[str, date | str]])
def test_a_union_inside_of_a_hint_is_left_alone_and_named(hint: Any) -> None:
    assert converter(hint) is None
    assert ambiguity(hint) in ("Item | Counted", "date | str")


def test_a_name_that_is_not_there_is_left_alone() -> None:
    @dataclass
    class Partial:
        n: "Unknown"  # type: ignore[name-defined]  # noqa: F821, UP037

    assert converter(Partial) is None and not ambiguity(Partial) and schemas_of([Partial]) == ([{}], {})


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
        ({**ARGS, "when": "noon"}, r"received\(…\): `when` must be datetime, but 'noon' is not"),
        (
            {**ARGS, "order": {"id": 3}},
            r"`order` must be Order, but {'id': 3} is not: Expected `uuid`, got `int` - at `\$.id`",
        ),
        ({**ARGS, "model": {"n": "x"}}, "a whole number is wanted"),
    ],
)
def test_a_value_that_does_not_fit_fails_the_visit_once(args: dict[str, Any], words: str) -> None:
    with tidemill.open("memory://", functions=[received]) as mill:
        run = mill.run(flow("received", args))
    assert run.error is not None and run.error["code"] == "arguments_invalid"
    assert re.search(words, run.error["message"])
    assert run.nodes["a"]["attempts"] == 1


def any_will_do(other: Foreign, free: Any, bare, thing: object, keys: dict, none: int = None) -> Any:  # type: ignore[assignment, no-untyped-def, type-arg]  # noqa: RUF013
    return [other, free, bare, thing, keys, none]


def test_hints_that_ask_for_nothing_change_nothing() -> None:
    args = {"other": {"b": 2}, "free": "x", "bare": 1, "thing": None, "keys": {"a": [1]}, "none": None}
    with tidemill.open("memory://", functions=[any_will_do]) as mill:
        assert mill.run(flow("any_will_do", args)).outputs == {"a": list(args.values())}


class Named(TypedDict):
    name: str


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (int, [3, 2**80], ["abc", 2.5, 2.0, None, True]),
        (float, [3, 2.5], ["3", None, True]),
        (bool, [True], [1, "true", None]),
        (str, ["x"], [3, None, ["x"]]),
        (type(None), [None], [0]),
        (int | None, [3, None], ["3"]),
        (int | str, [3, "x"], [None, 2.5]),
        (list[int], [[], [1]], ["abc", ["a"], None, {"a": 1}]),
        (Sequence[str], [["a"]], ["abc", [1]]),
        (list[dict[str, Any]], [[{"a": 1}]], [[1], {"a": 1}]),
        (dict[str, int], [{"a": 1}], [{"a": "b"}, [1]]),
        (dict, [{"a": 1}], [[1], "abc"]),
        (Literal["a", "b"], ["a"], ["c", 1]),
        (Number, [3], ["x"]),
        (Named, [{"name": "x", "more": 1}], [{"name": 1}, {}]),
    ],
)
def test_plain_hints_are_checked(hint: Any, good: list[Any], bad: list[Any]) -> None:
    convert_value = converter(hint)
    check = result_check(hint)
    assert convert_value is not None and check is not None
    for value in good:
        assert convert_value(value) == value
        check(value)
    for value in bad:
        for each in (convert_value, check):
            with pytest.raises(msgspec.ValidationError):
                each(value)


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


@pytest.mark.parametrize(
    ("hint", "value", "made"),
    [
        (Pet, {"kind": "dog"}, Dog()),
        (Pet | None, {"kind": "dog"}, Dog()),
        (Pet | None, None, None),
        (list[Pet], [{"kind": "dog"}, {"kind": "cat"}], [Dog(), Cat()]),
        (dict[str, Pet], {"a": {"kind": "cat"}}, {"a": Cat()}),
        (tuple[int, Pet], [1, {"kind": "dog"}], (1, Dog())),
        (list[Pet] | None, [{"kind": "cat"}], [Cat()]),
    ],
)
def test_a_union_with_a_discriminator(hint: Any, value: Any, made: Any) -> None:
    convert_value = converter(hint)
    assert convert_value is not None and not ambiguity(hint)
    assert convert_value(value) == made
    (schema,), shared = schemas_of([hint])
    compiled = compile_schema({"allOf": [schema], "$defs": shared})
    assert compiled.accepts(value) and not compiled.accepts([{"kind": "cow"}])
    with pytest.raises(ConversionError):
        convert_value([{"kind": "cow"}])


class Payment(pydantic.BaseModel):
    amount: Decimal = pydantic.Field(gt=0, le=10)
    at: datetime | None = None


class Lease(pydantic.BaseModel):
    lasts: timedelta


class Measured(pydantic.BaseModel, ser_json_timedelta="float"):
    lasts: timedelta


@dataclass
class Meeting:
    at: datetime
    name: str = ""
    until: datetime | None = None


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (Meeting, [{"at": "2030-01-31T10:00:00", "name": "x"}], [{"at": "banana"}, {"at": "2030-01-31"}]),
        (list[Meeting], [[{"at": "2030-01-31T10:00:00Z"}]], [[{"at": "2030-01-31T10:00:00Z", "until": "banana"}]]),
        (datetime, ["2030-01-31T10:00:00", "2030-01-31 10:00:00.5+02:00"], ["banana", "2030-13-01T10:00:00Z", 3]),
        (list[datetime] | None, [None, ["2030-01-31T10:00:00Z"]], [["banana"]]),
        (timedelta, ["PT0.5S", "-PT5S", "P2DT0.000007S", "PT1H30M", "P1DT2H3M4.5S"], ["banana", "P1Y", "PT", "P", 3]),
        (list[timedelta] | None, [None, ["PT1.5S"]], [["banana"]]),
        (Lease, [{"lasts": "-PT0.25S"}, {"lasts": "P1Y34D"}], [{"lasts": "banana"}, {"lasts": "PT"}]),
        (Measured, [{"lasts": "PT0.25S"}, {"lasts": 0.25}], [{"lasts": "banana"}]),
        (Decimal, ["2.20"], ["banana"]),
        (Payment, [{"amount": "9.99", "at": "2030-01-31"}, {"amount": 1}], [{"amount": "10.01"}, {"amount": "0"}]),
        (Payment, [{"amount": "1", "at": None}], [{"amount": "x"}, {"amount": "1", "at": "banana"}]),
    ],
)
def test_the_schema_of_datetimes_durations_and_decimals(hint: Any, good: list[Any], bad: list[Any]) -> None:
    (schema,), shared = schemas_of([hint])
    compiled = compile_schema({"allOf": [schema], "$defs": shared})
    assert [compiled.accepts(each) for each in good] == [True] * len(good)
    assert [compiled.accepts(each) for each in bad] == [False] * len(bad)
    convert_value = converter(hint)
    assert convert_value is not None and all(convert_value(each) == convert_value(each) for each in good)


T = TypeVar("T")


class Page(pydantic.BaseModel, Generic[T]):
    items: list[T]


def test_the_schema_of_a_generic_model() -> None:
    (schema, _), shared = schemas_of([Page[Cat], list[Page[Dog]]])
    compiled = compile_schema({**schema, "$defs": shared})
    assert compiled.accepts({"items": [{"kind": "cat"}]}) and not compiled.accepts({"items": [{"kind": "dog"}]})


def test_classes_that_refer_to_one_another_in_many_ways_are_looked_at_once() -> None:
    previous: Any = Decimal
    for number in range(40):
        previous = pydantic.create_model(f"Knot{number}", one=(previous, ...), two=(list[previous], ...), n=(int, ...))
    assert varied_in(previous) is Decimal
    assert not secret_in(previous)


def test_a_datetime_is_no_date() -> None:
    check = result_check(date)
    assert check is not None and not check(date(2030, 1, 31))
    with pytest.raises(msgspec.ValidationError):
        check(datetime(2030, 1, 31, tzinfo=UTC))


def test_a_whole_number_becomes_a_float_where_one_is_wanted() -> None:
    convert_value = converter(list[float])
    assert convert_value is not None and repr(convert_value([1, 2.5])) == "[1.0, 2.5]"


def whole(n: int) -> int:
    return n


async def said(n: Any) -> str:
    return n  # type: ignore[no-any-return]


def rows(n: Any) -> list[Item]:
    return n  # type: ignore[no-any-return]


def counted_to(n: Any) -> int:
    return n  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("function", "isolation", "code", "message"),
    [
        (
            "whole",
            "thread",
            "arguments_invalid",
            "whole(…): `n` must be int, but 'abc' is not: Expected `int`, got `str`",
        ),
        (
            "whole",
            "inline",
            "arguments_invalid",
            "whole(…): `n` must be int, but 'abc' is not: Expected `int`, got `str`",
        ),
        ("counted_to", "thread", "output_invalid", "the result must be int, but 'abc' is not"),
        ("counted_to", "inline", "output_invalid", "the result must be int, but 'abc' is not"),
        ("counted_to", "process", "output_invalid", "the result must be int, but 'abc' is not"),
        ("said", "inline", None, ""),
        ("rows", "thread", "output_invalid", "the result must be"),
    ],
)
def test_a_run_checks_arguments_and_results(function: str, isolation: str, code: str | None, message: str) -> None:
    with tidemill.open("memory://", functions=[whole, said, rows, counted_to]) as mill:
        run = mill.run(flow(function, {"n": "abc"}, isolation=isolation))
    error = run.error or {"code": None, "message": ""}
    assert error["code"] == code and message in error["message"]


def test_the_result_of_an_async_function_is_checked() -> None:
    with tidemill.open("memory://", functions=[said]) as mill:
        run = mill.run(flow("said", {"n": 3}))
    assert run.error is not None and run.error["message"].startswith("said(…): the result must be str, but 3 is not")


def answers() -> dict[str, Callable[[], Any]]:
    def skipped() -> int:
        return tidemill.Skip("no need")  # type: ignore[return-value]

    def paired() -> list[int]:
        return (1, 2)  # type: ignore[return-value]

    def flagged() -> list[Item]:
        return [Item("a")]

    def dated() -> Dated:
        return {"at": datetime(2026, 1, 2, tzinfo=UTC)}

    def yielding() -> str:  # type: ignore[misc]
        yield 1

    def late() -> int:
        async def later() -> int:
            return 3

        return later()  # type: ignore[return-value]

    return {each.__name__: each for each in (skipped, paired, flagged, dated, yielding, late)}


@pytest.mark.parametrize("name", list(answers()))
def test_results_that_mean_a_value_of_the_hint_pass(name: str) -> None:
    with tidemill.open("memory://", functions=answers()) as mill:
        run = mill.run(flow(name, {}))
    assert run.error is None and run.status == "COMPLETED"


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


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName", min_length=1)
    born: datetime
    home: Basket | None = None
    parent: Person | None = None


@tidemill.task
def birth(name: str) -> Person:
    return Person(fullName=name, born=datetime(2026, 1, 2))  # noqa: DTZ001 - a model takes times without a zone


@tidemill.task
def names(person: Person, name: str) -> str:
    return f"{person.name} {name}"


@tidemill.workflow
def registry(person: Person) -> list[str]:
    born = birth("Eve")
    return [names(born, born.name), names(person, person.name)]


def test_models_pass_between_tasks_by_their_aliases() -> None:
    with tidemill.open("memory://") as mill:
        run = mill.run(registry, person=Person(fullName="Ada", born=datetime(2026, 1, 2)))  # noqa: DTZ001
        assert run.output == ["Eve Eve", "Ada Ada"]
        assert run.inputs["person"]["fullName"] == "Ada"
        with pytest.raises(tidemill.Rejected) as refusal:
            mill.start(registry, person={"fullName": "", "home": {"at": 1}})
    assert {problem.path.rpartition("/")[2] for problem in refusal.value.problems} == {
        *("person", "fullName", "home", "at"),
    }


def test_the_schema_of_a_model_is_its_own() -> None:
    (schema, other), shared = schemas_of([list[Person], Line])
    assert schema == {"type": "array", "items": {"$ref": "#/$defs/Person.Person"}}
    assert shared["Person.Person"]["required"] == ["fullName", "born"]
    born = shared["Person.Person"]["properties"]["born"]
    assert (born["title"], born["type"], born["description"]) == (
        *("Born", "string"),
        "a datetime such as 2030-01-31T12:00:00Z",
    )
    assert other["properties"]["count"]["exclusiveMinimum"] == 0
