"""Random outcomes for the activations of a run, and walks that feed them to the reference."""

from __future__ import annotations

import random
from collections import Counter

from tests.model.reference import (
    Activation,
    Done,
    Expanded,
    Failed,
    Lost,
    Outcome,
    Reference,
    SkippedByWhen,
    TimedOut,
    Uncalled,
    Waits,
)
from tidemill.kernel.model import Node, Workflow


def random_done(rng: random.Random, node: Node, act: Activation) -> Done:
    """A success with the conditions that the node has."""
    if act.index >= 0 or act.phase == "wait":
        return Done()
    again = rng.random() < 0.6 if node.loop is not None else None
    if node.branch is None or again:
        return Done(again)
    if node.branch.kind == "agent_driven":
        chosen = [to for to in node.branch.available if rng.random() < 0.5]
        return Done(again, tuple(chosen))
    ways = [rule.next_nodes for rule in node.branch.rules] + [node.branch.default]
    return Done(again, rng.choice(ways))


def random_trouble(rng: random.Random, act: Activation, first: bool, node: Node | None) -> Outcome:
    """Anything but success that the phase allows."""
    troubles: list[Outcome] = [Failed("boom", False), Failed("flaky", True)]
    if act.phase in ("call", "wait"):
        troubles += [Failed("flaky", True), TimedOut()]
    if act.phase != "wait":
        troubles += [Lost(), Lost(), Uncalled("template_failed")]
    if act.phase == "call":
        troubles.append(Uncalled("condition_failed", called=True))
    if first and node is not None and node.when is not None and act.index < 0 and act.phase in ("call", "expand"):
        troubles += [SkippedByWhen()] * 6
    return rng.choice(troubles)


class Script:
    """What every activation of a run will answer."""

    def __init__(self, workflow: Workflow, seed: object, trouble: float = 0.15) -> None:
        self.workflow = workflow
        self.seed = seed
        self.trouble = trouble
        self.ends: Counter[Activation] = Counter()

    def outcome(self, act: Activation) -> Outcome:
        """The next outcome of this activation; each call counts."""
        nth = self.ends[act]
        self.ends[act] += 1
        key = f"{self.seed}/{act.node}/{act.visit}/{act.index}/{act.phase}"
        rng = random.Random(f"{key}/{nth}")
        node = self.workflow.by_id.get(act.node)
        if act.phase != "wait" and random.Random(key).random() < self.trouble / 10:
            return Lost()
        if rng.random() < self._probability(node, nth):
            return random_trouble(rng, act, nth == 0, node)
        if node is None:
            return Done()
        if act.phase == "expand":
            return Expanded(rng.choice((0, 1, 2, 3, 5)))
        if act.phase == "call" and rng.random() < (0.9 if node.type.startswith("sleep") else 0.05):
            return Waits()
        return random_done(rng, node, act)

    def _probability(self, node: Node | None, nth: int) -> float:
        """Trouble is likelier where the document is prepared for it."""
        prepared = node is not None and (node.on_error == "route" or (node.when is not None and nth == 0))
        return min(0.6, self.trouble * 5) if prepared else self.trouble


def play(workflow: Workflow, script: Script, order: random.Random, steps_max: int = 20_000) -> Reference:
    """Run to the end, ending activations in random order."""
    run = Reference(workflow)
    run.start()
    for _ in range(steps_max):
        flying = run.in_flight()
        if not flying:
            return run
        act = order.choice(flying)
        run.finish(act, script.outcome(act))
    raise AssertionError("the run does not end")
