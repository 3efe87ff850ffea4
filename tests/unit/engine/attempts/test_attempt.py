"""What a handler is given and what it may answer: context, checkpoints, time-outs, retries, outcomes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

import tidemill
from tests.fixtures.cluster import Cluster, InlineIsolation, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.engine.attempts import attempt, rendering
from tidemill.engine.attempts.invocation import bounded
from tidemill.engine.compiled import LOOP_ITEMS
from tidemill.expressions.sandbox.tasks import RenderTexts, SandboxTask
from tidemill.handlers.contract import Done, Fail, Handler, HandlerOutcome, NodeContext, Skip, Wait
from tidemill.kernel.events import NodeCheckpointed, NodeCompleted, NodeFailed, NodeStarted, NodeWaiting
from tidemill.kernel.model import Node, NodeType
from tidemill.testing.faulty_store import after_s, refuse


def _type(name: str, function: Any) -> Handler:
    return Handler(NodeType(name=name), function)


@simulated
async def test_what_a_handler_is_given(mill: Cluster) -> None:
    seen: list[NodeContext] = []

    def look(context: NodeContext) -> HandlerOutcome:
        seen.append(context)
        return Done(None)

    worker = await mill.process(more=[_type("look", look)])
    run = await worker.run(
        document(
            node("a", config={"n": 1}),
            node("gone", "a", when="false"),
            node("m", "a", "gone", type="look", config={"got": "{{ item }}"}, map={"over": ["p", "q"]}),
            limits={"deadline_seconds": 60},
        )
    )
    assert run.status == "COMPLETED"
    first, second = seen
    assert (first.run_id, first.node, first.visit, first.index, first.attempt) == (run.run_id, "m", 1, 0, 1)
    assert (first.config, second.config, second.index) == ({"got": "p"}, {"got": "q"}, 1)
    assert dict(first.upstream) == {"a": {"n": 1}}
    assert (first.effect_key, second.effect_key) == (f"{run.run_id}/m/1/0", f"{run.run_id}/m/1/1")
    assert first.deadline_ms == 1_060_000
    assert first.last_checkpoint is None


@simulated
async def test_a_handler_s_config_is_its_own(mill: Cluster) -> None:
    """Whatever a handler does to what it is given, the next attempt, the next item and the log do not see it."""

    def spoil(context: NodeContext) -> HandlerOutcome:
        context.config["list"].append("spoiled")
        upstream = context.upstream["a"]
        upstream["list"].append("spoiled")
        if context.attempt == 1:
            raise Fail("again", "once more", retryable=True)
        return Done([context.config["list"], context.upstream["a"]["list"]])

    worker = await mill.process(more=[_type("spoil", spoil)])
    constant, rendered = {"list": [1]}, {"list": "{{ a.output.list }}"}
    run = await worker.run(
        document(
            node("a", config={"list": [1]}),
            node("b", "a", type="spoil", config=constant),
            node("c", "a", type="spoil", config=rendered),
            node("z", "b", "c", config="{{ a.output.list }}"),
        )
    )
    for name in "bc":
        assert run.nodes[name]["output"] == [[1, "spoiled"], [1]], name
    assert run.outputs == {"z": [1]}


@simulated
async def test_retries_wait_longer_each_time_within_the_jitter(mill: Cluster) -> None:
    times: list[float] = []

    def fail(context: NodeContext) -> None:
        times.append(mill.loop.now)
        raise OSError("down")

    worker = await mill.process(functions={"work": fail})
    run = await worker.run(
        document(
            call("a", retry={"max_attempts": 4, "backoff_seconds": 10, "multiplier": 3, "max_backoff_seconds": 60})
        )
    )
    assert run.status == "FAILED"
    assert run.nodes["a"]["attempts"] == 4
    waits = [later - earlier for earlier, later in pairwise(times)]
    for waited, nominal in zip(waits, (10, 30, 60), strict=True):
        assert nominal * 0.9 <= waited <= nominal * 1.1 + 0.1


@simulated
async def test_what_a_peer_asks_for_wins_over_the_computed_delay(mill: Cluster) -> None:
    times: list[float] = []

    def busy(context: NodeContext) -> str:
        times.append(mill.loop.now)
        if context.attempt == 1:
            raise Fail("busy", "later", retryable=True, retry_after_ms=77_000)
        return "ok"

    worker = await mill.process(functions={"work": busy})
    run = await worker.run(document(call("a")))
    assert run.status == "COMPLETED"
    assert 77.0 <= times[1] - times[0] <= 77.2


@simulated
async def test_a_time_out_cancels_the_handler_and_is_retryable(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    began = mill.loop.now
    run = await worker.run(
        document(call("a", args={"seconds": 100}, timeout_seconds=7, retry={"max_attempts": 2, "backoff_seconds": 1}))
    )
    assert run.status == "FAILED"
    assert run.nodes["a"]["error"]["code"] == "timeout"
    assert (run.nodes["a"]["attempts"], len(ledger.cancelled), ledger.running) == (2, 2, 0)
    assert 14.8 <= mill.loop.now - began <= 15.3
    first, second = await mill.of(run.run_id, NodeFailed)
    assert first.retry_at_ms is not None and second.retry_at_ms is None
    assert first.error.retryable and first.duration_ms == 7_000


@simulated
async def test_a_handler_s_own_time_out_is_its_own(mill: Cluster) -> None:
    async def own() -> None:
        raise TimeoutError("the peer took too long")

    worker = await mill.process(functions={"work": own})
    run = await worker.run(document(call("a", timeout_seconds=50, retry={"max_attempts": 1})))
    error = run.nodes["a"]["error"]
    assert (error["code"], error["type"], error["message"]) == ("exception", "TimeoutError", "the peer took too long")


@simulated
async def test_a_time_out_of_an_at_most_once_node_is_an_unknown_outcome(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    run = await worker.run(document(call("a", args={"seconds": 100}, timeout_seconds=3, delivery="at_most_once")))
    assert run.nodes["a"]["error"]["code"] == "unknown_outcome"
    assert ledger.count("a") == 1


@simulated
async def test_the_time_out_bounds_a_wait_too(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(
        document(node("s", type="sleep", config={"seconds": 500}, timeout_seconds=20, retry={"max_attempts": 1}))
    )
    assert run.nodes["s"]["error"]["code"] == "timeout"
    assert mill.loop.now - 1_000 == pytest.approx(20, abs=0.5)


@simulated
async def test_checkpoints_are_in_the_log_and_the_next_attempt_sees_the_last(mill: Cluster) -> None:
    seen: list[Any] = []

    async def far(context: NodeContext) -> str:
        seen.append((context.attempt, context.last_checkpoint))
        assert context.checkpoint is not None
        for page in range(3):
            await context.checkpoint({"attempt": context.attempt, "page": page})
        if context.attempt == 1:
            raise ConnectionError("lost")
        return "done"

    worker = await mill.process(functions={"work": far})
    run = await worker.run(document(call("a")))
    assert run.status == "COMPLETED"
    assert seen == [(1, None), (2, {"attempt": 1, "page": 2})]
    assert [event.attempt for event in await mill.of(run.run_id, NodeCheckpointed)] == [1, 1, 1, 2, 2, 2]
    kinds = await mill.kinds(run.run_id)
    assert kinds[2:4] == ["NodeStarted", "NodeCheckpointed"] and kinds.count("NodeStarted") == 2


@simulated
async def test_a_checkpoint_survives_the_worker(mill: Cluster) -> None:
    seen: list[Any] = []

    async def far(context: NodeContext) -> str:
        seen.append((context.attempt, context.last_checkpoint))
        assert context.checkpoint is not None
        await context.checkpoint({"by": context.attempt})
        if context.attempt == 1:
            await asyncio.sleep(1_000)
        return "done"

    first = await mill.process("w1", functions={"work": far})
    run_id = await first.start(document(call("a")))
    await asyncio.sleep(2)
    first.kill()
    second = await mill.process("w2", functions={"work": far})
    run = await second.end(run_id)
    assert run.status == "COMPLETED"
    assert seen == [(1, None), (2, {"by": 1})]
    assert [event.error.code for event in await mill.of(run_id, NodeFailed)] == ["worker_lost"]


@simulated
async def test_a_checkpoint_waits_for_a_store_that_does_not_answer(mill: Cluster) -> None:
    """An outage of a minute is no fault of the handler: it used to cost it an attempt."""

    async def far(context: NodeContext) -> int:
        assert context.checkpoint is not None
        worker.faulty_store.always("commit", refuse)
        asyncio.get_running_loop().call_later(60, worker.faulty_store.always, "commit", None)
        await context.checkpoint("here")
        return context.attempt

    worker = await mill.process(functions={"work": far})
    run = await worker.run(document(call("a")))
    assert worker.faulty_store.fired["commit"] > 6, "more often than a turn tries by itself"
    assert (run.status, run.outputs) == ("COMPLETED", {"a": 1})
    assert len(await mill.of(run.run_id, NodeCheckpointed)) == 1


@simulated
async def test_a_checkpoint_that_is_not_json_fails_the_attempt(mill: Cluster) -> None:
    async def far(context: NodeContext) -> None:
        assert context.checkpoint is not None
        await context.checkpoint({"x": object()})

    worker = await mill.process(functions={"work": far})
    run = await worker.run(document(call("a")))
    assert run.status == "FAILED"
    assert run.nodes["a"]["error"]["code"] == "output_not_json"


@simulated
async def test_a_handler_may_skip_its_visit(mill: Cluster) -> None:
    worker = await mill.process(functions={"work": lambda: Skip("nothing to do")})
    run = await worker.run(document(call("a"), node("b", "a"), call("m", map={"over": [1, 2]})))
    assert (run.nodes["a"]["status"], run.nodes["b"]["status"]) == ("SKIPPED", "SKIPPED")
    # A list has an entry for every item, also for one that was not needed.
    assert run.nodes["m"]["output"] == [None, None]


@simulated
async def test_a_handler_may_wait_without_holding_a_worker(mill: Cluster) -> None:
    worker = await mill.process(more=[_type("nap", lambda context: Wait(on="timer", name="nap", for_ms=3_600_000))])
    run_id = await worker.start(document(node("a", type="nap"), node("b", "a", config="{{ a.output }}")))
    await asyncio.sleep(10)
    (waiting,) = await mill.of(run_id, NodeWaiting)
    assert (waiting.on, waiting.name, waiting.until_ms) == ("timer", "nap", 1_000_000 + 3_600_000)
    (view,) = await mill.jobs(run_id)
    assert (view.job.key, view.token) == ("wake/a/1/-1", 0)
    began = mill.loop.now
    run = await worker.engine.result(run_id, timeout_s=4_000)
    assert run.outputs == {"b": None}
    assert 3_580 <= mill.loop.now - began <= 3_600


@simulated
async def test_a_handler_may_fail_in_its_own_words(mill: Cluster) -> None:
    def broken(context: NodeContext) -> HandlerOutcome:
        raise Fail("card_declined", "no money", hint="ask for another card") from OSError("the bank said so")

    worker = await mill.process(more=[_type("pay", broken)])
    run = await worker.run(document(node("a", type="pay", retry={"max_attempts": 9})))
    error = run.nodes["a"]["error"]
    assert (error["code"], error["message"], error["hint"]) == ("card_declined", "no money", "ask for another card")
    assert error["causes"] == ["OSError: the bank said so"]
    assert run.nodes["a"]["attempts"] == 1
    assert run.error is not None
    assert (run.error["code"], (await mill.row(run.run_id)).failed_node) == ("card_declined", "a")


@simulated
async def test_a_plain_handler_answers_in_the_same_commit_as_it_starts(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a")))
    kinds = await mill.kinds(run.run_id)
    assert kinds == ["RunCreated", "NodeScheduled", "NodeStarted", "NodeCompleted", "RunCompleted"]
    assert [len(commit.records) for commit in worker.faulty_store.commits] == [2, 3]


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
@simulated
async def test_the_start_of_an_attempt_carries_the_moment_of_the_call(
    mill: Cluster, delivery: str, ledger: Ledger
) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    run = await worker.run(
        document(
            call("a", args={"seconds": 2}, delivery=delivery),
            call("b", "a", args={"seconds": 3}, delivery=delivery),
        )
    )
    first, second = await mill.of(run.run_id, NodeStarted)
    ends = [event.at_ms for event in await mill.of(run.run_id, NodeCompleted)]
    assert (ends[0] - first.at_ms, second.at_ms - ends[0], ends[1] - second.at_ms) == (2_000, 0, 3_000)


@simulated
async def test_an_attempt_that_took_a_second_is_in_the_log_when_its_worker_is_lost(
    mill: Cluster, ledger: Ledger
) -> None:
    first = await mill.process("w1", functions={"work": ledger.work})
    run_id = await first.start(document(call("a", args={"seconds": 20})))
    began = mill.now_ms()
    await asyncio.sleep(1)
    first.kill()
    second = await mill.process("w2", functions={"work": ledger.work})
    assert (await second.end(run_id)).status == "COMPLETED"
    started = await mill.of(run_id, NodeStarted)
    assert [(event.worker, event.attempt) for event in started] == [("w1", 1), ("w2", 2)]
    assert started[0].at_ms == began
    (lost,) = await mill.of(run_id, NodeFailed)
    assert (lost.error.code, lost.attempt) == ("worker_lost", 1)


@simulated
async def test_a_handler_is_shown_as_running_within_a_second(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work}, lease_ms=15_000)
    run_id = await worker.start(document(call("a", args={"seconds": 60})))
    began = mill.now_ms()
    await asyncio.sleep(0.3)
    assert await mill.of(run_id, NodeStarted) == []
    await asyncio.sleep(0.5)
    (started,) = await mill.of(run_id, NodeStarted)
    assert (started.worker, started.attempt, started.at_ms) == ("w1", 1, began)
    shown = await worker.engine.show(run_id)
    assert (shown.nodes["a"]["status"], shown.last_event_ms) == ("RUNNING", began)
    run = await worker.end(run_id)
    assert (run.nodes["a"]["attempts"], ledger.count("a")) == (1, 1)
    (completed,) = await mill.of(run_id, NodeCompleted)
    assert completed.token == started.token


async def test_what_is_cancelled_before_its_first_step_leaves_no_coroutine_behind() -> None:
    """Otherwise the interpreter complains on the standard error of a worker that stops."""

    async def handler() -> int:
        return 1

    async def waits(pending: Awaitable[int]) -> int | BaseException:
        return await bounded(pending, None)

    task = asyncio.create_task(waits(pending := handler()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0)
    assert inspect.getcoroutinestate(pending) == inspect.CORO_CLOSED


@simulated
async def test_a_handler_whose_task_is_cancelled_before_its_first_step_is_closed(mill: Cluster) -> None:
    made: list[Coroutine[Any, Any, Done]] = []

    async def later() -> Done:
        return Done(len(made))

    def begin(context: NodeContext) -> Coroutine[Any, Any, Done]:
        made.append(later())
        if len(made) == 1:
            asyncio.get_running_loop().call_soon(cancel)
        return made[-1]

    def cancel() -> None:
        assert worker.engine.worker is not None
        for hand in worker.engine.worker.held_jobs:
            assert hand.running is not None
            hand.running.cancel()

    worker = await mill.process(more=[_type("later", begin)])
    run = await worker.run(document(node("a", type="later")))
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED
    assert (run.status, run.nodes["a"]["output"]) == ("COMPLETED", 2)


@simulated
async def test_every_attempt_has_the_same_effect_key_and_every_visit_its_own(mill: Cluster) -> None:
    keys: list[str] = []

    def work(context: NodeContext) -> int:
        keys.append(context.effect_key)
        if len(keys) % 2:
            raise Fail("flaky", "once more", retryable=True)
        return len(keys)

    worker = await mill.process(functions={"work": work})
    again = {"condition": "output < 4", "max_iterations": 5}
    run = await worker.run(document(call("a", loop=again)))
    assert keys == [f"{run.run_id}/a/1/-1"] * 2 + [f"{run.run_id}/a/2/-1"] * 2


@simulated
async def test_a_handler_may_change_what_it_was_given(mill: Cluster) -> None:
    """Large inputs are decoded once per process and shared by all attempts."""

    def work(xs: list[int]) -> int:
        xs.append(1)
        return len(xs)

    worker = await mill.process(functions={"work": work})
    nodes = [call(name, *before, args={"xs": "{{ inputs.xs }}"}) for name, before in (("a", ()), ("b", ("a",)))]
    run = await worker.run(document(*nodes), {"xs": [0], "large": "x" * 70_000})
    assert [run.nodes[name]["output"] for name in "ab"] == [2, 2]


@simulated
async def test_at_most_once_that_was_given_back_has_an_unknown_outcome(mill: Cluster, ledger: Ledger) -> None:
    first = await mill.process("w1", functions={"work": ledger.work}, grace_ms=0)
    run = await first.start(document(call("a", delivery="at_most_once", args={"seconds": 60})))
    await mill.until(lambda: ledger.running == 1)
    await first.stop()
    second = mill.build("w2", functions={"work": ledger.work})
    second.faulty_store.always("commit", after_s(0.1))
    await second.open()
    async with asyncio.timeout(60):
        ended = await second.end(run)
    assert (ended.status, ended.nodes["a"]["error"]["code"]) == ("FAILED", "unknown_outcome")
    assert ledger.count("a") == 1


class Noted(InlineIsolation):
    """Takes notes of what a real engine would do in a child process."""

    def __init__(self) -> None:
        self.tasks: list[SandboxTask] = []

    async def execute(self, task: SandboxTask) -> Any:
        self.tasks.append(task)
        return await super().execute(task)


SLOW = "{% for i in range(400) %}{% for j in range(400) %}{% if i == j %}x{% endif %}{% endfor %}{% endfor %}"


@simulated
async def test_a_template_that_takes_long_is_rendered_in_another_process(mill: Cluster) -> None:
    isolation = Noted()
    worker = await mill.process(isolation=isolation)
    run = await worker.run(
        document(
            node("quick", config="{{ inputs.n | default(1) }}"),
            node("slow", "quick", config={"text": SLOW + "{{ quick.output }}"}),
            node(
                "each", "slow", config="{{ item }}", map={"over": "{{ slow.output.text[:2] | list if '" + SLOW + "' }}"}
            ),
            node("items", "slow", config=SLOW + "{{ item }}{{ index }}", map={"over": ["p"]}),
            outputs={
                "text": SLOW + "{{ slow.output.text[-1:] }}",
                "each": "{{ each.output }}",
                "n": "{{ items.output }}",
            },
        )
    )
    assert run.status == "COMPLETED", run.error
    assert run.outputs == {"text": "x" * 400 + "1", "each": ["x", "x"], "n": ["x" * 400 + "p0"]}
    texts = [path for task in isolation.tasks if isinstance(task, RenderTexts) for path, _ in task.texts]
    assert sorted(texts) == ["", "/each", "/n", "/text", "/text"]


@simulated
async def test_a_large_node_is_compiled_in_a_thread(mill: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    real = mill.loop.run_in_executor

    def noted(executor: Any, work: Any, *given: Any) -> Any:
        compiled.extend(each.id for each in given if isinstance(each, Node))
        return real(executor, work, *given)

    monkeypatch.setattr(mill.loop, "run_in_executor", noted)
    worker = await mill.process()
    many = [f"{{{{ inputs.a | default({number}) }}}}" for number in range(LOOP_ITEMS + 1)]
    run = await worker.run(document(node("few", config=many[:3]), node("many", "few", config=many)))
    assert run.outputs == {"many": list(range(LOOP_ITEMS + 1))}
    assert compiled == ["many"]


def test_a_large_config_is_checked_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it takes a tenth of a second for some megabytes, and all other runs would wait."""
    seen: list[bool] = []

    def checked(value: Any, text: bytes, schema: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            seen.append(False)
        else:
            seen.append(True)
        return rendering.rendered(value, text, schema)

    monkeypatch.setattr(attempt, "rendered", checked)
    large = "{{ range(90000) | list }}"
    flow = document(node("small", config="{{ 1 + 1 }}"), node("large", config=large, dependencies=["small"]))
    with tidemill.open("memory://") as mill:
        assert mill.run(flow).status == "COMPLETED"
    assert seen == [True, False]
