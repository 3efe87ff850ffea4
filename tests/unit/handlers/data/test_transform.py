"""The node types `transform`, `input` and `output`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import tidemill
from tests.fixtures.child_processes import deciders
from tests.fixtures.handler_harness import called
from tidemill.errors import Rejected
from tidemill.expressions.sandbox.pool import NoSandbox, SandboxPool
from tidemill.handlers.contract import Done, Fail
from tidemill.handlers.control import BORDERS
from tidemill.handlers.data.transform import transform_handler
from tidemill.kernel.compile.compiler import compile_document

INPUT, OUTPUT = BORDERS
ORDER = {"id": 7, "lines": [{"sku": "a", "n": 2}, {"sku": "b", "n": 2**60 + 1}], "to": {"city": "Delft"}, "none": None}


@pytest.fixture
async def processes() -> AsyncIterator[SandboxPool]:
    made = SandboxPool()
    yield made
    await made.close()
    assert deciders() == []


async def transformed(config: dict[str, Any], **fields: Any) -> Any:
    ended = await called(transform_handler(NoSandbox()), config, **fields)
    assert isinstance(ended, Done)
    return ended.value


EXTRACTS: list[tuple[Any, Any]] = [
    ("$.id", 7),
    ("$", ORDER),
    ("$.lines[*].sku", ["a", "b"]),
    ("$.lines[-1].n", 2**60 + 1),
    ("$.lines[?@.n > 2].sku", ["b"]),
    ("$..city", ["Delft"]),
    ("$.lines[*].nothing", []),
    ("$.none", None),
    ({"path": "$.missing", "default": 0}, 0),
    ({"path": "$.missing", "default": None}, None),
    ({"path": "$.id", "default": 0}, 7),
    ({"path": "$[1]", "from": [1, 2]}, 2),
]


@pytest.mark.parametrize(("given", "value"), EXTRACTS)
async def test_extracting(given: Any, value: Any) -> None:
    assert await transformed({"from": ORDER, "extract": {"x": given}}) == {"x": value}


async def test_value_and_extract_are_put_together() -> None:
    assert await transformed({"value": [1, {"a": None}]}) == [1, {"a": None}]
    config = {"from": ORDER, "value": {"kind": "order"}, "extract": {"id": "$.id"}}
    assert await transformed(config) == {"kind": "order", "id": 7}
    with pytest.raises(Fail) as failed:
        await transformed({"from": ORDER, "value": "text", "extract": {"id": "$.id"}})
    assert failed.value.code == "config_invalid" and "a string" in failed.value.message


async def test_without_a_source_it_looks_at_what_came_before() -> None:
    assert await transformed({"extract": {"id": "$.id"}}, upstream={"a": ORDER}) == {"id": 7}
    assert await transformed({"extract": {"id": "$.a.id"}}, upstream={"a": ORDER, "b": 1}) == {"id": 7}


async def test_what_is_not_there_fails() -> None:
    with pytest.raises(Fail) as failed:
        await transformed({"from": ORDER, "extract": {"x": "$.lines[9].sku"}})
    assert failed.value.code == "nothing_found" and "x: there is nothing at $.lines[9].sku" in failed.value.message


async def test_what_could_take_long_is_done_elsewhere(processes: SandboxPool) -> None:
    many = {"rows": [{"n": number} for number in range(5_000)]}
    config = {"from": many, "extract": {"last": "$.rows[?@.n >= 4998].n", "one": "$.rows[4999].n"}}
    ended = await called(transform_handler(processes), config)
    assert ended == Done({"last": [4998, 4999], "one": 4999})
    with pytest.raises(Fail) as failed:
        await transformed(config)
    assert failed.value.code == "query_failed"


def refused(type_: str, config: Any) -> list[str]:
    types = {each.type.name: [each.type] for each in (*BORDERS, transform_handler(NoSandbox()))}
    try:
        compile_document({"name": "x", "nodes": [{"id": "n", "type": type_, "config": config}]}, types)
    except Rejected as refusal:
        return [each.path.removeprefix("/nodes/0/config") for each in refusal.problems]
    return []


@pytest.mark.parametrize(
    ("type_", "config", "path"),
    [
        ("transform", {"extract": {"x": "$.["}}, "/extract/x"),
        ("transform", {"extract": {"x": {"path": "lines"}}}, "/extract/x/path"),
        ("transform", {"value": {"x": 1}, "extract": {"x": "$.a"}}, "/extract/x"),
        ("transform", {"extract": {"x": {"path": "$", "defualt": 1}}}, "/extract/x"),
        ("transform", {}, ""),
        ("transform", {"from": 1}, ""),
        ("input", {"path": "$.["}, "/path"),
        ("input", {"path": "$..a"}, "/path"),
        ("input", {"schema": {"type": "strin"}}, "/schema/type"),
        ("output", {"schema": {"required": 3}}, "/schema/required"),
        ("output", {"vlaue": 3}, "/vlaue"),
    ],
)
def test_wrong_configs(type_: str, config: Any, path: str) -> None:
    assert refused(type_, config) == [path]


async def test_what_a_template_hid_is_checked_when_it_is_known() -> None:
    assert refused("transform", {"extract": {"x": "{{ inputs.path }}"}}) == []
    with pytest.raises(Fail) as failed:
        await transformed({"from": 1, "extract": {"x": "$.["}})
    assert failed.value.code == "config_invalid" and failed.value.message.startswith("/extract/x: ")
    with pytest.raises(Fail) as failed:
        await called(INPUT, {"path": "$.["}, given=dict)
    assert failed.value.code == "config_invalid"


INPUTS: list[tuple[Any, Any]] = [
    (None, ORDER),
    ({}, ORDER),
    ({"path": "$.to.city"}, "Delft"),
    ({"path": "$.nowhere", "default": []}, []),
    ({"path": "$.id", "schema": {"type": "integer"}}, 7),
    ({"schema": {"required": ["id"]}}, ORDER),
]


@pytest.mark.parametrize(("config", "value"), INPUTS)
async def test_an_input_shows_what_the_run_was_given(config: Any, value: Any) -> None:
    assert await called(INPUT, config, given=lambda: ORDER) == Done(value)


@pytest.mark.parametrize(
    ("config", "code", "words"),
    [
        ({"path": "$.nowhere"}, "nothing_found", "nothing at $.nowhere"),
        ({"path": "$.id", "schema": {"type": "string"}}, "schema_mismatch", "the input does not match"),
        ({"path": "$.x", "default": 1, "schema": {"type": "string"}}, "schema_mismatch", "/: 1 is not"),
        ({"schema": {"type": "strin"}}, "config_invalid", "/schema/type"),
    ],
)
async def test_an_input_that_does_not_fit_fails(config: Any, code: str, words: str) -> None:
    with pytest.raises(Fail) as failed:
        await called(INPUT, config, given=lambda: ORDER)
    assert failed.value.code == code and words in failed.value.message and not failed.value.retryable


async def test_an_output_shows_a_value_or_what_came_before() -> None:
    assert await called(OUTPUT, {"value": None}, upstream={"a": 1}) == Done(None)
    assert await called(OUTPUT, None, upstream={"a": 1}) == Done(1)
    assert await called(OUTPUT, {}, upstream={"a": 1, "b": 2}) == Done({"a": 1, "b": 2})
    with pytest.raises(Fail) as failed:
        await called(OUTPUT, {"value": {"a": 1}, "schema": {"properties": {"a": {"type": "string"}}}})
    assert failed.value.code == "schema_mismatch" and "/a: 1 is not of type" in failed.value.message


def test_all_of_them_in_a_run() -> None:
    def node(id_: str, type_: str, config: dict[str, Any], *before: str) -> dict[str, Any]:
        return {"id": id_, "type": type_, "config": config, "dependencies": list(before)}

    document = {
        "name": "borders",
        "nodes": [
            node("who", "input", {"path": "$.name", "default": "world", "schema": {"type": "string"}}),
            node("greet", "transform", {"value": {"text": "Hi {{ who.output }}"}}, "who"),
            node("said", "output", {"value": "{{ greet.text }}!"}, "greet"),
        ],
    }
    with tidemill.open("memory://") as mill:
        assert mill.run(document, {"name": "Ada"}).outputs == {"said": "Hi Ada!"}
        assert mill.run(document).outputs == {"said": "Hi world!"}
        assert mill.run(document, {"name": 3}).status == "FAILED"
