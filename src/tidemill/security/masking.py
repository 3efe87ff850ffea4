"""Making sure that a secret's value is not in what an attempt leaves behind: errors, results, log lines, live frames.

A value is looked for as it is and in the forms that software likes to give it: line by line, escaped as JSON or Python,
in a URL, in hex, and in base64, alone or within something longer. What a handler encrypts, compresses, splits or spells
backwards is beyond this.

Messages are cut in many places, some of them in other processes, before anybody who knows the values sees them. So
whoever cuts a text marks the place with an ellipsis, and what a cut has left of a value beside the mark is hidden too.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urljoin, urlsplit

from tidemill.security.secrets import MASKED, VALUE_MIN

PIECE_MIN = 8
"""Shorter lines of a value, and encodings, are not looked for by themselves."""
WINDOW_BYTES = 262_144
"""How much of a file is looked through at once."""
CUT = "…"
"""Stands where a text was cut."""
_CUT_BYTES = CUT.encode()


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
        if CUT in text and self._forms:
            text = self._beside_cuts(text)
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASKED)
        return text

    def is_in(self, text: bytes) -> bool:
        """Whether a JSON text holds any of the values, or may hold what a cut has left of one."""
        return any(form in text for form in self._encoded) or (bool(self._forms) and _CUT_BYTES in text)

    def partial_match(self, text: str, least: int = 1) -> int:
        """How many characters at the end of a text may be the beginning of a value."""
        return max((_overlap(text, form, least) for form in self._forms), default=0)

    def _beside_cuts(self, text: str) -> str:
        """Hide the beginning of a value before each cut, and the end of one behind it."""
        first, *others = text.split(CUT)
        left = [first]
        for part in others:
            left[-1] = self._without_beginning(left[-1])
            left.append(self._without_end(part))
        return CUT.join(left)

    def _without_beginning(self, text: str) -> str:
        # Some leave a space before the mark; half a character may stand there too.
        plain = text.removesuffix(" ").rstrip("\ufffd")
        size = self.partial_match(plain, VALUE_MIN)
        return f"{plain[: len(plain) - size]}{MASKED}{text[len(plain) :]}" if size else text

    def _without_end(self, text: str) -> str:
        plain = text.removeprefix(" ").lstrip("\ufffd")
        size = max((_overlap(plain[len(form) - 1 :: -1], form[::-1], VALUE_MIN) for form in self._forms), default=0)
        return f"{text[: len(text) - len(plain)]}{MASKED}{plain[size:]}" if size else text

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
                return self._members(value)
            case list() | tuple():
                return [self.value(each) for each in value]
            case int() | float() if not isinstance(value, bool):
                return MASKED if self.text(str(value)) != str(value) else value
        return value

    def _members(self, value: dict[str, Any]) -> dict[str, Any]:
        """The members of an object; keys that look alike when they are masked are numbered, and none is lost."""
        left: dict[str, Any] = {}
        numbers: Counter[str] = Counter()
        for key, each in value.items():
            name = plain = self.text(key)
            while name != key and (name in left or name in value):
                numbers[plain] += 1
                name = f"{plain} ({numbers[plain] + 1})"
            left[name] = self.value(each)
        return left


NO_MASK = Mask()


def _forms(value: str) -> Iterable[str]:
    """The ways in which a value may be written; short ones stand in every other word and are left out."""
    import html

    raw = value.encode("utf-8", "surrogatepass")
    whole = (value, value.strip(), json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    yield from (form for form in (*whole, repr(value)[1:-1]) if len(form) >= VALUE_MIN)
    yield from _in_urls(raw)
    yield from _parts(value)
    yield from (form for form in (html.escape(value), *_written_twice(value)) if len(form) >= VALUE_MIN)
    yield from (line for line in value.splitlines() if len(line) >= PIECE_MIN)
    yield from (form for form in (raw.hex(), raw.hex().upper(), *_in_base64(raw)) if len(form) >= PIECE_MIN)


URL_SAFE = "!$&'()*+,/:;=?@[]~"
"""What a URL may hold as it is; libraries leave out some of them or others."""


def _in_urls(raw: bytes) -> Iterable[str]:
    """The value with percent signs: all of it, what must be, and with small letters."""
    forms = {quote(raw, safe=safe) for safe in ("", "/", URL_SAFE, URL_SAFE + "%", "~", "/:@")} | {quote_plus(raw)}
    for form in (*forms, "".join(f"%{byte:02X}" for byte in raw)):
        yield form
        yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), form)


def _parts(value: str) -> Iterable[str]:
    """What is left of a value that is a URL, or part of one, when its query is shown by itself or its path tidied."""
    pieces = [piece for piece in re.split(r"[?#]", value) if len(piece) >= PIECE_MIN]
    yield from pieces
    if "://" not in value:
        return
    with suppress(ValueError):
        url = urlsplit(value)
        path = quote(url.path, safe=URL_SAFE + "%")
        tidy = urlsplit(urljoin(f"{url.scheme or 'http'}://host", path)).path
        yield from (each for each in (url.path, path, tidy) if len(each) > VALUE_MIN)
        yield from (f"{url.scheme}://{url.netloc}{each}" for each in (path, tidy) if len(each) > 1)
        yield from (each for each in (url.password, unquote(url.password or "")) if each and len(each) >= VALUE_MIN)


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


def _overlap(text: str, form: str, least: int) -> int:
    """The length of the longest end of a text with which a form begins, if it has so many characters at least."""
    tail = text[-len(form) :]
    sought = form[:VALUE_MIN]
    at = tail.find(sought)
    while at >= 0:
        if form.startswith(tail[at:]):
            return len(tail) - at
        at = tail.find(sought, at + 1)
    sizes = range(min(VALUE_MIN - 1, len(text)), least - 1, -1)
    return next((size for size in sizes if text.endswith(form[:size])), 0)
