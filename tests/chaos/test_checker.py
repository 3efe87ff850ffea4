"""The judge is worth something: it finds every kind of broken promise in files that were tampered with."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.chaos.campaign import live
from tests.chaos.chaos_run import ChaosRun, Disturbance
from tests.chaos.checker import check
from tests.chaos.effects import Entry, read_ledger
from tests.chaos.stores import SERVED
from tidemill.kernel.jobs import JobBody
from tidemill.stores.contract import Commit, Job, Row, Store, Stream
from tidemill.stores.sqlite.store import SqliteStore

DISTURBANCE = Disturbance(seed=11, runs=60, seconds=0.5, kills=0, stops=0, workers=1, pause_s=(0.05, 0.05))
LEFT = msgspec.msgpack.encode(JobBody("run", "a", 1, -1))


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder after a storm in which nothing happened."""
    folder = tmp_path_factory.mktemp("calm")
    ChaosRun(DISTURBANCE, folder).rage()
    return folder


@pytest.fixture
def folder(calm: Path, tmp_path: Path) -> Path:
    return shutil.copytree(calm, tmp_path / "copy")


def complaints(folder: Path) -> list[str]:
    return check(ChaosRun(DISTURBANCE, folder)).complaints


def rewrite(folder: Path, entries: list[Entry]) -> None:
    (folder / "effects.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_nothing_is_wrong_with_a_calm_day(folder: Path) -> None:
    finding = check(ChaosRun(DISTURBANCE, folder))
    assert finding.complaints == []
    assert finding.seen["runs"] >= 60 and finding.seen["effects done"] > 100
    assert not finding.seen["attempts lost with their worker"]


@pytest.mark.parametrize("store", SERVED)
def test_nor_is_it_on_a_server(store: str, tmp_path: Path) -> None:
    chaos_run = live(replace(DISTURBANCE, store=store), tmp_path / "kept")
    assert (chaos_run.disturbance.store, chaos_run.kills) == (store, 0), "it was no calm day"
    assert not (tmp_path / "kept").exists(), "files are kept of what broke"


def repeated(entries: list[Entry], key: str) -> list[Entry]:
    return [*entries, next(entry for entry in entries if entry.key == key)._replace(nonce="another")]


def left_out(entries: list[Entry], key: str) -> list[Entry]:
    return [entry for entry in entries if entry.key != key]


def of_another_call(entries: list[Entry], key: str) -> list[Entry]:
    return [entry._replace(nonce="x") if entry.key == key else entry for entry in entries]


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("chain-", repeated, "was called 2 times, the log admits to 1 attempts"),
        ("/pay/", repeated, "at most once was promised"),
        ("", left_out, "counts as done, and nobody did it"),
        ("chain-", of_another_call, "comes from no call"),
        ("/undo", left_out, "{key} counts as done"),
    ],
)
def test_effects_that_the_log_says_something_else_of(
    folder: Path, part: str, change: Callable[[list[Entry], str], list[Entry]], words: str
) -> None:
    entries = read_ledger(folder / "effects.jsonl")
    key = next(entry.key for entry in entries if part in entry.key)
    rewrite(folder, change(entries, key))
    found = complaints(folder)
    assert any(words.format(key=key) in complaint for complaint in found)
    assert len(found) == 1 or (part, change) != ("chain-", repeated), "others are blamed too"


@pytest.mark.parametrize("act", ["decide", "signal", "cancel"])
def test_an_act_without_which_a_run_cannot_end(folder: Path, act: str) -> None:
    acks = (folder / "acks.txt").read_text().splitlines()
    key = next(line.split()[1] for line in acks if line.startswith(act))
    (folder / "acks.txt").write_text("".join(f"{line}\n" for line in acks if line != f"{act} {key}"))
    assert complaints(folder) == [f"{key}: it ended without the {act} that it needs"]


@pytest.mark.parametrize(
    ("act", "kind", "words"),
    [
        ("cancel", "chain", "a cancel was acknowledged, and the run is COMPLETED"),
        ("signal", "chain", "a signal was acknowledged, the log has []"),
        ("decide", "chain", "was acknowledged, the log has []"),
    ],
)
def test_an_acknowledged_act_that_is_lost(folder: Path, act: str, kind: str, words: str) -> None:
    acks = (folder / "acks.txt").read_text()
    key = next(line.split()[1] for line in acks.splitlines() if line.startswith(f"start {kind}"))
    (folder / "acks.txt").write_text(f"{acks}{act} {key}\n")
    (complaint,) = complaints(folder)
    assert complaint.startswith(key) and words in complaint


async def tamper(folder: Path, change: Callable[[Store], Awaitable[object]]) -> None:
    store = SqliteStore(folder / "chaos.db")
    await store.open()
    await change(store)
    await store.close()


def started(folder: Path, kind: str) -> Stream:
    lines = (folder / "acks.txt").read_text().splitlines()
    return Stream("default", "run", next(line.split()[1] for line in lines if line.startswith(f"start {kind}")))


def test_an_acknowledged_run_that_is_lost(folder: Path) -> None:
    run = started(folder, "nap")
    asyncio.run(tamper(folder, lambda store: store.forget(run)))
    assert f"log: {run.key} was acknowledged and is not there" in complaints(folder)


def test_a_run_that_the_lists_do_not_show(folder: Path) -> None:
    run = started(folder, "chain")
    gone = Commit(stream=run, expected=None, rows=(Row(kind="run", key=run.key, sort=0, deleted=True),))
    asyncio.run(tamper(folder, lambda store: store.commit([gone])))
    (complaint,) = complaints(folder)
    assert complaint.startswith(f"verify-log: {run.key}: row_missing")


def test_a_job_that_is_left_behind(folder: Path) -> None:
    run = started(folder, "chain")
    left = Commit(stream=run, expected=None, jobs=(Job(key="run/a/1/-1", queue="default", body=LEFT),))
    asyncio.run(tamper(folder, lambda store: store.commit([left])))
    assert any("jobs at the end: ['run/a/1/-1']" in complaint for complaint in complaints(folder))


def test_a_word_on_standard_error(folder: Path) -> None:
    (folder / "worker-0001.err").write_text("apsw.BusyError: database is locked\n")
    assert complaints(folder) == ["stderr: worker-0001 wrote apsw.BusyError: database is locked\n"]
