"""Entry points for documents: bytes to a JSON value, and a value to its normal form.

The size is checked before anything is parsed.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import msgspec

from tidemill.errors import Problem, Rejected, rejected
from tidemill.kernel.document.normalize import draft_of, parse_conditions
from tidemill.kernel.document.values import has_lone_surrogate
from tidemill.kernel.model import Json


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the garbage collector while a large tree is built: its scans would take a quarter of the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_QUOTED_KEY = re.compile(r'\s*\{\s*"')
BYTES_MAX = 64 * 1024 * 1024

Format = Literal["yaml", "json"]


def format_of(suffix: str) -> Format | None:
    formats: dict[str, Format] = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}
    return formats.get(suffix.lower())


def read_json(text: str) -> Json:
    # The parsers are imported with the first text that needs them: stored documents are read without.
    from tidemill.kernel.document import text as parsers

    return parsers.read_json(text)


def read_yaml(text: str) -> Json:
    from tidemill.kernel.document import text as parsers

    return parsers.read_yaml(text)


def read_document(text: bytes | str, *, format: Format | None, bytes_max: int = BYTES_MAX) -> Json:  # noqa: A002
    """Parse a document or raise Rejected; without a format, text that begins like JSON is tried as JSON first."""
    read = {"json": read_json, "yaml": read_yaml, None: _read_either}[format]
    source = _decoded(text, bytes_max)
    with paused_collector():
        value = read(source)
    if not isinstance(value, dict):
        what = "the document is empty" if value is None else "the document is not a mapping"
        raise rejected("not_a_mapping", what, hint="start with keys such as `name:` and `nodes:`")
    return value


def with_places(problems: Sequence[Problem], text: bytes | str) -> tuple[Problem, ...]:
    """Problems of a document with line and column in the text that it was read from."""
    if not problems:
        return ()
    from tidemill.kernel.document import text as parsers

    source = text if isinstance(text, str) else text.decode(errors="replace")
    places = parsers.find_places(source.removeprefix("\ufeff"), {each.path for each in problems if not each.line})
    return tuple(
        msgspec.structs.replace(each, line=places[each.path][0], column=places[each.path][1])
        if each.path in places
        else each
        for each in problems
    )


def normalise(raw: Json) -> tuple[Json, list[Problem]]:
    """The normal form and its problems; the form is complete only without problems."""
    draft = draft_of(raw)
    parse_conditions(draft)
    return draft.document, draft.found.all_problems()


def _decoded(text: bytes | str, bytes_max: int) -> str:
    size = len(text)
    if isinstance(text, str) and size <= bytes_max and not text.isascii():
        size = len(text.encode(errors="surrogatepass"))
    if size > bytes_max:
        raise rejected("document_too_large", f"the document has {size} bytes, at most {bytes_max} are read")
    if isinstance(text, str):
        if has_lone_surrogate(text):
            raise rejected("not_utf8", "the text holds half of a surrogate pair", hint="save the file as UTF-8")
        return text.removeprefix("\ufeff")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        problem = f"line {line}: byte 0x{text[error.start]:02x} is not UTF-8"
        raise rejected("not_utf8", problem, hint="save the file as UTF-8") from None


def _read_either(text: str) -> Json:
    """Try JSON first if it begins like JSON: it parses ten times as fast as the same text as YAML.

    What begins with a quoted key is meant as JSON, and not read as YAML, which takes trailing commas.
    """
    if not text.lstrip().startswith(("{", "[")):
        return read_yaml(text)
    try:
        return read_json(text)
    except Rejected as refusal:
        if refusal.code != "json_syntax" or _QUOTED_KEY.match(text):
            raise
        try:
            return read_yaml(text)
        except Rejected:
            raise refusal from None
