"""One bit flips on the disk: nobody is ever given something wrong, and whoever is not concerned goes on."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.durability.harness import (
    ENDS,
    FRAME,
    STORY,
    TENANT,
    WAL_HEADER,
    begin,
    copied,
    examined,
    finish,
    mill,
    sql,
    wal_of,
)
from tests.durability.test_wal_cut import lost, recorded
from tidemill.engine.engine import Engine
from tidemill.engine.index_rows import RUN, RunRow
from tidemill.errors import Problem, Rejected, TidemillError
from tidemill.stores.contract import Stream

PAGE = 4096
PER_PAGE = 10
PARTS_TRIED = 2
LIVELY_EVERY = 16
"""Of so many flips in a page one is also worked with."""

MANY: dict[str, Any] = {
    "name": "many",
    "nodes": [
        {
            "id": "each",
            "type": "python",
            "map": {"over": "{{ inputs.list }}"},
            "config": {"function": "double", "args": {"n": "{{ item }}"}},
        }
    ],
}


class Whole(NamedTuple):
    """A file as it should be, and what is in it."""

    path: Path
    content: bytes
    records: dict[Stream, tuple[bytes, ...]]
    rows: dict[str, RunRow]


async def whole(folder: Path) -> Whole:
    """Runs that have ended and runs that have not, all moved from the log into the file."""
    path = folder / "a.db"
    async with mill(path) as engine:
        runs = await begin(engine)
        assert await finish(engine, runs) == ENDS
        await engine.publish(MANY)
        await engine.start("many", {"list": list(range(300))}, key="run-many")
        await engine.result("run-many", timeout_s=30)
    async with mill(path, work=False) as engine:
        for document in STORY:
            await engine.start(document["name"], key=f"run-{document['name']}-2")
        streams = await engine._store.streams(RUN)
        tails = await engine._store.load(dict.fromkeys(streams, 0), snapshots=False)
        rows, _ = await engine.find(limit=100)
    assert not wal_of(path).exists()
    assert sql(path, "SELECT count(*) FROM snapshots")[0][0]
    return Whole(
        path, path.read_bytes(), {tail.stream: tail.records for tail in tails}, {row.run_id: row for row in rows}
    )


def flipped(file: Whole, folder: Path, offset: int, bit: int) -> Path:
    content = bytearray(file.content)
    content[offset] ^= 1 << bit
    for leftover in folder.glob("flip.db*"):
        leftover.unlink() if leftover.is_file() else leftover.rmdir()
    path = folder / "flip.db"
    path.write_bytes(content)
    return path


async def outcome(file: Whole, path: Path) -> str:
    """What reading everything comes to. Anything but what was written, or a refusal, fails the test."""
    try:
        async with mill(path, work=False) as engine:
            return await read_all(file, engine)
    except TidemillError as refused:
        said = str(refused)
    assert len(said.splitlines()) == 1
    return "refused at once"


async def read_all(file: Whole, engine: Engine) -> str:
    found = set()
    for stream, records in file.records.items():
        found.add(await read_run(engine, stream, records))
    try:
        rows, _ = await engine.find(limit=100)
    except TidemillError:
        found.add("lists refused")
    else:
        assert all(file.rows.get(row.run_id) == row for row in rows), "a list shows what is not so"
        found.add("fine" if len(rows) == len(file.rows) else "left out of lists")
    verdict = None
    try:
        verdict = await engine.verify_log()
    except TidemillError:
        found.add("audit refused")
    if verdict is not None and verdict.findings:
        found.add("found by the audit")
    troubles = found - {"fine"}
    return "harmless" if not troubles else "; ".join(sorted(troubles))


async def read_run(engine: Engine, stream: Stream, records: tuple[bytes, ...]) -> str:
    try:
        (tail,) = await engine._store.load({stream: 0}, snapshots=False)
        if not tail.damage and tail.version:
            assert tail.records == records, "a run reads back other than it was written"
        view = await engine.show(stream.key)
    except Rejected as refused:
        return told(stream, refused.problems[0])
    except TidemillError:
        return "run unavailable"
    assert view.status == ("COMPLETED" if not stream.key.endswith("-2") else view.status)
    return "fine"


def told(stream: Stream, problem: Problem) -> str:
    assert stream.key in problem.message or "damaged" in problem.message
    return "run missing" if problem.code == "run_unknown" else f"run refused [{problem.code}]"


def bodies(file: Whole, table: str, column: str = "body") -> list[tuple[int, int]]:
    """Offset and length of every body of a table, as far as it is in one piece in the file."""
    found = []
    for (body,) in sql(file.path, f"SELECT {column} FROM {table}"):
        at = file.content.find(body[:200])
        if len(body) >= 8 and at >= 0 and file.content.count(body[:200]) == 1:
            found.append((at, min(len(body), 200)))
    return found


def pages(file: Whole) -> list[tuple[int, str]]:
    """Every page with what it is."""
    rows = sql(file.path, "SELECT pageno, name || ' ' || pagetype FROM dbstat")
    known = dict(rows)
    return [(number, known.get(number, "free")) for number in range(1, len(file.content) // PAGE + 1)]


async def test_a_bit_of_every_record(quick_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, rng = await whole(quick_path), random.Random(1)
    tally: Counter[str] = Counter()
    places = bodies(file, "records")
    assert len(places) > 20
    for offset, length in places[:: max(1, len(places) // 120)]:
        tally[await outcome(file, flipped(file, quick_path, offset + rng.randrange(length), rng.randrange(8)))] += 1
    print(tally)
    assert "harmless" not in tally, "a flipped bit in a record went unnoticed"
    assert any("event_unreadable" in kind for kind in tally)


async def test_a_damaged_run_leaves_the_others_alone(quick_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = await whole(quick_path)
    victim = Stream(TENANT, RUN, "run-chain-2")
    ((number,),) = sql(file.path, "SELECT id FROM streams WHERE key = ?", (victim.key,))
    ((body,),) = sql(file.path, "SELECT body FROM records WHERE stream = ? ORDER BY version LIMIT 1", (number,))
    path = flipped(file, quick_path, file.content.find(body) + len(body) // 2, 3)
    async with mill(path, audit_every_ms=100) as engine:
        ends = await finish(engine, ["run-fan-2", "run-flaky-2", "run-asking-2"])
        assert {run.removesuffix("-2"): end for run, end in ends.items()} == {
            run: end for run, end in ENDS.items() if run != "run-chain"
        }
        with pytest.raises(Rejected, match="run-chain-2") as refused:
            await engine.show("run-chain-2")
        assert refused.value.problems[0].code == "event_unreadable"
        assert refused.value.problems[0].hint
        await asyncio.sleep(1.5)
        assert engine.worker is not None
        assert engine.worker.finished < 200, "the damaged run is tried over and over"
    assert "Traceback" not in caplog.text


async def test_a_bit_of_every_snapshot_and_row(quick_path: Path) -> None:
    file, rng = await whole(quick_path), random.Random(2)
    noticed = {"left out of lists", "found by the audit", "found by the audit; left out of lists"}
    # A row of a workflow or a worker is in none of the lists that are compared here.
    for table, expected in (("snapshots", {"harmless"}), ("rows", {"harmless", *noticed})):
        places, said = bodies(file, table), set()
        assert places
        for offset, length in places:
            path = flipped(file, quick_path, offset + rng.randrange(length), rng.randrange(8))
            said.add(await outcome(file, path))
        assert said <= expected
    assert said & noticed
    async with mill(path, work=False) as engine:
        await engine.reindex()
    assert await outcome(file, path) == "harmless", "a reindex does not write a damaged row again"


async def test_a_bit_of_every_job(quick_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged job does nothing that nobody asked for: it is dropped, and the keeper puts it back."""
    file, rng = await whole(quick_path), random.Random(3)
    jobs, dropped = bodies(file, "jobs"), 0
    assert len(jobs) >= 3
    for offset, length in jobs:
        caplog.clear()
        path = flipped(file, quick_path, offset + rng.randrange(length), rng.randrange(8))
        async with mill(path, audit_every_ms=50) as engine:
            ends = await finish(engine, [f"{run}-2" for run in ENDS])
        assert {run.removesuffix("-2"): end for run, end in ends.items()} == ENDS
        dropped += "damaged jobs were dropped" in caplog.text
        await examined(path)
    # Up to seven maintenance tasks are not due yet.
    assert dropped >= len(jobs) - 7


@pytest.mark.parametrize("part", range(PARTS_TRIED))
async def test_bits_of_pages(quick_path: Path, caplog: pytest.LogCaptureFixture, part: int) -> None:
    """Every fourth page in each part; `PARTS_TRIED = 4` tries them all."""
    file, rng = await whole(quick_path), random.Random(part)
    tally: dict[str, Counter[str]] = {}
    kinds = pages(file)
    assert {"internal", "leaf", "overflow"} <= {kind.split()[-1] for _, kind in kinds}
    number_of_flips = 0
    for number, kind in kinds[part::4]:
        for offset, bit in flips(file, number, kind, rng):
            number_of_flips += 1
            lively = number_of_flips % LIVELY_EVERY == 0
            try:
                said = await judged(
                    file, quick_path, offset, bit, caplog, lively=lively, of_a_list=kind.startswith("terms")
                )
            except BaseException as error:
                error.add_note(f"bit {bit} of byte {offset % PAGE} of page {number} ({kind})")
                raise
            tally.setdefault(kind, Counter())[said] += 1
    for kind, counts in sorted(tally.items()):
        print(kind, dict(counts))


async def judged(
    file: Whole,
    folder: Path,
    offset: int,
    bit: int,
    caplog: pytest.LogCaptureFixture,
    *,
    lively: bool,
    of_a_list: bool = False,
) -> str:
    """What a flipped bit comes to, in words.

    An entry of a list may be damaged in a way that nobody sees: the row is left out of that list, and nothing else.
    """
    caplog.clear()
    path = flipped(file, folder, offset, bit)
    said = await outcome(file, path)
    if "run missing" in said or "left out" in said:
        noticed = "damaged" in caplog.text or "found by the audit" in said
        only_left_out = of_a_list and "run missing" not in said
        assert noticed or only_left_out or not intact(path), "something is gone, and nothing says so"
    if lively and said != "refused at once":
        await carried_on(flipped(file, folder, offset, bit))
    return said


def flips(file: Whole, number: int, kind: str, rng: random.Random) -> list[tuple[int, int]]:
    """Bits of a page, half of them where it says where everything else is. The pages of long values are all alike."""
    start = (number - 1) * PAGE
    content = file.content[start : start + PAGE]
    used = [at for at, byte in enumerate(content) if byte] or [0]
    many = PER_PAGE if not kind.endswith(("overflow", "free")) else number % 8 == 0
    heads = [rng.randrange(100) for _ in range(many // 2)]
    return [(start + at, rng.randrange(8)) for at in (*heads, *rng.choices(used, k=many - many // 2))]


def intact(path: Path) -> bool:
    try:
        return bool(sql(path, "PRAGMA integrity_check") == [("ok",)])
    except Exception:
        return False


async def carried_on(path: Path) -> None:
    """Work with a damaged file: whatever a run comes to is what it should come to."""
    try:
        async with mill(path, audit_every_ms=100) as engine:
            for run, end in ENDS.items():
                try:
                    view = await engine.result(f"{run}-2", timeout_s=0.3)
                except (TidemillError, TimeoutError):
                    continue
                assert (view.status, view.outputs) == end
    except TidemillError:
        # Refused as a whole, which is what the reader was told, too.
        return


async def test_a_bit_of_every_frame_of_the_log(tmp_path: Path, quick_path: Path) -> None:
    """The log has checksums: it ends before the frame that is damaged."""
    path, witness = await recorded(tmp_path)
    frames, rng = (wal_of(path).stat().st_size - WAL_HEADER) // FRAME, random.Random(5)
    for number in range(0, frames, 2):
        target = copied(path, quick_path / "log")
        start = WAL_HEADER + number * FRAME
        content = bytearray(wal_of(target).read_bytes())
        content[start + rng.randrange(FRAME)] ^= 1 << rng.randrange(8)
        wal_of(target).write_bytes(content)
        found = await examined(target)
        assert not lost(witness.acked, found, start)
        for leftover in (quick_path / "log").glob("*"):
            leftover.unlink()


@pytest.mark.parametrize("column", ["streams", "places", "tokens", "seal"])
async def test_a_counter_never_falls_back(quick_path: Path, column: str) -> None:
    """A fence token that is given out twice would let a stale worker in, so a damaged counter stops all writing."""
    file = await whole(quick_path)
    sql(file.path, f"UPDATE counters SET {column} = {column} - 1")
    async with mill(file.path, work=False) as engine:
        with pytest.raises(Rejected, match="the counters do not match") as refused:
            await engine.start("chain")
        assert refused.value.problems[0].code == "store_damaged"
        assert (await engine.show("run-chain")).status == "COMPLETED"
