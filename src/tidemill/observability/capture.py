"""Capture what foreign code prints and logs.

The caller sets `OUTPUT_SINK` in the context of a call; threads and tasks that it starts inherit it. While an
`OutputCapture` is installed, text that such a context writes to the standard streams or logs goes to the sink, and then
to where it would have gone anyway, as the sink returned it (masked, for example).
"""

from __future__ import annotations

import codecs
import io
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, TextIO

Sink = Callable[[str, str], str]
"""Receives a source (`stdout`, `stderr`, or a logging level in lower case) and a text; returns the text to pass on.

Its attribute `label`, if it has one, says whose output it is.
"""

Ear = Sink

Through = Callable[[TextIO], TextIO]

Marks = Callable[[str], str]
"""What stands before a line of a sink with this label."""

Told = Callable[[str, str, str], None]
"""Gets every whole line of a sink with a label: its stream, the label, and the line."""

HELD_CHARACTERS_MAX = 65_536
"""Of an unfinished line that is held until it is whole."""

OUTPUT_SINK: ContextVar[Sink | None] = ContextVar("tidemill-ear", default=None)


class Decoded(io.BufferedIOBase):
    """The `buffer` of a text stream: decodes bytes and writes them as text."""

    def __init__(self, stream: io.TextIOBase) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: Any) -> int:
        raw = bytes(data)
        self._stream.write(self._decoder.decode(raw))
        return len(raw)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Stay open, like the stream."""


_EMIT = logging.StreamHandler.emit.__code__


class TeeStream(io.TextIOBase):
    """A standard stream that copies text to the sink; everything else is delegated to the stream."""

    def __init__(
        self,
        stream: TextIO,
        source: str,
        behind: TextIO,
        *,
        marks: Marks | None = None,
        told: Told | None = None,
        lines: bool = False,
    ) -> None:
        self._stream, self._source, self.behind = stream, source, behind
        self.users = 0
        self._marks, self._told, self._lock = marks, told, threading.Lock()
        self._lines = lines or marks is not None or told is not None
        self._held: dict[str, str] = {}
        """The unfinished line of each writer: `print` writes its parts one by one."""
        self._writer, self._unfinished = "", False
        """Whose the last line is, and whether it lacks its end."""
        self._cut: str | None = None
        """Whose unfinished line was ended last."""

    def remove(self) -> None:
        if self._held:
            for label in list(self._held):
                self.release(label)
            with self._despite_lost_reader():
                self.behind.flush()
        if getattr(sys, self._source) is self:
            setattr(sys, self._source, self._stream)

    def write(self, text: str) -> int:
        sink = OUTPUT_SINK.get()
        # What a logging handler prints was captured as a record.
        captured = text if sink is None or sys._getframe(1).f_code is _EMIT else sink(self._source, text)
        if self._lines:
            label = _label(sink)
            with self._lock:
                whole, end, begun = (self._held.pop(label, "") + captured).rpartition("\n")
                if len(begun) > HELD_CHARACTERS_MAX:
                    whole, end, begun = f"{whole}{end}{begun}", "", ""
                if begun:
                    self._held[label] = begun
                self._write_lines(label, whole + end)
        else:
            self._pass_on(captured)
        return len(text)

    def release(self, label: str) -> None:
        """Write what a writer has begun, though its line has no end."""
        with self._lock:
            if begun := self._held.pop(label, ""):
                self._write_lines(label, begun)

    def _write_lines(self, label: str, text: str) -> None:
        if self._told is None or not label:
            self._pass_on(self._in_lines(label, text))
            return
        for line in text.splitlines():
            self._told(self._source, label, line)

    def _in_lines(self, label: str, text: str) -> str:
        """The text, each line after its mark if wanted; the unfinished line of another writer is ended."""
        if label == self._cut and text:
            # `print` writes the end of a line by itself; this one has its end.
            text, self._cut = text.removeprefix("\n"), None
        if not text:
            return ""
        cut = "\n" if self._unfinished and self._writer != label else ""
        self._cut = self._writer if cut else self._cut
        mark = f"[{self._marks(label)}] " if label and self._marks is not None else ""
        first = mark if cut or not self._unfinished else ""
        self._writer, self._unfinished = label, not text.endswith("\n")
        lines = text.removesuffix("\n").replace("\n", f"\n{mark}")
        return f"{cut}{first}{lines}" + ("" if self._unfinished else "\n")

    def _pass_on(self, text: str) -> None:
        """Write to the stream, without a sink: it may be a TeeStream too."""
        with self._despite_lost_reader():
            token = OUTPUT_SINK.set(None)
            try:
                self.behind.write(text)
            finally:
                OUTPUT_SINK.reset(token)

    def flush(self) -> None:
        if self._held:
            self.release(_label(OUTPUT_SINK.get()))
        with self._despite_lost_reader():
            self.behind.flush()

    def _despite_lost_reader(self) -> AbstractContextManager[None]:
        """A step does not fail, and a command continues, when the stream has lost its reader."""
        return suppress(OSError) if self._lines or OUTPUT_SINK.get() is not None else nullcontext()

    @property
    def buffer(self) -> Any:
        """Decodes bytes for the sink; without one, the buffer of the stream."""
        return self.behind.buffer if OUTPUT_SINK.get() is None else Decoded(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)

    def fileno(self) -> int:
        return self.behind.fileno()

    def isatty(self) -> bool:
        return self.behind.isatty()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.behind.encoding

    def close(self) -> None:
        """Stay open: the stream behind is not ours."""


def _label(sink: Sink | None) -> str:
    return str(getattr(sink, "label", ""))


def release_line(sink: Sink) -> None:
    """Write the unfinished line of a sink that gets no more."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TeeStream):
            stream.release(_label(sink))


class CaptureHandler:
    """A log record factory that copies records; a handler of the root logger would disable `logging.basicConfig`."""

    def __init__(self) -> None:
        self.users = 0
        self._behind = logging.getLogRecordFactory()

    def remove(self) -> None:
        if logging.getLogRecordFactory() is self:
            logging.setLogRecordFactory(self._behind)

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._behind(*args, **kwargs)
        sink = OUTPUT_SINK.get()
        if sink is not None:
            # A record that cannot be formatted is reported where it is printed.
            with suppress(Exception):
                text = _FORMAT.format(record) + "\n"
                passed_on = sink(record.levelname.lower(), text)
                if passed_on != text:
                    # The record becomes the text that the sink returned.
                    record.msg, record.args = passed_on.removesuffix("\n"), ()
                    record.exc_info = record.exc_text = record.stack_info = None
        return record


_FORMAT = logging.Formatter("%(message)s")


class OutputCapture:
    """Installs the capture in this process; several can share it, and the last one removes it."""

    def __init__(self) -> None:
        self._installed: list[TeeStream | CaptureHandler] = []

    def install(
        self,
        through: Through | None = None,
        *,
        marks: Marks | None = None,
        told: Told | None = None,
        lines: bool = False,
    ) -> None:
        """Install, unless it is installed. `through` maps a standard stream to the one to write to instead.

        With `lines` only whole lines are mixed, and output without a reader is dropped; with `marks` every
        line also begins with the mark of its sink's `label`. `told` gets the lines of sinks with a `label`.
        """
        if self._installed:
            return
        factory = logging.getLogRecordFactory()
        if not isinstance(factory, CaptureHandler):
            factory = CaptureHandler()
            logging.setLogRecordFactory(factory)
        self._installed.append(factory)
        tees = (_tee(source, through, marks, told, lines) for source in ("stdout", "stderr"))
        self._installed += [tee for tee in tees if tee is not None]
        for each in self._installed:
            each.users += 1

    def remove(self) -> None:
        """Remove. A stream that other code has replaced since is left as it is."""
        installed, self._installed = self._installed, []
        for each in installed:
            each.users -= 1
            if not each.users:
                each.remove()


def _tee(source: str, through: Through | None, marks: Marks | None, told: Told | None, lines: bool) -> TeeStream | None:
    stream = getattr(sys, source)
    if stream is None or (through is None and isinstance(stream, TeeStream)):
        return stream
    behind = stream if through is None else through(stream)
    tee = TeeStream(stream, source, behind, marks=marks, told=told, lines=lines)
    setattr(sys, source, tee)
    return tee
