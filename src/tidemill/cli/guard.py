"""The last line of defence: whatever a command raises becomes words on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from tidemill.cli import exits

TRACEBACK = "TIDEMILL_TRACEBACK"


def guarded(command: Callable[[], int], *, as_json: bool = False) -> int:
    """Run a command; never raise. With `as_json` a program is told in JSON what it can do something about."""
    try:
        return command()
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        # The reader (`head`, a pager that was closed) has seen enough.
        return exits.FAILED
    except Exception as error:
        return _explain(error, as_json)


def _explain(error: Exception, as_json: bool) -> int:
    from tidemill.errors import DiskFull, Rejected, TidemillError, Unavailable, Unfit

    if isinstance(error, (Rejected, Unfit)):
        from tidemill.cli.problems import tell_problems

        tell_problems(error.problems if isinstance(error, Rejected) else (error.problem,), as_json=as_json)
        return exits.REFUSED
    if isinstance(error, DiskFull):
        # A worker waits for room and goes on; a command does not, and what it asked for has not happened.
        _tell("disk_full", str(error), "then give the command again: it was not carried out", as_json)
        return exits.REFUSED
    if isinstance(error, Unavailable):
        _tell("store_unavailable", f"the store does not answer: {error}", "the same command may work later", as_json)
        return exits.FAILED
    if isinstance(error, TidemillError):
        # Foreign code has broken the process; the text says how.
        print(f"tidemill: {error}", file=sys.stderr)
        return exits.BUG
    return _bug(error)


def _tell(code: str, message: str, hint: str, as_json: bool) -> None:
    """Say one line to a person; a program is told the same as a problem."""
    if not as_json:
        print(f"tidemill: {message}; {hint}", file=sys.stderr)
        return
    from tidemill.cli.problems import tell_problems
    from tidemill.errors import Problem

    tell_problems([Problem(code=code, message=message, hint=hint)], as_json=True)


def _bug(error: Exception) -> int:
    from tidemill.cli.terminal import clean

    if os.environ.get(TRACEBACK):
        import traceback

        traceback.print_exception(error)
    text = clean(f"{type(error).__name__}: {error}".splitlines()[0][:300])
    print(f"tidemill: this is a bug: {text} (set {TRACEBACK}=1 to see where, and please report it)", file=sys.stderr)
    return exits.BUG
