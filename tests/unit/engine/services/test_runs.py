"""The façade: starting, showing, waiting for, following, finding and ending runs."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import msgspec
import pytest

from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.blobs.payloads import decode_value
from tidemill.engine import turn
from tidemill.errors import Rejected
from tidemill.kernel.events import RunCancelled, RunCreated, RunFailed, RunPaused, RunResumed
from tidemill.testing.faulty_store import after_s

SCHEMA = {
    "type": "object",
    "required": ["customer", "amount"],
    "properties": {"customer": {"type": "string"}, "amount": {"type": "integer", "minimum": 1}},
    "additionalProperties": False,
}


@simulated
async def test_a_run_of_all_four_types(mill: Cluster) -> None:
    async def double(n: int) -> int:
        await asyncio.sleep(1)
        return n * 2

    worker = await mill.process(functions={"double": double})
    run = await worker.run(
        document(
            node("v", config={"n": 21}),
            node("s", "v", type="sleep", config={"seconds": 5}),
            call("p", "s", "v", function="double", args={"n": "{{ v.n }}"}),
            node("f", "p", type="fail", config={"attempts": 2, "value": "finally", "retryable": True}),
            outputs={"answer": "{{ p.output }}", "after": "{{ f.output }}", "slept": "{{ s.output }}"},
        )
    )
    assert (run.status, run.counter) == ("COMPLETED", 0)
    assert run.outputs == {"answer": 42, "after": "finally", "slept": None}
    assert {name: (shown["status"], shown["visits"], shown["attempts"]) for name, shown in run.nodes.items()} == {
        "v": ("COMPLETED", 1, 1),
        "s": ("COMPLETED", 1, 1),
        "p": ("COMPLETED", 1, 1),
        "f": ("COMPLETED", 1, 3),
    }
    shown = run.to_dict()
    assert (shown["run_id"], shown["workflow"], shown["version"], shown["error"]) == (run.run_id, "test", 1, None)


@simulated
async def test_default_outputs_are_those_of_the_terminal_nodes(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(
        document(
            node("a", config=1),
            node("kept", "a", config=2),
            node("skipped", "a", when="false"),
            node("failed", "a", type="fail", config={"kind": "bad"}, on_error="continue"),
            node("nothing", "a", config=None),
        )
    )
    assert run.status == "COMPLETED"
    assert run.outputs.pop("failed")["error"]["code"] == "bad"
    assert run.outputs == {"kept": 2, "nothing": None}


@simulated
async def test_outputs_that_cannot_be_rendered_fail_the_run(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(
        document(node("a", when="false"), node("b", config=1), outputs={"x": "{{ a.output.y }}", "z": "{{ b.output }}"})
    )
    assert (run.status, run.outputs) == ("FAILED", None)
    assert run.error is not None and run.error["code"] == "outputs_failed"
    assert run.error["message"].startswith("/outputs/x: ") and "default(" in run.error["hint"]
    assert run.nodes["b"]["status"] == "COMPLETED"
    (failed,) = await mill.of(run.run_id, RunFailed)
    assert (failed.node, failed.counter) == ("", 0)
    assert (await mill.row(run.run_id)).error_code == "outputs_failed"


@simulated
async def test_the_keys_of_outputs_have_the_order_that_every_worker_reads(mill: Cluster) -> None:
    worker = await mill.process()
    outputs = {"z": "{{ a.output }}", "b": {"y": 1, "a": "{{ a.output }}"}}
    run = await worker.run(document(node("a", config={"n": 1, "c": 2}), outputs=outputs))
    assert msgspec.json.encode(run.outputs) == b'{"b":{"a":{"c":2,"n":1},"y":1},"z":{"c":2,"n":1}}'


@simulated
async def test_the_deadline_ends_a_run(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    run = await worker.run(document(call("a", args={"seconds": 500}), node("b", "a"), limits={"deadline_seconds": 30}))
    assert mill.loop.now == pytest.approx(1_030, abs=0.5)
    assert run.status == "FAILED"
    assert run.error is not None and run.error["code"] == "deadline_exceeded"
    assert {shown["status"] for shown in run.nodes.values()} == {"CANCELLED"}
    await asyncio.sleep(6)
    assert len(ledger.cancelled) == 1


@simulated
async def test_one_run_may_have_a_tighter_deadline(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.publish(document(node("s", type="sleep", config={"seconds": 100})))
    started_ms = worker.engine.context.store.now_ms()
    run = await worker.engine.result(await worker.engine.start("test", deadline_seconds=7))
    assert (run.status, run.error and run.error["code"]) == ("FAILED", "deadline_exceeded")
    assert run.ended_ms is not None and 7_000 <= run.ended_ms - started_ms < 100_000
    for wrong in (0, -1, math.inf, math.nan, True, "7"):
        with pytest.raises(Rejected, match="deadline_invalid"):
            await worker.engine.start("test", deadline_seconds=wrong)  # type: ignore[arg-type]


@simulated
async def test_requests_own_the_runs_that_they_start(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.publish(document(node("a")))
    both: dict[str, Any] = {"run_ids": ["key-1", "key-2"], "requests": ["r1", "r2"]}
    assert await worker.engine.runs.start_requests("test", [None, None], **both) == [True, True]
    more: dict[str, Any] = {"run_ids": ["key-2", "key-3"], "requests": ["r2", "r3"]}
    assert await worker.engine.runs.start_requests("test", [None, None], **more) == [False, True]
    other: dict[str, Any] = {"run_ids": ["key-4", "key-1"], "requests": ["r4", "r2"]}
    with pytest.raises(Rejected, match="key_reused"):
        await worker.engine.runs.start_requests("test", [None, None], **other)
    assert await worker.engine.count() == 3


@simulated
async def test_a_deadline_that_was_met_leaves_no_timer(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a"), limits={"deadline_seconds": 30}))
    assert run.status == "COMPLETED"
    assert await mill.jobs(run.run_id) == []


@simulated
async def test_a_key_makes_a_start_idempotent(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.publish(chain("a"))
    first = await worker.engine.start("test", {"n": 1, "m": 2}, key="order-7")
    assert first == "order-7"
    await worker.end(first)
    other = await mill.process("other", work=False)
    for engine in (worker.engine, other.engine):
        assert await engine.start("test", {"m": 2, "n": 1}, key="order-7") == "order-7"
    assert (await mill.kinds("order-7")).count("RunCreated") == 1
    assert len(await mill.rows()) == 1


@simulated
async def test_many_starts_with_one_key_at_once_are_one_run(mill: Cluster, ledger: Ledger) -> None:
    clients = [await mill.process(f"c{i}", functions={"work": ledger.quick}) for i in range(3)]
    await clients[0].publish(document(call("a")))
    starts = [client.engine.start("test", {"n": 1}, key="k") for client in clients for _ in range(4)]
    assert set(await asyncio.gather(*starts)) == {"k"}
    await clients[0].end("k")
    assert ledger.count("a") == 1
    assert len(await mill.rows()) == 1


@simulated
async def test_a_key_that_was_used_for_something_else_is_refused(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.publish(chain("a"))
    await worker.publish(chain("a", name="other"))
    await worker.end(await worker.engine.start("test", {"n": 1}, key="k"))
    before = await mill.events("k")
    with_others, of_another = "with other inputs", "of another workflow (test)"
    for workflow, inputs, why in (
        ("test", {"n": 2}, with_others),
        ("test", None, with_others),
        ("other", {"n": 1}, of_another),
    ):
        with pytest.raises(Rejected) as refused:
            await worker.engine.start(workflow, inputs, key="k")
        assert refused.value.code == "key_reused"
        assert refused.value.problems[0].message == f"key k belongs to a run {why}"
    assert await mill.events("k") == before


@pytest.mark.parametrize("key", ["", "@last", "x" * 201, "é" * 101, "a\nb", "a\x00b", "\ud800", 7])
@simulated
async def test_a_key_is_short_printable_text(mill: Cluster, key: Any) -> None:
    client = await mill.process(work=False)
    await client.publish(chain("a"))
    with pytest.raises(Rejected) as refused:
        await client.engine.start("test", key=key)
    assert refused.value.code == "run_key_invalid"
    assert await mill.rows() == []


@simulated
async def test_every_problem_of_the_inputs_is_named_at_once(mill: Cluster) -> None:
    client = await mill.process(work=False)
    await client.publish(document(node("a"), inputs=SCHEMA))
    with pytest.raises(Rejected) as refused:
        await client.engine.start("test", {"amount": 0, "surprise": 1})
    problems = refused.value.problems
    assert {problem.code for problem in problems} == {"inputs_invalid"}
    words = " ".join(str(problem) for problem in problems)
    assert len(problems) >= 3 and all(name in words for name in ("customer", "amount", "surprise"))
    assert await mill.rows() == []
    assert await client.engine.start("test", {"customer": "acme", "amount": 2})


def _selfish() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("schema", [None, {"type": "object"}, SCHEMA])
@pytest.mark.parametrize(
    "value", [{"x": math.nan}, {"x": object()}, {"x": "\ud800"}, {"x": _selfish()}, object(), math.inf]
)
@simulated
async def test_inputs_that_are_not_json_are_refused(mill: Cluster, schema: Any, value: Any) -> None:
    client = await mill.process(work=False)
    await client.publish(document(node("a"), **({} if schema is None else {"inputs": schema})))
    with pytest.raises(Rejected) as refused:
        await client.engine.start("test", value)
    assert refused.value.code in ("inputs_not_json", "inputs_invalid")
    assert await mill.rows() == []


@simulated
async def test_show_is_the_run_as_it_is_now(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(node("a", config=1), call("b", "a", args={"seconds": 30}), node("c", "b")))
    await mill.until(lambda: ledger.running == 1)
    run = await worker.engine.show(run_id)
    assert (run.status, run.outputs, run.counter) == ("RUNNING", None, 1)
    assert [run.nodes[name]["status"] for name in "abc"] == ["COMPLETED", "QUEUED", "PENDING"]
    assert run.nodes["a"]["output"] == 1
    with pytest.raises(Rejected) as refused:
        await worker.engine.show("nobody")
    assert refused.value.code == "run_unknown"


@simulated
async def test_waiting_for_a_result_may_take_too_long(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(node("s", type="sleep", config={"seconds": 100})))
    with pytest.raises(TimeoutError):
        await worker.engine.result(run_id, timeout_s=10)
    assert mill.loop.now == pytest.approx(1_010, abs=0.1)
    assert (await worker.engine.result(run_id, timeout_s=100)).status == "COMPLETED"
    assert (await worker.engine.result(run_id, timeout_s=0.001)).status == "COMPLETED"
    with pytest.raises(Rejected):
        await worker.engine.result("nobody")


@simulated
async def test_pause_and_resume(mill: Cluster, ledger: Ledger) -> None:
    """Queued jobs are withdrawn; the attempt that runs may finish; everything goes on afterwards."""
    worker = await mill.process(functions={"work": ledger.work}, concurrency=1)
    run_id = await worker.start(
        document(call("a", args={"seconds": 5}), call("b", args={"seconds": 5}), call("c", "a", "b"))
    )
    await mill.until(lambda: ledger.running == 1)
    await worker.engine.pause(run_id, reason="lunch", actor="ada")
    await worker.engine.pause(run_id)
    await asyncio.sleep(100)
    assert len(ledger.calls) == 1 and ledger.running == 0
    shown = await worker.engine.show(run_id)
    assert (shown.status, sorted(n["status"] for n in shown.nodes.values())) == (
        "PAUSED",
        ["COMPLETED", "PENDING", "QUEUED"],
    )
    assert await mill.jobs(run_id) == []
    await worker.engine.resume(run_id, actor="bob")
    await worker.engine.resume(run_id)
    run = await worker.end(run_id)
    assert run.status == "COMPLETED" and len(ledger.calls) == 3
    (paused,), (resumed,) = await mill.of(run_id, RunPaused), await mill.of(run_id, RunResumed)
    assert (paused.reason, paused.actor, resumed.actor) == ("lunch", "ada", "bob")


@simulated
async def test_timers_and_back_offs_outlast_a_pause(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(
        document(
            node("s", type="sleep", config={"seconds": 20}),
            node(
                "f", type="fail", config={"attempts": 1, "value": 1, "retryable": True}, retry={"backoff_seconds": 20}
            ),
            node("z", "s", "f"),
        )
    )
    await asyncio.sleep(2)
    await worker.engine.pause(run_id)
    await asyncio.sleep(100)
    shown = await worker.engine.show(run_id)
    assert (shown.nodes["s"]["status"], shown.nodes["f"]["attempts"]) == ("COMPLETED", 1)
    await worker.engine.resume(run_id)
    began = mill.loop.now
    assert (await worker.end(run_id)).status == "COMPLETED"
    assert mill.loop.now - began < 2


@simulated
async def test_cancel_ends_everything_and_tells_running_handlers(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(
        document(call("a", args={"seconds": 500}), node("s", type="sleep", config={"seconds": 500}), node("c", "a"))
    )
    await mill.until(lambda: ledger.running == 1)
    await worker.engine.cancel(run_id, reason="enough", actor="ada")
    told = await mill.until(lambda: bool(ledger.cancelled))
    assert told <= 5.1
    run = await worker.end(run_id)
    assert (run.status, run.outputs, run.counter) == ("CANCELLED", None, 0)
    assert {shown["status"] for shown in run.nodes.values()} == {"CANCELLED"}
    (cancelled,) = await mill.of(run_id, RunCancelled)
    assert (cancelled.reason, cancelled.actor) == ("enough", "ada")
    await worker.engine.cancel(run_id)
    assert (await mill.kinds(run_id)).count("RunCancelled") == 1


DEFAULTS = {
    "type": "object",
    "required": ["town"],
    "properties": {
        "town": {"default": "Bonn"},
        "mail": {"type": "object", "properties": {"port": {"default": 25}, "tls": {"default": True}}},
        "page": {"$ref": "#/$defs/page", "default": {}},
        "lines": {"type": "array", "items": {"properties": {"count": {"default": 1}}}},
        "seen": {"type": "object", "properties": {"ever": {"default": 0}}},
    },
    "allOf": [{"properties": {"unit": {"default": None}}}],
    "$defs": {"page": {"type": "object", "properties": {"size": {"default": 10}, "next": {"$ref": "#/$defs/page"}}}},
    "unevaluatedProperties": False,
}
WHOLE = {"town": "Bonn", "page": {}, "unit": None}


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        (None, WHOLE),
        ({}, WHOLE),
        ({"town": "Ulm", "unit": "m"}, WHOLE | {"town": "Ulm", "unit": "m"}),
        ({"town": None}, WHOLE | {"town": None}),
        ({"mail": {"tls": False}}, WHOLE | {"mail": {"port": 25, "tls": False}}),
        ({"page": {"next": {"next": {}}}}, WHOLE | {"page": {"size": 10, "next": {"size": 10, "next": {"size": 10}}}}),
        ({"lines": [{}, {"count": 3}]}, WHOLE | {"lines": [{"count": 1}, {"count": 3}]}),
    ],
)
@simulated
async def test_defaults_of_the_schema_complete_the_inputs(mill: Cluster, given: Any, recorded: Any) -> None:
    worker = await mill.process()
    before = repr(given)
    run = await worker.run(document(node("a", config="{{ inputs }}"), inputs=DEFAULTS), inputs=given, key="k")
    assert (run.status, run.outputs, repr(given)) == ("COMPLETED", {"a": recorded}, before)
    created = (await mill.of("k", RunCreated))[0]
    assert isinstance(created.inputs, bytes)
    assert decode_value(created.inputs) == recorded


@simulated
async def test_a_default_is_checked_like_any_other_input(mill: Cluster) -> None:
    client = await mill.process(work=False)
    wrong = {"properties": {"n": {"type": "integer", "default": "many"}}}
    with pytest.raises(Rejected) as refused:
        await client.publish(chain("a", inputs=wrong))
    found = [(problem.code, problem.path) for problem in refused.value.problems]
    assert found == [("schema_invalid", "/inputs/properties/n/default")]
    # A default that others complete is checked where it is filled in.
    n = {"maxProperties": 0, "default": {"m": 1}, "properties": {"m": {"default": 2}}}
    await client.publish(chain("a", inputs={"properties": {"n": n}}))
    with pytest.raises(Rejected) as refused:
        await client.engine.start("test")
    assert [(problem.code, problem.path) for problem in refused.value.problems] == [("inputs_invalid", "/inputs/n")]
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(Rejected):
        await client.engine.start("test", {"ring": ring})


@simulated
async def test_definitions_that_refer_to_each_other_at_the_same_place_take_no_time(mill: Cluster) -> None:
    client = await mill.process(work=False)
    both = {"$ref": "#/$defs/one", "properties": {"a": {"$ref": "#/$defs/two"}, "n": {"default": 1}}}
    schema = {"$ref": "#/$defs/two", "$defs": {"one": {"properties": {"a": {"$ref": "#/$defs/two"}}}, "two": both}}
    await client.publish(chain("a", inputs=schema))
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"a": deep}
    await client.engine.start("test", deep, key="k")
    created = (await mill.of("k", RunCreated))[0]
    assert isinstance(created.inputs, bytes)
    assert created.inputs.count(b'"n":1') == 101


@simulated
async def test_a_key_stands_for_the_inputs_with_their_defaults(mill: Cluster) -> None:
    client = await mill.process(work=False)
    large = "x" * 100_000
    schema = {"properties": {"n": {"default": 1}}}
    await client.publish(chain("a", inputs=schema))
    assert await client.engine.start("test", {"text": large}, key="k") == "k"
    await client.publish(chain("a", "b", inputs={"properties": {"n": {"default": 2}}}))
    for same in ({"text": large}, {"n": 1, "text": large}):
        assert await client.engine.start("test", same, key="k") == "k"
    for other in ({"n": 2, "text": large}, {"text": "x"}, None):
        with pytest.raises(Rejected, match="key k"):
            await client.engine.start("test", other, key="k")


@simulated
async def test_children_and_forks_get_defaults_too(mill: Cluster) -> None:
    worker = await mill.process()
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"default": 7}}}
    await worker.publish(document(node("a", config="{{ inputs }}"), name="kid", inputs=schema))
    kid = node("c", type="workflow", config={"workflow": "kid", "inputs": {"x": 1}})
    run = await worker.run(document(kid), key="mum")
    assert run.outputs == {"c": {"a": {"x": 1, "n": 7}}}
    await worker.engine.start("kid", {"n": 1}, key="first")
    await worker.end("first")
    fork = await worker.engine.fork("first", node="a", inputs={"y": 2}, key="second")
    assert (await worker.end(fork)).outputs == {"a": {"y": 2, "n": 1}}


@simulated
async def test_a_tail_that_is_loaded_twice_is_folded_once(mill: Cluster) -> None:
    first, second = await mill.process("c1", work=False), await mill.process("c2", work=False)
    run = await first.start(chain("a"))
    await second.engine.pause(run)
    await second.engine.resume(run)
    first.faulty_store.next("load", after_s(0.01), after_s(0.02))
    stream = mill.stream(run)
    await asyncio.gather(first.engine.run_cache.refresh([stream]), first.engine.run_cache.refresh([stream]))
    state = first.cached(run)
    assert first.faulty_store.fired["load"] == 2
    assert state is not None and (state.seq, state.status) == (4, "RUNNING")


def snapshot_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "SNAPSHOT_TAIL_MIN", -1)


@simulated
async def test_a_snapshot_is_of_the_version_it_says(mill: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mill's judge folds every log from its snapshot and from its first record, and compares."""
    snapshot_always(monkeypatch)
    worker = await mill.process()
    run = await worker.run(chain("a", "b", "c"))
    assert run.status == "COMPLETED"
    (tail,) = await mill.store.load({mill.stream(run.run_id): 0})
    assert tail.snapshot is not None


@simulated
async def test_a_state_older_than_the_snapshot_catches_up(mill: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await mill.process("c1", work=False), await mill.process("c2", work=False)
    run = await first.start(chain("a"))
    snapshot_always(monkeypatch)
    for act in (second.engine.pause, second.engine.resume, second.engine.pause):
        await act(run)
    await first.engine.run_cache.refresh([mill.stream(run)])
    state = first.cached(run)
    assert state is not None and (state.seq, state.status) == (5, "PAUSED")


# Waiting for the end, and starting many


def _follows(mill: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that were followed in the store."""
    followed: list[str] = []
    follow = mill.store.follow

    def counted(stream: Any, *args: Any, **options: Any) -> Any:
        followed.append(stream.key)
        return follow(stream, *args, **options)

    monkeypatch.setattr(mill.store, "follow", counted)
    return followed


@simulated
async def test_the_commit_that_ends_a_run_tells_who_waits_in_this_process(
    mill: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, followed = await mill.process(), _follows(mill, monkeypatch)
    reference = await worker.publish(chain("a", "b", "c"))
    runs = [await worker.start(reference) for _ in range(3)]
    ended = await asyncio.gather(*(worker.engine.result(run_id) for run_id in runs for _ in range(2)))
    assert {run.status for run in ended} == {"COMPLETED"} and followed == []
    assert worker.engine.turns._end_waiters._waiting == {}


@simulated
async def test_a_run_of_another_process_is_followed_in_the_store(
    mill: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await mill.process("client", work=False)
    followed = _follows(mill, monkeypatch)
    run_id = await client.start(chain("a", "b"))
    await mill.process("worker")
    assert (await client.engine.result(run_id)).status == "COMPLETED"
    assert followed == [run_id]


@simulated
async def test_who_waits_learns_of_an_end_in_another_process(mill: Cluster, ledger: Ledger) -> None:
    """A job that may go to any process, a timer, and an operator elsewhere: none of them is told by this process."""
    first = await mill.process("first", functions={"work": ledger.work})
    other = await mill.process("other", work=False)
    for graph, act in (
        (document(call("a", args={"seconds": 9})), "cancel"),
        (document(node("s", type="sleep", config={"seconds": 30}), node("z", "s")), ""),
    ):
        run_id = await first.start(graph)
        waiting = asyncio.ensure_future(first.engine.result(run_id))
        await asyncio.sleep(1)
        if act:
            await other.engine.cancel(run_id)
        run = await waiting
        assert run.status == ("CANCELLED" if act else "COMPLETED")


@simulated
async def test_who_gives_up_waiting_leaves_nothing_behind(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(call("a", args={"seconds": 9})))
    for seconds in (0.1, 1):
        with pytest.raises(TimeoutError):
            await worker.engine.result(run_id, timeout_s=seconds)
    assert worker.engine.turns._end_waiters._waiting == {}
    assert (await worker.end(run_id)).status == "COMPLETED"


@simulated
async def test_many_runs_are_started_by_one_call(mill: Cluster) -> None:
    worker = await mill.process()
    reference = await worker.publish(document(node("a"), inputs=SCHEMA))
    given = [{"customer": "acme", "amount": number} for number in range(1, 31)]
    before = len(worker.faulty_store.commits)
    runs = await worker.engine.start_many(reference, given, labels={"batch": "7"})
    assert len(set(runs)) == 30
    for run_id, inputs in zip(runs, given, strict=True):
        assert (await worker.end(run_id)).status == "COMPLETED"
        state = await mill.state(run_id)
        assert isinstance(state.inputs, bytes) and decode_value(state.inputs) == inputs
        assert (await mill.row(run_id)).labels == {"batch": "7"}
    assert len(worker.faulty_store.commits) - before >= 30
    assert await worker.engine.start_many(reference, []) == []


@simulated
async def test_one_refused_input_starts_no_run(mill: Cluster) -> None:
    worker = await mill.process()
    reference = await worker.publish(document(node("a"), inputs=SCHEMA))
    with pytest.raises(Rejected) as refused:
        await worker.engine.start_many(
            reference, [{"customer": "a", "amount": 1}, {"customer": 3, "amount": 0}, {"customer": "c"}]
        )
    assert {problem.path.split("/")[2] for problem in refused.value.problems} == {"1", "2"}
    assert len(refused.value.problems) == 3
    assert (await worker.engine.find([]))[0] == []


@simulated
async def test_many_runs_with_keys_are_started_once(mill: Cluster) -> None:
    worker = await mill.process()
    reference = await worker.publish(chain("a"))
    keys = [f"order-{number}" for number in range(5)]
    inputs = [{"n": number} for number in range(5)]
    assert await worker.engine.start_many(reference, inputs, keys=keys) == keys
    assert await worker.engine.start_many(reference, inputs, keys=keys) == keys
    assert len((await worker.engine.find([]))[0]) == 5
    with pytest.raises(Rejected) as refused:
        await worker.engine.start_many(reference, [{"n": 9}], keys=["order-0"])
    assert refused.value.code == "key_reused"
    for wrong, path, message in (
        (["one"], "/keys", "`inputs` has 5, `keys` has 1"),
        (["a", "b", "c", "b", "e"], "/keys/3", "inputs 1 and 3 have the same key b"),
    ):
        with pytest.raises(Rejected) as refused:
            await worker.engine.start_many(reference, inputs, keys=wrong)
        assert [(each.code, each.path, each.message) for each in refused.value.problems] == [
            ("keys_mismatch", path, message)
        ]


@simulated
async def test_keys_that_are_taken_are_refused_before_anything_is_started(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.publish(chain("a"))
    await worker.publish(chain("a", name="other"))
    engine = worker.engine
    await engine.start_many("test", [{"n": 1}, {"n": 2}], keys=["one", "two"])
    await engine.start("other", {"n": 4}, key="four")
    await engine.runs.start_requests("test", [{"n": 5}], run_ids=["five"], requests=["another"])
    keys = ["one", "new", "two", "four", "five"]
    with pytest.raises(Rejected) as refused:
        await engine.start_many("test", [{"n": n} for n in (1, 0, 3, 4, 5)], keys=keys)
    assert [(each.code, each.path, each.message) for each in refused.value.problems] == [
        ("key_reused", "/keys/2", "key two belongs to a run with other inputs"),
        ("key_reused", "/keys/3", "key four belongs to a run of another workflow (other)"),
        ("key_reused", "/keys/4", "this key belongs to another request"),
    ]
    assert await engine.count() == 4


@simulated
async def test_a_lost_race_for_a_key_says_how_many_runs_were_started(mill: Cluster) -> None:
    """Two callers see that a key is free; the other runs of the one that comes second are started."""
    first, second = await mill.process("first"), await mill.process("second")
    await first.publish(chain("a"))
    calls = (
        process.engine.start_many("test", [{"n": n} for n in (1, 2, number)], keys=[f"{number}-1", f"{number}-2", "k"])
        for number, process in ((7, first), (8, second))
    )
    ended = await asyncio.gather(*calls, return_exceptions=True)
    (refused,) = [each for each in ended if isinstance(each, Rejected)]
    assert [(each.code, each.path) for each in refused.problems] == [("key_reused", "/keys/2")]
    assert refused.problems[0].message == "key k belongs to a run with other inputs; 2 other runs were started"
    assert await first.engine.count() == 5


@simulated
async def test_requests_whose_keys_are_taken_are_all_told(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.publish(chain("a"))
    start = worker.engine.runs.start_requests
    await start("test", [None] * 2, run_ids=["key-1", "key-2"], requests=["r1", "r2"])
    with pytest.raises(Rejected) as refused:
        await start("test", [None] * 3, run_ids=["key-1", "key-3", "key-2"], requests=["x1", "x3", "x2"])
    assert [each.path for each in refused.value.problems] == ["/keys/0", "/keys/2"]
    races = (start("test", [None] * 2, run_ids=["key-9", f"key-{n}"], requests=[f"{n}", f"{n}"]) for n in (7, 8))
    ended = await asyncio.gather(*races, return_exceptions=True)
    (lost,) = [each for each in ended if isinstance(each, Rejected)]
    assert (lost.problems[0].path, lost.problems[0].message) == (
        "/keys/0",
        "this key belongs to another request; 1 other run was started",
    )
