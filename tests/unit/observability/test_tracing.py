"""Trace contexts, who wants spans, and real processes that send them to a receiver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.fixtures.worker_processes import until
from tidemill.errors import Rejected
from tidemill.observability.tracing import (
    Tracing,
    current_traceparent,
    read_traceparent,
    traceparent_of,
    tracing_of,
    wanted_by_environment,
)

VALID = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_traceparents() -> None:
    place = read_traceparent(VALID)
    assert place is not None and str(place) == VALID
    assert traceparent_of(f" {VALID} ") == VALID
    assert traceparent_of(VALID.replace("00-", "01-", 1) + "-more") == VALID, "a later version may say more"
    assert not (read_traceparent(VALID[:-1] + "0") or place).sampled


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", VALID.upper(), VALID + "-more", VALID.replace("00-", "ff-", 1), VALID + "\n", "00-" + "1" * 52),
        VALID.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        VALID.replace("00f067aa0ba902b7", "0" * 16),
    ],
)
def test_an_invalid_traceparent_is_ignored(text: str) -> None:
    assert read_traceparent(text) is None
    assert traceparent_of(None) == ""


def test_no_span_no_traceparent() -> None:
    assert current_traceparent() == ""


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
    ],
)
def test_the_environment_says_whether_spans_are_wanted(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], wanted: bool
) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert wanted_by_environment() is wanted
    assert (tracing_of() is not None) is wanted
    assert tracing_of(enabled=False) is None


def test_an_exporter_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "carrier-pigeon")
    with pytest.raises(Rejected) as refusal:
        Tracing().open()
    assert (refusal.value.code, refusal.value.problems[0].path) == ("extra_missing", "OTEL_TRACES_EXPORTER")


def test_only_a_provider_of_the_sdk_makes_spans() -> None:
    from opentelemetry.trace import NoOpTracerProvider

    with pytest.raises(Rejected) as refusal:
        tracing_of(NoOpTracerProvider())
    assert refusal.value.code == "tracer_provider_invalid"


OFF = """
import sys
from tidemill.bootstrap import engine_at
import tidemill
with tidemill.open("memory://") as mill:
    mill.run({"name": "f", "nodes": [{"id": "a", "type": "value"}]})
print([name for name in sys.modules if name.startswith("opentelemetry")])
sys.modules["opentelemetry"] = None
from tidemill.settings import Settings, TracingSettings
try:
    engine_at("memory://", settings=Settings(tracing=TracingSettings(enabled=True)))
except tidemill.Rejected as refusal:
    print(refusal.code, refusal.problems[0].hint)
"""


def without_otel() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}


def test_without_tracing_nothing_is_loaded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OFF], capture_output=True, text=True, timeout=60, check=True, env=without_otel()
    )
    assert done.stdout.splitlines() == ["[]", "extra_missing pip install 'tidemill[otel]'"]


class Receiver:
    """Receives OTLP over HTTP on loopback."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        receiver = self

        class Requests(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/traces":
                    receiver.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, request: Any) -> None:
        for resource in request.resource_spans:
            named = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.services.add(named["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def names(self) -> list[str]:
        return sorted(span.name for span in self.spans)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


WORK = """
import asyncio, pathlib, sys, time
import tidemill
from tidemill.bootstrap import engine_at
store, hold = sys.argv[1:]

def look() -> str:
    pathlib.Path(hold).touch()
    while pathlib.Path(hold).exists():
        time.sleep(0.01)
    return "seen"

answers = [{"tool_calls": [{"name": "look", "arguments": {}}]}, "done"]
config = {"provider": "scripted", "model": "m", "prompt": "Go.", "answers": answers, "tools": ["look"]}
flow = {"name": "agency", "nodes": [{"id": "a", "type": "agent", "config": config}]}

async def work():
    functions = [tidemill.tool(look, read_only=True)]
    async with engine_at(store, functions=functions, beat_ms=300, dead_after_ms=1_500) as engine:
        await engine.run(flow, key="the-run")

asyncio.run(work())
"""


def test_killed_processes_send_one_trace(receiver: Receiver, tmp_path: Path) -> None:
    """The first process is killed while a tool works; the second one does the rest below the same run."""
    hold = tmp_path / "hold"
    given = [sys.executable, "-c", WORK, f"sqlite:////{tmp_path}/mill.db".replace("/////", "////"), str(hold)]
    environment = {**without_otel(), "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "10"}
    first = subprocess.Popen(given, env=environment)
    try:
        until(lambda: hold.exists() and receiver.names() == ["chat m"], "the tool works, and the reply has its span")
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    hold.unlink()
    second = subprocess.Popen(given, env=environment)
    try:
        until(hold.exists, "the second process calls the tool again: it only reads")
        hold.unlink()
        assert second.wait(60) == 0
    finally:
        second.kill()
        second.wait()
    names = ["chat m", "chat m", "execute_tool look", "invoke_agent a", "invoke_agent a", "run agency"]
    assert receiver.names() == names
    assert receiver.services == {"tidemill"}
    assert len({span.trace_id for span in receiver.spans}) == 1
    ids = {span.span_id for span in receiver.spans}
    assert len(ids) == len(names)
    assert [span.name for span in receiver.spans if span.parent_span_id not in ids] == ["run agency"]
