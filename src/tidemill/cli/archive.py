"""`tidemill archive`: runs that were kept long enough, where they are now, and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import exits
from tidemill.cli.groups import new_group
from tidemill.cli.options import DEFAULT_STORE, PAGE, AsJson, DryRun, Limit, Store

if TYPE_CHECKING:
    from tidemill.engine.attic import Listed
    from tidemill.front import Tidemill

archive = new_group("archive", "See old runs that have left the store, and bring them back.")

Where = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="PLACE",
        envvar="TIDEMILL_ARCHIVE",
        help="A folder, or s3://bucket/prefix. Default: beside the file of the store.",
    ),
]
RetentionDays = Annotated[
    float,
    typer.Option(
        "--retention-days", metavar="DAYS", min=0, help="How long finished runs stay, unless their workflow says."
    ),
]
KeepRuns = Annotated[bool, typer.Option("--keep-runs", help="Keep finished runs for ever, unless their workflow says.")]
RETENTION_DAYS_DEFAULT = 30.0
OfWorkflow = Annotated[str | None, typer.Option("--workflow", metavar="NAME", help="Of this workflow.")]
Archived = Annotated[
    str, typer.Argument(metavar="RUN", help="The id of a run, whose newest entry is meant, or the name of an entry.")
]
Events = Annotated[bool, typer.Option("--events", help="With everything that happened.")]


@archive.command("list")
def list_command(
    workflow: OfWorkflow = None,
    limit: Limit = PAGE,
    where: Where = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """List archived runs, the latest months first."""
    from tidemill.cli.asking import Asking
    from tidemill.cli.soundness import tell_archive

    asking = Asking(store, as_json, where)
    return asking.answer(
        lambda mill: mill.archive_list(workflow=workflow, limit=limit),
        lambda page: tell_archive(asking, page, workflow),
        ends=lambda page: exits.FAILED if page.damaged else exits.OK,
    )


@archive.command("show")
def show_command(
    run: Archived, events: Events = False, where: Where = None, store: Store = DEFAULT_STORE, as_json: AsJson = False
) -> int:
    """Show an archived run."""
    from tidemill.cli.asking import Asking, plain
    from tidemill.cli.soundness import tell_archived

    asking = Asking(store, as_json, where)

    def ask(mill: Tidemill) -> dict[str, Any]:
        header, happened = mill.archive_show(run)
        return {**plain(header), **({"events": happened} if events else {})}

    return asking.answer(ask, lambda found: tell_archived(asking, found, with_events=events))


@archive.command("restore")
def restore_command(run: Archived, where: Where = None, store: Store = DEFAULT_STORE, as_json: AsJson = False) -> int:
    """Put an archived run back into the store, as it was.

    It is kept from now on as long as after its end. The archive keeps its copy.
    """
    from tidemill.cli.asking import Asking
    from tidemill.cli.soundness import tell_others
    from tidemill.cli.verdicts import say

    def tell(listed: Listed) -> None:
        say(f"run {listed.run_id} is back, with {listed.seq} events")
        tell_others(listed.others)

    return Asking(store, as_json, where).answer(lambda mill: mill.archive_restore(run), tell)


@archive.command("sweep")
def sweep_command(
    dry_run: DryRun = False,
    retention_days: RetentionDays = RETENTION_DAYS_DEFAULT,
    keep_runs: KeepRuns = False,
    where: Where = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Archive every run that was kept long enough, now.

    Workers do so by themselves; given the same days as they have, --dry-run tells what they will do next. Runs that
    cannot be archived stay and are told, with exit code 1.
    """
    from tidemill.cli.asking import Asking
    from tidemill.cli.soundness import tell_swept

    asking = Asking(store, as_json, where, retention_days=None if keep_runs else retention_days)
    return asking.answer(
        lambda mill: mill.archive_sweep(dry_run=dry_run),
        tell_swept,
        ends=lambda swept: exits.FAILED if swept.failed else exits.OK,
    )
