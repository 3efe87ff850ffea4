"""How a run's end is told: its outputs, or the first failure with everything that explains it."""

from __future__ import annotations

import json
import os.path
import re
import sys
import time
from collections.abc import Mapping
from typing import IO, Any

import msgspec

from tidemill.cli.board import Board
from tidemill.cli.phrases import duration
from tidemill.cli.snippets import names
from tidemill.cli.terminal import clean, console, draws
from tidemill.engine.views import RunView

ROOM = 200
"""Columns for names of steps."""
OUTPUT_LINES_MAX = 400
"""Lines of outputs shown on a terminal; a file or pipe gets all of them."""

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


def tell_end(view: RunView, board: Board) -> None:
    """Print how the run ended and what it returned."""
    tolerated = f" · {board.tolerated} tolerated failure{'s' if board.tolerated != 1 else ''}" * bool(board.tolerated)
    elapsed_ms = board.elapsed_ms(time.time_ns() // 1_000_000)
    match view.status:
        case "COMPLETED":
            _say(f"✓ completed in {duration(elapsed_ms)}{tolerated}", "bold green")
            tell_outputs(view.outputs)
        case "CANCELLED":
            _say(f"✗ cancelled after {duration(elapsed_ms)}", "bold red")
        case _:
            _tell_failure(board)
            _say(f"✗ failed after {duration(elapsed_ms)}", "bold red")
    _tell_rollback(view.rollback)


def _tell_rollback(rollback: Mapping[str, Any]) -> None:
    """Say what was undone, and name what was not."""
    undone, left = ([step_name(key) for key in rollback[kind]] for kind in ("undone", "left"))
    if undone:
        print(f"↶ undone: {names(undone, ROOM)}")
    if left:
        print(f"! not undone: {names(left, ROOM)}")


def step_name(key: str) -> str:
    """A visit or item that a rollback is about, as `node`, `node#2` or `node[3]`."""
    node, visit, index = key.rsplit("/", 2)
    return node + (f"#{visit}" if visit != "1" else "") + (f"[{index}]" if index != "-1" else "")


def tell_quietly(view: RunView, board: Board) -> None:
    """Print the outputs and nothing else; what went wrong goes to stderr."""
    if view.status == "COMPLETED":
        print(pretty(view.outputs))
    else:
        tell_trouble(view, board)


def tell_trouble(view: RunView, board: Board) -> None:
    """Say on stderr what went wrong, if anything did."""
    if view.status == "COMPLETED":
        return
    if view.status == "FAILED":
        _print_plainly(f"failed {_where(board)}", explained(board), sys.stderr)
    else:
        print("✗ cancelled", file=sys.stderr)


def explained(board: Board) -> list[tuple[str, str]]:
    """The first failure in labelled lines: what, where, what to do, what caused it."""
    error: Mapping[str, Any] = board.error or {}
    code = error.get("code", "")
    found = [("error", f"{clean(error.get('message', ''))} [{code}]")]
    if error.get("type") not in (None, "", "Fail"):
        found.append(("type", clean(error["type"])))
    if error.get("index", -1) >= 0:
        found.append(("item", str(error["index"])))
    if place := _place(error.get("traceback") or ""):
        found.append(("at", clean(place)))
    if error.get("hint"):
        found.append(("hint", clean(error["hint"])))
    found.extend(("cause" if not number else "", clean(cause)) for number, cause in enumerate(error.get("causes", ())))
    row = board.rows.get(board.failed_node)
    if row is not None and row.attempt > 1:
        found.append(("tries", f"{row.attempt} attempts"))
    return found


def pretty(value: Any) -> str:
    """A JSON value on several lines; control characters are written as JSON escapes them, so it can be read back."""
    shown = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return "".join(letter if letter.isprintable() or letter == "\n" else _escaped(letter) for letter in shown)


def _escaped(letter: str) -> str:
    """A character as JSON may write it, with a surrogate pair where one is needed."""
    return json.dumps(letter)[1:-1]


def _where(board: Board) -> str:
    return f"at {board.failed_node}" if board.failed_node else "as a whole"


def _place(traceback: str) -> str:
    """The innermost line of the author's own code that a traceback names."""
    frames = [match for match in _FRAME.finditer(traceback) if "site-packages" not in match["file"]]
    own = [frame for frame in frames if f"{os.sep}tidemill{os.sep}" not in frame["file"]] or frames
    if not own:
        return ""
    last = own[-1]
    near = os.path.relpath(last["file"])
    return f"{near if not near.startswith('..') else last['file']}:{last['line']}, in {last['function']}"


def _say(text: str, style: str) -> None:
    if draws():
        console().print(f"\n{text}", style=style)
    else:
        print(text)


def tell_outputs(outputs: Any) -> None:
    """Print what a run returned; on a terminal in colours, and no more than anybody reads."""
    text = pretty(outputs)
    if not draws():
        print(text)
        return
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    lines = text.split("\n")
    shown = Text("\n".join(lines[:OUTPUT_LINES_MAX]))
    JSONHighlighter().highlight(shown)
    screen = console()
    screen.print(shown, soft_wrap=True)
    if len(lines) > OUTPUT_LINES_MAX:
        screen.print(f"… {len(lines) - OUTPUT_LINES_MAX:,} more lines; --json prints everything", style="dim")


def _tell_failure(board: Board) -> None:
    title, lines = f"failed {_where(board)}", explained(board)
    if not draws():
        _print_plainly(title, lines, sys.stdout)
        return
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for label, text in lines:
        table.add_row(Text(label, style="dim"), Text(text, style="bold" if label == "error" else ""))
    console().print(Panel(table, title=f"✗ {title}", title_align="left", border_style="red", expand=False))


def _print_plainly(title: str, lines: list[tuple[str, str]], stream: IO[str]) -> None:
    print(f"✗ {title}", file=stream)
    for label, text in lines:
        first, *rest = text.split("\n")
        print(f"  {label:<6} {first}".rstrip(), file=stream)
        for line in rest:
            print(f"  {'':<6} {line}".rstrip(), file=stream)
