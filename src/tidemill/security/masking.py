"""Making sure that a secret's value is not in what an attempt leaves behind: errors, results, log lines, live frames.

A value is looked for as it is and in the forms that software likes to give it: escaped as JSON, in a URL, in base64.
What a handler encrypts, splits or spells backwards is beyond this.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, quote_plus

from tidemill.security.secrets import MASKED

VALUE_MIN = 4
"""Shorter values are not masked: they stand in every other word."""


class Mask:
    """Replaces values; one without any changes nothing."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {form for value in values if len(value) >= VALUE_MIN for form in _forms(value)}
        # The longest first, so that no part of a longer form is left over.
        self._forms = sorted(forms, key=len, reverse=True)
        self._encoded = [form.encode("utf-8", "surrogatepass") for form in self._forms]

    def __bool__(self) -> bool:
        return bool(self._forms)

    def text(self, text: str) -> str:
        """Mask a text."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASKED)
        return text

    def is_in(self, text: bytes) -> bool:
        """Whether a JSON text holds any of the values."""
        return any(form in text for form in self._encoded)

    def value(self, value: Any) -> Any:
        """Mask a JSON value: its strings and keys, and numbers that spell a secret."""
        match value:
            case str():
                return self.text(value)
            case dict():
                return {self.text(key): self.value(each) for key, each in value.items()}
            case list():
                return [self.value(each) for each in value]
            case int() | float() if not isinstance(value, bool):
                return MASKED if self.text(str(value)) != str(value) else value
        return value


NO_MASK = Mask()


def _forms(value: str) -> Iterable[str]:
    raw = value.encode("utf-8", "surrogatepass")
    encoded = {base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()}
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield from encoded
    yield from (each.rstrip("=") for each in encoded)
    yield from (quote(raw, safe=""), quote(raw), quote_plus(raw))
