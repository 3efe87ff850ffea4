"""What reaches a follower of a node that shows its result in many parts, and what that leaves in the log."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benches.figures import Figure, stopwatch
from tidemill.bootstrap import engine_at
from tidemill.handlers.contract import Done, Handler, NodeContext
from tidemill.kernel.model import NodeType

PARTS = 50_000
STREAM_MUST = 10_000
EVENTS_MUST = 3
FOLLOWER = """
import asyncio, sys
from tidemill.bootstrap import engine_at

async def main():
    async with engine_at(sys.argv[1], work=False) as engine:
        async for event in engine.follow(sys.argv[2], live=True):
            print(event["type"])
            if event.get("seq") == 1:
                sys.stdout.flush()

asyncio.run(main())
"""


class Speaker:
    """A node that shows parts as soon as it may begin, and lets others have their turn now and then."""

    def __init__(self) -> None:
        self.may_begin = asyncio.Event()
        self.handler = Handler(NodeType(name="speaker"), self._speak)

    async def _speak(self, context: NodeContext) -> Done:
        await self.may_begin.wait()
        for number in range(PARTS):
            context.stream({"delta": "a word or two", "number": number})
            if number % 50 == 49:
                await asyncio.sleep(0)
        return Done(len(context.voice.folded()))


async def streaming(store: str, *, elsewhere: bool) -> tuple[float, Counter[str]]:
    """How long it takes until a follower, here or in another process, has seen everything, and what it has seen."""
    speaker = Speaker()
    async with engine_at(store, handlers=[speaker.handler]) as engine:
        await engine.publish({"name": "speech", "nodes": [{"id": "speak", "type": "speaker"}]})
        run_id = await engine.start("speech")
        if not elsewhere:
            speaker.may_begin.set()
            with stopwatch() as passed:
                seen = Counter([event["type"] async for event in engine.follow(run_id, live=True)])
                return passed(), seen
        command = (sys.executable, "-c", FOLLOWER, store, run_id)
        follower = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert follower.stdout is not None
        first = await follower.stdout.readline()
        speaker.may_begin.set()
        with stopwatch() as passed:
            lines = (first + await follower.stdout.read()).decode().split()
            seconds = passed()
        await follower.wait()
        return seconds, Counter(lines)


def stream_figures() -> list[Figure]:
    """Measure, on SQLite."""
    return [*_figures("", elsewhere=False), *_figures(", in another process", elsewhere=True)]


def _figures(where: str, *, elsewhere: bool) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        seconds, seen = asyncio.run(streaming(f"sqlite:///{Path(folder) / 'bench.db'}", elsewhere=elsewhere))
    parts = seen["NodeStreamed"]
    events = sum(number for kind, number in seen.items() if kind.startswith("Node")) - parts
    return [
        Figure(f"parts of a result, told to a follower{where}", parts / seconds, "parts/s", STREAM_MUST, at_most=False),
        Figure(f"of the parts, seen{where}", 100 * parts / PARTS, "%", 100, at_most=False),
        Figure(f"events written for all of them{where}", events, "events", EVENTS_MUST),
    ]
