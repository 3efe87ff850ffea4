"""Conditions over JSONPath queries: operators, missing values, reach, and hostile authors."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.scopes import AFTER, SCOPE, WatchedScope, evaluate
from tests.pace import allowed
from tidemill.errors import Problem
from tidemill.expressions.conditions import decide_leaf, normal, parse_condition
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.jsonpath.condition import JsonPath, parse_jsonpath
from tidemill.expressions.scope import Absent

NOT_GIVEN = object()
OUTPUT: Any = {
    "n": 3,
    "f": 2.5,
    "s": "text",
    "t": True,
    "z": None,
    "list": [1, 2, 3],
    "none": [],
    "words": ["b", "a"],
    "mixed": [1, "a"],
    "flags": [1, True],
    "empty": "",
    "obj": {"k": 1},
    "bare": {},
    "rows": [{"p": 5, "q": 1}, {"p": 7}, {"p": 9, "q": None}],
    "big": [10**400, 1],
    "huge": [1e308, 1e308],
    "tenths": [0.1] * 10,
}


def parsed(query: str, operator: str, value: Any = NOT_GIVEN, **more: Any) -> JsonPath:
    raw = {"type": "jsonpath", "query": query, "operator": operator, **more}
    condition, problems = parse_condition(raw if value is NOT_GIVEN else raw | {"value": value})
    assert isinstance(condition, JsonPath), problems
    return condition


def problems_of(**raw: Any) -> list[Problem]:
    problems: list[Problem] = []
    assert parse_jsonpath({"type": "jsonpath", **raw}, "", problems) is None
    return problems


def holds(condition: JsonPath, output: Any = OUTPUT) -> bool:
    return evaluate(condition, replace(AFTER, output=output)).value


ANSWERS: list[tuple[str, str, Any, bool]] = [
    # One value
    ("$.n", "==", 3, True),
    ("$.n", "==", "3", False),
    ("$.t", "==", 1, False),
    ("$.t", "==", True, True),
    ("$.z", "==", None, True),
    ("$.list", "==", [1, 2, 3], True),
    ("$.flags", "==", [1, 1], False),
    ("$.obj", "==", {"k": 1.0}, True),
    ("$.n", "!=", 4, True),
    ("$.n", ">", 2, True),
    ("$.n", ">=", 3, True),
    ("$.n", "<", 3.5, True),
    ("$.f", "<=", 2, False),
    ("$.n", "in", [1, 3], True),
    ("$.t", "in", [1, 3], False),
    ("$.n", "not_in", [1, 2], True),
    ("$.list", "contains", 2, True),
    ("$.list", "contains", True, False),
    ("$.s", "contains", "ex", True),
    ("$.obj", "contains", "k", True),
    ("$.n", "exists", True, True),
    ("$.z", "exists", True, True),
    # Nothing
    ("$.no", "==", 1, False),
    ("$.no", "!=", 1, True),
    ("$.no", ">", 1, False),
    ("$.no", "in", [None], False),
    ("$.no", "not_in", [None], True),
    ("$.no", "exists", True, False),
    ("$.no", "exists", False, True),
    ("$.no", "empty", True, True),
    ("$.no[*]", "==", 1, False),
    ("$.no[*]", "empty", True, True),
    # Empty
    ("$.none", "empty", True, True),
    ("$.empty", "empty", True, True),
    ("$.z", "empty", True, True),
    ("$.list", "empty", True, False),
    ("$.list", "empty", False, True),
    ("$.n", "empty", True, False),
    ("$.none[*]", "empty", True, True),
    ("$.rows[*].q", "empty", True, False),
    # Several values
    ("$.rows[*].p", "==", [5, 7, 9], True),
    ("$.rows[*].p", "==", [5, 7], False),
    ("$.no[*]", "==", [], True),
    ("$.rows[?@.p == 7].p", "==", 7, True),
    ("$.rows[?@.p == 7].p", ">", 6, True),
    ("$.rows[?@.p == 70].p", ">", 6, False),
    ("$.rows[*].p", "contains", 7, True),
    ("$.rows[*].q", "contains", None, True),
    # Aggregates
    ("$.rows[*].p", "count_eq", 3, True),
    ("$.rows[*].q", "count_lt", 3, True),
    ("$.rows", "count_eq", 3, True),
    ("$.n", "count_eq", 1, True),
    ("$.no", "count_eq", 0, True),
    ("$.rows[*].p", "sum_gt", 20, True),
    ("$.rows[*].p", "sum_eq", 21.0, True),
    ("$.list", "sum_eq", 6, True),
    ("$.n", "sum_ge", 3, True),
    ("$.no", "sum_eq", 0, True),
    ("$.tenths", "sum_eq", 1, True),
    ("$.big", "sum_gt", 5, True),
    ("$.rows[*].p", "avg_eq", 7, True),
    ("$.no", "avg_gt", 0, False),
    ("$.no", "avg_ne", 0, True),
    ("$.rows[*].p", "min_eq", 5, True),
    ("$.rows[*].p", "max_ge", 9, True),
    ("$.words", "min_eq", "a", True),
    ("$.no[*]", "min_lt", 5, False),
    ("$.words", "min_eq", 5, False),
    # Length
    ("$.list.length()", "==", 3, True),
    ("$.s.length()", ">", 3, True),
    ("$.list .length()", "==", 3, True),
    ("$.no.length()", "==", 0, False),
    ("$.rows[?@.p > 5].length()", "==", 2, True),
    ("$.no[*].length()", "==", 0, True),
    ("$.length()", ">", 5, True),
]

FAILURES: list[tuple[str, str, Any, str]] = [
    ("$.s", ">", 1, "a string"),
    ("$.t", ">", 0, "a boolean"),
    ("$.z", "<", 0, "null"),
    ("$.n", "contains", 1, "a number"),
    ("$.obj", "contains", 1, "an object"),
    ("$.rows[*].p", ">", 1, "3 were found"),
    ("$.rows[*].p", "==", 5, "3 were found"),
    ("$.mixed", "sum_gt", 1, "a string"),
    ("$.flags", "sum_gt", 1, "a boolean"),
    ("$.rows[*].q", "avg_gt", 1, "null"),
    ("$.words", "min_gt", 1, "a string"),
    ("$.big", "avg_gt", 1, "too large"),
    ("$.huge", "sum_gt", 1, "too large"),
    ("$.n.length()", "==", 1, "a number has no length"),
]


@pytest.mark.parametrize(("query", "operator", "value", "answer"), ANSWERS)
def test_an_operator_answers(query: str, operator: str, value: Any, answer: bool) -> None:
    assert holds(parsed(query, operator, value)) is answer


@pytest.mark.parametrize(("query", "operator", "value", "said"), FAILURES)
def test_what_cannot_be_compared_fails_and_names_the_kinds(query: str, operator: str, value: Any, said: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        holds(parsed(query, operator, value))
    assert caught.value.code == "condition_failed"
    assert said in caught.value.message
    assert query in caught.value.message
    assert "text" not in caught.value.message.split(" (in ")[0], "values never show"


def test_several_values_are_refused_with_a_way_out() -> None:
    with pytest.raises(ExpressionError) as caught:
        holds(parsed("$.rows[*].p", ">", 1))
    assert all(word in caught.value.hint for word in ("count_gt", "min_gt", "max_gt", "contains"))


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        ({}, [("condition_shape", ""), ("condition_shape", "")]),
        ({"query": 1, "operator": "exists"}, [("condition_shape", "/query")]),
        ({"query": "$.a", "operator": "exists", "valeu": 1}, [("condition_shape", "/valeu")]),
        ({"query": "$.a", "operator": "="}, [("condition_shape", "/operator")]),
        ({"query": "$.a", "operator": "=="}, [("condition_shape", "")]),
        ({"query": "$.a", "operator": ">", "value": True}, [("condition_shape", "/value")]),
        ({"query": "$.a", "operator": "in", "value": "abc"}, [("condition_shape", "/value")]),
        ({"query": "$.a", "operator": "exists", "value": 1}, [("condition_shape", "/value")]),
        ({"query": "$.a", "operator": "sum_gt", "value": "1"}, [("condition_shape", "/value")]),
        ({"query": "$.a", "operator": "min_gt", "value": [1]}, [("condition_shape", "/value")]),
        ({"query": "$.a", "operator": "exists", "source": "inputs"}, [("condition_shape", "/source")]),
        ({"query": "a", "operator": "exists"}, [("condition_syntax", "/query")]),
        ({"query": "$" + ".a" * 5000, "operator": "exists"}, [("condition_syntax", "/query")]),
        ({"query": "$.a.length()", "operator": "sum_gt", "value": 1}, [("condition_shape", "/operator")]),
        ({"query": "$.a.length()", "operator": "exists"}, [("condition_shape", "/operator")]),
        ({"query": "$.a.b", "operator": "exists", "source": "ctx"}, [("condition_unknown_name", "/query")]),
        (
            {"query": "a", "operator": "sum", "value": 1, "source": 1, "x": 1},
            [
                ("condition_shape", "/x"),
                ("condition_shape", "/source"),
                ("condition_shape", "/operator"),
                ("condition_syntax", "/query"),
            ],
        ),
    ],
)
def test_every_problem_is_reported(raw: dict[str, Any], found: list[tuple[str, str]]) -> None:
    assert [(problem.code, problem.path) for problem in problems_of(**raw)] == found


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ("a.b", "$.a.b"),
        ("[0]", "$[0]"),
        ("..a", "$..a"),
        ("@.a", "$.a"),
        ("$[?@.a = 1]", "=="),
        ("$[?@.a === 1]", "=="),
        ("$[?@.a & @.b]", "&&"),
        ("$[?@.a and @.b]", "&&"),
        ("$[?@.a | @.b]", "||"),
        ("$[?not @.a]", "!"),
        ("$[?@.a =~ 'x']", "match("),
        ("$[?@.a in [1]]", "||"),
        ("$.a-b", "['a-b']"),
        ("$[a]", "['a']"),
        ("$[?@.a == True]", "true"),
        ("$.a.max()", "max_gt"),
        ("$.a.length().b", "length(@.x)"),
        ("$[?foo(@) == 1]", "functions: length"),
        ("$[?match(@, '\\d')]", "twice"),
        ("$[?@.x == '= and |']]", ""),
    ],
)
def test_the_usual_mistakes_have_a_hint(query: str, hint: str) -> None:
    (problem,) = problems_of(query=query, operator="exists")
    assert problem.code == "condition_syntax"
    assert hint in problem.hint if hint else problem.hint == ""


@pytest.mark.parametrize(
    ("operator", "near"),
    [("=", "=="), ("<>", "!="), ("nin", "not_in"), ("sum", "sum_gt"), ("sum_gte", "sum_ge"), ("exist", "exists")],
)
def test_a_wrong_operator_gets_the_nearest(operator: str, near: str) -> None:
    (problem,) = problems_of(query="$.a", operator=operator, value=1)
    assert f'did you mean "{near}"?' in problem.hint


def test_the_normal_form() -> None:
    written = {"type": "jsonpath", "query": "$.a", "operator": "exists", "value": True}
    assert normal(parsed("$.a", "exists")) == written
    assert normal(parsed("$.a", "==", 1, source="current")) == normal(parsed("$.a", "==", 1, source="output"))
    ctx = normal(parsed("$.a.output.length()", "==", 1, source="context"))
    assert ctx == {"type": "jsonpath", "query": "$.a.output.length()", "operator": "==", "value": 1, "source": "ctx"}
    condition, problems = parse_condition(ctx)
    assert condition is not None, problems
    assert normal(condition) == ctx


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (parsed("$.n", ">", 2), "$.n > 2 is true"),
        (parsed("$.n", "exists"), "$.n exists is true"),
        (parsed("$.no", "exists", False), "$.no exists == false is true"),
        (parsed("$.s", "in", ["text"]), '$.s in ["text"] is true'),
        (parsed("$.enrich.output.score", ">", 1, source="ctx"), "ctx $.enrich.output.score > 1 is true"),
    ],
)
def test_the_reason_names_the_condition(condition: JsonPath, words: str) -> None:
    assert evaluate(condition, replace(AFTER, output=OUTPUT)).reason == words


@pytest.mark.parametrize(
    ("query", "nodes", "dynamic"),
    [
        ("$.enrich.output.score", {"enrich"}, False),
        ("$['a-b'].output[0]", {"a-b"}, False),
        ("$['enrich','text'].output", {"enrich", "text"}, False),
        ("$.enrich.output.items[?@.id > $.text.output].n", {"enrich", "text"}, False),
        (
            "$.enrich.output.items[?@.id == count($.later.output[?@ == $.text.output])]",
            {"enrich", "later", "text"},
            False,
        ),
        ("$.enrich.output.items[?@.id == count($.*)].n", {"enrich"}, True),
        ("$.*.output", set(), True),
        ("$..score", set(), True),
        ("$[?@.meta.attempts > 1].output", set(), True),
        ("$", set(), True),
    ],
)
def test_the_nodes_that_a_query_reads_are_known(query: str, nodes: set[str], dynamic: bool) -> None:
    condition = parsed(query, "exists", source="ctx")
    assert condition.references.nodes == nodes
    assert condition.references.dynamic is dynamic
    assert condition.references.roots == {"ctx"}
    watched = WatchedScope(SCOPE.nodes)
    scope = replace(AFTER, nodes=watched)
    condition.holds(condition.bind(scope), scope)
    assert dynamic or watched.asked <= nodes


def test_the_own_output_is_the_root_of_its_references() -> None:
    assert parsed("$.a", "exists").references.roots == {"output"}
    with pytest.raises(ExpressionError, match="output is not available here"):
        evaluate(parsed("$.a", "exists"), SCOPE)


@pytest.mark.parametrize(
    ("query", "operator", "value", "answer"),
    [
        ("$.enrich.output.score", "==", 87, True),
        ("$.enrich.meta.attempts", "==", 2, True),
        ("$['a-b'].output", "sum_eq", 6, True),
        ("$.skipped.output", "exists", True, False),
        ("$.nobody.output", "exists", True, False),
        ("$.failed.meta.status", "==", "FAILED", True),
        ("$.failed.output", "exists", True, False),
        ("$.*.output", "count_eq", 4, True),
        ("$[?@.meta.attempts > 1].output.score", "==", 87, True),
        ("$.enrich.output.items[?@.id == $['a-b'].output[1]].n", "==", "b", True),
    ],
)
def test_other_nodes_are_seen_with_output_and_meta(query: str, operator: str, value: Any, answer: bool) -> None:
    nodes = {**SCOPE.nodes, "failed": Absent("has failed", {"status": "FAILED"})}
    verdict = evaluate(parsed(query, operator, value, source="ctx"), replace(AFTER, nodes=nodes))
    assert verdict.value is answer


def test_only_what_the_query_looks_into_is_counted() -> None:
    output = {"n": 1, "other": list(range(5000)), "rows": [{"p": 1}]}
    assert holds(parsed("$.n", "==", 1), output)
    assert holds(parsed("$.rows[*].p", "sum_eq", 1), output)
    assert holds(parsed("$.other.length()", "==", 5000), output)
    assert holds(parsed("$.other", "count_eq", 5000), output)
    assert holds(parsed("$.other", "exists"), output)
    assert holds(parsed("$.other", "empty", False), output)


@pytest.mark.parametrize(
    ("query", "operator"),
    [("$.other[*]", "count_gt"), ("$.other", "sum_gt"), ("$..p", "count_gt"), ("$.rows[?@.p > $.n]", "count_gt")],
)
def test_what_looks_into_much_is_decided_elsewhere(query: str, operator: str) -> None:
    output = {"n": 1, "other": list(range(5000)), "rows": [{"p": 1}]}
    request = next(decide_leaf(parsed(query, operator, 0), replace(AFTER, output=output)))
    assert request.leaf.holds(request.leaf.bind(request.scope), request.scope) is (query != "$.rows[?@.p > $.n]")


@pytest.mark.parametrize(
    ("query", "light"),
    [
        ("$.a.b[0]", True),
        ("$" + ".a" * 1000, True),
        ("$.rows[*].a", True),
        ("$..a", True),
        ("$..a..b", False),
        ("$['a','b','c','d','e'].x", True),
        ("$['a','a']['a','a']['a','a']", False),
        ("$[0,0][0,0][0,0]", False),
        ("$.rows[?@.a == 1 && !@.b || @.c < $.d]", True),
        ("$.rows[?count(@.a) == 1]", True),
        ("$.rows[?count(@.*) == 1]", False),
        ("$.rows[?value(@..a) == 1]", False),
        ("$.rows[?@.*]", False),
        ("$.rows[?@[?@.a]]", False),
        ("$.rows[?$.a == $.b]", False),
        ("$.rows[?search(@.a, 'plain')]", True),
        ("$.rows[?match(@.a, '.*@example\\\\.com')]", True),
        ("$.rows[?search(@.a, 'a+b')]", False),
        ("$.rows[?search(@.a, 'a|b')]", False),
        ("$.rows[?search(@.a, @.pattern)]", False),
        ("$.rows[?search($.a, 'plain')]", False),
        ("$.rows[?" + " || ".join(["@.a == 1"] * 60) + "]", False),
    ],
)
def test_what_is_light_is_known_from_the_query(query: str, light: bool) -> None:
    assert parsed(query, "exists").light is light


NESTED: Any = []
for _ in range(150):
    NESTED = [NESTED]
HOSTILE: list[tuple[str, Any]] = [
    ("$..*", {"a": list(range(500)), "b": [[each] for each in range(200)]}),
    ("$..[*, *, *, *]", [list(range(30)) for _ in range(30)]),
    ("$..[?" + "||".join(["@==1"] * 60) + "]", list(range(999))),
    ("$[*][?" + "||".join(["@==$.a"] * 40) + "]", {"a": NESTED, "b": [NESTED] * 3}),
    ("$.b[?" + "||".join(["@==$.a"] * 40) + "]", {"a": "x" * 15_000 + "y", "b": ["x" * 30] * 500}),
    ("$..[?search(@, 'aaaaaaaaaaaaaaab')]", ["a" * 35] * 900),
    ("$..[?match(@, '.*aaaaaaaaaaaaaaab')]", ["a" * 15_000, "a" * 15_000]),
    ("$" + "[*]" * 150, NESTED),
    ("$..a", {"k" * 75 + str(each): {"a": 1} for each in range(400)}),
]


@pytest.mark.parametrize(("query", "output"), HOSTILE, ids=[query[:30] for query, _ in HOSTILE])
def test_what_is_light_ends_soon(query: str, output: Any) -> None:
    condition = parsed(query, "count_ge", 0)
    assert condition.light
    assert holds(condition, output)
    began = time.thread_time()
    holds(condition, output)
    assert time.thread_time() - began < allowed(0.5), "some milliseconds on an idle machine"


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(a|a?)+b", "(.*)*x", "([a-z]+)*!"])
def test_a_regular_expression_takes_linear_time(pattern: str) -> None:
    condition = parsed(f"$[?search(@, '{pattern}')]", "count_ge", 0)
    began = time.thread_time()
    condition.holds([["a" * 50_000 + "-"]], AFTER)
    assert time.thread_time() - began < allowed(2)


def test_no_depth_of_a_value_hurts() -> None:
    deep: Any = {"a": 1}
    for _ in range(20_000):
        deep = {"d": deep}
    assert parsed("$..a", "==", 1).holds([deep], AFTER)
    assert parsed("$.d", "==", 1).holds([deep], AFTER) is False


@pytest.mark.parametrize(
    "query",
    [
        "$[?" + "(" * 8000,
        "$[?" + "(" * 50 + "@.a" + ")" * 50 + "]",
        "$" + "[?@" * 2000 + "]" * 2000,
        "$[?" + "||".join(["@.a"] * 1600) + "]",
        "$[?" + "length(" * 45 + "@" + ")" * 45 + "==1]",
        "$[?@.a == '" + "\\u0041" * 1300 + "']",
        "$" + "..*" * 2700,
        "$[" + ",".join(["0"] * 4000) + "]",
        "$[?@ == " + "9" * 8000 + "]",
        "$[?match(@,'" + "(" * 4000 + ")" * 4000 + "')]",
        "$[?match(@,'" + "(a{1,9}){1,9}" * 500 + "')]",
        "$\x00",
        "$['\ud800']",
    ],
)
def test_no_query_hurts_who_reads_it(query: str) -> None:
    began = time.thread_time()
    problems: list[Problem] = []
    parse_jsonpath({"type": "jsonpath", "query": query, "operator": "exists"}, "", problems)
    assert all(problem.code == "condition_syntax" for problem in problems)
    assert time.thread_time() - began < allowed(2)


def test_a_query_that_was_accepted_is_accepted_deep_in_the_stack() -> None:
    """A condition is read once more where it is decided, perhaps with less of the stack left."""
    deepest = "$[?" + "(" * 50 + "&&".join(["@.a == 1"] * 98) + ")" * 50 + "]"
    nested = "$" + "[?@" * 49 + "]" * 49

    def at(depth: int) -> tuple[bool, bool]:
        if depth > 0:
            return at(depth - 1)
        return parsed(deepest, "exists").light, parsed(nested, "exists").light

    above = (parsed(deepest, "exists").light, parsed(nested, "exists").light)
    assert at((sys.getrecursionlimit() - 1000) + 300) == above


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=20,
)
STEPS = st.sampled_from(
    [".a", ".b", "[0]", "[-1]", "[*]", "..a", "[1:]", "[?@.a]", "[?@ > 1]", "[?@.a == $.b]", "['a','b']"]
)
QUERIES = st.lists(STEPS, max_size=4).map(lambda steps: "$" + "".join(steps)) | st.text(
    "$.[]?@'a0*:=<&|!() ", max_size=12
)
OPERATOR_NAMES = "== != > <= in not_in contains exists empty count_gt sum_lt avg_ge min_eq max_ne"
OPERATORS = st.sampled_from(OPERATOR_NAMES.split())


@given(QUERIES, OPERATORS, JSON, JSON, st.booleans())
def test_any_query_over_any_value_is_true_false_or_a_failure(
    query: str, operator: str, value: Any, output: Any, measured: bool
) -> None:
    raw = {"type": "jsonpath", "query": query + ".length()" * measured, "operator": operator, "value": value}
    condition, problems = parse_condition(raw)
    if condition is None:
        assert problems
        return
    assert isinstance(condition, JsonPath)
    scope = replace(AFTER, output=output)
    with suppress(ExpressionError):
        assert condition.holds(condition.bind(scope), scope) in (True, False)


@given(JSON, QUERIES)
def test_equal_and_unequal_are_opposites(output: Any, query: str) -> None:
    condition, _ = parse_condition({"type": "jsonpath", "query": query, "operator": "==", "value": output})
    opposite, _ = parse_condition({"type": "jsonpath", "query": query, "operator": "!=", "value": output})
    if not isinstance(condition, JsonPath) or not isinstance(opposite, JsonPath):
        return
    scope = replace(AFTER, output=output)
    try:
        answer = condition.holds(condition.bind(scope), scope)
    except ExpressionError:
        return
    assert opposite.holds(opposite.bind(scope), scope) is not answer


@pytest.mark.parametrize(
    ("pattern", "message", "hint"),
    [
        ("(", "cannot be compiled: missing )", r"is written \( or \["),
        ("a)", "cannot be compiled: unexpected )", r"is written \( or \["),
        ("(?=a)", "cannot be compiled: invalid perl operator", "look-around"),
    ],
)
def test_a_pattern_that_cannot_be_compiled_says_why(pattern: str, message: str, hint: str) -> None:
    raw = {"type": "jsonpath", "query": f"$[?match(@, '{pattern}')]", "operator": "exists"}
    condition, (problem,) = parse_condition(raw)
    assert condition is None
    assert message in problem.message and hint in problem.hint
