"""The live display, on a pseudo terminal and frame by frame."""

from __future__ import annotations

import io
import re
import signal
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.fixtures.command_line import on_terminal, shown
from tests.fixtures.graphs import chain, fan, graph_of
from tidemill.cli import main
from tidemill.cli.render.board import RunProgress
from tidemill.cli.render.live_display import LINES_BESIDE_ROWS, Display, bar

FLOW = """
name: parade
nodes:
  - {id: first, type: value, config: [1, 2, 3, 4, 5, 6]}
  - id: march
    type: python
    dependencies: [first]
    map: {over: "{{ first.output }}", max_parallel: 2}
    config: {function: "drums:beat", args: {number: "{{ item }}"}}
  - {id: pause, type: sleep, config: {ms: 700}, dependencies: [first]}
  - {id: stumble, type: fail, config: {attempts: 1, retryable: true, value: up}, retry: {backoff_ms: 600}}
  - {id: rain, type: fail, config: {message: it rains}, on_error: continue}
  - {id: never, type: value, when: "false"}
"""
DRUMS = """
import time

def beat(number):
    time.sleep(0.25)
    print(f"boom {number}")
    return number
"""


def parade(folder: Path, text: str = FLOW) -> str:
    (folder / "drums.py").write_text(DRUMS)
    (folder / "parade.yaml").write_text(text)
    return str(folder / "parade.yaml")


def test_a_run_is_seen_while_it_runs_and_left_on_the_screen(tmp_path: Path) -> None:
    code, written = on_terminal("run", parade(tmp_path), columns=110, lines=40)
    assert code == main.OK
    assert re.search(r"\x1b\[\d*A", written), "it is redrawn in place"
    text = shown(written)
    for moment in (
        r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] march +\d+ ms  [━╸─]{12} [1-5]/6",
        r"◷ pause +\d+ ms  sleeps, \d+ ms left",
        r"↻ stumble +\d+ ms  attempt 1 failed: the node is configured to fail \[failed\] · retry in \d+ ms",
        r"boom 1\n",
    ):
        assert re.search(moment, text), moment
    last = text[text.rindex("parade@1  run ") :]
    for line in (
        r"━{24} 6 of 6 nodes · 1 tolerated · 1 skipped\n",
        r"✓ first ",
        r"✓ march +(\d+ ms|1\.\d s)  6 items\n",
        r"✓ stumble .* 2 attempts\n",
        r"! rain .* failed, tolerated: it rains \[failed\]\n",
        r"⊘ never ",
        r"\n✓ completed in .* · 1 tolerated failure\n",
        r'"march": \[',
    ):
        assert re.search(line, last), line
    assert written.endswith("\n")


def test_a_failure_is_a_panel(tmp_path: Path) -> None:
    text = "name: parade\nnodes: [{id: rain, type: fail, config: {message: it rains on the parade}}]\n"
    code, written = on_terminal("run", parade(tmp_path, text), columns=40)
    assert code == main.FAILED
    assert "╭─ ✗ failed at rain after " in shown(written)
    assert "error  it rains on the parade [failed]" in re.sub(r" *│\n│ +", " ", shown(written))


def test_a_failure_that_its_row_tells_is_not_told_again(tmp_path: Path) -> None:
    text = "name: parade\nnodes: [{id: rain, type: fail, config: {message: it rains}}]\n"
    code, written = on_terminal("run", parade(tmp_path, text), columns=60)
    assert code == main.FAILED
    last = shown(written)[shown(written).rindex("parade@") :]
    assert re.search(r"✗ rain .* it rains \[failed\]\n\n✗ failed at rain after .*\n→ ", last), last


def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path) -> None:
    text = "name: parade\nnodes: [{id: only, type: value}]\n"
    code, written = on_terminal("run", parade(tmp_path, text), env={"TERM": "dumb"})
    assert code == main.OK
    assert "\x1b" not in written


def test_an_interrupt_on_a_terminal_shows_what_was_cancelled(tmp_path: Path) -> None:
    text = "name: parade\nnodes: [{id: call, type: python, config: {function: 'caller:interrupt'}}]\n"
    body = f"    time.sleep(0.4)\n    os.kill(os.getpid(), {int(signal.SIGINT)})\n    time.sleep(60)\n"
    (tmp_path / "caller.py").write_text(f"import os, time\ndef interrupt():\n{body}")
    code, written = on_terminal("run", parade(tmp_path, text), "--store", "memory://")
    assert code == main.INTERRUPTED
    assert "⊘ call" in shown(written)
    assert "⊘ cancelled after" in shown(written)
    assert "\x1b[?25h" in written, "the cursor is back"
    assert "Traceback" not in written


def frame(board: RunProgress, height: int = 40, width: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(Display(board, console).render())
    return captured.get().rstrip("\n").split("\n")


def at(kind: str, node: str, **more: Any) -> dict[str, Any]:
    return {"seq": 1, "type": kind, "at_ms": 1000, "node": node, "visit": 1, **more}


def test_ten_thousand_nodes_fit_on_the_screen() -> None:
    board = RunProgress(graph_of(fan(10_000)), "r")
    for number in range(1, 6000):
        board.apply(at("NodeScheduled", f"n{number}"))
    for number in range(1, 4000):
        board.apply(at("NodeCompleted", f"n{number}", attempt=1))
    for height in (10, 24, 60):
        lines = frame(board, height)
        assert len(lines) < height
        assert lines[1].endswith("3,999 of 10,000 nodes · 2,000 active")
        assert re.fullmatch(r"… and 9,9\d\d more", lines[-1])
        assert max(map(len, lines)) <= 100


def test_a_tiny_terminal_still_shows_something() -> None:
    lines = frame(RunProgress(graph_of(chain(50)), "a-run-id-that-is-long"), height=LINES_BESIDE_ROWS, width=20)
    assert max(map(len, lines)) <= 20
    assert len(lines) <= LINES_BESIDE_ROWS + 3


def test_bars_fill_by_halves() -> None:
    assert bar(0, 4, 4, "").plain == "────"
    assert bar(1, 8, 4, "").plain == "╸───"
    assert bar(5, 8, 4, "").plain == "━━╸─"
    assert bar(4, 4, 4, "").plain == "━━━━"
    assert bar(0, 0, 4, "").plain == "━━━━"


def test_names_that_are_too_long_are_cut() -> None:
    workflow = graph_of(chain(2))
    board = RunProgress(workflow, "r")
    board.rows["n0"].name = "n" * 200
    assert max(map(len, frame(board))) <= 100
    assert frame(board)[3].split()[1].endswith("nnn…")


def test_a_long_error_does_not_hide_when_the_retry_is() -> None:
    board = RunProgress(graph_of(chain(1)))
    (name,) = board.rows
    board.apply(at("NodeScheduled", name))
    error = {"code": "exception", "type": "ValueError", "message": "no answer " * 20}
    board.apply(at("NodeFailed", name, attempt=1, error=error, retry_at_ms=time.time_ns() // 1_000_000 + 60_500))
    row = frame(board, width=80)[3]
    assert len(row) <= 80 and re.search(r"failed: ValueError: no answ.*… · retry in 1 m 00 s$", row), row


def test_progress_has_a_bar() -> None:
    board = RunProgress(graph_of(chain(1)))
    (name,) = board.rows
    board.apply({"type": "NodeScheduled", "seq": 1, "at_ms": 0, "node": name, "visit": 1})
    board.apply({"type": "NodeProgressed", "live": True, "node": name, "fraction": 0.5, "message": "half"})
    console = Console(file=io.StringIO(), width=100, height=30)
    console.print(Display(board, console).render())
    assert "━━━━━━────── 50% half" in console.file.getvalue()  # type: ignore[attr-defined]


def test_drawing_again_clears_nothing_that_was_written_meanwhile() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=20, color_system=None)
    display = Display(RunProgress(graph_of(chain(4)), "run-1"), console)
    with display:
        display.leave()
        out.seek(0)
        out.truncate()
        display.enter()
        began = out.getvalue()
    assert "run-1" in began and "\x1b[1A" not in began.partition("run-1")[0]
