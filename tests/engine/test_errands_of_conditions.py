"""Conditions that are decided in another process: what is asked of it, and what becomes of a visit meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.kit import Mill, simulated
from tests.engine.scripts import Ledger, call
from tests.kernel.authoring import document, node
from tidemill.expressions.conditions import ITEMS_MAX, EvaluationRequest
from tidemill.expressions.errors import condition_failed
from tidemill.expressions.sandbox.pool import NoSandbox
from tidemill.kernel.events import NodeCompleted, NodeFailed, NodeSkipped

MANY = list(range(ITEMS_MAX + 1))
FEW = list(range(ITEMS_MAX - 1))
"""The root itself is an item too."""
POSITIVE = "output.all(x, x >= 0)"


class Clerk:
    """Stands for processes: writes down every errand, takes its time, and answers what it is told to."""

    def __init__(self, answer: Callable[[EvaluationRequest], bool] = lambda errand: True, seconds: float = 0.1) -> None:
        self.answer, self.seconds = answer, seconds
        self.errands: list[EvaluationRequest] = []
        self.under_way = 0
        self.closed = False

    async def holds(self, errand: EvaluationRequest) -> bool:
        self.errands.append(errand)
        self.under_way += 1
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.under_way -= 1
        return self.answer(errand)

    async def close(self) -> None:
        self.closed = True


def truth(errand: EvaluationRequest) -> bool:
    """The answer that a real process would give."""
    return errand.leaf.holds(errand.leaf.bind(errand.scope), errand.scope)


def refuse(errand: EvaluationRequest) -> bool:
    raise condition_failed(f"{errand.leaf.told()} took too long", "look at less")


def branch(*conditions: Any) -> dict[str, Any]:
    found = [{"condition": each, "next_nodes": [f"x{number}"]} for number, each in enumerate(conditions)]
    return {"rules": found, "default": ["z"]}


@pytest.mark.parametrize(("value", "errands"), [(MANY, 1), (FEW, 0), (["é" * (1 << 19)] * 3, 1)])
@simulated
async def test_only_what_is_large_is_decided_elsewhere(mill: Mill, value: Any, errands: int) -> None:
    clerk = Clerk()
    worker = await mill.process(isolation=clerk)
    run = await worker.run(document(node("a", config=value, branch=branch("size(output) > 0")), node("x0"), node("z")))
    assert (run.status, run.nodes["x0"]["status"], len(clerk.errands)) == ("COMPLETED", "COMPLETED", errands)


@simulated
async def test_an_errand_carries_the_condition_its_scope_and_its_deadline(mill: Mill) -> None:
    clerk = Clerk(truth)
    worker = await mill.process(isolation=clerk)
    run = await worker.run(
        document(node("a", config=MANY, branch=branch("size(output) < 0", POSITIVE)), node("x0"), node("x1"), node("z"))
    )
    assert run.nodes["x1"]["status"] == "COMPLETED"
    assert [errand.leaf.told() for errand in clerk.errands] == ["size(output) < 0", POSITIVE]
    assert all(errand.scope.output == MANY and errand.deadline_ms == 5_000 for errand in clerk.errands)
    (done,) = await mill.of(run.run_id, NodeCompleted, "a")
    assert done.route is not None
    assert done.route.reason == f"rule 2 of 2 matched: {POSITIVE} is true"
    assert [name for name, _ in done.route.reads] == ["output"]


@simulated
async def test_only_the_large_part_of_a_composite_goes_elsewhere(mill: Mill) -> None:
    clerk = Clerk(truth)
    worker = await mill.process(isolation=clerk)
    parts = ["inputs.go", POSITIVE, "!inputs.go", "size(output) > 5"]
    both = {"type": "composite", "operator": "AND", "conditions": parts}
    run = await worker.run(document(node("a", config=MANY, branch=branch(both)), node("x0"), node("z")), {"go": True})
    assert run.nodes["z"]["status"] == "COMPLETED"
    assert [errand.leaf.told() for errand in clerk.errands] == [POSITIVE]


@pytest.mark.parametrize(
    "fields",
    [
        {"branch": branch(POSITIVE)},
        {"loop": {"condition": POSITIVE, "max_iterations": 2, "timeout_path": ["x0"]}},
    ],
)
@simulated
async def test_an_errand_without_an_answer_fails_the_visit(mill: Mill, fields: dict[str, Any]) -> None:
    worker = await mill.process(isolation=Clerk(refuse))
    targets = [node("x0"), *([node("z")] if "branch" in fields else [])]
    run = await worker.run(document(node("a", config=MANY, **fields), *targets))
    assert run.status == "FAILED"
    message = f"{'rule 1 of 1' if 'branch' in fields else 'loop'}: {POSITIVE} took too long"
    assert run.error == {"code": "condition_failed", "message": message, "hint": "look at less"}
    assert len(await mill.of(run.run_id, NodeFailed, "a")) == 1, "the same values fail again, so it is not retried"


@pytest.mark.parametrize(("answer", "status"), [(True, "COMPLETED"), (False, "SKIPPED")])
@simulated
async def test_admission_by_an_errand(mill: Mill, answer: bool, status: str) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.quick}, isolation=Clerk(lambda errand: answer))
    run = await worker.run(document(node("a", config=MANY), call("b", "a", when="ctx.a.output.exists(x, x > 5)")))
    assert run.nodes["b"]["status"] == status
    assert ledger.count("b") == int(answer)
    assert len(await mill.of(run.run_id, NodeSkipped, "b")) == int(not answer)


@simulated
async def test_an_admission_without_an_answer_fails_the_visit_before_it_begins(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.quick}, isolation=Clerk(refuse))
    run = await worker.run(document(node("a", config=MANY), call("b", "a", when="ctx.a.output.exists(x, x > 5)")))
    assert (run.status, run.failed_node, ledger.calls) == ("FAILED", "b", [])
    assert run.error is not None and run.error["code"] == "condition_failed"


@simulated
async def test_without_processes_to_spare_it_is_refused(mill: Mill) -> None:
    worker = await mill.process(isolation=NoSandbox())
    run = await worker.run(document(node("a", config=MANY, branch=branch(POSITIVE)), node("x0"), node("z")))
    assert run.error is not None
    assert (run.error["code"], "another process" in run.error["message"]) == ("condition_failed", True)


@simulated
async def test_a_worker_lost_during_an_errand(mill: Mill) -> None:
    """Another worker decides anew; nothing of the first one counts."""
    slow, quick = Clerk(seconds=60), Clerk(lambda errand: False)
    first = await mill.process("w1", isolation=slow)
    client = await mill.process("client", work=False)
    run_id = await first.start(document(node("a", config=MANY, branch=branch(POSITIVE)), node("x0"), node("z")))
    await mill.until(lambda: slow.under_way == 1)
    first.kill()
    await mill.process("w2", isolation=quick)
    run = await client.end(run_id)
    assert (run.status, run.nodes["z"]["status"], len(quick.errands)) == ("COMPLETED", "COMPLETED", 1)
    assert [event.worker for event in await mill.of(run_id, NodeCompleted, "a")] == ["w2"]


@simulated
async def test_a_worker_lost_while_it_asks_for_admission(mill: Mill) -> None:
    """The handler was never called, so the next worker asks first."""
    ledger, slow = Ledger(), Clerk(seconds=60)
    functions = {"work": ledger.quick}
    first = await mill.process("w1", functions=functions, isolation=slow)
    client = await mill.process("client", work=False)
    run_id = await first.start(document(node("a", config=MANY), call("b", "a", when="size(ctx.a.output) > 5")))
    await mill.until(lambda: slow.under_way == 1)
    await asyncio.sleep(20)
    first.kill()
    await mill.process("w2", functions=functions, isolation=Clerk(lambda errand: False))
    run = await client.end(run_id)
    assert (run.nodes["b"]["status"], ledger.calls) == ("SKIPPED", [])


@simulated
async def test_a_run_cancelled_during_an_errand(mill: Mill) -> None:
    """The attempt is told, and whoever carries out its errand with it."""
    clerk = Clerk(seconds=120)
    worker = await mill.process(isolation=clerk)
    run_id = await worker.start(document(node("a", config=MANY, branch=branch(POSITIVE)), node("x0"), node("z")))
    await mill.until(lambda: clerk.under_way == 1)
    await worker.engine.cancel(run_id)
    run = await worker.end(run_id)
    assert (run.status, run.nodes["a"]["status"]) == ("CANCELLED", "CANCELLED")
    assert await mill.until(lambda: clerk.under_way == 0) <= 15
    assert await mill.of(run_id, NodeCompleted, "a") == []


@simulated
async def test_an_engine_closes_its_isolation(mill: Mill) -> None:
    clerk = Clerk()
    worker = await mill.process(isolation=clerk)
    await worker.stop()
    assert clerk.closed
