"""The records of one schedule, what they fold to, its index row and its job.

A schedule is a stream of its tenant. `Schedule` is the folded value: it is the snapshot, the body of the row and what
callers see. The next due time is a job of the stream that is not ready before it, so that any worker takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal
from zlib import crc32

import msgspec

from tidemill.blobs.contract import files_in
from tidemill.blobs.payloads import encode_value
from tidemill.engine.blob_references import reference_rows
from tidemill.engine.corruption import corrupt_stream, require_intact
from tidemill.engine.index_rows import SCHEDULE
from tidemill.errors import Problem, rejected
from tidemill.kernel.codec import DAMAGE
from tidemill.kernel.jobs import MAINTENANCE_QUEUE, JobBody
from tidemill.stores.contract import Commit, Job, Row, Snapshot, Store, Stream, Tail
from tidemill.triggers.times import Timing

RECORD_FORMAT = 1
PRIORITY = 9

CatchUp = Literal["skip", "all", "none"]
"""What starts when several times are due, or one was missed: the newest, each, or none that is late."""
Overlap = Literal["allow", "skip"]
"""Whether a run starts while one of the same schedule is live."""
Status = Literal["active", "paused", "ended", "deleted"]


class ScheduleSpec(Timing, frozen=True, kw_only=True):
    """What the caller has asked for."""

    workflow: str
    inputs: Any = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    jitter_ms: int = 0
    catch_up: CatchUp = "skip"
    overlap: Overlap = "allow"
    description: str = ""


class Schedule(ScheduleSpec, frozen=True, kw_only=True):
    name: str
    status: Status
    """`ended`: no time is due any more."""
    created_ms: int
    created_by: str = ""
    updated_ms: int
    cursor_ms: int
    """Everything that was due up to here is settled."""
    next_ms: int | None = None
    runs: int = 0
    """How many runs it has started."""
    skipped: int = 0
    """How many due times have started no run, by the policies for catching up and overlap."""
    last_run_id: str = ""
    last_due_ms: int | None = None
    last_started_ms: int | None = None
    last_error: Problem | None = None
    """Why the last start failed; None once one has succeeded."""
    last_error_ms: int | None = None
    updated_by: str = ""
    """Who has set it up as it is: under four eyes, that is who submits its runs."""
    next_times: tuple[int, ...] = ()
    """The next due times; only `show` fills it in."""
    v: int = RECORD_FORMAT


class ScheduleSet(msgspec.Struct, frozen=True, kw_only=True, tag="schedule_set"):
    """It was created or changed."""

    spec: ScheduleSpec
    at_ms: int
    cursor_ms: int
    next_ms: int | None
    paused: bool = False
    actor: str = ""
    v: int = RECORD_FORMAT


class SchedulePaused(msgspec.Struct, frozen=True, kw_only=True, tag="schedule_paused"):
    at_ms: int
    actor: str = ""
    reason: str = ""
    v: int = RECORD_FORMAT


class ScheduleResumed(msgspec.Struct, frozen=True, kw_only=True, tag="schedule_resumed"):
    at_ms: int
    cursor_ms: int
    next_ms: int | None
    actor: str = ""
    reason: str = ""
    v: int = RECORD_FORMAT


class ScheduleFired(msgspec.Struct, frozen=True, kw_only=True, tag="schedule_fired"):
    """A worker has settled what was due."""

    at_ms: int
    cursor_ms: int
    next_ms: int | None
    runs: tuple[tuple[int, str], ...] = ()
    """(due time, run) of every start."""
    skipped: int = 0
    error: Problem | None = None
    v: int = RECORD_FORMAT


class ScheduleTriggered(msgspec.Struct, frozen=True, kw_only=True, tag="schedule_triggered"):
    """A caller has started a run beside the due times."""

    at_ms: int
    run_id: str
    actor: str = ""
    v: int = RECORD_FORMAT


class ScheduleDeleted(msgspec.Struct, frozen=True, kw_only=True, tag="schedule_deleted"):
    at_ms: int
    actor: str = ""
    reason: str = ""
    v: int = RECORD_FORMAT


Change = ScheduleSet | SchedulePaused | ScheduleResumed | ScheduleTriggered | ScheduleDeleted
"""What callers do."""
Record = Change | ScheduleFired

_ENCODE = msgspec.msgpack.Encoder().encode
_RECORD = msgspec.msgpack.Decoder(Record)
_SCHEDULE = msgspec.msgpack.Decoder(Schedule)
_KINDS = (ScheduleSet, SchedulePaused, ScheduleResumed, ScheduleFired, ScheduleTriggered, ScheduleDeleted)
_TAGS = frozenset(str(kind.__struct_config__.tag) for kind in _KINDS)
_SPEC = ScheduleSpec.__struct_fields__


def evolve_schedule(name: str, schedule: Schedule | None, record: Record) -> Schedule:
    """Fold one record. After a deletion a `ScheduleSet` begins a new schedule of the same name."""
    if isinstance(record, ScheduleSet):
        status: Status = "paused" if record.paused else _status(record.next_ms)
        times: dict[str, Any] = {"updated_ms": record.at_ms, "cursor_ms": record.cursor_ms, "next_ms": record.next_ms}
        spec = {field: getattr(record.spec, field) for field in _SPEC}
        if schedule is not None and schedule.status != "deleted":
            return msgspec.structs.replace(schedule, status=status, updated_by=record.actor, **times, **spec)
        return Schedule(
            name=name,
            status=status,
            created_ms=record.at_ms,
            created_by=record.actor,
            updated_by=record.actor,
            **times,
            **spec,
        )
    if schedule is None:
        raise ValueError("the first record of a schedule does not create it")
    match record:
        case SchedulePaused():
            changes: dict[str, Any] = {"status": "paused", "updated_ms": record.at_ms, "next_ms": None}
        case ScheduleResumed():
            changes = {"status": _status(record.next_ms), "updated_ms": record.at_ms}
            changes |= {"cursor_ms": record.cursor_ms, "next_ms": record.next_ms}
        case ScheduleDeleted():
            changes = {"status": "deleted", "updated_ms": record.at_ms, "next_ms": None}
        case ScheduleTriggered():
            started = {"last_started_ms": record.at_ms, "last_run_id": record.run_id, "runs": schedule.runs + 1}
            changes = {**started, "last_error": None, "last_error_ms": None}
        case ScheduleFired():
            changes = _fired(schedule, record)
    return msgspec.structs.replace(schedule, **changes)


def _fired(schedule: Schedule, record: ScheduleFired) -> dict[str, Any]:
    changes: dict[str, Any] = {"status": _status(record.next_ms), "cursor_ms": record.cursor_ms}
    changes |= {"next_ms": record.next_ms, "skipped": schedule.skipped + record.skipped}
    if record.runs:
        due_ms, run_id = record.runs[-1]
        changes |= {"runs": schedule.runs + len(record.runs), "last_run_id": run_id, "last_due_ms": due_ms}
        changes |= {"last_started_ms": record.at_ms, "last_error": None, "last_error_ms": None}
    if record.error is not None:
        changes |= {"last_error": record.error, "last_error_ms": record.at_ms}
    return changes


def _status(next_ms: int | None) -> Status:
    return "ended" if next_ms is None else "active"


# Reading and writing


def stream_of(tenant: str, name: str) -> Stream:
    return Stream(tenant, SCHEDULE, name)


def read_schedule(tail: Tail) -> Schedule | None:
    """What a stream folds to, deleted schedules included; refused when it cannot be read."""
    try:
        require_intact(tail)
        found = None if tail.snapshot is None else _decoded(_SCHEDULE, tail.snapshot)
        for record in tail.records:
            found = evolve_schedule(tail.stream.key, found, _decoded(_RECORD, record))
    except DAMAGE as error:
        raise corrupt_stream(tail.stream, error) from None
    return found


def _decoded(decoder: msgspec.msgpack.Decoder[Any], raw: bytes) -> Any:
    """A value of this or an older format; one of a newer version is refused."""
    try:
        value = decoder.decode(raw)
        newer = value.v > RECORD_FORMAT
    except msgspec.ValidationError:
        fields = msgspec.msgpack.decode(raw)
        found = fields if isinstance(fields, dict) else {}
        newer = found.get("type", "schedule_set") not in _TAGS or found.get("v", 0) > RECORD_FORMAT
        if not newer:
            raise
    if newer:
        message = "a record of the schedule was written by a newer version"
        raise rejected("event_newer", message, hint="upgrade Tidemill")
    return value


async def load_schedule(store: Store, stream: Stream) -> tuple[int, Schedule | None]:
    """The version of the stream, and the schedule; deleted ones are included."""
    (tail,) = await store.load({stream: 0})
    return tail.version, read_schedule(tail)


def schedule_rows(tail: Tail) -> tuple[Row, ...]:
    """The rows that the records of a schedule call for."""
    schedule = read_schedule(tail)
    return () if schedule is None else _rows(tail.stream, schedule)


def _rows(stream: Stream, schedule: Schedule) -> tuple[Row, ...]:
    if schedule.status == "deleted":
        return ()
    workflow = schedule.workflow.partition("@")[0].partition(":")[0]
    terms = (f"status:{schedule.status}", f"workflow:{workflow}", *(("failing",) if schedule.last_error else ()))
    row = Row(kind=SCHEDULE, key=stream.key, sort=schedule.created_ms, terms=terms, body=_ENCODE(schedule))
    return row, *reference_rows(stream, files_in(encode_value(schedule.inputs)))


def read_schedule_row(row: Row) -> Schedule:
    return _SCHEDULE.decode(row.body)


def job_key(name: str) -> str:
    return JobBody("fire", name).key


def schedule_job(stream: Stream, schedule: Schedule) -> Job:
    """The job of the next due time."""
    assert schedule.next_ms is not None, "an active schedule has a next time"
    ready_at_ms = schedule.next_ms + offset_ms(stream, schedule)
    body = _ENCODE(JobBody("fire", stream.key))
    return Job(job_key(stream.key), MAINTENANCE_QUEUE, body, ready_at_ms, PRIORITY)


def offset_ms(stream: Stream, schedule: Schedule) -> int:
    """How much later than due it starts: always the same, so that its jitter changes no order."""
    return crc32("/".join(stream).encode()) % (schedule.jitter_ms + 1)


def next_commit(
    stream: Stream, version: int, before: Schedule | None, record: Record, *, acks: Sequence[tuple[str, int]] = ()
) -> Commit:
    """The commit of the record that follows: its rows, and the job of the next due time instead of the last one."""
    after = evolve_schedule(stream.key, before, record)
    rows, old = _rows(stream, after), () if before is None else _rows(stream, before)
    kept = {(row.kind, row.key) for row in rows}
    gone = [Row(kind=row.kind, key=row.key, sort=0, deleted=True) for row in old if (row.kind, row.key) not in kept]
    moves = not isinstance(record, ScheduleTriggered)
    return Commit(
        stream,
        version,
        (_ENCODE(record),),
        Snapshot(version=version + 1, body=_ENCODE(after)),
        acks=tuple(acks),
        drop=(job_key(stream.key),) if moves and not acks else (),
        jobs=(schedule_job(stream, after),) if moves and after.status == "active" else (),
        rows=(*rows, *gone),
    )
