"""The IR: what ends up on a node, what does not depend on spelling, and that nothing but Rejected is ever raised."""

from __future__ import annotations

import gc
import json
from typing import Any

import msgspec
import pytest

from tests.fixtures.kernel.authoring import TYPES, chain, compiled, document, node
from tidemill.errors import Rejected
from tidemill.kernel.compile.compiler import check_defaults, compile_document
from tidemill.kernel.document.reader import paused_collector, read_document
from tidemill.kernel.model import Branch, Compensator, Limits, Map, Node, Retry, Rule

CEL = {"type": "cel", "expression": "output.ok"}


def only(**fields: Any) -> Node:
    """The IR of a single node."""
    return compiled(node("a", **fields)).workflow.nodes[0]


def test_a_bare_node_has_every_default() -> None:
    assert only() == Node(id="a", type="value@1")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"config": {"x": [1, None]}}, {"config": {"x": [1, None]}}),
        ({"config_ref": "sha256:ab"}, {"config_ref": "sha256:ab"}),
        ({"when": "inputs.x"}, {"when": {"type": "cel", "expression": "inputs.x"}}),
        ({"timeout_seconds": 0.25}, {"timeout_ms": 250}),
        ({"timeout_seconds": 0.001}, {"timeout_ms": 1}),
        ({"retry": {"max_attempts": 1, "multiplier": 3}}, {"retry": Retry(max_attempts=1, multiplier=3.0)}),
        ({"retry": {"backoff_seconds": 0, "jitter": 0}}, {"retry": Retry(backoff_ms=0, jitter=0.0)}),
        ({"retry": {"max_backoff_seconds": 1.5}}, {"retry": Retry(max_backoff_ms=1500)}),
        ({"delivery": "at_most_once"}, {"delivery": "at_most_once"}),
        ({"queue": "gpu", "priority": 0}, {"queue": "gpu", "priority": 0}),
        ({"on_error": "continue"}, {"on_error": "continue"}),
        ({"map": {"over": [1], "max_parallel": 2}}, {"map": Map(over=[1], max_parallel=2)}),
        ({"map": {"over": " {{ inputs.x }} ", "tolerate": 3}}, {"map": Map(over=" {{ inputs.x }} ", tolerate=3)}),
        (
            {
                "compensator": {
                    "type": "http@1",
                    "config": {"url": "{{ output.url }}"},
                    "timeout_seconds": 2,
                    "retry": 1,
                }
            },
            {
                "compensator": Compensator(
                    type="http@1", config={"url": "{{ output.url }}"}, timeout_ms=2000, retry=Retry(max_attempts=1)
                )
            },
        ),
    ],
)
def test_a_field_becomes(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert only(**fields) == Node(id="a", type="value@1", **expected)


def test_defaults_are_merged_key_by_key() -> None:
    defaults = {"retry": {"max_attempts": 7, "jitter": 0.5}, "timeout_seconds": 60}
    nodes = compiled(
        node("a"),
        node("b", retry={"jitter": 0}, timeout_seconds=1, compensator={"type": "value", "retry": {"multiplier": 1}}),
        node("c", type="sleep"),
        node("d", type="sleep", timeout_seconds=5),
        defaults=defaults,
    ).workflow.nodes
    assert [each.retry for each in nodes[:2]] == [
        Retry(max_attempts=7, jitter=0.5),
        Retry(max_attempts=7, jitter=0.0),
    ]
    assert [each.timeout_ms for each in nodes] == [60_000, 1000, None, 5000]
    assert nodes[1].compensator == Compensator(
        type="value@1", timeout_ms=60_000, retry=Retry(max_attempts=7, jitter=0.5, multiplier=1.0)
    )


def test_the_queue_is_the_node_s_or_the_type_s() -> None:
    nodes = compiled(node("a"), node("b", type="sleep"), node("c", type="sleep", queue="mine")).workflow.nodes
    assert [each.queue for each in nodes] == ["default", "timers", "mine"]


def test_a_type_is_pinned_to_its_newest_major() -> None:
    config = {"url": "x"}
    nodes = compiled(node("a", type="http", config=config), node("b", type="http@1", config=config)).workflow.nodes
    assert [each.type for each in nodes] == ["http@2", "http@1"]


def test_a_template_stands_for_any_value() -> None:
    assert only(type="http", config={"url": "x", "port": "{{ inputs.port }}"}).config["port"] == "{{ inputs.port }}"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, Limits(max_visits=10_000)),
        ({"deadline_seconds": 1.5, "max_visits": 5}, Limits(deadline_ms=1500, max_visits=5)),
        ({"max_fanout": 9, "max_parallel": 8}, Limits(max_fanout=9, max_parallel=8)),
        ({"max_hops": 7, "max_bytes": 6}, Limits(max_hops=7, max_bytes=6)),
    ],
)
def test_limits(limits: dict[str, Any], expected: Limits) -> None:
    assert compiled(node("a"), limits=limits).workflow.limits == expected


def test_a_large_graph_may_visit_more() -> None:
    workflow = compiled(*(node(f"n{number}") for number in range(1500))).workflow
    assert workflow.limits.max_visits == 15_000


def test_edges_of_all_kinds_are_one_set() -> None:
    workflow = compiled(
        node(
            "a",
            on_error={"route": ["d"]},
            branch={"rules": [{"condition": "output.ok", "next_nodes": ["c"]}], "default": ["d"]},
        ),
        node("b", "a"),
        node("c", "a"),
        node("d", "b", "c"),
        name="edges",
        description="all kinds",
        outputs={"x": "{{ d.output }}", "y": "{{ b.z }}"},
        on_failure={"compensate": "automatic"},
    ).workflow
    a, b, c, d = workflow.nodes
    assert (a.inbound, a.outbound, a.plain, a.error_path) == ((), ("b", "c", "d"), ("b",), ("d",))
    assert a.branch == Branch(rules=(Rule(condition=CEL, next_nodes=("c",)),), default=("d",))
    assert [each.inbound for each in (b, c, d)] == [("a",), ("a",), ("a", "b", "c")]
    assert (workflow.entries, workflow.terminals, workflow.output_reads) == (("a",), ("d",), ("b", "d"))
    assert (workflow.name, workflow.description, workflow.compensate) == ("edges", "all kinds", "automatic")


def test_an_agent_s_branch_is_a_closed_set() -> None:
    branch = {"type": "agent_driven", "available_next_nodes": ["c", "b"], "default": ["d"]}
    a = compiled(node("a", branch=branch), node("b"), node("c"), node("d")).workflow.nodes[0]
    assert a.branch == Branch(kind="agent_driven", available=("c", "b"), default=("d",))
    assert (a.outbound, a.plain) == (("b", "c", "d"), ())


def test_exits_are_conditional_edges_with_a_name() -> None:
    config = {"rejection_path": ["c", "b"], "title": "ok?"}
    a = compiled(node("a", type="human", config=config), node("b", "a"), node("c"), node("d", "a")).workflow.nodes[0]
    assert a.exits == {"rejection": ("c", "b")}
    assert (a.outbound, a.plain) == (("b", "c", "d"), ("d",))


@pytest.mark.parametrize(
    ("join", "expected"),
    [("all", ("all", 0)), ("strict", ("strict", 0)), ("any", ("any", 0)), ({"quorum": 2}, ("quorum", 2))],
)
def test_joins(join: Any, expected: tuple[str, int]) -> None:
    last = compiled(node("a"), node("b"), node("c", "a", "b", join=join)).workflow.nodes[2]
    assert (last.join, last.quorum) == expected


def test_a_computed_reference_reads_everything() -> None:
    workflow = compiled(
        node("a"), node("b", "a", config="{{ nodes[inputs.x].output }}"), outputs="{{ ctx[inputs.y] }}"
    ).workflow
    assert [each.reads_all for each in workflow.nodes] == [False, True]
    assert workflow.output_reads == ("a", "b")


def test_the_delay_of_a_loop_is_a_number_or_a_template() -> None:
    written = [{}, {"delay_seconds": 1.5}, {"delay_seconds": " {{ output.s }} "}]
    loops = [only(loop={"condition": CEL, "max_iterations": 3, **delay}).loop for delay in written]
    assert [(each.delay_ms, each.delay) for each in loops if each] == [(0, ""), (1500, ""), (0, "{{ output.s }}")]
    # Versions that know no such templates read the others.
    assert [sorted({"delay", "delay_ms"} & msgspec.to_builtins(each).keys()) for each in loops] == [
        [],
        ["delay_ms"],
        ["delay"],
    ]


def test_a_default_written_out_does_not_change_the_digest() -> None:
    retry = {"max_attempts": 3, "backoff_ms": 1000, "multiplier": 2, "max_backoff_seconds": 60, "jitter": 0.1}
    spelled = {"join": "all", "on_error": "fail", "delivery": "at_least_once", "retry": retry}
    written = document(
        node("a", queue="default", priority=5, map={"over": [1], "tolerate": 0}),
        node("b", "a", **spelled, branch={"rules": [{"condition": "output.ok", "next_nodes": []}], "default": []}),
        limits={"max_visits": 10_000, "max_fanout": 100_000},
        on_failure={"compensate": "manual"},
        description="",
    )
    bare = document(
        node("a", map={"over": [1]}), node("b", "a", branch={"rules": [{"condition": "output.ok", "next_nodes": []}]})
    )
    # The strings of a document that was read are never the very objects of our own source.
    written = read_document(json.dumps(written), format="json")
    assert compile_document(written, TYPES).workflow.digest == compile_document(bare, TYPES).workflow.digest


def test_the_digest_depends_on_what_matters() -> None:
    base = chain("a", "b")
    digests = {
        compile_document(raw, TYPES).workflow.digest
        for raw in (
            base,
            document(node("a"), node("b")),
            document(node("a"), node("b", "a", config=0)),
            document(node("a"), node("b", "a", config=0.0)),
            {**base, "name": "other"},
            {**base, "limits": {"max_hops": 3}},
        )
    }
    assert len(digests) == 6


def test_the_collector_runs_again_afterwards() -> None:
    assert gc.isenabled()
    with paused_collector():
        assert not gc.isenabled()
        with paused_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_refusal_does_not_leave_it_paused() -> None:
    for refused in (lambda: read_document("[", format="yaml"), lambda: compile_document({}, TYPES)):
        with pytest.raises(Rejected):
            refused()
        assert gc.isenabled()


def test_who_paused_it_keeps_it_paused() -> None:
    gc.disable()
    try:
        compile_document(chain("a", "b"), TYPES)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_defaults_are_checked_against_their_part_of_the_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "default": "x"},
            "ok": {"$ref": "#/$defs/short", "default": "abc"},
            "long": {"$ref": "#/$defs/short", "default": "abcd"},
            "rows": {"type": "array", "items": {"enum": [1, 2], "default": 3}, "default": []},
            "default": {"type": "integer"},
            "whole": {"properties": {"a": {"default": 1}}, "required": ["a"], "default": {}},
        },
        "$defs": {"short": {"type": "string", "maxLength": 3}},
    }
    found = check_defaults(schema, "/inputs")
    assert {each.code for each in found} == {"schema_invalid"}
    assert [each.path for each in found] == [
        "/inputs/properties/n/default",
        "/inputs/properties/long/default",
        "/inputs/properties/rows/items/default",
    ]
    assert found[0].message == '"x" is not of type "integer"' and "would be refused" in found[0].hint
    assert check_defaults(True, "") == check_defaults({"default": 1}, "") == []
