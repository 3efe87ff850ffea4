"""Committed events as spans: one for a run, for each attempt, and for each call of a model or a tool.

A span is made by the process that commits its end, so there is one for each fact in the log, whichever workers a run
had. All ids follow from the run, the node and the number of the attempt: the spans inside an attempt know it before it
has ended. Made only when spans are wanted; everything that writes to it checks for None first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tidemill.agents.conversation import Record, reply_of
from tidemill.blobs.contract import Blobs
from tidemill.errors import TidemillError
from tidemill.kernel.events import (
    AnyEvent,
    BlobRef,
    CompensationCompleted,
    CompensationFailed,
    Error,
    NodeAppended,
    NodeCancelled,
    NodeCompleted,
    NodeEvent,
    NodeFailed,
    NodeSkipped,
    NodeStarted,
    NodeWaiting,
    Payload,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
)
from tidemill.kernel.model import Workflow
from tidemill.kernel.state import State, peek_at
from tidemill.observability.tracing import SpanPlace, Tracing, id_of, read_traceparent
from tidemill.stores.contract import Stream

LOG = logging.getLogger(__name__)

_RUN_ENDS: Mapping[type, str] = {RunCompleted: "COMPLETED", RunFailed: "FAILED", RunCancelled: "CANCELLED"}
_ATTEMPT_ENDS: Mapping[type, str] = {
    NodeCompleted: "completed",
    NodeFailed: "failed",
    NodeWaiting: "waiting",
    NodeSkipped: "skipped",
    NodeCancelled: "cancelled",
}
_PROVIDERS = {"openai_responses": "openai"}
"""What the conventions call providers, where it is another word than ours."""
_MODEL_NODES = frozenset({"llm", "classify"})
"""Node types whose result describes the model call; agents record each call."""
_USAGE = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
}

Values = dict[str, Any]


class RunSpans:
    def __init__(self, tracing: Tracing, blobs: Blobs) -> None:
        self._tracing, self._blobs = tracing, blobs
        self._reading: set[asyncio.Task[None]] = set()
        """Records that are read from the blobs first."""
        self.enter = tracing.enter
        """Makes the span of an attempt the parent of those that its handler makes itself."""

    def traceparent(self, stream: Stream, state: State, node: str, visit: int, index: int, attempt: int) -> str:
        """The context of an attempt, for what it calls and the children that it starts."""
        trace = self._trace(stream, state)
        return str(trace.at(node, visit, index, attempt))

    def committed(
        self, stream: Stream, flow: Workflow, before: State, after: State, events: Sequence[AnyEvent]
    ) -> None:
        """Make the spans that end with this commit. Whatever fails here, the commit is durable."""
        try:
            self._committed(stream, flow, before, after, events)
        except Exception:
            LOG.exception("the spans of run %s could not be created", stream.key)

    async def close(self) -> None:
        await asyncio.gather(*self._reading, return_exceptions=True)
        await self._tracing.close()

    def _trace(self, stream: Stream, state: State) -> _Trace:
        given = read_traceparent(state.trace) if state.trace and state.forked_from is None else None
        trace_id = id_of(stream.tenant, stream.key, size=16) if given is None else given.trace_id
        sampled = self._tracing.samples(trace_id, f"run {state.workflow}") if given is None else given.sampled
        return _Trace(self._tracing, stream, state, trace_id, given, sampled)

    def _committed(
        self, stream: Stream, flow: Workflow, before: State, after: State, events: Sequence[AnyEvent]
    ) -> None:
        first, seq = events[0], before.seq
        if isinstance(first, RunCreated) and first.forked_from is not None:
            # The events before were copied, and the other run has their spans.
            seq, events = seq + first.forked_from[1], events[first.forked_from[1] :]
        if not any(type(event) in _SPANNED for event in events):
            return
        trace = self._trace(stream, after)
        if not trace.sampled:
            return
        running = _Running(before)
        for number, event in enumerate(events, seq + 1):
            if isinstance(event, NodeStarted):
                running.begin(event)
            elif isinstance(event, NodeAppended):
                self._appended(trace, event, number)
            elif type(event) in _RUN_ENDS:
                trace.run_ended(event, before.ended_seq, number)
            elif isinstance(event, (CompensationCompleted, CompensationFailed)):
                trace.compensated(event)
            elif isinstance(event, NodeEvent) and type(event) in _ATTEMPT_ENDS:
                self._ended(trace, flow, event, running, number)

    def _ended(self, trace: _Trace, flow: Workflow, event: NodeEvent, running: _Running, seq: int) -> None:
        began = running.end(event)
        if began is None:
            # No handler was called: a condition, the list of a map, the end of a wait.
            return
        attempt, began_ms = began
        node = flow.by_id.get(event.node)
        kind = "" if node is None else node.type.partition("@")[0]
        place = trace.at(event.node, event.visit, event.index, attempt)
        if kind in _MODEL_NODES and isinstance(event, NodeCompleted):
            self._read(trace, event.output, lambda value: trace.answered(place, seq, event, value))
        trace.attempted(place, event, kind, attempt, began_ms)

    def _appended(self, trace: _Trace, event: NodeAppended, seq: int) -> None:
        place = trace.at(event.node, event.visit, event.index, event.attempt)
        self._read(trace, event.value, lambda record: trace.recorded(place, seq, event.at_ms, record))

    def _read(self, trace: _Trace, payload: Payload, use: Callable[[Any], None]) -> None:
        """Use the value of a payload: at once, or when it was read."""
        if not isinstance(payload, BlobRef):
            use(msgspec.json.decode(payload))
            return

        async def read(digest: str) -> None:
            try:
                use(msgspec.json.decode(await self._blobs.get(trace.stream.tenant, digest)))
            except TidemillError as error:
                LOG.warning("the span of a large record could not be created: %s", error)

        task = asyncio.create_task(read(payload.digest), name="tidemill-span")
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)


_SPANNED = frozenset({*_RUN_ENDS, *_ATTEMPT_ENDS, NodeAppended, CompensationCompleted, CompensationFailed})


class _Running:
    """The attempts that were begun before a commit, or in it."""

    def __init__(self, before: State) -> None:
        self._before = before
        self._known: dict[tuple[str, int, int], tuple[int, int] | None] = {}

    def begin(self, event: NodeStarted) -> None:
        self._known[event.node, event.visit, event.index] = event.attempt, event.at_ms

    def end(self, event: NodeEvent) -> tuple[int, int] | None:
        """The number of the attempt that ends and the time of its begin; None if there was none."""
        key = (event.node, event.visit, event.index)
        if key not in self._known:
            visit = self._before.peek(event.node)
            act = peek_at(visit, event.index) if visit.visit == event.visit else None
            self._known[key] = (act.attempt, act.since_ms) if act is not None and act.running else None
        found, self._known[key] = self._known[key], None
        return found


class _Trace:
    """The spans of one run."""

    def __init__(
        self, tracing: Tracing, stream: Stream, state: State, trace_id: int, caller: SpanPlace | None, sampled: bool
    ) -> None:
        self._tracing, self._state, self._caller = tracing, state, caller
        self.stream, self._trace_id, self.sampled = stream, trace_id, sampled
        self._run = self._place("run")

    def _place(self, *parts: object) -> SpanPlace:
        return SpanPlace(self._trace_id, id_of(self.stream.tenant, self.stream.key, *parts), self.sampled)

    def at(self, node: str, visit: int, index: int, attempt: int) -> SpanPlace:
        return self._place("attempt", node, visit, index, attempt)

    def _about(self) -> Values:
        state = self._state
        return {
            "tidemill.run.id": self.stream.key,
            "tidemill.tenant": self.stream.tenant,
            "tidemill.workflow.name": state.workflow,
            "tidemill.workflow.version": state.version,
        }

    def _failure(self, error: Error) -> str:
        """What a span says of a failure: a message may hold content."""
        return error.message if self._tracing.content else ""

    def run_ended(self, event: AnyEvent, ended_before: int, seq: int) -> None:
        """A run that is reopened gets one more span for each later end, below the first one."""
        state, about = self._state, self._about() | {"tidemill.run.status": _RUN_ENDS[type(event)]}
        if state.correlation_id:
            about["tidemill.correlation.id"] = state.correlation_id
        if state.parent is not None:
            about["tidemill.parent.run.id"] = state.parent[0]
        spent = state.spent
        if spent.calls:
            names = ("calls", "tokens", "cost")
            amounts = (spent.calls, spent.tokens, spent.cost)
            about |= {f"tidemill.spent.{name}": amount for name, amount in zip(names, amounts, strict=True)}
        error = None
        if isinstance(event, RunFailed):
            about["error.type"], error = event.error.code, self._failure(event.error)
        place, parent = (self._place("end", seq), self._run) if ended_before else (self._run, self._caller)
        link = None
        if state.forked_from is not None:
            tenant, origin = self.stream.tenant, state.forked_from[0]
            given = read_traceparent(state.trace)
            trace_id = id_of(tenant, origin, size=16) if given is None else given.trace_id
            link = SpanPlace(trace_id, id_of(tenant, origin, "run"), self.sampled)
        name = f"run {state.workflow}"
        self._tracing.span(name, place, parent, state.created_ms, event.at_ms, about, error=error, link=link)

    def attempted(self, place: SpanPlace, event: NodeEvent, kind: str, attempt: int, began_ms: int) -> None:
        about = self._about() | _activation(event, attempt) | {"tidemill.node.type": kind}
        outcome, error = _ATTEMPT_ENDS[type(event)], None
        if isinstance(event, NodeFailed):
            outcome = outcome if event.retry_at_ms is None else "retrying"
            about["error.type"], error = event.error.code, self._failure(event.error)
        if isinstance(event, NodeWaiting):
            about["tidemill.waiting.on"] = event.on
        worker = getattr(event, "worker", "")
        about |= {"tidemill.outcome": outcome} | ({"tidemill.worker": worker} if worker else {})
        name = f"{kind} {event.node}".lstrip()
        if kind == "agent":
            name = f"invoke_agent {event.node}"
            about |= {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": event.node}
        self._tracing.span(name, place, self._run, began_ms, event.at_ms, about, error=error)

    def compensated(self, event: CompensationCompleted | CompensationFailed) -> None:
        place = self._place("undo", event.node, event.visit, event.index, event.attempt)
        about, error = self._about() | _activation(event, event.attempt), None
        about["tidemill.outcome"] = "completed"
        if isinstance(event, CompensationFailed):
            about["tidemill.outcome"] = "failed" if event.retry_at_ms is None else "retrying"
            about["error.type"], error = event.error.code, self._failure(event.error)
        began_ms = event.at_ms - event.duration_ms
        self._tracing.span(f"compensate {event.node}", place, self._run, began_ms, event.at_ms, about, error=error)

    # Calls of models and tools

    def recorded(self, attempt: SpanPlace, seq: int, at_ms: int, record: Record) -> None:
        """The span of an agent's record, if it describes a call."""
        match record.get("t"):
            case "reply":
                self._replied(attempt, seq, at_ms, record)
            case "failed" if "ms" in record:
                about = _asked(*record.get("asked", ())) | {"error.type": record["code"]}
                error = record["message"] if self._tracing.content else ""
                self._model(attempt, seq, at_ms, record.get("ms", 0), about, error=error)
            case "tool":
                self._called(attempt, seq, at_ms, record)

    def _replied(self, attempt: SpanPlace, seq: int, at_ms: int, record: Record) -> None:
        reply = reply_of(record)
        about = _asked(reply.provider, record.get("asked", reply.model))
        usage = {} if reply.usage is None else msgspec.structs.asdict(reply.usage)
        about |= _answered(reply.model, usage, reply.cost, reply.finish_reason)
        if self._tracing.content:
            parts: list[Values] = [{"type": "text", "content": reply.text}] if reply.text else []
            for call in reply.tool_calls:
                words = {"id": call.id, "name": call.name, "arguments": call.arguments_text}
                parts.append({"type": "tool_call", **words})
            about |= _said(parts, reply.finish_reason)
        self._model(attempt, seq, at_ms, record.get("ms", 0), about)

    def answered(self, attempt: SpanPlace, seq: int, event: NodeCompleted, output: Values) -> None:
        """The model call of a node, as its result describes it."""
        model, finish = output.get("model", ""), output.get("finish_reason", "")
        about = _asked(output.get("provider", ""), model)
        about |= _answered(model, output.get("usage") or {}, output.get("cost"), finish)
        if self._tracing.content and output.get("text"):
            about |= _said([{"type": "text", "content": output["text"]}], finish)
        self._model(attempt, seq, event.at_ms, event.duration_ms, about, failed=output.get("failed_calls", ()))

    def _model(
        self,
        attempt: SpanPlace,
        seq: int,
        at_ms: int,
        took_ms: int,
        about: Values,
        *,
        error: str | None = None,
        failed: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """The call of a model; calls of other models that failed before are events of its span."""
        name = f"chat {about.get('gen_ai.request.model', '')}".rstrip()
        events = [
            ("fallback", _asked(each["provider"], each["model"]) | {"error.type": each["code"]}) for each in failed
        ]
        about = self._about() | {"gen_ai.operation.name": "chat"} | about
        place, began_ms = self._place("call", seq), at_ms - took_ms
        self._tracing.span(name, place, attempt, began_ms, at_ms, about, error=error, client=True, events=events)

    def _called(self, attempt: SpanPlace, seq: int, at_ms: int, record: Record) -> None:
        tool, failed, error = record.get("name", ""), record.get("error", ""), None
        about = self._about() | {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "gen_ai.tool.call.id": record.get("id", ""),
            "gen_ai.tool.type": "function",
        }
        if record.get("run"):
            about["tidemill.child.run.id"] = record["run"]
        if failed:
            about["error.type"], error = failed, ""
        if self._tracing.content:
            about["gen_ai.tool.call.result"] = record["text"]
        place, began_ms = self._place("call", seq), at_ms - record.get("ms", 0)
        self._tracing.span(f"execute_tool {tool}".rstrip(), place, attempt, began_ms, at_ms, about, error=error)


def _activation(event: NodeEvent, attempt: int) -> Values:
    about: Values = {"tidemill.node.id": event.node, "tidemill.visit": event.visit, "tidemill.attempt": attempt}
    return about if event.index < 0 else about | {"tidemill.item": event.index}


def _asked(provider: str = "", model: str = "") -> Values:
    about = {"gen_ai.provider.name": _PROVIDERS.get(provider, provider), "gen_ai.request.model": model}
    return {name: value for name, value in about.items() if value}


def _answered(model: str, usage: Mapping[str, int], cost: float | None, finish: str) -> Values:
    about: Values = {_USAGE[name]: count for name, count in usage.items() if name in _USAGE}
    about |= {"gen_ai.response.model": model} if model else {}
    about |= {"gen_ai.response.finish_reasons": [finish]} if finish else {}
    return about if cost is None else about | {"tidemill.cost": cost}


def _said(parts: Sequence[Values], finish: str) -> Values:
    message = {"role": "assistant", "parts": parts, "finish_reason": finish}
    return {"gen_ai.output.messages": msgspec.json.encode([message]).decode()}
