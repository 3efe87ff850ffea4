"""The filters and tests that templates may use.

Most are Jinja's, with a budget: each use pays for the items it is given, and a missing value is refused instead of
taken for empty. Those that can multiply a value are reimplemented with bounds. Left out: `attr` (objects have only
keys), `random` (a rendering must be repeatable), `pprint` and `urlize`.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import jinja2  # noqa: F401 - the whole package first, or threads that import parts of it meet half of one
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.runtime import Undefined
from jinja2.tests import TESTS
from jinja2.utils import htmlsafe_json_dumps, pass_context

from tidemill.expressions.errors import template_failed
from tidemill.expressions.templates import limits
from tidemill.expressions.templates.dates import MOMENT_FILTERS
from tidemill.expressions.templates.lookup import ScopeContext
from tidemill.expressions.templates.regex import PATTERN_FILTERS, PATTERN_TESTS
from tidemill.expressions.templates.undefined import NotAvailable

Function = Callable[..., Any]
Preparation = Callable[[ScopeContext, Any, tuple[Any, ...], Mapping[str, Any]], Any]

_LEFT_OUT = frozenset({"attr", "random", "pprint", "urlize"})
_ON_MISSING = frozenset({"default", "d", "defined", "undefined"})
_ON_TEXT = frozenset(
    [
        *("b64", "b64decode", "b64encode", "capitalize", "center", "e", "escape", "forceescape", "format"),
        *("indent", "lower", "replace", "safe", "striptags", "string", "title", "trim", "truncate", "upper"),
        *("wordcount", "wordwrap"),
        *PATTERN_FILTERS,
        *PATTERN_TESTS,
    ]
)
_COMPARING = frozenset(["in", "eq", "equalto", "ne", "lt", "lessthan", "le", "gt", "greaterthan", "ge"]) | frozenset(
    ["==", "!=", "<", "<=", ">", ">="]
)
_SORTING = frozenset({"sort", "groupby", "dictsort"})
_RANKING = _SORTING | {"unique", "min", "max"}
_PACED = frozenset(
    ["batch", "join", "map", "max", "min", "reject", "rejectattr", "select", "selectattr", "slice", "sum", "unique"]
)
_SPELLING = frozenset({"xmlattr", "urlencode"})
_OF_ANY_LENGTH = frozenset({"length", "count", "default", "d", "first", "last", *PATTERN_FILTERS})
_RANKED_TIMES = 16
"""Ranking also folds the case of every text, and calls a function for every item."""
_SORTED_STEPS = 3
_INDENT_MAX = 16
_PRECISION_MAX = 300
_STANDARD_ALPHABET = str.maketrans("-_", "+/")


def filters() -> dict[str, Any]:
    jinja = {name: _from_jinja(function) for name, function in FILTERS.items() if name not in _LEFT_OUT}
    own = {**_OWN, **PATTERN_FILTERS, **MOMENT_FILTERS}
    return {name: _metered(name, function) for name, function in {**jinja, **own}.items()}


def tests() -> dict[str, Any]:
    jinja = {name: _from_jinja(function) for name, function in cast(Mapping[str, Function], TESTS).items()}
    return {name: _metered(name, function, is_test=True) for name, function in {**jinja, **PATTERN_TESTS}.items()}


def _from_jinja(function: Function) -> Function:
    """Adapt a function that may want Jinja's context, environment or evaluation context first."""
    wants = getattr(function, "jinja_pass_arg", None)
    match wants.name if wants is not None else None:
        case "context":
            return function
        case "environment":
            return lambda context, *args, **kwargs: function(context.environment, *args, **kwargs)
        case "eval_context":
            return lambda context, *args, **kwargs: function(context.eval_ctx, *args, **kwargs)
    return lambda _context, *args, **kwargs: function(*args, **kwargs)


def _metered(name: str, function: Function, *, is_test: bool = False) -> Function:
    accepts_missing = name in _ON_MISSING
    of_any_length = is_test or name in _OF_ANY_LENGTH
    prepare = _preparation(name)

    def run(context: ScopeContext, value: Any, *args: Any, **kwargs: Any) -> Any:
        if not accepts_missing and isinstance(value, NotAvailable):
            value.refuse()
        if isinstance(value, str) and not of_any_length:
            limits.short(value)
        if prepare is not None:
            value = prepare(context, value, args, kwargs)
        context.spend(limits.cost(value))
        result = function(context, value, *args, **kwargs)
        if type(result) is str:
            limits.room(len(result))
        return result

    return pass_context(run)


def _preparation(name: str) -> Preparation | None:
    """Return the step that bounds the work of a function, applied to its value first."""
    if name in _ON_TEXT:
        return lambda _context, value, _args, _named: value if type(value) is str else limits.text(value)
    if name in _SPELLING:
        return lambda _context, value, _args, _named: limits.printable(value)
    if name in _COMPARING:
        return _weighed
    if name in _SORTING:
        return _weighed_for_sorting
    if name in _RANKING:
        return lambda context, value, args, named: _paced(context, _ranked(context, value), args, named)
    return _paced if name in _PACED else None


def _weighed(context: ScopeContext, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    for each in (value, *args, *named.values()):
        context.weigh(each)
    return value


def _ranked(context: ScopeContext, value: Any) -> Any:
    if isinstance(value, Iterable) and not isinstance(value, limits.SIZED):
        value = limits.drawn(context, value)
    context.weigh(value, _RANKED_TIMES)
    return value


def _weighed_for_sorting(context: ScopeContext, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    value = _ranked(context, value)
    if isinstance(value, limits.SIZED):
        context.spend(len(value) * _SORTED_STEPS * _keys_read(args, named))
    return value


def _paced(context: ScopeContext, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Charge for each item as the function reads it; empty values stay as they are."""
    return limits.budgeted(context, value, _keys_read(args, named)) if value else value


def _keys_read(args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """Count the keys that are read of every item: an attribute may be `a.b.c`, or several of them."""
    texts = [each for each in (*args, *named.values()) if isinstance(each, str)]
    return 1 + sum(each.count(".") + each.count(",") for each in texts)


def _join(context: ScopeContext, value: Iterable[Any], d: object = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(context.environment, attribute), value)
    return limits.joined(limits.text(d), value)


def _replace(_context: ScopeContext, value: str, old: object, new: object, count: int | None = None) -> str:
    return limits.replaced(value, limits.text(old), limits.text(new), -1 if count is None else count)


def _center(_context: ScopeContext, value: str, width: int = 80) -> str:
    return limits.padded("center")(value, width)


def _indent(context: ScopeContext, value: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    each = len(width) if isinstance(width, str) else width
    limits.room(len(value) + each * (value.count("\n") + 2))
    return str(FILTERS["indent"](value, width, first, blank))


def _wordwrap(
    context: ScopeContext,
    value: str,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str = "\n",
    break_on_hyphens: bool = True,
) -> str:
    limits.room(len(value) * (1 + len(wrapstring)))
    wrap = FILTERS["wordwrap"]
    return str(wrap(context.environment, value, width, break_long_words, wrapstring, break_on_hyphens))


def _format(_context: ScopeContext, value: str, *args: object, **kwargs: object) -> str:
    if args and kwargs:
        raise template_failed("format takes either positional or named values, not both")
    return limits.formatted(value, kwargs or args)


def _escape(_context: ScopeContext, value: str) -> str:
    return str.__str__(FILTERS["escape"](value))


def _string(_context: ScopeContext, value: str) -> str:
    return value


def _json(_context: ScopeContext, value: object, indent: int | None = None) -> str:
    return json.dumps(limits.printable(value), ensure_ascii=False, indent=_narrow(indent))


def _tojson(_context: ScopeContext, value: object, indent: int | None = None) -> str:
    return str.__str__(htmlsafe_json_dumps(limits.printable(value), indent=_narrow(indent), sort_keys=True))


def _narrow(indent: int | None) -> int | None:
    if indent is not None and not 0 <= indent <= _INDENT_MAX:
        raise template_failed(f"JSON is indented by 0 to {_INDENT_MAX} spaces")
    return indent


def _b64encode(_context: ScopeContext, value: str, urlsafe: bool = False) -> str:
    limits.room(len(value) * 4)
    encode = urlsafe_b64encode if urlsafe else b64encode
    return encode(value.encode()).decode("ascii")


def _b64decode(_context: ScopeContext, value: str) -> str:
    """Decode either alphabet; the padding at the end may be left out."""
    plus_and_slash = value.translate(_STANDARD_ALPHABET).rstrip("=")
    try:
        return b64decode(plus_and_slash + "=" * (-len(plus_and_slash) % 4), validate=True).decode()
    except UnicodeDecodeError:
        raise template_failed("the decoded bytes are not text in UTF-8") from None
    except ValueError:
        raise template_failed("the value is not in base64") from None


def _batch(context: ScopeContext, value: Iterable[Any], linecount: int, fill_with: Any = None) -> Any:
    context.spend(linecount)
    return FILTERS["batch"](value, linecount, fill_with)


def _slice(context: ScopeContext, value: Iterable[Any], slices: int, fill_with: Any = None) -> Any:
    context.spend(slices)
    return FILTERS["slice"](context.eval_ctx, value, slices, fill_with)


def _round(_context: ScopeContext, value: float, precision: int = 0, method: str = "common") -> float:
    if abs(precision) > _PRECISION_MAX:
        raise template_failed(f"round takes a precision of at most {_PRECISION_MAX}")
    if method == "common":
        return round(value, precision)
    if method not in ("ceil", "floor"):
        raise template_failed(f"round knows the methods common, ceil and floor, not {method!r}")
    scale = 10**precision
    whole = math.ceil(value * scale) if method == "ceil" else math.floor(value * scale)
    return float(whole / scale)


def _sum(context: ScopeContext, value: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    if attribute is not None:
        value = map(make_attrgetter(context.environment, attribute), value)
    if not isinstance(start, list | tuple):
        return sum(value, start)
    whole = list(start)
    for each in value:
        whole.extend(each)
        limits.room(len(whole))
    return whole


def _default(_context: ScopeContext, value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    return default_value if isinstance(value, Undefined) or (boolean and not value) else value


_OWN: Mapping[str, Function] = {
    "b64": _b64encode,
    "b64decode": _b64decode,
    "b64encode": _b64encode,
    "batch": _batch,
    "center": _center,
    "d": _default,
    "default": _default,
    "e": _escape,
    "escape": _escape,
    "forceescape": _escape,
    "format": _format,
    "indent": _indent,
    "join": _join,
    "json": _json,
    "replace": _replace,
    "round": _round,
    "safe": _string,
    "slice": _slice,
    "string": _string,
    "sum": _sum,
    "tojson": _tojson,
    "wordwrap": _wordwrap,
}
