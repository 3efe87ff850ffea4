"""What is recorded of a decision: which rule matched, why, and the digests of what it was made over."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.approvers import signal, waits
from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tidemill.blobs.contract import digest_of
from tidemill.blobs.payloads import encode_value
from tidemill.handlers.contract import Done, Handler, NodeContext
from tidemill.kernel.events import (
    Admission,
    BlobRef,
    NodeCompleted,
    NodeExpanded,
    NodeFailed,
    NodeSkipped,
    NodeStarted,
    NodeWaiting,
    Route,
)
from tidemill.kernel.model import NodeType

LONG = {"n": 1, "text": "x" * 100_000}


def digest(value: Any) -> str:
    return digest_of(encode_value(value))


def rules(*pairs: tuple[Any, str], default: str | None = None) -> dict[str, Any]:
    """A branch: each condition with the node it leads to."""
    found: dict[str, Any] = {"rules": [{"condition": when, "next_nodes": [to]} for when, to in pairs]}
    return found if default is None else {**found, "default": [default]}


async def route_of(mill: Cluster, run_id: str, name: str, pass_: int = 0) -> Route:
    route = (await mill.of(run_id, NodeCompleted, name))[pass_].route
    assert route is not None
    return route


@simulated
async def test_a_branch_keeps_the_rule_the_reason_and_what_was_read(mill: Cluster) -> None:
    worker = await mill.process()
    branch = rules(("output.score > 90", "top"), ("output.score > inputs.least", "good"), default="rest")
    run = await worker.run(
        document(node("a", config={"score": 85}, branch=branch), node("top"), node("good"), node("rest")),
        {"least": 80},
    )
    assert await route_of(mill, run.run_id, "a") == Route(
        branch=("good",),
        rule=1,
        reason="rule 2 of 2 matched: output.score > inputs.least is true",
        reads=(("output", digest({"score": 85})), ("inputs", digest({"least": 80}))),
    )


@simulated
async def test_a_rule_that_was_not_asked_has_read_nothing(mill: Cluster) -> None:
    worker = await mill.process()
    branch = rules(("output > 1", "x"), ("inputs.n > 1", "y"))
    run = await worker.run(document(node("a", config=2, branch=branch), node("x"), node("y")), {"n": 1})
    assert (await route_of(mill, run.run_id, "a")).reads == (("output", digest(2)),)


@simulated
async def test_the_default_has_read_what_every_rule_read(mill: Cluster) -> None:
    worker = await mill.process()
    branch = rules(("output > 1", "x"), ("ctx.a.output > 1", "y"), default="z")
    run = await worker.run(
        document(node("a", config=0), node("b", "a", config=1, branch=branch), node("x"), node("y"), node("z"))
    )
    route = await route_of(mill, run.run_id, "b")
    assert (route.branch, route.rule) == (("z",), -1)
    assert route.reason == "no rule matched: (1) output > 1 is false, (2) ctx.a.output > 1 is false"
    assert route.reads == (("output", digest(1)), ("ctx.a", digest(0)))


@simulated
async def test_of_many_rules_the_first_ones_are_told(mill: Cluster) -> None:
    worker = await mill.process()
    names = [f"x{number}" for number in range(8)]
    branch = rules(*((f"output == {name[1:]}", name) for name in names))
    run = await worker.run(document(node("a", config=99, branch=branch), *map(node, names)))
    reason = (await route_of(mill, run.run_id, "a")).reason
    assert reason.startswith("no rule matched: (1) output == 0 is false, (2)")
    assert reason.endswith("(5) output == 4 is false, and 3 more")


@simulated
async def test_a_decision_that_fails_says_which_and_over_what(mill: Cluster) -> None:
    worker = await mill.process()
    both = {"type": "composite", "operator": "AND", "conditions": ["inputs.n > 0", "output.x > 1"]}
    nested = {"type": "composite", "operator": "NOT", "conditions": [both]}
    branch = rules(("inputs.n > 5", "x"), (nested, "y"))
    run = await worker.run(document(node("a", config={}, branch=branch), node("x"), node("y")), {"n": 1})
    (failed,) = await mill.of(run.run_id, NodeFailed, "a")
    assert failed.error.message == (
        'rule 2 of 2, /conditions/0/conditions/1: output has no key "x" (it is empty) (in `output.x > 1`)'
    )
    assert failed.error.hint
    assert failed.reads == (("output", digest({})), ("inputs", digest({"n": 1})))
    (step,) = [step for step in await worker.engine.path(run.run_id) if step["node"] == "a"]
    assert step["reads"] == dict(failed.reads)


@simulated
async def test_a_composite_tells_the_part_that_decided(mill: Cluster) -> None:
    worker = await mill.process()
    both = {"type": "composite", "operator": "AND", "conditions": ["output > 0", "inputs.go"]}
    neither = {"type": "composite", "operator": "NOT", "conditions": [both]}
    run = await worker.run(
        document(node("a", config=1, branch=rules((both, "x"), (neither, "y"))), node("x"), node("y")), {"go": False}
    )
    route = await route_of(mill, run.run_id, "a")
    assert route.reason == "rule 2 of 2 matched: NOT: AND, part 2 of 2: inputs.go is false"
    assert dict(route.reads) == {"output": digest(1), "inputs": digest({"go": False})}


@simulated
async def test_a_part_that_was_not_asked_has_read_nothing(mill: Cluster) -> None:
    worker = await mill.process()
    either = {"type": "composite", "operator": "OR", "conditions": ["output > 0", "ctx.a.output > 0"]}
    run = await worker.run(
        document(node("a", config=1), node("b", "a", config=2, branch=rules((either, "x"))), node("x"))
    )
    assert (await route_of(mill, run.run_id, "b")).reads == (("output", digest(2)),)


@simulated
async def test_large_values_are_told_by_the_digest_they_are_stored_under(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(
        document(
            node("a", config=LONG),
            node("b", "a", config=LONG, branch=rules(("output.n == ctx.a.output.n", "x"))),
            node("x"),
        )
    )
    stored = [event.output for name in "ab" for event in await mill.of(run.run_id, NodeCompleted, name)]
    assert all(isinstance(output, BlobRef) for output in stored)
    reads = dict((await route_of(mill, run.run_id, "b")).reads)
    assert reads == {"output": digest(LONG), "ctx.a": digest(LONG)}
    assert {output.digest for output in stored if isinstance(output, BlobRef)} == set(reads.values())


@simulated
async def test_a_computed_name_has_read_every_node_in_reach(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(
        document(
            node("a", config=1),
            node("b", "a", config=2),
            node("c", "b", config=3, branch=rules(("ctx[inputs.which].output == 2", "x"))),
            node("x"),
            node("far", config=9),
        ),
        {"which": "b"},
    )
    reads = dict((await route_of(mill, run.run_id, "c")).reads)
    assert reads == {"inputs": digest({"which": "b"}), "ctx.a": digest(1), "ctx.b": digest(2)}


@pytest.mark.parametrize(("chosen", "reason"), [(("x",), "chosen by the node"), (None, "nothing was chosen")])
@simulated
async def test_a_choice_of_the_node_itself(mill: Cluster, chosen: tuple[str, ...] | None, reason: str) -> None:
    agent = Handler(NodeType(name="chooser"), lambda context: Done({"thought": 1}, chosen))
    worker = await mill.process(more=[agent])
    branch = {"type": "agent_driven", "available_next_nodes": ["x"], "default": ["z"]}
    run = await worker.run(document(node("a", type="chooser", branch=branch), node("x"), node("z")))
    assert await route_of(mill, run.run_id, "a") == Route(branch=chosen or ("z",), reason=reason)


@simulated
async def test_every_pass_says_why_the_loop_goes_on_or_ends(mill: Cluster) -> None:
    worker = await mill.process()
    loop = {"condition": "output < 2", "max_iterations": 9}
    run = await worker.run(
        document(
            node("a", config="{{ iteration }}", loop=loop, branch=rules(("output == 2", "x"), default="y")),
            node("x"),
            node("y"),
        )
    )
    first, second, third = [await route_of(mill, run.run_id, "a", number) for number in range(3)]
    assert first == Route(again=True, again_reason="output < 2 is true", reads=(("output", digest(0)),))
    assert second == Route(again=True, again_reason="output < 2 is true", reads=(("output", digest(1)),))
    assert third == Route(
        again=False,
        branch=("x",),
        rule=0,
        reason="rule 1 of 1 matched: output == 2 is true",
        again_reason="output < 2 is false",
        reads=(("output", digest(2)),),
    )


@simulated
async def test_a_pass_that_waits_for_its_body_has_decided_already(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(
        document(
            node("a"),
            signal("go", "a"),
            node(
                "z",
                "a",
                "go",
                join="any",
                loop={"condition": "iteration < 1", "max_iterations": 3, "loop_back_to": "a"},
            ),
        )
    )
    await waits(mill, run_id, "go")
    await waits(mill, run_id, "z")
    (waiting,) = await mill.of(run_id, NodeWaiting, "z")
    assert waiting.on == "loop" and waiting.route is not None
    assert waiting.route.again_reason == "iteration < 1 is true"
    await worker.engine.cancel(run_id)


@simulated
async def test_a_node_that_is_not_admitted_says_why_and_over_what(mill: Cluster) -> None:
    worker = await mill.process()
    either = {"type": "composite", "operator": "OR", "conditions": ["ctx.a.output > 1", "inputs.force"]}
    run = await worker.run(document(node("a", config=1), node("b", "a", when=either)), {"force": False})
    (skipped,) = await mill.of(run.run_id, NodeSkipped, "b")
    assert skipped.reason == "when: OR: all 2 parts are false"
    assert skipped.reads == (("inputs", digest({"force": False})), ("ctx.a", digest(1)))


@simulated
async def test_a_node_that_is_admitted_says_why_and_over_what(mill: Cluster) -> None:
    """Once per visit: on what begins it, also for a map, which has no attempts of its own."""
    worker = await mill.process()
    when = "inputs.n > ctx.a.output"
    run = await worker.run(
        document(
            node("a", config=1),
            node("b", "a", when=when, branch=rules(("output == null", "x"))),
            node("m", "a", when=when, map={"over": [1, 2]}, config="{{ item }}"),
            node("x"),
            node("plain", "a"),
        ),
        {"n": 2},
    )
    admission = Admission(f"when: {when} is true", (("inputs", digest({"n": 2})), ("ctx.a", digest(1))))
    started = {event.node: event.admission for event in await mill.of(run.run_id, NodeStarted)}
    assert started == {"a": None, "b": admission, "m": None, "x": None, "plain": None}
    (expanded,) = await mill.of(run.run_id, NodeExpanded)
    assert expanded.admission == admission
    way = {step["node"]: step for step in await worker.engine.path(run.run_id)}
    assert way["b"]["why"] == f"{admission.reason}; rule 1 of 1 matched: output == null is true"
    assert way["b"]["reads"] == dict(admission.reads) | {"output": digest(None)}
    assert way["m"]["why"] == admission.reason
    assert "why" not in way["plain"] or not way["plain"]["why"]


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
@simulated
async def test_only_the_first_attempt_says_why_the_visit_happens(mill: Cluster, delivery: str) -> None:
    calls: list[int] = []

    def flaky(context: NodeContext) -> Done:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError
        return Done(1)

    worker = await mill.process(more=[Handler(NodeType(name="flaky"), flaky)])
    retry = {"max_attempts": 2, "backoff_seconds": 0}
    run = await worker.run(
        document(node("a", type="flaky", when="inputs.go", retry=retry, delivery=delivery)), {"go": True}
    )
    first, second = await mill.of(run.run_id, NodeStarted, "a")
    assert first.admission is not None and first.admission.reason == "when: inputs.go is true"
    assert second.admission is None
    (step,) = await worker.engine.path(run.run_id)
    assert step["why"] == "when: inputs.go is true"


@simulated
async def test_a_when_that_fails_says_over_what(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a", when="inputs.n > 1")), {"n": "x"})
    (failed,) = await mill.of(run.run_id, NodeFailed, "a")
    assert failed.error.message == "when: > does not take string and int (in `inputs.n > 1`)"
    assert failed.reads == (("inputs", digest({"n": "x"})),)


@simulated
async def test_a_node_that_was_skipped_has_nothing_to_read(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(
        document(node("a", when="inputs.go"), node("b", "a"), node("c", "a", when="has(ctx.a.output)")), {"go": False}
    )
    assert {name: shown["status"] for name, shown in run.nodes.items()} == dict.fromkeys("abc", "SKIPPED")
    reasons = [event.reason for event in await mill.of(run.run_id, NodeSkipped)]
    assert reasons == ["when: inputs.go is false", "no inbound edge was taken", "no inbound edge was taken"]


# The way a run went


@simulated
async def test_the_way_a_run_went_says_why(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(
        document(
            node("a", config="{{ iteration }}", loop={"condition": "output < 1", "max_iterations": 5}),
            node("b", "a", config=7, branch=rules(("output > 9", "x"), ("output > 5", "y"))),
            node("x"),
            node("y", when="inputs.go"),
        ),
        {"go": False},
    )
    way = await worker.engine.path(run.run_id)
    assert [(step["node"], step["why"]) for step in way] == [
        ("a", "the loop continues: output < 1 is true"),
        ("a", "the loop ended: output < 1 is false"),
        ("b", "rule 2 of 2 matched: output > 5 is true"),
        ("x", "no inbound edge was taken"),
        ("y", "when: inputs.go is false"),
    ]
    assert way[2]["reads"] == {"output": digest(7)}
    assert way[4]["reads"] == {"inputs": digest({"go": False})}


@simulated
async def test_a_loop_whose_passes_are_used_up(mill: Cluster) -> None:
    worker = await mill.process()
    loop = {"condition": "output < 9", "max_iterations": 2, "timeout_path": ["late"]}
    run = await worker.run(document(node("a", config="{{ iteration }}", loop=loop), node("late")))
    whys = [step["why"] for step in await worker.engine.path(run.run_id) if step["node"] == "a"]
    assert whys == ["the loop continues: output < 9 is true", "the loop has no pass left: output < 9 is true"]


@simulated
async def test_why_a_node_went_the_way_it_went(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(
        document(
            node("a", config=7, branch=rules(("output > 5", "x"), default="y")),
            node("x"),
            node("y"),
            node("l", config="{{ iteration }}", loop={"condition": "output < 1", "max_iterations": 5}),
        )
    )
    why = worker.engine.why_node
    branched = await why(run.run_id, "a")
    assert branched.headline == "a completed and went to x: rule 1 of 1 matched: output > 5 is true"
    assert branched.visits[-1].reads == {"output": digest(7)} and branched.before == ()
    skipped = await why(run.run_id, "y")
    assert skipped.headline == "y was skipped: no inbound edge was taken"
    assert [(step.node, step.went, step.why) for step in skipped.before] == [
        ("a", ("x",), "rule 1 of 1 matched: output > 5 is true")
    ]
    looped = await why(run.run_id, "l")
    assert looped.headline == "l (visit 2) completed: the loop ended: output < 1 is false"
    assert [step.why for step in looped.visits] == [
        "the loop continues: output < 1 is true",
        "the loop ended: output < 1 is false",
    ]


@simulated
async def test_why_a_node_has_not_ended(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(signal("go"), node("z", "go")))
    await waits(mill, run_id, "go")
    waiting = await worker.engine.why_node(run_id, "go")
    assert (waiting.status, waiting.headline) == ("WAITING", "go is waiting for the signal go")
    assert [each.kind for each in waiting.blockers] == ["signal"]
    behind = await worker.engine.why_node(run_id, "z")
    assert (behind.status, [each.kind for each in behind.blockers]) == ("PENDING", ["edge"])


@simulated
async def test_a_condition_that_fails_decides_nothing(mill: Cluster) -> None:
    branch = {"rules": [{"condition": "output.missing > 1", "next_nodes": ["b"]}], "default": ["c"]}
    worker = await mill.process()
    routed = node("a", config={"x": 1}, branch={"type": "conditional", **branch})
    run = await worker.run(document(routed, node("b"), node("c")))
    assert run.status == "FAILED"
    assert run.nodes["a"]["error"]["code"] == "condition_failed"
