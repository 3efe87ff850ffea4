"""Metrics as a scraper reads them: names, labels, buckets, and the small server."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidemill.errors import Rejected
from tidemill.observability.metrics import CONTENT_TYPE, Gauge, Metrics, MetricsServer, read_address


def samples(text: bytes) -> dict[str, float]:
    """Every sample by its name and labels."""
    return {
        sample.name + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_everything_is_there_before_anything_happened() -> None:
    found = samples(Metrics().render())
    for name in (
        "tidemill_runs_started_total",
        "tidemill_runs_ended_total status=FAILED",
        "tidemill_nodes_total outcome=completed",
        "tidemill_tokens_emitted_total",
        "tidemill_tokens_consumed_total",
        "tidemill_retries_total kind=worker_lost",
        "tidemill_late_results_total",
        "tidemill_fence_rejections_total at=commit",
        "tidemill_counter_divergence_total",
        "tidemill_hop_seconds_count path=handover",
    ):
        assert found[name] == 0, name
    buckets = [name for name in found if name.startswith("tidemill_hop_seconds_bucket")]
    assert "tidemill_hop_seconds_bucket le=0.0001 path=claim" in buckets
    assert "tidemill_hop_seconds_bucket le=5.0 path=claim" in buckets
    assert not [name for name in found if "_created" in name]


def test_what_is_written_is_read() -> None:
    metrics = Metrics()
    metrics.run_started()
    metrics.run_ended("FAILED")
    metrics.node("completed")
    metrics.tokens(3, 2)
    metrics.retry("timeout")
    metrics.late_result()
    metrics.fenced(2, "renewal")
    metrics.finding(diverged=True)
    metrics.finding(diverged=False)
    metrics.hop("claim", 0.0002)
    metrics.hop("claim", -1.0)
    metrics.store_call("commit", 0.003)
    metrics.set_gauges([Gauge("tidemill_queue_jobs", 4, {"queue": 'a"b\n', "state": "ready"})])
    found = samples(metrics.render())
    assert found["tidemill_runs_ended_total status=FAILED"] == found["tidemill_nodes_total outcome=completed"] == 1
    assert (found["tidemill_tokens_emitted_total"], found["tidemill_tokens_consumed_total"]) == (3, 2)
    assert found["tidemill_fence_rejections_total at=renewal"] == found["tidemill_audit_findings_total"] == 2
    assert found["tidemill_counter_divergence_total"] == 1
    assert found["tidemill_hop_seconds_bucket le=0.0001 path=claim"] == 1
    assert found["tidemill_hop_seconds_bucket le=0.00025 path=claim"] == 2
    assert found["tidemill_store_seconds_count verb=commit"] == 1
    assert found['tidemill_queue_jobs queue=a"b\n state=ready'] == 4


def test_two_engines_of_a_process_have_their_own_metrics() -> None:
    one, other = Metrics(), Metrics()
    one.run_started()
    assert samples(other.render())["tidemill_runs_started_total"] == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":9100", ("127.0.0.1", 9100)),
        ("9100", ("127.0.0.1", 9100)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("[::1]:9100", ("::1", 9100)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_an_address_is_on_the_loopback_device_unless_it_says_otherwise(text: str, expected: tuple[str, int]) -> None:
    assert read_address(text) == expected


@pytest.mark.parametrize("text", ["", "host", "host:", ":x", "a:70000", "a b:1", "a:-1", "a:١"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(Rejected) as refusal:
        read_address(text)
    assert refusal.value.code == "option_invalid" and ":9100" in refusal.value.problems[0].hint


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    server = MetricsServer("127.0.0.1", 0, lambda: b"some_metric 1\n")
    yield server
    server.close()


def test_the_server_answers_scrapes_and_nothing_else(server: MetricsServer) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics?x=1", timeout=30) as answer:
        assert (answer.status, answer.read()) == (200, b"some_metric 1\n")
        assert answer.headers["Content-Type"] == CONTENT_TYPE
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/", timeout=30)
    assert refused.value.code == 404
    refused.value.close()


def test_an_address_in_use_is_a_refusal(server: MetricsServer) -> None:
    with pytest.raises(Rejected) as refusal:
        MetricsServer("127.0.0.1", server.port, lambda: b"")
    assert refusal.value.code == "address_in_use"


WITHOUT = """
import sys
sys.modules["prometheus_client"] = None
import tidemill.bootstrap, tidemill.client
from tidemill.errors import Rejected
engine = tidemill.bootstrap.engine_at("memory://")
assert engine.metrics is None
try:
    tidemill.bootstrap.engine_at("memory://", metrics=True)
except Rejected as refusal:
    print(refusal.code, refusal.problems[0].hint)
"""


def test_only_metrics_need_the_extra() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "extra_missing pip install 'tidemill[metrics]'"
