"""`tidemill blobs`: bytes in, bytes out, what is there, and what is collected."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures.cli_store import CliStore
from tests.fixtures.command_line import COMMAND, SECONDS_MAX, environment, on_terminal, process
from tidemill.blobs.contract import digest_of
from tidemill.cli import main
from tidemill.cli.render.tables import file_words, size_of

BYTES = bytes(range(256)) * 300


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "sunset.png"
    path.write_bytes(BYTES)
    return path


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


def test_bytes_pass_through_pipes_unchanged(url: str) -> None:
    bounded: dict[str, Any] = {"env": environment(), "timeout": SECONDS_MAX, "check": True}
    put = subprocess.run([*COMMAND, "blobs", "put", "-", "--store", url], input=BYTES, capture_output=True, **bounded)
    assert put.stdout.decode().strip() == digest_of(BYTES)
    for output in ((), ("-o", "-")):
        got = subprocess.run(
            [*COMMAND, "blobs", "get", digest_of(BYTES), *output, "--store", url],
            capture_output=True,
            **bounded,
        )
        assert got.stdout == BYTES


def test_bytes_are_not_written_to_a_terminal(url: str, picture: Path) -> None:
    assert process("blobs", "put", str(picture), "--store", url).code == main.OK
    code, written = on_terminal("blobs", "get", digest_of(BYTES), "--store", url)
    assert code == main.REFUSED
    assert "bytes are not written to a terminal" in written
    assert "-o -" in written


def test_a_written_file_is_like_any_other(cli_store: CliStore, picture: Path, tmp_path: Path) -> None:
    cli_store.fine("blobs", "put", str(picture))
    out = tmp_path / "out.bin"
    out.write_bytes(b"before")
    mask = os.umask(0o022)
    try:
        cli_store.fine("blobs", "get", digest_of(BYTES), "-o", str(out))
    finally:
        os.umask(mask)
    assert stat.S_IMODE(out.stat().st_mode) == 0o644
    assert out.read_bytes() == BYTES


def test_a_list_has_pages(cli_store: CliStore) -> None:
    digests = sorted(cli_store.mill.put_blob(b"%d" % number)["$blob"] for number in range(5))
    found, cursor = list[str](), None
    while True:
        page = cli_store.json("blobs", "list", "--limit", "2", *(("--after", cursor) if cursor else ()))
        found += [row["digest"] for row in page["blobs"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert [digest for digest in found if digest in digests] == digests
    assert cli_store.json("blobs", "list", "--state", "grace")["blobs"] == []
    assert cli_store.fine("blobs", "list", "--state", "grace") == "no blobs\n"
    text = cli_store.fine("blobs", "list", "--limit", "2")
    assert "--after sha256:" in text
    assert "active" in text


def test_a_collection_tells_what_it_did(cli_store: CliStore, picture: Path) -> None:
    cli_store.fine("blobs", "put", str(picture))
    told = cli_store.json("blobs", "gc", "--dry-run")
    assert (told["young"] >= 1, told["retired"], told["dry_run"]) == (True, 0, True)
    assert "stored within the last hour" in cli_store.fine("blobs", "gc")
    engine: Any = cli_store.mill._engine
    for place, (state, _) in engine._blobs._states.items():
        engine._blobs._states[place] = (state, 1)
    told = cli_store.json("blobs", "gc", "--dry-run")
    assert told["retired"] == 1
    assert "1 would be marked for deletion" in cli_store.fine("blobs", "gc", "--dry-run")
    assert "1 marked for deletion" in cli_store.fine("blobs", "gc")
    assert [row["digest"] for row in cli_store.json("blobs", "list", "--state", "grace")["blobs"]] == [digest_of(BYTES)]
    assert "1 still within their grace period" in cli_store.fine("blobs", "gc", "--grace", "1")
    engine._blobs._states["default", digest_of(BYTES)] = ("grace", 1)
    assert f"1 deleted, {size_of(len(BYTES))}" in cli_store.fine("blobs", "gc")
    (problem,) = cli_store.refused("blobs", "show", digest_of(BYTES))
    assert problem["code"] == "blob_unknown"


def test_a_run_shows_its_files_readably(url: str) -> None:
    def draw() -> Any:
        return tidemill.Blob(BYTES, "image/png", "sunset.png")

    flow = {"name": "draw", "nodes": [{"id": "draw", "type": "python", "config": {"function": "draw"}}]}
    with tidemill.open(url, functions={"draw": draw}) as mill:
        run = mill.run(flow, timeout_s=20)
    shown = process("runs", "show", run.run_id, "--store", url)
    assert shown.code == main.OK, shown
    assert "sunset.png (image/png, 75.0 KiB)" in shown.out, shown.out
    got = process("blobs", "show", run.outputs["draw"]["$blob"], "--store", url)
    assert got.code == main.OK


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 1024**3, "5.0 GiB"), (1024**6, "1048576.0 TiB")],
)
def test_sizes_are_readable(count: int, words: str) -> None:
    assert size_of(count) == words


@pytest.mark.parametrize(
    ("described", "words"),
    [
        ({"$blob": "sha256:1", "size": 3, "media_type": "a/b", "name": "x"}, "x (a/b, 3 B)"),
        ({"$blob": "sha256:1", "size": 3, "media_type": "a/b", "name": ""}, "sha256:1 (a/b, 3 B)"),
        ({"$blob": "sha256:1", "size": "?"}, "sha256:1 ()"),
    ],
)
def test_descriptions_are_readable_whatever_they_hold(described: dict[str, Any], words: str) -> None:
    assert file_words(described) == words


def test_what_needs_no_blob_works_while_their_place_is_away(url: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    store = f"{url}?blobs=dir:///{place}"
    with tidemill.open(store) as mill:
        run = mill.run({"name": "small", "nodes": [{"id": "x", "type": "value", "config": 1}]})
    place.rename(tmp_path / "away")
    place.write_bytes(b"in the way")
    for command in (["runs", "list"], ["runs", "events", run.run_id]):
        ended = process(*command, "--store", store)
        assert (ended.code, ended.err.count("\n")) == (main.OK, 1)
        assert "small" in ended.out
        assert "cannot be reached: Not a directory" in ended.err
    assert process("blobs", "list", "--store", store).code == main.FAILED
    place.unlink()
    (tmp_path / "away").rename(place)
    assert process("runs", "show", run.run_id, "--store", store).code == main.OK
