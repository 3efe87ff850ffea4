"""`python -m tests.chaos`: chaos runs one after another for some minutes, or until enough was killed."""

from __future__ import annotations

import argparse
import sys
import time

from tests.chaos.campaign import Broken, live
from tests.chaos.chaos_run import Disturbance
from tests.chaos.stores import SERVED, STORES


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--kills", type=int, default=0, help="go on until so many processes were killed")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first chaos run")
    parser.add_argument("--clocks", action="store_true", help="let clocks jump in every chaos run, not in every third")
    parser.add_argument("--store", choices=sorted(STORES), default="sqlite")
    options = parser.parse_args()
    ends, killed, chaos_runs = time.monotonic() + options.minutes * 60, 0, 0
    while not chaos_runs or time.monotonic() < ends or killed < options.kills:
        clocks = options.clocks or chaos_runs % 3 == 2
        try:
            killed += live(disturbance(options.seed + chaos_runs, options.store, clocks)).kills
        except Broken as broken:
            print(broken, file=sys.stderr)
            return 1
        chaos_runs += 1
    print(f"{chaos_runs} chaos runs, {killed} kills, no promise broken")
    return 0


def disturbance(seed: int, store: str, jumping_clocks: bool) -> Disturbance:
    """A chaos run of a minute and a half or two."""
    if store in SERVED:
        return Disturbance(seed=seed, store=store, runs=1_500, seconds=80, kills=50, stops=10)
    return Disturbance(seed=seed, runs=3_000, seconds=80, kills=70, stops=15, jumping_clocks=jumping_clocks)


if __name__ == "__main__":
    sys.exit(main())
