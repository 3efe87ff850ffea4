"""Other engines, for scale.

`python -m benches.peers NAME THREADS FILE` runs the diamond of plain functions on another engine with a durable SQLite
file and prints its nodes per second and version. `make bench-peers` installs them beside, into `.venv-peers`. The notes
were measured elsewhere, on a machine of the same kind (two cores, a local disk with quick syncs), or are targets from
papers.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from statistics import median

from benches.figures import Figure, Note

MANY_RUNS = (
    Note("for scale, W3 elsewhere on such a machine, in nodes/s:"),
    Note("  DBOS 170–230 · Celery canvas 313 · Restate 352 · LangGraph with checkpoints 464"),
)
HOP = (Note("for scale, elsewhere on such a machine: the best durable hop of a peer is 2.0 ms"),)

PYTHON = Path(__file__).resolve().parent.parent / ".venv-peers/bin/python"
ROUNDS, RUNS, THREADS = 3, 80, (1, 8)
NAMES = {
    "langgraph": "LangGraph {}, SqliteSaver, sync",
    "dbos": "DBOS {}, SQLite, B then C",
}


def beside_paper(runs_per_minute: float, hop_ms: float) -> Note:
    """Our figures beside those that were on paper before there was any code."""
    return Note(
        f"on paper 60–100 thousand runs/min and 5–10 ms per hop;"
        f" measured {runs_per_minute / 1000:,.0f} thousand runs/min (W3) and {hop_ms:.2f} ms per hop (W1)"
    )


def diamonds(ours: Callable[[], float], place: Path) -> Iterator[Figure | Note]:
    """The diamond of functions on each peer that is installed, in turns with ours; the better of its thread counts."""
    found: dict[tuple[str, int], list[float]] = {}
    versions, mine = {}, []
    for number in range(ROUNDS):
        mine.append(ours())
        for name in NAMES:
            for threads in THREADS:
                if measured := _measured(name, threads, place / f"{name}-{threads}-{number}.db"):
                    found.setdefault((name, threads), []).append(measured[0])
                    versions[name] = measured[1]
        if not found:
            break
    for name, words in NAMES.items():
        rates = [(median(rates), threads) for (peer, threads), rates in found.items() if peer == name]
        if rates:
            rate, threads = max(rates)
            clients = f"{threads} thread{'s' * (threads > 1)}"
            yield Figure(f"for scale: {words.format(versions[name])}, {clients}", rate, "nodes/s")
        else:
            yield Note(f"for scale: {name} is not installed here; `make bench-peers` adds it")
    if found:
        yield Figure("ours in turns with them", median(mine), "nodes/s")


def _measured(name: str, threads: int, file: Path) -> tuple[float, str] | None:
    python = str(PYTHON) if PYTHON.exists() else sys.executable
    command = [python, "-m", "benches.peers", name, str(threads), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if "ModuleNotFoundError" in done.stderr:
        return None
    assert done.returncode == 0, done.stderr
    rate, its_version = done.stdout.split()[-2:]
    return float(rate), its_version


def add(n: int = 1) -> int:
    """The same step as in `bench_front_door`."""
    return n + 1


def on_langgraph(file: str, measure: Callable[[Callable[[int], object]], float]) -> float:
    """A static graph; each node overwrites its own small value; every superstep is durable before the next begins."""
    import sqlite3
    from contextlib import closing
    from typing import TypedDict

    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, StateGraph

    State = TypedDict("State", dict.fromkeys("abcde", int), total=False)
    graph = StateGraph(State)
    for name, parent in (("a", ""), ("b", "a"), ("c", "a"), ("d", "b"), ("e", "d")):
        graph.add_node(name.upper(), lambda state, name=name, parent=parent: {name: add(state.get(parent, 1))})
    for before, after in ((START, "A"), ("A", "B"), ("A", "C"), (["B", "C"], "D"), ("D", "E"), ("E", END)):
        graph.add_edge(before, after)
    with closing(sqlite3.connect(file, check_same_thread=False)) as connection:
        connection.execute("PRAGMA synchronous=FULL")
        compiled = graph.compile(checkpointer=SqliteSaver(connection))

        def run(number: int) -> None:
            ended = compiled.invoke({"a": 0}, {"configurable": {"thread_id": str(number)}}, durability="sync")
            assert ended["e"] == 5, ended

        return measure(run)


def on_dbos(file: str, measure: Callable[[Callable[[int], object]], float]) -> float:
    """Steps in a synchronous workflow function, one after the other; every step is durable before the next begins."""
    from dbos import DBOS

    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{file}",
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )
    step = DBOS.step()(add)

    @DBOS.workflow()
    def diamond() -> int:
        a = step()
        b, _ = step(a), step(a)
        return step(step(b))

    DBOS.launch()
    try:
        return measure(lambda _: diamond())
    finally:
        DBOS.destroy()


def measure_with(threads: int) -> Callable[[Callable[[int], object]], float]:
    """Nodes per second of RUNS diamonds, after one that does not count."""

    def measure(run: Callable[[int], object]) -> float:
        run(-1)
        numbers = iter(range(RUNS))

        def client() -> None:
            while (number := next(numbers, None)) is not None:
                run(number)

        clients = [threading.Thread(target=client) for _ in range(threads)]
        begun = time.perf_counter()
        for each in clients:
            each.start()
        for each in clients:
            each.join()
        return RUNS * 5 / (time.perf_counter() - begun)

    return measure


if __name__ == "__main__":
    peer, count, database = sys.argv[1:]
    nodes_per_second = {"langgraph": on_langgraph, "dbos": on_dbos}[peer](database, measure_with(int(count)))
    print(nodes_per_second, version(peer))
