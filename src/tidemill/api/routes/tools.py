"""`/tools`: pipelines of agents that have become composite tools: list, show, rename, pin and retire them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from pydantic import Field

from tidemill.agents.port import CompositeTool
from tidemill.api.auth import CurrentCaller, Router
from tidemill.api.schemas import After, Body, Limit, PageOf, answer, page_answer
from tidemill.errors import rejected

router = Router()


@router.on("GET", "/tools", may="workflows:read", answers=PageOf(CompositeTool))
async def list_tools(
    caller: CurrentCaller,
    retired: Annotated[bool, Query(description="List retired tools instead of those in use.")] = False,
    after: After = None,
    limit: Limit = 50,
) -> Response:
    """List composite tools, most recently changed first."""
    return page_answer(*await caller.services.tools.page(retired=retired, after=after, limit=limit))


@router.on("GET", "/tools/{name}", may="workflows:read", answers=CompositeTool)
async def show_tool(name: str, caller: CurrentCaller) -> Response:
    """Show a composite tool: its parameters and its steps.

    By name, in its newest version, or as `name@2`.
    """
    return answer(await caller.services.tools.show(name))


class ToolBody(Body):
    name: str | None = Field(None, description="Its new name.", examples=["cheapest-flights"], max_length=64)
    description: str | None = Field(None, description="The description that agents read.", max_length=2_000)
    pinned: bool | None = Field(None, description="Whether it is pinned to its version.")
    retired: bool | None = Field(None, description="Whether agents can no longer find and call it.")


@router.on("PATCH", "/tools/{name}", may="workflows:write", answers=CompositeTool)
async def change_tool(name: str, body: ToolBody, caller: CurrentCaller) -> Response:
    """Rename, pin or retire a composite tool.

    One after the other, each with an entry of its own in the audit: what was changed before a refusal stays.
    """
    tools, actor = caller.services.tools, caller.actor
    if not body.model_dump(exclude_none=True):
        hint = "give name, description, pinned or retired"
        raise rejected("nothing_to_change", "the request changes nothing", hint=hint)
    tool = await tools.show(name)
    if body.name is not None or body.description is not None:
        tool = await tools.rename(tool.name, body.name or tool.name, description=body.description, actor=actor)
    if body.pinned is not None:
        tool = await tools.pin(tool.name, pinned=body.pinned, actor=actor)
    if body.retired is not None:
        tool = await tools.retire(tool.name, retired=body.retired, actor=actor)
    return answer(tool)
