"""The command line: documents (`validate`, `graph`, `run`), and what is kept in a store (`runs`, `approvals`, …).

What a command does is imported when it is called, so that `tidemill --help` stays quick. `app` and the files of
the groups say which commands and options there are; `main` is what the installed script calls. A user never sees
a traceback: refusals are lists of problems, and what nobody foresaw is one line that asks to be reported.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence


def main() -> None:
    """Run the command line and end the process with its exit code."""
    # A short command allocates little that is garbage; collecting while modules are imported takes 7 % of its time.
    gc.set_threshold(50_000, 20, 20)
    code = call(sys.argv[1:])
    from tidemill.cli.terminal import leave

    leave(code)


def call(arguments: Sequence[str]) -> int:
    """Run one command in this process and return its exit code; nothing is raised."""
    from tidemill.cli.guard import guarded
    from tidemill.cli.terminal import settle_streams

    settle_streams()

    def command() -> int:
        from tidemill.cli.app import run_app

        return run_app(arguments)

    return guarded(command, as_json="--json" in arguments)
