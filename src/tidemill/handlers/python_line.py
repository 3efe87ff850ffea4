"""The line from a function in a process of its own to its worker: what it says, what it asks for, when it must stop."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import signal
import socket
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from tidemill.blobs.payloads import NotJson, decode_value, encode_value
from tidemill.expressions.offspring import HEADER_SIZE, received
from tidemill.handlers.contract import Cancelled, NodeContext
from tidemill.handlers.python_blobs import taken_out
from tidemill.handlers.python_frames import (
    Ask,
    Call,
    Logged,
    Message,
    Part,
    Progress,
    Reply,
    Said,
    order_of,
    packed,
)
from tidemill.handlers.raised import clipped
from tidemill.handlers.threads import Given
from tidemill.observe.overhearing import Decoded
from tidemill.security.secrets import SecretMissing

TEXT_MAX = 65_536
"""So much of what is printed is sent at a time."""
FOLDED = object()
"""Stands for all parts of a result together; the worker has them."""
PATIENCE_SECONDS = 0.5
"""So long what is printed waits at most for the worker to hear what was written to the file descriptors before it."""
OVER = "the time of this attempt is up, or nobody wants its result any more"


class Interruption:
    """The word that a function is to stop; raised once in the main thread, where a function runs."""

    def __init__(self) -> None:
        self.heard = False
        self._raises = False
        self._sheltered = 0
        self._told: Callable[[], object] | None = None

    def hear(self, number: int, frame: FrameType | None) -> None:
        """The worker's signal has come."""
        self.heard = True
        if self._told is not None:
            self._told()
        else:
            self._raise_if_due()

    @contextmanager
    def felt(self) -> Iterator[None]:
        """A function runs that can be interrupted."""
        self._raises = True
        try:
            self._raise_if_due()
            yield
        finally:
            self._raises = False

    @contextmanager
    def passed_on(self, told: Callable[[], object]) -> Iterator[None]:
        """A loop runs, which is told in its own way."""
        self._told = told
        try:
            if self.heard:
                told()
            yield
        finally:
            self._told = None

    @contextmanager
    def sheltered(self) -> Iterator[None]:
        """Something must not be left half done."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._sheltered += 1
        try:
            yield
        finally:
            self._sheltered -= 1
        self._raise_if_due()

    def forget(self) -> None:
        """A new call begins."""
        self.heard = False

    def _raise_if_due(self) -> None:
        if self.heard and self._raises and not self._sheltered:
            self._raises = False
            raise Cancelled(OVER)


class Line:
    """The wire as the function sees it. It may be used from any thread; a forked copy of the process has none."""

    def __init__(self, wire: socket.socket, interruption: Interruption) -> None:
        self._wire, self._interruption = wire, interruption
        self._lock = threading.RLock()
        self._cut = False
        self._patient = True
        self.calls = 0
        """How many there were; what an earlier one has left behind is not heard any more."""
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._cut = True
        self._lock = threading.RLock()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def next_call(self) -> Call | None:
        """Wait for something to do; nothing when the worker is gone, or in a forked copy of the process."""
        if self._cut:
            return None
        order = self._next()
        self._interruption.forget()
        self._patient = True
        return order if isinstance(order, Call) else None

    def hang_up(self) -> None:
        """A call is over."""
        with self._lock:
            self.calls += 1

    def send(self, message: Message, call: int | None = None) -> None:
        """Say something to the worker, in a certain call or at any time."""
        if self._cut:
            return
        frame = packed(message)
        with self._interruption.sheltered(), self._lock:
            self._check(call)
            self._wire.sendall(frame)

    def say(self, source: str, number: int, text: str) -> None:
        """Have something heard that was printed; a copy of the process can only write it to the file descriptor."""
        if self._cut:
            with suppress(OSError):
                os.write(number, text.encode())
            return
        self._let_others_finish()
        self.send(Said(source, text))

    def log(self, record: Logged) -> None:
        """Have something heard that was logged."""
        if not self._cut:
            self._let_others_finish()
            self.send(record)

    def _let_others_finish(self) -> None:
        """Wait until the worker has heard what lies in its pipes. Who is kept waiting once does not wait again."""
        if not self._patient or not _unheard():
            return
        with self._interruption.sheltered():
            until = time.monotonic() + PATIENCE_SECONDS
            while self._patient and _unheard():
                self._patient = time.monotonic() < until
                time.sleep(PATIENCE_SECONDS / 1_000)

    def ask(self, what: str, value: Any, call: int) -> bytes | None:
        """Ask the worker for something, and wait for it."""
        if self._cut:
            raise RuntimeError("a forked copy of the process cannot ask for anything")
        frame = packed(Ask(what, encode_value(value)))
        with self._interruption.sheltered(), self._lock:
            self._check(call)
            self._wire.sendall(frame)
            reply = self._next()
        if not isinstance(reply, Reply):
            raise SystemExit("the worker is gone")
        if reply.failed is not None:
            raise reply.failed.error()
        return reply.value

    def interrupted(self) -> bool:
        """Whether the function is to stop."""
        return self._interruption.heard

    def _check(self, call: int | None) -> None:
        if call is not None and call != self.calls:
            raise Cancelled(OVER)

    def _next(self) -> Call | Reply | None:
        header = received(self._wire, HEADER_SIZE)
        body = None if header is None else received(self._wire, int.from_bytes(header, "big"))
        return None if body is None else order_of(body)


def _unheard() -> bool:
    """Whether something was written to the standard file descriptors that nobody has read yet."""
    with suppress(OSError):
        unread = (fcntl.ioctl(number, termios.FIONREAD, bytes(4)) for number in (1, 2))
        return any(int.from_bytes(count, sys.byteorder) for count in unread)
    return False


class Connection:
    """The line during one call; a thread that outlives the call finds it dead."""

    def __init__(self, line: Line) -> None:
        self._line, self._call = line, line.calls

    def send(self, message: Message) -> None:
        """Say something to the worker."""
        self._line.send(message, self._call)

    def ask(self, what: str, value: Any = None) -> bytes | None:
        """Ask the worker for something, and wait for it."""
        return self._line.ask(what, value, self._call)

    def keep(self, value: Any) -> Given[None]:
        """Have a checkpoint written."""
        self.ask("checkpoint", value)
        return Given(None)

    def over(self) -> bool:
        """Whether the function is to stop, or has ended."""
        return self._line.interrupted() or self._line.calls != self._call


class LineVoice:
    """The voice of an attempt whose worker listens at the other end."""

    def __init__(self, line: Connection) -> None:
        self._line = line

    def chunk(self, value: Any) -> None:
        """Send a part of the result."""
        try:
            self._line.send(Part(encode_value(value)))
        except NotJson as refusal:
            plain, blobs = taken_out(value, refusal)
            self._line.send(Part(encode_value(plain), blobs))

    def progress(self, fraction: float | None, message: str) -> None:
        """Send how far it has come."""
        self._line.send(Progress(None if fraction is None else float(fraction), str(message)))

    def beat(self) -> None:
        """Raise if the function is to stop."""
        if self._line.over():
            raise Cancelled(OVER)

    def folded(self) -> Any:
        """All parts; the worker puts them together."""
        return FOLDED


class LineUpstream(Mapping[str, Any]):
    """The outputs of the nodes before, asked for one by one."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self._names: list[str] | None = None

    def _known(self) -> list[str]:
        if self._names is None:
            self._names = decode_value(self._line.ask("names") or b"[]")
        return self._names

    def __getitem__(self, name: str) -> Any:
        text = self._line.ask("upstream", name)
        if text is None:
            raise KeyError(name)
        return decode_value(text)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())


class LineSecrets(Mapping[str, str]):
    """Secrets, asked for by name."""

    def __init__(self, line: Connection) -> None:
        self._line = line

    def __getitem__(self, name: str) -> str:
        value = self._line.ask("secret", name)
        if value is None:
            raise SecretMissing(name)
        return value.decode()

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def context_of(call: Call, config: Any, line: Connection) -> NodeContext:
    """What the function is given; what it may never look at is asked for when it does."""
    return NodeContext(
        run_id=call.run_id,
        node=call.node,
        visit=call.visit,
        index=call.index,
        attempt=call.attempt,
        config=config,
        upstream=LineUpstream(line),
        deadline_ms=call.deadline_ms,
        last_checkpoint=decode_value(call.last_checkpoint),
        resumed=decode_value(call.resumed),
        undoing=call.undoing,
        at_most_once=call.at_most_once,
        checkpoint=lambda value: line.keep(value),
        read=lambda description: Given(line.ask("read", description) or b""),
        given=lambda: decode_value(line.ask("inputs") or b"null"),
        voice=LineVoice(line),
        secrets=LineSecrets(line),
    )


class Printed(io.TextIOBase):
    """A standard stream of which the worker hears, line by line."""

    def __init__(self, line: Line, source: str, number: int) -> None:
        self._line, self._source, self._number = line, source, number
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
                self._line.say(self._source, self._number, clean[start : start + TEXT_MAX])

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


class LineLog(logging.Handler):
    """Sends what is logged to the worker, which logs it."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._line.log(Logged(record.name, record.levelno, clipped(self.format(record), TEXT_MAX)))
        except Exception:
            self.handleError(record)
