"""Which type hints fit one another before there are values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import pydantic
import pytest

import tidemill
from tidemill import task, workflow
from tidemill.authoring.hints import ToleratedFailure, misfit_of

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass
class Order:
    id: int
    total: int
    note: str = ""


@dataclass
class Customer:
    name: str


@dataclass
class LongOrder:
    id: int
    total: int
    more: str


@dataclass
class SubOrder(Order):
    extra: int = 0


class Named(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName")


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")


class Row(msgspec.Struct, rename={"name": "fullName"}):
    name: str


class Part(TypedDict, total=False):
    name: str


@pytest.mark.parametrize(
    ("has", "wants", "reason"),
    [
        (Customer, Order, "has no field 'id'"),
        (Order, LongOrder, "has no field 'more'"),
        (Customer | None, Order, "has no field 'id'"),
        (Customer, Order | LongOrder, "has no field 'id'"),
        (Customer, Row, "has no field 'fullName'"),
        (Customer, Named, "has no field 'fullName'"),
        (list[Customer], list[Order], "has items, of which one has no field 'id'"),
        (list[int], list[str], "has items, of which one is of another type"),
        (list[int | ToleratedFailure], list[int], "has items, of which one may be a tolerated failure"),
        (list[Order | ToleratedFailure], list[Order], "has items, of which one may be a tolerated failure"),
        (int | ToleratedFailure, int, "may be a tolerated failure"),
        (LongOrder, Order, ""),
        (SubOrder, Order, ""),
        (Order, SubOrder, ""),
        (Row, Named, ""),
        (Named, Row, ""),
        (Open, Order, ""),
        (Part, Order, ""),
        (Customer, Part, ""),
        (Customer, dict, ""),
        (Any, Order, ""),
        (Customer | None, Order | None, ""),
        (Customer | Order, Order, ""),
        (int, float, ""),
        (list[int | ToleratedFailure], list[Any], ""),
        (list[int | ToleratedFailure], list, ""),
        (list[int | ToleratedFailure], list[dict[str, Any] | int], ""),
    ],
)
def test_whether_values_may_have_the_type(has: Any, wants: Any, reason: str) -> None:
    found = misfit_of(has, wants)
    assert found.startswith(reason) and bool(found) is bool(reason)


def test_a_map_that_tolerates_failures_and_a_model_of_another_type() -> None:
    @task
    def double(n: int) -> int:
        return 2 * n

    @task
    def add(numbers: list[int]) -> int:
        return sum(numbers)

    @task
    def find(n: int) -> Customer:
        return Customer("x")

    @task
    def ship(order: Order) -> int:
        return order.id

    @workflow
    def wrong(n: int) -> Any:
        ship(find(n))  # type: ignore[arg-type]
        return add(double.options(tolerate=1).map([n]))

    with pytest.raises(tidemill.Rejected) as refused:
        wrong.document()
    assert [each.code for each in refused.value.problems] == ["arguments_invalid"] * 2
    assert "find, which is Customer, has no field 'id'" in refused.value.problems[0].message
    assert "may be a tolerated failure" in refused.value.problems[1].message


def test_a_hint_may_name_a_class_of_the_function_around() -> None:
    @dataclass
    class Local:
        n: int

    @tidemill.task
    def wrapped(x: Local) -> list[Local]:
        return [x]

    @tidemill.task(retries=1)
    def number(x: list[Local], d: Decimal | None = None) -> int:
        return x[0].n

    @tidemill.workflow
    def flow(x: Local) -> int:
        return number(wrapped(x))

    with tidemill.open("memory://") as mill:
        assert mill.run(flow, x={"n": 3}).outputs == 3
        with pytest.raises(tidemill.Rejected, match="inputs_invalid"):
            mill.run(flow, x={"n": "x"})


def test_a_hint_that_names_nothing_is_refused() -> None:
    @tidemill.task
    def misspelt(x: Orders) -> int:  # type: ignore[name-defined]  # noqa: F821
        return 1

    @tidemill.workflow
    def flow(x: Zyxwv) -> strr:  # type: ignore[name-defined]  # noqa: F821
        return misspelt(x)

    with pytest.raises(tidemill.Rejected) as refusal:
        flow.document()
    assert {each.code for each in refusal.value.problems} == {"hint_unknown"}
    assert [(each.message, each.hint) for each in refusal.value.problems] == [
        ("flow(…): `x` is hinted Zyxwv, and there is no Zyxwv", "define or import it above the function"),
        ("flow(…): `return` is hinted strr, and there is no strr", "did you mean `str`?"),
        ("misspelt(…): `x` is hinted Orders, and there is no Orders", "did you mean `Order`?"),
    ]
