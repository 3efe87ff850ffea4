"""`tidemill validate`: everything that is wrong with a document, at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tidemill.bootstrap import node_types
from tidemill.cli import exits
from tidemill.cli.apps import importable, load_apps
from tidemill.cli.problems import as_plain, counted, print_json, print_problems, print_refusal
from tidemill.cli.sources import STDIN, read_source
from tidemill.cli.terminal import clean
from tidemill.errors import Problem, Rejected
from tidemill.kernel.compile import Compiled, compile_document
from tidemill.kernel.document.borrowed import with_stand_ins


def validate(file: str, apps: Sequence[str], *, as_json: bool) -> int:
    """Compile a document and tell what came of it."""
    try:
        # What is wrong with the environment or an app is not the document's fault.
        with importable():
            app = load_apps(apps)
            types = node_types(app.functions, app.handlers)
    except Rejected as refusal:
        _tell_nothing_checked(refusal.problems, as_json)
        return exits.REFUSED
    try:
        document, unchecked = with_stand_ins(read_source(file).document)
        compiled = compile_document(document, types.by_name, types.in_vain)
    except Rejected as refusal:
        _tell_refused(file, refusal.problems, as_json)
        return exits.REFUSED
    _tell_valid(compiled._replace(warnings=(*compiled.warnings, *unchecked)), as_json)
    return exits.OK


def _tell_valid(compiled: Compiled, as_json: bool) -> None:
    workflow, warnings = compiled.workflow, compiled.warnings
    if as_json:
        print_json(
            {
                "valid": True,
                "name": workflow.name,
                "nodes": len(workflow.nodes),
                "digest": workflow.digest,
                "problems": [],
                "warnings": as_plain(warnings),
            }
        )
        return
    print(f"✓ {workflow.name} is valid: {counted(len(workflow.nodes), 'node')}, {workflow.digest}")
    if warnings:
        print_problems(f"! {counted(len(warnings), 'warning')}", warnings, sys.stdout, warning=True)


def _tell_nothing_checked(problems: tuple[Problem, ...], as_json: bool) -> None:
    if as_json:
        _tell_refused("", problems, as_json)
    else:
        print_refusal(problems)


def _tell_refused(file: str, problems: tuple[Problem, ...], as_json: bool) -> None:
    if as_json:
        refused = {"valid": False, "name": None, "nodes": None, "digest": None}
        print_json({**refused, "problems": as_plain(problems), "warnings": []})
        return
    name = "the document" if file == STDIN else clean(file)
    print_problems(f"✗ {name} is refused: {counted(len(problems), 'problem')}", problems, sys.stdout)
