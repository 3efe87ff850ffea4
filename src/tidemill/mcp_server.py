"""`tidemill mcp`: Tidemill as an MCP server. Programs with a language model list, start, watch and decide workflows.

The tools are those that the key of the caller permits; over HTTP every request has a key of its own. Long work is
started by one tool and waited for with another, whose answer has the status of an MCP task: `working`, `input_required`
(with the id and the form of each approval that waits), `completed`, `failed` or `cancelled`. The SDK defines the types
of tasks and serves none, so tools stand for them. A workflow that is named when the server starts also is a tool of its
own, with the schema of its inputs. This module needs the extra `mcp`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import mcp_types as types
import msgspec
from mcp.server import Server
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemill.bootstrap import os_user
from tidemill.engine.engine import Engine
from tidemill.engine.services.tenant_services import TenantServices
from tidemill.engine.views import RunView, activation_id, plain, read_activation_id
from tidemill.errors import Rejected, TidemillError, rejected
from tidemill.expressions.schema import compile_schema
from tidemill.kernel.commands import Verb
from tidemill.version import __version__

if TYPE_CHECKING:
    from tidemill.remote.remote_engine import RemoteEngine

WAIT_SECONDS_MAX = 55.0
"""How long a tool waits for a run; clients give up on a call after a minute."""
LIMIT_MAX = 50
INSTRUCTIONS = (
    "Tidemill runs durable workflows. list_workflows shows what there is; start_workflow returns a run_id at once; "
    "wait_for_run waits up to a minute and can be called again until the status is completed, failed or cancelled. "
    "input_required means that a person must decide: show the approval and its form to the user, and call "
    "decide_approval with its approval_id and their decision, never with your own."
)
_VERBS: dict[str, Verb] = {"approve": "approve", "reject": "reject", "request_changes": "changes"}
_STATUS = {"COMPLETED": "completed", "FAILED": "failed", "CANCELLED": "cancelled"}
_TEXT = {"type": "string", "minLength": 1}
_RUN = {"type": "string", "minLength": 1, "description": "The id of a run."}
_SECONDS = {"type": "number", "minimum": 0, "maximum": WAIT_SECONDS_MAX}
_LIMIT = {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX}

Call = Callable[[dict[str, Any]], Awaitable[Any]]


class ServerTool(NamedTuple):
    name: str
    description: str
    properties: Mapping[str, Any]
    required: tuple[str, ...]
    permission: str
    call: Call
    reads: bool = True
    whole: Any = None
    """A schema of the arguments that takes the place of `properties`."""

    @property
    def schema(self) -> dict[str, Any]:
        if self.whole is not None:
            return dict(self.whole)
        properties = dict(self.properties)
        return {
            "type": "object", "properties": properties, "required": list(self.required), "additionalProperties": False
        }  # fmt: skip


class Offer(NamedTuple):
    """What the operator offers to every caller; a key may permit less."""

    read_only: bool = False
    workflows: tuple[str, ...] = ()
    permissions: frozenset[str] | None = None
    """Of roles; None permits everything."""


class WorkflowTools:
    """The tools of one caller, over the services of a tenant or of a server. Without `permissions` it may all."""

    def __init__(
        self,
        services: TenantServices | Engine,
        offer: Offer,
        *,
        permissions: frozenset[str] | None = None,
        actor: str = "",
        roles: tuple[str, ...] = (),
    ) -> None:
        self._mill, self._read_only = services, offer.read_only
        limits = [each for each in (permissions, offer.permissions) if each is not None]
        self._permissions = frozenset.intersection(*limits) if limits else None
        self._only, self._actor, self._roles = offer.workflows, actor, roles

    async def tools(self) -> dict[str, ServerTool]:
        """The tools that this caller may use, by name."""
        listed = [*self._reading(), *self._changing(), *[await self._workflow_tool(name) for name in self._only]]
        return {tool.name: tool for tool in listed if self._may(tool)}

    def _may(self, tool: ServerTool) -> bool:
        if self._read_only and not tool.reads:
            return False
        return self._permissions is None or tool.permission in self._permissions

    def _reading(self) -> tuple[ServerTool, ...]:
        return (
            ServerTool(
                "list_workflows", "List the published workflows.", {"limit": _LIMIT}, (), "workflows:read", self._list
            ),
            ServerTool(
                "describe_workflow",
                "Show what a workflow does, and the JSON Schema of its inputs.",
                {"workflow": _TEXT},
                ("workflow",),
                "workflows:read",
                self._describe,
            ),
            ServerTool(
                "list_runs",
                "Find runs, newest first, by workflow or status.",
                {
                    "workflow": _TEXT,
                    "status": {"enum": ["running", "completed", "failed", "cancelled"]},
                    "limit": _LIMIT,
                },
                (),
                "runs:read",
                self._runs,
            ),
            ServerTool(
                "get_run",
                "Show a run: its status, nodes, error and pending approvals.",
                {"run_id": _RUN},
                ("run_id",),
                "runs:read",
                self._show,
            ),
            ServerTool(
                "wait_for_run",
                f"Wait until a run ends or needs a person, at most {WAIT_SECONDS_MAX:g} seconds; call it again while "
                "the status is working.",
                {"run_id": _RUN, "seconds": _SECONDS},
                ("run_id",),
                "runs:read",
                self._wait,
            ),
            ServerTool(
                "get_result", "Read the outputs of a run.", {"run_id": _RUN}, ("run_id",), "runs:read", self._result
            ),
            ServerTool(
                "explain_run",
                "Explain what a run is waiting for, or why it failed.",
                {"run_id": _RUN},
                ("run_id",),
                "runs:read",
                self._explain,
            ),
            ServerTool(
                "list_approvals",
                "List pending approvals.",
                {"limit": _LIMIT},
                (),
                "approvals:read",
                self._approvals,
            ),
        )

    def _changing(self) -> tuple[ServerTool, ...]:
        return (
            ServerTool(
                "start_workflow",
                "Start a run and return its run_id; with wait_seconds, wait that long for its end. The same "
                "idempotency_key starts no second run.",
                {
                    "workflow": _TEXT,
                    "inputs": {"type": "object"},
                    "idempotency_key": {"type": "string", "minLength": 1, "maxLength": 200},
                    "wait_seconds": _SECONDS,
                },
                ("workflow",),
                "runs:start",
                self._start,
                reads=False,
            ),
            ServerTool(
                "cancel_run",
                "Cancel a run.",
                {"run_id": _RUN, "reason": _TEXT},
                ("run_id",),
                "runs:act",
                self._cancel,
                reads=False,
            ),
            ServerTool(
                "decide_approval",
                "Pass on the decision of the user about an approval, by its approval_id or by run_id and node. Ask the "
                "user; never decide yourself.",
                {
                    "approval_id": _TEXT,
                    "run_id": _RUN,
                    "node": _TEXT,
                    "decision": {"enum": ["approve", "reject", "request_changes"]},
                    "comments": {"type": "string"},
                    "form": {"type": "object"},
                },
                ("decision",),
                "approvals:decide",
                self._decide,
                reads=False,
            ),
        )

    async def _workflow_tool(self, name: str) -> ServerTool:
        workflow = await self._mill.workflows.show(name)
        schema = workflow.inputs if isinstance(workflow.inputs, dict) else {"type": "object"}
        plain_name = "run_" + "".join(each if each.isalnum() else "_" for each in workflow.name)[:60]
        about = (
            f"{workflow.description or f'The workflow {workflow.name}.'} Starts a run, waits for it up to a minute, "
        )
        about += "and returns its status and run_id; wait_for_run continues to wait."

        async def call(arguments: dict[str, Any]) -> Any:
            return await self._started(name, arguments, None, WAIT_SECONDS_MAX)

        whole = {"type": "object", **schema}
        return ServerTool(plain_name, about, {}, (), "runs:start", call, reads=False, whole=whole)

    # What the tools do

    def _check(self, workflow: str) -> None:
        if self._only and workflow.partition("@")[0] not in {name.partition("@")[0] for name in self._only}:
            message = f"this server does not offer the workflow {workflow[:100]}"
            raise rejected("workflow_unknown", message, hint=f"it offers {', '.join(self._only)}")

    def _signed(self) -> dict[str, Any]:
        """Who acts. A server knows that from the key."""
        return {"actor": self._actor} if self._actor else {}

    async def _view(self, run_id: str) -> RunView:
        view: RunView = await self._mill.inspection.show(run_id)
        self._check(view.workflow)
        return view

    async def _list(self, given: dict[str, Any]) -> Any:
        rows, after = await self._mill.workflows.find(limit=given.get("limit", LIMIT_MAX))
        names = {name.partition("@")[0] for name in self._only}
        shown = [
            {"workflow": row.name, "version": row.version, "description": row.description}
            for row in rows
            if not names or row.name in names
        ]
        return {"workflows": shown, "more": after is not None}

    async def _describe(self, given: dict[str, Any]) -> Any:
        self._check(given["workflow"])
        found = await self._mill.workflows.show(given["workflow"])
        return {"workflow": found.name, "description": found.description, "inputs": found.inputs}

    async def _start(self, given: dict[str, Any]) -> Any:
        self._check(given["workflow"])
        key = given.get("idempotency_key")
        return await self._started(given["workflow"], given.get("inputs"), key, given.get("wait_seconds", 0))

    async def _started(self, workflow: str, inputs: Any, key: str | None, seconds: float) -> Any:
        run_id = await self._mill.runs.start(workflow, inputs, key=key, submitted_by=self._actor)
        return await self._waited(run_id, seconds)

    async def _runs(self, given: dict[str, Any]) -> Any:
        workflow, status = given.get("workflow"), given.get("status")
        if self._only and workflow is None:
            raise rejected("workflow_missing", "name the workflow", hint=f"it is one of {', '.join(self._only)}")
        if workflow is not None:
            self._check(workflow)
        page = await self._mill.runs.find(
            workflow=workflow, status=None if status is None else status.upper(), limit=given.get("limit", 20)
        )
        return {
            "runs": [
                {"run_id": row.run_id, "workflow": row.workflow, "status": row.status, "created_ms": row.created_ms}
                for row in page.rows
            ]
        }

    async def _show(self, given: dict[str, Any]) -> Any:
        view = await self._view(given["run_id"])
        nodes = {name: node["status"] for name, node in view.nodes.items()}
        return await self._standing(view) | {"nodes": nodes, "waiting_for": list(view.waiting_for)}

    async def _wait(self, given: dict[str, Any]) -> Any:
        await self._view(given["run_id"])
        return await self._waited(given["run_id"], given.get("seconds", WAIT_SECONDS_MAX))

    async def _waited(self, run_id: str, seconds: float) -> dict[str, Any]:
        """How a run stands when it has ended, needs a person, or the time is over."""
        until = asyncio.get_running_loop().time() + seconds
        while True:
            shown = await self._standing(await self._view(run_id))
            left = until - asyncio.get_running_loop().time()
            if shown["status"] != "working" or left <= 0:
                return shown
            try:
                # Approvals come without an end, so they are looked for now and then.
                await self._mill.runs.result(run_id, timeout=min(left, 1.0))
            except TimeoutError:
                continue

    async def _standing(self, view: RunView) -> dict[str, Any]:
        shown: dict[str, Any] = {"run_id": view.run_id, "workflow": view.workflow}
        status = _STATUS.get(view.status.value, "working")
        if status == "working":
            waiting = await self._pending(view.run_id)
            if waiting:
                return shown | {"status": "input_required", "approvals": waiting}
        shown["status"] = status
        if status == "completed":
            shown["result"] = view.output
        if view.error:
            shown["error"] = view.error
        return shown

    async def _pending(self, run_id: str) -> list[dict[str, Any]]:
        if self._permissions is not None and "approvals:read" not in self._permissions:
            return []
        rows, _ = await self._mill.approvals.find([f"run:{run_id}", "status:pending"], limit=10)
        shown = []
        for row in rows:
            view = await self._mill.approvals.show(
                run_id, row.node, visit=row.visit, index=row.index if row.index >= 0 else None
            )
            asked = view.to_dict()
            fields = ("approval_id", "node", "title", "description", "form", "approvers", "expires_ms")
            shown.append({name: asked[name] for name in fields if asked.get(name)})
        return shown

    async def _result(self, given: dict[str, Any]) -> Any:
        return await self._standing(await self._view(given["run_id"]))

    async def _explain(self, given: dict[str, Any]) -> Any:
        await self._view(given["run_id"])
        return plain(await self._mill.inspection.why(given["run_id"]))

    async def _cancel(self, given: dict[str, Any]) -> Any:
        view = await self._view(given["run_id"])
        await self._mill.runs.cancel(view.run_id, reason=given.get("reason", ""), **self._signed())
        return await self._standing(await self._view(view.run_id))

    async def _approvals(self, given: dict[str, Any]) -> Any:
        rows, _ = await self._mill.approvals.find(["status:pending"], limit=given.get("limit", 20))
        names = {name.partition("@")[0] for name in self._only}
        return {
            "approvals": [
                {
                    "approval_id": activation_id(row.run_id, row.node, row.visit, row.index),
                    "run_id": row.run_id,
                    "workflow": row.workflow,
                    "node": row.node,
                    "title": row.title,
                }
                for row in rows
                if not names or row.workflow in names
            ]
        }

    async def _decide(self, given: dict[str, Any]) -> Any:
        run_id, node, place = _approval_place(given)
        view = await self._view(run_id)
        more = {name: given[name] for name in ("comments", "form") if name in given} | place | self._signed()
        if self._roles:
            more["roles"] = self._roles
        await self._mill.approvals.decide(view.run_id, node, _VERBS[given["decision"]], **more)
        return await self._standing(await self._view(view.run_id))


def _approval_place(given: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """The run, the node, and the visit of an approval that is named by its id, or by its run and node."""
    if "approval_id" not in given:
        if "run_id" not in given or "node" not in given:
            raise rejected("approval_unknown", "no approval is named", hint="give approval_id, or run_id and node")
        return given["run_id"], given["node"], {}
    found = read_activation_id(given["approval_id"])
    if found is None:
        raise rejected("approval_unknown", "there is no such approval", hint="see list_approvals")
    run_id, node, visit, index = found
    return run_id, node, {"visit": visit, "index": index if index >= 0 else None}


def mcp_server(offered_in: Callable[[Any], WorkflowTools]) -> Server[Any]:
    """A server of the SDK over the tools of each request; every refusal is an answer that tells what to do."""

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        found = await offered_in(context).tools()
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.description,
                    input_schema=tool.schema,
                    annotations=types.ToolAnnotations(
                        read_only_hint=tool.reads, destructive_hint=False if tool.reads else None, open_world_hint=False
                    ),
                )
                for tool in found.values()
            ]
        )

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        try:
            tool = (await offered_in(context).tools()).get(params.name)
            if tool is None:
                raise rejected("tool_unknown", f"there is no tool {params.name[:80]} for this key")
            problems = compile_schema(tool.schema).problems(arguments)
            if problems:
                raise Rejected(problems)
            return _answer(await tool.call(arguments))
        except Rejected as refusal:
            return _answer({"problems": [each.to_dict() for each in refusal.problems]}, failed=True)
        except TidemillError as error:
            return _answer({"problems": [{"code": "unavailable", "message": str(error)}]}, failed=True)

    return Server(
        "tidemill", version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


def _answer(value: Any, *, failed: bool = False) -> types.CallToolResult:
    text = msgspec.json.encode(value, enc_hook=str).decode()
    structured = msgspec.json.decode(text)
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=structured, is_error=failed)


async def serve_on_streams(
    engine: Engine, offer: Offer, permissions_of_key: Callable[[], Awaitable[frozenset[str]]] | None = None
) -> None:
    """Serve one client over the standard streams of this process, until it closes them. Without a key, it may all."""
    from mcp.server.stdio import stdio_server

    async with engine:
        permissions = None if permissions_of_key is None else await permissions_of_key()
        actor = os_user() or "mcp" if permissions is None else ""
        offered = WorkflowTools(engine, offer, permissions=permissions, actor=actor)
        # A workflow that does not exist is refused before a client connects.
        await offered.tools()
        server = mcp_server(lambda context: offered)
        async with stdio_server() as (read_stream, write_stream):
            await server.run(read_stream, write_stream, server.create_initialization_options())


# HTTP

ToolsOf = Callable[[Request], Awaitable[WorkflowTools]]
_REFUSED = {"site_not_allowed": 403, "tenant_disabled": 403, "rate_limited": 429, "unavailable": 503}


def http_app(tools_of: ToolsOf, host: str) -> ASGIApp:
    """The server as an ASGI application at `/mcp`. Each request is authenticated on its own; there are no sessions."""
    server = mcp_server(lambda context: context.request.state.offered)
    return _Authenticated(server.streamable_http_app(stateless_http=True, json_response=True, host=host), tools_of)


class _Authenticated:
    """Finds the tools of each request by its credential, and refuses one that has no valid credential."""

    def __init__(self, app: ASGIApp, tools_of: ToolsOf) -> None:
        self._app, self._tools_of = app, tools_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                scope["state"] = {**scope.get("state", {}), "offered": await self._tools_of(Request(scope))}
            except TidemillError as error:
                await _refused(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _refused(error: TidemillError) -> JSONResponse:
    problems = [each.to_dict() for each in error.problems] if isinstance(error, Rejected) else []
    code = error.code if isinstance(error, Rejected) else "unavailable"
    status = _REFUSED.get(code, 401)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    content = {"problems": problems or [{"code": code, "message": str(error)}]}
    return JSONResponse(content, status, headers)


KEYS_KEPT = 64
KNOWN_FOR_SECONDS = 10.0
"""How long the permissions of a key are believed; the server itself checks them with every request."""


class KeysOfServer:
    """The tools of callers of a Tidemill server: their own keys are passed on, never one of this process."""

    def __init__(self, connect: Callable[[str], RemoteEngine], offer: Offer, *, anonymous: bool) -> None:
        self._connect, self._offer, self._anonymous = connect, offer, anonymous
        self._known: dict[str, tuple[RemoteEngine, WorkflowTools, float]] = {}
        self._asking = asyncio.Lock()

    async def tools_of(self, request: Request) -> WorkflowTools:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else ""
        if not key and not self._anonymous:
            hint = "send `Authorization: Bearer KEY`; `tidemill keys create` makes a key"
            raise rejected("unauthenticated", "the request carries no credential", hint=hint)
        async with self._asking:
            known, now = self._known.pop(key, None), asyncio.get_running_loop().time()
            if known is None or now >= known[2]:
                asked = await self._asked(key, None if known is None else known[0])
                known = (*asked, now + KNOWN_FOR_SECONDS)
            self._known[key] = known
            if len(self._known) > KEYS_KEPT:
                await self._known.pop(next(iter(self._known)))[0].close()
        return known[1]

    async def _asked(self, key: str, engine: RemoteEngine | None) -> tuple[RemoteEngine, WorkflowTools]:
        """Ask the server what a key permits; the connection of a key that it refuses is closed."""
        engine = await self._connect(key).open() if engine is None else engine
        try:
            permissions = await engine.permissions()
        except BaseException:
            await engine.close()
            raise
        return engine, WorkflowTools(engine, self._offer, permissions=permissions)

    async def close(self) -> None:
        for engine, _, _ in self._known.values():
            await engine.close()
        self._known.clear()
