"""The root of the command tree: its own commands and their options.

What a command does is in `commands`, and is imported when the command runs, so that `--help` stays quick.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import click

from tidemill.cli import main, options
from tidemill.cli.options import COMMANDS, GROUPS, OPTION_SYNONYMS, CommandGroup, LazyCommand, show_help

if TYPE_CHECKING:
    from tidemill.cli.session import StoreSession


PROGRAM = "tidemill"


@click.group(
    PROGRAM,
    cls=CommandGroup,
    epilog="Exit codes: 0 success, 1 run failed or cancelled, 2 bad input, 70 bug in Tidemill, 130 interrupted.",
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@options.flag("--version", about="Print the version and exit.")
@click.pass_context
def app(context: click.Context, version: bool) -> int:
    """Run durable workflows: they survive crashes and restarts."""
    if version:
        print_version()
        context.exit(main.OK)
    return show_help(context)


def run_app(arguments: Sequence[str]) -> int:
    try:
        code = app.main(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
    except click.ClickException as error:
        _print_usage_error(error, as_json="--json" in arguments)
        return main.REFUSED
    except click.Abort:
        return main.INTERRUPTED
    except SystemExit as error:
        # Click's answer to a reader that is gone.
        return error.code if isinstance(error.code, int) else main.FAILED
    return code if isinstance(code, int) else main.OK


def _print_usage_error(error: click.ClickException, *, as_json: bool) -> None:
    from tidemill.cli.render.terminal import sanitize

    context = getattr(error, "ctx", None)
    path = PROGRAM if context is None else context.command_path
    message, hint = " ".join(f"{_said(error)} {_meaning(error)}".split()), f"Try `{path} --help`."
    hint = " ".join(filter(None, (_instead(error, path), hint)))
    if isinstance(error, click.NoSuchOption) and context and _is_of_a_command(error.option_name, context.command):
        message = f"No such option {error.option_name!r} before the command."
        hint = f"Options follow the command: `{path} COMMAND … {error.option_name}`. {hint}"
    if as_json:
        from tidemill.cli.render.terminal import as_plain, print_json
        from tidemill.errors import Problem

        print_json({"problems": as_plain([Problem(code="usage", message=message, hint=hint)])})
        return
    print(f"{PROGRAM}: {sanitize(message)}", file=sys.stderr)
    print(hint, file=sys.stderr)


def _said(error: click.ClickException) -> str:
    """What is wrong, in the words of click; options of other tools get the one that is meant, not the nearest."""
    if isinstance(error, click.NoSuchOption) and error.option_name in OPTION_SYNONYMS:
        known = [] if error.ctx is None else chain.from_iterable(each.opts for each in error.ctx.command.params)
        meant = OPTION_SYNONYMS[error.option_name]
        has_it = meant.partition(" ")[0] in known
        return f"No such option {error.option_name!r}." + (f" Did you mean {meant!r}?" if has_it else "")
    return "Missing argument 'NODE'." if _lacks_node(error) else error.format_message()


def _lacks_node(error: click.ClickException) -> bool:
    """Whether a decision stands where its node should."""
    given = error.ctx.params.get("node") if isinstance(error, click.MissingParameter) and error.ctx else None
    return given in ("approve", "reject", "changes")


def _instead(error: click.ClickException, path: str) -> str:
    """What to write instead of arguments that a command does not take or lacks."""
    context = getattr(error, "ctx", None)
    if context is None:
        return ""
    extra = re.search(r"unexpected extra arguments? \((.*)\)$", error.format_message())
    if extra and any(each.name == "given" for each in context.command.params) and "=" in extra[1]:
        return f"Inputs are options: `{' '.join(f'-i {word}' for word in extra[1].split())}`."
    if extra and extra[1] == "list":
        return f"`{path}` is the list."
    if _lacks_node(error):
        return f"Before {context.params['node']}, name the node that asks: `tidemill approvals list` shows it."
    return ""


def _is_of_a_command(option: str, group: click.Command) -> bool:
    """Whether a command of a group takes an option."""
    commands = group.commands.values() if isinstance(group, click.Group) else ()
    loaded = (each.load() if isinstance(each, LazyCommand) else each for each in commands)
    return any(
        option in chain.from_iterable(param.opts for param in each.params) or _is_of_a_command(option, each)
        for each in loaded
    )


def _meaning(error: click.ClickException) -> str:
    """What the help says of a parameter that is missing; click itself lists choices."""
    missing = error.param if isinstance(error, click.MissingParameter) else None
    return (
        "" if missing is None or isinstance(missing.type, click.Choice) else str(getattr(missing, "help", None) or "")
    )


@app.command("validate")
@options.file
@options.apps
@options.store_of_types
@options.as_json
def validate_command(file: str, apps: Sequence[str], store: str | None, as_json: bool) -> int:
    """Check a workflow and list everything that is wrong with it."""
    from tidemill.cli.commands.documents import validate

    return validate(file, apps, store, as_json=as_json)


@app.command("graph")
@options.file
@options.option(
    "--format",
    "form",
    type=click.Choice(["text", "mermaid", "svg", "html"]),
    about="Text, Mermaid, or a picture. Default: from the suffix of -o, else text on a terminal and mermaid in a pipe.",
)
@options.picture_file
def graph_command(file: str, form: Literal["text", "mermaid", "svg", "html"] | None, output: str | None) -> int:
    """Draw a workflow."""
    from tidemill.cli.commands.documents import graph

    return graph(file, form=form, output=output)


@app.command("export")
@options.argument(
    "source", "FILE|WORKFLOW", "A document or Python file, or a published workflow: name, name@3.", type=str
)
@options.option(
    "--as",
    "form",
    type=click.Choice(["yaml", "json", "python"]),
    default="yaml",
    about="The form to print.",
)
@options.store
def export_command(source: str, form: Literal["yaml", "json", "python"], store: str) -> int:
    """Print a workflow as YAML, JSON or Python.

    Each form has the digest of the original.
    """
    from tidemill.cli.commands.documents import export

    return export(source, form, store)


@app.command("eval")
@options.option(
    "--condition", "-c", metavar="FILE|JSON|CEL", required=True, about="The condition: a file, JSON, or CEL.", type=str
)
@options.option("--output", metavar="JSON", about="The output of the node; @file or - reads it.", type=str)
@options.option("--context", metavar="JSON", about="The outputs of other nodes by id; @file reads them.", type=str)
@options.option("--inputs", metavar="JSON", about="The inputs of the run; @file reads them.", type=str)
@options.given
@options.option(
    "--iteration", metavar="N", type=options.Integers(0), default=0, about="The loop iteration, counted from 0."
)
@options.store
@options.as_json
def eval_command(**given: Any) -> int:
    """Evaluate a condition and explain the result.

    Only code_ref and schema_ref need a store.
    """
    from tidemill.cli.commands.evaluate import EvalOptions, evaluate

    return evaluate(EvalOptions(**given))


@app.command("render")
@options.argument("template", "TEMPLATE", "Text, or @file: a JSON or YAML value, or any text.", type=str)
@options.option(
    "--scope",
    metavar="JSON",
    default="{}",
    about="What the template can read: inputs, and nodes by id; @file reads it.",
    type=str,
)
@options.given
@options.as_json
def render_command(template: str, scope: str, given: Sequence[str], as_json: bool) -> int:
    """Render a template."""
    from tidemill.cli.commands.evaluate import render

    return render(template, scope, given, as_json=as_json)


@app.command("run")
@options.file
@options.given
@options.apps
@options.imports
@options.store
@options.actor
@options.roles
@options.as_json
@options.flag("--quiet", "-q", about="Print only the outputs.")
@options.labels
@options.option(
    "--key", metavar="ID", about="The run's id. Repeating the command with the same key follows the same run."
)
@options.option("--resume", metavar="RUN", about="Resume a run: its id, a unique prefix of it, or @last.")
@options.option("--stream", metavar="NODE", about="Print this node's result part by part as it streams.")
def run_command(**given: Any) -> int:
    """Run a workflow in this process and show its progress."""
    from tidemill.cli.commands.run import RunOptions, run

    return run(RunOptions(**given))


@app.command("verify")
@options.file
@options.given
@options.many("--with", "others", metavar="FILE", about="A workflow that this one starts as a child.", type=str)
@options.option("--fakes", metavar="FILE", about="Fake results of nodes, decisions and signal payloads.", type=str)
@options.many("--real", metavar="NODE", about="Call this node for real instead of faking it; * means all.")
@options.option(
    "--seeds", metavar="N", type=options.Integers(0, 100_000), about="Number of runs with random crashes; 20."
)
@options.option("--seed", metavar="N", type=options.Integers(0), about="Replay this seed and print what happens.")
@options.option(
    "--boundaries",
    metavar="N",
    type=options.Integers(0),
    about="Maximum number of crash points to try; 200, 0 means all.",
)
@options.option(
    "--expect",
    metavar="END",
    type=click.Choice(["completed", "failed"], case_sensitive=False),
    about="How every run is to end, completed or failed: another end is an error.",
)
@options.flag("--strict", about="Treat warnings as errors.")
@options.apps
@options.as_json
def verify_command(**given: Any) -> int:
    """Test that a workflow survives crashes.

    A simulator kills the worker at every commit, send and effect, and explains what goes wrong.
    """
    from tidemill.cli.commands.verification import VerifyOptions, verify

    return verify(VerifyOptions(**given))


@app.command("publish")
@options.file
@options.message
@options.author
@options.apps
@options.on_store(creates=True)
def publish_command(session: StoreSession, file: str, message: str, author: str) -> int:
    """Publish a workflow as a new version."""
    from tidemill.cli.commands.workflows import publish

    return publish(session, file, author=author, message=message)


@app.command("start")
@options.reference
@options.given
@options.labels
@options.option(
    "--key", metavar="ID", about="The run's id. Repeating the command with the same key returns the same run."
)
@options.option(
    "--correlation", "correlation_id", metavar="ID", default="", about="An id from another system, stored with the run."
)
@options.actor
@options.config
@options.on_store()
def start_command(session: StoreSession, reference: str, given: Sequence[str], **more: Any) -> int:
    """Start a published workflow and print the run's id.

    The command does not wait: workers on the same store execute the run.
    """
    from tidemill.cli.commands.workflows import start

    return start(session, reference, given, **more)


@app.command("worker")
@options.own_store
@options.option("--queues", metavar="A,B", default=None, about="Queues to serve. Default: all.")
@options.concurrency
@options.option(
    "--grace",
    "grace_s",
    metavar="SECONDS",
    type=options.Numbers(0),
    default=30.0,
    about="Seconds that running nodes get to finish after SIGTERM.",
)
@options.apps
@options.imports
@options.option(
    "--heartbeat",
    "heartbeat_s",
    metavar="SECONDS",
    type=options.Numbers(0.1),
    default=5.0,
    about="Seconds between heartbeats.",
)
@options.option(
    "--dead-after",
    "dead_after_s",
    metavar="SECONDS",
    type=options.Numbers(1),
    default=15.0,
    about="Seconds without a heartbeat before other workers take over its jobs.",
)
@options.option(
    "--name", metavar="NAME", default="", about="The worker's name, which every tenant sees. Default: host and pid."
)
@options.option(
    "--metrics", metavar="HOST:PORT", about="Serve Prometheus metrics here; :9100 listens on this machine only."
)
@options.archive
@options.retention_days
@options.keep_runs
@options.log
@options.flag("--json", "as_json", about="The same as --log-format json.")
def worker_command(retention_days: float | None, keep_runs: bool, **given: Any) -> int:
    """Run a worker until it is stopped.

    On SIGTERM or Ctrl-C, running nodes get --grace seconds to finish, then the worker returns its jobs; a second signal
    returns them at once.
    """
    from tidemill.cli.commands.worker import WorkOptions, work

    return work(WorkOptions(retention_days=options.retention(retention_days, keep_runs), **given))


@app.command("serve")
@options.own_store
@options.option("--host", metavar="ADDRESS", default="127.0.0.1", about="Where to listen.")
@options.option("--port", metavar="N", type=options.Integers(0, 65_535), default=8321, about="0 picks a free port.")
@options.option(
    "--workers",
    metavar="N",
    type=options.Integers(1, 256),
    about="Number of separate worker processes. Default: one worker inside the server.",
)
@options.flag("--no-worker", about="Serve the API only; workers run elsewhere.")
@options.concurrency
@options.option(
    "--grace",
    "grace_s",
    metavar="SECONDS",
    type=options.Numbers(0),
    default=30.0,
    about="Seconds that requests and nodes get to finish after SIGTERM.",
)
@options.apps
@options.imports
@options.archive
@options.retention_days
@options.keep_runs
@options.option(
    "--root-path", metavar="PATH", default="", about="The path under which a proxy serves this server, e.g. /tidemill."
)
@options.flag("--without-authentication", about="Listen on any address even without authentication.")
@options.flag("--demo", about="Serve a temporary store with sample workflows in every state.")
@options.log
def serve_command(
    retention_days: float | None, keep_runs: bool, workers: int | None, no_worker: bool, **given: Any
) -> int:
    """Serve the web page and the HTTP API of a store.

    Without API keys or tokens, the server listens on the loopback address only; everyone on this machine may use it.
    """
    from tidemill.cli.commands.serve import ServeOptions, serve

    number = 0 if no_worker else workers
    if given["demo"]:
        options.refuse_given("--demo uses its own store and worker", "store", "archive", "workers", "no_worker")
    return serve(ServeOptions(retention_days=options.retention(retention_days, keep_runs), workers=number, **given))


@app.command("mcp")
@options.flag("--read-only", about="Offer only tools that change nothing.")
@options.many(
    "--role", "roles", metavar="ROLE", about="Offer only what a key with this role may do, such as viewer or operator."
)
@options.many(
    "--workflow",
    "workflows",
    metavar="NAME",
    about="Offer only this workflow, and a tool for it with its input schema.",
)
@options.option(
    "--http",
    metavar="HOST:PORT",
    about="Serve HTTP at /mcp, with an API key in each request; :8200 listens on this machine only.",
)
@options.on_store()
def mcp_command(session: StoreSession, **offered: Any) -> int:
    """Serve workflows to MCP clients.

    On standard input and output, or with --http over HTTP. With --server or --http, the tools are those that the key
    permits. Runs need a worker, or a server that has one.
    """
    from tidemill.cli.commands.serve import serve_mcp

    return serve_mcp(session, **offered)


@app.command("migrate")
@options.dry_run
@options.on_store(own=True)
def migrate_command(session: StoreSession, dry_run: bool) -> int:
    """Migrate a store to the schema of this version.

    Every command migrates by itself; --dry-run only lists pending migrations.
    """
    from tidemill.cli.commands.storage import migrate

    return migrate(session, dry_run=dry_run)


for name, about in COMMANDS.items():
    app.add_command(LazyCommand(name, help=about))


@app.command("version")
def version_command() -> int:
    """Print the version."""
    print_version()
    return main.OK


def print_version() -> None:
    from tidemill import __version__

    print(f"{PROGRAM} {__version__}")


for name, about in GROUPS.items():
    app.add_command(LazyCommand(name, help=about))

FIRST = ("init", "run", "watch", "why", "validate", "graph", "verify")
"""What a newcomer needs, at the top of the help."""
app.commands = {name: app.commands[name] for name in (*FIRST, *app.commands)}
