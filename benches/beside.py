"""`python -m benches.beside FOLDER [group …]`: benchmarks of another checkout and of this one in turns, line by line.

The other checkout needs its own `.venv` (`make setup` there). Rounds alternate which of both goes first. A figure is
the median of its rounds; a ratio above 1 means that this checkout is worse.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

LINE = re.compile(r"^  (?P<name>\S.*?)\s+(?P<value>-?[\d,]+\.\d\d) (?P<unit>\S+)(?P<rest>.*)$")
GROUPS = (
    "start",
    "expressions",
    "kernel",
    "engine",
    "sqlite",
    "acts",
    "waiting",
    "compile",
    "nodes",
    "scale",
    "sqlite_scale",
)
NOT_OURS = re.compile(r"the floor|the disk|one sync|elsewhere|bare ")
"""Lines that measure the machine or a bare loop, for scale."""

Measured = dict[str, tuple[float, str, bool]]


def measure(tree: Path, group: str) -> Measured:
    """The figures of one group: value, unit, and whether more is better."""
    python = tree / ".venv" / "bin" / "python"
    ended = subprocess.run([python, "-m", "benches", group], cwd=tree, stdout=subprocess.PIPE, text=True, check=False)
    found: Measured = {}
    for line in ended.stdout.splitlines():
        matched = LINE.match(line)
        if matched is not None and not NOT_OURS.search(matched["name"]):
            value = float(matched["value"].replace(",", ""))
            more = "≥" in matched["rest"] or ("≤" not in matched["rest"] and matched["unit"].endswith("/s"))
            found[matched["name"]] = (value, matched["unit"], more)
    if not found:
        sys.exit(f"{tree}: the group {group!r} printed no figure")
    return found


def show(group: str, rounds: list[tuple[Measured, Measured]], limit: float) -> list[float]:
    """Print the lines of a group that both checkouts have, and return their ratios."""
    values: dict[str, list[tuple[float, float]]] = defaultdict(list)
    told: Measured = {}
    for other, ours in rounds:
        for name in other.keys() & ours.keys():
            values[name].append((other[name][0], ours[name][0]))
        told |= ours
    ratios: list[float] = []
    print(f"{group}:")
    for name in (name for name in told if name in values):
        _, unit, more = told[name]
        before, now = (statistics.median(column) for column in zip(*values[name], strict=True))
        if before <= 0 or now <= 0:
            continue
        ratio = before / now if more else now / before
        ratios.append(ratio)
        mark = f"  above {limit:g}" if ratio > limit else ""
        print(f"  {name:58} {before:>12,.2f} {now:>12,.2f} {unit:10} {ratio:5.2f}{mark}", flush=True)
    for name in sorted(rounds[0][0].keys() ^ rounds[0][1].keys()):
        print(f"  {name:58} in one of both only", flush=True)
    return ratios


def main() -> int:
    """Compare, and fail if a line or the mean is worse than allowed."""
    parser = argparse.ArgumentParser(prog="python -m benches.beside", description=__doc__)
    parser.add_argument("folder", type=Path, help="the other checkout")
    parser.add_argument("groups", nargs="*", default=GROUPS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--line", type=float, default=1.10, help="most that one line may be worse")
    parser.add_argument("--mean", type=float, default=1.03, help="most that the geometric mean may be worse")
    options = parser.parse_args()
    other, ours = options.folder.resolve(), Path(__file__).resolve().parents[1]
    ratios: list[float] = []
    for group in options.groups:
        rounds: list[tuple[Measured, Measured]] = []
        for number in range(options.rounds):
            if number % 2:
                now = measure(ours, group)
                rounds.append((measure(other, group), now))
            else:
                before = measure(other, group)
                rounds.append((before, measure(ours, group)))
        ratios += show(group, rounds, options.line)
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    worse = sum(ratio > options.line for ratio in ratios)
    print(f"{len(ratios)} lines, geometric mean {mean:.3f}, {worse} above {options.line:g}")
    return 1 if worse or mean > options.mean else 0


if __name__ == "__main__":
    sys.exit(main())
