"""`tidemill blobs`, `archive`, `migrate`, `doctor`, `verify-log` and `reindex`: what a store holds, and its health.

Every command but `doctor` migrates a store that it opens. `migrate` is for operators who want to see the migrations
first, or to choose the moment.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli import main, options
from tidemill.cli.render.tables import Column, moment, print_rows
from tidemill.cli.render.terminal import counted, print_json
from tidemill.cli.session import StoreSession
from tidemill.engine.views import plain
from tidemill.errors import Rejected
from tidemill.storage_urls import migrated, without_password
from tidemill.stores.sql_files import Step

if TYPE_CHECKING:
    from tidemill.client import Tidemill
    from tidemill.engine.maintenance.archive import ArchiveEntry
    from tidemill.engine.maintenance.reindex import Reindexed
    from tidemill.engine.maintenance.verify import AuditReport


archive = options.new_group("archive")

archived_run = options.argument("run", "RUN", "The id of a run (its newest entry), or the name of an entry.")


@archive.command("list")
@options.of_workflow
@options.limit
@options.archive
@options.on_store(own=True)
def archive_list_command(session: StoreSession, workflow: str | None, limit: int) -> int:
    """List archived runs, latest month first."""
    from tidemill.cli.render.maintenance import print_archive

    return session.ask_and_print(
        lambda mill: mill.archive_list(workflow=workflow, limit=limit),
        lambda page: print_archive(session, page, workflow),
        ends=lambda page: main.FAILED if page.damaged else main.OK,
    )


@archive.command("show")
@archived_run
@options.flag("--events", about="Include the events.")
@options.archive
@options.on_store(own=True)
def archive_show_command(session: StoreSession, run: str, events: bool) -> int:
    """Show an archived run."""
    from tidemill.cli.render.maintenance import print_archived_run

    def ask(mill: Tidemill) -> dict[str, Any]:
        header, happened = mill.archive_show(run)
        return {**plain(header), **({"events": happened} if events else {})}

    return session.ask_and_print(ask, lambda found: print_archived_run(session, found, with_events=events))


@archive.command("restore")
@archived_run
@options.archive
@options.on_store(own=True)
def restore_command(session: StoreSession, run: str) -> int:
    """Restore an archived run into the store.

    Its retention time starts again. The archive keeps its copy.
    """
    from tidemill.cli.render.maintenance import print_other_entries
    from tidemill.cli.render.runs import say

    def show(listed: ArchiveEntry) -> None:
        say(f"run {listed.run_id} restored with {listed.seq} events")
        print_other_entries(listed.others)

    return session.ask_and_print(lambda mill: mill.archive_restore(run), show)


@archive.command("sweep")
@options.dry_run
@options.retention_days
@options.keep_runs
@options.archive
@options.on_store(own=True)
def sweep_command(session: StoreSession, dry_run: bool, retention_days: float | None, keep_runs: bool) -> int:
    """Archive every run whose retention time is over, now.

    Workers do so by themselves; with the same retention as theirs, --dry-run shows what they will do next. Runs that
    cannot be archived stay and are listed, with exit code 1.
    """
    from tidemill.cli.render.maintenance import print_sweep

    return replace(session, retention_days=options.retention(retention_days, keep_runs)).ask_and_print(
        lambda mill: mill.archive_sweep(dry_run=dry_run),
        print_sweep,
        ends=lambda swept: main.FAILED if swept.failed else main.OK,
    )


blobs = options.new_group("blobs")

digest_argument = options.argument("digest", "DIGEST", "The digest: sha256: and 64 hexadecimal digits.")


@blobs.command("put")
@options.argument("file", "FILE", "A file of any kind; - reads standard input.", type=str)
@options.flag("--keep", about="Never garbage-collect it, even if nothing refers to it.")
@options.option("--media-type", metavar="TYPE", about="The media type. Default: from the file name.")
@options.on_store(creates=True)
def put_command(session: StoreSession, file: str, keep: bool, media_type: str | None) -> int:
    """Store a file and print its digest.

    With --json it prints the reference that runs use. Unreferenced blobs are deleted after a day.
    """
    from tidemill.cli.inputs import guessed_type, read_blob_source

    def ask(mill: Tidemill) -> dict[str, Any]:
        data, name = read_blob_source(file)
        return mill.put_blob(data, media_type=media_type or guessed_type(name), name=name, keep=keep)

    return session.ask_and_print(ask, lambda described: print(described["$blob"]))


@blobs.command("get")
@digest_argument
@options.option("--output", "-o", metavar="FILE", about="The file to write; - is standard output.", type=str)
@options.on_store()
def get_command(session: StoreSession, digest: str, output: str | None) -> int:
    """Write a blob to a file or to standard output."""
    from tidemill.cli.inputs import writing

    def ask(mill: Tidemill) -> dict[str, Any]:
        mill.blob(digest)
        with writing(output, as_json=session.as_json) as (file, name):
            return {"digest": digest, "size": mill.save_blob(digest, file), "file": name}

    def show(written: dict[str, Any]) -> None:
        if written["file"]:
            print(f"{written['size']} bytes written to {written['file']}")

    return session.ask_and_print(ask, show)


@blobs.command("show")
@digest_argument
@options.on_store()
def blob_show_command(session: StoreSession, digest: str) -> int:
    """Show the size, state and users of a blob."""
    from tidemill.cli.render.maintenance import print_blob

    return session.ask_and_print(lambda mill: mill.blob(digest), lambda info: print_blob(session, info))


@blobs.command("list")
@options.option(
    "--state", type=click.Choice(["active", "grace"]), about="Only blobs in use, or only those about to be deleted."
)
@options.page
@options.on_store()
def blob_list_command(session: StoreSession, **wanted: Any) -> int:
    """List blobs by digest."""
    from tidemill.cli.render.lists import list_page

    return list_page(session, "blobs", lambda mill: mill.blobs(**wanted))


@blobs.command("gc")
@options.option(
    "--grace",
    metavar="HOURS",
    type=options.Numbers(0),
    default=24.0,
    about="How long unreferenced blobs stay before they are deleted.",
)
@options.many("--exclude", metavar="RUN", about="Ignore this unreadable run of an earlier version, and lose its blobs.")
@options.dry_run
@options.on_store(own=True)
def gc_command(session: StoreSession, grace: float, exclude: tuple[str, ...], dry_run: bool) -> int:
    """Garbage-collect unreferenced blobs.

    The first run marks them; a run after the grace period deletes them.
    """
    from tidemill.cli.render.maintenance import print_gc_report

    return session.ask_and_print(
        lambda mill: mill.collect_blobs(dry_run=dry_run, grace_s=grace * 3600, exclude=exclude), print_gc_report
    )


def migrate(session: StoreSession, *, dry_run: bool) -> int:
    """Show the migrations of a store and apply the pending ones."""
    try:
        before = migrated(session.store, dry_run=True)
        after = before if dry_run else migrated(session.store)
    except Rejected as refusal:
        return session.refused(refusal)
    pending = [step for step in before if step.applied_ms is None]
    if session.as_json:
        steps = [{"number": step.number, "name": step.name, "applied_ms": step.applied_ms} for step in after]
        print_json({"migrations": steps, "pending": [step.number for step in pending], "dry_run": dry_run})
    else:
        _print_migrations(after, pending, dry_run)
    return main.OK


def _print_migrations(steps: tuple[Step, ...], pending: list[Step], dry_run: bool) -> None:
    if not steps:
        print("this store has no schema to migrate")
        return
    columns = (
        Column("SCHEMA", "number", number=True),
        Column("NAME", "name"),
        Column("APPLIED", lambda step: "pending" if step.applied_ms is None else moment(step.applied_ms)),
    )
    print_rows(columns, steps)
    number = counted(len(pending), "migration")
    done = f"! {number} would be applied" if dry_run else f"✓ {number} applied"
    print(done if pending else "✓ no migration is pending")


DOCTOR_CODES = {"ok": main.OK, "info": main.OK, "warning": main.FAILED, "error": main.REFUSED}


@click.command("doctor")
@options.on_store(own=True)
def doctor_command(session: StoreSession) -> int:
    """Check a deployment and suggest fixes.

    It checks the store and its settings, workers, unfinished runs and blobs. Nothing is written, and workers may
    run meanwhile. Exits with 1 when there are warnings, with 2 when there are errors or the store cannot be opened.
    """
    from tidemill.cli.render.maintenance import print_diagnosis
    from tidemill.client import diagnose

    main.start_collector()
    shown = without_password(session.store)
    try:
        found = diagnose(session.store)
    except Rejected as refusal:
        return session.refused(refusal)
    if session.as_json:
        print_json({"store": shown, **plain(found)})
    else:
        print_diagnosis(shown, found)
    return DOCTOR_CODES[found.severity]


@click.command("verify-log")
@options.argument("runs", "[RUN]...", "Only these runs. Default: all.", nargs=-1)
@options.option(
    "--sample",
    metavar="PERCENT",
    type=float,
    default=100.0,
    about="Check only this percentage of runs, always the same ones.",
)
@options.on_store(own=True)
def verify_log_command(session: StoreSession, runs: tuple[str, ...], sample: float) -> int:
    """Check all event logs for violated invariants.

    Nothing is changed, and workers may run meanwhile. Exits with 1 when something was found.
    """
    from tidemill.cli.render.maintenance import Progress, print_audit, print_finding

    progress = Progress(as_json=session.as_json)

    def ask(mill: Tidemill) -> AuditReport:
        with progress:
            return mill.verify_log(
                runs,
                sample=sample,
                on_finding=None if session.as_json else lambda finding: progress.above(lambda: print_finding(finding)),
                on_progress=lambda runs, events: progress.show(f"{runs:,} runs, {events:,} events"),
            )

    return session.ask_and_print(ask, print_audit, ends=lambda verdict: main.OK if verdict.clean else main.FAILED)


@click.command("reindex")
@options.dry_run
@options.on_store(own=True)
def reindex_command(session: StoreSession, dry_run: bool) -> int:
    """Rebuild the index of all lists from the event logs.

    Workers may run meanwhile, and no run is unlisted at any moment. Exits with 1 when a log cannot be read.
    """
    from tidemill.cli.render.maintenance import Progress, print_reindexed

    def ask(mill: Tidemill) -> Reindexed:
        with Progress(as_json=session.as_json) as progress:
            return mill.reindex(dry_run=dry_run, on_progress=lambda done: progress.show(f"{done:,} logs"))

    return session.ask_and_print(ask, print_reindexed, ends=lambda found: main.FAILED if found.unreadable else main.OK)


@click.command("usage")
@options.option(
    "--since", metavar="DATE", about="From this day, in UTC: 2026-03-01, or 90d (ago). Default: 30 days ago."
)
@options.of_workflow
@options.on_store()
def usage_command(session: StoreSession, since: str | None, workflow: str | None) -> int:
    """Show usage by day and workflow: runs, time and cost.

    Runs, time of nodes, events, bytes of outputs and tokens, by the day on which a run ended, in UTC.
    """
    from tidemill.cli.render.summaries import print_usage

    return session.ask_and_print(lambda mill: mill.usage(since=since, workflow=workflow), print_usage)
