"""What every command needs to know of the terminal: may it be drawn on, and how is text made harmless.

Text from documents, errors and outputs may hold escape sequences; `clean` shows them instead of sending them.
Terminals that cannot show the drawing characters get plain ones, by an error handler of the output streams.
"""

from __future__ import annotations

import codecs
import gc
import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN = str.maketrans(
    {
        **dict.fromkeys("─━╌╸╴", "-"),
        **dict.fromkeys("│┃╎", "|"),
        **dict.fromkeys("├╰╭╮╯└┌", "+"),
        **dict.fromkeys("●✓", "*"),
        **dict.fromkeys("○◌·", "."),
        **dict.fromkeys("◆↺↻", "@"),
        **dict.fromkeys("✗⊘", "x"),
        **dict.fromkeys("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "~"),
        "◷": "z",
        "→": ">",
        "←": "<",
        "▶": ">",
        "…": "...",
        "×": "x",
        "—": "-",
    }
)
_HANDLER = "tidemill-plain"


def settle_streams() -> None:
    """Make sure that there are output streams, and that no character can break them."""
    codecs.register_error(_HANDLER, _plainly)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def _plainly(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode("ascii", "replace").decode("ascii"), error.end


def clean(text: str) -> str:
    """A text without anything that a terminal would act on; line breaks stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _shown(char) for char in text.replace("\t", "    "))


def _shown(char: str) -> str:
    return ascii(char)[1:-1] if char != "\r" else ""


def one_line(text: str, length_max: int) -> str:
    """A text on one line, at most this long."""
    line = clean(" ".join(text.split()))
    return line if len(line) <= length_max else line[: max(1, length_max) - 1] + "…"


def draws() -> bool:
    """Whether standard output is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


def console() -> Console:
    """A console on standard output."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


@contextmanager
def stdout_kept_clean() -> Iterator[TextIO]:
    """Send to stderr what others (functions of nodes, their child processes) write to stdout meanwhile.

    What is given is the standard output that they do not reach.
    """
    sys.stdout.flush()
    kept_stream, kept_file = sys.stdout, os.dup(1)
    sys.stdout = sys.stderr
    os.dup2(2, 1)
    try:
        with open(kept_file, "w", encoding=kept_stream.encoding, errors=_HANDLER, closefd=False) as clean_out:
            yield clean_out
    finally:
        sys.stdout = kept_stream
        os.dup2(kept_file, 1)
        os.close(kept_file)


def leave(code: int) -> None:
    """End the process, even when a function of a node still runs in a thread that nothing can stop."""
    gone = False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # The reader is gone. Python would try again at exit and complain.
            code, gone = code or 1, True
    # Python would look through everything once more at the end, and the operating system takes it back anyway.
    gc.freeze()
    if gone or threading.active_count() > 1:
        os._exit(code)
    sys.exit(code)
