"""`tidemill verify-log` and `tidemill reindex`: is what the store holds sound, and do its lists say what it holds?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli.options import DEFAULT_STORE, AsJson, DryRun, Store

if TYPE_CHECKING:
    from tidemill.engine.auditing import Verdict
    from tidemill.engine.indexing import Reindexed
    from tidemill.front import Tidemill

Runs = Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Only these runs. Default: everything.")]
Sample = Annotated[
    float, typer.Option("--sample", metavar="PERCENT", help="Only so many of a hundred runs, always the same ones.")
]


def verify_log_command(
    runs: Runs = None, sample: Sample = 100.0, store: Store = DEFAULT_STORE, as_json: AsJson = False
) -> int:
    """Read all logs again and tell what is not as it must be.

    Nothing is changed, and workers may run meanwhile. Exits with 1 when something was found.
    """
    from tidemill.cli import exits
    from tidemill.cli.asking import Asking
    from tidemill.cli.soundness import Progress, tell_finding, tell_verdict

    progress = Progress(as_json=as_json)

    def ask(mill: Tidemill) -> Verdict:
        with progress:
            return mill.verify_log(
                runs or (),
                sample=sample,
                on_finding=None if as_json else lambda finding: progress.above(lambda: tell_finding(finding)),
                on_progress=lambda runs, events: progress.show(f"{runs:,} runs, {events:,} events"),
            )

    def ends(verdict: Verdict) -> int:
        return exits.OK if verdict.clean else exits.FAILED

    return Asking(store, as_json).answer(ask, tell_verdict, ends=ends)


def reindex_command(dry_run: DryRun = False, store: Store = DEFAULT_STORE, as_json: AsJson = False) -> int:
    """Rebuild everything that lists show from the logs.

    Workers may run meanwhile, and no run is unlisted at any moment. Exits with 1 when a log cannot be read.
    """
    from tidemill.cli import exits
    from tidemill.cli.asking import Asking
    from tidemill.cli.soundness import Progress, tell_reindexed

    def ask(mill: Tidemill) -> Reindexed:
        with Progress(as_json=as_json) as progress:
            return mill.reindex(dry_run=dry_run, on_progress=lambda done: progress.show(f"{done:,} logs"))

    def ends(found: Reindexed) -> int:
        return exits.FAILED if found.unreadable else exits.OK

    return Asking(store, as_json).answer(ask, tell_reindexed, ends=ends)
