"""Importing a module changes nothing in the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import asyncio, atexit, importlib, logging, os, pkgutil, signal, sys, threading, warnings

found = []

def watched(owner, name):
    original = getattr(owner, name)

    def call(*args, **kwargs):
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.split(".")[0] in ("tidemill", "sample"):
            found.append(f"{caller} calls {owner.__name__}.{name}")
        return original(*args, **kwargs)

    setattr(owner, name, call)

CALLS = {
    os: ["register_at_fork", "putenv", "open", "chdir", "umask"],
    atexit: ["register"],
    signal: ["signal", "setitimer"],
    asyncio: ["new_event_loop", "set_event_loop"],
    logging: ["basicConfig", "setLogRecordFactory", "setLoggerClass", "addLevelName", "disable", "captureWarnings"],
    warnings: ["simplefilter", "filterwarnings"],
    sys: ["settrace", "setprofile", "setrecursionlimit"],
    threading.Thread: ["start"],
}
for owner, names in CALLS.items():
    for name in names:
        watched(owner, name)

def loggers():
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in ("tidemill", "sample")]
    every = [logging.root, *map(logging.getLogger, names)]
    return {log.name: (log.level, log.handlers, log.filters, log.propagate, log.disabled) for log in every}

STREAMS = (sys.stdout, sys.stderr, sys.stdin, sys.excepthook, os.environ.copy(), sys.path[:], sys.argv[:])
ROOT = loggers()["root"]

for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(getattr(package, "__path__", []), name + "."):
        if module.name.rpartition(".")[2] != "__main__":
            importlib.import_module(module.name)

UNTOUCHED = (logging.NOTSET, [], [], True, False)
for name, state in loggers().items():
    if state != (ROOT if name == "root" else UNTOUCHED):
        found.append(f"the logger {name} is {state}")
if STREAMS != (sys.stdout, sys.stderr, sys.stdin, sys.excepthook, os.environ.copy(), sys.path, sys.argv):
    found.append("a stream, the environment, the path or the arguments have changed")
if threading.enumerate() != [threading.main_thread()]:
    found.append(f"threads are left: {threading.enumerate()}")
print(*found, sep="\\n")
"""


def side_effects(folder: Path, *packages: str) -> list[str]:
    """What importing every module of some packages does to a fresh process."""
    command = [sys.executable, "-c", PROGRAM, *packages]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1] if done.stdout.strip() else []


def test_importing_any_module_changes_nothing() -> None:
    assert side_effects(ROOT, "tidemill") == []


def test_side_effects_are_noticed(tmp_path: Path) -> None:
    source = (
        "import logging, os, threading\n"
        "logging.getLogger(__name__).setLevel(logging.DEBUG)\n"
        "os.register_at_fork(after_in_child=print)\n"
        "os.environ['SAMPLE'] = '1'\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    (tmp_path / "sample.py").write_text(source)
    seen = "\n".join(side_effects(tmp_path, "sample"))
    for part in ("os.register_at_fork", "Thread.start", "the logger sample", "the environment", "threads are left"):
        assert part in seen, seen
