"""Conditions that are decided in another process: what is asked of it, and what becomes of a visit meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidemill
from tests.fixtures.child_processes import children_of
from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import Ledger, call
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
async def test_only_what_is_large_is_decided_elsewhere(mill: Cluster, value: Any, errands: int) -> None:
    clerk = Clerk()
    worker = await mill.process(isolation=clerk)
    run = await worker.run(document(node("a", config=value, branch=branch("size(output) > 0")), node("x0"), node("z")))
    assert (run.status, run.nodes["x0"]["status"], len(clerk.errands)) == ("COMPLETED", "COMPLETED", errands)


@simulated
async def test_an_errand_carries_the_condition_its_scope_and_its_deadline(mill: Cluster) -> None:
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
async def test_only_the_large_part_of_a_composite_goes_elsewhere(mill: Cluster) -> None:
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
async def test_an_errand_without_an_answer_fails_the_visit(mill: Cluster, fields: dict[str, Any]) -> None:
    worker = await mill.process(isolation=Clerk(refuse))
    targets = [node("x0"), *([node("z")] if "branch" in fields else [])]
    run = await worker.run(document(node("a", config=MANY, **fields), *targets))
    assert run.status == "FAILED"
    message = f"{'rule 1 of 1' if 'branch' in fields else 'loop'}: {POSITIVE} took too long"
    assert run.error == {"code": "condition_failed", "message": message, "hint": "look at less"}
    assert len(await mill.of(run.run_id, NodeFailed, "a")) == 1, "the same values fail again, so it is not retried"


@pytest.mark.parametrize(("answer", "status"), [(True, "COMPLETED"), (False, "SKIPPED")])
@simulated
async def test_admission_by_an_errand(mill: Cluster, answer: bool, status: str, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.quick}, isolation=Clerk(lambda errand: answer))
    run = await worker.run(document(node("a", config=MANY), call("b", "a", when="ctx.a.output.exists(x, x > 5)")))
    assert run.nodes["b"]["status"] == status
    assert ledger.count("b") == int(answer)
    assert len(await mill.of(run.run_id, NodeSkipped, "b")) == int(not answer)


@simulated
async def test_an_admission_without_an_answer_fails_the_visit_before_it_begins(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.quick}, isolation=Clerk(refuse))
    run = await worker.run(document(node("a", config=MANY), call("b", "a", when="ctx.a.output.exists(x, x > 5)")))
    assert (run.status, run.failed_node, ledger.calls) == ("FAILED", "b", [])
    assert run.error is not None and run.error["code"] == "condition_failed"


@simulated
async def test_without_processes_to_spare_it_is_refused(mill: Cluster) -> None:
    worker = await mill.process(isolation=NoSandbox())
    run = await worker.run(document(node("a", config=MANY, branch=branch(POSITIVE)), node("x0"), node("z")))
    assert run.error is not None
    assert (run.error["code"], "another process" in run.error["message"]) == ("condition_failed", True)


@simulated
async def test_a_worker_lost_during_an_errand(mill: Cluster) -> None:
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
async def test_a_worker_lost_while_it_asks_for_admission(mill: Cluster) -> None:
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
async def test_a_run_cancelled_during_an_errand(mill: Cluster) -> None:
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
async def test_an_engine_closes_its_isolation(mill: Cluster) -> None:
    clerk = Clerk()
    worker = await mill.process(isolation=clerk)
    await worker.stop()
    assert clerk.closed


# Runs whose conditions are decided by real child processes: many items, code of authors, and what never ends


GROWTH = """
def evaluate(output, context):
    revenue = output.get("revenue", 0)
    before = context.get("last_month", {}).get("output", {}).get("revenue", 0)
    growth = (revenue - before) / before if before > 0 else 0
    return growth > 0.2 and output.get("churn_rate", 1) < 0.05
"""
FOREVER = "def evaluate(output, context):\n    while True:\n        pass\n"
ENDLESS = "output.all(a, output.all(b, output.all(c, output.all(d, a + b + c + d >= 0))))"


@pytest.fixture
def mill() -> Iterator[tidemill.Tidemill]:
    """An engine as everybody opens it. Nothing that it has started may be left when it is closed."""
    before = _children()
    with tidemill.open("memory://") as opened:
        yield opened
    assert _children() <= before


def _children() -> set[int]:
    return set(children_of(os.getpid()))


def run(mill: tidemill.Tidemill, output: Any, condition: Any, *more: Any) -> tidemill.RunView:
    branch = {"rules": [{"condition": condition, "next_nodes": ["yes"]}], "default": ["no"]}
    before = [each["id"] for each in more]
    flow = document(
        *more, node("a", *before, config=output, branch=branch), node("yes", config=1), node("no", config=0)
    )
    return mill.run(flow, timeout_s=40)


def test_a_condition_over_many_items(mill: tidemill.Tidemill) -> None:
    rows = list(range(5_000))
    assert run(mill, rows, "output.all(x, x >= 0)").outputs == {"yes": 1}
    assert run(mill, rows, "output.exists(x, x > 5000)").outputs == {"no": 0}
    view = run(mill, rows, {"type": "jsonpath", "query": "$[?@ > 4990]", "operator": "count_eq", "value": 9})
    assert view.outputs == {"yes": 1}
    (step,) = [step for step in mill.path(view.run_id) if step["node"] == "a"]
    assert step["why"].startswith("rule 1 of 1 matched: ") and list(step["reads"]) == ["output"]


@pytest.mark.parametrize(
    ("revenue", "churn_rate", "outputs"), [(130, 0.01, {"yes": 1}), (110, 0.01, {"no": 0}), (130, 0.2, {"no": 0})]
)
def test_code_of_an_author(mill: tidemill.Tidemill, revenue: int, churn_rate: float, outputs: Any) -> None:
    condition = {"type": "python_sandbox", "code": GROWTH}
    last_month = node("last_month", config={"revenue": 100})
    view = run(mill, {"revenue": revenue, "churn_rate": churn_rate}, condition, last_month)
    assert view.outputs == outputs, view.error
    (step,) = [step for step in mill.path(view.run_id) if step["node"] == "a"]
    assert list(step["reads"]) == ["output", "ctx.last_month"]


@pytest.mark.parametrize(
    ("output", "condition"),
    [
        (1, {"type": "python_sandbox", "code": FOREVER, "timeout_ms": 200}),
        (list(range(900)), ENDLESS),
    ],
)
def test_what_never_ends_fails_the_visit(mill: tidemill.Tidemill, output: Any, condition: Any) -> None:
    view = run(mill, output, condition)
    assert (view.status, view.failed_node) == ("FAILED", "a")
    assert view.error is not None and view.error["code"] == "condition_failed", view.error
    assert run(mill, 1, "output == 1").outputs == {"yes": 1}, "the engine goes on"


def test_code_that_fails_says_where(mill: tidemill.Tidemill) -> None:
    code = "def evaluate(output, context):\n    return output['gone'] > 1\n"
    view = run(mill, {}, {"type": "python_sandbox", "code": code})
    assert view.error is not None and view.error["code"] == "condition_failed"
    assert "KeyError" in view.error["message"]


# What conditions see of other nodes: outputs whatever their size, and the fate of nodes without one


SMALL, LARGE = 100, 100_000


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_route_does_not_depend_on_the_size_of_what_it_looks_at(size: int) -> None:
    """A node past an `any` join asks for one that ends while its own handler runs; a long value is fetched for it."""
    import threading

    slow_ended = threading.Event()

    def slow() -> str:
        return "x" * size

    def waiting() -> int:
        slow_ended.wait(10)
        return 1

    rules = [{"condition": "has(ctx.slow.output) && size(ctx.slow.output) > 3", "next_nodes": ["y"]}]
    document: dict[str, Any] = {
        "name": "race",
        "nodes": [
            {"id": "fast", "type": "value", "config": 1},
            {"id": "gate", "type": "python", "config": {"function": "gate"}},
            {"id": "slow", "type": "python", "config": {"function": "slow"}, "dependencies": ["gate"]},
            {
                "id": "x",
                "type": "python",
                "config": {"function": "waiting"},
                "dependencies": ["fast", "slow"],
                "join": "any",
                "branch": {"type": "conditional", "rules": rules, "default": ["z"]},
            },
            {"id": "y", "type": "value", "config": "saw it"},
            {"id": "z", "type": "value", "config": "saw nothing"},
        ],
    }
    begun = threading.Event()

    def gate() -> None:
        begun.wait(10)

    def started() -> int:
        begun.set()
        return waiting()

    functions = {"slow": slow, "waiting": started, "gate": gate}
    with tidemill.open("memory://", functions=functions) as mill:
        published = mill.publish(document)
        run = mill.start(published.name)
        for event in mill.follow(run):
            if event["type"] == "NodeCompleted" and event["node"] == "slow":
                slow_ended.set()
        view = mill.show(run)
    assert (view.status, view.outputs) == ("COMPLETED", {"y": "saw it"})


def test_the_fate_of_a_node_without_an_output_can_be_asked_for() -> None:
    document = {
        "name": "fate",
        "nodes": [
            {"id": "a", "type": "value", "config": 1},
            {"id": "b", "type": "value", "config": 2, "when": "false", "dependencies": ["a"]},
            {
                "id": "c",
                "type": "value",
                "config": "{{ b.meta.status }} {{ b.output | default('nothing') }}",
                "when": "ctx.b.meta.status == 'SKIPPED' && !has(ctx.b.output)",
                "join": "all",
                "dependencies": ["a", "b"],
            },
        ],
    }
    with tidemill.open("memory://") as mill:
        view = mill.run(document, timeout_s=10)
    assert view.outputs == {"c": "SKIPPED nothing"}


def test_a_document_of_odd_strings_is_refused_and_not_half_taken() -> None:
    class Name(str):
        pass

    document = {"name": "one", "nodes": [{"id": "a", "type": "value", "config": {"x": Name("odd")}}]}
    with tidemill.open("memory://") as mill, pytest.raises(tidemill.Rejected) as refused:
        mill.publish(document)
    assert refused.value.code == "not_json"
