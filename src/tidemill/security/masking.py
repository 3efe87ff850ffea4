"""Making sure that a secret's value is not in what an attempt leaves behind: errors, results, log lines, live frames.

A value is looked for as it is and in the forms that software likes to give it: line by line, escaped as JSON or Python,
in a URL, in hex, and in base64, alone or within something longer. What a handler encrypts, compresses, splits or spells
backwards is beyond this.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import AsyncIterator, Iterable
from typing import Any
from urllib.parse import quote, quote_plus

from tidemill.security.secrets import MASKED, VALUE_MIN

PIECE_MIN = 8
"""Shorter lines of a value, and encodings, are not looked for by themselves."""
WINDOW_BYTES = 262_144
"""How much of a file is looked through at once."""


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
        """Whether a JSON text, or a file, holds any of the values."""
        return any(form in text for form in self._encoded)

    def content(self, data: bytes) -> bytes:
        """Mask what a file holds: a star for each byte, so that everything else stays where it was."""
        left = bytearray(data)
        for form in self._encoded:
            at = data.find(form)
            while at >= 0:
                left[at : at + len(form)] = b"*" * len(form)
                at = data.find(form, at + 1)
        return bytes(left)

    async def chunks(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same for a file that comes bit by bit; a value that lies across two bits is found too."""
        reach = max(map(len, self._encoded), default=1) - 1
        # The first `done` bytes of the window were given away already; they tell what a value begins in.
        window, done = bytearray(), 0
        async for chunk in chunks:
            window += chunk
            sure = len(window) - reach
            if sure - done >= WINDOW_BYTES:
                yield self.content(bytes(window))[done:sure]
                done = min(sure, reach)
                del window[: sure - done]
        yield self.content(bytes(window))[done:]

    def value(self, value: Any) -> Any:
        """Mask a JSON value: its strings and keys, and numbers that spell a secret."""
        if not self._forms:
            return value
        match value:
            case str():
                return self.text(value)
            case dict():
                return {self.text(key): self.value(each) for key, each in value.items()}
            case list() | tuple():
                return [self.value(each) for each in value]
            case int() | float() if not isinstance(value, bool):
                return MASKED if self.text(str(value)) != str(value) else value
        return value


NO_MASK = Mask()


def _forms(value: str) -> Iterable[str]:
    """The ways in which a value may be written; short ones stand in every other word and are left out."""
    raw = value.encode("utf-8", "surrogatepass")
    whole = (value, value.strip(), json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    yield from (form for form in (*whole, repr(value)[1:-1]) if len(form) >= VALUE_MIN)
    yield from _in_urls(raw)
    yield from (form for form in (html.escape(value), *_written_twice(value)) if len(form) >= VALUE_MIN)
    yield from (line for line in value.splitlines() if len(line) >= PIECE_MIN)
    yield from (form for form in (raw.hex(), raw.hex().upper(), *_in_base64(raw)) if len(form) >= PIECE_MIN)


URL_SAFE = "!$&'()*+,/:;=?@[]~"
"""What a URL may hold as it is; libraries leave out some of them or others."""


def _in_urls(raw: bytes) -> Iterable[str]:
    """The value with percent signs: all of it, what must be, and with small letters."""
    forms = {quote(raw, safe=safe) for safe in ("", "/", URL_SAFE, URL_SAFE + "%", "~", "/:@")} | {quote_plus(raw)}
    for form in forms:
        yield form
        yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), form)


def _written_twice(value: str) -> Iterable[str]:
    """The value in a JSON text that is itself a string of another one, as logs like to have it, and its neighbours."""
    once = json.dumps(value)[1:-1]
    yield json.dumps(once)[1:-1]
    yield once.replace("/", "\\/")
    yield value.encode("unicode_escape").decode()
    yield repr(value.encode("utf-8", "surrogatepass"))[2:-1]


def _in_base64(raw: bytes) -> Iterable[str]:
    """The value alone, and what of it shows when something stands before it, as a user's name does."""
    forms = [base64.b64encode(raw).decode()]
    for before in range(3):
        text = base64.b64encode(bytes(before) + raw).decode()
        # Characters at both ends also depend on what stands beside the value.
        forms.append(text[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6])
    for form in forms:
        yield form
        yield form.replace("+", "-").replace("/", "_")
