"""Exit codes: a promise to scripts, listed in `docs/reference/cli.md`."""

from __future__ import annotations

OK = 0
FAILED = 1
"""The run failed or was cancelled, an expression has no result, something that is stored is damaged, or the store does
not answer."""
REFUSED = 2
"""Bad input, or no room on the disk: nothing was done."""
BUG = 70
INTERRUPTED = 130
