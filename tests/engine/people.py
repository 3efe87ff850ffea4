"""Documents with people, signals and children in them, and what is often asked of their runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from tests.engine.kit import Mill
from tidemill.errors import Rejected
from tidemill.kernel.activation import Activation
from tidemill.kernel.state import peek_at

LARGE = "x" * 70_000
"""A value that does not travel in records."""


def human(id_: str, *dependencies: str, node: dict[str, Any] | None = None, **config: Any) -> dict[str, Any]:
    """A node that asks people; `node` are fields beside its config."""
    return {"id": id_, "type": "human", "dependencies": list(dependencies), "config": config, **(node or {})}


def signal(id_: str, *dependencies: str, **fields: Any) -> dict[str, Any]:
    """A node that waits for a signal of its own name."""
    return {"id": id_, "type": "signal", "dependencies": list(dependencies), **fields}


def child(id_: str, workflow: str, *dependencies: str, inputs: Any = None, **fields: Any) -> dict[str, Any]:
    """A node that runs another workflow; `close` and `labels` go into its config, the rest beside it."""
    config = {"workflow": workflow, **({} if inputs is None else {"inputs": inputs})}
    config |= {key: fields.pop(key) for key in ("close", "labels") if key in fields}
    return {"id": id_, "type": "workflow", "dependencies": list(dependencies), "config": config, **fields}


async def refused(asked: Awaitable[Any]) -> Rejected:
    """The refusal that an ask must meet."""
    with pytest.raises(Rejected) as caught:
        await asked
    return caught.value


async def code_of(asked: Awaitable[Any]) -> str:
    """The code of the refusal that an ask must meet."""
    return (await refused(asked)).code


async def unchanged(mill: Mill, run_id: str, asked: Awaitable[Any]) -> str:
    """The code of a refusal that must leave no trace in the run."""
    before = await mill.events(run_id)
    code = await code_of(asked)
    assert await mill.events(run_id) == before
    return code


async def waits(mill: Mill, run_id: str, node: str, *, visit: int = 1, index: int = -1) -> Activation:
    """Let time pass until a visit or item waits."""
    for _ in range(6_000):
        cell = (await mill.state(run_id)).peek(node) if await mill.events(run_id) else None
        act = peek_at(cell, index) if cell is not None and cell.visit == visit else None
        if act is not None and act.status == "WAITING":
            return act
        await asyncio.sleep(0.01)
    raise AssertionError(f"{node} of {run_id} does not wait")


async def ended(mill: Mill, run_id: str, *, within_s: float = 600) -> str:
    """Let time pass until a run has ended; answers its status."""
    for _ in range(int(within_s * 10)):
        if await mill.events(run_id) and not (state := await mill.state(run_id)).busy:
            return state.status
        await asyncio.sleep(0.1)
    raise AssertionError(f"{run_id} has not ended")
