"""A standing attack: the rows of `tests/attacks` in a loop on one worker, and runs of others beside it.

It ends when every attack has run, which takes some minutes. Notes name the nodes that blocked the worker's loop.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import IO, Any

import apsw

import tidemill
from benches.figures import Figure, Note
from tests.attacks.corpus import CORPUS
from tests.attacks.review import CANARY, ROWS, Answer, Run
from tests.attacks.test_review import Server, filled

RUNS = [row for row in (*ROWS, *CORPUS) if isinstance(row, Run)]
SECONDS_MIN = 60
SECONDS_MAX = 600
ALONE_SECONDS = 10
ATTACKS_AT_ONCE = 8
WAIT_SECONDS = 10
P99_MS_MUST = 400
MEMORY_MB_MUST = 600
PROBE = {"name": "probe", "nodes": [{"id": "a", "type": "value", "config": "{{ 1 + 1 }}"}]}
GRANTS = """
imports = []
egress = ["{host}"]
[secrets.CRM]
origins = ["{url}"]
workflows = ["*"]
[databases]
crm = "sqlite:///{folder}/crm.db"
[sql]
store = true
"""


def figures() -> Iterator[Figure | Note]:
    with tempfile.TemporaryDirectory() as folder, Server(_answers()) as server:
        places = dict.fromkeys(("url", "other"), server.url)
        places |= {"host": server.url.removeprefix("http://"), "folder": folder}
        server.places = places
        store, config = f"sqlite:///{folder}/store.db", Path(folder, "grants.toml")
        config.write_text(filled(GRANTS, places))
        connection = apsw.Connection(f"{folder}/crm.db")
        for statement in dict.fromkeys(each for row in RUNS for each in row.database):
            connection.execute(statement)
        connection.close()
        command = [str(Path(sys.executable).with_name("tidemill")), "worker", "--store", store, "--config", str(config)]
        log = Path(folder, "worker.log")
        with log.open("wb") as said, _process(command, said) as worker, tidemill.open(store, work=False) as mill:
            mill.publish(PROBE)
            alone = _latencies(mill, lambda seconds: seconds > ALONE_SECONDS)
            attacker = [sys.executable, "-m", "benches.bench_attacks", store, json.dumps(places)]
            began = time.monotonic()
            with _process(attacker) as attacks:
                assert attacks.stdout is not None
                documents = int(attacks.stdout.readline())
                ended = _Ended(attacks.stdout)
                took = _latencies(
                    mill,
                    lambda seconds: seconds > SECONDS_MAX or (seconds > SECONDS_MIN and len(ended.names) == documents),
                )
            lasted = time.monotonic() - began
            memory = _peak_mb(worker.pid)
        for line in sorted(set(_blockages(log.read_text(errors="replace")))):
            yield Note(line)
    done = f"{len(ended.names)} of {documents} attacks, {ended.runs} runs of them"
    yield Note(f"{done} in {lasted:.0f} s, {len(took)} runs beside them")
    yield Figure("run of one node alone, p99", _p99(alone), "ms")
    yield Figure("run of one node beside a standing attack, p50", sorted(took)[len(took) // 2], "ms")
    yield Figure("run of one node beside a standing attack, p99", _p99(took), "ms", must=P99_MS_MUST)
    yield Figure("run of one node beside a standing attack, longest", max(took), "ms")
    yield Figure("memory of the worker under attack, peak", memory, "MB", must=MEMORY_MB_MUST)


class _Ended:
    """Which attacks have ended, as the attacker tells it."""

    def __init__(self, lines: IO[bytes]) -> None:
        self.names: set[bytes] = set()
        self.runs = 0
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: IO[bytes]) -> None:
        for name in lines:
            self.names.add(name)
            self.runs += 1


def _blockages(log: str) -> Iterator[str]:
    """What the watchdog of the worker said, with the innermost frames of each stack."""
    for part in log.split("the event loop ")[1:]:
        lines = part.splitlines()
        frames = [line.strip().removeprefix("File ") for line in lines if line.lstrip().startswith("File ")]
        yield f"the event loop {lines[0]}: {' < '.join(reversed(frames[-4:]))}"


def _answers() -> dict[str, Answer]:
    return {path: answer for row in RUNS for path, answer in row.answers.items()}


def _published(mill: Any, places: dict[str, str]) -> list[tuple[str, Any]]:
    """The attacks that the engine accepts, as names of workflows and inputs; publishing refuses the others."""
    accepted = []
    for number, row in enumerate(row for row in RUNS if row.act is None and not row.text):
        try:
            for each in (*row.before, *filled(row.documents[:-1], places)):
                mill.publish(each)
            mill.publish({**filled(row.documents[-1], places), "name": f"attack-{number}"})
        except tidemill.Rejected:
            continue
        accepted.append((f"attack-{number}", filled(dict(row.inputs), places)))
    return accepted


@contextmanager
def _process(command: list[str], log: IO[bytes] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output is read, or written to a log."""
    environment = {**os.environ, "TIDEMILL_SECRET_CRM": CANARY}
    out, err = (subprocess.PIPE, subprocess.DEVNULL) if log is None else (log, log)
    process = subprocess.Popen(command, env=environment, stdout=out, stderr=err)
    try:
        yield process
        assert process.poll() is None, f"{command[1:3]} has ended"
    finally:
        process.kill()
        process.wait()


def attack(store: str, places: dict[str, str]) -> None:
    """Run all attacks again and again, several at a time, until this process is killed."""
    with tidemill.open(store, work=False) as mill:
        documents = _published(mill, places)
        print(len(documents), flush=True)
        queue = cycle(documents)

        def work() -> None:
            while True:
                name, inputs = next(queue)
                with suppress(TimeoutError, tidemill.Rejected):
                    run_id = mill.start(name, inputs)
                    try:
                        mill.result(run_id, timeout_s=WAIT_SECONDS)
                    except TimeoutError:
                        mill.cancel(run_id)
                # In one piece: the lines of threads must not mix.
                print(f"{name}\n", end="", flush=True)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(ATTACKS_AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _latencies(mill: Any, ends: Callable[[float], bool]) -> list[float]:
    """Milliseconds from the start of a run to its result, one run after the other, until it `ends` by its seconds."""
    took: list[float] = []
    first = time.monotonic()
    while not ends(time.monotonic() - first):
        began = time.perf_counter()
        run = mill.result(mill.start("probe"), timeout_s=300)
        took.append((time.perf_counter() - began) * 1000)
        assert run.status == "COMPLETED", run.error
        time.sleep(0.02)
    return took


def _p99(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.99)]


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    attack(sys.argv[1], json.loads(sys.argv[2]))
