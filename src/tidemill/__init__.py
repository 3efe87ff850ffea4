"""Tidemill: a durable workflow engine for Python.

    import tidemill

    with tidemill.open() as mill:
        run = mill.run(pathlib.Path("flow.yaml"), {"customer": "acme"})
        print(run.status, run.outputs)

Everything public is named here and loaded when it is first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.client import Tidemill
    from tidemill.client import open as open  # noqa: A004
    from tidemill.engine.catalog import Published
    from tidemill.engine.index_rows import RunRow
    from tidemill.engine.services.inspection import LogLine
    from tidemill.engine.services.workers import WorkerView
    from tidemill.engine.views import RunView
    from tidemill.errors import InternalError, Problem, Rejected, TidemillError, Unavailable
    from tidemill.handlers.contract import (
        Asked,
        Blob,
        Cancelled,
        Child,
        Fail,
        Handler,
        NodeContext,
        Pause,
        Return,
        Skip,
        node_type,
    )
    from tidemill.handlers.python.functions import function
    from tidemill.kernel.model import Capabilities, NodeType

__version__ = "0.1.0"

_HOMES = {
    "Asked": "tidemill.handlers.contract",
    "Blob": "tidemill.handlers.contract",
    "Cancelled": "tidemill.handlers.contract",
    "Capabilities": "tidemill.kernel.model",
    "Child": "tidemill.handlers.contract",
    "Fail": "tidemill.handlers.contract",
    "Handler": "tidemill.handlers.contract",
    "InternalError": "tidemill.errors",
    "LogLine": "tidemill.engine.services.inspection",
    "NodeContext": "tidemill.handlers.contract",
    "NodeType": "tidemill.kernel.model",
    "Pause": "tidemill.handlers.contract",
    "Problem": "tidemill.errors",
    "Published": "tidemill.engine.catalog",
    "Rejected": "tidemill.errors",
    "Return": "tidemill.handlers.contract",
    "RunRow": "tidemill.engine.index_rows",
    "RunView": "tidemill.engine.views",
    "Skip": "tidemill.handlers.contract",
    "Tidemill": "tidemill.client",
    "TidemillError": "tidemill.errors",
    "Unavailable": "tidemill.errors",
    "WorkerView": "tidemill.engine.services.workers",
    "function": "tidemill.handlers.python.functions",
    "node_type": "tidemill.handlers.contract",
    "open": "tidemill.client",
}

__all__ = [
    "Asked",
    "Blob",
    "Cancelled",
    "Capabilities",
    "Child",
    "Fail",
    "Handler",
    "InternalError",
    "LogLine",
    "NodeContext",
    "NodeType",
    "Pause",
    "Problem",
    "Published",
    "Rejected",
    "Return",
    "RunRow",
    "RunView",
    "Skip",
    "Tidemill",
    "TidemillError",
    "Unavailable",
    "WorkerView",
    "__version__",
    "function",
    "node_type",
]
"""`open` is public too, but a star import must not hide the built-in one."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "open"])
