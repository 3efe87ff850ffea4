"""`tidemill runs logs` and `tidemill run --stream`: what handlers say, on the command line."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.fixtures.command_line import InProcessCli, on_terminal, process, running, shown
from tidemill.cli.render.events import EventPrinter

FUNCTIONS = """
import logging
import os
import sys
import time

def talk(n=1):
    for number in range(n):
        print("line", number)
    print("\\x1b[31mred", file=sys.stderr)
    logging.getLogger("mine").warning("careful")
    return n

def slowly():
    for number in range(4):
        print("step", number)
        time.sleep(0.5)

def told():
    print("step", 0)
    while not os.path.exists("go"):
        time.sleep(0.02)
    print("step", 1)

def endless():
    print("has no end", end="")

def parts():
    for word in ("one ", "two ", "three"):
        yield word
        time.sleep(0.1)

def rows():
    yield {"n": 1}
    yield {"n": 2}

def breaks():
    yield "begun"
    raise ValueError("cut")
"""

FLOW = """
name: talkative
nodes:
  - {id: a, type: python, config: {function: "talker_fns:talk", args: {n: 2}}, dependents: [b]}
  - {id: b, type: python, config: {function: "talker_fns:talk"}}
"""

ITEMS = """
name: items
nodes:
  - {id: a, type: python, config: {function: "talker_fns:endless"}}
  - {id: m, type: python, map: {over: [1, 2]}, config: {function: "talker_fns:slowly"}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEMILL_STORE", raising=False)
    (tmp_path / "talker_fns.py").write_text(FUNCTIONS)
    (tmp_path / "flow.yaml").write_text(FLOW)
    return tmp_path


def flow_of(folder: Path, function: str) -> str:
    file = folder / f"{function}.yaml"
    config = f'{{function: "talker_fns:{function}"}}'
    file.write_text(
        f"name: {function}\nnodes:\n  - {{id: a, type: python, config: {config}, retry: {{max_attempts: 1}}}}\n"
    )
    return file.name


def run_id_of(folder: Path, file: str = "flow.yaml") -> str:
    ended = process("run", file, "--json", cwd=folder)
    assert ended.code == 0, ended
    return str(ended.json["run_id"])


def test_lines_say_whose_they_are(folder: Path, inside: InProcessCli) -> None:
    run_id = run_id_of(folder)
    said = inside("runs", "logs", run_id)
    assert said.out.splitlines() == [
        "a             line 0",
        "a             line 1",
        "a             \\x1b[31mred",
        "a             careful",
        "b             line 0",
        "b             \\x1b[31mred",
        "b             careful",
    ]
    assert inside("runs", "logs", run_id, "b").out.splitlines() == ["line 0", "\\x1b[31mred", "careful"]
    stamped = inside("runs", "logs", run_id, "b", "--timestamps").out.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  ", line) for line in stamped)
    lines = inside("runs", "logs", run_id, "a", "--json").json["lines"]
    assert [line["source"] for line in lines] == ["stdout", "stdout", "stderr", "warning"]
    assert (lines[0]["node"], lines[0]["index"], lines[0]["attempt"]) == ("a", None, 1)
    followed = inside("runs", "logs", run_id, "a", "-f", "--json").out.splitlines()
    assert [json.loads(line) for line in followed] == lines


def test_a_worker_prints_them_as_json_beside_its_own_lines(folder: Path) -> None:
    assert process("publish", "flow.yaml", cwd=folder).code == 0
    run_id = process("start", "talkative", "--json", cwd=folder).json["run_id"]
    with running(
        "worker", "--allow-import", "talker_fns", "--log-format", "json", text=True, stdout=subprocess.PIPE, cwd=folder
    ) as worker:
        assert worker.stdout is not None
        lines: list[dict[str, object]] = []
        while not lines or lines[-1].get("node") != "b":
            lines.append(json.loads(worker.stdout.readline()))
        worker.terminate()
        rest, _ = worker.communicate()
    lines += map(json.loads, rest.splitlines())
    printed = [(each["stream"], each["by"], each["message"]) for each in lines if each["event"] == "printed"]
    assert printed[:3] == [
        ("stdout", f"{run_id} a", "line 0"),
        ("stdout", f"{run_id} a", "line 1"),
        ("stderr", f"{run_id} a", "\x1b[31mred"),
    ]
    assert [each["message"] for each in lines if each["event"] == "log" and each["level"] == "warning"] == [
        "careful"
    ] * 2


def test_lines_are_followed_while_another_process_works(folder: Path) -> None:
    """The follower is told before the run has ended, and ends with it."""
    assert process("publish", flow_of(folder, "told"), cwd=folder).code == 0
    run_id = process("start", "told", "--json", cwd=folder).json["run_id"]
    with (
        running("runs", "logs", run_id, "-f", stdout=subprocess.PIPE, cwd=folder, text=True) as follower,
        running("worker", "--allow-import", "talker_fns", stdout=subprocess.DEVNULL, cwd=folder) as worker,
    ):
        assert follower.stdout is not None
        assert follower.stdout.readline().split() == ["a", "step", "0"]
        # The function goes on only now.
        (folder / "go").touch()
        assert [line.split()[-1] for line in follower.stdout.read().splitlines()] == ["1"]
        assert follower.wait() == 0
        worker.terminate()
        assert worker.wait() == 0


def test_parts_are_printed_as_they_come(folder: Path) -> None:
    ended = process("run", flow_of(folder, "parts"), "--stream", "a", cwd=folder)
    assert (ended.code, ended.out) == (0, "one two three\n")
    ended = process("run", flow_of(folder, "rows"), "--stream", "a", cwd=folder)
    assert [json.loads(line) for line in ended.out.splitlines()] == [{"n": 1}, {"n": 2}]
    ended = process("run", flow_of(folder, "breaks"), "--stream", "a", cwd=folder)
    assert (ended.code, ended.out) == (1, "begun\n")
    assert "cut" in ended.err


def test_a_live_display_is_not_overheard(folder: Path, inside: InProcessCli) -> None:
    """On a terminal, what functions print appears above the display; only what they printed is kept."""
    code, written = on_terminal("run", flow_of(folder, "slowly"), cwd=folder)
    assert code == 0
    assert "[a] step 3" in shown(written)
    (run,) = inside("runs", "list", "--json").json["runs"]
    assert inside("runs", "logs", run["run_id"], "a").out.splitlines() == [f"step {number}" for number in range(4)]


def test_lines_above_a_live_display_begin_with_their_node(folder: Path) -> None:
    (folder / "items.yaml").write_text(ITEMS)
    code, written = on_terminal("run", "items.yaml", cwd=folder)
    lines = [line.rstrip() for line in shown(written).splitlines()]
    assert code == 0
    assert {"[a] has no end", "[m[0]] step 0", "[m[1]] step 3"} <= set(lines)
    assert lines.index("[a] has no end") < next(n for n, line in enumerate(lines) if line.startswith("✓ m"))


def test_what_is_shown_live_stands_between_the_events(capsys: pytest.CaptureFixture[str]) -> None:
    book = EventPrinter()
    place = {"live": True, "node": "a", "visit": 1, "index": -1, "attempt": 2}
    book.print({"type": "NodeStarted", "seq": 3, "at_ms": 1_000, "node": "a", "visit": 1, "attempt": 2})
    book.print({"type": "NodeStreamed", "number": 7, "value": "two\x1b words", **place})
    book.print({"type": "NodeProgressed", "fraction": 0.25, "message": "on the way", **place})
    book.print({"type": "NodeProgressed", "fraction": None, "message": "", **place})
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [" ".join(line.split()) for line in lines] == [
        "NodeStreamed a attempt 2 · 7: two\\x1b words",
        "NodeProgressed a attempt 2 · 25% · on the way",
        "NodeProgressed a attempt 2",
    ]
