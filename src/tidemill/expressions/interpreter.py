"""The interpreter for conditions in Python: a restricted one, run by a library in a worker process of its own.

It lives in the children of `processes`, so that whatever it does, the parent can end it together with the child.
Each evaluation is a new session, because names would outlive it otherwise. There are no files, no network and
no environment; the clock and chance are refused as well, so that a decision can be explained by its values.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from tidemill.expressions.failure import ExpressionError, condition_failed
from tidemill.expressions.sandbox import MEMORY_MB_MAX, TIMEOUT_MS_MAX, Sandbox
from tidemill.expressions.sandbox_code import ANSWER, CONTEXT, OUTPUT
from tidemill.expressions.scope import Absent, Json, Scope
from tidemill.expressions.wording import shorten

if TYPE_CHECKING:
    from pydantic_monty import Monty, MontyError

GRACE_SECONDS = 0.5
"""How long the interpreter may go on beyond its time before its process is killed."""

SESSIONS_MAX = 1000
"""Evaluations after which its process is replaced, so that nothing can pile up in it."""

# Only a boolean or the name of a type comes back: a large value would be copied out of the interpreter for nothing.
_CALL = f"""
{ANSWER} = evaluate({OUTPUT}, {CONTEXT})
{ANSWER} if {ANSWER} is True or {ANSWER} is False else type({ANSWER}).__name__
"""

_KINDS = {
    "NoneType": "None",
    "int": "a number",
    "float": "a number",
    "str": "a string",
    "list": "a list",
    "tuple": "a tuple",
    "dict": "a dict",
}


class Interpreter:
    """Runs the code of conditions. It starts with the first of them, and ends with its process."""

    def __init__(self) -> None:
        self._pool: Monty | None = None

    def holds(self, sandbox: Sandbox, data: Json, scope: Scope) -> bool:
        """Call the function and decide by what it returns; raise `ExpressionError` for anything but a boolean."""
        from pydantic_monty import MontyError

        try:
            answer = self._run(sandbox, data)
        except MontyError as error:
            raise _failed(sandbox, error, scope) from None
        if isinstance(answer, bool):
            return answer
        kind = _KINDS.get(str(answer), f"a value of type {shorten(str(answer), 60)}")
        hint = "write bool(...) around it"
        raise condition_failed(f"evaluate must return True or False, and it returned {kind}", hint)

    def _run(self, sandbox: Sandbox, data: Json) -> object:
        session = self._started().checkout(
            limits={
                "max_feed_duration_secs": sandbox.timeout_ms / 1000,
                "max_memory": sandbox.max_memory_mb << 20,
            },
            os_policy={"sleep": "zero", "datetime": "call_host", "random_start": "call_host"},
        )
        with session:
            inputs = {OUTPUT: data["output"], CONTEXT: data["context"]}
            return session.feed_run(f"{sandbox.code}\n{_CALL}", inputs=inputs, print_callback=_swallow)

    def _started(self) -> Monty:
        if self._pool is None:
            from pydantic_monty import Monty

            pool = Monty(
                max_processes=1,
                max_checkouts_per_worker=SESSIONS_MAX,
                feed_duration_limit_grace=GRACE_SECONDS,
            )
            self._pool = pool.__enter__()
        return self._pool


def _swallow(stream: str, text: str) -> None:
    """Take what is printed, and forget it."""


def _failed(sandbox: Sandbox, error: MontyError, scope: Scope) -> ExpressionError:
    from pydantic_monty import MontyCrashedError

    said = str(error)
    if said.startswith("TimeoutError: feed time limit") or (isinstance(error, MontyCrashedError) and error.timed_out):
        hint = f"do less, or raise timeout_ms (at most {TIMEOUT_MS_MAX})"
        return condition_failed(f"evaluate took longer than {sandbox.timeout_ms} ms", hint)
    if said.startswith("MemoryError: ") and "memory limit" in said:
        hint = f"keep less, or raise max_memory_mb (at most {MEMORY_MB_MAX})"
        return condition_failed(f"evaluate needs more than {sandbox.max_memory_mb} MB of memory", hint)
    if isinstance(error, MontyCrashedError):
        if signal.SIGKILL.name in said:
            # No code does that to its interpreter. This process goes the same way, and its parent asks once more.
            os.kill(os.getpid(), signal.SIGKILL)
        return condition_failed("the interpreter died while it ran evaluate", "the code is too much for it")
    hint = ""
    if "not supported in this environment" in said:
        hint = "a condition has no clock, chance or environment: hand in what it needs as data"
    node = said.removeprefix("KeyError: ")
    if isinstance(seen := scope.nodes.get(node), Absent):
        hint = f'node "{node}" {seen.reason}: ask "{node}" in context first'
    return condition_failed(f"evaluate failed{_line(sandbox, error)}: {shorten(said, 200)}", hint)


def _line(sandbox: Sandbox, error: MontyError) -> str:
    """Name the line of the code in which it went wrong, if it was one of them."""
    from pydantic_monty import MontyRuntimeError, MontySyntaxError

    if not isinstance(error, MontyRuntimeError | MontySyntaxError):
        return ""
    frames = error.traceback()
    if not frames or frames[-1].line > sandbox.code.count("\n") + 1:
        return ""
    return f" in line {frames[-1].line}"
