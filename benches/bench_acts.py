"""What operators' acts cost on a run of 10,000 nodes: kernel time of each, and a whole fork in memory."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from benches.bench_kernel import Run
from benches.figures import Figure, best_of
from benches.graphs import chain, compiled, node
from tidemill.bootstrap import engine_at
from tidemill.errors import Problem
from tidemill.kernel.commands import (
    AnyCommand,
    Decide,
    Failed,
    Override,
    Patch,
    Request,
    Result,
    Retry,
    Rewind,
    WaitRequested,
)
from tidemill.kernel.decide.decide import decide
from tidemill.kernel.events import Error
from tidemill.kernel.explain.explain import explain
from tidemill.kernel.model import Workflow
from tidemill.kernel.state import State

NODES = 10_000
MUST_MS = 20
FORK_MUST_MS = 300
EXPLAIN_MUST_MS = 50

ASK = WaitRequested(on="human", approval=Request(title="go on?"))
BROKEN = Failed(error=Error("broken", "for good"))


def lines(length: int, arms: int) -> dict[str, Any]:
    """Chains side by side between a first and a last node: half deep, half wide."""
    nodes = [node("first")]
    for arm in range(arms):
        nodes += [node(f"a{arm}x{i}", f"a{arm}x{i - 1}" if i else "first") for i in range(length)]
    last = [f"a{arm}x{length - 1}" for arm in range(arms)]
    return {"name": "lines", "nodes": [*nodes, node("last", *last)]}


def halfway(flow: Workflow, outcome: WaitRequested | Failed) -> Run:
    """A run that is half done when one of its nodes waits for a person, or fails for good."""
    run = Run(flow, keep_events=True)
    run.start()
    position = 0
    while position < len(run.queue) and position < len(flow.nodes) // 2:
        run.step(run.queue[position])
        position += 1
    run.token += 1
    task = run.queue[position].task
    run.do(Result(node=task.node, visit=task.visit, index=task.index, token=run.token, outcome=outcome))
    return run


def cost_ms(run: Run, command: AnyCommand) -> float:
    """Milliseconds of deciding, once per measurement on the same state, which deciding never changes."""

    def once() -> float:
        started = time.process_time()
        answer = decide(run.flow, run.state, command, 2)
        assert not isinstance(answer, Problem), answer
        assert answer.events
        return (time.process_time() - started) * 1000

    return best_of(7, once)


def patched(flow: Workflow) -> Workflow:
    """The same graph with one more node at its end."""
    document = lines(99, 101)
    document["nodes"].append(node("more", "last"))
    return compiled(document)


def waiting_node(state: State) -> str:
    """The node that waits for a person."""
    return next(name for name, cell in state.cells.items() if cell.wait is not None)


def kernel_figures() -> list[Figure]:
    """Each act on a run that is half deep and half wide, and the dearest on a chain."""
    flow = compiled(lines(99, 101))
    asked, failed = halfway(flow, ASK), halfway(flow, BROKEN)
    change = Patch(base="sha256:0", workflow=patched(flow), patch=b"[]")
    node_id = waiting_node(asked.state)
    acts: list[tuple[str, Run, AnyCommand, int | None]] = [
        ("decide on an approval", asked, Decide(node=node_id, visit=0, verb="approve", actor="ada"), MUST_MS),
        ("override a waiting node", asked, Override(node=node_id, visit=0, output=b"1"), MUST_MS),
        ("patch a live run", asked, change, MUST_MS),
        ("retry", failed, Retry(), MUST_MS),
        ("patch and retry, two acts in one", failed, msgspec.structs.replace(change, retry=True), 2 * MUST_MS),
        ("rewind to the first node, which gives every node a new visit", asked, Rewind(node="first"), None),
    ]
    found = [Figure(name, cost_ms(run, command), "ms", must) for name, run, command, must in acts]
    deep = halfway(compiled(chain(NODES)), BROKEN)
    found.append(Figure(f"retry a chain of {NODES:,}", cost_ms(deep, Retry()), "ms", MUST_MS))
    found.append(Figure(f"explain, {NODES:,} nodes", explain_ms(asked), "ms", EXPLAIN_MUST_MS))
    found.append(Figure(f"explain a failed run, {NODES:,} nodes", explain_ms(failed), "ms", EXPLAIN_MUST_MS))
    return found


def explain_ms(run: Run) -> float:
    """Milliseconds to say why a run waits, or why it failed."""

    def once() -> float:
        started = time.process_time()
        explain(run.flow, run.state, [], 3)
        return (time.process_time() - started) * 1000

    return best_of(5, once)


async def fork_ms() -> float:
    """Milliseconds of forking a run of 10,000 nodes that has ended, through the façade, in memory."""
    async with engine_at("memory://") as engine:
        await engine.publish(lines(99, 101))
        run = await engine.start("lines")
        assert (await engine.result(run)).status == "COMPLETED"
        best = 1e9
        for _ in range(3):
            started = time.perf_counter()
            fork = await engine.fork(run, node="last")
            best = min(best, (time.perf_counter() - started) * 1000)
            assert (await engine.result(fork)).status == "COMPLETED"
        return best


def figures() -> list[Figure]:
    """Measure."""
    return [*kernel_figures(), Figure(f"fork a run of {NODES:,} nodes", asyncio.run(fork_ms()), "ms", FORK_MUST_MS)]
