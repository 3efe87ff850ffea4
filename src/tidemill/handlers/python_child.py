"""The child process that calls functions of `python` nodes: it reads a call, answers, and reads the next.

The functions are the operator's own code and may do anything; what is limited is the harm. The process has a memory
limit, and its supervisor kills it with all that it has started, at the latest when the worker is gone. When its time is
up, the worker sends a signal, and the function gets an exception that it may catch.
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
from tidemill.handlers.contract import Cancelled, Ended, Fail, Pause, Return, Skip, ended
from tidemill.handlers.functions import callee, imported
from tidemill.handlers.generators import drained, settled
from tidemill.handlers.python_blobs import SentBlob, taken_out
from tidemill.handlers.python_frames import (
    OUT_OF_MEMORY_STATUS,
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
from tidemill.handlers.python_line import (
    FOLDED,
    CallConnection,
    CancelSignal,
    ForwardedLog,
    ForwardedStream,
    WorkerConnection,
    context_of,
)
from tidemill.processes.supervisor import frame, resident_mb
from tidemill.security.secrets import SecretMissing

RETIRE_MB = 256
"""A process that has grown by more than this since its first call is replaced."""


def main(wire: socket.socket) -> None:
    """Serve until the worker closes the wire."""
    # Programs that functions start must not keep it open when this process is gone.
    wire.set_inheritable(False)
    faulthandler.enable(file=2)
    # The worker ends its functions when a service is stopped. A handler, because programs that a function starts
    # would inherit an ignored signal.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    cancel = CancelSignal()
    worker = WorkerConnection(wire, cancel)
    signal.signal(signal.SIGALRM, cancel.receive)
    sys.stdout, sys.stderr = ForwardedStream(worker, "stdout", 1), ForwardedStream(worker, "stderr", 2)
    logging.getLogger().addHandler(ForwardedLog(worker))
    sys.argv[:] = [""]
    wire.sendall(frame(b""))
    first_mb = 0
    while (call := worker.next_call()) is not None:
        answer = _answer(call, worker, cancel)
        first_mb = first_mb or resident_mb()
        if isinstance(answer, Done) and resident_mb() > first_mb + RETIRE_MB:
            answer = msgspec.structs.replace(answer, retire=True)
        _send(answer, worker)


def _send(answer: Answer, worker: WorkerConnection) -> None:
    """Send the answer; a pause that holds what is not JSON becomes an error."""
    try:
        worker.send(answer)
    except (TypeError, ValueError) as error:
        worker.send(threw(error))


def _answer(call: Call, worker: WorkerConnection, cancel: CancelSignal) -> Answer:
    """Call the function; every outcome is an answer."""
    logging.getLogger().setLevel(call.log_level)
    sys.path[:] = call.paths
    try:
        with _memory(call.memory_mb):
            answer = _called(call, worker, cancel)
    except MemoryError as error:
        answer = _out_of_memory(call, error)
    except BaseException as error:
        answer = Stopped() if _is_end(error, cancel) else threw(error)
    for printed in (sys.stdout, sys.stderr):
        with suppress(Exception):
            printed.flush()
    worker.end_call()
    return answer


def _called(call: Call, worker: WorkerConnection, cancel: CancelSignal) -> Answer:
    config = decode_value(call.config)
    context = context_of(call, config, CallConnection(worker))
    try:
        function = imported(call.function)
        arguments = callee(function).arguments(config, context)
        with cancel.delivered():
            result: Any = function(**arguments)
            if inspect.isgenerator(result):
                result = drained(result, context)
        if inspect.isawaitable(result) or inspect.isasyncgen(result):
            result = asyncio.run(_in_loop(settled(result, context), cancel))
        return _done(ended(result))
    except Fail as fail:
        return failed_of(fail)
    except SecretMissing as missing:
        return Failed(code="secret_missing", message=missing.message, hint=missing.hint)


async def _in_loop(result: Any, cancel: CancelSignal) -> Ended:
    """Run a coroutine function; when its time is up, its task is cancelled."""
    task, loop = asyncio.ensure_future(result), asyncio.get_running_loop()
    with cancel.passed_on(lambda: loop.call_soon_threadsafe(task.cancel)):
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


def _is_end(error: BaseException, cancel: CancelSignal) -> bool:
    return cancel.received and isinstance(error, (Cancelled, asyncio.CancelledError))
