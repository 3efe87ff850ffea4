"""An attempt from top to bottom, in each of its phases: call, expand, assemble, route."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.bootstrap import engine_at
from tidemill.engine.attempts.results import asked_for
from tidemill.handlers.contract import (
    ApprovalRequest,
    ChildRun,
    Done,
    Fail,
    Handler,
    HandlerOutcome,
    NodeContext,
    Skip,
    Wait,
)
from tidemill.kernel.events import NodeCompleted, NodeExpanded, NodeScheduled, NodeSkipped, NodeStarted
from tidemill.kernel.model import NodeType
from tidemill.stores.contract import Claim


@simulated
async def test_templates_are_rendered_just_before_the_call(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.quick})
    run = await worker.run(
        document(
            node("a", config={"n": 2, "text": "x"}),
            call(
                "b",
                "a",
                args={
                    "value": {
                        "number": "{{ a.output.n }}",
                        "short": "{{ a.n + 1 }}",
                        "text": "{{ a.text }}-{{ inputs.who }}",
                        "run": "{{ run.workflow }}@{{ run.version }}",
                        "meta": "{{ ctx.a.meta.status }}",
                    }
                },
            ),
        ),
        {"who": "ada"},
    )
    assert run.outputs == {
        "b": {"number": 2, "short": 3, "text": "x-ada", "run": "test@1", "meta": "COMPLETED"},
    }


@simulated
async def test_when_decides_once_before_the_first_attempt(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.quick})
    run = await worker.run(
        document(
            node("a", config=3),
            call("no", "a", when="ctx.a.output > 5"),
            call("yes", "a", when="ctx.a.output < 5"),
            node("after", "no"),
        )
    )
    assert run.status == "COMPLETED"
    assert {name: shown["status"] for name, shown in run.nodes.items()} == {
        "a": "COMPLETED",
        "no": "SKIPPED",
        "yes": "COMPLETED",
        "after": "SKIPPED",
    }
    assert (run.nodes["no"]["attempts"], ledger.count("no"), ledger.count("yes")) == (0, 0, 1)
    assert [event.reason for event in await mill.of(run.run_id, NodeSkipped, "no")] == [
        "when: ctx.a.output > 5 is false"
    ]


@simulated
async def test_when_still_decides_after_a_worker_was_lost(mill: Cluster, ledger: Ledger) -> None:
    """A worker that died before it asked `when` must not make the next one call the handler."""
    client = await mill.process("client", work=False)
    run_id = await client.start(document(call("a", when="inputs.go"), node("b", "a")), {"go": False})
    assert await mill.store.claim(Claim(queues=("default",), limit=1, lease_ms=1_000, owner="dead"))
    worker = await mill.process("w2", functions={"work": ledger.quick})
    run = await worker.end(run_id)
    assert run.nodes["a"]["status"] == "SKIPPED"
    assert ledger.calls == []


@simulated
async def test_a_map_expands_calls_and_assembles(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.quick})
    run = await worker.run(
        document(
            node("a", config=["x", "y", "z"]),
            call(
                "m",
                "a",
                args={"value": {"item": "{{ item }}", "index": "{{ index }}"}},
                map={"over": "{{ a.output }}", "max_parallel": 2},
            ),
            node("b", "m", config="{{ m.output | length }}"),
        )
    )
    assert run.nodes["m"]["output"] == [{"item": c, "index": i} for i, c in enumerate("xyz")]
    assert run.outputs == {"b": 3}
    assert run.nodes["m"]["items"] == {"count": 3, "done": 3, "failed": 0}
    (expanded,) = await mill.of(run.run_id, NodeExpanded)
    assert (expanded.count, expanded.items, expanded.window) == (3, b'["x","y","z"]', 2)
    # Neither the expansion nor the assembly is an attempt.
    assert sorted(event.index for event in await mill.of(run.run_id, NodeStarted, "m")) == [0, 1, 2]
    assert sorted(key for key, _ in ledger.calls) == [f"{run.run_id}/m/1/{i}" for i in range(3)]


@simulated
async def test_when_is_asked_once_before_a_map(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.quick})
    maps: dict[str, Any] = {"map": {"over": [1, 2, 3]}}
    run = await worker.run(
        document(call("yes", when="inputs.x > 0", **maps), call("no", when="inputs.x < 0", **maps)), {"x": 1}
    )
    assert (ledger.count("yes"), ledger.count("no")) == (3, 0)
    assert run.nodes["no"]["status"] == "SKIPPED"
    assert await mill.of(run.run_id, NodeExpanded, "no") == []


@simulated
async def test_a_map_over_nothing_completes_at_once(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.quick})
    run = await worker.run(
        document(
            call(
                "m",
                map={"over": "{{ inputs.items }}"},
                branch={"rules": [{"condition": "size(output) == 0", "next_nodes": ["none"]}], "default": ["some"]},
            ),
            node("none"),
            node("some"),
        ),
        {"items": []},
    )
    assert run.nodes["m"]["output"] == []
    assert (run.nodes["none"]["status"], run.nodes["some"]["status"]) == ("COMPLETED", "SKIPPED")
    assert ledger.calls == []


@pytest.mark.parametrize("items", ["text", 3, {"a": 1}, None])
@simulated
async def test_a_map_over_no_list_fails_as_a_template(mill: Cluster, items: Any) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("m", map={"over": "{{ inputs.items }}"})), {"items": items})
    assert run.status == "FAILED"
    assert run.nodes["m"]["error"]["code"] == "template_failed"
    assert run.nodes["m"]["attempts"] == 0


@simulated
async def test_a_tolerated_item_s_entry_is_its_error(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(
        document(
            node(
                "m",
                type="fail",
                config={"attempts": "{{ item }}", "value": "fine", "kind": "bad_item"},
                map={"over": [0, 5, 0], "tolerate": 1},
            )
        )
    )
    assert run.status == "COMPLETED"
    first, second, third = run.outputs["m"]
    assert (first, third) == ("fine", "fine")
    assert second["error"]["code"] == "bad_item"
    assert run.nodes["m"]["items"] == {"count": 3, "done": 3, "failed": 1}
    row = await mill.row(run.run_id)
    assert (row.tolerated, row.dead_letters) == (1, 0)


@simulated
async def test_a_wait_on_a_routed_node_is_followed_by_the_route_phase(mill: Cluster) -> None:
    """The handler is not called again; a worker only evaluates the conditions over what the wait ended with."""
    worker = await mill.process()
    run = await worker.run(
        document(
            node(
                "s",
                type="sleep",
                config={"seconds": 30},
                branch={"rules": [{"condition": "output == null", "next_nodes": ["yes"]}], "default": ["no"]},
            ),
            node("yes"),
            node("no"),
        )
    )
    assert (run.nodes["yes"]["status"], run.nodes["no"]["status"]) == ("COMPLETED", "SKIPPED")
    assert run.nodes["s"]["attempts"] == 1
    scheduled = await mill.of(run.run_id, NodeScheduled, "s")
    assert [event.resumed for event in scheduled] == [None, b"null"]
    assert len(await mill.of(run.run_id, NodeStarted, "s")) == 1


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"when": "inputs.x"}, "when"),
        ({"loop": {"condition": "output.missing > 1", "max_iterations": 3}}, "loop"),
        ({"branch": {"rules": [{"condition": "output.missing > 1", "next_nodes": ["b"]}]}}, "branch"),
    ],
)
@simulated
async def test_a_condition_that_has_no_boolean_fails_the_visit(
    mill: Cluster, fields: dict[str, Any], place: str
) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a", config=1, **fields), node("b", "a")), {"x": 1})
    assert run.status == "FAILED"
    assert run.nodes["a"]["error"]["code"] == "condition_failed", place
    # `when` comes before the call, the other two after it.
    assert run.nodes["a"]["attempts"] == (0 if place == "when" else 1)
    assert (await mill.row(run.run_id)).error_code == "condition_failed"


@simulated
async def test_a_template_that_fails_leaves_attempts_at_zero(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.quick})
    run = await worker.run(
        document(node("a", when="false"), node("x"), call("b", "a", "x", args={"value": "{{ a.output.x }}"}))
    )
    shown = run.nodes["b"]
    assert (shown["status"], shown["attempts"], shown["error"]["code"]) == ("FAILED", 0, "template_failed")
    assert "was skipped" in shown["error"]["message"]
    assert ledger.calls == []
    assert await mill.of(run.run_id, NodeStarted, "b") == []


@simulated
async def test_a_rendered_config_is_checked_again(mill: Cluster) -> None:
    """The compiler cannot know what a template will give; the type's schema still holds."""
    worker = await mill.process()
    run = await worker.run(document(node("s", type="sleep", config={"seconds": "{{ inputs.s }}"})), {"s": "soon"})
    shown = run.nodes["s"]
    assert (shown["status"], shown["attempts"], shown["error"]["code"]) == ("FAILED", 0, "config_invalid")
    assert "seconds" in shown["error"]["message"]


@pytest.mark.parametrize(
    ("chosen", "status", "taken"),
    [
        (("b",), "COMPLETED", ["b"]),
        (("b", "c"), "COMPLETED", ["b", "c"]),
        ((), "COMPLETED", ["d"]),
        (None, "COMPLETED", ["d"]),
        ("c", "COMPLETED", ["c"]),
        (("z",), "FAILED", []),
        (("d",), "FAILED", []),
        (("b", "d"), "FAILED", []),
        ((1,), "FAILED", []),
        (5, "FAILED", []),
    ],
)
@pytest.mark.parametrize("in_output", [True, False])
@simulated
async def test_an_agent_chooses_within_its_closed_set(
    mill: Cluster, chosen: Any, status: str, taken: list[str], in_output: bool
) -> None:
    def agent(context: NodeContext) -> HandlerOutcome:
        return Done({"next_nodes": chosen}) if in_output else Done({}, chosen)

    handler = Handler(NodeType(name="chooser"), agent)
    worker = await mill.process(more=[handler])
    branch = {"type": "agent_driven", "available_next_nodes": ["b", "c"], "default": ["d"]}
    run = await worker.run(document(node("a", type="chooser", branch=branch), node("b"), node("c"), node("d")))
    assert run.status == status
    assert [name for name in "bcd" if run.nodes[name]["status"] == "COMPLETED"] == taken
    if status == "FAILED":
        assert run.nodes["a"]["error"]["code"] == "route_not_allowed"
        assert run.nodes["a"]["error"]["hint"] == "it may choose b, c"


@simulated
async def test_every_phase_counts_its_own_work_only(mill: Cluster, ledger: Ledger) -> None:
    """Durations are those of the attempt; waiting in the queue is counted apart."""
    worker = await mill.process(functions={"work": partial(ledger.work, seconds=2)}, concurrency=1)
    run = await worker.run(document(call("a"), call("b")))
    ended = {event.node: event for event in await mill.of(run.run_id, NodeCompleted)}
    assert {event.duration_ms for event in ended.values()} == {2_000}
    assert sorted(event.waited_ms for event in ended.values()) == [0, 2_000]


HOPELESS: dict[str, Any] = {
    "infinite": {"config": "{{ 1e308 * 10 }}"},
    "inside": {"config": {"x": ["{{ 1e308 * -10 }}"]}},
    "map over": {"map": {"over": "{{ [1e308 * 10] }}"}},
    "map item": {"config": "{{ item * 1e308 * 10 }}", "map": {"over": [1]}},
    "division": {"config": "{{ 1 / 0 }}"},
    "endless": {"config": "{% for i in range(10 ** 9) %}x{% endfor %}"},
    "undefined": {"config": "{{ inputs.nothing.at.all }}"},
}


@pytest.mark.parametrize("what", HOPELESS)
@simulated
async def test_a_template_that_has_no_json_value_fails_its_node_only(mill: Cluster, what: str) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a", on_error="continue", **HOPELESS[what]), node("b", config=1)))
    assert (run.status, run.nodes["b"]["output"], run.nodes["a"]["status"]) == ("COMPLETED", 1, "FAILED")
    assert run.nodes["a"]["error"]["code"] == "template_failed"
    assert run.nodes["a"]["attempts"] == 0
    assert (await worker.run(document(node("c"), name="next"))).status == "COMPLETED"


@pytest.mark.parametrize("levels", [190, 200, 201, 700, 940])
@simulated
async def test_what_can_be_stored_can_be_read_by_everyone(mill: Cluster, levels: int) -> None:
    """A value too deep for templates and conditions does not even enter the log."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    worker = await mill.process(functions={"work": lambda: value})
    run = await worker.run(
        document(call("a"), node("b", "a", config="{{ a.output }}"), node("c", "a", when="size(ctx.a.output) == 1"))
    )
    if levels <= 200:
        assert (run.status, run.nodes["b"]["output"]) == ("COMPLETED", value)
    else:
        assert run.nodes["a"]["error"]["code"] == "output_not_json"


@pytest.mark.parametrize(
    "ended",
    [
        Wait(on="loop"),
        Wait(on="nonsense", for_ms=5),
        Wait(on="timer"),
        Wait(on="human"),
        Wait(on="child"),
        Wait(on="timer", approval=ApprovalRequest(title="?")),
        Wait(on="timer", child=ChildRun(workflow="w")),
        Wait(on="human", approval=ApprovalRequest(title="?", quorum=0)),
        Wait(on="human", approval=ApprovalRequest(title="?", quorum=True)),
        Wait(on="timer", for_ms=-1),
        Skip(reason=5),  # type: ignore[arg-type]
    ],
    ids=[
        "loop",
        "nonsense",
        "never",
        "nobody",
        "no child",
        "a person for a timer",
        "a child for a timer",
        "0",
        "true",
        "past",
        "5",
    ],
)
def test_what_a_handler_cannot_ask_for(ended: Wait | Skip) -> None:
    with pytest.raises(Fail):
        asked_for(ended, "kid")


# What an attempt leaves behind is freed at once: a cycle would be left to the collector, once for every node


RUNS = 5


@contextmanager
def uncollected() -> Iterator[list[Any]]:
    """Objects that only the collector could free, of those that were made meanwhile."""
    found: list[Any] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("config", [{"value": 1}, {"value": "{{ inputs }}"}])
async def test_a_run_is_freed_without_the_collector(config: Any) -> None:
    written = document(node("a", config=config), node("b", "a", config=config))
    async with engine_at("memory://") as engine:
        await engine.publish(written)
        await engine.result(await engine.start(written["name"], {}))
        with uncollected() as left:
            for _ in range(RUNS):
                view = await engine.result(await engine.start(written["name"], {}))
                assert view.status == "COMPLETED"
    ours = Counter(type(each).__qualname__ for each in left if type(each).__module__.startswith("tidemill."))
    assert not ours


def quotient(n: int) -> float:
    return 1 / n


ONCE = {"max_attempts": 1}
FAILING = [
    {"type": "fail", "config": {"message": "no"}},
    {"type": "python", "config": {"function": "quotient", "args": {"n": 0}}},
    {"type": "python", "config": {"function": "quotient", "args": {"n": 0}}, "timeout_seconds": 60},
    {"type": "python", "config": {"function": "quotient", "args": {"n": 2}}},
    {"type": "python", "config": {"function": "quotient", "args": {"n": 2}}, "timeout_seconds": 60},
]


@pytest.mark.parametrize("given", FAILING)
async def test_a_call_and_its_exception_are_freed_without_the_collector(given: dict[str, Any]) -> None:
    """The exception of a handler refers to the frames that have called it."""
    async with engine_at("memory://", functions={"quotient": quotient}) as engine:
        await engine.publish(
            {"name": "calling", "nodes": [{"id": "a", **given, "on_error": "continue", "retry": ONCE}]}
        )
        await engine.result(await engine.start("calling", {}))
        with uncollected() as left:
            for _ in range(RUNS):
                assert (await engine.result(await engine.start("calling", {}))).status == "COMPLETED"
    ours = Counter(type(each).__qualname__ for each in left if type(each).__module__.startswith("tidemill."))
    assert not ours
