"""The process side of `python` nodes: reads a call, runs the function, sends the answer, and reads the next call.

Hides the connection to the worker, the forwarding of output, and cancellation by signal. The functions are the
operator's own code and may do anything; the memory limit and the supervisor bound the harm. When its time is up, the
worker sends SIGALRM, and the function gets a `Cancelled` that it may catch. A message is never interrupted half-sent.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import inspect
import io
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from types import FrameType
from typing import Any

import msgspec

from tidemill.blobs.payloads import NotJson, decode_value, encode_value
from tidemill.handlers.contract import (
    Cancelled,
    Done,
    Fail,
    HandlerOutcome,
    NodeContext,
    Skip,
    Wait,
    enable_node_log,
    ended,
    truncate,
)
from tidemill.handlers.python import protocol
from tidemill.handlers.python.functions import Function, FunctionSignature, Ready, drain, imported, resolve_result
from tidemill.observability.capture import Decoded
from tidemill.processes.supervisor import frame, read_frame, resident_mb
from tidemill.security.secrets import SecretMissing, UnlistedSecrets

TEXT_MAX = 65_536
"""Characters of one message."""
COLLECTED = object()
"""Placeholder for all parts of a result together; the worker has them."""
OVER = "the time of this attempt is up, or its result no longer counts"


class CancelSignal:
    """The worker's signal to stop; raised once in the main thread, where a function runs."""

    def __init__(self) -> None:
        self.received = False
        self._raises = False
        self._deferred = 0
        self._callback: Callable[[], object] | None = None

    def receive(self, number: int, stack: FrameType | None) -> None:
        self.received = True
        if self._callback is not None:
            self._callback()
        else:
            self._raise_if_due()

    @contextmanager
    def delivered(self) -> Iterator[None]:
        """Within it, the signal raises `Cancelled`."""
        self._raises = True
        try:
            self._raise_if_due()
            yield
        finally:
            self._raises = False

    @contextmanager
    def passed_on(self, callback: Callable[[], object]) -> Iterator[None]:
        """Within it, the signal calls a callback instead."""
        self._callback = callback
        try:
            if self.received:
                callback()
            yield
        finally:
            self._callback = None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Within it, the signal raises nothing: a message must not be half sent."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1
        self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self.received and self._raises and not self._deferred:
            self._raises = False
            raise Cancelled(OVER)


class WorkerConnection:
    """The wire to the worker, for any thread of this process. A forked copy of the process cannot use it."""

    def __init__(self, wire: socket.socket, cancel: CancelSignal) -> None:
        self._wire, self._cancel = wire, cancel
        self._lock = threading.RLock()
        self._forked = False
        self.calls = 0
        """Number of finished calls; messages that belong to an earlier one are refused."""
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._forked = True
        self._lock = threading.RLock()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def next_call(self) -> protocol.Call | None:
        """Wait for a call; None when the worker is gone, or in a forked copy of the process."""
        if self._forked:
            return None
        order = self._next()
        self._cancel.received = False
        return order if isinstance(order, protocol.Call) else None

    def end_call(self) -> None:
        with self._lock:
            self.calls += 1

    def send(self, message: protocol.Message, call: int | None = None) -> None:
        """Send a message that belongs to a certain call, or to none."""
        if self._forked:
            return
        data = frame(protocol.encode(message))
        with self._cancel.deferred(), self._lock:
            self._check(call)
            self._wire.sendall(data)

    def print(self, source: str, number: int, text: str) -> None:
        """Send printed text; a forked copy of the process writes it to the file descriptor."""
        if self._forked:
            with suppress(OSError):
                os.write(number, text.encode())
        else:
            self.send(protocol.PrintedText(source, text))

    def ask(self, what: str, value: Any, call: int) -> bytes | None:
        if self._forked:
            raise RuntimeError("a forked copy of the process cannot call the engine")
        data = frame(protocol.encode(protocol.Ask(what, encode_value(value))))
        with self._cancel.deferred(), self._lock:
            self._check(call)
            self._wire.sendall(data)
            reply = self._next()
        if not isinstance(reply, protocol.Reply):
            raise SystemExit("the worker is gone")
        if reply.failed is not None:
            raise reply.failed.error()
        return reply.value

    def cancelled(self) -> bool:
        return self._cancel.received

    def _check(self, call: int | None) -> None:
        if call is not None and call != self.calls:
            raise Cancelled(OVER)

    def _next(self) -> protocol.Call | protocol.Reply | None:
        body = read_frame(self._wire)
        return None if body is None else protocol.decode_order(body)


class CallConnection:
    """The connection during one call; a thread that outlives the call cannot use it."""

    def __init__(self, worker: WorkerConnection) -> None:
        self._worker, self._call = worker, worker.calls

    def send(self, message: protocol.Message) -> None:
        self._worker.send(message, self._call)

    def ask(self, what: str, value: Any = None) -> bytes | None:
        return self._worker.ask(what, value, self._call)

    def keep(self, value: Any) -> Ready[None]:
        self.ask("checkpoint", value)
        return Ready(None)

    def over(self) -> bool:
        """Whether the function must stop, or has ended."""
        return self._worker.cancelled() or self._worker.calls != self._call


class RemoteSink:
    """The `ProgressSink` of an attempt in another process."""

    def __init__(self, call: CallConnection) -> None:
        self._call = call

    def chunk(self, value: Any) -> None:
        self._call.send(protocol.Part(*protocol.encode_with_blobs(value)))

    def progress(self, fraction: float | None, message: str) -> None:
        self._call.send(protocol.Progress(None if fraction is None else float(fraction), str(message)))

    def raise_if_cancelled(self) -> None:
        if self._call.over():
            raise Cancelled(OVER)

    def folded(self) -> Any:
        return COLLECTED


class RemoteUpstream(Mapping[str, Any]):
    """The outputs of the parents, requested from the worker one by one."""

    def __init__(self, call: CallConnection) -> None:
        self._call = call

    @cached_property
    def _names(self) -> list[str]:
        names: list[str] = decode_value(self._call.ask("names") or b"[]")
        return names

    def __getitem__(self, name: str) -> Any:
        text = self._call.ask("upstream", name)
        if text is None:
            raise KeyError(name)
        return decode_value(text)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class RemoteSecrets(UnlistedSecrets):
    """Secrets, requested from the worker by name."""

    def __init__(self, call: CallConnection) -> None:
        self._call = call

    def __getitem__(self, name: str) -> str:
        value = self._call.ask("secret", name)
        if value is None:
            raise SecretMissing(name)
        return value.decode()

    def forbidden_at(self, origin: str) -> str:
        return (self._call.ask("forbidden_at", origin) or b"").decode()


def context_of(call: protocol.Call, worker: CallConnection) -> NodeContext:
    """The context of the function; inputs, outputs and secrets are requested when it reads them."""
    return NodeContext(
        **{name: getattr(call, name) for name in protocol.PLAIN_FIELDS},
        **{name: decode_value(getattr(call, name)) for name in protocol.JSON_FIELDS},
        upstream=RemoteUpstream(worker),
        checkpoint=worker.keep,
        read=lambda description: Ready(worker.ask("read", description) or b""),
        given=lambda: decode_value(worker.ask("inputs") or b"null"),
        voice=RemoteSink(worker),
        secrets=RemoteSecrets(worker),
    )


class ForwardedStream(io.TextIOBase):
    """A standard stream whose text is sent to the worker line by line."""

    def __init__(self, worker: WorkerConnection, source: str, number: int) -> None:
        self._worker, self._source, self._number = worker, source, number
        self._lock = threading.RLock()
        self._text: list[str] = []
        self._size = 0
        self.buffer = Decoded(self)

    def write(self, text: str) -> int:
        with self._lock:
            self._text.append(text)
            self._size += len(text)
        if self._size > TEXT_MAX or text.endswith("\n"):
            self.flush()
        return len(text)

    def flush(self) -> None:
        with self._lock:
            text, self._text, self._size = "".join(self._text), [], 0
            clean = text.encode("utf-8", "replace").decode()
            for start in range(0, len(clean), TEXT_MAX):
                self._worker.print(self._source, self._number, clean[start : start + TEXT_MAX])

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


class ForwardedLog(logging.Handler):
    def __init__(self, worker: WorkerConnection) -> None:
        super().__init__()
        self._worker = worker

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._worker.send(protocol.Logged(record.name, record.levelno, truncate(self.format(record), TEXT_MAX)))
        except Exception:
            self.handleError(record)


# The calls.

RETIRE_MB = 256
"""A process that has grown by more than this since its first call is replaced."""


def main(wire: socket.socket) -> None:
    """Serve until the worker closes the wire."""
    # Programs that a function starts must not keep the wire open when this process is gone.
    wire.set_inheritable(False)
    faulthandler.enable(file=2)
    # The worker ends its functions when a service stops. Not SIG_IGN, which programs that a function starts would
    # inherit.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    cancel = CancelSignal()
    worker = WorkerConnection(wire, cancel)
    signal.signal(signal.SIGALRM, cancel.receive)
    sys.stdout, sys.stderr = ForwardedStream(worker, "stdout", 1), ForwardedStream(worker, "stderr", 2)
    logging.getLogger().addHandler(ForwardedLog(worker))
    enable_node_log()
    sys.argv[:] = [""]
    wire.sendall(frame(b""))
    first_mb = 0
    while (call := worker.next_call()) is not None:
        answer = _answer(call, worker, cancel)
        first_mb = first_mb or resident_mb()
        if isinstance(answer, protocol.Done) and resident_mb() > first_mb + RETIRE_MB:
            answer = msgspec.structs.replace(answer, retire=True)
        try:
            worker.send(answer)
        except (TypeError, ValueError) as error:
            # A pause holds something that is not JSON.
            worker.send(protocol.threw(error))


def _answer(call: protocol.Call, worker: WorkerConnection, cancel: CancelSignal) -> protocol.Answer:
    """Call the function; every outcome is an answer."""
    logging.getLogger().setLevel(call.log_level)
    sys.path[:] = call.paths
    try:
        with _memory(call.memory_mb):
            answer = _call_function(call, worker, cancel)
    except MemoryError as error:
        answer = _out_of_memory(call, error)
    except BaseException as error:
        cancelled = cancel.received and isinstance(error, (Cancelled, asyncio.CancelledError))
        answer = protocol.Stopped() if cancelled else protocol.threw(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    worker.end_call()
    return answer


def _call_function(call: protocol.Call, worker: WorkerConnection, cancel: CancelSignal) -> protocol.Answer:
    context = context_of(call, CallConnection(worker))
    try:
        thresholds = gc.get_threshold()
        gc.set_threshold(0)  # Imports make no garbage worth a look.
        try:
            function = imported(call.function)
        finally:
            if gc.get_threshold()[0] == 0:
                gc.set_threshold(*thresholds)
        target = _signature_of(call.function, function)
        arguments = target.arguments(context.config, context)
        with cancel.delivered():
            result: Any = target.checked(function(**arguments))
            if inspect.isgenerator(result):
                result = drain(result, context)
        if inspect.isawaitable(result) or inspect.isasyncgen(result):
            result = asyncio.run(_in_loop(resolve_result(result, context, target), cancel))
        return _to_answer(ended(result))
    except Fail as fail:
        return protocol.failed_of(fail)
    except SecretMissing as missing:
        return protocol.Failed(code="secret_missing", message=missing.message, hint=missing.hint)


_signatures: dict[str, FunctionSignature] = {}


def _signature_of(name: str, function: Function) -> FunctionSignature:
    """The signature of a function; read once, unless another call has replaced the function."""
    known = _signatures.get(name)
    if known is None or known.function is not function:
        known = _signatures[name] = FunctionSignature.of(function)
    return known


async def _in_loop(result: Any, cancel: CancelSignal) -> HandlerOutcome:
    """Await a coroutine; the cancel signal cancels its task."""
    task, loop = asyncio.ensure_future(result), asyncio.get_running_loop()
    with cancel.passed_on(lambda: loop.call_soon_threadsafe(task.cancel)):
        outcome: HandlerOutcome = await task
        return outcome


def _to_answer(outcome: HandlerOutcome) -> protocol.Answer:
    match outcome:
        case Wait():
            return protocol.Paused(outcome)
        case Skip(reason):
            return protocol.Skipped(str(reason))
        case Done(value, next_nodes):
            if value is COLLECTED:
                return protocol.Done(None, next_nodes)
    try:
        text, blobs = protocol.encode_with_blobs(value)
    except NotJson as error:
        return protocol.Failed(code="output_not_json", message=str(error), hint="return plain JSON values")
    size = len(text) + sum(len(blob.data) for blob in blobs)
    if size > protocol.RESULT_MAX:
        message = f"the result has {size} bytes, and {protocol.RESULT_MAX} are allowed"
        return protocol.Failed(
            code="output_too_large", message=message, hint="write it to a file and return Blob(Path(…))"
        )
    return protocol.Done(text, next_nodes, blobs)


@contextmanager
def _memory(limit_mb: int | None) -> Iterator[None]:
    """Bound the private writable memory: at this soft limit, below the supervisor's, a function gets a MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if limit_mb is not None:
        most = limit_mb << 20
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))
    try:
        yield
    finally:
        # Reporting the error takes memory too. The function may have changed both limits.
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (soft if hard < 0 else min(soft, hard), hard))


def _out_of_memory(call: protocol.Call, error: MemoryError) -> protocol.Answer:
    allowed = "it could have" if call.memory_mb is None else f"the {call.memory_mb} MB that it may have"
    try:
        message = f"the function needs more memory than {allowed}"
        return protocol.Failed(
            code="out_of_memory", message=message, hint="raise limits.memory_mb", cause=protocol.threw(error)
        )
    except MemoryError:
        os._exit(protocol.OUT_OF_MEMORY_STATUS)
