"""`tidemill verify-log` and `tidemill reindex`: is what the store holds sound, and do its lists say what it holds?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidemill.cli import exits, options

if TYPE_CHECKING:
    from tidemill.cli.asking import Asking
    from tidemill.engine.auditing import Verdict
    from tidemill.engine.indexing import Reindexed
    from tidemill.front import Tidemill


@click.command("verify-log")
@options.argument("runs", "[RUN]...", "Only these runs. Default: everything.", nargs=-1)
@options.option(
    "--sample",
    metavar="PERCENT",
    type=float,
    default=100.0,
    about="Only so many of a hundred runs, always the same ones.",
)
@options.on_store()
def verify_log_command(asking: Asking, runs: tuple[str, ...], sample: float) -> int:
    """Read all logs again and tell what is not as it must be.

    Nothing is changed, and workers may run meanwhile. Exits with 1 when something was found.
    """
    from tidemill.cli.soundness import Progress, tell_finding, tell_verdict

    progress = Progress(as_json=asking.as_json)

    def ask(mill: Tidemill) -> Verdict:
        with progress:
            return mill.verify_log(
                runs,
                sample=sample,
                on_finding=None if asking.as_json else lambda finding: progress.above(lambda: tell_finding(finding)),
                on_progress=lambda runs, events: progress.show(f"{runs:,} runs, {events:,} events"),
            )

    return asking.answer(ask, tell_verdict, ends=lambda verdict: exits.OK if verdict.clean else exits.FAILED)


@click.command("reindex")
@options.dry_run
@options.on_store()
def reindex_command(asking: Asking, dry_run: bool) -> int:
    """Rebuild everything that lists show from the logs.

    Workers may run meanwhile, and no run is unlisted at any moment. Exits with 1 when a log cannot be read.
    """
    from tidemill.cli.soundness import Progress, tell_reindexed

    def ask(mill: Tidemill) -> Reindexed:
        with Progress(as_json=asking.as_json) as progress:
            return mill.reindex(dry_run=dry_run, on_progress=lambda done: progress.show(f"{done:,} logs"))

    return asking.answer(ask, tell_reindexed, ends=lambda found: exits.FAILED if found.unreadable else exits.OK)
