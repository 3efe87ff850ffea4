"""Filtering a table by a condition of any kind, each row being the `output` that it looks at.

Rows are decided a few hundred at a time, so that others get their turn in between. What is too much for this process
goes to another one, and not row by row: all rows of a portion that wait for the same condition travel together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from tidemill.expressions.chores import FilterRows
from tidemill.expressions.conditions import Condition, Verdict, decide
from tidemill.expressions.failure import ExpressionError
from tidemill.expressions.isolation import SandboxExecutor
from tidemill.expressions.leaf import Errand, Leaf, Steps
from tidemill.expressions.scope import Scope
from tidemill.handlers.tables import Rows, Wrong

PORTION = 200
"""Rows that are decided in one go: some milliseconds of work."""


async def kept_rows(rows: Rows, condition: Condition, scope: Scope, carrier: SandboxExecutor) -> Rows:
    """Give the rows for which the condition holds; raise `Wrong` for the first that has no answer."""
    kept: Rows = []
    for start in range(0, len(rows), PORTION):
        portion = rows[start : start + PORTION]
        decided = await _Portion(condition, scope, portion, start, carrier).decided()
        kept += [row for number, row in enumerate(portion) if decided[number]]
        await asyncio.sleep(0)
    return kept


class _Portion:
    """Some rows, and the computation that decides each."""

    def __init__(self, condition: Condition, scope: Scope, rows: Rows, start: int, carrier: SandboxExecutor) -> None:
        self._rows, self._start, self._carrier, self._scope = rows, start, carrier, scope
        scopes = (replace(scope, has_output=True, output=row) for row in rows)
        self._steps = [decide(condition, each) for each in scopes]
        self._known: dict[int, bool] = {}

    async def decided(self) -> dict[int, bool]:
        """Decide every row, by its number in the portion."""
        waiting = dict(self._moved(range(len(self._rows)), None))
        while waiting:
            # The rows may wait for different parts of a composite condition; those of one part go together.
            leaf = next(iter(waiting.values())).leaf
            numbers = [number for number, errand in waiting.items() if errand.leaf is leaf]
            answers = await self._asked(leaf, numbers)
            for number in numbers:
                del waiting[number]
            waiting.update(self._moved(numbers, answers))
        return self._known

    def _moved(
        self, numbers: Iterator[int] | range | list[int], answers: list[bool] | None
    ) -> Iterator[tuple[int, Errand]]:
        """Take computations on to their next errand, or to their end."""
        for position, number in enumerate(numbers):
            steps = self._steps[number]
            try:
                yield number, _next(steps) if answers is None else steps.send(answers[position])
            except StopIteration as ended:
                verdict: Verdict = ended.value
                self._known[number] = verdict.value
            except ExpressionError as failure:
                raise self._wrong(failure, number) from None

    async def _asked(self, leaf: Leaf, numbers: list[int]) -> list[bool]:
        try:
            answers: list[bool] = await self._carrier.execute(
                FilterRows(leaf, self._scope, [self._rows[number] for number in numbers])
            )
        except ExpressionError as failure:
            place = failure.path.removeprefix("/")
            raise self._wrong(failure, numbers[int(place)] if place else None) from None
        return answers

    def _wrong(self, failure: ExpressionError, number: int | None) -> Wrong:
        row = None if number is None else self._start + number
        return Wrong(failure.message, field="condition", row=row, hint=failure.hint)


def _next(steps: Steps[Verdict]) -> Errand:
    return next(steps)
