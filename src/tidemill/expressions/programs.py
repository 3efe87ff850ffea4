"""One string of a template, compiled: four shapes, from the cheapest to Jinja itself.

Most strings are a path or text with paths in between, and those never reach Jinja. A compiled string is
immutable and knows what it refers to; it is cached by its source, because compiling costs a thousand times
what rendering costs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError

from tidemill.errors import TidemillError
from tidemill.expressions.bounds import SOURCE_MAX
from tidemill.expressions.context import FUNCTIONS, ScopeContext
from tidemill.expressions.environment import PATH, TemplateEnvironment, environment
from tidemill.expressions.failure import Explanation, ExpressionError, template_failed
from tidemill.expressions.markup import Fault, has_syntax
from tidemill.expressions.meter import Meter, room
from tidemill.expressions.missing import Missing
from tidemill.expressions.pacing import cost
from tidemill.expressions.paths import Path, build
from tidemill.expressions.plain import plain, text
from tidemill.expressions.references import NOTHING, References, merged
from tidemill.expressions.rewriting import Rewriting
from tidemill.expressions.scope import Json, Scope
from tidemill.expressions.wording import shorten

CACHED_MAX = 1 << 14
"""Longer sources are not cached here: a few of them would fill it. Whoever compiled them keeps them."""

_SIMPLE = re.compile(r"\{\{\s*([A-Za-z_]\w*(?:\.[A-Za-z]\w*)*)\s*\}\}", re.ASCII)
_BRACES = 'values are written {{ name.key }}, tags {% if … %} … {% endif %}, braces as such {{ "{{" }}'
_NOT_A_PATH = (
    frozenset(
        [
            "and",
            "else",
            "if",
            "in",
            "is",
            "not",
            "or",
            "true",
            "false",
            "none",
            "True",
            "False",
            "None",
            "self",
            "super",
            "loop",
        ]
    )
    | FUNCTIONS.keys()
)


class Program(Protocol):
    """What a string of a template compiles to."""

    @property
    def references(self) -> References: ...

    def evaluate(self, scope: Scope, meter: Meter) -> Json: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Text without any expression left in it, such as what stood between raw tags."""

    text: str
    references: References = NOTHING

    def evaluate(self, scope: Scope, meter: Meter) -> Json:
        """Give the text."""
        return self.text


@dataclass(frozen=True, slots=True)
class Value:
    """Exactly one path: the value itself, with its type, shared with the scope."""

    path: Path

    @property
    def references(self) -> References:
        """What the path refers to."""
        return self.path.references

    def evaluate(self, scope: Scope, meter: Meter) -> Json:
        """Follow the path."""
        value = self.path.follow(scope)
        if isinstance(value, Missing):
            raise _failure(value.explanation, scope)
        return value


@dataclass(frozen=True, slots=True)
class Joined:
    """Text with paths in between."""

    parts: tuple[str | Path, ...]
    references: References

    def evaluate(self, scope: Scope, meter: Meter) -> Json:
        """Follow the paths and join everything."""
        shown: list[str] = []
        size = 0
        for part in self.parts:
            each = part if type(part) is str else _shown(part, scope, meter)  # type: ignore[arg-type]
            size += len(each)
            room(size)
            shown.append(each)
        whole = "".join(shown)
        meter.spend(1 + (len(whole) >> 6))
        return whole


def _shown(path: Path, scope: Scope, meter: Meter) -> str:
    value = path.follow(scope)
    if type(value) is str:
        return value
    if isinstance(value, Missing):
        raise _failure(value.explanation, scope)
    if isinstance(value, dict | list):
        meter.spend(cost(value))
    return text(value)


@dataclass(frozen=True, slots=True)
class Compiled:
    """Anything else, run by Jinja in the sandbox."""

    source: str
    render: Callable[[ScopeContext], Iterator[str]]
    environment: TemplateEnvironment
    paths: tuple[Path, ...]
    references: References
    single: bool
    """The string is exactly one expression, so its value keeps its type."""

    def evaluate(self, scope: Scope, meter: Meter) -> Json:
        """Run the template."""
        context = ScopeContext(self.environment, self.environment.evaluation, scope, self.paths, meter)
        try:
            meter.spend(1)
            value = self._value(context) if self.single else self._text(context)
            meter.spend(1)
            return value
        except ExpressionError as failure:
            raise _failure(failure.message, scope, failure.hint) from None
        except TidemillError:
            raise
        except Exception as error:
            raise self._translated(error, scope) from error

    def _value(self, context: ScopeContext) -> Json:
        for _ in self.render(context):
            pass
        return plain(context.vars["result"], context.tick)

    def _text(self, context: ScopeContext) -> Json:
        shown: list[str] = []
        size = 0
        for piece in self.render(context):
            size += len(piece)
            room(size)
            shown.append(piece)
        return plain("".join(shown))

    def _translated(self, error: Exception, scope: Scope) -> ExpressionError:
        reason = error.args[0] if error.args else None
        if isinstance(reason, Explanation):
            return _failure(reason, scope)
        said = shorten(str(error) or type(error).__name__, 300)
        return _failure(f"{said} (in {shorten(self.source, 80)})", scope)


def _failure(message: str, scope: Scope, hint: str = "") -> ExpressionError:
    """Build the failure without the secrets that a message may have quoted."""
    failure = template_failed(message, hint)
    for secret in scope.secrets.values():
        if secret:
            failure.message = failure.message.replace(secret, "***")
            failure.hint = failure.hint.replace(secret, "***")
    return failure


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a source: a program, or the faults that keep it from being one."""

    program: Program | None
    references: References = NOTHING
    faults: tuple[Fault, ...] = ()


def compile_source(source: str) -> Outcome:
    """Compile a string that has template syntax; short ones are cached."""
    return _cached(source) if len(source) <= CACHED_MAX else _compile(source)


@lru_cache(maxsize=4096)
def _cached(source: str) -> Outcome:
    return _compile(source)


def _compile(source: str) -> Outcome:
    if len(source) > SOURCE_MAX:
        return Outcome(None, faults=(Fault(f"a template is limited to {SOURCE_MAX} characters", 1),))
    program = _simple(source)
    if program is not None:
        return Outcome(program, program.references)
    try:
        return _full(source)
    except TemplateSyntaxError as error:
        return Outcome(None, faults=(Fault(error.message or "it cannot be read", error.lineno, _BRACES),))
    except (RecursionError, MemoryError):
        return Outcome(None, faults=(Fault("it is nested too deep", 1),))
    except (ValueError, SyntaxError) as error:
        return Outcome(None, faults=(Fault(shorten(str(error)), 1),))


def _simple(source: str) -> Program | None:
    """Compile text with dotted names in between, without Jinja; None if there is anything else in it."""
    pieces = _SIMPLE.split(source)
    parts: list[str | Path] = []
    for number, piece in enumerate(pieces):
        if number % 2:
            root, *keys = piece.split(".")
            if root in _NOT_A_PATH:
                return None
            parts.append(build(root, keys))
        elif has_syntax(piece) or (piece.endswith("{") and number < len(pieces) - 1):
            return None
        elif piece:
            parts.append(piece)
    return _assembled(parts)


def _assembled(parts: list[str | Path]) -> Program:
    paths = [part for part in parts if isinstance(part, Path)]
    rest = "".join(part for part in parts if isinstance(part, str))
    if not paths:
        return Fixed(rest)
    if len(paths) == 1 and not rest.strip():
        return Value(paths[0])
    return Joined(tuple(parts), merged(path.references for path in paths))


def _full(source: str) -> Outcome:
    """Compile with Jinja's parser and, unless it is all paths after all, its code generator."""
    place = environment()
    rewriting = Rewriting(place, place._parse(source, None, None))
    tree = rewriting.run()
    if rewriting.faults:
        return Outcome(None, rewriting.references, tuple(rewriting.faults))
    printed = _printed(tree)
    program = _all_paths(printed, rewriting.paths) if printed is not None else None
    if program is None:
        only = _only_expression(printed) if printed is not None else None
        program = _generated(source, tree, only, rewriting)
    return Outcome(program, program.references)


def _printed(tree: nodes.Template) -> list[nodes.Expr] | None:
    """List what the template prints if it does nothing but print."""
    if not all(isinstance(statement, nodes.Output) for statement in tree.body):
        return None
    return [each for statement in tree.body for each in statement.nodes]  # type: ignore[attr-defined]


def _all_paths(printed: list[nodes.Expr], paths: list[Path]) -> Program | None:
    parts: list[str | Path] = []
    for each in printed:
        if isinstance(each, nodes.TemplateData):
            parts.append(each.data)
        elif isinstance(each, nodes.Filter) and each.name == PATH and isinstance(each.node, nodes.Const):
            parts.append(paths[each.node.value])
        else:
            return None
    return _assembled(parts)


def _only_expression(printed: list[nodes.Expr]) -> nodes.Expr | None:
    """Give the one expression that stands alone, white space aside."""
    rest = [each for each in printed if not (isinstance(each, nodes.TemplateData) and not each.data.strip())]
    return rest[0] if len(rest) == 1 and not isinstance(rest[0], nodes.TemplateData) else None


def _generated(source: str, tree: nodes.Template, only: nodes.Expr | None, rewriting: Rewriting) -> Compiled:
    place = rewriting.environment
    if only is not None:
        target = nodes.Name("result", "store", lineno=1)
        tree = nodes.Template([nodes.Assign(target, only, lineno=1)], lineno=1)
        tree.set_environment(place)
    return Compiled(
        source=source,
        render=place.from_string(tree).root_render_func,
        environment=place,
        paths=tuple(rewriting.paths),
        references=rewriting.references,
        single=only is not None,
    )
