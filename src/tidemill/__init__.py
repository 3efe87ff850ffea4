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
    from tidemill.client import Tidemill, diagnose
    from tidemill.client import open as open  # noqa: A004
    from tidemill.engine.catalog import Published
    from tidemill.engine.index_rows import RunRow
    from tidemill.engine.maintenance.doctor import Diagnosis
    from tidemill.engine.services.inspection import LogLine
    from tidemill.engine.services.workers import WorkerView
    from tidemill.engine.views import RunView
    from tidemill.errors import InternalError, Problem, Rejected, TidemillError, Unavailable
    from tidemill.handlers.contract import (
        ApprovalRequest,
        Blob,
        Cancelled,
        ChildRun,
        Done,
        Fail,
        Handler,
        NodeContext,
        Skip,
        Wait,
        node_type,
    )
    from tidemill.handlers.python.functions import function
    from tidemill.kernel.model import Capabilities, NodeType
    from tidemill.stores.optional import Finding
    from tidemill.version import __version__


_HOMES = {
    "ApprovalRequest": "tidemill.handlers.contract",
    "Asked": "tidemill.handlers.contract",
    "Blob": "tidemill.handlers.contract",
    "Cancelled": "tidemill.handlers.contract",
    "Capabilities": "tidemill.kernel.model",
    "Child": "tidemill.handlers.contract",
    "ChildRun": "tidemill.handlers.contract",
    "Diagnosis": "tidemill.engine.maintenance.doctor",
    "Done": "tidemill.handlers.contract",
    "Fail": "tidemill.handlers.contract",
    "Finding": "tidemill.stores.optional",
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
    "Wait": "tidemill.handlers.contract",
    "WorkerView": "tidemill.engine.services.workers",
    "__version__": "tidemill.version",
    "diagnose": "tidemill.client",
    "function": "tidemill.handlers.python.functions",
    "node_type": "tidemill.handlers.contract",
    "open": "tidemill.client",
}

__all__ = [
    "ApprovalRequest",
    "Blob",
    "Cancelled",
    "Capabilities",
    "ChildRun",
    "Diagnosis",
    "Done",
    "Fail",
    "Finding",
    "Handler",
    "InternalError",
    "LogLine",
    "NodeContext",
    "NodeType",
    "Problem",
    "Published",
    "Rejected",
    "RunRow",
    "RunView",
    "Skip",
    "Tidemill",
    "TidemillError",
    "Unavailable",
    "Wait",
    "WorkerView",
    "__version__",
    "diagnose",
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
