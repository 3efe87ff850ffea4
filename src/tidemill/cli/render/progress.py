"""Watchers of a run that draw nothing: `Lines` prints one line per node that ends or is retried, `Silence` none.

The live display of a terminal is in `live_display`, which imports rich; this module must not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, Self

from tidemill.cli.render.board import SIGNS, NodeProgress, RunProgress, detail, duration, passes
from tidemill.cli.render.terminal import sanitize


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

    def say(self, text: str) -> None:
        print(sanitize(text), file=sys.stderr, flush=True)

    def leave(self) -> None:
        """Nothing is drawn, so the terminal is free already."""

    def enter(self) -> None:
        """See `leave`."""


class Lines(QuietWatcher):
    """Prints one line per node that ends or is retried."""

    def __init__(self, board: RunProgress) -> None:
        super().__init__(board)
        self._width = min(32, max((len(name) for name in board.rows), default=0))

    def __enter__(self) -> Self:
        print(f"{self._board.name}  run {self._board.run_id}", flush=True)
        return self

    def see(self, event: Mapping[str, Any]) -> None:
        row = self._board.apply(event)
        # A visit that ended only to begin another pass gets the line of that pass.
        goes_round = (event.get("route") or {}).get("again") and not event.get("taken")
        if row is not None and not goes_round:
            print(self._line(row, event["type"] == "LoopContinued"), flush=True)

    def say(self, text: str) -> None:
        print(sanitize(text), flush=True)

    def _line(self, row: NodeProgress, again: bool) -> str:
        now_ms = time.time_ns() // 1_000_000
        spent = duration(row.elapsed_ms(now_ms)) if row.begun else ""
        sign, said = ("↺", passes(row)) if again else (SIGNS[row.phase], detail(row, now_ms))
        return f"{sign} {row.name:<{self._width}}  {spent:>9}  {said}".rstrip()
