"""Which Python values are JSON values, and how deep and large a document may be.

Documents also arrive as Python objects (builder, patch), so the text parsers are not the only guard. Later functions
recurse without checks because `DEPTH_MAX` is enforced here.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from math import isfinite
from typing import Any

from tidemill.expressions.limits import DIGITS_MAX
from tidemill.kernel.document.problems import ProblemCollector, pointer
from tidemill.kernel.model import Json

DEPTH_MAX = 100
CONTAINERS_MAX = 10_000_000
TEXT_MAX = 64 * 1024 * 1024
"""Characters of all strings: as much as the largest text of a document."""

LEAVES = frozenset((bool, type(None)))
"""Types that need no check."""
TOO_LONG = 10**4_300
"""The first integer that Python neither writes nor reads."""
LONG, MINUS_LONG = 10**400, -(10**400)
"""Longer integers are counted: writing one takes a time that grows with the square of its digits."""

SMALL = 16

Trail = tuple["Trail | None", "str | int"]
"""The path to a value as linked steps; it becomes a pointer only for a problem."""


def check_values(value: Json, found: ProblemCollector) -> None:
    with suppress(_StopWalk):
        _Walk(found).visit(value, None, 0)


class _StopWalk(Exception):
    """Ends the walk: a Python object may contain itself."""


_Extent = tuple[int, int, int, int]
"""What is in a value, with repetition: containers, digits of long integers, characters; and how deep it is."""

PLAIN = frozenset({type(None), bool, int, float, str})
"""Exact types: a subclass of str may be encoded differently or not at all."""


class _Walk:
    __slots__ = ("_known", "digits_left", "found", "left", "text_left")

    def __init__(self, found: ProblemCollector) -> None:
        self.found = found
        self.left, self.digits_left, self.text_left = CONTAINERS_MAX, DIGITS_MAX, TEXT_MAX
        self._known: dict[int, _Extent] = {}
        """By identity. A part that occurs again is counted, and not walked through: it may occur a billion times. Small
        lists and mappings of plain values are walked through again."""

    def visit(self, value: Json, trail: Trail | None, depth: int) -> int:
        """Check a value; return how deep it is nested."""
        if not isinstance(value, (dict, list)):
            self._leaf(value, trail)
            return 0
        known = self._known.get(id(value))
        if known is not None:
            containers, digits, text, levels = known
            self._take(containers, depth + levels, trail)
            self._take_digits(digits, trail)
            self._take_text(text, trail)
            return levels
        before, digits_before, text_before = self.left, self.digits_left, self.text_left
        self.left = before - 1
        if before < 1 or depth >= DEPTH_MAX:
            self._take(0, depth + 1, trail)
        steps: Iterable[tuple[Any, Json]] = enumerate(value)
        if isinstance(value, dict):
            steps = value.items()
            for key in value:
                if type(key) is not str or not key.isascii():
                    self._key(key, trail)
        deepest = text = 0
        for step, child in steps:
            kind = type(child)
            if kind is str:
                text += len(child)
                if not child.isascii():
                    self._leaf(child, (trail, step))
            elif kind is int:
                if not MINUS_LONG < child < LONG:
                    self._leaf(child, (trail, step))
            elif kind not in LEAVES:
                levels = self.visit(child, (trail, step), depth + 1)
                if levels > deepest:
                    deepest = levels
        self.text_left -= text
        if self.text_left < 0:
            self._take_text(0, trail)
        if deepest or len(value) > SMALL:
            digits, below = digits_before - self.digits_left, text_before - self.text_left
            self._known[id(value)] = before - self.left, digits, below, deepest + 1
        return deepest + 1

    def _take(self, containers: int, depth: int, trail: Trail | None) -> None:
        self.left -= containers
        if self.left < 0:
            self._report("document_too_large", trail, f"more than {CONTAINERS_MAX} lists and mappings")
            raise _StopWalk
        if depth > DEPTH_MAX:
            self._report("too_deep", trail, f"nested more than {DEPTH_MAX} levels deep")
            raise _StopWalk

    def _take_digits(self, digits: int, trail: Trail | None) -> None:
        self.digits_left -= digits
        if self.digits_left < 0:
            message = f"its long integers have more than {DIGITS_MAX} digits together"
            self._report("document_too_large", trail, message, "write them as strings")
            raise _StopWalk

    def _take_text(self, characters: int, trail: Trail | None) -> None:
        self.text_left -= characters
        if self.text_left < 0:
            message = f"its strings have more than {TEXT_MAX} characters together"
            self._report("document_too_large", trail, message, "pass large values as inputs or blobs")
            raise _StopWalk

    def _key(self, key: Any, trail: Trail | None) -> None:
        if not isinstance(key, str) or has_lone_surrogate(key):
            named = f"the key {key!r:.60}" if isinstance(key, str) else f"a key of type {type(key).__name__}"
            self._report("not_json", trail, f"{named} is not a string of characters", "quote the key")

    def _leaf(self, value: Json, trail: Trail | None) -> None:
        if type(value) not in PLAIN:
            self._report("not_json", trail, f"a {type(value).__name__} is not a JSON value", "use a string or a list")
        elif isinstance(value, int):
            if not -TOO_LONG < value < TOO_LONG:
                self._report("not_json", trail, "an integer has more than 4,300 digits", "write it as a string")
            self._take_digits(value.bit_length() * 3 // 10, trail)
        elif isinstance(value, float):
            if not isfinite(value):
                self._report("not_json", trail, f"{value} is not a JSON number", "use null, or a string")
        elif isinstance(value, str) and has_lone_surrogate(value):
            self._report("not_json", trail, "half of a surrogate pair is not a character", "write the whole character")

    def _report(self, code: str, trail: Trail | None, message: str, hint: str = "") -> None:
        steps: list[str | int] = []
        while trail is not None:
            trail, step = trail
            steps.append(step)
        path = ""
        for step in reversed(steps):
            path = pointer(path, step if isinstance(step, int) else str(step))
        self.found.problem(code, path, message, hint)


def deeper_than(value: Json, depth: int) -> bool:
    """Whether containers are nested deeper than this, without recursion."""
    level: list[Json] = [value] if isinstance(value, dict | list) else []
    while level and depth > 0:
        depth -= 1
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) is dict or type(child) is list
        ]
    return bool(level)


def has_lone_surrogate(text: str) -> bool:
    """Whether a string contains half of a surrogate pair, which cannot be encoded."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
