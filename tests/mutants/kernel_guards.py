"""The guards of the kernel, in three chapters."""

from __future__ import annotations

from tests.mutants.attempt_guards import ATTEMPT
from tests.mutants.guard import Guard
from tests.mutants.path_guards import PATH
from tests.mutants.state_guards import KEPT

KERNEL: tuple[Guard, ...] = (*ATTEMPT, *PATH, *KEPT)
