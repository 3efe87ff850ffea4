"""Turns of agents in the terminal: told by records, and kept apart where their text is streamed."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest

from tidemill.agents.loop import TURN_BREAK
from tidemill.cli.render.board import RunProgress
from tidemill.cli.render.events import StreamPrinter
from tidemill.cli.render.progress import AgentTurns, Lines
from tidemill.kernel.model import Node, Workflow

PLACE = {"node": "a", "visit": 1, "attempt": 1}
ERROR = msgspec.json.encode({"error": {"code": "tool_not_allowed", "message": "there is no tool b"}}).decode()


def record(**value: Any) -> dict[str, Any]:
    return {"type": "NodeAppended", "seq": 1, "at_ms": 0, **PLACE, "value": value}


def part(number: int, value: str) -> dict[str, Any]:
    return {"type": "NodeStreamed", "live": True, "index": -1, **PLACE, "number": number, "value": value}


def reply(text: str, *calls: str) -> dict[str, Any]:
    return record(t="reply", text=text, model="tiny", ms=20, calls=[["id", name, '{"x":1}'] for name in calls])


def board() -> RunProgress:
    return RunProgress(Workflow(name="w", nodes=(Node(id="a", type="agent@1"),), entries=("a",), terminals=("a",)))


def test_a_turn_has_a_header_and_every_call_and_result_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(board())
    events = [
        record(t="begin", prompt="Go"),
        record(t="failed", code="timeout", message="too slow"),
        record(t="failed", code="timeout", message="again", asked=["openai", "small"]),
        reply("First.\nThen.", "a", "b"),
        record(t="tool", n=0, text="{}", preview='{"type":"table","row_count":2}', ms=5),
        record(t="tool", n=1, text=ERROR, error="tool_not_allowed", ms=0),
        reply("Done.", "a"),
        record(t="tool", n=0, text="[1,2]", ms=5),
        {"type": "NodeAppended", "seq": 1, "at_ms": 0, **PLACE, "value": {"$blob": "sha256:x"}},
    ]
    for event in events:
        lines.see(event)
    assert capsys.readouterr().out.splitlines() == [
        "  ✗ model · timeout: too slow",
        "  ✗ small · timeout: again",
        "a · turn 1 · tiny · 20 ms",
        "  First.",
        "  Then.",
        '  → a  {"x":1}',
        '  → b  {"x":1}',
        "    ✓ a · table of 2 rows · 5 ms",
        "    ✗ b · tool_not_allowed: there is no tool b",
        "a · turn 2 · tiny · 20 ms",
        "  Done.",
        '  → a  {"x":1}',
        "    ✓ [1,2] · 5 ms",
    ]


def test_what_a_model_says_cannot_steer_the_terminal() -> None:
    told = AgentTurns().see(reply("\x1b[2Jgone", "\x1b[31mred"))
    assert not any("\x1b" in said.text for said in told)


IN_ORDER = [
    part(1, "I look "),
    part(2, "first."),
    reply("I look first.", "a"),
    part(3, TURN_BREAK),
    part(4, "Rome."),
    reply("Rome."),
]
RECORDS_FIRST = [IN_ORDER[2], IN_ORDER[0], IN_ORDER[5], IN_ORDER[1], *IN_ORDER[3:5]]
HALF = [IN_ORDER[0], IN_ORDER[2], IN_ORDER[1], *IN_ORDER[3:]]
MISSED = [IN_ORDER[2], IN_ORDER[5]]


@pytest.mark.parametrize("events", [IN_ORDER, RECORDS_FIRST, HALF, MISSED], ids=["in order", "late", "half", "missed"])
def test_streamed_turns_are_kept_apart(events: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    printer = StreamPrinter(board(), "a", out)
    for event in events:
        printer.see(event)
    assert out.getvalue() == "I look first.\nRome.\n"
    assert capsys.readouterr().err.splitlines() == ["a · turn 1", '  → a  {"x":1}', "a · turn 2"]


def test_the_row_of_an_agent_shows_what_it_is_saying() -> None:
    shown = board()
    shown.apply({"type": "NodeScheduled", "seq": 1, "at_ms": 0, **PLACE})
    for event in IN_ORDER[:2]:
        shown.apply(event)
    assert shown.rows["a"].said == "I look first."
    shown.apply(IN_ORDER[2])
    assert shown.rows["a"].said == ""


def test_a_refused_call_says_what_is_wrong_with_it() -> None:
    problems = [{"code": "schema_mismatch", "path": "/piece", "message": "there is no key here"}]
    error = {"code": "arguments_invalid", "message": "the arguments do not fit stock", "problems": problems}
    (told,) = AgentTurns().see(record(t="tool", n=0, text=msgspec.json.encode({"error": error}).decode(), error="x"))
    words = "arguments_invalid: the arguments do not fit stock: /piece: there is no key here"
    assert told.text == f"    ✗ {words}"
