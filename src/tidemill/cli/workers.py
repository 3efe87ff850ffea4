"""`tidemill workers`: who works on a store, on what, and what they can run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidemill.cli import exits, options
from tidemill.cli.groups import GROUPS, CommandGroup

if TYPE_CHECKING:
    from tidemill.cli.asking import Asking


@click.group(cls=CommandGroup, help=GROUPS["workers"], invoke_without_command=True)
@options.flag("--all", "every", about="Also those that died within the last hour.")
@options.on_store()
@click.pass_context
def workers(context: click.Context, asking: Asking, every: bool) -> int:
    if context.invoked_subcommand is not None:
        return exits.OK
    from tidemill.cli.crew import Crew, tell_crew

    return asking.answer(lambda mill: Crew(mill.workers(), every=every), lambda crew: tell_crew(asking, crew))


@workers.command("show")
@options.argument("name", "NAME", "The worker's name, the last part of it, or its pid.")
@options.on_store()
def show_command(asking: Asking, name: str) -> int:
    """Show a worker: what it holds, and which node types it can run."""
    from tidemill.cli.crew import member, tell_member

    return asking.answer(lambda mill: member(mill.workers(), name), tell_member)
