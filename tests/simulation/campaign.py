"""Many seeds: in chunks, over several processes, with totals that show what really happened in them."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation.world import live

SEEDS_FILE = Path(__file__).parent / "seeds.txt"
REPLAY = "make sim SEED={seed}"


@dataclass
class Tally:
    """What a set of seeds came to."""

    seeds: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    behaved: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Take another tally in."""
        self.seeds += other.seeds
        self.fired += other.fired
        self.events += other.events
        self.behaved += other.behaved
        self.failures |= other.failures

    def to_json(self) -> str:
        """For the progress file."""
        return json.dumps(
            {
                "seeds": self.seeds,
                "fired": self.fired,
                "events": self.events,
                "behaved": self.behaved,
                "failures": self.failures,
            }
        )

    @staticmethod
    def from_json(text: str) -> Tally:
        """Read a progress file."""
        raw = json.loads(text)
        return Tally(
            raw["seeds"],
            Counter(raw["fired"]),
            Counter(raw["events"]),
            Counter(raw["behaved"]),
            {int(seed): why for seed, why in raw["failures"].items()},
        )


def play(seeds: Iterable[int]) -> Tally:
    """Live through seeds one after another; a failing one does not stop the rest."""
    tally = Tally()
    for seed in seeds:
        tally.seeds += 1
        try:
            with warnings.catch_warnings():
                # A killed process leaves coroutines that were never started: that is what being killed means.
                warnings.simplefilter("ignore", RuntimeWarning)
                world = live(seed)
        except Exception as error:
            tally.failures[seed] = f"{type(error).__name__}: {error}"
            continue
        tally.fired += world.fired
        tally.events += world.events
        tally.behaved += world.behaved
    return tally


def play_range(bounds: tuple[int, int]) -> Tally:
    """One chunk, for a process pool."""
    return play(range(*bounds))


def kept_seeds() -> list[int]:
    """Seeds that failed once: they are played for ever."""
    lines = SEEDS_FILE.read_text().splitlines() if SEEDS_FILE.exists() else []
    return [int(line.split("#")[0]) for line in lines if line.split("#")[0].strip()]


def keep(seed: int, why: str) -> None:
    """Add a failing seed to the file, once."""
    if seed not in kept_seeds():
        with SEEDS_FILE.open("a") as file:
            file.write(f"{seed}  # {why[:160]}\n")
