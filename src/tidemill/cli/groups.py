"""Groups of commands: the root imports a group when it is named, and a group without a command shows its help."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from tidemill.cli import exits

GROUPS = {
    "runs": "Find runs, look at them, repair them.",
    "approvals": "See what waits for people, and decide.",
    "dlq": "See what was given up on, and try it again.",
    "archive": "See old runs that have left the store, and bring them back.",
    "blobs": "Store, read and collect large values and files.",
    "nodes": "See which node types there are, and how they are configured.",
    "workflows": "See what is published; tag and change it.",
    "workers": "See who works on a store, on what, and what they can run.",
}
"""Each is an attribute of the module of the same name in this package."""


class LazyCommand(click.Command):
    """A group that the help of the root lists and that nothing has imported yet."""

    def load(self) -> click.Command:
        command: click.Command = getattr(import_module(f"tidemill.cli.{self.name}"), str(self.name))
        return command


class CommandGroup(click.Group):
    """Lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest


def new_group(name: str, **more: Any) -> CommandGroup:
    """A group without commands."""
    return CommandGroup(
        name, help=GROUPS[name], invoke_without_command=True, callback=click.pass_context(show_help), **more
    )


def show_help(context: click.Context) -> int:
    """Print the help of a group, unless a command follows."""
    if context.invoked_subcommand is None:
        print(context.get_help())
    return exits.OK
