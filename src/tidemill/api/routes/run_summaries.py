"""What runs have in common: `/runs/count`, `/runs/summary`, `/runs/failures`, `/usage`; `/runs/resolve` finds one.

These paths come before `/runs/{run_id}`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Query, Response

from tidemill.api.auth import CurrentCaller, Router
from tidemill.api.protection import EXPENSIVE
from tidemill.api.routes.runs import RunQueryText
from tidemill.api.schemas import answer
from tidemill.engine.maintenance.usage import UsageReport
from tidemill.engine.run_query import BUCKETS, FailureGroups, RunSummary

router = Router()

COUNTED_MAX = 1_000_000


class RunCount(msgspec.Struct, frozen=True, kw_only=True):
    count: int


class ResolvedRun(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str


@router.on("GET", "/runs/count", may="runs:read", weight=EXPENSIVE, answers=RunCount)
async def count_runs(
    caller: CurrentCaller,
    query: RunQueryText = "",
    at_most: Annotated[int, Query(ge=1, le=COUNTED_MAX, description="Where counting ends.")] = 10_000,
) -> Response:
    """Count runs."""
    return answer(RunCount(count=await caller.services.runs.count(query, at_most=at_most)))


@router.on("GET", "/runs/summary", may="runs:read", weight=EXPENSIVE, answers=RunSummary)
async def summarise_runs(
    caller: CurrentCaller,
    query: RunQueryText = "",
    buckets: Annotated[int, Query(description="Intervals of the histogram.")] = BUCKETS,
) -> Response:
    """Facets, a histogram of starts, and groups of failures of the runs that a query finds.

    Of the newest 10,000 matches; `complete` says whether these are all.
    """
    return answer(await caller.services.runs.summary(query, buckets=buckets))


@router.on("GET", "/runs/failures", may="runs:read", weight=EXPENSIVE, answers=FailureGroups)
async def group_failures(caller: CurrentCaller, query: RunQueryText = "") -> Response:
    """The failed runs that a query finds, grouped by how they failed."""
    return answer(await caller.services.runs.failure_groups(query))


@router.on("GET", "/runs/resolve/{text}", may="runs:read", answers=ResolvedRun)
async def resolve_run(caller: CurrentCaller, text: str) -> Response:
    """The id of a run by a unique prefix, or by @last.

    A text that several ids begin with is refused.
    """
    run_id = await caller.services.runs.resolve(text)
    await caller.services.context.entry(run_id)
    return answer(ResolvedRun(run_id=run_id))


@router.on("GET", "/usage", may="usage:read", weight=EXPENSIVE, answers=UsageReport)
async def get_usage(
    caller: CurrentCaller,
    since: Annotated[str | None, Query(max_length=100, description="A date, or a time ago such as `30d`.")] = None,
    workflow: Annotated[str | None, Query(max_length=300, description="Of one workflow.")] = None,
) -> Response:
    """Runs, node-seconds, events, bytes and tokens by day and workflow."""
    return answer(await caller.services.usage.find(since=since, workflow=workflow))
