"""`tidemill workflows`, `publish` and `start`: published workflows with their versions and tags, and runs of them.

Also `tidemill tools`: pipelines of agents that have become tools.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from tidemill.agents.port import CompositeTool
from tidemill.cli import main, options
from tidemill.cli.inputs import read_inputs, read_pairs, read_source, undeclared
from tidemill.cli.render.documents import WORKERS, NodeTypeDetails, print_document
from tidemill.cli.render.lists import shares
from tidemill.cli.render.runs import say
from tidemill.cli.render.tables import Column, print_facts, print_hint, print_rows
from tidemill.cli.render.terminal import columns, counted, print_warnings
from tidemill.cli.session import StoreSession
from tidemill.cli.user_code import warn_of_ignored_config
from tidemill.client import Tidemill
from tidemill.engine.catalog import Published, Tagged, WorkflowDeletion
from tidemill.engine.services.workers import NodeTypeView
from tidemill.engine.versions import LATEST, split_reference
from tidemill.engine.views import plain
from tidemill.errors import Rejected

workflows = options.new_group("workflows")

name_argument = options.argument("name", "NAME", "The name of a published workflow.")
tag_argument = options.argument("tag", "TAG", "The tag, e.g. stable.")


@workflows.command("list")
@options.page
@options.on_store()
def list_command(session: StoreSession, limit: int, after: str | None) -> int:
    """List published workflows, most recently changed first."""
    from tidemill.cli.render.lists import list_page

    return list_page(session, "workflows", lambda mill: mill.workflows(after=after, limit=limit))


@workflows.command("show")
@options.reference
@options.on_store()
def show_command(session: StoreSession, reference: str) -> int:
    """Print the document of a version in normal form."""

    def ask(mill: Tidemill) -> dict[str, Any]:
        document = mill.workflow_document(reference)
        name, _, rest = split_reference(reference)
        tags = mill.tags(name)
        number = tags[rest or LATEST] if rest in tags or not rest else int(rest)
        return {**plain(mill.versions(name)[number - 1]), "document": document}

    def show(found: dict[str, Any]) -> None:
        print_document(f"{found['name']}@{found['version']}, {found['digest']}", found["document"])

    return session.ask_and_print(ask, show)


@workflows.command("versions")
@name_argument
@options.on_store()
def versions_command(session: StoreSession, name: str) -> int:
    """List the versions of a workflow and their tags."""
    from tidemill.cli.render.lists import print_versions

    def ask(mill: Tidemill) -> dict[str, Any]:
        return {"versions": mill.versions(name), "tags": mill.tags(name)}

    return session.ask_and_print(ask, lambda found: print_versions(found["versions"], plain(found["tags"])))


@workflows.command("tags")
@name_argument
@options.on_store()
def tags_command(session: StoreSession, name: str) -> int:
    """Show where tags point and who moved them."""
    from tidemill.cli.render.lists import print_tags

    def ask(mill: Tidemill) -> dict[str, Any]:
        return {"tags": mill.tags(name), "history": mill.tag_history(name)}

    return session.ask_and_print(ask, lambda found: print_tags(found["tags"], found["history"]))


@workflows.command("diff")
@options.argument("left", "LEFT", "A version: name, name@3 or name:stable.")
@options.argument("right", "RIGHT", "Another version.")
@options.on_store()
def diff_command(session: StoreSession, left: str, right: str) -> int:
    """Show the differences between two versions.

    With --json also as a JSON Patch that makes the right one of the left one.
    """
    from tidemill.cli.render.documents import print_diff

    return session.ask_and_print(lambda mill: mill.diff(left, right), print_diff)


@workflows.command("tag")
@name_argument
@tag_argument
@options.argument("version", "VERSION", "The number of a version.", type=options.Integers(1))
@options.option(
    "--weight",
    metavar="PERCENT",
    type=options.Integers(0, 100),
    about="Give this version only a share of the tag's runs, in percent; the present versions keep the rest.",
)
@options.message
@options.actor
@options.on_store()
def tag_command(session: StoreSession, name: str, tag: str, version: int, **given: Any) -> int:
    """Point a tag to a version, or give the version a share of it."""
    return session.ask_and_print(lambda mill: mill.tag(name, tag, version, **given), print_tagged)


@workflows.command("rollback")
@name_argument
@tag_argument
@options.message
@options.actor
@options.on_store()
def rollback_command(session: StoreSession, name: str, tag: str, **given: Any) -> int:
    """Move a tag back to where it pointed before."""
    return session.ask_and_print(lambda mill: mill.rollback_tag(name, tag, **given), print_tagged)


@workflows.command("delete")
@name_argument
@options.message
@options.actor
@options.on_store()
def delete_command(session: StoreSession, name: str, **given: Any) -> int:
    """Delete a workflow with all its versions.

    Refused while runs of it have not ended. Ended runs stay and can still be inspected.
    """

    def show(deleted: WorkflowDeletion) -> None:
        say(f"{deleted.name} with {counted(deleted.versions, 'version')} is deleted")

    return session.ask_and_print(lambda mill: mill.delete_workflow(name, **given), show)


@workflows.command("untag")
@name_argument
@tag_argument
@options.message
@options.actor
@options.on_store()
def untag_command(session: StoreSession, name: str, tag: str, **given: Any) -> int:
    """Remove a tag."""
    return session.ask_and_print(lambda mill: mill.untag(name, tag, **given), print_tagged)


@workflows.command("patch")
@options.reference
@options.patch_file
@options.sets
@options.option("--base", metavar="DIGEST", about="Refuse if the version has different content.")
@options.author
@options.message
@options.apps
@options.on_store()
def patch_command(
    session: StoreSession, reference: str, file: str | None, sets: tuple[str, ...], base: str | None, **given: Any
) -> int:
    """Publish a new version by patching another."""
    from tidemill.cli.inputs import read_edits

    def ask(mill: Tidemill) -> Any:
        operations = read_edits(file, sets, lambda: mill.workflow_document(reference))
        return mill.patch_workflow(reference, operations, base_digest=base, **given)

    return session.ask_and_print(ask, print_published)


def publish(session: StoreSession, file: str, *, author: str, message: str) -> int:
    def ask(mill: Tidemill) -> Published:
        source = read_source(file)
        warn_of_ignored_config(source.folder)
        with source.located():
            published = mill.publish(source.published, author=author, message=message)
        published = msgspec.structs.replace(published, warnings=source.with_places(published.warnings))
        views.extend(mill.node_types() if published.from_workers else ())
        latest.append(0 if published.created or session.as_json else mill.tags(published.name)[LATEST])
        return published

    views: list[NodeTypeView] = []
    latest: list[int] = []
    return session.ask_and_print(ask, lambda published: print_published(published, views, latest[0]))


DIGEST_COLUMNS = 81


def print_published(published: Published, views: Sequence[NodeTypeView] = (), latest: int = 0) -> None:
    """Print which version something has become, or was already, and which of its types only workers have.

    `latest` is the latest version, where that may be another.
    """
    reference = f"{published.name}@{published.version}"
    say(f"{reference} is published" if published.created else f"{reference} has this content already")
    who = {view.node_type.key: NodeTypeDetails(view.node_type, WORKERS, view).workers for view in views}
    types = ", ".join(f"{key} ({who[key]})" if who.get(key) else key for key in published.from_workers)
    # A digest is as wide as a small terminal, and stays in one piece.
    print_facts([("digest", published.digest), ("of workers", types)], indent=2 if columns() > DIGEST_COLUMNS else 0)
    if latest not in (0, published.version):
        print_hint(f"latest stays {published.name}@{latest}; start this one as {reference}")
    print_warnings(published.warnings, sys.stderr)


def print_tagged(moved: Tagged) -> None:
    now, before = shares(moved.version, moved.weights), shares(moved.was, moved.was_weights)
    was = f", it was {before}" if moved.was else ""
    if moved.version:
        words = f"{moved.name}{now} now{was}" if moved.moved else f"{moved.name}{now} already"
    else:
        words = f"taken away{was}" if moved.moved else "not there"
    say(f"{moved.name}:{moved.tag} is {words}")


def start(
    session: StoreSession, workflow: str, given: Sequence[str], *, labels: Sequence[str], actor: str, **more: Any
) -> int:
    def ask(mill: Tidemill) -> dict[str, Any]:
        named, inputs = read_pairs("--label", labels), read_inputs(given)
        run_id = mill.start(workflow, inputs, labels=named, submitted_by=actor, **more)
        if inputs and not session.as_json:
            print_warnings(undeclared(mill.workflow(workflow).inputs, inputs), sys.stderr)
        return {"run_id": run_id}

    return session.ask_and_print(ask, lambda found: print(found["run_id"]))


# Composite tools of agents.

tools = options.new_group("tools")
tool_argument = options.argument("name", "NAME", "The name of a composite tool.")


@tools.command("list")
@options.flag("--retired", about="List retired tools instead of those in use.")
@options.on_store()
def list_tools_command(session: StoreSession, retired: bool) -> int:
    """List composite tools, most recently changed first."""
    return session.ask_and_print(lambda mill: mill.tools(retired=retired), print_tools)


@tools.command("show")
@options.argument("name", "NAME", "The name of a composite tool: name, or name@2.")
@options.on_store()
def show_tool_command(session: StoreSession, name: str) -> int:
    """Show the parameters and steps of a tool."""
    return session.ask_and_print(lambda mill: mill.tool(name), print_tool)


@tools.command("rename")
@tool_argument
@options.argument("new_name", "NEW", "Its new name: a letter, then letters, digits and -.")
@options.option("--description", metavar="TEXT", about="The description that agents read.")
@options.actor
@options.on_store()
def rename_tool_command(session: StoreSession, name: str, new_name: str, **given: Any) -> int:
    """Rename a tool. Agents find it under the new name only."""
    return session.ask_and_print(lambda mill: mill.rename_tool(name, new_name, **given), print_tool)


@tools.command("pin")
@tool_argument
@options.flag("--off", about="Unpin: let the tool get new versions again.")
@options.actor
@options.on_store()
def pin_tool_command(session: StoreSession, name: str, off: bool, **given: Any) -> int:
    """Pin a tool to its present version."""
    return session.ask_and_print(lambda mill: mill.pin_tool(name, pinned=not off, **given), print_tool)


@tools.command("retire")
@tool_argument
@options.flag("--off", about="Make the tool available to agents again.")
@options.actor
@options.on_store()
def retire_tool_command(session: StoreSession, name: str, off: bool, **given: Any) -> int:
    """Retire a tool: agents can neither find nor call it."""
    return session.ask_and_print(lambda mill: mill.retire_tool(name, retired=not off, **given), print_tool)


@tools.command("mcp")
@options.argument("name", "NAME", "An MCP server in tidemill.toml. Default: list all.", required=False)
@options.flag("--approve", about="Print the lines for tidemill.toml that approve the tools as they are.")
@options.config
@options.as_json
def mcp_tools_command(name: str | None, approve: bool, as_json: bool) -> int:
    """Show the tools of an MCP server and whether agents may use them.

    The operator grants a server under [mcp.NAME] in tidemill.toml, and approves its tools there by their digests.
    """
    import asyncio

    from tidemill.bootstrap import survey_mcp_server
    from tidemill.cli.render.terminal import print_json, report_problems
    from tidemill.settings import read_settings

    try:
        granted = read_settings().mcp
        if name is None:
            rows = [{"server": each, "tools": str(len(grant.tools))} for each, grant in sorted(granted.items())]
        else:
            rows = asyncio.run(survey_mcp_server(name))
    except Rejected as refusal:
        report_problems(refusal.problems, as_json=as_json)
        return main.REFUSED
    if as_json:
        print_json(rows)
    elif name is None:
        print_rows((Column("SERVER", lambda row: row["server"]), Column("APPROVED", lambda row: row["tools"])), rows)
    elif approve:
        print(f"[mcp.{name}.tools]")
        # A tool that the server has no more, or whose description is too long, cannot be approved.
        for row in (each for each in rows if each["state"] != "gone" and each["digest"]):
            print(f"{_toml_key(row['tool'])} = {json.dumps(row['digest'])}")
    else:
        columns = [
            Column("TOOL", lambda row: row["tool"]),
            Column("STATE", lambda row: row["state"]),
            Column("EFFECT", lambda row: row["effect"]),
            Column("DIGEST", lambda row: row["digest"][:23]),
            Column("DESCRIPTION", lambda row: row["description"], gives=True),
        ]
        print_rows(columns, rows)
    return main.OK


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def print_tools(found: Sequence[CompositeTool]) -> None:
    if not found:
        print("no pipeline has become a composite tool")
        return
    columns = (
        Column("TOOL", "name"),
        Column("VERSION", "version", number=True),
        Column("STATE", tool_state),
        Column("PARAMETERS", lambda tool: ", ".join(tool.parameters["properties"]) or "–", gives=True),
    )
    print_rows(columns, found)


def tool_state(tool: CompositeTool) -> str:
    return "retired" if tool.retired else "pinned" if tool.pinned else "active"


def print_tool(tool: CompositeTool) -> None:
    about = f"{tool.name}@{tool.version}, {tool_state(tool)}: {tool.description}"
    print_document(about, {"parameters": tool.parameters["properties"], "pipeline": tool.pipeline})
