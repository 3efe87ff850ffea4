"""Conditions: the closed union of their kinds, and the only door through which they are evaluated.

A condition is an object with a `type`, or a plain string, which is CEL. It is stored in its normal form, and
the engine asks for the compiled one by that form, so that nothing compiled travels with a document. Kinds to
come (`jsonpath`, `schema_validation`, `cross_node_comparison`, `python_sandbox`) are added to the union, to
`_PARSERS`, `normal` and `evaluate`; the type checker names the places that were forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, assert_never, cast, get_args

import msgspec

from tidemill.errors import Problem
from tidemill.expressions.cel import Program, evaluate_cel, parse_cel
from tidemill.expressions.failure import ExpressionError, condition_failed
from tidemill.expressions.references import References, merged
from tidemill.expressions.scope import Json, Scope
from tidemill.expressions.wording import kind_of, listing, meant, pointer, shorten

NESTING_MAX = 20
PARTS_MAX = 500

Operator = Literal["AND", "OR", "NOT"]


@dataclass(frozen=True, slots=True)
class Cel:
    """An expression in CEL."""

    program: Program

    @property
    def references(self) -> References:
        """What the expression refers to."""
        return self.program.references


@dataclass(frozen=True, slots=True)
class Composite:
    """Conditions joined by a logical operator and evaluated in order, only as far as needed."""

    operator: Operator
    parts: tuple[Condition, ...]
    references: References = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "references", merged(part.references for part in self.parts))


Condition = Cel | Composite


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a condition was decided, and by what, in words for the history of the run."""

    value: bool
    reason: str


def parse_condition(raw: Json, path: str = "") -> tuple[Condition | None, list[Problem]]:
    """Compile a condition, or report every problem with it; nothing is evaluated."""
    problems: list[Problem] = []
    condition = _parsed(raw, path, problems, 0)
    return (None if problems else condition), problems


def compiled(raw: Json) -> Condition:
    """Give the compiled form of a stored condition, from a cache; raise `ExpressionError` if it has none."""
    if isinstance(raw, str):
        return _compiled_text(raw)
    try:
        key = msgspec.json.encode(raw, order="sorted")
    except (TypeError, ValueError, RecursionError) as error:
        raise condition_failed(f"the condition is not JSON: {shorten(str(error))}") from None
    return _compiled_bytes(key)


def normal(condition: Condition) -> Json:
    """Write a condition in the one form in which it is stored."""
    match condition:
        case Cel(program):
            return {"type": "cel", "expression": program.expression}
        case Composite(operator, parts):
            return {"type": "composite", "operator": operator, "conditions": [normal(part) for part in parts]}
        case _:
            assert_never(condition)


def evaluate(condition: Condition, scope: Scope) -> Verdict:
    """Decide a condition; raise `ExpressionError` if it is neither true nor false."""
    match condition:
        case Cel(program):
            value = evaluate_cel(program, scope)
            return Verdict(value, f"{shorten(program.expression)} is {'true' if value else 'false'}")
        case Composite("NOT", parts):
            inner = evaluate(parts[0], scope)
            return Verdict(not inner.value, f"NOT: {inner.reason}")
        case Composite(operator, parts):
            return _joined(operator, parts, scope)
        case _:
            assert_never(condition)


def _joined(operator: Operator, parts: tuple[Condition, ...], scope: Scope) -> Verdict:
    """Evaluate until one part decides: a true one for OR, a false one for AND."""
    deciding = operator == "OR"
    for number, part in enumerate(parts, start=1):
        verdict = evaluate(part, scope)
        if verdict.value is deciding:
            return Verdict(deciding, f"{operator}, part {number} of {len(parts)}: {verdict.reason}")
    return Verdict(not deciding, f"{operator}: all {len(parts)} parts are {'false' if deciding else 'true'}")


@lru_cache(maxsize=4096)
def _compiled_text(expression: str) -> Condition:
    return _sound(expression)


@lru_cache(maxsize=4096)
def _compiled_bytes(encoded: bytes) -> Condition:
    return _sound(msgspec.json.decode(encoded))


def _sound(raw: Json) -> Condition:
    condition, problems = parse_condition(raw)
    if condition is not None:
        return condition
    first = problems[0]
    raise ExpressionError(code="condition_failed", message=first.message, hint=first.hint, path=first.path)


def _parsed(raw: Json, path: str, problems: list[Problem], depth: int) -> Condition | None:
    if isinstance(raw, str):
        return _cel(raw, path, problems)
    if not isinstance(raw, dict):
        hint = "write a CEL expression, or an object with a type"
        problems.append(_shape(f"a condition is a string or an object, and this is {kind_of(raw)}", path, hint))
        return None
    if "type" not in raw:
        problems.append(_shape("a condition needs a type", path, f"one of: {listing(_PARSERS)}"))
        return None
    kind = raw["type"]
    parser = _PARSERS.get(kind) if isinstance(kind, str) else None
    if parser is None:
        message = f"there is no kind of condition called {shorten(repr(kind), 60)}"
        hint = f"kinds: {listing(_PARSERS)}"
        problems.append(Problem(code="condition_unknown_kind", message=message, path=f"{path}/type", hint=hint))
        return None
    return parser(raw, path, problems, depth)


def _parsed_cel(raw: dict[str, Json], path: str, problems: list[Problem], depth: int) -> Condition | None:
    _no_other_keys(raw, ("type", "expression"), path, problems)
    expression = raw.get("expression")
    if not isinstance(expression, str):
        what = "needs an expression" if "expression" not in raw else f"is a string, not {kind_of(expression)}"
        subject = "a cel condition" if "expression" not in raw else "the expression"
        problems.append(_shape(f"{subject} {what}", path, 'such as {"type": "cel", "expression": "output.score > 80"}'))
        return None
    return _cel(expression, f"{path}/expression", problems)


def _cel(expression: str, path: str, problems: list[Problem]) -> Condition | None:
    program, found = parse_cel(expression, path)
    problems.extend(found)
    return Cel(program) if program is not None else None


def _parsed_composite(raw: dict[str, Json], path: str, problems: list[Problem], depth: int) -> Condition | None:
    _no_other_keys(raw, ("type", "operator", "conditions"), path, problems)
    operator = _operator(raw.get("operator"), path, problems)
    conditions = raw.get("conditions")
    if not isinstance(conditions, list) or not conditions:
        problems.append(_shape("conditions is a list with at least one condition", f"{path}/conditions"))
        return None
    if len(conditions) > PARTS_MAX or depth >= NESTING_MAX:
        limits = f"at most {PARTS_MAX} conditions, nested at most {NESTING_MAX} levels deep"
        problems.append(_shape(f"a composite condition has {limits}", f"{path}/conditions"))
        return None
    if operator == "NOT" and len(conditions) != 1:
        problems.append(
            _shape("NOT takes exactly one condition", f"{path}/conditions", "join them with AND or OR inside")
        )
    parts = [
        _parsed(each, pointer(f"{path}/conditions", number), problems, depth + 1)
        for number, each in enumerate(conditions)
    ]
    found = tuple(part for part in parts if part is not None)
    return Composite(operator, found) if operator is not None and len(found) == len(parts) else None


def _operator(given: Json, path: str, problems: list[Problem]) -> Operator | None:
    for operator in get_args(Operator):
        if given == operator:
            return cast(Operator, operator)
    problems.append(_shape("operator is AND, OR or NOT", f"{path}/operator"))
    return None


_Parser = Callable[[dict[str, Json], str, list[Problem], int], Condition | None]
_PARSERS: Mapping[str, _Parser] = {"cel": _parsed_cel, "composite": _parsed_composite}


def _no_other_keys(raw: dict[str, Json], known: tuple[str, ...], path: str, problems: list[Problem]) -> None:
    for key in raw:
        if key not in known:
            hint = meant(str(key), known) or f"known keys: {listing(known)}"
            problems.append(_shape(f'there is no key "{shorten(str(key), 60)}" here', pointer(path, key), hint))


def _shape(message: str, path: str, hint: str = "") -> Problem:
    return Problem(code="condition_shape", message=message, path=path, hint=hint)
