"""What a workflow function cannot say: the words of the refusal, and the file and line that it names."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import tidemill
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


def test_what_is_returned_is_refused_at_the_line_of_the_function() -> None:
    @workflow
    def compared(n: int) -> Any:
        return {"large": double(n) > 3}

    @workflow
    def missing(n: int) -> Any:
        with tidemill.when(n > 0):
            found = double(n)
        return [found]

    assert [each[:2] for each in refused(compared)] == [("argument_not_json", 0)]
    assert [each[:2] for each in refused(missing)] == [("value_may_be_missing", 0)]


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
