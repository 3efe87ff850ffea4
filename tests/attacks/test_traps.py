"""A folder full of traps: whatever command is given in it or on its documents, no code of the folder is executed.

There is a trap under the name of every module that is installed, one under names that nothing has, and a distribution
that offers node types. Only `run`, `worker` and `--app` import from the folder, and nothing that is installed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.e2e.cli.golden_world import Clock, prepare
from tests.e2e.cli.test_transcripts import TABLE, Row
from tests.fixtures.command_line import SECONDS_MAX, environment

SCRIPT = Path(sys.executable).with_name("tidemill")
NAMES = {
    name for name in {*sys.stdlib_module_names, *packages_distributions()} if name.isidentifier() and name[0] != "_"
}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Finding pip warns where setuptools is installed and distutils was imported.
    INSTALLED = NAMES - {*sys.builtin_module_names} - {name for name in NAMES if find_spec(name) is None}
ABSENT = {*NAMES - INSTALLED, "sitecustomize", "usercustomize", "evil_nodes", "brotli", "orjson", "socksio", "uvloop"}
"""Names that programs try to import and do without, such as those of other systems."""
OWN = "own_steps"
"""The one module that a document names."""
SPRUNG = "sprung.txt"
RUNS_NODES = ("run", "worker")
FLOW = f"""
name: trapped
nodes:
  - {{id: here, type: python, config: {{function: "{OWN}:step"}}}}
  - {{id: apart, type: python, dependencies: [here], config: {{function: "{OWN}:step", isolation: process}}}}
  - {{id: data, type: transform, dependencies: [apart], config: {{from: {{n: 7}}, extract: {{a: "$.n"}}}}}}
  - id: judged
    type: value
    dependencies: [data]
    when: {{type: python_sandbox, code: "def evaluate(output, context): return True"}}
    config: 1
"""


def plant(folder: Path) -> None:
    """Set every trap; one that is sprung writes down its name, and its import fails."""
    trap = "import os\nwith open({path!r}, 'a') as file:\n    file.write({name!r} + ' ')\n{then}\n"
    sprung = str(folder / SPRUNG)
    for name in (*INSTALLED, *ABSENT):
        # Nothing but built-in modules: others have traps.
        write = f"posix.write(posix.open({sprung!r}, 0o2101, 0o600), {name + ' '!r}.encode())"
        (folder / f"{name}.py").write_text(f"import posix\n{write}\nraise ModuleNotFoundError\n")
    (folder / f"{OWN}.py").write_text(trap.format(path=sprung, name=OWN, then="def step(): return 7"))
    info = folder / "evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tidemill.nodes]\nx = evil_nodes:H\n")
    (folder / "trapped.yaml").write_text(FLOW)


def sprung(folder: Path) -> set[str]:
    """The traps that were sprung since the last look."""
    file = folder / SPRUNG
    found = set(file.read_text().split()) if file.exists() else set()
    file.unlink(missing_ok=True)
    return found


def command(line: str, cwd: Path, given: str = "") -> subprocess.CompletedProcess[str]:
    """Call the installed script: its own folder is the first that Python searches, and not the current one."""
    env = {name: value for name, value in environment().items() if not name.startswith("TIDEMILL_")}
    env.pop("PYTHONPATH", None)
    return subprocess.run(
        [str(SCRIPT), *shlex.split(line)],
        input=given,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=env,
        timeout=SECONDS_MAX,
        check=False,
    )


@pytest.fixture(scope="module")
def world() -> Iterator[Path]:
    memory, clock = Path("/dev/shm"), Clock()
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        made = Path(folder).resolve() / "world"
        made.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("time.time_ns", clock)
            patch.delenv("TIDEMILL_STORE", raising=False)
            prepare(made, clock)
        plant(made)
        yield made


@pytest.fixture
def trapped(world: Path) -> Iterator[Path]:
    folder = world.with_name("trapped")
    shutil.copytree(world, folder)
    # The traps of the copy tell of the copy.
    for name in (*INSTALLED, *ABSENT, OWN):
        file = folder / f"{name}.py"
        file.write_text(file.read_text().replace(str(world), str(folder)))
    yield folder
    shutil.rmtree(folder)


def rows() -> list[tuple[str, Row]]:
    """One row per command that does something: the first of its transcripts that is no help and no refusal of usage."""
    return [(name, next(row for row in table if not row.real)) for name, table in TABLE.items() if name != "root"]


@pytest.mark.parametrize(
    ("name", "row"), [pytest.param(*each, id=each[0]) for each in rows() if each[0] not in RUNS_NODES]
)
def test_no_command_executes_code_of_the_folder(name: str, row: Row, trapped: Path) -> None:
    for line in (*row.before, row.argv):
        ended = command(line, trapped, row.stdin)
        assert ended.returncode in (0, 1, 2), (line, ended.stderr)
        assert "Traceback" not in ended.stderr
        allowed = {"world_steps", "showcase_steps"} if line.split()[0] in RUNS_NODES else set()
        assert sprung(trapped) <= allowed, line


@pytest.mark.parametrize("line", ["validate {}", "validate {} --json", "graph {}", "publish {}", "render @{}"])
@pytest.mark.parametrize("within", ["beside", "under", "elsewhere"])
def test_no_document_brings_code_along(line: str, within: str, trapped: Path, tmp_path: Path) -> None:
    """The traps lie in the current folder, above it, or only beside the document."""
    cwd = {"beside": trapped, "under": trapped / "inner", "elsewhere": tmp_path}[within]
    cwd.mkdir(exist_ok=True)
    ended = command(line.format(trapped / "trapped.yaml"), cwd)
    assert ended.returncode in (0, 1), ended
    assert sprung(trapped) == set()


@pytest.mark.parametrize("within", ["beside", "elsewhere"])
def test_a_run_imports_what_its_document_names_and_nothing_that_is_installed(
    within: str, trapped: Path, tmp_path: Path
) -> None:
    ended = command(f"run {trapped}/trapped.yaml --json --store memory://", trapped if within == "beside" else tmp_path)
    assert ended.returncode == 0, ended
    assert sprung(trapped) - ABSENT == {OWN}


@pytest.mark.parametrize("line", ["validate trapped.yaml", "nodes list", "publish trapped.yaml"])
def test_an_app_is_imported_after_what_is_installed(line: str, trapped: Path) -> None:
    (trapped / "app.py").write_text(f"import json, yaml_of_nobody, {OWN}\nfunctions = [{OWN}.step]\n")
    (trapped / "yaml_of_nobody.py").write_text("")
    ended = command(f"{line} --app app.py", trapped)
    assert ended.returncode == 0, ended
    assert sprung(trapped) == {OWN}


@pytest.mark.parametrize("granted", ["", f"--allow-import {OWN}"], ids=["nothing", "granted"])
def test_a_worker_imports_what_is_granted(granted: str, trapped: Path) -> None:
    """What it may not import it leaves to workers that may, and `why` says what is missing."""
    assert command("publish trapped.yaml", trapped).returncode == 0
    assert command("start trapped --key t-1", trapped).returncode == 0
    env = {name: value for name, value in environment().items() if not name.startswith("TIDEMILL_")}
    worker = subprocess.Popen(
        [str(SCRIPT), "worker", *shlex.split(granted)], cwd=trapped, env=env, stdout=subprocess.DEVNULL
    )
    try:
        if granted:
            assert "RunCompleted" in command("runs events t-1 --follow", trapped).stdout
        else:
            until = time.monotonic() + SECONDS_MAX
            while "[import_not_allowed]" not in (told := command("why t-1", trapped).stdout):
                assert time.monotonic() < until, told
            assert f'adds "{OWN}:step" to `imports`' in told
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(SECONDS_MAX)
    assert sprung(trapped) - ABSENT == ({OWN} if granted else set())


def test_a_trap_springs_where_a_program_looks_into_its_folder_first(trapped: Path) -> None:
    """So the tests above would notice."""
    lines = "from tidemill.cli.main import main; main()"
    subprocess.run(
        [sys.executable, "-c", lines, "validate", "hello.yaml"], cwd=trapped, capture_output=True, check=False
    )
    assert len(sprung(trapped)) > 0
