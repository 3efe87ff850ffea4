"""One chaos run from beginning to judgement: what fired is shown, and what broke is kept to be looked at."""

from __future__ import annotations

import shutil
import statistics
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
    "taken over from a killed process",
    "taken over from a stopped process",
    "SIGKILL worker, all at once",
    "SIGKILL worker, recovering",
    "SIGTERM",
)
"""What a chaos run of full size must have led to, or it proves little."""
FULL_SIZE_KILLS = 40
MUST_FIRE_TOO = ("attempts lost with their worker", "the clock was set back", "the clock was set forward")
"""What one must have led to in which the clock jumps."""


TAKEOVER_S, TAKEOVER_FACTOR = 5.0, 10
"""What a killed worker had begun starts elsewhere after a lease and 5 s; a busy machine is given ten times as much."""


class Broken(AssertionError):
    """A promise was broken; the words say which, and how to look at it."""


def live(disturbance: Disturbance, kept: Path = KEPT) -> ChaosRun:
    """Live through a chaos run and judge it. Raises `Broken`, and keeps the files then."""
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{disturbance.seed}-"))
    chaos_run = ChaosRun(disturbance, folder)
    with chaos_run.store.served():
        try:
            judge(chaos_run)
        except Exception as error:
            place = kept / folder.name
            kept.mkdir(exist_ok=True)
            chaos_run.store.keep(folder)
            shutil.move(folder, place)
            raise Broken(f"{error}\n{advice(disturbance, place)}") from error
    shutil.rmtree(folder)
    return chaos_run


def judge(chaos_run: ChaosRun) -> None:
    """Live through it, and raise what is wrong."""
    chaos_run.rage()
    finding = check(chaos_run)
    print(table(chaos_run, finding))
    if finding.complaints:
        raise Broken("\n".join(finding.complaints[:40]))
    if unmet := [name for name in must_fire(chaos_run) if not (chaos_run.fired + finding.seen)[name]]:
        raise Broken(f"never fired: {', '.join(unmet)}")
    late = TAKEOVER_FACTOR * (chaos_run.store.lease_ms / 1_000 + TAKEOVER_S)
    if chaos_run.disturbance.store != "sqlite" and max(finding.takeover_s, default=0.0) > late:
        raise Broken(f"it took {max(finding.takeover_s):.1f} s until another worker began with what a killed one had")


def must_fire(chaos_run: ChaosRun) -> tuple[str, ...]:
    """What a chaos run of this size cannot do without."""
    disturbance = chaos_run.disturbance
    return (
        *((*MUST_FIRE, *chaos_run.store.must_fire) if disturbance.kills >= FULL_SIZE_KILLS else ()),
        *(MUST_FIRE_TOO if disturbance.jumping_clocks else ()),
    )


def advice(disturbance: Disturbance, place: Path) -> str:
    """How to see more of what broke."""
    clocks = " CLOCKS=1" if disturbance.jumping_clocks else ""
    store = f" STORE={disturbance.store}" if disturbance.store != "sqlite" else ""
    return (
        f"The database, the ledger and what the processes wrote are in {place}.\n"
        "The same faults in the same order, though not at the same instants: "
        f"make chaos SEED={disturbance.seed} MINUTES=0{clocks}{store}"
    )


def table(chaos_run: ChaosRun, finding: Finding) -> str:
    """What fired, and what it led to."""
    counts: Counter[str] = chaos_run.fired + finding.seen
    lines = [f"  {name:<58}{counts[name]:>8,}" for name in sorted({*counts, *must_fire(chaos_run)})]
    seed = chaos_run.disturbance.seed
    head = f"chaos run {seed}: {chaos_run.kills} kills, {chaos_run.stops} stops, {finding.seen['runs']} runs"
    head += f", {chaos_run.disturbance.store}, at rest {chaos_run.recovery_s:.1f} s after the last fault"
    times = [
        f"  {name:<58}median {statistics.median(found):.2f} s, worst {max(found):.2f} s"
        for name, found in (
            ("from a server that accepts to the next commit", chaos_run.progress_s),
            ("from a killed worker to another that begins anew", finding.takeover_s),
        )
        if found
    ]
    return "\n".join([head, *lines, *times])
