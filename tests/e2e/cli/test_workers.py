"""`tidemill workers`, and what `tidemill worker` refuses; real worker processes are in `tests/e2e/processes`."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import socket
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click
import pytest

import tidemill
from tests.fixtures.cli_store import CliStore
from tests.fixtures.command_line import SECONDS_MAX, eventually
from tests.fixtures.scripted_functions import Ledger
from tidemill.bootstrap import engine_at
from tidemill.cli import main
from tidemill.cli.app import app
from tidemill.cli.commands import worker
from tidemill.cli.commands.serve import ServeOptions, worker_arguments
from tidemill.cli.commands.worker import StatusLines, without_password
from tidemill.cli.options import retention
from tidemill.engine.worker.instrumentation import OutcomeReport
from tidemill.engine.worker.registry import WORKER
from tidemill.kernel.model import RETENTION_BY_STORE

STUCK = {"name": "stuck", "nodes": [{"id": "a", "type": "value", "queue": "gpu"}]}


def lines_of(cli_store: CliStore, *arguments: str) -> list[str]:
    return cli_store.fine(*arguments).splitlines()


def test_workers_are_listed(cli_store: CliStore) -> None:
    (worker,) = cli_store.mill.workers()
    heads, row, note = lines_of(cli_store, "workers")
    assert heads.split() == ["WORKER", "STATE", "HOLDS", "QUEUES", "SINCE", "LAST", "BEAT"]
    assert re.fullmatch(rf"{worker.name}  alive +0  all     (just now|\d s ago)  (just now|\d s ago)", row)
    assert note.startswith(f"  pid {worker.pid} on {worker.host} · ") and "http" in note
    (found,) = cli_store.json("workers")["workers"]
    assert (found["name"], found["state"], found["held"]) == (worker.name, "alive", [])
    assert set(worker.types) == set(found["types"]) and "v" not in found


def test_a_worker_is_shown_with_what_it_holds(cli_store: CliStore) -> None:
    ledger = Ledger()
    url = cli_store.url + "-busy"
    document = {
        "name": "busy",
        "nodes": [
            {
                "id": "m",
                "type": "python",
                "config": {"function": "work", "args": {"seconds": 30}},
                "map": {"over": list(range(22))},
            }
        ],
    }
    mill = tidemill.open(url, functions={"work": ledger.work}, queues=["default", "gpu"])
    try:
        published = mill.publish(document)
        run_id = mill.start(f"{published.name}@1")
        eventually(lambda: ledger.running == 22, "it does not run")
        # The process is this one, so its row is asked for while it is written only every five seconds.
        mill._engine.registry.announce()  # type: ignore[union-attr]
        eventually(lambda: mill.workers()[0].holding == 22, "it holds nothing")
        (worker,) = mill.workers()
        eventually(lambda: cli_store.json("workers", "--store", url)["workers"][0]["holding"] == 22, "nobody is told")
        for name in (worker.name, worker.name.rpartition("/")[2], str(worker.pid)):
            told = cli_store.fine("workers", "show", name, "--store", url)
            assert told.startswith(f"{worker.name}  pid {worker.pid} on {worker.host}\nstate      alive\n")
            assert "holds      22 of 64\n" in told and "queues     default, gpu\n" in told
            assert re.search(rf"^{run_id}  m\[0\] +(just now|\d+ s ago)$", told, re.MULTILINE)
            assert told.endswith("→ and 2 jobs more\n")
        held = cli_store.json("workers", "show", worker.name, "--store", url)["held"]
        assert [(job["run_id"], job["node"], job["index"]) for job in held[:2]] == [(run_id, "m", 0), (run_id, "m", 1)]
    finally:
        mill.close(timeout_s=0.2)


def test_a_name_that_nobody_has(cli_store: CliStore) -> None:
    (worker,) = cli_store.mill.workers()
    (problem,) = cli_store.refused("workers", "show", "nobody")
    assert problem["code"] == "worker_unknown" and worker.name in problem["hint"]


def test_the_dead_are_listed_on_request(cli_store: CliStore) -> None:
    url = cli_store.url + "-dead"
    mill = tidemill.open(url)
    engine = mill._engine
    store, registry = engine._store, engine.registry
    assert registry is not None
    eventually(lambda: bool(mill.workers()), "there is no worker")
    row = registry._index_row()
    mill.close()

    async def leave_behind() -> None:
        import msgspec

        from tidemill.stores.contract import Commit, Stream

        body = msgspec.msgpack.encode(msgspec.structs.replace(registry.row(), beat_ms=store.now_ms() - 60_000))
        old = msgspec.structs.replace(row, body=body)
        await store.commit([Commit(stream=Stream("default", WORKER, row.key), expected=None, rows=(old,))])

    import asyncio

    asyncio.run(leave_behind())
    told = cli_store.fine("workers", "--store", url)
    assert told.startswith("no worker is running\n") and told.endswith(
        "→ 1 more died within the last hour; --all lists them\n"
    )
    assert cli_store.json("workers", "--store", url) == {"workers": []}
    _, line, _ = lines_of(cli_store, "workers", "--all", "--store", url)
    assert re.search(r"  dead  .*  1 min ago$", line)
    (found,) = cli_store.json("workers", "--all", "--store", url)["workers"]
    assert found["state"] == "dead"


def test_why_gives_the_command_that_starts_a_worker(cli_store: CliStore) -> None:
    url = cli_store.url + "-nobody"
    with tidemill.open(url, work=False) as mill:
        mill.publish(STUCK)
        run_id = mill.start("stuck")
    told = cli_store.fine("why", run_id, "--store", url)
    assert "a is queued: no worker is running" in told
    assert f"tidemill worker --store {url}" in told
    with tidemill.open(url, queues=["default"]) as mill:
        eventually(lambda: cli_store.json("workers", "--store", url)["workers"], "the worker has no row")
        told = cli_store.fine("why", run_id, "--store", url)
        assert "no worker on queue gpu" in told and mill.workers()[0].name in told
        assert f"tidemill worker --queues gpu --store {url}" in told


NOTHING = "answer = 42\n"
RAISES = "raise OSError('no such key\\nsecond line')\n"
WRONG = "functions = ['f']\n"
WRONG_TOO = "functions = {'f': 1}\n"
WRONG_HANDLERS = "handlers = ['h']\n"
LEAVES = "import sys\nsys.exit('goodbye')\n"
LACKS = "import surely_nowhere\n"


@pytest.mark.parametrize(
    ("name", "text", "code", "said"),
    [
        ("nowhere", None, "app_unknown", "there is no module 'nowhere'"),
        ("nowhere.py", None, "app_unknown", "there is no file"),
        ("", None, "app_unknown", "there is no module ''"),
        ("mine_a.py", NOTHING, "app_invalid", "offers neither functions nor handlers"),
        ("mine_b.py:missing", NOTHING, "app_unknown", "mine_b.py has no attribute missing"),
        ("mine_c.py", RAISES, "app_invalid", "cannot be imported: OSError: no such key"),
        ("mine_d.py", WRONG, "app_invalid", "functions is not a mapping of functions"),
        ("mine_e.py", WRONG_TOO, "app_invalid", "functions is not a mapping of functions"),
        ("mine_f", WRONG_HANDLERS, "app_invalid", "handlers is not a list of tidemill.Handler"),
        ("mine_g.py", LEAVES, "app_invalid", "cannot be imported: SystemExit: goodbye"),
        (
            "mine_h.py",
            LACKS,
            "app_invalid",
            "cannot be imported: ModuleNotFoundError: No module named 'surely_nowhere'",
        ),
        ("json.py", "functions = {}\n", "app_invalid", "another module is also called json"),
        ("mine_i.py", "functions = {\n", "app_invalid", "cannot be imported: SyntaxError"),
        ("mine_j.py", "int('x')\n", "app_invalid", "cannot be imported: ValueError: invalid literal"),
    ],
)
def test_code_that_cannot_be_used_is_refused(
    cli_store: CliStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    text: str | None,
    code: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path(name.partition(":")[0].removesuffix(".py") + ".py").write_text(text)
    (problem,) = cli_store.refused("worker", "--app", name)
    assert (problem["code"], said in problem["message"]) == (code, True), problem
    assert problem["hint"]


@pytest.mark.parametrize("text", ["functions = {\n", LACKS], ids=["syntax", "a missing package"])
def test_the_hint_names_the_line_that_cannot_be_imported(
    cli_store: CliStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"mine_{'x' if text is LACKS else 'y'}"
    Path(f"{name}.py").write_text(text)
    (problem,) = cli_store.refused("worker", "--app", name)
    assert problem["hint"].endswith(f"{name}.py, line 1")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:secret@db:5432/mill?x=1", "postgresql://ada:***@db:5432/mill?x=1"),
        ("redis://:secret@db/0", "redis://:***@db/0"),
        ("sqlite:///mill.db", "sqlite:///mill.db"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_the_loop_of_a_worker_waits_little_for_threads_that_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def in_loop(work: Coroutine[Any, Any, None]) -> None:
        seen.append(sys.getswitchinterval())
        work.close()

    monkeypatch.setattr(worker, "in_loop", in_loop)
    before = sys.getswitchinterval()
    try:
        assert main.call(["worker", "--store", f"sqlite:///{tmp_path}/store.db"]) == main.OK
    finally:
        sys.setswitchinterval(before)
    assert seen == [pytest.approx(main.SWITCH_SECONDS)] and before > main.SWITCH_SECONDS


def test_a_worker_gives_freed_memory_back() -> None:
    def resident_mb() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20

    held = [bytes(60_000) for _ in range(5_000)]
    # The last block keeps the heap from shrinking by itself.
    last, before = held.pop(), resident_mb()
    held.clear()
    assert main.release_memory()
    assert resident_mb() < before - 200, len(last)


@pytest.mark.parametrize("days", [None, RETENTION_BY_STORE, 400.5])
def test_workers_beside_a_server_do_what_the_one_inside_would_do(days: float | None) -> None:
    asked: dict[str, Any] = {"concurrency": 3, "grace_s": 1.5, "apps": ("a.py", "b.py"), "imports": ("shop.*",)}
    asked |= {"archive": "/old runs", "log_level": "error", "log_format": "json"}
    server = ServeOptions(
        store="sqlite:///s.db", host="", port=0, workers=2, retention_days=days, without_authentication=False, **asked
    )
    name, *arguments = worker_arguments(server)
    command = app.commands[name]
    read = command.make_context(name, arguments, parent=click.Context(app)).params
    assert {key: read[key] for key in asked} == asked
    assert read["name"] == "server"
    assert retention(read["retention_days"], read["keep_runs"]) == days


async def test_a_worker_with_a_name_tells_tenants_nothing_of_its_machine() -> None:
    flow = {"name": "flow", "nodes": [{"id": "a", "type": "value", "config": 1}]}
    async with engine_at("memory://", name="server") as engine:
        run = await engine.run(flow)
        names = {event["worker"] for event in await engine.events(run.run_id) if event.get("worker")}
        (found,) = await engine.workers.find()
    assert {name.rpartition("/")[0] for name in names} == {"server"}
    assert (found.host, found.pid) == (socket.gethostname(), os.getpid())


def test_a_worker_continues_when_nobody_reads_its_json() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with StatusLines(as_json=True) as lines:
        os.dup2(writer, lines._json.fileno())  # type: ignore[union-attr]
        os.close(writer)
        lines.hurrying(1)


async def test_a_result_that_comes_after_a_rewind_is_reported_as_discarded() -> None:
    told: list[OutcomeReport] = []
    go = [threading.Event(), threading.Event()]
    calls: list[int] = []

    def slow() -> int:
        calls.append(1)
        assert go[len(calls) - 1].wait(SECONDS_MAX)
        return len(calls)

    engine = engine_at("memory://", functions={"slow": slow})
    await engine.open()
    try:
        engine.turns.listener = told.append
        flow = {"name": "late", "nodes": [{"id": "a", "type": "python", "config": {"function": "slow"}}]}
        await engine.publish(flow)
        run_id = await engine.start("late")
        await asyncio.to_thread(eventually, lambda: calls, "it does not get on")
        await engine.rewind(run_id, "a")
        await asyncio.to_thread(eventually, lambda: len(calls) == 2, "it does not get on")
        go[0].set()
        await asyncio.to_thread(eventually, lambda: told, "it does not get on")
        go[1].set()
        await engine.result(run_id, timeout_s=20)
    finally:
        await engine.close()
    assert [report.outcome for report in told] == ["discarded", "completed"]
