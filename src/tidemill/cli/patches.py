"""`tidemill runs patch`: change the graph of a run, see what that means, and let it go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli.options import (
    DEFAULT_STORE,
    Actor,
    Apps,
    AsJson,
    DryRun,
    Key,
    Run,
    Sets,
    Store,
    Sure,
)

if TYPE_CHECKING:
    from tidemill.engine.changes import PatchOutcome
    from tidemill.front import Tidemill

PatchFile = Annotated[
    str | None, typer.Argument(metavar="FILE", help="A JSON Patch, in JSON or YAML; - reads standard input.")
]
Retry = Annotated[bool, typer.Option("--retry", help="Let a failed or cancelled run go on with it.")]
Base = Annotated[
    str | None, typer.Option("--base", metavar="DIGEST", help="Refuse if the run follows another document.")
]
Expected = Annotated[
    int | None, typer.Option("--expect", metavar="SEQ", min=1, help="Refuse if the run is at another event.")
]
Publish = Annotated[bool, typer.Option("--publish", help="Publish the result as a version, too.")]
About = Annotated[
    str, typer.Option("--message", "--reason", "-m", metavar="TEXT", help="What it is about; it is kept.")
]


def patch_command(
    run: Run,
    file: PatchFile = None,
    sets: Sets = None,
    dry_run: DryRun = False,
    retry: Retry = False,
    base: Base = None,
    expected: Expected = None,
    publish: Publish = False,
    sure: Sure = None,
    message: About = "",
    actor: Actor = None,
    key: Key = None,
    apps: Apps = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Change the graph or the configuration of a run.

    And say what is added, removed, run again and kept; --dry-run says it and does nothing.
    """
    from tidemill.cli.asking import Asking, acting
    from tidemill.cli.edits import edits_for
    from tidemill.cli.verdicts import tell_patch

    def ask(mill: Tidemill) -> PatchOutcome:
        edits = edits_for(mill, run, file, sets or (), base)
        return mill.patch(
            run,
            edits.operations,
            base_digest=edits.base,
            expected_seq=expected,
            retry=retry,
            dry_run=dry_run,
            did_not_happen=tuple(sure or ()),
            publish=publish,
            message=message,
            actor=acting(actor),
            command_id=key,
        )

    return Asking(store, as_json, apps=tuple(apps or ())).answer(ask, lambda outcome: tell_patch(run, outcome))
