"""`/schedules`: runs that start by cron or interval."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Query, Response
from pydantic import ConfigDict, Field

from tidemill.api.auth import Caller, CurrentCaller, Router
from tidemill.api.routes.runs import id_of_key
from tidemill.api.schemas import After, Body, PageOf, answer, page_answer
from tidemill.triggers.schedules import CatchUp, Overlap, Schedule
from tidemill.triggers.service import TIMES_MAX, TIMES_SHOWN, ScheduleService

router = Router()

READ, WRITE = "schedules:read", "schedules:write"
EXAMPLE: dict[str, Any] = {
    "name": "nightly",
    "workflow": "report:stable",
    "cron": "0 2 * * *",
    "timezone": "Europe/Berlin",
}
TIMES = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "timezone": {"type": "string"},
        "times_ms": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name", "timezone", "times_ms"],
}


def _one_of(key: str) -> dict[str, Any]:
    return {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]}


class ScheduleChange(Body):
    """What can be changed of a schedule; what is left out stays."""

    workflow: str = Field("", description="name, name@3 or name:stable")
    cron: str | None = Field(
        None, description="five fields, or @hourly, @daily, @weekly, @monthly, @yearly", examples=["0 2 * * *"]
    )
    every: str | float | None = Field(None, description="an interval: 30s, 15m, 1h30m, or seconds")
    timezone: str = Field("UTC", description="an IANA time zone")
    inputs: Any = None
    labels: dict[str, str] = Field({})
    start_at: str | None = Field(None, description="ISO 8601; without a zone in that of the schedule")
    end_at: str | None = None
    jitter: str | float | None = None
    catch_up: CatchUp = "skip"
    overlap: Overlap = "allow"
    description: str = ""


class NewSchedule(ScheduleChange):
    """A schedule to create, with `cron` or `every`."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    name: str
    workflow: str = Field(description="name, name@3 or name:stable")
    paused: bool = False


class Why(Body):
    reason: str = Field("", examples=["the end of the quarter"])


def _of(caller: Caller) -> ScheduleService:
    return ScheduleService(caller.services.context)


@router.on("GET", "/schedules", may=READ, answers=PageOf(Schedule))
async def list_schedules(
    caller: CurrentCaller,
    term: Annotated[list[str], Query(description="status:active, workflow:NAME or failing")] = [],  # noqa: B006
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 50,
) -> Response:
    """List schedules, newest first."""
    return page_answer(*await _of(caller).find(term, after=after, limit=limit))


@router.on("POST", "/schedules", may=WRITE, answers=Schedule, status=201)
async def create_schedule(caller: CurrentCaller, body: NewSchedule) -> Response:
    """Create a schedule."""
    return answer(await _of(caller).create(**body.model_dump(), actor=caller.actor), 201)


@router.on("GET", "/schedules/{name}", may=READ, answers=Schedule)
async def show_schedule(caller: CurrentCaller, name: str) -> Response:
    """Show a schedule and its next five times."""
    return answer(await _of(caller).show(name))


@router.on("PATCH", "/schedules/{name}", may=WRITE, answers=Schedule)
async def change_schedule(caller: CurrentCaller, name: str, body: ScheduleChange) -> Response:
    """Change a schedule."""
    changes = body.model_dump(exclude_unset=True)
    return answer(await _of(caller).update(name, **changes, actor=caller.actor))


@router.on("DELETE", "/schedules/{name}", may=WRITE, answers=_one_of("deleted"))
async def delete_schedule(caller: CurrentCaller, name: str, reason: str = "") -> Response:
    """Delete a schedule."""
    await _of(caller).delete(name, reason=reason, actor=caller.actor)
    return answer({"deleted": name})


@router.on("GET", "/schedules/{name}/times", may=READ, answers=TIMES)
async def schedule_times(
    caller: CurrentCaller, name: str, count: Annotated[int, Query(ge=1, le=TIMES_MAX)] = TIMES_SHOWN
) -> Response:
    """The next times at which it is due."""
    schedules = _of(caller)
    shown = await schedules.show(name)
    return answer({"name": name, "timezone": shown.timezone, "times_ms": await schedules.times(name, count)})


@router.on("POST", "/schedules/{name}/pause", may=WRITE, answers=Schedule)
async def pause_schedule(caller: CurrentCaller, name: str, body: Why | None = None) -> Response:
    """Pause a schedule."""
    return answer(await _of(caller).pause(name, reason=body.reason if body else "", actor=caller.actor))


@router.on("POST", "/schedules/{name}/resume", may=WRITE, answers=Schedule)
async def resume_schedule(caller: CurrentCaller, name: str, body: Why | None = None) -> Response:
    """Resume after a pause."""
    return answer(await _of(caller).resume(name, reason=body.reason if body else "", actor=caller.actor))


@router.on("POST", "/schedules/{name}/trigger", may=WRITE, answers=_one_of("run_id"), status=201)
async def trigger_schedule(
    caller: CurrentCaller, name: str, idempotency_key: Annotated[str | None, Header(max_length=200)] = None
) -> Response:
    """Start a run.

    Start a run of the schedule now. The same `Idempotency-Key` returns the same run.
    """
    # Not the key itself: the ids of due times, children and other requests are not the caller's to take.
    key = None if idempotency_key is None else id_of_key(idempotency_key, f"trigger {name}")
    return answer({"run_id": await _of(caller).trigger(name, key=key, actor=caller.actor)}, 201)
