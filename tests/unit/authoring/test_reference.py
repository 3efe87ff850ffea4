"""References become templates and CEL, and say what to write instead where a value would be needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, NamedTuple, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest

import tidemill
from tidemill.authoring.document_builder import DocumentBuilder
from tidemill.authoring.reference import (
    MISSING,
    Place,
    Reference,
    cel_of,
    condition_of,
    place_of,
    recorder_of,
    template_of,
)
from tidemill.expressions.conditions import parse_condition
from tidemill.expressions.templates.template import check_template


@dataclass
class Score:
    value: int
    tags: list[str]


class Tier(Enum):
    GOLD = "gold"


@pytest.fixture
def builder() -> DocumentBuilder:
    return DocumentBuilder("w")


@pytest.fixture
def score(builder: DocumentBuilder) -> Any:
    return Reference(builder, Place("score"), Score)


def test_fields_and_items_are_references_too(score: Any) -> None:
    assert place_of(score.tags[0]) == Place("score", ("tags", 0))
    assert place_of(score["value"]) == Place("score", ("value",))
    recorder_of(score).is_called = False
    assert repr(score.tags[0]) == "score.tags[0]"


def test_the_name_of_a_reference_does_not_get_into_a_text(score: Any) -> None:
    for make in (lambda: f"{score.value!r}", lambda: f"{score.value=}", lambda: str([score]), lambda: f"{score!a}"):
        with pytest.raises(tidemill.Rejected) as refusal:
            make()
        assert refusal.value.code == "value_not_known" and "!r" in refusal.value.problems[0].hint


def test_the_parts_of_a_tuple_are_indexed(builder: DocumentBuilder) -> None:
    with pytest.raises(tidemill.Rejected) as refusal:
        _first, _second = Reference(builder, Place("split"), tuple[int, str])
    assert "found[0]" in refusal.value.problems[0].hint


@pytest.mark.parametrize(
    ("place", "template", "cel"),
    [
        (Place("a"), "{{ a.output }}", "ctx.a.output"),
        (Place("a", ("x", 0, "y z")), '{{ a.output.x[0]["y z"] }}', 'ctx.a.output.x[0]["y z"]'),
        (Place("a-b", ("x",)), '{{ nodes["a-b"].output.x }}', 'ctx["a-b"].output.x'),
        (Place("range"), '{{ nodes["range"].output }}', "ctx.range.output"),
        (Place("a", ("in", "_id")), '{{ a.output.in["_id"] }}', 'ctx.a.output["in"]["_id"]'),
        (Place(None, ("n",)), "{{ inputs.n }}", "inputs.n"),
        (Place("a", ("x",), None), "{{ a.output.x | default(none) }}", "(has(ctx.a.output.x) ? ctx.a.output.x : null)"),
        (
            Place("a", (), Place("b", (), {"k": [True, 'q"\n']})),
            '{{ a.output | default(b.output | default({"k": [true, "q\\"\\n"]})) }}',
            '(has(ctx.a.output) ? ctx.a.output : (has(ctx.b.output) ? ctx.b.output : {"k": [true, "q\\"\\n"]}))',
        ),
    ],
)
def test_a_place_in_both_languages(place: Place, template: str, cel: str) -> None:
    assert template_of(place) == template
    assert cel_of(place) == cel
    nodes = frozenset() if place.node is None else {place.node}
    problems, reach = check_template(template, "")
    assert not problems and reach.nodes >= nodes
    condition, problems = parse_condition(f"{cel} == 1")
    assert condition is not None and not problems and condition.references.nodes >= nodes


def test_the_node_that_decides_calls_its_result_output() -> None:
    assert cel_of(Place("a", ("x",)), "a") == "output.x"


def test_conditions(score: Any) -> None:
    tier = Tier.GOLD
    assert (score.value > 3).render() == "ctx.score.output.value > 3"
    assert (score.value == score.tags[0]).render() == "ctx.score.output.value == ctx.score.output.tags[0]"
    assert (score.tags[0] == tier).render() == 'ctx.score.output.tags[0] == "gold"'
    assert ((score.value > 3) & ~(score.value >= 9)).render() == (
        "(ctx.score.output.value > 3) && (!(ctx.score.output.value >= 9))"
    )
    assert (score.ok | (score.value != 1)).render() == "(ctx.score.output.ok) || (ctx.score.output.value != 1)"
    path = {"type": "jsonpath", "query": "$.x", "operator": "exists", "source": "ctx"}
    both = condition_of("inputs.n > 1") & condition_of(path)
    assert both.render() == {"type": "composite", "operator": "AND", "conditions": ["inputs.n > 1", path]}
    assert (~condition_of(path)).render()["operator"] == "NOT"


T = TypeVar("T")


@dataclass
class Order:
    amount: Decimal
    day: date
    tier: Tier
    more: Order | None = None


class Job(pydantic.BaseModel):
    at: pydantic.AwareDatetime
    lasts: timedelta
    jobs: list[Job] = []


class Box(pydantic.BaseModel, Generic[T]):
    content: T


@dataclass
class Page(Generic[T]):
    items: list[T]


class Row(msgspec.Struct):
    price: Decimal


class Pair(NamedTuple):
    price: Decimal


@pytest.mark.parametrize(
    ("hint", "compare"),
    [
        (Decimal, lambda ref: ref >= Decimal("9.00")),
        (Decimal, lambda ref: ref == 9),
        (Any, lambda ref: ref == Decimal("2.20")),
        (Any, lambda ref: ref == [Decimal("2.20")]),
        (datetime, lambda ref: ref < datetime(2030, 1, 1, tzinfo=UTC)),
        (timedelta, lambda ref: ref > timedelta(days=1)),
        (UUID, lambda ref: ref == "6F9619FF-8B86-D011-B42D-00CF4FC964FF"),
        (set[str], lambda ref: ref == {"a", "b"}),
        (Order, lambda ref: ref.amount > 1),
        (Order, lambda ref: ref == ref),
        (Order | None, lambda ref: ref.amount > 1),
        (Order, lambda ref: ref.more.amount > 1),
        (Job, lambda ref: ref.at > "2030"),
        (Job, lambda ref: ref.jobs[0].lasts > 1),
        (Box[Decimal], lambda ref: ref.content > 1),
        (Page[Decimal], lambda ref: ref.items[0] > 1),
        (Row, lambda ref: ref.price > 1),
        (Pair, lambda ref: ref == 1),
        (list[Decimal], lambda ref: ref[0] > 1),
        (dict[str, Decimal], lambda ref: ref["eur"] > 1),
        (tuple[int, Decimal], lambda ref: ref[1] > 1),
        (Annotated[Decimal, pydantic.Field(gt=1)], lambda ref: ref > 1),
    ],
)
def test_what_json_does_not_compare_as_python_does(builder: DocumentBuilder, hint: Any, compare: Any) -> None:
    builder.is_called = False
    with pytest.raises(tidemill.Rejected, match=r"as Python does .*inside a task that returns bool") as refused:
        compare(Reference(builder, Place("found"), hint))
    assert refused.value.code == "condition_operand"


@pytest.mark.parametrize(
    ("hint", "compare", "written"),
    [
        (Order, lambda ref: ref.day > date(2030, 1, 1), '.day > "2030-01-01"'),
        (Order, lambda ref: ref.tier == Tier.GOLD, '.tier == "gold"'),
        (Decimal | None, lambda ref: ref == None, " == null"),  # noqa: E711
        (tuple[int, Decimal], lambda ref: ref[0] > 1, "[0] > 1"),
        (Page[int], lambda ref: ref.items[0] > 1, ".items[0] > 1"),
        (list[str], lambda ref: ref == ["a"], ' == ["a"]'),
    ],
)
def test_what_json_compares_as_python_does(builder: DocumentBuilder, hint: Any, compare: Any, written: str) -> None:
    assert compare(Reference(builder, Place("found"), hint)).render() == f"ctx.found.output{written}"


ASKING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "if": (lambda ref: 1 if ref else 2, "tidemill.when"),
    "if comparison": (lambda ref: 1 if ref.value > 3 else 2, "tidemill.when"),
    "and": (lambda ref: ref.value > 3 and ref.value < 9, "joined with &"),
    "not": (lambda ref: not ref.value, "tidemill.when"),
    "for": (lambda ref: [each for each in ref.tags], "task.map"),  # noqa: C416
    "list": (lambda ref: list(ref.tags), "task.map"),
    "unpack": (lambda ref: [*ref.tags], "task.map"),
    "len": (lambda ref: len(ref.tags), "inside a task"),
    "in": (lambda ref: "a" in ref.tags, "CEL"),
    "add": (lambda ref: ref.value + 1, "inside a task"),
    "join": (lambda ref: "a" + ref.tags[0], "f-string"),
    "multiply": (lambda ref: 2 * ref.value, "inside a task"),
    "int": (lambda ref: int(ref.value), "inside a task"),
    "range": (lambda ref: range(ref.value), "task.map"),
    "method": (lambda ref: ref.tags[0].upper(), "inside a task"),
    "format": (lambda ref: f"{ref.value:03d}", "inside a task"),
    "slice": (lambda ref: ref.tags[1:], "inside a task"),
    "computed key": (lambda ref: ref.tags[ref.value], "inside a task"),
    "set": (lambda ref: setattr(ref, "value", 3), "from a task"),
    "set item": (lambda ref: ref.__setitem__("value", 3), "from a task"),
}


@pytest.mark.parametrize("name", ASKING)
def test_what_needs_the_value_says_what_to_write(score: Any, name: str) -> None:
    ask, words = ASKING[name]
    with pytest.raises(tidemill.Rejected) as refused:
        ask(score)
    assert refused.value.code == "value_not_known"
    assert "known only when the workflow runs" in refused.value.problems[0].message
    assert words in refused.value.problems[0].hint


def test_conditions_without_parentheses_or_of_numbers(builder: DocumentBuilder, score: Any) -> None:
    count = Reference(builder, Place("count"), int)
    for wrong in (
        lambda: score.value > 1 & count < 5,  # type: ignore[operator]
        lambda: 1 & count,
        lambda: score.value > (count | count),
        lambda: count | 3,
        lambda: condition_of(count),
    ):
        with pytest.raises(tidemill.Rejected, match=r"put parentheses around each comparison"):
            wrong()
    with pytest.raises(tidemill.Rejected, match="count is int, and a condition is true or false"):
        condition_of(count)
    assert condition_of(Reference(builder, Place("ok"), bool | None)).render() == "ctx.ok.output"
    with pytest.raises(tidemill.Rejected, match=r"write \(x == 1\) \| \(x == 2\)"):
        _ = count in [1, 2]
    with pytest.raises(tidemill.Rejected, match=r"tidemill.not_"):
        _ = not count


@pytest.mark.parametrize(
    ("given", "code"), [(True, "condition_constant"), (3, "condition_shape"), ("a >", "condition_syntax")]
)
def test_what_is_no_condition(given: object, code: str) -> None:
    with pytest.raises(tidemill.Rejected) as refused:
        condition_of(given)
    assert refused.value.code == code or code == "condition_syntax"


def test_an_awaited_reference_is_itself(score: Any) -> None:
    async def waits() -> Any:
        return await score

    waiting = waits()
    with pytest.raises(StopIteration) as end:
        waiting.send(None)
    assert end.value.value is score
    assert place_of(score).default is MISSING
