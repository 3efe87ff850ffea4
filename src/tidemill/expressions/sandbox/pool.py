"""Execute evaluation requests and sandbox tasks in warm child processes that can be killed.

A child that misses its deadline, or whose caller was cancelled, is killed and replaced. Work whose child was killed
from outside is retried once; any other death of a child is reported to the caller as a failure.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from tidemill.errors import Unavailable
from tidemill.expressions.conditions import EvaluationRequest, EvaluationSteps, is_small
from tidemill.expressions.errors import ExpressionError, LoopBudgetSpent, condition_failed
from tidemill.expressions.sandbox.protocol import ANSWER_MAX, RESULT_MAX, Answer, packed, unpacked_answer
from tidemill.expressions.sandbox.tasks import RenderTexts, RunQuery, SandboxTask
from tidemill.expressions.scope import Json, Scope
from tidemill.processes.child import ChildSpec, Pool, StartFailed, minimal_environment

if TYPE_CHECKING:
    from tidemill.expressions.templates.template import Template

_T = TypeVar("_T")


class SandboxExecutor(Protocol):
    """Executes sandbox tasks in processes that can be killed."""

    async def execute(self, task: SandboxTask) -> Json:
        """Return the result before the deadline; raise `ExpressionError` if there is none, or none in time."""


class Isolation(SandboxExecutor, Protocol):
    """Also decides conditions in such processes."""

    async def holds(self, request: EvaluationRequest) -> bool:
        """Decide before the deadline; raise `ExpressionError` if there is no answer, or none in time."""

    async def close(self) -> None:
        """End every process; requests in progress get no answer."""


class NoSandbox:
    """Refuses requests and tasks, for an engine without child processes; templates are rendered on the spot."""

    async def execute(self, task: SandboxTask) -> Json:
        if isinstance(task, RenderTexts):
            from tidemill.expressions.templates.template import render_texts

            return render_texts(task.texts, task.scope)
        raise condition_failed(f"{task.what} needs another process, and there is none")

    async def holds(self, request: EvaluationRequest) -> bool:
        raise condition_failed(f"{request.leaf.told()} cannot be decided without another process")

    async def close(self) -> None:
        """Do nothing."""


async def run_query(path: str, value: Json, executor: SandboxExecutor) -> list[Json]:
    """All values that a JSONPath query finds; a query that may take long is run in a child process."""
    # Imported here because loading it takes a tenth of a second.
    from tidemill.expressions.jsonpath.parser import read_query
    from tidemill.expressions.jsonpath.query import is_cheap

    query = read_query(path)
    if query.keys is not None or (is_cheap(query, path) and is_small(value)):
        return list(query.find(value, value))
    found: list[Json] = await executor.execute(RunQuery(query=path, value=msgspec.Raw(msgspec.json.encode(value))))
    return found


async def render(template: Template, scope: Scope, executor: SandboxExecutor) -> Json:
    """Render a template: here, or in a child process if that takes too long for the event loop."""
    try:
        return template.render_on_loop(scope)
    except LoopBudgetSpent:
        return await render_apart(template, scope, executor)


async def render_apart(template: Template, scope: Scope, executor: SandboxExecutor) -> Json:
    """Render a template that takes too long for the event loop. Secrets are filled in here."""
    try:
        known = await executor.execute(RenderTexts(template.texts(), template.references, scope))
    except ExpressionError as failure:
        failure.code = "template_failed"
        raise
    return template.render_rest(scope, known)


def run_steps(steps: EvaluationSteps[_T], isolation: Isolation) -> _T | Awaitable[_T]:
    """Run a computation to its end; return an awaitable if it needs another process."""
    try:
        request = next(steps)
    except StopIteration as ended:
        value: _T = ended.value
        return value
    return _run_requests(steps, request, isolation)


async def _run_requests(steps: EvaluationSteps[_T], request: EvaluationRequest | None, isolation: Isolation) -> _T:
    try:
        while True:
            if request is None:
                await asyncio.sleep(0)
                request = steps.send(False)
                continue
            try:
                answer = await isolation.holds(request)
            except ExpressionError as failure:
                request = steps.throw(failure)
            else:
                request = steps.send(answer)
    except StopIteration as ended:
        value: _T = ended.value
        return value


SIZE = 2
"""Maximum number of children; further callers wait."""


class SandboxPool:
    """The children of one event loop, until it is closed."""

    def __init__(self, size: int = SIZE) -> None:
        self._pool = Pool(size)

    async def holds(self, request: EvaluationRequest) -> bool:
        return (await self._answer(request, ANSWER_MAX)).value() is True

    async def execute(self, task: SandboxTask) -> Json:
        return (await self._answer(task, RESULT_MAX)).value()

    async def close(self) -> None:
        """End all children; calls under way or waiting get a `RuntimeError`. Later calls start new children."""
        await self._pool.close()

    async def _answer(self, work: EvaluationRequest | SandboxTask, answer_max: int) -> Answer:
        body = packed(work)
        answer, status = await self._ask(body, work, answer_max)
        if answer is None and status == -signal.SIGKILL:
            # Work cannot do that to its process: it was killed from outside, and may succeed when retried.
            answer, status = await self._ask(body, work, answer_max)
        if answer is None:
            raise _died(status, work)
        return answer

    async def _ask(
        self, body: bytes, work: EvaluationRequest | SandboxTask, answer_max: int
    ) -> tuple[Answer | None, int]:
        """Send the work to a child; without an answer, return the status with which the child ended."""
        try:
            async with self._pool.child(
                ChildSpec(
                    module="tidemill.expressions.sandbox.child",
                    flags=("-I", "-B"),
                    env=minimal_environment(),
                    cwd="/",
                )
            ) as child:
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
        hint = "it was killed twice from outside: the machine may be out of memory"
    verb = "decided" if isinstance(work, EvaluationRequest) else "worked on"
    return condition_failed(f"the process that {verb} {work.what} died ({how})", hint)
