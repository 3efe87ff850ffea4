"""Templates: any JSON value in which strings may hold Jinja expressions.

This is the door to everything about templates. A value is compiled once per node of a document and rendered
for every attempt, so rendering is what has to be cheap: what has no expression in it is handed out as it is.
Rendered values share structure with the template and the scope and must be treated as read-only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tidemill.errors import Problem
from tidemill.expressions.bounds import DEPTH_MAX
from tidemill.expressions.failure import ExpressionError
from tidemill.expressions.markup import Fault, has_syntax
from tidemill.expressions.meter import Meter
from tidemill.expressions.references import References, merged
from tidemill.expressions.scope import Json, Scope
from tidemill.expressions.wording import pointer

if TYPE_CHECKING:
    from tidemill.expressions.programs import Outcome, Program


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled JSON value; immutable, and safe to share between threads."""

    part: _Part
    references: References
    is_constant: bool
    """There is no expression in it: `render` gives the compiled value itself."""

    def render(self, scope: Scope) -> Json:
        """Fill in the values; raise `ExpressionError` with the place of the string that failed."""
        return self.part.render(scope, Meter())


def compile_template(value: Json) -> Template:
    """Compile a value; raise `ExpressionError` for the first string that is not a valid template."""
    found: list[References] = []
    part = _compiled(value, "", found, 0)
    constant = type(part) is _Constant
    return Template(part, merged(found), constant)


def check_template(value: Json, path: str = "") -> tuple[list[Problem], References]:
    """Report everything that is wrong with the templates in a value, and what they refer to."""
    problems: list[Problem] = []
    found: list[References] = []
    for place, source in _sources(value, path, problems):
        outcome = _outcome(source)
        problems.extend(_problem(fault, place) for fault in outcome.faults)
        found.append(outcome.references)
    return problems, merged(found)


def is_template(value: Json) -> bool:
    """Tell whether a value is a string with template syntax, so that its real value is not known yet."""
    return isinstance(value, str) and has_syntax(value)


@dataclass(frozen=True, slots=True)
class _Constant:
    value: Json

    def render(self, scope: Scope, meter: Meter) -> Json:
        return self.value


@dataclass(frozen=True, slots=True)
class _Text:
    program: Program
    path: str

    def render(self, scope: Scope, meter: Meter) -> Json:
        try:
            return self.program.evaluate(scope, meter)
        except ExpressionError as failure:
            failure.path = self.path
            raise


@dataclass(frozen=True, slots=True)
class _Object:
    """The whole object as it is, and the entries that are rendered over it; so the order of keys stays."""

    whole: dict[str, Json]
    entries: tuple[tuple[str, _Part], ...]

    def render(self, scope: Scope, meter: Meter) -> Json:
        filled = self.whole.copy()
        for key, part in self.entries:
            filled[key] = part.render(scope, meter)
        return filled


@dataclass(frozen=True, slots=True)
class _List:
    whole: list[Json]
    entries: tuple[tuple[int, _Part], ...]

    def render(self, scope: Scope, meter: Meter) -> Json:
        filled = self.whole.copy()
        for index, part in self.entries:
            filled[index] = part.render(scope, meter)
        return filled


_Part = _Constant | _Text | _Object | _List
_K = TypeVar("_K", str, int)


def _compiled(value: Json, path: str, found: list[References], depth: int) -> _Part:
    if depth > DEPTH_MAX:
        raise _failure(_TOO_DEEP, path)
    if isinstance(value, str):
        return _compiled_text(value, path, found) if has_syntax(value) else _Constant(value)
    if isinstance(value, dict):
        entries = tuple(_rendered(value.items(), path, found, depth))
        return _Object(value, entries) if entries else _Constant(value)
    if isinstance(value, list):
        items = tuple(_rendered(enumerate(value), path, found, depth))
        return _List(value, items) if items else _Constant(value)
    return _Constant(value)


def _rendered(
    entries: Iterable[tuple[_K, Json]], path: str, found: list[References], depth: int
) -> Iterator[tuple[_K, _Part]]:
    """Compile the entries of an object or list that have to be rendered each time."""
    for key, each in entries:
        if isinstance(each, dict | list) or is_template(each):
            part = _compiled(each, pointer(path, key), found, depth + 1)
            if type(part) is not _Constant:
                yield key, part


def _compiled_text(source: str, path: str, found: list[References]) -> _Part:
    outcome = _outcome(source)
    if outcome.program is None:
        raise _failure(outcome.faults[0], path)
    found.append(outcome.references)
    return _Text(outcome.program, path)


def _outcome(source: str) -> Outcome:
    # Jinja is imported with the first string that needs it: many a command reads no template.
    from tidemill.expressions.programs import compile_source

    return compile_source(source)


def _sources(value: Json, path: str, problems: list[Problem], depth: int = 0) -> Iterator[tuple[str, str]]:
    """Walk to every string with template syntax."""
    if isinstance(value, str):
        if has_syntax(value):
            yield path, value
    elif isinstance(value, dict | list):
        if depth > DEPTH_MAX:
            problems.append(_problem(_TOO_DEEP, path))
            return
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(each, str | dict | list):
                yield from _sources(each, pointer(path, key), problems, depth + 1)


_TOO_DEEP = Fault(f"the value is nested more than {DEPTH_MAX} levels deep", 1)


def _problem(fault: Fault, path: str) -> Problem:
    return Problem(code="template_syntax", message=_sentence(fault), path=path, hint=fault.hint)


def _failure(fault: Fault, path: str) -> ExpressionError:
    return ExpressionError(code="template_failed", message=_sentence(fault), hint=fault.hint, path=path)


def _sentence(fault: Fault) -> str:
    return f"line {fault.line}: {fault.message}"
