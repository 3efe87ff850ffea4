"""`tidemill why`, which is `tidemill runs why` too: what a run or a node waits for, or why it ended so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidemill.cli import options

if TYPE_CHECKING:
    from tidemill.cli.asking import Asking


@click.command("why")
@options.run
@options.argument("node", "[NODE]", "A node of it: how it ended, and what decided that.", required=False)
@options.on_store()
def why_command(asking: Asking, run: str, node: str | None) -> int:
    """Say what a run or a node waits for, or why it ended so.

    With what to do about it: the command that unblocks it, where there is one.
    """
    from tidemill.cli.reasons import NodeReasons, Reasons, tell_why, tell_why_node

    if node is not None:
        return asking.answer(
            lambda mill: NodeReasons(run, mill.why_node(run, node)), lambda found: tell_why_node(asking, found)
        )
    return asking.answer(lambda mill: Reasons(run, mill.why(run)), lambda reasons: tell_why(asking, reasons))
