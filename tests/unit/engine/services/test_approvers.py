"""Who may decide, twice, too late or at the same time as somebody else; and the way a run goes on afterwards."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.fixtures.approvers import LARGE, code_of, human, refused, unchanged, waits
from tests.fixtures.cluster import Cluster, Process, simulated
from tests.fixtures.kernel.authoring import document, node
from tidemill.errors import Rejected
from tidemill.kernel.events import ApprovalDecided, ApprovalDelegated, ApprovalVoted, NodeCompleted, NodeScheduled
from tidemill.testing.faulty_store import following


async def _asked(mill: Cluster, process: Process, *nodes: Any, **options: Any) -> str:
    run_id = await process.start(document(*nodes), **options)
    await waits(mill, run_id, "ok")
    return run_id


async def _decided(mill: Cluster, run_id: str) -> list[tuple[str, str]]:
    return [(event.decision, event.by) for event in await mill.of(run_id, ApprovalDecided)]


@simulated
async def test_the_wrong_person_learns_nothing_about_the_form(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok", approvers=["user:ada"], form={"type": "object"}))
    for form in ({}, 5, "text", {"x": LARGE}, {"x": float("nan")}):
        asked = worker.engine.decide(run_id, "ok", "approve", actor="eve", form=form)
        assert await unchanged(mill, run_id, asked) == "approver_not_allowed"
    asked = worker.engine.decide(run_id, "ok", "approve", actor="", form=5)
    assert await unchanged(mill, run_id, asked) == "actor_missing"
    assert await code_of(worker.engine.decide(run_id, "ok", "approve", actor="ada", form=5)) == "form_invalid"


@simulated
async def test_roles_count_when_somebody_decides(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok", approvers=["role:boss"]))
    for roles in ((), ("clerk",), ("user:boss",)):
        asked = worker.engine.decide(run_id, "ok", "approve", actor="boss", roles=roles)
        assert await unchanged(mill, run_id, asked) == "approver_not_allowed"
    await worker.engine.decide(run_id, "ok", "approve", actor="eve", roles=("clerk", "boss"))
    assert await _decided(mill, run_id) == [("approve", "user:eve")]


@pytest.mark.parametrize("name", ["role:boss", "user:role:boss"])
@simulated
async def test_somebody_called_like_a_role_has_none(mill: Cluster, name: str) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok", approvers=["role:boss"]))
    assert await code_of(worker.engine.decide(run_id, "ok", "approve", actor=name)) == "approver_not_allowed"


@simulated
async def test_four_eyes_are_neither_the_requesters_nor_those_of_whoever_patched_the_run(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok", four_eyes=True), node("z", "ok"), submitted_by="ada")
    await worker.engine.patch(run_id, [{"op": "add", "path": "/nodes/z/priority", "value": 3}], actor="bob")
    for actor in ("ada", "user:ada", "bob"):
        asked = worker.engine.decide(run_id, "ok", "approve", actor=actor)
        assert await unchanged(mill, run_id, asked) == "four_eyes"
    assert await code_of(worker.engine.delegate(run_id, "ok", "ada", actor="cyd")) == "four_eyes"
    await worker.engine.decide(run_id, "ok", "approve", actor="cyd")
    assert (await worker.end(run_id)).status == "COMPLETED"


WORDS = [
    {"actor": 5},
    {"actor": "\ud800"},
    {"comments": 5},
    {"comments": "x" * 2_001},
    {"roles": [5]},
    {"roles": "ops"},
]


@pytest.mark.parametrize("said", WORDS)
@simulated
async def test_words_that_cannot_be_stored_are_refused(mill: Cluster, said: dict[str, Any]) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok"))
    given = {"actor": "ada", **said}
    assert await unchanged(mill, run_id, worker.engine.decide(run_id, "ok", "approve", **given)) == "text_invalid"
    assert await unchanged(mill, run_id, worker.engine.delegate(run_id, "ok", "bob", **given)) == "text_invalid"


@simulated
async def test_refusals_name_the_place_and_say_what_now(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok"), node("review", "ok"))
    engine, odd = worker.engine, cast(Any, "1")
    for code, path, asked in (
        ("text_invalid", "/roles", engine.decide(run_id, "ok", "approve", actor="ada", roles="ops")),
        ("text_invalid", "/actor", engine.decide(run_id, "ok", "approve", actor="x" * 2_001)),
        ("place_invalid", "/visit", engine.decide(run_id, "ok", "approve", actor="ada", visit=odd)),
        ("place_invalid", "/index", engine.approval(run_id, "ok", index=odd)),
        ("node_unknown", "/node", engine.approval(run_id, "reviw")),
        ("node_unknown", "", engine.override(run_id, "reviw", skip=True)),
    ):
        (problem,) = (await refused(asked)).problems
        assert (problem.code, problem.path) == (code, path) and problem.hint
        assert code != "node_unknown" or problem.hint == "did you mean `review`?"


@simulated
async def test_there_are_three_decisions(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok"))
    asked = worker.engine.decide(run_id, "ok", "maybe", actor="ada")  # type: ignore[arg-type]
    assert await unchanged(mill, run_id, asked) == "decision_unknown"
    asked = worker.engine.decide(run_id, "ok", "changes", actor="ada")
    assert await unchanged(mill, run_id, asked) == "changes_not_possible"


@simulated
async def test_a_delegated_decision_is_the_others(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok", approvers=["user:ada"]))
    engine = worker.engine
    assert await unchanged(mill, run_id, engine.delegate(run_id, "ok", "bob", actor="eve")) == "approver_not_allowed"
    assert await unchanged(mill, run_id, engine.delegate(run_id, "ok", "ada", actor="ada")) == "delegation_invalid"
    assert await unchanged(mill, run_id, engine.delegate(run_id, "ok", "role:x", actor="ada")) == "delegation_invalid"
    for _ in range(2):
        shown = await engine.delegate(run_id, "ok", "bob", actor="ada")
        assert shown.to_dict()["delegated"] == [{"by": "user:ada", "to": "user:bob"}]
    assert len(await mill.of(run_id, ApprovalDelegated)) == 1
    assert await unchanged(mill, run_id, engine.decide(run_id, "ok", "approve", actor="ada")) == "approver_not_allowed"
    decided = await engine.decide(run_id, "ok", "approve", actor="bob")
    assert (decided.approval.decided_by, decided.approval.on_behalf_of) == ("user:bob", "user:ada")
    assert await unchanged(mill, run_id, engine.delegate(run_id, "ok", "cyd", actor="bob")) == "approval_closed"


@simulated
async def test_the_same_decision_again_is_answered_like_the_first_and_a_contrary_one_is_not(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok", rejection_path=["no"]), node("no", "ok"), node("yes", "ok"))
    first = await worker.engine.decide(run_id, "ok", "reject", actor="ada", comments="no")
    again = await worker.engine.decide(run_id, "ok", "reject", actor="bob", comments="no, too")
    assert again.to_dict() == first.to_dict()
    assert await unchanged(mill, run_id, worker.engine.decide(run_id, "ok", "approve", actor="ada")) == (
        "decision_conflict"
    )
    run = await worker.end(run_id)
    assert (run.status, set(run.outputs)) == ("COMPLETED", {"no"})
    assert (await worker.engine.decide(run_id, "ok", "reject", actor="ada")).to_dict() == first.to_dict()
    assert await unchanged(mill, run_id, worker.engine.decide(run_id, "ok", "approve", actor="ada")) == (
        "decision_conflict"
    )


@simulated
async def test_a_repeated_decision_need_not_bring_its_form_again(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, human("ok", form={"type": "object", "required": ["x"]}))
    first = await worker.engine.decide(run_id, "ok", "approve", actor="ada", form={"x": 1})
    assert (await worker.engine.decide(run_id, "ok", "approve", actor="ada")).to_dict() == first.to_dict()


@simulated
async def test_too_late_is_too_late(mill: Cluster) -> None:
    worker = await mill.process()
    expired = await _asked(mill, worker, human("ok", timeout_seconds=5))
    assert (await worker.end(expired)).status == "FAILED"
    assert await unchanged(mill, expired, worker.engine.decide(expired, "ok", "approve", actor="ada")) == (
        "approval_expired"
    )
    cancelled = await _asked(mill, worker, human("ok"))
    await worker.engine.cancel(cancelled)
    assert await unchanged(mill, cancelled, worker.engine.decide(cancelled, "ok", "approve", actor="ada")) == (
        "approval_closed"
    )


@simulated
async def test_of_two_who_decide_in_two_processes_the_first_in_the_log_wins(mill: Cluster) -> None:
    worker = await mill.process()
    one, two = await mill.process("c1", work=False), await mill.process("c2", work=False)
    run_id = await _asked(mill, worker, human("ok", rejection_path=["no"]), node("no", "ok"))
    await one.engine.approval(run_id, "ok")

    async def overtake() -> None:
        await two.engine.decide(run_id, "ok", "reject", actor="bob")

    one.faulty_store.next("commit", following(overtake))
    assert await code_of(one.engine.decide(run_id, "ok", "approve", actor="ada")) == "decision_conflict"
    assert one.faulty_store.fired["commit"] == 1
    assert await _decided(mill, run_id) == [("reject", "user:bob")]


@simulated
async def test_everybody_decides_at_once(mill: Cluster) -> None:
    worker = await mill.process()
    clients = [await mill.process(f"c{number}", work=False) for number in range(6)]
    run_id = await _asked(mill, worker, human("ok"))
    verbs = ["approve", "reject"] * 3
    answers = await asyncio.gather(
        *(
            client.engine.decide(run_id, "ok", verb, actor=client.name)  # type: ignore[arg-type]
            for client, verb in zip(clients, verbs, strict=True)
        ),
        return_exceptions=True,
    )
    ((decision, _),) = await _decided(mill, run_id)
    for verb, answer in zip(verbs, answers, strict=True):
        if verb == decision:
            assert not isinstance(answer, BaseException) and answer.approval.decision == decision
        else:
            assert isinstance(answer, Rejected) and answer.code == "decision_conflict"


@simulated
async def test_a_quorum_is_counted_over_people_whatever_process_they_use(mill: Cluster) -> None:
    worker = await mill.process()
    clients = [await mill.process(f"c{number}", work=False) for number in range(3)]
    run_id = await _asked(mill, worker, human("ok", approvers=["role:boss"], quorum=3))

    async def approve(number: int, actor: str) -> str:
        shown = await clients[number].engine.decide(run_id, "ok", "approve", actor=actor, roles=["boss"])
        return shown.status

    assert [await approve(number, "ada") for number in range(3)] == ["pending"] * 3
    assert await code_of(clients[0].engine.decide(run_id, "ok", "reject", actor="ada", roles=["boss"])) == (
        "decision_conflict"
    )
    assert sorted(await asyncio.gather(approve(1, "bob"), approve(2, "cyd"))) == ["decided", "decided"]
    first, second = await mill.of(run_id, ApprovalVoted)
    assert first.by == "user:ada" and second.by != "user:ada"
    assert len(await _decided(mill, run_id)) == 1
    (row,) = (await worker.engine.approvals.find([f"run:{run_id}"]))[0]
    assert sorted(row.votes) == ["user:ada", "user:bob", "user:cyd"]


@simulated
async def test_a_worker_finds_the_way_after_a_decision(mill: Cluster) -> None:
    """Without a `rejection_path` the branch decides, and only a worker can evaluate it."""
    client = await mill.process("client", work=False)
    worker = await mill.process()
    branch = {
        "type": "conditional",
        "rules": [{"condition": "output.decision == 'reject'", "next_nodes": ["sorry"]}],
        "default": ["ship"],
    }
    nodes = [human("ok", node={"branch": branch}), node("ship", "ok"), node("sorry", "ok")]
    run_id = await _asked(mill, worker, *nodes)
    worker.kill()
    await client.engine.decide(run_id, "ok", "reject", actor="ada")
    assert (await mill.state(run_id)).peek("ok").status == "QUEUED"
    late = await mill.process("late")
    run = await late.end(run_id)
    assert (run.status, set(run.outputs)) == ("COMPLETED", {"sorry"})
    assert run.nodes["ok"]["attempts"] == 1
    assert len(await mill.of(run_id, NodeScheduled, "ok")) == 2


@simulated
async def test_people_are_asked_again_in_every_pass(mill: Cluster) -> None:
    worker = await mill.process()
    client = await mill.process("client", work=False)
    loop = {"condition": "output.comments == 'more'", "max_iterations": 9, "loop_back_to": "draft"}
    run_id = await client.start(
        document(
            node("draft", config="{{ iteration }}"),
            human("ok", "draft", title="draft {{ draft.output }}", node={"loop": loop}),
            node("z", "ok"),
        )
    )
    for visit in (1, 2, 3):
        await waits(mill, run_id, "ok", visit=visit)
        shown = await client.engine.approval(run_id, "ok")
        assert (shown.visit, shown.approval.title) == (visit, f"draft {visit - 1}")
        comments = "more" if visit < 3 else "good"
        decided = await client.engine.decide(run_id, "ok", "approve", actor="ada", comments=comments)
        assert (decided.visit, decided.status, decided.approval.comments) == (visit, "decided", comments)
    assert (await worker.end(run_id)).status == "COMPLETED"
    rows = (await client.engine.approvals.find([f"run:{run_id}"]))[0]
    assert {row.visit: row.comments for row in rows} == {1: "more", 2: "more", 3: "good"}
    assert len(await mill.of(run_id, NodeCompleted, "ok")) == 3


@simulated
async def test_a_decision_is_shown_also_when_the_loop_has_gone_on_before_anybody_could_look(mill: Cluster) -> None:
    worker = await mill.process()
    client = await mill.process("client", work=False)
    loop = {"condition": "output.comments == 'more'", "max_iterations": 9}
    run_id = await _asked(mill, worker, human("ok", node={"loop": loop}), node("z", "ok"))

    async def slow(call: Any) -> Any:
        await waits(mill, run_id, "ok", visit=2)
        return await call()

    async def arm(call: Any) -> Any:
        client.faulty_store.next("load", slow)
        return await call()

    client.faulty_store.next("commit", arm)
    decided = await client.engine.decide(run_id, "ok", "approve", actor="ada", comments="more")
    assert client.faulty_store.fired["load"] == 1
    assert (decided.visit, decided.status, decided.approval.decided_by) == (1, "decided", "user:ada")
    await client.engine.decide(run_id, "ok", "approve", actor="ada", comments="good")
    assert (await worker.end(run_id)).status == "COMPLETED"


@simulated
async def test_a_request_for_changes_goes_its_own_way(mill: Cluster) -> None:
    worker = await mill.process()
    nodes = [
        node("draft"),
        human("ok", "draft", changes_path=["rework"], rejection_path=["drop"]),
        node("rework", "ok"),
        node("drop", "ok"),
        node("ship", "ok"),
    ]
    run_id = await _asked(mill, worker, *nodes)
    shown = await worker.engine.decide(run_id, "ok", "changes", actor="ada", comments="shorter")
    assert (shown.approval.decision, shown.status) == ("changes", "decided")
    run = await worker.end(run_id)
    assert set(run.outputs) == {"rework"}
    assert run.nodes["ok"]["output"]["comments"] == "shorter"
