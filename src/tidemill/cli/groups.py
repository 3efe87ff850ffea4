"""How a group of commands is made: called without one of them, it shows its help."""

from __future__ import annotations

import typer

from tidemill.cli import exits


def new_group(name: str, about: str) -> typer.Typer:
    """A group without commands."""
    return typer.Typer(name=name, help=about, callback=show_help, invoke_without_command=True, rich_markup_mode=None)


def show_help(context: typer.Context) -> int:
    """Show what commands there are, unless one was given."""
    if context.invoked_subcommand is None:
        print(context.get_help())
    return exits.OK
