"""What code prints and logs while somebody listens to it.

Whoever calls foreign code sets `EAR` in the context of the call; threads and tasks that it starts inherit it. While
`Overhearing` is in place, whatever is written to the standard streams or logged in such a context is heard there as
well as where it would have gone anyway; whoever listens may change it on its way.
"""

from __future__ import annotations

import codecs
import io
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TextIO

Ear = Callable[[str, str], str]
"""Hears a source (`stdout`, `stderr`, or a logging level in small letters) and a text; answers it as it may go on."""

Through = Callable[[TextIO], TextIO]

OUTPUT_SINK: ContextVar[Ear | None] = ContextVar("tidemill-ear", default=None)


class Decoded(io.BufferedIOBase):
    """The side of a text stream that takes bytes: they go the way of all text."""

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
        """Stay open, as the stream does."""


_EMIT = logging.StreamHandler.emit.__code__


class TeeStream(io.TextIOBase):
    """A standard stream with ears. Whatever else is asked of it is answered by the stream itself."""

    def __init__(self, stream: TextIO, source: str, behind: TextIO) -> None:
        self._stream, self._source, self.behind = stream, source, behind
        self.wanted = 0

    def remove(self) -> None:
        """Give the stream back."""
        if getattr(sys, self._source) is self:
            setattr(sys, self._source, self._stream)

    def write(self, text: str) -> int:
        ear = OUTPUT_SINK.get()
        # What a logging handler prints has been heard as a record.
        if ear is None or sys._getframe(1).f_code is _EMIT:
            self._pass_on(text)
        else:
            self._pass_on(ear(self._source, text))
        return len(text)

    def _pass_on(self, text: str) -> None:
        """Write it to the stream itself, which may have ears too: nothing is heard twice."""
        token = OUTPUT_SINK.set(None)
        try:
            self.behind.write(text)
        finally:
            OUTPUT_SINK.reset(token)

    def flush(self) -> None:
        self.behind.flush()

    @property
    def buffer(self) -> Any:
        """Takes bytes, which are heard as text; where nobody listens, they stay what they are."""
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


class CaptureHandler:
    """Hears log records where they are made.

    A handler of the root logger would hear them too, but it would also keep `logging.basicConfig` from doing anything.
    """

    def __init__(self) -> None:
        self.wanted = 0
        self._behind = logging.getLogRecordFactory()

    def remove(self) -> None:
        """Give the factory back."""
        if logging.getLogRecordFactory() is self:
            logging.setLogRecordFactory(self._behind)

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._behind(*args, **kwargs)
        ear = OUTPUT_SINK.get()
        if ear is not None:
            # Whatever is wrong with a record is reported where it is printed.
            with suppress(Exception):
                _say(record, ear)
        return record


_FORMAT = logging.Formatter("%(message)s")


def _say(record: logging.LogRecord, ear: Ear) -> None:
    """Have a record heard; if it may not go on as it is, it goes on as a text."""
    text = _FORMAT.format(record) + "\n"
    shown = ear(record.levelname.lower(), text)
    if shown != text:
        record.msg, record.args = shown.removesuffix("\n"), ()
        record.exc_info = record.exc_text = record.stack_info = None


class OutputCapture:
    """Puts ears on the process, and takes them off again when the last who wanted them is gone."""

    def __init__(self) -> None:
        self._ears: list[TeeStream | CaptureHandler] = []

    def install(self, through: Through | None = None) -> None:
        """Listen, unless it does already. `through` makes of a stream the one that is written to from now on."""
        if self._ears:
            return
        self._ears.append(_listening())
        self._ears += [tee for source in ("stdout", "stderr") if (tee := _teed(source, through)) is not None]
        for ear in self._ears:
            ear.wanted += 1

    def remove(self) -> None:
        """Listen no more. A stream that somebody else has replaced since is left as it is."""
        ears, self._ears = self._ears, []
        for ear in ears:
            ear.wanted -= 1
            if not ear.wanted:
                ear.remove()


def _listening() -> CaptureHandler:
    known = logging.getLogRecordFactory()
    if isinstance(known, CaptureHandler):
        return known
    listener = CaptureHandler()
    logging.setLogRecordFactory(listener)
    return listener


def _teed(source: str, through: Through | None) -> TeeStream | None:
    stream = getattr(sys, source)
    if stream is None or (through is None and isinstance(stream, TeeStream)):
        return stream
    tee = TeeStream(stream, source, stream if through is None else through(stream))
    setattr(sys, source, tee)
    return tee
