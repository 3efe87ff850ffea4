"""One chaos run from beginning to judgement: what fired is shown, and what broke is kept to be looked at."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from tests.chaos.chaos_run import ChaosRun, Disturbance
from tests.chaos.checker import Finding, check

KEPT = Path(".chaos")
"""Where the files of broken chaos runs are kept."""

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
"""What a chaos run of full size must have led to, or it proves little."""
FULL_SIZE_KILLS = 40
MUST_FIRE_TOO = ("attempts lost with their worker", "the clock was set back", "the clock was set forward")
"""What one must have led to in which the clock jumps."""


class Broken(AssertionError):
    """A promise was broken; the words say which, and how to look at it."""


def live(disturbance: Disturbance, kept: Path = KEPT) -> ChaosRun:
    """Live through a chaos run and judge it. Raises `Broken`, and keeps the files then."""
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{disturbance.seed}-"))
    chaos_run, finding = ChaosRun(disturbance, folder), Finding()
    try:
        chaos_run.rage()
        finding = check(chaos_run)
        print(table(chaos_run, finding))
        if finding.complaints:
            raise Broken("\n".join(finding.complaints[:40]))
        if unmet := [name for name in must_fire(disturbance) if not (chaos_run.fired + finding.seen)[name]]:
            raise Broken(f"never fired: {', '.join(unmet)}")
    except Exception as error:
        place = kept / folder.name
        kept.mkdir(exist_ok=True)
        shutil.move(folder, place)
        raise Broken(f"{error}\n{advice(disturbance, place)}") from error
    shutil.rmtree(folder)
    return chaos_run


def must_fire(disturbance: Disturbance) -> tuple[str, ...]:
    """What a chaos run of this size cannot do without."""
    return (
        *(MUST_FIRE if disturbance.kills >= FULL_SIZE_KILLS else ()),
        *(MUST_FIRE_TOO if disturbance.jumping_clocks else ()),
    )


def advice(disturbance: Disturbance, place: Path) -> str:
    """How to see more of what broke."""
    clocks = " CLOCKS=1" if disturbance.jumping_clocks else ""
    return (
        f"The database, the ledger and what the processes wrote are in {place}.\n"
        "The same faults in the same order, though not at the same instants: "
        f"make chaos SEED={disturbance.seed} MINUTES=0{clocks}"
    )


def table(chaos_run: ChaosRun, finding: Finding) -> str:
    """What fired, and what it led to."""
    counts: Counter[str] = chaos_run.fired + finding.seen
    lines = [f"  {name:<58}{counts[name]:>8,}" for name in sorted({*counts, *must_fire(chaos_run.disturbance)})]
    seed = chaos_run.disturbance.seed
    head = f"chaos run {seed}: {chaos_run.kills} kills, {chaos_run.stops} stops, {finding.seen['runs']} runs"
    return "\n".join([f"{head}, at rest {chaos_run.recovery_s:.1f} s after the last fault", *lines])
