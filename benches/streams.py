"""What reaches a follower of a node that shows its result in many parts, and what that leaves in the log."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from benches.figures import Figure, stopwatch
from tidemill.bootstrap import engine_at
from tidemill.handlers.contract import Handler, NodeContext, Return
from tidemill.kernel.model import NodeType

PARTS = 50_000
STREAM_MUST = 10_000
EVENTS_MUST = 3


async def speak(context: NodeContext) -> Return:
    """Show parts, and let others have their turn now and then."""
    for number in range(PARTS):
        context.stream({"delta": "a word or two", "number": number})
        if number % 50 == 49:
            await asyncio.sleep(0)
    return Return(len(context.voice.folded()))


async def streaming(store: str) -> tuple[float, int, int]:
    """Parts per second that a follower sees, how many of them, and the events that the node has left."""
    async with engine_at(store, handlers=[Handler(NodeType(name="speaker"), speak)]) as engine:
        await engine.publish({"name": "speech", "nodes": [{"id": "speak", "type": "speaker"}]})
        with stopwatch() as passed:
            run_id = await engine.start("speech")
            seen = [event["type"] async for event in engine.follow(run_id, live=True)]
            seconds = passed()
    parts = seen.count("NodeStreamed")
    return parts / seconds, parts, sum(kind.startswith("Node") for kind in seen) - parts


def stream_figures() -> list[Figure]:
    """Measure, on SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        rate, parts, events = asyncio.run(streaming(f"sqlite:///{Path(folder) / 'bench.db'}"))
    return [
        Figure("parts of a result, told to a follower", rate, "parts/s", STREAM_MUST, at_most=False),
        Figure("of the parts, seen", 100 * parts / PARTS, "%", 100, at_most=False),
        Figure("events written for all of them", events, "events", EVENTS_MUST),
    ]
