"""`tidemill schedules`: runs that start by cron or interval."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tidemill.cli import options
from tidemill.cli.inputs import read_inputs, read_pairs
from tidemill.cli.render.lists import list_page
from tidemill.cli.render.runs import pretty, say
from tidemill.cli.render.tables import (
    Column,
    age,
    iso,
    label_words,
    moment,
    print_facts,
    print_hint,
    print_rows,
    print_title,
)
from tidemill.cli.session import StoreSession
from tidemill.client import Tidemill
from tidemill.triggers.schedules import Schedule
from tidemill.triggers.times import duration_text, zone_of

schedules = options.new_group("schedules")

name_argument = options.argument("name", "NAME", "The name of a schedule.")


@schedules.command("create")
@name_argument
@options.reference
@options.option("--cron", metavar="CRON", about="Five fields, e.g. '0 6 * * 1-5', or @hourly, @daily, @weekly, …")
@options.option("--every", metavar="DURATION", about="An interval instead: 30s, 15m, 2h, 1d, 1h30m.")
@options.option(
    "--timezone", "--tz", metavar="ZONE", default="UTC", about="The time zone of --cron, e.g. Europe/Berlin."
)
@options.given
@options.labels
@options.option("--start-at", metavar="TIME", about="Not before this time, e.g. 2026-03-01T08:30.")
@options.option("--end-at", metavar="TIME", about="Not after this time.")
@options.option(
    "--jitter",
    metavar="DURATION",
    about="Delay each start by a fixed part of this, so that schedules do not all start at once.",
)
@options.option(
    "--catch-up",
    metavar="skip|all|none",
    default="skip",
    about="Which missed times to start: the newest, all or none.",
)
@options.option(
    "--overlap", metavar="allow|skip", default="allow", about="Whether to start while an earlier run is still active."
)
@options.option("--description", metavar="TEXT", default="", about="A description.")
@options.flag("--paused", about="Create it paused.")
@options.actor
@options.on_store()
def create_command(
    session: StoreSession, name: str, reference: str, given: Sequence[str], labels: Sequence[str], **more: Any
) -> int:
    """Create a schedule: start runs of a workflow by --cron or --every."""

    def ask(mill: Tidemill) -> Schedule:
        inputs, marks = read_inputs(given), read_pairs("--label", labels)
        return mill.create_schedule(name, reference, inputs=inputs, labels=marks, **more)

    return session.ask_and_print(ask, lambda made: say(f"schedule {name} is {_when(made)}"))


@schedules.command("update")
@name_argument
@options.option("--workflow", metavar="NAME[@VERSION]", about="What it starts.")
@options.option("--cron", metavar="CRON", about="Other times.")
@options.option("--every", metavar="DURATION", about="An interval instead.")
@options.option("--timezone", "--tz", metavar="ZONE", about="The time zone of --cron.")
@options.given
@options.labels
@options.option("--start-at", metavar="TIME", about="Not before this time; none removes the limit.")
@options.option("--end-at", metavar="TIME", about="Not after this time; none removes the limit.")
@options.option("--jitter", metavar="DURATION", about="Delay each start by a fixed part of this; none removes it.")
@options.option("--catch-up", metavar="skip|all|none", about="Which missed times to start.")
@options.option("--overlap", metavar="allow|skip", about="Whether to start while an earlier run is still active.")
@options.option("--description", metavar="TEXT", about="A description.")
@options.actor
@options.on_store()
def update_command(
    session: StoreSession, name: str, given: Sequence[str], labels: Sequence[str], actor: str, **more: str | None
) -> int:
    """Change the given settings and keep the rest. Inputs and labels are replaced as a whole."""
    lifted = {"start_at", "end_at", "jitter"}

    def ask(mill: Tidemill) -> Schedule:
        changes: dict[str, Any] = {
            key: None if key in lifted and value == "none" else value
            for key, value in more.items()
            if value is not None
        }
        if given:
            changes["inputs"] = read_inputs(given)
        if labels:
            changes["labels"] = read_pairs("--label", labels)
        return mill.update_schedule(name, **changes, actor=actor)

    return session.ask_and_print(ask, _say_when)


@schedules.command("list")
@options.option("--status", metavar="STATUS", default="all", about="active, paused, ended or all.")
@options.of_workflow
@options.flag("--failing", about="Only schedules whose last start failed.")
@options.page
@options.on_store()
def list_command(
    session: StoreSession, status: str, failing: bool, limit: int, after: str | None, **wanted: str | None
) -> int:
    """List schedules, newest first."""
    terms = [*options.status_terms(status, wanted), *(["failing"] if failing else [])]
    return list_page(session, "schedules", lambda mill: mill.schedules(terms, after=after, limit=limit))


@schedules.command("show")
@name_argument
@options.on_store()
def show_command(session: StoreSession, name: str) -> int:
    """Show a schedule, its next five times and its last error."""

    def show(schedule: Schedule) -> None:
        print_title(schedule.name, f"{rule(schedule)} → {schedule.workflow}")
        print_facts(_facts(schedule))
        print()
        print_hint(session.command("runs", "list", f"label.schedule={schedule.name}"))

    return session.ask_and_print(lambda mill: mill.schedule(name), show)


@schedules.command("next")
@name_argument
@options.option("--count", metavar="N", type=options.Integers(1, 100), default=5, about="How many times to print.")
@options.on_store()
def next_command(session: StoreSession, name: str, count: int) -> int:
    """Print the next times of a schedule."""

    def ask(mill: Tidemill) -> dict[str, Any]:
        zone = mill.schedule(name).timezone
        return {"name": name, "timezone": zone, "times_ms": mill.schedule_times(name, count)}

    def show(found: dict[str, Any]) -> None:
        if not found["times_ms"]:
            print("no next time: the schedule is paused or has ended")
            return
        columns = [Column("DUE", iso), Column("IN", age)]
        if found["timezone"] != "UTC":
            columns.insert(1, Column(found["timezone"], lambda at_ms: local(at_ms, found["timezone"])))
        print_rows(columns, found["times_ms"])

    return session.ask_and_print(ask, show)


@schedules.command("pause")
@name_argument
@options.reason
@options.actor
@options.on_store()
def pause_command(session: StoreSession, name: str, **who: str) -> int:
    """Pause a schedule."""
    return session.ask_and_print(lambda mill: mill.pause_schedule(name, **who), _say_when)


@schedules.command("resume")
@name_argument
@options.reason
@options.actor
@options.on_store()
def resume_command(session: StoreSession, name: str, **who: str) -> int:
    """Resume a schedule. Times missed during the pause are skipped."""
    return session.ask_and_print(lambda mill: mill.resume_schedule(name, **who), _say_when)


@schedules.command("trigger")
@name_argument
@options.option(
    "--key", metavar="ID", about="The run's id. Repeating the command with the same key returns the same run."
)
@options.actor
@options.on_store()
def trigger_command(session: StoreSession, name: str, **given: Any) -> int:
    """Start a run of a schedule now, and print its id."""

    def ask(mill: Tidemill) -> dict[str, str]:
        return {"run_id": mill.trigger_schedule(name, **given)}

    return session.ask_and_print(ask, lambda found: print(found["run_id"]))


@schedules.command("delete")
@name_argument
@options.reason
@options.actor
@options.on_store()
def delete_command(session: StoreSession, name: str, **who: str) -> int:
    """Delete a schedule. Runs that it started stay."""

    def ask(mill: Tidemill) -> dict[str, str]:
        mill.delete_schedule(name, **who)
        return {"deleted": name}

    return session.ask_and_print(ask, lambda _: say(f"schedule {name} is deleted"))


def rule(schedule: Schedule) -> str:
    """When a schedule is due, in its own words."""
    if schedule.every_ms:
        return f"every {duration_text(schedule.every_ms)}"
    return schedule.cron if schedule.timezone == "UTC" else f"{schedule.cron} {schedule.timezone}"


def local(at_ms: int, timezone: str) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, zone_of(timezone)).isoformat(" ", "minutes")


def _say_when(schedule: Schedule) -> None:
    say(f"schedule {schedule.name} is {_when(schedule)}")


def _when(schedule: Schedule) -> str:
    return schedule.status if schedule.next_ms is None else f"{schedule.status}, due {moment(schedule.next_ms)}"


def _facts(schedule: Schedule) -> list[tuple[str, Any]]:
    error = schedule.last_error
    defaults = {"catch_up": "skip", "overlap": "allow"}
    policies = [
        f"{name} {getattr(schedule, name)}" for name, usual in defaults.items() if getattr(schedule, name) != usual
    ]
    return [
        ("status", schedule.status),
        ("about", schedule.description),
        ("next", "\n".join(moment(at_ms) for at_ms in schedule.next_times)),
        ("from", iso(schedule.start_at_ms)),
        ("until", iso(schedule.end_at_ms)),
        ("jitter", duration_text(schedule.jitter_ms) if schedule.jitter_ms else ""),
        ("policy", ", ".join(policies)),
        ("inputs", pretty(schedule.inputs) if schedule.inputs else ""),
        ("labels", label_words(schedule.labels)),
        ("created", f"{moment(schedule.created_ms)}{f' by {schedule.created_by}' if schedule.created_by else ''}"),
        ("runs", f"{schedule.runs:,}"),
        ("skipped", f"{schedule.skipped:,}" if schedule.skipped else ""),
        ("last run", f"{schedule.last_run_id}, {age(schedule.last_started_ms)}" if schedule.last_run_id else ""),
        ("last error", "" if error is None else f"{age(schedule.last_error_ms)}: {error.sentence} [{error.code}]"),
        ("hint", "" if error is None else error.hint),
    ]
