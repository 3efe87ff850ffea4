"""Commands with --server: the same answers as beside the store, and what only a store can answer."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import NamedTuple

import pytest

import tidemill
from tests.fixtures.api_server import api_thread, sqlite_url
from tests.fixtures.command_line import Ended, InProcessCli, eventually, running
from tidemill.api.auth import Access

FAULTY = "name: faulty\nnodes: [{id: a, type: fail, config: {message: no luck}, retry: {max_attempts: 1}}]\n"
ASKS = """
name: asks
nodes:
  - {id: a, type: value, config: 1, dependents: [may]}
  - {id: may, type: human, config: {title: May we?}, dependents: [then]}
  - {id: then, type: value, config: done}
"""


class Place(NamedTuple):
    cli: InProcessCli
    store: str
    url: str
    folder: Path

    def __call__(self, *arguments: str) -> Ended:
        return self.cli(*arguments, "--server", self.url)

    def beside(self, *arguments: str) -> Ended:
        return self.cli(*arguments, "--store", self.store)

    def file(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return str(self.folder / name)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcessCli:
    for name in ("TIDEMILL_STORE", "TIDEMILL_SERVER", "TIDEMILL_KEY"):
        monkeypatch.delenv(name, raising=False)
    return InProcessCli(capsys)


@pytest.fixture
def place(tmp_path: Path, cli: InProcessCli) -> Iterator[Place]:
    store = sqlite_url(tmp_path)
    with api_thread(store) as url:
        yield Place(cli, store, url, tmp_path)


def _ok(ended: Ended) -> Ended:
    assert ended.code == 0, ended
    return ended


def test_a_life_of_runs_by_commands(place: Place) -> None:
    _ok(place("publish", place.file("faulty.yaml", FAULTY), "-m", "first"))
    _ok(place("publish", place.file("asks.yaml", ASKS)))
    asks, faulty = (_ok(place("start", name)).out.strip() for name in ("asks", "faulty"))
    eventually(lambda: "May we?" in place("approvals", "list").out, "the approval is asked for")
    why = _ok(place("why", asks)).out
    assert f"approvals decide {asks} may approve --server {place.url}" in " ".join(why.split())
    assert "--store" not in why
    assert "approved by user:local" in _ok(place("approvals", "decide", asks, "may", "approve")).out
    assert "completed" in _ok(place("watch", asks)).out
    assert place("watch", faulty).code == 1
    patch = place.file("patch.json", json.dumps([{"op": "replace", "path": "/nodes/a/type", "value": "value"}]))
    _ok(place("runs", "patch", faulty, patch, "--retry"))
    _ok(place("watch", faulty))
    fork = _ok(place("runs", "fork", faulty, "--node", "a")).out.strip()
    eventually(lambda: place("runs", "show", fork, "--json").json["status"] == "COMPLETED", "the fork has ended")
    _ok(place("runs", "compare", faulty, fork))
    _ok(place("runs", "graph", asks))
    _ok(place("runs", "logs", asks))
    assert _ok(place("runs", "summary", "--json")).json["counted"] == 3

    for words in (
        ("runs", "list"),
        ("runs", "count"),
        ("runs", "show", asks),
        ("runs", "show", "@last"),
        ("runs", "events", faulty),
        ("runs", "path", faulty),
        ("runs", "document", faulty),
        ("runs", "failures"),
        ("why", faulty),
        ("approvals", "list", "--status", "all"),
        ("approvals", "show", asks, "may"),
        ("dlq", "list", "--status", "all"),
        ("workflows", "list"),
        ("workflows", "versions", "faulty"),
        ("workflows", "tags", "faulty"),
        ("workflows", "show", "faulty"),
        ("usage",),
        ("queues",),
        ("concurrency", "list"),
        ("schedules", "list"),
        ("blobs", "list"),
        ("audit", "list"),
        ("keys", "list"),
        ("tenants", "list"),
    ):
        there, here = place(*words, "--json"), place.beside(*words, "--json")
        assert (there.code, there.out) == (here.code, here.out), words
    assert place("export", "asks").out == place.beside("export", "asks").out


def test_run_publishes_starts_and_follows_on_the_server(place: Place) -> None:
    hello = "name: hello\nnodes: [{id: a, type: value, config: 'Hello {{ inputs.who }}'}]\n"
    ended = _ok(place("run", place.file("hello.yaml", hello), "-i", "who=you", "--quiet"))
    assert "Hello you" in ended.out
    assert "hello@1" in place.beside("runs", "list").out


@pytest.mark.parametrize(
    "words", [("worker",), ("serve",), ("migrate",), ("reindex",), ("verify-log",), ("doctor",), ("archive", "list")]
)
def test_what_needs_the_store_itself_says_so(cli: InProcessCli, words: tuple[str, ...]) -> None:
    ended = cli(*words, "--server", "http://127.0.0.1:9")
    assert ended.code == 2
    assert "needs the store itself, not a server: --store URL" in ended.err


def test_one_place_is_asked(cli: InProcessCli, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = cli("runs", "list", "--store", "sqlite:///x.db", "--server", "http://127.0.0.1:9")
    assert ended.code == 2 and "--store and --server are both set" in ended.err
    ended = cli("runs", "list", "--server", "127.0.0.1:9")
    assert ended.code == 2 and "is not the address of a server" in ended.err
    monkeypatch.setenv("TIDEMILL_SERVER", "http://127.0.0.1:9")
    ended = cli("runs", "list", "--store", "memory://")
    assert ended.code == 0, ended
    ended = cli("runs", "list", "--json")
    assert ended.code == 1
    assert ended.json["problems"][0]["code"] == "server_unavailable"
    monkeypatch.setenv("TIDEMILL_STORE", "memory://")
    ended = cli("runs", "list")
    assert ended.code == 2 and "TIDEMILL_STORE and TIDEMILL_SERVER are both set" in ended.err


def test_the_key_comes_from_a_file_or_the_environment(
    tmp_path: Path, cli: InProcessCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = sqlite_url(tmp_path)
    key = cli("keys", "create", "ci", "--role", "viewer", "--store", store, "--json").json["key"]
    (tmp_path / "key").write_text(f"{key}\n")
    with api_thread(store, access=Access) as url:
        assert "unauthenticated" in cli("runs", "list", "--server", url).err
        assert cli("runs", "list", "--server", url, "--key-file", str(tmp_path / "key")).code == 0
        assert "unauthenticated" in cli("runs", "list", "--server", url).err
        monkeypatch.setenv("TIDEMILL_KEY", key)
        assert cli("runs", "list", "--server", url).code == 0
        ended = cli("runs", "list", "--server", url, "--key-file", str(tmp_path / "nothing"))
        assert ended.code == 2 and "cannot be read" in ended.err
        (tmp_path / "more").write_text(f"{key}\n→ keep it\n")
        ended = cli("runs", "list", "--server", url, "--key-file", str(tmp_path / "more"))
        assert ended.code == 2 and "must contain one API key and nothing else" in ended.err
        assert "takes the tenant from the key" in cli("keys", "list", "--tenant", "acme", "--server", url).err


def test_a_client_that_takes_nothing_does_not_hold_up_the_end_of_a_server(tmp_path: Path) -> None:
    store, digest = sqlite_url(tmp_path), ""
    with tidemill.open(store, work=False) as mill:
        digest = mill.put_blob(bytes(20_000_000))["$blob"]
    command = ("serve", "--store", store, "--port", "0", "--grace", "0.5")
    with running(*command, stdout=PIPE, stderr=STDOUT, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"127\.0\.0\.1:([0-9]+)", server.stdout.readline())
        assert found is not None
        with socket.create_connection(("127.0.0.1", int(found[1])), timeout=30) as client:
            client.sendall(f"GET /api/v1/blobs/{digest} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert client.recv(15) == b"HTTP/1.1 200 OK"
            server.terminate()
            said, _ = server.communicate()
    assert "Traceback" not in said and "stopped" in said
    assert server.returncode == 0


WITHOUT = """
import sys
sys.modules["limits"] = None
from tidemill.errors import Rejected
try:
    import tidemill.api.app
except Rejected as refusal:
    print(refusal)
from tidemill.cli.main import call
call(["serve", "--demo", "--port", "0"])
"""


def test_without_the_extra_the_command_and_the_import_name_it() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=True)
    for said in (done.stdout, done.stderr):
        assert "the server needs limits, which is not installed [extra_missing]" in said
        assert 'pip install "tidemill[server]"' in said
