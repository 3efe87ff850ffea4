"""What a command costs before it does anything: processor time of whole processes, the least of several."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benches.figures import Figure, best_of

TIMES = 9
DOCUMENT = str(Path(__file__).resolve().parent.parent / "examples" / "hello.yaml")
TIDEMILL = (sys.executable, "-c", "from tidemill.cli.main import main; main()")
ITSELF_MS_MAX, CHECKED_MS_MAX, ENGINE_MS_MAX = 200, 250, 350


def figures() -> Iterator[Figure]:
    """Commands that need no engine, a run, and questions to a store."""
    with tempfile.TemporaryDirectory() as folder:
        for command in (("version",), ("--help",)):
            yield _figure(command, folder, ITSELF_MS_MAX)
        yield _figure(("validate", DOCUMENT), folder, CHECKED_MS_MAX)
        for command in (("run", DOCUMENT), ("runs", "list"), ("workers",)):
            yield _figure(command, folder, ENGINE_MS_MAX)


def _figure(command: tuple[str, ...], folder: str, most_ms: float) -> Figure:
    name = " ".join(Path(word).name for word in ("tidemill", *command))
    return Figure(name, best_of(TIMES, lambda: _processor_ms(command, folder)), "ms", most_ms)


def _processor_ms(command: tuple[str, ...], folder: str) -> float:
    # What is compiled is kept, as it is wherever Tidemill is installed.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = subprocess.Popen([*TIDEMILL, *command], cwd=folder, env=kept, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    assert started.returncode == 0, command
    return (usage.ru_utime + usage.ru_stime) * 1000
