"""`tidemill runs patch`: change the graph of a run, see what that means, and let it go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tidemill.cli import options

if TYPE_CHECKING:
    from tidemill.cli.asking import Asking
    from tidemill.engine.changes import PatchOutcome
    from tidemill.front import Tidemill


@click.command("patch")
@options.run
@options.patch_file
@options.sets
@options.dry_run
@options.flag("--retry", about="Let a failed or cancelled run go on with it.")
@options.option("--base", metavar="DIGEST", about="Refuse if the run follows another document.")
@options.option(
    "--expect", "expected_seq", metavar="SEQ", type=options.integers(1), about="Refuse if the run is at another event."
)
@options.flag("--publish", about="Publish the result as a version, too.")
@options.did_not_happen
@options.option(
    "--message", "--reason", "-m", "message", metavar="TEXT", default="", about="What it is about; it is kept."
)
@options.actor
@options.command_id
@options.apps
@options.on_store()
def patch_command(
    asking: Asking, run: str, file: str | None, sets: tuple[str, ...], base: str | None, **given: Any
) -> int:
    """Change the graph or the configuration of a run.

    And say what is added, removed, run again and kept; --dry-run says it and does nothing.
    """
    from tidemill.cli.edits import edits_for
    from tidemill.cli.verdicts import tell_patch

    def ask(mill: Tidemill) -> PatchOutcome:
        edits = edits_for(mill, run, file, sets, base)
        return mill.patch(run, edits.operations, base_digest=edits.base, **given)

    return asking.answer(ask, lambda outcome: tell_patch(run, outcome))
