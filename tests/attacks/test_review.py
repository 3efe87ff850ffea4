"""No attack succeeds: the reproducers of the security review and further ones, against real engines on SQLite files."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

import apsw
import pytest

import tidemill
from tests.attacks.corpus import CORPUS
from tests.attacks.review import (
    CANARY,
    FILE,
    GETOUTPUT,
    ODD,
    ROWS,
    Answer,
    Command,
    Completes,
    Ending,
    Ends,
    Fails,
    Refused,
    Run,
)
from tests.fixtures.command_line import environment
from tidemill.processes.supervisor import resident_mb
from tidemill.settings import read_settings

NEIGHBOUR_SECONDS_MAX = 10.0
"""What a run beside an attack may take. It takes milliseconds; the findings took from eight seconds to many minutes."""
GROWTH_MB_MAX = 400
RESULT_SECONDS = 120

ALL = (*ROWS, *CORPUS)
RUNS = [row for row in ALL if isinstance(row, Run)]
COMMANDS = [row for row in ALL if isinstance(row, Command)]


class Server:
    """A web server that answers as a row says, and remembers what it was asked."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.asked: list[str] = []
        self.heard: list[str] = []
        self.places: dict[str, str] = {}
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                sent = self.rfile.read(int(self.headers.get("content-length") or 0)).decode(errors="replace")
                server.heard.append(f"{self.path} {self.headers} {sent}")
                answer = answers.get(self.path) or answers.get("*") or Answer()
                if answer.raw is not None:
                    return self.send_raw(answer.raw, answer.trickle)
                body = json.dumps(dict(self.headers.items())).encode() if answer.echo else answer.body
                body = filled(body.decode(), server.places).encode() if b"{" in body[:1000] else body
                self.send_response(answer.status)
                for name, value in {
                    "Content-Type": "application/json",
                    **filled(dict(answer.headers), server.places),
                }.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return None

            def do_POST(self) -> None:
                self.do_GET()

            def send_raw(self, raw: bytes, trickle: bool) -> None:
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.wfile.write(raw)
                    while trickle and not server.over.wait(0.02):
                        self.wfile.write(raw[-1000:])

            def log_message(self, *_: Any) -> None: ...

        self.over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Server:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
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
def neighbours(mill: Any, name: str) -> Iterator[None]:
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
    if file := os.environ.get("ATTACK_TIMES"):
        with Path(file).open("a") as times:
            times.write(f"{name}: {max(took):.2f} s, {max(sizes) - sizes[0]} MB, {len(took)} runs\n")
    assert max(took) < NEIGHBOUR_SECONDS_MAX, f"another run took {max(took):.1f} s"
    assert max(sizes) - sizes[0] < GROWTH_MB_MAX, f"the worker grew from {sizes[0]} to {max(sizes)} MB"


@contextmanager
def opened(row: Run, folder: Path, places: dict[str, str]) -> Iterator[Any]:
    config = folder / "grants.toml"
    hosts = ", ".join(f'"{places[name].removeprefix("http://")}"' for name in ("url", "other"))
    lines = [f"egress = [{hosts}]", filled(row.grants, places)]
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


def forms(secret: str) -> set[str]:
    """A secret as it is and as somebody could have derived it."""
    quoted = json.dumps(secret)[1:-1]
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    return {
        *(secret, secret.upper(), secret[::-1], secret[1:], secret[:-1], secret[:12], secret[-12:]),
        *(encoded, quoted, json.dumps(quoted)[1:-1], quote(secret), quote(secret, safe=""), quote_plus(secret)),
        *(repr(secret)[1:-1], secret.upper().replace("A", "B")),
    }


FORMS = {form for secret in (CANARY, ODD) for form in forms(secret)}


def canaries(folder: Path) -> list[str]:
    """Files in which a secret stands in any form."""
    wanted = [form.encode() for form in FORMS]
    return [
        file.name
        for file in folder.rglob("*")
        if file.is_file() and not file.is_symlink() and any(form in file.read_bytes() for form in wanted)
    ]


def attempt(row: Run, mill: Any, places: dict[str, str]) -> Any:
    """Publish and run what the row says; answer the run, or what was done to it."""
    documents = filled(row.documents, places)
    last = filled(row.text, places) or documents[-1]
    for each in row.before:
        assert mill.run(each).status == "COMPLETED"
    with neighbours(mill, row.name) if row.neighbours else nullcontext():
        for each in documents if row.text else documents[:-1]:
            mill.publish(each)
        name = mill.publish(last).name
        run_id = mill.start(name, filled(dict(row.inputs), places))
        if row.act is not None:
            return row.act(mill, run_id)
        return mill.result(run_id, timeout_s=RESULT_SECONDS)


def told(mill: Any) -> str:
    """All that can be seen of all runs."""
    runs = mill.find([])[0]
    letters = mill.dead_letters([])[0]
    return str(
        [
            [(mill.events(row.run_id), mill.logs(row.run_id), mill.why(row.run_id)) for row in runs],
            [mill.dead_letter(row.run_id, row.node, visit=row.visit, index=row.index) for row in letters],
        ]
    )


@pytest.mark.parametrize("row", RUNS, ids=[row.name for row in RUNS])
def test_documents(row: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("TIDEMILL_SECRET_CRM", CANARY)
    monkeypatch.setenv("TIDEMILL_SECRET_ODD", ODD)
    check_run(row, tmp_path)
    assert not any(form in caplog.text for form in FORMS)


def check_run(row: Run, tmp_path: Path) -> None:
    folder = tmp_path / "safe"
    folder.mkdir()
    with Server(row.answers) as server, Server(row.answers) as other:
        places = {"url": server.url, "other": other.url, "folder": str(tmp_path)}
        server.places = other.places = places
        with opened(row, folder, places) as mill:
            mill.put_blob(FILE)
            try:
                answer = attempt(row, mill, places)
            except tidemill.Rejected as refusal:
                found = [(problem.code, f"{problem.message} {problem.hint}") for problem in refusal.problems]
                judge_refusal(row.ending, found)
                assert not any(form in str(found) for form in FORMS), found
            else:
                judge(row.ending, answer)
            # The worker is as it was.
            after = mill.run({"name": "after", "nodes": [{"id": "a", "type": "value", "config": 1}]})
            assert after.status == "COMPLETED"
            if not row.neighbours:
                seen = told(mill)
                assert [form for form in FORMS if form in seen] == []
        if row.visits is not None:
            assert [*server.asked, *other.asked] == list(row.visits)
        assert [said for said in other.heard if any(form in said for form in FORMS)] == []
    assert canaries(tmp_path) == []


def judge_refusal(ending: Ending, found: list[tuple[str, str]]) -> None:
    match ending:
        case Refused(wanted, words):
            assert any(wanted == code and words in said for code, said in found), found
        case Ends(codes):
            assert found[0][0] in codes, found
        case _:
            pytest.fail(f"it was refused: {found}")


def judge(ending: Ending, answer: Any) -> None:
    run = answer if hasattr(answer, "outputs") else None
    match ending:
        case Fails(code, words):
            assert run is not None and run.status == "FAILED", run and str(run.outputs)[:1000]
            assert run.error["code"] == code and words in str(run.error), run.error
        case Completes(check):
            assert run is None or run.status == "COMPLETED", run.error
            checked = answer if run is None else run.outputs
            assert check(checked), str(checked)[:1000]
        case Ends(codes, may_complete):
            failed = None if run is None or run.status == "COMPLETED" else run.error
            assert may_complete if failed is None else failed["code"] in codes, failed or answer
        case Refused():
            pytest.fail(f"it was done: {answer if run is None else (run.status, run.error, str(run.outputs)[:500])}")


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


TRAPS = (
    *(
        "evilmod",
        "apsw",
        "msgspec",
        "yaml",
        "click",
        "rich",
        "json",
        "sitecustomize",
        "usercustomize",
        "tidemill",
        "jq",
    ),
    *("re2", "pydantic_monty", "httpx", "jinja2", "tomllib", "socket", "multiprocessing", "pickle", "asyncio", "tests"),
    *("trio", "sniffio", "brotli", "brotlicffi", "h2", "socksio"),
)
JQ = {"rows": [{"a": 1}], "pipeline": [{"step": "jq_transform", "program": "."}]}
DECIDED = {"type": "python_sandbox", "code": "def evaluate(output, context):\n    return True"}
FLOWS = {
    "v": {"id": "a", "type": "value", "config": 1},
    "shell": {"id": "a", "type": "shell", "config": {"argv": ["id"]}},
    "jq": {"id": "a", "type": "pipeline", "config": JQ},
    "fails": {"id": "a", "type": "fail", "config": {"message": "\x1b[2J\u202e"}, "retry": 1},
    "escape": {"id": "a", "type": "value", "config": "\x1b[2J\u202e\x9b"},
    "wrong": {"id": "\x1b[2J", "type": "\x1b[2J", "\x1b[2J": "\x1b[2J"},
    "sandbox": {"id": "a", "type": "value", "config": 1, "when": DECIDED},
}


def trapped(folder: Path, proof: Path) -> None:
    """Plant code that runs if a command looks for node types or modules among these files."""
    meta = folder / "evil-1.0.dist-info"
    meta.mkdir(parents=True)
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[tidemill.nodes]\nx = evilmod:H\n")
    for name in TRAPS:
        (folder / f"{name}.py").write_text(TRAP.format(str(proof)))
    (folder / "tidemill.toml").write_text("shell = true\n")


@pytest.mark.parametrize("row", COMMANDS, ids=[row.name for row in COMMANDS])
def test_commands(row: Command, tmp_path: Path) -> None:
    check_command(row, tmp_path)


def check_command(row: Command, tmp_path: Path) -> None:
    folder, safe, proof = tmp_path / "stranger", tmp_path / "safe", tmp_path / "proof"
    trapped(folder, proof)
    safe.mkdir()
    for place in (folder, safe):
        for name, flow in FLOWS.items():
            (place / f"{name}.yaml").write_text(json.dumps({"name": name, "nodes": [flow]}))
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
        # Only root can plant a link or a file for somebody else.
        os.lchown(shared / "store.db", 65_534, 65_534)
        (shared / "planted.db").touch(0o666)
        os.chown(shared / "planted.db", 65_534, 65_534)
        for name in ("store.db", "planted.db"):
            with pytest.raises(tidemill.Rejected), tidemill.open(f"sqlite:///{shared}/{name}"):
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


def entry(**more: Any) -> bytes:
    head = {"run": {"format": 1, "id": "one", "workflow": "v", "version": 1, "status": "COMPLETED", **more}}
    return json.dumps(head).encode() + b"\n"


HOSTILE_ENTRIES = {
    "empty": b"",
    "not JSON": b"\x00\xff\n" * 100,
    "deep": b"[" * 200_000 + b"]" * 200_000 + b"\n",
    "a deep head": b'{"run": ' * 20_000 + b"1" + b"}" * 20_000 + b"\n",
    "an id that is a path": entry(id="../../../../tmp/x"),
    "a workflow that is a path": entry(workflow="../../x"),
    "an id with an escape": entry(id="\x1b[2J"),
    "labels that are none": entry(labels=[[1]] * 1000),
    "a number of many digits": b'{"run": {"format": ' + b"9" * 100_000 + b"}}\n",
    "a blob that lies": entry() + json.dumps({"blob": "sha256:" + "0" * 64, "body": "AAAA"}).encode() + b"\n",
    "a blob with a path": entry() + json.dumps({"blob": "sha256:../../../etc/passwd"}).encode() + b"\n",
    "events that are none": entry() + b'{"event": {"type": "RunStarted"}, "record": "AAAA"}\n' * 3,
    "many lines": entry() + b"{}\n" * 500_000,
}


@pytest.mark.parametrize("name", HOSTILE_ENTRIES)
@pytest.mark.parametrize("command", [("list",), ("show", "one"), ("restore", "one")], ids=["list", "show", "restore"])
def test_archive_entries_of_a_stranger(name: str, command: tuple[str, ...], tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    with tidemill.open(store, work=False):
        pass
    file = tmp_path / "archive" / "runs" / "default" / "2026-01" / "v" / "one.1.1.jsonl.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.compress(HOSTILE_ENTRIES[name]))
    ended = process("archive", *command, "--store", store, "--archive", str(tmp_path / "archive"), memory_mb=2_500)
    assert ended.code in (0, 1, 2) and "Traceback" not in ended.said and "\x1b" not in ended.said, ended
    assert command != ("restore", "one") or ended.code != 0


def test_a_worker_in_a_folder_with_traps(tmp_path: Path) -> None:
    """Also the processes that it starts for functions, programs, conditions, long templates and commands."""
    folder, safe, proof = tmp_path / "stranger", tmp_path / "safe", tmp_path / "proof"
    trapped(folder, proof)
    safe.mkdir()
    store, config = f"sqlite:///{tmp_path}/store.db", safe / "granted.toml"
    config.write_text('shell = true\nimports = ["statistics"]\n')
    mean = {"function": "statistics:mean", "args": {"data": [1]}, "isolation": "process"}
    nodes = [
        {"id": "function", "type": "python", "config": mean},
        {"id": "program", "type": "pipeline", "config": JQ},
        {"id": "condition", "type": "value", "config": 1, "when": DECIDED},
        {"id": "template", "type": "value", "config": "{% for i in range(60000) %}{{ '' }}{% endfor %}1"},
        {"id": "command", "type": "shell", "config": {"argv": ["true"]}},
    ]
    (safe / "all.yaml").write_text(json.dumps({"name": "all", "nodes": nodes}))
    assert process("publish", str(safe / "all.yaml"), "--store", store, "--config", str(config), cwd=safe).code == 0
    assert process("start", "all", "--key", "one", "--store", store, cwd=safe).code == 0
    command = [str(Path(sys.executable).with_name("tidemill")), "worker", "--store", store, "--config", str(config)]
    with subprocess.Popen(command, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True) as worker:
        try:
            with tidemill.open(store, work=False) as mill:
                run = mill.result("one", timeout_s=RESULT_SECONDS)
        finally:
            worker.terminate()
        said = worker.communicate(timeout=RESULT_SECONDS)[1]
    assert run.status == "COMPLETED", run.error
    assert "tidemill.toml is ignored" in said
    assert not proof.exists(), "code of the folder ran"
