"""Where errands and chores are carried out that must not run in this process."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar

from tidemill.expressions.chores import SandboxTask
from tidemill.expressions.failure import ExpressionError, condition_failed
from tidemill.expressions.leaf import Errand, Steps
from tidemill.expressions.scope import Json

_T = TypeVar("_T")


class Isolation(Protocol):
    """Decides conditions in processes that can be killed."""

    async def holds(self, errand: Errand) -> bool:
        """Decide before the deadline; raise `ExpressionError` if there is no answer, or none in time."""
        ...

    async def close(self) -> None:
        """End every process; what is under way has no answer."""
        ...


class SandboxExecutor(Protocol):
    """Carries out chores in processes that can be killed."""

    async def execute(self, chore: SandboxTask) -> Json:
        """Give the result before the deadline; raise `ExpressionError` if there is none, or none in time."""
        ...


class NoSandbox:
    """For an engine without child processes: it refuses every errand and chore."""

    async def execute(self, chore: SandboxTask) -> Json:
        raise condition_failed(f"{chore.what} needs another process, and there is none")

    async def holds(self, errand: Errand) -> bool:
        raise condition_failed(f"{errand.leaf.told()} cannot be decided without another process")

    async def close(self) -> None:
        """Do nothing."""


def settled(steps: Steps[_T], isolation: Isolation) -> _T | Awaitable[_T]:
    """Run a computation to its end: at once if it has no errands, otherwise as something to wait for."""
    try:
        errand = next(steps)
    except StopIteration as ended:
        value: _T = ended.value
        return value
    return _carried_out(steps, errand, isolation)


async def _carried_out(steps: Steps[_T], errand: Errand, isolation: Isolation) -> _T:
    try:
        while True:
            try:
                answer = await isolation.holds(errand)
            except ExpressionError as failure:
                errand = steps.throw(failure)
            else:
                errand = steps.send(answer)
    except StopIteration as ended:
        value: _T = ended.value
        return value
