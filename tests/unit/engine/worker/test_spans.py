"""Spans of whole runs: one for a run, each attempt and each call of a model or a tool, whichever process commits it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import StatusCode

import tidemill
from tests.fixtures.agents import Model, at_work, of_agent
from tests.fixtures.api_server import api_server
from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import call
from tests.fixtures.servers.web import json_reply, web
from tidemill.bootstrap import engine_at
from tidemill.handlers.contract import Fail, NodeContext
from tidemill.net.egress import Egress
from tidemill.observability.tracing import Tracing, read_traceparent
from tidemill.settings import Settings

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECRET_WORDS = "the words of the model"


def fails_once(node_: str) -> dict[str, Any]:
    """The function `work`, whose first call by a node fails."""
    calls = Counter[str]()

    async def work(context: NodeContext) -> None:
        calls[context.node] += 1
        if calls[context.node] == 1 and context.node == node_:
            raise OSError(SECRET_WORDS)

    return {"work": work}


class Collected:
    """A provider that keeps its spans in memory."""

    def __init__(self, sampler: Sampler | None = None, *, content: bool = False) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._content = content

    @property
    def tracing(self) -> Tracing:
        return Tracing(self.provider, content=self._content)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        found: tuple[ReadableSpan, ...] = self._exporter.get_finished_spans()
        assert len({span_id(span) for span in found}) == len(found), "no span is made twice"
        return found

    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def one(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def about(span: ReadableSpan, *names: str) -> list[Any]:
    assert span.attributes is not None
    return [span.attributes.get(name) for name in names]


def is_tree(spans: Iterable[ReadableSpan]) -> bool:
    """Whether all spans are of one trace, and all but one have a parent among them."""
    spans = list(spans)
    ids = {span_id(span) for span in spans}
    roots = [span for span in spans if parent_id(span) not in ids]
    return len(roots) == 1 and len({span.context.trace_id for span in spans if span.context is not None}) == 1


@simulated
async def test_a_run_has_a_span_for_itself_and_for_each_attempt(mill: Cluster) -> None:
    collected = Collected()
    worker = await mill.process(functions=fails_once("b"), tracing=collected.tracing)
    retries = {"max_attempts": 2, "backoff_seconds": 3, "jitter": 0}
    run_id = await worker.start(document(call("a"), call("b", "a", retry=retries), name="trip"))
    assert (await worker.end(run_id)).status == "COMPLETED"
    assert sorted(collected.names()) == ["python a", "python b", "python b", "run trip"]
    assert is_tree(collected.spans)
    run, (failed, done) = collected.one("run trip"), collected.all("python b")
    assert {parent_id(span) for span in collected.spans if span is not run} == {span_id(run)}
    assert about(run, "tidemill.run.id", "tidemill.run.status") == [run_id, "COMPLETED"]
    assert about(failed, "tidemill.attempt", "tidemill.outcome", "error.type") == [1, "retrying", "exception"]
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, None)
    assert about(done, "tidemill.attempt", "tidemill.outcome", "error.type") == [2, "completed", None]
    state = await mill.state(run_id)
    assert (run.start_time, run.end_time) == (state.created_ms * 1_000_000, (state.ended_ms or 0) * 1_000_000)
    assert done.start_time is not None and failed.end_time is not None
    assert done.start_time - failed.end_time >= 3_000_000_000


@simulated
async def test_a_killed_worker_leaves_a_whole_trace(mill: Cluster) -> None:
    """Both processes agree about ids: what the second one makes hangs below spans of calls that the first one made."""
    collected, model = Collected(), Model({"add": {"a": 1, "b": 2}}, "done", takes_s=1.0)
    first = await at_work(mill, model, tracing=collected.tracing)
    run_id = await first.start(of_agent())
    await mill.until(lambda: len(model.asked) == 2)
    assert collected.names() == ["chat tiny", "execute_tool add"]
    first.kill()
    second = await at_work(mill, model, name="w2", tracing=collected.tracing)
    assert (await second.end(run_id)).status == "COMPLETED"
    names = ["chat tiny", "execute_tool add", "invoke_agent a", "chat tiny", "invoke_agent a", "run test"]
    assert collected.names() == names
    assert is_tree(collected.spans)
    lost, done = collected.all("invoke_agent a")
    assert about(lost, "error.type", "tidemill.attempt") == ["worker_lost", 1]
    assert about(done, "error.type", "tidemill.attempt") == [None, 2]
    assert [parent_id(span) for span in collected.all("chat tiny")] == [span_id(lost), span_id(done)]


@simulated
async def test_calls_of_models_and_tools_without_what_they_said(mill: Cluster) -> None:
    busy = Fail("rate_limited", SECRET_WORDS, retryable=True, retry_after_ms=10)
    for content in (False, True):
        collected = Collected(content=content)
        model = Model({"add": {"a": 1, "b": 2}}, busy, SECRET_WORDS)
        worker = await at_work(mill, model, name=f"w{content}", tracing=collected.tracing)
        run_id = await worker.start(of_agent(model="small"))
        await mill.until(lambda model=model: len(model.asked) == 3)
        model.script = (model.script[0], SECRET_WORDS)
        assert (await worker.end(run_id)).status == "COMPLETED"
        await worker.stop()
        first, failed, *_, last = collected.all("chat small")
        assert about(first, "gen_ai.operation.name", "gen_ai.provider.name") == ["chat", "scripted"]
        models = about(first, "gen_ai.request.model", "gen_ai.response.model", "gen_ai.response.finish_reasons")
        assert models == ["small", "tiny", ("tool_calls",)]
        counts = about(
            first,
            "gen_ai.usage.input_tokens",
            "gen_ai.usage.output_tokens",
            "gen_ai.usage.cache_read.input_tokens",
        )
        assert counts == [100, 20, 60]
        assert about(failed, "error.type", "gen_ai.provider.name") == ["rate_limited", "scripted"]
        tool = collected.one("execute_tool add")
        call_id = about(tool, "gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.operation.name")
        assert call_id == ["add", "c0", "execute_tool"]
        assert about(collected.one("run test"), "tidemill.spent.tokens") == [240]
        said = repr([(span.attributes, span.status.description, span.events) for span in collected.spans])
        assert (SECRET_WORDS in said) is content
        assert about(tool, "gen_ai.tool.call.result") == (["3"] if content else [None])
        assert (about(last, "gen_ai.output.messages") == [None]) is not content


@simulated
async def test_a_child_is_part_of_its_parents_trace(mill: Cluster) -> None:
    collected = Collected()
    worker = await at_work(mill, Model({"delegate": {}}, "done"), tracing=collected.tracing)
    await worker.publish(document(node("k"), name="kid"))
    run_id = await worker.start(of_agent())
    assert (await worker.end(run_id)).status == "COMPLETED"
    assert is_tree(collected.spans)
    waited, _ = collected.all("invoke_agent a")
    assert about(waited, "tidemill.outcome", "tidemill.waiting.on") == ["waiting", "child"]
    child = collected.one("run kid")
    assert parent_id(child) == span_id(waited)
    tool = collected.one("execute_tool delegate")
    assert about(tool, "gen_ai.tool.name") == ["delegate"]
    assert about(child, "tidemill.parent.run.id") == [run_id]


@simulated
async def test_large_records_have_spans_too(mill: Cluster) -> None:
    collected = Collected()
    worker = await at_work(mill, Model("x" * 100_000), tracing=collected.tracing)
    run_id = await worker.start(of_agent())
    assert (await worker.end(run_id)).status == "COMPLETED"
    await worker.stop()
    assert about(collected.one("chat tiny"), "gen_ai.usage.output_tokens") == [20]


@simulated
async def test_the_caller_decides_about_the_trace(mill: Cluster) -> None:
    collected = Collected()
    worker = await mill.process(tracing=collected.tracing)
    name = await worker.publish(document(node("a")))
    run_id = await worker.engine.start(name, traceparent=CALLER)
    await worker.end(run_id)
    assert (await mill.state(run_id)).trace == CALLER
    run, given = collected.one("run test"), read_traceparent(CALLER)
    assert given is not None and run.context is not None
    assert (run.context.trace_id, parent_id(run)) == (given.trace_id, given.span_id)
    before = len(collected.spans)
    await worker.end(await worker.engine.start(name, traceparent=CALLER[:-1] + "0"))
    assert len(collected.spans) == before, "the caller does not record its trace"
    with collected.provider.get_tracer("app").start_as_current_span("request") as request:
        run_id = await worker.engine.start(name)
    await worker.end(run_id)
    run = collected.all("run test")[-1]
    assert parent_id(run) == request.get_span_context().span_id
    invalid = await worker.engine.start(name, traceparent="00-nonsense")
    assert (await mill.state(invalid)).trace == ""


@simulated
async def test_a_sampler_decides_about_whole_traces(mill: Cluster) -> None:
    collected = Collected(ALWAYS_OFF)
    worker = await mill.process(tracing=collected.tracing)
    await worker.end(await worker.start(document(node("a"))))
    assert collected.spans == ()


@simulated
async def test_a_run_that_goes_on_after_its_end_and_a_fork(mill: Cluster) -> None:
    collected = Collected()
    worker = await mill.process(functions=fails_once("a"), tracing=collected.tracing)
    run_id = await worker.start(document(call("a", retry={"max_attempts": 1}), name="again"))
    assert (await worker.end(run_id)).status == "FAILED"
    await worker.engine.retry(run_id)
    assert (await worker.end(run_id)).status == "COMPLETED"
    first, second = collected.all("run again")
    assert about(first, "tidemill.run.status", "error.type") == ["FAILED", "exception"]
    assert (parent_id(second), about(second, "tidemill.run.status")) == (span_id(first), ["COMPLETED"])
    assert is_tree(collected.spans)
    before = set(map(span_id, collected.spans))
    fork = await worker.engine.fork(run_id, at=1)
    assert (await worker.end(fork)).status == "COMPLETED"
    new = [span for span in collected.spans if span_id(span) not in before]
    assert [span.name for span in new] == ["python a", "run again"] and is_tree(new)
    (link,) = new[1].links
    assert link.context.span_id == span_id(first)


async def test_handlers_and_the_services_they_call_are_below_the_attempt() -> None:
    collected, seen = Collected(), list[int]()

    def inside() -> None:
        with collected.provider.get_tracer("app").start_as_current_span("inside"):
            seen.append(1)

    settings = Settings(egress=Egress(allow=("127.0.0.1:*",)))
    provider = collected.provider
    async with (
        web({"/": json_reply({})}) as served,
        engine_at("memory://", functions=[inside], settings=settings, tracer_provider=provider) as engine,
    ):
        nodes = [
            node("f", type="python", config={"function": "inside"}),
            node("h", "f", type="http", config={"url": served.url("/")}),
            node("own", "h", type="http", config={"url": served.url("/"), "headers": {"Traceparent": CALLER}}),
        ]
        view = await engine.run(document(*nodes))
    assert (view.status, seen) == ("COMPLETED", [1])
    assert parent_id(collected.one("inside")) == span_id(collected.one("python f"))
    sent = [read_traceparent(asked.headers["traceparent"]) for asked in served.asked]
    assert sent[0] is not None and sent[0].span_id == span_id(collected.one("http h"))
    assert str(sent[1]) == CALLER


async def test_a_request_says_which_trace_a_run_belongs_to() -> None:
    async with api_server("memory://") as server:
        await server.engine.publish(document(node("a"), name="flow"))
        headers = {"traceparent": CALLER}
        one = (await server.http.post("/runs", json={"workflow": "flow"}, headers=headers)).json()["run_id"]
        body = {"workflow": "flow", "runs": [{}, {"key": "k"}]}
        batch = (await server.http.post("/runs/batch", json=body, headers=headers)).json()["runs"]
        with Collected().provider.get_tracer("app").start_as_current_span("request") as request:
            async with tidemill.aconnect(server.url) as remote:
                far = await remote.start("flow")
        traces = [
            (await server.engine.context.entry(run_id)).state.trace
            for run_id in (one, *(each["run_id"] for each in batch), far)
        ]
    assert traces[:3] == [CALLER] * 3
    place = read_traceparent(traces[3])
    assert place is not None and place.span_id == request.get_span_context().span_id
