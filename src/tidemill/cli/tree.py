"""The tree of commands, grown only as far as the arguments lead.

Typer makes every command it is given, with the annotations of its function, before it looks at the arguments. For all
of ours that takes longer than a short command itself. So it is given the one command that the words name, and all of
them where they name none: then the help lists what there is, or an error what comes near.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from importlib import import_module

import typer
from typer.core import TyperGroup
from typer.main import get_command
from typer.models import CommandInfo

from tidemill.cli.readers import read_quickly

GROUPS = ("runs", "approvals", "dlq", "archive", "blobs", "nodes", "workflows", "workers")
"""Each is what a file of this package calls by the name of that file, imported when it is named."""


def tree(root: typer.Typer, words: Sequence[str] = ()) -> TyperGroup:
    """What the words are given to; without words it is everything."""
    name = words[0] if words else ""
    if name in GROUPS:
        branch = _only(_group(name), words[1]) if len(words) > 1 else None
        whole = _with(root, [], [branch or _group(name)])
    else:
        whole = _only(root, name) or _with(root, root.registered_commands, map(_group, GROUPS))
    made = get_command(whole)
    assert isinstance(made, TyperGroup)
    read_quickly(made)
    return made


def _group(name: str) -> typer.Typer:
    group: typer.Typer = getattr(import_module(f"tidemill.cli.{name}"), name)
    return group


def _only(branch: typer.Typer, name: str) -> typer.Typer | None:
    """A branch with the one command of this name, if it has it."""
    named = [command for command in branch.registered_commands if command.name == name]
    return _with(branch, named, []) if named else None


def _with(branch: typer.Typer, commands: list[CommandInfo], groups: Iterable[typer.Typer]) -> typer.Typer:
    """The same branch with other things below it."""
    other = copy(branch)
    other.registered_commands, other.registered_groups = commands, []
    for group in groups:
        other.add_typer(group)
    return other
