"""Polling in Python: one child run per export asks until it is ready, and gives up when its passes are used up.

python examples/exports.py
"""

from __future__ import annotations

import tidemill

PASSES_NEEDED = {"sales": 2, "stock": 1, "staff": 99}


@tidemill.task
def request(name: str) -> str:
    return f"export of {name}"


@tidemill.task
def is_ready(name: str, asked: int) -> bool:
    return asked + 1 >= PASSES_NEEDED[name]


@tidemill.task
def download(job: str) -> str:
    return f"{job}: downloaded"


@tidemill.task
def give_up(job: str) -> str:
    return f"{job}: not ready in time"


# The wait between two passes is a durable timer: it holds no worker, and it outlives a restart.
@tidemill.workflow
def export(name: str) -> str:
    job = request(name)
    with tidemill.loop(max_iterations=3, delay=0.2) as again:
        ready = is_ready(name, asked=again.iteration)
        again.until(ready)
    fetched = download.after(ready)(job)
    with tidemill.on_exhausted(again):
        late = give_up(job)
    return tidemill.default(fetched, late)


# A workflow that another one calls is a child: a run of its own, with its own log, which `runs` can find.
@tidemill.workflow
def exports(names: list[str]) -> list[str]:
    return export.options(max_parallel=10).map(names)


def main() -> None:
    with tidemill.open("memory://") as mill:
        run = mill.run(exports, names=list(PASSES_NEEDED), timeout=20)
        print(*run.output_as(exports), sep="\n")
        print(mill.count(f"parent:{run.run_id}"), "child runs")


if __name__ == "__main__":
    main()
