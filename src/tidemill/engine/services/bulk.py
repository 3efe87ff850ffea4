"""Apply one action to all runs that a query finds, or to named runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from tidemill.engine.services.context import AnyRun, run_ids_of
from tidemill.engine.services.runs import RunService
from tidemill.errors import Rejected, offered, rejected

BulkAction = Literal["cancel", "pause", "resume", "retry", "rollback"]
RUNS_MAX = 1_000
"""Runs that one call acts on, unless the caller says otherwise."""
AT_ONCE = 50


class BulkRun(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    workflow: str
    status: str
    """Before the action."""
    result: Literal["done", "would be done", "refused"]
    code: str = ""
    problem: str = ""


class BulkOutcome(msgspec.Struct, frozen=True, kw_only=True):
    action: BulkAction
    runs: tuple[BulkRun, ...]
    more: bool = False
    """More runs match than `limit` allows."""

    @property
    def done(self) -> int:
        return sum(run.result != "refused" for run in self.runs)


class BulkService:
    def __init__(self, runs: RunService) -> None:
        self._runs = runs

    async def bulk(
        self,
        action: BulkAction,
        query: str = "",
        *,
        run_ids: Sequence[AnyRun] = (),
        limit: int = RUNS_MAX,
        dry_run: bool = False,
        reason: str = "",
        actor: str = "",
    ) -> BulkOutcome:
        """Apply an action to all runs that a query finds, newest first, at most `limit`; each separately.

        `run_ids` names the runs instead, by id or as rows. A run that refuses does not stop the others. With `dry_run`
        nothing is done, and the outcome says which runs would refuse now.
        """
        if action not in get_args(BulkAction):
            hint = offered(str(action), get_args(BulkAction))
            raise rejected("action_unknown", f"there is no action {action!r} on many runs", path="/action", hint=hint)
        if query.strip() and run_ids:
            message = "give either a query or run ids"
            raise rejected("request_invalid", message, path="/run_ids", hint="leave one out")
        if limit < 1:
            message = f"an action is applied to at least one run, not {limit}"
            raise rejected("limit_invalid", message, path="/limit", hint="leave it out for 1,000")
        if run_ids:
            named = run_ids_of(run_ids)
            rows = [(run_id, "", "") for run_id in named[:limit]]
            more = len(named) > len(rows)
        elif query.strip():
            found, after = await self._runs.find(query, limit=limit)
            rows, more = [(row.run_id, row.workflow, row.status) for row in found], after is not None
        else:
            hint = "write a query such as status:failed workflow:billing"
            raise rejected("query_empty", "an action on many runs needs a query", path="/query", hint=hint)
        runs: list[BulkRun] = []
        for at in range(0, len(rows), AT_ONCE):
            part = rows[at : at + AT_ONCE]
            runs += await asyncio.gather(*(self._act(action, *row, dry_run, reason, actor) for row in part))
        return BulkOutcome(action=action, runs=tuple(runs), more=more)

    async def _act(
        self, action: BulkAction, run_id: str, workflow: str, status: str, dry_run: bool, reason: str, actor: str
    ) -> BulkRun:
        run = BulkRun(run_id=run_id, workflow=workflow, status=status, result="would be done" if dry_run else "done")
        try:
            if not workflow:
                known = await self._runs.status_of(run_id)
                run = msgspec.structs.replace(run, workflow=known[0], status=known[1])
            if dry_run:
                await self._runs.check_allowed(action, run_id)
            else:
                await getattr(self._runs, action)(run_id, reason=reason, actor=actor)
        except Rejected as refusal:
            problem = refusal.problems[0]
            return msgspec.structs.replace(run, result="refused", code=problem.code, problem=problem.message)
        return run
