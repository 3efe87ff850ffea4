"""One action on all runs that a query finds."""

from __future__ import annotations

import asyncio
from typing import Literal, get_args

import msgspec

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
        query: str,
        *,
        limit: int = RUNS_MAX,
        dry_run: bool = False,
        reason: str = "",
        actor: str = "",
    ) -> BulkOutcome:
        """Carry out an action on all runs that a query finds, newest first, at most `limit`; each on its own.

        A run that refuses it does not stop the others. With `dry_run` nothing is done.
        """
        if action not in get_args(BulkAction):
            hint = offered(str(action), get_args(BulkAction))
            raise rejected("action_unknown", f"there is no action {action!r} on many runs", path="/action", hint=hint)
        if not query.strip():
            hint = "say which runs: status:failed workflow:billing"
            raise rejected("query_empty", "an action on many runs needs a query", path="/query", hint=hint)
        rows, after = await self._runs.find(query, limit=max(1, limit))
        found: list[BulkRun] = []
        for at in range(0, len(rows), AT_ONCE):
            part = rows[at : at + AT_ONCE]
            refusals = await asyncio.gather(
                *(self._act(action, row.run_id, dry_run, reason, actor) for row in part),
            )
            for row, refusal in zip(part, refusals, strict=True):
                known = {"run_id": row.run_id, "workflow": row.workflow, "status": row.status}
                if refusal is not None:
                    problem = refusal.problems[0]
                    found.append(BulkRun(**known, result="refused", code=problem.code, problem=problem.message))
                    continue
                found.append(BulkRun(**known, result="would be done" if dry_run else "done"))
        return BulkOutcome(action=action, runs=tuple(found), more=after is not None)

    async def _act(self, action: BulkAction, run_id: str, dry_run: bool, reason: str, actor: str) -> Rejected | None:
        if dry_run:
            return None
        try:
            await getattr(self._runs, action)(run_id, reason=reason, actor=actor)
        except Rejected as refusal:
            return refusal
        return None
