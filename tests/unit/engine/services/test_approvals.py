"""The inbox: approvals as lists and people see them, and deciding on them, from any process."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.fixtures.approvers import LARGE, code_of, human, refused, unchanged, waits
from tests.fixtures.cluster import Cluster, Process, simulated
from tests.fixtures.kernel.authoring import document, node
from tidemill.engine.index_rows import ApprovalRow
from tidemill.engine.views import ApprovalView
from tidemill.errors import Unavailable
from tidemill.kernel.events import (
    ApprovalDecided,
    ApprovalEscalated,
    ApprovalExpired,
    ApprovalVoted,
    NodeCompleted,
    RunRepaired,
)
from tidemill.testing.faulty_store import following

FORM = {
    "type": "object",
    "required": ["amount"],
    "properties": {"amount": {"type": "integer", "minimum": 1}, "note": {"type": "string"}},
    "additionalProperties": False,
}


async def _asked(mill: Cluster, process: Process, *nodes: Any, **options: Any) -> str:
    """A run that waits for somebody to decide on `ok`."""
    run_id = await process.start(document(*nodes), **options)
    await waits(mill, run_id, "ok")
    return run_id


async def _rows(process: Process, *terms: str) -> list[ApprovalRow]:
    return (await process.engine.approvals.find(terms))[0]


async def _found(process: Process, run_id: str) -> tuple[str, list[str]]:
    """The status of a run's approval, and by which of some terms it is found."""
    (row,) = await _rows(process, f"run:{run_id}")
    tried = [
        *(f"status:{status}" for status in ("pending", "decided", "expired", "cancelled")),
        *(f"approver:{who}" for who in ("user:ada", "role:boss", "user:bob", "user:eve", "anyone")),
        *(f"decided_by:{who}" for who in ("user:ada", "user:bob", "system")),
        "workflow:test",
    ]
    return row.status, [term for term in tried if await _rows(process, f"run:{run_id}", term)]


@simulated
async def test_a_pending_approval_is_found_by_whom_it_asks(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _asked(
        mill,
        worker,
        human("ok", title="Pay?", description="d" * 900, approvers=["user:ada", "role:boss"], timeout_hours=1),
        submitted_by="eve",
    )
    (row,) = await _rows(worker, "status:pending")
    assert (row.run_id, row.workflow, row.node, row.visit, row.index) == (run_id, "test", "ok", 1, -1)
    assert (row.title, row.description, row.approvers) == ("Pay?", "d" * 500, ("user:ada", "role:boss"))
    assert (row.requester, row.requested_ms, row.expires_ms) == ("eve", 1_000_000, 4_600_000)
    assert await _found(worker, run_id) == (
        "pending",
        ["status:pending", "approver:user:ada", "approver:role:boss", "workflow:test"],
    )


@simulated
async def test_the_row_of_an_approval_that_is_delegated_and_decided(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok", approvers=["user:ada"]))
    await worker.engine.delegate(run_id, "ok", "bob", actor="ada", comments="on leave")
    assert await _found(worker, run_id) == (
        "pending",
        ["status:pending", "approver:user:ada", "approver:user:bob", "workflow:test"],
    )
    await asyncio.sleep(5)
    decided_ms = mill.now_ms()
    await worker.engine.decide(run_id, "ok", "approve", actor="bob", comments="fine")
    status, terms = await _found(worker, run_id)
    assert status == "decided"
    assert {"status:decided", "decided_by:user:bob"} <= set(terms) and "status:pending" not in terms
    (row,) = await _rows(worker, f"run:{run_id}")
    assert (row.decision, row.decided_by, row.comments, row.votes) == ("approve", "user:bob", "fine", ("user:bob",))
    assert (row.decided_ms, row.delegated) == (decided_ms, (("user:ada", "user:bob"),))


@pytest.mark.parametrize("act", ["cancel", "override", "rewind", "fail", "deadline"])
@simulated
async def test_an_approval_whose_wait_ends_otherwise_is_cancelled(mill: Cluster, act: str) -> None:
    worker = await mill.process()
    run_id = await _asked(
        mill,
        worker,
        node("a"),
        human("ok", "a"),
        node("s", "a", type="sleep", config={"seconds": 30}),
        node("f", "s", type="fail" if act == "fail" else "value"),
        node("z", "ok", "f"),
    )
    engine = worker.engine
    match act:
        case "cancel":
            await engine.cancel(run_id)
        case "override":
            await engine.override(run_id, "ok", value={"decision": "by hand"})
        case "rewind":
            await engine.rewind(run_id, "ok")
            await waits(mill, run_id, "ok", visit=2)
        case "fail":
            await worker.end(run_id)
        case "deadline":
            await engine.patch(run_id, [{"op": "add", "path": "/limits", "value": {"deadline_seconds": 10}}])
            await worker.end(run_id)
    rows = {row.visit: row.status for row in await _rows(worker, f"run:{run_id}")}
    assert rows == ({1: "cancelled", 2: "pending"} if act == "rewind" else {1: "cancelled"})
    if act not in ("rewind", "override"):
        assert await code_of(engine.decide(run_id, "ok", "approve", actor="ada")) == "approval_closed"


@simulated
async def test_retrying_a_rejected_node_asks_again(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok"))
    await worker.engine.decide(run_id, "ok", "reject", actor="ada")
    assert (await worker.end(run_id)).status == "FAILED"
    await worker.engine.retry(run_id)
    await waits(mill, run_id, "ok")
    (row,) = await _rows(worker, f"run:{run_id}")
    assert (row.status, row.decision, row.votes) == ("pending", "", ())
    await worker.engine.decide(run_id, "ok", "approve", actor="ada")
    assert (await worker.end(run_id)).status == "COMPLETED"


@simulated
async def test_approvals_come_page_by_page_newest_first(mill: Cluster) -> None:
    worker = await mill.process()
    reference = await worker.publish(document(human("ok", approvers=["role:boss"])))
    runs = []
    for _ in range(23):
        runs.append(await worker.start(reference))
        await asyncio.sleep(1)
    seen: list[str] = []
    after: str | None = None
    while True:
        rows, after = await worker.engine.approvals.find(["approver:role:boss"], after=after, limit=5)
        assert len(rows) <= 5
        seen += [row.run_id for row in rows]
        if after is None:
            break
    assert seen == runs[::-1]
    assert await code_of(worker.engine.approvals.find(limit=0)) == "limit_invalid"
    assert await code_of(worker.engine.approvals.find(after="nonsense")) == "bad_cursor"


@simulated
async def test_items_of_a_map_are_approved_one_by_one(mill: Cluster) -> None:
    worker = await mill.process()
    nodes = [human("ok", title="pay {{ item }}?", node={"map": {"over": ["a", "b", "c"]}})]
    run_id = await worker.start(document(*nodes))
    await waits(mill, run_id, "ok", index=2)
    assert [(row.index, row.title) for row in reversed(await _rows(worker, "status:pending"))] == [
        (0, "pay a?"),
        (1, "pay b?"),
        (2, "pay c?"),
    ]
    for index in (2, 0, 1):
        shown = await worker.engine.decide(run_id, "ok", "approve", actor=f"u{index}", index=index)
        assert (shown.status, shown.index, shown.to_dict()["index"]) == ("decided", index, index)
    run = await worker.end(run_id)
    assert [each["decided_by"] for each in run.nodes["ok"]["output"]] == ["user:u0", "user:u1", "user:u2"]


@simulated
async def test_a_map_of_people_waits_for_something_with_a_name(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(human("ok", node={"map": {"over": [1, 2]}})))
    await asyncio.sleep(200)
    row = await mill.row(run_id)
    assert row.waiting_for == ("human (ok)",)
    assert not row.stuck


@simulated
async def test_an_approval_shows_what_is_needed_to_decide(mill: Cluster) -> None:
    worker = await mill.process()
    schema = {"type": "object", "properties": {"amount": {"const": "{{ a.output }}"}}}
    run_id = await _asked(
        mill,
        worker,
        node("a", config=7),
        human("ok", "a", title="Pay {{ a.output }}?", description="for {{ inputs.who }}", form=schema),
        inputs={"who": "acme"},
    )
    shown = (await worker.engine.approval(run_id, "ok")).to_dict()
    assert json.loads(json.dumps(shown)) == shown
    assert (shown["title"], shown["description"], shown["status"]) == ("Pay 7?", "for acme", "pending")
    assert shown["form"] == {"type": "object", "properties": {"amount": {"const": 7}}}
    assert (shown["approvers"], shown["quorum"], shown["votes"], shown["decision"]) == ([], 1, [], None)
    problem = await refused(worker.engine.decide(run_id, "ok", "approve", actor="ada", form={"amount": 8}))
    assert (problem.code, problem.problems[0].path) == ("form_invalid", "/form/amount")
    after = (await worker.engine.decide(run_id, "ok", "approve", actor="ada", form={"amount": 7})).to_dict()
    assert (after["status"], after["decided_by"], after["votes"][0]["form"]) == ("decided", "user:ada", {"amount": 7})
    output = (await worker.end(run_id)).outputs["ok"]
    assert output.pop("decided_at").startswith("1970-01-01T00:16:40")
    assert output == {"decision": "approve", "comments": "", "decided_by": "user:ada", "form": {"amount": 7}}


@simulated
async def test_what_is_not_there_cannot_be_decided(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok"), node("s", type="sleep", config={"seconds": 50}))
    engine = worker.engine

    async def decide(run: str, name: str, **place: Any) -> Any:
        return await engine.decide(run, name, "approve", actor="ada", **place)

    asks: list[Any] = [engine.approval, decide]
    for ask in asks:
        assert await unchanged(mill, run_id, ask("nobody", "ok")) == "run_unknown"
        assert await unchanged(mill, run_id, ask(run_id, "nobody")) == "node_unknown"
        assert await unchanged(mill, run_id, ask(run_id, "s")) == "approval_unknown"
        assert await unchanged(mill, run_id, ask(run_id, "ok", visit=2)) == "approval_unknown"
        assert await unchanged(mill, run_id, ask(run_id, "ok", index=0)) == "approval_unknown"


@simulated
async def test_a_form_is_checked_in_every_place(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok", form=FORM))

    async def problems(form: Any, verb: Any = "approve") -> list[tuple[str, str]]:
        refusal = await refused(worker.engine.decide(run_id, "ok", verb, actor="ada", form=form))
        return sorted((problem.code, problem.path) for problem in refusal.problems)

    assert await problems(None) == [("form_invalid", "/form")]
    assert await problems({"amount": 0, "note": 1, "extra": 2}) == [
        ("form_invalid", "/form/amount"),
        ("form_invalid", "/form/extra"),
        ("form_invalid", "/form/note"),
    ]
    assert await problems({"amount": "5"}, "reject") == [("form_invalid", "/form/amount")]
    assert await problems({"amount": 1, "note": LARGE}) == [("form_too_large", "/form")]
    assert await mill.of(run_id, ApprovalDecided) == []
    await worker.engine.decide(run_id, "ok", "approve", actor="ada", form={"amount": 5})
    assert (await worker.end(run_id)).outputs["ok"]["form"] == {"amount": 5}


DEFAULTS = {
    "type": "object",
    "required": ["account"],
    "properties": {
        "account": {"type": "string", "default": "A1"},
        "limits": {"type": "object", "properties": {"day": {"type": "integer", "default": 5}}, "default": {}},
        "note": {"type": "string"},
    },
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("verb", "form", "filled"),
    [
        ("approve", None, {"account": "A1", "limits": {"day": 5}}),
        ("approve", {"note": "x"}, {"note": "x", "account": "A1", "limits": {"day": 5}}),
        ("approve", {"account": "B2", "limits": {"day": 1}}, {"account": "B2", "limits": {"day": 1}}),
        ("reject", {"note": "x"}, {"note": "x", "account": "A1", "limits": {"day": 5}}),
        ("reject", None, None),
    ],
)
@simulated
async def test_a_form_gets_the_defaults_of_its_schema(mill: Cluster, verb: Any, form: Any, filled: Any) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok", form=DEFAULTS))
    for _ in range(2):
        decided = (await worker.engine.decide(run_id, "ok", verb, actor="ada", form=form)).to_dict()
        assert [vote["form"] for vote in decided["votes"]] == [filled]


@simulated
async def test_defaults_that_add_too_much_to_a_form_are_refused(mill: Cluster) -> None:
    worker = await mill.process()
    item = {"type": "object", "properties": {"x": {"default": "x" * 20_000}}}
    run_id = await _asked(mill, worker, human("ok", form={"properties": {"rows": {"type": "array", "items": item}}}))
    asked = worker.engine.decide(run_id, "ok", "approve", actor="ada", form={"rows": [{}] * 1_000})
    assert await unchanged(mill, run_id, asked) == "form_too_large"


@pytest.mark.parametrize("form", [{"x": float("nan")}, {"x": object()}, {"x": "\ud800"}])
@simulated
async def test_a_form_that_is_not_json_is_refused(mill: Cluster, form: Any) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok", form={"type": "object"}))
    asked = worker.engine.decide(run_id, "ok", "approve", actor="ada", form=form)
    assert await unchanged(mill, run_id, asked) == "form_invalid"


@simulated
async def test_a_form_nobody_asked_for_is_refused(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok"))
    asked = worker.engine.decide(run_id, "ok", "approve", actor="ada", form={})
    assert await unchanged(mill, run_id, asked) == "form_invalid"


@simulated
async def test_whoever_rejects_need_not_fill_in_the_form(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok", form=FORM))
    await worker.engine.decide(run_id, "ok", "reject", actor="ada", comments="no")
    run = await worker.end(run_id)
    assert run.error is not None and (run.status, run.error["code"]) == ("FAILED", "rejected")


@simulated
async def test_a_schema_that_cannot_be_used_fails_the_node(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(human("ok", form={"type": "{{ inputs.kind }}"})), {"kind": "nonsense"})
    assert run.error is not None and run.error["code"] == "config_invalid"
    assert await _rows(worker) == []


@simulated
async def test_a_decision_whose_answer_was_lost_may_be_repeated(mill: Cluster) -> None:
    worker = await mill.process()
    client = await mill.process("client", work=False)
    run_id = await _asked(mill, worker, human("ok", quorum=2))

    async def lost(call: Any) -> Any:
        await call()
        raise Unavailable("lost")

    client.faulty_store.next("commit", lost)
    shown = await client.engine.decide(run_id, "ok", "approve", actor="ada", command_id="d1")
    assert client.faulty_store.fired["commit"] == 1
    assert [vote.by for vote in shown.approval.votes] == ["user:ada"]
    await client.engine.decide(run_id, "ok", "approve", actor="ada", command_id="d1")
    assert len(await mill.of(run_id, ApprovalVoted)) == 1
    await client.engine.decide(run_id, "ok", "approve", actor="bob")
    assert (await worker.end(run_id)).status == "COMPLETED"
    assert len(await mill.of(run_id, NodeCompleted, "ok")) == 1


# Nobody decides: what happens then, when it happens, and that it happens also if no worker was there at the time


NODES = (node("no", "ok"), node("yes", "ok"))


def _document(**config: Any) -> dict[str, Any]:
    return document(human("ok", rejection_path=["no"], **config), *NODES)


async def _inbox_time_outs_asked(mill: Cluster, process: Process, **config: Any) -> str:
    run_id = await process.start(_document(**config))
    await waits(mill, run_id, "ok")
    return run_id


async def _row(process: Process, run_id: str) -> Any:
    (row,) = (await process.engine.approvals.find([f"run:{run_id}"]))[0]
    return row


@pytest.mark.parametrize(("verb", "way"), [("approve", "yes"), ("reject", "no")])
@simulated
async def test_time_decides(mill: Cluster, verb: str, way: str) -> None:
    worker = await mill.process()
    run_id = await _inbox_time_outs_asked(mill, worker, timeout_hours=0.5, on_timeout=verb)
    run = await worker.end(run_id)
    assert mill.loop.now - 1_000 == pytest.approx(1_800, abs=2)
    assert (run.status, set(run.outputs)) == ("COMPLETED", {way})
    assert run.nodes["ok"]["output"]["decided_by"] == "system"
    (decided,) = await mill.of(run_id, ApprovalDecided)
    assert (decided.decision, decided.by) == (verb, "system")
    row = await _row(worker, run_id)
    assert (row.status, row.decided_by) == ("decided", "system")
    assert await code_of(worker.engine.decide(run_id, "ok", "changes", actor="ada")) in (
        "decision_conflict",
        "changes_not_possible",
    )


@simulated
async def test_without_another_word_time_fails_the_node(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _inbox_time_outs_asked(mill, worker, timeout_seconds=30)
    run = await worker.end(run_id)
    assert run.error is not None and (run.status, run.error["code"]) == ("FAILED", "approval_expired")
    assert len(await mill.of(run_id, ApprovalExpired)) == 1
    assert (await _row(worker, run_id)).status == "expired"
    assert run.nodes["ok"]["attempts"] == 1


@simulated
async def test_a_fresh_time_begins_when_the_node_is_retried(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _inbox_time_outs_asked(mill, worker, timeout_seconds=30)
    await worker.end(run_id)
    await asyncio.sleep(500)
    await worker.engine.retry(run_id)
    await waits(mill, run_id, "ok")
    row = await _row(worker, run_id)
    assert row.status == "pending" and row.expires_ms == pytest.approx(mill.now_ms() + 30_000, abs=500)
    await worker.engine.decide(run_id, "ok", "approve", actor="ada")
    assert (await worker.end(run_id)).status == "COMPLETED"


@simulated
async def test_others_are_asked_who_have_as_much_time(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _inbox_time_outs_asked(
        mill,
        worker,
        approvers=["user:ada"],
        timeout_seconds=60,
        on_timeout="escalate",
        escalate_to=["user:boss"],
    )
    await asyncio.sleep(61)
    (escalated,) = await mill.of(run_id, ApprovalEscalated)
    row = await _row(worker, run_id)
    assert (row.status, row.approvers, row.escalated) == ("pending", ("user:boss",), True)
    assert row.expires_ms == escalated.at_ms + 60_000
    view = await worker.engine.approval(run_id, "ok")
    assert (view.to_dict()["escalated_ms"], view.escalate_to) == (escalated.at_ms, ("user:boss",))
    assert ApprovalView.from_dict(view.to_dict()) == view
    find = worker.engine.approvals.find
    assert (await find(["status:pending", "approver:user:boss"]))[0] == [row]
    assert (await find(["status:pending", "approver:user:ada"]))[0] == []
    assert await code_of(worker.engine.decide(run_id, "ok", "approve", actor="ada")) == "approver_not_allowed"
    await worker.engine.decide(run_id, "ok", "approve", actor="boss")
    assert (await worker.end(run_id)).status == "COMPLETED"


@simulated
async def test_when_the_others_do_not_decide_either_it_is_over(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _inbox_time_outs_asked(
        mill, worker, timeout_seconds=60, on_timeout="escalate", escalate_to=["user:boss"]
    )
    run = await worker.end(run_id)
    assert run.error is not None and run.error["code"] == "approval_expired"
    assert mill.loop.now - 1_000 == pytest.approx(120, abs=3)
    assert len(await mill.of(run_id, ApprovalEscalated)) == len(await mill.of(run_id, ApprovalExpired)) == 1


@pytest.mark.parametrize("on_timeout", ["approve", "reject", "fail", "escalate"])
@simulated
async def test_the_time_passes_also_when_no_worker_is_there(mill: Cluster, on_timeout: str) -> None:
    client = await mill.process("client", work=False)
    worker = await mill.process()
    to = {"escalate_to": ["user:boss"]} if on_timeout == "escalate" else {}
    run_id = await _inbox_time_outs_asked(mill, worker, timeout_seconds=60, on_timeout=on_timeout, **to)
    worker.kill()
    await asyncio.sleep(1_000)
    assert (await _row(client, run_id)).status == "pending"
    late = await mill.process("late")
    await asyncio.sleep(5)
    row = await _row(client, run_id)
    if on_timeout == "escalate":
        assert (row.status, row.escalated) == ("pending", True)
        assert row.expires_ms == pytest.approx(mill.now_ms() + 60_000, abs=6_000)
        assert (await late.end(run_id)).status == "FAILED"
    else:
        expected = "expired" if on_timeout == "fail" else "decided"
        assert row.status == expected
        assert (await late.end(run_id)).status == ("FAILED" if on_timeout == "fail" else "COMPLETED")


@simulated
async def test_whoever_decides_before_the_timer_is_taken_is_in_time(mill: Cluster) -> None:
    """No worker was there when the time was over, so nothing is in the log: the first word in it wins."""
    client = await mill.process("client", work=False)
    worker = await mill.process()
    run_id = await _inbox_time_outs_asked(mill, worker, timeout_seconds=60)
    worker.kill()
    await asyncio.sleep(1_000)
    await client.engine.decide(run_id, "ok", "approve", actor="ada")
    assert await mill.jobs(run_id) and all(view.job.key.startswith("run/") for view in await mill.jobs(run_id))
    late = await mill.process("late")
    assert (await late.end(run_id)).status == "COMPLETED"
    assert await mill.of(run_id, ApprovalExpired) == []


@pytest.mark.parametrize("first", ["decision", "timer"])
@simulated
async def test_decision_and_expiry_exclude_each_other(mill: Cluster, first: str) -> None:
    """Both are on their way at the same moment; one commits just before the other."""
    client = await mill.process("client", work=False)
    worker = await mill.process()
    run_id = await _inbox_time_outs_asked(mill, worker, timeout_seconds=60)

    async def decide() -> None:
        await client.engine.decide(run_id, "ok", "approve", actor="ada")

    if first == "decision":
        worker.faulty_store.next("commit", following(decide))
        assert (await worker.end(run_id)).status == "COMPLETED"
        assert worker.faulty_store.fired["commit"] == 1
        assert (await _row(client, run_id)).status == "decided"
        return

    async def expire() -> None:
        await asyncio.sleep(70)

    client.faulty_store.next("commit", following(expire))
    assert await code_of(decide()) == "approval_expired"
    assert client.faulty_store.fired["commit"] == 1
    assert (await _row(client, run_id)).status == "expired"


@simulated
async def test_a_decision_takes_its_timer_with_it(mill: Cluster) -> None:
    worker = await mill.process(queues=("other",))
    run_id = await worker.start(
        document(human("ok", node={"queue": "other"}, timeout_hours=1), node("z", "ok", queue="nobody"))
    )
    await waits(mill, run_id, "ok")
    assert [view.job.key for view in await mill.jobs(run_id)] == ["expire/ok/1/-1"]
    await worker.engine.decide(run_id, "ok", "approve", actor="ada")
    assert [view.job.key for view in await mill.jobs(run_id)] == ["run/z/1/-1"]
    assert await mill.of(run_id, RunRepaired) == []


@simulated
async def test_a_node_with_a_time_out_of_its_own_uses_it_when_its_config_has_none(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(
        document(human("ok", node={"timeout_seconds": 20}), defaults={"timeout_seconds": 5, "retry": {}})
    )
    run = await worker.end(run_id)
    assert run.error is not None and run.error["code"] == "approval_expired"
    assert mill.loop.now - 1_000 == pytest.approx(20, abs=2)


@simulated
async def test_a_paused_run_still_takes_decisions_and_time_goes_on(mill: Cluster) -> None:
    worker = await mill.process()
    decided = await _inbox_time_outs_asked(mill, worker, timeout_seconds=60)
    expiring = await _inbox_time_outs_asked(mill, worker, timeout_seconds=60)
    for run_id in (decided, expiring):
        await worker.engine.pause(run_id)
    await worker.engine.decide(decided, "ok", "approve", actor="ada")
    assert [view.job.key for view in await mill.jobs(decided)] == []
    await asyncio.sleep(100)
    assert (await mill.state(expiring)).status == "FAILED"
    assert (await mill.state(decided)).status == "PAUSED"
    await worker.engine.resume(decided)
    assert (await worker.end(decided)).status == "COMPLETED"


@simulated
async def test_a_decision_is_not_repeated_with_another_form(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(node("a"), human("ok", "a", form=FORM)))
    refusal = await refused(worker.engine.decide(run_id, "ok", "approve", actor="ada"))
    assert "has not been reached yet" in str(refusal) and refusal.code == "approval_unknown"
    await waits(mill, run_id, "ok")
    for _ in range(2):
        await worker.engine.decide(run_id, "ok", "approve", actor="ada", form={"amount": 1})
    other = worker.engine.decide(run_id, "ok", "approve", actor="ada", form={"amount": 999})
    assert await code_of(other) == "decision_conflict"
    assert len(await mill.of(run_id, ApprovalDecided)) == 1
