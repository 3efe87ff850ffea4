"""The exception of templates and conditions, and the wording of their messages.

The engine turns an `ExpressionError` into event data (`template_failed`, `condition_failed`); users never see it as an
exception, so it is not part of the hierarchy in `tidemill.errors`. Messages end up in events and log lines: nothing
here quotes more of a value than its kind and its keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

import msgspec

from tidemill.errors import Problem
from tidemill.expressions.scope import Json

NO_OUTPUT = "`when` is decided before the node has an output"
"""The hint of a condition that asks for an output where there is none."""


class ExpressionError(Exception):
    """A template or condition has no result; never retried, because the same values fail again."""

    def __init__(self, *, code: str, message: str, hint: str = "", path: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.path = code, message, hint, path
        """Where in the given value the expression stands, as a JSON pointer; empty for the value itself."""

    def __str__(self) -> str:
        return str(self.problem())

    def problem(self) -> Problem:
        return Problem(code=self.code, message=self.message, path=self.path, hint=self.hint)


class LoopBudgetSpent(Exception):
    """A rendering takes more than it may on the event loop; it is begun again elsewhere."""


class Explanation(str):
    """A message that carries its hint and code through a library that only transports strings."""

    __slots__ = ("code", "hint")
    code: str
    hint: str

    def __new__(cls, message: str, hint: str = "", code: str = "template_failed") -> Explanation:
        explanation = super().__new__(cls, message)
        explanation.hint, explanation.code = hint, code
        return explanation


def template_failed(message: str, hint: str = "") -> ExpressionError:
    """Build the failure of a template; an explanation brings its own hint and code."""
    code = "template_failed"
    if isinstance(message, Explanation):
        hint, code = hint or message.hint, message.code
    return ExpressionError(code=code, message=str.__str__(message), hint=hint)


def condition_failed(message: str, hint: str = "") -> ExpressionError:
    return ExpressionError(code="condition_failed", message=message, hint=hint)


def within(expression: str, failure: ExpressionError) -> ExpressionError:
    """Add the expression in which a condition failed to the message."""
    return condition_failed(f"{failure.message} (in `{expression}`)", failure.hint)


KEYS_SHOWN = 12
SIMILAR_MIN = 0.65
"""How similar a name must be to be suggested: FETCH is not PATCH."""


def kind_of(value: object) -> str:
    """Name the JSON kind of a value with its article, as it is used in a sentence."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "an object"
    return "not a JSON value"


def shorten(text: str, limit: int = 120) -> str:
    """Truncate a text for a message, keeping its beginning and its end."""
    if len(text) <= limit:
        return text
    half = (limit - 3) // 2
    return f"{text[:half]} … {text[-half:]}"


def listing(names: Iterable[object]) -> str:
    shown = [shorten(str(name), 40) for name in names]
    more = len(shown) - KEYS_SHOWN
    return ", ".join(shown[:KEYS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def meant(name: str, known: Iterable[str]) -> str:
    """Suggest the known name closest to a misspelt one, ignoring case; empty if none is close."""
    names = list(known)[:1000]
    folded = {each.casefold(): each for each in reversed(names)}
    near = get_close_matches(name, names, 1, SIMILAR_MIN) or get_close_matches(name.casefold(), folded, 1, SIMILAR_MIN)
    return f'did you mean "{folded.get(near[0], near[0])}"?' if near else ""


def choices(values: Iterable[object]) -> str:
    texts = [shorten(msgspec.json.encode(value).decode(), 60) for value in values]
    more = len(texts) - KEYS_SHOWN
    shown = [*texts[:KEYS_SHOWN], f"{more} more"] if more > 0 else texts
    return " or ".join(part for part in (", ".join(shown[:-1]), *shown[-1:]) if part)


def place(base: str, key: str | int) -> str:
    """Append a key to a path, in the notation of templates and conditions."""
    if isinstance(key, str) and key.isidentifier():
        return f"{base}.{key}"
    return f'{base}["{key}"]' if isinstance(key, str) else f"{base}[{key}]"


def lacking(where: str, value: Json, key: object) -> tuple[str, str]:
    """Say why a value has nothing under a key, as message and hint."""
    if isinstance(value, Mapping):
        known = f"known keys: {listing(value)}" if value else "it is empty"
        return f'{where} has no key "{key}" ({known})', meant(str(key), value)
    if isinstance(value, list | tuple):
        if isinstance(key, int):
            return f"{where} has {len(value)} items, so there is no [{key}]", "the first item is [0], the last [-1]"
        return f'{where} is a list, so it has no key "{key}"', "choose an item first: [0], or a loop over the list"
    if isinstance(key, int):
        return f"{where} is {kind_of(value)}, so there is no [{key}]", ""
    return f'{where} is {kind_of(value)}, so it has no key "{key}"', ""


def pointer(base: str, key: str | int) -> str:
    return f"{base}/{str(key).replace('~', '~0').replace('/', '~1')}"


_UNITS = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_KEY_UNITS = {"ms": 0.001, "s": 1, "sec": 1, "seconds": 1, "minutes": 60, "hours": 3600, "days": 86_400}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([a-z]*)")


def number_hint(key: str, value: Json) -> str:
    """What to write for a number in quotes, or for a duration such as `5m` where the key names a unit."""
    written = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if written is None:
        return ""
    amount, unit = float(written[1]), written[2]
    if not unit:
        return f"write {amount:.15g}, without quotes"
    of_key = _KEY_UNITS.get(key.rpartition("_")[2])
    if unit not in _UNITS or of_key is None:
        return ""
    return f"write {round(amount * _UNITS[unit] / of_key, 9):.15g}"
