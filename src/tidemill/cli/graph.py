"""`tidemill graph`: a workflow as a drawing in text, or as Mermaid."""

from __future__ import annotations

import sys
from typing import Literal

from tidemill.bootstrap import node_types
from tidemill.cli import exits
from tidemill.cli.drawing import Line, as_text, columns, draw
from tidemill.cli.mermaid import mermaid_lines
from tidemill.cli.problems import counted
from tidemill.cli.sources import read_source
from tidemill.cli.terminal import clean, console, draws
from tidemill.kernel.compile import compile_document
from tidemill.kernel.document.borrowed import with_stand_ins
from tidemill.kernel.model import Workflow

Form = Literal["text", "mermaid"]


def graph(file: str, *, form: Form | None) -> int:
    """Print a drawing; without a form, text for a person and Mermaid for a program."""
    types = node_types()
    document, _ = with_stand_ins(read_source(file).document)
    workflow = compile_document(document, types.by_name, types.in_vain).workflow
    drawn = draws()
    if (form or ("text" if drawn else "mermaid")) == "mermaid":
        waiting = {name for name, majors in types.by_name.items() if majors[-1].waits}
        sys.stdout.writelines(f"{line}\n" for line in mermaid_lines(workflow, waiting))
        return exits.OK
    lines = draw(workflow)
    if drawn:
        _print_coloured(workflow, lines)
    else:
        sys.stdout.writelines(f"{line}\n" for line in (title(workflow), "", *as_text(lines)))
    return exits.OK


def title(workflow: Workflow) -> str:
    """The line above the drawing."""
    about = f" — {' '.join(clean(workflow.description).split())}" if workflow.description else ""
    return f"{workflow.name} · {counted(len(workflow.nodes), 'node')}{about}"


def _print_coloured(workflow: Workflow, lines: list[Line]) -> None:
    from rich.text import Text

    screen = console()
    head, kind = columns(lines)
    screen.print(Text(title(workflow), style="bold"), end="\n\n")
    for line in lines:
        text = Text()
        text.append(line.gutter, "magenta")
        text.append(line.rails, "blue")
        text.append(line.marker + (" " if line.marker else ""), "yellow" if line.marker == "◆" else "blue")
        text.append(line.name, "bold" if line.kind else "italic yellow")
        text.append(" " * max(2, head - len(line.head) + 2))
        text.append(f"{line.kind:<{kind}}  ", "cyan")
        text.append(line.notes, "dim")
        text.rstrip()
        screen.print(text, no_wrap=True, overflow="ellipsis")
