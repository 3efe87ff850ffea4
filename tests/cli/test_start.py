"""What a command imports before it does anything. Seconds differ from machine to machine; modules do not.

A user waits for these imports at every command. What is heavy is imported where it is used, inside the function.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.cli.kit import EXAMPLES, environment, process
from tidemill.cli import main

CALLED = """
import json, sys
from tidemill.cli.main import call
code = call(sys.argv[1:])
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
sys.exit(code)
"""
OPENED = """
import json, sys, tidemill
with tidemill.open(sys.argv[1]):
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""

ALWAYS_LATE = frozenset(
    (
        *("cel_expr_python", "cryptography", "ctypes", "httpcore", "httpx2", "jq", "jsonpath", "multiprocessing"),
        *("numpy", "obstore", "openai", "psycopg", "pydantic", "pydantic_monty", "re2", "rich", "zoneinfo"),
    )
)
"""Never imported by a command that does not need exactly this."""
SYNTAXES = frozenset(("tidemill.expressions.cel.evaluate", "tidemill.expressions.jsonpath.condition"))
LANGUAGES = SYNTAXES | {"jinja2", "yaml"}
"""Only for documents that are read, and expressions that are met."""
COMPILER = frozenset(("tidemill.kernel.compile.compiler", "tidemill.kernel.invariants.checker"))
ENGINE = frozenset(("tidemill.engine", "tidemill.kernel", "tidemill.client", "asyncio", "msgspec"))
OWN_MODULES_MAX = 16


def imported(script: str, *arguments: str, cwd: Path) -> set[str]:
    """What a process has imported when it is done."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment(), timeout=50, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def assert_light(modules: set[str], without: Iterable[str], most: int) -> None:
    assert modules & set(without) == set()
    assert len(modules) <= most, f"{len(modules)} modules, at most {most}"


@pytest.mark.parametrize("command", [("version",), ("--help",), ("runs", "list", "--help")])
def test_what_says_something_of_itself_needs_no_engine(command: tuple[str, ...], tmp_path: Path) -> None:
    modules = imported(CALLED, *command, cwd=tmp_path)
    assert_light(modules, ALWAYS_LATE | LANGUAGES | ENGINE | {"apsw"}, 185)
    assert sum(name.startswith("tidemill.") for name in modules) <= OWN_MODULES_MAX


def test_a_document_is_checked_without_an_engine(tmp_path: Path) -> None:
    modules = imported(CALLED, "validate", str(EXAMPLES / "hello.yaml"), cwd=tmp_path)
    late = {
        "tidemill.engine.engine",
        "tidemill.client",
        "tidemill.expressions.cel.evaluate",
        "tidemill.expressions.jsonpath.condition",
    }
    assert_light(modules, ALWAYS_LATE | late, 530)


def test_a_question_to_a_store_needs_no_language_and_no_compiler(tmp_path: Path) -> None:
    begun = process("run", str(EXAMPLES / "hello.yaml"), "--json", cwd=tmp_path)
    assert begun.code == main.OK
    for command in (("runs", "list"), ("workers",), ("why", begun.json["run_id"])):
        modules = imported(CALLED, *command, cwd=tmp_path)
        assert "tidemill.engine.engine" in modules
        assert_light(modules, ALWAYS_LATE | LANGUAGES | COMPILER, 590)


def test_an_engine_inside_another_program_is_as_light(tmp_path: Path) -> None:
    modules = imported(OPENED, "sqlite:///mill.db", cwd=tmp_path)
    assert_light(modules, ALWAYS_LATE | LANGUAGES | COMPILER | {"click", "tidemill.cli.main"}, 540)


def test_a_run_imports_the_languages_that_its_document_is_written_in(tmp_path: Path) -> None:
    modules = imported(CALLED, "run", str(EXAMPLES / "hello.yaml"), "--quiet", cwd=tmp_path)
    assert {"jinja2", "yaml"} <= modules
    assert_light(modules, ALWAYS_LATE | SYNTAXES, 670)
