"""Tasks in real child processes: values come back whole, and whatever goes wrong stays there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.fixtures.child_processes import deciders
from tests.fixtures.scopes import SCOPE
from tidemill.expressions.conditions import Composite, compiled
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.sandbox.pool import NoSandbox, SandboxPool
from tidemill.expressions.sandbox.protocol import FRAME_MAX
from tidemill.expressions.sandbox.tasks import TASK_MS, FilterRows, Jq, RunQuery, SandboxTask

BIG = 2**64 + 1


@pytest.fixture
async def processes() -> AsyncIterator[SandboxPool]:
    made = SandboxPool()
    yield made
    await made.close()
    assert deciders() == []


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def jq(program: str, value: Any = None, deadline_ms: int = TASK_MS, *, each: bool = False) -> Jq:
    return Jq(program=program, value=raw(value), each=each, deadline_ms=deadline_ms)


def sift(condition: Any, *rows: Any) -> FilterRows:
    leaf = compiled(condition)
    assert not isinstance(leaf, Composite)
    return FilterRows(leaf, SCOPE, list(rows))


RESULTS: list[tuple[SandboxTask, Any]] = [
    (jq(".", BIG), [BIG]),
    (jq(".[]", [1.0, "é", None, True, {"a": []}]), [1.0, "é", None, True, {"a": []}]),
    (jq("empty"), []),
    (jq(". + 1", [1, 2], each=True), [2, 3]),
    (jq("halt"), []),
    (RunQuery(query="$..n", value=raw([{"n": BIG}, {"m": {"n": None}}])), [BIG, None]),
    (RunQuery(query="$.x", value=raw({})), []),
    (sift("output > 1", 1, 2, 3), [False, True, True]),
    (sift({"type": "jsonpath", "query": "$.a", "operator": "exists"}, {"a": 1}, {}), [True, False]),
    (sift("output > 1"), []),
]


async def test_a_result_of_too_many_values_stays_in_the_process(processes: SandboxPool) -> None:
    """Eight megabytes of text would be half a gigabyte of empty lists, decoded on the event loop."""
    with pytest.raises(ExpressionError, match="so many values"):
        await processes.execute(RunQuery(query="$[*]", value=msgspec.Raw(b"[" + b"[]," * 2_600_000 + b"[]]")))


@pytest.mark.parametrize(("task", "result"), RESULTS)
async def test_results(task: SandboxTask, result: Any, processes: SandboxPool) -> None:
    assert await processes.execute(task) == result


@pytest.mark.parametrize(
    ("task", "words", "path"),
    [
        (jq("nope"), "nope/0 is not defined", ""),
        (jq("last(range(1e15))", None, 200), "the program took longer than 200 ms", ""),
        (RunQuery(query="$..[", value=raw(1)), "", ""),
        (sift("output.a > 1", {"a": 1}, {"a": 2}, {}), "output has no key", "/2"),
        (jq(". + .", "x" * (FRAME_MAX // 2), 60_000), "the result is larger than 64 MB", ""),
        (jq(".", "x" * (FRAME_MAX + 1)), "what the program reads is larger than 64 MB", ""),
    ],
    ids=lambda value: "" if isinstance(value, str) else None,
)
async def test_failures(task: SandboxTask, words: str, path: str, processes: SandboxPool) -> None:
    with pytest.raises(ExpressionError) as failed:
        await processes.execute(task)
    assert words in failed.value.message and failed.value.path == path
    assert await processes.execute(jq(".", 1)) == [1]


async def test_a_program_that_eats_memory_dies_alone(processes: SandboxPool) -> None:
    with pytest.raises(ExpressionError) as failed:
        await processes.execute(jq('[limit(20; repeat("x" * 100000000))] | map(. + "y")', None, 30_000))
    assert "died" in failed.value.message or "memory" in failed.value.message
    assert await processes.execute(jq(".", 1)) == [1]


async def test_without_processes_there_are_no_tasks() -> None:
    with pytest.raises(ExpressionError, match="the program needs another process"):
        await NoSandbox().execute(jq("."))
