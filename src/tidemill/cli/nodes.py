"""`tidemill nodes`: which node types there are, and what their configuration looks like. No store is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tidemill.cli import exits, options
from tidemill.cli.groups import new_group

if TYPE_CHECKING:
    from tidemill.bootstrap import NodeTypes

T = TypeVar("T")

nodes = new_group("nodes")


@nodes.command("list")
@options.apps
@options.as_json
def list_command(apps: Sequence[str], as_json: bool) -> int:
    """List the node types, with where they come from."""
    from tidemill.cli.specimens import Collection, tell_collection

    return _answer(apps, as_json, Collection, tell_collection)


@nodes.command("show")
@options.argument("name", "TYPE", "A node type: name, or name@2.")
@options.apps
@options.as_json
def show_command(name: str, apps: Sequence[str], as_json: bool) -> int:
    """Show a node type: what it does, its fields, what may be expected of it."""
    from tidemill.cli.specimens import specimen, tell_specimen

    return _answer(apps, as_json, lambda types: specimen(types, name), tell_specimen)


def _answer(apps: Sequence[str], as_json: bool, ask: Callable[[NodeTypes], T], tell: Callable[[T], None]) -> int:
    from tidemill.bootstrap import node_types
    from tidemill.cli.apps import importable, load_apps
    from tidemill.cli.asking import Asking, plain
    from tidemill.cli.problems import print_json
    from tidemill.errors import Rejected

    try:
        with importable():
            app = load_apps(apps)
            found = ask(node_types(app.functions, app.handlers))
    except Rejected as refusal:
        return Asking(options.DEFAULT_STORE, as_json).refused(refusal)
    if as_json:
        print_json(plain(found))
    else:
        tell(found)
    return exits.OK
