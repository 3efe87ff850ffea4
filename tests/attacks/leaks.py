"""Evaluates the same expressions thousands of times, and tells what this process and its children have kept of it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.fixtures.child_processes import children_of
from tests.fixtures.scopes import AFTER
from tidemill.expressions.conditions import compiled, decide
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.sandbox.pool import SandboxPool, run_steps
from tidemill.expressions.scope import Json
from tidemill.expressions.templates.template import compile_template

KEPT_KB_MAX = 5 << 10
WARM_ROUNDS = 300
CODE = "def evaluate(output, context):\n    return sorted(output['tags'])[0] == 'a' and {} == {}"
SCHEMA = {"type": "object", "properties": {"tags": {"items": {"pattern": "^[a-z]+$"}}}, "required": ["score"]}

CONDITIONS: Mapping[str, Json] = {
    "cel": "output.score > 80 && output.tags.exists(tag, tag.matches('^b$')) && ctx.enrich.output.items.size() == 2",
    "cel that fails": "output.none > 1 || output.nothing == 'x'",
    "cel in a child": "output.tags.all(a, output.tags.all(b, a + b != ''))",
    "jsonpath": {"type": "jsonpath", "query": "$.tags[?match(@, '[a-z]')]", "operator": "count_eq", "value": 2},
    "jsonpath that fails": {"type": "jsonpath", "query": "$.tags", "operator": ">", "value": 2},
    "schema_validation": {"type": "schema_validation", "schema": SCHEMA},
    "cross_node_comparison": {
        "type": "cross_node_comparison",
        "left": {"path": "score"},
        "operator": "==",
        "right": {"node": "enrich", "path": "output.score"},
    },
    "doubles": {"type": "cross_node_comparison", "expression": "current.score * 1.1 > ctx.enrich.output.ratio"},
    "composite": {"type": "composite", "operator": "AND", "conditions": ["output.score > 1", "output.n > 1.0"]},
    "python_sandbox": {"type": "python_sandbox", "code": CODE},
    "python_sandbox that fails": {
        "type": "python_sandbox",
        "code": "def evaluate(output, context): raise ValueError(output)",
    },
}
TEMPLATES: Mapping[str, Json] = {
    "template": {
        "a": "{{ enrich.items | map(attribute='n') | join(',') }}",
        "b": "{% for x in range(9) %}{{ x }}{% endfor %}",
    },
    "template that fails": "{{ enrich.nothing.at_all ~ '' }}",
}


@dataclass(frozen=True)
class Resources:
    """What this process and all below it hold."""

    memory_kb: int
    files: int
    processes: int


def holdings() -> Resources:
    """Look at this process and all below it."""
    gc.collect()
    family = [os.getpid()]
    for parent in family:
        family += children_of(parent)
    return Resources(
        memory_kb=sum(map(_resident_kb, family)), files=sum(map(_open_files, family)), processes=len(family)
    )


def _resident_kb(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 10


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def evaluated(name: str, processes: SandboxPool) -> None:
    """Evaluate an expression once."""
    with suppress(ExpressionError):
        if name in TEMPLATES:
            compile_template(TEMPLATES[name]).render(AFTER)
            return
        verdict = run_steps(decide(compiled(CONDITIONS[name]), AFTER), processes)
        if isinstance(verdict, Awaitable):
            await verdict


async def kept(name: str, rounds: int) -> Resources:
    """Tell what was kept of so many evaluations, beyond what the first ones need."""
    processes = SandboxPool(1)
    for _ in range(WARM_ROUNDS):
        await evaluated(name, processes)
    before = holdings()
    for _ in range(rounds):
        await evaluated(name, processes)
    after = holdings()
    await processes.close()
    return Resources(*(getattr(after, each) - getattr(before, each) for each in asdict(after)))


def main(rounds: int, say: Callable[[str], None] = print) -> int:
    """Measure every kind; the exit code is 1 if one of them leaks."""
    found = {name: asyncio.run(kept(name, rounds)) for name in (*CONDITIONS, *TEMPLATES)}
    say(json.dumps({name: asdict(each) for name, each in found.items()}, indent=2))
    return int(any(each.memory_kb > KEPT_KB_MAX or each.files > 0 or each.processes > 0 for each in found.values()))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
