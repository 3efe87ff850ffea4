"""`tidemill why`, which is `tidemill runs why` too: what a run or a node waits for, or why it ended so."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemill.cli.options import DEFAULT_STORE, AsJson, Run, Store


def why_command(
    run: Run,
    node: Annotated[
        str | None, typer.Argument(metavar="[NODE]", help="A node of it: how it ended, and what decided that.")
    ] = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Say what a run or a node waits for, or why it ended so.

    With what to do about it: the command that unblocks it, where there is one.
    """
    from tidemill.cli.asking import Asking
    from tidemill.cli.reasons import NodeReasons, Reasons, tell_why, tell_why_node

    asking = Asking(store, as_json)
    if node is not None:
        return asking.answer(
            lambda mill: NodeReasons(run, mill.why_node(run, node)), lambda found: tell_why_node(asking, found)
        )
    return asking.answer(lambda mill: Reasons(run, mill.why(run)), lambda reasons: tell_why(asking, reasons))
