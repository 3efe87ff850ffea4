"""Jinja's sandbox, restricted further: values have keys and a short list of methods, nothing else.

Jinja forbids what it knows to be dangerous; here only what is listed is allowed, so a new attribute in a future Python
opens nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, cast

import jinja2  # noqa: F401 - the whole package first, or threads that import parts of it meet half of one
from jinja2.lexer import Lexer, Token
from jinja2.nodes import EvalContext
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context

from tidemill.expressions.errors import Explanation, kind_of, lacking, place, shorten, template_failed
from tidemill.expressions.templates import limits
from tidemill.expressions.templates.filters import filters, tests
from tidemill.expressions.templates.lookup import ScopeContext, is_nothing, node_path, step
from tidemill.expressions.templates.undefined import NotAvailable

PATH, NODE, METHOD, LOOP, CONCAT = "a path", "a node", "a method", "a loop", "a concatenation"
COMPARED, KEY, PART = "an operand", "a key", "a part"
"""Filters that `rewrite` inserts; authors cannot write a name with a blank."""

_CALL_STEPS = 5
"""A call takes about five times as long as a pass of a loop."""

_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_KNOWN_ESCAPES = frozenset("\n\\'\"abfnrtvxuUN01234567")
_LOOP_ATTRIBUTES = frozenset(
    ["index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0", "previtem", "nextitem"]
)
_STR_METHODS = frozenset(
    [
        *("capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii"),
        *("isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "lower", "lstrip"),
        *("partition", "removeprefix", "removesuffix", "rfind", "rindex", "rpartition", "rsplit", "rstrip"),
        *("split", "splitlines", "startswith", "strip", "swapcase", "title", "upper"),
    ]
)
_METHODS: Mapping[type, frozenset[str]] = {
    str: _STR_METHODS,
    dict: frozenset({"items", "keys", "values"}),
    float: frozenset({"is_integer"}),
    LoopContext: frozenset({"cycle"}),
}


def _get(whole: dict[str, Any], key: object, default: Any = None) -> Any:
    return whole.get(key, default) if isinstance(key, str) else default


_BOUNDED_METHODS: Mapping[str, Callable[..., str]] = {
    "replace": limits.replaced,
    "join": limits.joined,
    **{name: limits.padded(name) for name in ("center", "ljust", "rjust", "zfill")},
}


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The one environment of all templates; it holds no state of any rendering."""

    intercepted_binops = frozenset({*limits.OPERATORS, "//"})
    concat = staticmethod(partial(limits.joined, ""))
    """What a macro or a `set` block has printed, put together."""

    def __init__(self) -> None:
        # Without the optimizer nothing is evaluated while compiling.
        super().__init__(
            undefined=NotAvailable, finalize=_finalize, optimized=False, keep_trailing_newline=True, cache_size=0
        )
        self.filters = {**filters(), **_INTERNAL}
        self.tests = tests()
        self.globals = {}
        self.binop_table = {**self.binop_table, **limits.OPERATORS}
        self.evaluation = EvalContext(self)
        self._lexer = _ExactLexer(self)

    @property
    def lexer(self) -> Lexer:
        return self._lexer

    def getattr(self, obj: Any, attribute: str) -> Any:
        if attribute.startswith("_"):
            return NotAvailable(why=partial(_private, attribute))
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look a key up; attributes of Python objects do not exist, except a few that are listed."""
        value = step(obj, argument)
        if not is_nothing(value):
            return value
        if isinstance(obj, Undefined):
            return obj
        if isinstance(argument, str) and _is_listed(obj, argument):
            return getattr(obj, argument)
        return NotAvailable(why=partial(_nothing_there, obj, argument))

    def call_filter(
        self,
        name: str,
        value: Any,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        context: Context | None = None,
        eval_ctx: EvalContext | None = None,
    ) -> Any:
        """Call a filter named by a value, as in `map("upper")`; refuse the internal ones."""
        if name in _INTERNAL:
            raise template_failed(f'there is no filter called "{name}"')
        return super().call_filter(name, value, args, kwargs, context, eval_ctx)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, a method that was listed, a macro, or a recursive loop."""
        if isinstance(obj, NotAvailable):
            obj.refuse()
        if not callable(obj):
            raise template_failed(f"{kind_of(obj)} cannot be called", "keys are read without ()")
        rendering = cast(ScopeContext, context)
        rendering.spend(_CALL_STEPS + sum(map(limits.cost, args)))
        if args and isinstance(obj, LoopContext):
            args = (_loop(rendering, args[0], 0), *args[1:])
        result = rendering.call(obj, *args, **kwargs)
        if type(result) is range or type(result) is list:
            rendering.spend(len(result))
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        result = super().call_binop(context, operator, left, right)
        cast(ScopeContext, context).spend(limits.cost_of_copy(result))
        return result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse Jinja's own attribute access; `getattr` and `getitem` replace it."""
        return False


@lru_cache(maxsize=1)
def environment() -> TemplateEnvironment:
    """Return the shared environment, created on first use because its tables take a while."""
    return TemplateEnvironment()


def _private(name: str) -> Explanation:
    return Explanation(
        f'names that start with _ are not visible: "{name}"', f'a key of that name is read as ["{name}"]'
    )


def _nothing_there(obj: object, key: object) -> Explanation:
    shown = key if isinstance(key, int) else shorten(str(key), 60) if isinstance(key, str) else kind_of(key)
    message, hint = lacking("the value", obj, shown)
    called = isinstance(key, str) and any(key in names for kind, names in _METHODS.items() if isinstance(obj, kind))
    return Explanation(message, f"the method is called as .{key}()" if called else hint)


def _is_listed(obj: object, name: str) -> bool:
    if isinstance(obj, Namespace):
        return not name.startswith("_") and hasattr(obj, name)
    if isinstance(obj, LoopContext):
        return name in _LOOP_ATTRIBUTES
    # What `groupby` yields.
    return isinstance(obj, tuple) and hasattr(obj, "grouper") and name in ("grouper", "list")


@pass_context
def _finalize(context: ScopeContext, value: Any) -> str:
    shown = limits.text(value)
    context.spend(len(shown) >> 6)
    return shown


@pass_context
def _path(context: ScopeContext, number: int) -> Any:
    return context.paths[number].follow(context.scope)


@pass_context
def _node(context: ScopeContext, name: Any, *keys: Any) -> Any:
    if isinstance(name, NotAvailable):
        return name
    if not isinstance(name, str) or not all(isinstance(key, str | int) for key in keys):
        return NotAvailable(why=partial(Explanation, "a node is chosen by its id, which is a string"))
    return node_path(place("nodes", name), "nodes", name, keys).follow(context.scope)


@pass_context
def _method(context: ScopeContext, value: Any, name: str) -> Any:
    if isinstance(value, Undefined):
        return value
    if isinstance(value, Namespace):
        return context.environment.getattr(value, name)
    context.spend(limits.cost(value))
    if isinstance(value, str):
        limits.short(value)
    for kind, names in _METHODS.items():
        if isinstance(value, kind) and name in names:
            return getattr(value, name)
    if isinstance(value, str) and name in _BOUNDED_METHODS:
        return partial(_BOUNDED_METHODS[name], value)
    if isinstance(value, dict) and name == "get":
        return partial(_get, value)
    is_key = isinstance(value, dict) and name in value
    hint = "a key is read without ()" if is_key else "use a filter instead: `x | upper`"
    raise template_failed(f'{kind_of(value)} has no method "{name}"', hint)


@pass_context
def _loop(context: ScopeContext, value: Any, text_size: int) -> Any:
    if isinstance(value, NotAvailable):
        value.refuse()
    if not isinstance(value, list | tuple | dict | str | range):
        value = limits.drawn(context, value)
    context.spend(len(value) * (1 + (text_size >> 6)))
    return limits.LoopItems(value, context)


@pass_context
def _compared(context: ScopeContext, value: Any) -> Any:
    context.weigh(value)
    return value


@pass_context
def _part(context: ScopeContext, value: Any) -> Any:
    context.spend(limits.cost_of_copy(value))
    return value


@pass_context
def _key(_context: ScopeContext, value: Any) -> str:
    if isinstance(value, NotAvailable):
        value.refuse()
    if not isinstance(value, str):
        raise template_failed(f"a key of an object is a string, not {kind_of(value)}", "convert it: `x | string`")
    return value


@pass_context
def _concat(context: ScopeContext, parts: list[Any]) -> str:
    shown = limits.joined("", parts)
    context.spend(len(shown) >> 6)
    return shown


_INTERNAL = {
    PATH: _path,
    NODE: _node,
    METHOD: _method,
    LOOP: _loop,
    CONCAT: _concat,
    COMPARED: _compared,
    KEY: _key,
    PART: _part,
}


class _ExactLexer(Lexer):
    r"""Keeps carriage returns, which Jinja turns into newlines: request bodies and mails need them.

    They travel through Jinja as another white-space character that the text does not hold. And it reads `\d` in a
    string as a backslash and a letter, as it is needed in patterns.
    """

    _STAND_INS = "\x1c\x1d\x1e\x1f"

    def tokeniter(
        self, source: str, name: str | None, filename: str | None = None, state: str | None = None
    ) -> Iterator[tuple[int, str, str]]:
        stand_in = next((each for each in self._STAND_INS if each not in source), None) if "\r" in source else None
        if stand_in is None:
            yield from super().tokeniter(source, name, filename, state)
            return
        for line, token, value in super().tokeniter(source.replace("\r", stand_in), name, filename, state):
            yield line, token, value.replace(stand_in, "\r")

    def wrap(
        self, stream: Iterable[tuple[int, str, str]], name: str | None = None, filename: str | None = None
    ) -> Iterator[Token]:
        return super().wrap(map(_with_sound_escapes, stream), name, filename)

    def _normalize_newlines(self, value: str) -> str:
        return value


def _with_sound_escapes(token: tuple[int, str, str]) -> tuple[int, str, str]:
    r"""Double the backslash of an escape that Python does not know, such as `\d`: it stands for itself.

    Python reads it that way too, but warns, and will refuse it one day.
    """
    line, kind, value = token
    return (line, kind, _ESCAPE.sub(_sound_escape, value)) if kind == "string" and "\\" in value else token


def _sound_escape(escape: re.Match[str]) -> str:
    return escape[0] if escape[1] in _KNOWN_ESCAPES else f"\\{escape[0]}"
