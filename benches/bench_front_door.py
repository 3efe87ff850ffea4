"""What users do through the public API on a SQLite file: blocking calls from threads, async clients, many starts.

W3 of the engine itself is measured in the same run, in turns with the others; rates are shown beside it. The floor of a
run or a start is what it writes, written again by a bare loop (`benches/tape.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tidemill
from benches import peers
from benches.bench_sqlite import on_file
from benches.figures import Figure, Note, best_of
from benches.graphs import diamond, node
from benches.tape import Recording, Tape, folder, play, played
from benches.workloads import MANY
from tidemill.bootstrap import engine_at

ROUNDS = 5
THREADS, RUNS_PER_THREAD = 8, 60
CLIENTS, RUNS_PER_CLIENT = 8, 60
VALUE_CLIENTS, RUNS_PER_VALUE_CLIENT = 40, 15
STARTS, SINGLE_RUNS, TURNS, RUNS_IN_TURN = 2_000, 200, 40, 5
PAUSE_S = 0.002
"""Between starts on an idle engine."""

THREADS_MUST, THREADS_AIM = 25, 35
ASYNC_MUST, VALUE_MUST = 40, 65
RUN_FLOOR_MUST, START_FLOOR_MUST = 3.0, 1.5
STARTS_MUST, STARTS_AIM = 5_000, 8_000
DECORATED_MUST = 10
RUN_S_MUST, MAP_S_MUST, VERIFY_S_MUST = 0.8, 2.0, 20.0
IDLE_MB_MUST, IDLE_CPU_MUST = 90, 0.5

TIDEMILL = (sys.executable, "-c", "from tidemill.cli.main import main; main()")
USUAL = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Commands run as usual: Python keeps what it has compiled."""
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def add(n: int = 1) -> int:
    """A step as users write one: a plain function."""
    return n + 1


step = tidemill.task(add)


def call(name: str, *parents: str) -> dict[str, Any]:
    """A node that calls the function with the output of its first parent."""
    args = {"n": f"{{{{ {parents[0]}.output }}}}"} if parents else {}
    return {"id": name, "type": "python", "config": {"function": "add", "args": args}, "dependencies": list(parents)}


CALLS = {
    "name": "calls",
    "nodes": [call("a"), call("b", "a"), call("c", "a"), call("d", "b", "c"), call("e", "d")],
}
SINGLE = {"name": "single", "nodes": [call("only")]}
VALUES = {**diamond(), "name": "values"}


@tidemill.workflow
def decorated() -> int:
    """The diamond as users write it."""
    a = step()
    b, c = step(a), step(a)
    return step(step.after(c)(b))


def by_threads(file: Path) -> float:
    """Nodes per second of the diamond of functions, run by blocking callers in threads."""
    with tidemill.open(f"sqlite:///{file}", functions=[add]) as mill:
        mill.publish(CALLS)
        mill.result(mill.start("calls"))

        def client() -> None:
            for _ in range(RUNS_PER_THREAD):
                assert mill.result(mill.start("calls")).status == "COMPLETED"

        threads = [threading.Thread(target=client) for _ in range(THREADS)]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return THREADS * RUNS_PER_THREAD * 5 / (time.perf_counter() - begun)


def by_clients(file: Path, document: dict[str, Any], clients: int, runs: int) -> float:
    """Nodes per second of a diamond, run by async callers."""

    async def measure() -> float:
        async with tidemill.aopen(f"sqlite:///{file}", functions=[add]) as mill:
            await mill.publish(document)
            name = document["name"]
            await mill.result(await mill.start(name))

            async def client() -> None:
                for _ in range(runs):
                    await mill.result(await mill.start(name))

            begun = time.perf_counter()
            await asyncio.gather(*(client() for _ in range(clients)))
            return clients * runs * 5 / (time.perf_counter() - begun)

    return asyncio.run(measure())


def decorators(file: Path) -> float:
    """Per cent of processor time that a decorated workflow takes more than the same document by its name, in turns."""
    with tidemill.open(f"sqlite:///{file}", functions=[add]) as mill:
        mill.publish({**decorated.document(), "name": "plain"})

        def used(workflow: Any) -> float:
            begun = time.process_time()
            for _ in range(RUNS_IN_TURN):
                mill.result(mill.start(workflow))
            return time.process_time() - begun

        used("plain"), used(decorated)
        turns = [(used("plain"), used(decorated)) for _ in range(TURNS)]
    plain, own = (min(column) for column in zip(*turns, strict=True))
    return 100 * (own / plain - 1)


def one_at_a_time(file: Path) -> tuple[float, float, float, float]:
    """Milliseconds of a blocking run of one function and of a blocking start on an idle engine, and of their floors.

    The starts and what they write come in turns, after the same pause: what has rested needs longer.
    """
    run_floor, floor = floors(file.parent)
    with tidemill.open(f"sqlite:///{file}", functions=[add]) as mill:
        mill.publish(SINGLE)
        mill.publish({"name": "waits", "nodes": [{**node("only"), "type": "signal", "config": {"name": "go"}}]})
        mill.result(mill.start("single"))
        runs, starts, floors_of_starts = [], [], []
        for _ in range(SINGLE_RUNS):
            begun = time.perf_counter()
            mill.result(mill.start("single"))
            runs.append(time.perf_counter() - begun)
        for _ in range(SINGLE_RUNS):
            begun = time.perf_counter()
            mill.start("waits")
            starts.append(time.perf_counter() - begun)
            time.sleep(PAUSE_S)
            floors_of_starts.append(next(floor))
            time.sleep(PAUSE_S)
    run, start, start_floor = map(statistics.median, (runs, starts, floors_of_starts))
    return 1000 * run, 1000 * start, 1000 * run_floor, 1000 * start_floor


def started_at_once(file: Path) -> float:
    """Runs per second that `start_many` makes durable; no worker runs them meanwhile."""
    with tidemill.open(f"sqlite:///{file}", functions=[add], work=False) as mill:
        mill.publish(CALLS)
        mill.start("calls")
        begun = time.perf_counter()
        mill.start_many("calls", [{} for _ in range(STARTS)])
        return STARTS / (time.perf_counter() - begun)


def floors(place: Path) -> tuple[float, Iterator[float]]:
    """Seconds of what a run of one function writes, and of what each start writes, written by a bare loop."""

    async def recorded(work: bool) -> Tape:
        async with engine_at(f"sqlite:///{place / f'{work}.db'}", functions={"add": add}, work=work) as engine:
            await engine.publish(SINGLE)
            first = await engine.start("single")
            if work:
                await engine.result(first)
            (place / str(work)).mkdir()
            recording = Recording(engine, place / str(work))
            for _ in range(SINGLE_RUNS):
                started = await engine.start("single")
                if work:
                    await engine.result(started)
            return recording.stop()

    run = play(asyncio.run(recorded(work=True)), place) / SINGLE_RUNS
    return run, played(asyncio.run(recorded(work=False)), place)


IDLE = """
import sys, time
from pathlib import Path
import tidemill

with tidemill.open(sys.argv[1]) as mill:
    assert mill.run(Path(sys.argv[2])).ok
    shares = []
    for _ in range(4):
        used, begun = time.process_time(), time.perf_counter()
        time.sleep(5)
        shares.append(100 * (time.process_time() - used) / (time.perf_counter() - begun))
    status = Path("/proc/self/status").read_text().splitlines()
    print(int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1024, min(shares))
"""
"""An embedded engine that waits after a run; prints its memory and its least share of a core."""


def seconds_of(*command: str, place: Path) -> float:
    """Wall time of a command, from the start of its process to its end."""
    begun = time.perf_counter()
    subprocess.run([*TIDEMILL, *command], cwd=place, env=USUAL, check=True, capture_output=True)
    return time.perf_counter() - begun


def processes(place: Path) -> Iterator[Figure]:
    """Whole processes as users start them: commands, and an engine that is idle."""
    (place / "steps.py").write_text("def add(n: int = 1) -> int:\n    return n + 1\n")
    nodes = [{**each, "config": {**each["config"], "function": "steps:add"}} for each in CALLS["nodes"]]
    (place / "diamond.json").write_text(json.dumps({**CALLS, "nodes": nodes}))
    (place / "numbers.json").write_text(json.dumps({"numbers": list(range(1_000))}))
    run = best_of(3, lambda: seconds_of("run", "diamond.json", place=place))
    yield Figure("tidemill run of the diamond, wall time", run, "s", RUN_S_MUST)
    mapped = ("run", str(EXAMPLES / "map.yaml"), "--input", "@numbers.json")
    took = best_of(3, lambda: seconds_of(*mapped, place=place))
    yield Figure("tidemill run examples/map.yaml over 1,000 items, wall time", took, "s", MAP_S_MUST)
    verified = seconds_of("verify", "diamond.json", place=place)
    yield Figure("tidemill verify of the diamond, wall time", verified, "s", VERIFY_S_MUST)
    idle = [sys.executable, "-c", IDLE, "sqlite:///idle.db", "diamond.json"]
    done = subprocess.run(idle, cwd=place, check=True, capture_output=True, text=True)
    memory, share = map(float, done.stdout.split())
    yield Figure("idle embedded engine, memory", memory, "MB", IDLE_MB_MUST)
    yield Figure("idle embedded engine, share of a core", share, "%", IDLE_CPU_MUST)


def apart(measure: Callable[[Path], Any]) -> Any:
    """Measure in a folder of its own."""
    with folder() as place:
        return measure(place / "runs.db")


def figures() -> Iterator[Figure | Note]:
    """Measure."""
    engine, threads, clients, values, many = [], [], [], [], []
    for _ in range(ROUNDS):
        engine.append(MANY.nodes / on_file(MANY))
        threads.append(apart(by_threads))
        clients.append(apart(lambda file: by_clients(file, CALLS, CLIENTS, RUNS_PER_CLIENT)))
        values.append(apart(lambda file: by_clients(file, VALUES, VALUE_CLIENTS, RUNS_PER_VALUE_CLIENT)))
        many.append(apart(started_at_once))
    w3 = statistics.median(engine)

    def share(rates: list[float]) -> float:
        return 100 * statistics.median(rate / own for rate, own in zip(rates, engine, strict=True))

    yield Figure("W3 in the same run", w3, "nodes/s")
    for name, rates, must, aim in (
        (f"diamond of functions, {THREADS} threads", threads, THREADS_MUST, THREADS_AIM),
        (f"diamond of functions, {CLIENTS} async clients", clients, ASYNC_MUST, None),
        (f"diamond of values, {VALUE_CLIENTS} async clients", values, VALUE_MUST, None),
    ):
        yield Figure(name, statistics.median(rates), "nodes/s")
        yield Figure(f"{name}, of W3", share(rates), "%", must, aim, at_most=False)
    more = statistics.median(apart(decorators) for _ in range(ROUNDS))
    yield Figure("decorators over the plain document, processor time", more, "%", DECORATED_MUST)
    yield Figure("start_many", statistics.median(many), "runs/s", STARTS_MUST, STARTS_AIM, at_most=False)
    found = [apart(one_at_a_time) for _ in range(ROUNDS)]
    run, start = (statistics.median(column) for column in list(zip(*found, strict=True))[:2])
    yield Figure("one blocking run of one function", run, "ms")
    over = statistics.median(own / floor for own, _, floor, _ in found)
    yield Figure("the same, times its floor", over, "×", RUN_FLOOR_MUST)
    yield Figure("one blocking start on an idle engine", start, "ms")
    over = statistics.median(own / floor for _, own, _, floor in found)
    yield Figure("the same, times its floor", over, "×", START_FLOOR_MUST)
    with folder() as place:
        yield from processes(place)
        yield from peers.diamonds(lambda: apart(by_threads), place)
