"""`python -m tests.chaos`: storms one after another for some minutes, or until enough was killed."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.chaos.campaign import KEPT, Broken, live
from tests.chaos.storm import Weather


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--kills", type=int, default=0, help="go on until so many processes were killed")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    return rage(options.minutes, options.kills, options.seed)


def rage(minutes: float, kills: int, first: int | None) -> int:
    """Storm until the time is up and enough was killed; every other storm has clocks that jump."""
    ends, killed, storms = time.monotonic() + minutes * 60, 0, 0
    seed = first if first is not None else int(time.time())
    while storms == 0 or time.monotonic() < ends or killed < kills:
        try:
            storm = live(weather(seed), KEPT)
        except Broken as broken:
            print(broken, file=sys.stderr)
            return 1
        killed += storm.kills
        storms += 1
        seed += 1
        if first is not None and kills == 0 and minutes == 0:
            break
    print(f"{storms} storms, {killed} kills, no promise broken")
    return 0


def weather(seed: int) -> Weather:
    """What a seed of a campaign means."""
    jumping = seed % 3 == 2
    return Weather(seed=seed, runs=3_000, seconds=90, kills=70, stops=15, jumping_clocks=jumping)


if __name__ == "__main__":
    sys.exit(main())
