"""`tidemill workers`: who works on a store, on what, and what they can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli.options import DEFAULT_STORE, AsJson, Store

if TYPE_CHECKING:
    from tidemill.cli.crew import Crew
    from tidemill.engine.roster import WorkerView
    from tidemill.front import Tidemill

workers = typer.Typer(
    name="workers",
    help="See who works on a store, on what, and what they can run.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@workers.callback()
def list_command(
    context: typer.Context,
    every: Annotated[bool, typer.Option("--all", help="Also those that died within the last hour.")] = False,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """See who works on a store, on what, and what they can run."""
    from tidemill.cli import exits

    if context.invoked_subcommand is not None:
        return exits.OK
    from tidemill.cli.asking import Asking
    from tidemill.cli.crew import Crew, tell_crew

    asking = Asking(store, as_json)

    def ask(mill: Tidemill) -> Crew:
        return Crew(mill.workers(), every=every)

    return asking.answer(ask, lambda crew: tell_crew(asking, crew))


@workers.command("show")
def show_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The worker's name, the last part of it, or its pid.")],
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Show a worker: what it holds, and which node types it can run."""
    from tidemill.cli.asking import Asking
    from tidemill.cli.crew import Member, member, tell_member

    asking = Asking(store, as_json)

    def ask(mill: Tidemill) -> Member:
        found: list[WorkerView] = mill.workers()
        return member(found, name)

    return asking.answer(ask, tell_member)
