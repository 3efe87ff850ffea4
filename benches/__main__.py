"""`python -m benches [name …]`: measure, print what must be reached and what was, fail when a must is missed."""

from __future__ import annotations

import gc
import importlib
import platform
import sys

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
    wanted = [name if name.startswith("bench_") else f"bench_{name}" for name in sys.argv[1:]] or BENCHES
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
