"""`tidemill.aopen`: the verbs of `tidemill.open` in the caller's own loop."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from pathlib import Path

import pytest

import tidemill
from tidemill.async_client import AsyncTidemill
from tidemill.client import Tidemill

DOUBLE = """
name: double
nodes: [{id: a, type: python, config: {function: double, args: {n: "{{ inputs.n }}"}}}]
"""
ASLEEP = "name: asleep\nnodes: [{id: a, type: sleep, config: {seconds: 600}}]\n"


def double(n: int) -> int:
    return 2 * n


def verbs(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_both_clients_have_the_same_verbs_and_options() -> None:
    assert verbs(AsyncTidemill) == verbs(Tidemill)
    assert inspect.signature(tidemill.aopen).parameters == inspect.signature(tidemill.open).parameters
    for verb in verbs(Tidemill) - {"follow", "follow_logs", "register"}:
        ours, theirs = (inspect.signature(getattr(kind, verb)) for kind in (AsyncTidemill, Tidemill))
        assert ours.parameters == theirs.parameters, verb


async def test_a_run_in_the_callers_loop(tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(DOUBLE)
    async with tidemill.aopen("memory://", functions=[double]) as mill:
        assert (await mill.run(file, {"n": 2})).output == 4
        runs = await asyncio.gather(*(mill.run("double", {"n": n}, labels={"n": str(n)}) for n in range(5)))
        assert [run.output for run in runs] == [0, 2, 4, 6, 8]
        assert await mill.count("workflow:double status:completed") == 6
        assert [row.labels async for row in mill.runs("label.n=3")] == [{"n": "3"}]
        kinds = [event["type"] async for event in mill.follow(runs[0].run_id)]
        assert (kinds[0], kinds[-1]) == ("RunCreated", "RunCompleted")
        assert (await mill.workflows())[0][0].name == "double"
        assert repr(mill) == "<AsyncTidemill memory:// open>"
    with pytest.raises(RuntimeError, match="closed"):
        await mill.find()
    with pytest.raises(RuntimeError, match="closed"):
        await mill


async def test_it_can_be_awaited_and_closed() -> None:
    mill = await tidemill.aopen("memory://")
    try:
        assert (await mill.run({"name": "one", "nodes": [{"id": "a", "type": "value", "config": 1}]})).ok
    finally:
        await mill.close()
        await mill.close()
    assert repr(mill) == "<AsyncTidemill memory:// closed>"


async def test_before_it_is_open_a_verb_says_so_instead_of_waiting_for_ever() -> None:
    mill = tidemill.aopen("memory://")
    assert repr(mill) == "<AsyncTidemill memory:// not open>"
    with pytest.raises(RuntimeError, match=r"async with tidemill\.aopen"):
        await mill.start("double")


async def test_bad_input_is_refused_at_once() -> None:
    with pytest.raises(tidemill.Rejected, match="store_unknown"):
        tidemill.aopen("nonsense://")
    with pytest.raises(TypeError, match="not a function"):
        tidemill.aopen("memory://", functions=[3, "x"])  # type: ignore[list-item]


async def test_a_refusal_ends_at_the_callers_line() -> None:
    async with tidemill.aopen("memory://") as mill:
        with pytest.raises(tidemill.Rejected) as raised:
            await mill.run({"name": "x", "nods": []})
    files = [Path(frame.filename).name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert files == ["test_async_client.py"]


async def test_functions_are_registered_while_it_is_open() -> None:
    async with tidemill.aopen("memory://") as mill:
        assert mill.register(double) is double
        assert (await mill.run(DOUBLE, {"n": 2})).output == 4
        mill.register(double=lambda n: 20 * n)
        assert (await mill.run("double", {"n": 2})).output == 40


async def test_a_timeout_names_the_run_that_continues() -> None:
    async with tidemill.aopen("memory://") as mill:
        with pytest.raises(TimeoutError, match=r"run nap has not ended after 0\.05 s; it continues"):
            await mill.run(ASLEEP, key="nap", timeout=0.05)
        assert (await mill.show("nap")).status is tidemill.RunStatus.RUNNING
        await mill.cancel("nap")
