"""`python -m benches [name …]`: measure, print what must be reached and what was, fail when a must is missed."""

from __future__ import annotations

import argparse
import gc
import importlib
import platform
import sys
from pathlib import Path

BENCHES = (
    "bench_start",
    "bench_kernel",
    "bench_engine",
    "bench_scale",
    "bench_compile",
    "bench_sqlite",
    "bench_sqlite_scale",
    "bench_postgres",
    "bench_redis",
    "bench_expressions",
    "bench_nodes",
    "bench_agents",
    "bench_front_door",
    "bench_api",
)


def main() -> int:
    """Run the named benchmarks, or all."""
    known = [path.stem.removeprefix("bench_") for path in sorted(Path(__file__).parent.glob("bench_*.py"))]
    parser = argparse.ArgumentParser("python -m benches", description=__doc__.partition(": ")[2])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}")
    names = [name.removeprefix("bench_") for name in parser.parse_args().names]
    if unknown := [name for name in names if name not in known]:
        parser.error(f"there is no benchmark {unknown[0]}; there are {', '.join(known)}")
    wanted = [f"bench_{name}" for name in names] or BENCHES
    missed = 0
    print(f"Python {platform.python_version()} on {platform.machine()}")
    for name in wanted:
        print(f"{name}:", flush=True)
        # What earlier benchmarks left in memory is not this one's to look after.
        gc.collect()
        gc.freeze()
        for figure in importlib.import_module(f"benches.{name}").figures():
            print(figure.line(), flush=True)
            missed += not figure.reached
    print(f"{missed} missed" if missed else "all reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
