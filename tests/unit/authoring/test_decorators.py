"""Tasks and workflows: plain functions outside of a workflow, nodes inside, wrong arguments found when it is built."""

from __future__ import annotations

import asyncio
import inspect
import re
from code import InteractiveInterpreter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, Flag
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest

import tidemill
from tidemill import task, workflow


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Order:
    id: str
    total: float
    size: Size = Size.SMALL


@task
def fetch(n: int) -> list[int]:
    """Makes numbers."""
    return list(range(n))


@task(retries=2, timeout=30)
def total(rows: list[int], bonus: int = 0) -> int:
    return sum(rows) + bonus


@task
def order_of(number: str, at: datetime) -> Order:
    assert isinstance(at, datetime)
    return Order(f"{number}-{at.year}", 7.5, Size.LARGE)


@task
def describe(order: Order, text: str = "") -> str:
    assert isinstance(order, Order) and order.size is Size.LARGE
    return f"{order.id} {order.total} {text}".strip()


@task
async def later(n: int) -> int:
    await asyncio.sleep(0)
    return n + 1


@workflow
def report(n: int) -> int:
    """Adds numbers."""
    return total(fetch(n))


def run(flow: Any, /, **inputs: Any) -> Any:
    with tidemill.open("memory://") as mill:
        return mill.run(flow, **inputs)


def problems(flow: Any) -> list[tuple[str, str]]:
    with pytest.raises(tidemill.Rejected) as refused:
        flow.document()
    return [(problem.code, problem.message) for problem in refused.value.problems]


def test_outside_of_a_workflow_they_are_just_the_functions() -> None:
    assert fetch(3) == [0, 1, 2] and total(rows=[1, 2], bonus=4) == 7
    assert fetch.map([1, 2]) == [[0], [0, 1]]
    assert report(4) == 6
    assert asyncio.run(later(1)) == 2
    assert (fetch.__name__, fetch.__doc__, str(inspect.signature(total))) == (
        "fetch",
        "Makes numbers.",
        "(rows: 'list[int]', bonus: 'int' = 0) -> 'int'",
    )


def test_a_workflow_is_the_same_document_as_in_yaml() -> None:
    assert report.document() == {
        "name": "report",
        "description": "Adds numbers.",
        "inputs": {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
            "additionalProperties": False,
        },
        "nodes": [
            {"id": "fetch", "type": "python", "config": {"function": "fetch", "args": {"n": "{{ inputs.n }}"}}},
            {
                "id": "total",
                "type": "python",
                "dependencies": ["fetch"],
                "config": {"function": "total", "args": {"rows": "{{ fetch.output }}"}},
                "retry": {"max_attempts": 3},
                "timeout_seconds": 30,
            },
        ],
        "outputs": "{{ total.output }}",
    }


def test_a_workflow_is_run_by_name_or_mapping_of_inputs() -> None:
    with tidemill.open("memory://") as mill:
        assert mill.run(report, n=4).outputs == 6
        assert mill.run(report, {"n": 5}).outputs == 10
        run_id = mill.start(report, n=3, key="k", labels={"a": "b"})
        assert run_id == "k" and mill.result(run_id).outputs == 3
        assert mill.publish(report).created is False, "the first run has published it"
        assert mill.run("report", {"n": 2}).outputs == 1
        assert [version.version for version in mill.versions("report")] == [1]


def test_inputs_are_checked_by_the_parameters() -> None:
    with tidemill.open("memory://") as mill:
        for inputs in ({"n": "x"}, {}, {"m": 1, "n": 2}):
            with pytest.raises(tidemill.Rejected, match="inputs_invalid"):
                mill.run(report, inputs)
        with pytest.raises(tidemill.Rejected, match="use one of the two"):
            mill.run(report, {"n": 1}, n=2)
        with pytest.raises(tidemill.Rejected, match="write n=3"):
            mill.run(report, 3)
        with pytest.raises(TypeError, match="unexpected keyword argument 'n'"):
            mill.run("report", n=2)


def test_an_async_client_takes_workflows_too() -> None:
    async def main() -> Any:
        async with tidemill.aopen("memory://") as mill:
            return (await mill.run(report, n=4)).outputs

    assert asyncio.run(main()) == 6


def test_values_of_python_types_go_both_ways() -> None:
    @workflow
    def ship(at: datetime, sizes: list[Size], order: Order | None = None) -> dict[str, Any]:
        made = order_of("A", at)
        return {"text": describe(made, f"{sizes[0]}!"), "total": made.total}

    result = run(ship, at=datetime(2026, 5, 1, tzinfo=UTC), sizes=[Size.LARGE])
    assert result.outputs == {"text": "A-2026 7.5 large!", "total": 7.5}


class Planet(Enum):
    EARTH = (5.9e24, 6.3e6)
    MARS = (6.4e23, 3.4e6)


class Right(Flag):
    READ = 1
    WRITE = 2


@dataclass
class Trip:
    to: Planet
    lasts: timedelta = timedelta(seconds=-0.5)
    right: Right = Right.READ


def test_enums_of_any_values_and_durations_go_both_ways() -> None:
    @task
    def pick(n: int) -> Planet:
        return list(Planet)[n]

    @task
    def half(n: int) -> timedelta:
        return timedelta(seconds=n / 2)

    @task
    def told(to: Planet, at: Planet, trip: Trip, right: Right) -> str:
        return f"{at.name} {to.name} {trip} {right}"

    @workflow
    def child(lasts: timedelta, trip: Trip, right: Right, at: Planet = Planet.EARTH) -> str:
        return told(pick(1), at, Trip(trip.to, lasts), right)

    @workflow
    def parent(n: int, trip: Trip) -> str:
        return child(half(n), trip, Right.READ | Right.WRITE)

    @workflow
    def picked(n: int) -> Planet:
        return pick(n)

    trip = Trip(Planet.MARS, timedelta(days=2, microseconds=7), Right.READ | Right.WRITE)
    assert run(parent, n=3, trip=trip).outputs == f"EARTH MARS {Trip(Planet.MARS, timedelta(seconds=1.5))} {trip.right}"
    assert run(picked, n=1).output_as(picked) is Planet.MARS
    with pytest.raises(tidemill.Rejected, match=r"a duration such as PT1M30S, PT0\.5S or P2D"):
        run(child, lasts="soon", trip=trip, right=Right.READ)


def test_constants_of_python_types_and_results_inside_of_them() -> None:
    @task
    def same(order: Order) -> Order:
        return order

    @workflow
    def nested(name: str) -> Any:
        fixed = same(Order("x", 1.0, Size.LARGE))
        filled = same(Order(name, fixed.total))
        return [fixed, filled, {"plain": "{{ not.a.template }}", "brace": f"{{{name}"}]

    assert run(nested, name="n").outputs == [
        {"id": "x", "total": 1.0, "size": "large"},
        {"id": "n", "total": 1.0, "size": "small"},
        {"plain": "{{ not.a.template }}", "brace": "{n"},
    ]


def test_text_with_template_syntax_stays_text() -> None:
    @task
    def echo(text: str) -> str:
        return text

    @workflow
    def texts(name: str) -> Any:
        return [echo("{{ 1 + 1 }}"), echo(f"{{% {name} %}}"), echo('a "quoted"\nline {# c #}'), echo(f"{name}, {name}")]

    assert run(texts, name="é").outputs == ["{{ 1 + 1 }}", "{% é %}", 'a "quoted"\nline {# c #}', "é, é"]


def test_a_task_can_be_mapped() -> None:
    @task
    def scaled(n: int, factor: int) -> int:
        return n * factor

    @workflow
    def many(n: int) -> Any:
        rows = scaled.options(max_parallel=2, tolerate=1).map(fetch(n), factor=10)
        return {"rows": rows, "first": rows[0], "fixed": scaled.map([n, 7], 2)}

    node = many.document()["nodes"][1]
    assert node["map"] == {"over": "{{ fetch.output }}", "max_parallel": 2, "tolerate": 1}
    assert node["config"]["args"] == {"n": "{{ item }}", "factor": 10}
    assert run(many, n=3).outputs == {"rows": [0, 10, 20], "first": 0, "fixed": [6, 14]}


def test_an_async_workflow_may_await_its_tasks() -> None:
    @workflow
    async def chain(n: int) -> int:
        return await later(await later(n))

    assert run(chain, n=1).outputs == 3
    assert asyncio.run(chain(1)) == 3

    @workflow
    async def waits() -> None:
        await asyncio.sleep(1)

    assert problems(waits)[0][0] == "workflow_waits"


def test_a_workflow_is_started_by_calling_it_in_another_one() -> None:
    @workflow
    def parent(n: int) -> Any:
        return {"one": report(n), "each": report.map([1, 2, n])}

    document = parent.document()
    assert document["nodes"][0] == {
        "id": "report",
        "type": "workflow",
        "config": {"workflow": "report", "inputs": {"n": "{{ inputs.n }}"}},
    }
    assert run(parent, n=4).outputs == {"one": 6, "each": [0, 1, 6]}
    assert parent.functions.keys() == {"fetch", "total"}


def test_options_become_keys_of_the_node() -> None:
    @workflow
    def tuned(n: int) -> None:
        options = fetch.options(
            id="numbers",
            retries=4,
            retry_delay=timedelta(seconds=2),
            timeout=timedelta(minutes=1),
            on_error="continue",
            at_most_once=True,
            queue="fast",
            priority=9,
            isolation="process",
            limits={"memory_mb": 256},
        )
        options(n)

    assert tuned.document()["nodes"] == [
        {
            "id": "numbers",
            "type": "python",
            "config": {
                "function": "fetch",
                "args": {"n": "{{ inputs.n }}"},
                "isolation": "process",
                "limits": {"memory_mb": 256},
            },
            "retry": {"max_attempts": 5, "backoff_seconds": 2.0},
            "timeout_seconds": 60.0,
            "on_error": "continue",
            "delivery": "at_most_once",
            "queue": "fast",
            "priority": 9,
        }
    ]


def test_ids_are_unique_and_not_reserved() -> None:
    @task
    def run_() -> int:
        return 1

    @task(name="output")
    def other() -> int:
        return 2

    @workflow(name="my-ids")
    def ids() -> Any:
        return [run_(), run_(), other(), fetch.options(id="a-b")(1), fetch(2)]

    assert [node["id"] for node in ids.document()["nodes"]] == ["run_", "run__2", "output_1", "a-b", "fetch"]
    assert run(ids).outputs == [1, 1, 2, [0], [0, 1]]


def test_a_wrong_argument_is_found_when_the_workflow_is_built() -> None:
    @workflow
    def wrong(n: int, name: str) -> Any:
        rows = fetch(name)
        total(row=rows)
        fetch("7")
        fetch()
        describe(rows)
        report(n=rows)
        order = order_of("a", "2026-01-01T00:00:00Z")
        order_of("a", "noon")
        return [order.totl, order.total]

    with pytest.raises(tidemill.Rejected) as refused:
        wrong.document()
    found = refused.value.problems
    line = inspect.getsourcelines(wrong.function)[1]
    assert [(problem.code, problem.path.removeprefix("test_decorators.py:")) for problem in found] == [
        ("arguments_invalid", str(line + 2)),
        ("arguments_invalid", str(line + 3)),
        ("arguments_invalid", str(line + 4)),
        ("arguments_invalid", str(line + 5)),
        ("arguments_invalid", str(line + 6)),
        ("arguments_invalid", str(line + 7)),
        ("arguments_invalid", str(line + 9)),
        ("field_unknown", str(line + 10)),
    ]
    assert "`n` is int, and inputs.name is str" in found[0].message
    assert found[1].hint == "did you mean `rows`?"
    assert "its fields: id, total, size" in found[-1].hint


def test_every_problem_and_the_branch_that_ended_it() -> None:
    @workflow
    def branches(n: int) -> Any:
        fetch("7")
        if total(fetch(n)) > 3:
            return fetch(n)
        return None

    assert [code for code, _ in problems(branches)] == ["arguments_invalid", "value_not_known"]
    with pytest.raises(tidemill.Rejected, match=r"test_decorators.py:\d+: Python asks whether .* > 3 is true"):
        branches.document()


def test_two_tasks_of_one_name_are_refused() -> None:
    def other() -> int:
        return 1

    twin = task(name="fetch")(other)

    @workflow
    def twins() -> Any:
        return [fetch(1), twin()]

    assert problems(twins)[0][0] == "task_name_taken"

    @workflow
    def alone() -> Any:
        return twin()

    with tidemill.open("memory://") as mill:
        mill.run(report, n=1)
        with pytest.raises(tidemill.Rejected, match="task_name_taken"):
            mill.run(alone)


def test_inner_functions_of_one_name_are_refused_unless_they_do_the_same() -> None:
    def define(value: int) -> Any:
        @task
        def answer() -> int:
            return value

        @workflow
        def ask() -> int:
            return answer()

        return ask

    first, other = define(1), define(2)
    with tidemill.open("memory://") as mill:
        assert mill.run(first).outputs == mill.run(define(1)).outputs == 1
        with pytest.raises(tidemill.Rejected, match=r"define.<locals>.answer .* made both, with other values"):
            mill.run(other)
        with pytest.raises(tidemill.Rejected, match="task_name_taken"):
            mill.register(first, other)
        with pytest.raises(tidemill.Rejected, match="task_name_taken"):
            mill.register(other)
        assert mill.run(first).outputs == 1
    with pytest.raises(tidemill.Rejected, match="task_name_taken"):
        tidemill.open("memory://", functions=[first, other])


CELLS = """
import tidemill

@tidemill.task
def total(n: int) -> int:
    return n + 1

def through(n):
    return total(n)

@tidemill.workflow
def child(n: int) -> int:
    return through(n)

@tidemill.workflow
def report(n: int) -> int:
    return child(n)
"""
TOTAL = """
@tidemill.task(retries=1)
def total(n: int) -> int:
    return n + 1000
"""


def run_cell(source: str, names: dict[str, Any]) -> None:
    InteractiveInterpreter(names).runsource(source, symbol="exec")


def test_a_task_that_is_defined_again_is_called_by_workflows_that_name_it() -> None:
    notebook: dict[str, Any] = {"__name__": "notebook"}
    run_cell(CELLS, notebook)
    with tidemill.open("memory://") as mill:
        assert mill.run(notebook["report"], n=1).outputs == 2
        run_cell(TOTAL, notebook)
        assert mill.run(notebook["report"], n=1).outputs == 1001
        assert [each.version for each in mill.versions("child")] == [1, 2]
        run_cell(TOTAL.replace("1000", "5"), notebook)
        mill.register(notebook["report"])
        assert mill.run("report", {"n": 1}).outputs == 6


def test_a_task_of_a_module_that_was_reloaded_is_called() -> None:
    module = ModuleType("lib")
    run_cell(CELLS, module.__dict__)

    @workflow
    def report(n: int) -> Any:
        return module.total(n)

    assert report.document() == report.document()
    before = report.builds()
    assert report.builds() == before
    run_cell(TOTAL, module.__dict__)
    assert report.builds() != before and report.document()["nodes"][0]["retry"] == {"max_attempts": 2}


def test_two_workflows_of_one_name_in_a_family_are_refused() -> None:
    @workflow(name="same")
    def child(n: int) -> Any:
        return fetch(n)

    @workflow(name="same")
    def parent(n: int) -> Any:
        return child(n)

    with tidemill.open("memory://") as mill, pytest.raises(tidemill.Rejected, match="workflow_name_taken") as refused:
        mill.run(parent, n=1)
    assert "child (test_decorators.py:" in str(refused.value)


@task
def seven() -> int:
    return 7


@workflow
def texts(n: int, word: str) -> list[Any]:
    found = seven()
    return [found, f"{found}", str(n), f"{word}", f"{found}{n}", tidemill.default(found, f"{n}")]


def test_a_formatted_value_is_text_also_where_it_stands_alone() -> None:
    with tidemill.open("memory://") as mill:
        assert mill.run(texts, n=3, word="x").outputs == [7, "7", "3", "x", "73", 7]
    found = texts.document()["outputs"]
    assert found[1:5] == [
        '{{ seven.output ~ "" }}',
        '{{ inputs.n ~ "" }}',
        "{{ inputs.word }}",
        "{{ seven.output }}{{ inputs.n }}",
    ]


def test_a_reference_of_another_workflow_is_refused() -> None:
    kept: list[Any] = []

    @workflow
    def first(n: int) -> None:
        kept.append(fetch(n))

    @workflow
    def second() -> None:
        total(kept[0])

    first.document()
    assert problems(second)[0][0] == "reference_foreign"


def test_parameters_have_names() -> None:
    @workflow
    def loose(*rows: int) -> None:
        fetch(1)

    assert problems(loose)[0][0] == "parameter_unnamed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retries": "3"}, "`retries` is a whole number, not '3'"),
        ({"retries": True}, "`retries` is a whole number, not True"),
        ({"retry": "3"}, "`retry` is a number of attempts or a mapping"),
        ({"timeout": "30"}, "`timeout` is seconds or a timedelta, not '30'"),
        ({"compensate": "undo"}, "`compensate` is a task: .* not 'undo'"),
        ({"retry_count": 3}, "no option `retry_count`: did you mean `retries`"),
        ({"quue": "a"}, "no option `quue`: did you mean `queue`"),
    ],
)
def test_options_of_the_wrong_type_or_name_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        task(**options)


def test_retry_counts_attempts_as_in_a_document() -> None:
    @task(retry=3)
    def steady() -> int:
        return 1

    @workflow
    def flow() -> Any:
        return steady()

    assert flow.document()["nodes"][0]["retry"] == {"max_attempts": 3}


def test_what_is_decorated_and_what_is_run() -> None:
    for decorate in (task, workflow):
        with pytest.raises(TypeError, match="decorates functions"):
            decorate(3)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="decorates functions"):
            decorate(fetch)
    with pytest.raises(TypeError, match="retires"):
        task(retires=3)(fetch.function)  # type: ignore[call-overload]
    with tidemill.open("memory://") as mill:
        for given in (fetch, fetch.function):
            with pytest.raises(tidemill.Rejected, match=r"workflow_invalid"):
                mill.run(given)  # type: ignore[arg-type]


def test_a_workflow_that_needs_a_run_is_no_plain_function() -> None:
    @task
    async def later(n: int) -> int:
        return n + 1

    @workflow
    def sleepy(n: int) -> int:
        tidemill.sleep(1)
        return n

    @workflow
    def outer(n: int) -> int:
        return sleepy(n)

    @workflow
    async def sleepy_too(n: int) -> Any:
        tidemill.sleep(1)
        return await later(n)

    @workflow
    async def plain(ns: list[int]) -> Any:
        return await later.map(ns)  # type: ignore[misc]

    for call in (lambda: sleepy(1), lambda: outer(1), lambda: sleepy.map([1]), lambda: asyncio.run(sleepy_too(1))):
        with pytest.raises(
            tidemill.Rejected, match=r"sleepy\w* uses tidemill.sleep.*cannot be called as a plain"
        ) as told:
            call()
        assert "mill.run(sleepy" in told.value.problems[0].hint
    assert asyncio.run(plain([1, 2])) == [2, 3]
    with pytest.raises(tidemill.Rejected, match="outside of a workflow function"):
        tidemill.sleep(1)


def test_a_workflow_without_parameters_takes_no_inputs() -> None:
    @task
    def one() -> int:
        return 1

    @workflow
    def job() -> int:
        return one()

    @workflow(inputs=None)
    def anything() -> int:
        return one()

    @workflow
    def parent() -> int:
        return job()

    assert job.document()["inputs"] == {"type": "object", "properties": {}, "additionalProperties": False}
    assert "inputs" not in anything.document()
    with tidemill.open("memory://") as mill:
        assert [mill.run(job).output, mill.run(job, {}).output, mill.run(parent).output] == [1, 1, 1]
        assert mill.run(anything, {"a": 1}).output == 1
        with pytest.raises(tidemill.Rejected, match='there is no key "lables" here'):
            mill.start(job, lables={"a": "b"})


def test_compensation() -> None:
    undone: list[Any] = []

    @dataclass
    class Booking:
        number: int

    @task(retries=0, timeout=5)
    def cancel(booking: Any, trip: str) -> None:
        undone.append((booking, trip))

    @task(compensate=cancel)
    def book(trip: str) -> Booking:
        return Booking(len(trip))

    @task(retries=0)
    def pay(booking: Any) -> None:
        raise ValueError("no money")

    @workflow(compensate=True)
    def holiday(trip: str) -> None:
        pay(book(trip))

    document = holiday.document()
    assert document["on_failure"] == {"compensate": "automatic"}
    assert document["nodes"][0]["compensator"] == {
        "type": "python",
        "config": {"function": "cancel", "args": {"booking": "{{ output }}", "trip": "{{ inputs.trip }}"}},
        "retry": {"max_attempts": 1},
        "timeout_seconds": 5,
    }
    with tidemill.open("memory://") as mill:
        failed = mill.run(holiday, trip="Rome")
        assert failed.status == "FAILED"
        events = [event["type"] for event in mill.follow(failed.run_id)]
    assert "CompensationCompleted" in events
    assert undone == [({"number": 4}, "Rome")]

    @task(compensate=pay)
    def odd(other: int) -> int:
        return other

    @task
    def two(left: int, right: int) -> None:
        pass

    @workflow
    def impossible() -> None:
        odd.options(compensate=two)(1)

    assert problems(impossible)[0][0] == "compensation_invalid"


def test_a_compensator_gets_the_defaults_of_the_task() -> None:
    undone: list[Any] = []

    @task
    def cancel(booking: str, city: str, nights: int, note: object = fetch) -> None:
        undone.append((booking, city, nights))

    @task(compensate=cancel, retries=0)
    def book(city: str, nights: int = 1, note: object = fetch) -> str:
        return city.upper()

    @task(retries=0)
    def pay(booking: str) -> None:
        raise ValueError("no money")

    @workflow(compensate=True)
    def holiday() -> None:
        pay(book("Rome"))

    args = holiday.document()["nodes"][0]["compensator"]["config"]["args"]
    assert args == {"city": "Rome", "nights": 1, "booking": "{{ output }}"}
    with tidemill.open("memory://") as mill:
        assert mill.run(holiday).rollback == {"status": "done", "undone": ["book/1/-1"], "left": []}
    assert undone == [("ROME", "Rome", 1)]


def test_parameters_that_cannot_be_passed_by_name_are_refused() -> None:
    @task
    def price(n: int, /) -> int:
        return n

    @task(compensate=price)
    def undone() -> int:
        return 1

    @workflow
    def positional() -> Any:
        return [price(1), undone()]

    assert [code for code, _ in problems(positional)] == ["arguments_invalid"]


OPTIONAL = """
import tidemill

@tidemill.task
def double(n: int = None) -> int:
    return 2 * (n or 1)

@tidemill.workflow
def doubled(n: int = None) -> list[int]:
    return [double(n), double(None)]
"""


def test_a_parameter_that_is_none_by_default_may_be_none() -> None:
    names: dict[str, Any] = {"__name__": "optional"}
    run_cell(OPTIONAL, names)
    with tidemill.open("memory://") as mill:
        doubled = names["doubled"]
        assert (mill.run(doubled).outputs, mill.run(doubled, n=3).outputs) == ([2, 2], [6, 2])


def test_a_call_of_a_workflow_can_be_undone() -> None:
    undone: list[str] = []

    @task
    def give_back(result: int, n: int) -> None:
        undone.append(f"{result} of {n}")

    @task(retries=0)
    def break_off(result: int) -> int:
        raise ValueError(result)

    @workflow(compensate=True)
    def parent(n: int) -> int:
        return break_off(report.options(compensate=give_back)(n))

    with tidemill.open("memory://") as mill:
        failed = mill.run(parent, n=4)
    assert failed.rollback == {"status": "done", "undone": ["report/1/-1"], "left": []}
    assert undone == ["6 of 4"]


def test_a_task_can_be_registered_like_a_function() -> None:
    flow = {"name": "f", "nodes": [{"id": "a", "type": "python", "config": {"function": "fetch", "args": {"n": 2}}}]}
    with tidemill.open("memory://", functions=[fetch]) as mill:
        assert mill.run(flow).outputs == {"a": [0, 1]}
        config = {"function": f"{__name__}:fetch", "args": {"n": 3}}
        path = {"name": "g", "nodes": [{"id": "a", "type": "python", "config": config}]}
        assert mill.run(path).outputs == {"a": [0, 1, 2]}


def test_a_workflow_that_is_registered_brings_its_tasks() -> None:
    """A process that continues runs of another one has to know what they call."""

    @tidemill.task
    def double(n: int) -> int:
        return 2 * n

    @tidemill.workflow
    def doubled(n: int) -> int:
        return double(n)

    with tidemill.open("memory://registered-workflow", work=False) as first:
        first.publish(doubled)
        run_ids = [first.start("doubled", {"n": n}) for n in (1, 2)]
        with tidemill.open("memory://registered-workflow", functions=[doubled]) as mill:
            assert [mill.result(run_id, timeout=30).output for run_id in run_ids] == [2, 4]
        with tidemill.open("memory://registered-workflow") as mill:
            mill.register(doubled)
            assert mill.result(first.start("doubled", {"n": 3}), timeout=30).output == 6


def test_a_long_chain_is_built() -> None:
    @workflow
    def long(n: int) -> Any:
        value: Any = n
        for _ in range(1500):
            value = total(rows=[value])
        return value

    nodes = long.document()["nodes"]
    assert len(nodes) == 1500 and nodes[-1]["dependencies"] == ["total_1499"]
    assert re.fullmatch(r"\{\{ total_1500\.output \}\}", long.document()["outputs"])


def test_a_problem_of_the_document_names_the_line_of_the_call() -> None:
    @tidemill.workflow
    def wrong(n: int) -> list[int]:
        tidemill.sleep("3h")  # type: ignore[arg-type]
        return fetch.options(limits={"memory_mb": 1})(n)

    with tidemill.open("memory://", work=False) as mill, pytest.raises(tidemill.Rejected) as refused:
        mill.publish(wrong)
    line = wrong.function.__code__.co_firstlineno
    found = sorted(problem.message.partition(" ")[0] for problem in refused.value.problems)
    assert found == [f"test_decorators.py:{line + 2}:", f"test_decorators.py:{line + 3}:"]


@dataclass
class Port:
    city: str = ""


class Cargo(msgspec.Struct, rename="camel"):
    gross_weight: int = 0
    port: Port | None = None
    inner: list[Cargo] = []


class Extra(TypedDict, total=False):
    note: str


@tidemill.workflow
def shipped(cargo: Cargo, extra: Extra | None = None) -> list[int]:
    return fetch(cargo.gross_weight)


@pytest.mark.parametrize(
    ("inputs", "path", "hint"),
    [
        ({"cargo": {"grossWeigth": 1}}, "/inputs/cargo/grossWeigth", 'did you mean "grossWeight"?'),
        ({"cargo": {"port": {"citty": "x"}}}, "/inputs/cargo/port/citty", 'did you mean "city"?'),
        ({"cargo": {"inner": [{}, {"prot": None}]}}, "/inputs/cargo/inner/1/prot", 'did you mean "port"?'),
        ({"crago": {}, "cargo": {}}, "/inputs/crago", 'did you mean "cargo"?'),
    ],
)
def test_a_key_that_a_type_of_the_inputs_lacks_is_refused(inputs: Any, path: str, hint: str) -> None:
    with tidemill.open("memory://", work=False) as mill, pytest.raises(tidemill.Rejected) as refused:
        mill.start(shipped, inputs)
    (problem,) = refused.value.problems
    assert (problem.code, problem.path, problem.hint) == ("inputs_invalid", path, hint)


def test_a_typed_dictionary_may_have_more_keys() -> None:
    cargo = Cargo(gross_weight=2, port=Port("Rome"), inner=[Cargo()])
    with tidemill.open("memory://") as mill:
        assert mill.run(shipped, cargo=cargo, extra={"note": "x", "more": 1}).output == [0, 1]


def test_a_problem_of_the_outputs_names_the_line_of_the_return() -> None:
    @tidemill.workflow
    def wrong() -> Any:
        tidemill.approve("Well?", id="ok")

        return tidemill.template("{{ ok.output.comment }}")

    with tidemill.open("memory://", work=False) as mill, pytest.raises(tidemill.Rejected) as refused:
        mill.publish(wrong)
    (problem,) = refused.value.problems
    line = wrong.function.__code__.co_firstlineno + 4
    assert problem.message.startswith(f"test_decorators.py:{line}: outputs: ok.output never has")


@pytest.mark.parametrize("items", [3, "abc", {"a": 1}])
def test_a_map_takes_a_list(items: Any) -> None:
    @tidemill.workflow
    def wrong() -> list[int]:
        return fetch.map(items)

    with pytest.raises(tidemill.Rejected, match=r"map\(…\) takes a list") as refused:
        wrong.document()
    assert refused.value.code == "arguments_invalid"


def test_a_while_over_a_result_is_told_of_loops() -> None:
    @tidemill.workflow
    def wrong(n: int) -> int:
        while total(fetch(n)) < 3:
            pass
        return n

    with pytest.raises(tidemill.Rejected) as refused:
        wrong.document()
    assert "with tidemill.loop(max_iterations=…)" in refused.value.problems[0].hint


def test_paths_go_through_a_workflow() -> None:
    @task
    def inside(folder: Path, name: PurePosixPath | None = None) -> Path:
        assert isinstance(folder, Path) and isinstance(name, PurePosixPath)
        return folder / name

    @workflow
    def paths(folder: Path) -> Path:
        return inside(inside(folder, PurePosixPath("b")), name=PurePosixPath("c"))

    assert paths.document()["inputs"]["properties"] == {"folder": {"type": "string"}}
    with tidemill.open("memory://") as mill:
        done = mill.run(paths, folder=Path("a"))
    assert done.output == str(Path("a/b/c")) and done.output_as(paths) == Path("a/b/c")


def test_a_task_gets_the_member_of_a_union_that_fits() -> None:
    @task
    def kind(what: Order | Size | None) -> str:
        return type(what).__name__

    @task
    def when(at: datetime | str) -> str:
        return type(at).__name__

    @workflow
    def kinds(order: Order | Size) -> Any:
        return [kind(order), kind(Size.LARGE), kind(None), when("2026-01-02T00:00:00Z"), when("soon")]

    assert run(kinds, order={"id": "a", "total": 1}).output == ["Order", "Size", "NoneType", "datetime", "str"]
    assert run(kinds, order="small").output[0] == "Size"
    with tidemill.open("memory://") as mill, pytest.raises(tidemill.Rejected, match="inputs_invalid"):
        mill.run(kinds, order=3)


def test_a_tolerated_failure_among_the_items_is_named() -> None:
    @task(retries=0)
    def odd(n: int) -> int:
        if n == 2:
            raise ValueError("even")
        return n

    @task(retries=0)
    def add(numbers: list[int]) -> int:
        return sum(numbers)

    @workflow
    def tolerant(n: int) -> int:
        found: Any = odd.options(tolerate=1).map([1, n, 3])
        return add(tidemill.default(found, []))  # What has a default is not checked when the workflow is built.

    failed = run(tolerant, n=2)
    assert failed.error["message"] == "add(…): `numbers` must be list[int], but item 1 is a tolerated failure"


def test_an_undo_may_have_a_parameter_with_a_default() -> None:
    @task
    def cancel(booking: str, city: str, reason: str = "") -> None: ...

    @task(compensate=cancel)
    def book(city: str) -> str:
        return city

    @workflow
    def trip(city: str) -> str:
        return book(city)

    undo = trip.document()["nodes"][0]["compensator"]
    assert undo["config"]["args"] == {"city": "{{ inputs.city }}", "booking": "{{ output }}"}


class Geo(NamedTuple):
    lat: float
    lon: float


@task
def locate(city: str) -> Geo:
    return Geo(47.0, len(city))


def test_fields_of_a_named_tuple_are_its_items() -> None:
    @workflow
    def both(city: str) -> list[float]:
        return [locate(city).lon, locate(city).lat, locate(city)[1]]

    with tidemill.open("memory://") as mill:
        assert mill.run(both, city="Bern").output == [4, 47.0, 4]


def test_a_field_that_a_named_tuple_lacks_is_refused_and_its_types_are_known() -> None:
    @task
    def word(text: str) -> str:
        return text

    @workflow
    def misspelt(city: str) -> float:
        return locate(city).latt  # type: ignore[attr-defined,no-any-return]

    @workflow
    def misfit(city: str) -> str:
        return word(locate(city).lat)  # type: ignore[arg-type]

    for flow, code, words in ((misspelt, "field_unknown", "latt"), (misfit, "arguments_invalid", "is float")):
        with pytest.raises(tidemill.Rejected) as refused:
            flow.document()
        assert refused.value.code == code and words in str(refused.value)
