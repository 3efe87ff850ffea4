"""What a command reads: documents from files or standard input, the inputs of a run, values of options.

Everything that can be wrong with a file is a refusal with a code and a hint. At most as much is read as a
document may have, whatever the file says its size is.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tidemill.errors import Problem, Rejected, rejected
from tidemill.kernel.document import BYTES_MAX, format_of, read_document
from tidemill.kernel.document.jsontext import read_json

STDIN = "-"
FILE_ENDINGS = (".json", ".yaml", ".yml")
"""By which a value is taken for the name of a file."""


class Source(NamedTuple):
    """A document as it was read, and where it lies."""

    name: str
    document: Any
    folder: Path | None


def read_source(name: str) -> Source:
    """Read and parse a document; `-` is standard input. Raises Rejected."""
    text = read_bytes(name)
    path = Path(name)
    document = read_document(text, format=None if name == STDIN else format_of(path.suffix))
    return Source(name, document, None if name == STDIN else path.absolute().parent)


def read_bytes(name: str) -> bytes:
    """Read a file or standard input, one byte more than is allowed at most."""
    try:
        if name == STDIN:
            if sys.stdin is None:
                raise OSError("it is closed")
            return sys.stdin.buffer.read(BYTES_MAX + 1)
        with open(name, "rb") as file:
            return file.read(BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: OSError | ValueError) -> Rejected:
    if name == STDIN:
        name = "standard input"
    match getattr(error, "errno", None):
        case errno.ENOENT | errno.ENOTDIR:
            return rejected("file_missing", f"there is no file {name}", hint=_nearby(name))
        case errno.EISDIR:
            return rejected("file_is_folder", f"{name} is a folder", hint="name a file in it")
        case errno.EACCES | errno.EPERM:
            return rejected("file_unreadable", f"{name} may not be read", hint="look at its permissions")
        case _:
            reason = getattr(error, "strerror", None) or str(error)
            return rejected("file_unreadable", f"{name} cannot be read: {reason.lower()}")


def _nearby(name: str) -> str:
    """The file that was probably meant."""
    from difflib import get_close_matches
    from itertools import islice

    path = Path(name)
    try:
        there = [entry.name for entry in islice(path.parent.iterdir(), 1000) if entry.is_file()]
    except (OSError, ValueError):
        return ""
    close = get_close_matches(path.name, there, n=1)
    return f"did you mean {path.with_name(close[0])}?" if close else ""


def read_inputs(given: Sequence[str], option: str = "--input") -> dict[str, Any]:
    """Read options in their order: `name=value`, or `@file.json` for many. Raises Rejected."""
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for text in given:
        try:
            found |= _from_file(text[1:]) if text.startswith("@") else _from_pair(option, text)
        except Rejected as refusal:
            problems.extend(refusal.problems)
    if problems:
        raise Rejected(problems)
    return found


def _from_file(name: str) -> dict[str, Any]:
    text = read_bytes(name)
    try:
        value: dict[str, Any] = read_document(text, format=format_of(Path(name).suffix))
    except Rejected as refusal:
        places = [f"@{name}{problem.path}" for problem in refusal.problems]
        raise Rejected(
            [
                Problem(code=_input_code(problem.code), message=_input_words(problem), path=place, hint=problem.hint)
                for place, problem in zip(places, refusal.problems, strict=True)
            ]
        ) from None
    return value


def read_value(option: str, text: str) -> Any:
    """The value of an option: `@file` is what the file holds, else JSON where it is JSON, else a string."""
    return read_data(text[1:]) if text.startswith("@") else parse_value(option, text)


def read_exact(option: str, text: str) -> Any:
    """The value of an option that is nothing but JSON; `@file` and `-` are what a file or standard input holds."""
    try:
        return read_data(text.removeprefix("@")) if text.startswith("@") or text == STDIN else read_json(text)
    except Rejected as refusal:
        is_name = text.endswith(FILE_ENDINGS) and not text.startswith("@")
        hint = f"a file is written @{text}" if is_name else ""
        raise Rejected(
            [
                msgspec.structs.replace(each, message=f"{option}: {each.message}", hint=hint or each.hint)
                for each in refusal.problems
            ]
        ) from None


def read_data(name: str) -> Any:
    """Read any JSON or YAML value from a file; `-` is standard input. Raises Rejected."""
    data = read_bytes(name)
    if len(data) > BYTES_MAX:
        raise rejected("document_too_large", f"{name} has more than {BYTES_MAX} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise rejected("not_utf8", f"{name} is not UTF-8", hint="save the file as UTF-8") from None
    like_json = text.lstrip().startswith(("{", "[", '"'))
    if format_of(Path(name).suffix) == "json" or like_json:
        return read_json(text)
    from tidemill.kernel.document.yamltext import read_yaml

    return read_yaml(text)


def read_pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Read options that are `key=value` with plain text on both sides. Raises Rejected."""
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise rejected("option_invalid", f"{option} {text!r} is not key=value", hint="write key=value")
        found[key] = value
    return found


def _input_code(code: str) -> str:
    return "input_invalid" if code == "not_a_mapping" else code


def _input_words(problem: Problem) -> str:
    return "the file does not hold a mapping" if problem.code == "not_a_mapping" else problem.message


def _from_pair(option: str, text: str) -> dict[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        hint = "write name=value, or @file.json"
        raise rejected("input_invalid", f"{option} {text!r} is not name=value", hint=hint)
    if not _is_unicode(text):
        raise rejected("input_invalid", f"{option} {name!a} is not valid UTF-8")
    return {name: parse_value(f"{option} {name}", value)}


def parse_value(option: str, text: str) -> Any:
    """JSON where it is JSON, otherwise the text itself; JSON that cannot be kept exactly is refused."""
    try:
        return read_json(text)
    except Rejected as refusal:
        if refusal.code == "json_syntax" or text in ("NaN", "Infinity", "-Infinity"):
            return text
        first = refusal.problems[0]
        hint = first.hint or "quote it to pass it as a string"
        raise rejected(first.code, f"{option}: {first.message}", hint=hint) from None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
