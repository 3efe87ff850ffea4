"""Runs every example with exactly the commands in its header (`make examples`); tests use the list of commands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SECONDS_MAX = 200
FAILED = 1

_COMMAND = re.compile(
    r"^(?:#   )?(export \w+=[^\n]*|(?:tidemill (?:run|graph)|python) examples/[^\n(]*)(\([^\n]*)?$", re.MULTILINE
)
"""A command in the head of an example, with a remark behind it in parentheses."""
FAILS = {"tidemill run examples/saga.yaml"}
"""Commands whose run fails, which is what they show."""


class ExampleCommand(NamedTuple):
    line: str
    exported: str
    """The variable that has to be set, as NAME=value."""

    @property
    def code(self) -> int:
        return FAILED if self.line in FAILS else 0

    @property
    def environment(self) -> dict[str, str]:
        return dict([self.exported.split("=", 1)]) if self.exported else {}


def example_files() -> list[Path]:
    return sorted(path for path in EXAMPLES.iterdir() if path.suffix in (".yaml", ".py"))


def commands() -> list[ExampleCommand]:
    """Every command of a header that needs no person at a terminal."""
    found = []
    for path in example_files():
        head = path.read_text().partition("\nname: " if path.suffix == ".yaml" else "\nfrom ")[0]
        exported = ""
        for line, remark in _COMMAND.findall(head):
            if line.startswith("export "):
                exported = line.removeprefix("export ")
            elif "on a terminal" not in remark:
                found.append(ExampleCommand(line.strip(), exported))
    return list(dict.fromkeys(found))


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(EXAMPLES, Path(folder, "examples"))
        for command in commands():
            began = time.monotonic()
            done = _run(command, folder)
            good = done.returncode == command.code
            print(f"{'✓' if good else '✗'} {time.monotonic() - began:5.1f} s  {command.line}", flush=True)
            if not good:
                failed += 1
                print(f"exit code {done.returncode}, not {command.code}\n{done.stdout}{done.stderr}")
    print(f"{len(commands()) - failed} of {len(commands())} commands of {len(example_files())} files did as they say")
    return FAILED if failed else 0


def _run(command: ExampleCommand, folder: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMILL_")}
    return subprocess.run(
        shlex.split(command.line),
        cwd=folder,
        env={**kept, "PATH": path, **command.environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
