"""`tidemill workflows`: what is published, its versions and tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill.cli import options
from tidemill.cli.groups import new_group

if TYPE_CHECKING:
    from tidemill.cli.asking import Asking
    from tidemill.front import Tidemill

workflows = new_group("workflows")

name_argument = options.argument("name", "NAME", "The name of a published workflow.")
tag_argument = options.argument("tag", "TAG", "The tag, e.g. stable.")


@workflows.command("list")
@options.limit
@options.after
@options.on_store()
def list_command(asking: Asking, limit: int, after: str | None) -> int:
    """List what is published, the last change first."""
    from tidemill.cli.rosters import Page, tell_workflows

    def ask(mill: Tidemill) -> Page:
        return Page("workflows", *mill.workflows(after=after, limit=limit))

    return asking.answer(ask, lambda page: tell_workflows(asking, page))


@workflows.command("show")
@options.reference
@options.on_store()
def show_command(asking: Asking, reference: str) -> int:
    """Print the document of a version, in its normal form."""
    from tidemill.cli.catalogue import show_version, tell_version

    return asking.answer(lambda mill: show_version(mill, reference), tell_version)


@workflows.command("versions")
@name_argument
@options.on_store()
def versions_command(asking: Asking, name: str) -> int:
    """List the versions of a workflow, and their tags."""
    from tidemill.cli.asking import plain
    from tidemill.cli.rosters import tell_versions

    def ask(mill: Tidemill) -> dict[str, Any]:
        return {"versions": mill.versions(name), "tags": mill.tags(name)}

    return asking.answer(ask, lambda found: tell_versions(found["versions"], plain(found["tags"])))


@workflows.command("tags")
@name_argument
@options.on_store()
def tags_command(asking: Asking, name: str) -> int:
    """Show where tags point, and who moved them."""
    from tidemill.cli.rosters import tell_tags

    def ask(mill: Tidemill) -> dict[str, Any]:
        return {"tags": mill.tags(name), "history": mill.tag_history(name)}

    return asking.answer(ask, lambda found: tell_tags(found["tags"], found["history"]))


@workflows.command("diff")
@options.argument("left", "LEFT", "A version: name, name@3 or name:stable.")
@options.argument("right", "RIGHT", "Another version.")
@options.on_store()
def diff_command(asking: Asking, left: str, right: str) -> int:
    """Show what lies between two versions.

    With --json also as a JSON Patch that makes the right one of the left one.
    """
    from tidemill.cli.verdicts import tell_diff

    return asking.answer(lambda mill: mill.diff(left, right), tell_diff)


@workflows.command("tag")
@name_argument
@tag_argument
@options.argument("version", "VERSION", "The number of a version.", type=options.integers(1))
@options.message
@options.actor
@options.on_store()
def tag_command(asking: Asking, name: str, tag: str, version: int, message: str, actor: str) -> int:
    """Make a tag point to a version."""
    from tidemill.cli.catalogue import tell_tagged

    return asking.answer(lambda mill: mill.tag(name, tag, version, actor=actor, message=message), tell_tagged)


@workflows.command("untag")
@name_argument
@tag_argument
@options.message
@options.actor
@options.on_store()
def untag_command(asking: Asking, name: str, tag: str, message: str, actor: str) -> int:
    """Take a tag away."""
    from tidemill.cli.catalogue import tell_tagged

    return asking.answer(lambda mill: mill.untag(name, tag, actor=actor, message=message), tell_tagged)


@workflows.command("patch")
@options.reference
@options.patch_file
@options.sets
@options.option("--base", metavar="DIGEST", about="Refuse if the version has other content.")
@options.author
@options.message
@options.apps
@options.on_store()
def patch_command(
    asking: Asking,
    reference: str,
    file: str | None,
    sets: tuple[str, ...],
    base: str | None,
    author: str,
    message: str,
) -> int:
    """Make a new version by changing places of another."""
    from tidemill.cli.catalogue import tell_published
    from tidemill.cli.edits import read_edits

    def ask(mill: Tidemill) -> Any:
        operations = read_edits(file, sets, lambda: mill.workflow_document(reference))
        return mill.patch_workflow(reference, operations, base_digest=base, author=author, message=message)

    return asking.answer(ask, tell_published)
