"""The functions that browser tests run: those of the demo without pauses, and some that say what they are told."""

from __future__ import annotations

from typing import Any

from tidemill import Fail, NodeContext
from tidemill.demo.demo_steps import Steps

DEPTH = 200


def say(text: str, context: NodeContext) -> dict[str, Any]:
    """The text as output, log line, streamed part and progress."""
    context.log.info("%s", text)
    print(text)
    context.stream(text)
    context.progress(0.5, text)
    return {"text": text, text: [text]}


def refuse(text: str) -> None:
    """The text as error, cause and hint."""
    try:
        raise ValueError(text)
    except ValueError as error:
        raise Fail("told_so", text, hint=text) from error


def break_down(text: str) -> None:
    raise RuntimeError(text)


def deep() -> Any:
    value: Any = "the bottom"
    for level in range(DEPTH):
        value = {"inside": value} if level % 2 else [value]
    return value


def large(megabytes: int) -> Any:
    row = {"name": "a row of a large output", "number": 0, "text": "x" * 100}
    return {"rows": [{**row, "number": number} for number in range(megabytes * 1_048_576 // 160)]}


functions = {
    **Steps(pace=0).functions,
    "say": say,
    "refuse": refuse,
    "break_down": break_down,
    "deep": deep,
    "large": large,
}
