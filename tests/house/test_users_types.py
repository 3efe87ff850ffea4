"""What a type checker says of code that uses the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = """\
from datetime import timedelta

import tidemill


@tidemill.task(retries=2)
def double(n: int) -> int:
    return 2 * n


@tidemill.task
def say(text: str) -> str:
    return text


@tidemill.task(retries=1)
async def fetch(n: int, page: int = 1) -> str:
    return str(n)


@tidemill.task
def joined(rows: list[str]) -> str:
    return "".join(rows)


@tidemill.workflow
async def all_of(ns: list[int]) -> str:
    fetch.map(ns, pages=2)  # wrong
    double.map(double.map(ns))
    say(fetch.map(ns))  # wrong
    with tidemill.loop(max_iterations=2) as again:
        say(again.previous(fetch))  # wrong
        say(again.previous(fetch, "")) and say(again.previous(say, "first"))
        say(again.previous(fetch, 3))  # wrong
        say(again.previous(say))  # wrong
        say(await fetch(1))
    return joined(fetch.options(timeout=3).map(ns, page=2))


@tidemill.workflow
def flow(n: int) -> int:
    say(double(n))  # wrong
    double.options(retires=3)(n)  # wrong
    return double(double(n))


with tidemill.open("memory://") as mill:
    run = mill.run(flow, n=1, timeout=timedelta(seconds=9))
    number: int = run.output_as(flow)
    text: str = run.output_as(flow)  # wrong
    letters: str = mill.run(all_of, ns=[1]).output_as(all_of)
    mill.why(run)
    mill.opne()  # wrong
    for row in mill.find()[0]:
        mill.compare(row, run)
        mill.bulk("retry", run_ids=[row, run])
        mill.bulk("retires")  # wrong
        mill.reprocess(run_id=row)
        mill.result(row, timeout=3)
        mill.show(3)  # wrong


async def main() -> None:
    async with tidemill.aopen("memory://") as mill:
        run = await mill.run(flow, n=2)
        await mill.retry(run)
        mill.show(run).status  # wrong
"""


def test_mypy_understands_code_that_uses_the_package(tmp_path: Path) -> None:
    file = tmp_path / "usage.py"
    file.write_text(CODE)
    # In a process of its own: mypy changes limits of the process.
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", str(file)]
    report = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    found = {int(line) for line in re.findall(r"usage\.py:(\d+): error", report)}
    wrong = {number for number, line in enumerate(CODE.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, report
