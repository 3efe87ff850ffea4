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
    from tidemill.agents.builtin import tool
    from tidemill.agents.port import CompositeTool
    from tidemill.agents.transcript import Transcript
    from tidemill.async_client import AsyncTidemill, aconnect, aopen
    from tidemill.authoring.constructs import (
        Approval,
        approve,
        default,
        loop,
        node,
        not_,
        on_changes,
        on_error,
        on_exhausted,
        on_reject,
        otherwise,
        signal,
        sleep,
        template,
        when,
    )
    from tidemill.authoring.decorators import Task, Workflow, task, workflow
    from tidemill.blobs.contract import BlobInfo
    from tidemill.client import Tidemill, connect, diagnose
    from tidemill.client import open as open  # noqa: A004
    from tidemill.engine.attempts.log_store import LogLine
    from tidemill.engine.catalog import Diff, Published, Tagged, WorkflowDeletion
    from tidemill.engine.index_rows import ApprovalRow, DeadLetterRow, RunRow
    from tidemill.engine.maintenance.archive import ArchiveEntry, ArchivePage
    from tidemill.engine.maintenance.audit_chain import AuditEntry, ChainCheck
    from tidemill.engine.maintenance.blob_gc import GcReport
    from tidemill.engine.maintenance.doctor import Diagnosis
    from tidemill.engine.maintenance.reindex import Reindexed
    from tidemill.engine.maintenance.retention import SweepResult
    from tidemill.engine.maintenance.usage import UsageReport, UsageRow
    from tidemill.engine.maintenance.verify import AuditReport
    from tidemill.engine.run_query import FailureGroup, FailureGroups, RunFacets, RunHistogram, RunSummary
    from tidemill.engine.services.access import CreatedKey, KeyView, TenantView
    from tidemill.engine.services.bulk import BulkOutcome
    from tidemill.engine.services.concurrency import ConcurrencyLimit
    from tidemill.engine.services.dead_letters import Reprocessed
    from tidemill.engine.services.inspection import Comparison
    from tidemill.engine.services.patches import PatchOutcome, RunDocument
    from tidemill.engine.services.runs import RunPage
    from tidemill.engine.services.workers import NodeTypeView, QueueView, WorkerView
    from tidemill.engine.versions import TagMoved, Version, WorkflowRow
    from tidemill.engine.views import ApprovalView, RunStatus, RunView
    from tidemill.errors import InternalError, Problem, Rejected, RunFailed, TidemillError, Unavailable
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
    from tidemill.kernel.explain.ended import NodeHistory
    from tidemill.kernel.explain.explain import Explanation
    from tidemill.kernel.model import Capabilities, NodeType
    from tidemill.settings import Settings
    from tidemill.stores.optional import Finding
    from tidemill.triggers.schedules import Schedule
    from tidemill.version import __version__


_HOMES = {
    "Approval": "tidemill.authoring.constructs",
    "ApprovalRequest": "tidemill.handlers.contract",
    "ApprovalRow": "tidemill.engine.index_rows",
    "ApprovalView": "tidemill.engine.views",
    "ArchiveEntry": "tidemill.engine.maintenance.archive",
    "ArchivePage": "tidemill.engine.maintenance.archive",
    "Asked": "tidemill.handlers.contract",
    "AsyncTidemill": "tidemill.async_client",
    "AuditReport": "tidemill.engine.maintenance.verify",
    "Blob": "tidemill.handlers.contract",
    "BlobInfo": "tidemill.blobs.contract",
    "Cancelled": "tidemill.handlers.contract",
    "Capabilities": "tidemill.kernel.model",
    "Child": "tidemill.handlers.contract",
    "ChildRun": "tidemill.handlers.contract",
    "Comparison": "tidemill.engine.services.inspection",
    "CompositeTool": "tidemill.agents.port",
    "ConcurrencyLimit": "tidemill.engine.services.concurrency",
    **dict.fromkeys(("AuditEntry", "ChainCheck"), "tidemill.engine.maintenance.audit_chain"),
    **dict.fromkeys(("CreatedKey", "KeyView", "TenantView"), "tidemill.engine.services.access"),
    "DeadLetterRow": "tidemill.engine.index_rows",
    "Diagnosis": "tidemill.engine.maintenance.doctor",
    "Diff": "tidemill.engine.catalog",
    "Done": "tidemill.handlers.contract",
    "Explanation": "tidemill.kernel.explain.explain",
    "Fail": "tidemill.handlers.contract",
    "FailureGroup": "tidemill.engine.run_query",
    "FailureGroups": "tidemill.engine.run_query",
    "Finding": "tidemill.stores.optional",
    "GcReport": "tidemill.engine.maintenance.blob_gc",
    "Handler": "tidemill.handlers.contract",
    "InternalError": "tidemill.errors",
    "LogLine": "tidemill.engine.attempts.log_store",
    "NodeContext": "tidemill.handlers.contract",
    "NodeHistory": "tidemill.kernel.explain.ended",
    "NodeType": "tidemill.kernel.model",
    "NodeTypeView": "tidemill.engine.services.workers",
    "PatchOutcome": "tidemill.engine.services.patches",
    "Pause": "tidemill.handlers.contract",
    "Problem": "tidemill.errors",
    "Published": "tidemill.engine.catalog",
    "QueueView": "tidemill.engine.services.workers",
    "Reindexed": "tidemill.engine.maintenance.reindex",
    "Rejected": "tidemill.errors",
    "Reprocessed": "tidemill.engine.services.dead_letters",
    "BulkOutcome": "tidemill.engine.services.bulk",
    "Return": "tidemill.handlers.contract",
    "RunDocument": "tidemill.engine.services.patches",
    "RunFacets": "tidemill.engine.run_query",
    "RunFailed": "tidemill.errors",
    "RunHistogram": "tidemill.engine.run_query",
    "RunPage": "tidemill.engine.services.runs",
    "RunRow": "tidemill.engine.index_rows",
    "RunStatus": "tidemill.engine.views",
    "RunSummary": "tidemill.engine.run_query",
    "RunView": "tidemill.engine.views",
    "Schedule": "tidemill.triggers.schedules",
    "Settings": "tidemill.settings",
    "Skip": "tidemill.handlers.contract",
    "SweepResult": "tidemill.engine.maintenance.retention",
    "TagMoved": "tidemill.engine.versions",
    "Tagged": "tidemill.engine.catalog",
    "Task": "tidemill.authoring.decorators",
    "Tidemill": "tidemill.client",
    "TidemillError": "tidemill.errors",
    "Transcript": "tidemill.agents.transcript",
    "Unavailable": "tidemill.errors",
    "UsageReport": "tidemill.engine.maintenance.usage",
    "UsageRow": "tidemill.engine.maintenance.usage",
    "Version": "tidemill.engine.versions",
    "Wait": "tidemill.handlers.contract",
    "WorkerView": "tidemill.engine.services.workers",
    "Workflow": "tidemill.authoring.decorators",
    "WorkflowDeletion": "tidemill.engine.catalog",
    "WorkflowRow": "tidemill.engine.versions",
    "__version__": "tidemill.version",
    "aconnect": "tidemill.async_client",
    "aopen": "tidemill.async_client",
    "approve": "tidemill.authoring.constructs",
    "default": "tidemill.authoring.constructs",
    "connect": "tidemill.client",
    "diagnose": "tidemill.client",
    "function": "tidemill.handlers.python.functions",
    "loop": "tidemill.authoring.constructs",
    "node": "tidemill.authoring.constructs",
    "node_type": "tidemill.handlers.contract",
    "not_": "tidemill.authoring.constructs",
    "on_changes": "tidemill.authoring.constructs",
    "on_error": "tidemill.authoring.constructs",
    "on_exhausted": "tidemill.authoring.constructs",
    "on_reject": "tidemill.authoring.constructs",
    "open": "tidemill.client",
    "otherwise": "tidemill.authoring.constructs",
    "signal": "tidemill.authoring.constructs",
    "sleep": "tidemill.authoring.constructs",
    "task": "tidemill.authoring.decorators",
    "template": "tidemill.authoring.constructs",
    "tool": "tidemill.agents.builtin",
    "when": "tidemill.authoring.constructs",
    "workflow": "tidemill.authoring.decorators",
}

__all__ = [
    "Approval",
    "ApprovalRequest",
    "ApprovalRow",
    "ApprovalView",
    "ArchiveEntry",
    "ArchivePage",
    "AsyncTidemill",
    "AuditEntry",
    "AuditReport",
    "Blob",
    "BlobInfo",
    "BulkOutcome",
    "Cancelled",
    "Capabilities",
    "ChainCheck",
    "ChildRun",
    "Comparison",
    "CompositeTool",
    "ConcurrencyLimit",
    "CreatedKey",
    "DeadLetterRow",
    "Diagnosis",
    "Diff",
    "Done",
    "Explanation",
    "Fail",
    "FailureGroup",
    "FailureGroups",
    "Finding",
    "GcReport",
    "Handler",
    "InternalError",
    "KeyView",
    "LogLine",
    "NodeContext",
    "NodeHistory",
    "NodeType",
    "NodeTypeView",
    "PatchOutcome",
    "Problem",
    "Published",
    "QueueView",
    "Reindexed",
    "Rejected",
    "Reprocessed",
    "RunDocument",
    "RunFacets",
    "RunFailed",
    "RunHistogram",
    "RunPage",
    "RunRow",
    "RunStatus",
    "RunSummary",
    "RunView",
    "Schedule",
    "Settings",
    "Skip",
    "SweepResult",
    "TagMoved",
    "Tagged",
    "Task",
    "TenantView",
    "Tidemill",
    "TidemillError",
    "Transcript",
    "Unavailable",
    "UsageReport",
    "UsageRow",
    "Version",
    "Wait",
    "WorkerView",
    "Workflow",
    "WorkflowDeletion",
    "WorkflowRow",
    "__version__",
    "aconnect",
    "aopen",
    "approve",
    "connect",
    "default",
    "diagnose",
    "function",
    "loop",
    "node",
    "node_type",
    "not_",
    "on_changes",
    "on_error",
    "on_exhausted",
    "on_reject",
    "otherwise",
    "signal",
    "sleep",
    "task",
    "template",
    "tool",
    "when",
    "workflow",
]
"""`open` is public too, but a star import must not hide the built-in one."""


_OF_OTHERS = {"flow": "workflow", "dag": "workflow", "step": "task", "activity": "task", "op": "task"}
"""What other libraries call it."""

if not TYPE_CHECKING:
    # Hidden from type checkers, which would take any misspelt name for one that is found here.
    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            message = f"module {__name__!r} has no attribute {name!r}"
            hint = "" if name.startswith("_") else _hint(name)
            # With the name alone, Python looks for no similar name itself.
            raise AttributeError(f"{message}: {hint}" if hint else message, name=name)
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found


def _hint(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, [*__all__, "open"], n=1)
    meant = _OF_OTHERS.get(name) or next(iter(near), "")
    return f"did you mean `{meant}`?" if meant else ""


def __dir__() -> list[str]:
    return sorted([*__all__, "open"])
