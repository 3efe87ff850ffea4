"""Agents: what the engine adds to a turn, many agents of one process with a slow model, and a long transcript."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from benches.figures import Figure
from tidemill.agents.node import agent_handler
from tidemill.agents.tools import ToolRegistry
from tidemill.bootstrap import engine_at
from tidemill.cli.render.transcript import print_transcript
from tidemill.handlers.contract import Handler
from tidemill.handlers.llm.provider import OnText, Question, Reply, ToolCall, Usage

TURNS = 200
TURN_MS_MUST = 5
AGENTS, SLOW_TURNS, MODEL_SECONDS = 200, 5, 1.0
RATE_MUST = 80
TRANSCRIPT_MS_MUST = 100
MAJOR = 1_000
"""Of the node type `agent` with the model of this benchmark; only nodes of that name have a transcript."""


def handler(turns: int, seconds: float) -> Handler:
    """An agent whose model asks for a tool that it does not have, until its last turn: only the engine works."""

    async def ask(question: Question, on_text: OnText) -> Reply:
        await asyncio.sleep(seconds)
        usage, turn = Usage(input_tokens=100, output_tokens=20), question.turn or 0
        if turn + 1 >= turns:
            return Reply(text="done", model="bench", finish_reason="stop", usage=usage)
        call = ToolCall(f"c{turn}", "nothing", f'{{"n":{turn}}}')
        return Reply(text="", model="bench", finish_reason="tool_calls", usage=usage, tool_calls=(call,))

    made = agent_handler({"scripted": ask}, ToolRegistry())
    return dataclasses.replace(made, type=msgspec.structs.replace(made.type, major=MAJOR))


def flow(turns: int) -> dict[str, Any]:
    config = {"provider": "scripted", "answers": ["-"], "prompt": "Work.", "max_turns": turns}
    return {"name": "agents", "nodes": [{"id": "a", "type": f"agent@{MAJOR}", "config": config}]}


async def turn_ms(folder: Path) -> tuple[float, float]:
    """Milliseconds of a turn on SQLite, and those of a transcript of all turns as text."""
    async with engine_at(f"sqlite:///{folder}/mill.db", handlers=[handler(TURNS, 0)]) as engine:
        await engine.publish(flow(TURNS))
        await engine.result(await engine.start("agents"))
        began = time.perf_counter()
        run_id = await engine.start("agents")
        await engine.result(run_id)
        took = (time.perf_counter() - began) * 1_000 / TURNS
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            print_transcript(await engine.transcript(run_id, "a"))
        return took, (time.perf_counter() - began) * 1_000


async def turn_rate(folder: Path) -> float:
    """Turns of many agents at the same time, in per cent of what their model could answer."""
    slow = handler(SLOW_TURNS, MODEL_SECONDS)
    async with engine_at(f"sqlite:///{folder}/mill.db", handlers=[slow], concurrency=2 * AGENTS) as engine:
        await engine.publish(flow(SLOW_TURNS))
        began = time.perf_counter()
        runs = [await engine.start("agents") for _ in range(AGENTS)]
        await asyncio.gather(*map(engine.result, runs))
        return SLOW_TURNS * MODEL_SECONDS / (time.perf_counter() - began) * 100


def figures() -> list[Figure]:
    """Measure."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        turn, transcript = asyncio.run(turn_ms(Path(one)))
        rate = asyncio.run(turn_rate(Path(other)))
    return [
        Figure("engine's part of an agent's turn, SQLite", turn, "ms", TURN_MS_MUST),
        Figure(f"transcript of {TURNS} turns as text", transcript, "ms", TRANSCRIPT_MS_MUST),
        Figure(f"turns of {AGENTS} agents with a model of {MODEL_SECONDS:g} s", rate, "%", RATE_MUST, at_most=False),
    ]
