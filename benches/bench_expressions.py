"""What conditions and templates cost once they are compiled, beside the times that were hoped for on paper.

Each is decided the way a worker does it: found in the cache of compiled conditions, its values bound from a scope,
and in another process where it must be. Times are medians of single evaluations.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Iterator
from inspect import isawaitable
from pathlib import Path
from typing import Any

from benches.figures import Figure, Note
from tidemill.expressions.conditions import compiled, decide
from tidemill.expressions.sandbox.pool import Isolation, NoSandbox, SandboxPool, run_steps
from tidemill.expressions.scope import Scope, Seen
from tidemill.expressions.templates.template import compile_template

TIMES = 2_000
SANDBOXED = 300
LEAKS = 10_000
LEAK_MUST_MIB = 8

ROWS_HERE = 249
"""Rows of three values each that still are no more than a thousand items."""
ROWS = [{"id": number, "tier": "gold" if number % 10 else "basic", "spent": number * 1.5} for number in range(1_000)]
DOCUMENT = {"status": "ok", "score": 87, "amount": 120.5, "tags": ["a", "b"], "customer": {"tier": "gold", "age": 41}}
SCHEMA = {
    "type": "object",
    "required": ["status", "score"],
    "properties": {"status": {"const": "ok"}, "score": {"type": "integer", "minimum": 0}, "tags": {"type": "array"}},
}
CEL = {"type": "cel", "expression": "output.score >= 80 && ctx.enrich.output.revenue > 100000"}
JSONPATH = {"type": "jsonpath", "query": "$.customer.tier", "operator": "in", "value": ["gold", "silver"]}
MATCHING = {"type": "schema_validation", "schema": SCHEMA}
ACROSS = {
    "type": "cross_node_comparison",
    "left": {"source": "current", "path": "output.score"},
    "operator": ">",
    "right": {"source": "context", "node": "enrich", "path": "output.score"},
}
FORMULA = {
    "type": "cross_node_comparison",
    "expression": "(current.output.score - ctx.enrich.output.score) / ctx.enrich.output.score > 0.1",
}
CODE = """
def evaluate(output, context):
    before = context["enrich"]["output"]["score"]
    return output["score"] > before and output["customer"]["tier"] == "gold"
"""
SANDBOX = {"type": "python_sandbox", "code": CODE}
COMPOSITE = {"type": "composite", "operator": "AND", "conditions": [CEL, JSONPATH, ACROSS]}
FILTER = {"type": "jsonpath", "query": "$[?@.tier == 'basic' && @.spent > 100]", "operator": "count_gt", "value": 5}
TEMPLATE = {"url": "https://crm.example/{{ inputs.customer }}", "score": "{{ enrich.output.score }}", "n": 3}

SCOPE = Scope(
    nodes={"enrich": Seen({"revenue": 250_000, "score": 70}, {"status": "COMPLETED"})},
    inputs={"customer": "acme"},
    run={"id": "r1", "workflow": "w", "version": 1},
    has_output=True,
    output=DOCUMENT,
)
LONG = Scope(nodes={}, inputs={}, run={}, has_output=True, output=ROWS)
"""More values than a worker decides over in its own process."""
SHORT = Scope(nodes={}, inputs={}, run={}, has_output=True, output=ROWS[:ROWS_HERE])


async def median_ms(condition: Any, isolation: Isolation, times: int, scope: Scope = SCOPE) -> float:
    """The median time of one decision; the first hundred are not counted."""
    took: list[float] = []
    for number in range(times + 100):
        begun = time.perf_counter()
        verdict = run_steps(decide(compiled(condition), scope), isolation)
        if not hasattr(verdict, "value"):
            verdict = await verdict
        elapsed = time.perf_counter() - begun
        assert verdict.value is True, verdict
        if number >= 100:
            took.append(elapsed * 1000)
    return statistics.median(took)


def rendering_ms(times: int) -> float:
    """The median time of rendering a small config."""
    template = compile_template(TEMPLATE)
    took: list[float] = []
    for _ in range(times):
        begun = time.perf_counter()
        template.render(SCOPE)
        took.append((time.perf_counter() - begun) * 1000)
    return statistics.median(took)


def resident_mib() -> float:
    """How much memory this process has now, where the kernel tells."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else ["VmRSS 0 kB"]
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


async def grown_mib(conditions: list[Any], times: int) -> float:
    """How much memory many decisions leave behind."""
    isolation = NoSandbox()
    before = 0.0
    for number in range(times + times // 5):
        if number == times // 5:
            gc.collect()
            before = resident_mib()
        for condition in conditions:
            run_steps(decide(compiled(condition), SCOPE), isolation)
    gc.collect()
    return resident_mib() - before


async def elsewhere_ms(condition: Any, times: int, scope: Scope = SCOPE) -> float:
    """The median time of a decision in another process, which was started before, there and back."""
    processes = SandboxPool()
    try:
        return await median_ms(condition, processes, times, scope)
    finally:
        await processes.close()


async def first_ms() -> float:
    """How long the first decision takes that needs another process, which has to start."""
    processes = SandboxPool()
    begun = time.perf_counter()
    try:
        verdict = run_steps(decide(compiled(FILTER), LONG), processes)
        assert isawaitable(verdict), "it reads more than a worker decides in its own process"
        await verdict
        return (time.perf_counter() - begun) * 1000
    finally:
        await processes.close()


def figures() -> Iterator[Figure | Note]:
    """Every kind, beside what it must reach."""

    def small(name: str, condition: Any, must_us: float, hoped: str) -> Figure:
        took_us = asyncio.run(median_ms(condition, NoSandbox(), TIMES)) * 1000
        return Figure(f"{name} (on paper: {hoped})", took_us, "µs", must_us)

    yield small("cel", CEL, 30, "0.1 ms")
    yield small("schema_validation", MATCHING, 30, "0.5 ms")
    yield small("jsonpath", JSONPATH, 50, "1 ms")
    yield Figure(
        f"jsonpath, a filter over {ROWS_HERE} rows, in this process",
        asyncio.run(median_ms(FILTER, NoSandbox(), 50, SHORT)),
        "ms",
        15,
    )
    yield Figure(
        "jsonpath, a filter over 1,000 rows, in another process", asyncio.run(elsewhere_ms(FILTER, 50, LONG)), "ms", 15
    )
    yield Figure("the first condition of another process", asyncio.run(first_ms()), "ms")
    yield small("cross_node_comparison, two operands", ACROSS, 40, "0.2 ms")
    yield small("cross_node_comparison, an expression", FORMULA, 40, "0.2 ms")
    yield small("composite of three", COMPOSITE, 120, "nothing")
    yield Figure(
        "python_sandbox, warm (on paper: 50 to 100 ms)", asyncio.run(elsewhere_ms(SANDBOX, SANDBOXED)), "ms", 1
    )
    yield Figure("rendering a config with two templates", rendering_ms(TIMES) * 1000, "µs", 40)
    grown = asyncio.run(grown_mib([CEL, MATCHING, JSONPATH, ACROSS, FORMULA, COMPOSITE], LEAKS))
    yield Figure(f"memory after {LEAKS:,} decisions of six kinds each", grown, "MiB", LEAK_MUST_MIB)
