"""JSON Schema 2020-12: check schemas and validate values.

Schemas come from documents, so nothing is ever fetched: a `$ref` leads into the schema itself or is refused. Limits are
checked before a schema reaches the native library. A value that is not known yet (a template in a config) can be
declared a wildcard; errors that depend on it are left for the check after rendering. Decimals in strings are checked,
too: the format `decimal`, with `formatMinimum`, `formatMaximum` and the exclusive ones.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Any, NoReturn, cast
from urllib.parse import urldefrag

import jsonschema_rs
import msgspec
from jsonschema_rs import ValidationError, ValidationErrorKind

from tidemill.errors import Problem
from tidemill.expressions.conditions import is_small
from tidemill.expressions.errors import (
    ExpressionError,
    choices,
    meant,
    number_hint,
    pointer,
    shorten,
)
from tidemill.expressions.limits import DEPTH_MAX, deeper_than
from tidemill.expressions.schema_analysis import (
    ELSE,
    KINDS,
    STEPS_MAX,
    Reach,
    cost_bound,
    described,
    takes_of,
    wanted_by,
)
from tidemill.expressions.scope import Json

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PROBLEMS_MAX = 100
NAMES_SHOWN_MAX = 8
SCHEMA_BYTES_MAX = 1 << 20
CACHED_BYTES_MAX = 1 << 15
PATTERNS_MAX = 200
PATTERNS_TEXT_MAX = 1 << 14
"""Characters of all regular expressions together; even to refuse one of a megabyte takes seconds."""

LOOKS_MAX = 30
"""Look-arounds and back references together; each costs up to 5 ms to compile."""

PATTERN_BYTES_MAX = 1 << 20
BACKTRACKS_MAX = 1000
"""Each may cost another pass over the text, so a text of a mebibyte takes about a second at worst."""

QUOTED_MAX = 60
LIGHT_STEPS_MAX, LIGHT_STATES_MAX = 1000, 100

Wildcard = Callable[[Json], bool]
Synonyms = Mapping[str, Sequence[str]]
"""The keys that another word may stand for; the first that a schema has is offered."""
NO_SYNONYMS: Synonyms = {}

DECIMAL_LENGTH_MAX = 1000
_DECIMAL = re.compile(r"\s*[+-]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)([eE][+-]?\d{1,9})?\s*")
_LOOK = re.compile(r"\(\?<?[=!]|\\(?:[1-9]|k)")

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


class Schema:
    """A compiled schema; immutable, and safe to share between threads."""

    __slots__ = ("_knotted", "_validator", "light", "source")

    def __init__(self, source: Json, validator: jsonschema_rs.Validator, found: Reach) -> None:
        self.source, self._validator = source, validator
        self._knotted = found.knotted
        self.light = not found.refers and found.steps <= LIGHT_STEPS_MAX and _are_light(found.patterns)
        """Whether checking few values ends soon, whatever they are."""

    def accepts(self, value: Json) -> bool:
        """True if the value matches; the fastest check."""
        try:
            return not deeper_than(value) and self.matches(value)
        except ValueError:
            return False

    def matches(self, value: Json) -> bool:
        """True if a value that is not nested too deep matches; raise `ValueError` if it is not JSON."""
        return self._validator.is_valid(value)

    def mismatch(self, value: Json) -> str:
        """Name the first place and keyword that do not match, without quoting the value; empty if all match."""
        try:
            self._validator.validate(value)
        except ValidationError as error:
            where = _pointer("", error.instance_path)
            if isinstance(error.kind, ValidationErrorKind.Required):
                return f'{where or "it"} has no key "{shorten(error.kind.property, 60)}"'
            return f"{where or 'it'} does not keep `{error.schema_path[-1] if error.schema_path else 'false'}`"
        return ""

    def problems(
        self,
        value: Json,
        path: str = "",
        *,
        wildcard: Wildcard | None = None,
        code: str = "schema_mismatch",
        synonyms: Synonyms = NO_SYNONYMS,
    ) -> list[Problem]:
        """Report where a value does not match, at most `PROBLEMS_MAX` places."""
        if self.accepts(value):
            return []
        if deeper_than(value):
            return [Problem(code=code, message=f"it is nested more than {DEPTH_MAX} levels deep", path=path)]
        if self._knotted:
            # Listing the errors would take unbounded time and memory.
            is_open = wildcard is not None and holds_wildcard(value, wildcard)
            return [] if is_open else [Problem(code=code, message="it does not match the schema", path=path)]
        try:
            found = self._validator.iter_errors(value)
            errors = list(
                islice((e for e in found if not (wildcard and _open(e, wildcard, value, self._at))), PROBLEMS_MAX)
            )
        except ValueError as error:
            return [Problem(code=code, message=f"it is not JSON: {shorten(str(error))}", path=path)]
        problems = (problem for error in errors for problem in self._problems_of(error, path, code, synonyms))
        return list(islice(problems, PROBLEMS_MAX))

    def _problems_of(self, error: ValidationError, path: str, code: str, synonyms: Synonyms) -> Iterator[Problem]:
        place = _pointer(path, error.instance_path)
        match error.kind:
            case ValidationErrorKind.AdditionalProperties(unexpected) | ValidationErrorKind.UnevaluatedProperties(
                unexpected
            ):
                at = self._at(error.schema_path[:-1])
                known = list(properties := _properties(at))
                for key in unexpected:
                    message = f'there is no key "{shorten(key, 60)}" here'
                    others = f"known keys: {shorten(', '.join(known), 200)}" if known else ""
                    hint = _synonym_hint(key, properties, synonyms) or meant(key, known) or others
                    yield Problem(code=code, message=message, path=pointer(place, key), hint=hint)
            case ValidationErrorKind.Required(key):
                at = self._at(error.schema_path[:-1])
                if _in_another_word(key, error.instance, at, synonyms):
                    return
                # A condition of the schema may ask for a key that stands above it.
                of_all = self.source if not error.instance_path else at
                wanted = next((p[key] for each in (at, of_all) if key in (p := _properties(each))), None)
                takes = takes_of(wanted) if isinstance(wanted, dict) else ""
                hint = takes and f"it takes {takes}"
                yield Problem(code=code, message=f'the key "{key}" is missing', path=place, hint=hint)
            case ValidationErrorKind.Enum(options):
                value = error.instance
                message = f"{choices([value])} is not one of {choices(options)}"
                names = [option for option in options if isinstance(option, str)]
                hint = meant(value, names) if isinstance(value, str) else ""
                yield Problem(code=code, message=message, path=place, hint=hint)
            case ValidationErrorKind.AnyOf(context) if inner := _beside_null(
                error, context, self._at(error.schema_path)
            ):
                for each in inner:
                    yield from self._problems_of(each, path, code, synonyms)
            case ValidationErrorKind.AnyOf() | ValidationErrorKind.OneOfNotValid():
                schemas = self._at(error.schema_path)
                wanted = list(dict.fromkeys(map(wanted_by, schemas))) if isinstance(schemas, list) else [ELSE]
                said = "it fits none of the alternatives" if ELSE in wanted else f"it is none of: {', '.join(wanted)}"
                message, hint = shorten(said, 300), _alternatives(error)
                if isinstance(schemas, list) and all(
                    isinstance(each, dict) and [*each] == ["required"] for each in schemas
                ):
                    either = " or ".join(" with ".join(f'"{key}"' for key in each["required"]) for each in schemas)
                    message, hint = f"the key {either} is missing", ""
                yield Problem(code=code, message=message, path=place, hint=hint)
            case ValidationErrorKind.Pattern() if takes := described(self._at(error.schema_path[:-1])):
                name = str(error.instance)
                hint = f"write {takes.replace('NAME', name)}" if "NAME" in takes and name.isidentifier() else takes
                yield Problem(code=code, message=shorten(error.message, 300), path=place, hint=hint)
            case ValidationErrorKind.Type():
                wanted = self._at(error.schema_path[:-1])
                hint = _object_form(wanted, error.instance) or _list_form(wanted, error.instance)
                if not hint and isinstance(wanted, dict) and wanted.get("type") in ("number", "integer"):
                    hint = number_hint(place.rpartition("/")[2], error.instance)
                if not hint and isinstance(wanted, dict) and "pattern" in wanted:
                    hint = described(wanted)
                yield Problem(code=code, message=shorten(error.message, 300), path=place, hint=hint)
            case _:
                yield Problem(code=code, message=shorten(error.message, 300), path=place)

    def _at(self, steps: Iterable[str | int]) -> Json:
        """Return the part of the schema at a path; null if a reference leads elsewhere."""
        at = self.source
        for step in steps:
            try:
                at = at[step]
            except (LookupError, TypeError):
                return None
        return at


def _properties(schema: Json) -> dict[str, Json]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def _synonym_hint(word: str, properties: dict[str, Json], synonyms: Synonyms) -> str:
    for key in synonyms.get(word, ()):
        if key in properties:
            takes = takes_of(properties[key])
            return f'did you mean "{key}"?' + (f" It takes {takes}" if takes else "")
    return ""


def _in_another_word(key: str, value: Json, schema: Json, synonyms: Synonyms) -> bool:
    """Whether a missing key stands there in a word that the schema refuses, so that one problem is enough."""
    if not isinstance(schema, dict) or schema.get("additionalProperties") is not False or "patternProperties" in schema:
        return False
    return any(key in synonyms.get(word, ()) for word in value if word not in schema.get("properties", {}))


def _object_form(schema: Json, value: Json) -> str:
    """How to write an object where another value stands: under the key that takes such a value, if there is one."""
    if not isinstance(schema, dict) or "object" not in (schema.get("type"), *_listed(schema.get("type"))):
        return ""
    properties, required = schema.get("properties"), _listed(schema.get("required"))
    if not isinstance(properties, dict) or not properties:
        return "write {name: value}"
    names = required or list(properties)
    # A text is quoted as a whole or not at all: a part of a secret would not be masked.
    written = msgspec.json.encode(value).decode() if is_small(value, 0, QUOTED_MAX) else "…"
    fitting = [name for name in names if _is_of_type(value, properties.get(name))] if len(required) < 2 else []
    forms = [f"{{{name}: {written}}}" for name in fitting[:NAMES_SHOWN_MAX]]
    return f"write {' or '.join(forms)}" if forms else f"write an object with {shorten(', '.join(names), 200)}"


def _list_form(schema: Json, value: Json) -> str:
    """How to write a list where one item stands, as far as it is clear what an item is."""
    items = schema.get("items") if isinstance(schema, dict) and schema.get("type") == "array" else None
    if not _is_of_type(value, items) or isinstance(value, list) or not is_small(value, 0, QUOTED_MAX):
        return ""
    takes, name = described(items), str(value)
    if "NAME" in takes and name.isidentifier():
        return f"write {' or '.join(f'[{each}]' for each in takes.replace('NAME', name).split(' or '))}"
    return f"write [{msgspec.json.encode(value).decode()}]"


def _listed(value: Json) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_of_type(value: Json, schema: Json) -> bool:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return isinstance(kind, str) and kind in KINDS and compile_schema({"type": kind}).accepts(value)


def compile_schema(schema: Json) -> Schema:
    """Compile a schema, from a cache; raise `ExpressionError` if it is not a valid one."""
    compiled = _shape_problems(schema, "") or _encoded_and_compiled(schema)
    if isinstance(compiled, Schema):
        return compiled
    first = compiled[0]
    raise ExpressionError(code=first.code, message=first.message, hint=first.hint, path=first.path)


def check_schema(schema: Json, path: str = "") -> list[Problem]:
    problems = _shape_problems(schema, path)
    if problems:
        return problems
    compiled = _encoded_and_compiled(schema)
    if isinstance(compiled, Schema):
        return []
    return [msgspec.structs.replace(each, path=path + each.path) for each in compiled]


def _encoded_and_compiled(schema: Json) -> Schema | tuple[Problem, ...]:
    encoded = msgspec.json.encode(schema, order="sorted")
    return _cached(encoded) if len(encoded) <= CACHED_BYTES_MAX else _compiled(encoded)


def _compiled(encoded: bytes) -> Schema | tuple[Problem, ...]:
    source = msgspec.json.decode(encoded)
    # A schema of schemas says some things once per vocabulary.
    errors = islice(_dialect().iter_errors(source), PROBLEMS_MAX)
    wrong = tuple(dict.fromkeys(_schema_problem(error) for error in errors))
    if wrong:
        return wrong
    found = cost_bound(source, frozenset({DIALECT}))
    if found.steps > STEPS_MAX or found.endless:
        hint = "use each definition only once for the same part of a value"
        return (_invalid(f"its references multiply: checking it could take more than {STEPS_MAX} steps", "", hint),)
    if len(found.patterns) > PATTERNS_MAX:
        return (_invalid(f"it has more than {PATTERNS_MAX} regular expressions", ""),)
    try:
        # From the text, because the library would take some Python values that JSON does not have.
        validator = _validator(encoded.decode())
    except ValidationError as error:
        return (_schema_problem(error, source),)
    except ValueError as error:
        return (_invalid(shorten(str(error)), ""),)
    # The library may understand references that were not followed here.
    return (_invalid(found.problem, "", _DEFS_HINT),) if found.problem else Schema(source, validator, found)


_cached = lru_cache(maxsize=1024)(_compiled)


def _are_light(patterns: frozenset[str]) -> bool:
    if not patterns:
        return True
    # Imports CEL, which few schemas need.
    from tidemill.expressions.cel.cost import states

    return sum(map(states, patterns)) <= LIGHT_STATES_MAX


def _validator(schema: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.Draft202012Validator(
        schema,
        validate_formats=True,
        formats={"decimal": _is_decimal},
        keywords=_DECIMAL_BOUNDS,
        retriever=_refuse,
        pattern_options=jsonschema_rs.FancyRegexOptions(
            backtrack_limit=BACKTRACKS_MAX, size_limit=PATTERN_BYTES_MAX, dfa_size_limit=PATTERN_BYTES_MAX
        ),
    )


@lru_cache(maxsize=1)
def _dialect() -> jsonschema_rs.Validator:
    """Return the validator of schemas; the library includes it."""
    return _validator(f'{{"$ref": "{DIALECT}"}}')


def _is_decimal(text: str) -> bool:
    return len(text) <= DECIMAL_LENGTH_MAX and _DECIMAL.fullmatch(text) is not None


class _DecimalBound:
    """A bound of decimals in strings; numbers have `minimum` and the like."""

    holds: Callable[[Decimal, Decimal], bool]
    words: str

    def __init__(self, schema: Json, bound: Json, path: object) -> None:
        self._bound = Decimal(bound) if isinstance(bound, str) and _is_decimal(bound) else None

    def validate(self, value: Json) -> None:
        is_number = isinstance(value, str) and self._bound is not None and _is_decimal(value)
        if is_number and not self.holds(Decimal(value), cast(Decimal, self._bound)):
            raise ValueError(f"{value} is not {self.words} {self._bound}")


_DECIMAL_BOUNDS = {
    name: type(name, (_DecimalBound,), {"holds": staticmethod(holds), "words": words})
    for name, holds, words in (
        ("formatMinimum", operator.ge, "at least"),
        ("formatMaximum", operator.le, "at most"),
        ("formatExclusiveMinimum", operator.gt, "more than"),
        ("formatExclusiveMaximum", operator.lt, "less than"),
    )
}


def _refuse(uri: str) -> NoReturn:
    raise ValueError("not fetched")


def _shape_problems(schema: Json, path: str) -> list[Problem]:
    """Refuse what must not reach the native library."""
    if not isinstance(schema, dict | bool):
        return [_invalid("a schema is an object, or true or false", path)]
    if deeper_than(schema):
        return [_invalid(f"it is nested more than {DEPTH_MAX} levels deep", path)]
    try:
        size = len(msgspec.json.encode(schema))
    except (TypeError, ValueError) as error:
        return [_invalid(f"it is not JSON: {shorten(str(error))}", path)]
    if size > SCHEMA_BYTES_MAX:
        return [_invalid(f"it is larger than {SCHEMA_BYTES_MAX} bytes", path)]
    patterns = list(_patterns(schema))
    if sum(map(len, patterns)) > PATTERNS_TEXT_MAX:
        return [_invalid(f"its regular expressions have more than {PATTERNS_TEXT_MAX} characters together", path)]
    if sum(len(_LOOK.findall(pattern)) for pattern in patterns) > LOOKS_MAX:
        return [_invalid(f"its regular expressions look around or back more than {LOOKS_MAX} times", path)]
    dialect = schema.get("$schema", DIALECT) if isinstance(schema, dict) else DIALECT
    if not isinstance(dialect, str) or dialect.rstrip("#") != DIALECT:
        return [_invalid("schemas are written in draft 2020-12", f"{path}/$schema", "leave $schema out")]
    return []


def _patterns(schema: Json) -> Iterator[str]:
    """Return every possible regular expression; the schema may be invalid."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            waiting += each.values()
            named = each.get("patternProperties")
            yield from map(str, named if isinstance(named, dict) else ())
            if isinstance(each.get("pattern"), str):
                yield each["pattern"]


def _schema_problem(error: ValidationError, source: Json = None) -> Problem:
    place = _pointer("", error.instance_path)
    if "is not present in a registry" in error.message:
        target = error.message.split("'")[1]
        message = f"$ref to {shorten(target, 80)} is not allowed: Tidemill fetches no schemas"
        return _invalid(message, _reference_place(source, target), _DEFS_HINT)
    pattern = error.message.removesuffix(' is not a "regex"')
    if pattern != error.message:
        # Valid schemas do not pay for the JSONPath engine.
        from tidemill.expressions.jsonpath.query import UNBALANCED, why_no_pattern

        message = f"{shorten(pattern, 200)} is not a regular expression that can be compiled"
        reason, hint = why_no_pattern(msgspec.json.decode(pattern, type=str))
        if reason.startswith(UNBALANCED):
            return _invalid(f"{message}: {reason}", place, hint)
        hint = "counted repetition is limited: lengths of strings are minLength and maxLength"
        return _invalid(message, place, hint)
    return _type_problem(error, place) or _invalid(shorten(error.message, 300), place, _alternatives(error))


def type_of(name: Json) -> str:
    """The type that a word means; empty if it means none."""
    return "" if not isinstance(name, str) else name if name in KINDS else _SPELLINGS.get(name.lower(), "")


def _type_problem(error: ValidationError, place: str) -> Problem | None:
    """A misspelt type, or a type where a schema belongs."""
    name, steps = error.instance, error.instance_path
    if isinstance(name, bool) and len(steps) > 1 and steps[-1] == "required":
        message = f"`required` is a list of names, beside `properties`: it does not belong to `{steps[-2]}` itself"
        return _invalid(
            message, place, f"write {{properties: {{…}}, required: [{steps[-2]}]}}" if name else "leave it out"
        )
    if not isinstance(name, str) or not steps:
        return None
    if len(steps) > 1 and steps[-2] == "properties":
        message = f"`{shorten(name, 60)}` is not a schema"
        return _invalid(message, place, f"write {{type: {type_of(name)}}}") if type_of(name) else None
    if steps[-1] != "type" or name in KINDS:
        return None
    hint = f"did you mean `{type_of(name)}`?" if type_of(name) else meant(name, KINDS)
    return _invalid(f"`{shorten(name, 60)}` is not a type", place, hint or f"the types are {', '.join(KINDS)}")


_DEFS_HINT = "put the schema under $defs and refer to it as #/$defs/<name>"


def _reference_place(source: Json, target: str) -> str:
    """Find the reference to a target, as a JSON pointer; empty if it is written in another way."""
    waiting = [(source, "")]
    while waiting:
        each, path = waiting.pop()
        if isinstance(each, dict):
            waiting += [(below, pointer(path, key)) for key, below in each.items()]
        elif isinstance(each, list):
            waiting += [(below, pointer(path, number)) for number, below in enumerate(each)]
        elif isinstance(each, str) and path.endswith(("/$ref", "/$dynamicRef")):
            # The URI in the library's error is absolute and has no fragment.
            name = urldefrag(each)[0]
            if name and target.endswith(name.removeprefix("./")):
                return path
    return ""


def _invalid(message: str, path: str, hint: str = "") -> Problem:
    return Problem(code="schema_invalid", message=message, path=path, hint=hint)


def _pointer(base: str, steps: Iterable[str | int]) -> str:
    for step in steps:
        base = pointer(base, step)
    return base


def _beside_null(error: ValidationError, context: list[list[ValidationError]], schemas: Json) -> list[ValidationError]:
    """Why a value of the right type does not fit the one alternative besides null; empty if there are others."""
    pairs = list(zip(context, schemas if isinstance(schemas, list) else (), strict=False))
    branches = [branch for branch, schema in pairs if schema != {"type": "null"}]
    if len(branches) != 1 or len(pairs) < 2:
        return []
    own = [each for each in branches[0] if each.instance_path == error.instance_path]
    return [] if any(isinstance(each.kind, ValidationErrorKind.Type) for each in own) else branches[0]


def _alternatives(error: ValidationError) -> str:
    """Say of an `anyOf` or `oneOf` why each branch was refused."""
    match error.kind:
        case ValidationErrorKind.AnyOf(context) | ValidationErrorKind.OneOfNotValid(context):
            reasons = dict.fromkeys(shorten(branch[0].message, 80) for branch in context if branch)
            return shorten("; or: ".join(reasons), 300)
    return ""


_OF_WHOLE_VALUES = (
    *(ValidationErrorKind.OneOfMultipleValid, ValidationErrorKind.Not, ValidationErrorKind.Contains),
    *(ValidationErrorKind.UniqueItems, ValidationErrorKind.Constant, ValidationErrorKind.Enum),
    *(ValidationErrorKind.UnevaluatedProperties, ValidationErrorKind.UnevaluatedItems),
)


def _open(error: ValidationError, wildcard: Wildcard, value: Json, at: Callable[[list[str]], Json]) -> bool:
    """True if an error may vanish once the wildcards have their values."""
    if wildcard(error.instance):
        return True
    match error.kind:
        case ValidationErrorKind.AnyOf(context) | ValidationErrorKind.OneOfNotValid(context):
            return any(all(_open(each, wildcard, value, at) for each in branch) for branch in context)
    if isinstance(error.kind, _OF_WHOLE_VALUES):
        return holds_wildcard(error.instance, wildcard)
    # Which branch of an `if` applies is unknown while the value holds a wildcard.
    steps = zip(["", *error.schema_path], error.schema_path, strict=False)
    conditional = any(step in ("then", "else") and before != "properties" for before, step in steps)
    rule = at(["if"]) if conditional and error.schema_path[0] in ("then", "else") else None
    if isinstance(rule, dict) and isinstance(value, dict) and rule.keys() <= {"properties", "required"}:
        # It depends on these keys of the whole value alone.
        value = {key: value[key] for key in rule.get("properties", ()) if key in value}
    return conditional and holds_wildcard(value, wildcard)


def holds_wildcard(value: Json, wildcard: Wildcard) -> bool:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if wildcard(each):
            return True
        if isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
    return False
