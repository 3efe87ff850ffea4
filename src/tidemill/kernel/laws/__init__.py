"""The laws every log obeys, checked from the outside: a second, independent reading of a run's events.

The checker takes events one by one and keeps its own plain books; it does not use `evolve`, so a mistake there
cannot hide itself. The simulator runs it after every commit. A violation is a bug in Tidemill or damage to the
store, never a user's mistake.
"""

from __future__ import annotations

from tidemill.kernel.laws.books import Violation
from tidemill.kernel.laws.checker import LogChecker, check_log

__all__ = ["LogChecker", "Violation", "check_log"]
