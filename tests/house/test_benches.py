"""Every benchmark still imports, and those that a constant makes small still run."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

NAMES = sorted({path.stem for path in Path("benches").glob("bench_*.py")} - {"bench_web"})
"""`bench_web` needs a browser and its driver, which only `make test-web` installs."""
SMALL: dict[str, dict[str, Any]] = {
    "bench_acts": {"NODES": 20},
    "bench_agents": {"TURNS": 2, "AGENTS": 2, "SLOW_TURNS": 2, "MODEL_SECONDS": 0.0},
    "bench_expressions": {"TIMES": 1, "SANDBOXED": 1, "LEAKS": 1},
}


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_imports_what_exists(name: str) -> None:
    assert callable(importlib.import_module(f"benches.{name}").figures)


@pytest.mark.parametrize("name", SMALL)
def test_a_small_benchmark_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"benches.{name}")
    for constant, value in SMALL[name].items():
        monkeypatch.setattr(module, constant, value)
    assert all(figure.line() for figure in module.figures())
