"""Bytes that come from files or standard input and go there, never to a terminal by accident."""

from __future__ import annotations

import mimetypes
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tidemill.errors import rejected

STANDARD = "-"


def read_source(file: str) -> tuple[bytes | Path, str]:
    """What to store, and what it is called."""
    return (sys.stdin.buffer.read(), "") if file == STANDARD else (Path(file), Path(file).name)


def guessed_type(name: str) -> str:
    """The media type that a file's name promises."""
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


@contextmanager
def writing(output: str | None, *, as_json: bool) -> Iterator[tuple[IO[bytes], str]]:
    """Where bytes are to be written, and its name unless it is standard output.

    A file appears under its name when all of it is there; what broke off leaves nothing, and what was there stays.
    """
    if output is None or output == STANDARD:
        _check_standard(output, as_json)
        yield sys.stdout.buffer, ""
        sys.stdout.buffer.flush()
        return
    target = Path(output)
    draft = _draft(target)
    try:
        with draft:
            yield draft, output
        os.chmod(draft.name, 0o666 & ~_umask())
        os.replace(draft.name, target)
    except OSError as error:
        raise _unwritable(output, error) from None
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft.name)


def _draft(target: Path) -> IO[bytes]:
    """A file beside the one that is meant."""
    try:
        return tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False)
    except OSError as error:
        raise _unwritable(str(target), error) from None


def _check_standard(output: str | None, as_json: bool) -> None:
    if as_json:
        message = "standard output cannot hold both the bytes and JSON"
        raise rejected("usage", message, path="/output", hint="name a file with -o")
    if output is None and sys.stdout.isatty():
        message = "bytes are not written to a terminal"
        raise rejected("usage", message, path="/output", hint="name a file with -o, or say -o - if you mean it")


def _unwritable(output: str, error: OSError) -> Exception:
    message = f"{output} cannot be written: {error.strerror or error}"
    return rejected("output_unwritable", message, path="/output")


def _umask() -> int:
    """The bits that new files do not get; the only way to see them is to set them."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
