"""Prometheus metrics of a process: their names, labels and buckets, the text that a scraper reads, and its server.

The engine writes them at its seams; stores and handlers know nothing of them. prometheus-client comes with the extra
`metrics` and is imported when `Metrics` is made, so a process without metrics never loads it. No label has more than a
few dozen values: statuses, outcomes, verbs of the store, and the names of at most `QUEUES_MAX` queues.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill.errors import rejected

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

    from prometheus_client import CollectorRegistry, Counter, Histogram
    from prometheus_client.core import GaugeMetricFamily

HOP_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
STORE_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
QUEUES_MAX = 50
OTHER_QUEUES = "other"
LOOPBACK = "127.0.0.1"
REQUEST_SECONDS_MAX = 10
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_CREATED = re.compile(rb"^(?:# (?:HELP|TYPE) )?tidemill_\w+_created\b.*\n", re.MULTILINE)
"""When each counter was made, which the library adds: twice as many samples, and the start of the process says it."""

OUTCOMES = ("completed", "failed", "tolerated", "retrying", "upstream_failed", "skipped", "cancelled", "waiting")
RETRIES = ("error", "timeout", "worker_lost", "compensation", "operator")
STATUSES = ("COMPLETED", "FAILED", "CANCELLED")
HOPS = ("handover", "claim")
FENCES = ("commit", "renewal")


class Gauge(NamedTuple):
    """A value that is read at scrape time; its labels, each with a value."""

    name: str
    value: float
    labels: Mapping[str, str] = {}


_GAUGES = {
    "tidemill_runs_live": "Runs that have not ended, by status.",
    "tidemill_runs_stuck": "Runs that make no progress and wait for nothing known.",
    "tidemill_approvals_waiting": "Approvals that wait for a decision.",
    "tidemill_dead_letters_open": "Failures that wait for an operator.",
    "tidemill_queue_jobs": "Jobs by queue and state: ready, leased, or due later.",
    "tidemill_queue_oldest_seconds": "How long the oldest ready job of a queue has been waiting.",
}
"""Gauges of the store, with their help."""


class _StoreValues:
    """Collects the gauges as they were last read."""

    def __init__(self) -> None:
        self.gauges: Sequence[Gauge] = ()

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        from prometheus_client.core import GaugeMetricFamily

        gauges = self.gauges
        for name, help_ in _GAUGES.items():
            found = [gauge for gauge in gauges if gauge.name == name]
            if found:
                family = GaugeMetricFamily(name, help_, labels=tuple(found[0].labels))
                for gauge in found:
                    family.add_metric(tuple(gauge.labels.values()), gauge.value)
                yield family


class Metrics:
    """The metrics of one process. Every method may be called from any thread."""

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
        except ImportError:
            message = "metrics need the package prometheus-client, which is not installed"
            raise rejected("extra_missing", message, hint="pip install 'tidemill[metrics]'") from None
        self.registry: CollectorRegistry = CollectorRegistry()
        self._values = _StoreValues()
        self.registry.register(self._values)
        ProcessCollector(registry=self.registry)

        def counter(name: str, help_: str, label: str = "", values: Sequence[str] = ()) -> dict[str, Counter]:
            made = Counter(f"tidemill_{name}", help_, (label,) if label else (), registry=self.registry)
            return {value: made.labels(value) for value in values} if label else {"": made}

        def histogram(name: str, help_: str, label: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"tidemill_{name}", help_, (label,), buckets=buckets, registry=self.registry)

        self._started = counter("runs_started", "Runs that this process started.")[""]
        self._ended = counter("runs_ended", "Runs whose end this process committed.", "status", STATUSES)
        self._nodes = counter("nodes", "Attempts and visits of nodes, by how they ended.", "outcome", OUTCOMES)
        self._emitted = counter("tokens_emitted", "Tokens that were emitted.")[""]
        self._consumed = counter("tokens_consumed", "Tokens that were consumed.")[""]
        self._retries = counter("retries", "Work that was scheduled again after a failure.", "kind", RETRIES)
        self._late = counter("late_results", "Results that came too late and were discarded.")[""]
        self._fenced = counter("fence_rejections", "Leases that another worker had taken over.", "at", FENCES)
        self._findings = counter("audit_findings", "Runs whose log violates an invariant.")[""]
        self._diverged = counter("counter_divergence", "Runs whose token counter differs from their log.")[""]
        hop = histogram("hop_seconds", "From ready to begun: a node's wait for its worker.", "path", HOP_SECONDS)
        self._hops = {path: hop.labels(path) for path in HOPS}
        self._store = histogram("store_seconds", "Calls of the store.", "verb", STORE_SECONDS)
        self._verbs: dict[str, Histogram] = {}

    # Written at the seams

    def run_started(self) -> None:
        self._started.inc()

    def run_ended(self, status: str) -> None:
        self._ended[status].inc()

    def node(self, outcome: str) -> None:
        self._nodes[outcome].inc()

    def tokens(self, emitted: int, consumed: int) -> None:
        self._emitted.inc(emitted)
        self._consumed.inc(consumed)

    def retry(self, kind: str) -> None:
        self._retries[kind].inc()

    def late_result(self) -> None:
        self._late.inc()

    def fenced(self, leases: int, at: str) -> None:
        self._fenced[at].inc(leases)

    def finding(self, *, diverged: bool) -> None:
        self._findings.inc()
        self._diverged.inc(diverged)

    def hop(self, path: str, seconds: float) -> None:
        self._hops[path].observe(max(0.0, seconds))

    def store_call(self, verb: str, seconds: float) -> None:
        known = self._verbs.get(verb)
        if known is None:
            known = self._verbs[verb] = self._store.labels(verb)
        known.observe(seconds)

    # Read by a scraper

    def set_gauges(self, gauges: Sequence[Gauge]) -> None:
        self._values.gauges = gauges

    def render(self) -> bytes:
        """All metrics as Prometheus reads them."""
        from prometheus_client import generate_latest

        return _CREATED.sub(b"", generate_latest(self.registry))


# The server


def read_address(text: str) -> tuple[str, int]:
    """The host and port of `HOST:PORT`, `[::1]:PORT` or `:PORT`, which is on the loopback device."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if (colon or not host) and port.isascii() and port.isdecimal() and int(port) < 65_536 and " " not in host:
        return host or LOOPBACK, int(port)
    raise rejected(
        "option_invalid", f"{text!r} is not an address", hint="write HOST:PORT, or :9100 for this machine only"
    )


class MetricsServer:
    """Serves `/metrics` in a thread of its own, so that a scraper gets an answer while the loop is blocked."""

    def __init__(self, host: str, port: int, text: Callable[[], bytes]) -> None:
        from http.server import ThreadingHTTPServer
        from socket import AF_INET, AF_INET6

        class Server(ThreadingHTTPServer):
            address_family = AF_INET6 if ":" in host else AF_INET
            daemon_threads = True

        try:
            self._server = Server((host, port), partial(_handler(), text))
        except OSError as error:
            message = f"metrics cannot be served at {host}:{port}: {error.strerror or error}"
            raise rejected("address_in_use", message, hint="choose another port, or stop what uses it") from None
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="tidemill-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler() -> Callable[..., BaseHTTPRequestHandler]:
    from http.server import BaseHTTPRequestHandler

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS_MAX

        def __init__(self, text: Callable[[], bytes], *request: Any) -> None:
            self._text = text
            super().__init__(*request)

        def do_GET(self) -> None:
            known = self.path.partition("?")[0] == "/metrics"
            body = self._text() if known else b"see /metrics\n"
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the server calls it
            """Scrapes are not logged."""

    return Handler
