"""Warm child processes with deadlines; Isolation protocol.

Errands and chores in child processes that can be killed.

A pool keeps a few children warm. A child that does not answer in time is killed and replaced, and so is a child whose
caller was cancelled. If a child dies, the caller only learns that there is no answer.

Where errands and chores are carried out that must not run in this process.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from tidemill.errors import Unavailable
from tidemill.expressions.conditions import EvaluationRequest, EvaluationSteps
from tidemill.expressions.errors import ExpressionError, condition_failed
from tidemill.expressions.sandbox.protocol import ANSWER_MAX, RESULT_MAX, Answer, packed, unpacked_answer
from tidemill.expressions.sandbox.tasks import SandboxTask
from tidemill.expressions.scope import Json
from tidemill.processes.child import ChildSpec, Pool, StartFailed

_T = TypeVar("_T")


class Isolation(Protocol):
    """Decides conditions in processes that can be killed."""

    async def holds(self, errand: EvaluationRequest) -> bool:
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

    async def holds(self, errand: EvaluationRequest) -> bool:
        raise condition_failed(f"{errand.leaf.told()} cannot be decided without another process")

    async def close(self) -> None:
        """Do nothing."""


def run_steps(steps: EvaluationSteps[_T], isolation: Isolation) -> _T | Awaitable[_T]:
    """Run a computation to its end: at once if it has no errands, otherwise as something to wait for."""
    try:
        errand = next(steps)
    except StopIteration as ended:
        value: _T = ended.value
        return value
    return _carried_out(steps, errand, isolation)


async def _carried_out(steps: EvaluationSteps[_T], errand: EvaluationRequest, isolation: Isolation) -> _T:
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


SIZE = 2
"""The most children; further callers wait."""

_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""All that a child gets of the environment: where the libraries of the interpreter are."""


class SandboxPool:
    """Keeps the children. It belongs to the event loop in which it is used, until it is closed."""

    def __init__(self, size: int = SIZE) -> None:
        self._pool = Pool(size)

    async def holds(self, errand: EvaluationRequest) -> bool:
        """Decide before the deadline; raise `ExpressionError` if there is no answer, or none in time."""
        return (await self._answered(errand, ANSWER_MAX)).value() is True

    async def execute(self, chore: SandboxTask) -> Json:
        """Give the result of a chore before its deadline; raise `ExpressionError` if there is none, or none in time."""
        return (await self._answered(chore, RESULT_MAX)).value()

    async def close(self) -> None:
        """End all children; calls under way or waiting get a `RuntimeError`. Later calls start new children."""
        await self._pool.close()

    async def _answered(self, work: EvaluationRequest | SandboxTask, answer_max: int) -> Answer:
        body = packed(work)
        answer, status = await self._asked(body, work, answer_max)
        if answer is None and status == -signal.SIGKILL:
            # No work does that to its process: it was killed from outside, and may succeed the second time.
            answer, status = await self._asked(body, work, answer_max)
        if answer is None:
            raise _died(status, work)
        return answer

    async def _asked(
        self, body: bytes, work: EvaluationRequest | SandboxTask, answer_max: int
    ) -> tuple[Answer | None, int]:
        """Ask a child; without an answer, give the status with which it ended."""
        try:
            async with self._pool.child(_spec()) as child:
                async with asyncio.timeout(work.deadline_ms / 1000):
                    await child.send(body)
                    received = await child.receive(answer_max)
                answer = None if received is None else unpacked_answer(received)
                child.reusable = answer is not None and not answer.retire
                if answer is None and self._pool.closing:
                    raise RuntimeError("the processes were closed while one of them was at work")
                return answer, 0 if answer else (await child.exit_report()).status
        except TimeoutError:
            raise _late(work) from None
        except StartFailed as error:
            raise Unavailable(f"no process could be started to decide a condition: {error}") from error


def _spec() -> ChildSpec:
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return ChildSpec(module="tidemill.expressions.sandbox.child", flags=("-I", "-B"), env=kept, cwd="/")


def _late(work: EvaluationRequest | SandboxTask) -> ExpressionError:
    hint = "read less of the data, or ask for less"
    return condition_failed(f"{work.what} took longer than {work.deadline_ms} ms", hint)


def _died(status: int, work: EvaluationRequest | SandboxTask) -> ExpressionError:
    if status == -signal.SIGALRM:
        return _late(work)
    how = signal.Signals(-status).name if status < 0 else f"status {status}"
    from tidemill.expressions.sandbox.child import MEMORY_MAX_MB

    hint = f"{work.what} needs more than {MEMORY_MAX_MB} MB of memory, or its values are nested too deeply"
    if status == -signal.SIGKILL:
        hint = "it was killed from outside, twice: the machine may have too little memory"
    verb = "decided" if isinstance(work, EvaluationRequest) else "worked on"
    return condition_failed(f"the process that {verb} {work.what} died ({how})", hint)
