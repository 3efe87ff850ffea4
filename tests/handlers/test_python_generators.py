"""Functions that give their results bit by bit: what followers see, what is stored, and how they are stopped."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest

import tidemill
from tests.handlers.mills import ONCE, document, error, output
from tests.processes.workers import until

WORDS = ["Once ", "upon ", "a ", "time"]


def words() -> Iterator[str]:
    yield from WORDS


async def words_later() -> AsyncIterator[str]:
    for word in WORDS:
        await asyncio.sleep(0)
        yield word


def mixed() -> Iterator[Any]:
    yield "a"
    yield {"b": 1}


def nothing() -> Iterator[Any]:
    yield from ()


def with_an_end() -> Generator[int, None, dict[str, int]]:
    yield 1
    return {"total": 1}


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(**args: Any) -> Any:
        return function(**args)

    del call.__wrapped__
    return call


def run(function: Callable[..., Any], node: dict[str, Any] | None = None, **config: Any) -> Any:
    with tidemill.open("memory://", functions={"f": function}) as mill:
        return mill.run(document("f", node, **config), timeout_s=20)


@pytest.mark.parametrize("isolation", ["inline", "thread"])
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (words, "".join(WORDS)),
        (words_later, "".join(WORDS)),
        (wrapped(words), "".join(WORDS)),
        (wrapped(words_later), "".join(WORDS)),
        (functools.partial(words), "".join(WORDS)),
        (mixed, ["a", {"b": 1}]),
        (nothing, []),
        (with_an_end, {"total": 1}),
    ],
)
def test_the_parts_are_the_value(function: Callable[..., Any], expected: Any, isolation: str) -> None:
    assert output(run(function, isolation=isolation)) == expected


@pytest.mark.parametrize("name", ["slow_words", "slow_words_later"])
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_followers_see_each_part_before_the_end(name: str, isolation: str) -> None:
    with tidemill.open("memory://") as mill:
        mill.publish(document(f"tests.handlers.crafts:{name}", isolation=isolation))
        run_id = mill.start("one")
        seen = list(mill.follow(run_id, live=True))
        events = mill.events(run_id)
    parts = [event for event in seen if event["type"] == "NodeStreamed"]
    assert [(part["number"], part["value"]) for part in parts] == [(1, "one "), (2, "two "), (3, "three")]
    (ended,) = [number for number, event in enumerate(seen) if event["type"] == "NodeCompleted"]
    assert seen[ended]["output"] == "one two three" and all(seen.index(part) < ended for part in parts)
    # What is shown meanwhile is no event.
    assert not [event for event in events if event["type"] == "NodeStreamed"]


def test_a_generator_that_fails_half_way_has_no_value() -> None:
    def breaks() -> Iterator[str]:
        yield "one"
        raise ValueError("half way")

    assert error(run(breaks, ONCE))["message"] == "half way"


def test_a_part_that_is_not_json_fails_the_attempt() -> None:
    def strange() -> Iterator[object]:
        yield object()

    assert error(run(strange, ONCE))["code"] == "output_not_json"


def test_an_attempt_that_is_tried_again_begins_with_nothing() -> None:
    calls: list[int] = []

    def twice(context: tidemill.NodeContext) -> Iterator[str]:
        calls.append(context.attempt)
        yield f"attempt {context.attempt}"
        if context.attempt == 1:
            raise ConnectionError("again")

    assert output(run(twice, {"retry": {"backoff_seconds": 0}})) == "attempt 2" and calls == [1, 2]


def test_a_generator_in_a_thread_is_closed_when_its_time_is_up() -> None:
    closed = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                time.sleep(0.01)
                yield 1
        finally:
            closed.set()

    with tidemill.open("memory://", functions={"f": endless}) as mill:
        view = mill.run(document("f", {**ONCE, "timeout_seconds": 0.3}), timeout_s=20)
        assert error(view)["code"] == "timeout"
        assert closed.wait(5)


def test_an_async_generator_is_closed_when_its_time_is_up() -> None:
    closed = threading.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    with tidemill.open("memory://", functions={"f": endless}) as mill:
        view = mill.run(document("f", {**ONCE, "timeout_seconds": 0.3}), timeout_s=20)
        assert error(view)["code"] == "timeout"
        assert closed.wait(5)


def test_a_plain_function_keeps_a_checkpoint_from_its_thread() -> None:
    seen: list[Any] = []

    def pages(context: tidemill.NodeContext) -> str:
        seen.append(context.last_checkpoint)
        assert context.checkpoint is not None
        context.checkpoint({"page": 7})
        if context.attempt == 1:
            raise ConnectionError("the line went dead")
        return "done"

    assert output(run(pages, {"retry": {"backoff_seconds": 0}})) == "done"
    assert seen == [None, {"page": 7}]


def test_a_thread_whose_attempt_is_over_keeps_no_checkpoint() -> None:
    """It learns that nobody wants its result any more, and the log never hears of it."""
    learnt: list[BaseException] = []
    over = threading.Event()

    def late(context: tidemill.NodeContext) -> None:
        assert context.checkpoint is not None
        over.wait(10)
        try:
            context.checkpoint("late")
        except BaseException as error:
            learnt.append(error)

    with tidemill.open("memory://", functions={"f": late}) as mill:
        view = mill.run(document("f", {**ONCE, "timeout_seconds": 0.2}), timeout_s=20)
        over.set()
        until(lambda: bool(learnt), "it did not learn", 5)
        events = mill.events(view.run_id)
    assert isinstance(learnt[0], tidemill.Cancelled) and learnt[0].__cause__ is None
    assert not [event for event in events if event["type"] == "NodeCheckpointed"]


def test_functions_in_a_list_have_the_names_they_were_given() -> None:
    @tidemill.function("shout")
    def loud(text: str) -> str:
        return text.upper()

    def quiet(text: str) -> str:
        return text.lower()

    with tidemill.open("memory://", functions=[loud, quiet]) as mill:
        assert output(mill.run(document("shout", args={"text": "Hi"}))) == "HI"
        assert output(mill.run(document("quiet", args={"text": "Hi"}))) == "hi"
