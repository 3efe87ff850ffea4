"""The command as a whole: its speed, its help, and what it does when nobody foresaw something."""

from __future__ import annotations

import resource
import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.cli.kit import COMMAND, EXAMPLES, Inside, environment, process
from tests.pace import allowed
from tidemill.cli import exits
from tidemill.cli.guard import guarded
from tidemill.errors import Unavailable, rejected

HELP_SECONDS_MAX = 0.25
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
        assert ended.code == exits.OK
        for command in COMMANDS:
            assert f"\n  {command} " in ended.out
    assert min(taken) <= allowed(HELP_SECONDS_MAX), taken


def test_help_imports_neither_the_engine_nor_what_draws() -> None:
    code = "import sys; from tidemill.cli import call; call(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    loaded = set(done.stderr.split())
    assert {"rich", "asyncio", "msgspec", "yaml", "tidemill.engine", "tidemill.kernel"}.isdisjoint(loaded)


def test_the_installed_script_calls_main() -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="tidemill")
    assert script.value == "tidemill.cli:main"


@pytest.mark.parametrize("group", [(), ("runs",), ("approvals",), ("dlq",), ("workflows",)])
def test_without_arguments_the_help_is_shown(inside: Inside, group: tuple[str, ...]) -> None:
    ended = inside(*group)
    assert (ended.code, ended.err) == (exits.OK, "")
    assert f"Usage: {' '.join(('tidemill', *group))} " in ended.out


@pytest.mark.parametrize("arguments", [("--version",), ("version",)])
def test_version(inside: Inside, arguments: tuple[str, ...]) -> None:
    ended = inside(*arguments)
    assert (ended.code, ended.out) == (exits.OK, f"tidemill {version('tidemill')}\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("frobnicate",), "No such command"),
        (("run",), "Missing argument 'FILE'"),
        (("run", "--nope", "x.yaml"), "No such option: --nope"),
        (("run", "x.yaml", "y.yaml"), "unexpected extra argument"),
        (("graph", "x.yaml", "--format", "png"), "--format"),
        (("run", "x.yaml", "--store"), "requires an argument"),
        (("runs", "frobnicate"), "No such command"),
        (("runs", "show"), "Missing argument 'RUN'"),
        (("runs", "state", "x"), "Missing option '--at'"),
        (("runs", "list", "--status", "BROKEN"), "--status"),
        (("runs", "list", "--limit", "0"), "--limit"),
        (("runs", "events", "x", "--after", "-1"), "--after"),
        (("runs", "show", "x", "--at", "zero"), "--at"),
        (("approvals", "decide", "x", "y", "perhaps"), "perhaps"),
        (("workflows", "tag", "x", "stable", "one"), "VERSION"),
    ],
)
def test_a_wrong_usage_is_a_short_message(inside: Inside, arguments: tuple[str, ...], words: str) -> None:
    ended = inside(*arguments)
    assert ended.code == exits.REFUSED
    assert ended.out == ""
    assert words in ended.err
    assert len(ended.err.splitlines()) == 2
    assert "Traceback" not in ended.err


def test_a_wrong_usage_is_told_to_a_program(inside: Inside) -> None:
    for arguments in (("validate", "--json"), ("runs", "list", "--limit", "0", "--json")):
        ended = inside(*arguments)
        assert (ended.code, ended.err) == (exits.REFUSED, "")
        (problem,) = ended.json["problems"]
        assert problem["code"] == "usage" and problem["message"] and "--help" in problem["hint"]


def test_a_bug_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEMILL_TRACEBACK", raising=False)

    def command() -> int:
        raise KeyError("a\x1b[31mb")

    assert guarded(command) == exits.BUG
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

    assert guarded(command) == exits.BUG
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (rejected("no_such", "nothing there", hint="look elsewhere"), exits.REFUSED, "nothing there [no_such]"),
        (Unavailable("disk gone"), exits.FAILED, "the store does not answer: disk gone"),
        (KeyboardInterrupt(), exits.INTERRUPTED, ""),
        (BrokenPipeError(), exits.FAILED, ""),
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
    child = subprocess.Popen(
        [*COMMAND, "graph", str(EXAMPLES / "showcase.yaml")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    complaints = child.stderr.read()
    child.stderr.close()
    assert child.wait(30) == exits.FAILED
    assert complaints == b""


def test_closed_streams_are_no_drama() -> None:
    command = " ".join([sys.executable, "-c", "'from tidemill.cli import main; main()'"])
    line = f"{command} run {EXAMPLES / 'hello.yaml'} --json >&- 2>&- <&-"
    assert subprocess.run(["sh", "-c", line], check=False, timeout=30, env=environment()).returncode == exits.OK


def test_a_terminal_without_unicode_gets_plain_signs() -> None:
    ascii_only = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    drawn = process("graph", str(EXAMPLES / "loops.yaml"), "--format", "text", env=ascii_only)
    assert drawn.code == exits.OK
    assert drawn.out.isascii()
    assert "+>* draft" in drawn.out
    ran = process("run", str(EXAMPLES / "hello.yaml"), "--json", "--input", "name=Zoë", env=ascii_only)
    assert ran.out.isascii()
    assert ran.json["outputs"]["greeting"] == "Hello, Zoë!"
