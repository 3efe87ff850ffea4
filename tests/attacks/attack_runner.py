"""Carries a volley of attacks out, in a process that may be lost, and reports each as a line of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from msgspec import structs

from tests.attacks.attack import FILE, SECRET_NAME, URL, Attack, Failed
from tests.attacks.corpora import CORPORA
from tests.attacks.scene import SCENE
from tests.fixtures.scopes import is_plain
from tidemill.errors import Problem
from tidemill.expressions.conditions import DEADLINE_MS, Condition, EvaluationRequest, Verdict, decide, parse_condition
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.sandbox.pool import SandboxPool, run_steps
from tidemill.expressions.scope import Json
from tidemill.expressions.templates.template import check_template, compile_template

PATIENCE_MS = 700
"""The first deadline of an evaluation: most attacks that reach it would never end, and there are many of them."""

MEMORY_MAX = 2 << 30
PROCESSOR_SECONDS_MAX = 200
HANG_SECONDS = 60
TICK_SECONDS = 0.002


class Deadline:
    """Real processes, and shorter deadlines."""

    def __init__(self) -> None:
        self.processes = SandboxPool(1)
        self.patience_ms = PATIENCE_MS

    async def holds(self, request: EvaluationRequest) -> bool:
        hasty = request.deadline_ms == DEADLINE_MS
        return await self.processes.holds(structs.replace(request, deadline_ms=self.patience_ms) if hasty else request)

    async def close(self) -> None:
        await self.processes.close()


@dataclass
class Report:
    """How an attack ended, and what it took."""

    name: str
    ending: str = ""
    code: str = ""
    told: list[str] = field(default_factory=list)
    value: Json = None
    ms: float = 0
    blocked_ms: float = 0
    """For how long nothing else could have been done in the process."""
    resident_mb: int = 0


def baited(source: Json, bait: dict[str, str]) -> Json:
    """Put the real bait into an attack; one that is too strange to be written as JSON has none."""
    try:
        text = json.dumps(source)
    except (RecursionError, ValueError):
        return source
    for name, real in bait.items():
        text = text.replace(name, real)
    return json.loads(text)


async def carried_out(attack: Attack, volley: str, bait: dict[str, str], isolation: Deadline) -> Report:
    """Carry one attack out."""
    report = Report(attack.name)
    source = baited(attack.source, bait)
    async with watched(report):
        try:
            if volley.startswith("template"):
                _template(source, report)
            else:
                await _condition(source, report, isolation)
        except ExpressionError as failure:
            _ended(report, "failed", [failure.problem()])
    report.resident_mb = resident_mb()
    return report


def _template(source: Json, report: Report) -> None:
    problems, _ = check_template(source)
    if problems:
        _ended(report, "refused", problems)
        with suppress(ExpressionError):
            compile_template(source)
            report.ending = "compiled although it has problems"
        return
    _gave(report, compile_template(source).render(SCENE))


async def _condition(source: Json, report: Report, isolation: Deadline) -> None:
    condition, problems = parse_condition(source)
    if condition is None:
        return _ended(report, "refused", problems)
    verdict = run_steps(decide(condition, SCENE), isolation)
    verdict = await verdict if isinstance(verdict, Awaitable) else verdict
    report.told = [verdict.reason]
    return _gave(report, verdict.value)


def _gave(report: Report, value: Json) -> None:
    report.ending = "gives" if is_plain(value) else f"gives {type(value).__name__}, which is not JSON"
    report.value = value if is_plain(value) else None


def _ended(report: Report, ending: str, problems: list[Problem]) -> None:
    report.ending, report.code = ending, problems[0].code
    report.told = [f"{problem.code} {problem}" for problem in problems]


@asynccontextmanager
async def watched(report: Report) -> AsyncIterator[None]:
    """Measure how long it takes, and for how long the event loop stands still: the longest time between two ticks.

    On a busy machine the loop also stands still because others are served first. That is the time in which it stood
    still without working, and it does not count.
    """
    gaps = [0.0]

    async def tick() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    begun, worked = time.monotonic(), time.thread_time()
    try:
        yield
    finally:
        took, worked = time.monotonic() - begun, time.thread_time() - worked
        await asyncio.sleep(2 * TICK_SECONDS)
        ticking.cancel()
        late = sum(gap - TICK_SECONDS for gap in gaps[1:])
        report.ms = (took - max(0, min(late, took) - worked)) * 1000
        report.blocked_ms = min(max(gaps), worked) * 1000


def resident_mb() -> int:
    """Measure this process."""
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


async def main(volley: str, names: set[str], bait: dict[str, str]) -> None:
    """Carry a volley out, or only the attacks that are named."""
    isolation = Deadline()
    warm = run_steps(decide(_warm(), SCENE), isolation)
    assert not isinstance(warm, Verdict) and (await warm).value
    for attack in CORPORA[volley]:
        if names and attack.name not in names:
            continue
        print(json.dumps({"began": attack.name}), flush=True)
        # Native code listens to nobody but the kernel, so a hang is the end of this process.
        signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
        report = await carried_out(attack, volley, bait, isolation)
        if report.ending == "failed" and not (isinstance(attack.ending, Failed) and attack.ending.code == report.code):
            # A slow machine may need longer than the first deadline, so the engine's own one decides.
            isolation.patience_ms = DEADLINE_MS
            report = await carried_out(attack, volley, bait, isolation)
            isolation.patience_ms = PATIENCE_MS
        print(json.dumps(vars(report)), flush=True)
    signal.setitimer(signal.ITIMER_REAL, 0)
    await isolation.close()


def _warm() -> Condition:
    condition, _ = parse_condition({"type": "python_sandbox", "code": "def evaluate(output, context): return True"})
    assert condition is not None
    return condition


if __name__ == "__main__":
    # Were a guard missing, this process would be what an attack eats up, and not the machine.
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS_MAX, PROCESSOR_SECONDS_MAX))
    _, chosen, file, variable, url, *only = sys.argv
    asyncio.run(main(chosen, set(only), {FILE: file, SECRET_NAME: variable, URL: url}))
