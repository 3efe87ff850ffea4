"""Runs: start them, wait for them, follow and find them. Actions on runs are in `run_actions`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from tidemill.blobs.payloads import decode_value, encode_given
from tidemill.engine.attempts.streaming import shown
from tidemill.engine.compiled import CompiledWorkflow
from tidemill.engine.corruption import require_intact
from tidemill.engine.index_rows import RUN, RunRow, read_run_row
from tidemill.engine.maintenance.schedule import insert_first
from tidemill.engine.run_cache import CachedRun
from tidemill.engine.run_query import (
    BUCKETS,
    OF_RUNS,
    SUMMARISED_MAX,
    FailureGroups,
    Moment,
    RunFacets,
    RunHistogram,
    RunQuery,
    RunSummary,
    checked_buckets,
    read_query,
    summarise,
)
from tidemill.engine.services.context import ServiceContext
from tidemill.engine.services.run_actions import RunActions
from tidemill.engine.validation import (
    Seconds,
    StartOptions,
    check_deadline,
    check_keys,
    check_labels,
    check_run_id,
    check_words,
    checked_inputs,
    timeout_of,
    with_defaults,
)
from tidemill.engine.versions import split_reference
from tidemill.engine.views import RunView, view_run
from tidemill.errors import Problem, Rejected, Unavailable, not_ended, rejected
from tidemill.kernel.codec import decode_event, plain
from tidemill.kernel.commands import AnyCommand, Start
from tidemill.kernel.events import Payload, RollbackFinished, RunCancelled, RunCompleted, RunFailed
from tidemill.observability.tracing import current_traceparent, traceparent_of
from tidemill.stores.contract import Frame, IdleCallback, Stream

TOLD_WITHIN_S = 0.25
"""How long a caller relies on the commits of its own process before it also follows the run in the store."""
START_MANY_AT_ONCE = 1_000
"""Runs that `start_many` starts with one turn."""
PROBLEMS_MAX = 100
"""Problems of inputs that `start_many` reports."""
LOOK_AGAIN_MS = 5.0
"""The share of a long run's time by which a caller may learn of its end late."""

_ENDS = {RunCompleted, RunFailed, RunCancelled, RollbackFinished}
"""Events after which a run may be over."""
LAST = "@last"
LOOKED_THROUGH = 100
"""Runs that are looked through for the one that is meant."""
NAMED_MAX = 4


class _Starts(NamedTuple):
    """Checked commands by run."""

    workflow: str
    flows: Mapping[str, CompiledWorkflow]
    """By digest; runs that are started by a tag may get several versions."""
    commands: dict[str, Start]


ITERATED_PAGE, COUNTED_PAGE = 200, 1_000


def _key_reused(path: str = "", message: str = "this key belongs to another request") -> Problem:
    return Problem(code="key_reused", message=message, path=path, hint="use a new key for a new request")


def _although_started(problems: list[Problem], number: int) -> Rejected:
    """A refusal of some of many runs, of which others were started."""
    runs = "1 other run was started" if number == 1 else f"{number} other runs were started"
    return Rejected([replace(each, message=f"{each.message}; {runs}") if number else each for each in problems])


class RunPage(NamedTuple):
    """Runs as lists show them, and the cursor of the next page; None on the last one."""

    rows: list[RunRow]
    after: str | None


class RunService(RunActions):
    def __init__(self, context: ServiceContext, user: str = "", *, begins_maintenance: bool = False) -> None:
        super().__init__(context)
        self._user = user
        self._begins_maintenance = begins_maintenance
        """Whether the first start also inserts the maintenance of the tenant: no worker here does."""

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
        """Start a run and return its id once it is durable.

        `key` makes it idempotent: the same key with the same inputs returns the same run, with others it is refused.
        Without `submitted_by` it is the user of this process. A run that has not ended after `deadline_seconds` fails.
        Its spans belong to the trace of `traceparent`, by default to that of the caller's current span.
        """
        context = self._context
        options = self._options(workflow, labels, submitted_by, correlation_id, deadline_seconds, traceparent)
        run_id = context.ambient.new_id() if key is None else key
        version = await context.catalog.resolve(context.tenant, workflow, run_id)
        flow = await context.catalog.flow(context.tenant, version.digest)
        check_run_id(run_id)
        payload = await self._checked_inputs(flow, inputs)
        stream, command = context.stream(run_id), options.command(version, payload, run_id)
        await context.limits.refresh()
        context.run_cache.note_started(stream)
        answer = await context.turns.command(stream, command, start=flow, audited=context.audited)
        if answer.problem is not None:
            raise Rejected(answer.problem)
        await self._begin_maintenance()
        if key is not None:
            await self._same_start(stream, split_reference(workflow)[0], inputs)
        return run_id

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
        """Start a run for each of the `inputs` and return their ids once all are durable.

        All inputs and keys are checked first: if one is refused, no run is started. After an error some runs may have
        started; with `keys`, one for each input, the call can be repeated.
        """
        given, named = list(inputs), None if keys is None else list(keys)
        if named is not None:
            check_keys(named, len(given))
        starts = await self._starts(
            workflow,
            given,
            named,
            labels,
            submitted_by,
            correlation_id,
            deadline_seconds,
            traceparent,
            numbers=range(len(given)),
        )
        inputs_of, known = dict(zip(starts.commands, given, strict=True)), dict[str, str]()
        if named is not None:
            for at in range(0, len(named), START_MANY_AT_ONCE):
                known |= await self.started_by(named[at : at + START_MANY_AT_ONCE])
            if problems := await self._taken(starts.workflow, inputs_of, known):
                raise Rejected(problems[:PROBLEMS_MAX])
        created, refused = await self._start(starts)
        # Other calls may have started runs with these keys in between.
        late = {run_id: "" if run_id in refused else run_id for run_id in inputs_of.keys() - known.keys() - created}
        if problems := await self._taken(starts.workflow, inputs_of, late):
            raise _although_started(problems[:PROBLEMS_MAX], len(created))
        return list(inputs_of)

    async def start_requests(
        self,
        workflow: str,
        inputs: Sequence[Any],
        *,
        run_ids: Sequence[str],
        requests: Sequence[str],
        dry_run: bool = False,
        labels: Mapping[str, str] | None = None,
        submitted_by: str = "",
        correlation_id: str = "",
        deadline_seconds: Seconds | None = None,
        traceparent: str = "",
    ) -> list[bool]:
        """Start runs under ids that follow from the keys of requests, and return which of them are new.

        `requests` are digests of all that was asked for, one for each run: a run that another request has started is
        refused (`key_reused`), and nothing is started then. With `dry_run` nothing is started at all.
        """
        known, many = await self.started_by(run_ids), len(run_ids) > 1
        numbered = enumerate(zip(run_ids, requests, strict=True))
        taken = [number for number, (run_id, request) in numbered if known.get(run_id, request) != request]
        if taken:
            raise Rejected([_key_reused(f"/keys/{number}" if many else "") for number in taken])
        new = [number for number, run_id in enumerate(run_ids) if run_id not in known]
        created: set[str] = set()
        if new:
            starts = await self._starts(
                workflow,
                [inputs[number] for number in new],
                [run_ids[number] for number in new],
                labels,
                submitted_by,
                correlation_id,
                deadline_seconds,
                traceparent,
                [requests[number] for number in new],
                new if many else None,
            )
            created, refused = (set[str](), set[str]()) if dry_run else await self._start(starts)
            if refused:
                # Another request with the same key came in between.
                lost = [number for number in new if run_ids[number] in refused]
                problems = [_key_reused(f"/keys/{number}" if many else "") for number in lost]
                raise _although_started(problems, len(created))
        return [run_id in created for run_id in run_ids]

    async def started_by(self, run_ids: Sequence[str]) -> dict[str, str]:
        """The requests that have started these runs, as far as they exist."""
        streams = {self._context.stream(run_id): 0 for run_id in run_ids}
        tails = await self._context.store.load(streams, snapshots=False, limit=1)
        firsts = {tail.stream.key: decode_event(require_intact(tail).records[0]) for tail in tails if tail.version}
        return {run_id: (first.command or "").removeprefix("start:") for run_id, first in firsts.items()}

    async def _starts(
        self,
        workflow: str,
        inputs: Sequence[Any],
        keys: Sequence[str] | None,
        labels: Mapping[str, str] | None,
        submitted_by: str,
        correlation_id: str,
        deadline_seconds: Seconds | None,
        traceparent: str,
        requests: Sequence[str] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> _Starts:
        """`numbers` are the places of the inputs in what the caller gave; None: there is one."""
        context = self._context
        options = self._options(workflow, labels, submitted_by, correlation_id, deadline_seconds, traceparent)
        run_ids = [context.ambient.new_id() for _ in inputs] if keys is None else keys
        # If several versions share a tag, the id of a run decides which of them it gets.
        versions = await context.catalog.resolve_each(context.tenant, workflow, run_ids)
        flows = {digest: await context.catalog.flow(context.tenant, digest) for digest in {v.digest for v in versions}}
        commands: dict[str, Start] = {}
        problems: list[Problem] = []
        for number, (run_id, version, value) in enumerate(zip(run_ids, versions, inputs, strict=True)):
            check_run_id(run_id)
            try:
                payload = await self._checked_inputs(flows[version.digest], value)
            except Rejected as refusal:
                if numbers is None:
                    raise
                at = numbers[number]
                problems += [replace(each, path=f"/inputs/{at}{each.path[7:]}") for each in refusal.problems]
                continue
            request = run_id if requests is None else requests[number]
            commands[run_id] = options.command(version, payload, request)
        if problems:
            raise Rejected(problems[:PROBLEMS_MAX])
        return _Starts(split_reference(workflow)[0], flows, commands)

    def _options(
        self,
        workflow: str,
        labels: Mapping[str, str] | None,
        submitted_by: str,
        correlation_id: str,
        deadline_seconds: Seconds | None,
        traceparent: str,
    ) -> StartOptions:
        self._context.check_actor(submitted_by)
        marks, submitted_by = check_labels(labels) if labels else {}, submitted_by or self._user
        check_words(submitted_by=submitted_by, correlation_id=correlation_id)
        deadline_ms, trace = check_deadline(deadline_seconds), traceparent_of(traceparent) or current_traceparent()
        return StartOptions(workflow, marks, submitted_by, correlation_id, trace, deadline_ms)

    async def _checked_inputs(self, flow: CompiledWorkflow, inputs: Any) -> Payload:
        context = self._context
        return await checked_inputs(
            context.tenant, inputs, flow.workflow.inputs, context.blobs, context.input_bytes_max
        )

    async def _start(self, starts: _Starts) -> tuple[set[str], set[str]]:
        """Commit starts, and return which runs are new, and which exist; others were started by the same start."""
        context, created, refused = self._context, set[str](), set[str]()
        waiting: dict[str, list[tuple[Stream, AnyCommand]]] = {}
        for run_id, command in starts.commands.items():
            waiting.setdefault(command.digest, []).append((context.stream(run_id), command))
        for digest, streams in waiting.items():
            for at in range(0, len(streams), START_MANY_AT_ONCE):
                some, flow = streams[at : at + START_MANY_AT_ONCE], starts.flows[digest]
                await context.limits.refresh()
                context.run_cache.note_started(*(stream for stream, _ in some))
                answers = await context.turns.commands(some, start=flow, audited=context.audited)
                for (stream, _), answer in zip(some, answers, strict=True):
                    if answer.problem is not None and answer.problem.code != "run_exists":
                        raise Rejected(answer.problem)
                    if not answer.repeated:
                        (created if answer.problem is None else refused).add(stream.key)
                await self._begin_maintenance()
        return created, refused

    async def _begin_maintenance(self) -> None:
        if self._begins_maintenance:
            self._begins_maintenance = False
            await insert_first(self._context.store, self._context.tenant)

    async def _taken(self, workflow: str, inputs: Mapping[str, Any], known: Mapping[str, str]) -> list[Problem]:
        """Problems of keys that belong to other runs, by their places; `known` has the requests of those that exist."""
        problems: list[Problem] = []
        for number, (run_id, value) in enumerate(inputs.items()):
            path = f"/keys/{number}"
            if known.get(run_id, run_id) != run_id:
                problems.append(_key_reused(path))
            elif run_id in known:
                try:
                    await self._same_start(self._context.stream(run_id), workflow, value)
                except Rejected as refusal:
                    problems += [replace(each, path=path) for each in refusal.problems]
        return problems

    async def _same_start(self, stream: Stream, workflow: str, inputs: Any) -> None:
        """Refuse a key that was used for another workflow or other inputs, or by a run of another origin."""
        # Defaults are those of the version that the run was started with, not of a newer one.
        entry = await self._context.entry(stream.key)
        state, given = entry.state, with_defaults(inputs, entry.flow.workflow.inputs)
        foreign = state.parent is not None or state.forked_from is not None
        text, known = encode_given(given), await self._context.text(state.inputs)
        # The order of keys does not matter.
        same = known == text or decode_value(known) == decode_value(text)
        if foreign or state.workflow != workflow or not same:
            other = f"of another workflow ({state.workflow})" if state.workflow != workflow else "with other inputs"
            raise Rejected(_key_reused(message=f"key {stream.key} belongs to a run {other}"))

    async def result(
        self,
        run_id: str,
        *,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - as callers guess it
        timeout_s: Seconds | None = None,
    ) -> RunView:
        """Wait until the run has ended and show it.

        After `timeout` seconds (`timeout_s` is the same) it raises TimeoutError; the run continues all the same.
        """
        seconds = timeout_of(timeout, timeout_s)
        try:
            async with asyncio.timeout(seconds) as limit:
                entry = await self._end(run_id)
        except TimeoutError:
            if not limit.expired():
                raise
            raise not_ended(run_id, seconds) from None
        return await view_run(self._context.stream(run_id), entry.state, entry.flow, self._context.blobs)

    async def _end(self, run_id: str) -> CachedRun:
        """Wait until the run has ended."""
        # What this process knows of a run may be old, but never too new to follow it from there.
        self._context.run_cache.forget_unseen()
        stream = self._context.stream(run_id)
        entry = self._context.run_cache.get(stream) or await self._context.entry(run_id)
        if entry.state.busy:
            entry = await self._context.turns.end_in_this_process(stream, TOLD_WITHIN_S) or entry
        return await self._ended(run_id, entry.state.seq) if entry.state.busy else entry

    async def follow(
        self, run_id: str, after: int = 0, *, live: bool = False, awaited: bool = False
    ) -> AsyncIterator[dict[str, Any]]:
        """The run's events from `after` + 1 on, as they are committed; ends with the run.

        With `live` also what handlers show meanwhile: `NodeStreamed` with a part of a result, `NodeProgressed`. Those
        have no `seq` and are not kept, and a slow reader may miss some. An `awaited` run may start later: who follows
        it before it starts misses nothing.
        """
        entry = None if awaited else await self._context.entry(run_id)
        if entry is not None and not 0 <= after <= entry.state.seq:
            message = f"the run has events 1 to {entry.state.seq}, so nothing can be followed after {after}"
            hint = "pass the seq of the last event you have seen"
            raise rejected("cursor_invalid", message, path="/after", hint=hint)
        if entry is not None and not entry.state.busy and after >= entry.state.seq:
            return
        # Behind the end of a run there may be late results that were discarded, and nothing after them.
        last = None if entry is None or entry.state.busy else entry.state.seq
        async with aclosing(self._frames(run_id, after, live=live)) as frames:
            async for frame in frames:
                seq = frame.version
                if not seq:
                    for live_event in shown(frame.body):
                        yield live_event
                    continue
                event = decode_event(frame.body)
                yield plain(event, seq)
                if seq == last or (last is None and type(event) in _ENDS and await self._over(run_id, seq)):
                    return

    async def _ended(self, run_id: str, after: int) -> CachedRun:
        """Wait for the end of a run without following it, so that many callers can wait for many runs."""
        begun = self._context.ambient.monotonic_ms()

        async def breathe() -> None:
            """Poll a long run less often: the caller learns of its end at most a twentieth later."""
            late_ms = min(LOOK_AGAIN_MS, (self._context.ambient.monotonic_ms() - begun) / 20)
            if late_ms > 0.5:
                await self._context.ambient.sleep(late_ms)

        async with aclosing(self._frames(run_id, after, breathe)) as frames:
            async for frame in frames:
                if frame.version and type(decode_event(frame.body)) in _ENDS:
                    over = await self._over(run_id, frame.version)
                    if over is not None:
                        return over
        raise Unavailable("the store was closed before the run ended")

    def _frames(
        self, run_id: str, after: int, breath: IdleCallback | None = None, *, live: bool = False
    ) -> AsyncGenerator[Frame, None]:
        """Yield committed events after `after`, and live frames, without end."""
        frames = self._context.store.follow(self._context.stream(run_id), after, breath, live=live)
        return cast(AsyncGenerator[Frame, None], frames)

    async def _over(self, run_id: str, seq: int) -> CachedRun | None:
        """The run, if an event is its last: it is neither reopened after it nor being rolled back."""
        entry = await self._context.entry(run_id)
        return None if entry.state.busy or seq < entry.state.ended_seq else entry

    async def find(
        self,
        query: str | Iterable[str] = "",
        *,
        terms: Iterable[str] = (),
        status: str | None = None,
        workflow: str | None = None,
        label: str | Mapping[str, str] | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> RunPage:
        """A page of the runs that meet all conditions, newest first, and the cursor of the next page.

        `query` is text (`"status:failed label.customer=acme started>-2h"`) or a list of conditions, as `terms` is; the
        arguments by name are conditions too. `since` and `until` take `"2h"` (ago), a date, or Python's `datetime` and
        `timedelta`. Raises Rejected with everything that is not understood.
        """
        wanted = await self._query(query, terms, status, workflow, label, since, until)
        return await (self._first(wanted, limit, after) if wanted.top else self._page(wanted, after, limit))

    async def iterate(
        self,
        query: str | Iterable[str] = "",
        *,
        terms: Iterable[str] = (),
        status: str | None = None,
        workflow: str | None = None,
        label: str | Mapping[str, str] | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> AsyncIterator[RunRow]:
        """Every run that meets all conditions of `find`, newest first, read a page at a time."""
        wanted = await self._query(query, terms, status, workflow, label, since, until)
        after: str | None = None
        while True:
            rows, after = await self._page(wanted, after, ITERATED_PAGE)
            for row in rows:
                yield row
            if after is None:
                return
            # A store that never suspends must not keep the rest of the process waiting.
            await asyncio.sleep(0)

    async def count(
        self,
        query: str | Iterable[str] = "",
        *,
        terms: Iterable[str] = (),
        status: str | None = None,
        workflow: str | None = None,
        label: str | Mapping[str, str] | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        at_most: int = 10_000,
    ) -> int:
        """How many runs meet all conditions of `find`, counted up to `at_most`."""
        wanted = await self._query(query, terms, status, workflow, label, since, until)
        if at_most < 1:
            raise rejected("limit_invalid", f"runs are counted up to 1 or more, not {at_most}", path="/at_most")
        if wanted.since_ms is None and wanted.before_ms is None and not wanted.top:
            return await self._context.store.count(self._context.tenant, RUN, wanted.terms, at_most=at_most)
        return len((await self._first(wanted, at_most))[0])

    async def summary(self, query: str | Iterable[str] = "", *, buckets: int = BUCKETS) -> RunSummary:
        """Summarise the runs that a query finds: facets, a histogram of their starts, groups of failures.

        One scan of the newest 10,000 matches; `complete` says whether these are all. If not, numbers are lower bounds.
        """
        return await self._summarised(query, (), buckets)

    async def facets(self, query: str | Iterable[str] = "") -> RunFacets:
        """How many of the runs that a query finds have which status, workflow, version and labels; see `summary`."""
        return (await self._summarised(query, (), BUCKETS)).facets

    async def histogram(self, query: str | Iterable[str] = "", buckets: int = BUCKETS) -> RunHistogram:
        """When the runs that a query finds were started, in intervals of the same length; see `summary`."""
        return (await self._summarised(query, (), buckets)).histogram

    async def failure_groups(self, query: str | Iterable[str] = "") -> FailureGroups:
        """The failed runs that a query finds, grouped by how they failed, the most frequent first; see `summary`."""
        return (await self._summarised(query, ("status:failed",), BUCKETS)).failures

    async def _summarised(self, query: str | Iterable[str], terms: Iterable[str], buckets: int) -> RunSummary:
        wanted = await self._query(query, terms)
        checked_buckets(buckets)
        async with self._context.summarising:
            rows, after = await self._first(wanted, SUMMARISED_MAX)
        return summarise(rows, wanted, buckets, self._context.store.now_ms(), complete=after is None)

    async def _first(self, wanted: RunQuery, at_most: int, after: str | None = None) -> RunPage:
        """The newest rows that are wanted, and where others begin."""
        rows = list[RunRow]()
        while True:
            found, after = await self._page(wanted, after, min(COUNTED_PAGE, at_most - len(rows)))
            rows += found
            if after is None or len(rows) >= at_most:
                return RunPage(rows, after)
            # Other requests are answered in between.
            await asyncio.sleep(0)

    async def _query(self, query: str | Iterable[str], terms: Iterable[str], *named: Any) -> RunQuery:
        """What `find` asks for, by the values of its conditions in their order; the store's clock dates starts."""
        now = self._context.store.now_ms()
        status, workflow, label, since, until = named or (None,) * 5
        fields = {"status": status, "workflow": workflow}
        wanted = read_query(query, terms=terms, named=fields, label=label, since=since, until=until, now_ms=now)
        return replace(wanted, terms=tuple([await self._with_run_id(term) for term in wanted.terms]))

    async def _with_run_id(self, term: str) -> str:
        """A term with the whole id of the run that its prefix names; refused if there is no such run."""
        name, _, text = term.partition(":")
        if name not in OF_RUNS or (await self._context.page(RUN, (term,), None, 1)).rows:
            return term
        run_id = await self.resolve(text)
        await self._context.tail(run_id, 0, 1)
        return f"{name}:{run_id}"

    async def _page(self, query: RunQuery, after: str | None, limit: int) -> RunPage:
        page = await self._context.page(RUN, query.terms, after, limit, since=query.since_ms, before=query.before_ms)
        shown = (read_run_row(row) for row in page.rows if query.accepts(row))
        return RunPage([row for row in shown if row is not None], page.after)

    async def resolve(self, text: str) -> str:
        """The id of a run by a unique prefix; `@last` is the newest run that is not a child.

        Returns the text itself if it names no run.
        """
        context = self._context
        if not text:
            raise rejected("run_unknown", "the id of a run is empty", hint=f"the newest run is {LAST}")
        if text == LAST:
            rows, _ = await self.find(limit=LOOKED_THROUGH)
            newest = next((row for row in rows if not row.parent), next(iter(rows), None))
            if newest is None:
                raise rejected("run_unknown", "there is no run yet", hint="start one with `tidemill run` or `start`")
            return newest.run_id
        stream = context.stream(text)
        (tail,) = await context.store.load({stream: 0}, snapshots=False, limit=1)
        if tail.version:
            return text
        streams = await context.store.streams(RUN, after=stream, limit=LOOKED_THROUGH)
        ids = [each.key for each in streams if each.tenant == stream.tenant and each.key.startswith(text)]
        # The ids of children begin with that of their parent.
        found = [key for key in ids if not any(key.startswith(f"{other}.") for other in ids)]
        if len(found) > 1:
            hint = f"type more characters: {', '.join(found[:NAMED_MAX])}{', …' if len(found) > NAMED_MAX else ''}"
            raise rejected("run_ambiguous", f"{len(found)} run ids start with {text}", hint=hint)
        if not found and text.startswith("@"):
            raise rejected("run_unknown", f"there is no run {text}", hint=f"the newest run is {LAST}")
        return found[0] if found else text
