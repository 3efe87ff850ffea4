"""OpenTelemetry: where spans go, their ids, and trace contexts as W3C writes them (`traceparent`).

The ids of spans follow from what they stand for, so that processes agree about the parent of a span that none of them
has made yet. OpenTelemetry comes with the extra `otel`; it is imported when the first span is made, so a process
without tracing never loads it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill.errors import rejected
from tidemill.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Tracer
    from opentelemetry.trace import TracerProvider

LOG = logging.getLogger(__name__)

NS = 1_000_000
CLOSE_SECONDS_MAX = 5.0
"""How long the end of a process waits until its last spans are sent."""
EXPORTERS = "opentelemetry_traces_exporter"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
INSTALL = "pip install 'tidemill[otel]'"

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]


class SpanPlace(NamedTuple):
    """A span in its trace; `span_id` is 0 where there is none."""

    trace_id: int
    span_id: int
    sampled: bool = True

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


def id_of(*parts: object, size: int = 8) -> int:
    """An id that follows from its parts: of a span with 8 bytes, of a trace with 16."""
    text = "\0".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=size).digest()) or 1


def read_traceparent(text: str) -> SpanPlace | None:
    """What a `traceparent` says; None if it is invalid: the standard wants that ignored."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    return SpanPlace(trace_id, span_id, bool(int(found[4], 16) & 1)) if trace_id and span_id else None


def traceparent_of(text: str | None) -> str:
    """A `traceparent` as runs keep it; empty if there is none, or an invalid one."""
    place = None if not text else read_traceparent(text.strip())
    return "" if place is None else str(place)


def current_traceparent() -> str:
    """The `traceparent` of the span that the caller is in; empty where nothing uses OpenTelemetry."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return ""
    context = api.get_current_span().get_span_context()
    return str(SpanPlace(context.trace_id, context.span_id, context.trace_flags.sampled)) if context.is_valid else ""


def wanted_by_environment() -> bool:
    """Whether the variables of OpenTelemetry say where spans go."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    return exporter != "none" if exporter else any(os.environ.get(name) for name in ENDPOINTS)


def tracing_of(
    provider: TracerProvider | None = None, *, enabled: bool | None = None, content: bool = False
) -> Tracing | None:
    """Tracing with a provider; without one if it is `enabled`, or the environment wants it. None is no tracing."""
    if provider is None:
        wanted = wanted_by_environment() if enabled is None else enabled
        if not wanted:
            return None
        if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
            if enabled is None:
                LOG.warning("OTEL_* variables ask for spans, but OpenTelemetry is not installed: %s", INSTALL)
                return None
            message = "tracing needs the package opentelemetry-sdk, which is not installed"
            raise rejected("extra_missing", message, hint=INSTALL)
    return Tracing(provider, content=content)


class Tracing:
    """Makes spans with the ids that they are given."""

    def __init__(self, provider: TracerProvider | None = None, *, content: bool = False) -> None:
        self.content = content
        """Spans also hold what models and tools said."""
        self._provider, self._owned, self._tracer = provider, False, None if provider is None else _tracer_of(provider)

    def open(self) -> Tracer:
        """Load OpenTelemetry and find out where spans go; raises `Rejected`."""
        if self._tracer is None:
            self._provider = _global_provider()
            if self._provider is None:
                self._provider, self._owned = _provider_of_environment(), True
            self._tracer = _tracer_of(self._provider)
        return self._tracer

    def samples(self, trace_id: int, name: str) -> bool:
        """Whether a trace that begins here is recorded; all processes decide the same."""
        from opentelemetry.context import Context
        from opentelemetry.sdk.trace.sampling import Decision

        decision = self.open().sampler.should_sample(Context(), trace_id, name).decision
        return decision is Decision.RECORD_AND_SAMPLE

    def span(
        self,
        name: str,
        place: SpanPlace,
        parent: SpanPlace | None,
        began_ms: int,
        ended_ms: int,
        attributes: Attributes,
        *,
        error: str | None = None,
        client: bool = False,
        link: SpanPlace | None = None,
        events: Sequence[tuple[str, Attributes]] = (),
    ) -> None:
        """Record a span that has ended. `error`: it has failed, and what may be said of that."""
        from opentelemetry.context import Context
        from opentelemetry.trace import Link, SpanKind, StatusCode

        tracer = self.open()
        _NEXT.place = place
        span = tracer.start_span(
            name,
            context=Context() if parent is None else _context_at(parent),
            kind=SpanKind.CLIENT if client else SpanKind.INTERNAL,
            attributes=dict(attributes),
            links=[] if link is None else [Link(_span_context(link))],
            start_time=min(began_ms, ended_ms) * NS,
        )
        for event, details in events:
            span.add_event(event, dict(details), timestamp=ended_ms * NS)
        if error is not None:
            span.set_status(StatusCode.ERROR, error or None)
        span.end(end_time=ended_ms * NS)

    def enter(self, traceparent: str) -> None:
        """Make a span the current one of this context, so that spans of a handler become its children."""
        from opentelemetry.context import attach

        place = read_traceparent(traceparent)
        if place is not None:
            attach(_context_at(place))

    async def close(self) -> None:
        """Send what is left, unless the provider belongs to others."""
        provider = self._provider
        if provider is None or not self._owned:
            return
        self._provider = self._tracer = None
        over, loop = asyncio.Event(), asyncio.get_running_loop()

        def shut_down() -> None:
            try:
                provider.shutdown()  # type: ignore[attr-defined]
            finally:
                loop.call_soon_threadsafe(over.set)

        # No thread of a pool: one that still waits for the receiver must not keep the process.
        threading.Thread(target=shut_down, name="tidemill-spans-end", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await over.wait()
        except TimeoutError:
            LOG.warning("the last spans could not be sent within %g seconds", CLOSE_SECONDS_MAX)


class _Next(threading.local):
    place: SpanPlace


_NEXT = _Next()
"""The ids of the span that this thread makes next."""


def _tracer_of(provider: TracerProvider) -> Tracer:
    from opentelemetry.sdk.trace import Tracer
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class GivenIds(IdGenerator):
        def generate_span_id(self) -> int:
            return _NEXT.place.span_id

        def generate_trace_id(self) -> int:
            return _NEXT.place.trace_id

    tracer = provider.get_tracer("tidemill", __version__)
    if not isinstance(tracer, Tracer):
        message = (
            f"{type(provider).__name__} is not a provider of opentelemetry-sdk, or OTEL_SDK_DISABLED switches it off"
        )
        hint = "pass opentelemetry.sdk.trace.TracerProvider()"
        raise rejected("tracer_provider_invalid", message, path="/tracer_provider", hint=hint)
    # No one else uses the tracer of this name.
    tracer.id_generator = GivenIds()
    return tracer


def _global_provider() -> TracerProvider | None:
    """The provider that the program around has set up, if it has."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    provider = trace.get_tracer_provider()
    return provider if isinstance(provider, TracerProvider) else None


def _provider_of_environment() -> TracerProvider:
    """A provider as the `OTEL_*` variables describe it."""
    from importlib.metadata import entry_points

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    own = {} if named else {"service.name": "tidemill"}
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    exporters = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    for name in filter(None, (each.strip().lower() for each in exporters.split(","))):
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        entry = PROTOCOLS.get(protocol or "http/protobuf", f"{protocol}") if name == "otlp" else name
        found = next(iter(entry_points(group=EXPORTERS, name=entry)), None)
        if found is None:
            message = f"there is no exporter {entry} of spans"
            hint = f"{INSTALL} has otlp over http/protobuf; others are packages of their own"
            raise rejected("extra_missing", message, path="OTEL_TRACES_EXPORTER", hint=hint)
        provider.add_span_processor(BatchSpanProcessor(found.load()()))
    return provider


def _span_context(place: SpanPlace) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(place.trace_id, place.span_id, is_remote=True, trace_flags=TraceFlags(int(place.sampled)))


def _context_at(place: SpanPlace) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    return set_span_in_context(NonRecordingSpan(_span_context(place)), Context())
