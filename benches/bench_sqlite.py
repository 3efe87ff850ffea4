"""The embedded engine on a SQLite file: W1 to W4 beside their floors, and how many bytes a node execution takes.

Engine and floor take turns, each on a fresh file, because the time of a sync varies from one minute to the next.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw

from benches import peers
from benches.figures import Figure, Note
from benches.tape import Recording, Tape, folder, play, sync_ms
from benches.workloads import CHAIN, FAN, MANY, PLACES, SINGLE, Workload
from tidemill.bootstrap import engine_at

ROUNDS, ROUNDS_MAX = 7, 28
QUIET = 1.1
"""A round counts as undisturbed when its floor took no longer than this times the quickest one: on a machine that is
shared, others slow down both, and the engine, which needs more of the processor's caches, more than its floor."""
RELAXED = "?durability=relaxed"

RATE_MUST, RATE_AIM = 8_000, 10_000
FLOOR_MUST, FLOOR_AIM = 32, 35
HOP_MUST_MS, HOP_FLOOR_MUST, HOP_RELAXED_MUST_MS = 1.0, 1.6, 0.2
FAN_MUST = 1.5
SINGLE_MUST_MS = 2.0
BYTES_AIM = 600


@dataclass(frozen=True, slots=True)
class Rounds:
    """Seconds of a workload, round by round, with those of its floor, before and after."""

    workload: Workload
    tape: Tape
    all: list[tuple[float, float]]

    @property
    def quiet(self) -> list[tuple[float, float]]:
        """The rounds that nobody disturbed."""
        best = min(floor for _, floor in self.all)
        return [each for each in self.all if each[1] <= QUIET * best]

    @property
    def seconds(self) -> float:
        return statistics.median(mine for mine, _ in self.quiet)

    @property
    def floor_seconds(self) -> float:
        return statistics.median(floor for _, floor in self.quiet)

    @property
    def times_floor(self) -> float:
        """Engine and floor of one round meet the same machine, so their ratio is taken round by round."""
        return statistics.median(mine / floor for mine, floor in self.quiet)

    def words(self) -> str:
        """How many rounds there were, in one line."""
        return f"{len(self.quiet)} of {len(self.all)} rounds were undisturbed, and count"


async def timed(workload: Workload, file: Path, options: str = "", tape_in: Path | None = None) -> tuple[float, Tape]:
    """Seconds of a workload on a new file. With a place for a tape, what is written is recorded."""
    async with engine_at(f"sqlite:///{file}{options}", concurrency=PLACES) as engine:
        await engine.publish(workload.document)
        # The first run compiles its workflow and gives names their numbers, which happens once in a store's life.
        await engine.result(await engine.start(workload.document["name"]))
        gc.collect()
        recording = None if tape_in is None else Recording(engine, tape_in)
        begun = time.perf_counter()
        await workload.play(engine)
        seconds = time.perf_counter() - begun
        tape = Tape(file, []) if recording is None else recording.stop()
    return seconds, tape


def on_file(workload: Workload, options: str = "") -> float:
    """Seconds of a workload."""
    with folder() as place:
        return asyncio.run(timed(workload, place / "runs.db", options))[0]


def undisturbed(workload: Workload, options: str) -> float:
    """Seconds of a workload without its floor: the median of those rounds that took hardly longer than the quickest."""
    took = [on_file(workload, options) for _ in range(2 * ROUNDS)]
    return statistics.median(each for each in took if each <= QUIET * min(took))


def rounds_of(workload: Workload, place: Path) -> Rounds:
    """A workload and its floor in turns; the recorded round also warms up the interpreter and does not count.

    The floor of a round is the mean of the one before it and the one after it.
    """
    _, tape = asyncio.run(timed(workload, place / "recorded.db", tape_in=place))
    found, before = Rounds(workload, tape, []), play(tape, place)
    while len(found.all) < ROUNDS_MAX and (len(found.all) < ROUNDS or len(found.quiet) < ROUNDS):
        mine, after = on_file(workload), play(tape, place)
        found.all.append((mine, (before + after) / 2))
        before = after
    return found


def against_floor(workload: Workload) -> Rounds:
    """The same in a folder of its own."""
    with folder() as place:
        return rounds_of(workload, place)


def bytes_per_node(workload: Workload) -> float:
    """Bytes of the file and its log behind one node execution, after the log was moved."""
    with folder() as place:
        file = place / "runs.db"
        asyncio.run(timed(workload, file))
        connection = apsw.Connection(str(file))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        size = sum(
            each.stat().st_size for each in place.iterdir() if each.name.startswith("runs.db") and each.is_file()
        )
    return size / workload.nodes


def figures() -> Iterator[Figure | Note]:
    """Measure."""
    with folder() as place:
        yield Figure("the disk: one sync behind 8 KiB", sync_ms(place), "ms")
    many = against_floor(MANY)
    rate = MANY.nodes / many.seconds
    yield Figure(MANY.name, rate, "nodes/s", RATE_MUST, RATE_AIM, at_most=False)
    yield Figure("W3 of its floor", 100 / many.times_floor, "%", FLOOR_MUST, FLOOR_AIM, at_most=False)
    yield Figure("W3, the floor", MANY.nodes / many.floor_seconds, "nodes/s")
    yield Note(f"W3: {many.words()}; it writes {many.tape.words()}")
    relaxed = undisturbed(MANY, RELAXED)
    yield Figure("W3, relaxed", MANY.nodes / relaxed, "nodes/s")
    yield from peers.MANY_RUNS
    hop = against_floor(CHAIN)
    hop_ms = hop.seconds / CHAIN.nodes * 1000
    yield Figure(f"{CHAIN.name}, one hop", hop_ms, "ms", HOP_MUST_MS)
    yield Figure("W1, times its floor", hop.times_floor, "×", HOP_FLOOR_MUST)
    yield Figure("W1, the floor of a hop", hop.floor_seconds / CHAIN.nodes * 1000, "ms")
    yield Note(f"W1: {hop.words()}; it writes {hop.tape.words()}")
    relaxed = undisturbed(CHAIN, RELAXED)
    yield Figure("W1, one hop, relaxed", relaxed / CHAIN.nodes * 1000, "ms", HOP_RELAXED_MUST_MS)
    yield from peers.HOP
    wide = against_floor(FAN)
    yield Figure(f"{FAN.name}, a node of it / a node of W3", wide.seconds / FAN.nodes * rate, "×", FAN_MUST)
    yield Figure("W2", FAN.nodes / wide.seconds, "nodes/s")
    yield Figure("W2, times its floor", wide.times_floor, "×")
    yield Note(f"W2: {wide.words()}; it writes {wide.tape.words()}")
    single = against_floor(SINGLE)
    yield Figure(SINGLE.name, single.seconds / SINGLE.runs * 1000, "ms/run", SINGLE_MUST_MS)
    yield Figure("W4, times its floor", single.times_floor, "×")
    yield Note(f"W4: {single.words()}; it writes {single.tape.words()}")
    yield Figure("W3, file and log per node execution", bytes_per_node(MANY), "B", aim=BYTES_AIM)
    yield peers.beside_paper(MANY.runs / many.seconds * 60, hop_ms)
