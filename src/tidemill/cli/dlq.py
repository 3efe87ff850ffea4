"""`tidemill dlq`: failures that nobody will try again by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli.groups import new_group
from tidemill.cli.options import (
    DEFAULT_STORE,
    PAGE,
    Actor,
    AsJson,
    Cursor,
    DryRun,
    Item,
    Key,
    Limit,
    Node,
    Reason,
    Run,
    Store,
    Sure,
    Visit,
)

if TYPE_CHECKING:
    from tidemill.engine.letters import Reprocessed
    from tidemill.front import Tidemill

dlq = new_group("dlq", "See what was given up on, and try it again.")

REPROCESSED_MAX = 1000
OfRun = Annotated[str | None, typer.Option("--run", metavar="RUN", help="Of this run.")]
OfWorkflow = Annotated[str | None, typer.Option("--workflow", metavar="NAME", help="Of this workflow.")]
OfNode = Annotated[str | None, typer.Option("--node", metavar="NODE", help="Of this node.")]
Patch = Annotated[str | None, typer.Option("--patch", metavar="FILE", help="A JSON Patch that every run gets first.")]
Config = Annotated[
    str | None, typer.Option("--config", metavar="VALUE", help="Another config for --node: JSON or @file.")
]
Letters = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=100_000, help="At most so many letters.")]
OfCode = Annotated[str | None, typer.Option("--code", metavar="CODE", help="That failed with this code.")]


@dlq.command("list")
def list_command(
    run: OfRun = None,
    workflow: OfWorkflow = None,
    code: OfCode = None,
    status: Annotated[
        str, typer.Option("--status", metavar="STATUS", help="open, reprocessed, discarded or all.")
    ] = "open",
    limit: Limit = PAGE,
    after: Cursor = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """List dead letters, newest first: those that are open."""
    from tidemill.cli.asking import Asking
    from tidemill.cli.rosters import Page, tell_letters

    asking = Asking(store, as_json)
    wanted = {"run": run, "workflow": workflow, "code": code, "status": None if status == "all" else status}
    terms = [f"{name}:{value}" for name, value in wanted.items() if value is not None]

    def ask(mill: Tidemill) -> Page:
        return Page("dead_letters", *mill.dead_letters(terms, after=after, limit=limit))

    return asking.answer(ask, lambda page: tell_letters(asking, page))


@dlq.command("show")
def show_command(
    run: Run,
    node: Node,
    visit: Visit = None,
    item: Item = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Show a dead letter, and the input it failed with."""
    from tidemill.cli.asking import Asking
    from tidemill.cli.letters import tell_letter

    asking = Asking(store, as_json)

    def ask(mill: Tidemill) -> Any:
        return mill.dead_letter(run, node, visit=visit, index=item)

    return asking.answer(ask, lambda letter: tell_letter(asking, letter))


@dlq.command("retry")
def retry_command(
    run: OfRun = None,
    node: OfNode = None,
    workflow: OfWorkflow = None,
    code: OfCode = None,
    patch: Patch = None,
    config: Config = None,
    dry_run: DryRun = False,
    sure: Sure = None,
    limit: Letters = REPROCESSED_MAX,
    reason: Reason = "",
    actor: Actor = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Let the runs of dead letters go on.

    Say which: by --run, --workflow, --node or --code. --patch or --config repairs them first.
    """
    from tidemill.cli import exits
    from tidemill.cli.asking import Asking, acting
    from tidemill.cli.edits import read_edits
    from tidemill.cli.sources import read_value
    from tidemill.cli.verdicts import tell_reprocessed

    def ask(mill: Tidemill) -> Reprocessed:
        corrected = {} if config is None else {"config": read_value("--config", config)}
        return mill.reprocess(
            **corrected,
            run_id=run,
            node=node,
            workflow=workflow,
            code=code,
            operations=None if patch is None else read_edits(patch, (), lambda: None),
            dry_run=dry_run,
            did_not_happen=tuple(sure or ()),
            reason=reason,
            actor=acting(actor),
            limit=limit,
        )

    def ends(outcome: Reprocessed) -> int:
        in_vain = outcome.matched and not outcome.handled and not dry_run
        return exits.REFUSED if in_vain else exits.OK

    return Asking(store, as_json).answer(ask, tell_reprocessed, ends=ends)


@dlq.command("discard")
def discard_command(
    run: Run,
    node: Node,
    visit: Visit = None,
    item: Item = None,
    reason: Reason = "",
    actor: Actor = None,
    key: Key = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Take a dead letter off the list."""
    from tidemill.cli.acting import act
    from tidemill.cli.asking import Asking, acting

    def do(mill: Tidemill) -> None:
        who = acting(actor)
        mill.discard(run, node, visit=visit, index=item, reason=reason, actor=who, command_id=key)

    return act(Asking(store, as_json), run, f"dead letter {node} discarded", do)
