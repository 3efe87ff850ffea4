"""Compile, check and render any JSON value whose strings may hold Jinja expressions.

A value is compiled once per node and rendered for every attempt. Strings compile to one of four shapes; most are paths
or text with paths, and never reach Jinja. Compiled strings are immutable and cached by source, because compiling costs
a thousand times what rendering costs. Rendered values share structure with the template and the scope: read-only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Protocol

import msgspec
from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError

from tidemill.errors import Problem, TidemillError
from tidemill.expressions.errors import (
    Explanation,
    ExpressionError,
    LoopBudgetSpent,
    pointer,
    shorten,
    template_failed,
)
from tidemill.expressions.limits import DEPTH_MAX, SOURCE_MAX, SOURCE_PARTS_MAX, TEXT_MAX
from tidemill.expressions.scope import NOTHING, Json, References, Scope, has_syntax, is_template, merged
from tidemill.expressions.templates.environment import PATH, TemplateEnvironment, environment
from tidemill.expressions.templates.limits import RenderBudget, cost, text, to_json_value
from tidemill.expressions.templates.lookup import FUNCTIONS, Fault, Path, ScopeContext, build
from tidemill.expressions.templates.rewrite import TemplateRewriter
from tidemill.expressions.templates.undefined import NotAvailable

CACHED_MAX = 1 << 14
"""Longer sources are not cached here: a few of them would fill the cache. The caller keeps what it compiled."""

_SIMPLE = re.compile(r"\{\{\s*([A-Za-z_]\w*(?:\.[A-Za-z]\w*)*)\s*\}\}", re.ASCII)
_BRACES = 'values are written {{ name.key }}, tags {% if … %} … {% endif %}, braces as such {{ "{{" }}'
_NOT_A_PATH = (
    frozenset(
        [
            *("and", "else", "if", "in", "is", "not", "or", "true", "false", "none", "True", "False", "None"),
            *("self", "super", "loop"),
        ]
    )
    | FUNCTIONS.keys()
)


class CompiledTemplate(Protocol):
    @property
    def references(self) -> References: ...

    def evaluate(self, scope: Scope, meter: RenderBudget) -> Json: ...


class Fixed(msgspec.Struct, frozen=True):
    """Text without any expression left in it, such as what stood between raw tags."""

    text: str
    references: References = NOTHING

    def evaluate(self, scope: Scope, meter: RenderBudget) -> Json:
        return self.text


class Value(msgspec.Struct, frozen=True):
    """Exactly one path: the value itself, with its type, shared with the scope."""

    path: Path

    @property
    def references(self) -> References:
        return self.path.references

    def evaluate(self, scope: Scope, meter: RenderBudget) -> Json:
        value = self.path.follow(scope)
        if isinstance(value, NotAvailable):
            raise _failure(value.explanation, scope)
        kind = type(value)
        if kind is str:
            meter.grow(len(value) >> 6)
        elif kind is dict or kind is list:
            meter.pass_on(value)
        return value


class Joined(msgspec.Struct, frozen=True):
    """Text with paths in between."""

    parts: tuple[str | Path, ...]
    references: References

    def evaluate(self, scope: Scope, meter: RenderBudget) -> Json:
        shown: list[str] = []
        size = 0
        for part in self.parts:
            each = part if type(part) is str else _shown(part, scope, meter)  # type: ignore[arg-type]
            size += len(each)
            _fits(size)
            shown.append(each)
        whole = "".join(shown)
        meter.spend(1 + (len(whole) >> 6))
        return whole


def _fits(size: int) -> None:
    """Refuse a text that is too long; putting one together takes no time worth counting."""
    if size > TEXT_MAX:
        raise template_failed(f"a value would grow beyond {TEXT_MAX} characters or items")


def _shown(path: Path, scope: Scope, meter: RenderBudget) -> str:
    value = path.follow(scope)
    if type(value) is str:
        return value
    if isinstance(value, NotAvailable):
        raise _failure(value.explanation, scope)
    if isinstance(value, dict | list):
        meter.enter()
        meter.spend(cost(value))
    return text(value)


class Compiled(msgspec.Struct, frozen=True):
    """Anything else, run by Jinja in the sandbox."""

    source: str
    render: Callable[[ScopeContext], Iterator[str]]
    environment: TemplateEnvironment
    paths: tuple[Path, ...]
    references: References
    single: bool
    """The string is exactly one expression, so its value keeps its type."""

    def evaluate(self, scope: Scope, meter: RenderBudget) -> Json:
        context = ScopeContext(self.environment, self.environment.evaluation, scope, self.paths, meter)
        meter.enter()
        try:
            meter.spend(1)
            value = self._value(context, meter) if self.single else self._text(context, meter)
            meter.spend(1)
            return value
        except ExpressionError as failure:
            raise _failure(failure.message, scope, failure.hint) from None
        except (TidemillError, LoopBudgetSpent):
            raise
        except Exception as error:
            raise self._translated(error, scope) from error

    def _value(self, context: ScopeContext, meter: RenderBudget) -> Json:
        for _ in self.render(context):
            pass
        return to_json_value(context.vars["result"], meter)

    def _text(self, context: ScopeContext, meter: RenderBudget) -> Json:
        shown: list[str] = []
        size = 0
        for piece in self.render(context):
            size += len(piece)
            _fits(size)
            shown.append(piece)
        return to_json_value("".join(shown), meter)

    def _translated(self, error: Exception, scope: Scope) -> ExpressionError:
        reason = error.args[0] if error.args else None
        if isinstance(reason, Explanation):
            return _failure(reason, scope)
        message = shorten(str(error) or type(error).__name__, 300)
        return _failure(f"{message} (in {shorten(self.source, 80)})", scope)


def _failure(message: str, scope: Scope, hint: str = "") -> ExpressionError:
    """Build the failure without the secrets that a message may have quoted."""
    failure = template_failed(message, hint)
    for secret in scope.secrets.values():
        if secret:
            failure.message = failure.message.replace(secret, "***")
            failure.hint = failure.hint.replace(secret, "***")
    return failure


class Outcome(msgspec.Struct, frozen=True):
    program: CompiledTemplate | None
    references: References = NOTHING
    faults: tuple[Fault, ...] = ()
    parts: int = 0
    """What had to be compiled; 0 for text with dotted names."""
    strict: tuple[Path, ...] = ()
    """The paths without which it fails."""


def compile_source(source: str) -> Outcome:
    """Compile a string that has template syntax; short ones are cached."""
    return _cached(source) if len(source) <= CACHED_MAX else _compile(source)


def _compile(source: str) -> Outcome:
    if len(source) > SOURCE_MAX:
        return Outcome(None, faults=(Fault(f"a template is limited to {SOURCE_MAX} characters", 1),))
    program = _simple(source)
    if program is not None:
        return Outcome(program, program.references, strict=_paths_of(program))
    try:
        return _full(source)
    except TemplateSyntaxError as error:
        hint = "`}}` is missing" if source.count("{{") > source.count("}}") else _BRACES
        return Outcome(None, faults=(Fault(error.message or "it cannot be read", error.lineno, hint),))
    except (RecursionError, MemoryError):
        return Outcome(None, faults=(Fault("it is nested too deep", 1),))
    except (ValueError, SyntaxError) as error:
        return Outcome(None, faults=(Fault(shorten(str(error)), 1),))


_cached = lru_cache(maxsize=4096)(_compile)


def _simple(source: str) -> CompiledTemplate | None:
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


def _paths_of(program: CompiledTemplate) -> tuple[Path, ...]:
    if isinstance(program, Value):
        return (program.path,)
    return tuple(part for part in program.parts if isinstance(part, Path)) if isinstance(program, Joined) else ()


def _assembled(parts: list[str | Path]) -> CompiledTemplate:
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
    parsed = place._parse(source, None, None)
    parts = sum(1 for _ in parsed.find_all(nodes.Node))
    if parts > SOURCE_PARTS_MAX:
        message = f"a template has at most {SOURCE_PARTS_MAX} names, values and tags, and this one has {parts}"
        return Outcome(None, faults=(Fault(message, 1, "loop over the values, or split the text"),), parts=parts)
    rewriting = TemplateRewriter(place, parsed)
    tree = rewriting.run()
    if rewriting.faults:
        return Outcome(None, rewriting.references, tuple(rewriting.faults), parts)
    printed = _printed(tree)
    program = _all_paths(printed, rewriting.paths) if printed is not None else None
    if program is None:
        only = _only_expression(printed) if printed is not None else None
        program = _generated(source, tree, only, rewriting)
    return Outcome(program, program.references, parts=parts, strict=rewriting.strict)


def _printed(tree: nodes.Template) -> list[nodes.Expr] | None:
    """List what the template prints if it does nothing but print."""
    if not all(isinstance(statement, nodes.Output) for statement in tree.body):
        return None
    return [each for statement in tree.body for each in statement.nodes]  # type: ignore[attr-defined]


def _all_paths(printed: list[nodes.Expr], paths: list[Path]) -> CompiledTemplate | None:
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
    """Return the one expression that stands alone, white space aside."""
    rest = [each for each in printed if not (isinstance(each, nodes.TemplateData) and not each.data.strip())]
    return rest[0] if len(rest) == 1 and not isinstance(rest[0], nodes.TemplateData) else None


def _generated(source: str, tree: nodes.Template, only: nodes.Expr | None, rewriting: TemplateRewriter) -> Compiled:
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


class Template(msgspec.Struct, frozen=True):
    """A compiled JSON value; immutable, and safe to share between threads."""

    part: _Part
    references: References
    is_constant: bool
    """There is no expression in it: `render` gives the compiled value itself."""

    def render(self, scope: Scope) -> Json:
        """Fill in the values; raise `ExpressionError` with the place of the string that failed."""
        return self.part.render(scope, RenderBudget())

    def render_on_loop(self, scope: Scope) -> Json:
        """Likewise; raise `LoopBudgetSpent` if that takes too long for the event loop."""
        return self.part.render(scope, RenderBudget(True))

    def texts(self) -> list[tuple[str, str]]:
        """The place and source of every string that is rendered and uses no secret."""
        return [
            (each.path, each.source) for each in _texts(self.part) if "secrets" not in each.program.references.roots
        ]

    def render_rest(self, scope: Scope, known: Mapping[str, Json]) -> Json:
        """Fill in values that were rendered elsewhere, by place; render the others."""
        return _filled(self.part, scope, known)


def compile_template(value: Json) -> Template:
    """Compile a value; raise `ExpressionError` for the first string that is not a valid template."""
    found: list[References] = []
    part = _compiled(value, "", found, 0)
    return Template(part, merged(found), type(part) is _Constant)


def check_template(value: Json, path: str = "") -> tuple[list[Problem], References]:
    """Report everything that is wrong with the templates in a value, and what they refer to."""
    problems: list[Problem] = []
    found: list[References] = []
    for place, source in _sources(value, path, problems):
        outcome = compile_source(source)
        problems.extend(_problem(fault, place) for fault in outcome.faults)
        found.append(outcome.references)
    return problems, merged(found)


class _Constant(msgspec.Struct, frozen=True):
    value: Json

    def render(self, scope: Scope, meter: RenderBudget) -> Json:
        return self.value


class _Text(msgspec.Struct, frozen=True):
    program: CompiledTemplate
    path: str
    source: str

    def render(self, scope: Scope, meter: RenderBudget) -> Json:
        try:
            return self.program.evaluate(scope, meter)
        except ExpressionError as failure:
            failure.path = self.path
            raise


class _Container(msgspec.Struct, frozen=True):
    """The whole object or list as it is, and the entries that are rendered over it; so the order of keys stays."""

    whole: Json
    entries: tuple[tuple[str | int, _Part], ...]

    def render(self, scope: Scope, meter: RenderBudget) -> Json:
        filled = self.whole.copy()
        for key, part in self.entries:
            filled[key] = part.render(scope, meter)
        return filled


_Part = _Constant | _Text | _Container


def _texts(part: _Part) -> Iterator[_Text]:
    if isinstance(part, _Text):
        yield part
    elif isinstance(part, _Container):
        for _, each in part.entries:
            yield from _texts(each)


def _filled(part: _Part, scope: Scope, known: Mapping[str, Json]) -> Json:
    if isinstance(part, _Container):
        filled = part.whole.copy()
        for key, each in part.entries:
            filled[key] = _filled(each, scope, known)
        return filled
    if isinstance(part, _Text) and part.path in known:
        return known[part.path]
    return part.render(scope, RenderBudget())


def render_texts(texts: Iterable[tuple[str, str]], scope: Scope) -> dict[str, Json]:
    """Render strings by place, with one budget; raise `ExpressionError` with the place of the one that failed."""
    budget = RenderBudget()
    return {path: _compiled(source, path, [], 0).render(scope, budget) for path, source in texts}


def _compiled(value: Json, path: str, found: list[References], depth: int) -> _Part:
    if depth > DEPTH_MAX:
        raise _failure_at(_TOO_DEEP, path)
    if isinstance(value, str) and has_syntax(value):
        outcome = compile_source(value)
        if outcome.program is None:
            raise _failure_at(outcome.faults[0], path)
        found.append(outcome.references)
        return _Text(outcome.program, path, value)
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        entries = tuple(_rendered(items, path, found, depth))
        return _Container(value, entries) if entries else _Constant(value)
    return _Constant(value)


def _rendered(
    entries: Iterable[tuple[str | int, Json]], path: str, found: list[References], depth: int
) -> Iterator[tuple[str | int, _Part]]:
    """Compile the entries of an object or list that have to be rendered each time."""
    for key, each in entries:
        if isinstance(each, dict | list) or is_template(each):
            part = _compiled(each, pointer(path, key), found, depth + 1)
            if type(part) is not _Constant:
                yield key, part


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


def _failure_at(fault: Fault, path: str) -> ExpressionError:
    return ExpressionError(code="template_failed", message=_sentence(fault), hint=fault.hint, path=path)


def _sentence(fault: Fault) -> str:
    return f"line {fault.line}: {fault.message}"
