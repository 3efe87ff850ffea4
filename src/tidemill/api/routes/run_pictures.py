"""`/runs/{run_id}/graph` and `/timeline`: a run as data for a picture, or drawn."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import Query, Response

from tidemill.api.auth import Caller, CurrentCaller, Router
from tidemill.api.routes.runs import NUMBER_MAX, At
from tidemill.api.schemas import SVG, answer, picture_answer
from tidemill.engine.attempts.results import child_id
from tidemill.engine.services.context import check_node
from tidemill.errors import rejected
from tidemill.kernel.events import NOT_AN_ITEM, LoopContinued

router = Router()

OBJECTS: dict[str, Any] = {"type": "array", "items": {"type": "object"}}
GRAPH: dict[str, Any] = {
    "type": "object",
    "properties": {"nodes": OBJECTS, "edges": OBJECTS},
    "required": ["nodes", "edges"],
}
PLACE: dict[str, Any] = {"type": ["array", "null"], "description": "Node, visit and item (-1 for none)."}
TIMELINE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "begin_ms": {"type": "integer"},
        "end_ms": {"type": "integer"},
        "pauses": {"type": "array", "items": {"type": "array"}},
        "last": PLACE,
        "rows": OBJECTS,
    },
    "required": ["begin_ms", "end_ms", "pauses", "last", "rows"],
}


@router.on(
    "GET",
    "/runs/{run_id}/graph",
    may="runs:read",
    answers=GRAPH,
    responses={200: {"content": {SVG: {"schema": {"type": "string"}}}}},
)
async def get_run_graph(
    caller: CurrentCaller,
    run_id: str,
    at: At = None,
    format: Literal["json", "svg"] = "json",  # noqa: A002 - the name of the query parameter
    loop: Annotated[
        str | None, Query(description="A looping node: show the graph at the end of one of its passes.")
    ] = None,
    number: Annotated[int, Query(alias="pass", ge=1, le=NUMBER_MAX, description="Which pass of `loop`.")] = 1,
) -> Response:
    """The graph of a run with statuses and taken edges, as JSON or as a drawing."""
    inspection = caller.services.inspection
    if loop is not None:
        at = await _end_of_pass(caller, run_id, loop, number)
    if format == "svg":
        from tidemill.pictures import run_svg

        return picture_answer(await asyncio.to_thread(run_svg, await inspection.show(run_id, at=at)))
    from tidemill.pictures.data import run_graph

    entry = await inspection.as_of(run_id, at)

    def child(node: str, visit: int) -> str:
        return child_id(run_id, node, visit, NOT_AN_ITEM)

    return answer({"run_id": run_id, **run_graph(entry.flow.workflow, entry.state, child)})


async def _end_of_pass(caller: Caller, run_id: str, loop: str, number: int) -> int | None:
    """The seq of the last event of a pass; None for the present one."""
    context = caller.services.context
    entry = await context.entry(run_id)
    check_node(entry.flow.workflow, loop)
    if number == entry.state.peek(loop).passes + 1:
        return None
    found = None
    for seq, event in enumerate(await context.log(run_id), 1):
        if isinstance(event, LoopContinued) and event.node == loop and event.iteration == number:
            found = seq - 1
    if found is None:
        message, hint = f"node {loop} has not had pass {number}", "the graph shows the present pass of each loop"
        raise rejected("place_invalid", message, path="/pass", hint=hint)
    return found


@router.on("GET", "/runs/{run_id}/timeline", may="runs:read", answers=TIMELINE)
async def get_run_timeline(caller: CurrentCaller, run_id: str, at: At = None) -> Response:
    """When the nodes of a run were queued, at work, waiting and backing off.

    `after` is what made a track ready, `last` what led to the end: node, visit and item.
    """
    from tidemill.pictures.data import run_timeline

    context = caller.services.context
    state, events = (await context.entry(run_id)).state, await caller.services.inspection.log(run_id, at)
    is_over = at is not None or (state.ended_ms is not None and state.rollback != "running")
    return answer(await asyncio.to_thread(run_timeline, events, None if is_over else context.store.now_ms()))
