"""Jobs that a worker cannot run: they reach one that can, and are in nobody's way."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.engine import run_cache
from tidemill.engine.worker.leases import (
    EACH_MS,
    KNOWN_MAX,
    OFFERS_MAX,
    REST_MS_MAX,
    STEP_MS,
    ReleaseQueue,
    UnrunnableBackoff,
)
from tidemill.handlers.contract import CapabilityMissing, Done, Handler
from tidemill.kernel.events import NodeCompleted
from tidemill.kernel.model import NodeType
from tidemill.node_types import built_in_handlers
from tidemill.security.grants import SecretGrant
from tidemill.security.secrets import GrantedSecrets
from tidemill.stores.contract import Claim, Commit, Job, Stream
from tidemill.stores.memory import MemoryStore
from tidemill.testing.faulty_store import Call, refuse

SPECIAL = Handler(NodeType(name="special"), lambda context: Done("done"))


class Clock:
    def __init__(self) -> None:
        self.now = 20 * STEP_MS + 300

    def __call__(self) -> int:
        return self.now


def test_only_some_are_offered_at_once() -> None:
    clock = Clock()
    aside = UnrunnableBackoff(clock)
    rests = [aside.delay_ms(number, clock.now) for number in range(2 * OFFERS_MAX)]
    assert rests == [0] * OFFERS_MAX + [STEP_MS - 300] * OFFERS_MAX
    clock.now += STEP_MS
    assert aside.delay_ms("a", clock.now) == 0


def test_the_more_nobody_takes_the_longer_they_rest() -> None:
    clock = Clock()
    aside = UnrunnableBackoff(clock)
    rests = [aside.delay_ms(number, clock.now) for number in range(2 * KNOWN_MAX)][OFFERS_MAX:]
    assert rests[0] == rests[STEP_MS // EACH_MS - 1] == STEP_MS - 300
    assert rests == sorted(rests) and max(rests) <= REST_MS_MAX
    assert rests[-1] > REST_MS_MAX - 2 * STEP_MS


def test_what_others_take_lengthens_no_rest() -> None:
    clock = Clock()
    aside = UnrunnableBackoff(clock)
    for number in range(KNOWN_MAX):
        aside.delay_ms(number, clock.now)
    clock.now += REST_MS_MAX + 3 * STEP_MS
    assert [aside.delay_ms("a", clock.now) for _ in range(3)] == [0, STEP_MS - 300, STEP_MS - 300]


async def test_what_gathers_is_given_back_in_one_call_for_each_delay() -> None:
    store = MemoryStore()
    stream = Stream("t", "run", "r")
    jobs = tuple(Job(key=str(number), queue="q", body=b"") for number in range(6))
    await store.commit([Commit(stream=stream, expected=None, jobs=jobs)])
    leases = await store.claim(Claim(queues=("q",), limit=6, lease_ms=60_000))
    calls: list[tuple[int, int]] = []
    real = store.release

    async def counted(some: list[object], *, delay_ms: int = 0) -> None:
        calls.append((len(some), delay_ms))
        await real(some, delay_ms=delay_ms)  # type: ignore[arg-type]

    store.release = counted  # type: ignore[assignment, method-assign]
    returns = ReleaseQueue(store)
    returns.give([])
    await returns.settle()
    for lease in leases[:4]:
        returns.give([lease])
    returns.give(leases[4:], 50_000)
    await returns.settle()
    assert calls == [(4, 0), (2, 50_000)]
    assert len(await store.claim(Claim(queues=("q",), limit=6, lease_ms=60_000))) == 4


@pytest.mark.parametrize("ignorant", [1, 3])
@simulated
async def test_whoever_can_run_it_gets_it_soon(mill: Cluster, ignorant: int) -> None:
    """However many others are as quick to ask: whoever had to give it back stands back for a moment."""
    client = await mill.process("client", work=False, more=[SPECIAL])
    for number in range(ignorant):
        await mill.process(f"plain{number}", handlers=built_in_handlers())
    await mill.process("knowing", more=[SPECIAL], handlers=())
    await asyncio.sleep(0.377)
    reference = await client.publish(document(node("b", type="special")))
    for _ in range(10):
        began = mill.loop.now
        run = await client.end(await client.start(reference))
        assert run.status == "COMPLETED" and mill.loop.now - began <= 0.2
        assert [event.worker for event in await mill.of(run.run_id, NodeCompleted, "b")] == ["knowing"]
        await asyncio.sleep(0.731)


@simulated
async def test_whoever_becomes_able_gets_it_within_a_second(mill: Cluster) -> None:
    """Those who met it before all stand back at the same moment."""
    client = await mill.process("client", work=False, more=[SPECIAL])
    for number in range(3):
        await mill.process(f"plain{number}", handlers=built_in_handlers())
    run_id = await client.start(document(node("b", type="special")))
    await asyncio.sleep(7.345)
    await mill.process("knowing", more=[SPECIAL], handlers=())
    began = mill.loop.now
    assert (await client.end(run_id)).status == "COMPLETED"
    assert mill.loop.now - began <= 1


@simulated
async def test_a_queue_full_of_unknown_types_starves_nobody(mill: Cluster, ledger: Ledger) -> None:
    """Also when they are older and more important than what the worker can do."""
    client = await mill.process("client", work=False, more=[SPECIAL])
    unknown = await client.publish(
        document(*(node(f"n{i}", type="special", priority=9) for i in range(1_000)), name="unknown")
    )
    blocked = [await client.start(unknown) for _ in range(3)]
    worker = await mill.process(functions={"work": ledger.work}, concurrency=8)
    await asyncio.sleep(30)
    reference = await client.publish(document(call("a", priority=1), name="known"))
    waits = []
    for _ in range(20):
        began = mill.loop.now
        run_id = await client.start(reference)
        assert (await client.end(run_id)).status == "COMPLETED"
        waits.append(mill.loop.now - began)
        await asyncio.sleep(0.9)
    assert max(waits) <= 0.5, waits
    claims = worker.faulty_store.calls["claim"]
    await asyncio.sleep(60)
    # Two hundred of them are looked at in a second, eight at a time, and it asks in vain a few times besides.
    assert worker.faulty_store.calls["claim"] - claims <= 60 * (1_000 / EACH_MS / 8 + 10)
    assert {(await client.engine.show(run_id)).status for run_id in blocked} == {"RUNNING"}


@simulated
async def test_nothing_is_claimed_from_the_moment_of_the_drain(mill: Cluster, ledger: Ledger) -> None:
    client = await mill.process("client", work=False)
    worker = await mill.process(functions={"work": ledger.work}, grace_ms=20_000)
    await client.start(document(call("a", args={"seconds": 10}), call("b", "a")))
    await mill.until(lambda: ledger.running == 1)
    worker.engine.drain()
    await client.start(document(call("c")))
    await worker.stop()
    assert [key.split("/")[1] for key, _ in ledger.calls] == ["a"]
    await mill.process("w2", functions={"work": ledger.work})
    await mill.until(lambda: ledger.count("b") + ledger.count("c") == 2, within_s=1)


@simulated
async def test_what_a_commit_hands_over_after_the_drain_began_is_given_back(mill: Cluster, ledger: Ledger) -> None:
    """The commit was under way, and kept a job for a worker that has stopped since."""
    worker = await mill.process(functions={"work": ledger.work}, grace_ms=20_000)
    run_id = await worker.start(document(call("a", args={"seconds": 1}), call("b", "a", args={"seconds": 5})))
    await mill.until(lambda: ledger.running == 1)

    async def slow_answer(call: Call) -> object:
        answer = await call()
        await asyncio.sleep(0.3)
        return answer

    worker.faulty_store.next("commit", slow_answer)
    await mill.until(lambda: worker.faulty_store.fired["commit"] == 1)
    assert [view.owner for view in await mill.jobs(run_id)] == ["w1"]
    began = mill.loop.now
    await worker.stop()
    assert mill.loop.now - began <= 0.5 and ledger.count("b") == 0
    assert [(view.job.key, view.token) for view in await mill.jobs(run_id)] == [("run/b/1/-1", 0)]


@simulated
async def test_a_second_word_ends_the_grace_period(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work}, grace_ms=600_000)
    run_id = await worker.start(document(call("a", args={"seconds": 300})))
    await mill.until(lambda: ledger.running == 1)
    closing = asyncio.create_task(worker.stop())
    await asyncio.sleep(5)
    assert ledger.running == 1 and worker.engine.worker is not None
    worker.engine.worker.stop_now()
    began = mill.loop.now
    await closing
    assert mill.loop.now - began <= 0.1
    assert worker.engine.worker.returned == 1 and ledger.cancelled == [f"{run_id}/a/1/-1"]


@simulated
async def test_a_result_that_is_being_committed_is_not_given_back(mill: Cluster, ledger: Ledger) -> None:
    """The attempt ended within the grace period; that the store is slow is no reason to do it again."""
    worker = await mill.process(functions={"work": ledger.work}, grace_ms=100)
    run_id = await worker.start(document(call("a", args={"seconds": 1})))
    await mill.until(lambda: ledger.running == 1)

    async def slow(call: Call) -> object:
        await asyncio.sleep(0.5)
        return await call()

    worker.faulty_store.always("commit", slow)
    await mill.until(lambda: ledger.running == 0)
    await worker.stop()
    worker.faulty_store.always("commit", None)
    assert worker.faulty_store.fired["commit"] >= 1 and worker.engine.worker is not None
    assert worker.engine.worker.returned == 0
    assert len(await mill.of(run_id, NodeCompleted, "a")) == 1


@simulated
async def test_a_drain_counts_results_that_it_could_not_hand_in(mill: Cluster, ledger: Ledger) -> None:
    """The handler has ended, but nobody will ever know: its job is done again, so it was given back."""
    worker = await mill.process(functions={"work": ledger.work}, grace_ms=20_000)
    await worker.start(document(call("a", args={"seconds": 5})))
    await mill.until(lambda: ledger.running == 1)
    worker.faulty_store.always("commit", refuse)
    await worker.stop()
    assert worker.faulty_store.fired["commit"] >= 1 and worker.engine.worker is not None
    assert (worker.engine.worker.returned, ledger.cancelled) == (1, [])


@simulated
async def test_giving_back_to_a_store_that_does_not_answer_is_left_to_the_lease(mill: Cluster) -> None:
    client = await mill.process("client", work=False, more=[SPECIAL])
    worker = mill.build("plain", handlers=built_in_handlers())
    worker.faulty_store.next("release", refuse)
    await worker.open()
    await client.start(document(node("b", type="special")))
    await mill.until(lambda: worker.faulty_store.calls["release"] >= 3)
    assert worker.faulty_store.fired["release"] == 1


@simulated
async def test_a_function_that_only_another_worker_has_is_left_to_it(mill: Cluster, ledger: Ledger) -> None:
    poor = await mill.process("poor")
    # Before anybody else is there, it is a failure like any other: nobody would ever do it.
    alone = await poor.run(document(call("a")))
    assert (alone.status, alone.error["code"]) == ("FAILED", "function_unknown")
    rich = await mill.process("rich", functions={"work": ledger.work})
    await asyncio.sleep(6)
    # Whoever does the first step is given the second one with it, so both of them meet some.
    reference = await poor.publish(document(node("v"), call("b", "v"), name="second"))
    runs = [await client.engine.start(reference) for client in (poor, rich) * 10]
    assert {(await rich.end(run_id)).status for run_id in runs} == {"COMPLETED"}
    assert ledger.count("b") == len(runs)


@simulated
async def test_a_standing_worker_waits_for_one_that_has_the_function(
    mill: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever has it may be starting again just now: that is no reason to fail the run for good."""
    ledger, undo = Ledger(), {"type": "python", "config": {"function": "work"}}
    poor = await mill.process("poor", standing=True)
    run_id = await poor.start(document(call("a")))
    await asyncio.sleep(3)
    twin = await mill.process("twin", standing=True)
    rolled_back = document(
        node("u", compensator=undo), node("f", "u", type="fail"), name="u", on_failure={"compensate": "automatic"}
    )
    undone = await poor.start(rolled_back)
    await asyncio.sleep(20)
    explained = await poor.engine.why(run_id)
    (found,) = explained.blockers
    assert (found.need, set(found.alive), found.lacking.code) == ("lacking", {"poor", "twin"}, "function_unknown")
    assert found.words == "a is queued: no worker has what it needs: no function work is registered"
    assert found.command == "tidemill worker --queues default --app FILE.py"
    assert "no worker has what it needs: no function work is registered" in (await poor.engine.why(undone)).headline
    # Each of the two says it once, whatever it is needed for and however often it meets it.
    assert caplog.text.count("left to other workers: no function work is registered") == 2
    assert [worker.lacks for worker in await twin.engine.workers.find()] == [("no function work is registered",)] * 2
    rich = await mill.process("rich", functions={"work": ledger.work}, standing=True)
    assert (await rich.end(run_id)).status == "COMPLETED"
    await mill.until(lambda: ledger.count("u") == 1)


class Values(dict[str, str]):
    """Secrets that a worker has."""


GRANT = SecretGrant(origins=("https://crm.example.com",), workflows=("test",))
NEEDS_SECRET = {"type": "sent", "config": {"key": "Token {{ secrets.CRM }}"}}
SECRETS = {
    "not granted": (GrantedSecrets(Values(CRM="a-value"), {}), "secret_not_granted"),
    "granted to another workflow": (
        GrantedSecrets(Values(CRM="a-value"), {"CRM": msgspec.structs.replace(GRANT, workflows=("x",))}),
        "secret_not_granted",
    ),
    "missing": (GrantedSecrets(Values(), {"CRM": GRANT}), "secret_missing"),
}


@pytest.mark.parametrize("lacking", SECRETS)
@simulated
async def test_a_secret_that_only_another_worker_has_is_left_to_it(mill: Cluster, lacking: str) -> None:
    secrets, code = SECRETS[lacking]
    keys: list[str] = []

    def send(context: Any) -> Done:
        keys.append(context.config["key"])
        return Done(1)

    more = [Handler(NodeType(name="sent", secret_fields=("key",)), send)]
    poor = await mill.process("poor", standing=True, secrets=secrets, more=more)
    done = document(node("v"), node("a", "v", delivery="at_most_once", **NEEDS_SECRET))
    undone = document(
        node("u", compensator=NEEDS_SECRET), node("f", "u", type="fail"), on_failure={"compensate": "automatic"}
    )
    runs = [await poor.start(each) for each in (done, undone)]
    await asyncio.sleep(20)
    (found,) = (await poor.engine.why(runs[0])).blockers
    assert (found.need, found.lacking.code) == ("lacking", code)
    assert "secret" in found.words and "CRM" in found.unblock
    assert found.lacking.message in (await poor.engine.why(runs[1])).headline
    rich = await mill.process("rich", secrets=GrantedSecrets(Values(CRM="a-value"), {"CRM": GRANT}), more=more)
    assert [(await rich.end(run_id)).status for run_id in runs] == ["COMPLETED", "FAILED"]
    await mill.until(lambda: len(keys) == 2)
    assert keys == ["Token a-value"] * 2


@pytest.mark.parametrize("lacking", SECRETS)
@simulated
async def test_a_secret_that_nobody_will_have_fails_the_node(mill: Cluster, lacking: str) -> None:
    secrets, code = SECRETS[lacking]
    more = [Handler(NodeType(name="sent", secret_fields=("key",)), lambda context: Done(1))]
    alone = await mill.process("alone", secrets=secrets, more=more)
    run = await alone.run(document(node("a", **NEEDS_SECRET)))
    assert (run.status, run.error["code"], run.nodes["a"]["attempts"]) == ("FAILED", code, 0)


@pytest.mark.parametrize("options", [{}, {"standing": True, "only": "r"}], ids=["embedded", "for one run"])
@simulated
async def test_where_nobody_will_come_it_fails_at_once(mill: Cluster, options: dict[str, Any]) -> None:
    worker = await mill.process("alone", **options)
    await worker.start(document(call("a")), key="r")
    run = await worker.end("r")
    assert (run.status, run.error["code"]) == ("FAILED", "function_unknown")


@simulated
async def test_a_program_leaves_runs_alone_that_it_has_not_started(mill: Cluster, ledger: Ledger) -> None:
    """Another program's runs, found in a shared store, wait for their functions; its own runs fail at once."""
    starter = await mill.process("starter", work=False)
    foreign = await starter.start(document(call("a")))
    mine = await mill.process("mine")
    own = [await mine.start(document(call("a"), name="own")), *await mine.engine.start_many("own", [{}, {}])]
    parent = document(node("c", type="workflow", config={"workflow": "own"}), name="parent")
    parents = [await mine.start(parent, key=key) for key in ("dashed-1", "dotted.1", "long" * 40)]
    ended = [await mine.end(run_id) for run_id in (*own, *parents)]
    assert {run.status for run in ended} == {"FAILED"}
    assert {run.error["code"] for run in ended} == {"function_unknown", "child_failed"}
    fork = await mine.engine.patches.fork(foreign, key="forked")
    assert (await mine.end(fork)).status == "FAILED"
    assert (await mine.engine.show(foreign)).status == "RUNNING"
    assert "no function work is registered" in (await mine.engine.why(foreign)).headline
    rich = await mill.process("rich", functions={"work": ledger.work})
    assert (await rich.end(foreign)).status == "COMPLETED"


@simulated
async def test_after_too_many_starts_a_program_fails_what_it_lacks(
    mill: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cache, "STARTED_MAX", 3)
    mine = await mill.process("mine")
    await mine.engine.publish(document(node("s", type="sleep", config={"seconds": 5}), call("a", "s"), name="late"))
    runs = [await mine.engine.start("late") for _ in range(6)]
    assert {(await mine.end(run_id)).status for run_id in runs} == {"FAILED"}


@simulated
async def test_what_may_pass_is_tried_again_where_nobody_else_is(mill: Cluster) -> None:
    def fail(context: Any) -> Done:
        raise CapabilityMissing("process_unavailable", "no process", retryable=True)

    worker = await mill.process(standing=True, more=[Handler(NodeType(name="apart"), fail)])
    run = await worker.run(document(node("a", type="apart", retry={"max_attempts": 2})))
    assert (run.status, run.nodes["a"]["attempts"]) == ("FAILED", 2)
