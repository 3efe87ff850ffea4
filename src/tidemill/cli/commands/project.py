"""`init`, `watch` and `config`: create a project, watch a run that workers execute, show the settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from tidemill.api.server_settings import ServerSettings
from tidemill.cli import main, options
from tidemill.cli.options import KEY_VARIABLE, new_group
from tidemill.cli.render.tables import print_facts, print_hint
from tidemill.cli.render.terminal import (
    console,
    in_background,
    in_short,
    print_json,
    print_refusal,
    report_problems,
    supports_unicode,
)
from tidemill.cli.session import StoreSession
from tidemill.cli.user_code import warn_of_ignored_config
from tidemill.client import Tidemill
from tidemill.errors import Problem, Rejected, rejected
from tidemill.settings import CONFIG_VARIABLE, OTHER_VARIABLES, Settings, TenantGrants, read_settings
from tidemill.storage_urls import without_password

# init

STARTER = {
    "orders.yaml": """\
# Adds up the orders of a day, and asks a person if the sum is large.
#   tidemill run orders.yaml -i day=monday
name: orders
inputs:
  type: object
  properties:
    day: {type: string, default: monday}
  additionalProperties: false
nodes:
  - id: fetch
    type: python
    config:
      function: tasks:fetch
      args: {day: "{{ inputs.day }}"}
    retry: {max_attempts: 3}
  - id: total
    type: python
    config:
      function: tasks:total
      args: {orders: "{{ fetch.output }}"}
    dependencies: [fetch]
    branch:
      rules:
        - {condition: "output.sum > 100", next_nodes: [review]}
      default: [report]
  - id: review
    type: human
    config: {title: "{{ total.output.sum }} on {{ inputs.day }}: is that right?"}
    dependencies: [total]
  - id: report
    type: value
    config: "{{ total.output.count }} orders, {{ total.output.sum }} in all"
    dependencies: [total, review]
    join: any
outputs:
  report: "{{ report.output }}"
""",
    "tasks.py": '''\
"""The steps of orders.yaml: plain functions."""

ORDERS = {"monday": [12, 30, 7], "friday": [80, 45]}


def fetch(day: str) -> list[int]:
    """The amounts of a day."""
    return ORDERS[day]


def total(orders: list[int]) -> dict[str, int]:
    """How many there are, and what they add up to."""
    return {"count": len(orders), "sum": sum(orders)}
''',
    "test_orders.py": '''\
"""pytest test_orders.py"""

from pathlib import Path

import tidemill

FLOW = Path(__file__).with_name("orders.yaml")


def test_a_quiet_day_needs_no_review() -> None:
    with tidemill.open("memory://") as mill:
        run = mill.run(FLOW, {"day": "monday"})
        assert (run.status, run.outputs) == ("COMPLETED", {"report": "3 orders, 49 in all"})
''',
    ".gitignore": "tidemill.db*\n__pycache__/\n",
}
OPTIONAL = ".gitignore"
"""Left as it is where it exists: most repositories have one."""


@click.command("init")
@options.argument("folder", "[FOLDER]", "Where to write the files. Default: the current folder.", default=".", type=str)
def init_command(folder: str) -> int:
    """Create a project: a workflow, its functions and a test, ready to run."""
    place = Path(folder)
    try:
        written = _write_starter(place)
    except Rejected as refusal:
        print_refusal(refusal.problems)
        return main.REFUSED
    for name in written:
        print(f"✓ {place / name}")
    enter = "" if folder == "." else f"cd {folder} && "
    print_hint(f"{enter}tidemill run orders.yaml")
    print_hint("tidemill run orders.yaml -i day=friday   asks for your approval")
    return main.OK


def _write_starter(place: Path) -> list[str]:
    """Write all files, or none."""
    there = {name for name in STARTER if os.path.lexists(place / name)}
    if there - {OPTIONAL}:
        problems = [
            Problem(code="file_exists", message="it exists already", path=str(place / name), hint="name another folder")
            for name in STARTER
            if name in there - {OPTIONAL}
        ]
        raise Rejected(problems)
    written = [name for name in STARTER if name not in there]
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name in written:
            with (place / name).open("x", encoding="utf-8") as file:
                file.write(STARTER[name])
    except OSError as error:
        message = f"{place} cannot be written: {error.strerror}"
        raise rejected(
            "file_unwritable", message, path=str(place), hint="choose a folder that you can write to"
        ) from None
    return written


# watch


@click.command("watch")
@options.run
@options.on_store()
def watch_command(session: StoreSession, run: str) -> int:
    """Watch a run until it ends.

    Ctrl-C stops watching; the run continues.
    """
    codes: list[int] = []
    code = session.stream(lambda mill: codes.append(_watch(mill, session, run)))
    return codes[0] if codes else code


def _watch(mill: Tidemill, session: StoreSession, run_id: str) -> int:
    from tidemill.cli.render.board import RunProgress
    from tidemill.cli.render.live_display import Display
    from tidemill.cli.render.progress import Lines, QuietWatcher
    from tidemill.cli.render.runs import print_end
    from tidemill.cli.render.why import IdleReport

    view = mill.show(run_id)
    reference = f"{view.workflow}@{view.version}"
    board = RunProgress(mill.workflow(reference), view.run_id, reference=reference)
    watcher: Display | Lines | QuietWatcher
    if session.as_json:
        watcher = QuietWatcher(board)
    else:
        draws = supports_unicode() and not in_background(sys.stdout)
        watcher = Display(board, console()) if draws else Lines(board)
    try:
        with watcher, IdleReport(mill, session, board, watcher.say) as idle:
            for event in mill.follow(view.run_id, live=not session.as_json):
                watcher.see(event)
                if event.get("seq") == view.events:
                    idle.look()
    except KeyboardInterrupt:
        command = session.command("watch", view.run_id)
        print(f"run {view.run_id} continues; watch it again: {command}", file=sys.stderr)
        return main.INTERRUPTED
    view = mill.show(view.run_id)
    if session.as_json:
        print_json(view.to_dict())
    else:
        print_end(view, board, why=session.command("why", view.run_id))
    return main.OK if view.status == "COMPLETED" else main.FAILED


# config

config = new_group("config")


@config.command("show")
@options.config
@options.as_json
def show_command(as_json: bool) -> int:
    """Print the effective settings, without passwords and secrets."""
    try:
        found = read_settings()
    except Rejected as refusal:
        report_problems(refusal.problems, as_json=as_json)
        return main.REFUSED
    warn_of_ignored_config()
    shown = dict(_shown(found))
    if as_json:
        print_json(shown)
        return main.OK
    print_facts((name, _words(value)) for name, value in shown.items())
    return main.OK


@config.command("check")
@options.argument("file", "[FILE]", "A tidemill.toml. Default: the one in use.", required=False, type=str)
@options.config
@options.as_json
def check_command(file: str | None, as_json: bool) -> int:
    """Check the configuration file and the TIDEMILL_* variables."""
    try:
        found = read_settings(file)
    except Rejected as refusal:
        report_problems(refusal.problems, as_json=as_json)
        return main.REFUSED
    if file is None:
        warn_of_ignored_config()
    if as_json:
        print_json({"file": _words(found.source)})
        return main.OK
    print(f"✓ {found.source or 'no configuration file'}: no problems found")
    return main.OK


def _shown(settings: Settings) -> Iterator[tuple[str, Any]]:
    yield "file", None if settings.source is None else str(settings.source)
    yield "variables", dict(_variables())
    yield "grants", in_short(settings.granted)
    imports = settings.imports
    yield "imports", None if imports is None else list(imports.patterns)
    yield "egress", [str(each) for each in settings.egress.allow]
    yield "shell", settings.shell
    smtp = settings.smtp
    yield "smtp", None if smtp is None else f"{smtp.host}:{smtp.port}"
    yield "mcp", {name: each.url or " ".join(each.command) for name, each in settings.mcp.items()}
    yield "interpreter_packages", list(settings.interpreter_packages)
    yield "secrets_folder", None if settings.secrets_folder is None else str(settings.secrets_folder)
    yield (
        "secrets",
        {
            name: {"origins": list(each.origins), "workflows": list(each.workflows)}
            for name, each in settings.secrets.items()
        },
    )
    yield "databases", {name: without_password(url) for name, (url, _) in settings.databases.items()}
    yield "sql.store", settings.sql.enabled
    yield "sql.tables", {table: list(names) for table, names in settings.sql.tables.items()}
    yield from _fields("limits", settings.limits)
    yield from _fields("tracing", settings.tracing)
    yield from _server(settings.server)
    yield "tenants", {name: dict(_granted(each)) for name, each in settings.tenants.items()}


def _variables() -> Iterator[tuple[str, str]]:
    """The variables that are set and are no grants; the others are shown as the settings that they make."""
    # The option sets the variable, too.
    named = (CONFIG_VARIABLE,) if options.is_given("config") else ()
    for name in OTHER_VARIABLES:
        if name not in named and (value := os.environ.get(name)):
            yield name, "given" if name == KEY_VARIABLE else without_password(value)


def _fields(table: str, settings: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    yield from ((f"{table}.{name}", getattr(settings, name)) for name in sorted(settings.__struct_fields__))


def _server(server: ServerSettings) -> Iterator[tuple[str, Any]]:
    yield "server.secret", "given" if server.secret else None
    yield "server.public_url", server.public_url or None
    yield "server.session_hours", server.session_hours
    yield "server.approvals.webhook", server.approval_webhook or None
    yield "server.approvals.secret", "given" if server.approval_webhook_keys else None
    yield "server.approvals.link_hours", server.link_hours
    yield from _fields("server.limits", server.limits)
    jwt = server.jwt
    if jwt is None:
        yield "server.jwt", None
    else:
        yield "server.jwt", {"issuer": jwt.issuer, "audience": jwt.audience, "keys": str(server.jwks or "a secret")}


def _granted(grants: TenantGrants) -> Iterator[tuple[str, Any]]:
    """What is bound to a tenant; the rest is that of the process."""
    if grants.imports is not None:
        yield "imports", list(grants.imports.patterns)
    if grants.functions is not None:
        yield "functions", list(grants.functions)
    if grants.egress is not None:
        yield "egress", list(grants.egress.allow)
    if grants.secrets is not None:
        yield "secrets", sorted(grants.secrets)
    if grants.mcp is not None:
        yield "mcp", list(grants.mcp)


def _words(value: Any) -> str:
    if value in (None, [], {}):
        return "–"
    match value:
        case bool():
            return "on" if value else "off"
        case list():
            return ", ".join(map(str, value))
        case dict():
            lines = ((name, _words(each).replace("\n", "; ")) for name, each in value.items())
            return "\n".join(f"{name}: {words}" for name, words in lines)
        case int():
            return f"{value:,}"
    return str(value)
