"""What undoes things in tests, and writes down what it was given."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.engine.kit import Mill, Process
from tests.engine.people import signal
from tests.engine.scripts import Ledger, call
from tests.kernel.authoring import document
from tidemill.handlers.contract import NodeContext


class Undoer:
    """What was undone: (effect key, attempt, what the compensator was given)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, Any]] = []
        self.failing: dict[str, int] = {}
        """By node: how often undoing it fails."""

    async def undo(self, context: NodeContext, seconds: float = 0, value: Any = None) -> Any:
        self.calls.append((context.effect_key, context.attempt, value))
        assert context.undoing
        await asyncio.sleep(seconds)
        if self.failing.get(context.node, 0) > 0:
            self.failing[context.node] -= 1
            raise RuntimeError("cannot be undone yet")
        return f"undone {context.node}"

    def has_begun(self, node: str, times: int) -> bool:
        return self.nodes().count(node) >= times

    def nodes(self) -> list[str]:
        return [key.split("/")[1] for key, _, _ in self.calls]


def undo_with(value: Any = "{{ output }}", **fields: Any) -> dict[str, Any]:
    args = {"value": value, **({"seconds": fields.pop("seconds")} if "seconds" in fields else {})}
    return {"type": "python", "config": {"function": "undo", "args": args}, "retry": {"jitter": 0}, **fields}


def trip() -> dict[str, Any]:
    """Three things that can be undone, then a wait."""
    return document(
        call("flight", args={"value": "f1"}, compensator=undo_with()),
        call("hotel", "flight", args={"value": "h1"}, compensator=undo_with("{{ output }} {{ flight.output }}")),
        call("taxi", "hotel", args={"value": "t1"}),
        call("tour", "taxi", args={"value": "x1"}, compensator=undo_with("{{ inputs.who }} {{ run.id }}")),
        signal("go", "tour"),
    )


async def undoing_process(mill: Mill, undoer: Undoer, name: str = "w1", **options: Any) -> Process:
    functions = {"work": Ledger().work, "undo": undoer.undo, **options.pop("functions", {})}
    return await mill.process(name, functions=functions, **options)
