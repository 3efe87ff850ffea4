"""`tidemill runs patch`: change the graph of a run, see what that means, and let it go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli.options import (
    DEFAULT_STORE,
    Actor,
    AsJson,
    DryRun,
    Key,
    Run,
    Sets,
    Store,
    Sure,
)

if TYPE_CHECKING:
    from tidemill.front import Tidemill

PatchFile = Annotated[
    str | None, typer.Argument(metavar="FILE", help="A JSON Patch, in JSON or YAML; - reads standard input.")
]


def patch_command(
    run: Run,
    file: PatchFile = None,
    sets: Sets = None,
    dry_run: DryRun = False,
    retry: Annotated[bool, typer.Option("--retry", help="Let a failed or cancelled run go on with it.")] = False,
    base: Annotated[
        str | None, typer.Option("--base", metavar="DIGEST", help="Refuse if the run follows another document.")
    ] = None,
    expected: Annotated[
        int | None, typer.Option("--expect", metavar="SEQ", min=1, help="Refuse if the run is at another event.")
    ] = None,
    publish: Annotated[bool, typer.Option("--publish", help="Publish the result as a version, too.")] = False,
    sure: Sure = None,
    message: Annotated[
        str, typer.Option("--message", "--reason", "-m", metavar="TEXT", help="What it is about; it is kept.")
    ] = "",
    actor: Actor = None,
    key: Key = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Change the graph or the configuration of a run.

    And say what is added, removed, run again and kept; --dry-run says it and does nothing.
    """
    from tidemill.cli.asking import Asking, acting
    from tidemill.cli.edits import read_edits
    from tidemill.cli.verdicts import tell_patch

    asking = Asking(store, as_json)

    def ask(mill: Tidemill) -> Any:
        digest = base
        document: Any = None
        if sets:
            # What `--set` means depends on this document, so the patch is made for it and no other.
            found = mill.document(run)
            digest, document = base or found.digest, found.document
        return mill.patch(
            run,
            read_edits(file, sets or (), lambda: document),
            base_digest=digest,
            expected_seq=expected,
            retry=retry,
            dry_run=dry_run,
            did_not_happen=tuple(sure or ()),
            publish=publish,
            message=message,
            actor=acting(actor),
            command_id=key,
        )

    return asking.answer(ask, lambda outcome: tell_patch(run, outcome))
