"""What a worker process says of itself: a line when it is ready, when it drains, when it is done, and of trouble."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Self

from tidemill.cli.paint import DIM, GREEN, YELLOW, Paint
from tidemill.cli.problems import counted
from tidemill.cli.snippets import names
from tidemill.cli.terminal import clean
from tidemill.engine.registry import WorkerRow
from tidemill.errors import DiskFull, Rejected, TidemillError

_TRIED = "it is tried until it does"


class Bulletins:
    """Lines for people, or one JSON object per line for programs; each is written out at once."""

    def __init__(self, *, as_json: bool) -> None:
        # With --json standard output is kept clean of what functions print, so this is a way of its own to it.
        self._json = open(os.dup(1), "w", encoding="utf-8", buffering=1) if as_json else None  # noqa: SIM115
        self._paint = Paint()
        self._trouble = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._json is not None:
            self._json.close()

    def ready(self, row: WorkerRow, store: str) -> None:
        """It is at work."""
        known = names((type_.removesuffix("@1") for type_ in row.types), 200)
        words = f"worker {row.name} is ready · pid {row.pid} · {store} · queues {names(row.queues) or 'all'}"
        self._say(
            f"{self._paint('✓', GREEN)} {clean(words)} {self._paint(f'· types {clean(known)}', DIM)}",
            event="ready",
            worker=row.name,
            pid=row.pid,
            store=store,
            queues=list(row.queues),
            types=list(row.types),
            concurrency=row.concurrency,
        )

    def draining(self, holding: int, grace_s: float) -> None:
        """It was told to stop."""
        wait = f"up to {grace_s:g} s for {counted(holding, 'job')} in hand; a second signal stops at once"
        words = f"draining: {wait if holding else 'nothing in hand'}"
        self._say(words, event="draining", holding=holding, grace_ms=round(grace_s * 1000))

    def hurrying(self, holding: int) -> None:
        """It was told again."""
        self._say("stopping at once", event="hurrying", holding=holding)

    def drained(self, returned: int, finished: int) -> None:
        """It is over."""
        words = f"{counted(returned, 'job')} given back" if returned else "nothing was given back"
        self._say(f"{self._paint('✓', GREEN)} drained: {words}", event="drained", returned=returned, finished=finished)

    def reach(self, trouble: TidemillError | None) -> None:
        """The store no longer answers, and why, or it answers again; said when it changes."""
        cause = "" if trouble is None else str(trouble)
        if cause == self._trouble:
            return
        self._trouble, mark = cause, self._paint("!", YELLOW)
        if trouble is None:
            self._say(f"{mark} the store answers again", event="store_back")
        else:
            full = isinstance(trouble, DiskFull)
            words = f"{cause}; work goes on by itself then" if full else f"the store does not answer: {cause}; {_TRIED}"
            self._say(f"{mark} {clean(words)}", event="store_lost", message=cause)

    def refused(self, refusal: Rejected) -> None:
        """The store gives out no work, for a reason that somebody has to see to."""
        problem = refusal.problems[0]
        words = f"{self._paint('!', YELLOW)} {clean(f'{problem.message} [{problem.code}]; {problem.hint}')}"
        self._say(words, event="store_refuses", code=problem.code, message=problem.message)

    def _say(self, words: str, **told: Any) -> None:
        if self._json is not None:
            print(json.dumps({**told, "at_ms": time.time_ns() // 1_000_000}), file=self._json, flush=True)
        else:
            print(words, file=sys.stdout, flush=True)
