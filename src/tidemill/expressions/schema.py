"""JSON Schema 2020-12: checking schemas, and values against them.

Schemas come from documents, so nothing is ever fetched for one: a `$ref` leads into the schema itself or is
refused. A value that is not known yet (a template in a config) can be declared a wildcard: then whatever
hangs on it is left to be checked later, when it has been rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import NoReturn

import jsonschema_rs
import msgspec
from jsonschema_rs import ValidationError, ValidationErrorKind

from tidemill.errors import Problem
from tidemill.expressions.bounds import DEPTH_MAX, deeper_than
from tidemill.expressions.failure import ExpressionError
from tidemill.expressions.scope import Json
from tidemill.expressions.wording import meant, pointer, shorten

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PROBLEMS_MAX = 100
SCHEMA_BYTES_MAX = 1 << 20
CACHED_BYTES_MAX = 1 << 15
BACKTRACKS_MAX = 100_000

Wildcard = Callable[[Json], bool]


class Schema:
    """A compiled schema; immutable, and safe to share between threads."""

    __slots__ = ("_validator", "source")

    def __init__(self, source: Json, validator: jsonschema_rs.Validator) -> None:
        self.source = source
        self._validator = validator

    def accepts(self, value: Json) -> bool:
        """Tell whether the value fits, as fast as possible."""
        try:
            return not deeper_than(value) and self._validator.is_valid(value)
        except ValueError:
            return False

    def problems(
        self, value: Json, path: str = "", *, wildcard: Wildcard | None = None, code: str = "schema_mismatch"
    ) -> list[Problem]:
        """Report where a value does not fit, at most a hundred places."""
        if self.accepts(value):
            return []
        if deeper_than(value):
            return [Problem(code=code, message=f"it is nested more than {DEPTH_MAX} levels deep", path=path)]
        try:
            errors = list(islice(self._errors(value, wildcard), PROBLEMS_MAX))
        except ValueError as error:
            return [Problem(code=code, message=f"it is not JSON: {shorten(str(error))}", path=path)]
        return [problem for error in errors for problem in self._worded(error, path, code)][:PROBLEMS_MAX]

    def _errors(self, value: Json, wildcard: Wildcard | None) -> Iterator[ValidationError]:
        for error in self._validator.iter_errors(value):
            if wildcard is None or not _open(error, wildcard, value):
                yield error

    def _worded(self, error: ValidationError, path: str, code: str) -> Iterator[Problem]:
        place = _pointer(path, error.instance_path)
        match error.kind:
            case ValidationErrorKind.AdditionalProperties(unexpected) | ValidationErrorKind.UnevaluatedProperties(
                unexpected
            ):
                known = self._known_keys(error)
                for key in unexpected:
                    message = f'there is no key "{shorten(key, 60)}" here'
                    yield Problem(code=code, message=message, path=pointer(place, key), hint=_guess(key, known))
            case ValidationErrorKind.Required(key):
                yield Problem(code=code, message=f'the key "{key}" is missing', path=place)
            case _:
                yield Problem(code=code, message=shorten(error.message, 300), path=place, hint=_alternatives(error))

    def _known_keys(self, error: ValidationError) -> list[str]:
        at = self.source
        for step in error.schema_path[:-1]:
            try:
                at = at[step]
            except (LookupError, TypeError):
                return []
        properties = at.get("properties") if isinstance(at, dict) else None
        return list(properties) if isinstance(properties, dict) else []


def compile_schema(schema: Json) -> Schema:
    """Compile a schema, from a cache; raise `ExpressionError` if it is not a valid one."""
    problems = _shape_problems(schema, "")
    encoded = b"" if problems else msgspec.json.encode(schema, order="sorted")
    compiled = problems or (_cached(encoded) if len(encoded) <= CACHED_BYTES_MAX else _compiled(encoded))
    if isinstance(compiled, Schema):
        return compiled
    first = compiled[0]
    raise ExpressionError(code=first.code, message=first.message, hint=first.hint, path=first.path)


def check_schema(schema: Json, path: str = "") -> list[Problem]:
    """Report everything that is wrong with a schema itself."""
    problems = _shape_problems(schema, path)
    if problems:
        return problems
    encoded = msgspec.json.encode(schema, order="sorted")
    compiled = _cached(encoded) if len(encoded) <= CACHED_BYTES_MAX else _compiled(encoded)
    if isinstance(compiled, Schema):
        return []
    return [msgspec.structs.replace(each, path=path + each.path) for each in compiled]


@lru_cache(maxsize=1024)
def _cached(encoded: bytes) -> Schema | tuple[Problem, ...]:
    return _compiled(encoded)


def _compiled(encoded: bytes) -> Schema | tuple[Problem, ...]:
    source = msgspec.json.decode(encoded)
    wrong = tuple(_schema_problem(error) for error in islice(_dialect().iter_errors(source), PROBLEMS_MAX))
    if wrong:
        return wrong
    try:
        # From the text, because the library would take some Python values that JSON does not have.
        return Schema(source, _validator(encoded.decode()))
    except ValidationError as error:
        return (_schema_problem(error),)
    except ValueError as error:
        return (_invalid(shorten(str(error)), ""),)


def _validator(schema: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.Draft202012Validator(
        schema,
        validate_formats=True,
        retriever=_refuse,
        pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS_MAX),
    )


@lru_cache(maxsize=1)
def _dialect() -> jsonschema_rs.Validator:
    """Give the schema of schemas, which the library carries with it."""
    return _validator(f'{{"$ref": "{DIALECT}"}}')


def _refuse(uri: str) -> NoReturn:
    raise ValueError("not fetched")


def _shape_problems(schema: Json, path: str) -> list[Problem]:
    """Refuse what must not even reach the native library."""
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
    dialect = schema.get("$schema", DIALECT) if isinstance(schema, dict) else DIALECT
    if not isinstance(dialect, str) or dialect.rstrip("#") != DIALECT:
        return [_invalid("schemas are written in draft 2020-12", f"{path}/$schema", "leave $schema out")]
    return []


def _schema_problem(error: ValidationError) -> Problem:
    place = _pointer("", error.instance_path)
    if "is not present in a registry" in error.message:
        target = error.message.split("'")[1]
        hint = "put the schema under $defs and refer to it as #/$defs/<name>"
        return _invalid(f"$ref to {shorten(target, 80)} is refused: nothing is fetched", place, hint)
    return _invalid(shorten(error.message, 300), place, _alternatives(error))


def _invalid(message: str, path: str, hint: str = "") -> Problem:
    return Problem(code="schema_invalid", message=message, path=path, hint=hint)


def _pointer(base: str, steps: Iterable[str | int]) -> str:
    for step in steps:
        base = pointer(base, step)
    return base


def _guess(key: str, known: list[str]) -> str:
    return meant(key, known) or (f"known keys: {shorten(', '.join(known), 200)}" if known else "")


def _alternatives(error: ValidationError) -> str:
    """Say of an `anyOf` or `oneOf` why each branch was refused."""
    match error.kind:
        case ValidationErrorKind.AnyOf(context) | ValidationErrorKind.OneOfNotValid(context):
            reasons = dict.fromkeys(shorten(branch[0].message, 80) for branch in context if branch)
            return shorten("; or: ".join(reasons), 300)
    return ""


def _open(error: ValidationError, wildcard: Wildcard, value: Json) -> bool:
    """Tell whether an error may vanish once the wildcards have their values."""
    if wildcard(error.instance):
        return True
    match error.kind:
        case ValidationErrorKind.AnyOf(context) | ValidationErrorKind.OneOfNotValid(context):
            return any(all(_open(each, wildcard, value) for each in branch) for branch in context)
        case (
            ValidationErrorKind.OneOfMultipleValid()
            | ValidationErrorKind.Not()
            | ValidationErrorKind.Contains()
            | ValidationErrorKind.UniqueItems()
            | ValidationErrorKind.Constant()
            | ValidationErrorKind.Enum()
            | ValidationErrorKind.UnevaluatedProperties()
            | ValidationErrorKind.UnevaluatedItems()
        ):
            return _holds(error.instance, wildcard)
    # Which branch of an `if` applies is not known while a wildcard stands in what it looks at.
    return _is_conditional(error.schema_path) and _holds(value, wildcard)


def _is_conditional(schema_path: list[str | int]) -> bool:
    steps = zip(["", *schema_path], schema_path, strict=False)
    return any(step in ("then", "else") and before != "properties" for before, step in steps)


def _holds(value: Json, wildcard: Wildcard) -> bool:
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
