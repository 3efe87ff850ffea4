"""Regular expressions in templates, with an engine that does not backtrack.

Matching takes the length of the text times the size of the compiled pattern; that product is checked before matching,
and the budget is charged between matches. Patterns therefore have no look-around and no back references.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, cast

from tidemill.expressions.errors import ExpressionError, kind_of, listing, shorten, template_failed
from tidemill.expressions.limits import PATTERN_BYTES_MAX, PATTERN_MAX, PATTERN_WORK_MAX

if TYPE_CHECKING:
    from tidemill.expressions.templates.lookup import ScopeContext


CACHED_MAX = 128
"""Compiled patterns that are kept, each of at most `PATTERN_BYTES_MAX`."""

_WORK_PER_STEP = 1 << 10
_EATEN = re.compile(r"[\x01-\x08]")
_INSERTED = re.compile(r"\\(?:(\d{1,2})|g<(\w{1,60})>|(\\))", re.ASCII)
_SYNTAX = "look-around and back references do not exist, and {n,m} goes up to 1000"
_HINTS: Mapping[str, str] = {
    "missing )": r"every ( needs its ); a parenthesis that means itself is \(",
    "unexpected )": r"every ) needs its (; a parenthesis that means itself is \)",
    "missing ]": r"every [ needs its ]; a bracket that means itself is \[",
    "invalid character class range": r"ranges are written [a-z], with the lower end first; classes are \d, \w, \s, \pL",
    "no argument for repetition operator": r"*, + and ? stand after what they repeat; one that means itself is \*",
    "bad repetition operator": "two repetitions do not follow each other; put the first into parentheses",
    "trailing \\": r"a backslash that means itself is \\",
    "pattern too large": "write fewer repetitions {n,m}, and smaller character classes",
}
"""What to do about a mistake, by the beginning of what the library says."""

Group = int | str


class Match(Protocol):
    def group(self, group: Group = 0) -> str | None: ...

    def groups(self, default: str) -> tuple[str, ...]: ...

    def start(self) -> int: ...

    def end(self) -> int: ...


class Pattern(Protocol):
    """A compiled regular expression: the little that is used of the library's, typed."""

    @property
    def groups(self) -> int: ...

    @property
    def groupindex(self) -> Mapping[str, int]: ...

    @property
    def programsize(self) -> int: ...

    def search(self, text: str) -> Match | None: ...

    def match(self, text: str) -> Match | None: ...

    def fullmatch(self, text: str) -> Match | None: ...

    def finditer(self, text: str) -> Iterator[Match]: ...


def compile_pattern(pattern: object) -> Pattern:
    """Compile a regular expression; raise `ExpressionError` if it is none."""
    if not isinstance(pattern, str):
        from tidemill.expressions.templates.undefined import NotAvailable

        if isinstance(pattern, NotAvailable):
            pattern.refuse()
        raise template_failed(f"a pattern is a string, not {kind_of(pattern)}")
    if len(pattern) > PATTERN_MAX:
        raise template_failed(f"a pattern is limited to {PATTERN_MAX} characters")
    _whole(pattern, "pattern")
    return _compiled(pattern)


def check_arguments(name: str, arguments: list[object]) -> ExpressionError | None:
    """Find what is wrong with the arguments of a filter or test that are written out in a template."""
    if name not in PATTERN_FILTERS and name not in PATTERN_TESTS:
        return None
    try:
        pattern = compile_pattern(arguments[0])
        if name == "regex_replace" and len(arguments) > 1 and isinstance(arguments[1], str):
            _parts(pattern, arguments[1])
    except ExpressionError as failure:
        return failure
    return None


@lru_cache(maxsize=CACHED_MAX)
def _compiled(pattern: str) -> Pattern:
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES_MAX
    try:
        return cast(Pattern, re2.compile(pattern, options))
    except re2.error as error:
        said = error.args[0] if error.args else ""
        reason = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        hint = next((hint for beginning, hint in _HINTS.items() if reason.startswith(beginning)), _SYNTAX)
        raise template_failed(f"the pattern {shorten(pattern, 60)} cannot be used: {reason}", hint) from None
    except UnicodeEncodeError:
        raise template_failed("the pattern is not valid Unicode") from None


def _whole(text: str, what: str) -> None:
    r"""Refuse what is left of `\b` and `\1` when an author forgot that a template reads backslashes first."""
    if _EATEN.search(text):
        message = f"the {what} holds a control character, so a backslash was probably lost"
        raise template_failed(message, "in a template a backslash is written twice: '\\\\b', '\\\\1'")


def work_of(pattern: Pattern, text: str) -> int:
    """Tell what going once through a text costs; raise `ExpressionError` if that is too much."""
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise template_failed("the text is not valid Unicode") from None
    work = pattern.programsize * size
    if work > PATTERN_WORK_MAX:
        hint = "shorten the text, or write fewer repetitions {n,m} and character classes"
        raise template_failed(f"the pattern is too complex for a text of {len(text)} characters", hint)
    return work


def _ready(context: ScopeContext, text: str, pattern: object) -> Pattern:
    """Compile the pattern and pay for going once through the text."""
    compiled = compile_pattern(pattern)
    context.spend(1 + work_of(compiled, text) // _WORK_PER_STEP)
    return compiled


def _metered(context: ScopeContext, matches: Iterator[Match]) -> Iterator[Match]:
    for match in matches:
        context.spend(1)
        yield match


def _search(context: ScopeContext, value: str, pattern: object, group: Group = 0) -> str | None:
    compiled = _ready(context, value, pattern)
    _known(compiled, group)
    match = compiled.search(value)
    return None if match is None else match.group(group)


def _find_all(context: ScopeContext, value: str, pattern: object) -> list[Any]:
    compiled = _ready(context, value, pattern)
    matches = _metered(context, compiled.finditer(value))
    if compiled.groups == 0:
        return [match.group() for match in matches]
    if compiled.groups == 1:
        return [match.group(1) or "" for match in matches]
    return [list(match.groups("")) for match in matches]


def _replace(context: ScopeContext, value: str, pattern: object, replacement: object, count: int = 0) -> str:
    # Handlers use patterns without templates, and so without Jinja.
    from tidemill.expressions.templates.limits import room

    compiled = _ready(context, value, pattern)
    if not isinstance(replacement, str):
        raise template_failed(f"a replacement is a string, not {kind_of(replacement)}", "convert it: `x | string`")
    parts = _parts(compiled, replacement)
    pieces: list[str] = []
    size, end, left = len(value), 0, count if count > 0 else -1
    for match in _metered(context, compiled.finditer(value)):
        if left == 0:
            break
        left -= 1
        new = "".join(part if isinstance(part, str) else match.group(part[0]) or "" for part in parts)
        size += len(new)
        room(size)
        pieces += (value[end : match.start()], new)
        end = match.end()
    return "".join([*pieces, value[end:]])


def _parts(pattern: Pattern, replacement: str) -> list[str | tuple[Group]]:
    """Split a replacement into text and the groups that are inserted in between."""
    _whole(replacement, "replacement")
    parts: list[str | tuple[Group]] = []
    end = 0
    for found in _INSERTED.finditer(replacement):
        number, name, backslash = found.groups()
        parts.append(replacement[end : found.start()])
        end = found.end()
        if backslash:
            parts.append(backslash)
            continue
        group: Group = int(number) if number else int(name) if name.isdecimal() else name
        _known(pattern, group)
        parts.append((group,))
    return [*parts, replacement[end:]]


def _known(pattern: Pattern, group: Group) -> None:
    names = pattern.groupindex
    if not (group in names if isinstance(group, str) else 0 <= group <= pattern.groups):
        known = listing(names) or "none by name"
        hint = f"groups are counted from 1, 0 is the whole match; groups: {known}"
        raise template_failed(f"the pattern has no group {shorten(str(group), 60)}", hint)


PATTERN_FILTERS: Mapping[str, Callable[..., object]] = {
    "regex_search": _search,
    "regex_findall": _find_all,
    "regex_replace": _replace,
}
PATTERN_TESTS: Mapping[str, Callable[..., object]] = {
    "search": lambda context, value, pattern: _ready(context, value, pattern).search(value) is not None,
    "match": lambda context, value, pattern: _ready(context, value, pattern).match(value) is not None,
    "fullmatch": lambda context, value, pattern: _ready(context, value, pattern).fullmatch(value) is not None,
}
