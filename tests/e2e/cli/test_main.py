"""The command as a whole: its speed, its help, and what it does when nobody foresaw something."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.fixtures.command_line import EXAMPLES, SECONDS_MAX, InProcessCli, environment, process, running
from tidemill.cli import main
from tidemill.cli.main import guarded
from tidemill.errors import Unavailable, rejected

HELP_SECONDS_MAX = 0.15
COMMANDS = (
    *("validate", "graph", "run", "publish", "start", "worker", "why", "version"),
    *("runs", "approvals", "dlq", "workflows", "workers"),
)


def children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_help_is_quick_and_names_every_command() -> None:
    # Processor time: what a machine with nothing else to do takes on the clock, whatever runs beside this test.
    taken = []
    for _ in range(5):
        began = children_seconds()
        ended = process("--help")
        taken.append(children_seconds() - began)
        assert ended.code == main.OK
        for command in COMMANDS:
            assert f"\n  {command} " in ended.out
    assert min(taken) <= HELP_SECONDS_MAX, taken


def test_the_installed_script_calls_main() -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="tidemill")
    assert script.value == "tidemill.cli.main:main"


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs", "show", "\udcff"),
        ("runs", "list", "--term", "\udcff"),
        ("runs", "list", "--label", "a=\udcff"),
        ("why", "x", "\udcff"),
        ("approvals", "decide", "x", "y", "\udcff"),
        ("worker", "--dead-after", "nan"),
    ],
)
def test_values_that_nothing_can_store_are_wrong_usage(inside: InProcessCli, arguments: tuple[str, ...]) -> None:
    ended = inside(*arguments)
    assert (ended.code, ended.out) == (main.REFUSED, "")
    assert "Invalid value for" in ended.err and len(ended.err.splitlines()) == 2


def test_a_bug_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEMILL_TRACEBACK", raising=False)

    def command() -> int:
        raise KeyError("a\x1b[31mb")

    assert guarded(command) == main.BUG
    (line,) = capsys.readouterr().err.splitlines()
    assert "this is a bug" in line
    assert "TIDEMILL_TRACEBACK=1" in line
    assert "\x1b" not in line


def test_a_bug_shows_its_traceback_when_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_TRACEBACK", "1")

    def command() -> int:
        raise RuntimeError

    assert guarded(command) == main.BUG
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (rejected("no_such", "nothing there", hint="look elsewhere"), main.REFUSED, "nothing there [no_such]"),
        (Unavailable("disk gone"), main.FAILED, "the store does not answer: disk gone"),
        (KeyboardInterrupt(), main.INTERRUPTED, ""),
        (BrokenPipeError(), main.FAILED, ""),
    ],
)
def test_what_is_foreseen_has_its_own_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, words: str
) -> None:
    def command() -> int:
        raise error

    assert guarded(command) == code
    assert words in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_drama() -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running("graph", str(EXAMPLES / "showcase.yaml"), **pipes) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait() == main.FAILED


def test_closed_streams_are_no_drama() -> None:
    command = " ".join([sys.executable, "-c", "'from tidemill.cli.main import main; main()'"])
    line = f"{command} run {EXAMPLES / 'hello.yaml'} --json >&- 2>&- <&-"
    assert subprocess.run(["sh", "-c", line], check=False, timeout=SECONDS_MAX, env=environment()).returncode == main.OK


def test_a_terminal_without_unicode_gets_plain_signs() -> None:
    ascii_only = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    drawn = process("graph", str(EXAMPLES / "loops.yaml"), "--format", "text", env=ascii_only)
    assert drawn.code == main.OK
    assert drawn.out.isascii()
    assert "+>* draft" in drawn.out
    ran = process("run", str(EXAMPLES / "hello.yaml"), "--json", "--input", "name=Zoë", env=ascii_only)
    assert ran.out.isascii()
    assert ran.json["outputs"]["greeting"] == "Hello, Zoë!"


# What a command imports before it does anything. Seconds differ from machine to machine; modules do not


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
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment(), timeout=SECONDS_MAX, check=True
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def assert_light(modules: set[str], without: Iterable[str], most: int) -> None:
    assert modules & set(without) == set()
    assert len(modules) <= most, f"{len(modules)} modules, at most {most}"


@pytest.mark.parametrize("command", [("version",), ("--help",), ("runs", "list", "--help")])
def test_what_says_something_of_itself_needs_no_engine(command: tuple[str, ...], tmp_path: Path) -> None:
    modules = imported(CALLED, *command, cwd=tmp_path)
    assert_light(modules, ALWAYS_LATE | LANGUAGES | ENGINE | {"apsw"}, 185)
    assert sum(name.startswith("tidemill.") for name in modules) <= OWN_MODULES_MAX


def test_a_document_is_checked_without_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a store is named, whose workers may offer more node types."""
    monkeypatch.delenv("TIDEMILL_STORE")
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


def test_the_help_begins_with_what_a_newcomer_needs_and_cuts_no_summary_off(inside: InProcessCli) -> None:
    listed = inside("--help").out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed][:4] == ["init", "run", "watch", "why"]
    assert [line for line in listed if line.endswith("...")] == []
