"""Operators' verbs through the façade: each is one command, repeated without harm, refused without a trace."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fixtures.approvers import LARGE, code_of, human, refused, signal, unchanged, waits
from tests.fixtures.cluster import Cluster, Process, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.errors import Rejected
from tidemill.kernel.events import (
    BlobRef,
    NodeOverridden,
    RunCancelled,
    RunLabelled,
    RunPaused,
    RunResumed,
    RunRetried,
    RunRewound,
)


async def _failed(process: Process, **options: Any) -> str:
    """A run that failed at `f`, behind `a`."""
    run = await process.run(document(node("a", config=1), node("f", "a", type="fail"), node("z", "f")), **options)
    assert run.status == "FAILED"
    return run.run_id


# Once, and with a name


@simulated
async def test_a_repeated_request_changes_nothing_more(mill: Cluster) -> None:
    """The second comes from another process, which knows nothing of the first."""
    one, two = await mill.process("c1", work=False), await mill.process("c2", work=False)
    worker = await mill.process()
    run_id = await one.start(document(signal("go"), signal("b", "go"), node("z", "b")))
    await waits(mill, run_id, "go")

    async def twice(verb: str, *args: Any, **options: Any) -> list[str]:
        before = len(await mill.events(run_id))
        for process in (one, two, one):
            await getattr(process.engine, verb)(
                run_id, *args, actor="ada", command_id=f"{verb}-{before // 100}", **options
            )
        return (await mill.kinds(run_id))[before:]

    assert await twice("pause", reason="lunch") == ["RunPaused"]
    assert await twice("resume") == ["RunResumed"]
    assert await twice("relabel", {"k": "v"}) == ["RunLabelled"]
    assert (await twice("override", "go", value=1)).count("NodeOverridden") == 1
    await waits(mill, run_id, "b")
    assert (await twice("rewind", "b"))[:2] == ["NodeCancelled", "RunRewound"]
    await waits(mill, run_id, "b", visit=2)
    assert (await twice("cancel"))[-1] == "RunCancelled"
    assert "RunRetried" in await twice("retry")
    for kind in (RunPaused, RunResumed, RunLabelled, RunRewound, RunCancelled, RunRetried):
        (event,) = await mill.of(run_id, kind)
        assert event.actor == "ada" and event.command is not None
    await waits(mill, run_id, "b", visit=2)
    await worker.engine.signal(run_id, "b", 1)
    assert (await worker.end(run_id)).status == "COMPLETED"


@simulated
async def test_nobody_is_not_a_run(mill: Cluster) -> None:
    client = await mill.process(work=False)
    engine = client.engine
    for asked in (
        engine.pause("nobody"),
        engine.resume("nobody"),
        engine.cancel("nobody"),
        engine.retry("nobody"),
        engine.rewind("nobody", "a"),
        engine.override("nobody", "a", value=1),
        engine.rollback("nobody"),
        engine.relabel("nobody", {"k": "v"}),
        engine.document("nobody"),
        engine.patch("nobody", []),
        engine.fork("nobody"),
        engine.compare("nobody", "nobody"),
    ):
        assert await code_of(asked) == "run_unknown"


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel", "retry", "rewind", "override", "rollback", "patch"])
@simulated
async def test_words_that_cannot_be_stored_are_refused(mill: Cluster, verb: str) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(signal("go"), node("z", "go")))
    await waits(mill, run_id, "go")
    needed: dict[str, dict[str, Any]] = {
        "rewind": {"node": "go"},
        "override": {"node": "go", "value": 1},
        "patch": {"operations": [{"op": "add", "path": "/nodes/z/priority", "value": 1}]},
    }
    given = needed.get(verb, {})
    ask = getattr(worker.engine, verb)
    reason = "message" if verb == "patch" else "reason"
    words: list[dict[str, Any]] = [{reason: "x" * 2_001}, {reason: 5}, {"actor": "\ud800"}]
    words += [{"actor": "a\x1b[2J"}, {"actor": "a\nb"}, {reason: "a\x1b]0;b"}, {reason: "\x9b2J"}, {reason: "\0"}]
    for said in words:
        assert await unchanged(mill, run_id, ask(run_id, **given, **said)) == "text_invalid"
    bad: list[Any] = ["", "x" * 201, 5, []]
    for command_id in bad:
        assert await unchanged(mill, run_id, ask(run_id, **given, command_id=command_id)) == "command_id_invalid"


@simulated
async def test_ended_runs_refuse(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = (await worker.run(chain("a"))).run_id
    engine = worker.engine
    for asked, code in [
        (engine.pause(run_id), "run_ended"),
        (engine.resume(run_id), "run_ended"),
        (engine.cancel(run_id), "run_ended"),
        (engine.retry(run_id), "run_completed"),
        (engine.rewind(run_id, "a"), "run_ended"),
        (engine.rewind(run_id, "nobody"), "node_unknown"),
        (engine.override(run_id, "a", value=1), "run_completed"),
        (engine.override(run_id, "nobody", value=1), "node_unknown"),
        (engine.rollback(run_id), "nothing_to_roll_back"),
    ]:
        assert await unchanged(mill, run_id, asked) == code


@simulated
async def test_rewind_lets_a_node_and_what_follows_happen_anew(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.quick})
    run_id = await worker.start(document(call("a"), call("b", "a"), signal("go", "b")))
    await waits(mill, run_id, "go")
    assert await unchanged(mill, run_id, worker.engine.rewind(run_id, "nobody")) == "node_unknown"
    await worker.engine.rewind(run_id, "b", reason="again")
    await waits(mill, run_id, "go", visit=2)
    assert (ledger.count("a"), ledger.count("b")) == (1, 2)
    assert {key.rsplit("/", 2)[1] for key, _ in ledger.calls if "/b/" in key} == {"1", "2"}
    await worker.engine.signal(run_id, "go")
    assert (await worker.end(run_id)).status == "COMPLETED"


@simulated
async def test_retry_goes_on_where_it_stopped_also_when_nobody_remembers_the_run(mill: Cluster) -> None:
    ledger, works = Ledger(), {"now": False}

    def flaky(context: Any) -> str:
        ledger.quick(context)
        if not works["now"]:
            raise RuntimeError("no")
        return "ok"

    worker = await mill.process(functions={"work": ledger.quick, "flaky": flaky})
    run_id = await worker.start(
        document(call("a"), call("f", "a", function="flaky", retry={"max_attempts": 1}), call("z", "f"))
    )
    assert (await worker.end(run_id)).status == "FAILED"
    worker.engine.run_cache._entries.clear()
    works["now"] = True
    await worker.engine.retry(run_id)
    run = await worker.end(run_id)
    assert (run.status, run.nodes["f"]["attempts"], run.nodes["f"]["visits"]) == ("COMPLETED", 2, 1)
    assert [ledger.count(name) for name in ("a", "f", "z")] == [1, 2, 1]


@simulated
async def test_a_retried_run_is_found_by_what_it_is(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    worker = await mill.process()
    run_id = await _failed(worker, labels={"k": "v"})
    assert [row.run_id for row in await mill.rows("status:FAILED", "label:k=v")] == [run_id]
    worker.kill()
    await client.engine.retry(run_id)
    assert await mill.rows("status:FAILED") == []
    assert [row.run_id for row in await mill.rows("status:RUNNING", "live", "active")] == [run_id]
    row = await mill.row(run_id)
    assert (row.failed_node, row.error_code, row.dead_letters) == ("", "", 0)


@simulated
async def test_an_unknown_outcome_needs_a_word(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process("w1", functions={"work": ledger.work}, lease_ms=3_000)
    run_id = await worker.start(document(call("pay", args={"seconds": 60}, delivery="at_most_once"), node("z", "pay")))
    await mill.until(lambda: ledger.running == 1)
    worker.kill()
    second = await mill.process("w2", functions={"work": ledger.work})
    run = await second.end(run_id)
    assert run.error is not None and run.error["code"] == "unknown_outcome"
    assert await unchanged(mill, run_id, second.engine.retry(run_id)) == "outcome_unknown"
    assert await unchanged(mill, run_id, second.engine.retry(run_id, did_not_happen=["z"])) == "outcome_unknown"
    await second.engine.retry(run_id, did_not_happen=["pay"])
    assert (await second.end(run_id)).status == "COMPLETED"
    assert ledger.count("pay") == 2


@simulated
async def test_a_value_by_hand_counts_as_the_nodes_own(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _failed(worker)
    engine = worker.engine
    assert await unchanged(mill, run_id, engine.override(run_id, "f")) == "override_unclear"
    assert await unchanged(mill, run_id, engine.override(run_id, "f", value=1, skip=True)) == "override_unclear"
    problem = await refused(engine.override(run_id, "f", value={1: object()}))
    assert (problem.code, problem.problems[0].path) == ("value_not_json", "/value")
    assert await unchanged(mill, run_id, engine.override(run_id, "a", value=1)) == "node_ended"
    assert await unchanged(mill, run_id, engine.override(run_id, "f", value=1, visit=2)) == "visit_over"
    assert await unchanged(mill, run_id, engine.override(run_id, "f", value=1, index=0)) == "item_unknown"
    await engine.override(run_id, "f", value=None, reason="it happened", actor="ada")
    run = await worker.end(run_id)
    assert (run.status, run.nodes["f"]["status"], run.nodes["f"]["output"]) == ("COMPLETED", "COMPLETED", None)
    (by_hand,) = await mill.of(run_id, NodeOverridden)
    assert (by_hand.actor, by_hand.reason) == ("ada", "it happened")


@simulated
async def test_a_large_value_by_hand_is_kept_by_content(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(
        document(signal("go"), node("z", "go", config="{{ go.output | length }}"), outputs={"n": "{{ z.output }}"})
    )
    await waits(mill, run_id, "go")
    await worker.engine.override(run_id, "go", value=LARGE)
    run = await worker.end(run_id)
    assert run.outputs == {"n": len(LARGE)}
    (by_hand,) = await mill.of(run_id, NodeOverridden)
    assert isinstance(by_hand.output, BlobRef) and by_hand.size == by_hand.output.size > len(LARGE)


@pytest.mark.parametrize("chosen", [None, ["left"], []])
@simulated
async def test_the_way_after_a_value_by_hand(mill: Cluster, chosen: list[str] | None) -> None:
    worker = await mill.process()
    branch = {
        "type": "conditional",
        "rules": [{"condition": "output == 'r'", "next_nodes": ["right"]}],
        "default": ["left"],
    }
    nodes = [signal("go", branch=branch), node("left", "go"), node("right", "go")]
    run_id = await worker.start(document(*nodes))
    await waits(mill, run_id, "go")
    asked = worker.engine.override(run_id, "go", value="r", next_nodes=["nobody"])
    assert await unchanged(mill, run_id, asked) == "route_not_allowed"
    await worker.engine.override(run_id, "go", value="r", next_nodes=chosen)
    run = await worker.end(run_id)
    ran = {name for name in ("left", "right") if run.nodes[name]["status"] == "COMPLETED"}
    assert ran == ({"right"} if chosen is None else set(chosen))


@simulated
async def test_an_item_by_hand(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(signal("m", map={"over": [1, 2, 3]})))
    await waits(mill, run_id, "m", index=2)
    await worker.engine.override(run_id, "m", index=1, value="by hand")
    await worker.engine.override(run_id, "m", index=2, skip=True)
    await worker.engine.signal(run_id, "m", "signal")
    assert (await worker.end(run_id)).outputs == {"m": ["signal", "by hand", None]}


@simulated
async def test_labels_change_what_a_run_is_found_by(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(human("ok")), labels={"a": "1", "b": "2"})
    await waits(mill, run_id, "ok")
    await worker.engine.relabel(run_id, {"a": "x", "c": "3"}, ["b"])
    assert (await worker.engine.show(run_id)).labels == {"a": "x", "c": "3"}
    found = [term for term in ("a=1", "a=x", "b=2", "c=3") if await mill.rows(f"label:{term}")]
    assert found == ["a=x", "c=3"]
    await worker.engine.cancel(run_id)
    await worker.engine.relabel(run_id, {}, ["c"])
    assert await mill.rows("label:c=3") == [] and len(await mill.rows("label:a=x", "status:CANCELLED")) == 1
    wrong: list[Any] = [{"k": 5}, {"k": "x" * 201}, "text", {str(number): "v" for number in range(101)}]
    for labels in (*wrong, {"k": "\x1b[2J"}, {"a\nb": "v"}, {"k": "\0"}, {"k": "\x85"}):
        assert await unchanged(mill, run_id, worker.engine.relabel(run_id, labels)) == "labels_invalid"
    with pytest.raises(Rejected, match=r"are text, not a number .* \(put it in quotes"):
        await worker.engine.relabel(run_id, wrong[0])


@simulated
async def test_a_run_with_all_its_labels_may_exchange_one(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(chain("a"), labels={f"k{number}": "v" for number in range(100)})
    assert await unchanged(mill, run_id, client.engine.relabel(run_id, {"more": "v"})) == "labels_invalid"
    await client.engine.relabel(run_id, {"more": "v"}, ["k7"])
    labels = (await client.engine.show(run_id)).labels
    assert len(labels) == 100 and "more" in labels and "k7" not in labels


@simulated
async def test_a_command_with_a_run_that_does_other_things(mill: Cluster) -> None:
    """A pause, an act and a decision that gather in one turn are decided one after the other."""
    worker = await mill.process()
    run_id = await worker.start(document(human("ok"), signal("go"), node("z", "ok", "go")))
    await waits(mill, run_id, "go")
    await asyncio.gather(
        worker.engine.pause(run_id),
        worker.engine.signal(run_id, "go", 1),
        worker.engine.decide(run_id, "ok", "approve", actor="ada"),
        worker.engine.relabel(run_id, {"k": "v"}),
    )
    assert (await mill.state(run_id)).status == "PAUSED"
    assert await mill.jobs(run_id) == []
    await worker.engine.resume(run_id)
    assert (await worker.end(run_id)).status == "COMPLETED"
