"""Attacks in JSON Schema and in comparisons: references that lead out or explode, patterns, and odd operands."""

from __future__ import annotations

from tests.attacks.attack import Failed, Gives, Refused, each, group
from tidemill.expressions.scope import Json

INVALID, SHAPE, FAILED = "schema_invalid", "condition_shape", "condition_failed"
NAUGHT = Failed(FAILED)
MISSHAPEN = Refused(SHAPE)
NOT_FETCHED = Refused(INVALID)


def matching(schema: Json, **more: Json) -> Json:
    """Write a condition over the output."""
    return {"type": "schema_validation", "schema": schema, **more}


def nested(depth: int, keyword: str = "not") -> Json:
    """Put schemas into each other."""
    schema: Json = {"type": "object"}
    for _ in range(depth):
        schema = {keyword: [schema] if keyword.endswith("Of") else schema}
    return schema


def doubling(depth: int, keyword: str = "allOf") -> Json:
    """Write definitions each of which refers twice to the next."""
    definitions: dict[str, Json] = {
        f"d{level}": {keyword: [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(depth)
    }
    return {"$defs": {**definitions, f"d{depth}": {"type": "object"}}, "$ref": "#/$defs/d0"}


def coming_back(depth: int) -> Json:
    """Write definitions that refer twice to the next, below two keys, and to the first at the end."""
    definitions = {
        f"d{level}": {"properties": {key: {"$ref": f"#/$defs/d{level + 1}"} for key in "kl"}} for level in range(depth)
    }
    ends = {f"d{depth}": {"properties": {key: {"$ref": "#/$defs/d0"} for key in "klm"}}}
    return {"$defs": {**definitions, **ends}, "$ref": "#/$defs/d0"}


def every(name: str, count: int) -> dict[str, Json]:
    """Refer to the same definition below many keys."""
    return {"properties": {f"{name}{number}": {"$ref": "#/$defs/a"} for number in range(count)}}


TARGETS = """
    file://<file> file:<file> <file> <url> https://127.0.0.1/schema data:application/json,{} //127.0.0.1/schema
    other.json urn:example:x #/nowhere
"""
REFERENCES = group(
    "reference",
    NOT_FETCHED,
    *(matching({"$ref": target}) for target in TARGETS.split()),
    matching({"$dynamicRef": "<url>"}),
    matching({"$schema": "<url>"}),
    matching({"$schema": "http://json-schema.org/draft-07/schema#"}),
    matching({"$id": "<url>", "$ref": "other"}),
    matching({"properties": {"a": {"items": {"anyOf": [{"$ref": "<url>"}]}}}}),
    matching({"$defs": {"a": {"$ref": "file://<file>"}}}),
    matching({"if": {"$ref": "<url>"}, "then": False}),
    matching({"$ref": 5}),
    matching({"$ref": None}),
)

RECURSION = each(
    "recursion",
    (matching({"$ref": "#"}), Gives(True)),
    (
        matching({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        Gives(True),
    ),
    (matching({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}), Refused(INVALID)),
    (matching({"not": {"$ref": "#"}}), Gives(False)),
    (matching({"$dynamicAnchor": "a", "$dynamicRef": "#a"}), Gives(True)),
    (matching({"properties": {"rows": {"$ref": "#"}}, "items": {"$ref": "#"}}), Gives(True)),
    (matching({"additionalProperties": {"$ref": "#"}, "items": {"$ref": "#"}}), Gives(True)),
    (matching({"additionalProperties": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}), Gives(True)),
    (matching(doubling(10)), Gives(True)),
    (matching(doubling(40)), Refused(INVALID)),
    (matching(doubling(40, "anyOf")), Refused(INVALID)),
    (matching(doubling(40, "oneOf")), Refused(INVALID)),
    (matching(doubling(25)), Refused(INVALID)),
    (matching(doubling(14)), Refused(INVALID)),
    (matching({"title": "another"} | doubling(14)), Refused(INVALID)),
    (matching(coming_back(60)), Refused(INVALID)),
    (matching(coming_back(13)), Refused(INVALID)),
    (matching(coming_back(5)), Gives(True)),
    (matching({"$defs": {"a": every("p", 200)}, **every("q", 95)}), Gives(True)),
)

PATTERNS = each(
    "pattern",
    (matching({"properties": {"text": {"pattern": "(a+)+$"}}}), Gives(True)),
    (matching({"properties": {"text": {"pattern": "^(a+)+b$"}}}), Gives(False)),
    (matching({"properties": {"text": {"pattern": "(a|aa)+b"}}}), Gives(False)),
    (matching({"properties": {"text": {"pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}}}), Gives(False)),
    (matching({"properties": {"text": {"pattern": "(?=(a+))a*\\1b"}}}), Gives(False)),
    (matching({"properties": {"text": {"pattern": "(?<!b)(a*)*c"}}}), Gives(False)),
    (matching({"properties": {"text": {"pattern": "(.*)\\1{5}x"}}}), Gives(False)),
    (matching({"properties": {"text": {"pattern": "a{1000}{1000}"}}}), Refused(INVALID)),
    (matching({"properties": {"text": {"pattern": "((a{100}){100}){100}"}}}), Refused(INVALID)),
    (matching({"properties": {"text": {"pattern": "(a?){400}a{400}b"}}}), Gives(False)),
    (matching({"properties": {"text": {"pattern": "("}}}), Refused(INVALID)),
    (
        matching({"pattern": "|".join(f"(?=\\w{{20}}{number})" for number in range(300))}),
        Refused(INVALID, "look around"),
    ),
    (matching({"pattern": "|".join(f"(?=\\w{{20}}{number})" for number in range(30))}), Gives(True)),
    (matching({"pattern": "".join(f"(a)\\{number}" for number in range(1, 60))}), Refused(INVALID, "or back")),
    (matching({"properties": {"text": {"pattern": "(" * 3000 + ")" * 3000}}}), Refused(INVALID)),
    (matching({"properties": {"text": {"pattern": "a?" * 500_000}}}), Refused(INVALID)),
    (matching({"patternProperties": {"b?" * 500_000: True}}), Refused(INVALID)),
    (matching({"patternProperties": {"(a+)+$": False}}), Gives(True)),
    (matching({"patternProperties": {"(x|n|a)+$": False}}), Gives(False)),
    (matching({"patternProperties": {"^(\\w+\\s?)*$": True}}), Gives(True)),
    (matching({"patternProperties": {f"^(a|aa)+{number}$": False for number in range(500)}}), Refused(INVALID)),
    (matching({"propertyNames": {"pattern": "^(\\w|\\w\\w)+$"}}), Gives(True)),
    (matching({"properties": {"text": {"format": "regex"}}}), Gives(True)),
    (matching({"properties": {"text": {"format": "email"}}}), Gives(False)),
    (matching({"properties": {"text": {"format": "uri"}}}), Gives(False)),
    (matching({"properties": {"text": {"format": "hostname"}}}), Gives(False)),
    (matching({"properties": {"text": {"format": "date-time"}}}), Gives(False)),
    (matching({"properties": {"text": {"format": "idn-email"}}}), Gives(False)),
    (matching({"properties": {"text": {"format": "__class__"}}}), Gives(True)),
    (matching({"properties": {"rows": {"items": {"properties": {"name": {"pattern": "(a|aa)+b"}}}}}}), Gives(False)),
)

SIZES = each(
    "size",
    (matching(nested(50)), Gives(True)),
    (matching(nested(150)), Refused(INVALID)),
    (matching(nested(250)), Refused(INVALID)),
    (matching(nested(20_000)), Refused(INVALID)),
    (matching(nested(40, "allOf")), Gives(True)),
    (matching({"enum": list(range(100_000))}), Gives(False)),
    (matching({"enum": ["x" * 1_100_000]}), Refused(INVALID)),
    (matching({"allOf": [{"type": "object"}] * 1_000}), Gives(True)),
    (matching({"anyOf": [{"type": "string"}] * 1_000}), Gives(False)),
    (matching({"oneOf": [{"type": "object"}] * 1_000}), Gives(False)),
    (matching({"properties": {"rows": {"uniqueItems": True}}}), Gives(True)),
    (matching({"properties": {"rows": {"contains": {"const": 1}, "minContains": 10**9}}}), Gives(False)),
    (matching({"properties": {"n": {"multipleOf": 1e-300}}}), Gives(True)),
    (matching({"properties": {"n": {"multipleOf": 0}}}), Refused(INVALID)),
    (matching({"properties": {"n": {"maximum": 10**400}}}), Gives(True)),
    (matching({"properties": {"n": {"maximum": 10**5000}}}), Refused(INVALID)),
    (matching({"minProperties": 10**30}), Gives(False)),
    (matching({"maxLength": -1}), Refused(INVALID)),
    (matching({"properties": {"n": {"const": float("nan")}}}), Gives(False)),
    (matching({"properties": {"n": {"minimum": float("inf")}}}), Refused(INVALID)),
    (matching({"title": "\ud800"}), Refused(INVALID)),
    (matching({"title": "\u202e" * 100, "type": "object"}), Gives(True)),
    (matching({"type": "__class__"}), Refused(INVALID)),
    (matching({"type": ["object"] * 2}), Refused(INVALID)),
    (matching({"unevaluatedProperties": False, "allOf": [{"properties": {"n": True}}] * 1000}), Gives(False)),
    (matching(None), Refused(INVALID)),
    (matching("<url>"), Refused(INVALID)),
    (matching([]), Refused(INVALID)),
    (matching(True), Gives(True)),
    (matching(False), Gives(False)),
    (matching(False, invert=True), Gives(True)),
    (matching({}, invert=1), MISSHAPEN),
    (matching({}, invert="true"), MISSHAPEN),
    (matching({}, light=True), MISSHAPEN),
    ({"type": "schema_validation", "schema_ref": "file://<file>"}, MISSHAPEN),
    ({"type": "schema_validation", "schema_ref": "<url>"}, MISSHAPEN),
    ({"type": "schema_validation"}, MISSHAPEN),
)


def compared(left: Json, operator: Json, right: Json) -> Json:
    """Write a comparison of two operands."""
    return {"type": "cross_node_comparison", "left": left, "operator": operator, "right": right}


def computed(expression: Json) -> Json:
    """Write a comparison as an expression in which every number is a double."""
    return {"type": "cross_node_comparison", "expression": expression}


THREE = {"value": 3}
COMPARISONS = each(
    "comparison",
    (compared({"path": "__class__"}, "==", THREE), NAUGHT),
    (compared({"path": "output.__class__.__mro__"}, "==", THREE), NAUGHT),
    (compared({"path": "name.upper"}, "==", THREE), NAUGHT),
    (compared({"path": "rows[0].__len__"}, "==", THREE), NAUGHT),
    (compared({"path": "rows[999999999]"}, "==", THREE), NAUGHT),
    (compared({"path": "rows[99999999999999999999]"}, "==", THREE), MISSHAPEN),
    (compared({"path": "a" * 2000}, "==", THREE), MISSHAPEN),
    (compared({"path": "." * 900}, "==", THREE), MISSHAPEN),
    (compared({"path": "[" * 900}, "==", THREE), MISSHAPEN),
    (compared({"path": "['" + "\\" * 900}, "==", THREE), MISSHAPEN),
    (compared({"path": '["' + "\\" * 900}, "==", THREE), MISSHAPEN),
    (compared({"path": "n\x00"}, "==", THREE), NAUGHT),
    (compared({"path": "n\u200b"}, "==", THREE), NAUGHT),
    (compared({"path": "\uff4e"}, "==", THREE), NAUGHT),
    (compared({"path": "\ud800"}, "==", THREE), NAUGHT),
    (compared({"path": ["n"]}, "==", THREE), MISSHAPEN),
    (compared({"source": "secrets", "path": "TOKEN"}, "==", THREE), MISSHAPEN),
    (compared({"source": "context", "node": "secrets", "path": "TOKEN"}, "==", THREE), NAUGHT),
    (compared({"node": "gone", "path": "output"}, "==", THREE), Failed(FAILED, "was skipped")),
    (compared({"node": "abyss", "path": "output"}, "==", {"node": "abyss", "path": "output"}), NAUGHT),
    (compared({"node": "abyss", "path": "output"}, "==", THREE), NAUGHT),
    (compared({"node": "abyss", "path": "output"}, ">", THREE), NAUGHT),
    (compared({"node": "numbers", "path": "output"}, "contains", {"node": "numbers", "path": "output"}), Gives(False)),
    (compared({"node": "long", "path": "output"}, "contains", {"path": "text"}), Gives(True)),
    (compared({"path": "text"}, "in", {"node": "long", "path": "output"}), Gives(True)),
    (compared({"node": "digits", "path": "output"}, ">", THREE), NAUGHT),
    (
        compared({"node": "infinite", "path": "output[2]"}, "==", {"node": "infinite", "path": "output[2]"}),
        Gives(False),
    ),
    (compared({"node": "lone", "path": "output"}, "==", THREE), Gives(False)),
    (compared({"value": True}, "==", {"value": 1}), Gives(False)),
    (compared({"path": "flag"}, ">", THREE), NAUGHT),
    (compared({"path": "n"}, "__eq__", THREE), MISSHAPEN),
    (compared({"path": "n"}, ["=="], THREE), MISSHAPEN),
    (compared({"path": "n"}, {}, THREE), MISSHAPEN),
    (compared({"value": 3, "path": "n"}, "==", THREE), MISSHAPEN),
    (compared("output.n", "==", THREE), MISSHAPEN),
    (compared({}, "==", THREE), MISSHAPEN),
    (computed("current.n == 3"), Gives(True)),
    (computed("current.n"), NAUGHT),
    (computed("secrets.TOKEN == ''"), Refused("condition_unknown_name")),
    (computed("current.n * 1e308 * 1e308 > 1.0"), Gives(True)),
    (computed("current.n / 0 > 1"), Gives(True)),
    (computed("9" * 400 + " > 1"), Refused("condition_syntax")),
    (computed("current.rows.all(a, ctx.numbers.output.all(b, ctx.numbers.output.all(c, b + c >= 0)))"), NAUGHT),
    (computed("ctx.numbers.output.map(a, ctx.numbers.output.map(b, a * b)).size() > 0"), NAUGHT),
    (computed("'x'.matches('a{1000}{1000}')"), Refused("condition_syntax")),
    (computed("ctx.digits.output > 1"), NAUGHT),
    (computed("ctx.abyss.output == 1"), NAUGHT),
    (computed("(" * 3000), Refused("condition_syntax")),
    (computed(["true"]), MISSHAPEN),
    (computed("output.n == '\ud800'"), Refused("condition_syntax")),
)
