"""Node type `python`: which function is found, how it is called, what becomes of what it returns or raises."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any

import pytest

import tidemill
from tests.fixtures.handler_engine import ONCE, document, error, output
from tests.fixtures.handler_harness import called, context
from tests.fixtures.worker_processes import until
from tidemill.errors import Rejected
from tidemill.handlers.contract import Done, Fail, Handler, HandlerOutcome, NodeContext, Skip, Wait
from tidemill.handlers.python.node import python_handler
from tidemill.kernel.compile.compiler import compile_document


def add(a: int, b: int = 10) -> int:
    return a + b


async def add_later(a: int, b: int = 10) -> int:
    await asyncio.sleep(0)
    return a + b


def where() -> str:
    return threading.current_thread().name


class Adder:
    offset = 100

    def __call__(self, a: int) -> int:
        return a + self.offset

    async def later(self, a: int) -> int:
        return a + self.offset

    @staticmethod
    def still(a: int) -> int:
        return a


def through_a_decorator(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(**args: Any) -> Any:
        return function(**args)

    return wrapper


def _config(function: str, isolation: str | None = "inline", **args: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"function": function, "args": args}
    return config if isolation is None else {**config, "isolation": isolation}


FUNCTIONS = {
    "add": add,
    "later": add_later,
    "where": where,
    "adder": Adder(),
    "method": Adder().later,
    "partial": functools.partial(add, b=1),
    "partial later": functools.partial(add_later, b=1),
    "wrapped later": through_a_decorator(add_later),
    "lambda": lambda a: a * 2,
}


@pytest.mark.parametrize("isolation", ["inline", "thread", None])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", 12),
        ("later", 12),
        ("adder", 102),
        ("method", 102),
        ("partial", 3),
        ("partial later", 3),
        ("wrapped later", 12),
        ("lambda", 4),
    ],
)
async def test_sync_or_async_inline_or_in_a_thread(name: str, expected: int, isolation: str | None) -> None:
    handler = python_handler(FUNCTIONS)
    assert await called(handler, _config(name, isolation, a=2)) == Done(expected)


async def test_where_a_plain_function_runs() -> None:
    handler = python_handler(FUNCTIONS)
    main = threading.current_thread().name
    assert await called(handler, _config("where", "inline")) == Done(main)
    for isolation in ("thread", None):
        ended = await called(handler, _config("where", isolation))
        assert isinstance(ended, Done) and ended.value != main


async def test_an_async_function_runs_in_the_loop() -> None:
    async def here() -> str:
        return threading.current_thread().name

    handler = python_handler({"here": here})
    for isolation in ("inline", "thread", None):
        assert await called(handler, _config("here", isolation)) == Done(threading.current_thread().name)


async def test_a_function_is_given_the_context_if_it_has_a_place_for_it() -> None:
    def look(context: NodeContext, x: int) -> list[Any]:
        return [context.node, context.attempt, x]

    def no_place(x: int) -> int:
        return x

    handler = python_handler({"look": look, "no": no_place})
    assert await called(handler, _config("look", x=5), attempt=3) == Done(["n", 3, 5])
    assert await called(handler, _config("no", x=5)) == Done(5)


async def test_args_may_be_absent() -> None:
    handler = python_handler({"nothing": lambda: "called"})
    assert await called(handler, {"function": "nothing", "isolation": "inline"}) == Done("called")
    assert await called(handler, {"function": "nothing", "isolation": "inline", "args": None}) == Done("called")


async def test_an_importable_function_is_found_by_its_path() -> None:
    handler = python_handler({})
    assert await called(handler, _config("json:dumps", obj=[1])) == Done("[1]")
    assert json.loads("[1]") == [1]


async def test_a_registered_name_wins_over_an_import() -> None:
    handler = python_handler({"json:dumps": lambda **args: "mine"})
    assert await called(handler, _config("json:dumps", obj=[1])) == Done("mine")


@pytest.mark.parametrize(
    "name",
    [
        "nobody",
        "no.such.module:f",
        "json:nothing",
        "json:dumps.nothing",
        "tests.unit.handlers.python.test_node:Adder.still",
        "os:getpid",
        "json:",
        ":f",
        "json:__doc__",
        "a..b:c",
        "json:decoder",
    ],
)
async def test_a_function_that_cannot_be_found(name: str) -> None:
    with pytest.raises(Fail) as failed:
        await called(python_handler({}), _config(name))
    assert failed.value.code == "function_unknown"
    assert not failed.value.retryable


async def test_a_function_that_was_not_found_is_looked_for_again(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = python_handler({})
    with pytest.raises(Fail):
        await called(handler, _config("late_module_of_a_test:f"))
    (tmp_path / "late_module_of_a_test.py").write_text("def f():\n    return 'here now'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert await called(handler, _config("late_module_of_a_test:f")) == Done("here now")


@pytest.mark.parametrize("isolation", ["inline", "thread"])
@pytest.mark.parametrize("ended", [Done({"a": 1}, ("b",)), Wait(on="timer", for_ms=5), Skip("why")])
async def test_outcomes_pass_through(ended: HandlerOutcome, isolation: str) -> None:
    assert await called(python_handler({"f": lambda: ended}), _config("f", isolation)) == ended


@pytest.mark.parametrize("isolation", ["inline", "thread"])
@pytest.mark.parametrize(
    "error", [ValueError("x"), Fail("code", "m"), KeyError("k"), StopIteration(3), GeneratorExit()]
)
async def test_exceptions_pass_through(error: BaseException, isolation: str) -> None:
    def explode() -> None:
        raise error

    with pytest.raises((type(error), RuntimeError)) as raised:
        await called(python_handler({"f": explode}), _config("f", isolation))
    assert raised.value is error or raised.value.__cause__ is error


@pytest.mark.parametrize(
    ("isolation", "args", "hint"),
    [("inline", {"a": 1, "surprise": 1}, "known: a, b"), ("thread", {}, "known: a, b")],
    ids=["strange", "missing"],
)
async def test_wrong_arguments_are_refused_before_the_call(isolation: str, args: Any, hint: str) -> None:
    with pytest.raises(Fail, match="args do not match add") as failed:
        await called(python_handler(FUNCTIONS), _config("add", isolation, **args))
    assert (failed.value.code, failed.value.retryable, failed.value.hint) == ("arguments_invalid", False, hint)


async def test_a_function_that_is_misspelled_has_a_near_name() -> None:
    with pytest.raises(Fail) as failed:
        await called(python_handler({}), _config("json:dmups"))
    assert failed.value.hint.startswith("did you mean `dumps`? Or: Python loaded its own module, ")


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"function": ""},
        {"function": 5},
        {"function": "f", "args": [1]},
        {"function": "f", "isolation": "elsewhere"},
        {"function": "f", "isolation": "process", "limits": {"memory_mb": 1}},
        {"function": "f", "limits": {"time_seconds": 1}},
        {"function": "f", "x": 1},
    ],
)
def test_a_config_that_cannot_work_is_refused_when_published(config: Any) -> None:
    handler = python_handler({})
    with pytest.raises(Rejected) as refused:
        compile_document(
            {"name": "t", "nodes": [{"id": "a", "type": "python", "config": config}]}, {"python": [handler.type]}
        )
    assert {problem.code for problem in refused.value.problems} == {"config_invalid"}


def test_a_builtin_without_a_signature_can_be_called() -> None:
    """Some callables cannot be inspected; they are simply not given a context."""
    handler = python_handler({"f": dict})
    assert handler.call(context({"function": "f", "isolation": "inline", "args": {"a": 1}})) == Done({"a": 1})


# Functions that give their results bit by bit: what followers see, what is stored, and how they are stopped


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
        mill.publish(document(f"tests.fixtures.sample_node_types:{name}", isolation=isolation))
        run_id = mill.start("one")
        seen = list(mill.follow(run_id, live=True))
        events = mill.events(run_id)
    parts = [event for event in seen if event["type"] == "NodeStreamed"]
    assert [(part["number"], part["value"]) for part in parts] == [(1, "one "), (2, "two "), (3, "three")]
    (ended,) = [number for number, event in enumerate(seen) if event["type"] == "NodeCompleted"]
    assert seen[ended]["output"] == "one two three" and all(seen.index(part) < ended for part in parts)
    # What is shown meanwhile is not an event.
    assert not [event for event in events if event["type"] == "NodeStreamed"]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_generator_is_closed_when_its_time_is_up(kind: str) -> None:
    closed = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                time.sleep(0.01)
                yield 1
        finally:
            closed.set()

    async def endless_later() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    with tidemill.open("memory://", functions={"plain": endless, "async": endless_later}) as mill:
        view = mill.run(document(kind, {**ONCE, "timeout_seconds": 0.3}), timeout_s=20)
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


@tidemill.node_type("later")
async def later(context: NodeContext) -> int:
    return await add_later(1)


@pytest.mark.parametrize(
    ("handler", "config"),
    [(python_handler({"add": add_later}), {"function": "add", "args": {"a": 1}}), (later, None)],
)
def test_a_call_that_is_cut_off_before_it_begins_leaves_no_coroutine_behind(handler: Handler, config: Any) -> None:
    """Python would warn on standard error that one was never awaited."""
    pending = handler.call(context(config))
    assert isinstance(pending, Coroutine)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        pending.close()
        del pending
        gc.collect()
    assert warned == []
