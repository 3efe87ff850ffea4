"""The last line of defence: whatever a command raises becomes words on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from tidemill.cli import exits

TRACEBACK = "TIDEMILL_TRACEBACK"


def guarded(command: Callable[[], int]) -> int:
    """Run a command; never raise."""
    try:
        return command()
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        # The reader (`head`, a pager that was closed) has seen enough.
        return exits.FAILED
    except Exception as error:
        return _explain(error)


def _explain(error: Exception) -> int:
    from tidemill.errors import DiskFull, Rejected, TidemillError, Unavailable, Unfit

    if isinstance(error, (Rejected, Unfit)):
        from tidemill.cli.problems import print_refusal

        print_refusal(error.problems if isinstance(error, Rejected) else (error.problem,))
        return exits.REFUSED
    if isinstance(error, DiskFull):
        # A worker waits for room and goes on; a command does not, and what it asked for has not happened.
        print(f"tidemill: {error}, then give the command again: it was not carried out", file=sys.stderr)
        return exits.REFUSED
    if isinstance(error, Unavailable):
        print(f"tidemill: the store does not answer: {error}; the same command may work later", file=sys.stderr)
        return exits.FAILED
    if isinstance(error, TidemillError):
        # Foreign code has broken the process; the text says how.
        print(f"tidemill: {error}", file=sys.stderr)
        return exits.BUG
    return _bug(error)


def _bug(error: Exception) -> int:
    from tidemill.cli.terminal import clean

    if os.environ.get(TRACEBACK):
        import traceback

        traceback.print_exception(error)
    text = clean(f"{type(error).__name__}: {error}".splitlines()[0][:300])
    print(f"tidemill: this is a bug: {text} (set {TRACEBACK}=1 to see where, and please report it)", file=sys.stderr)
    return exits.BUG
