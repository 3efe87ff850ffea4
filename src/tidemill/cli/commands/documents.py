"""`tidemill validate`, `graph`, `export` and `nodes`: they compile and print documents, and list node types.

They need no store. With one, `validate` and `nodes` also know the node types that its workers offer.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal, TypeVar

from tidemill.cli import main, options
from tidemill.cli.inputs import FILE_ENDINGS, STDIN, Source, read_source
from tidemill.cli.render.graph import (
    PictureForm,
    check_screen,
    draw,
    drawing_text,
    form_of,
    mermaid_lines,
    print_drawing,
    print_picture,
)
from tidemill.cli.render.terminal import (
    as_plain,
    counted,
    print_json,
    print_problems,
    print_refusal,
    print_warnings,
    sanitize,
    supports_unicode,
)
from tidemill.cli.user_code import importable, load_apps, warn_of_ignored_config
from tidemill.errors import Problem, Rejected
from tidemill.kernel.compile.compiler import compile_document
from tidemill.kernel.document.normalize import with_stand_ins
from tidemill.kernel.document.reader import normalise
from tidemill.kernel.model import Workflow
from tidemill.node_types import NodeTypes, node_types

if TYPE_CHECKING:
    from tidemill.cli.render.documents import KnownTypes


def graph(file: str, *, form: PictureForm | None, output: str | None = None) -> int:
    """Print or write a drawing; without a form, text for a person and Mermaid for a program."""
    types = node_types()
    source = read_source(file)
    document, _ = with_stand_ins(source.document)
    with source.located():
        workflow = compile_document(document, types.by_name, types.unusable_types).workflow
    form = form or form_of(output) or ("text" if supports_unicode() else "mermaid")
    check_screen(form, output, workflow.name)
    match form:
        case "mermaid":
            waiting = {name for name, majors in types.by_name.items() if majors[-1].waits}
            picture = "".join(f"{line}\n" for line in mermaid_lines(workflow, waiting))
        case "svg":
            from tidemill.pictures import graph_svg

            picture = graph_svg(workflow)
        case "html":
            from tidemill.pictures import graph_html

            picture = graph_html(workflow)
        case _ if output is None:
            print_drawing(title(workflow), draw(workflow))
            return main.OK
        case _:
            picture = drawing_text(title(workflow), draw(workflow))
    print_picture(picture, output)
    return main.OK


def title(workflow: Workflow) -> str:
    about = f" — {' '.join(sanitize(workflow.description).split())}" if workflow.description else ""
    return f"{workflow.name} · {counted(len(workflow.nodes), 'node')}{about}"


def export(source: str, form: Literal["yaml", "json", "python"], store: str) -> int:
    """Print a document in one of its forms, and which others it needs."""
    from tidemill.authoring.python_source import python_source, readable, started_workflows

    found = _exported(source, store)
    normal, problems = normalise(found.document)
    if problems:
        raise Rejected(found.with_places(problems))
    if form == "python":
        text = python_source(normal)
    elif form == "json":
        text = json.dumps(readable(normal), indent=2, ensure_ascii=False) + "\n"
    else:
        from tidemill.kernel.document.text import as_yaml

        text = as_yaml(readable(normal))
    if children := started_workflows(normal):
        note = _note_of_children(source, children)
        # JSON has no comments.
        print(note, file=sys.stderr) if form == "json" else sys.stdout.write(f"# {note}\n")
    sys.stdout.write(text)
    return main.OK


def _note_of_children(source: str, children: Sequence[str]) -> str:
    """Which workflows must be published beside an exported one, and how."""
    place = source.partition(":")[0]
    if place.endswith(".py"):
        how = f"`tidemill publish {source}` does so"
    elif source == STDIN or place.endswith(FILE_ENDINGS) or os.path.exists(source):
        how = "`tidemill publish FILE`"
    else:
        how = f"`tidemill export {children[0]}` prints {'the first' if len(children) > 1 else 'it'}"
    return f"It starts workflows that must be published, too: {', '.join(children)} ({how})."


def _exported(source: str, store: str) -> Source:
    """The document in a file, or of a published workflow."""
    place = source.partition(":")[0]
    if source == STDIN or place.endswith((*FILE_ENDINGS, ".py")) or os.path.exists(source):
        return read_source(source)
    from tidemill.cli.session import StoreSession

    return Source(source, StoreSession(store).asked(lambda mill: mill.workflow_document(source)), None)


T = TypeVar("T")

nodes = options.new_group("nodes")


@nodes.command("list")
@options.apps
@options.store_of_types
@options.as_json
def list_command(apps: Sequence[str], store: str | None, as_json: bool) -> int:
    """List the node types and where they come from."""
    from tidemill.cli.render.documents import NodeTypeList, print_node_types

    return _answer(apps, store, as_json, NodeTypeList, print_node_types)


@nodes.command("show")
@options.argument("name", "TYPE", "A node type: name, or name@2.")
@options.apps
@options.store_of_types
@options.as_json
def show_command(name: str, apps: Sequence[str], store: str | None, as_json: bool) -> int:
    """Show a node type: what it does, its fields and its capabilities."""
    from tidemill.cli.render.documents import find_node_type, print_node_type

    return _answer(apps, store, as_json, lambda types: find_node_type(types, name), print_node_type)


def _own_types(apps: Sequence[str]) -> NodeTypes:
    """The node types of this process and of --app."""
    with importable() if apps else nullcontext():
        app = load_apps(apps)
        return node_types(app.functions, app.handlers)


def _known_types(apps: Sequence[str], store: str | None) -> KnownTypes:
    """Those, and with a store what its workers offer."""
    from tidemill.cli.render.documents import KnownTypes

    here = _own_types(apps)
    if store is None:
        return KnownTypes(here)
    from tidemill.cli.session import StoreSession

    try:
        return KnownTypes(here, tuple(StoreSession(store).asked(lambda mill: mill.node_types())))
    except Rejected as refusal:
        # The variable may name a store that is to be made; then it has no workers.
        if refusal.code != "store_missing" or os.environ.get(options.STORE_VARIABLE) != store:
            raise
        return KnownTypes(here)


def _answer(
    apps: Sequence[str],
    store: str | None,
    as_json: bool,
    ask: Callable[[KnownTypes], T],
    show: Callable[[T], None],
) -> int:
    from tidemill.cli.session import StoreSession
    from tidemill.engine.views import plain

    try:
        found = ask(_known_types(apps, store))
    except Rejected as refusal:
        return StoreSession(options.DEFAULT_STORE, as_json).refused(refusal)
    if as_json:
        print_json(plain(found))
    else:
        show(found)
    return main.OK


def validate(file: str, apps: Sequence[str], store: str | None = None, *, as_json: bool) -> int:
    try:
        # What is wrong with the environment, a store or an app is not the document's fault.
        types = _own_types(apps) if store is None else _known_types(apps, store)
    except Rejected as refusal:
        if as_json:
            _print_refused("", refusal.problems, as_json)
        else:
            print_refusal(refusal.problems)
        return main.REFUSED
    try:
        source = read_source(file)
        warn_of_ignored_config(source.folder)
        document, unchecked = with_stand_ins(source.document)
        with source.located():
            compiled = compile_document(document, types.by_name, types.unusable_types, of_workers=store is not None)
    except Rejected as refusal:
        _print_refused(file, refusal.problems, as_json)
        return main.REFUSED
    workflow, warnings = compiled.workflow, source.with_places((*compiled.warnings, *unchecked))
    if as_json:
        valid = {"valid": True, "name": workflow.name, "nodes": len(workflow.nodes), "digest": workflow.digest}
        print_json({**valid, "problems": [], "warnings": as_plain(warnings)})
    else:
        print(f"✓ {workflow.name} is valid: {counted(len(workflow.nodes), 'node')}, {workflow.digest}")
        print_warnings(warnings, sys.stdout)
    return main.OK


def _print_refused(file: str, problems: tuple[Problem, ...], as_json: bool) -> None:
    if as_json:
        refused = {"valid": False, "name": None, "nodes": None, "digest": None}
        print_json({**refused, "problems": as_plain(problems), "warnings": []})
        return
    name = "the document" if file == STDIN else sanitize(file)
    print_problems(f"✗ {name} is not valid: {counted(len(problems), 'problem')}", problems, sys.stdout)
