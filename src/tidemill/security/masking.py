"""Masking: no secret value may remain in what an attempt records: errors, results, log lines, live frames, files.

A value is searched for as it is and in the forms that software gives it: line by line, escaped as JSON or Python, in a
URL, in hex, and in base64, alone or inside longer text. Encrypted, compressed, split or reversed values are out of
scope. Texts are truncated in many places, some in other processes, before they are masked: the code that truncates must
mark the cut with an ellipsis, and the fragment of a value beside the mark is masked too.
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
"""Shorter lines and encodings of a value are not searched for."""
WINDOW_BYTES = 262_144
"""Bytes of a file that are searched at once."""
CUT = "…"
"""Marks where a text was truncated."""


class Mask:
    """Replaces values by `***`; without values it changes nothing."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {form for value in values if len(value) >= VALUE_MIN for form in _forms(value)}
        # Longest first, so that no part of a longer form remains.
        self._forms = sorted(forms, key=len, reverse=True)
        self._encoded = [form.encode("utf-8", "surrogatepass") for form in self._forms]

    def __bool__(self) -> bool:
        return bool(self._forms)

    def text(self, text: str) -> str:
        if CUT in text and self._forms:
            text = self._beside_cuts(text)
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASKED)
        return text

    def is_in(self, text: bytes) -> bool:
        """Whether a JSON text holds a value, or may hold a fragment of one beside a cut."""
        return any(form in text for form in self._encoded) or (bool(self._forms) and CUT.encode() in text)

    def partial_match(self, text: str, least: int = 1) -> int:
        """How many characters at the end of a text may be the start of a value."""
        return max((_overlap(text, form, least) for form in self._forms), default=0)

    def _beside_cuts(self, text: str) -> str:
        """Mask the start of a value before each cut, and the end of one after it."""
        first, *others = text.split(CUT)
        masked = [first]
        for part in others:
            # There may be a space or a partial character beside the mark.
            before = masked[-1]
            plain = before.removesuffix(" ").rstrip("\ufffd")
            if size := self.partial_match(plain, VALUE_MIN):
                masked[-1] = f"{plain[: len(plain) - size]}{MASKED}{before[len(plain) :]}"
            plain = part.removeprefix(" ").lstrip("\ufffd")
            sizes = (_overlap(plain[len(form) - 1 :: -1], form[::-1], VALUE_MIN) for form in self._forms)
            size = max(sizes, default=0)
            masked.append(f"{part[: len(part) - len(plain)]}{MASKED}{plain[size:]}" if size else part)
        return CUT.join(masked)

    def content(self, data: bytes) -> bytes:
        """Mask the content of a file: a star for each byte, so that offsets stay the same."""
        masked = bytearray(data)
        for form in self._encoded:
            at = data.find(form)
            while at >= 0:
                masked[at : at + len(form)] = b"*" * len(form)
                at = data.find(form, at + 1)
        return bytes(masked)

    async def chunks(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same for a stream of chunks, also for values across chunk borders."""
        reach = max(map(len, self._encoded), default=1) - 1
        # The first `done` bytes of the window were already yielded; a value may start in them.
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
        """Mask a JSON value: strings, keys, and numbers that spell a secret."""
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
        """Mask an object; keys that become equal are numbered, so that none is lost."""
        members: dict[str, Any] = {}
        numbers: Counter[str] = Counter()
        for key, each in value.items():
            name = plain = self.text(key)
            while name != key and (name in members or name in value):
                numbers[plain] += 1
                name = f"{plain} ({numbers[plain] + 1})"
            members[name] = self.value(each)
        return members


NO_MASK = Mask()


def _forms(value: str) -> Iterable[str]:
    """All spellings of a value; short ones are left out, because they occur in ordinary text."""
    import html

    raw = value.encode("utf-8", "surrogatepass")
    whole = (value, value.strip(), json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    yield from (form for form in (*whole, repr(value)[1:-1]) if len(form) >= VALUE_MIN)
    yield from (form for form in (value.lower(), value.upper(), value[::-1]) if len(form) >= PIECE_MIN)
    yield from _in_urls(raw)
    yield from _parts(value)
    yield from (form for form in (html.escape(value), *_written_twice(value)) if len(form) >= VALUE_MIN)
    yield from (line for line in value.splitlines() if len(line) >= PIECE_MIN)
    yield from (form for form in (raw.hex(), raw.hex().upper(), *_in_base64(raw)) if len(form) >= PIECE_MIN)


URL_SAFE = "!$&'()*+,/:;=?@[]~"
"""Characters that a URL may hold unescaped; libraries differ in which they escape."""


def _in_urls(raw: bytes) -> Iterable[str]:
    """The value in percent encoding: complete, minimal, and in lower case."""
    forms = {quote(raw, safe=safe) for safe in ("", "/", URL_SAFE, URL_SAFE + "%", "~", "/:@")} | {quote_plus(raw)}
    for form in (*forms, "".join(f"%{byte:02X}" for byte in raw)):
        yield form
        yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), form)


def _parts(value: str) -> Iterable[str]:
    """Parts of a value that is a URL: its query alone, its normalised path, its password."""
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
    """The value in JSON inside a JSON string, as in logs, and similar escapes."""
    once = json.dumps(value)[1:-1]
    yield json.dumps(once)[1:-1]
    yield once.replace("/", "\\/")
    yield value.encode("unicode_escape").decode()
    yield repr(value.encode("utf-8", "surrogatepass"))[2:-1]


def _in_base64(raw: bytes) -> Iterable[str]:
    """The value alone, and its recognisable part after a prefix, such as a user name."""
    forms = [base64.b64encode(raw).decode()]
    for before in range(3):
        text = base64.b64encode(bytes(before) + raw).decode()
        # Characters at both ends also depend on the neighbouring bytes.
        forms.append(text[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6])
    for form in forms:
        yield form
        yield form.replace("+", "-").replace("/", "_")


def _overlap(text: str, form: str, least: int) -> int:
    """The length of the longest suffix of a text that is a prefix of a form; 0 if shorter than `least`."""
    tail = text[-len(form) :]
    start = form[:VALUE_MIN]
    at = tail.find(start)
    while at >= 0:
        if form.startswith(tail[at:]):
            return len(tail) - at
        at = tail.find(start, at + 1)
    sizes = range(min(VALUE_MIN - 1, len(text)), least - 1, -1)
    return next((size for size in sizes if text.endswith(form[:size])), 0)
