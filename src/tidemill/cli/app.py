"""The commands and their options. What a command does is in the file of its name, imported when it is called."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from tidemill.cli import exits

PROGRAM = "tidemill"

app = typer.Typer(
    name=PROGRAM,
    help="Run workflows that survive whatever dies in between.",
    epilog="Exit codes: 0 fine, 1 the run failed or was cancelled, 2 bad input, 130 interrupted.",
    # Plain help: drawing boxes around it would double the time it takes to appear.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[str, typer.Argument(metavar="FILE", help="A YAML or JSON document; - reads standard input.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def run_app(arguments: Sequence[str]) -> int:
    """Parse the arguments and run the command they name."""
    try:
        code = app(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
    except typer.TyperException as error:
        from tidemill.cli.terminal import clean

        print(f"{PROGRAM}: {clean(error.format_message())}", file=sys.stderr)
        print(f"Try `{PROGRAM} --help`.", file=sys.stderr)
        return exits.REFUSED
    except typer.Abort:
        return exits.INTERRUPTED
    except SystemExit as error:
        # Typer's answer to a reader that is gone.
        return error.code if isinstance(error.code, int) else exits.FAILED
    return code if isinstance(code, int) else exits.OK


@app.callback(invoke_without_command=True)
def entry(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> int:
    """Run workflows that survive whatever dies in between."""
    if version:
        print_version()
        raise typer.Exit(exits.OK)
    if context.invoked_subcommand is None:
        print(context.get_help())
    return exits.OK


@app.command("validate")
def validate_command(file: File, as_json: AsJson = False) -> int:
    """Check a workflow and list everything that is wrong with it."""
    from tidemill.cli.validate import validate

    return validate(file, as_json=as_json)


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


@app.command("run")
def run_command(
    file: File,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=VALUE",
            help="An input; VALUE is JSON where it parses as JSON, else a string. @file.json gives many. Repeatable.",
        ),
    ] = None,
    store: Annotated[str, typer.Option("--store", metavar="URL", help="Where the run is kept.")] = "memory://",
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the outputs.")] = False,
) -> int:
    """Run a workflow here and now, and watch it."""
    from tidemill.cli.run import RunOptions, run

    options = RunOptions(file=file, given=tuple(given or ()), store=store, as_json=as_json, quiet=quiet)
    return run(options)


@app.command("version")
def version_command() -> int:
    """Print the version."""
    print_version()
    return exits.OK


def print_version() -> None:
    from tidemill import __version__

    print(f"{PROGRAM} {__version__}")
