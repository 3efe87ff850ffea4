"""Values made from schemas, and from what a workflow reads."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from tests.fixtures.kernel.authoring import document, node
from tidemill.kernel.compile.compiler import compile_document
from tidemill.node_types import built_in_types
from tidemill.testing.fakes import fake_value, read_shapes

SCHEMAS: list[Any] = [
    {"type": "string", "minLength": 7},
    {"type": "string", "maxLength": 2},
    {"type": "string", "format": "date-time"},
    {"type": "integer", "minimum": 5},
    {"type": "integer", "maximum": -3},
    {"type": "number", "exclusiveMinimum": 5},
    {"type": "boolean"},
    {"type": "null"},
    {"type": ["null", "string"]},
    {"const": 3},
    {"enum": ["a", "b"]},
    {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    {"type": "array", "items": {"type": "string"}, "minItems": 3},
    {"type": "array", "maxItems": 0},
    {
        "type": "object",
        "required": ["a", "b"],
        "properties": {"a": {"$ref": "#/$defs/money"}, "b": {"type": "array", "items": {"type": "integer"}}},
        "additionalProperties": False,
        "$defs": {"money": {"type": "object", "required": ["eur"], "properties": {"eur": {"type": "number"}}}},
    },
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_a_made_value_is_valid(schema: Any) -> None:
    assert jsonschema_rs.is_valid(schema, fake_value(schema))


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert isinstance(fake_value(schema), dict)


def test_where_the_schema_is_silent_the_reads_decide() -> None:
    schema = {"type": "object", "properties": {"status": {"type": "integer"}, "body": True}}
    assert fake_value(schema, {"body": {"total": 1}, "more": 2}) == {"status": 1, "body": {"total": 1}, "more": 2}
    assert fake_value(True, [1, 2]) == [1, 2]


ROWS = {"rows": [{"n": 1, "m": 1}, {"n": 2, "m": 2}]}


@pytest.mark.parametrize(
    ("reader", "shape"),
    [
        ({"config": "{{ a.output.x.y }} and {{ a.z }}"}, {"x": {"y": 1}, "z": 1}),
        ({"config": "{{ a.output }}"}, 1),
        ({"config": "{{ a.rows | length }}"}, {"rows": [1, 2]}),
        ({"config": "{% for row in a.rows %}{{ row }}{% endfor %}"}, {"rows": [1, 2]}),
        ({"config": "{{ item }}", "map": {"over": "{{ a.output.rows }}"}}, {"rows": [1, 2]}),
        ({"config": 1, "when": "ctx.a.output.n > 3"}, {"n": 1}),
        ({"config": '{{ nodes["a"].output.n }}'}, {"n": 1}),
        ({"config": "{{ a.meta.attempts }}"}, None),
        ({"config": "{{ a.rows | map(attribute='n') | sum }} {{ a.rows | map(attribute='m') | list }}"}, ROWS),
        ({"config": "a sentence"}, None),
    ],
)
def test_what_a_workflow_reads_of_a_node(reader: dict[str, Any], shape: Any) -> None:
    flow = compile_document(document(node("a", config=1), node("b", "a", **reader)), built_in_types()).workflow
    assert read_shapes(flow)["test.a"] == shape


def test_an_item_of_a_map_is_made_as_its_list_is_read() -> None:
    nodes = (
        node("a", config=1, map={"over": [1]}),
        node("b", "a", config="{{ a.output | map(attribute='n') | list }}"),
    )
    flow = compile_document(document(*nodes), built_in_types()).workflow
    assert read_shapes(flow)["test.a"] == {"n": 1}


def test_what_a_branch_reads_of_its_own_node() -> None:
    branch = {
        "type": "conditional",
        "rules": [{"condition": "output.score > 5", "next_nodes": ["b"]}],
        "default": ["c"],
    }
    nodes = (node("a", config=1, branch=branch), node("b", "a"), node("c", "a"))
    flow = compile_document(document(*nodes), built_in_types()).workflow
    assert read_shapes(flow)["test.a"] == {"score": 1}
