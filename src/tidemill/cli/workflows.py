"""`tidemill workflows`: what is published, its versions and tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli.groups import new_group
from tidemill.cli.options import (
    DEFAULT_STORE,
    PAGE,
    Actor,
    Apps,
    AsJson,
    Author,
    Cursor,
    Limit,
    Message,
    Reference,
    Sets,
    Store,
)

if TYPE_CHECKING:
    from tidemill.front import Tidemill

workflows = new_group("workflows", "See what is published; tag and change it.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a published workflow.")]
Tag = Annotated[str, typer.Argument(metavar="TAG", help="The tag, e.g. stable.")]


@workflows.command("list")
def list_command(
    limit: Limit = PAGE, after: Cursor = None, store: Store = DEFAULT_STORE, as_json: AsJson = False
) -> int:
    """List what is published, the last change first."""
    from tidemill.cli.asking import Asking
    from tidemill.cli.rosters import Page, tell_workflows

    asking = Asking(store, as_json)

    def ask(mill: Tidemill) -> Page:
        return Page("workflows", *mill.workflows(after=after, limit=limit))

    return asking.answer(ask, lambda page: tell_workflows(asking, page))


@workflows.command("show")
def show_command(reference: Reference, store: Store = DEFAULT_STORE, as_json: AsJson = False) -> int:
    """Print the document of a version, in its normal form."""
    from tidemill.cli.asking import Asking
    from tidemill.cli.catalogue import show_version, tell_version

    return Asking(store, as_json).answer(lambda mill: show_version(mill, reference), tell_version)


@workflows.command("versions")
def versions_command(name: Name, store: Store = DEFAULT_STORE, as_json: AsJson = False) -> int:
    """List the versions of a workflow, and their tags."""
    from tidemill.cli.asking import Asking, plain
    from tidemill.cli.rosters import tell_versions

    def ask(mill: Tidemill) -> dict[str, Any]:
        return {"versions": mill.versions(name), "tags": mill.tags(name)}

    def tell(found: dict[str, Any]) -> None:
        tell_versions(found["versions"], plain(found["tags"]))

    return Asking(store, as_json).answer(ask, tell)


@workflows.command("tags")
def tags_command(name: Name, store: Store = DEFAULT_STORE, as_json: AsJson = False) -> int:
    """Show where tags point, and who moved them."""
    from tidemill.cli.asking import Asking
    from tidemill.cli.rosters import tell_tags

    def ask(mill: Tidemill) -> dict[str, Any]:
        return {"tags": mill.tags(name), "history": mill.tag_history(name)}

    return Asking(store, as_json).answer(ask, lambda found: tell_tags(found["tags"], found["history"]))


@workflows.command("diff")
def diff_command(
    left: Annotated[str, typer.Argument(metavar="LEFT", help="A version: name, name@3 or name:stable.")],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="Another version.")],
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Show what lies between two versions.

    With --json also as a JSON Patch that makes the right one of the left one.
    """
    from tidemill.cli.asking import Asking
    from tidemill.cli.verdicts import tell_diff

    return Asking(store, as_json).answer(lambda mill: mill.diff(left, right), tell_diff)


@workflows.command("tag")
def tag_command(
    name: Name,
    tag: Tag,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="The number of a version.")],
    message: Message = "",
    actor: Actor = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Make a tag point to a version."""
    from tidemill.cli.asking import Asking, acting
    from tidemill.cli.catalogue import tell_tagged

    def ask(mill: Tidemill) -> Any:
        return mill.tag(name, tag, version, actor=acting(actor), message=message)

    return Asking(store, as_json).answer(ask, tell_tagged)


@workflows.command("untag")
def untag_command(
    name: Name,
    tag: Tag,
    message: Message = "",
    actor: Actor = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Take a tag away."""
    from tidemill.cli.asking import Asking, acting
    from tidemill.cli.catalogue import tell_tagged

    def ask(mill: Tidemill) -> Any:
        return mill.untag(name, tag, actor=acting(actor), message=message)

    return Asking(store, as_json).answer(ask, tell_tagged)


@workflows.command("patch")
def patch_command(
    reference: Reference,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="A JSON Patch, in JSON or YAML; - reads standard input.")
    ] = None,
    sets: Sets = None,
    base: Annotated[
        str | None, typer.Option("--base", metavar="DIGEST", help="Refuse if the version has other content.")
    ] = None,
    author: Author = None,
    message: Message = "",
    apps: Apps = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Make a new version by changing places of another."""
    from tidemill.cli.asking import Asking, acting
    from tidemill.cli.catalogue import tell_published
    from tidemill.cli.edits import read_edits

    def ask(mill: Tidemill) -> Any:
        operations = read_edits(file, sets or (), lambda: mill.workflow_document(reference))
        who = acting(author)
        return mill.patch_workflow(reference, operations, base_digest=base, author=who, message=message)

    return Asking(store, as_json, apps=tuple(apps or ())).answer(ask, tell_published)
