"""The process in which functions of type `python` are called: it reads a call, answers, and reads the next.

It is the operator's own code that runs here, so it may do whatever it likes; what is bounded is the harm. Its memory
has a limit, and the warden that started it kills it with all that it has started, or when its worker is gone. When its
time is up, the function is told by an exception that it may catch; the worker sends a signal for that.
"""

from __future__ import annotations

import asyncio
import faulthandler
import inspect
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from tidemill.blobs.payloads import NotJson, decode_value, encode_value
from tidemill.expressions.offspring import framed, resident_mb
from tidemill.handlers.contract import Cancelled, Ended, Fail, Pause, Return, Skip, ended
from tidemill.handlers.functions import callee, imported
from tidemill.handlers.generators import drained, settled
from tidemill.handlers.python_blobs import SentBlob, taken_out
from tidemill.handlers.python_frames import (
    OUT_OF_MEMORY_STATUS,
    READY,
    RESULT_MAX,
    Answer,
    Call,
    Done,
    Failed,
    Paused,
    Skipped,
    Stopped,
    failed_of,
    threw,
)
from tidemill.handlers.python_line import FOLDED, Connection, Interruption, Line, LineLog, Printed, context_of
from tidemill.security.secrets import SecretMissing

SPENT_MB = 256
"""A process that has grown by more than this since its first call is replaced."""


def main(wire: socket.socket) -> None:
    """Serve until the worker closes the wire."""
    # What the functions start must not keep it open when this process is gone.
    wire.set_inheritable(False)
    faulthandler.enable(file=2)
    # A service that is stopped ends its functions through its worker. A handler, because programs that a function
    # starts would inherit that the signal is ignored.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    interruption = Interruption()
    line = Line(wire, interruption)
    signal.signal(signal.SIGALRM, interruption.hear)
    sys.stdout, sys.stderr = Printed(line, "stdout", 1), Printed(line, "stderr", 2)
    logging.getLogger().addHandler(LineLog(line))
    sys.argv[:] = [""]
    wire.sendall(framed(READY))
    first_mb = 0
    while (call := line.next_call()) is not None:
        answer = _answer(call, line, interruption)
        first_mb = first_mb or resident_mb()
        if isinstance(answer, Done) and resident_mb() > first_mb + SPENT_MB:
            answer = msgspec.structs.replace(answer, spent=True)
        _send(answer, line)


def _send(answer: Answer, line: Line) -> None:
    """Say what came of a call; a wait that is asked for with what is not JSON cannot be said."""
    try:
        line.send(answer)
    except (TypeError, ValueError) as error:
        line.send(threw(error))


def _answer(call: Call, line: Line, interruption: Interruption) -> Answer:
    """Call the function; whatever comes of it is an answer."""
    logging.getLogger().setLevel(call.log_level)
    sys.path[:] = call.paths
    try:
        with _memory(call.memory_mb):
            answer = _called(call, line, interruption)
    except MemoryError as error:
        answer = _out_of_memory(call, error)
    except BaseException as error:
        answer = Stopped() if _is_end(error, interruption) else threw(error)
    for printed in (sys.stdout, sys.stderr):
        with suppress(Exception):
            printed.flush()
    line.hang_up()
    return answer


def _called(call: Call, line: Line, interruption: Interruption) -> Answer:
    config = decode_value(call.config)
    context = context_of(call, config, Connection(line))
    try:
        function = imported(call.function)
        arguments = callee(function).arguments(config, context)
        with interruption.felt():
            result: Any = function(**arguments)
            if inspect.isgenerator(result):
                result = drained(result, context)
        if inspect.isawaitable(result) or inspect.isasyncgen(result):
            result = asyncio.run(_in_loop(settled(result, context), interruption))
        return _done(ended(result))
    except Fail as fail:
        return failed_of(fail)
    except SecretMissing as missing:
        return Failed(code="secret_missing", message=missing.message, hint=missing.hint)


async def _in_loop(result: Any, interruption: Interruption) -> Ended:
    """Wait for a function in a loop of its own; when its time is up, it is cancelled like any task."""
    task, loop = asyncio.ensure_future(result), asyncio.get_running_loop()
    with interruption.passed_on(lambda: loop.call_soon_threadsafe(task.cancel)):
        found: Ended = await task
        return found


def _done(outcome: Ended) -> Answer:
    match outcome:
        case Pause():
            return Paused(outcome)
        case Skip(reason):
            return Skipped(str(reason))
        case Return(value, next_nodes):
            if value is FOLDED:
                return Done(None, next_nodes)
    return _valued(value, next_nodes)


def _valued(value: Any, next_nodes: tuple[str, ...] | None) -> Answer:
    blobs: list[SentBlob] = []
    try:
        try:
            text = encode_value(value)
        except NotJson as refusal:
            plain, blobs = taken_out(value, refusal)
            text = encode_value(plain)
    except NotJson as error:
        return Failed(code="output_not_json", message=str(error), hint="return plain JSON values")
    size = len(text) + sum(len(blob.data) for blob in blobs)
    if size > RESULT_MAX:
        message = f"the result has {size} bytes, and {RESULT_MAX} are allowed"
        return Failed(code="output_too_large", message=message, hint="write it to a file and return Blob(Path(…))")
    return Done(text, next_nodes, blobs)


@contextmanager
def _memory(limit_mb: int | None) -> Iterator[None]:
    """Bound the private memory that can be written to, which leaves out mapped libraries and reserved addresses.

    This is the limit at which the function is told. The one that it cannot lift was set before this process began.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if limit_mb is not None:
        most = limit_mb << 20
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))
    try:
        yield
    finally:
        # Saying that there is not enough takes memory too. The function may have changed either.
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (soft if hard < 0 else min(soft, hard), hard))


def _out_of_memory(call: Call, error: MemoryError) -> Answer:
    allowed = "it could have" if call.memory_mb is None else f"the {call.memory_mb} MB that it may have"
    try:
        message = f"the function needs more memory than {allowed}"
        return Failed(code="out_of_memory", message=message, hint="raise limits.memory_mb", cause=threw(error))
    except MemoryError:
        os._exit(OUT_OF_MEMORY_STATUS)


def _is_end(error: BaseException, interruption: Interruption) -> bool:
    return interruption.heard and isinstance(error, (Cancelled, asyncio.CancelledError))
