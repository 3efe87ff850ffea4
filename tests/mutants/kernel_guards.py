"""The guards of the kernel, in eight chapters."""

from __future__ import annotations

from tests.mutants.attempt_guards import ATTEMPT
from tests.mutants.graph_guards import GRAPHS
from tests.mutants.guard import Guard
from tests.mutants.path_guards import PATH
from tests.mutants.people_guards import PEOPLE
from tests.mutants.repair_guards import REPAIRS
from tests.mutants.state_guards import KEPT
from tests.mutants.undo_guards import UNDO
from tests.mutants.wait_guards import WAITS

KERNEL: tuple[Guard, ...] = (*ATTEMPT, *PATH, *KEPT, *PEOPLE, *WAITS, *REPAIRS, *GRAPHS, *UNDO)
