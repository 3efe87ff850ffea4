"""The guards of the engine."""

from __future__ import annotations

from tests.mutants.guard import Guard

ENGINE: tuple[Guard, ...] = ()
