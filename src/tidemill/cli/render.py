"""`tidemill render`: a template, filled in here with values that are given on the command line."""

from __future__ import annotations

import sys
from typing import Any

from tidemill.cli import exits
from tidemill.cli.problems import print_json, tell_problems
from tidemill.cli.scopes import Readings, read_mapping, template_scope
from tidemill.cli.sources import read_bytes, read_data
from tidemill.cli.terminal import clean
from tidemill.errors import Rejected, rejected
from tidemill.expressions.failure import ExpressionError
from tidemill.expressions.scope import Scope
from tidemill.expressions.templates import check_template, compile_template

_VALUES = (".json", ".yaml", ".yml")


def render(template: str, scope: str, *, as_json: bool) -> int:
    """Render a template and print what comes of it."""
    try:
        value, seen = _read(template, scope)
    except Rejected as refusal:
        tell_problems(refusal.problems, as_json=as_json)
        return exits.REFUSED
    try:
        rendered = compile_template(value).render(seen)
    except ExpressionError as failure:
        tell_problems([failure.problem()], as_json=as_json)
        return exits.FAILED
    if as_json or not isinstance(rendered, str):
        print_json(rendered)
    else:
        print(clean(rendered) if sys.stdout.isatty() else rendered)
    return exits.OK


def _read(template: str, scope: str) -> tuple[Any, Scope]:
    """Read both; raises Rejected with the problems of both."""
    readings = Readings()
    value = readings.take(lambda: _template(template))
    if not readings.problems:
        readings.problems += check_template(value)[0]
    seen = readings.take(lambda: template_scope(read_mapping("--scope", scope), "--scope"))
    readings.refuse()
    assert seen is not None, "without problems there is a scope"
    return value, seen


def _template(text: str) -> Any:
    """A text, or what a file holds: a value if it is JSON or YAML by its name, else one text."""
    if not text.startswith("@"):
        return text
    name = text[1:]
    if name.endswith(_VALUES):
        return read_data(name)
    try:
        return read_bytes(name).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise rejected("not_utf8", f"{name} is not UTF-8", hint="save the file as UTF-8") from None
