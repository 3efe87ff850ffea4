"""Functions for `python` nodes that write down when and how they were called, and documents that call them."""

from __future__ import annotations

import asyncio
from typing import Any

from tidemill.handlers.contract import NodeContext


class Ledger:
    """Every call that really happened, outside the engine: the judge of what the log says."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        """(effect key, attempt) in the order of the calls."""
        self.running = 0
        self.most = 0
        self.cancelled: list[str] = []

    def count(self, node: str) -> int:
        return sum(key.split("/")[1] == node for key, _ in self.calls)

    async def work(self, context: NodeContext, seconds: float = 0.0, value: Any = None) -> Any:
        """Take some time, then return a value."""
        self.calls.append((context.effect_key, context.attempt))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled.append(context.effect_key)
            raise
        finally:
            self.running -= 1
        return value

    def quick(self, context: NodeContext, value: Any = None) -> Any:
        """Return a value at once."""
        self.calls.append((context.effect_key, context.attempt))
        return value


def call(id_: str, *dependencies: str, function: str = "work", args: Any = None, **fields: Any) -> dict[str, Any]:
    """A `python` node; plain functions are called inline, because virtual time knows no threads."""
    config: dict[str, Any] = {"function": function, "isolation": "inline"}
    if args:
        config["args"] = args
    return {"id": id_, "type": "python", "dependencies": list(dependencies), "config": config, **fields}
