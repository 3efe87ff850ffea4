"""Tests that exist for one guard of the engine each: `make mutants` takes the guard away and sees its test go red."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.engine.door import Call, Trouble, after_s, following, refuse
from tests.engine.kit import Mill, simulated
from tests.engine.scripts import Ledger, call
from tests.kernel.authoring import chain, document, node
from tidemill.blobs.local import MemoryBlobs
from tidemill.blobs.payloads import NotJson, encode_value
from tidemill.engine import turn
from tidemill.engine.asks import Answer, Ask
from tidemill.engine.catalog import Catalog
from tidemill.engine.keeping import HAND_OVERS_PER_CLAIM
from tidemill.errors import Rejected, Unavailable
from tidemill.handlers.contract import Fail, Handler, NodeContext, Return
from tidemill.kernel.commands import Begin, Done, Expands, Result
from tidemill.kernel.events import (
    BlobRef,
    NodeCompleted,
    NodeFailed,
    NodeStarted,
    ResultDiscarded,
    RunPaused,
    RunRepaired,
)
from tidemill.kernel.model import NodeType
from tidemill.stores.contract import Claim, Commit, Job, Lease, VersionConflict

LEASE_MS = 3_000


async def claimed(mill: Mill, **fields: Any) -> Lease:
    """Claim the one job there is, as a worker would."""
    given: dict[str, Any] = {"queues": ("default",), "limit": 9, "lease_ms": LEASE_MS} | fields
    (lease,) = await mill.store.claim(Claim(**given))
    return lease


def done(lease: Lease, node: str = "a", output: bytes = b"1") -> Result:
    return Result(node=node, visit=1, token=lease.token, outcome=Done(output=output))


def until_then(happens: Callable[[], Any]) -> Trouble:
    """The request is carried out, then something else happens, and only then is it answered."""

    async def late(call: Call) -> Any:
        answer = await call()
        await happens()
        return answer

    return late


async def bug(call: Call) -> Any:
    """Something that nobody has thought of."""
    raise RuntimeError("a bug in a driver")


# The turn


@simulated
async def test_a_lost_race_is_decided_again_on_what_the_winner_wrote(mill: Mill) -> None:
    first, second = await mill.process("c1", work=False), await mill.process("c2", work=False)
    run = await first.start(chain("a"))
    await second.engine.pause(run)
    await first.engine.cancel(run)
    assert (await mill.kinds(run))[2:] == ["RunPaused", "NodeCancelled", "RunCancelled"]
    assert first.engine.turns.races == 1


@simulated
async def test_a_result_without_its_lease_is_only_noted(mill: Mill) -> None:
    """The job was taken over and nothing written about it yet: the store's word alone tells that the result is late."""
    client = await mill.process("c", work=False)
    run = await client.start(chain("a"))
    old = await claimed(mill)
    await asyncio.sleep(2 * LEASE_MS / 1000)
    new = await claimed(mill)
    answers: list[Answer] = []
    client.engine.turns.ask(mill.stream(run), Ask(done(old), lambda ask, answer: answers.append(answer), ack=old))
    await mill.until(lambda: bool(answers), within_s=60)
    assert answers == [turn.DURABLE]
    assert (await mill.kinds(run))[-1] == "ResultDiscarded"
    assert [(view.job.key, view.token) for view in await mill.jobs(run)] == [("run/a/1/-1", new.token)]


@simulated
async def test_nothing_else_is_said_without_a_lease(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    run = await client.start(chain("a"))
    old = await claimed(mill)
    await asyncio.sleep(2 * LEASE_MS / 1000)
    await claimed(mill)
    begin = Begin(node="a", visit=1, token=old.token)
    answer = await client.engine.turns.command(mill.stream(run), begin, hold=old)
    assert answer.problem is not None and answer.problem.code == "lease_lost"
    assert await mill.of(run, NodeStarted) == []


@simulated
async def test_timers_are_set_by_the_clock_that_judges_them(mill: Mill) -> None:
    worker = mill.build()
    worker.ambient.skew_ms = 86_400_000
    await worker.open()
    await worker.run(document(node("a", type="sleep", config={"ms": 1_000})))
    assert mill.loop.now < 1_000 + 10


@simulated
async def test_giving_up_when_the_store_does_not_answer(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    run = await client.start(chain("a"))
    client.door.always("commit", refuse)
    with pytest.raises(Unavailable, match="does not answer"):
        async with asyncio.timeout(300):
            await client.engine.pause(run)
    assert client.door.fired["commit"] == turn.OUTAGES_MAX + 1


@simulated
async def test_giving_up_when_every_race_is_lost(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    run = await client.start(chain("a"))

    async def conflict(call: Call) -> Any:
        assert client.door.fired["commit"] < 1_000, "a turn must not go on for ever"
        return [VersionConflict(version=99)]

    client.door.always("commit", conflict)
    with pytest.raises(Unavailable, match="lost races"):
        await client.engine.pause(run)


@simulated
async def test_a_reload_that_overtakes_the_answer_is_not_folded_again(mill: Mill) -> None:
    """A commit is durable, others follow, the keeper reloads the run, and only then the commit is answered."""
    first, second = await mill.process("c1", work=False), await mill.process("c2", work=False)
    run = await first.start(document(node("m", config="{{ item }}", map={"over": [1, 2]})))
    stream, expansion = mill.stream(run), await claimed(mill)
    settled: list[Answer] = []

    async def finish(process: Any, command: Any, lease: Lease) -> None:
        process.engine.turns.ask(stream, Ask(command, lambda ask, answer: settled.append(answer), ack=lease))
        await mill.until(lambda: bool(settled))
        settled.clear()

    expands = Expands(count=2, items=b"[1,2]")
    await finish(first, Result(node="m", visit=1, token=expansion.token, outcome=expands, called=False), expansion)
    item = await claimed(mill, limit=1)

    async def overtake() -> None:
        await finish(second, msgspec.structs.replace(done(item, "m"), index=0), item)
        await first.engine.runs.refresh([stream])

    first.door.next("commit", until_then(overtake))
    await first.engine.pause(run)
    await first.engine.runs.refresh([stream])
    state = first.cached(run)
    assert state is not None and state.seq == len(await mill.events(run))
    items = state.peek("m").map
    assert items is not None and items.done == 1


@simulated
async def test_a_tail_that_is_loaded_twice_is_folded_once(mill: Mill) -> None:
    first, second = await mill.process("c1", work=False), await mill.process("c2", work=False)
    run = await first.start(chain("a"))
    await second.engine.pause(run)
    await second.engine.resume(run)
    first.door.next("load", after_s(0.01), after_s(0.02))
    stream = mill.stream(run)
    await asyncio.gather(first.engine.runs.refresh([stream]), first.engine.runs.refresh([stream]))
    state = first.cached(run)
    assert first.door.fired["load"] == 2
    assert state is not None and (state.seq, state.status) == (4, "RUNNING")


def snapshot_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "SNAPSHOT_TAIL_MIN", -1)


@simulated
async def test_a_snapshot_is_of_the_version_it_says(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mill's judge folds every log from its snapshot and from its first record, and compares."""
    snapshot_always(monkeypatch)
    worker = await mill.process()
    run = await worker.run(chain("a", "b", "c"))
    assert run.status == "COMPLETED"
    (tail,) = await mill.store.load({mill.stream(run.run_id): 0})
    assert tail.snapshot is not None


@simulated
async def test_a_state_older_than_the_snapshot_catches_up(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await mill.process("c1", work=False), await mill.process("c2", work=False)
    run = await first.start(chain("a"))
    snapshot_always(monkeypatch)
    for act in (second.engine.pause, second.engine.resume, second.engine.pause):
        await act(run)
    await first.engine.runs.refresh([mill.stream(run)])
    state = first.cached(run)
    assert state is not None and (state.seq, state.status) == (5, "PAUSED")


# Claims and hand-over


@simulated
async def test_a_worker_lets_go_of_jobs_it_could_not_load(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    run = await client.start(chain("a"))
    worker = mill.build("w", lease_ms=LEASE_MS)
    worker.door.next("load", refuse)
    await worker.open()
    async with asyncio.timeout(60):
        assert (await client.end(run)).status == "COMPLETED"
    assert worker.door.fired["load"] == 1


@simulated
async def test_a_claim_that_fails_is_made_again(mill: Mill) -> None:
    worker = mill.build()
    worker.door.next("claim", refuse, bug)
    await worker.open()
    async with asyncio.timeout(60):
        assert (await worker.run(chain("a"))).status == "COMPLETED"
    assert worker.door.fired["claim"] == 2


@simulated
async def test_a_successor_of_another_queue_is_left_to_others(mill: Mill) -> None:
    worker = await mill.process(queues=("default",))
    run = await worker.start(document(node("a"), node("b", "a", queue="gpu")))
    await asyncio.sleep(5)
    assert [(view.job.key, view.token) for view in await mill.jobs(run)] == [("run/b/1/-1", 0)]
    assert [event.node for event in await mill.of(run, NodeStarted)] == ["a"]


@simulated
async def test_a_draining_worker_takes_nothing_over(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    run = await worker.start(document(call("a", args={"seconds": 1}), call("b", "a", args={"seconds": 1})))
    await mill.until(lambda: ledger.running == 1)
    await worker.stop()
    assert ledger.count("b") == 0
    assert [commit.keep for commit in worker.door.commits if commit.acks] == [()]
    assert [(view.job.key, view.token) for view in await mill.jobs(run)] == [("run/b/1/-1", 0)]


@simulated
async def test_a_drain_fails_nothing_that_it_interrupts(mill: Mill) -> None:
    ledger = Ledger()
    first = await mill.process("w1", functions={"work": ledger.work}, grace_ms=0)
    run = await first.start(document(call("a", args={"seconds": 20})))
    await mill.until(lambda: ledger.running == 1)
    await first.stop()
    second = await mill.process("w2", functions={"work": ledger.work})
    assert (await second.end(run)).status == "COMPLETED"
    assert await mill.of(run, NodeFailed) == []


@simulated
async def test_a_worker_takes_no_more_than_it_can_do(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work}, concurrency=2)
    wide = [call(f"n{number}", "a", args={"seconds": 1}) for number in range(6)]
    assert (await worker.run(document(node("a"), *wide))).status == "COMPLETED"
    assert ledger.most == 2


@simulated
async def test_a_long_chain_lets_others_through(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    names = [f"n{number}" for number in range(2 * HAND_OVERS_PER_CLAIM)]
    long, short = await client.start(chain(*names)), await client.start(chain("a"))
    await mill.process("w", concurrency=1)
    await client.end(short)
    assert (await mill.state(long)).live
    assert (await client.end(long)).status == "COMPLETED"


@simulated
async def test_a_chain_of_slow_nodes_lets_others_through_at_once(mill: Mill) -> None:
    ledger = Ledger()
    client = await mill.process("c", work=False, functions={"work": ledger.work})
    slow = [call(f"n{at}", *([f"n{at - 1}"] if at else []), args={"seconds": 1}) for at in range(10)]
    long, short = await client.start(document(*slow)), await client.start(chain("a"))
    await mill.process("w", concurrency=1, functions={"work": ledger.work})
    await client.end(short)
    assert len(ledger.calls) <= 2, "its turn was after the first node that was there before it"
    assert (await client.end(long)).status == "COMPLETED"


# Attempts


@simulated
async def test_a_job_of_a_paused_run_is_put_aside(mill: Mill) -> None:
    """Claimed before the pause and loaded after it: nobody has begun, so nobody may."""
    ledger = Ledger()
    client = await mill.process("c", work=False, functions={"work": ledger.work})
    worker = mill.build("w", functions={"work": ledger.work})
    run = await client.start(document(call("a")))
    worker.door.next("load", following(lambda: client.engine.pause(run)))
    await worker.open()
    await asyncio.sleep(5)
    assert (ledger.calls, await mill.kinds(run)) == ([], ["RunCreated", "NodeScheduled", "RunPaused"])
    await client.engine.resume(run)
    assert (await client.end(run)).status == "COMPLETED"


@simulated
async def test_a_lost_worker_is_written_down(mill: Mill) -> None:
    ledger = Ledger()
    first = await mill.process("w1", functions={"work": ledger.work}, lease_ms=LEASE_MS)
    run = await first.start(document(call("a", args={"seconds": 60})))
    await mill.until(lambda: ledger.running == 1)
    first.kill()
    await mill.process("w2", functions={"work": ledger.work}, lease_ms=LEASE_MS)
    await mill.until(lambda: len(ledger.calls) == 2, within_s=60)
    assert [event.error.code for event in await mill.of(run, NodeFailed)] == ["worker_lost"]
    assert [attempt for _, attempt in ledger.calls] == [1, 2]


@simulated
async def test_a_newer_job_is_left_alone(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    run = await client.start(chain("a"))
    newer = Job(key="run/a/1/-1", queue="default", body=msgspec.msgpack.encode(["run", "a", 1, -1, 99]))
    await mill.meddle(run, drop=(newer.key,))
    await mill.meddle(run, jobs=(newer,))
    await mill.process("w")
    await asyncio.sleep(8)
    assert await mill.kinds(run) == ["RunCreated", "NodeScheduled"]
    assert [view.job.body for view in await mill.jobs(run)] == [newer.body]


@simulated
async def test_a_job_that_cannot_be_read_is_left_alone(mill: Mill) -> None:
    """A kind of job that this version has never heard of costs neither the worker nor what was claimed with it."""
    client = await mill.process("c", work=False)
    run = await client.start(chain("a"))
    newer = Job(key="signal/a/1/-1", queue="system", body=msgspec.msgpack.encode(["signal", "a", 1, -1, 99]))
    await mill.meddle("other", jobs=(newer,))
    await mill.process("w")
    async with asyncio.timeout(10):
        assert (await client.end(run)).status == "COMPLETED"
    assert await mill.of(run, NodeFailed) == []
    await asyncio.sleep(2)
    assert [view.job.key for view in await mill.jobs("other")] == [newer.key]


@simulated
async def test_a_run_that_cannot_be_read_stops_nobody(mill: Mill) -> None:
    worker = await mill.process("w")
    job = Job(key="run/a/1/-1", queue="default", body=msgspec.msgpack.encode(["run", "a", 1, -1, 1]))
    record = msgspec.msgpack.encode(["RunCreated", 99])
    await mill.store.commit([Commit(stream=mill.stream("x"), expected=0, records=(record,), jobs=(job,))])
    await asyncio.sleep(2)
    async with asyncio.timeout(60):
        assert (await worker.run(chain("a"))).status == "COMPLETED"


@simulated
async def test_a_job_of_no_run_is_no_hot_loop(mill: Mill) -> None:
    worker = await mill.process("w")
    job = Job(key="run/a/1/-1", queue="default", body=msgspec.msgpack.encode(["run", "a", 1, -1, 1]))
    await mill.meddle("nobody", jobs=(job,))
    for _ in range(2_000):
        await asyncio.sleep(0)
    assert 0 < worker.door.calls["claim"] < 50


@simulated
async def test_the_end_of_an_old_attempt_leaves_the_new_one_its_lease(mill: Mill) -> None:
    """A result is on its way to a slow store when its job is inserted anew and claimed by the same worker."""
    calls: list[float] = []

    async def work() -> None:
        calls.append(mill.loop.now)
        await asyncio.sleep(1 if len(calls) == 1 else 20)

    worker = await mill.process(functions={"work": work}, lease_ms=LEASE_MS)
    run = await worker.start(document(call("a")))
    await mill.until(lambda: len(calls) == 1)
    worker.door.next("commit", after_s(8))
    await mill.until(lambda: worker.door.fired["commit"] == 1)
    (view,) = await mill.jobs(run)
    await mill.meddle(run, drop=(view.job.key,))
    await mill.meddle(run, jobs=(view.job,))
    assert (await worker.end(run)).status == "COMPLETED"
    assert len(calls) == 2
    assert await mill.of(run, NodeFailed) == []


@simulated
async def test_a_node_type_a_worker_does_not_have_is_left_alone(mill: Mill) -> None:
    rare = Handler(NodeType(name="rare"), lambda context: Return(1))
    client = await mill.process("c", work=False, more=[rare])
    run = await client.start(document(node("a", type="rare")))
    await mill.process("w")
    await asyncio.sleep(8)
    assert await mill.kinds(run) == ["RunCreated", "NodeScheduled"]
    await mill.process("w2", more=[rare])
    assert (await client.end(run)).status == "COMPLETED"


@simulated
async def test_at_most_once_is_announced_before_it_is_called(mill: Mill) -> None:
    announced: list[int] = []

    async def work(context: NodeContext) -> None:
        announced.append(len(await mill.of(context.run_id, NodeStarted)))

    worker = await mill.process(functions={"work": work})
    assert (await worker.run(document(call("a", delivery="at_most_once")))).status == "COMPLETED"
    assert announced == [1]


@simulated
async def test_at_most_once_is_not_called_when_it_could_not_be_announced(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process("w", functions={"work": ledger.work})
    reference = await worker.publish(document(call("a", delivery="at_most_once")))

    stolen: list[Lease] = []

    async def steal() -> None:
        (view,) = await mill.jobs(run)
        await mill.meddle(run, drop=(view.job.key,))
        await mill.meddle(run, jobs=(view.job,))
        stolen.append(await claimed(mill, lease_ms=600_000))

    run = "stolen"
    # The first commit starts the run, the second announces the attempt.
    worker.door.next("commit", lambda call: call(), following(steal))
    await worker.start(reference, key=run)
    await asyncio.sleep(5)
    assert (len(stolen), ledger.calls, await mill.of(run, NodeStarted)) == (1, [], [])
    await mill.store.release(stolen)
    assert (await worker.end(run)).status == "COMPLETED"
    assert ledger.count("a") == 1


@simulated
async def test_at_most_once_that_was_given_back_has_an_unknown_outcome(mill: Mill) -> None:
    ledger = Ledger()
    first = await mill.process("w1", functions={"work": ledger.work}, grace_ms=0)
    run = await first.start(document(call("a", delivery="at_most_once", args={"seconds": 60})))
    await mill.until(lambda: ledger.running == 1)
    await first.stop()
    second = mill.build("w2", functions={"work": ledger.work})
    second.door.always("commit", after_s(0.1))
    await second.open()
    async with asyncio.timeout(60):
        ended = await second.end(run)
    assert (ended.status, ended.nodes["a"]["error"]["code"]) == ("FAILED", "unknown_outcome")
    assert ledger.count("a") == 1


@simulated
async def test_every_attempt_has_the_same_effect_key_and_every_visit_its_own(mill: Mill) -> None:
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
async def test_an_attempt_ends_at_its_time_out(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    run = await worker.run(document(call("a", args={"seconds": 600}, timeout_seconds=2, retry={"max_attempts": 1})))
    assert run.status == "FAILED"
    assert run.nodes["a"]["error"]["code"] == "timeout"
    assert mill.loop.now < 1_000 + 10


@pytest.mark.parametrize("function", ["work", "later"])
@simulated
async def test_a_handler_that_wants_to_exit_fails_and_the_worker_stays(mill: Mill, function: str) -> None:
    def work() -> None:
        raise SystemExit(3)

    async def later() -> None:
        raise SystemExit(4)

    worker = await mill.process(functions={"work": work, "later": later})
    run = await worker.run(document(call("a", function=function)))
    assert (run.status, run.nodes["a"]["error"]["code"]) == ("FAILED", "exception")
    assert (await worker.run(chain("a"))).status == "COMPLETED"


@simulated
async def test_a_large_output_is_not_written_into_the_log(mill: Mill) -> None:
    worker = await mill.process(functions={"work": lambda: "x" * 70_000})
    run = await worker.run(document(call("a", function="work")))
    (completed,) = await mill.of(run.run_id, NodeCompleted)
    assert isinstance(completed.output, BlobRef)
    assert run.outputs == {"a": "x" * 70_000}


@simulated
async def test_a_condition_that_fails_decides_nothing(mill: Mill) -> None:
    branch = {"rules": [{"condition": "output.missing > 1", "next_nodes": ["b"]}], "default": ["c"]}
    worker = await mill.process()
    routed = node("a", config={"x": 1}, branch={"type": "conditional", **branch})
    run = await worker.run(document(routed, node("b"), node("c")))
    assert run.status == "FAILED"
    assert run.nodes["a"]["error"]["code"] == "condition_failed"


@simulated
async def test_a_blob_that_cannot_be_read_now_fails_nothing(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    run = await client.start(document(node("a", config="{{ inputs.x }}")), {"x": "x" * 70_000})
    (stored,) = [key for key, body in mill.blobs._held.items() if len(body) > 70_000]
    body = mill.blobs._held.pop(stored)
    await mill.process("w")
    await asyncio.sleep(5)
    mill.blobs._held[stored] = body
    assert (await client.end(run)).status == "COMPLETED"
    assert await mill.of(run, NodeFailed) == []


@simulated
async def test_a_handler_may_change_what_it_was_given(mill: Mill) -> None:
    """Large inputs are decoded once per process and shared by all attempts."""

    def work(xs: list[int]) -> int:
        xs.append(1)
        return len(xs)

    worker = await mill.process(functions={"work": work})
    nodes = [call(name, *before, args={"xs": "{{ inputs.xs }}"}) for name, before in (("a", ()), ("b", ("a",)))]
    run = await worker.run(document(*nodes), {"xs": [0], "large": "x" * 70_000})
    assert [run.nodes[name]["output"] for name in "ab"] == [2, 2]


# Leases


@simulated
async def test_a_lease_is_renewed_while_its_attempt_runs(mill: Mill) -> None:
    ledger = Ledger()
    workers = [await mill.process(f"w{i}", functions={"work": ledger.work}, lease_ms=LEASE_MS) for i in range(2)]
    assert (await workers[0].run(document(call("a", args={"seconds": 30})))).status == "COMPLETED"
    assert ledger.count("a") == 1


@simulated
async def test_a_missed_beat_loses_nothing(mill: Mill) -> None:
    ledger = Ledger()
    workers = [await mill.process(f"w{i}", functions={"work": ledger.work}, lease_ms=LEASE_MS) for i in range(2)]
    for worker in workers:
        worker.door.next("renew", refuse, lambda call: call(), bug)
    assert (await workers[0].run(document(call("a", args={"seconds": 30})))).status == "COMPLETED"
    assert sum(worker.door.fired["renew"] for worker in workers) == 3
    assert ledger.count("a") == 1


@simulated
async def test_an_attempt_whose_run_was_cancelled_is_stopped(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work}, lease_ms=LEASE_MS)
    run = await worker.start(document(call("a", args={"seconds": 600})))
    await mill.until(lambda: ledger.running == 1)
    await worker.engine.cancel(run)
    await asyncio.sleep(LEASE_MS / 1000)
    assert ledger.cancelled == [f"{run}/a/1/-1"]


# The keeper


@simulated
async def test_the_audit_says_nothing_about_a_run_that_moves(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    worker = mill.build("w", audit_every_ms=1_000, queues=("elsewhere",))
    run = await client.start(chain("a", "b"))
    lease = await claimed(mill, lease_ms=600_000)

    async def move() -> None:
        settled = asyncio.Event()
        client.engine.turns.ask(mill.stream(run), Ask(done(lease), lambda ask, answer: settled.set(), ack=lease))
        await settled.wait()

    worker.door.next("jobs", until_then(move))
    await worker.open()
    await asyncio.sleep(1.5)
    assert worker.door.fired["jobs"] == 1
    assert (await mill.state(run)).peek("b").status == "QUEUED"
    assert worker.engine.keeper is not None and worker.engine.keeper.repairs == 0
    assert await mill.of(run, RunRepaired) == []


@simulated
async def test_a_job_that_was_lost_is_restored(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    run = await client.start(chain("a"))
    await mill.meddle(run, drop=("run/a/1/-1",))
    await mill.process("w", audit_every_ms=1_000)
    assert (await client.end(run)).status == "COMPLETED"
    (repaired,) = await mill.of(run, RunRepaired)
    assert (repaired.restored, repaired.dropped) == (("run/a/1/-1",), ())
    assert "missing" in repaired.reason


@simulated
async def test_a_job_that_belongs_to_nothing_is_dropped(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    run = await client.start(document(node("a", queue="elsewhere")))
    ghost = Job(key="run/a/7/-1", queue="nowhere", body=msgspec.msgpack.encode(["run", "a", 7, -1, 1]))
    await mill.meddle(run, jobs=(ghost,))
    await mill.process("w", audit_every_ms=1_000, queues=("default",))
    await asyncio.sleep(1.5)
    assert [view.job.key for view in await mill.jobs(run)] == ["run/a/1/-1"]
    assert [event.dropped for event in await mill.of(run, RunRepaired)] == [("run/a/7/-1",)]


@simulated
async def test_the_audit_leaves_newer_jobs_alone(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    run = await client.start(document(node("a", queue="elsewhere")))
    newer = Job(key="signal/a/1/-1", queue="elsewhere", body=msgspec.msgpack.encode(["signal", "a", 1, -1, 99]))
    await mill.meddle(run, jobs=(newer,))
    worker = await mill.process("w", audit_every_ms=1_000, queues=("default",))
    await asyncio.sleep(3.5)
    assert worker.door.calls["jobs"] >= 3
    assert newer.key in [view.job.key for view in await mill.jobs(run)]
    assert await mill.of(run, RunRepaired) == []


@simulated
async def test_the_audit_of_a_paused_run_spares_running_attempts(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work}, audit_every_ms=1_000)
    run = await worker.start(document(call("a", args={"seconds": 5})))
    await mill.until(lambda: ledger.running == 1)
    await worker.engine.pause(run)
    assert (await worker.end(run)).status == "COMPLETED"
    assert await mill.of(run, ResultDiscarded) == []
    assert len(await mill.of(run, RunPaused)) == 1


@simulated
async def test_a_run_that_waits_for_nothing_with_a_name_is_marked_stuck(mill: Mill) -> None:
    worker = await mill.process(queues=("default",))
    run = await worker.start(document(node("a", queue="nobody")))
    await asyncio.sleep(55)
    assert await mill.rows("stuck") == []
    await asyncio.sleep(25)
    assert [row.run_id for row in await mill.rows("stuck")] == [run]


@simulated
async def test_the_keeper_goes_on_after_an_outage(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    run = await client.start(chain("a"))
    await mill.meddle(run, drop=("run/a/1/-1",))
    worker = mill.build("w", audit_every_ms=1_000)
    worker.door.next("find", refuse, bug)
    await worker.open()
    async with asyncio.timeout(60):
        assert (await client.end(run)).status == "COMPLETED"
    assert worker.door.fired["find"] == 2


# Publishing and starting


@simulated
async def test_publishing_the_same_twice_is_publishing_once(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    answers = [await client.engine.publish(chain("a")) for _ in range(2)]
    assert [(answer.version, answer.created) for answer in answers] == [(1, True), (1, False)]
    assert answers[0].digest == answers[1].digest


@simulated
async def test_of_two_publishers_each_gets_its_own_version(mill: Mill) -> None:
    first, second = await mill.process("c1", work=False), await mill.process("c2", work=False)
    for process in (first, second):
        process.door.next("commit", after_s(0.01))
    answers = await asyncio.gather(first.engine.publish(chain("a")), second.engine.publish(chain("a", "b")))
    assert sorted(answer.version for answer in answers) == [1, 2]
    for answer in answers:
        version = await first.engine.catalog.resolve("default", f"{answer.name}@{answer.version}")
        assert version.digest == answer.digest


@simulated
async def test_a_key_is_not_used_for_two_requests(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    assert await client.start(chain("a"), {"x": 1}, key="k") == "k"
    with pytest.raises(Rejected) as refusal:
        await client.start(chain("a"), {"x": 2}, key="k")
    assert refusal.value.code == "key_reused"


@simulated
async def test_starting_twice_under_one_key_is_starting_once(mill: Mill) -> None:
    first, second = await mill.process("c1", work=False), await mill.process("c2", work=False)
    assert [await process.start(chain("a"), {"x": 1}, key="k") for process in (first, second)] == ["k", "k"]
    assert await mill.kinds("k") == ["RunCreated", "NodeScheduled"]


# Values


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": float("-inf")}], ids=["nan", "inf", "-inf"])
def test_a_number_that_json_does_not_have_is_refused(value: Any) -> None:
    with pytest.raises(NotJson):
        encode_value(value)


async def test_a_damaged_blob_is_not_handed_out() -> None:
    blobs = MemoryBlobs()
    digest = await blobs.put("t", b"good")
    blobs._held["t", digest] = b"evil"
    with pytest.raises(Unavailable, match="damaged"):
        await blobs.get("t", digest)


async def test_a_blob_belongs_to_its_tenant() -> None:
    blobs = MemoryBlobs()
    digest = await blobs.put("t", b"secret")
    with pytest.raises(Unavailable, match="missing"):
        await blobs.get("other", digest)


class Lying(MemoryBlobs):
    """A blob store that does not verify what it reads."""

    async def get(self, tenant: str, digest: str) -> bytes:
        body = await super().get(tenant, digest)
        return body.replace(b"value@1", b"value@2")


@simulated
async def test_a_damaged_workflow_is_not_run(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    published = await client.engine.publish(chain("a"))
    blobs = Lying()
    blobs._held = mill.blobs._held
    catalog = Catalog(mill.store, blobs, client.ambient, client.engine.types)
    with pytest.raises(Unavailable, match="damaged"):
        await catalog.flow("default", published.digest)
