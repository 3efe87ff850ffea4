"""`tidemill worker --metrics`: a scraper reads what a worker process did, also while its loop is blocked."""

from __future__ import annotations

import urllib.request

import tidemill
from tests.fixtures.command_line import process
from tests.fixtures.worker_processes import Place, calls, until
from tests.unit.observability.test_metrics import samples
from tidemill.cli import main

Here = tuple[Place, tidemill.Tidemill]


def scraped(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return samples(answer.read())


def test_a_worker_serves_what_it_counts(here: Here) -> None:
    place, mill = here
    worker = place.worker("--metrics", "127.0.0.1:0")
    url = worker.hears("ready")["metrics"]
    assert url.startswith("http://127.0.0.1:") and not url.endswith(":0/metrics")
    for _ in range(3):
        published = mill.publish(calls("work"))
        assert mill.result(mill.start(f"{published.name}@{published.version}"), timeout_s=60).status == "COMPLETED"
    found = scraped(url)
    assert found["tidemill_runs_ended_total status=COMPLETED"] == 3
    assert found["tidemill_hop_seconds_count path=claim"] >= 1
    assert found["tidemill_store_seconds_count verb=commit"] >= 1
    assert found["tidemill_queue_jobs queue=maintenance state=later"] >= 1
    assert found["process_resident_memory_bytes"] > 0
    worker.tell()
    assert worker.end() == main.OK


def test_counters_are_served_while_a_function_blocks_the_loop(here: Here) -> None:
    place, mill = here
    worker = place.worker("--metrics", ":0")
    url = worker.hears("ready")["metrics"]
    document = calls("block", seconds=8)
    document["nodes"][0]["config"]["isolation"] = "inline"
    published = mill.publish(document)
    run_id = mill.start(f"{published.name}@{published.version}")
    until(lambda: len(place.notes("begin")) == 1, "it did not begin")
    assert scraped(url)["tidemill_runs_ended_total status=COMPLETED"] == 0
    assert mill.result(run_id, timeout_s=60).status == "COMPLETED"


def test_an_address_that_cannot_be_used_is_refused(here: Here) -> None:
    place, _ = here
    ended = process("worker", "--store", place.url, "--metrics", "nowhere")
    assert ended.code == main.REFUSED and "is not an address" in ended.err
