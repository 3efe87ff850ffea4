"""`/runs`: start, list, inspect and follow runs; `/stream`: the changes of all runs."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from fastapi import Header, Query, Request, Response
from pydantic import ConfigDict, Field

from tidemill.agents.transcript import Transcript
from tidemill.api.auth import Access, Caller, CurrentCaller, Router
from tidemill.api.schemas import After, Body, Extended, Limit, PageOf, answer, page_answer
from tidemill.api.streams import EventStream, LiveStreams, Recheck
from tidemill.engine.attempts.log_store import LogLine
from tidemill.engine.compiled import off_loop
from tidemill.engine.index_rows import RunRow
from tidemill.engine.run_query import read_query
from tidemill.engine.services.inspection import Comparison
from tidemill.engine.services.patches import RunDocument
from tidemill.engine.views import RunView, plain
from tidemill.errors import Problem, Rejected, rejected
from tidemill.kernel.document.text import as_yaml
from tidemill.kernel.explain.ended import NodeHistory
from tidemill.kernel.explain.explain import Explanation
from tidemill.kernel.model import Workflow, encode_workflow
from tidemill.kernel.queries import EventFilter

router = Router()

BATCH_MAX = 1_000
KEY_LENGTH_MAX = 200
LOG_LINES_MAX = 10_000
EVENTS_MAX = 5_000
"""Events of a page; their values are bounded, as larger ones are blobs."""
WAIT_S_MAX = 60.0
NUMBER_MAX = 1_000_000_000
"""The largest number of an event, a visit, an item or an attempt that a request may name."""

RunQueryText = Annotated[str, Query(description="A query, such as `status:failed workflow:billing started>-2h`.")]
At = Annotated[int | None, Query(ge=1, le=NUMBER_MAX, description="The run as it was after this event.")]
IdempotencyKey = Annotated[
    str | None, Header(alias="Idempotency-Key", description="Makes it safe to repeat the request.")
]
Traceparent = Annotated[str | None, Header(description="The W3C trace context that the spans of the run join.")]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", description="The id of the last frame you received.")]

EVENT: dict[str, Any] = {
    "type": "object",
    "description": "An event of a run; its further fields depend on its type.",
    "properties": {"seq": {"type": "integer"}, "type": {"type": "string"}, "at_ms": {"type": "integer"}},
    "required": ["seq", "type", "at_ms"],
}
STEP: dict[str, Any] = {"type": "object", "properties": {"node": {"type": "string"}}, "required": ["node"]}
TOKEN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "from": {"type": "string"},
        "to": {"type": "string"},
        "visit": {"type": "integer"},
        "hop": {"type": "integer"},
    },
    "required": ["from", "to", "visit", "hop"],
}


# Starting


class RunOptions(Body):
    """What one run and a batch of runs have in common."""

    workflow: str | None = Field(default=None, description="`name` (the newest version), `name@3` or `name:tag`.")
    labels: dict[str, str] = Field(default={}, description="Labels to find the runs by.")
    deadline_seconds: float | None = Field(
        default=None, description="The run fails if it has not ended after this time."
    )
    correlation_id: str = Field(default="", description="Your own id, stored with the run.")


class StartRun(RunOptions):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"workflow": "billing:stable", "inputs": {"n": 3}, "labels": {"team": "a"}}]}
    )
    document: dict[str, Any] | str | None = Field(
        default=None, description="Instead of `workflow`: a document, which is published first. Needs `runs:patch`."
    )
    inputs: Any = Field(default=None, description="The inputs of the run.")


class BatchItem(Body):
    inputs: Any = None
    key: str | None = Field(default=None, description="An idempotency key for this run.")


class StartBatch(RunOptions):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"workflow": "billing", "runs": [{"inputs": {"n": 1}, "key": "order-1"}]}]}
    )
    workflow: str = Field(description="`name` (the newest version), `name@3` or `name:tag`.")
    runs: list[BatchItem] = Field(min_length=1, max_length=BATCH_MAX)
    dry_run: bool = Field(default=False, description="Only check the inputs; nothing starts, and `runs` is empty.")


class StartedRun(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    created: bool
    """False if an earlier request with the same key has started the run."""


class StartedBatch(msgspec.Struct, frozen=True, kw_only=True):
    runs: tuple[StartedRun, ...]


def id_of_key(key: str, kind: str = "start", path: str = "/Idempotency-Key") -> str:
    """The id of the run that belongs to a key. No other run has it: ids are UUIDs, or names that contain a dot."""
    if not key.isprintable() or not 0 < len(key) <= KEY_LENGTH_MAX:
        message = f"a key is 1 to {KEY_LENGTH_MAX} printable characters"
        raise rejected("run_key_invalid", message, path=path, hint="use an id of your own request")
    return "key-" + hashlib.sha256(f"{kind}\0{key}".encode()).hexdigest()[:40]


def _digest(asked: dict[str, Any]) -> str:
    """Tells one request from another; the order of keys does not matter."""
    return hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()[:40]


_RUNS_PATH = re.compile(r"(.*/runs)(?:/[^/]+/fork)?")


def location(request: Request, run_id: str) -> dict[str, str]:
    """The header that says where a new run is."""
    found = _RUNS_PATH.fullmatch(request.url.path)
    return {"Location": f"{found[1] if found else ''}/{quote(run_id, safe='')}"}


def need(caller: Caller, permission: str, what: str) -> None:
    """Refuse what a caller may not do, beyond the permission of the route."""
    if not caller.principal.may(permission):
        message = f"{caller.actor} lacks the permission {permission}, which {what} needs"
        raise rejected("not_allowed", message, hint="an administrator can create a key with a role that has it")


@router.on("POST", "/runs", may="runs:start", answers=StartedRun, status=201)
async def start_run(
    request: Request,
    caller: CurrentCaller,
    body: StartRun,
    idempotency_key: IdempotencyKey = None,
    traceparent: Traceparent = None,
) -> Response:
    """Start a run.

    With an `Idempotency-Key`, the same request returns the same run with 200, another one is refused.
    """
    runs, asked = caller.services.runs, body.model_dump()
    if (body.workflow is None) is (body.document is None):
        message = "give either a workflow or a document"
        raise rejected("request_invalid", message, path="/workflow", hint='write {"workflow": "billing"}')
    if body.document is not None:
        need(caller, "runs:patch", "a document")
    options = _options(caller, body, traceparent)
    if idempotency_key is None:
        run_id = await runs.start(await _workflow(caller, body), body.inputs, **options)
        return answer(StartedRun(run_id=run_id, created=True), 201, location(request, run_id))
    run_id = id_of_key(idempotency_key)
    known = body.document is not None and run_id in await runs.started_by([run_id])
    workflow = "" if known else await _workflow(caller, body)
    (created,) = await runs.start_requests(
        workflow, [body.inputs], run_ids=[run_id], requests=[_digest(asked)], **options
    )
    return answer(StartedRun(run_id=run_id, created=created), 201 if created else 200, location(request, run_id))


def _options(caller: Caller, body: RunOptions, traceparent: str | None) -> dict[str, Any]:
    """The arguments that all starts take."""
    return {
        "labels": body.labels,
        "correlation_id": body.correlation_id,
        "deadline_seconds": body.deadline_seconds,
        "submitted_by": caller.actor,
        "traceparent": traceparent or "",
    }


async def _workflow(caller: Caller, body: StartRun) -> str:
    """The workflow to start; a document becomes a version."""
    if body.document is None:
        assert body.workflow is not None
        return body.workflow
    published = await caller.services.workflows.publish(body.document, author=caller.actor)
    return f"{published.name}@{published.version}"


@router.on("POST", "/runs/batch", may="runs:start", answers=StartedBatch, status=201)
async def start_runs(caller: CurrentCaller, body: StartBatch, traceparent: Traceparent = None) -> Response:
    """Start up to 1,000 runs of a workflow.

    All inputs are checked first; if one is refused, no run is started.
    """
    services, given = caller.services, [item.inputs for item in body.runs]
    keys = [item.key for item in body.runs]
    ids = [
        services.context.ambient.new_id() if key is None else id_of_key(key, path=f"/runs/{number}/key")
        for number, key in enumerate(keys)
    ]
    if len(set(ids)) < len(ids):
        raise rejected(
            "keys_mismatch", "two runs have the same key", path="/runs", hint="give each run a key of its own"
        )
    options = _options(caller, body, traceparent)
    try:
        if not any(keys) and not body.dry_run:
            ids, created = await services.runs.start_many(body.workflow, given, **options), [True] * len(given)
        else:
            shared = body.model_dump(exclude={"runs", "dry_run"})
            requests = [_digest({**shared, "inputs": item.inputs}) for item in body.runs]
            created = await services.runs.start_requests(
                body.workflow, given, run_ids=ids, requests=requests, dry_run=body.dry_run, **options
            )
    except Rejected as refusal:
        raise Rejected([_in_batch(each) for each in refusal.problems]) from None
    started = () if body.dry_run else zip(ids, created, strict=True)
    runs = tuple(StartedRun(run_id=each, created=new) for each, new in started)
    return answer(StartedBatch(runs=runs), 201)


def _in_batch(problem: Problem) -> Problem:
    """A problem of the inputs or the key of one run, with its path in the body."""
    path = re.sub(r"^/(inputs|key)s?/([0-9]+)", r"/runs/\2/\1", problem.path)
    return msgspec.structs.replace(problem, path=path)


# Looking


@router.on("GET", "/runs", may="runs:read", answers=PageOf(RunRow))
async def find_runs(
    caller: CurrentCaller, query: RunQueryText = "", after: After = None, limit: Limit = 50
) -> Response:
    """Find runs."""
    page = await caller.services.runs.find(query, after=after, limit=limit)
    return page_answer(page.rows, page.after)


@router.on("GET", "/runs/{run_id}", may="runs:read", answers=RunView)
async def get_run(
    caller: CurrentCaller,
    run_id: str,
    at: At = None,
    graph: Annotated[
        bool, Query(description="Also the compiled workflow, its edges, and what nodes took, for a picture.")
    ] = False,
    values: Annotated[bool, Query(description="Include outputs of any size; without, they are null.")] = True,
) -> Response:
    """Show a run."""
    view = await caller.services.inspection.show(run_id, at=at, values=values)
    if not graph or view.graph is None:
        return answer(view)
    taken = {name: went for name, (_, went) in view.traces.items()}
    drawn = {"graph": msgspec.Raw(encode_workflow(view.graph)), "edges": edges(view.graph, taken)}
    return answer({**view.to_dict(), **drawn, "traces": view.traces})


@router.on(
    "GET",
    "/runs/{run_id}/result",
    may="runs:read",
    answers=RunView,
    responses={202: {"description": "The run has not ended yet"}},
)
async def get_run_result(
    request: Request,
    caller: CurrentCaller,
    run_id: str,
    timeout: Annotated[float, Query(ge=0, le=WAIT_S_MAX, description="Seconds to wait.")] = 30.0,  # noqa: ASYNC109
) -> Response:
    """Wait for the end of a run.

    200 with the run once it has ended; 202 with the run as it is when the time is up.
    """
    services = caller.services
    waiting = asyncio.create_task(services.runs.result(run_id))
    closing = asyncio.create_task(request.app.state.closing.wait())
    try:
        await asyncio.wait((waiting, closing), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return answer(waiting.result())
    finally:
        for task in (waiting, closing):
            task.cancel()
        await asyncio.gather(waiting, closing, return_exceptions=True)
    view = await services.inspection.show(run_id)
    return answer(view, 200 if view.ended_ms is not None and view.rollback["status"] != "running" else 202)


@router.on("GET", "/runs/{run_id}/events", may="runs:read", answers=PageOf(EVENT))
async def get_run_events(
    caller: CurrentCaller,
    run_id: str,
    after: Annotated[str, Query(description="The seq of the last event you received.")] = "0",
    limit: Annotated[int, Query(ge=1, le=EVENTS_MAX, description="Maximum number of items per page.")] = 100,
    node: Annotated[str, Query(description="Only events of this node.")] = "",
    visit: Annotated[int | None, Query(ge=1, le=NUMBER_MAX)] = None,
    index: Annotated[
        int | None, Query(ge=0, le=NUMBER_MAX, description="Only events of this item of a map, and of the map itself.")
    ] = None,
    type: Annotated[list[str], Query(description="Only events of these types.")] = [],  # noqa: A002, B006
    contains: Annotated[str, Query(description="Only events whose record contains this text.", max_length=200)] = "",
    brief: Annotated[bool, Query(description="Truncate values longer than 200 bytes.")] = False,
) -> Response:
    """List the events of a run, all or those that meet conditions."""
    wanted = EventFilter(node=node, visit=visit, index=index, types=tuple(type), contains=contains)
    found, last = await caller.services.inspection.find_events(
        run_id, wanted, after=_seq(after), limit=limit, brief=brief
    )
    return page_answer(found, None if last is None else str(last))


def _seq(text: str) -> int:
    """A place in the events of a run."""
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise rejected("bad_cursor", "events are counted from 1", path="/after", hint="pass the seq of an event")
    return int(text)


@router.on("GET", "/runs/{run_id}/path", may="runs:read", answers=PageOf(STEP))
async def get_run_path(caller: CurrentCaller, run_id: str, at: At = None) -> Response:
    """The path a run took."""
    return page_answer(await caller.services.inspection.path(run_id, at=at), None)


@router.on("GET", "/runs/{run_id}/tokens", may="runs:read", answers=PageOf(TOKEN))
async def get_run_tokens(caller: CurrentCaller, run_id: str, at: At = None) -> Response:
    """What is in flight in a run."""
    return page_answer(await caller.services.inspection.tokens(run_id, at=at), None)


@router.on("GET", "/runs/{run_id}/why", may="runs:read", answers=Explanation)
async def explain_run(caller: CurrentCaller, run_id: str) -> Response:
    """What a run is waiting for, or why it failed."""
    return answer(await caller.services.inspection.why(run_id))


@router.on("GET", "/runs/{run_id}/why/{node}", may="runs:read", answers=NodeHistory)
async def explain_node(caller: CurrentCaller, run_id: str, node: str) -> Response:
    """How the visits of a node ended, or what it is waiting for."""
    return answer(await caller.services.inspection.why_node(run_id, node))


@router.on("GET", "/runs/{run_id}/logs", may="runs:read", answers=PageOf(LogLine))
async def get_run_logs(
    caller: CurrentCaller,
    run_id: str,
    node: str | None = None,
    visit: Annotated[int | None, Query(ge=1, le=NUMBER_MAX)] = None,
    index: Annotated[int | None, Query(ge=0, le=NUMBER_MAX)] = None,
    attempt: Annotated[int | None, Query(ge=1, le=NUMBER_MAX)] = None,
    limit: Annotated[int, Query(ge=1, le=LOG_LINES_MAX)] = 1_000,
) -> Response:
    """What handlers printed and logged.

    The latest lines in order of time: of the run, of a node, or of one visit, item or attempt of it.
    """
    lines = await caller.services.inspection.logs(run_id, node, visit=visit, index=index, attempt=attempt)
    return page_answer(lines[-limit:], None)


@router.on("GET", "/runs/{run_id}/document", may="runs:read", answers=Extended(RunDocument, text=str))
async def get_run_document(
    caller: CurrentCaller,
    run_id: str,
    text: Annotated[bool, Query(description="Also as YAML, in `text`.")] = False,
) -> Response:
    """The document that a run follows, with its patches."""
    shown = await caller.services.patches.document(run_id)
    return answer({**plain(shown), "text": await off_loop(shown.document, as_yaml, shown.document) if text else ""})


@router.on("GET", "/runs/{run_id}/nodes/{node}/transcript", may="runs:read", answers=Transcript)
async def get_transcript(
    caller: CurrentCaller,
    run_id: str,
    node: str,
    visit: Annotated[int | None, Query(ge=1, le=NUMBER_MAX, description="By default the latest.")] = None,
    index: Annotated[int | None, Query(ge=0, le=NUMBER_MAX, description="An item of a map.")] = None,
) -> Response:
    """The transcript of an agent: turns, tool calls, tokens and cost."""
    return answer(await caller.services.inspection.transcript(run_id, node, visit=visit, index=index))


def edges(workflow: Workflow, taken: dict[str, tuple[str, ...] | None]) -> list[dict[str, Any]]:
    """The edges of a graph; `taken` is null where a node has not ended, or for the way back of a loop."""
    from tidemill.pictures.labels import edges_of

    found: list[dict[str, Any]] = []
    for node in workflow.nodes:
        went = taken.get(node.id)
        for edge in edges_of(node):
            known = None if went is None else edge.target in went
            found.append({"from": node.id, "to": edge.target, "label": edge.label, "kind": "edge", "taken": known})
        if node.loop is not None:
            found.append({"from": node.id, "to": node.loop.back_to, "label": "again", "kind": "loop", "taken": None})
    return found


@router.on("GET", "/runs/{run_id}/compare/{other_id}", may="runs:read", answers=Comparison)
async def compare_runs(caller: CurrentCaller, run_id: str, other_id: str) -> Response:
    """Two runs side by side."""
    return answer(await caller.services.inspection.compare(run_id, other_id))


# Live


@router.on(
    "GET",
    "/runs/{run_id}/stream",
    may="runs:read",
    answers=None,
    media_type="text/event-stream",
    response_class=EventStream,
)
async def stream_run(
    request: Request,
    caller: CurrentCaller,
    run_id: str,
    after: Annotated[str, Query(description="The seq of the last event you received.")] = "0",
    live: Annotated[bool, Query(description="Also streamed parts of results, and progress.")] = True,
    logs: Annotated[bool, Query(description="Also new log lines of handlers.")] = False,
    last_event_id: LastEventId = None,
) -> Response:
    """Follow a run (Server-Sent Events).

    Every event of the run, with its seq as `id`; `Last-Event-ID` or `after` resumes after it. Without an id:
    `live` (parts, progress) and `log`. The last frame is `end`, or `resume` with the id to continue from.
    """
    seen, services = _seq(last_event_id or after), caller.services
    last = (await services.context.entry(run_id)).state.seq
    if seen > last:
        message = f"the run has events 1 to {last}, so nothing can be followed after {seen}"
        hint = "pass the seq of the last event you have seen"
        raise rejected("cursor_invalid", message, path="/after", hint=hint)
    streams: LiveStreams = request.app.state.streams
    chunks = streams.run(services, run_id, seen, live=live, logs=logs, recheck=_recheck(request))
    return _event_stream(streams, caller, chunks)


@router.on("GET", "/stream", may="runs:read", answers=None, media_type="text/event-stream", response_class=EventStream)
async def stream_runs(
    request: Request,
    caller: CurrentCaller,
    query: RunQueryText = "",
    after: Annotated[str, Query(description="The id of the last frame you received.")] = "",
    last_event_id: LastEventId = None,
) -> Response:
    """Follow the changes of all runs (Server-Sent Events).

    `{change, run}` for each run that has started, changed or ended, within a second or so. `reset` says that
    changes were missed: read the list again.
    """
    wanted = read_query(query, now_ms=caller.services.context.store.now_ms())
    streams: LiveStreams = request.app.state.streams
    chunks = streams.tenant(caller.services, last_event_id or after, wanted, recheck=_recheck(request))
    return _event_stream(streams, caller, chunks)


def _event_stream(streams: LiveStreams, caller: Caller, chunks: AsyncGenerator[bytes, None]) -> EventStream:
    reader = (caller.principal.tenant, caller.principal.key_id or caller.actor)
    streams.open_streams.check(reader)
    return EventStream(chunks, streams.open_streams, reader)


def _recheck(request: Request) -> Recheck:
    async def check() -> None:
        access: Access = request.app.state.access
        need(await access.caller(request), "runs:read", "this stream")

    return check
