"""What a workflow function cannot say: the words of the refusal, and the file and line that it names."""

from __future__ import annotations

import asyncio
import copy
import enum
import functools
import inspect
import json
import logging
import random
import sys
import time
import uuid
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import pydantic
import pytest

import tidemill
import tidemill.pictures
from tidemill import task, workflow
from tidemill.authoring.decorators import Workflow


@task
def fetch(n: int) -> list[int]:
    return list(range(n))


@task
def double(n: int) -> int:
    return 2 * n


def refused(flow: Workflow[..., Any]) -> list[tuple[str, int, str]]:
    """Code, line from the first one of the workflow function, and hint of every problem."""
    with pytest.raises(tidemill.Rejected) as refusal:
        flow.document()
    first = inspect.getsourcelines(flow.function)[1]
    places = [each.path.partition(":") for each in refusal.value.problems]
    assert {file for file, _, _ in places} == {"test_refusals.py"}
    return [
        (each.code, int(line) - first, each.hint)
        for each, (_, _, line) in zip(refusal.value.problems, places, strict=True)
    ]


def test_options_that_mean_nothing_for_a_call() -> None:
    @task(max_parallel=2)
    def bounded(n: int) -> int:
        return n

    @workflow
    def child(n: int) -> int:
        return bounded(n)

    @workflow
    def wrong(n: int) -> Any:
        child.options(max_parallel=2)(n)
        fetch.options(tolerate=1)(n)
        child.options(isolation="process")(n)
        child.options(limits={"memory_mb": 100}).map([n])
        return bounded(n), child.options(max_parallel=2).map([n])

    assert refused(wrong) == [
        ("option_invalid", 2, "write child.options(max_parallel=2).map(items), or leave it out"),
        ("option_invalid", 3, "write fetch.options(tolerate=1).map(items), or leave it out"),
        ("option_invalid", 4, "give it to the tasks of child: @tidemill.task(isolation=…)"),
        ("option_invalid", 5, "give it to the tasks of child: @tidemill.task(limits=…)"),
    ]


@pytest.mark.parametrize("given", [lambda n, found: n, lambda n, found: found, lambda n, found: None])
def test_the_previous_pass_is_that_of_a_task(given: Any) -> None:
    @workflow
    def wrong(n: int) -> Any:
        found = double(n)
        with tidemill.loop(max_iterations=2) as again:
            double(again.previous(given(n, found)))

    hint = "give it the task: previous(step, default); `default` is the value in the first pass"
    assert refused(wrong) == [("result_expected", 4, hint)]


def test_what_is_returned_is_refused_at_the_line_of_its_return() -> None:
    @workflow
    def compared(n: int) -> Any:
        found = double(n)
        if found is None:
            return 3
        return {"large": found > 3}

    @workflow
    async def awaited(n: int) -> Any:
        found = await double(n)  # type: ignore[misc]
        return {
            "found": found,
            "other": object(),
        }

    @workflow
    def missing(n: int) -> Any:
        with tidemill.when(n > 0):
            found = double(n)
        return [found]

    assert [each[:2] for each in refused(compared)] == [("value_not_known", 3), ("argument_not_json", 5)]
    assert [each[:2] for each in refused(awaited)] == [("argument_not_json", 3)]
    assert [each[:2] for each in refused(missing)] == [("value_may_be_missing", 4)]


def test_a_profiler_of_the_caller_stays() -> None:
    @workflow
    def fine(n: int) -> Any:
        return double(n)

    calls: list[str] = []

    def profiler(_frame: Any, event: str, _value: Any) -> None:
        calls.append(event)

    sys.setprofile(profiler)
    try:
        fine.document()
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert calls


def test_an_async_function_that_waits_is_refused_at_the_line_of_its_await() -> None:
    @workflow
    async def sleeps(n: int) -> Any:
        double(n)
        await asyncio.sleep(1)

    @workflow
    async def yields(n: int) -> Any:
        double(n)

        await asyncio.sleep(0)

    hint = "do it in a task; independent tasks run in parallel by themselves"
    assert refused(sleeps) == [("workflow_waits", 3, hint)]
    assert refused(yields) == [("workflow_waits", 4, hint)]


def test_a_parameter_without_a_name_is_refused_at_the_line_of_the_function() -> None:
    @workflow
    def loose(n: int, *rest: int) -> Any:
        return double(n)

    assert refused(loose) == [("parameter_unnamed", 0, "inputs have names: take a list or a mapping")]


def test_options_among_the_arguments() -> None:
    @workflow
    def wrong(n: int) -> Any:
        double(n, retries=3)  # type: ignore[call-arg]
        return double.map([n], max_parallel=3)  # type: ignore[call-arg]

    assert refused(wrong) == [
        ("arguments_invalid", 2, "options are given before: double.options(retries=3)(…)"),
        ("arguments_invalid", 3, "options are given before: double.options(max_parallel=3).map(…)"),
    ]


@pytest.mark.parametrize("verb", ["submit", "delay", "apply_async"])
def test_verbs_of_other_libraries(verb: str) -> None:
    @workflow
    def wrong(n: int) -> Any:
        return getattr(double, verb)(n)

    for broken in (lambda: getattr(double, verb), wrong.document, lambda: wrong.functions):
        with pytest.raises(AttributeError, match=rf"`{verb}`.* write double\(…\).* mill\.start\(workflow, …\)"):
            broken()
    assert not hasattr(double, verb) and not hasattr(double, "other")


@pytest.mark.parametrize(
    "block",
    [
        lambda ref: tidemill.when(ref > 1000),
        lambda ref: tidemill.otherwise(),
        lambda ref: tidemill.loop(max_iterations=3),
        lambda ref: tidemill.on_error(ref),
        lambda ref: tidemill.on_reject(ref),
    ],
)
def test_a_block_is_not_true(block: Any) -> None:
    @workflow
    def wrong(n: int) -> Any:
        if block(double(n)):
            return 1
        return double(n)

    [(code, line, hint)] = refused(wrong)
    assert (code, line) == ("block_not_entered", 2) and hint.startswith("write `with tidemill.")


def test_a_block_alone_or_iterated_is_refused() -> None:
    @workflow
    def alone(n: int) -> Any:
        tidemill.when(n > 3)
        return double(n)

    @workflow
    def iterated(n: int) -> Any:
        for _ in tidemill.loop(max_iterations=3):  # type: ignore[attr-defined]
            double(n)

    assert refused(alone) == [("block_not_entered", 2, "write `with tidemill.when(…):` around the tasks")]
    assert refused(iterated) == [("block_not_entered", 2, "write `with tidemill.loop(…):` instead of `for`")]


def test_a_return_in_a_block_is_refused_if_it_cuts_off_what_follows() -> None:
    @workflow
    def guard(n: int) -> Any:
        ok = tidemill.approve("Pay?")
        with tidemill.on_reject(ok):
            return "rejected"
        return double(n)

    @workflow
    def both(n: int) -> Any:
        with tidemill.when(n > 3):
            return tidemill.default(double(n), -1)
        with tidemill.otherwise():
            return fetch(n)

    @workflow
    def inner(n: int) -> Any:
        with tidemill.loop(max_iterations=3) as again:
            found = double(n)
            again.until(found > 3)
            with tidemill.when(found > 2): return double(found)  # fmt: skip  # noqa: E701
        return found

    @workflow
    def last(n: int) -> Any:
        with tidemill.when(n > 3):
            return tidemill.default(double(n), -1)

    hint = "keep the result in a variable, and write `return tidemill.default(one, other)` at the end"
    assert refused(guard) == [("block_returns", 4, hint)]
    assert ("block_returns", 3, hint) in refused(both)
    assert ("block_returns", 5, hint) in refused(inner)
    assert last.document()["outputs"]


def test_a_block_without_a_task_is_refused() -> None:
    @workflow
    def empty(n: int) -> Any:
        doubled = double(n)
        with tidemill.when(doubled > 3):
            pass
        with tidemill.on_error(doubled):
            pass
        return None

    @workflow
    def value(n: int) -> Any:
        ok = tidemill.approve("Pay?")
        with tidemill.on_reject(ok):
            said = tidemill.node("value", "rejected")
        return tidemill.default(double(n), said)

    code, hint = "block_without_task", 'call a task in it; `tidemill.node("value", …)` is a step that only has a value'
    assert [(each[0], each[2]) for each in refused(empty)] == [(code, hint)] * 2
    assert value.document()


def test_a_variable_that_a_block_sets_in_any_case_is_refused() -> None:
    @workflow
    def sized(n: int) -> Any:
        size = "small"
        with tidemill.when(n > 3):
            size = "big"
            fetch(n)
        return size

    @workflow
    def per_block(n: int) -> Any:
        with tidemill.when(n > 3):
            times = 2
            many = [double(n) for number in range(times)]
        with tidemill.otherwise():
            times = 1
            few = [double(n) for number in range(times)]
        number = double(n)
        return tidemill.default(many[0], tidemill.default(few[0], number))

    hint = "return it from a task in the block, and write `tidemill.default(one, other)` below"
    assert refused(sized) == [("block_assigns", 4, hint)]
    assert per_block.document()


def test_a_variable_that_is_carried_through_a_loop_is_refused() -> None:
    @workflow
    def summed(n: int) -> Any:
        total: Any = 0
        count = 0
        with tidemill.loop(max_iterations=5) as again:
            total = double(total)
            count += 1
            again.until(again.iteration > 1)
        return total

    @workflow
    def right(n: int) -> Any:
        found = double(n)
        with tidemill.loop(max_iterations=5) as again:
            total = double(again.previous(double, 1))
            found = double(total)
            again.until(found > 100)
        return found

    hint = "give the task `again.previous(task, first)`: what a task returned in the pass before"
    assert refused(summed) == [("loop_variable", 5, hint), ("loop_variable", 6, hint)]
    assert right.document()


def test_blocks_without_a_source_are_not_checked() -> None:
    """As in a prompt of Python that keeps no source."""
    said: dict[str, Any] = {"tidemill": tidemill, "double": double}
    exec(  # noqa: S102 - code that a prompt has read
        "def flow(n):\n"
        "    kind = 'small'\n"
        "    with tidemill.when(n > 3):\n"
        "        kind = 'big'\n"
        "        double(n)\n"
        "    return kind\n",
        said,
    )
    assert workflow(said["flow"]).document()["outputs"] == "big"


@dataclass
class Cat:
    name: str


@dataclass
class Dog:
    name: str
    breed: str


@dataclass
class Owner:
    pet: Cat | Dog


def test_a_union_inside_of_a_hint_is_refused() -> None:
    @task
    def walk(pets: list[Cat | Dog], plain: int = 0) -> int:
        return len(pets)

    @task
    def visit(owner: Owner | None) -> int:
        return 1

    @workflow
    def child(pets: list[Cat | Dog]) -> int:
        return double(1)

    @workflow
    def wrong(n: int) -> Any:
        child([])
        visit(None)
        return walk([])

    assert [each[:2] for each in refused(wrong)] == [("hint_ambiguous", 3), ("hint_ambiguous", 4)]
    with pytest.raises(tidemill.Rejected, match=r"walk\(…\): `pets` is list\[Cat \| Dog\], .* Cat \| Dog apart .*Any"):
        wrong.document()


def test_what_is_returned_has_the_type_of_the_hint() -> None:
    @workflow
    def other(n: int) -> str:
        return double(n)  # type: ignore[return-value]

    @workflow
    def defaulted(n: int) -> str:
        with tidemill.when(n > 1):
            late = double(n)
        return tidemill.default(late, "never")  # type: ignore[arg-type, return-value]

    assert defaulted.document()["outputs"]

    @workflow
    def constant(n: int) -> list[int]:
        double(n)
        return ["a"]  # type: ignore[list-item]

    assert [each[:2] for each in refused(other)] == [("output_invalid", 2)]
    assert [each[:2] for each in refused(constant)] == [("output_invalid", 3)]


def test_items_of_a_map_are_checked_and_shown_shortly() -> None:
    @workflow
    def wrong(n: int) -> Any:
        double.map([1, n, "b"])
        return double(list(range(1000)))  # type: ignore[arg-type]

    with pytest.raises(tidemill.Rejected, match="item 2: `n` is int, and 'b' is not: Expected `int`") as refusal:
        wrong.document()
    assert [each.code for each in refusal.value.problems] == ["arguments_invalid"] * 2
    assert all(len(each.message) < 200 for each in refusal.value.problems)


def test_an_id_that_is_given_is_kept_or_refused() -> None:
    @workflow
    def wrong(n: int) -> Any:
        double.options(id="a b")(n)
        double.options(id="same")(n)
        double.options(id="same")(n)
        double.options(id="item")(n)
        tidemill.node("value", id="same")

    assert [each[:2] for each in refused(wrong)] == [
        ("bad_name", 2),
        ("duplicate_id", 4),
        ("reserved_id", 5),
        ("duplicate_id", 6),
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_error": "ignore"}, "on_error='ignore'.*write continue"),
        ({"isolation": "vm"}, "isolation='vm'.*one of inline, thread, process"),
        ({"timeout": 0}, "timeout=0.* at least 0.001"),
        ({"timeout": -1}, "timeout=-1.* at least 0.001"),
        ({"priority": 99}, "priority=99.* 0 to 9"),
        ({"queue": ""}, "queue=''.*letters, digits"),
        ({"retries": -1}, "retries=-1.* 1 to"),
        ({"retry": {"max_attemps": 3}}, "did you mean `max_attempts`"),
        ({"tolerate": -1}, "tolerate=-1.* 0 to"),
    ],
)
def test_values_of_options_are_checked_where_they_are_written(options: dict[str, Any], words: str) -> None:
    with pytest.raises(tidemill.Rejected, match=words) as refusal:
        task(**options)
    assert refusal.value.code == "option_invalid"

    @workflow
    def wrong(n: int) -> Any:
        return double.options(**options)(n)

    assert [each[:2] for each in refused(wrong)] == [("option_invalid", 2)]


@pytest.mark.parametrize(
    "options",
    [
        {"retries": 3, "retry": {"max_attempts": 2}},
        {"retries": 3, "retry": 2},
        {"retry_delay": 3, "retry": {"backoff_seconds": 2}},
    ],
)
def test_two_options_that_say_the_same_are_refused(options: dict[str, Any]) -> None:
    for given in (task, double.options):
        with pytest.raises(tidemill.Rejected, match=r"both say .*leave out one") as refusal:
            given(**options)  # type: ignore[operator]
        assert refusal.value.code == "option_invalid"


@pytest.mark.parametrize(
    ("declared", "given", "keys"),
    [
        ({"retries": 3}, {"retry": {"max_attempts": 2}}, {"max_attempts": 2}),
        ({"retries": 3, "retry_delay": 5}, {"retry": 2}, {"max_attempts": 2, "backoff_seconds": 5}),
        ({"retry": 4}, {"retries": 2}, {"max_attempts": 3}),
        (
            {"retry": {"max_attempts": 4, "backoff_seconds": 3}},
            {"retries": 0},
            {"max_attempts": 1, "backoff_seconds": 3},
        ),
    ],
)
def test_an_option_for_one_call_replaces_the_one_that_says_the_same(
    declared: dict[str, Any], given: dict[str, Any], keys: dict[str, Any]
) -> None:
    @workflow
    def flow(n: int) -> Any:
        return task(**declared)(fetch.function).options(**given)(n)

    assert flow.document()["nodes"][0]["retry"] == keys


def test_arguments_of_a_compensator_have_its_types() -> None:
    @task
    def undo(n: str, result: list[int]) -> None: ...

    @task
    def cancel(n: int, result: int) -> None: ...

    @task(compensate=undo)
    def do(n: int) -> int:
        return n

    @workflow
    def wrong(n: int) -> Any:
        do(n)
        double.options(compensate=cancel).map([n])
        double.options(compensate=undo).map([n])

    assert [each[:2] for each in refused(wrong)] == [("arguments_invalid", 2)] * 2 + [("arguments_invalid", 4)]
    with pytest.raises(tidemill.Rejected, match=r"undo\(…\): `result` is list\[int\], and do is int"):
        wrong.document()


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


@dataclass
class Logins:
    all: list[Login]


def test_secrets_of_pydantic_are_refused() -> None:
    @task
    def use(login: Login) -> None: ...

    @task
    def make(n: int) -> Logins:
        return Logins([])

    @task
    def keep(login: Any) -> Any:
        return login

    @task
    def leak(n: int):  # type: ignore[no-untyped-def]
        return Login(password=pydantic.SecretStr("x"))

    @workflow
    def wrong(login: Login | None) -> Logins:
        use(login)  # type: ignore[arg-type]
        return make(1)

    @workflow
    def constant(n: Any) -> Any:
        keep(n)
        return keep(Login(password=pydantic.SecretStr("x")))

    @workflow
    def unhinted(n: Any) -> Any:
        return leak(n)

    assert [each[:2] for each in refused(wrong)] == [
        ("hint_secret", 0),
        ("hint_secret", 0),
        ("hint_secret", 2),
        ("hint_secret", 3),
    ]
    assert 'context.secrets["NAME"]' in refused(wrong)[0][2]
    with pytest.raises(tidemill.Rejected, match=r"make returns Logins, and Login.password is a SecretStr"):
        wrong.document()
    assert [each[:2] for each in refused(constant)] == [("argument_not_json", 3)]
    with tidemill.open("memory://") as mill:
        error = mill.run(unhinted, n=1).error
        assert error and "Login.password is a SecretStr" in error["message"]
        with pytest.raises(tidemill.Rejected, match=r"Login.password is a SecretStr"):
            mill.run(unhinted, n=Login(password=pydantic.SecretStr("x")))


def test_a_class_in_a_config_is_refused_with_what_to_write() -> None:
    @workflow
    def wrong(n: int) -> Any:
        tidemill.node("llm", {"schema": Login, "prompt": f"{double(n)} and {double(n)}"})
        tidemill.node("llm", {"a": Login, "prompt": f"{n}"})

    with pytest.raises(tidemill.Rejected, match=r"Login is a class; write Login.model_json_schema\(\)") as refusal:
        wrong.document()
    assert [each.code for each in refusal.value.problems] == ["argument_not_json"] * 2
    assert "\\u" not in str(refusal.value)


def test_what_verbs_are_given() -> None:
    @workflow
    def endless(n: int) -> int:
        with tidemill.loop(max_iterations=2) as again:
            found = double(n)
            again.until(found > 100)
        return found

    with tidemill.open("memory://") as mill:
        for wrong, name in (
            (lambda: mill.find(labels={"a": "b"}), "find"),  # type: ignore[call-arg]
            (lambda: mill.runs(labels={"a": "b"}), "runs"),  # type: ignore[call-arg]
            (lambda: mill.count(labels={"a": "b"}), "count"),  # type: ignore[call-arg]
        ):
            with pytest.raises(TypeError, match=rf"^{name}\(\) .*'labels': did you mean `label`\?$"):
                wrong()
        run = mill.run(endless, n=1)
        assert run.error and "not done after 2 passes" in run.error["message"] and "on_exhausted" in run.error["hint"]
        assert mill.show("@last").run_id == mill.show(run_id="@last").run_id == run.run_id
        assert "loop_exhausted" in str(mill.why("@last"))
    assert tidemill.pictures.graph_svg(endless).startswith("<svg")
    with pytest.raises(AttributeError, match="did you mean `task`") as error:
        _ = tidemill.tsk  # type: ignore[attr-defined]
    assert error.value.name == "tsk" and error.value.obj is None


def test_a_method_is_no_task() -> None:
    with pytest.raises(TypeError, match=r"is a method, .* leave out `self`"):

        class Wrong:
            @task
            def score(self, n: int) -> int:
                return n

    class Fine:
        @staticmethod
        @task
        def one(n: int) -> int:
            return n

        @task
        @staticmethod
        def two(n: int) -> int:
            return n

        def three(self, n: int) -> int:
            return n

    @task
    def closure(self: int) -> int:
        return self

    assert [Fine.one(1), Fine.two(1), task(Fine().three)(1), closure(1)] == [1] * 4


def test_calls_that_other_libraries_know() -> None:
    @workflow
    async def gathered(n: int) -> Any:
        return await asyncio.gather(double(n), double(n))

    @workflow
    def dumped(n: int) -> Any:
        return json.dumps(fetch(n))

    @workflow
    def keyed(n: int) -> Any:
        return {1: "a"}[double(n)]

    @workflow
    def compared(n: int) -> Any:
        return double(n) > 2

    @workflow
    def empty(n: int) -> int:
        return n

    assert refused(gathered)[0][2] == "do it in a task; independent tasks run in parallel by themselves"
    assert refused(dumped) == [("value_not_known", 2, "do it inside a task")]
    looked_up = "keys must be known when the workflow is built; look it up inside a task"
    assert refused(keyed) == [("value_not_known", 2, looked_up)]
    with pytest.raises(tidemill.Rejected, match=r"ctx.double.output > 2 cannot .* compare inside a task"):
        compared.document()
    assert [each[:2] for each in refused(empty)] == [("no_nodes", 0)]
    with pytest.raises(TypeError, match=r"double.map\(…\): missing .*'items'; write double.map\(items\)"):
        double.map(n=[1])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"double.options\(…\): .*'retires'; did you mean `retries`"):
        double.options(retires=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match=r"write double.map\(items\)"):
        _ = double.expand  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="schedules are made with"):
        workflow(schedule="* * * * *")  # type: ignore[call-overload]


def test_what_is_run_is_a_workflow() -> None:
    def plain() -> None: ...

    with tidemill.open("memory://") as mill:
        for given, words in (
            (plain, "decorate it with @tidemill.workflow"),
            (lambda: 1, "decorate it with @tidemill.workflow"),
            (double, "call it in a function decorated with"),
            (2, "not its result"),
        ):
            with pytest.raises(tidemill.Rejected, match=words) as refusal:
                mill.run(given)  # type: ignore[arg-type]
            assert refusal.value.code == "workflow_invalid"


def test_an_option_that_is_also_an_input() -> None:
    @workflow
    def poll(url: int, timeout: int = 10, key: str = "") -> Any:
        return [double(timeout), key, url]

    with tidemill.open("memory://") as mill:
        with pytest.raises(tidemill.Rejected, match=r'mill.run\(poll, {"url": 1, "timeout": 60}\)') as refusal:
            mill.run(poll, url=1, timeout=60)
        assert (refusal.value.code, refusal.value.problems[0].path) == ("inputs_invalid", "/inputs/timeout")
        with pytest.raises(tidemill.Rejected, match=r'mill.start\(poll, {"url": 1, "key": \'k\'}\)'):
            mill.start(poll, url=1, key="k")
        assert mill.run(poll, url=1).output == [20, "", 1]
        assert mill.run(poll, {"url": 1, "timeout": 6}, timeout=60).output == [12, "", 1]


class Size(enum.Enum):
    SMALL = (1, 2)

    @property
    def width(self) -> int:
        return self.value[0]


@task
def day(n: int) -> date | None:
    return None


def test_fields_that_no_json_value_has() -> None:
    @workflow
    def wrong(size: Size, at: datetime, n: int) -> Any:
        fetch(size.value)  # type: ignore[arg-type]
        fetch(size.width)
        double(at.year)
        double(day(n).year)  # type: ignore[union-attr]
        return [double.options(on_error="continue")(n).error]  # type: ignore[attr-defined]

    assert refused(wrong) == [
        ("field_unknown", 2, "an enum is passed as it is; read its `value` inside a task"),
        ("field_unknown", 3, "an enum is passed as it is; read its `width` inside a task"),
        ("field_unknown", 4, "read its `year` inside a task"),
        ("field_unknown", 5, "read its `year` inside a task"),
    ]

    @workflow
    def called(at: datetime) -> Any:
        return double(at.isoformat())  # type: ignore[arg-type]

    assert refused(called) == [("value_not_known", 2, "methods are called inside a task")]


class Row(pydantic.BaseModel):
    n: int
    more: Any = None


def test_a_model_of_results_is_refused() -> None:
    @workflow
    def made(n: int) -> Any:
        return fetch(Row(n=double(n)))  # type: ignore[arg-type]

    @workflow
    def kept(n: int) -> Any:
        return double([Row(n=1, more=double(n))])  # type: ignore[arg-type]

    @workflow
    def plain(n: int) -> Any:
        return fetch(Row(n="x"))  # type: ignore[arg-type]

    hint = "a dataclass may hold results; or build the model in a task"
    assert refused(made) == [("value_not_known", 2, hint)]
    assert refused(kept) == [("argument_not_json", 2, hint)]
    with pytest.raises(tidemill.Rejected, match="the model Row is made of a result"):
        made.document()
    with pytest.raises(pydantic.ValidationError):
        plain.document()


def test_a_context_is_called_context() -> None:
    @task
    def told(n: int, ctx: tidemill.NodeContext) -> int:
        return n

    @workflow
    def wrong(n: int) -> Any:
        return told(n)  # type: ignore[call-arg]

    assert refused(wrong) == [("arguments_invalid", 2, "call it `context`, as in `context: NodeContext`")]
    document = {"name": "x", "nodes": [{"id": "a", "type": "python", "config": {"function": "told", "args": {"n": 1}}}]}
    with tidemill.open("memory://", functions=[told]) as mill:
        error = mill.run(document).error
    assert error and (error["code"], error["hint"]) == ("arguments_invalid", "call its parameter `ctx` `context`")


def _no_passes(n: int) -> None:
    with tidemill.loop():  # type: ignore[call-arg]
        double(n)


def _no_loop(n: int) -> None:
    with tidemill.on_exhausted(double(n)):  # type: ignore[arg-type]
        double(n)


@pytest.mark.parametrize(
    ("body", "code", "hint"),
    [
        (_no_passes, "arguments_invalid", "write tidemill.loop(max_iterations=5)"),
        (_no_loop, "result_expected", "give it the loop: `with tidemill.loop(…) as again:`"),
        (lambda n: tidemill.template(n), "arguments_invalid", 'write tidemill.template("{{ fetch.output | length }}")'),
        (lambda n: tidemill.template(3), "arguments_invalid", "write tidemill.template("),
        (lambda n: tidemill.signal(3), "arguments_invalid", 'write tidemill.signal("paid")'),
        (lambda n: tidemill.when(), "arguments_invalid", "write tidemill.when(condition)"),
    ],
)
def test_words_that_are_given_something_else(body: Any, code: str, hint: str) -> None:
    @workflow
    def wrong(n: int) -> Any:
        body(n)

    with pytest.raises(tidemill.Rejected) as refusal:
        wrong.document()
    [problem] = refusal.value.problems
    assert (problem.code, problem.hint[: len(hint)]) == (code, hint) and problem.path.startswith("test_refusals.py:")


def test_a_log_of_a_reference_names_it(caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    def logged(n: int) -> Any:
        found = double(n)
        logging.getLogger("flows").warning("%s of %s", found, n)
        return found

    assert logged.document()["outputs"] == "{{ double.output }}"
    assert caplog.messages == ["double of inputs.n"]


def test_what_is_decorated_twice() -> None:
    @workflow
    def flow(n: int) -> Any:
        return double(n)

    for decorate, given in ((task, flow), (task, double), (workflow, double)):
        with pytest.raises(TypeError, match="is decorated already: leave out one of the two decorators"):
            decorate(given)


def test_what_is_no_list_and_what_is_no_function() -> None:
    @workflow
    def wrong(n: int) -> Any:
        return double.map({"a": 1})  # type: ignore[arg-type]

    with pytest.raises(tidemill.Rejected, match=r"takes a list, and \{'a': 1\} is not one"):
        wrong.document()
    with pytest.raises(TypeError, match=r"decorates functions, and .* is not one: wrap it in a `def`"):
        task(functools.partial(pow, 2))  # type: ignore[call-overload]


PRICES = {"gold": 5}


def test_what_python_decides_without_asking_is_refused() -> None:
    @workflow
    def looked_up(n: int) -> Any:
        return double(PRICES.get(double(n), 0))  # type: ignore[call-overload]

    @workflow
    def member(n: int) -> Any:
        return double(1) if n in {1, 2} else double(2)

    @workflow
    def hashed(n: int) -> Any:
        return hash(double(n))

    @workflow
    def typed(n: int) -> Any:
        return double(1) if isinstance(double(n), str) else double(2)

    @workflow
    def matched(n: int) -> Any:
        match fetch(n):
            case [_, _]:
                return double(1)
        return double(2)

    @workflow
    def by_class(n: int) -> Any:
        match double(n):
            case str():
                return double(1)
        return double(2)

    @workflow
    def missing(n: int, region: str | None = None) -> Any:
        return double(n if region is not None else 0)

    hints = {
        looked_up: "keys must be known when the workflow is built; look it up inside a task",
        member: "keys must be known when the workflow is built; look it up inside a task",
        hashed: "keys must be known when the workflow is built; look it up inside a task",
        typed: "it has its type when the workflow runs; ask inside a task",
        matched: "match it inside a task",
        by_class: "it has its type when the workflow runs; ask inside a task",
        missing: "write `with tidemill.when(region == None):`, or decide inside a task",
    }
    for flow, hint in hints.items():
        [(code, line, said)] = refused(flow)
        assert (code, said) == ("value_not_known", hint) and line in (2, 3)


def test_a_copy_of_a_result_is_the_result() -> None:
    @workflow
    def copied(n: int) -> Any:
        last: Any = None
        for each in (1, 2):
            last = double(each) if last is None else double.after(last)(each)
        return copy.deepcopy([copy.copy(last), double(n)])

    assert copied.document()["outputs"] == ["{{ double_2.output }}", "{{ double_3.output }}"]


def test_what_a_function_catches_is_refused_all_the_same() -> None:
    @workflow
    def caught(n: int) -> Any:
        try:
            level = "high" if double(n) > 3 else "low"
        except Exception:
            level = "unknown"
        return double(len(level))

    assert [each[:2] for each in refused(caught)] == [("value_not_known", 3)]


def test_a_condition_is_no_text() -> None:
    @workflow
    def shown(n: int) -> Any:
        return f"passed: {double(n) > 3}"

    @workflow
    def asked(n: int) -> Any:
        return tidemill.approve("is big: " + str(double(n) > 3))

    for flow in (shown, asked):
        assert refused(flow) == [("value_not_known", 2, "do it inside a task")]


def test_a_task_uses_no_result_of_the_function_around_it() -> None:
    @workflow
    def closure(n: int) -> Any:
        who, said = double(n), f"for {double(n)}"

        @task
        def note(text: str) -> str:
            return f"{text} {who} {said}"

        return [note("hello"), said]

    assert [each[2] for each in refused(closure)] == [
        "give it to the task as an argument: said=said",
        "give it to the task as an argument: who=who",
    ]


def test_a_result_has_no_text_outside_of_its_workflow() -> None:
    kept: list[Any] = []

    @workflow
    def leaky(n: int) -> Any:
        kept.append(double(n))
        return kept[-1]

    assert leaky.document()
    with pytest.raises(tidemill.Rejected, match="double is used outside of its workflow function"):
        f"{kept[0]}"


def test_a_text_with_results_is_not_looked_into() -> None:
    @workflow
    def looked(n: int) -> Any:
        path = f"/data/{double(n)}"
        kind = "csv" if path.endswith(".csv") else "other"
        is_file = "file" in path
        short = len(path) < 10
        first = path[0]
        return [path, kind, is_file, short, first, path or "none", ", ".join([path]), path + "!"]

    assert [each[:2] for each in refused(looked)] == [("value_not_known", line) for line in (3, 4, 5, 6, 7)]


def test_what_a_block_changes_in_any_case_is_refused() -> None:
    @workflow
    def marked(n: int) -> Any:
        tags: list[str] = []
        found: list[Any] = []
        options: dict[str, Any] = {}
        with tidemill.when(n > 3):
            tags.append("big")
            options["urgent"] = True
            found.append(double(n))
        return [double(each) for each in (len(tags), len(options))]

    @workflow
    def gathered(n: int) -> Any:
        every: list[Any] = []
        with tidemill.loop(max_iterations=3) as again:
            every.append(double(again.iteration))
            again.until(again.iteration > 1)
        return every

    assert [each[:2] for each in refused(marked)] == [("block_assigns", 6), ("block_assigns", 7)]
    assert [each[:2] for each in refused(gathered)] == [("block_assigns", 4)]


def test_time_and_chance_are_those_of_a_task() -> None:
    @workflow
    def frozen(n: int) -> Any:
        key = str(uuid.uuid4())
        day = date.today().isoformat()  # noqa: DTZ011
        luck = random.random()
        now = time.time()
        return [double(len(key)), day, luck, now]

    hint = "call it inside a task, or make it an input"
    assert refused(frozen) == [("value_frozen", line, hint) for line in (2, 3, 4, 5)]
