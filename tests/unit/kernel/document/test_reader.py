"""Text to value: what YAML and JSON mean here, where faults are, and that the two languages agree."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import Problem, Rejected
from tidemill.kernel.document.reader import Format, read_document, with_places

LANGUAGES: tuple[Format | None, ...] = ("yaml", "json", None)

SCALARS = [
    ("text", "text"),
    ("on", "on"),
    ("Off", "Off"),
    ("yes", "yes"),
    ("n", "n"),
    ("true", True),
    ("False", False),
    ("null", None),
    ("~", None),
    ("", None),
    ("2026-11-15", "2026-11-15"),
    ("2026-11-15T10:00:00Z", "2026-11-15T10:00:00Z"),
    ("12:30:45", "12:30:45"),
    ("7", 7),
    ("-7", -7),
    ("+7", 7),
    ("0", 0),
    ("007", "007"),
    ("1_000", "1_000"),
    ("0x1F", 31),
    ("0o17", 15),
    ("0b1", "0b1"),
    ("1.5", 1.5),
    (".5", 0.5),
    ("1e3", 1000.0),
    ("-1.5e-3", -0.0015),
    ("1.2.3", "1.2.3"),
    ("123456789012345678901234567890", 123456789012345678901234567890),
    ("'7'", "7"),
    ('"true"', "true"),
    ("!!str 7", "7"),
    ("!!float 7", 7.0),
    ("! 7", "7"),
    ('"{{ a.output }}"', "{{ a.output }}"),
    ("|\n  one\n  two\n", "one\ntwo\n"),
]


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_a_yaml_scalar_is(text: str, value: Any) -> None:
    found = read_document(f"x: {text}", format="yaml")["x"]
    assert (found, type(found)) == (value, type(value))


def problems(text: str | bytes, language: Any = None) -> tuple[Problem, ...]:
    with pytest.raises(Rejected) as caught:
        read_document(text, format=language)
    return caught.value.problems


@pytest.mark.parametrize(
    ("language", "text", "path", "where"),
    [
        ("json", '{\n "a": {"b": 1,\n  "b": 2}}', "/a/b", "line 3, column 3"),
        ("json", '{"a": [1,\n NaN]}', "/a/1", "line 2, column 2"),
        ("json", '{"a": [1, 2\n', "", "line 2, column 1"),
        ("json", '{"a":\n "x\\udc00"}', "/a", "line 2, column 2"),
        ("yaml", "a:\n  b: 1\n  b: 2", "/a/b", "line 3, column 3"),
        ("yaml", "a:\n- 1\n- .inf", "/a/1", "line 3, column 3"),
        ("yaml", "a:\n  - b: *c", "/a/0/b", "line 2, column 8"),
        ("yaml", "a: b: c", "", "line 1, column 5"),
        ("yaml", "a:\n\t- b", "", "line 2, column 1"),
    ],
)
def test_a_fault_has_a_place(language: str, text: str, path: str, where: str) -> None:
    first = problems(text, language)[0]
    assert first.path == path
    assert first.message.startswith(where)


def test_faults_that_are_not_syntax_are_all_reported() -> None:
    assert [each.code for each in problems("a: .nan\na: 1\n2: 3\nb: *c", "yaml")] == [
        "not_json",
        "duplicate_key",
        "not_json",
        "yaml_alias",
    ]
    assert [each.code for each in problems('{"a": NaN, "a": 1, "b": "\\ud800", "c": -Infinity}', "json")] == [
        "not_json",
        "duplicate_key",
        "not_json",
        "not_json",
    ]


@pytest.mark.parametrize("number", ["9" * 5_000, "0x" + "f" * 5_000, "0o" + "7" * 5_000])
def test_an_integer_that_could_not_be_written_is_refused(number: str) -> None:
    assert [(each.code, each.path) for each in problems(f"a: [1, {number}]", "yaml")] == [("not_json", "/a/1")]


def test_a_fault_far_behind_is_reported_without_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.kernel.document.text.TOKENS_MAX", 3)
    text = '{"a": [1, NaN, 1e999, {"b": 1, "b": 2}]}'
    assert [each.code for each in problems(text, "json")] == ["not_json", "not_json", "duplicate_key"]
    assert [each.path for each in problems('{"a": [1, "\\ud800"]}', "json")] == ["/a/1"]
    assert [each.code for each in problems('{"a": 1, "b":' + "[" * 120 + "]" * 120 + "}", "json")] == ["too_deep"]


def test_an_alias_is_a_copy() -> None:
    value = read_document("a: &a {x: [1]}\nb: *a", format="yaml")
    assert value == {"a": {"x": [1]}, "b": {"x": [1]}}
    assert value["a"] is not value["b"]
    assert value["a"]["x"] is not value["b"]["x"]


def test_aliases_count_towards_the_depth() -> None:
    nested = "[" * 60 + "]" * 60
    assert problems(f"a: &a {nested}\nb: {'[' * 60}*a{']' * 60}", "yaml")[0].code == "too_deep"


def test_a_byte_order_mark_is_no_content() -> None:
    for language in LANGUAGES:
        assert read_document('{"a": 1}'.encode("utf-8-sig"), format=language) == {"a": 1}
        assert read_document('\ufeff{"a": 1}', format=language) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('{"a": [1, 2,]}', "leave out the comma"),
        ('{"a": 1,\n}', "leave out the comma"),
        ('{"a": 1, // one\n"b": 2}', "JSON has no comments"),
        ("{\"a\": 'one'}", "double quotes"),
        ('{"a": True}', "write true"),
        ('{"a": [1', "ends too early"),
    ],
)
def test_what_other_languages_allow_in_json_is_named(text: str, hint: str) -> None:
    (problem,) = problems(text)
    assert problem.code == "json_syntax" and hint in problem.hint


def test_a_template_without_quotes_is_told_where_it_stands() -> None:
    (problem,) = problems("a: {b: {{ inputs.x }}}", "yaml")
    assert (problem.code, problem.path) == ("not_json", "/a/b")


def test_without_a_format_the_text_decides() -> None:
    assert read_document('  {"a": 1}', format=None) == {"a": 1}
    assert read_document("a: 1", format=None) == {"a": 1}
    assert read_document("{a: 1, b: on}", format=None) == {"a": 1, "b": "on"}
    with pytest.raises(Rejected) as refused:
        read_document('{"name": "x", }', format=None)
    assert refused.value.code == "json_syntax", "a trailing comma is not read as YAML"
    assert problems('{"a": 1,,}')[0].code == "json_syntax"
    assert problems('{"a": 1, "a": 2}')[0].code == "duplicate_key"


def test_size_is_counted_in_bytes() -> None:
    assert read_document("a: ä", format="yaml", bytes_max=5) == {"a": "ä"}
    with pytest.raises(Rejected):
        read_document("a: ä", format="yaml", bytes_max=4)


def test_exactly_the_allowed_depth_is_read() -> None:
    for language in LANGUAGES:
        assert read_document('{"a":' + "[" * 99 + "]" * 99 + "}", format=language)
        assert problems('{"a":' + "[" * 100 + "]" * 100 + "}", language)[0].code == "too_deep"


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_json_comes_back_as_it_was(value: dict[str, Any]) -> None:
    assert read_document(json.dumps(value), format="json") == value


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_what_yaml_writes_is_read_back(value: dict[str, Any]) -> None:
    text = yaml.safe_dump(value, default_style='"', allow_unicode=False)
    assert read_document(text, format="yaml") == value


def is_read_or_refused(text: str | bytes, language: Format | None) -> bool:
    try:
        return isinstance(read_document(text, format=language), dict)
    except Rejected as refusal:
        return len(refusal.problems) > 0


@given(st.text() | st.binary())
def test_any_text_is_read_or_refused(text: str | bytes) -> None:
    assert all(is_read_or_refused(text, language) for language in LANGUAGES)


TOKENS = st.sampled_from([*'{}[],:"&*!|>-? \n\t#aN0.\\', "'", "---", "&a ", "*a", "<<", "!!str ", "\\ud800", "NaN"])


@given(st.lists(TOKENS, max_size=30).map("".join))
def test_almost_documents_are_read_or_refused(text: str) -> None:
    assert all(is_read_or_refused(text, language) for language in LANGUAGES)


# Places of problems

YAML = """\
name: x
nodes:
  - id: a
    config: {"a/b": {deep: [1, {x: 2}]}}
  - &two {id: b}
  - *two
"""
JSON = '{\n\t"name": "x",\n\t"nodes": [\n\t\t{"id": "a", "config": {"a/b": {"deep": [1, {"x": 2}]}}}\n\t]\n}\n'


@pytest.mark.parametrize(
    ("text", "path", "place"),
    [
        (YAML, "/name", (1, 1)),
        (YAML, "/nodes/0", (3, 5)),
        (YAML, "/nodes/0/config", (4, 5)),
        (YAML, "/nodes/0/config/a~1b/deep/1/x", (4, 33)),
        (YAML, "/nodes/0/type", (3, 5)),
        (YAML, "/nodes/0/retry/max_attempts", (3, 5)),
        (YAML, "/nodes/9/id", (2, 1)),
        (YAML, "/nodes/2/id", (5, 11)),
        (YAML, "/inputs", (0, 0)),
        (YAML, "", (0, 0)),
        (JSON, "/name", (2, 2)),
        (JSON, "/nodes/0/config/a~1b/deep/1/x", (4, 47)),
        ("\ufeff" + YAML, "/name", (1, 1)),
        ("not: [read", "/not", (0, 0)),
        ("", "/name", (0, 0)),
    ],
)
def test_where_a_path_is_in_the_text(text: str, path: str, place: tuple[int, int]) -> None:
    for given_text in (text, text.encode()):
        (problem,) = with_places([Problem(code="c", message="m", path=path)], given_text)
        assert (problem.line, problem.column) == place
        known = {"code": "c", "path": path, "message": "m", "hint": ""}
        assert problem.to_dict() == (known | {"line": place[0], "column": place[1]} if place[0] else known)


def test_the_place_is_part_of_what_is_said() -> None:
    problem = Problem(code="c", message="m", path="/a", line=3, column=7)
    assert str(problem) == "/a: line 3, column 7: m [c]"
    assert with_places([problem], "a: 1") == (problem,), "a place that is known stays"
    assert with_places([], "a: 1") == ()


def test_places_of_many_problems_do_not_take_the_square_of_their_number() -> None:
    names = [f"key{number}" for number in range(20_000)]
    text = "\n".join(f"{name}: 1" for name in names)
    found = with_places([Problem(code="c", message="m", path=f"/{name}") for name in names], text)
    assert [problem.line for problem in found] == list(range(1, 20_001))
