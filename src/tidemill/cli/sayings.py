"""What handlers say, in text: the lines that they print and log, and the parts of results that they show.

Everything here comes from foreign code, so nothing of it reaches a terminal that a terminal would act on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from tidemill.cli.asking import Asking, item_or_none, plain
from tidemill.cli.board import Board
from tidemill.cli.lines import Silence
from tidemill.cli.logbook import where
from tidemill.cli.paint import DIM, RED, YELLOW, Paint
from tidemill.cli.problems import print_json_line
from tidemill.cli.terminal import clean
from tidemill.engine.logs import LogLine
from tidemill.errors import offered, rejected
from tidemill.front import Tidemill

LABEL_COLUMNS_MAX = 24
_OVER = frozenset({"NodeCompleted", "NodeFailed", "NodeCancelled"})
_COLOURS = {"warning": YELLOW, "error": RED, "critical": RED}


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines are asked for, and how they are shown."""

    run: str
    node: str | None
    visit: int | None
    item: int | None
    attempt: int | None
    follow: bool
    timestamps: bool


def tell_logs(asking: Asking, wanted: Wanted) -> int:
    """Print what handlers have said, and go on until the run ends if that is asked for."""
    if wanted.follow:
        return asking.listen(lambda mill: _follow(mill, asking, wanted))
    return asking.answer(lambda mill: Said(mill.logs(wanted.run, wanted.node, **_narrowed(wanted))), _told(wanted))


class Said:
    """Lines of a run."""

    def __init__(self, lines: list[LogLine]) -> None:
        self.lines = lines

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {"lines": [_as_plain(line) for line in self.lines]}


def _narrowed(wanted: Wanted) -> dict[str, int | None]:
    return {"visit": wanted.visit, "index": wanted.item, "attempt": wanted.attempt}


def _as_plain(line: LogLine) -> dict[str, Any]:
    return {**plain(line), "index": item_or_none(line.index)}


def _told(wanted: Wanted) -> Callable[[Said], None]:
    def tell(said: Said) -> None:
        printer = Printer(wanted)
        for line in said.lines:
            printer.tell(line)
        if not said.lines:
            print("nothing was printed or logged")

    return tell


def _follow(mill: Tidemill, asking: Asking, wanted: Wanted) -> None:
    printer = Printer(wanted)
    for line in mill.follow_logs(wanted.run, wanted.node, **_narrowed(wanted)):
        if asking.as_json:
            print_json_line(_as_plain(line))
        else:
            printer.tell(line)


class Printer:
    """Prints lines; where those of several activations may come, each says whose it is."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted, self._paint = wanted, Paint()

    def tell(self, line: LogLine) -> None:
        """Print one line."""
        at = f"{_to_the_millisecond(line.at_ms)}  " if self._wanted.timestamps else ""
        label = "" if self._wanted.node is not None else f"{_label(line):<12}  "
        text = self._paint(clean(line.text), _COLOURS.get(line.source, ""))
        print(f"{self._paint(at, DIM)}{self._paint(label, DIM)}{text}".rstrip(), flush=True)


def _label(line: LogLine) -> str:
    """`node`, `node#2` for a second visit, `node[3]` for an item, `node:2` for a second attempt."""
    place = where({"node": line.node, "visit": line.visit, "index": line.index})
    label = place if line.attempt == 1 else f"{place}:{line.attempt}"
    return clean(label if len(label) <= LABEL_COLUMNS_MAX else label[: LABEL_COLUMNS_MAX - 1] + "…")


def _to_the_millisecond(at_ms: int) -> str:
    moment = datetime.fromtimestamp(at_ms / 1_000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1_000:03d}Z"


class Parts(Silence):
    """Watches a run, and prints the parts of one node's results as they come: texts as they are, others as JSON."""

    def __init__(self, board: Board, node: str, out: TextIO) -> None:
        super().__init__(board)
        if node not in board.rows:
            message = f"{board.name} has no node {node} whose parts could be printed"
            raise rejected("node_unknown", message, hint=offered(node, board.rows))
        self._node, self._out = node, out
        self._number, self._unfinished = 0, False

    def see(self, event: Mapping[str, Any]) -> None:
        """Print a part, or end the line when the attempt is over."""
        super().see(event)
        if event.get("node") != self._node:
            return
        if event["type"] == "NodeStreamed":
            self._print(event["number"], event["value"])
        elif event["type"] in _OVER:
            self._number = 0
            self._end_line()

    def _print(self, number: int, value: Any) -> None:
        if number > self._number + 1:
            self._end_line()
            self.say(f"{number - self._number - 1} parts were missed here; the whole result is kept")
        self._number = number
        text = clean(value) if isinstance(value, str) else msgspec.json.encode(value).decode() + "\n"
        self._out.write(text)
        self._out.flush()
        self._unfinished = bool(text) and not text.endswith("\n")

    def _end_line(self) -> None:
        if self._unfinished:
            self._out.write("\n")
            self._out.flush()
            self._unfinished = False
