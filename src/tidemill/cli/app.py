"""The commands and their options. What a command does is in the file of its name, imported when it is called.

The groups of commands (`runs`, `approvals`, `dlq`, …) each have a file too, which `tree` imports.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from tidemill.cli import exits
from tidemill.cli.archive import RETENTION_DAYS_DEFAULT, KeepRuns, RetentionDays, Where
from tidemill.cli.groups import show_help
from tidemill.cli.options import (
    DEFAULT_STORE,
    Actor,
    Apps,
    AsJson,
    Author,
    DryRun,
    File,
    Given,
    Labels,
    Message,
    Reference,
    Roles,
    Store,
)
from tidemill.cli.tree import tree
from tidemill.cli.upkeep import reindex_command, verify_log_command
from tidemill.cli.why import why_command

PROGRAM = "tidemill"

app = typer.Typer(
    name=PROGRAM,
    help="Run workflows that survive whatever dies in between.",
    epilog="Exit codes: 0 fine, 1 the run failed or was cancelled, 2 bad input, 70 a bug in Tidemill, 130 interrupted.",
    # Plain help: drawing boxes around it would double the time it takes to appear.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run_app(arguments: Sequence[str]) -> int:
    """Parse the arguments and run the command they name."""
    try:
        code = tree(app, arguments).main(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
    except typer.TyperException as error:
        _misused(error, as_json="--json" in arguments)
        return exits.REFUSED
    except typer.Abort:
        return exits.INTERRUPTED
    except SystemExit as error:
        # Typer's answer to a reader that is gone.
        return error.code if isinstance(error.code, int) else exits.FAILED
    return code if isinstance(code, int) else exits.OK


def _misused(error: typer.TyperException, *, as_json: bool) -> None:
    """Say what is wrong with the arguments, as a refusal where a program asked."""
    from tidemill.cli.terminal import clean

    said, hint = error.format_message().replace("Value error, ", ""), f"Try `{_path_of(error)} --help`."
    if as_json:
        from tidemill.cli.problems import as_plain, print_json
        from tidemill.errors import Problem

        print_json({"problems": as_plain([Problem(code="usage", message=said, hint=hint)])})
        return
    print(f"{PROGRAM}: {clean(said)}", file=sys.stderr)
    print(hint, file=sys.stderr)


def _path_of(error: typer.TyperException) -> str:
    """The command whose help answers an error of usage."""
    context = getattr(error, "ctx", None)
    return PROGRAM if context is None else str(context.command_path)


@app.callback(invoke_without_command=True)
def entry(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> int:
    """Run workflows that survive whatever dies in between."""
    if version:
        print_version()
        raise typer.Exit(exits.OK)
    return show_help(context)


@app.command("validate")
def validate_command(file: File, apps: Apps = None, as_json: AsJson = False) -> int:
    """Check a workflow and list everything that is wrong with it."""
    from tidemill.cli.validate import validate

    return validate(file, apps or (), as_json=as_json)


@app.command("graph")
def graph_command(
    file: File,
    form: Annotated[
        Literal["text", "mermaid"] | None,
        typer.Option("--format", help="A drawing in text, or Mermaid. Default: text on a terminal, else mermaid."),
    ] = None,
) -> int:
    """Draw a workflow."""
    from tidemill.cli.graph import graph

    return graph(file, form=form)


@app.command("eval")
def eval_command(
    condition: Annotated[
        str, typer.Option("--condition", "-c", metavar="FILE|JSON|CEL", help="The condition: a file, JSON, or CEL.")
    ],
    output: Annotated[
        str | None, typer.Option("--output", metavar="JSON", help="What the node gave; @file and - read it.")
    ] = None,
    context: Annotated[
        str | None,
        typer.Option("--context", metavar="JSON", help="The outputs of other nodes by their ids; @file reads it."),
    ] = None,
    inputs: Annotated[
        str | None, typer.Option("--inputs", metavar="JSON", help="The inputs of the run; @file reads it.")
    ] = None,
    iteration: Annotated[
        int, typer.Option("--iteration", metavar="N", min=0, help="The pass of the loop, from 0.")
    ] = 0,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Decide a condition here and now, and say why.

    A store is needed only by code_ref and schema_ref.
    """
    from tidemill.cli.evaluate import EvalOptions, evaluate

    return evaluate(
        EvalOptions(
            condition=condition,
            output=output,
            context=context,
            inputs=inputs,
            iteration=iteration,
            store=store,
            as_json=as_json,
        )
    )


@app.command("render")
def render_command(
    template: Annotated[
        str, typer.Argument(metavar="TEMPLATE", help="A text, or @file: a JSON or YAML value, or any text.")
    ],
    scope: Annotated[
        str, typer.Option("--scope", metavar="JSON", help="What it sees: inputs, nodes by their ids; @file reads it.")
    ] = "{}",
    as_json: AsJson = False,
) -> int:
    """Fill in a template here and now."""
    from tidemill.cli.render import render

    return render(template, scope, as_json=as_json)


@app.command("run")
def run_command(
    file: File,
    given: Given = None,
    apps: Apps = None,
    store: Store = DEFAULT_STORE,
    actor: Actor = None,
    roles: Roles = None,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the outputs.")] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Carry on a run that was begun earlier.")
    ] = None,
    stream: Annotated[
        str | None,
        typer.Option("--stream", metavar="NODE", help="Print the parts of this node's result as they come."),
    ] = None,
) -> int:
    """Run a workflow here and now, and watch it."""
    from tidemill.cli.asking import acting
    from tidemill.cli.run import RunOptions, run

    options = RunOptions(
        file=file,
        given=tuple(given or ()),
        apps=tuple(apps or ()),
        store=store,
        actor=acting(actor),
        roles=tuple(roles or ()),
        as_json=as_json,
        quiet=quiet,
        resume=resume,
        stream=stream,
    )
    return run(options)


@app.command("publish")
def publish_command(
    file: File,
    message: Message = "",
    author: Author = None,
    apps: Apps = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Publish a workflow as a new version."""
    from tidemill.cli.asking import Asking, acting
    from tidemill.cli.catalogue import publish

    asking = Asking(store, as_json, creates=True, apps=tuple(apps or ()))
    return publish(asking, file, author=acting(author), message=message)


@app.command("start")
def start_command(
    workflow: Reference,
    given: Given = None,
    labels: Labels = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="ID", help="The run's id: the same key again answers the same run.")
    ] = None,
    correlation: Annotated[
        str, typer.Option("--correlation", metavar="ID", help="What it belongs to elsewhere; it is kept.")
    ] = "",
    actor: Actor = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Start a published workflow and print the run's id.

    It is not waited for: workers on the same store run it.
    """
    from tidemill.cli.asking import Asking, acting
    from tidemill.cli.catalogue import start

    return start(
        Asking(store, as_json),
        workflow,
        given or (),
        labels=labels or (),
        key=key,
        actor=acting(actor),
        correlation_id=correlation,
    )


@app.command("worker")
def worker_command(
    store: Store = DEFAULT_STORE,
    queues: Annotated[
        str, typer.Option("--queues", metavar="A,B", help="Which queues to serve. Default: all of them.")
    ] = "",
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", min=1, max=10_000, help="So many nodes at a time.")
    ] = 64,
    grace: Annotated[
        float, typer.Option("--grace", metavar="SECONDS", min=0, help="How long nodes may finish after a signal.")
    ] = 30.0,
    apps: Apps = None,
    heartbeat: Annotated[
        float, typer.Option("--heartbeat", metavar="SECONDS", min=0.1, help="How often it says that it is alive.")
    ] = 5.0,
    dead_after: Annotated[
        float,
        typer.Option("--dead-after", metavar="SECONDS", min=1, help="Silent for so long, others take over its work."),
    ] = 15.0,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What it is called instead of its host.")] = "",
    archive_place: Where = None,
    retention_days: RetentionDays = RETENTION_DAYS_DEFAULT,
    keep_runs: KeepRuns = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> int:
    """Run nodes until told to stop.

    SIGTERM or Ctrl-C lets what runs finish for --grace seconds and gives back the rest; a second one does so at once.
    """
    from tidemill.cli.worker import WorkOptions, work

    options = WorkOptions(
        store=store,
        queues=queues,
        concurrency=concurrency,
        grace_s=grace,
        heartbeat_s=heartbeat,
        dead_after_s=dead_after,
        apps=tuple(apps or ()),
        name=name,
        archive=archive_place,
        retention_days=None if keep_runs else retention_days,
        as_json=as_json,
    )
    return work(options)


@app.command("migrate")
def migrate_command(
    dry_run: DryRun = False,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Bring a store to the schema that this version knows.

    Every command does so by itself; --dry-run only tells what is pending.
    """
    from tidemill.cli.asking import Asking
    from tidemill.cli.migrate import migrate

    return migrate(Asking(store, as_json), dry_run=dry_run)


app.command("why")(why_command)
app.command("verify-log")(verify_log_command)
app.command("reindex")(reindex_command)


@app.command("version")
def version_command() -> int:
    """Print the version."""
    print_version()
    return exits.OK


def print_version() -> None:
    from tidemill import __version__

    print(f"{PROGRAM} {__version__}")
