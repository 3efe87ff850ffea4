"""The pytest plugin: fixtures `mill` and `open_mill`. It is loaded by the entry point `pytest11`.

Importing it imports nothing of the engine: that happens when a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tidemill.testing.mill import SimulatedMill


@pytest.fixture
def open_mill() -> Iterator[Callable[..., SimulatedMill]]:
    """Opens simulated engines with options, as `tidemill.testing.open` does, and closes them after the test."""
    from tidemill.testing.mill import open as open_simulated

    with ExitStack() as opened:

        def opens(**options: Any) -> SimulatedMill:
            return opened.enter_context(open_simulated(**options))

        yield opens


@pytest.fixture
def mill(open_mill: Callable[..., SimulatedMill]) -> SimulatedMill:
    """A simulated engine in memory with a clock that the test moves."""
    return open_mill()
