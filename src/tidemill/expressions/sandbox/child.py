"""The child process of the sandbox and its Python interpreter.

The child reads a request, answers, and reads the next. Native code that holds the interpreter's lock reacts to nothing,
so the process is ended from outside: by its pool at the deadline, by the alarm, or by the memory limit. It ignores the
signals that stop its parent. Code of python_sandbox conditions runs in a restricted interpreter in a process below the
child; each evaluation is a new session without files, network, environment, clock or randomness. Importing this module
must not load the condition languages.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
from importlib import import_module
from typing import TYPE_CHECKING

import msgspec

from tidemill.expressions.conditions import EvaluationRequest, SimpleCondition
from tidemill.expressions.errors import ExpressionError, condition_failed, shorten
from tidemill.expressions.python_condition import ANSWER, CONTEXT, MEMORY_MB_MAX, OUTPUT, TIMEOUT_MS_MAX, Sandbox
from tidemill.expressions.sandbox.protocol import answer_of, packed_answer, unpacked
from tidemill.expressions.sandbox.tasks import RunCode, SandboxTask, execute
from tidemill.expressions.scope import Absent, Json, Scope
from tidemill.processes.supervisor import frame, read_frame, resident_mb

if TYPE_CHECKING:
    from pydantic_monty import Monty, MontyError, MontySession


GRACE_SECONDS = 0.5
"""How long the interpreter may exceed its time limit before its process is killed."""

SESSIONS_MAX = 1000
"""Evaluations after which the interpreter's process is replaced, because it may leak."""

# The answer is a boolean or the name of a type, because any other value would be copied for nothing.
_CALL = f"""
{ANSWER} = evaluate({OUTPUT}, {CONTEXT})
{ANSWER} if {ANSWER} is True or {ANSWER} is False else type({ANSWER}).__name__
"""

_MAIN = f"main({OUTPUT})\n"
PRINTED_MAX = 8_000
"""Characters of what code prints that are returned."""

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
    """Runs the code of python_sandbox conditions; started by the first of them, ends with this process."""

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
        with self._session(sandbox.timeout_ms, sandbox.max_memory_mb) as session:
            inputs = {OUTPUT: data["output"], CONTEXT: data["context"]}
            return session.feed_run(f"{sandbox.code}\n{_CALL}", inputs=inputs, print_callback=lambda stream, text: None)

    def run_code(self, task: RunCode) -> bytes:
        """Call `main(data)` of the code; return its result and what it printed. Raise `ExpressionError`."""
        from pydantic_monty import MontyError

        printed: list[str] = []

        def note(stream: str, text: str) -> None:
            printed.append(text)

        try:
            with self._session(task.deadline_ms, task.memory_mb) as session:
                inputs = {OUTPUT: msgspec.json.decode(task.value)}
                result = session.feed_run(f"{task.code}\n{_MAIN}", inputs=inputs, print_callback=note)
        except MontyError as error:
            raise condition_failed(f"the code failed: {shorten(str(error), 500)}") from None
        try:
            return msgspec.json.encode({"result": result, "printed": "".join(printed)[:PRINTED_MAX]})
        except (TypeError, ValueError) as error:
            raise condition_failed(f"main must return plain JSON values: {shorten(str(error))}") from None

    def _session(self, timeout_ms: int, memory_mb: int) -> MontySession:
        return self._started().checkout(
            limits={"max_feed_duration_secs": timeout_ms / 1000, "max_memory": memory_mb << 20},
            os_policy={"sleep": "zero", "datetime": "call_host", "random_start": "call_host"},
        )

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


def _failed(sandbox: Sandbox, error: MontyError, scope: Scope) -> ExpressionError:
    from pydantic_monty import MontyCrashedError

    message = str(error)
    if message.startswith("TimeoutError: feed time limit") or (
        isinstance(error, MontyCrashedError) and error.timed_out
    ):
        hint = f"do less, or raise timeout_ms (at most {TIMEOUT_MS_MAX})"
        return condition_failed(f"evaluate took longer than {sandbox.timeout_ms} ms", hint)
    if message.startswith("MemoryError: ") and "memory limit" in message:
        hint = f"keep less, or raise max_memory_mb (at most {MEMORY_MB_MAX})"
        return condition_failed(f"evaluate needs more than {sandbox.max_memory_mb} MB of memory", hint)
    if isinstance(error, MontyCrashedError):
        if signal.SIGKILL.name in message:
            # Code cannot kill its interpreter, so it was killed from outside: die likewise, and the pool retries.
            os.kill(os.getpid(), signal.SIGKILL)
        return condition_failed("the interpreter died while it ran evaluate", "the code needs too many resources")
    hint = ""
    if "not supported in this environment" in message:
        hint = "a condition has no clock, randomness or environment: pass what it needs as data"
    node = message.removeprefix("KeyError: ")
    if isinstance(seen := scope.nodes.get(node), Absent):
        hint = f'node "{node}" {seen.reason}: ask "{node}" in context first'
    return condition_failed(f"evaluate failed{_line(sandbox, error)}: {shorten(message, 200)}", hint)


def _line(sandbox: Sandbox, error: MontyError) -> str:
    """Name the line that failed, if it is part of the author's code."""
    from pydantic_monty import MontyRuntimeError, MontySyntaxError

    if not isinstance(error, MontyRuntimeError | MontySyntaxError):
        return ""
    frames = error.traceback()
    if not frames or frames[-1].line > sandbox.code.count("\n") + 1:
        return ""
    return f" in line {frames[-1].line}"


MEMORY_MAX_MB = MEMORY_MB_MAX + 256
"""Enough for the largest interpreter, and for CEL, whose `map` over 8,000 items needs 1 GB."""

RETIRE_MB = 256
"""A child that holds more than this after a call is replaced, so that the next call has enough room."""

FILES_MAX = 64
GRACE_MS = 1000
"""The parent kills the child at the deadline; the alarm comes later, in case the parent hangs."""


def main(wire: socket.socket) -> None:
    """Serve until the parent closes the wire."""
    # Loading a language must not count against the deadline of the first condition.
    for module in ("cel.evaluate", "comparisons", "jsonpath.condition", "schema"):
        import_module(f"tidemill.expressions.{module}")
    # The interpreter's process must not keep the socket open after this one has ended.
    wire.set_inheritable(False)
    _confine()
    interpreter = Interpreter()
    wire.sendall(frame(b""))
    while (body := read_frame(wire)) is not None:
        value = _answer(body, interpreter)
        signal.setitimer(signal.ITIMER_REAL, 0)
        wire.sendall(frame(packed_answer(answer_of(value, retire=resident_mb() > RETIRE_MB))))


def _answer(body: bytes, interpreter: Interpreter) -> bytes | ExpressionError:
    """Execute one request or task; every failure becomes an answer."""
    what = "the condition"
    try:
        work = unpacked(body)
        what = work.what
        signal.setitimer(signal.ITIMER_REAL, (work.deadline_ms + GRACE_MS) / 1000)
        return _execute(work, interpreter)
    except ExpressionError as failure:
        return failure
    except MemoryError:
        return condition_failed(f"{what} needs more than {MEMORY_MAX_MB} MB of memory", "read less of the data")
    except Exception as error:
        return condition_failed(f"{what} could not be decided ({type(error).__name__})")


def _execute(work: EvaluationRequest | SandboxTask, interpreter: Interpreter) -> bytes:
    def judge(leaf: SimpleCondition, scope: Scope) -> bool:
        data = leaf.bind(scope)
        return interpreter.holds(leaf, data, scope) if isinstance(leaf, Sandbox) else leaf.holds(data, scope)

    if isinstance(work, EvaluationRequest):
        return b"true" if judge(work.leaf, work.scope) else b"false"
    if isinstance(work, RunCode):
        return interpreter.run_code(work)
    return execute(work, judge)


def _confine() -> None:
    """Drop what is not needed; the interpreter's process inherits the limits."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for kind, most in _LIMITS.items():
        resource.setrlimit(kind, (most, most))
    # Native code that dies writes to these; until here they report errors of the start.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    os.close(silence)


_LIMITS = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: FILES_MAX,
    # Private writable memory only: mapped libraries and reserved addresses do not count.
    resource.RLIMIT_DATA: MEMORY_MAX_MB << 20,
}
