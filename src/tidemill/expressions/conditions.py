"""The closed union of condition kinds: parsing, caching and deciding them.

A condition is an object with a `type`, or a string, which is CEL. Documents store its normal form; compiled forms are
cached by it and never stored. Each kind is a module that implements `Leaf`, imported with the first condition of that
kind. Native code that holds the interpreter's lock cannot be stopped, so a condition is decided in this process only if
it is `light` and its values are few; otherwise it becomes an `EvaluationRequest` for a process that can be killed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Hashable, Iterator
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar, get_args

import msgspec

from tidemill.errors import Problem
from tidemill.expressions.errors import ExpressionError, condition_failed, kind_of, listing, meant, pointer, shorten
from tidemill.expressions.limits import WRITABLE_BITS_MAX
from tidemill.expressions.scope import NOTHING, RESERVED, Json, References, Scope, merged

if TYPE_CHECKING:
    from tidemill.expressions.cel.evaluate import Cel
    from tidemill.expressions.comparisons import Comparison, Computation
    from tidemill.expressions.jsonpath.condition import JsonPath
    from tidemill.expressions.python_condition import Sandbox
    from tidemill.expressions.schema_condition import Matching


ITEMS_MAX = 1000
"""Items of lists and objects that a condition may reach and still be decided in this process."""

TEXT_REACH_MAX = 1 << 15
"""Characters of strings, likewise: searching and matching them takes time in proportion to more than their size."""

LOOP_SECONDS = 0.01
"""Time that the parts of conditions take on the event loop before others may run."""

HINTED_MAX = 200
"""Characters of a condition that a hint repeats."""

DEADLINE_MS = 5000
"""Default deadline of a request."""


class SimpleCondition(Protocol):
    """A condition that is not made of others. All of them are frozen, and shared between threads."""

    @property
    def references(self) -> References:
        """What it refers to, known without evaluating it."""

    @property
    def light(self) -> bool:
        """Whether it ends soon over few values, whatever they are."""

    @property
    def deadline_ms(self) -> int:
        """How long it may take in another process."""

    def normal(self) -> Json:
        """Write it in the one form in which it is stored."""

    def bind(self, scope: Scope) -> Json:
        """Return what it reads of a scope, and nothing else."""

    def holds(self, data: Json, scope: Scope) -> bool:
        """Decide over what `bind` gave; raise `ExpressionError` if it is neither true nor false."""

    def told(self) -> str:
        """Name it in a sentence that ends with `is true` or `is false`."""


class EvaluationRequest(msgspec.Struct, frozen=True):
    leaf: SimpleCondition
    scope: Scope
    deadline_ms: int

    @property
    def what(self) -> str:
        """The subject of messages about a missing answer."""
        return "the condition"


_T = TypeVar("_T")
EvaluationSteps = Generator[EvaluationRequest | None, bool, _T]
"""A computation that yields each request and is resumed with its answer; after None, when others have run."""


class LoopShare:
    """Tells when many conditions, each of which ends soon, have taken enough time of the event loop together."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = perf_counter() + LOOP_SECONDS

    def is_spent(self) -> bool:
        """Whether it is time to let others run; begins the next share if so."""
        if perf_counter() < self._until:
            return False
        self._until = perf_counter() + LOOP_SECONDS
        return True


def decide_leaf(leaf: SimpleCondition, scope: Scope) -> EvaluationSteps[bool]:
    """Decide one condition: here if that surely ends soon, otherwise as a request."""
    if leaf.light:
        data = leaf.bind(scope)
        if is_small(data):
            return leaf.holds(data, scope)
    return (yield EvaluationRequest(leaf, scope, leaf.deadline_ms))


def is_small(data: Json, items: int = ITEMS_MAX, text: int = TEXT_REACH_MAX) -> bool:
    """Whether a value holds few enough items and little enough text; looks no further than that."""
    waiting = [data]
    while waiting:
        each = waiting.pop()
        kind = type(each)
        if kind is str:
            text -= len(each)
            if text < 0:
                return False
        elif kind is dict:
            items -= len(each)
            if items < 0:
                return False
            try:
                text -= sum(map(len, each))
            except TypeError:
                # A key that is not a string; the reader of the value refuses it.
                return False
            if text < 0:
                return False
            waiting.extend(each.values())
        elif kind is list:
            items -= len(each)
            if items < 0:
                return False
            waiting.extend(each)
        elif kind is bytes:
            text -= len(each)
            if text < 0:
                return False
        elif kind is int and (bits := each.bit_length()) > 64:
            # Writing it takes time that grows faster than its length. Native code crashes on a very long one, and
            # `protocol.packed` refuses it with a message.
            text -= bits
            if text < 0 or bits > WRITABLE_BITS_MAX:
                return False
    return True


Raw = dict[str, Json]


def shape(message: str, path: str, hint: str = "") -> Problem:
    return Problem(code="condition_shape", message=message, path=path, hint=hint)


def no_other_keys(raw: Raw, known: tuple[str, ...], path: str, problems: list[Problem]) -> None:
    for key in raw:
        if key not in known:
            hint = meant(str(key), known) or f"known keys: {listing(known)}"
            problems.append(shape(f'there is no key "{shorten(str(key), 60)}" here', pointer(path, key), hint))


NESTING_MAX = 20
PARTS_MAX = 500
LEAVES_MAX = 2000
"""Conditions within a composite one, counted with repetition."""

Operator = Literal["AND", "OR", "NOT"]


class Composite(msgspec.Struct, frozen=True):
    """Conditions joined by a logical operator and decided in order, only as far as needed."""

    operator: Operator
    parts: tuple[Condition, ...]
    references: References = NOTHING

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "references", merged(part.references for part in self.parts))


Single: TypeAlias = "Cel | JsonPath | Sandbox | Comparison | Computation | Matching"
"""The kinds that are not made of others."""

Condition: TypeAlias = "Single | Composite"


class Verdict(msgspec.Struct, frozen=True):
    """How a condition was decided, and by what, in words for the history of the run."""

    value: bool
    reason: str
    parts: tuple[Verdict, ...] = ()
    """Of a composite: the parts that were evaluated, in order."""


def parse_condition(raw: Json, path: str = "") -> tuple[Condition | None, list[Problem]]:
    """Compile a condition, or report every problem with it; nothing is evaluated."""
    condition, problems = _read(raw, path)
    if condition is not None:
        problems += _template_problems(raw, path)
    return (None if problems else condition), problems


def _read(raw: Json, path: str) -> tuple[Condition | None, list[Problem]]:
    """Parse a condition as it may stand in a stored version: older ones hold templates as plain text."""
    problems: list[Problem] = []
    if (leaves := leaf_count(raw)) > LEAVES_MAX:
        message = f"a condition is made of at most {LEAVES_MAX} others, and this one of {leaves}"
        hint = "compute it in an upstream node, such as a python function, and test the result"
        return None, [Problem(code="condition_too_large", message=message, path=path, hint=hint)]
    condition = _parsed(raw, path, problems, 0)
    return (None if problems else condition), problems


_TEMPLATE = re.compile(r"""(["']?)\{\{\s*(.*?)\s*\}\}\1""", re.DOTALL)
_TEMPLATE_ONLY = frozenset({"secrets", "item", "index", "nodes"})
_DOTTED = re.compile(r"([A-Za-z_]\w*)(?:\.[A-Za-z_]\w*)*")


def _template_problems(raw: Json, path: str) -> Iterator[Problem]:
    """Refuse a template in a text of a condition, where it would be compared as it is written."""
    if isinstance(raw, str):
        if _TEMPLATE.search(raw):
            yield _no_template(path, _without_templates(raw))
    elif isinstance(raw, dict) and raw.get("type") in ("cel", "composite", "cross_node_comparison", "jsonpath"):
        for key, part in raw.items():
            parts = enumerate(part) if key == "conditions" and isinstance(part, list) else ()
            for number, each in parts:
                yield from _template_problems(each, f"{path}/{key}/{number}")
            if key == "expression":
                yield from _template_problems(part, f"{path}/{key}")
            value = part.get("value") if key in ("left", "right") and isinstance(part, dict) else part
            if key in ("left", "right", "value") and isinstance(value, str) and _TEMPLATE.search(value):
                yield _no_template(f"{path}/{key}", "write the condition in CEL, such as output.x == inputs.y")


def _no_template(path: str, hint: str) -> Problem:
    message = "conditions are not templates: {{ }} is compared as it is written"
    return Problem(code="condition_syntax", message=message, path=path, hint=hint)


def _without_templates(expression: str) -> str:
    """The hint for a template in CEL: the same condition without braces, where only paths stand in them."""
    found = [match.groups() for match in _TEMPLATE.finditer(expression)]
    names = [inner.partition(".")[0] for quote, inner in found if quote and _DOTTED.fullmatch(inner)]
    if len(names) < len(found) or not _TEMPLATE_ONLY.isdisjoint(names) or len(expression) > HINTED_MAX:
        return "write names as they are: inputs.x == 'a', ctx.node.output.y > 1; + joins texts"
    return f"write {_TEMPLATE.sub(lambda match: _in_cel(match[2]), expression)}"


def _in_cel(name: str) -> str:
    return name if name.partition(".")[0] in RESERVED else f"ctx.{name}"


def leaf_count(raw: Json) -> int:
    """Count the conditions within one; a part that occurs many times is looked at once."""
    return _leaves(raw, {}, 0) if isinstance(raw, dict) and raw.get("type") == "composite" else 1


def _leaves(raw: Json, known: dict[int, int], depth: int) -> int:
    parts = raw.get("conditions") if isinstance(raw, dict) and raw.get("type") == "composite" else None
    if not isinstance(parts, list) or depth > NESTING_MAX:
        # Composites that are nested too deeply are refused later.
        return 1
    count = known.get(id(raw))
    if count is None:
        count = known[id(raw)] = sum(_leaves(part, known, depth + 1) for part in parts)
    return count


def compiled(raw: Json) -> Condition:
    """Return the compiled form of a stored condition, from a cache; raise `ExpressionError` if it has none."""
    if isinstance(raw, str):
        return _compiled(raw)
    try:
        key = msgspec.json.encode(raw, order="sorted")
    except (TypeError, ValueError, RecursionError) as error:
        raise condition_failed(f"the condition is not JSON: {shorten(str(error))}") from None
    return _compiled(key)


def normal(condition: Condition) -> Json:
    if isinstance(condition, Composite):
        parts = [normal(part) for part in condition.parts]
        return {"type": "composite", "operator": condition.operator, "conditions": parts}
    return condition.normal()


def meaning(condition: Condition) -> Hashable:
    """Return what is the same for conditions that say the same, however CEL is spaced or put in parentheses."""
    from tidemill.expressions.cel.evaluate import Cel
    from tidemill.expressions.comparisons import Computation

    match condition:
        case Composite():
            return condition.operator, tuple(map(meaning, condition.parts))
        case Cel():
            return "cel", condition.syntax
        case Computation():
            return "doubles", condition.program.syntax
    return msgspec.json.encode(condition.normal(), order="sorted")


def decide(condition: Condition, scope: Scope, share: LoopShare | None = None) -> EvaluationSteps[Verdict]:
    """Decide a condition, yielding requests for other processes; raise `ExpressionError` if it has no answer."""
    if isinstance(condition, Composite):
        return (yield from _decide_parts(condition, scope, share or LoopShare()))
    value = yield from decide_leaf(condition, scope)
    # Only a schema can add a reason.
    because: Callable[[Scope], str] | None = getattr(condition, "because", None)
    reason = "" if because is None else because(scope)
    return Verdict(value, f"{condition.told()} is {'true' if value else 'false'}{reason}")


def _decide_parts(composite: Composite, scope: Scope, share: LoopShare) -> EvaluationSteps[Verdict]:
    """Ask the parts until one decides: a true one for OR, a false one for AND, the only one for NOT."""
    operator, parts, deciding = composite.operator, composite.parts, composite.operator == "OR"
    asked: list[Verdict] = []
    for number, part in enumerate(parts, start=1):
        if share.is_spent():
            yield None
        try:
            verdict = yield from decide(part, scope, share)
        except ExpressionError as error:
            error.path = f"/conditions/{number - 1}{error.path}"
            raise
        asked.append(verdict)
        if operator == "NOT":
            return Verdict(not verdict.value, f"NOT: {verdict.reason}", tuple(asked))
        if verdict.value is deciding:
            return Verdict(deciding, f"{operator}, part {number} of {len(parts)}: {verdict.reason}", tuple(asked))
    every = f"{operator}: all {len(parts)} parts are {'false' if deciding else 'true'}"
    return Verdict(not deciding, every, tuple(asked))


@lru_cache(maxsize=8192)
def _compiled(stored: str | bytes) -> Condition:
    condition, problems = _read(stored if isinstance(stored, str) else msgspec.json.decode(stored), "")
    if condition is not None:
        return condition
    first = problems[0]
    raise ExpressionError(code="condition_failed", message=first.message, hint=first.hint, path=first.path)


_KINDS = ("cel", "composite", "cross_node_comparison", "jsonpath", "python_sandbox", "schema_validation")


def _parsed(raw: Json, path: str, problems: list[Problem], depth: int) -> Condition | None:
    if isinstance(raw, str):
        return _parsed_text(raw, path, problems)
    if not isinstance(raw, dict):
        hint = "write a CEL expression, or an object with a type"
        if isinstance(raw, bool):
            hint = "leave it out: the node always runs" if raw else 'write "false", in quotes'
        problems.append(shape(f"a condition is a string or an object, not {kind_of(raw)}", path, hint))
        return None
    if "type" not in raw:
        problems.append(shape("a condition needs a type", path, f"one of: {listing(_KINDS)}"))
        return None
    match raw["type"]:
        case "cel":
            return _parsed_cel(raw, path, problems)
        case "composite":
            return _parsed_composite(raw, path, problems, depth)
        case "cross_node_comparison":
            from tidemill.expressions.comparisons import parse_comparison

            return parse_comparison(raw, path, problems)
        case "jsonpath":
            from tidemill.expressions.jsonpath.condition import parse_jsonpath

            return parse_jsonpath(raw, path, problems)
        case "python_sandbox":
            from tidemill.expressions.python_condition import parse_sandbox

            return parse_sandbox(raw, path, problems)
        case "schema_validation":
            from tidemill.expressions.schema_condition import parse_matching

            return parse_matching(raw, path, problems)
        case kind:
            message = f"unknown condition type {shorten(repr(kind), 60)}"
            hint = f"kinds: {listing(_KINDS)}"
            problems.append(Problem(code="condition_unknown_kind", message=message, path=f"{path}/type", hint=hint))
            return None


def _parsed_cel(raw: Raw, path: str, problems: list[Problem]) -> Condition | None:
    no_other_keys(raw, ("type", "expression"), path, problems)
    expression = raw.get("expression")
    if not isinstance(expression, str):
        what = "needs an expression" if "expression" not in raw else f"is a string, not {kind_of(expression)}"
        subject = "a cel condition" if "expression" not in raw else "the expression"
        problems.append(shape(f"{subject} {what}", path, 'such as {"type": "cel", "expression": "output.score > 80"}'))
        return None
    return _parsed_text(expression, f"{path}/expression", problems)


def _parsed_text(expression: str, path: str, problems: list[Problem]) -> Cel | None:
    from tidemill.expressions.cel.evaluate import parse_cel

    return parse_cel(expression, path, problems)


def _parsed_composite(raw: Raw, path: str, problems: list[Problem], depth: int) -> Condition | None:
    no_other_keys(raw, ("type", "operator", "conditions"), path, problems)
    operator: Operator | None = next((each for each in get_args(Operator) if each == raw.get("operator")), None)
    if operator is None:
        problems.append(shape("operator is AND, OR or NOT", f"{path}/operator"))
    conditions = raw.get("conditions")
    if not isinstance(conditions, list) or not conditions:
        problems.append(shape("conditions is a list with at least one condition", f"{path}/conditions"))
        return None
    if len(conditions) > PARTS_MAX or depth >= NESTING_MAX:
        limits = f"at most {PARTS_MAX} conditions, nested at most {NESTING_MAX} levels deep"
        problems.append(shape(f"a composite condition has {limits}", f"{path}/conditions"))
        return None
    if operator == "NOT" and len(conditions) != 1:
        problems.append(
            shape("NOT takes exactly one condition", f"{path}/conditions", "join them with AND or OR inside")
        )
    parts = [
        _parsed(each, pointer(f"{path}/conditions", number), problems, depth + 1)
        for number, each in enumerate(conditions)
    ]
    found = tuple(part for part in parts if part is not None)
    return Composite(operator, found) if operator is not None and len(found) == len(parts) else None
