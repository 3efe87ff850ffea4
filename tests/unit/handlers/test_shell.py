"""Node type `shell`: off by default, what a command is given, how it ends, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures.grants import give_secrets
from tests.fixtures.handler_engine import ONCE, error, output
from tests.fixtures.handler_harness import called
from tests.fixtures.worker_processes import alive, until
from tidemill.engine.views import RunView
from tidemill.errors import Rejected
from tidemill.handlers.contract import CapabilityMissing, Done, Fail
from tidemill.handlers.shell import DRAINING_MS, FOLDER_PREFIX, remove_leftovers, shell_handler
from tidemill.kernel.compile.compiler import compile_document
from tidemill.node_types import built_in_types
from tidemill.observability.capture import OUTPUT_SINK

SHELL = shell_handler(enabled=True)
GONE_SECONDS = 30
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{fork}
open('{file}', 'w').write(str(os.getpid()))
time.sleep(60)
"""


async def ran(*argv: str, **config: Any) -> dict[str, Any]:
    ended = await called(SHELL, {"argv": list(argv), **config})
    assert isinstance(ended, Done)
    assert isinstance(ended.value, dict)
    return ended.value


async def sh(line: str, **config: Any) -> dict[str, Any]:
    return await ran("sh", "-c", line, **config)


async def failed(*argv: str, attempt: int = 1, **config: Any) -> Fail:
    with pytest.raises(Fail) as caught:
        await called(SHELL, {"argv": list(argv), **config}, attempt=attempt)
    return caught.value


def stubborn(file: Path, *, fork: bool = False) -> list[str]:
    """A command that does not listen, or whose child does not; the file gets the number of whoever stays."""
    split = "os.fork() and time.sleep(60); os.closerange(3, 256)" if fork else ""
    return [sys.executable, "-c", STUBBORN.format(fork=split, file=file)]


def daemon(file: Path) -> str:
    """A line of shell that leaves a daemon behind, whose number stands in the file."""
    script = (
        "import os, time; os.setsid(); os.fork() and os._exit(0); "
        f"open('{file}', 'w').write(str(os.getpid())); os.closerange(0, 256); time.sleep(60)"
    )
    return f'{sys.executable} -c "{script}"; while [ ! -s {file} ]; do sleep 0.02; done'


def pid_in(file: Path) -> int:
    until(lambda: file.exists() and file.read_text() != "", "the command began")
    return int(file.read_text())


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def listening() -> list[tuple[str, str]]:
    """What is heard from now on, by source and text."""
    heard: list[tuple[str, str]] = []

    def hear(source: str, text: str) -> str:
        heard.append((source, text))
        return text

    OUTPUT_SINK.set(hear)
    return heard


@pytest.fixture
def mill(monkeypatch: pytest.MonkeyPatch) -> Iterator[tidemill.Tidemill]:
    monkeypatch.setenv("TIDEMILL_SHELL", "on")
    give_secrets(monkeypatch, TOKEN="swordfish")
    with tidemill.open("memory://") as opened:
        yield opened


def document(argv: list[str], node: dict[str, Any] | None = None, **config: Any) -> dict[str, Any]:
    return {"name": "one", "nodes": [{"id": "a", "type": "shell", "config": {"argv": argv, **config}, **(node or {})}]}


def went(mill: tidemill.Tidemill, argv: list[str], node: dict[str, Any] | None = None, **config: Any) -> RunView:
    return mill.run(document(argv, node, **config), timeout_s=30)


@pytest.mark.parametrize("said", [None, "", "off"])
def test_a_document_is_refused_where_commands_are_off(said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEMILL_SHELL", raising=False)
    if said is not None:
        monkeypatch.setenv("TIDEMILL_SHELL", said)
    with pytest.raises(Rejected) as refused:
        compile_document(document(["true"]), built_in_types())
    (problem,) = refused.value.problems
    assert (problem.code, problem.path) == ("shell_disabled", "/nodes/0/config")
    assert "TIDEMILL_SHELL=on" in problem.hint


def test_a_switch_that_is_neither_on_nor_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_SHELL", "yes")
    with pytest.raises(Rejected) as refused:
        built_in_types()
    assert refused.value.code == "shell_switch_invalid"


async def test_a_worker_that_may_not_run_commands_leaves_them_to_others(tmp_path: Path) -> None:
    with pytest.raises(CapabilityMissing) as caught:
        await called(shell_handler(), {"argv": ["touch", str(tmp_path / "done")]})
    assert (caught.value.code, caught.value.retryable) == ("shell_disabled", False)
    assert not (tmp_path / "done").exists()


# What a command is given


async def test_what_comes_back() -> None:
    value = await sh("echo out; echo err >&2")
    assert value.pop("duration_ms") >= 0
    assert value == {"exit_code": 0, "stdout": "out\n", "stderr": "err\n", "truncated": False}


async def test_arguments_are_not_read_by_a_shell() -> None:
    assert (await ran("printf", "%s|", "a b", "$HOME", "; rm x", ""))["stdout"] == "a b|$HOME|; rm x||"


async def test_only_a_few_variables_are_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANTED", "OTHER", "AWS_SECRET_ACCESS_KEY", "TIDEMILL_SECRET_X", "TIDEMILL_SMTP_URL"):
        monkeypatch.setenv(name, "sesame")
    monkeypatch.setenv("LANG", "C")
    config = {"inherit": ["WANTED", "TIDEMILL_SECRET_X", "ABSENT"], "env": {"OWN": "1", "LANG": "C.UTF-8"}}
    lines = (await ran("env", parse="lines", **config))["value"]
    seen = dict(line.split("=", 1) for line in lines)
    assert {"PATH", "HOME"} <= seen.keys() <= {"PATH", "HOME", "LANG", "TZ", "WANTED", "OWN"}
    assert (seen["WANTED"], seen["OWN"], seen["LANG"]) == ("sesame", "1", "C.UTF-8")


@pytest.mark.parametrize(("stdin", "read"), [("plain\n", "plain\n"), ({"a": [1]}, '{"a":[1]}'), (None, "")])
async def test_standard_input(stdin: Any, read: str) -> None:
    assert (await ran("cat", stdin=stdin))["stdout"] == read


async def test_input_that_nobody_reads_is_no_failure() -> None:
    assert (await ran("true", stdin="x" * 1_000_000))["exit_code"] == 0


async def test_a_folder_of_its_own_is_removed() -> None:
    folder = Path((await sh("pwd; echo x > file; mkdir -p a/b"))["stdout"].strip())
    assert folder.name.startswith("tidemill-") and not (folder / ".").exists()


async def test_a_folder_that_is_named_stays(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "tool").chmod(0o755)
    assert (await ran("./tool", cwd=str(tmp_path)))["stdout"] == f"{tmp_path}\n"
    assert (tmp_path / "tool").exists()


@pytest.mark.parametrize("cwd", ["nowhere", "/nowhere/at/all", "/etc/passwd", "/a\0b"])
async def test_a_folder_that_is_not_there(cwd: str) -> None:
    assert (await failed("true", cwd=cwd)).code == "folder_missing"


async def test_lines_are_heard_as_they_come() -> None:
    heard = listening()
    running = asyncio.create_task(sh("echo one; echo two >&2; sleep 60"))
    for _ in range(500):
        await asyncio.sleep(0.01)
        if len(heard) == 2:
            break
    assert sorted(heard) == [("stderr", "two\n"), ("stdout", "one\n")]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_line_is_heard_whole_and_what_has_no_end_at_the_end() -> None:
    heard = listening()
    await sh("printf 'se'; sleep 0.2; printf 'same\\nrest'")
    assert heard == [("stdout", "sesame\n"), ("stdout", "rest")]


@pytest.mark.parametrize(
    ("line", "limit", "stdout", "cut"),
    [
        ("printf abcdef", 4, "…cdef", True),
        ("printf abcd", 4, "abcd", False),
        ("printf 'aäö'", 3, "…ö", True),
        ("printf '\\377x'", 9, "\ufffdx", False),
    ],
)
async def test_the_end_of_the_output_is_kept(line: str, limit: int, stdout: str, cut: bool) -> None:
    value = await sh(line, limits={"output_bytes": limit})
    assert (value["stdout"], value["truncated"]) == (stdout, cut)


async def test_a_flood_is_bounded() -> None:
    value = await sh("yes | head -c 30000000")
    assert len(value["stdout"]) == 1 + 1_048_576 and value["truncated"]


async def test_output_as_lines_and_as_json() -> None:
    assert (await sh("printf 'a\\nb\\n'", parse="lines"))["value"] == ["a", "b"]
    assert (await sh("printf 'aaa\\nb\\nc'", parse="lines", limits={"output_bytes": 4}))["value"] == ["b", "c"]
    assert (await sh("echo '{\"n\": 1}'", parse="json"))["value"] == {"n": 1}
    assert (await failed("echo", "{", parse="json")).code == "response_invalid"
    late = await failed("echo", "[1, 2, 3]", parse="json", limits={"output_bytes": 4})
    assert (late.code, late.hint) == ("output_too_large", "raise limits.output_bytes")
    lists = "printf '[0'; yes ,[] | head -n 1200000 | tr -d '\\n'; printf ']'"
    many = await failed("sh", "-c", lists, parse="json", limits={"output_bytes": 8_000_000})
    assert (many.code, "256 MB of memory" in many.message) == ("output_too_large", True)


async def test_statuses() -> None:
    fail = await failed("sh", "-c", "echo broken >&2; exit 3")
    assert (fail.code, fail.retryable, fail.unknown_outcome) == ("exit_status", False, False)
    assert fail.message == "the command ended with status 3: broken"
    assert (await failed("sh", "-c", "exit 3", retry_on=[3])).retryable
    assert (await sh("exit 3", expect=[0, 3]))["exit_code"] == 3
    assert (await failed("true", expect=[1])).code == "exit_status"


async def test_a_signal_is_named() -> None:
    fail = await failed("sh", "-c", "echo bye; kill -SEGV $$")
    assert (fail.code, fail.retryable, fail.unknown_outcome) == ("process_died", True, True)
    assert fail.message == "the command was ended by SIGSEGV: bye"
    assert "memory" in (await failed("sh", "-c", "kill -KILL $$")).hint


@pytest.mark.parametrize("name", ["no-such-command", "./missing", "/etc/passwd", "", "a\0b", "/etc"])
async def test_a_command_that_is_not_there(name: str) -> None:
    fail = await failed(name)
    assert (fail.code, fail.retryable) == ("command_not_found", False)


async def test_a_script_whose_interpreter_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/no/such/interpreter\n")
    (tmp_path / "tool").chmod(0o755)
    fail = await failed("./tool", cwd=str(tmp_path))
    assert fail.code == "command_not_found" and "first line" in fail.hint


@pytest.mark.parametrize("config", [{"argv": ["echo", "a\0b"]}, {"argv": ["true"], "env": {"A": "b\0"}}])
async def test_what_no_command_can_be_given(config: Any) -> None:
    with pytest.raises(Fail) as caught:
        await called(SHELL, config)
    assert caught.value.code == "config_invalid"


async def test_arguments_that_are_too_long() -> None:
    fail = await failed("true", "x" * 3_000_000)
    assert fail.code == "config_invalid" and "stdin" in fail.hint


@pytest.mark.parametrize(("attempt", "retryable"), [(2, True), (3, False)])
async def test_memory_is_bounded(attempt: int, retryable: bool) -> None:
    line = "print(len(bytearray(400 << 20)))"
    fail = await failed(sys.executable, "-c", line, limits={"memory_mb": 100}, attempt=attempt)
    assert (fail.code, fail.retryable) == ("out_of_memory", retryable)
    assert "100 MB" in fail.message and "MemoryError" in fail.message
    assert (await ran(sys.executable, "-c", "print(1)", limits={"memory_mb": 100}))["stdout"] == "1\n"


async def test_memory_that_it_shares_is_bounded_too() -> None:
    line = (
        "import mmap, time; m = mmap.mmap(-1, 300 << 20); [m.write(bytes(1 << 20)) for _ in range(300)]; time.sleep(9)"
    )
    fail = await failed(sys.executable, "-c", line, limits={"memory_mb": 100})
    assert (fail.code, fail.retryable) == ("out_of_memory", True) and "100 MB" in fail.message


async def test_bounded_memory_changes_nothing_else(tmp_path: Path) -> None:
    config: dict[str, Any] = {"limits": {"memory_mb": 100}, "cwd": str(tmp_path), "env": {"A": "1"}}
    assert (await sh('pwd; echo "$A" "$1"; exit 0', **config))["stdout"] == f"{tmp_path}\n1 \n"
    assert (await ran("printf", "%s|", "a b", "$A", **config))["stdout"] == "a b|$A|"


# Nothing of it is left


async def test_who_listens_ends_by_itself_when_the_time_is_up(tmp_path: Path) -> None:
    line = f"trap 'echo tidied > {tmp_path}/end; exit 0' TERM; sleep 60 & wait"
    began = time.monotonic()
    fail = await failed("sh", "-c", line, limits={"time_seconds": 0.3})
    assert (fail.code, fail.retryable, fail.unknown_outcome) == ("timeout", True, True)
    assert "0.3 s" in fail.message and time.monotonic() - began < 40
    assert (tmp_path / "end").read_text() == "tidied\n"


async def test_who_does_not_listen_is_killed(tmp_path: Path) -> None:
    # Long enough for a busy machine to start it, so that it does not listen by then.
    fail = await failed(*stubborn(tmp_path / "pid"), limits={"time_seconds": 3})
    assert fail.code == "timeout"
    until(lambda: not alive(pid_in(tmp_path / "pid")), "it is gone", GONE_SECONDS)


async def test_the_whole_group_is_killed(tmp_path: Path) -> None:
    fail = await failed(*stubborn(tmp_path / "pid", fork=True), limits={"time_seconds": 0.5})
    assert fail.code == "timeout"
    until(lambda: not alive(pid_in(tmp_path / "pid")), "its child is gone", GONE_SECONDS)


async def test_what_it_leaves_running_ends_with_it(tmp_path: Path) -> None:
    began = time.monotonic()
    value = await sh(f"sleep 60 & echo $! > {tmp_path}/pid; echo done")
    assert value["stdout"] == "done\n" and time.monotonic() - began < 40
    until(lambda: not alive(pid_in(tmp_path / "pid")), "it is gone", GONE_SECONDS)


async def test_a_stranger_who_holds_the_output_is_not_waited_for(tmp_path: Path) -> None:
    line = f"echo $$ > {tmp_path}/pid; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo up"
    running = asyncio.create_task(sh(line))
    pid = await asyncio.to_thread(pid_in, tmp_path / "pid")
    held = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY)
    try:
        began = time.monotonic()
        (tmp_path / "go").touch()
        async with asyncio.timeout(GONE_SECONDS):
            assert (await running)["stdout"] == "up\n"
    finally:
        os.close(held)
    assert time.monotonic() - began > DRAINING_MS / 1_000, "the output was at its end"


@pytest.mark.parametrize("how", ["ends", "takes too long", "is cancelled"])
async def test_a_daemon_ends_with_its_command(how: str, tmp_path: Path) -> None:
    """It has left the process group and lost its parent, so it is nobody's child any more."""
    line = f"{daemon(tmp_path / 'pid')}; {'true' if how == 'ends' else 'sleep 60'}"
    running = asyncio.create_task(sh(line, limits={"time_seconds": 1} if how == "takes too long" else {}))
    pid = await asyncio.to_thread(pid_in, tmp_path / "pid")
    if how == "is cancelled":
        running.cancel()
    with suppress(Fail, asyncio.CancelledError):
        await running
    assert not alive(pid)


async def test_cancellation_kills_the_group(tmp_path: Path) -> None:
    running = asyncio.create_task(ran(*stubborn(tmp_path / "pid", fork=True)))
    await asyncio.to_thread(pid_in, tmp_path / "pid")
    began = time.monotonic()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert time.monotonic() - began < 40
    until(lambda: not alive(pid_in(tmp_path / "pid")), "its child is gone", GONE_SECONDS)


async def test_cancellation_before_its_supervisor_knows_what_to_run() -> None:
    running = asyncio.create_task(ran("true", *["x" * 100_000] * 10))
    await asyncio.sleep(0.001)
    began = time.monotonic()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert time.monotonic() - began < 40


@pytest.mark.parametrize("kind", ["command", "daemon"])
def test_commands_end_with_a_killed_worker(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    argv = stubborn(file) if kind == "command" else ["sh", "-c", f"{daemon(file)}; sleep 60"]
    script = f"""
import asyncio
from tests.fixtures.handler_harness import called
from tidemill.handlers.shell import shell_handler
asyncio.run(called(shell_handler(enabled=True), {{"argv": {argv!r}}}))
"""
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen([sys.executable, "-c", script], cwd=root) as worker:
        pid = pid_in(file)
        worker.kill()
    until(lambda: not alive(pid), "the command is gone", GONE_SECONDS)


def test_a_worker_removes_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("TIDEMILL_SHELL", "on")
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tidemill.handlers.shell.UNLOCKED_SECONDS", -1)
    script = """
import asyncio
from tests.fixtures.handler_harness import called
from tidemill.handlers.shell import shell_handler
asyncio.run(called(shell_handler(enabled=True), {"argv": ["sh", "-c", "echo left > file; sleep 600"]}))
"""
    root = Path(__file__).resolve().parents[3]
    other = tmp_path / f"{FOLDER_PREFIX}elsewhere"
    other.symlink_to(root)

    def folders() -> list[Path]:
        return [each.parent for each in tmp_path.glob(f"{FOLDER_PREFIX}*/file")]

    with subprocess.Popen([sys.executable, "-c", script], cwd=root) as worker:
        until(lambda: len(folders()) == 1, "the command runs")
        remove_leftovers()
        assert len(folders()) == 1, "the folder of a living worker was removed"
        worker.kill()
    with tidemill.open("memory://"):
        until(lambda: not folders(), "the folder is gone")
    assert other.is_symlink() and root.is_dir()


async def test_a_command_ends_with_a_killed_supervisor(tmp_path: Path) -> None:
    running = asyncio.create_task(failed(*stubborn(tmp_path / "pid")))
    pid = await asyncio.to_thread(pid_in, tmp_path / "pid")
    supervisor = parent_of(pid)
    assert supervisor != os.getpid()
    os.kill(supervisor, signal.SIGKILL)
    assert (await running).code == "process_died"
    until(lambda: not alive(pid), "the command is gone", GONE_SECONDS)


def test_a_run_keeps_what_a_command_says(mill: tidemill.Tidemill) -> None:
    view = went(mill, ["sh", "-c", "echo $T; echo loud >&2"], env={"T": "{{ secrets.TOKEN }}"})
    assert output(view)["stdout"] == "***\n"
    lines = {(each.source, each.text.strip()) for each in mill.logs(view.run_id)}
    assert lines == {("stdout", "***"), ("stderr", "loud")}


def test_the_time_of_a_node_ends_its_command(mill: tidemill.Tidemill, tmp_path: Path) -> None:
    view = went(mill, stubborn(tmp_path / "pid"), {"timeout_seconds": 0.7, **ONCE})
    assert error(view)["code"] == "timeout"
    until(lambda: not alive(pid_in(tmp_path / "pid")), "it is gone", GONE_SECONDS)


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"argv": []}, "/argv"),
        ({"argv": "ls -l"}, "/argv"),
        ({"argv": ["ls"], "cwd": "here"}, "/cwd"),
        ({"argv": ["ls"], "env": {"A-B": "1"}}, "/env"),
        ({"argv": ["ls"], "inherit": ["TIDEMILL_SECRET_X"]}, "/inherit/0"),
        ({"argv": ["ls"], "parse": "yaml"}, "/parse"),
        ({"argv": ["ls"], "expect": [256]}, "/expect/0"),
        ({"argv": ["ls"], "limits": {"memory": 1}}, "/limits"),
        ({"argv": ["{{ secrets.X }}"]}, "/argv/0"),
    ],
)
def test_a_config_that_cannot_work(config: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_SHELL", "on")
    compile_document(document(["ls"]), built_in_types())
    with pytest.raises(Rejected) as refused:
        compile_document({"name": "t", "nodes": [{"id": "a", "type": "shell", "config": config}]}, built_in_types())
    assert any(problem.path.startswith(f"/nodes/0/config{path}") for problem in refused.value.problems)
