"""Calling a handler as an attempt would, without an engine."""

from __future__ import annotations

import inspect
from typing import Any

from tidemill.handlers.contract import Ended, Handler, NodeContext


def context(config: Any = None, **fields: Any) -> NodeContext:
    given: dict[str, Any] = {
        "run_id": "r",
        "node": "n",
        "visit": 1,
        "index": -1,
        "attempt": 1,
        "config": config,
        "upstream": {},
    }
    return NodeContext(**(given | fields))


async def called(handler: Handler, config: Any = None, **fields: Any) -> Ended:
    """What a handler ends with."""
    ended = handler.call(context(config, **fields))
    if inspect.isawaitable(ended):
        return await ended
    assert not inspect.isawaitable(ended)
    return ended
