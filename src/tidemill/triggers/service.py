"""Schedules, as callers see them: create, change, pause, look up, and start a run beside the due times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, get_args

import msgspec

from tidemill.blobs.payloads import NotJson, decode_value, encode_given
from tidemill.engine.engine import Engine, named
from tidemill.engine.index_rows import SCHEDULE
from tidemill.engine.maintenance.schedule import insert_first
from tidemill.engine.run_query import checked_terms
from tidemill.engine.services.context import ServiceContext
from tidemill.engine.services.run_actions import UNSET
from tidemill.engine.services.runs import RunService
from tidemill.engine.validation import check_labels, check_words, checked_inputs
from tidemill.engine.versions import is_name
from tidemill.errors import Problem, Rejected, Unavailable, offered, rejected
from tidemill.kernel.document.problems import shown
from tidemill.stores.contract import Committed
from tidemill.triggers.schedules import (
    CatchUp,
    Change,
    Overlap,
    Schedule,
    ScheduleDeleted,
    SchedulePaused,
    ScheduleResumed,
    ScheduleSet,
    ScheduleSpec,
    ScheduleTriggered,
    load_schedule,
    next_commit,
    read_schedule_row,
    stream_of,
)
from tidemill.triggers.times import Timing, read_cron, read_duration, read_moment, read_zone, upcoming, utc_text

NAME_LENGTH_MAX = 100
INPUTS_BYTES_MAX = 65_536
TIMES_SHOWN = 5
TIMES_MAX = 100
HORIZON_MS = 100 * 366 * 86_400_000
"""How far ahead due times are listed: a rare one would be looked for through centuries."""
RACES_MAX = 16
NAMES_MAX = 1_000
SCHEDULED_AT = "scheduled_at"
"""The label of a run, and the input of a workflow that declares it, with the time for which a run was started."""
LABELS = (SCHEDULE, SCHEDULED_AT)
"""Labels that every run of a schedule has."""

P = ParamSpec("P")
T = TypeVar("T")

Duration = str | int | float | timedelta
"""`"15m"`, `"1h30m"`, seconds, or a timedelta."""
Moment = str | datetime


class ScheduleService:
    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def create(
        self,
        name: str,
        workflow: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        inputs: Any = None,
        labels: Mapping[str, str] | None = None,
        start_at: Moment | None = None,
        end_at: Moment | None = None,
        jitter: Duration | None = None,
        catch_up: CatchUp = "skip",
        overlap: Overlap = "allow",
        description: str = "",
        paused: bool = False,
        actor: str = "",
    ) -> Schedule:
        """Start runs of a published workflow at the times of `cron` or `every`; returns the schedule.

        A cron expression has five fields, in the `timezone`; an interval is `"15m"` or `"1h30m"`. `catch_up` says what
        starts when times were missed: the newest (`skip`), each (`all`, at most 100) or `none`. With `overlap="skip"`
        nothing starts while a run of the schedule is live. `jitter` delays each start by a fixed part of it. Creating
        the same schedule again changes nothing; another one of that name is refused.
        """
        check_words(actor=actor)
        given = {
            "workflow": workflow,
            "cron": cron,
            "every": every,
            "timezone": timezone,
            "inputs": inputs,
            "labels": labels,
            "start_at": start_at,
            "end_at": end_at,
            "jitter": jitter,
            "catch_up": catch_up,
            "overlap": overlap,
            "description": description,
        }
        now_ms = self._context.store.now_ms()
        problems = [] if _is_schedule_name(name) else [_bad_name(name)]
        spec = await self._spec(given, now_ms, problems)

        def set_up(known: Schedule | None) -> Change | None:
            if known is not None and known.status != "deleted":
                if _same(known, spec):
                    return None
                message, hint = f"there is another schedule {name}", "update it, or delete it first"
                raise rejected("schedule_exists", message, path="/name", hint=hint)
            due_ms = None if paused else _next(spec, now_ms)
            return ScheduleSet(spec=spec, at_ms=now_ms, cursor_ms=now_ms, next_ms=due_ms, paused=paused, actor=actor)

        await insert_first(self._context.store, self._context.tenant)
        return await self._change(name, set_up)

    async def update(
        self,
        name: str,
        *,
        workflow: str = UNSET,
        cron: str | None = UNSET,
        every: Duration | None = UNSET,
        timezone: str = UNSET,
        inputs: Any = UNSET,
        labels: Mapping[str, str] | None = UNSET,
        start_at: Moment | None = UNSET,
        end_at: Moment | None = UNSET,
        jitter: Duration | None = UNSET,
        catch_up: CatchUp = UNSET,
        overlap: Overlap = UNSET,
        description: str = UNSET,
        actor: str = "",
    ) -> Schedule:
        """Change the given settings, and keep the rest. Other times than before count from now on."""
        check_words(actor=actor)
        given = {
            "workflow": workflow,
            "cron": cron,
            "every": every,
            "timezone": timezone,
            "inputs": inputs,
            "labels": labels,
            "start_at": start_at,
            "end_at": end_at,
            "jitter": jitter,
            "catch_up": catch_up,
            "overlap": overlap,
            "description": description,
        }
        changes = {field: value for field, value in given.items() if value is not UNSET}
        # A cron expression replaces an interval, and the other way round.
        for field, other in (("cron", "every"), ("every", "cron")):
            if changes.get(field) is not None:
                changes.setdefault(other, None)
        now_ms = self._context.store.now_ms()
        known = await self._known(name)
        spec = await self._spec({**_given(known), **changes}, now_ms, [], known)

        def change(known: Schedule) -> Change | None:
            if _same(known, spec):
                return None
            paused = known.status == "paused"
            same_times = all(getattr(known, field) == getattr(spec, field) for field in Timing.__struct_fields__)
            cursor_ms = known.cursor_ms if same_times else now_ms
            due_ms = None if paused else _next(spec, cursor_ms)
            return ScheduleSet(spec=spec, at_ms=now_ms, cursor_ms=cursor_ms, next_ms=due_ms, paused=paused, actor=actor)

        return await self._change_known(name, change)

    async def find(
        self, terms: str | Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> tuple[list[Schedule], str | None]:
        """Schedules that have all terms (`status:active`, `workflow:NAME`, `failing`), the newest first."""
        wanted = checked_terms(terms, ("status", "workflow", "failing"))
        page = await self._context.page(SCHEDULE, wanted, after, limit)
        return [read_schedule_row(row) for row in page.rows], page.after

    async def show(self, name: str) -> Schedule:
        """A schedule, with the next times at which it is due."""
        return self._with_times(await self._known(name))

    async def times(self, name: str, count: int = TIMES_SHOWN) -> list[int]:
        """The next times at which a schedule is due, in milliseconds; none while it is paused."""
        if not 1 <= count <= TIMES_MAX:
            raise rejected("limit_invalid", f"1 to {TIMES_MAX:,} times are shown, not {count}", path="/count")
        return self._times(await self._known(name), count)

    async def pause(self, name: str, *, reason: str = "", actor: str = "") -> Schedule:
        """Pause a schedule until `resume`; runs that have started continue."""
        check_words(reason=reason, actor=actor)
        at_ms = self._context.store.now_ms()

        def pause(known: Schedule) -> Change | None:
            return None if known.status == "paused" else SchedulePaused(at_ms=at_ms, reason=reason, actor=actor)

        return await self._change_known(name, pause)

    async def resume(self, name: str, *, reason: str = "", actor: str = "") -> Schedule:
        """Resume after a pause. What was due meanwhile is not caught up with."""
        check_words(reason=reason, actor=actor)
        now_ms = self._context.store.now_ms()

        def resume(known: Schedule) -> Change | None:
            if known.status != "paused":
                return None
            due_ms = _next(known, now_ms)
            return ScheduleResumed(at_ms=now_ms, cursor_ms=now_ms, next_ms=due_ms, reason=reason, actor=actor)

        return await self._change_known(name, resume)

    async def delete(self, name: str, *, reason: str = "", actor: str = "") -> None:
        """Delete a schedule; runs that it started stay."""
        check_words(reason=reason, actor=actor)
        at_ms = self._context.store.now_ms()
        await self._change_known(name, lambda known: ScheduleDeleted(at_ms=at_ms, reason=reason, actor=actor))

    async def trigger(self, name: str, *, key: str | None = None, actor: str = "") -> str:
        """Start a run of the schedule now, also while it is paused, and return its id.

        `key` makes it idempotent, as that of `start` does.
        """
        check_words(actor=actor)
        self._context.check_actor(actor)
        schedule, now_ms = await self._known(name), self._context.store.now_ms()
        run_id = await start_run(self._context, schedule, now_ms - now_ms % 1_000, key=key, submitted_by=actor)
        triggered = ScheduleTriggered(at_ms=now_ms, run_id=run_id, actor=actor)
        await self._change_known(name, lambda known: None if known.last_run_id == run_id else triggered)
        return run_id

    # Reading what callers give

    async def _spec(
        self, given: Mapping[str, Any], now_ms: int, problems: list[Problem], known: Schedule | None = None
    ) -> ScheduleSpec:
        """What is asked for, or a refusal with everything that is wrong with it."""
        zone = read_zone(given["timezone"], problems)
        cron = "" if given["cron"] is None else read_cron(given["cron"], problems)
        every_ms = 0 if given["every"] is None else read_duration(given["every"], "/every", problems)
        if (given["cron"] is None) is (given["every"] is None):
            found = "neither cron nor every is" if given["cron"] is None else "both cron and every are"
            problems.append(
                _problem(
                    "/cron", f"{found} given, and a schedule has one", "give one of them: cron 0 6 * * *, or every 15m"
                )
            )
        start, end = given["start_at"], given["end_at"]
        start_ms = None if start is None else read_moment(start, zone, "/start_at", problems)
        end_ms = None if end is None else read_moment(end, zone, "/end_at", problems)
        jitter_ms = 0
        if given["jitter"] is not None:
            jitter_ms = read_duration(given["jitter"], "/jitter", problems, least_ms=0)
        for field, choices in (("catch_up", get_args(CatchUp)), ("overlap", get_args(Overlap))):
            if given[field] not in choices:
                message = f"{field} is {', '.join(choices[:-1])} or {choices[-1]}, not `{shown(str(given[field]))}`"
                problems.append(_problem(f"/{field}", message, offered(str(given[field]), choices)))
        labels = _labels(given["labels"], problems)
        _collect(problems, lambda: check_words(description=given["description"]))
        inputs = await self._inputs(given["workflow"], given["inputs"], problems)
        unchanged = known is not None and known.every_ms == every_ms and known.start_at_ms == start_ms
        anchor_ms = now_ms - now_ms % 1_000 if start_ms is None else start_ms
        spec = ScheduleSpec(
            workflow=str(given["workflow"]),
            cron=cron,
            every_ms=every_ms,
            timezone=zone,
            anchor_ms=known.anchor_ms if known is not None and unchanged else anchor_ms,
            start_at_ms=start_ms,
            end_at_ms=end_ms,
            inputs=inputs,
            labels=labels,
            jitter_ms=jitter_ms,
            catch_up=given["catch_up"],
            overlap=given["overlap"],
            description=given["description"],
        )
        if not problems and _next(spec, now_ms) is None:
            hint = "choose a later end_at, or leave it out"
            problems.append(_problem("/end_at", "it would never start a run before its end", hint))
        if problems:
            raise Rejected(problems)
        return spec

    async def _inputs(self, workflow: Any, inputs: Any, problems: list[Problem]) -> Any:
        """The inputs as JSON; they must be what the workflow takes now."""
        context = self._context
        try:
            text = encode_given({} if inputs is None else inputs)
            kept = decode_value(text)
            msgspec.msgpack.encode(kept)
        except (NotJson, OverflowError) as error:
            problems.append(Problem(code="inputs_not_json", path="/inputs", message=str(error)))
            return None
        if len(text) > INPUTS_BYTES_MAX:
            message = f"the inputs have {len(text):,} bytes of JSON, and a schedule keeps at most {INPUTS_BYTES_MAX:,}"
            hint = "pass large values as blobs (`tidemill blobs put`)"
            problems.append(Problem(code="inputs_too_large", path="/inputs", message=message, hint=hint))
            return None
        try:
            version = await context.catalog.resolve(context.tenant, workflow)
        except Rejected as refusal:
            problems += [msgspec.structs.replace(each, path="/workflow") for each in refusal.problems]
            return kept
        try:
            schema = (await context.catalog.flow(context.tenant, version.digest)).workflow.inputs
            tried = with_time(kept, schema, self._context.store.now_ms())
            await checked_inputs(context.tenant, tried, schema, context.blobs, context.input_bytes_max)
        except Rejected as refusal:
            problems += refusal.problems
        return kept

    # Streams

    async def _known(self, name: str) -> Schedule:
        if _is_schedule_name(name):
            _, schedule = await load_schedule(self._context.store, stream_of(self._context.tenant, name))
            if schedule is not None and schedule.status != "deleted":
                return schedule
        page = await self._context.store.find(self._context.tenant, SCHEDULE, limit=NAMES_MAX)
        names = [row.key for row in page.rows]
        hint = offered(str(name), names) if names else "create it: `tidemill schedules create`"
        raise rejected("schedule_unknown", f"there is no schedule {shown(str(name))}", path="/name", hint=hint)

    async def _change_known(self, name: str, decide: Callable[[Schedule], Change | None]) -> Schedule:
        await self._known(name)

        def checked(known: Schedule | None) -> Change | None:
            if known is None or known.status == "deleted":
                raise rejected("schedule_unknown", f"the schedule {name} was deleted in the meantime", path="/name")
            return decide(known)

        return await self._change(name, checked)

    async def _change(self, name: str, decide: Callable[[Schedule | None], Change | None]) -> Schedule:
        """Append the record that is decided on, none if nothing changes; decided again after a lost race."""
        store, stream = self._context.store, stream_of(self._context.tenant, name)
        for _ in range(RACES_MAX):
            version, known = await load_schedule(store, stream)
            record = decide(known)
            if record is None:
                assert known is not None, "only a schedule that exists can be left as it is"
                return self._with_times(known)
            commit = next_commit(stream, version, known, record)
            audit = self._context.audit_rows(
                stream,
                version + 1,
                commit.records[0],
                actor=record.actor,
                command=_command(known, record),
                at_ms=record.at_ms,
                detail=getattr(record, "reason", ""),
            )
            (result,) = await store.commit([msgspec.structs.replace(commit, rows=(*commit.rows, *audit))])
            if isinstance(result, Committed):
                return self._with_times((await load_schedule(store, stream))[1] or await self._known(name))
        raise Unavailable(f"schedule {name} is being changed by too many callers at once")

    def _with_times(self, schedule: Schedule) -> Schedule:
        return msgspec.structs.replace(schedule, next_times=tuple(self._times(schedule, TIMES_SHOWN)))

    def _times(self, schedule: Schedule, count: int) -> list[int]:
        if schedule.status != "active":
            return []
        end_ms = schedule.cursor_ms + HORIZON_MS
        bound_ms = end_ms if schedule.end_at_ms is None else min(end_ms, schedule.end_at_ms)
        return list(islice(upcoming(msgspec.structs.replace(schedule, end_at_ms=bound_ms), schedule.cursor_ms), count))


async def start_run(
    context: ServiceContext, schedule: Schedule, scheduled_ms: int, *, key: str | None, submitted_by: str = ""
) -> str:
    """Start a run of a schedule for one due time; with a key, at most once. Raises Rejected."""
    run_id = context.ambient.new_id() if key is None else key
    # Of a tag that several versions share, the id decides which one is meant.
    version = await context.catalog.resolve(context.tenant, schedule.workflow, run_id)
    flow = await context.catalog.flow(context.tenant, version.digest)
    try:
        return await RunService(context).start(
            schedule.workflow,
            with_time(schedule.inputs, flow.workflow.inputs, scheduled_ms),
            key=run_id,
            labels={**schedule.labels, SCHEDULE: schedule.name, SCHEDULED_AT: utc_text(scheduled_ms)},
            submitted_by=submitted_by or schedule.updated_by or schedule.created_by or f"schedule:{schedule.name}",
        )
    except Rejected as refusal:
        if refusal.code != "key_reused" or key is None:
            raise
        # It was started before the schedule or its workflow was changed, or at another moment.
        if (await context.entry(key)).state.labels.get(SCHEDULE) != schedule.name:
            raise
        return key


def with_time(inputs: Any, schema: Any, at_ms: int) -> Any:
    """The inputs with the time of the start, where the workflow declares `scheduled_at` and they do not give it."""
    declared = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(inputs, dict) or not isinstance(declared, dict) or SCHEDULED_AT not in declared:
        return inputs
    return {SCHEDULED_AT: utc_text(at_ms), **inputs}


def schedule_verb(
    method: Callable[Concatenate[ScheduleService, P], T],
) -> Callable[Concatenate[Engine, P], T]:
    """A verb of a client that calls a method of the schedules of an engine's tenant, or of what stands for them."""

    @wraps(method)
    def call(engine: Engine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        schedules = vars(engine).get("schedules") or ScheduleService(engine.context)
        options = {name: named(name, each) for name, each in kwargs.items()}
        return cast(T, getattr(schedules, method.__name__)(*map(partial(named, ""), args), **options))

    return call


def _command(known: Schedule | None, record: Change) -> str:
    """What a change is called in the audit."""
    if isinstance(record, ScheduleSet):
        return "create" if known is None or known.status == "deleted" else "update"
    return _COMMANDS[type(record)]


_COMMANDS: dict[type[Change], str] = {
    SchedulePaused: "pause",
    ScheduleResumed: "resume",
    ScheduleTriggered: "trigger",
    ScheduleDeleted: "delete",
}


def _next(spec: ScheduleSpec, now_ms: int) -> int | None:
    return next(upcoming(spec, now_ms), None)


def _given(known: Schedule) -> dict[str, Any]:
    """A schedule as its caller would have to give it."""

    def moment(at_ms: int | None) -> datetime | None:
        return None if at_ms is None else datetime.fromtimestamp(at_ms / 1_000, UTC)

    return {
        **{field: getattr(known, field) for field in ("workflow", "timezone", "inputs", "catch_up", "overlap")},
        "cron": known.cron or None,
        "every": timedelta(milliseconds=known.every_ms) if known.every_ms else None,
        "labels": known.labels,
        "start_at": moment(known.start_at_ms),
        "end_at": moment(known.end_at_ms),
        "jitter": timedelta(milliseconds=known.jitter_ms),
        "description": known.description,
    }


def _same(known: Schedule, spec: ScheduleSpec) -> bool:
    fields = (field for field in ScheduleSpec.__struct_fields__ if field != "anchor_ms")
    return all(getattr(known, field) == getattr(spec, field) for field in fields)


def _labels(given: Any, problems: list[Problem]) -> dict[str, str]:
    labels: dict[str, str] = {}

    def read() -> None:
        labels.update(check_labels(given or {}))

    _collect(problems, read)
    for name in LABELS:
        if name in labels:
            message, hint = f"every run of a schedule has the label `{name}`", "choose another key for yours"
            problems.append(Problem(code="labels_invalid", path="/labels", message=message, hint=hint))
    return labels


def _collect(problems: list[Problem], check: Callable[[], None]) -> None:
    try:
        check()
    except Rejected as refusal:
        problems += refusal.problems


def _problem(path: str, message: str, hint: str) -> Problem:
    return Problem(code="schedule_invalid", path=path, message=message, hint=hint)


def _is_schedule_name(name: Any) -> bool:
    return is_name(name) and len(name) <= NAME_LENGTH_MAX


def _bad_name(name: Any) -> Problem:
    hint = f"lower-case letters, digits and -, at most {NAME_LENGTH_MAX}"
    return _problem("/name", f"`{shown(str(name))}` cannot be the name of a schedule", hint)
