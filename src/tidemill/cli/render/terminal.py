"""The terminal: what it can show, colours, widths, safe text, lists of problems, and JSON.

Text from documents, errors and outputs may hold escape sequences; `sanitize` shows them instead of sending them.
Terminals that lack the drawing characters get plain ones, by an error handler of the output streams.
"""

from __future__ import annotations

import codecs
import gc
import io
import json
import os
import re
import shlex
import shutil
import sys
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import environ
from typing import IO, TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

    from tidemill.errors import Problem


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


def configure_streams() -> None:
    """Open output streams that are missing, and make sure that no character breaks them."""
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


_CONTROLS = re.compile("[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What a terminal acts on and JSON does not escape: C1 controls, and marks that turn the direction of text."""


def sanitize(text: str) -> str:
    """A text without anything that a terminal would act on; line breaks stay."""
    if text.isprintable():
        return text
    text = text.replace("\t", "    ").replace("\r", "")
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def one_line(text: str, length_max: int) -> str:
    line = sanitize(" ".join(text.split()))
    return line if len(line) <= length_max else line[: max(1, length_max) - 1] + "…"


def supports_unicode() -> bool:
    """Whether standard output is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


def in_background(stream: IO[str]) -> bool:
    """Whether the shell of a terminal has given it to another job: a process that reads there would be stopped."""
    try:
        return os.tcgetpgrp(stream.fileno()) != os.getpgrp()
    except (OSError, ValueError):
        return False  # It is not a terminal, or none that controls this process.


def can_prompt() -> bool:
    """Whether standard input is a terminal, and this process may read what a person types there."""
    return sys.stdin is not None and sys.stdin.isatty() and not in_background(sys.stdin)


def console() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


@contextmanager
def reserve_stdout() -> Iterator[TextIO]:
    """Send to stderr what others write to stdout meanwhile; yields the real stdout, which they cannot reach."""
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


RED, GREEN, YELLOW, MAGENTA, CYAN = "\033[31m", "\033[32m", "\033[33m", "\033[35m", "\033[36m"
DIM, BOLD, OFF = "\033[2m", "\033[1m", "\033[0m"

COLUMNS_ELSEWHERE = 120
"""The width of lines in files and pipes, which have none of their own."""

STATUS_COLOURS = {
    **dict.fromkeys(("COMPLETED", "decided", "approved", "alive"), GREEN),
    **dict.fromkeys(("FAILED", "rejected", "expired", "open", "dead"), RED),
    **dict.fromkeys(("RUNNING", "QUEUED"), CYAN),
    **dict.fromkeys(("WAITING", "pending"), MAGENTA),
    **dict.fromkeys(("PAUSED", "changes requested", "draining", "silent", "tolerated"), YELLOW),
    **dict.fromkeys(("PENDING", "SKIPPED", "CANCELLED", "cancelled", "not reached"), DIM),
}
"""The states of runs, nodes, approvals, dead letters and workers."""


class Styler:
    def __init__(self, stream: IO[str] | None = None) -> None:
        stream = sys.stdout if stream is None else stream
        self._on = stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"

    def __call__(self, text: str, colour: str) -> str:
        return f"{colour}{text}{OFF}" if self._on and text and colour else text

    def status(self, status: str) -> str:
        return self(status, STATUS_COLOURS.get(status.strip(), ""))


def columns() -> int:
    return max(40, shutil.get_terminal_size().columns) if sys.stdout.isatty() else COLUMNS_ELSEWHERE


def room(text: str) -> int:
    """How many columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(_room_of(letter) for letter in text)


def _room_of(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def truncate(text: str, columns_max: int) -> str:
    if room(text) <= columns_max:
        return text
    taken, kept = 1, []
    for letter in text:
        taken += _room_of(letter)
        if taken > columns_max:
            break
        kept.append(letter)
    return "".join(kept).rstrip() + "…"


def padded(text: str, columns_wanted: int) -> str:
    return text + " " * (columns_wanted - room(text))


def text_lines(text: str, indent: int) -> list[str]:
    """The lines of a text that is printed with an indent; on a terminal, long ones are folded between words."""
    lines = sanitize(text).strip("\n").splitlines()
    if not sys.stdout.isatty():
        return lines
    return [part for line in lines for part in folded(line, columns() - indent)]


def folded(line: str, columns_max: int) -> list[str]:
    """A line as several, none wider than this unless it is one long word; blanks at its beginning stay."""
    if room(line) <= columns_max:
        return [line]
    found, margin = [""], " " * (len(line) - len(line.lstrip()))
    for word in line.split():
        longer = f"{found[-1]} {word}" if found[-1] else margin + word
        if found[-1] and room(longer) > columns_max:
            found.append(margin + word)
        else:
            found[-1] = longer
    return found


PATH_COLUMNS_MAX = 36
MESSAGE_COLUMNS_MIN = 48
"""On a narrower terminal every path stands on a line of its own."""
SHOWN_MAX = 200
"""Problems shown to a person; programs get all of them."""


def as_plain(problems: Iterable[Problem]) -> list[dict[str, str | int]]:
    """Problems as JSON values."""
    return [problem.to_dict() for problem in problems]


def print_json(value: Any) -> None:
    """Print one JSON value: on several lines for a person, on one for a program."""
    import msgspec

    text = msgspec.json.encode(value)
    if sys.stdout.isatty():
        text = msgspec.json.format(text, indent=2)
    _write(text.decode())


def print_json_line(value: Any) -> None:
    import msgspec

    _write(msgspec.json.encode(value).decode())
    sys.stdout.flush()


def _write(shown: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if not encoding.lower().startswith("utf"):
        shown = json.dumps(json.loads(shown))
    elif not shown.isprintable():
        # JSON may hold control characters of a terminal as they are; escaped they are the same value.
        shown = _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", shown)
    sys.stdout.write(shown + "\n")


def print_refusal(problems: Sequence[Problem]) -> None:
    """Print to stderr what is wrong with what the caller gave."""
    if len(problems) > 1 or problems[0].path:
        print_problems(f"✗ refused: {counted(len(problems), 'problem')}", problems, sys.stderr)
        inputs = [each.message for each in problems if (each.code, each.path) == ("inputs_invalid", "/inputs")]
        if inputs:
            print(f"  give inputs with {_as_options(inputs)}", file=sys.stderr)
        return
    (only,) = problems
    paint = Styler(sys.stderr)
    print(f"{paint('✗', RED)} {sanitize(only.message)} {paint(f'[{only.code}]', DIM)}", file=sys.stderr)
    if only.hint:
        print(f"  {paint('→ ' + sanitize(only.hint), DIM)}", file=sys.stderr)


_MISSING_KEY = re.compile(r'the key ("(?:[^"\\]|\\.)*") is missing')
_OPTIONS_SHOWN_MAX = 5


def _as_options(messages: Sequence[str]) -> str:
    """The options with which a command gets the inputs that are missing."""
    missing = [json.loads(found[1]) for each in messages if (found := _MISSING_KEY.fullmatch(each))]
    options = [f"-i {shlex.quote(name)}=…" for name in missing[:_OPTIONS_SHOWN_MAX]]
    more = ["…"] if len(missing) > _OPTIONS_SHOWN_MAX else []
    return sanitize(" ".join(options + more)) or "-i NAME=VALUE"


_OPTIONS = {"inputs_invalid": "-i", "form_invalid": "--form"}
_NOT_TEXT = re.compile(r"([\w.+-]+) is not of type \"string\"", re.ASCII)


def _with_quotes(problem: Problem) -> Problem:
    """A value that was read as JSON and should be a text, with a hint how a shell passes such a text."""
    option = _OPTIONS.get(problem.code, "")
    name = problem.path.removeprefix("/inputs/" if option == "-i" else "/form/")
    found = _NOT_TEXT.fullmatch(problem.message)
    # A form that does not fit always has a hint: its fields.
    told = problem.hint and option == "-i"
    if not option or told or name == problem.path or not name or "/" in name or found is None:
        return problem
    from msgspec.structs import replace

    return replace(problem, hint=f"""to pass a text: {option} '{name}="{found[1]}"'""")


def report_problems(problems: Sequence[Problem], *, as_json: bool) -> None:
    problems = [_with_quotes(each) for each in problems]
    if as_json:
        print_json({"problems": as_plain(problems)})
    else:
        print_refusal(problems)


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def in_short(lists: Mapping[str, Sequence[str]]) -> str:
    """Named lists on one line, none that is empty."""
    return " · ".join(f"{name} {', '.join(each)}" for name, each in lists.items() if each) or "none"


def print_problems(title: str, problems: Sequence[Problem], stream: IO[str], *, warning: bool = False) -> None:
    """Print a title and an aligned list of problems, coloured on a terminal."""
    paint = Styler(stream)
    print(paint(title, BOLD + (YELLOW if warning else RED)), file=stream)
    shown = problems[:SHOWN_MAX]
    columns = shutil.get_terminal_size().columns if stream.isatty() else None
    width = max((len(problem.path) for problem in shown if len(problem.path) <= PATH_COLUMNS_MAX), default=0)
    if columns is not None and columns - width < MESSAGE_COLUMNS_MIN:
        width = 0
    for problem in shown:
        print(*_lines(problem, width, columns, paint), sep="\n", file=stream)
    if len(problems) > len(shown):
        print(f"  … and {len(problems) - len(shown)} more; --json lists them all", file=stream)


def print_warning(text: str, stream: IO[str] | None = None) -> None:
    print(f"{Styler(stream)('!', YELLOW)} {sanitize(text)}", file=stream)


def print_warnings(warnings: Sequence[Problem], stream: IO[str]) -> None:
    if warnings:
        print_problems(f"! {counted(len(warnings), 'warning')}", warnings, stream, warning=True)


def _lines(problem: Problem, width: int, columns: int | None, paint: Styler) -> Iterator[str]:
    """The path and the message side by side, the hint below; a long path has a line of its own."""
    path = sanitize(problem.path)
    indent = " " * (width + 4 if width else 4 if path else 2)
    said = _folded(f"{sanitize(problem.located_message)} [{problem.code}]", len(indent), columns)
    hint = _folded(f"→ {sanitize(problem.hint)}", len(indent), columns) if problem.hint else []
    if len(path) > width:
        yield f"  {paint(path, BOLD)}"
    elif width:
        yield f"  {paint(path, BOLD)}{' ' * (width - len(path) + 2)}{said.pop(0)}"
    for line in said:
        yield indent + line
    for line in hint:
        yield indent + paint(line, DIM)


def _folded(text: str, indent: int, columns: int | None) -> list[str]:
    """The lines of a text, no longer than the terminal has room for."""
    lines = text.split("\n")
    if columns is None:
        return lines
    import textwrap

    return [part for line in lines for part in textwrap.wrap(line, columns - indent, break_long_words=False) or [""]]
