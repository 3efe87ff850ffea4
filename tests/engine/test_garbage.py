"""What an attempt leaves behind is freed at once: a cycle would be left to the collector, once for every node."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.kernel.authoring import document, node
from tidemill.bootstrap import engine_at

RUNS = 5


@contextmanager
def uncollected() -> Iterator[list[Any]]:
    """Objects that only the collector could free, of those that were made meanwhile."""
    found: list[Any] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("config", [{"value": 1}, {"value": "{{ inputs }}"}])
async def test_a_run_is_freed_without_the_collector(config: Any) -> None:
    written = document(node("a", config=config), node("b", "a", config=config))
    async with engine_at("memory://") as engine:
        await engine.publish(written)
        await engine.result(await engine.start(written["name"], {}))
        with uncollected() as left:
            for _ in range(RUNS):
                view = await engine.result(await engine.start(written["name"], {}))
                assert view.status == "COMPLETED"
    ours = Counter(type(each).__qualname__ for each in left if type(each).__module__.startswith("tidemill."))
    assert not ours
