"""Calling the command line: as a real process, in this process, or under a pseudo terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tidemill.cli.main import call

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
COMMAND = [sys.executable, "-c", "from tidemill.cli.main import main; main()"]
"""The same two lines that the installed script holds."""
SECONDS_MAX = 200
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What was printed, which must be one JSON object and nothing else."""
        return json.loads(self.out)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    dropped = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TIDEMILL_TRACEBACK")
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return {**kept, "TERM": "xterm-256color", "PYTHONUTF8": "1", **(more or {})}


def process(
    *arguments: str, given: bytes = b"", cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Ended:
    """Run the command as a process of its own."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=given,
        capture_output=True,
        cwd=cwd,
        env=environment(env),
        timeout=SECONDS_MAX,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


class Inside:
    """Runs the command in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str) -> Ended:
        self._capture.readouterr()
        code = call(arguments)
        out, err = self._capture.readouterr()
        return Ended(code, out, err)


def on_terminal(
    *arguments: str, columns: int = 100, lines: int = 40, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> tuple[int, str]:
    """Run the command on a pseudo terminal; answers its exit code and everything it wrote there."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    child = subprocess.Popen(
        [*COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment(env), cwd=cwd
    )
    os.close(slave)
    written = b""
    # On Linux the terminal ends with an error once the last process has closed it.
    with contextlib.suppress(OSError):
        while chunk := os.read(master, 65536):
            written += chunk
    os.close(master)
    return child.wait(SECONDS_MAX), written.decode().replace("\r\n", "\n")


class Conversation:
    """The command on a pseudo terminal, with somebody at the keyboard."""

    def __init__(self, *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._child = subprocess.Popen(
            [*COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment(env), cwd=cwd
        )
        os.close(slave)
        self._written = b""
        self._seen = 0

    def expect(self, words: str) -> None:
        """Wait until something has been written since the last time."""
        until = time.monotonic() + SECONDS_MAX / 2
        while (found := self.text.find(words, self._seen)) < 0:
            assert time.monotonic() < until, f"{words!r} was not written:\n{self.text[self._seen :]}"
            assert self._read(), f"{words!r} was not written before the end:\n{self.text[self._seen :]}"
        self._seen = found + len(words)

    def say(self, line: str) -> None:
        os.write(self._master, line.encode() + b"\n")

    def interrupt(self) -> None:
        self._child.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """Wait for the end; answers the exit code and everything that was written."""
        while self._read():
            pass
        os.close(self._master)
        return self._child.wait(SECONDS_MAX), self.text

    @property
    def text(self) -> str:
        return shown(self._written.decode(errors="replace").replace("\r\n", "\n"))

    def _read(self) -> bool:
        with contextlib.suppress(OSError):
            if not select.select([self._master], [], [], 1)[0]:
                return True
            chunk = os.read(self._master, 65536)
            self._written += chunk
            return bool(chunk)
        return False


def shown(written: str) -> str:
    """What was written, without the escape sequences."""
    return ESCAPES.sub("", written)


def eventually(happened: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + SECONDS_MAX / 2
    while not happened():
        assert time.monotonic() < until, what
        time.sleep(0.02)
