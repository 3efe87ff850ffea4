"""Usage of each workflow by day: one small row per day and workflow.

The commit that ends a run writes into its row what is known of it then. `UsageRollup` adds ended runs to the rows of
their days, as a maintenance task. It goes through the runs in the order of their starts, up to a minute ago, and notes
those that have not ended, to look at them again. The rows, the notes and the cursor are written in the commit that
settles the task's job, all or nothing: a task that is killed and repeated, or that lost its lease, counts no run twice.
A run counts once, on the day of its first end; what it does after a retry is not added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import date, datetime

import msgspec

from tidemill.engine.index_rows import DAY_MS, RUN, RunRow, read_run_row
from tidemill.engine.maintenance.schedule import Cursor, TaskResult, read_cursor
from tidemill.engine.run_query import Moment, read_query
from tidemill.engine.services.context import ServiceContext
from tidemill.stores.contract import Row, Store, cursor_at

USAGE = "usage"
"""Kind of the rows of days and workflows."""
UNENDED = "usage_unended"
"""Kind of the notes of runs that had not ended when the roll-up passed them."""
ROLL_UP = "usage"
"""The name of the task."""
ROLL_UP_EVERY_MS = 15_000
SETTLED_MS = 60_000
"""Runs that started later than this are left to the next roll-up: a commit under way may still add one."""
RUNS_PER_ROLL_UP = 5_000
NOTES_PER_ROLL_UP = 500
LOOKUPS_AT_ONCE = 50
PAGE = 500
UNCOUNTED_MAX = 10_000
"""Runs that are not rolled up yet and that `UsageService` adds to its answer, at most."""
DAYS = 30
TRIES_MAX = 3
"""How often rows and cursor are read until no roll-up came between."""

_ENCODE = msgspec.msgpack.Encoder().encode


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the runs of one workflow took that ended on one day, in UTC."""

    day: str
    workflow: str
    runs: int = 0
    node_ms: int = 0
    """Time that attempts of nodes took."""
    events: int = 0
    bytes: int = 0
    """Of the outputs of nodes."""
    tokens: int = 0
    """Tokens that were emitted: one for each start and each edge that was taken."""
    model_calls: int = 0
    """Calls of models by agents."""
    model_tokens: int = 0
    cached_tokens: int = 0
    """Those of them that came from the provider's cache."""
    model_cost: float = 0.0
    """In the currency of the prices."""

    def plus(self, runs: Iterable[RunRow]) -> UsageRow:
        found = list(runs)
        return msgspec.structs.replace(
            self,
            runs=self.runs + len(found),
            node_ms=self.node_ms + sum(run.work_ms for run in found),
            events=self.events + sum(run.events for run in found),
            bytes=self.bytes + sum(run.output_bytes for run in found),
            tokens=self.tokens + sum(run.tokens for run in found),
            model_calls=self.model_calls + sum(run.model_calls for run in found),
            model_tokens=self.model_tokens + sum(run.model_tokens for run in found),
            cached_tokens=self.cached_tokens + sum(run.cached_tokens for run in found),
            model_cost=round(self.model_cost + sum(run.model_cost for run in found), 6),
        )


_ROW = msgspec.msgpack.Decoder(UsageRow)


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    rows: tuple[UsageRow, ...]
    """Newest day first, then by workflow."""
    complete: bool
    """Whether runs that ended a moment ago are all included."""


def day_of(at_ms: int) -> int:
    return at_ms // DAY_MS


def day_name(day: int) -> str:
    return date.fromordinal(date(1970, 1, 1).toordinal() + day).isoformat()


def has_ended(run: RunRow) -> bool:
    return run.ended_ms is not None and run.rollback != "running"


Days = dict[tuple[int, str], list[RunRow]]
"""Ended runs by day and workflow."""


def by_day(runs: Iterable[RunRow]) -> Days:
    found: Days = {}
    for run in runs:
        if has_ended(run):
            found.setdefault((day_of(run.ended_ms or 0), run.workflow), []).append(run)
    return found


def _row_key(day: int, workflow: str) -> str:
    return f"{day}/{workflow}"


async def _row_at(store: Store, tenant: str, note: Row) -> Row | None:
    """The row of a run that was noted, found by its place in the list of all runs: the first one below `key + 1`."""
    page = await store.find(tenant, RUN, after=cursor_at((note.sort, f"{note.key}\1")), limit=1)
    return next((row for row in page.rows if row.key == note.key), None)


class UsageRollup:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self, tenant: str, cursor: Cursor) -> TaskResult:
        """Count some runs. The cursor has the window of starts that is read: above `from`, up to `to`."""
        ended, rows = list[RunRow](), list[Row]()
        window = await self._read_window(tenant, cursor, ended, rows)
        notes = await self._read_notes(tenant, cursor.get("notes"), ended, rows)
        days = by_day(ended)
        known = await self._known(tenant, days)
        for (day, workflow), runs in days.items():
            row = known.get(_row_key(day, workflow)) or UsageRow(day=day_name(day), workflow=workflow)
            rows.append(usage_row(day, row.plus(runs)))
        return TaskResult({**window, "notes": notes}, tuple(rows), more="after" in window)

    async def _read_window(self, tenant: str, cursor: Cursor, ended: list[RunRow], rows: list[Row]) -> Cursor:
        """Read runs that started within the window, newest first; returns the cursor of the next roll-up."""
        since = int(cursor.get("from", -1))
        # The clock of a store may have been set back.
        until = max(since, int(cursor.get("to", self._store.now_ms() - SETTLED_MS)))
        after: str | None = cursor.get("after") or cursor_at((until + 1, ""))
        read = 0
        while after is not None and read < RUNS_PER_ROLL_UP:
            page = await self._store.find(tenant, RUN, after=after, limit=PAGE)
            new = [row for row in page.rows if row.sort > since]
            read += len(new)
            for row in new:
                run = read_run_row(row)
                if run is not None and has_ended(run):
                    ended.append(run)
                else:
                    rows.append(Row(kind=UNENDED, key=row.key, sort=row.sort))
            after = page.after if len(new) == len(page.rows) else None
        return {"from": until} if after is None else {"from": since, "to": until, "after": after}

    async def _read_notes(self, tenant: str, after: str | None, ended: list[RunRow], rows: list[Row]) -> str | None:
        """Look again at some runs that had not ended; returns where the next roll-up continues."""
        page = await self._store.find(tenant, UNENDED, after=after, limit=NOTES_PER_ROLL_UP)
        for start in range(0, len(page.rows), LOOKUPS_AT_ONCE):
            some = page.rows[start : start + LOOKUPS_AT_ONCE]
            found = await asyncio.gather(*(_row_at(self._store, tenant, note) for note in some))
            for note, row in zip(some, found, strict=True):
                run = None if row is None else read_run_row(row)
                # A run that is gone was deleted by hand: retention keeps every run for an hour after its end.
                if row is None or (run is not None and has_ended(run)):
                    rows.append(Row(kind=UNENDED, key=note.key, sort=0, deleted=True))
                    ended += [] if run is None else [run]
        return page.after

    async def _known(self, tenant: str, days: Days) -> dict[str, UsageRow]:
        """The rows of these days and workflows, as far as there are any."""
        found: dict[str, UsageRow] = {}
        for day in {day for day, _ in days}:
            after: str | None = cursor_at((day + 1, ""))
            while after is not None:
                page = await self._store.find(tenant, USAGE, after=after, limit=PAGE)
                rows = [row for row in page.rows if row.sort == day]
                found |= {row.key: _ROW.decode(row.body) for row in rows}
                after = page.after if len(rows) == len(page.rows) else None
        return found


def usage_row(day: int, usage: UsageRow) -> Row:
    key, terms = _row_key(day, usage.workflow), (f"workflow:{usage.workflow}",)
    return Row(kind=USAGE, key=key, sort=day, terms=terms, body=_ENCODE(usage))


class UsageService:
    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def find(self, *, since: Moment | date | None = None, workflow: str | None = None) -> UsageReport:
        """Usage by day of the end and by workflow, for the last 30 days or `since` a date or `90d` ago.

        Runs that no worker has rolled up yet are included, up to 10,000 of them.
        """
        first = _first_day(since, self._context.store.now_ms())
        for _ in range(TRIES_MAX):
            cursor = await read_cursor(self._context.store, self._context.tenant, ROLL_UP)
            found = await self._rolled_up(first, workflow)
            runs, complete = await self._uncounted(cursor)
            if cursor == await read_cursor(self._context.store, self._context.tenant, ROLL_UP):
                break
        for (day, name), some in by_day(runs).items():
            if day >= first and workflow in (None, name):
                row = found.get(_row_key(day, name)) or UsageRow(day=day_name(day), workflow=name)
                found[_row_key(day, name)] = row.plus(some)
        rows = sorted(found.values(), key=lambda row: row.workflow)
        return UsageReport(rows=tuple(sorted(rows, key=lambda row: row.day, reverse=True)), complete=complete)

    async def _rolled_up(self, first: int, workflow: str | None) -> dict[str, UsageRow]:
        terms = [] if workflow is None else [f"workflow:{workflow}"]
        found: dict[str, UsageRow] = {}
        after: str | None = None
        while True:
            page = await self._context.store.find(self._context.tenant, USAGE, terms, after=after, limit=PAGE)
            found |= {row.key: _ROW.decode(row.body) for row in page.rows if row.sort >= first}
            after = page.after
            if after is None or any(row.sort < first for row in page.rows):
                return found

    async def _uncounted(self, cursor: Cursor) -> tuple[list[RunRow], bool]:
        """Runs that are not in the rows yet, and whether these are all."""
        store, tenant = self._context.store, self._context.tenant
        since, runs, read = int(cursor.get("from", -1)), list[RunRow](), 0
        # Of a window that is partly read, what was read is newer than its cursor.
        spans: list[tuple[str | None, int]] = [(None, cursor.get("to", since))]
        spans += [(cursor["after"], since)] if "after" in cursor else []
        for after, above in spans:
            while read < UNCOUNTED_MAX:
                page = await store.find(tenant, RUN, after=after, limit=PAGE)
                new = [row for row in page.rows if row.sort > above]
                read += len(new)
                runs += [run for row in new if (run := read_run_row(row)) is not None]
                after = page.after
                if after is None or len(new) < len(page.rows):
                    break
        page = await store.find(tenant, UNENDED, limit=NOTES_PER_ROLL_UP)
        notes = await asyncio.gather(*(_row_at(store, tenant, note) for note in page.rows))
        runs += [run for row in notes if row is not None and (run := read_run_row(row)) is not None]
        return runs, read < UNCOUNTED_MAX and page.after is None


def _first_day(since: Moment | date | None, now_ms: int) -> int:
    if since is None:
        return day_of(now_ms) - DAYS + 1
    if isinstance(since, date) and not isinstance(since, datetime):
        since = since.isoformat()
    bound = read_query(since=since, now_ms=now_ms).since_ms
    assert bound is not None, "it was given"
    return day_of(bound)
