"""Asking a run of the tables why it is where it is: its jobs as a store would know them."""

from __future__ import annotations

from typing import Any

from tests.kernel.driver import Driver
from tidemill.kernel.explain.explain import Explanation, explain
from tidemill.kernel.explain.survey import Bounds, JobFact

EVERYTHING = Bounds(roots=10**9, followers=10**9, items=10**9)
LEASE_MS = 15_000


def facts(kernel: Driver, leased: str = "", lost: str = "") -> list[JobFact]:
    """The run's jobs, of which workers have some (`leased`) and have lost others, both by their keys."""
    until = dict.fromkeys(leased.split(), kernel.now + LEASE_MS) | dict.fromkeys(lost.split(), kernel.now - 1)
    return [
        JobFact(put.key, put.queue, put.ready_at_ms, "w1" if put.key in until else "", until.get(put.key))
        for put in kernel.jobs.values()
    ]


def why(kernel: Driver, leased: str = "", lost: str = "", **more: Any) -> Explanation:
    """The explanation of a run at this moment."""
    return explain(kernel.flow, kernel.state, facts(kernel, leased, lost), kernel.now, **more)


def blocker(found: Explanation, node: str, index: int = -1) -> Any:
    """What a node or item waits for."""
    [mine] = [each for each in found.blockers if (each.node, each.index) == (node, index)]
    return mine


def shown(found: Explanation) -> str:
    """Blockers as `kind node`, items as `kind node[3]`; those that only follow come after a bar."""
    told: dict[bool, list[str]] = {True: [], False: []}
    for each in found.blockers:
        item = f"[{each.index}]" if each.index >= 0 else ""
        told[each.root].append(f"{each.kind} {each.node}{item}".strip())
    return " | ".join("; ".join(words) for words in told.values() if words)
