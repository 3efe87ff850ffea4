"""No finding of the security review reproduces: its reproducers against real engines on SQLite files."""

from __future__ import annotations

import base64
import gzip
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

import tidemill
from tests.attacks.review import CANARY, FILE, GETOUTPUT, ROWS, Answer, Command, Completes, Fails, Refused, Run
from tests.fixtures.command_line import environment
from tidemill.processes.supervisor import resident_mb
from tidemill.settings import read_settings

NEIGHBOUR_SECONDS_MAX = 10.0
"""What a run beside an attack may take. It takes milliseconds; the findings took from eight seconds to many minutes."""
GROWTH_MB_MAX = 400
RESULT_SECONDS = 120

RUNS = [row for row in ROWS if isinstance(row, Run)]
COMMANDS = [row for row in ROWS if isinstance(row, Command)]


class Server:
    """A web server that answers as a row says, and remembers what it was asked."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                answer = answers.get(self.path, Answer())
                body = json.dumps(dict(self.headers.items())).encode() if answer.echo else answer.body
                self.send_response(200)
                for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Server:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def filled(value: Any, places: dict[str, str]) -> Any:
    """A row with `{url}` and the like filled in."""
    if isinstance(value, str):
        for name, text in places.items():
            value = value.replace(f"{{{name}}}", text)
        return value
    if isinstance(value, dict):
        return {filled(key, places): filled(each, places) for key, each in value.items()}
    return [filled(each, places) for each in value] if isinstance(value, (list, tuple)) else value


@contextmanager
def neighbours(mill: Any) -> Iterator[None]:
    """Run small workflows all the time; none of them takes long, and the worker does not grow."""
    document = {"name": "neighbour", "nodes": [{"id": "a", "type": "value", "config": "{{ 1 + 1 }}"}]}
    mill.run(document)
    over, took, sizes = threading.Event(), [0.0], [resident_mb()]

    def work() -> None:
        while not over.is_set():
            began = time.monotonic()
            mill.run(document)
            took.append(time.monotonic() - began)
            sizes.append(resident_mb())
            over.wait(0.02)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(RESULT_SECONDS)
    assert not thread.is_alive() and len(took) > 1, "no other run ended"
    assert max(took) < NEIGHBOUR_SECONDS_MAX, f"another run took {max(took):.1f} s"
    assert max(sizes) - sizes[0] < GROWTH_MB_MAX, f"the worker grew from {sizes[0]} to {max(sizes)} MB"


@contextmanager
def opened(row: Run, folder: Path, server: Server) -> Iterator[Any]:
    config = folder / "grants.toml"
    host = server.url.removeprefix("http://")
    lines = [f'egress = ["{host}"]', filled(row.grants, {"url": server.url})]
    if row.database:
        connection = apsw.Connection(str(folder / "crm.db"))
        for statement in row.database:
            connection.execute(statement)
        connection.close()
        lines.append(f'[databases]\ncrm = "sqlite:///{folder}/crm.db"')
    if "imports" not in row.grants:
        lines.insert(0, "imports = []")
    config.write_text("\n".join(lines))
    with tidemill.open(f"sqlite:///{folder}/store.db", settings=read_settings(config)) as mill:
        yield mill


def canaries(folder: Path) -> list[str]:
    """Files in which the secret stands in any form."""
    encoded = base64.b64encode(CANARY.encode()).decode().rstrip("=")
    forms = {CANARY, CANARY.upper(), CANARY[::-1], encoded, CANARY[1:], CANARY.upper().replace("A", "B")}
    wanted = [form.encode() for form in forms]
    return [
        file.name for file in folder.rglob("*") if file.is_file() and any(form in file.read_bytes() for form in wanted)
    ]


@pytest.mark.parametrize("row", RUNS, ids=[row.name for row in RUNS])
def test_documents(row: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("TIDEMILL_SECRET_CRM", CANARY)
    with Server(dict(row.answers)) as server, opened(row, tmp_path, server) as mill:
        places = {"url": server.url, "folder": str(tmp_path)}
        *others, attack = filled(row.documents, places)
        mill.put_blob(FILE)
        for each in row.before:
            assert mill.run(each).status == "COMPLETED"
        try:
            for each in others:
                mill.publish(each)
            mill.publish(attack)
            with neighbours(mill) if row.neighbours else nullcontext():
                run_id = mill.start(attack["name"], filled(dict(row.inputs), places))
                run = mill.result(run_id, timeout_s=RESULT_SECONDS)
        except tidemill.Rejected as refusal:
            found = [(problem.code, f"{problem.message} {problem.hint}") for problem in refusal.problems]
            assert isinstance(row.ending, Refused), found
            assert any(row.ending.code == code and row.ending.words in said for code, said in found), found
        else:
            match row.ending:
                case Fails(code, words):
                    assert run.status == "FAILED", run.outputs
                    assert run.error["code"] == code and words in str(run.error), run.error
                case Completes(check):
                    assert run.status == "COMPLETED" and check(run.outputs), (run.error, str(run.outputs)[:1000])
                case Refused():
                    pytest.fail(f"it ran: {run.status} {run.error}")
        # The worker is as it was.
        assert mill.run({"name": "after", "nodes": [{"id": "a", "type": "value", "config": 1}]}).status == "COMPLETED"
        asked = list(server.asked)
    if row.visits is not None:
        assert asked == list(row.visits)
    assert canaries(tmp_path) == []
    assert CANARY not in caplog.text


class Ended(NamedTuple):
    code: int
    said: str


def process(*arguments: str, cwd: Path | None = None, memory_mb: int | None = None) -> Ended:
    """Call the installed command: `python -c` would search the current folder first, whatever the command does."""
    command = [str(Path(sys.executable).with_name("tidemill")), *arguments]
    if memory_mb is not None:
        command = ["sh", "-c", f'ulimit -v {memory_mb * 1024}; exec "$0" "$@"', *command]
    done = subprocess.run(command, capture_output=True, cwd=cwd, env=environment(), timeout=RESULT_SECONDS, check=False)
    return Ended(done.returncode, done.stdout.decode() + done.stderr.decode())


TRAP = 'import pathlib; pathlib.Path({!r}).write_text("it ran"); H = []\n'


def trapped(folder: Path, proof: Path) -> None:
    """Plant code that runs if a command looks for node types or modules among these files."""
    meta = folder / "evil-1.0.dist-info"
    meta.mkdir(parents=True)
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[tidemill.nodes]\nx = evilmod:H\n")
    for name in ("evilmod", "apsw", "msgspec", "yaml", "click", "rich", "json", "sitecustomize", "tidemill"):
        (folder / f"{name}.py").write_text(TRAP.format(str(proof)))
    (folder / "tidemill.toml").write_text("shell = true\n")


@pytest.mark.parametrize("row", COMMANDS, ids=[row.name for row in COMMANDS])
def test_commands(row: Command, tmp_path: Path) -> None:
    folder, safe, proof = tmp_path / "stranger", tmp_path / "safe", tmp_path / "proof"
    trapped(folder, proof)
    safe.mkdir()
    flow = json.dumps({"name": "v", "nodes": [{"id": "a", "type": "value", "config": 1}]})
    for place in (folder, safe):
        (place / "v.yaml").write_text(flow)
    places = {"folder": str(folder), "safe": str(safe), "store": f"sqlite:///{tmp_path}/store.db"}
    for arguments in row.prepared:
        assert process(*filled(arguments, places), cwd=safe).code == 0
    ended = process(*filled(row.arguments, places), cwd=Path("/") if row.elsewhere else folder)
    said = ended.said
    assert not proof.exists(), "code of the folder ran"
    assert row.words in said and (not row.absent or row.absent not in said), ascii(said)
    assert ended.code == (row.code or 0), said


def test_c1_a_patch_brings_no_function(tmp_path: Path) -> None:
    config = tmp_path / "grants.toml"
    config.write_text("imports = []")
    waits = {"id": "go", "type": "signal"}
    function = {"id": "z", "type": "python", "config": GETOUTPUT}
    with tidemill.open(f"sqlite:///{tmp_path}/store.db", settings=read_settings(config)) as mill:
        mill.publish({"name": "waits", "nodes": [waits, {"id": "z", "type": "value", "config": 1}]})
        run = mill.start("waits", {})
        for operation in ("replace", "add"):
            path = "/nodes/z" if operation == "replace" else "/nodes/-"
            value = function if operation == "replace" else {**function, "id": "more"}
            with pytest.raises(tidemill.Rejected) as refused:
                mill.patch(run, [{"op": operation, "path": path, "value": value}])
            assert "import_not_allowed" in {problem.code for problem in refused.value.problems}
        mill.cancel(run)


def test_m3_only_the_user_reads_a_store(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with tidemill.open(f"sqlite:///{tmp_path}/store.db") as mill:
            mill.run({"name": "one", "nodes": [{"id": "a", "type": "value", "config": "x" * 100_000}]})
            modes = {file: stat.S_IMODE(file.lstat().st_mode) for file in tmp_path.rglob("*")}
    finally:
        os.umask(before)
    assert {str(file): oct(mode) for file, mode in modes.items() if mode & 0o077} == {}


def test_m3_a_link_to_another_file_is_not_followed(tmp_path: Path) -> None:
    elsewhere, shared = tmp_path / "elsewhere", tmp_path / "shared"
    elsewhere.mkdir()
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "store.db").symlink_to(elsewhere / "target")
    if os.geteuid() == 0:
        # Only root can plant a link for somebody else.
        os.lchown(shared / "store.db", 65_534, 65_534)
        with pytest.raises(tidemill.Rejected), tidemill.open(f"sqlite:///{shared}/store.db"):
            pass
    (shared / "other.db-live").symlink_to(elsewhere, target_is_directory=True)
    with tidemill.open(f"sqlite:///{shared}/other.db") as mill:
        mill.publish({"name": "one", "nodes": [{"id": "a", "type": "value", "config": 1}]})
        with pytest.raises(tidemill.TidemillError):
            mill.result(mill.start("one", {}), timeout_s=1)
    assert list(elsewhere.iterdir()) == []


BOMB_MB = 1_500


@pytest.mark.parametrize(("command", "memory_mb"), [(("list",), 600), (("show", "one"), 2_500)], ids=["list", "show"])
def test_m4_an_archive_entry_that_expands(tmp_path: Path, command: tuple[str, ...], memory_mb: int) -> None:
    """With an address space in which it has no room."""
    archive = tmp_path / "archive"
    store = f"sqlite:///{tmp_path}/store.db"
    with tidemill.open(store, work=False):
        pass
    entry = archive / "runs" / "default" / "2026-01" / "one" / "one.1.1.jsonl.gz"
    entry.parent.mkdir(parents=True)
    with gzip.open(entry, "wb", 1) as file:
        for _ in range(BOMB_MB):
            file.write(b"\0" * 1_000_000)
    assert entry.stat().st_size < 10_000_000
    ended = process("archive", *command, "--store", store, "--archive", str(archive), memory_mb=memory_mb)
    assert ended.code != 70 and "MemoryError" not in ended.said, ended.said
