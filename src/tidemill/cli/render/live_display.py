"""The live display of a run on a terminal: a header, a progress bar, and the rows that matter most.

A thread of rich redraws it a few times a second, however many events arrive; what handlers print meanwhile appears
above it. Only a run on a terminal imports this module, because rich takes longer to import than the engine.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Self, TextIO, cast

from rich.console import Console, Group
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.text import Text

from tidemill.cli.render.board import SIGNS, NodeProgress, Phase, RunProgress, detail, duration
from tidemill.cli.render.progress import AgentTurns, node_of
from tidemill.cli.render.terminal import BOLD, CYAN, DIM, GREEN, RED, YELLOW, room, sanitize, truncate
from tidemill.observability.capture import OutputCapture

ROWS_MAX = 25
LINES_BESIDE_ROWS = 6
NAME_COLUMNS_MAX = 36
BAR_COLUMNS = 24
ITEM_BAR_COLUMNS = 12
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

STYLES: dict[Phase, str] = {
    "PENDING": "dim",
    "ACTIVE": "bold cyan",
    "RETRYING": "yellow",
    "WAITING": "magenta",
    "COMPLETED": "green",
    "TOLERATED": "yellow",
    "FAILED": "bold red",
    "SKIPPED": "dim",
    "CANCELLED": "dim",
    "UNREACHED": "dim",
}

TOLD_STYLES = {BOLD: "bold", CYAN: "cyan", DIM: "dim", GREEN: "green", RED: "red", YELLOW: "yellow"}

COUNTED: tuple[Phase, ...] = (
    "ACTIVE", "RETRYING", "WAITING", "FAILED", "TOLERATED", "UNREACHED", "CANCELLED", "SKIPPED",
)  # fmt: skip
WORDS: dict[Phase, str] = {"RETRYING": "to retry", "UNREACHED": "not reached"}


class Display:
    """Watches a run; use it in a `with` and give it every event."""

    def __init__(self, board: RunProgress, console: Console) -> None:
        self._board, self._console = board, console
        self._lock, self._turns = threading.Lock(), AgentTurns()
        self._capture = OutputCapture()
        self._live = self._new_live()

    def _new_live(self) -> Live:
        return Live(
            console=self._console,
            get_renderable=self.render,
            refresh_per_second=8,
            vertical_overflow="crop",
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        """Draw. What functions print appears above it, and is captured before it is mixed with what is drawn."""
        self._capture.install(lambda stream: cast(TextIO, FileProxy(self._console, stream)), marks=node_of)
        self._live.start(refresh=True)
        return self

    def __exit__(self, *exc: object) -> None:
        self.leave()

    def see(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            self._board.apply(event)
        if told := self._turns.see(event):
            lines = (Text(said.text, style=TOLD_STYLES.get(said.style, "")) for said in told)
            self._console.print(Text("\n").join(lines), soft_wrap=True)

    def skip(self, event: Mapping[str, Any]) -> None:
        """Take in a past event without printing it."""
        with self._lock:
            self._board.apply(event)
        self._turns.see(event)

    def say(self, text: str, style: str = "") -> None:
        self._console.print(Text(sanitize(text), style=TOLD_STYLES.get(style, "")), soft_wrap=True)

    def leave(self) -> None:
        """Stop drawing, so that the terminal can be used for something else."""
        for stop in (self._live.stop, self._capture.remove):
            # A line without its end appears above, too.
            sys.stdout.flush()
            sys.stderr.flush()
            stop()

    def enter(self) -> None:
        """Draw again, below whatever was written meanwhile."""
        self._console.print()
        # The old one would begin by clearing as many lines as it drew, which now hold something else.
        self._live = self._new_live()
        self.__enter__()

    def render(self) -> Group:
        with self._lock:
            now_ms = time.time_ns() // 1_000_000
            height = max(3, min(ROWS_MAX, self._console.height - LINES_BESIDE_ROWS))
            rows = self._board.window(height)
            width = min(max((len(row.name) for row in rows), default=0), NAME_COLUMNS_MAX)
            shown = {row.name: self._row(row, width, now_ms) for row in rows}
            failed = shown.get(self._board.failed_node)
            fits = failed is not None and failed.cell_len <= self._console.width
            self._board.told = self._board.failed_node if fits else ""
            lines = [self._header(now_ms), self._progress(), Text(), *shown.values()]
            rest = len(self._board.rows) - len(rows)
            if rest:
                lines.append(Text(f"… and {rest:,} more", style="dim"))
        return Group(*lines)

    def _header(self, now_ms: int) -> Text:
        return Text.assemble(
            (self._board.name, "bold"),
            (f"  run {self._board.run_id}", "dim"),
            ("  paused" if self._board.paused else "", "bold yellow"),
            (f"  {duration(self._board.elapsed_ms(now_ms))}", "cyan"),
            no_wrap=True,
            overflow="ellipsis",
        )

    def _progress(self) -> Text:
        board = self._board
        total, ended = len(board.rows), board.ended
        text = bar(ended, total, BAR_COLUMNS, "red" if board.counts["FAILED"] else "green")
        text.append(f" {ended:,} of {total:,} nodes")
        for phase in COUNTED:
            if board.counts[phase]:
                words = WORDS.get(phase, phase.lower())
                text.append(" · ", "dim")
                text.append(f"{board.counts[phase]:,} {words}", STYLES[phase])
        return text

    def _row(self, row: NodeProgress, width: int, now_ms: int) -> Text:
        style = STYLES[row.phase]
        text = Text(no_wrap=True, overflow="ellipsis")
        again = row.phase == "RETRYING" and row.until_ms is not None and row.until_ms <= now_ms
        turning = SPINNER[now_ms // 125 % len(SPINNER)]
        text.append(turning if row.phase == "ACTIVE" or again else SIGNS[row.phase], style)
        name = row.name if len(row.name) <= width else row.name[: width - 1] + "…"
        faint = row.phase in ("PENDING", "SKIPPED", "CANCELLED", "UNREACHED")
        text.append(f" {name:<{width}}", "dim" if faint else "")
        spent = self._board.spent(row, now_ms)
        text.append(f"  {spent:>9}  ", "dim")
        if row.count and row.phase in ("ACTIVE", "RETRYING", "WAITING"):
            text.append_text(bar(row.done, row.count, ITEM_BAR_COLUMNS, "yellow" if row.failed else "cyan"))
            text.append(" ")
        elif row.progress is not None:
            text.append_text(bar(round(100 * row.progress), 100, ITEM_BAR_COLUMNS, "cyan"))
            text.append(" ")
        said, space = detail(row, now_ms), self._console.width - text.cell_len
        error, retry, left = said.rpartition(" · retry in ")
        if retry and room(said) > space:
            # The error is cut, not the countdown after it.
            said = f"{truncate(error, max(1, space - len(retry + left)))}{retry}{left}"
        text.append(said, style if row.phase in ("FAILED", "RETRYING", "TOLERATED") else "dim")
        return text


def bar(done: int, total: int, columns: int, style: str) -> Text:
    """A bar of fixed width, filled in halves of a column."""
    halves = 2 * columns * done // total if total else 2 * columns
    full, half = divmod(halves, 2)
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("━" * full + "╸" * half, style)
    text.append("─" * (columns - full - half), "dim")
    return text
