"""JSON Schema: checking schemas, and values against them."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tidemill.expressions.failure import ExpressionError
from tidemill.expressions.schema import PROBLEMS_MAX, check_schema, compile_schema
from tidemill.expressions.templates import is_template

PERSON = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "age": {"type": "integer", "minimum": 0},
        "mail": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    },
}


def places(schema: Any, value: Any, *, open_: bool = False) -> list[str]:
    return [
        problem.path
        for problem in compile_schema(schema).problems(value, "/v", wildcard=is_template if open_ else None)
    ]


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (PERSON, {"name": "Ada", "age": 3, "mail": "a@b.example", "tags": ["x"]}, []),
        (PERSON, {"name": "Ada", "age": -1}, ["/v/age"]),
        (PERSON, {"name": "A"}, ["/v/name"]),
        (PERSON, {"name": "Ada", "mail": "x"}, ["/v/mail"]),
        (PERSON, {"name": "Ada", "tags": ["x", 1, "y"]}, ["/v/tags/1"]),
        (PERSON, {"name": "Ada", "tags": ["x", "x"]}, ["/v/tags"]),
        (PERSON, {}, ["/v"]),
        (PERSON, [], ["/v"]),
        (PERSON, {"name": "Ada", "a/b": 1}, ["/v/a~1b"]),
        (True, {"anything": 1}, []),
        (False, 1, ["/v"]),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a", 1], ["/v/1"]),
        ({"unevaluatedProperties": False, "properties": {"a": {}}}, {"b": 1}, ["/v/b"]),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, "x", ["/v"]),
        ({"$id": "https://x.example/s", "$defs": {"n": {"type": "integer"}}, "$ref": "s#/$defs/n"}, "x", ["/v"]),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "integer"}, 1.0, []),
        ({"type": "integer"}, 10**40, []),
        ({"type": "number", "maximum": 5}, 10**40, ["/v"]),
        ({"type": "number"}, float("nan"), ["/v"]),
        ({"type": "string"}, "\ud800", ["/v"]),
        ({"type": "object"}, {1: 2}, ["/v"]),
        ({}, object(), ["/v"]),
        ({"format": "date-time"}, "2026-13-01", ["/v"]),
        ({"format": "unheard-of"}, "x", []),
        ({"pattern": "^(?=a)a+$"}, "aaa", []),
    ],
)
def test_a_value_is_checked(schema: Any, value: Any, expected: list[str]) -> None:
    assert sorted(set(places(schema, value))) == expected
    assert compile_schema(schema).accepts(value) is (not expected)


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        ({"nme": "Ada", "name": "Ada"}, 'there is no key "nme" here', 'did you mean "name"?'),
        ({"zzz": 1, "name": "Ada"}, 'there is no key "zzz" here', "known keys: "),
        ({}, 'the key "name" is missing', ""),
        ({"name": 1}, '1 is not of type "string"', ""),
    ],
)
def test_the_message_helps(value: Any, message: str, hint: str) -> None:
    problem = compile_schema(PERSON).problems(value)[0]
    assert problem.code == "schema_mismatch"
    assert problem.message == message
    assert hint in problem.hint


def test_the_hint_finds_its_way_through_references() -> None:
    schema = {"properties": {"p": {"$ref": "#/$defs/p"}}, "$defs": {"p": PERSON}}
    assert compile_schema(schema).problems({"p": {"name": "Ada", "aeg": 1}})[0].hint == 'did you mean "age"?'


def test_alternatives_are_told() -> None:
    problem = compile_schema({"anyOf": [{"type": "integer"}, {"type": "null"}]}).problems("x")[0]
    assert problem.hint == '"x" is not of type "integer"; or: "x" is not of type "null"'


def test_the_code_is_the_callers() -> None:
    assert compile_schema(PERSON).problems({}, code="inputs_mismatch")[0].code == "inputs_mismatch"


def test_the_number_and_length_of_problems_is_bounded() -> None:
    found = compile_schema({"items": {"type": "string"}}).problems(list(range(10_000)))
    assert len(found) == PROBLEMS_MAX
    long = compile_schema({"type": "integer"}).problems("x" * 100_000)[0]
    assert len(long.message) < 400


ONE_OF = {
    "oneOf": [{"type": "integer"}, {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}]
}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (PERSON, {"name": "{{ x }}", "age": "{{ y }}", "mail": "{{ z }}", "tags": "{{ t }}"}, []),
        (PERSON, "{{ everything }}", []),
        (PERSON, {"name": "{{ x }}", "age": "old", "tags": ["{{ y }}", 1]}, ["/v/age", "/v/tags/1"]),
        (PERSON, {"nme": "{{ x }}"}, ["/v", "/v/nme"]),
        (PERSON, {"name": "Ada", "tags": ["{{ x }}", "{{ x }}"]}, []),
        ({"items": ONE_OF}, ["{{ x }}", {"x": "{{ y }}"}, {"x": "z"}, {}], ["/v/2", "/v/3"]),
        ({"anyOf": [{"type": "integer"}, {"items": {"type": "integer"}}]}, ["{{ x }}"], []),
        ({"const": {"a": 1}}, {"a": "{{ x }}"}, []),
        ({"enum": [[1], [2]]}, ["{{ x }}"], []),
        ({"enum": ["a", "b"]}, "{{ x }}", []),
        ({"contains": {"type": "integer"}}, ["a", "{{ x }}"], []),
        ({"contains": {"type": "integer"}}, ["a"], ["/v"]),
        ({"not": {"required": ["a"]}}, {"a": "{{ x }}"}, []),
        ({"not": {"required": ["a"]}}, {"a": 1}, ["/v"]),
        ({"minItems": 2, "items": {}}, ["{{ x }}"], ["/v"]),
        ({"if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["x"]}}, {"k": 1}, ["/v"]),
        (
            {"if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["x"]}, "else": {"required": ["y"]}},
            {"k": "{{ x }}"},
            [],
        ),
        ({"properties": {"then": {"type": "integer"}}}, {"then": "x", "o": "{{ x }}"}, ["/v/then"]),
        ({"oneOf": [{"type": "string"}, {"minLength": 1}]}, "{{ x }}", []),
    ],
)
def test_what_hangs_on_a_wildcard_is_left_open(schema: Any, value: Any, expected: list[str]) -> None:
    assert sorted(set(places(schema, value, open_=True))) == expected


@pytest.mark.parametrize(
    ("schema", "path", "message"),
    [
        ("x", "", "a schema is an object"),
        (None, "", "a schema is an object"),
        ([], "", "a schema is an object"),
        ({"type": "nope"}, "/type", "nope"),
        ({"properties": {"a": {"minimum": "x"}}}, "/properties/a/minimum", "not of type"),
        ({"required": "a"}, "/required", "not of type"),
        ({"pattern": "("}, "/pattern", "regex"),
        ({"$ref": "http://127.0.0.1:1/x.json"}, "", "nothing is fetched"),
        ({"$ref": "https://x.example/x.json"}, "", "nothing is fetched"),
        ({"$ref": "file:///etc/passwd"}, "", "nothing is fetched"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "", "nothing is fetched"),
        ({"$dynamicRef": "http://127.0.0.1:1/x#y"}, "", "nothing is fetched"),
        ({"$id": "http://127.0.0.1:1/a", "$ref": "b"}, "", "nothing is fetched"),
        ({"$ref": "#/$defs/nope"}, "", "does not exist"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "/$schema", "draft 2020-12"),
        ({"$schema": "http://127.0.0.1:1/meta"}, "/$schema", "draft 2020-12"),
        ({"$schema": 1}, "/$schema", "draft 2020-12"),
        ({"const": object()}, "", "not JSON"),
        ({"description": "x" * (1 << 21)}, "", "larger than"),
    ],
)
def test_a_schema_is_refused(schema: Any, path: str, message: str) -> None:
    problems = check_schema(schema, "/inputs")
    assert [problem.code for problem in problems] == ["schema_invalid"]
    assert problems[0].path == f"/inputs{path}"
    assert message in problems[0].message
    with pytest.raises(ExpressionError) as caught:
        compile_schema(schema)
    assert caught.value.code == "schema_invalid"


def test_every_problem_of_a_schema_is_reported() -> None:
    problems = check_schema({"type": "nope", "properties": {"a": {"minimum": "x"}}}, "/s")
    assert {problem.path for problem in problems} == {"/s/type", "/s/properties/a/minimum"}


def test_nothing_is_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.3)
        port = server.getsockname()[1]
        assert check_schema({"$ref": f"http://127.0.0.1:{port}/x.json"})
        with pytest.raises(TimeoutError):
            server.accept()


def test_good_schemas_have_no_problems() -> None:
    for schema in (PERSON, ONE_OF, True, False, {}, {"$ref": "#"}):
        assert check_schema(schema) == []


def test_a_schema_is_compiled_once_per_content() -> None:
    assert compile_schema({"a": 1, "type": "object"}) is compile_schema({"type": "object", "a": 1})


@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"^(a+)+\1$", r"^(?=(a+)+b)\1x", r"(a|a)*\1c"])
def test_a_pattern_cannot_hang(pattern: str) -> None:
    assert not compile_schema({"pattern": pattern}).accepts("a" * 5_000 + "!")


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_deep_data_does_not_kill_the_process() -> None:
    schema = compile_schema({"type": "array", "items": {"$ref": "#"}})
    assert not schema.accepts(deep(200_000))
    assert "nested" in schema.problems(deep(200_000))[0].message
    nested: Any = {"type": "object"}
    for _ in range(200_000):
        nested = {"items": nested}
    assert "nested" in check_schema(nested)[0].message
