"""The import contracts bite: each is broken once in a copy of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("stores/intruder", "import tidemill.kernel", "Imports point down the floors only"),
        ("errors", "import tidemill.expressions", "Imports point down the floors only"),
        ("attic", "", "Imports point down the floors only"),
        ("kernel/intruder", "import time", "The kernel sees no clock, chance, world or loop"),
        ("kernel/intruder", "from tidemill import ambient", "The kernel sees no clock, chance, world or loop"),
        ("handlers/intruder", "import jinja2.sandbox", "Only expressions know the third-party languages"),
        ("engine/intruder", "from rich import table", "Only the command line draws on the terminal"),
    ],
)
def test_a_contract_catches_its_intruder(copy: Path, module: str, line: str, contract: str) -> None:
    with (copy / "src" / "tidemill" / f"{module}.py").open("a") as file:
        file.write(f"\n{line}\n")
    broken = lint(copy)
    assert f"{contract} BROKEN" in broken.stdout
    assert f"tidemill.{module.replace('/', '.')}" in broken.stdout
    assert broken.returncode == 1
