"""`/dead-letters`: failures that are not retried automatically: list, show, discard and retry."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import Field

from tidemill.api.auth import CurrentCaller, Router
from tidemill.api.routes.run_actions import check_decisions
from tidemill.api.routes.runs import need
from tidemill.api.schemas import After, Body, Extended, Limit, PageOf, answer, page_answer
from tidemill.engine.index_rows import DeadLetterRow
from tidemill.engine.services.dead_letters import Reprocessed
from tidemill.engine.services.run_actions import UNSET
from tidemill.engine.views import activation_id, plain, read_activation_id
from tidemill.errors import rejected

router = Router()

_SHOWN = {
    "type": "object",
    "properties": {
        **{name: {"type": "string"} for name in ("dead_letter_id", "run_id", "workflow", "node", "status", "reason")},
        **{name: {"type": "integer"} for name in ("visit", "attempts", "at_ms")},
        **{name: {"type": ["integer", "null"]} for name in ("index", "closed_ms")},
        "closed_by": {"type": ["string", "null"]},
        "error": {"type": ["object", "null"]},
        "input": {"description": "The node's config as its last attempt saw it; null if it cannot be rendered."},
    },
    "required": ["dead_letter_id", "run_id", "workflow", "node", "visit", "status", "attempts", "error"],
}


def _place(letter_id: str) -> tuple[str, str, int, int | None]:
    place = read_activation_id(letter_id)
    if place is None:
        raise rejected("dead_letter_unknown", "there is no such dead letter", hint="see `GET /dead-letters`")
    run_id, node, visit, index = place
    return run_id, node, visit, None if index < 0 else index


@router.on("GET", "/dead-letters", may="dead_letters:read", answers=PageOf(Extended(DeadLetterRow, dead_letter_id=str)))
async def list_dead_letters(
    caller: CurrentCaller,
    query: Annotated[
        str,
        Query(description="Terms: `status:open`, `run:ID`, `workflow:NAME`, `node:ID`, `code:CODE`.", max_length=2_000),
    ] = "status:open",
    after: After = None,
    limit: Limit = 50,
) -> Response:
    """List dead letters, newest first."""
    rows, following = await caller.services.dead_letters.find(query, after=after, limit=limit)
    items = [
        {"dead_letter_id": activation_id(row.run_id, row.node, row.visit, row.index), **plain(row)} for row in rows
    ]
    return page_answer(items, following)


@router.on("GET", "/dead-letters/{dead_letter_id}", may="dead_letters:read", answers=_SHOWN)
async def show_dead_letter(dead_letter_id: str, caller: CurrentCaller) -> Response:
    """Show a dead letter with the input that the node was given."""
    run_id, node, visit, index = _place(dead_letter_id)
    shown = await caller.services.dead_letters.show(run_id, node, visit=visit, index=index)
    return answer({"dead_letter_id": dead_letter_id, **shown})


class DiscardBody(Body):
    reason: str = Field("", description="Why it is discarded.", examples=["handled by hand"], max_length=2_000)
    command_id: str | None = Field(None, description="Makes a repetition of the request harmless.", max_length=200)


@router.on("POST", "/dead-letters/{dead_letter_id}/discard", may="dead_letters:write", answers=_SHOWN)
async def discard_dead_letter(dead_letter_id: str, body: DiscardBody, caller: CurrentCaller) -> Response:
    """Close a dead letter without retrying it."""
    run_id, node, visit, index = _place(dead_letter_id)
    letters = caller.services.dead_letters
    await letters.discard(
        run_id, node, visit=visit, index=index, reason=body.reason, actor=caller.actor, command_id=body.command_id
    )
    return answer({"dead_letter_id": dead_letter_id, **await letters.show(run_id, node, visit=visit, index=index)})


class ReprocessBody(Body):
    run_id: str | None = Field(None, description="Only dead letters of this run.")
    node: str | None = Field(None, description="Only dead letters of this node.")
    workflow: str | None = Field(None, description="Only dead letters of this workflow.", examples=["billing"])
    code: str | None = Field(None, description="Only dead letters with this error code.", examples=["http_status"])
    operations: list[dict[str, Any]] | None = Field(None, description="A JSON Patch for the document of each run.")
    config: Any = Field(None, description="A corrected config for `node`.")
    did_not_happen: list[str] = Field([], description="Nodes whose effect is known not to have happened.")
    dry_run: bool = Field(False, description="Only count.")
    reason: str = Field("", max_length=2_000)
    limit: int = Field(1_000, ge=1, le=10_000, description="Stop after this many dead letters.")


@router.on("POST", "/dead-letters/reprocess", may="dead_letters:write", answers=Reprocessed)
async def reprocess_dead_letters(body: ReprocessBody, caller: CurrentCaller) -> Response:
    """Retry the runs of open dead letters.

    A patch or a corrected config changes the graph of the runs, which also takes the permission `runs:patch`.
    """
    given, letters = body.model_dump(), caller.services.dead_letters
    if "config" not in body.model_fields_set:
        given["config"] = UNSET
    if body.operations is not None or given["config"] is not UNSET:
        need(caller, "runs:patch", "a patch or a corrected config")
        if not body.dry_run and not caller.principal.may("approvals:decide"):
            for run in (await letters.reprocess(**{**given, "dry_run": True}, actor=caller.actor)).runs:
                await check_decisions(caller, run.run_id)
    return answer(await letters.reprocess(**given, actor=caller.actor))
