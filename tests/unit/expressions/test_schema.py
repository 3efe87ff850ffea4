"""JSON Schema: checking schemas, and values against them."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from tests.pace import allowed
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.schema import (
    PATTERNS_MAX,
    PROBLEMS_MAX,
    check_schema,
    compile_schema,
)
from tidemill.expressions.scope import is_template
from tidemill.kernel.compile.compiler import check_names_typed

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
        (PERSON, {"name": "Ada", "a/b": 1}, ["/v/a~1b"]),
        (True, {"anything": 1}, []),
        (False, 1, ["/v"]),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a", 1], ["/v/1"]),
        ({"unevaluatedProperties": False, "properties": {"a": {}}}, {"b": 1}, ["/v/b"]),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, "x", ["/v"]),
        ({"$id": "https://x.example/s", "$defs": {"n": {"type": "integer"}}, "$ref": "s#/$defs/n"}, "x", ["/v"]),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "integer"}, 1.0, []),
        ({"type": "integer"}, 10**40, []),
        ({"type": "number"}, float("nan"), ["/v"]),
        ({}, object(), ["/v"]),
        ({"format": "date-time"}, "2026-13-01", ["/v"]),
        ({"format": "unheard-of"}, "x", []),
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


@pytest.mark.parametrize(
    ("items", "value", "hint"),
    [
        ({"type": "string"}, "a b", 'write ["a b"]'),
        ({"type": "string", "description": "user:NAME or role:NAME"}, "boss", "write [user:boss] or [role:boss]"),
        ({"type": "string", "description": "user:NAME or role:NAME"}, "role:boss", 'write ["role:boss"]'),
        ({"type": "integer"}, 3, "write [3]"),
        ({"type": "object"}, "a", ""),
        (True, "a", ""),
    ],
)
def test_the_hint_makes_a_list_of_one_item(items: Any, value: Any, hint: str) -> None:
    assert compile_schema({"type": "array", "items": items}).problems(value)[0].hint == hint


def test_the_hint_finds_its_way_through_references() -> None:
    schema = {"properties": {"p": {"$ref": "#/$defs/p"}}, "$defs": {"p": PERSON}}
    assert compile_schema(schema).problems({"p": {"name": "Ada", "aeg": 1}})[0].hint == 'did you mean "age"?'


def test_alternatives_are_told() -> None:
    problem = compile_schema({"anyOf": [{"type": "integer"}, {"type": "null"}]}).problems("x")[0]
    assert problem.hint == '"x" is not of type "integer"; or: "x" is not of type "null"'


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
        ({"contains": {"type": "integer"}}, ["a", "{{ x }}"], []),
        ({"not": {"required": ["a"]}}, {"a": "{{ x }}"}, []),
        ({"minItems": 2, "items": {}}, ["{{ x }}"], ["/v"]),
        ({"if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["x"]}}, {"k": 1}, ["/v"]),
        ({"if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["x"]}}, {"k": 1, "o": "{{ a }}"}, ["/v"]),
        ({"if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["x"]}}, {"k": "{{ a }}"}, []),
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
        ({"type": "nope"}, "/type", "nope"),
        ({"properties": {"a": {"minimum": "x"}}}, "/properties/a/minimum", "not of type"),
        ({"pattern": "("}, "/pattern", "is not a regular expression that can be compiled: missing )"),
        ({"$ref": "http://127.0.0.1:1/x.json"}, "/$ref", "Tidemill fetches no schemas"),
        ({"$ref": "file:///etc/passwd"}, "/$ref", "Tidemill fetches no schemas"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "/properties/a/$ref", "Tidemill fetches no schemas"),
        ({"$dynamicRef": "http://127.0.0.1:1/x#y"}, "/$dynamicRef", "Tidemill fetches no schemas"),
        ({"$id": "http://127.0.0.1:1/a", "$ref": "b"}, "/$ref", "Tidemill fetches no schemas"),
        ({"$ref": "#/$defs/nope"}, "", "does not exist"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "/$schema", "draft 2020-12"),
        ({"$schema": "http://127.0.0.1:1/meta"}, "/$schema", "draft 2020-12"),
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


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_deep_data_does_not_kill_the_process() -> None:
    schema = compile_schema({"type": "array", "items": {"$ref": "#"}})
    assert not schema.accepts(deep(30_000))
    assert "nested" in schema.problems(deep(30_000))[0].message
    nested: Any = {"type": "object"}
    for _ in range(30_000):
        nested = {"items": nested}
    assert "nested" in check_schema(nested)[0].message


def doubling(levels: int, keyword: str = "allOf") -> Any:
    """Define a chain in which every definition refers twice to the next."""
    twice = {f"d{each}": {keyword: [{"$ref": f"#/$defs/d{each + 1}"}] * 2} for each in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": twice | {f"d{levels}": {"type": "integer"}}}


def below(levels: int) -> Any:
    """Define a chain in which every definition checks the same key twice with the next."""
    twice = {
        f"d{each}": {
            "properties": {"l": {"$ref": f"#/$defs/d{each + 1}"}},
            "patternProperties": {"l": {"$ref": f"#/$defs/d{each + 1}"}},
        }
        for each in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": twice | {f"d{levels}": {"type": "integer"}}}


def leftovers(levels: int, keyword: str) -> Any:
    schema: Any = {"properties": {"a": True}}
    for _ in range(levels):
        schema = {keyword: [schema], "unevaluatedProperties": False}
    return schema


def around(levels: int) -> Any:
    """Define a chain that doubles and comes back to its beginning below a key."""
    schema = doubling(levels)
    schema["$defs"][f"d{levels}"] = {"properties": {"l": {"$ref": "#/$defs/d0"}}}
    return schema


EXPLODING = [
    doubling(40),
    doubling(17, "oneOf"),
    below(40),
    leftovers(40, "allOf"),
    around(20),
    {"$id": "https://x.example/s"} | doubling(40),
    {"$ref": "#a", "$defs": {"x": {"$anchor": "a"} | doubling(40)["$defs"]["d0"], **doubling(40)["$defs"]}},
]


@pytest.mark.parametrize("schema", EXPLODING)
def test_a_schema_whose_references_multiply_is_refused(schema: Any) -> None:
    began = time.thread_time()
    problems = check_schema(schema, "/s")
    assert [(problem.code, problem.path) for problem in problems] == [("schema_invalid", "/s")]
    assert "its references multiply" in problems[0].message
    assert time.thread_time() - began < allowed(0.5)


def far_around(levels: int) -> Any:
    """Define a chain that doubles over keys, and comes back at the end of every way."""
    chain = {
        f"d{each}": {"properties": {key: {"$ref": f"#/$defs/d{each + 1}"} for key in "ab"}} for each in range(levels)
    }
    ends = {f"d{levels}": {"properties": {key: {"$ref": "#/$defs/d0"} for key in "abcd"}}}
    return {"$ref": "#/$defs/d0", "$defs": chain | ends}


MANY_WAYS_BACK: Any = {
    "$defs": {"a": {"properties": {f"p{each}": {"$ref": "#/$defs/a"} for each in range(200)}}},
    "properties": {f"q{each}": {"$ref": "#/$defs/a"} for each in range(95)},
}


@pytest.mark.parametrize(
    "schemas",
    [
        [doubling(levels) for levels in range(15, 23)],
        [around(levels) for levels in range(14, 19)],
        [far_around(levels) for levels in range(12, 15)],
        [far_around(60)],
        [MANY_WAYS_BACK],
        [{"pattern": "|".join(rf"(?=\w{{20}}{each})" for each in range(30))}],
        [{"pattern": "|".join(rf"(?=\w{{20}}{each})" for each in range(300))}],
        [{"patternProperties": {rf"(\w)\1{{9}}{each}": True for each in range(199)}}],
    ],
    ids=["all", "around", "keys", "far", "back", "look", "looks", "twice"],
)
def test_hostile_schemas_of_some_kilobytes_are_read_soon(schemas: list[Any]) -> None:
    began = time.thread_time()
    for schema in schemas:
        check_schema(schema)
    assert time.thread_time() - began < allowed(0.8)


def test_patterns_look_around_a_few_times() -> None:
    password = r"^(?=.*\d)(?=.*[a-z])(?!.*(.)\1\1).{8,64}$"
    assert check_schema({"properties": {key: {"pattern": password} for key in "abcde"}}) == []
    (problem,) = check_schema({"properties": {key: {"pattern": password} for key in "abcdefgh"}}, "/s")
    assert (problem.path, problem.message) == ("/s", "its regular expressions look around or back more than 30 times")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"a": {"$id": "https://x.example/b", "type": "integer"}}}, "$id is understood at the top"),
        ({"allOf": [{"pattern": f"^{each}$"} for each in range(PATTERNS_MAX + 1)]}, "regular expressions"),
        ({"pattern": "((a{100}){100}){19}"}, "not a regular expression that can be compiled"),
    ],
    ids=["id", "patterns", "size"],
)
def test_a_schema_that_cannot_be_weighed_is_refused(schema: Any, message: str) -> None:
    assert message in check_schema(schema)[0].message


TREE = {"type": "object", "properties": {"l": {"$ref": "#"}, "r": {"$ref": "#"}, "v": {"type": "integer"}}}
FOREST = {"properties": {"l": {"$ref": "#/$defs/t"}, "r": {"$ref": "#/$defs/t"}, "v": {"type": "integer"}}}
KNOTS: list[Any] = [
    {
        "$ref": "#/$defs/t",
        "$defs": {"t": {"anyOf": [{"required": ["l"], "properties": {"l": {"$ref": "#/$defs/t"}}}] * 2}},
    },
    {"required": ["l"], "anyOf": [{"properties": {"l": {"$ref": "#"}}}, {"patternProperties": {"l": {"$ref": "#"}}}]},
    {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {"required": ["l"], "properties": {"l": {"$ref": "#/$defs/x"}}},
            "x": {
                "required": ["l"],
                "anyOf": [{"properties": {"l": {"$ref": "#/$defs/x"}}}, {"properties": {"l": {"$ref": "#/$defs/a"}}}],
            },
        },
    },
    {
        "$dynamicAnchor": "n",
        "required": ["l"],
        "oneOf": [{"properties": {"l": {"$dynamicRef": "#n"}}}, {"properties": {"l": {"$dynamicRef": "#n"}}}],
    },
]
GOOD: list[Any] = [
    TREE,
    doubling(8),
    below(8),
    around(8),
    leftovers(6, "anyOf"),
    *KNOTS,
    {"type": "array", "items": {"$ref": "#"}},
    {"properties": {"children": {"type": "array", "items": {"$ref": "#"}}, "next": {"$ref": "#"}}},
    {"properties": {f"p{each}": {"$ref": "#/$defs/n"} for each in range(500)}, "$defs": {"n": {"type": "integer"}}},
    {"properties": {"$id": {"type": "string"}}, "const": {"$id": "x"}},
    {"$ref": "https://json-schema.org/draft/2020-12/schema"},
]


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"l": value, "a": 1}
    return value


@pytest.mark.parametrize("schema", GOOD)
def test_a_schema_that_is_taken_is_checked_soon(schema: Any) -> None:
    compiled = compile_schema(schema)
    for value in (nested(190), nested(12), [[[]]] * 300, {"a": 1}, 1):
        began = time.thread_time()
        if not compiled.accepts(value):
            assert compiled.problems(value)
        assert time.thread_time() - began < allowed(0.5)


def test_errors_of_a_tree_are_told_one_by_one() -> None:
    assert places(TREE, {"l": {"v": "x"}, "r": {"l": {"v": "y"}}}) == ["/v/l/v", "/v/r/l/v"]
    trees = {"properties": {"a": {"$ref": "#/$defs/t"}, "b": {"$ref": "#/$defs/t"}}, "$defs": {"t": FOREST}}
    assert places(trees, {"a": {"l": {"v": "x"}}, "b": {"v": "y"}}) == ["/v/a/l/v", "/v/b/v"]


@pytest.mark.parametrize("schema", KNOTS)
def test_errors_of_a_knot_are_told_together(schema: Any) -> None:
    problems = compile_schema(schema).problems(nested(190), "/v")
    assert [(problem.path, problem.message) for problem in problems] == [("/v", "it does not match the schema")]
    assert not compile_schema(schema).problems({"l": {"l": "{{ x }}"}}, wildcard=is_template)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}},
        {"anyOf": [{"$ref": "#"}, {"properties": {"l": {"$ref": "#"}}}]},
        {"anyOf": [{"properties": {"l": {"$ref": "#"}}}] * 2, "unevaluatedProperties": False},
    ],
    ids=["here", "here and below", "leftovers"],
)
def test_recursion_that_the_validator_does_not_remember_is_refused(schema: Any) -> None:
    assert "its references multiply" in check_schema(schema)[0].message


def test_a_value_that_is_none_of_the_choices_is_told_all_of_them() -> None:
    methods = compile_schema({"enum": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]})
    (problem,) = methods.problems("get", "/method")
    assert problem.message == '"get" is not one of "GET", "HEAD", "POST", "PUT", "PATCH" or "DELETE"'
    assert (problem.path, problem.hint) == ("/method", 'did you mean "GET"?')
    assert methods.problems("PTCH")[0].hint == 'did you mean "PATCH"?'
    assert methods.problems(7)[0].hint == ""
    many = compile_schema({"enum": list(range(20))})
    assert many.problems("x")[0].message.endswith("10, 11 or 8 more")


def test_alternatives_are_told_in_words() -> None:
    schema = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^[0-9]+s$"}, {"const": False}]}
    (problem,) = compile_schema(schema).problems("x")
    assert problem.message == "it is none of: a number, a string like ^[0-9]+s$, false"


@pytest.mark.parametrize(
    ("more", "good", "bad"),
    [
        ({}, ["1", "-1.50", "1e3", ".5", 1], ["banana", "", "1.2.3", "NaN"]),
        ({"formatMaximum": "10"}, ["10.00", "9.99", "-11"], ["10.01", "11", "1e2"]),
        ({"formatExclusiveMinimum": "0"}, ["0.01"], ["0.0", "-1"]),
        ({"formatMaximum": "ten"}, ["11"], ["x"]),
    ],
)
def test_decimals_in_strings(more: Any, good: list[Any], bad: list[Any]) -> None:
    schema = compile_schema({"format": "decimal", **more})
    assert all(schema.accepts(each) for each in good) and not any(schema.accepts(each) for each in bad)


def test_a_bound_of_decimals_is_told() -> None:
    (problem,) = compile_schema({"format": "decimal", "formatMaximum": "10"}).problems("10.01")
    assert problem.message == "10.01 is not at most 10"


# What people write instead of a schema


@pytest.mark.parametrize(
    ("schema", "hint"),
    [
        ({"name": "string", "age": "integer"}, "{name: {type: string}, age: {type: integer}}"),
        ({"name": "str"}, "{name: {type: string}}"),
        ({"name": {"type": "string"}}, "{name: {type: string}}"),
        ({"name": {"description": "who"}}, "{name: {}}"),
        ({"type": "object", "name": "string"}, "{name: {type: string}}"),
        ({"required": ["name"], "name": {"type": "string"}}, "{name: {type: string}}"),
        ({"url": "string", "minimum": "integer"}, "{url: {type: string}, minimum: {type: integer}}"),
        ({f"n{number}": "int" for number in range(9)}, "n7: {type: integer}, …}"),
    ],
)
def test_a_mapping_from_names_to_types_is_no_schema(schema: Any, hint: str) -> None:
    (problem,) = check_names_typed(schema, "/inputs")
    assert (problem.code, problem.path) == ("schema_invalid", "/inputs")
    assert f"{{type: object, properties: {hint}" in problem.hint or problem.hint.endswith(f"{hint}}}")
    assert "keyword" in problem.message


@pytest.mark.parametrize(
    "schema",
    [
        True,
        False,
        {},
        [],
        {"type": "object"},
        {"properties": {"name": {"type": "string"}}},
        {"title": "string", "description": "what for"},
        {"type": "object", "x-order": ["a"], "ui": {"order": ["a"]}},
        {"$defs": {"a": {}}, "$ref": "#/$defs/a"},
        {"x-note": "string"},
    ],
)
def test_a_schema_with_notes_of_its_own_stays_one(schema: Any) -> None:
    assert check_names_typed(schema, "/inputs") == []


@pytest.mark.parametrize(
    ("schema", "path", "words", "hint"),
    [
        ({"type": "objekt"}, "/type", "`objekt` is not a type", "object"),
        ({"type": "int"}, "/type", "`int` is not a type", "did you mean `integer`?"),
        ({"type": "date"}, "/type", "`date` is not a type", "the types are"),
        ({"properties": {"n": {"type": "str"}}}, "/properties/n/type", "`str` is not a type", "did you mean `string`?"),
        ({"properties": {"n": "integer"}}, "/properties/n", "`integer` is not a schema", "write {type: integer}"),
        ({"properties": {"type": "string"}}, "/properties/type", "`string` is not a schema", "write {type: string}"),
    ],
)
def test_a_type_that_is_none_is_said_so(schema: Any, path: str, words: str, hint: str) -> None:
    (problem,) = check_schema(schema)
    assert (problem.code, problem.path) == ("schema_invalid", path)
    assert words in problem.message and hint in problem.hint


NAMED = {"type": "object", "properties": {"name": {"type": "string"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("alternatives", "value", "path", "message"),
    [
        ([NAMED, {"type": "null"}], {"nmae": "x"}, "/nmae", 'there is no key "nmae" here'),
        ([{"type": "null"}, NAMED], {"name": 1}, "/name", '1 is not of type "string"'),
        ([NAMED, {"type": "string"}], {"nmae": "x"}, "", "it is none of: an object, a string"),
        ([NAMED, {"type": "null"}], 3, "", "it is none of: an object, null"),
    ],
)
def test_what_is_wrong_beside_null_is_told_at_its_place(alternatives: Any, value: Any, path: str, message: str) -> None:
    (problem,) = compile_schema({"anyOf": alternatives}).problems(value)
    assert (problem.path, problem.message) == (path, message)


def test_another_type_than_that_of_a_pattern_is_told_what_the_pattern_means() -> None:
    schema = compile_schema({"type": "string", "pattern": "^PT", "description": "a duration such as PT1M30S"})
    assert [each.hint for each in schema.problems(90)] == ["a duration such as PT1M30S"]
    assert [each.hint for each in schema.problems("90")] == ["a duration such as PT1M30S"]
