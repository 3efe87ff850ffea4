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
    from tidemill.engine.catalog import Published
    from tidemill.engine.logs import LogLine
    from tidemill.engine.roster import WorkerView
    from tidemill.engine.rows import RunRow
    from tidemill.engine.views import RunView
    from tidemill.errors import InternalError, Problem, Rejected, TidemillError, Unavailable
    from tidemill.front import Tidemill
    from tidemill.front import open as open  # noqa: A004
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
    from tidemill.handlers.functions import function
    from tidemill.kernel.model import Capabilities, NodeType

    __version__: str

_HOMES = {
    "Asked": "tidemill.handlers.contract",
    "Blob": "tidemill.handlers.contract",
    "Cancelled": "tidemill.handlers.contract",
    "Capabilities": "tidemill.kernel.model",
    "Child": "tidemill.handlers.contract",
    "Fail": "tidemill.handlers.contract",
    "Handler": "tidemill.handlers.contract",
    "InternalError": "tidemill.errors",
    "LogLine": "tidemill.engine.logs",
    "NodeContext": "tidemill.handlers.contract",
    "NodeType": "tidemill.kernel.model",
    "Pause": "tidemill.handlers.contract",
    "Problem": "tidemill.errors",
    "Published": "tidemill.engine.catalog",
    "Rejected": "tidemill.errors",
    "Return": "tidemill.handlers.contract",
    "RunRow": "tidemill.engine.rows",
    "RunView": "tidemill.engine.views",
    "Skip": "tidemill.handlers.contract",
    "Tidemill": "tidemill.front",
    "TidemillError": "tidemill.errors",
    "Unavailable": "tidemill.errors",
    "WorkerView": "tidemill.engine.roster",
    "function": "tidemill.handlers.functions",
    "node_type": "tidemill.handlers.contract",
    "open": "tidemill.front",
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
    if name == "__version__":
        from importlib.metadata import version

        found: Any = version("tidemill")
    elif name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "open"])
