"""`/workers`, `/queues`, `/node-types` and `/concurrency`: workers, their work, and limits of the fleet.

Workers serve all tenants. A tenant other than the operator's sees how many there are and what they can do, and nothing
of the work of others.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Request, Response
from pydantic import Field

from tidemill.api.auth import Caller, CurrentCaller, Router
from tidemill.api.protection import LoadGuard
from tidemill.api.schemas import Body, PageOf, answer, page_answer
from tidemill.engine.services.concurrency import ConcurrencyLimit
from tidemill.engine.services.workers import NodeTypeView, QueueView, WorkerView
from tidemill.errors import offered, rejected
from tidemill.security.roles import OPERATOR_TENANT

router = Router()

_SHARED_LIMITS = ("queue:", "type:")
"""Limits whose names say nothing of a tenant."""
_FIELDS = ("secret_fields", "exits", "schemas")
_NODE_TYPE: dict[str, Any] = {
    "type": "object",
    "properties": {
        **{name: {"type": "string"} for name in ("type", "name", "version", "title", "icon", "description", "queue")},
        "major": {"type": "integer"},
        "here": {"type": "boolean", "description": "This server has it; otherwise a worker has described it."},
        "workers": {"type": "integer", "description": "Live workers that can run it."},
        "last_seen_ms": {"type": ["integer", "null"]},
        "image": {"type": "string"},
        "waits": {"type": "boolean"},
        "capabilities": {"type": "object"},
        **{name: {"type": "array", "items": {"type": "string"}} for name in _FIELDS},
        **{name: {} for name in ("config_schema", "input_schema", "output_schema")},
    },
    "required": ["type", "name", "major", "queue", "here", "workers"],
}
_SHOWN = ("name", "major", "version", "title", "icon", "description", "queue", "waits")
_SCHEMAS = ("config_schema", "input_schema", "output_schema")


def _is_operator(caller: Caller) -> bool:
    return caller.principal.tenant == OPERATOR_TENANT


@router.on("GET", "/workers", may="fleet:read", answers=PageOf(WorkerView))
async def list_workers(caller: CurrentCaller) -> Response:
    """List workers, most recently started first.

    A tenant other than the operator's does not see where workers run, what they hold and what they lack.
    """
    found = await caller.services.workers.find()
    if not _is_operator(caller):
        hidden: dict[str, Any] = {"host": "", "pid": 0, "held": (), "holding": 0, "lacks": (), "blocked": None}
        found = [
            msgspec.structs.replace(each, name=f"worker-{number}", finished=0, **hidden)
            for number, each in enumerate(found, 1)
        ]
    return page_answer(found, None)


@router.on("GET", "/queues", may="fleet:read", answers=PageOf(QueueView))
async def list_queues(request: Request, caller: CurrentCaller) -> Response:
    """The work of the tenant by queue, and how old the oldest is.

    As it was within the last second.
    """
    guard: LoadGuard = request.app.state.load_guard
    return page_answer(await caller.services.queues.find(await guard.backlog()), None)


def _shown(view: NodeTypeView) -> dict[str, Any]:
    type_ = view.node_type
    return {
        "type": type_.key,
        **{name: getattr(type_, name) for name in _SHOWN},
        "here": view.here,
        "workers": view.workers,
        "last_seen_ms": view.last_seen_ms,
        "image": view.image,
        "capabilities": type_.capabilities,
        **{name: getattr(type_, name) for name in _FIELDS},
        **{name: getattr(type_, name) for name in _SCHEMAS},
    }


@router.on("GET", "/node-types", may="fleet:read", answers=PageOf(_NODE_TYPE))
async def list_node_types(caller: CurrentCaller) -> Response:
    """List the node types of the server and of workers."""
    return page_answer([_shown(each) for each in await caller.services.workers.node_types()], None)


@router.on("GET", "/node-types/{name}", may="fleet:read", answers=_NODE_TYPE)
async def show_node_type(name: str, caller: CurrentCaller) -> Response:
    """Show a node type: its fields and capabilities.

    By name, in its newest version, or as `name@2`.
    """
    found = {each.node_type.key: each for each in await caller.services.workers.node_types()}
    newest = {each.node_type.name: each for each in found.values()}
    view = found.get(name) or newest.get(name)
    if view is None:
        raise rejected("node_type_unknown", f"there is no node type {name[:80]!r}", hint=offered(name, newest))
    return answer(_shown(view))


@router.on("GET", "/concurrency", may="fleet:read", answers=PageOf(ConcurrencyLimit))
async def list_concurrency_limits(caller: CurrentCaller) -> Response:
    """List concurrency limits.

    A tenant other than the operator's sees the limits of queues and node types.
    """
    found = await caller.services.concurrency.find()
    if not _is_operator(caller):
        found = [each for each in found if each.name.startswith(_SHARED_LIMITS)]
    return page_answer(found, None)


class LimitBody(Body):
    limit: int = Field(description="Nodes that run at a time in the whole fleet.", examples=[4], ge=0, le=1_000_000)


@router.on("PUT", "/concurrency/{name}", may="fleet:write", answers=ConcurrencyLimit)
async def set_concurrency_limit(name: str, body: LimitBody, caller: CurrentCaller) -> Response:
    """Limit how many nodes of a queue, type, workflow or label value run at once."""
    return answer(await caller.services.concurrency.set(name, body.limit, actor=caller.actor))


@router.on("DELETE", "/concurrency/{name}", may="fleet:write", answers={"type": "object"})
async def remove_concurrency_limit(name: str, caller: CurrentCaller) -> Response:
    """Remove a limit."""
    await caller.services.concurrency.remove(name, actor=caller.actor)
    return answer({})
