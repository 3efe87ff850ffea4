"""JSON text to a value: exact, bounded, and with the place of every fault.

The standard parser is fast but lenient: it keeps the last of two equal keys, and reads NaN, infinities and
half a surrogate pair. So the fast parse only notices that something is wrong; a slow scan of the text, which
good documents never pay for, then says what and where.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from math import isfinite

from tidemill.errors import Problem
from tidemill.kernel.document.findings import Findings, pointer, shown
from tidemill.kernel.document.values import DEPTH_MAX, check_values, deeper_than, has_lone_surrogate
from tidemill.kernel.model import Json

_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
TOKENS_MAX = 5_000_000
"""Tokens that a scan looks at; a fault behind them is reported without its place."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_json(text: str) -> Json:
    """Parse a document, or raise Rejected with every fault of the text."""
    found = Findings()
    try:
        value, faults = _parse(text)
        if not faults and not _SURROGATE.search(text) and not deeper_than(value, DEPTH_MAX):
            return value
        _Scan(text, found).run()
        if not found.problems:
            found.extend(faults)
        if not found.problems:
            check_values(value, found)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        found.problem("json_syntax", "", f"{where}: {error.msg[:1].lower()}{error.msg[1:]}")
    except (RecursionError, ValueError):
        # Too deep, or an integer with more digits than Python converts; the scan says which and where.
        _Scan(text, found).run()
        if not found.problems:
            found.problem("too_deep", "", "nested too deep, or a number too long, to be read")
    found.refuse()
    return value


def _parse(text: str) -> tuple[Json, list[Problem]]:
    """The value, and what the parser let pass although it must not; where that is, it does not know."""
    found = Findings()

    def pairs(items: list[tuple[str, Json]]) -> dict[str, Json]:
        mapping = dict(items)
        if len(mapping) != len(items):
            found.problem("duplicate_key", "", "a mapping gives one key twice", "keep one of them")
        return mapping

    def constant(name: str) -> None:
        found.problem("not_json", "", f"{name} is not a JSON value", "use null, or a string")

    def number(digits: str) -> float:
        value = float(digits)
        if not isfinite(value):
            found.problem("not_json", "", f"the number {shown(digits)} is too large", "write it as a string")
        return value

    value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_float=number)
    return value, found.problems


class _Scan:
    """Walk the tokens of a text whose parse was suspicious, and report each fault with line and column."""

    def __init__(self, text: str, found: Findings) -> None:
        self.text = text
        self.found = found
        self.keys: list[set[str] | None] = []
        self.steps: list[str | int] = []
        self.line = 1
        self.line_start = 0
        self.counted = 0

    def run(self) -> None:
        expects_key = False
        for match in islice(_TOKEN.finditer(self.text), TOKENS_MAX):
            token, at = match.group(), match.start()
            if token in "{[":
                if len(self.keys) == DEPTH_MAX:
                    self._say("too_deep", at, f"nested more than {DEPTH_MAX} levels deep")
                    return
                self.keys.append(set() if token == "{" else None)
                self.steps.append("" if token == "{" else 0)
                expects_key = token == "{"
            elif token in "}]":
                if self.keys:
                    self.keys.pop()
                    self.steps.pop()
                expects_key = False
            elif token == ",":
                expects_key = bool(self.keys) and self.keys[-1] is not None
                if self.steps and isinstance(step := self.steps[-1], int):
                    self.steps[-1] = step + 1
            elif token != ":":
                self._leaf(token, at, expects_key)
                expects_key = False

    def _leaf(self, token: str, at: int, is_key: bool) -> None:
        if not token.startswith('"'):
            self._number(token, at)
            return
        try:
            text = json.loads(token, strict=False)
        except ValueError:
            return
        if has_lone_surrogate(text):
            self._say("not_json", at, "half of a surrogate pair is not a character", "write the whole character")
        names = self.keys[-1] if self.keys else None
        if is_key and names is not None:
            self.steps[-1] = text
            if text in names:
                self._say("duplicate_key", at, f"the key `{shown(text)}` is given twice", "keep one of them")
            names.add(text)

    def _number(self, token: str, at: int) -> None:
        if token in ("NaN", "Infinity", "-Infinity"):
            self._say("not_json", at, f"{token} is not a JSON value", "use null, or a string")
        elif token[-1].isdigit():
            try:
                number = float(token) if set(token) & set(".eE") else int(token)
            except ValueError:
                self._say("not_json", at, f"a number of {len(token)} digits is too long", "write it as a string")
                return
            if isinstance(number, float) and not isfinite(number):
                self._say("not_json", at, f"the number {shown(token)} is too large", "write it as a string")

    def _say(self, code: str, at: int, message: str, hint: str = "") -> None:
        self.line += self.text.count("\n", self.counted, at)
        self.line_start = max(self.line_start, self.text.rfind("\n", self.counted, at) + 1)
        self.counted = at
        path = ""
        for step in self.steps:
            path = pointer(path, step)
        self.found.problem(code, path, f"line {self.line}, column {at - self.line_start + 1}: {message}", hint)
