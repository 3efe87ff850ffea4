"""A bug that one run brings out: bounded tries, a run that says why it is stuck, and no harm to the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.engine import turn
from tidemill.engine.maintenance import reconciler
from tidemill.engine.worker.worker import INTERNAL_TRIES_MAX
from tidemill.errors import InternalError, Unavailable, internal_error
from tidemill.kernel.commands import Done, Result
from tidemill.kernel.decide.retries import LOST_IN_A_ROW_MAX
from tidemill.kernel.events import NodeFailed

LARGE = "x" * 100_000
REASON = "internal error: KeyError: 'a bug' (traceback "


def _bug_for(monkeypatch: pytest.MonkeyPatch, workflow: str, is_hit: Any = lambda command: True) -> list[Any]:
    """Deciding fails for the runs of one workflow; answers the commands that it failed for."""
    decide_all, hit = turn.decide_all, list[Any]()

    def decide(flow: Any, state: Any, commands: Any, now_ms: int, claimed: Any) -> Any:
        found = [command for command in commands if flow.name == workflow and state.seq and is_hit(command)]
        hit.extend(found)
        if found:
            raise KeyError("a bug")
        return decide_all(flow, state, commands, now_ms, claimed)

    monkeypatch.setattr(turn, "decide_all", decide)
    return hit


def _tracebacks(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.exc_info is not None for record in caplog.records)


@simulated
async def test_a_run_that_nothing_can_be_decided_for_is_marked_and_lets_go_of_its_slot(
    mill: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ledger: Ledger
) -> None:
    hit = _bug_for(monkeypatch, "broken")
    worker = await mill.process(functions={"work": ledger.work}, concurrency=2)
    broken = [await worker.start(document(call("a"), name="broken"), key=f"broken-{number}") for number in range(3)]
    await asyncio.sleep(60)
    for run_id in broken:
        row = await mill.row(run_id)
        assert row.stuck and row.stuck_reason.startswith(REASON)
        found = await worker.engine.why(run_id)
        assert found.stuck == row.stuck_reason and row.stuck_reason in found.headline
        assert (await worker.engine.show(run_id)).to_dict()["stuck"] == row.stuck_reason
        (view,) = await mill.jobs(run_id)
        assert view.lease_expires_at_ms is None
    assert {row.run_id for row in await mill.rows("stuck")} == set(broken)
    assert _tracebacks(caplog) == 1
    # Others have both slots, and the reconciler keeps the mark.
    assert (await worker.run(document(call("x"), call("y"), name="fine"))).status == "COMPLETED"
    await asyncio.sleep(3_600)
    assert (await mill.row(broken[0])).stuck_reason
    assert len(hit) < 3 * 40, "tried in a hurry"
    monkeypatch.undo()
    for run_id in broken:
        assert (await worker.end(run_id)).status == "COMPLETED"
        row = await mill.row(run_id)
        assert (row.stuck, row.stuck_reason) == (False, "")
        assert (await worker.engine.why(run_id)).stuck == ""


@simulated
async def test_a_result_that_cannot_be_recorded_fails_its_visit(
    mill: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ledger: Ledger
) -> None:
    def done(command: Any) -> bool:
        return isinstance(command, Result) and isinstance(command.outcome, Done)

    hit = _bug_for(monkeypatch, "broken", done)
    worker = await mill.process(functions={"work": ledger.work})
    run = await worker.run(document(call("a", retry={"max_attempts": 3}), name="broken"))
    assert (run.status, ledger.count("a"), len(hit)) == ("FAILED", 1, INTERNAL_TRIES_MAX)
    (failed,) = await mill.of(run.run_id, NodeFailed)
    assert failed.error.code == "internal_error" and failed.error.message.startswith(REASON)
    assert _tracebacks(caplog) == 1
    assert not (await mill.row(run.run_id)).stuck


@simulated
async def test_a_result_that_can_never_be_recorded_does_not_repeat_the_call_for_ever(
    mill: Cluster, monkeypatch: pytest.MonkeyPatch, ledger: Ledger
) -> None:
    _bug_for(monkeypatch, "broken", lambda command: isinstance(command, Result))
    worker = await mill.process(functions={"work": ledger.work})
    run = await worker.end(await worker.start(document(call("a", retry={"max_attempts": 1}), name="broken")))
    assert (run.status, ledger.count("a")) == ("FAILED", LOST_IN_A_ROW_MAX)
    assert run.error is not None and run.error["code"] == "worker_killer"


@simulated
async def test_a_stalled_job_is_not_blamed_on_another_run(mill: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the other one's attempt is begun just before it, by the same claim."""
    worker = await mill.process(functions={"undo": lambda: LARGE, "boom": lambda: 1 / 0})
    compensator = {"type": "python", "config": {"function": "undo", "isolation": "inline"}}
    undone = node("x", config=1, compensator=compensator)
    failing = call("y", "x", function="boom", retry={"max_attempts": 1})
    rolled_back = await worker.end(await worker.start(document(undone, failing, name="rolled-back")))
    innocent = document(node("a"), node("w", "a", type="signal", config={}), name="innocent")
    reference = await worker.publish(innocent)

    async def out_of_reach(*given: Any, **options: Any) -> str:
        raise Unavailable("no room")

    await worker.stop()
    client = await mill.process("client", work=False)
    await client.engine.start(reference)
    await client.engine.rollback(rolled_back.run_id)
    monkeypatch.setattr(mill.blobs, "put", out_of_reach)
    await mill.process("other", functions={"undo": lambda: LARGE, "boom": lambda: 1 / 0})
    await asyncio.sleep(300)
    assert {row.run_id for row in await mill.rows("stuck")} == {rolled_back.run_id}


@simulated
async def test_an_error_that_goes_away_costs_nothing(
    mill: Cluster, monkeypatch: pytest.MonkeyPatch, ledger: Ledger
) -> None:
    times = [1, 2]
    _bug_for(monkeypatch, "broken", lambda command: isinstance(command, Result) and bool(times and times.pop()))
    worker = await mill.process(functions={"work": ledger.work})
    run = await worker.run(document(call("a"), node("b", "a"), name="broken"))
    assert (run.status, ledger.count("a"), run.nodes["a"]["attempts"]) == ("COMPLETED", 1, 1)


@simulated
async def test_a_commit_that_raises_keeps_no_other_run_from_its_own(mill: Cluster) -> None:
    worker = await mill.process(functions={"work": Ledger().work})
    broken = await worker.start(document(call("a", args={"seconds": 5}), name="broken"))
    commit = mill.store.commit

    async def refuse(commits: Any) -> Any:
        if any(each.stream.key == broken and each.records for each in commits):
            raise ValueError("a bug in the store")
        return await commit(commits)

    mill.store.commit = refuse  # type: ignore[method-assign]
    nodes = [call(name, args={"seconds": 5}) for name in "abc"]
    others = [await worker.start(document(*nodes, name=f"fine-{number}")) for number in range(5)]
    for run_id in others:
        assert (await worker.end(run_id)).status == "COMPLETED"
    await asyncio.sleep(60)
    assert (await mill.row(broken)).stuck_reason.startswith("internal error: ValueError: a bug in the store")
    mill.store.commit = commit  # type: ignore[method-assign]
    assert (await worker.end(broken)).status == "COMPLETED"


@simulated
async def test_a_command_is_answered_with_the_internal_error(mill: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(chain("a", name="broken"))
    _bug_for(monkeypatch, "broken")
    with pytest.raises(InternalError, match="KeyError: 'a bug'"):
        await client.engine.pause(run_id)


@simulated
async def test_the_reconciler_goes_on_after_a_run_that_brings_out_a_bug(
    mill: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compare = reconciler.compare
    worker = await mill.process(queues=("other",))
    first = await worker.start(chain("a", name="first"))
    second = await worker.start(chain("a", name="second"))
    last = await worker.start(chain("a", name="last"))

    def broken(entry: Any, jobs: Any) -> Any:
        if entry.flow.workflow.name == "second":
            raise KeyError("a bug")
        return compare(entry, jobs)

    monkeypatch.setattr(reconciler, "compare", broken)
    for run_id in (first, last):
        await mill.meddle(run_id, drop=("run/a/1/-1",))
    await asyncio.sleep(40)
    for run_id in (first, last):
        assert "RunRepaired" in await mill.kinds(run_id)
    assert (await mill.row(second)).stuck_reason.startswith(REASON)
    assert _tracebacks(caplog) == 1


def _raised(value: object) -> Exception:
    try:
        raise RuntimeError(value)
    except RuntimeError as error:
        return error


def test_the_digest_names_the_place_and_not_the_words() -> None:
    first, second = internal_error(_raised("x")), internal_error(_raised("y" * 10_000))
    assert first.digest == second.digest
    assert len(str(second)) < 400
    assert internal_error(ValueError("x")).digest != first.digest


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def test_an_exception_without_words_has_a_name() -> None:
    assert "_Unspeakable" in str(internal_error(_Unspeakable()))
