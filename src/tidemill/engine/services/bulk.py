"""Apply one action to all runs that a query finds, or to named runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Literal, get_args

import msgspec
from msgspec.structs import replace

from tidemill.engine.services.context import AnyRun, run_ids_of
from tidemill.engine.services.runs import RunService
from tidemill.errors import Rejected, offered, rejected

BulkAction = Literal["cancel", "pause", "resume", "retry", "rollback"]
RUNS_MAX = 1_000
"""Runs that one call acts on, unless the caller says otherwise."""
AT_ONCE = 50
_ACTS_ON = {
    "cancel": ("RUNNING", "PAUSED"),
    "pause": ("RUNNING",),
    "resume": ("PAUSED",),
    "retry": ("FAILED", "CANCELLED"),
    "rollback": ("COMPLETED", "FAILED", "CANCELLED"),
}
"""By action, the statuses of runs on which it may have an effect."""
_WITHOUT_EFFECT = ("run_ended", "run_completed", "run_not_ended", "rollback_done", "nothing_to_roll_back")
"""Refusals of runs for which there is nothing to do."""


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
    """The action has an effect on more runs than `limit` allows."""
    skipped: int = 0
    """Runs on which the action has no effect: they are not among `runs`."""

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

        `run_ids` names the runs instead, by id or as rows. Runs on which the action has no effect are skipped; a run
        that refuses does not stop the others. Neither counts towards `limit`. With `dry_run` nothing is done, and the
        outcome says which runs would refuse now.
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
        if not run_ids and not query.strip():
            hint = "write a query such as status:failed workflow:billing"
            raise rejected("query_empty", "an action on many runs needs a query", path="/query", hint=hint)
        runs: list[BulkRun] = []
        skipped, more = 0, False
        async for batch in self._batches(query, run_ids):
            found: list[BulkRun] = []
            rest = limit - sum(run.result != "refused" for run in runs)
            for run in await asyncio.gather(*(self._look(action, *row) for row in batch)):
                if run is None:
                    skipped += 1
                    continue
                more = run.result != "refused" and rest == 0
                if more:
                    break
                rest -= run.result != "refused"
                found.append(run)
            runs += (
                found if dry_run else await asyncio.gather(*(self._act(action, run, reason, actor) for run in found))
            )
            if more:
                break
        return BulkOutcome(action=action, runs=tuple(runs), more=more, skipped=skipped)

    async def _batches(self, query: str, run_ids: Sequence[AnyRun]) -> AsyncIterator[list[tuple[str, str, str]]]:
        """Ids, workflows and statuses of runs, as far as known; those that are being rolled back are looked at."""
        if run_ids:
            named = run_ids_of(run_ids)
            for at in range(0, len(named), AT_ONCE):
                yield [(run_id, "", "") for run_id in named[at : at + AT_ONCE]]
            return
        batch: list[tuple[str, str, str]] = []
        async for row in self._runs.iterate(query):
            batch.append((row.run_id, row.workflow, row.status if row.rollback != "running" else ""))
            if len(batch) == AT_ONCE:
                yield batch
                batch = []
        if batch:
            yield batch

    async def _look(self, action: BulkAction, run_id: str, workflow: str, status: str) -> BulkRun | None:
        """What the action would come to now; None if it has no effect on the run."""
        if status and status not in _ACTS_ON[action]:
            return None
        run = BulkRun(run_id=run_id, workflow=workflow, status=status, result="would be done")
        try:
            if not status:
                known = await self._runs.status_of(run_id)
                run = replace(run, workflow=known[0], status=known[1])
            return run if await self._runs.has_effect(action, run_id) else None
        except Rejected as refusal:
            return None if refusal.problems[0].code in _WITHOUT_EFFECT else _refused(run, refusal)

    async def _act(self, action: BulkAction, run: BulkRun, reason: str, actor: str) -> BulkRun:
        if run.result == "refused":
            return run
        try:
            await getattr(self._runs, action)(run.run_id, reason=reason, actor=actor)
        except Rejected as refusal:
            return _refused(run, refusal)
        return replace(run, result="done")


def _refused(run: BulkRun, refusal: Rejected) -> BulkRun:
    problem = refusal.problems[0]
    return replace(run, result="refused", code=problem.code, problem=problem.message)
