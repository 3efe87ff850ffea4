"""What is printed and logged in a context is heard there, once, and still goes where it would have gone."""

from __future__ import annotations

import contextvars
import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

import pytest

from tidemill.observability.capture import HELD_CHARACTERS_MAX, OUTPUT_SINK, OutputCapture, release_line


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def __call__(self, source: str, text: str) -> str:
        self.heard.append((source, text))
        return text.replace("hush", "***")

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.heard)


@contextmanager
def ears() -> Iterator[None]:
    overhearing = OutputCapture()
    overhearing.install()
    try:
        yield
    finally:
        overhearing.remove()


def listening(listener: Listener, act: Callable[[], object]) -> None:
    """Act where somebody listens, and with ears on the process for that time."""
    ground = contextvars.copy_context()
    ground.run(OUTPUT_SINK.set, listener)
    with ears():
        ground.run(act)


def test_prints_are_heard_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    listener = Listener()

    def act() -> None:
        print("to out", 1)
        print("to err", file=sys.stderr)

    listening(listener, act)
    print("nobody listens")
    assert [source for source, _ in listener.heard] == ["stdout"] * 4 + ["stderr"] * 2
    assert listener.text == "to out 1\nto err\n"
    out, err = capsys.readouterr()
    assert (out, err) == ("to out 1\nnobody listens\n", "to err\n")


def test_bytes_are_heard_as_text() -> None:
    """Half a character waits for the other half; where nobody listens, bytes stay bytes."""
    listener = Listener()

    def act() -> None:
        binary = sys.stdout.buffer
        assert (binary.writable(), binary.write(b"hush \xc3")) == (True, 6)
        binary.write(memoryview(b"\xbc\n"))
        binary.flush()

    with redirect_stdout(io.TextIOWrapper(raw := io.BytesIO(), encoding="utf-8")) as stream:
        listening(listener, act)
        with ears():
            sys.stdout.buffer.write(b"\xff")
        stream.flush()
        assert raw.getvalue() == "*** ü\n".encode() + b"\xff"
    assert listener.text == "hush ü\n"


def test_log_records_are_heard_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A handler that prints records to a stream with ears does not have them heard again."""
    listener, log = Listener(), logging.getLogger("tests.overheard")
    log.propagate = False
    try:
        with ears():
            printer = logging.StreamHandler(sys.stderr)
            log.addHandler(printer)
            listening(listener, lambda: log.warning("careful %s", "now"))
    finally:
        log.removeHandler(printer)
        log.propagate = True
    assert listener.heard == [("warning", "careful now\n")]
    assert capsys.readouterr().err == "careful now\n"


def test_a_record_that_cannot_be_written_harms_nobody() -> None:
    listener, log = Listener(), logging.getLogger("tests.overheard")
    log.addHandler(logging.NullHandler())
    log.propagate = False
    try:
        listening(listener, lambda: log.error("%d", "not a number"))
    finally:
        log.propagate = True
    assert listener.heard == []


def test_exceptions_are_heard_with_their_traces() -> None:
    listener = Listener()

    def act() -> None:
        try:
            raise IndexError("list index out of range")
        except IndexError:
            logging.getLogger("tests.overheard").exception("it broke")

    listening(listener, act)
    ((source, text),) = listener.heard
    assert source == "error"
    assert text.startswith("it broke\nTraceback") and text.endswith("IndexError: list index out of range\n")


def test_whoever_listens_may_change_what_goes_on(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def act() -> None:
        print("hush, said", "hush")
        try:
            raise ValueError("hush")
        except ValueError:
            logging.getLogger("tests.overheard").exception("%s!", "hush")

    listening(Listener(), act)
    assert capsys.readouterr().out == "***, said ***\n"
    assert "hush" not in caplog.text.replace('ValueError("hush")', "")
    assert caplog.messages[0].startswith("***!\nTraceback")


def test_basic_config_still_works() -> None:
    """Ears are not a handler of the root logger, which would keep `basicConfig` from doing anything."""
    before = list(logging.getLogger().handlers)
    with ears():
        assert logging.getLogger().handlers == before


def test_threads_started_there_are_heard() -> None:
    listener = Listener()

    def act() -> None:
        ground = contextvars.copy_context()
        thread = threading.Thread(target=lambda: ground.run(print, "from a thread"))
        thread.start()
        thread.join()

    listening(listener, act)
    assert listener.text == "from a thread\n"


def test_two_listeners_do_not_hear_each_other() -> None:
    one, other = Listener(), Listener()
    listening(one, lambda: print("one"))
    listening(other, lambda: print("other"))
    assert (one.text, other.text) == ("one\n", "other\n")


def test_ears_upon_ears_hear_once() -> None:
    """As when the live display takes over what is printed: it hears first, what lies behind it does not again."""
    written, listener, above = io.StringIO(), Listener(), OutputCapture()

    def act() -> None:
        above.install(lambda stream: _Passing(stream, written))
        try:
            print("once")
        finally:
            above.remove()
        print("below")

    listening(listener, act)
    assert listener.text == "once\nbelow\n"
    assert written.getvalue() == "once\n"


class _Passing(io.StringIO):
    """A stream that writes to another one too."""

    def __init__(self, behind: TextIO, seen: io.StringIO) -> None:
        super().__init__()
        self._behind, self._seen = behind, seen

    def write(self, text: str) -> int:
        self._seen.write(text)
        return self._behind.write(text)


def test_the_last_who_leaves_takes_the_ears_off() -> None:
    stream, factory = sys.stdout, logging.getLogRecordFactory()
    one, other = OutputCapture(), OutputCapture()
    one.install()
    other.install()
    other.install()
    one.remove()
    listener = Listener()
    listening(listener, lambda: print("still heard"))
    other.remove()
    assert listener.text == "still heard\n"
    assert sys.stdout is stream
    assert logging.getLogRecordFactory() is factory


def test_a_stream_that_somebody_replaced_is_left_to_them() -> None:
    overhearing, mine, stream = OutputCapture(), io.StringIO(), sys.stdout
    overhearing.install()
    with redirect_stdout(mine):
        overhearing.remove()
        assert sys.stdout is mine
        print("mine")
    assert mine.getvalue() == "mine\n"
    sys.stdout = stream


def test_a_stream_with_ears_is_still_that_stream() -> None:
    behind = sys.stdout
    with ears():
        assert sys.stdout is not behind
        assert sys.stdout.writable() and sys.stdout.encoding == behind.encoding
        sys.stdout.flush()
        sys.stdout.close()
        print("not closed")
    assert not behind.closed


class Labelled(Listener):
    def __init__(self, label: str) -> None:
        super().__init__()
        self.label = label


def test_lines_say_whose_they_are_and_do_not_mix(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = Labelled("run-1 a"), Labelled("run-2 b:2")
    contexts = [contextvars.copy_context() for _ in range(2)]
    for ground, sink in zip(contexts, (first, second), strict=True):
        ground.run(OUTPUT_SINK.set, sink)
    capture = OutputCapture()
    capture.install(marks=str)
    try:
        contexts[0].run(print, "one", "line\nand another")
        contexts[0].run(print, "unfinished", end="", flush=True)
        contexts[1].run(print, "hush", "now")
        contexts[0].run(print, "begun", end="")
        contexts[0].run(print, " and ended")
        print("nobody's")
        contexts[1].run(logging.getLogger("mine").warning, "careful")
    finally:
        capture.remove()
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "[run-1 a] one line",
        "[run-1 a] and another",
        "[run-1 a] unfinished",
        "[run-2 b:2] *** now",
        "[run-1 a] begun and ended",
        "nobody's",
    ]
    assert first.text == "one line\nand anotherunfinishedbegun and ended\n".replace("another", "another\n", 1)
    assert err == "" or err.startswith("[run-2 b:2] careful")


class Unread(io.StringIO):
    """A pipe whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


def test_a_step_does_not_fail_because_nobody_reads_its_output() -> None:
    listener = Listener()

    def act() -> None:
        print("still captured", flush=True)
        sys.stdout.buffer.write(b"as bytes\n")

    with redirect_stdout(Unread()):
        listening(listener, act)
        # The caller's own output fails as ever.
        with ears(), pytest.raises(BrokenPipeError):
            print("mine")
    assert listener.text == "still captured\nas bytes\n"


@pytest.mark.parametrize("how", [{"marks": str}, {"lines": True}])
def test_a_command_continues_when_nobody_reads_its_output(how: dict[str, Any]) -> None:
    capture = OutputCapture()
    with redirect_stdout(Unread()):
        capture.install(**how)
        try:
            print("a status line", flush=True)
        finally:
            capture.remove()


def test_only_whole_lines_are_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = contextvars.copy_context(), contextvars.copy_context()
    sink = Labelled("run-1 a")
    one.run(OUTPUT_SINK.set, sink)
    other.run(OUTPUT_SINK.set, Labelled("run-1 b"))
    capture = OutputCapture()
    capture.install(lines=True)
    try:
        one.run(print, "held", end="")
        print("✓ b")
        one.run(print, " until it ends")
        one.run(print, "flushed", end="", flush=True)
        print("✓ c")
        one.run(print, " zz")
        one.run(sys.stdout.write, "first")
        other.run(sys.stdout.write, "second")
        one.run(sys.stdout.write, "\n")
        other.run(sys.stdout.write, "\n")
        one.run(print)
        one.run(sys.stdout.write, "about to fail")
        release_line(sink)
        print("✗ a")
        other.run(sys.stdout.write, "x" * (HELD_CHARACTERS_MAX + 1))
        print("!")
        other.run(sys.stdout.write, "never ended")
    finally:
        capture.remove()
    assert capsys.readouterr().out.replace("x" * HELD_CHARACTERS_MAX, "") == (
        "✓ b\nheld until it ends\nflushed\n✓ c\n zz\nfirst\nsecond\n\nabout to fail\n✗ a\nx\n!\nnever ended"
    )
