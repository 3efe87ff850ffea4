"""What authors write instead of a JSON Schema: types in the words of other languages, names without `properties`."""

from __future__ import annotations

from tidemill.errors import Problem
from tidemill.expressions.errors import shorten
from tidemill.expressions.scope import Json

NAMES_SHOWN_MAX = 8

KINDS = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}

_SPELLINGS = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
    "map": "object",
    "none": "null",
}
"""What other languages call the types of JSON Schema."""


def type_of(name: Json) -> str:
    """The type that a word means; empty if it means none."""
    return "" if not isinstance(name, str) else name if name in KINDS else _SPELLINGS.get(name.lower(), "")


_KEYWORD_NAMES = """
    type enum const title description default deprecated readOnly writeOnly examples format required
    properties patternProperties additionalProperties propertyNames minProperties maxProperties dependentRequired
    dependentSchemas dependencies unevaluatedProperties items prefixItems contains minContains maxContains minItems
    maxItems uniqueItems unevaluatedItems allOf anyOf oneOf not if then else minLength maxLength pattern multipleOf
    minimum maximum exclusiveMinimum exclusiveMaximum contentEncoding contentMediaType contentSchema definitions
"""
_KEYWORDS = frozenset(_KEYWORD_NAMES.split())


def check_names_typed(schema: Json, path: str) -> list[Problem]:
    """Refuse a mapping from names to types: it is a valid schema, because unknown keywords are, and checks nothing."""
    if not isinstance(schema, dict):
        return []
    strings = (key for key in schema if isinstance(key, str))
    names = [key for key in strings if key not in _KEYWORDS and not key.startswith(("x-", "$"))]
    typed = [key for key in names if type_of(schema[key]) or (isinstance(schema[key], dict) and "type" in schema[key])]
    if not names or (len(names) < len(schema) and not typed):
        return []
    # A property may be called like a keyword.
    meant = [key for key in schema if key in names or (isinstance(key, str) and key != "type" and type_of(schema[key]))]
    parts = [f"{shorten(key, 60)}: {_as_schema(schema[key])}" for key in meant[:NAMES_SHOWN_MAX]]
    parts += ["…"] * (len(meant) > NAMES_SHOWN_MAX)
    words = ", ".join(f"`{shorten(key, 60)}`" for key in names[:NAMES_SHOWN_MAX])
    message = (
        f"this is a JSON Schema, and {words} {'is not a keyword' if len(names) == 1 else 'are not keywords'} of it"
    )
    hint = f"write {{type: object, properties: {{{', '.join(parts)}}}}}"
    return [Problem(code="schema_invalid", message=message, path=path, hint=hint)]


def _as_schema(value: Json) -> str:
    inner = value.get("type") if isinstance(value, dict) else value
    return f"{{type: {type_of(inner)}}}" if type_of(inner) else "{}"
