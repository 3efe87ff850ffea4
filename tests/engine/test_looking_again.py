"""What conditions see of other nodes: outputs whatever their size, and the fate of nodes without one."""

from __future__ import annotations

from typing import Any

import pytest

import tidemill

SMALL, LARGE = 100, 100_000


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_route_does_not_depend_on_the_size_of_what_it_looks_at(size: int) -> None:
    """A node past an `any` join asks for one that ends while its own handler runs; a long value is fetched for it."""
    import threading

    slow_ended = threading.Event()

    def slow() -> str:
        return "x" * size

    def waiting() -> int:
        slow_ended.wait(10)
        return 1

    rules = [{"condition": "has(ctx.slow.output) && size(ctx.slow.output) > 3", "next_nodes": ["y"]}]
    document: dict[str, Any] = {
        "name": "race",
        "nodes": [
            {"id": "fast", "type": "value", "config": 1},
            {"id": "gate", "type": "python", "config": {"function": "gate"}},
            {"id": "slow", "type": "python", "config": {"function": "slow"}, "dependencies": ["gate"]},
            {
                "id": "x",
                "type": "python",
                "config": {"function": "waiting"},
                "dependencies": ["fast", "slow"],
                "join": "any",
                "branch": {"type": "conditional", "rules": rules, "default": ["z"]},
            },
            {"id": "y", "type": "value", "config": "saw it"},
            {"id": "z", "type": "value", "config": "saw nothing"},
        ],
    }
    begun = threading.Event()

    def gate() -> None:
        begun.wait(10)

    def started() -> int:
        begun.set()
        return waiting()

    functions = {"slow": slow, "waiting": started, "gate": gate}
    with tidemill.open("memory://", functions=functions) as mill:
        published = mill.publish(document)
        run = mill.start(published.name)
        for event in mill.follow(run):
            if event["type"] == "NodeCompleted" and event["node"] == "slow":
                slow_ended.set()
        view = mill.show(run)
    assert (view.status, view.outputs) == ("COMPLETED", {"y": "saw it"})


def test_the_fate_of_a_node_without_an_output_can_be_asked_for() -> None:
    document = {
        "name": "fate",
        "nodes": [
            {"id": "a", "type": "value", "config": 1},
            {"id": "b", "type": "value", "config": 2, "when": "false", "dependencies": ["a"]},
            {
                "id": "c",
                "type": "value",
                "config": "{{ b.meta.status }} {{ b.output | default('nothing') }}",
                "when": "ctx.b.meta.status == 'SKIPPED' && !has(ctx.b.output)",
                "join": "all",
                "dependencies": ["a", "b"],
            },
        ],
    }
    with tidemill.open("memory://") as mill:
        view = mill.run(document, timeout_s=10)
    assert view.outputs == {"c": "SKIPPED nothing"}


def test_a_key_does_not_care_how_a_mapping_was_written() -> None:
    with tidemill.open("memory://") as mill:
        mill.publish({"name": "one", "nodes": [{"id": "a", "type": "value", "config": 1}]})
        first = mill.start("one", {"x": 1, "y": 2}, key="order-1")
        assert mill.start("one", {"y": 2, "x": 1}, key="order-1") == first
        with pytest.raises(tidemill.Rejected) as refused:
            mill.start("one", {"x": 1, "y": 3}, key="order-1")
    assert refused.value.code == "key_reused"


@pytest.mark.parametrize("after", [-1, 99])
def test_following_from_nowhere_is_refused(after: int) -> None:
    with tidemill.open("memory://") as mill:
        mill.publish({"name": "one", "nodes": [{"id": "a", "type": "value", "config": 1}]})
        run = mill.start("one")
        mill.result(run, timeout_s=10)
        with pytest.raises(tidemill.Rejected) as refused:
            list(mill.follow(run, after))
    assert refused.value.code == "cursor_invalid"


def test_a_document_of_odd_strings_is_refused_and_not_half_taken() -> None:
    class Name(str):
        pass

    document = {"name": "one", "nodes": [{"id": "a", "type": "value", "config": {"x": Name("odd")}}]}
    with tidemill.open("memory://") as mill, pytest.raises(tidemill.Rejected) as refused:
        mill.publish(document)
    assert refused.value.code == "not_json"


def test_dead_letters_can_be_listed() -> None:
    import asyncio

    from tidemill.bootstrap import engine_at

    async def listed() -> list[str]:
        async with engine_at("memory://") as engine:
            await engine.publish({"name": "one", "nodes": [{"id": "a", "type": "fail", "config": {"kind": "boom"}}]})
            await engine.result(await engine.start("one"), timeout_s=10)
            letters, _ = await engine.dead_letters.find(["workflow:one"])
            return [f"{letter.node} {letter.code} {letter.attempts}" for letter in letters]

    assert asyncio.run(listed()) == ["a boom 1"]
