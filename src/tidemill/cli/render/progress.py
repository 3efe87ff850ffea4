"""Watchers of a run that draw nothing, and the words for the turns of its agents.

`Lines` prints one line per node that ends or is retried, and the turns of agents; `QuietWatcher` prints nothing. The
live display of a terminal is in `live_display`, which imports rich; this module must not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

import msgspec

from tidemill.cli.render.board import SIGNS, NodeProgress, Phase, RunProgress, detail, duration, passes
from tidemill.cli.render.tables import dotted, snippet
from tidemill.cli.render.terminal import (
    BOLD,
    CYAN,
    DIM,
    GREEN,
    RED,
    YELLOW,
    Styler,
    columns,
    sanitize,
    text_lines,
)

FOLLOWING: frozenset[Phase] = frozenset({"CANCELLED", "SKIPPED", "UNREACHED"})
FOLLOWING_MAX = 10
"""Rows that may follow from a failure and stand between it and what is said of the run."""
TEXT_LINES_MAX = 12
"""Lines of what a model said in a turn; the transcript has all."""


def node_of(label: str) -> str:
    """What stands before a line that a function prints: its node, without its run."""
    return label.rpartition(" ")[2]


class Told(NamedTuple):
    text: str
    style: str = ""


class AgentTurns:
    """Prints the turns of a run's agents from the records in its events: a header, text, calls, results."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, int, int], int] = {}
        self._calls: dict[tuple[str, int, int], list[str]] = {}

    def turn_of(self, event: Mapping[str, Any]) -> int:
        """The turn that the agent of an event is in or begins, from 1."""
        return self._turns.get(_place(event), 0) + 1

    def header(self, event: Mapping[str, Any], *facts: str) -> Told:
        item = f"[{event['index']}]" if event.get("index", -1) >= 0 else ""
        return Told(dotted(sanitize(event["node"]) + item, f"turn {self.turn_of(event)}", *facts), BOLD)

    def see(self, event: Mapping[str, Any], *, text: bool = True) -> list[Told]:
        """What to say about an event; without `text` not what the model said, which is printed as it comes."""
        record = event.get("value") if event["type"] == "NodeAppended" else None
        if not isinstance(record, dict):
            return []
        match record.get("t"):
            case "reply":
                return list(self._reply(event, record, text=text))
            case "tool":
                return [self._result(event, record)]
            case "failed":
                asked = record.get("asked") or ["", ""]
                return [Told(f"  ✗ {dotted(sanitize(asked[1] or asked[0] or 'model'), error_words(record))}", RED)]
            case "note":
                return [Told(f"  ! {snippet(record.get('text', ''), columns() - 4)}", YELLOW)]
        return []

    def _reply(self, event: Mapping[str, Any], record: Mapping[str, Any], *, text: bool) -> Iterator[Told]:
        if text:
            yield self.header(event, sanitize(record.get("model", "")), duration(record.get("ms", 0)))
            lines = text_lines(record.get("text", "").strip(), 2)
            for line in lines[:TEXT_LINES_MAX]:
                yield Told(f"  {line}".rstrip())
            if len(lines) > TEXT_LINES_MAX:
                yield Told(f"  … {len(lines) - TEXT_LINES_MAX} more lines", DIM)
        calls = record.get("calls", ())
        for _, name, arguments in calls:
            shown = sanitize(name)
            yield Told(f"  → {shown}  {snippet(arguments, max(20, columns() - len(shown) - 6))}", CYAN)
        self._turns[_place(event)] = self.turn_of(event)
        self._calls[_place(event)] = [name for _, name, _ in calls]

    def _result(self, event: Mapping[str, Any], record: Mapping[str, Any]) -> Told:
        """The result of a call; it names its tool where there are several."""
        calls, number = self._calls.get(_place(event), []), record.get("n", 0)
        name = sanitize(calls[number]) if len(calls) > 1 and number < len(calls) else ""
        if record.get("error"):
            return Told(f"    ✗ {dotted(name, error_words(error_in(record['text'], record['error'])))}", RED)
        width = max(20, columns() - len(name) - 24)
        said = _preview(record) or snippet(record.get("text", ""), width)
        return Told(f"    ✓ {dotted(name, said, duration(record.get('ms', 0)))}", GREEN)


def _place(event: Mapping[str, Any]) -> tuple[str, int, int]:
    return event["node"], event["visit"], event.get("index", -1)


def error_words(error: Mapping[str, Any]) -> str:
    """The error of a call in a line, with the first of its problems."""
    first: Mapping[str, str] = next(iter(error.get("problems") or ()), {})
    detail = ": ".join(filter(None, (first.get("path", ""), first.get("message", ""))))
    parts = (error.get("code", ""), error.get("message", ""), detail)
    return snippet(": ".join(filter(None, map(str, parts))), columns() - 8)


def _decoded(text: Any) -> Any:
    try:
        return msgspec.json.decode(text) if isinstance(text, str) else None
    except msgspec.DecodeError:
        return None


def error_in(result: Any, code: str) -> Mapping[str, Any]:
    """The error in the result of a call, decoded or as text."""
    said = _decoded(result) if isinstance(result, str) else result
    error = said.get("error") if isinstance(said, dict) else None
    return error if isinstance(error, dict) else {"code": code}


def _preview(record: Mapping[str, Any]) -> str:
    """A result that is stored, by its kind and size."""
    preview = _decoded(record.get("preview"))
    if not isinstance(preview, dict):
        return ""
    rows = preview.get("row_count", 0)
    return f"{preview.get('type', 'value')} of {rows:,} row{'' if rows == 1 else 's'}"


class QuietWatcher:
    """Watches a run and says nothing; use a watcher in a `with` and give it every event."""

    def __init__(self, board: RunProgress) -> None:
        self._board = board

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def see(self, event: Mapping[str, Any]) -> None:
        self._board.apply(event)

    def skip(self, event: Mapping[str, Any]) -> None:
        """Take in a past event without printing it."""
        self._board.apply(event)

    def say(self, text: str, style: str = "") -> None:
        print(Styler(sys.stderr)(sanitize(text), style), file=sys.stderr, flush=True)

    def leave(self) -> None:
        """Nothing is drawn, so the terminal is free already."""

    def enter(self) -> None:
        """See `leave`."""


class Lines(QuietWatcher):
    """Prints one line per node that ends or is retried, and the turns of agents."""

    def __init__(self, board: RunProgress) -> None:
        super().__init__(board)
        self._turns, self._paint, self._following = AgentTurns(), Styler(), 0
        self._width = min(32, max((len(name) for name in board.rows), default=0))

    def __enter__(self) -> Self:
        print(f"{self._board.name}  run {self._board.run_id}", flush=True)
        return self

    def see(self, event: Mapping[str, Any]) -> None:
        row = self._board.apply(event)
        for said in self._turns.see(event):
            print(self._paint(said.text, said.style), flush=True)
        # A visit that ended only to begin another pass gets the line of that pass.
        goes_round = (event.get("route") or {}).get("again") and not event.get("taken")
        if row is not None and not goes_round:
            print(self._line(row, event), flush=True)
            self._following = self._following + 1 if row.phase in FOLLOWING else 0
            if row.phase == "FAILED" or not 0 < self._following <= FOLLOWING_MAX:
                self._board.told = row.name if row.phase == "FAILED" else ""

    def skip(self, event: Mapping[str, Any]) -> None:
        super().skip(event)
        self._turns.see(event)

    def say(self, text: str, style: str = "") -> None:
        print(self._paint(sanitize(text), style), flush=True)

    def _line(self, row: NodeProgress, event: Mapping[str, Any]) -> str:
        """A row at the time of the event, which may be long past."""
        at_ms, again = event["at_ms"], event["type"] == "LoopContinued"
        spent = self._board.spent(row, at_ms)
        sign, said = ("↺", passes(row)) if again else (SIGNS[row.phase], detail(row, at_ms))
        return f"{sign} {row.name:<{self._width}}  {spent:>9}  {said}".rstrip()
