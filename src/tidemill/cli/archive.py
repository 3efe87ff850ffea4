"""`tidemill archive`: runs that were kept long enough, where they are now, and the way back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidemill.cli import exits, options
from tidemill.cli.groups import new_group

if TYPE_CHECKING:
    from tidemill.cli.asking import Asking
    from tidemill.engine.attic import Listed
    from tidemill.front import Tidemill

archive = new_group("archive")

archived_run = options.argument("run", "RUN", "The id of a run, whose newest entry is meant, or the name of an entry.")


@archive.command("list")
@options.of_workflow
@options.limit
@options.archive
@options.on_store()
def list_command(asking: Asking, workflow: str | None, limit: int) -> int:
    """List archived runs, the latest months first."""
    from tidemill.cli.soundness import tell_archive

    return asking.answer(
        lambda mill: mill.archive_list(workflow=workflow, limit=limit),
        lambda page: tell_archive(asking, page, workflow),
        ends=lambda page: exits.FAILED if page.damaged else exits.OK,
    )


@archive.command("show")
@archived_run
@options.flag("--events", about="With everything that happened.")
@options.archive
@options.on_store()
def show_command(asking: Asking, run: str, events: bool) -> int:
    """Show an archived run."""
    from tidemill.cli.asking import plain
    from tidemill.cli.soundness import tell_archived

    def ask(mill: Tidemill) -> dict[str, Any]:
        header, happened = mill.archive_show(run)
        return {**plain(header), **({"events": happened} if events else {})}

    return asking.answer(ask, lambda found: tell_archived(asking, found, with_events=events))


@archive.command("restore")
@archived_run
@options.archive
@options.on_store()
def restore_command(asking: Asking, run: str) -> int:
    """Put an archived run back into the store, as it was.

    It is kept from now on as long as after its end. The archive keeps its copy.
    """
    from tidemill.cli.soundness import tell_others
    from tidemill.cli.verdicts import say

    def tell(listed: Listed) -> None:
        say(f"run {listed.run_id} is back, with {listed.seq} events")
        tell_others(listed.others)

    return asking.answer(lambda mill: mill.archive_restore(run), tell)


@archive.command("sweep")
@options.dry_run
@options.retention_days
@options.keep_runs
@options.archive
@options.on_store()
def sweep_command(asking: Asking, dry_run: bool, retention_days: float, keep_runs: bool) -> int:
    """Archive every run that was kept long enough, now.

    Workers do so by themselves; given the same days as they have, --dry-run tells what they will do next. Runs that
    cannot be archived stay and are told, with exit code 1.
    """
    from tidemill.cli.soundness import tell_swept

    return replace(asking, retention_days=None if keep_runs else retention_days).answer(
        lambda mill: mill.archive_sweep(dry_run=dry_run),
        tell_swept,
        ends=lambda swept: exits.FAILED if swept.failed else exits.OK,
    )
