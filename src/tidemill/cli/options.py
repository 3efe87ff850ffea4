"""Options and arguments that several commands have, each with its name, its help and nothing else."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_STORE = "sqlite:///tidemill.db"
STORE_VARIABLE = "TIDEMILL_STORE"
PAGE = 20
"""Rows of a list, unless somebody asks for more."""

File = Annotated[str, typer.Argument(metavar="FILE", help="A YAML or JSON document; - reads standard input.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run.")]
Node = Annotated[str, typer.Argument(metavar="NODE", help="The id of a node.")]
Reference = Annotated[
    str, typer.Argument(metavar="WORKFLOW", help="A published workflow: name, name@3 or name:stable.")
]

Apps = Annotated[
    list[str] | None,
    typer.Option("--app", metavar="APP", help="Your code: module:attribute or path.py. Repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]
Store = Annotated[
    str,
    typer.Option("--store", metavar="URL", envvar=STORE_VARIABLE, help="Where runs and workflows are kept."),
]
Actor = Annotated[
    str | None, typer.Option("--as", metavar="NAME", help="Who acts. Default: the user of the operating system.")
]
Roles = Annotated[
    list[str] | None, typer.Option("--role", metavar="ROLE", help="A role that the acting person has. Repeatable.")
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the run's log.")]
Key = Annotated[
    str | None,
    typer.Option("--key", metavar="ID", help="Repeating the command with the same key changes nothing."),
]
Comments = Annotated[
    str, typer.Option("--comment", "--reason", metavar="TEXT", help="What is said with it; it is kept.")
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="At most so many rows.")]
Cursor = Annotated[
    str | None, typer.Option("--after", metavar="CURSOR", help="The next page: the cursor that the last one named.")
]
At = Annotated[
    int | None, typer.Option("--at", metavar="SEQ", min=1, help="As it was after the event with this number.")
]
Visit = Annotated[
    int | None, typer.Option("--visit", metavar="N", min=1, help="Which visit of the node; the latest by default.")
]
Item = Annotated[
    int | None, typer.Option("--item", metavar="INDEX", min=0, help="Which item of a map, counted from 0.")
]
Given = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="NAME=VALUE",
        help="An input; VALUE is JSON where it parses as JSON, else a string. @file.json gives many. Repeatable.",
    ),
]
Labels = Annotated[
    list[str] | None, typer.Option("--label", "-l", metavar="KEY=VALUE", help="A label of the run. Repeatable.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="POINTER=VALUE",
        help="Set one place of the document, e.g. /nodes/fetch/config/url=https://… Repeatable.",
    ),
]
Sure = Annotated[
    list[str] | None,
    typer.Option(
        "--did-not-happen",
        metavar="NODE",
        help="A node whose outcome is unknown, of which you know that it did not happen. Repeatable.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and do nothing.")]
Author = Annotated[str | None, typer.Option("--author", "--as", metavar="NAME", help="Who publishes it.")]
Message = Annotated[str, typer.Option("--message", "-m", metavar="TEXT", help="What it is about; it is kept.")]
