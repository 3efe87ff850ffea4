"""The condition `cross_node_comparison`, and what operators mean between JSON values outside of CEL.

Equality is strict JSON equality: true is not 1, "1" is not 1, 1 is 1.0, lists and objects compare deeply. Only two
numbers or two strings are ordered; any other pair fails, and the message names kinds, never values. A comparison is
written as two operands and an operator, or as CEL in which every number is a double (`cel.doubles`), because authors
do not know which numbers of another node are integers.
"""

from __future__ import annotations

import operator as op
import re
from collections.abc import Callable, Mapping
from typing import Literal, TypeGuard

import msgspec

from tidemill.errors import Problem
from tidemill.expressions import errors
from tidemill.expressions.cel.doubles import doubled
from tidemill.expressions.cel.evaluate import Cel, parse_cel
from tidemill.expressions.conditions import DEADLINE_MS, Raw, no_other_keys, shape
from tidemill.expressions.scope import NOTHING, Json, References, Scope
from tidemill.expressions.templates.lookup import Key, Path, build, node_path
from tidemill.expressions.templates.undefined import NotAvailable

Relation = Callable[[Json, Json], bool]

_ORDERS: Mapping[str, Relation] = {">": op.gt, "<": op.lt, ">=": op.ge, "<=": op.le}
_HOLDING_SIDE = {"in": "right", "not_in": "right", "contains": "left"}

ORDER_HINT = "numbers are compared with numbers, and strings with strings"
HOLDER_HINT = "a list contains items, an object contains keys, and a string contains strings"


def equal(left: Json, right: Json) -> bool:
    """True if two JSON values are equal; does not recurse, so nesting may be deep."""
    waiting = [(left, right)]
    while waiting:
        a, b = waiting.pop()
        kind = type(a)
        if kind is dict:
            if type(b) is not dict or a.keys() != b.keys():
                return False
            waiting.extend((a[key], b[key]) for key in a)
        elif kind is list:
            if type(b) is not list or len(a) != len(b):
                return False
            waiting.extend(zip(a, b, strict=True))
        elif kind is bool or type(b) is bool:
            if a is not b:
                return False
        elif a != b:
            return False
    return True


def ordered(operator: str, left: Json, right: Json) -> bool:
    """Evaluate `>`, `<`, `>=` or `<=`; raise `ExpressionError` if the values have no order."""
    if (is_number(left) and is_number(right)) or (isinstance(left, str) and isinstance(right, str)):
        return _ORDERS[operator](left, right)
    raise errors.condition_failed(
        f"{operator} does not compare {errors.kind_of(left)} with {errors.kind_of(right)}", ORDER_HINT
    )


def contains(holder: Json, item: Json) -> bool:
    """Whether a list has an item, an object a key or a string a part; raise `ExpressionError` otherwise."""
    if isinstance(holder, list):
        return any(equal(each, item) for each in holder)
    if isinstance(item, str) and isinstance(holder, str | dict):
        return item in holder
    raise errors.condition_failed(f"{errors.kind_of(holder)} cannot contain {errors.kind_of(item)}", HOLDER_HINT)


def hopeless(operator: str, value: Json, side: Literal["left", "right"]) -> str | None:
    """Say why a value on that side of an operator fails with any other value; None if it may not."""
    if operator in _ORDERS and not (is_number(value) or isinstance(value, str)):
        return f"{operator} does not compare {errors.kind_of(value)} with anything"
    if _HOLDING_SIDE.get(operator) == side and not isinstance(value, list | str | dict):
        return f"{errors.kind_of(value)} cannot contain anything"
    return None


def is_number(value: Json) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


RELATIONS: Mapping[str, Relation] = {
    "==": equal,
    "!=": lambda left, right: not equal(left, right),
    ">": lambda left, right: ordered(">", left, right),
    "<": lambda left, right: ordered("<", left, right),
    ">=": lambda left, right: ordered(">=", left, right),
    "<=": lambda left, right: ordered("<=", left, right),
    "in": lambda left, right: contains(right, left),
    "not_in": lambda left, right: not contains(right, left),
    "contains": contains,
}
"""Operator -> function that returns a boolean or raises `ExpressionError`."""


PATH_MAX = 1000
"""Characters of a path."""

SOURCES = {"current": "current", "output": "current", "context": "context", "ctx": "context"}
"""Accepted name of a source -> its stored name."""

_KEY = re.compile(
    r"""(?:^|\.)([^.\[\]"'\s]+) | \[(-?[0-9]{1,9})\] | \[("(?:[^"\\]|\\.)*")\] | \['([^'\\]*)'\]""", re.VERBOSE
)
_TELLING = ("did you mean", "available nodes")
"""Beginnings of hints that name a likely fix."""
_PATH_HINT = 'such as output.items[0].price, or ["a key"].x'
_EXAMPLE = '{"left": {"path": "output.score"}, "operator": ">", "right": {"node": "first", "path": "output.score"}}'


class Operand(msgspec.Struct, frozen=True):
    """A path or a value; with a path, the value is the default if nothing is found."""

    path: Path | None
    value: Json = None
    has_value: bool = False

    def read(self, scope: Scope) -> Json:
        """Return the value; raise `ExpressionError` if there is none."""
        if self.path is None:
            return self.value
        found = self.path.follow(scope)
        if not isinstance(found, NotAvailable):
            return found
        if self.has_value:
            return self.value
        why = found.explanation
        hint = why.hint if isinstance(why, errors.Explanation) and why.hint.startswith(_TELLING) else ""
        raise errors.condition_failed(str.__str__(why), hint or "if that may happen, give the operand a `default`")

    def normal(self) -> Json:
        if self.path is None:
            return {"value": self.value}
        part = "meta" if self.path.meta else "output"
        written: Raw = {"source": "current", "path": _written(part, self.path.keys)}
        if self.path.node is not None:
            written |= {"source": "context", "node": self.path.node}
        return written | {"default": self.value} if self.has_value else written

    def told(self) -> str:
        return errors.shorten(_json(self.value) if self.path is None else self.path.text, 60)


class Comparison(msgspec.Struct, frozen=True):
    left: Operand
    operator: str
    right: Operand
    references: References = NOTHING
    light: bool = True
    deadline_ms: int = DEADLINE_MS

    def __post_init__(self) -> None:
        left, right = (NOTHING if each.path is None else each.path.references for each in (self.left, self.right))
        msgspec.structs.force_setattr(self, "references", left | right)

    def normal(self) -> Json:
        sides = {"left": self.left.normal(), "operator": self.operator, "right": self.right.normal()}
        return {"type": "cross_node_comparison", **sides}

    def bind(self, scope: Scope) -> list[Json]:
        try:
            return [self.left.read(scope), self.right.read(scope)]
        except errors.ExpressionError as error:
            raise errors.within(self.told(), error) from None

    def holds(self, data: Json, scope: Scope) -> bool:
        try:
            return RELATIONS[self.operator](*data)
        except errors.ExpressionError as error:
            raise errors.within(self.told(), error) from None

    def told(self) -> str:
        return f"{self.left.told()} {self.operator} {self.right.told()}"


class Computation(msgspec.Struct, frozen=True):
    """An expression in CEL in which every number is a double."""

    program: Cel
    references: References
    light: bool
    deadline_ms: int

    def normal(self) -> Json:
        return {"type": "cross_node_comparison", "expression": self.program.expression}

    def bind(self, scope: Scope) -> Json:
        return self.program.bind(scope)

    def holds(self, data: Json, scope: Scope) -> bool:
        try:
            numbers = doubled(data)
        except errors.ExpressionError as error:
            raise errors.within(self.told(), error) from None
        return self.program.holds(numbers, scope)

    def told(self) -> str:
        return self.program.told()


def parse_comparison(raw: Raw, path: str, problems: list[Problem]) -> Comparison | Computation | None:
    if "expression" in raw:
        no_other_keys(raw, ("type", "expression"), path, problems)
        expression = raw["expression"]
        if not isinstance(expression, str):
            hint = "such as current.total > ctx.forecast.total * 1.1"
            problems.append(
                shape(f"the expression is a string, not {errors.kind_of(expression)}", f"{path}/expression", hint)
            )
            return None
        program = parse_cel(expression, f"{path}/expression", problems, doubles=True)
        if program is None:
            return None
        return Computation(program, program.references, program.light, program.deadline_ms)
    no_other_keys(raw, ("type", "left", "operator", "right"), path, problems)
    known = len(problems)
    operator = raw.get("operator")
    if not isinstance(operator, str) or operator not in RELATIONS:
        message = "a comparison needs an operator" if operator is None else "there is no such operator"
        problems.append(shape(message, f"{path}/operator", f"one of: {errors.listing(RELATIONS)}"))
    left, right = (_operand(raw, side, path, problems) for side in ("left", "right"))
    if len(problems) > known or left is None or right is None or not isinstance(operator, str):
        return None
    comparison = Comparison(left, operator, right)
    _report_hopeless(comparison, path, problems)
    return comparison


def _operand(raw: Raw, side: str, path: str, problems: list[Problem]) -> Operand | None:
    here = f"{path}/{side}"
    given = raw.get(side)
    if not isinstance(given, dict) or not given:
        what = f"needs a {side} operand" if side not in raw else f"has an object as its {side} operand"
        problems.append(shape(f"a comparison {what}", here if side in raw else path, f"such as {_EXAMPLE}"))
        return None
    if "value" in given:
        no_other_keys(given, ("value",), here, problems)
        return Operand(None, given["value"], has_value=True)
    no_other_keys(given, ("source", "node", "path", "default"), here, problems)
    keys = _keys(given.get("path", ""), f"{here}/path", problems)
    place_ = None if keys is None else _place(given, keys, here, problems)
    return None if place_ is None else Operand(place_, given.get("default"), "default" in given)


def _place(given: Raw, keys: list[Key], path: str, problems: list[Problem]) -> Path | None:
    """Build the path of an operand; without a source it is a node if one is named, and this one otherwise."""
    node = given.get("node")
    source = SOURCES.get(str(given.get("source", "context" if "node" in given else "current")))
    own = keys[1:] if keys[:1] == ["output"] else keys
    if source == "context":
        if isinstance(node, str) and node:
            # Written out like the stored form, so that messages of both are the same.
            return node_path(errors.place("ctx", node), "ctx", node, keys if keys[:1] == ["meta"] else ["output", *own])
        problems.append(shape("the source `context` needs the id of a node", f"{path}/node"))
    elif source is None:
        hint = "current is this node's output, context are the upstream nodes"
        problems.append(shape("source is current or context", f"{path}/source", hint))
    elif "node" in given:
        hint = "leave the node out for this node's own output, or write source: context"
        problems.append(shape("the source `current` has no node", f"{path}/node", hint))
    elif keys[:1] == ["meta"]:
        hint = "a key of the output that is called so is output.meta"
        problems.append(shape('this node has no "meta" before it has ended', f"{path}/path", hint))
    else:
        return build("output", own)
    return None


def _keys(text: Json, path: str, problems: list[Problem]) -> list[Key] | None:
    keys: list[Key] = []
    at = 0
    while isinstance(text, str) and at < len(text) <= PATH_MAX:
        found = _KEY.match(text, at)
        key = None if found is None else _key(*found.groups())
        if found is None or key is None:
            problems.append(shape(f"the path is invalid from character {at + 1}", path, _PATH_HINT))
            return None
        keys.append(key)
        at = found.end()
    if isinstance(text, str) and len(text) <= PATH_MAX:
        return keys
    problems.append(shape(f"a path is a string of at most {PATH_MAX} characters", path, _PATH_HINT))
    return None


def _key(bare: str | None, index: str | None, quoted: str | None, single: str | None) -> Key | None:
    if index is not None:
        return int(index)
    if quoted is None:
        return bare if bare is not None else single
    try:
        return msgspec.json.decode(quoted, type=str)
    except msgspec.DecodeError:
        return None


def _written(part: str, keys: tuple[Key, ...]) -> str:
    """Write keys so that `_keys` parses the same ones back."""
    for key in keys:
        plain = isinstance(key, str) and _KEY.fullmatch(key) is not None and key[0] not in ".["
        part += f".{key}" if plain else f"[{_json(key)}]"
    return part


def _json(value: Json) -> str:
    return msgspec.json.encode(value).decode()


def _report_hopeless(comparison: Comparison, path: str, problems: list[Problem]) -> None:
    """Report values that are written in the document and can never be compared."""
    left, operator, right = comparison.left, comparison.operator, comparison.right
    hint = HOLDER_HINT if operator in ("in", "not_in", "contains") else ORDER_HINT
    for side, operand in (("left", left), ("right", right)):
        if operand.has_value and (reason := hopeless(operator, operand.value, "left" if operand is left else "right")):
            key = "value" if operand.path is None else "default"
            problems.append(shape(reason, f"{path}/{side}/{key}", hint))
            return
    if left.path is None and right.path is None:
        try:
            RELATIONS[operator](left.value, right.value)
        except errors.ExpressionError as error:
            problems.append(shape(error.message, path, error.hint))
