"""Tests for guards over people, children and repairs that no story reaches: each is red without its check."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.engine.door import Call, after_s
from tests.engine.kit import Mill, Process, simulated
from tests.engine.people import child, code_of, human, waits
from tests.engine.scripts import call
from tests.engine.undoer import Undoer, undo_with, undoing_process
from tests.kernel import tables
from tests.kernel.acts import Acts
from tests.kernel.authoring import document, node
from tidemill.engine.answers import asked_for
from tidemill.engine.asks import Ask
from tidemill.engine.errands import DEPTH_MAX, Errands
from tidemill.engine.keeper import compare
from tidemill.engine.programs import Flow
from tidemill.engine.rows import read_approval_row, rows_beside
from tidemill.engine.runs import Entry
from tidemill.engine.tasks import may_run
from tidemill.engine.worker import Worker
from tidemill.handlers.contract import Asked, Child, Fail, Pause, Skip
from tidemill.kernel.commands import Cancel, ChildBegan, ChildEnded, Done, Result, Rewind
from tidemill.kernel.events import CompensationCompleted, NodeFailed, RunRetried
from tidemill.kernel.evolve import replay
from tidemill.kernel.jobs import Put, Task, expected_jobs, system_job
from tidemill.kernel.state import State, decode_state, encode_state
from tidemill.stores.contract import Claim, Job, JobView, Row, Stream

STREAM = Stream("default", "run", "r")


# Rows


def rows_of(run: tables.Run, act: Callable[[], Any]) -> tuple[Row, ...]:
    """The rows that would be written beside the run's own when something happens to it."""
    before, seen = decode_state(encode_state(run.kernel.state)), len(run.kernel.events)
    act()
    return rows_beside(STREAM, before, run.kernel.state, run.kernel.events[seen:])


def listed(rows: tuple[Row, ...]) -> list[tuple[int, str]]:
    shown = [read_approval_row(row) for row in rows]
    return [(row.visit, row.status) for row in shown]


def test_a_question_is_off_the_list_when_its_handler_goes_on_without_an_answer() -> None:
    run = tables.Run("h > z", {"h": tables.human()})
    run.start()
    assert listed(rows_of(run, lambda: run.ask("h", recall=True, for_ms=100))) == [(1, "pending")]
    assert listed(rows_of(run, lambda: run.wake("h"))) == [(1, "cancelled")]


def test_no_question_is_listed_for_a_visit_that_asked_nobody() -> None:
    """The visit before it did, and both end in one commit."""
    run = Acts("h > z", {"h": tables.human()}).begun()
    run.ask("h")
    assert listed(rows_of(run, lambda: run.together(Rewind(node="h"), Cancel()))) == [(1, "cancelled")]


def test_what_anyone_may_decide_is_found_by_anyone() -> None:
    run = tables.Run("h > z", {"h": tables.human()})
    run.start()
    (row,) = rows_of(run, lambda: run.ask("h"))
    assert "approver:anyone" in row.terms


def test_what_a_fork_shares_was_asked_elsewhere() -> None:
    run = Acts("h > z", {"h": tables.human()}).begun()
    run.ask("h")
    other = run.fork()
    rows = rows_beside(STREAM, State(), other.kernel.state, other.kernel.events)
    assert listed(rows) == []


# The audit


def entry_of(run: tables.Run) -> Entry:
    return Entry(run.kernel.state, Flow(run.flow))


def views(puts: list[Put]) -> list[JobView]:
    jobs = [Job(key=put.key, queue=put.queue, body=msgspec.msgpack.encode(put.task)) for put in puts]
    return [JobView(job=job, token=0) for job in jobs]


@pytest.mark.parametrize("kind", ["close", "report"])
def test_a_message_is_no_surplus(kind: Any) -> None:
    run = tables.Run("a")
    run.start()
    message = system_job(kind, 0, "a", 1, -1) if kind == "close" else system_job(kind)
    found = compare(entry_of(run), views([*expected_jobs(run.flow, run.kernel.state), message]))
    assert (found.missing, found.surplus) == ((), ())


def test_a_back_off_that_was_put_aside_in_a_pause_is_not_missed() -> None:
    run = tables.Run("a", {"a": {"retry": {"max_attempts": 2}}})
    run.start()
    run.fail("a", retryable=True)
    run.pause()
    assert [put.key for put in expected_jobs(run.flow, run.kernel.state)] == ["run/a/1/-1"]
    assert compare(entry_of(run), []).missing == ()
    run.resume()
    assert compare(entry_of(run), []).missing == ("run/a/1/-1",)


@simulated
async def test_a_run_that_waits_for_people_is_not_stuck(mill: Mill) -> None:
    worker = await mill.process(audit_every_ms=5_000)
    run_id = await worker.start(document(human("h")))
    await waits(mill, run_id, "h")
    await asyncio.sleep(400)
    row = await mill.row(run_id)
    assert (row.stuck, row.idle, row.waiting_for) == (False, True, ("human (h)",))


# Jobs


@pytest.mark.parametrize(
    ("kind", "live", "paused", "ended"),
    [
        ("run", True, True, False),
        ("child", True, False, True),
        ("close", True, True, True),
        ("report", True, True, True),
        ("undo", True, True, True),
        ("deadline", True, True, True),
        ("outputs", True, True, False),
    ],
)
def test_what_a_job_may_mean(kind: Any, live: bool, paused: bool, ended: bool) -> None:
    run, task = tables.Run("a"), Task(kind)
    run.start()
    assert may_run(task, run.kernel.state) is live
    run.pause()
    assert may_run(task, run.kernel.state) is paused
    run.cancel()
    assert may_run(task, run.kernel.state) is ended


def worker_of(process: Process) -> Worker:
    assert process.engine.worker is not None
    return process.engine.worker


@simulated
async def test_a_job_whose_task_never_took_a_step_is_let_go(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    await client.start(document(node("a", queue="elsewhere")), key="r")
    worker = worker_of(await mill.process("w", queues=("default",)))
    (lease,) = await mill.store.claim(Claim(queues=("elsewhere",), limit=1, lease_ms=60_000))

    async def work() -> None:
        raise AssertionError("it was cancelled before")

    hand = worker._hold(lease)
    worker._in_task(hand, work())
    assert hand.running is not None
    hand.running.cancel()
    await asyncio.sleep(0.1)
    assert worker._leases() == []


@simulated
async def test_a_step_that_is_over_is_not_undone_again(mill: Mill) -> None:
    undoer = Undoer()
    worker = await undoing_process(mill, undoer)
    fields = {"type": "python", "config": {"function": "work", "isolation": "inline"}}
    nodes = [node("a", compensator=undo_with(), **fields), node("b", "a", compensator=undo_with(seconds=60), **fields)]
    run_id = (await worker.run(document(*nodes))).run_id
    await worker.engine.rollback(run_id)
    await mill.until(lambda: undoer.nodes() == ["b"])
    ghost = Job(key="undo/a/1/-1", queue="default", body=msgspec.msgpack.encode(Task("undo", "a", 1, -1)))
    await mill.meddle(run_id, jobs=(ghost,))
    await asyncio.sleep(30)
    assert undoer.nodes() == ["b"]
    await worker.end(run_id)
    assert [event.node for event in await mill.of(run_id, CompensationCompleted)] == ["b", "a"]


# What a handler may ask for


@pytest.mark.parametrize(
    "ended",
    [
        Pause(on="loop"),
        Pause(on="nonsense", for_ms=5),
        Pause(on="timer"),
        Pause(on="human"),
        Pause(on="child"),
        Pause(on="timer", approval=Asked(title="?")),
        Pause(on="timer", child=Child(workflow="w")),
        Pause(on="human", approval=Asked(title="?", quorum=0)),
        Pause(on="human", approval=Asked(title="?", quorum=True)),
        Pause(on="timer", for_ms=-1),
        Skip(reason=5),  # type: ignore[arg-type]
    ],
    ids=[
        "loop",
        "nonsense",
        "never",
        "nobody",
        "no child",
        "a person for a timer",
        "a child for a timer",
        "0",
        "true",
        "past",
        "5",
    ],
)
def test_what_a_handler_cannot_ask_for(ended: Pause | Skip) -> None:
    with pytest.raises(Fail):
        asked_for(ended, "kid")


# Children


def errands_of(process: Process) -> Errands:
    return worker_of(process)._errands


@simulated
async def test_a_family_has_a_depth(mill: Mill) -> None:
    worker = await mill.process()
    await worker.publish(document(human("h"), name="kid"))
    run_id = await worker.start(document(child("c", "kid")), key="mum")
    await waits(mill, "mum.c.1", "h")
    state = await mill.state(run_id)
    state.cells["c"].wait = msgspec.structs.replace(state.cells["c"].wait, name="mum.c.2")  # type: ignore[type-var]
    state.depth = DEPTH_MAX - 1
    answer = await errands_of(worker).start_child(mill.stream(run_id), state, "c", 1, -1)
    assert isinstance(answer, ChildBegan)
    state.cells["c"].wait = msgspec.structs.replace(state.cells["c"].wait, name="mum.c.3")  # type: ignore[type-var]
    state.depth = DEPTH_MAX
    answer = await errands_of(worker).start_child(mill.stream(run_id), state, "c", 1, -1)
    assert isinstance(answer, ChildEnded) and answer.error is not None
    assert (answer.status, answer.error.code) == ("REFUSED", "child_too_deep")
    await worker.engine.cancel("mum.c.2")
    await worker.engine.cancel(run_id)


@simulated
async def test_a_child_is_retried_once_for_an_attempt_of_its_parent(mill: Mill) -> None:
    """Also when the worker that did it was never heard of again, and the child has failed once more since."""
    worker = await mill.process()
    await worker.publish(document(node("f", type="fail"), name="kid"))
    parent = document(child("c", "kid", retry={"max_attempts": 1}))
    run_id = (await worker.run(parent, key="mum")).run_id
    await worker.engine.retry(run_id)
    await worker.end(run_id)
    assert len(await mill.of("mum.c.1", RunRetried)) == 1
    events = await mill.events(run_id)
    states = [replay(events, until=until) for until in range(len(events))]
    state = [state for state in states if state.peek("c").status == "WAITING"][-1]
    assert state.peek("c").attempt == 2
    answer = await errands_of(worker).start_child(mill.stream(run_id), state, "c", 1, -1)
    assert isinstance(answer, ChildEnded)
    assert len(await mill.of("mum.c.1", RunRetried)) == 1


@simulated
async def test_a_parent_that_tries_again_takes_the_result_of_a_child_that_completed(mill: Mill) -> None:
    worker = await mill.process(audit_every_ms=10**9)
    await worker.publish(document(node("v", config=1), name="kid"))
    rules = [{"condition": "output.nothing.here == 1", "next_nodes": ["z"]}]
    branch = {"type": "conditional", "rules": rules, "default": ["z"]}
    run = await worker.run(document(child("c", "kid", branch=branch), node("z")), key="mum")
    for _ in range(2):
        assert (run.status, run.nodes["c"]["error"]["code"]) == ("FAILED", "condition_failed")
        await worker.engine.retry("mum")
        run = await worker.end("mum")
    codes = [event.error.code for event in await mill.of("mum", NodeFailed, "c")]
    assert codes == ["condition_failed"] * 3


# People


@simulated
async def test_a_decision_is_for_the_visit_that_was_looked_at(mill: Mill) -> None:
    """Somebody else decides in between, and the loop asks again."""
    worker = await mill.process()
    loop = {"condition": "iteration < 1", "max_iterations": 3}
    run_id = await worker.start(document(human("h", node={"loop": loop}), name="w"))
    await waits(mill, run_id, "h")
    engine = worker.engine
    may_decide = engine._may_decide

    async def slow(run: str, decision: Any) -> None:
        engine._may_decide = may_decide  # type: ignore[method-assign]
        await engine.decide(run_id, "h", "approve", actor="bob")
        await waits(mill, run_id, "h", visit=2)

    engine._may_decide = slow  # type: ignore[method-assign]
    assert await code_of(engine.decide(run_id, "h", "approve", actor="ann")) == "approval_closed"
    assert (await mill.state(run_id)).peek("h").status == "WAITING"
    await engine.decide(run_id, "h", "approve", actor="ann")
    assert (await worker.end(run_id)).status == "COMPLETED"


# Operators


@simulated
async def test_a_dry_run_asks_also_what_only_the_retry_would_be_refused_for(mill: Mill) -> None:
    async def hangs() -> None:
        await asyncio.sleep(60)

    worker = await mill.process(functions={"work": hangs})
    run = await worker.run(document(call("a", delivery="at_most_once", timeout_seconds=1)))
    assert (run.status, run.error["code"]) == ("FAILED", "unknown_outcome")
    operations = [{"op": "add", "path": "/description", "value": "x"}]
    for dry_run in (True, False):
        asked = worker.engine.patch(run.run_id, operations, retry=True, dry_run=dry_run)
        assert await code_of(asked) == "outcome_unknown"


@simulated
async def test_a_repeated_patch_is_answered_with_what_it_did_itself(mill: Mill) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(human("h")))
    await waits(mill, run_id, "h")
    patches = {name: [{"op": "add", "path": f"/nodes/{name}", "value": node(name, "h")}] for name in ("x", "y")}
    for _ in range(2):
        outcomes = [await worker.engine.patch(run_id, patches[name], command_id=name) for name in patches]
        assert [(each.revision, each.added) for each in outcomes] == [(1, ("x",)), (2, ("y",))]
    await worker.engine.cancel(run_id)


@simulated
async def test_whoever_reads_a_log_from_the_start_reads_past_an_end_that_was_not_the_last(mill: Mill) -> None:
    worker = await mill.process()
    run_id = (await worker.run(document(node("f", type="fail")))).run_id
    await worker.engine.retry(run_id)
    await worker.end(run_id)
    seen = [event["type"] async for event in worker.engine.follow(run_id)]
    assert (seen.count("RunFailed"), seen) == (2, await mill.kinds(run_id))


@simulated
async def test_a_run_that_ends_while_its_tail_is_on_the_way_is_still_known(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    run_id = await client.start(document(node("a")))
    stream = mill.stream(run_id)

    async def tail_first(load: Call) -> Any:
        tails = await load()
        await client.engine.cancel(run_id)
        assert client.cached(run_id) is None
        return tails

    client.door.next("load", tail_first)
    found = await client.engine.runs.refresh([stream])
    assert found[stream].state.status == "CANCELLED"


@simulated
async def test_a_start_is_not_answered_with_a_child_that_has_its_key(mill: Mill) -> None:
    worker = await mill.process()
    await worker.publish(document(node("v"), name="kid"))
    await worker.run(document(child("c", "kid")), key="mum")
    assert await code_of(worker.engine.start("kid", {}, key="mum.c.1")) == "key_reused"


@simulated
async def test_outputs_are_those_of_the_graph_that_the_run_has_by_now(mill: Mill) -> None:
    """A worker knows the run as it was when it asked for them, but not the patch since."""
    client = await mill.process("c", work=False)
    worker = mill.build("w", audit_every_ms=10**9)
    worker.door.always("claim", after_s(60))
    await worker.open()
    run_id = await client.start(document(node("a"), outputs={"x": 1}))
    lease = (await mill.store.claim(Claim(queues=("default",), limit=1, lease_ms=9_000)))[0]
    done = Result(node="a", visit=1, token=lease.token, outcome=Done(output=b"1"))
    client.engine.turns.ask(mill.stream(run_id), Ask(done, lambda ask, answer: None, ack=lease))
    await asyncio.sleep(1)
    await worker.engine.show(run_id)
    await client.engine.patch(run_id, [{"op": "replace", "path": "/outputs", "value": {"x": 2}}])
    assert (await client.end(run_id)).outputs == {"x": 2}
