"""The log cut off anywhere: what was acknowledged before that place is there, and nothing is there by half."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.durability.harness import (
    ENDS,
    FRAME,
    STORY,
    WAL_HEADER,
    Acked,
    RecordingStore,
    begin,
    copied,
    engine_on,
    examined,
    finish,
    mill,
    wal_of,
)
from tidemill.stores.contract import Stream
from tidemill.stores.sqlite import writer

CARRIED_ON = 24
"""Cuts after which every run is carried to its end."""


async def recorded(folder: Path) -> tuple[Path, RecordingStore]:
    """A file after some runs, as it is while its process still has it open; and who saw what was acknowledged when."""
    store = RecordingStore(folder / "tidemill.db")
    engine = await engine_on(store).open()
    try:
        runs = await begin(engine)
        ends = await finish(engine, runs)
        assert ends == ENDS
        return copied(store.path, folder / "left"), store
    finally:
        await engine.close()


def cut(path: Path, folder: Path, size: int) -> Path:
    target = copied(path, folder)
    with wal_of(target).open("r+b") as log:
        log.truncate(size)
    for leftover in folder.glob("*-shm"):
        leftover.unlink()
    return target


def places(wal_bytes: int, rng: random.Random) -> list[int]:
    """Every boundary of a frame, and places inside of headers, frame headers and pages."""
    frames = (wal_bytes - WAL_HEADER) // FRAME
    assert (wal_bytes - WAL_HEADER) % FRAME == 0
    whole = [WAL_HEADER + FRAME * i for i in range(frames + 1)]
    torn = [rng.choice(whole[:-1]) + rng.choice((1, 12, 23, 24, 25, 2048, FRAME - 1)) for _ in range(frames // 8)]
    return [0, 7, WAL_HEADER - 1, *whole, *torn]


def lost(acked: list[Acked], found: dict[Stream, int], size: int) -> list[Acked]:
    return [each for each in acked if each.wal_bytes <= size and found.get(each.stream, 0) < each.version]


async def test_the_log_cut_at_every_frame(tmp_path: Path, quick_path: Path) -> None:
    path, witness = await recorded(tmp_path)
    acked = witness.acked
    wal_bytes, rng = wal_of(path).stat().st_size, random.Random(1)
    sizes = places(wal_bytes, rng)
    assert len(sizes) > 100
    seen = set()
    for number, size in enumerate(sizes):
        target = cut(path, quick_path / "cut", size)
        found = await examined(target)
        seen.add(tuple(sorted(found.items())))
        assert not lost(acked, found, size), f"cut at {size}"
        assert all(version in witness.asked[stream] for stream, version in found.items()), f"half a commit at {size}"
        if number % (len(sizes) // CARRIED_ON) == 0:
            async with mill(cut(path, quick_path / "on", size)) as engine:
                ends = await finish(engine)
                assert ends == {run: ENDS[run] for run in ends}
            await examined(quick_path / "on" / path.name)
        for leftover in (*(quick_path / "cut").glob("*"), *(quick_path / "on").glob("*")):
            leftover.unlink()
    assert len(seen) > 20, "the cuts did not fall between commits"


async def test_a_commit_that_was_not_acknowledged_would_be_noticed(tmp_path: Path, quick_path: Path) -> None:
    """The test above goes red when an acknowledgement comes before its commit is in the log."""
    path, witness = await recorded(tmp_path)
    acked = witness.acked
    early = [Acked(each.stream, each.version, each.wal_bytes - FRAME) for each in acked]
    size = early[-1].wal_bytes
    found = await examined(cut(path, quick_path / "cut", size))
    assert lost(early, found, size)


@pytest.mark.parametrize("document", STORY, ids=lambda document: str(document["name"]))
async def test_every_story_can_be_carried_on_from_nothing(tmp_path: Path, document: dict[str, object]) -> None:
    async with mill(tmp_path / "tidemill.db") as engine:
        (run,) = await begin(engine, [document])
        assert await finish(engine, [run]) == {run: ENDS[run]}
    # The run, its workflow, and the marker that blob references are complete.
    assert len(await examined(tmp_path / "tidemill.db")) == 3


async def test_a_log_that_was_made_long_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros behind the last frame, or the frames of an earlier round, are nothing to whoever reads the log."""
    monkeypatch.setattr(writer, "PREPARED_BYTES", 1 << 22)
    left, witness = await recorded(tmp_path)
    assert wal_of(left).stat().st_size >= writer.PREPARED_BYTES
    for name in left.parent.glob("*-shm"):
        name.unlink()
    store = RecordingStore(left)
    engine = await engine_on(store).open()
    try:
        for acked in witness.acked:
            (tail,) = await store.load({acked.stream: 0}, snapshots=False)
            assert (tail.damage, tail.version >= acked.version) == ("", True)
        assert not (await engine.verify_log()).findings
    finally:
        await engine.close()
