"""One storm from beginning to judgement: what fired is shown, and what broke is kept to be looked at."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from tests.chaos.chaos_run import Storm, Weather
from tests.chaos.checker import Finding, judge

KEPT = Path(".chaos")
"""Where the files of broken storms are kept."""

MUST_FIRE = (
    "a commit was in flight",
    "attempts lost with their worker",
    "late results discarded",
    "lost again while being recovered",
    "taken over from a killed process",
    "taken over from a stopped process",
    "SIGKILL client",
    "SIGKILL worker, all at once",
    "SIGKILL worker, recovering",
    "SIGTERM",
)
"""What a storm of full size must have led to, or it proves little."""
FULL_SIZE_KILLS = 40
MUST_FIRE_TOO = ("attempts lost with their worker", "the clock was set back", "the clock was set forward")
"""What one must have led to in which the clock jumps."""


class Broken(AssertionError):
    """A promise was broken; the words say which, and how to look at it."""


def live(weather: Weather, kept: Path = KEPT) -> Storm:
    """Live through a storm and judge it. Raises `Broken`, and keeps the files then."""
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{weather.seed}-"))
    storm, finding = Storm(weather, folder), Finding()
    try:
        storm.rage()
        finding = judge(storm)
        print(table(storm, finding))
        if finding.complaints:
            raise Broken("\n".join(finding.complaints[:40]))
        if unmet := [name for name in must_fire(weather) if not (storm.fired + finding.seen)[name]]:
            raise Broken(f"never fired: {', '.join(unmet)}")
    except Exception as error:
        place = kept / folder.name
        kept.mkdir(exist_ok=True)
        shutil.move(folder, place)
        raise Broken(f"{error}\n{advice(weather, place)}") from error
    shutil.rmtree(folder)
    return storm


def must_fire(weather: Weather) -> tuple[str, ...]:
    """What a storm of this size cannot do without."""
    return (
        *(MUST_FIRE if weather.kills >= FULL_SIZE_KILLS else ()),
        *(MUST_FIRE_TOO if weather.jumping_clocks else ()),
    )


def advice(weather: Weather, place: Path) -> str:
    """How to see more of what broke."""
    clocks = " CLOCKS=1" if weather.jumping_clocks else ""
    return (
        f"The database, the ledger and what the processes wrote are in {place}.\n"
        "The same faults in the same order, though not at the same instants: "
        f"make chaos SEED={weather.seed} MINUTES=0{clocks}"
    )


def table(storm: Storm, finding: Finding) -> str:
    """What fired, and what it led to."""
    counts: Counter[str] = storm.fired + finding.seen
    lines = [f"  {name:<58}{counts[name]:>8,}" for name in sorted({*counts, *must_fire(storm.weather)})]
    head = f"storm {storm.weather.seed}: {storm.kills} kills, {storm.stops} stops, {finding.seen['runs']} runs"
    return "\n".join([f"{head}, at rest {storm.recovery_s:.1f} s after the last fault", *lines])
