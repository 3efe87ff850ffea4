"""`/runs/{run_id}/nodes/{node}`: what a node was given, what it has returned, and the items of a map."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import Header, Query, Response

from tidemill.api.auth import CurrentCaller, Router
from tidemill.api.routes.runs import NUMBER_MAX, At
from tidemill.api.schemas import JSON, Limit, PageOf, answer, byte_range, page_answer
from tidemill.engine.services.inspection import NodeOutput
from tidemill.errors import rejected
from tidemill.kernel.activation import NodeStatus

router = Router()

WHOLE_BYTES_MAX = 65_536
"""Values up to this size are answered whole; of larger ones the beginning, and ranges."""
PREVIEW_CHARACTERS = 4_000
IN_PARTS = "Whole up to 64 KiB, else its beginning. With `Range`, bytes of the JSON text (206)."
PARTS: dict[int | str, dict[str, Any]] = {
    206: {"description": "Bytes of the JSON text"},
    416: {"description": "There are no such bytes"},
}

Visit = Annotated[int | None, Query(ge=1, le=NUMBER_MAX, description="By default the latest.")]
Index = Annotated[int | None, Query(ge=0, le=NUMBER_MAX, description="An item of a map.")]
Range = Annotated[str, Header(alias="Range")]
ITEM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "index": {"type": "integer"},
        "status": {"type": "string"},
        "attempts": {"type": "integer"},
        "error": {"type": ["object", "null"]},
    },
    "required": ["index", "status", "attempts", "error"],
}


class ShownOutput(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    visit: int
    index: int | None
    status: str
    size: int
    """Bytes of JSON; 0 if there is no value."""
    digest: str
    value: Any
    """The value; null if it is too large to be shown whole."""
    preview: str | None
    """The beginning of the JSON text of a large value; ask for the rest with `Range: bytes=…`."""


def _shown(found: NodeOutput, wanted_range: str) -> Response:
    size = len(found.text)
    headers = {"Accept-Ranges": "bytes", "X-Content-Type-Options": "nosniff"}
    wanted = byte_range(wanted_range, size)
    if wanted is not None:
        begin, end = wanted
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        return Response(found.text[begin:end], 206, headers, JSON)
    whole = size <= WHOLE_BYTES_MAX
    shown = ShownOutput(
        node=found.node,
        visit=found.visit,
        index=found.index,
        status=found.status,
        size=size,
        digest=found.digest,
        value=msgspec.Raw(found.text) if whole and found.text else None,
        preview=None if whole else found.text[: 4 * PREVIEW_CHARACTERS].decode("utf-8", "ignore")[:PREVIEW_CHARACTERS],
    )
    return answer(shown, headers=headers)


@router.on(
    "GET",
    "/runs/{run_id}/nodes/{node}/output",
    may="runs:read",
    answers=ShownOutput,
    description=IN_PARTS,
    responses=PARTS,
)
async def get_node_output(
    caller: CurrentCaller, run_id: str, node: str, index: Index = None, at: At = None, range_: Range = ""
) -> Response:
    """The output of a node."""
    return _shown(await caller.services.inspection.output(run_id, node, index=index, at=at), range_)


@router.on(
    "GET",
    "/runs/{run_id}/nodes/{node}/input",
    may="runs:read",
    answers=ShownOutput,
    description=f"No value before the first attempt. {IN_PARTS}",
    responses=PARTS,
)
async def get_node_input(
    caller: CurrentCaller,
    run_id: str,
    node: str,
    visit: Visit = None,
    index: Index = None,
    at: At = None,
    range_: Range = "",
) -> Response:
    """What a node was given: its config with the values in it, without secrets; of a map, its list."""
    return _shown(await caller.services.inspection.input(run_id, node, visit=visit, index=index, at=at), range_)


@router.on("GET", "/runs/{run_id}/nodes/{node}/items", may="runs:read", answers=PageOf(ITEM))
async def get_node_items(
    caller: CurrentCaller,
    run_id: str,
    node: str,
    status: Annotated[NodeStatus | Literal[""], Query(description="Only those with this status.")] = "",
    after: Annotated[str, Query(description="`next` of the previous page.", max_length=20)] = "",
    limit: Limit = 100,
    at: At = None,
) -> Response:
    """The items of the latest visit of a map, with their statuses."""
    if after and not (after.isascii() and after.isdecimal()):
        raise rejected("bad_cursor", "items are counted from 0", path="/after", hint="pass `next` of the previous page")
    found, last = await caller.services.inspection.items(
        run_id, node, status=status, after=int(after) if after else -1, limit=limit, at=at
    )
    return page_answer(found, None if last is None else str(last))
