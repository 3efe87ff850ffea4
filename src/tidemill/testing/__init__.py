"""Tests of workflows: an engine in memory, a clock that the test moves, fakes, crashes, and `verify`.

    from tidemill import testing

    with testing.open(fakes={"charge": {"id": 7}}) as mill:
        run = mill.start(Path("refund.yaml"), {"amount": 12})
        mill.clock.advance(hours=4)
        assert mill.show(run).status == "FAILED"

Names are loaded when they are first used: the pytest plugin is imported by every run of pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.testing.cluster import Boundary
    from tidemill.testing.fakes import Effect, fake_value, in_turn
    from tidemill.testing.mill import Clock, CrashPoint, SimulatedMill, StillWaiting
    from tidemill.testing.mill import open as open  # noqa: A004
    from tidemill.testing.report import CrashFinding, Report
    from tidemill.testing.verifier import verify

_HOMES = {
    "Boundary": "cluster",
    "Clock": "mill",
    "CrashFinding": "report",
    "CrashPoint": "mill",
    "Effect": "fakes",
    "Report": "report",
    "SimulatedMill": "mill",
    "StillWaiting": "mill",
    "fake_value": "fakes",
    "in_turn": "fakes",
    "open": "mill",
    "verify": "verifier",
}

__all__ = [
    "Boundary",
    "Clock",
    "CrashFinding",
    "CrashPoint",
    "Effect",
    "Report",
    "SimulatedMill",
    "StillWaiting",
    "fake_value",
    "in_turn",
    "verify",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            from tidemill.errors import offered

            hint = "" if name.startswith("_") else f": {offered(name, list(_HOMES))}"
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})
