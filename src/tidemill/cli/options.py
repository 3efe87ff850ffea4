"""Options and arguments that several commands share, and groups of commands.

The root imports a group only when it is named; a group without a command prints its help. Nothing of the engine may be
imported at the top of this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

import click

from tidemill.cli import main

DEFAULT_STORE = "sqlite:///tidemill.db"
STORE_VARIABLE = "TIDEMILL_STORE"
SERVER_VARIABLE = "TIDEMILL_SERVER"
KEY_VARIABLE = "TIDEMILL_KEY"
CONFIG_VARIABLE = "TIDEMILL_CONFIG"
PAGE = 20
"""Rows of a list, unless the caller asks for more."""

Command = Callable[..., int]
Decorator = Callable[[Command], Command]


class Text(click.ParamType[str]):
    """Text that can be stored; arguments that are not valid UTF-8 reach a program with lone surrogates."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                self.fail("not valid UTF-8", param, ctx)
        return text


TEXT = Text()


class RunName(Text):
    """The id of a run, the beginning of one, or `@last`; the command is given the id."""

    name = "run"


class Integers(click.IntRange):
    name = "integer"


class Numbers(click.FloatRange):
    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if number != number:
            self.fail(f"{value!r} is not a valid number.", param, ctx)
        return number


def argument(name: str, metavar: str, about: str, **more: Any) -> Decorator:
    return click.argument(name, metavar=metavar, help=about, **{"type": TEXT, **more})


def option(*names: str, about: str, **more: Any) -> Decorator:
    """An option whose help shows its default where there is one."""
    if not more.get("is_flag"):
        more = {"type": TEXT, "show_default": more.get("default") not in (None, ""), **more}
    return click.option(*names, help=about, **more)


def flag(*names: str, about: str) -> Decorator:
    return option(*names, about=about, is_flag=True)


def many(*names: str, about: str, **more: Any) -> Decorator:
    """An option that may be repeated; the command is given a tuple."""
    return option(*names, about=f"{about} Repeatable.", multiple=True, **more)


def together(*decorators: Decorator) -> Decorator:
    """Several options, in the order in which the help lists them."""

    def decorate(command: Command) -> Command:
        for each in reversed(decorators):
            command = each(command)
        return command

    return decorate


def acting(name: str | None) -> str:
    """Who acts: the name given, else the user of the operating system, else an empty name."""
    if name is not None:
        return name
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        # A container may run under a number that has no name.
        return ""


file = argument(
    "file", "FILE", "A YAML or JSON document, flow.py or module:workflow; - reads standard input.", type=str
)
run = argument("run", "RUN", "The id of a run, a unique prefix of it, or @last.", type=RunName())
node = argument("node", "NODE", "The id of a node.")
reference = argument("reference", "WORKFLOW", "A published workflow: name, name@3 or name:stable.")
patch_file = argument(
    "file", "[FILE]", "A JSON Patch, in JSON or YAML; - reads standard input.", type=str, required=False
)
change_file = argument(
    "file", "[FILE]", "A JSON Patch or a whole document, flow.py too; - reads standard input.", type=str, required=False
)


def _set_variable(context: click.Context, name: str, value: str) -> None:
    """Set an environment variable for everything that this command opens."""
    before = os.environ.get(name)
    os.environ[name] = value

    def restore() -> None:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before

    context.call_on_close(restore)


def _configured(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Name the configuration file."""
    if path is not None:
        if not os.path.isfile(os.path.expanduser(path)):
            from tidemill.errors import rejected

            message, hint = f"there is no configuration file {path}", "name a file that exists"
            raise rejected("config_missing", message, path="--config", hint=hint)
        _set_variable(context, CONFIG_VARIABLE, path)


config = click.option(
    "--config",
    metavar="FILE",
    type=str,
    callback=_configured,
    expose_value=False,
    help="The operator's tidemill.toml, instead of the one in the configuration folder.",
)
apps = together(
    many("--app", "apps", metavar="APP", about="Your code: module:attribute or path.py.", type=str),
    config,
)
imports = many(
    "--allow-import",
    "imports",
    metavar="PATTERN",
    about="Import path that python nodes may name: shop.tasks, shop.tasks:charge, shop.*.",
    type=str,
)
as_json = flag("--json", "as_json", about="Print one JSON value and nothing else.")
_SERVER, _KEY_FILE = "tidemill.server", "tidemill.key_file"
"""What the options were given, in the context of the command."""
_ASKED = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.PROMPT)


def is_server(place: str) -> bool:
    """Whether this is the address of a server, not a store."""
    return place.startswith(("http://", "https://"))


def _keep_server(context: click.Context, parameter: click.Parameter, url: str | None) -> None:
    if url is None:
        return
    if not is_server(url):
        # There may be a password before the last @.
        shown = url.rpartition("@")[2]
        message = (
            f"{shown!r} is not the address of a server; write http://127.0.0.1:8321 or https://tidemill.example.com"
        )
        raise click.BadParameter(message, context, parameter)
    context.meta[_SERVER] = (url, context.get_parameter_source(parameter.name or "") in _ASKED)


def _keep_key(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Take the key from a file."""
    if path is None:
        return
    try:
        with open(path, encoding="utf-8") as file:
            key = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path} cannot be read: {error}", context, parameter) from None
    if not key.isascii() or len(key.split()) != 1:
        raise click.BadParameter(f"{path} must contain one API key and nothing else", context, parameter)
    context.meta[_KEY_FILE] = path
    _set_variable(context, KEY_VARIABLE, key)


def _place(context: click.Context, parameter: click.Parameter, store: str | None) -> str | None:
    """The store, or the server that is asked instead of it; a misspelt variable would mean another one."""
    from tidemill.settings import refuse_unknown_variables

    refuse_unknown_variables()
    if _SERVER not in context.meta:
        return store
    source = context.get_parameter_source(parameter.name or "")
    (server, server_asked), store_asked = context.meta[_SERVER], source in _ASKED
    store_set = store_asked or source is click.core.ParameterSource.ENVIRONMENT
    if store_set and store_asked == server_asked:
        names = ("--store", "--server") if store_asked else (STORE_VARIABLE, SERVER_VARIABLE)
        raise click.UsageError(f"{names[0]} and {names[1]} are both set; use one of them.", context)
    return store if store_asked else str(server)


def server_words(url: str) -> tuple[str, ...]:
    """The options with which a command asks the same server as this one."""
    context = click.get_current_context(silent=True)
    file = None if context is None else context.meta.get(_KEY_FILE)
    server = () if url == os.environ.get(SERVER_VARIABLE) else ("--server", url)
    return (*server, *(("--key-file", file) if file else ()))


_server_options = together(
    option(
        "--server",
        metavar="URL",
        envvar=SERVER_VARIABLE,
        show_envvar=True,
        about="Use this server instead of a store; set its key in TIDEMILL_KEY.",
        type=str,
        is_eager=True,
        expose_value=False,
        callback=_keep_server,
    ),
    option(
        "--key-file",
        metavar="FILE",
        about="A file that contains the API key for the server.",
        type=str,
        is_eager=True,
        expose_value=False,
        callback=_keep_key,
    ),
)
_store: dict[str, Any] = {"metavar": "URL", "envvar": STORE_VARIABLE, "show_envvar": True, "type": str}
store = together(
    option("--store", default=DEFAULT_STORE, about="The store of runs and workflows.", callback=_place, **_store),
    _server_options,
)
store_of_types = together(
    option("--store", about="Include the node types that workers of this store offer.", callback=_place, **_store),
    _server_options,
)


def _own_place(context: click.Context, parameter: click.Parameter, store: str) -> str:
    """The store of a command that needs one itself, not a server."""
    place = _place(context, parameter, store) or store
    if is_server(place):
        message = f"`{context.command_path}` needs the store itself, not a server: --store URL"
        raise click.UsageError(message, context)
    return place


own_store = together(
    option("--store", default=DEFAULT_STORE, about="The store of runs and workflows.", callback=_own_place, **_store),
    option(
        "--server",
        envvar=SERVER_VARIABLE,
        about="",
        type=str,
        hidden=True,
        is_eager=True,
        expose_value=False,
        callback=_keep_server,
    ),
)
_named: dict[str, Any] = {"metavar": "NAME", "callback": lambda context, parameter, name: acting(name)}
actor = option("--as", "actor", about="Who performs the action. Default: the operating system user.", **_named)
author = option("--author", "--as", "author", about="Who publishes it.", **_named)
roles = many("--role", "roles", metavar="ROLE", about="A role of the person who acts.")
reason = option("--reason", metavar="TEXT", default="", about="The reason, recorded in the run's log.", type=str)
command_id = option(
    "--key", "command_id", metavar="ID", about="Repeating the command with the same key changes nothing."
)
who = together(reason, actor, command_id)
"""What every change of a run records: `reason`, `actor` and `command_id`, as the engine's methods call them."""
comments = option(
    *("--comments", "--comment", "--reason", "comments"),
    metavar="TEXT",
    default="",
    about="A comment, recorded with the decision.",
)
message = option("--message", "-m", metavar="TEXT", default="", about="A message, recorded with the change.")
concurrency = option(
    "--concurrency", metavar="N", type=Integers(1, 10_000), default=64, about="Maximum number of nodes to run at once."
)
log = together(
    option(
        "--log-level",
        metavar="LEVEL",
        type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
        default="info",
        about="info: one line per finished node; warning: failures; error: failures that the workflow does not handle.",
    ),
    option(
        "--log-format",
        metavar="FORMAT",
        type=click.Choice(["text", "json"]),
        default="text",
        about="text, or json: one JSON object per line.",
    ),
)
limit = option("--limit", metavar="N", type=Integers(1, 1000), default=PAGE, about="Maximum number of rows to print.")
after = option("--after", metavar="CURSOR", about="The cursor of the next page, as the previous page printed it.")
at = option("--at", metavar="SEQ", type=Integers(1), about="Show the state after the event with this number.")
visit = option("--visit", metavar="N", type=Integers(1), about="The visit of the node. Default: the latest.")
item = option("--item", metavar="INDEX", type=Integers(0), about="The item of a map, counted from 0.")
activation = together(run, node, visit, item)
page = together(limit, after)
given = many(
    "--input",
    "-i",
    "given",
    metavar="NAME=VALUE",
    about="An input. VALUE is JSON if it parses, else a string. A JSON object or @file.json sets many.",
    type=str,
)
labels = many("--label", "-l", "labels", metavar="KEY=VALUE", about="A label of the run.")
sets = many(
    "--set",
    "sets",
    metavar="POINTER=VALUE",
    about="Set one value in the document, e.g. /nodes/fetch/config/url=https://…",
)
did_not_happen = many(
    "--did-not-happen",
    metavar="NODE",
    about="A node with an unknown outcome that you know did not happen.",
)
picture_file = option("--output", "-o", metavar="FILE", about="Write it to this file.", type=str)
dry_run = flag("--dry-run", about="Show what would happen without doing it.")
of_workflow = option("--workflow", metavar="NAME", about="Only this workflow.")
of_run = option("--run", metavar="RUN", about="Only this run.", type=RunName())
archive = option(
    "--archive",
    metavar="PLACE",
    envvar="TIDEMILL_ARCHIVE",
    show_envvar=True,
    about="A folder, or s3://bucket/prefix. Default: next to the store file.",
    type=str,
)
retention_days = option(
    "--retention-days",
    metavar="DAYS",
    type=Numbers(0),
    about="How long to keep finished runs, unless their workflow sets it. Default: 30, on Redis 7.",
)
keep_runs = flag("--keep-runs", about="Keep finished runs forever, unless their workflow sets it.")


def retention(days: float | None, keep_runs: bool) -> float | None:
    """The days that --retention-days and --keep-runs mean; None means forever."""
    from tidemill.kernel.model import RETENTION_BY_STORE

    if keep_runs:
        return None
    return RETENTION_BY_STORE if days is None else days


def is_given(name: str) -> bool:
    """Whether an option was given on the command line."""
    return click.get_current_context().get_parameter_source(name) in _ASKED


def refuse_given(why: str, *names: str) -> None:
    """Refuse options that were given on the command line, and that another one makes pointless."""
    given = [name for name in names if is_given(name)]
    if given:
        shown = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(f"{why}: leave out {shown}.", click.get_current_context())


def on_store(*, creates: bool = False, own: bool = False) -> Decorator:
    """Adds --store and --json; the command gets the `StoreSession` made of them and of --app and --archive.

    A command with `own` needs the store itself; the others can ask a server instead.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def called(
            *, store: str, as_json: bool, apps: tuple[str, ...] = (), archive: str | None = None, **rest: Any
        ) -> int:
            from tidemill.cli.session import StoreSession

            session = StoreSession(store, as_json, archive, creates=creates, apps=apps)
            parameters = click.get_current_context().command.params
            runs = [str(each.name) for each in parameters if isinstance(each.type, RunName)]
            return session.with_runs(runs, command, rest)

        return together(own_store if own else store, as_json)(called)

    return decorate


def status_terms(status: str, wanted: dict[str, str | None]) -> list[str]:
    """The terms of a list: `status`, unless it is `all`, and the options that were given."""
    given = {**wanted, "status": None if status == "all" else status}
    return [f"{name}:{value}" for name, value in given.items() if value is not None]


GROUPS = {
    "runs": "Find, inspect and repair runs.",
    "approvals": "List pending approvals and decide them.",
    "dlq": "List dead letters and retry or discard them.",
    "archive": "List and restore archived runs.",
    "blobs": "Store, read and garbage-collect large values and files.",
    "nodes": "List node types and their configuration.",
    "workflows": "List, tag and change published workflows.",
    "workers": "List workers, the jobs they hold and the node types they run.",
    "concurrency": "Limit how many nodes run at once across the fleet.",
    "tools": "List, rename and retire the composite tools of agents.",
    "keys": "Create, list and revoke API keys of the HTTP service.",
    "tenants": "Create, list and disable tenants.",
    "audit": "Show who changed what, and verify the audit log.",
    "schedules": "Start runs on a schedule.",
    "config": "Show and check the operator's settings and grants.",
}
COMMANDS = {
    "init": "Create a project: a workflow, its functions and a test.",
    "watch": "Watch a run until it ends.",
    "why": "Explain what a run or node is waiting for, or why it ended.",
    "queues": "Show how much work is waiting in each queue.",
    "usage": "Show usage by day and workflow: runs, time and cost.",
    "doctor": "Check a deployment and suggest fixes.",
    "verify-log": "Check all event logs for violated invariants.",
    "reindex": "Rebuild the index of all lists from the event logs.",
}
"""Commands of the root that are defined beside the groups."""
MODULES = {
    **dict.fromkeys(("archive", "blobs", "doctor", "verify-log", "reindex", "usage"), "storage"),
    **dict.fromkeys(("keys", "tenants", "audit"), "access"),
    "dlq": "dead_letters",
    "nodes": "documents",
    "tools": "workflows",
    **dict.fromkeys(("workers", "concurrency", "queues"), "worker"),
    "why": "runs",
    **dict.fromkeys(("init", "watch", "config"), "project"),
}
"""The module in `commands` that defines a group or command, where it is not called like the group."""


_APPROVE, _REJECT = (f"approvals decide RUN NODE {verb}" for verb in ("approve", "reject"))
SYNONYMS = {
    **dict.fromkeys(("approve", "approvals approve", "approvals accept"), _APPROVE),
    **dict.fromkeys(("reject", "approvals reject", "approvals deny"), _REJECT),
    **dict.fromkeys(("kill", "stop", "abort", "runs kill", "runs stop", "runs abort"), "runs cancel RUN"),
    **dict.fromkeys(("rerun", "restart", "runs rerun", "runs restart"), "runs retry RUN"),
    **dict.fromkeys(("status", "inspect", "runs status", "runs inspect", "runs get", "runs describe"), "runs show RUN"),
    **dict.fromkeys(("dlq replay", "dlq reprocess", "dlq requeue"), "dlq retry"),
    **dict.fromkeys(("dlq delete", "dlq drop", "dlq purge"), "dlq discard RUN NODE"),
    **dict.fromkeys(("cron", "schedule", "schedules add", "schedules new"), "schedules create NAME WORKFLOW"),
    **dict.fromkeys(("schedules remove", "schedules rm"), "schedules delete NAME"),
    **dict.fromkeys(("schedules run", "schedules fire"), "schedules trigger NAME"),
    **dict.fromkeys(("deploy", "register", "workflows deploy", "workflows publish"), "publish FILE"),
    **dict.fromkeys(("trigger", "submit", "runs start", "runs trigger", "workflows start"), "start WORKFLOW"),
    **dict.fromkeys(("ps", "list", "ls"), "runs list"),
    **dict.fromkeys(("agent", "workers start"), "worker"),
    **dict.fromkeys(("lint", "check"), "validate FILE"),
    **dict.fromkeys(("ui", "web", "dashboard"), "serve"),
    **dict.fromkeys(("dags", "flows", "pipelines"), "workflows list"),
    "help": "--help",
    "test": "verify FILE",
    "workers list": "workers",
    "concurrency list": "concurrency",
}
"""Words of other tools for commands of this one."""
OPTION_SYNONYMS = {
    **dict.fromkeys(("--param", "--params", "--arg", "--var", "--inputs", "-p"), "-i NAME=VALUE"),
    **dict.fromkeys(("--verbose", "--debug", "-v"), ""),
    "--key": "tidemill publish FILE, then tidemill start NAME --key KEY",
}
"""Options of other tools; empty where this one has none for it."""


class LazyCommand(click.Command):
    """A group or command that the root's help lists before its module is imported."""

    def load(self) -> click.Command:
        name = str(self.name)
        module = import_module(f"tidemill.cli.commands.{MODULES.get(name, name)}")
        command: click.Command = getattr(module, f"{name.replace('-', '_')}_command" if name in COMMANDS else name)
        return command


class CommandGroup(click.Group):
    """Lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            meant = _meant(ctx, error.command_name)
            if meant is None:
                raise
            message = f"No such command {error.command_name!r}. Did you mean `tidemill {meant}`?"
            raise click.UsageError(message, ctx) from None
        return name, command.load() if isinstance(command, LazyCommand) else command, rest


def _meant(context: click.Context, name: str) -> str | None:
    """The command for a word of another tool, or the command of this name in another group."""
    root = context.find_root().command
    assert isinstance(root, click.Group), "the root has all commands"
    place = "" if context.command is root else f"{context.info_name} "
    known = SYNONYMS.get(f"{place}{name}")
    if known is not None or context.command is not root:
        return known or (name if name in root.commands else None)
    loaded = {group: LazyCommand(group).load() for group in GROUPS}
    return next((f"{group} {name}" for group, each in loaded.items() if name in getattr(each, "commands", ())), None)


def new_group(name: str, **more: Any) -> CommandGroup:
    return CommandGroup(
        name, help=GROUPS[name], invoke_without_command=True, callback=click.pass_context(show_help), **more
    )


def show_help(context: click.Context) -> int:
    """Print the help of a group, unless a command follows."""
    if context.invoked_subcommand is None:
        print(context.get_help())
    return main.OK
