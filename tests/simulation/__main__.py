"""`python -m tests.simulation`: many seeds on all cores, resumable, with progress and what was seen in them."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.simulation.campaign import REPLAY, Tally, keep, play_range
from tests.simulation.faults import FAULTS
from tests.simulation.test_simulation import EVENTS

CHUNK = 100
SEEN_MIN = 100
PROGRESS = Path(".sim")


def main() -> int:
    """Play the seeds and report; exit 1 when a law was broken or something was hardly ever seen."""
    parser = argparse.ArgumentParser(prog="make sim")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="replay one seed, with its traceback")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="forget an interrupted campaign")
    options = parser.parse_args()
    if options.seed is not None:
        return replay(options.seed)
    tally = campaign(options.first, options.seeds, options.jobs, options.fresh)
    return report(tally, rare_matters=options.seeds >= 20_000)


def replay(seed: int) -> int:
    """Live through one seed; whatever it raises is shown whole."""
    from tests.simulation.world import live

    world = live(seed)
    print(f"seed {seed}: {sum(world.events.values())} events, {sum(world.fired.values())} faults, no law broken")
    return 0


def campaign(first: int, seeds: int, jobs: int, fresh: bool) -> Tally:
    """Play a range in chunks; finished chunks are remembered, so an interrupted campaign goes on."""
    PROGRESS.mkdir(exist_ok=True)
    file = PROGRESS / f"campaign-{first}-{seeds}.jsonl"
    if fresh:
        file.unlink(missing_ok=True)
    done, total = _resumed(file)
    chunks = [(low, min(low + CHUNK, first + seeds)) for low in range(first, first + seeds, CHUNK)]
    left = [chunk for chunk in chunks if chunk[0] not in done]
    started, played = time.monotonic(), 0
    with ProcessPoolExecutor(jobs) as pool, file.open("a") as log:
        futures = {pool.submit(play_range, chunk): chunk for chunk in left}
        for future in as_completed(futures):
            tally = future.result()
            total.add(tally)
            played += tally.seeds
            log.write(f"{futures[future][0]}\t{tally.to_json()}\n")
            log.flush()
            _show_progress(total, seeds, played, time.monotonic() - started)
    print(file=sys.stderr)
    file.unlink(missing_ok=True)
    return total


def _resumed(file: Path) -> tuple[set[int], Tally]:
    done: set[int] = set()
    total = Tally()
    for line in file.read_text().splitlines() if file.exists() else []:
        low, _, text = line.partition("\t")
        if not text.endswith("}"):
            continue
        done.add(int(low))
        total.add(Tally.from_json(text))
    return done, total


def _show_progress(total: Tally, seeds: int, played: int, seconds: float) -> None:
    rate = played / max(seconds, 0.001)
    eta = (seeds - total.seeds) / max(rate, 0.001)
    line = f"\r{total.seeds:,}/{seeds:,} seeds  {rate:,.0f}/s  {len(total.failures)} broken  ETA {eta / 60:.1f} min  "
    print(line, end="", file=sys.stderr, flush=True)


def report(tally: Tally, *, rare_matters: bool) -> int:
    """Print what was seen; say which seeds broke a law and how to replay them."""
    print(f"{tally.seeds:,} seeds, {sum(tally.events.values()):,} events, {sum(tally.fired.values()):,} faults")
    for title, counts, names in (("fault", tally.fired, FAULTS), ("event", tally.events, EVENTS)):
        for name in names:
            print(f"  {title:6} {name:32} {counts[name]:>10,}")
    rare = [name for name in (*FAULTS, *EVENTS) if (tally.fired + tally.events)[name] <= SEEN_MIN]
    if rare_matters and rare:
        print(f"seen at most {SEEN_MIN} times: {', '.join(rare)}")
    for seed, why in sorted(tally.failures.items()):
        keep(seed, why)
        print(f"seed {seed}: {why}\n  replay: {REPLAY.format(seed=seed)}")
    print(f"{len(tally.failures)} violations")
    return 1 if tally.failures or (rare_matters and rare) else 0


if __name__ == "__main__":
    sys.exit(main())
