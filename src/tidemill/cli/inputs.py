"""What commands read: documents, inputs of runs, values of options, JSON Patches, and bytes of blobs.

Every fault of a file is a refusal with a code and a hint, and no more is read than a document may have, whatever size
the file claims. Bytes are never written to a terminal by accident. `--set /nodes/fetch/config/url=VALUE` becomes an
`add` or a `replace`, depending on the document that the patch is for; the engine judges the patch itself. Text that is
typed is read by lines without blocking, so that an interrupt, or an answer from elsewhere, is noticed at once.
"""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import msgspec

from tidemill.cli.render.terminal import in_background, one_line, print_refusal, sanitize
from tidemill.errors import Problem, Rejected, offered, rejected
from tidemill.expressions.errors import pointer
from tidemill.kernel.document.reader import BYTES_MAX, format_of, read_document, read_json, read_yaml, with_places

if TYPE_CHECKING:
    from tidemill.authoring.decorators import Workflow
    from tidemill.client import Tidemill

STDIN = "-"
_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
FILE_ENDINGS = (".json", ".yaml", ".yml")
"""By which a value is taken for the name of a file."""


def read_blob_source(file: str) -> tuple[bytes | Path, str]:
    """The bytes or the path to store, and the name of the file."""
    return (sys.stdin.buffer.read(), "") if file == STDIN else (Path(file), Path(file).name)


def guessed_type(name: str) -> str:
    import mimetypes

    return mimetypes.guess_type(name)[0] or "application/octet-stream"


@contextmanager
def writing(output: str | None, *, as_json: bool) -> Iterator[tuple[IO[bytes], str]]:
    """Yield where to write bytes, and its name unless it is stdout. A file appears under its name when complete."""
    if output is None or output == STDIN:
        if as_json:
            message = "standard output cannot carry both the bytes and JSON"
            raise rejected("usage", message, path="/output", hint="name a file with -o")
        if output is None and sys.stdout.isatty():
            message = "bytes are not written to a terminal"
            raise rejected(
                "usage", message, path="/output", hint="name a file with -o, or use -o - to print them anyway"
            )
        yield sys.stdout.buffer, ""
        sys.stdout.buffer.flush()
        return
    target = Path(output)
    draft = _draft(target)
    try:
        with draft:
            yield draft, output
        # The only way to see the bits that new files do not get is to set them.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(draft.name, 0o666 & ~mask)
        os.replace(draft.name, target)
    except OSError as error:
        raise _unwritable(output, error) from None
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft.name)


def _draft(target: Path) -> IO[bytes]:
    """A temporary file in the folder of the target."""
    try:
        return tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False)
    except OSError as error:
        raise _unwritable(str(target), error) from None


def _unwritable(output: str, error: OSError) -> Exception:
    message = f"{output} cannot be written: {error.strerror or error}"
    return rejected("output_unwritable", message, path="/output")


class Source(NamedTuple):
    """A document as it was read, and where it lies."""

    name: str
    document: Any
    folder: Path | None
    text: bytes = b""
    workflow: Workflow[..., Any] | None = None
    """What it was made from, if it is written in Python."""

    @property
    def published(self) -> Any:
        """What is published: a workflow in Python brings its functions along."""
        return self.document if self.workflow is None else self.workflow

    @contextmanager
    def located(self) -> Iterator[None]:
        """Add line and column to the problems of a refusal."""
        try:
            yield
        except Rejected as refusal:
            raise Rejected(self.with_places(refusal.problems)) from None

    def with_places(self, problems: Sequence[Problem]) -> tuple[Problem, ...]:
        if self.workflow is not None:
            return tuple(self.workflow.located(problems))
        return with_places(problems, self.text) if self.text else tuple(problems)


def read_source(name: str) -> Source:
    """Read and parse a document; `-` is standard input, and Python is imported. Raises Rejected."""
    if is_python(name):
        from tidemill.cli.user_code import workflow_at

        file = name.partition(":")[0]
        is_file = file.endswith(".py")
        if is_file:
            read_bytes(file)
        flow = workflow_at(name)
        return Source(name, flow.document(), Path(file).absolute().parent if is_file else None, workflow=flow)
    text = read_bytes(name)
    path = Path(name)
    document = read_document(text, format=None if name == STDIN else format_of(path.suffix))
    return Source(name, document, None if name == STDIN else path.absolute().parent, text)


def is_python(name: str) -> bool:
    """Whether a name means a workflow written in Python: a file, or `module:workflow`."""
    if name.partition(":")[0].endswith(".py"):
        return True
    return _MODULE.fullmatch(name) is not None and not Path(name).exists()


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
            return rejected("file_unreadable", f"{name} is not readable", hint="check its permissions")
        case _:
            reason = getattr(error, "strerror", None) or str(error)
            return rejected("file_unreadable", f"{name} cannot be read: {reason.lower()}")


def _nearby(name: str) -> str:
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
    """Read options in their order: `name=value`, or a JSON object or `@file.json` for many. Raises Rejected."""
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for text in given:
        try:
            found |= _read_input(option, text)
        except Rejected as refusal:
            problems.extend(refusal.problems)
    if problems:
        raise Rejected(problems)
    return found


_OPENING = frozenset(
    {"additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties"}
    | {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if"}
)
"""What a schema has that allows names beside its `properties` on purpose, or names them elsewhere."""


def undeclared(schema: Any, inputs: Mapping[str, Any]) -> list[Problem]:
    """Warnings of inputs that a schema allows, as JSON Schema does, but does not name: perhaps they are misspelt."""
    named = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(named, dict) or not _OPENING.isdisjoint(schema):
        return []
    return [
        Problem(
            code="unknown_input",
            message=f"the workflow declares no input {name}",
            path=pointer("/inputs", name),
            hint=offered(name, named),
        )
        for name in inputs
        if name not in named
    ]


def _read_input(option: str, text: str) -> dict[str, Any]:
    if text.startswith("@"):
        return _from_file(text[1:])
    if not text.lstrip().startswith("{"):
        return _from_pair(option, text)
    value = read_exact(option, text)
    assert isinstance(value, dict), "it starts with a brace, so it was read"
    return value


def _from_file(name: str) -> dict[str, Any]:
    text = read_bytes(name)
    try:
        value: dict[str, Any] = read_document(text, format=format_of(Path(name).suffix))
    except Rejected as refusal:
        problems = [msgspec.structs.replace(each, path=f"@{name}{each.path}") for each in refusal.problems]
        other = {"code": "input_invalid", "message": "the file does not hold a mapping"}
        raise Rejected(
            [msgspec.structs.replace(each, **other) if each.code == "not_a_mapping" else each for each in problems]
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
        hint = f"to read a file, write @{text}" if is_name else ""
        raise Rejected(
            [
                msgspec.structs.replace(each, message=f"{option}: {each.message}", hint=hint or each.hint)
                for each in refusal.problems
            ]
        ) from None


def read_data(name: str) -> Any:
    """Read any JSON or YAML value from a file; `-` is standard input. Raises Rejected."""
    return _parsed(name, read_bytes(name))


def _parsed(name: str, data: bytes) -> Any:
    if len(data) > BYTES_MAX:
        raise rejected("document_too_large", f"{name} has more than {BYTES_MAX} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise rejected("not_utf8", f"{name} is not UTF-8", hint="save the file as UTF-8") from None
    like_json = text.lstrip().startswith(("{", "[", '"'))
    is_json = (format_of(Path(name).suffix) or ("json" if like_json else "yaml")) == "json"
    try:
        return read_json(text) if is_json else read_yaml(text)
    except Rejected as refusal:
        named = [msgspec.structs.replace(each, message=f"{name}: {each.message}") for each in refusal.problems]
        raise Rejected(named) from None


def read_pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Read options that are `key=value` with plain text on both sides. Raises Rejected."""
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise rejected("option_invalid", f"{option} {text!r} is not key=value", hint="write key=value")
        found[key] = value
    return found


def _from_pair(option: str, text: str) -> dict[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        hint = "write name=value, a JSON object, or @file.json"
        raise rejected("input_invalid", f"{option} {text!r} is not name=value", hint=hint)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise rejected("input_invalid", f"{option} {name!a} is not valid UTF-8") from None
    return {name: parse_value(f"{option} {name}", value)}


def parse_value(option: str, text: str) -> Any:
    """JSON where it is JSON, else the text itself. Refuses a broken object and JSON that cannot be kept exactly."""
    try:
        return read_json(text)
    except Rejected as refusal:
        is_object = text.startswith("{") and not text.startswith(("{{", "{%", "{#"))
        if is_object and refusal.code == "json_syntax":
            message = f"{option} begins like a JSON object: {refusal.problems[0].message}"
            hint = """quote it for the shell: '{"name": "value"}'; a text is written as a JSON string"""
            raise rejected("json_syntax", message, hint=hint) from None
        if refusal.code == "json_syntax" or text in ("NaN", "Infinity", "-Infinity"):
            return text
        first = refusal.problems[0]
        hint = first.hint or "put it in quotes to pass it as a string"
        raise rejected(first.code, f"{option}: {first.message}", hint=hint) from None


def read_edits(file: str | None, sets: Sequence[str], document: Callable[[], Any]) -> list[Any]:
    """The operations of a file, then those of the `--set` options. Raises Rejected."""
    found = read_change(file, sets, document)
    if isinstance(found, Source):
        raise _not_operations(file)
    return found


def read_change(file: str | None, sets: Sequence[str], document: Callable[[], Any]) -> list[Any] | Source:
    """What a file and the `--set` options change: operations, or the whole document that the file holds."""
    if file is None and not sets:
        hint = "name a FILE with a JSON Patch, or use --set /nodes/fetch/config/url=VALUE"
        raise rejected("option_invalid", "no change was given", hint=hint)
    operations: Any = []
    if file is not None:
        source = read_source(file) if is_python(file) else None
        if source is None:
            text = read_bytes(file)
            operations = _parsed(file, text)
            if isinstance(operations, dict) and "op" not in operations:
                source = Source(file, operations, None, text)
        if source is not None:
            if sets:
                hint = f"write the change into {file}, or name a file with a JSON Patch"
                raise rejected(
                    "option_invalid", f"{file} holds a whole document and cannot be combined with --set", hint=hint
                )
            return source
    if not isinstance(operations, list):
        raise _not_operations(file)
    pairs = [_pair(text) for text in sets]
    if pairs:
        base = document()
        operations += [
            {"op": "replace" if _exists(base, pointer) else "add", "path": pointer, "value": value}
            for pointer, value in pairs
        ]
    return operations


def _not_operations(file: str | None) -> Rejected:
    shown = "standard input" if file == STDIN else file
    hint = "a JSON Patch is a list of {op, path, value}"
    return rejected("patch_invalid", f"{shown} does not hold a list of operations", hint=hint)


@contextmanager
def edits_for(
    mill: Tidemill, run_id: str, file: str | None, sets: Sequence[str], base: str | None
) -> Iterator[dict[str, Any]]:
    """The arguments that change a run. What `--set` means depends on its document, so it is made for that and no other.

    Problems of a whole document are located in its file.
    """
    found = mill.document(run_id) if sets else None
    change = read_change(file, sets, lambda: None if found is None else found.document)
    if not isinstance(change, Source):
        yield {"operations": change, "base_digest": base or (None if found is None else found.digest)}
        return
    with change.located():
        yield {"document": change.document, "base_digest": base}


def _pair(text: str) -> tuple[str, Any]:
    pointer, equals, value = text.partition("=")
    if not equals or not pointer.startswith("/"):
        hint = "write /place/in/the/document=VALUE"
        raise rejected("option_invalid", f"--set {text!r} is not /pointer=VALUE", hint=hint)
    return pointer, parse_value(f"--set {pointer}", value)


def _exists(document: Any, pointer: str) -> bool:
    place = document
    steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    for number, step in enumerate(steps):
        if isinstance(place, dict) and step in place:
            place = place[step]
        elif isinstance(place, list) and (entry := _entry(place, step, by_id=steps[:number] == ["nodes"])) is not None:
            place = entry
        else:
            return False
    return True


def _entry(entries: list[Any], step: str, *, by_id: bool) -> Any:
    """An entry of a list by its number, of the list of nodes by its id too."""
    if step.isdecimal() and step.isascii():
        return entries[int(step)] if len(step) < 9 and int(step) < len(entries) else None
    named = (entry for entry in entries if isinstance(entry, dict) and entry.get("id") == step)
    return next(named, None) if by_id else None


def asks_for_children(query: Iterable[str]) -> bool:
    """Whether a query names a parent or a workflow, so that child runs are meant, too."""
    words = " ".join(query).split()
    return any(word.startswith(("parent:", "root:", "workflow:", "version:")) for word in words)


def without_children(query: Iterable[str], words: tuple[str, ...], children: bool) -> tuple[str, ...]:
    """The words of a query without child runs, unless they are asked for."""
    return words if children or asks_for_children(query) else (*words, "top")


# What is typed at a terminal

POLL_SECONDS = 0.5
LINE_BYTES_MAX = 65_536


class QuestionOver(Exception):
    """The question is settled, or standard input has ended."""


class Typed:
    """Reads lines from the terminal; `wanted` is polled while it waits."""

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted
        self._kept = b""

    def line(self, question: str) -> str:
        """Ask, and wait for a line. Raises QuestionOver when it is no longer wanted, or will not come."""
        sys.stdout.write(question)
        sys.stdout.flush()
        while b"\n" not in self._kept:
            some = self._read()
            over = not self._wanted() if some is None else not some or len(self._kept) > LINE_BYTES_MAX
            if over:
                print()
                raise QuestionOver
            self._kept += some or b""
        first, _, self._kept = self._kept.partition(b"\n")
        return first.decode(errors="replace").strip()

    def _read(self) -> bytes | None:
        """What was typed; None when nothing was for a while, empty when nothing will be.

        A process that reads in the background is stopped, and its runs with it, unless it blocks the signal: then it
        gets the same error as from a terminal that is gone. What is typed meanwhile is for others.
        """
        if not select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
            return None
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN})
        try:
            return os.read(sys.stdin.fileno(), LINE_BYTES_MAX)
        except OSError:
            if not in_background(sys.stdin):
                return b""
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        time.sleep(POLL_SECONDS)
        return None


def typed_form(typed: Typed, schema: Any) -> Any:
    """Ask for the fields of a form, each until its answer fits; the engine checks the whole."""
    fields = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(fields, dict) or not fields:
        return _typed_value(typed, "  form (JSON): ")
    filled: dict[str, Any] = {}
    for name in fields:
        value = _field(typed, name, schema, filled)
        if value is not None:
            filled[name] = value
    return filled


def _field(typed: Typed, name: str, schema: Mapping[str, Any], filled: Mapping[str, Any]) -> Any:
    """What is typed for one field, or its default; None where nothing is typed and nothing needed."""
    from tidemill.expressions.schema import compile_schema

    field = schema["properties"][name] if isinstance(schema["properties"][name], dict) else {}
    required = name in (schema.get("required") or ())
    question = f"  {_field_words(name, field, required)}: "
    place = pointer("", name)
    while True:
        value = _typed_value(typed, question, is_text=field.get("type") == "string")
        if value is None and "default" in field:
            return field["default"]
        if value is None and required:
            print(f"  {name} is required")
            continue
        # Checked as part of the whole, because a field may refer to definitions of the form.
        found = compile_schema(schema).problems({**filled, name: value}, code="form_invalid")
        wrong = [each for each in found if each.path == place or each.path.startswith(f"{place}/")]
        if value is None or not wrong:
            return value
        for each in wrong:
            print(f"  {sanitize(each.message)}")


def _field_words(name: str, field: Mapping[str, Any], required: bool) -> str:
    title, kind = field.get("title"), field.get("type")
    said = [name] if title else []
    if isinstance(field.get("enum"), list):
        said.append(" | ".join(map(str, field["enum"])))
    elif isinstance(kind, str):
        said.append(kind)
    said += [str(field["description"])] if field.get("description") else []
    if "default" in field:
        said.append(f"default {one_line(str(field['default']), 40)}")
    else:
        said.append("required" if required else "may be empty")
    return one_line(f"{title or name} ({', '.join(said)})", 100)


def _typed_value(typed: Typed, question: str, *, is_text: bool = False) -> Any:
    """A value as it is given to options, or the text itself; None when nothing is typed."""
    while True:
        text = typed.line(question)
        if not text:
            return None
        try:
            value = parse_value("this", text)
        except Rejected as refusal:
            if is_text:
                return text
            print_refusal(refusal.problems)
        else:
            return text if is_text and not isinstance(value, str) else value
