"""A standing attack: the rows of `tests/attacks` in a loop on one worker, and runs of others beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import apsw

import tidemill
from benches.figures import Figure, Note
from tests.attacks.corpus import CORPUS
from tests.attacks.review import CANARY, ROWS, Answer, Run
from tests.attacks.test_review import Server, filled

RUNS = [row for row in (*ROWS, *CORPUS) if isinstance(row, Run)]
SECONDS = 60
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
        with _process(command) as worker, tidemill.open(store, work=False) as mill:
            mill.publish(PROBE)
            alone = _latencies(mill, SECONDS / 6)
            attacker = [sys.executable, "-m", "benches.bench_attacks", store, json.dumps(places)]
            with _process(attacker) as attacks:
                assert attacks.stdout is not None
                documents = int(attacks.stdout.readline())
                took = _latencies(mill, SECONDS)
            runs = len(attacks.stdout.readlines())
            memory = _peak_mb(worker.pid)
    yield Note(f"{documents} attacks, {runs} runs of them in {SECONDS} s, {len(took)} runs beside them")
    yield Figure("run of one node alone, p99", _p99(alone), "ms")
    yield Figure("run of one node beside a standing attack, p50", sorted(took)[len(took) // 2], "ms")
    yield Figure("run of one node beside a standing attack, p99", _p99(took), "ms", must=P99_MS_MUST)
    yield Figure("run of one node beside a standing attack, longest", max(took), "ms")
    yield Figure("memory of the worker under attack, peak", memory, "MB", must=MEMORY_MB_MUST)


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
def _process(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "TIDEMILL_SECRET_CRM": CANARY}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
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
                print(name, flush=True)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(ATTACKS_AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _latencies(mill: Any, seconds: float) -> list[float]:
    """Milliseconds from the start of a run to its result, one run after the other."""
    took = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
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
