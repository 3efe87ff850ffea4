"""Random expressions of every language, made by small grammars: mostly well formed, often nonsense."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from tidemill.expressions.comparisons import RELATIONS
from tidemill.expressions.jsonpath.condition import OPERATORS
from tidemill.expressions.scope import Absent, Json, Scope, Seen
from tidemill.expressions.templates.environment import environment

Text = st.SearchStrategy[str]
Values = st.SearchStrategy[Json]

KEYS = st.sampled_from(["a", "b", "items", "output", "", "a-b", "__class__"])
NUMBERS = st.sampled_from([0, 1, -1, 2, 0.5, -0.0, 1e308, 2**53 + 1, 2**63, -(2**63), 10**30])
STRINGS = st.sampled_from(["", "a", "aa", "1", "true", "2024-01-31", "ä\u202e", "\x00", "(", "{{ a }}"])
LEAVES = st.none() | st.booleans() | NUMBERS | STRINGS
JSON: Values = st.recursive(
    LEAVES, lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=3), max_leaves=8
)
OBJECTS: Values = st.dictionaries(KEYS, JSON, max_size=4)
SCOPES = st.builds(
    lambda a, inputs, output, has_output: Scope(
        nodes={"a": Seen(a, {"status": "COMPLETED"}), "gone": Absent("was skipped"), "a-b": Seen([1, 2])},
        inputs=inputs,
        run={"id": "r1"},
        iteration=2,
        has_output=has_output,
        output=output if has_output else None,
    ),
    JSON,
    OBJECTS,
    JSON | OBJECTS,
    st.sampled_from([True, True, True, False]),
)


def joined(*parts: Text | str) -> Text:
    """Write parts one after the other."""
    return st.tuples(*(st.just(part) if isinstance(part, str) else part for part in parts)).map("".join)


def one_of(*words: str) -> Text:
    return st.sampled_from(words)


def spelled(value: Json) -> str:
    return json.dumps(value)


LITERALS = LEAVES.map(spelled)

# CEL

_CEL_PATHS = one_of(
    "output", "output.a", "output['a']", "output[0]", "current.b", "ctx.a.output", "ctx.a.output.a", "ctx.gone.output",
    "ctx['a-b'].output[1]", "ctx.a.meta.status", "inputs", "inputs.a", "inputs.items", "run.id", "iteration", "x", "y",
    "secrets.T", "ctx[inputs.a]", "output.?a",
)  # fmt: skip
_CEL_LITERALS = LITERALS | one_of("1u", "1.5", "b'a'", "[]", "{}", "[1, 'a']", "{'a': 1}", "r'a+'", "duration('1s')")


def _cel(below: Text) -> Text:
    binary = one_of("+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||", "in")
    function = one_of("size", "has", "int", "double", "string", "bool", "type", "dyn", "timestamp", "bytes", "nothing")
    method = one_of("contains", "startsWith", "endsWith", "matches", "indexOf", "split", "join", "orValue", "map")
    macro = one_of("all", "exists", "exists_one", "map", "filter")
    return (
        joined("(", below, " ", binary, " ", below, ")")
        | joined(one_of("!", "-"), below)
        | joined(below, " ? ", below, " : ", below)
        | joined(function, "(", below, ")")
        | joined(below, ".", method, "(", below, ")")
        | joined(below, ".", macro, "(", one_of("x", "y", "output"), ", ", below, ")")
        | joined("[", below, ", ", below, "]")
        | joined("{", below, ": ", below, "}")
        | joined(below, one_of(".a", "[0]", "['a']", ".?a", "[?0]"))
    )


_CEL_TERMS = _CEL_PATHS | _CEL_LITERALS


def _cel_boolean(below: Text) -> Text:
    return (
        joined(below, one_of(" && ", " || "), below)
        | joined("!(", below, ")")
        | joined("(", below, " ? ", below, " : ", below, ")")
        | joined(_CEL_PATHS, one_of(".all(x, ", ".exists(y, ", ".exists_one(x, "), below, ")")
        | joined("size(", _CEL_PATHS, ".filter(x, ", below, ")) > 0")
    )


_COMPARED = joined(_CEL_PATHS, one_of(" == ", " != ", " < ", " >= ", " in "), _CEL_TERMS)
_ASKED = joined(
    "has(", one_of("output", "inputs", "ctx.a.output", "ctx.gone", "x"), one_of(".a", ".items", ".output"), ")"
)
CEL = st.recursive(_COMPARED | _ASKED, _cel_boolean, max_leaves=5) | st.recursive(_CEL_TERMS, _cel, max_leaves=6)

# JSONPath

_RELATIVE = one_of("@", "@.a", "@[0]", "@.items", "$.a", "$[0]", "@.*", "$..a", "@['a-b']")


def _test(below: Text) -> Text:
    compared = joined(_RELATIVE | LITERALS, " ", one_of("==", "!=", "<", ">", "<=", ">="), " ", _RELATIVE | LITERALS)
    called = joined(one_of("length(", "count(", "value(", "search(", "match("), _RELATIVE, one_of(")", ", 'a+')"))
    return (
        compared
        | called
        | joined(called, " > 1")
        | joined(below, one_of(" && ", " || "), below)
        | joined("!(", below, ")")
    )


_TESTS = st.recursive(_RELATIVE, _test, max_leaves=4)
_SELECTORS = one_of("*", "0", "-1", "'a'", "'a-b'", "1:", "::-1", "0:3:2", "::0") | joined("?", _TESTS)
_SEGMENTS = (
    one_of(".a", ".items", ".*", "..a", "..*")
    | joined("[", _SELECTORS, "]")
    | joined(one_of("[", "..["), _SELECTORS, ",", _SELECTORS, "]")
)
QUERIES = joined("$", st.lists(_SEGMENTS, max_size=3).map("".join), one_of("", "", "", ".length()"))
_OPERATORS_WITH_VALUES = st.one_of(
    st.tuples(st.sampled_from([each for each in OPERATORS if each.startswith(("count", "sum", "avg", "m"))]), NUMBERS),
    st.tuples(one_of("exists", "empty"), st.booleans()),
    st.tuples(one_of("in", "not_in"), st.lists(JSON, max_size=3)),
    st.tuples(one_of("==", "!=", "contains"), JSON),
    st.tuples(one_of("<", "<=", ">", ">="), NUMBERS | STRINGS),
    st.tuples(st.sampled_from(OPERATORS), JSON),
)
JSONPATH: Values = st.builds(
    lambda query, asked, more: {"type": "jsonpath", "query": query, "operator": asked[0], "value": asked[1], **more},
    QUERIES,
    _OPERATORS_WITH_VALUES,
    st.fixed_dictionaries({}, optional={"source": one_of("output", "ctx", "current", "nowhere")}),
)

# JSON Schema

_PATTERNS = one_of("a+", "^(a|aa)+$", "(", "\\d", "(?=a)a", "a{2,3}", "a{1000}{1000}")
_REFERENCES = one_of("#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#nowhere", "http://127.0.0.1:9/x", "file:///x")


def _schema(below: Values) -> Values:
    many = st.lists(below, min_size=1, max_size=2)
    named = st.dictionaries(KEYS, below, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": one_of("object", "array", "string", "number", "integer", "null", "boolean", "any"),
            "enum": st.lists(JSON, min_size=1, max_size=2, unique_by=spelled),
            "minimum": NUMBERS,
            "multipleOf": NUMBERS,
            "maxLength": st.integers(-1, 3),
            "pattern": _PATTERNS,
            "required": st.lists(KEYS, max_size=2, unique=True),
            "properties": named,
            "patternProperties": st.dictionaries(_PATTERNS, below, max_size=1),
            "additionalProperties": below,
            "items": below,
            "allOf": many,
            "oneOf": many,
            "not": below,
            "if": below,
            "then": below,
            "$ref": _REFERENCES,
            "$defs": st.fixed_dictionaries({}, optional={"a": below, "b": below}),
            "unevaluatedProperties": below,
        },
    )


SCHEMAS: Values = st.recursive(st.booleans(), _schema, max_leaves=6)
MATCHING: Values = st.fixed_dictionaries(
    {"type": st.just("schema_validation"), "schema": SCHEMAS | JSON}, optional={"invert": st.booleans()}
)

# Comparisons

_PLACES = one_of("", "a", "a.b", "output", "output.a[0]", 'a["b"]', "['a-b']", "meta.status", "[-1]", "..", "a.length")
OPERANDS: Values = st.fixed_dictionaries({"value": JSON}) | st.fixed_dictionaries(
    {"path": _PLACES},
    optional={"source": one_of("current", "context", "x"), "node": one_of("a", "a-b", "gone", "x"), "default": JSON},
)
COMPARISONS: Values = st.fixed_dictionaries(
    {
        "type": st.just("cross_node_comparison"),
        "left": OPERANDS,
        "operator": st.sampled_from(list(RELATIONS)),
        "right": OPERANDS,
    }
) | st.fixed_dictionaries({"type": st.just("cross_node_comparison"), "expression": CEL})

# Python

_PYTHON_LEAVES = one_of("output", "context", "output['a']", "context['a']['output']", "context.get('gone')", "x", "len")


def _python(below: Text) -> Text:
    binary = one_of("+", "-", "*", "//", "%", "==", "!=", "<", ">", "and", "or", "in", "is", "not in")
    return (
        joined("(", below, " ", binary, " ", below, ")")
        | joined("not ", below)
        | joined(one_of("len", "bool", "str", "int", "sorted", "isinstance", "any", "all", "sum"), "(", below, ")")
        | joined("(", below, " if ", below, " else ", below, ")")
        | joined("[", below, " for x in ", below, "]")
        | joined("{'a': ", below, "}")
        | joined(below, one_of("[0]", "['a']", ".a", ".upper()", ".__class__"))
    )


_PYTHON = st.recursive(_PYTHON_LEAVES | LEAVES.map(repr), _python, max_leaves=5)
_STATEMENTS = (
    joined("    x = ", _PYTHON, "\n")
    | joined("    if ", _PYTHON, ":\n        return ", _PYTHON, "\n")
    | joined("    for x in ", _PYTHON, ":\n        x = 1\n")
    | joined("    try:\n        x = ", _PYTHON, "\n    except Exception:\n        x = 2\n")
    | one_of("    import json\n", "    import socket\n", "    raise ValueError(x)\n", "    del x\n")
)
CODE = joined(
    "def evaluate(output, context):\n    x = 0\n",
    st.lists(_STATEMENTS, max_size=2).map("".join),
    "    return ",
    _PYTHON,
)
SANDBOX: Values = st.fixed_dictionaries(
    {"type": st.just("python_sandbox"), "code": CODE, "timeout_ms": st.just(500), "max_memory_mb": st.just(20)}
)

# All of them

SINGLES: Values = (
    CEL | st.fixed_dictionaries({"type": st.just("cel"), "expression": CEL}) | JSONPATH | MATCHING | COMPARISONS
)
COMPOSITES: Values = st.recursive(
    SINGLES,
    lambda below: st.fixed_dictionaries(
        {
            "type": st.just("composite"),
            "operator": one_of("AND", "OR", "NOT"),
            "conditions": st.lists(below, min_size=1, max_size=3),
        }
    ),
    max_leaves=4,
)
KINDS = ["cel", "composite", "cross_node_comparison", "jsonpath", "python_sandbox", "schema_validation", "x"]
_WORDS = ["conditions", "expression", "query", "value", "left", "right", "schema", "operator", "code", "invert", "path"]
NONSENSE: Values = JSON | st.builds(
    lambda kind, entries: {**entries, "type": kind},
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(_WORDS), JSON, max_size=4),
)

# Templates

_TEMPLATE_PATHS = one_of(
    "inputs", "inputs.a", "inputs.items", "nodes.a.output", "nodes.gone.output", "nodes['a-b'].output", "run.id",
    "iteration", "x", "loop.index", "nodes[inputs.a].output", "secrets.T", "item", "output",
)  # fmt: skip
_FILTERS = st.sampled_from(sorted(name for name in environment().filters if " " not in name))
_TESTS_OF_TEMPLATES = st.sampled_from(sorted(name for name in environment().tests if name.isidentifier()))


def _expression(below: Text) -> Text:
    binary = one_of("+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">", "and", "or", "in")
    return (
        joined("(", below, " ", binary, " ", below, ")")
        | joined("(", below, "|", _FILTERS, one_of("", "(1)", "('a')", "('a', 'b')", "(attribute='a')"), ")")
        | joined("(", below, " is ", _TESTS_OF_TEMPLATES, ")")
        | joined("(", below, " if ", below, " else ", below, ")")
        | joined("[", below, ", ", below, "]")
        | joined("{", below, ": ", below, "}")
        | joined(below, one_of(".a", "[0]", "['a']", ".items()", ".upper()", ".get('a')", "[1:]", ".__class__", "()"))
        | joined("range(", below, ")")
    )


_EXPRESSIONS = st.recursive(_TEMPLATE_PATHS | LEAVES.map(repr), _expression, max_leaves=5)


def _tag(below: Text) -> Text:
    return (
        joined("{% for x in ", _EXPRESSIONS, " %}", below, "{% endfor %}")
        | joined("{% if ", _EXPRESSIONS, " %}", below, "{% else %}", below, "{% endif %}")
        | joined("{% set x = ", _EXPRESSIONS, " %}", below)
        | joined("{% set x %}", below, "{% endset %}{{ x }}")
        | joined("{% macro m(x) %}", below, "{% endmacro %}{{ m(", _EXPRESSIONS, ") }}")
        | joined("{% filter ", _FILTERS, " %}", below, "{% endfilter %}")
        | joined(below, below)
    )


SOURCES = st.recursive(
    joined("{{ ", _EXPRESSIONS, " }}") | one_of("text", "{{", "{% x %}", "{# c #}"), _tag, max_leaves=3
)
TEMPLATES: Values = st.recursive(
    SOURCES | LEAVES,
    lambda below: st.lists(below, max_size=2) | st.dictionaries(KEYS, below, max_size=2),
    max_leaves=3,
)
