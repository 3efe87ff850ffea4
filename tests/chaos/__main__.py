"""`python -m tests.chaos`: storms one after another for some minutes, or until enough was killed."""

from __future__ import annotations

import argparse
import sys
import time

from tests.chaos.campaign import Broken, live
from tests.chaos.chaos_run import Weather


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--kills", type=int, default=0, help="go on until so many processes were killed")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first storm")
    parser.add_argument("--clocks", action="store_true", help="let clocks jump in every storm, not in every third")
    options = parser.parse_args()
    ends, killed, storms = time.monotonic() + options.minutes * 60, 0, 0
    while not storms or time.monotonic() < ends or killed < options.kills:
        clocks = options.clocks or storms % 3 == 2
        try:
            killed += live(weather(options.seed + storms, clocks)).kills
        except Broken as broken:
            print(broken, file=sys.stderr)
            return 1
        storms += 1
    print(f"{storms} storms, {killed} kills, no promise broken")
    return 0


def weather(seed: int, jumping_clocks: bool) -> Weather:
    """A storm of a minute and a half or two."""
    return Weather(seed=seed, runs=3_000, seconds=80, kills=70, stops=15, jumping_clocks=jumping_clocks)


if __name__ == "__main__":
    sys.exit(main())
