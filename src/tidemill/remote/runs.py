"""Runs over HTTP: start, wait, follow, find, act, inspect and patch."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, cast
from urllib.parse import quote
from uuid import uuid4

import msgspec

from tidemill.engine.attempts.log_store import LogLine
from tidemill.engine.index_rows import RunRow
from tidemill.engine.run_query import (
    BUCKETS,
    FailureGroups,
    Moment,
    RunFacets,
    RunHistogram,
    RunSummary,
    checked_buckets,
    quoted,
    read_query,
    workflow_name,
)
from tidemill.engine.services.bulk import RUNS_MAX, BulkAction, BulkOutcome, BulkService
from tidemill.engine.services.context import AnyRun, run_ids_of
from tidemill.engine.services.inspection import InspectionService
from tidemill.engine.services.patches import PatchService
from tidemill.engine.services.run_actions import UNSET
from tidemill.engine.services.runs import LAST, RunPage, RunService
from tidemill.engine.validation import Seconds, check_keys, in_seconds, timeout_of
from tidemill.engine.views import RunView
from tidemill.errors import Problem, Rejected, ServerUnavailable, Unavailable, not_ended, rejected
from tidemill.kernel.model import decode_workflow
from tidemill.observability.tracing import current_traceparent, traceparent_of
from tidemill.remote.connection import PATIENCE_S, TIMEOUT_S, CutOff, frames, pause_s, received
from tidemill.remote.requests import (
    BATCH,
    BATCH_BYTES,
    LOG_LINES,
    LOOK_S,
    PAGE,
    WAIT_S,
    RemoteService,
    Route,
    given_only,
    json_value,
)


def query_text(
    query: str | Iterable[str] = "",
    *,
    terms: Iterable[str] = (),
    status: str | None = None,
    workflow: str | None = None,
    label: str | Mapping[str, str] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
) -> str:
    """The arguments of `find` as one text of the query language. Raises Rejected as `find` does."""
    query, terms = query if isinstance(query, str) else list(query), list(terms)
    named = {"status": status, "workflow": workflow_name(workflow)}
    now_ms = int(time.time() * 1_000)
    read_query(query, terms=terms, named=named, label=label, since=since, until=until, now_ms=now_ms)
    conditions = [query] if isinstance(query, str) else [quoted(each) for each in query]
    conditions += [quoted(each) for each in terms]
    conditions += [quoted(f"{name}:{value}") for name, value in named.items() if value is not None]
    labels = [label] if isinstance(label, str) else [f"{key}={value}" for key, value in (label or {}).items()]
    conditions += [quoted(f"label.{each}") for each in labels]
    conditions += [f"started>={_moment(since)}"] if since is not None else []
    conditions += [f"started<{_moment(until)}"] if until is not None else []
    return " ".join(filter(None, conditions))


def _moment(moment: Moment) -> str:
    if isinstance(moment, timedelta):
        return f"-{abs(moment.total_seconds()):.3f}s"
    if isinstance(moment, datetime):
        return moment.isoformat()
    return f"-{moment}" if moment[:1].isdecimal() and moment[-1:].isalpha() and "T" not in moment else moment


def _batches(runs: list[dict[str, Any]]) -> list[tuple[int, list[dict[str, Any]]]]:
    """Runs as single requests may have them, each with the place of its first."""
    found: list[tuple[int, list[dict[str, Any]]]] = []
    size = 0
    for number, run in enumerate(runs):
        length = len(memoryview(run["inputs"]))
        if not found or len(found[-1][1]) == BATCH or size + length > BATCH_BYTES:
            found.append((number, []))
            size = 0
        found[-1][1].append(run)
        size += length
    return found


def _as_given(problem: Problem, begin: int) -> Problem:
    """A problem of one run of a batch, with its path in the arguments of `start_many`."""
    found = re.match(r"/runs/([0-9]+)/(inputs|key)", problem.path)
    if found is None:
        return problem
    name = "inputs" if found[2] == "inputs" else "keys"
    path = f"/{name}/{begin + int(found[1])}{problem.path[found.end() :]}"
    return msgspec.structs.replace(problem, path=path)


def _trace_header(traceparent: str) -> dict[str, str]:
    trace = traceparent_of(traceparent) or current_traceparent()
    return {"traceparent": trace} if trace else {}


class RemoteRuns(RemoteService):
    SERVICE = RunService
    ROUTES: ClassVar[Mapping[str, Route]] = {
        **{
            name: Route("POST", f"/runs/{{run_id}}/{name}")
            for name in ("cancel", "pause", "resume", "retry", "rewind", "rollback", "relabel")
        },
    }

    async def start(
        self,
        workflow: str,
        inputs: Any = None,
        *,
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
        submitted_by: str = "",
        correlation_id: str = "",
        deadline_seconds: Seconds | None = None,
        traceparent: str = "",
    ) -> str:
        body = {
            "workflow": workflow,
            "inputs": json_value(inputs, "inputs_not_json", "/inputs"),
            "labels": dict(labels or {}),
            "correlation_id": correlation_id,
            "deadline_seconds": in_seconds(deadline_seconds),
        }
        headers = {"Idempotency-Key": uuid4().hex if key is None else key, **_trace_header(traceparent)}
        started = await self._ask(Route("POST", "/runs"), body, headers)
        return str(started["run_id"])

    async def start_many(
        self,
        workflow: str,
        inputs: Iterable[Any],
        *,
        keys: Iterable[str] | None = None,
        labels: Mapping[str, str] | None = None,
        submitted_by: str = "",
        correlation_id: str = "",
        deadline_seconds: Seconds | None = None,
        traceparent: str = "",
    ) -> list[str]:
        given = list(inputs)
        named = [uuid4().hex for _ in given] if keys is None else list(keys)
        check_keys(named, len(given))
        shared = {
            "workflow": workflow,
            "labels": dict(labels or {}),
            "correlation_id": correlation_id,
            "deadline_seconds": in_seconds(deadline_seconds),
        }
        runs = [
            {"inputs": json_value(value, "inputs_not_json", f"/inputs/{number}"), "key": key}
            for number, (value, key) in enumerate(zip(given, named, strict=True))
        ]
        run_ids: list[str] = []
        batches, headers = _batches(runs), _trace_header(traceparent)
        # All inputs are checked before the first run starts, also where it takes several requests.
        for dry_run in (True, False) if len(batches) > 1 else (False,):
            for at, batch in batches:
                body = {**shared, "runs": batch, "dry_run": dry_run}
                try:
                    answer = await self._ask(Route("POST", "/runs/batch"), body, headers)
                except Rejected as refusal:
                    raise Rejected([_as_given(each, at) for each in refusal.problems]) from None
                run_ids += [each["run_id"] for each in answer["runs"]]
        return run_ids

    async def signal(
        self, run_id: str, name: str, payload: Any = None, *, signal_id: str | None = None, actor: str = ""
    ) -> str:
        body = {
            "run_id": run_id,
            "name": name,
            "payload": json_value(payload, "payload_not_json", "/payload"),
            "signal_id": uuid4().hex if signal_id is None else signal_id,
        }
        return str((await self._ask(Route("POST", "/runs/{run_id}/signal"), body))["signal_id"])

    async def result(
        self,
        run_id: str,
        *,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - as callers guess it
        timeout_s: Seconds | None = None,
    ) -> RunView:
        seconds = timeout_of(timeout, timeout_s)
        loop = asyncio.get_running_loop()
        until = None if seconds is None else loop.time() + seconds
        path = f"/runs/{quote(run_id, safe='')}/result"
        while True:
            left = WAIT_S if until is None else min(WAIT_S, max(0.0, until - loop.time()))
            response = await self._connection.ask("GET", path, query={"timeout": left}, timeout=left + TIMEOUT_S)
            if response.status_code != 202:
                return RunView.from_dict(msgspec.json.decode(response.content))
            if until is not None and loop.time() >= until:
                raise not_ended(run_id, seconds)

    async def follow(
        self, run_id: str, after: int = 0, *, live: bool = False, awaited: bool = False
    ) -> AsyncIterator[dict[str, Any]]:
        last, path = after, f"/runs/{quote(run_id, safe='')}/stream"
        loop, attempt = asyncio.get_running_loop(), 0
        heard = loop.time()
        while True:
            asked = {"query": {"live": str(live).lower()}, "headers": {"Last-Event-ID": str(last)}}
            try:
                async with self._connection.stream(path, **asked) as response:
                    if response.status_code >= 400:
                        await response.aread()
                        self._connection.raise_problem(response)
                    attempt, heard = 0, loop.time()
                    async for kind, seq, data in frames(response):
                        heard = loop.time()
                        if kind == "end":
                            return
                        if seq is not None:
                            last = seq
                            yield data
                        elif live and kind == "live":
                            yield data
            except (CutOff, Unavailable) as error:
                # The next request continues after the last event.
                if loop.time() - heard > PATIENCE_S:
                    raise ServerUnavailable(f"the server at {self._connection.url} does not answer: {error}") from error
            except Rejected as refusal:
                if not awaited or refusal.code != "run_unknown":
                    raise
                heard = loop.time()
            attempt += 1
            await asyncio.sleep(pause_s(attempt))

    async def find(
        self, query: str | Iterable[str] = "", *, after: str | None = None, limit: int = 50, **more: Any
    ) -> RunPage:
        asked = {"query": query_text(query, **more), "after": after, "limit": limit}
        page = await self._page(Route("GET", "/runs"), given_only(asked))
        return RunPage(received(list[RunRow], page["items"]), page["next"])

    async def iterate(self, query: str | Iterable[str] = "", **more: Any) -> AsyncIterator[RunRow]:
        after: str | None = None
        while True:
            rows, after = await self.find(query, after=after, limit=PAGE, **more)
            for row in rows:
                yield row
            if after is None:
                return

    async def count(self, query: str | Iterable[str] = "", *, at_most: int = 10_000, **more: Any) -> int:
        asked = {"query": query_text(query, **more), "at_most": at_most}
        return int((await self._ask(Route("GET", "/runs/count"), asked))["count"])

    async def summary(self, query: str | Iterable[str] = "", *, buckets: int = BUCKETS) -> RunSummary:
        asked = {"query": query_text(query), "buckets": checked_buckets(buckets)}
        return cast(RunSummary, received(RunSummary, await self._ask(Route("GET", "/runs/summary"), asked)))

    async def facets(self, query: str | Iterable[str] = "") -> RunFacets:
        return (await self.summary(query)).facets

    async def histogram(self, query: str | Iterable[str] = "", buckets: int = BUCKETS) -> RunHistogram:
        return (await self.summary(query, buckets=buckets)).histogram

    async def failure_groups(self, query: str | Iterable[str] = "") -> FailureGroups:
        asked = {"query": query_text(query)}
        return cast(FailureGroups, received(FailureGroups, await self._ask(Route("GET", "/runs/failures"), asked)))

    async def resolve(self, text: str) -> str:
        if not text:
            return text
        try:
            return str((await self._ask(Route("GET", "/runs/resolve/{text}"), {"text": text}))["run_id"])
        except Rejected as refusal:
            if refusal.code != "run_unknown" or text == LAST:
                raise
            return text

    async def override(self, run_id: str, node: str, *, value: Any = UNSET, **more: Any) -> None:
        body = {"command_id": uuid4().hex, "run_id": run_id, "node": node, **given_only(more)}
        if value is not UNSET:
            body["value"] = json_value(value, "value_not_json", "/value")
        await self._ask(Route("POST", "/runs/{run_id}/override"), body)


class RemoteBulk(RemoteService):
    SERVICE = BulkService

    async def bulk(
        self,
        action: BulkAction,
        query: str = "",
        *,
        run_ids: Sequence[AnyRun] = (),
        limit: int = RUNS_MAX,
        **given: Any,
    ) -> BulkOutcome:
        call = partial(self._call, BulkService.bulk, Route("POST", "/runs/bulk", repeats=False))
        ids = run_ids_of(run_ids)
        # More than one request may act on: the runs are found first, and named in several.
        is_found_here = limit > RUNS_MAX and bool(query.strip()) and not ids
        parts = self._found(query) if is_found_here else _parts(ids)
        outcomes: list[BulkOutcome] = []
        more, rest = False, limit
        async for part in parts:
            more = more or (bool(outcomes) and rest == 0)
            if more:
                break
            asked = {"run_ids": part, "limit": min(rest, RUNS_MAX), **given}
            outcomes.append(await call((action, "" if is_found_here else query), asked))
            rest, more = rest - outcomes[-1].done, outcomes[-1].more
        runs = tuple(run for each in outcomes for run in each.runs)
        return BulkOutcome(action=action, runs=runs, more=more, skipped=sum(each.skipped for each in outcomes))

    async def _found(self, query: str) -> AsyncIterator[list[str]]:
        ids: list[str] = []
        async for row in RemoteRuns(self._connection).iterate(query):
            ids.append(row.run_id)
            if len(ids) == RUNS_MAX:
                yield ids
                ids = []
        if ids:
            yield ids


async def _parts(ids: Sequence[str]) -> AsyncIterator[Sequence[str]]:
    """Ids for one request after another; none for one request with a query."""
    for at in range(0, len(ids) or 1, RUNS_MAX):
        yield ids[at : at + RUNS_MAX]


class RemoteInspection(RemoteService):
    SERVICE = InspectionService
    ROUTES: ClassVar[Mapping[str, Route]] = {
        "path": Route("GET", "/runs/{run_id}/path"),
        "tokens": Route("GET", "/runs/{run_id}/tokens"),
        "why": Route("GET", "/runs/{run_id}/why"),
        "why_node": Route("GET", "/runs/{run_id}/why/{node}"),
        "compare": Route("GET", "/runs/{run_id}/compare/{other_id}"),
        "transcript": Route("GET", "/runs/{run_id}/nodes/{node}/transcript"),
    }

    async def show(self, run_id: str, *, at: int | None = None) -> RunView:
        shown = await self._ask(
            Route("GET", "/runs/{run_id}"), given_only({"run_id": run_id, "at": at, "graph": "true"})
        )
        view = RunView.from_dict(shown)
        view.graph = decode_workflow(msgspec.json.encode(shown["graph"]))
        view.traces = {
            name: (spent_ms, None if edges is None else tuple(edges))
            for name, (spent_ms, edges) in shown["traces"].items()
        }
        return view

    async def events(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
        if after < 0:
            raise rejected("cursor_invalid", "events are counted from 1", path="/after")
        events: list[dict[str, Any]] = []
        route = Route("GET", "/runs/{run_id}/events")
        while limit is None or len(events) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(events))
            page = await self._ask(route, {"run_id": run_id, "after": after, "limit": size})
            events += page["items"]
            if page["next"] is None:
                break
            after = int(page["next"])
        return events

    async def logs(self, run_id: str, node: str | None = None, **more: Any) -> list[LogLine]:
        asked = {"limit": LOG_LINES, **given_only({"run_id": run_id, "node": node, **more})}
        found = await self._ask(Route("GET", "/runs/{run_id}/logs"), asked)
        return cast(list[LogLine], received(list[LogLine], found["items"]))

    async def follow_logs(self, run_id: str, node: str | None = None, **more: Any) -> AsyncIterator[LogLine]:
        last: LogLine | None = None
        while True:
            # Checked first: lines from before the end are written before the end is reported.
            view = await self._ask(Route("GET", "/runs/{run_id}"), {"run_id": run_id})
            over = view["ended_ms"] is not None and view["rollback"]["status"] != "running"
            lines = await self.logs(run_id, node, **more)
            known = len(lines) - lines[::-1].index(last) if last in lines else 0
            for line in lines[known:]:
                last = line
                yield line
            if over:
                return
            await asyncio.sleep(LOOK_S)


class RemotePatches(RemoteService):
    SERVICE = PatchService
    ROUTES: ClassVar[Mapping[str, Route]] = {
        "document": Route("GET", "/runs/{run_id}/document"),
        "patch": Route("POST", "/runs/{run_id}/patch"),
    }

    async def fork(self, run_id: str, *, key: str | None = None, **more: Any) -> str:
        headers = {"Idempotency-Key": key or uuid4().hex}
        route = Route("POST", "/runs/{run_id}/fork")
        return str((await self._ask(route, {"run_id": run_id, **given_only(more)}, headers))["run_id"])
