"""`tidemill nodes`: which node types there are, and what their configuration looks like. No store is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tidemill.cli.groups import new_group
from tidemill.cli.options import DEFAULT_STORE, Apps, AsJson

if TYPE_CHECKING:
    from tidemill.bootstrap import NodeTypes

T = TypeVar("T")

nodes = new_group("nodes", "See which node types there are, and how they are configured.")


@nodes.command("list")
def list_command(apps: Apps = None, as_json: AsJson = False) -> int:
    """List the node types, with where they come from."""
    from tidemill.cli.specimens import Collection, tell_collection

    return _answer(apps, as_json, Collection, tell_collection)


@nodes.command("show")
def show_command(
    name: Annotated[str, typer.Argument(metavar="TYPE", help="A node type: name, or name@2.")],
    apps: Apps = None,
    as_json: AsJson = False,
) -> int:
    """Show a node type: what it does, its fields, what may be expected of it."""
    from tidemill.cli.specimens import specimen, tell_specimen

    return _answer(apps, as_json, lambda types: specimen(types, name), tell_specimen)


def _answer(apps: list[str] | None, as_json: bool, ask: Callable[[NodeTypes], T], tell: Callable[[T], None]) -> int:
    from tidemill.bootstrap import node_types
    from tidemill.cli import exits
    from tidemill.cli.apps import importable, load_apps
    from tidemill.cli.asking import Asking, plain
    from tidemill.cli.problems import print_json
    from tidemill.errors import Rejected

    try:
        with importable():
            app = load_apps(apps or ())
            found = ask(node_types(app.functions, app.handlers))
    except Rejected as refusal:
        return Asking(DEFAULT_STORE, as_json).refused(refusal)
    if as_json:
        print_json(plain(found))
    else:
        tell(found)
    return exits.OK
