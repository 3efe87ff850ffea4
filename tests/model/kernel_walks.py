"""Random walks of the kernel alone: whatever job the store would hold is worked off, in any order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from tests.fixtures.kernel.driver import Driver
from tests.model import reference as ref
from tests.model.documents import random_ir
from tests.model.laws import Laws, check_letters
from tests.model.lockstep import route_of, translate
from tests.model.walks import Script, random_done
from tidemill.errors import Problem
from tidemill.kernel.commands import (
    AnyCommand,
    AttemptStarted,
    Cancel,
    DeadlineReached,
    Done,
    Failed,
    OutputsRendered,
    Pause,
    Result,
    Resume,
    TimerFired,
    WaitExpired,
    WorkerLost,
)
from tidemill.kernel.events import AnyEvent, Error
from tidemill.kernel.jobs import JobSpec
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.state import Visit

STEPS_MAX = 3_000


def random_flow(seed: int, size: int) -> Workflow:
    """A random document of about this size."""
    return random_ir(random.Random(seed), size)


def phase_of(node: Node | None, cell: Visit, put: JobSpec) -> str:
    """What a job is for, in the words of the reference."""
    if put.task.kind in ("wake", "expire"):
        return "wait"
    if node is None:
        return "outputs"
    if put.task.index < 0 and cell.resumed is not None:
        return "route"
    if node.map is None or put.task.index >= 0:
        return "call"
    return "expand" if cell.map is None else "assemble"


class Walk:
    """One run of a random document under a script."""

    def __init__(
        self, flow: Workflow, seed: object, trouble: float = 0.1, order: Sequence[int] = (), audit: bool = False
    ) -> None:
        self.flow = flow
        self.kernel = Driver(flow)
        self.laws = Laws(flow)
        self.script = Script(flow, seed, trouble)
        self.results: list[Result] = []
        self.audit = audit
        """Whether to compare the jobs of the store with the state after every step."""
        self._order = iter(order)

    def pick(self, among: int) -> int:
        """The next number of the order; the first of everything once it is used up."""
        return next(self._order, 0) % among

    def run(self, meddle: bool = False) -> Walk:
        """To the end."""
        self.check(self.kernel.start().events)
        for _ in range(STEPS_MAX):
            if not self.kernel.state.live:
                return self
            self.step(meddle)
        raise AssertionError("the run does not end")

    def step(self, meddle: bool = False) -> None:
        """Work off one job, or let somebody interfere."""
        kernel = self.kernel
        kernel.now += 10
        jobs = sorted(key for key in kernel.jobs if not key.startswith("deadline"))
        acts = self.interference() if meddle and self.pick(8) == 1 else ()
        for command in acts:
            self.do(command)
        if acts:
            return
        if not jobs:
            assert kernel.state.status == "PAUSED", "a live run without a job"
            self.do(Resume())
            return
        self.work(kernel.jobs[jobs[self.pick(len(jobs))]])

    def interference(self) -> Sequence[AnyCommand]:
        """Pause, resume, now and then a cancel or the deadline, or an old result once more."""
        repeated = self.results[self.pick(len(self.results))] if self.results else Resume()
        some: list[AnyCommand] = [Pause(), Resume(), Pause(), Resume(), repeated, repeated, Cancel(), DeadlineReached()]
        chosen = some[self.pick(len(some))]
        rare = isinstance(chosen, Cancel | DeadlineReached) and self.pick(4)
        return () if rare else (chosen,)

    def work(self, put: JobSpec) -> None:
        """End the activation that a job stands for, as its script says."""
        task = put.task
        node = self.flow.by_id.get(task.node)
        phase = phase_of(node, self.kernel.state.peek(task.node), put)
        act = ref.Activation(task.node, max(1, task.visit), task.index, phase)
        outcome = self.script.outcome(act)
        if phase == "outputs" or node is None:
            done = isinstance(outcome, ref.Done | ref.Lost)
            self.do(OutputsRendered(outcome=Done(output=b"{}") if done else Failed(error=Error("x", "no"))), put.key)
        elif phase == "wait":
            timer = (WaitExpired if put.task.kind == "expire" else TimerFired)(**where(act))
            self.kernel.reach(timer)
            self.do(timer, put.key)
        else:
            self.attempt(node, act, put, outcome)

    def attempt(self, node: Node, act: ref.Activation, put: JobSpec, outcome: ref.Outcome) -> None:
        """What a worker would report."""
        token = self.kernel.next_token()
        calls = act.phase == "call" and not isinstance(outcome, ref.SkippedByWhen | ref.Uncalled)
        if calls and (node.delivery == "at_most_once" or self.pick(3) == 1):
            self.do(AttemptStarted(token=token, **where(act)))
        if isinstance(outcome, ref.Lost):
            self.do(WorkerLost(token=self.kernel.next_token(), **where(act)), put.key)
            return
        route = route_of(node, outcome) if isinstance(outcome, ref.Done) and act.index < 0 else None
        if isinstance(outcome, ref.Expanded) and not outcome.count and node.routed:
            rng = random.Random(f"{self.script.seed}/{act}")
            route = route_of(node, random_done(rng, node, act._replace(phase="assemble")))
        called = act.phase == "call" and not isinstance(outcome, ref.SkippedByWhen)
        if isinstance(outcome, ref.Uncalled):
            called = outcome.called
        result = Result(token=token, outcome=translate(outcome), route=route, called=called, **where(act))
        self.results.append(result)
        self.do(result, put.key)

    def do(self, command: AnyCommand, ack: str = "") -> None:
        decision = self.kernel.ask(command, ack)
        if not isinstance(decision, Problem):
            self.check(decision.events)

    def check(self, events: Sequence[AnyEvent]) -> None:
        self.laws.read(events)
        check_letters(events, self.kernel.state)
        self.laws.check(self.kernel.state)
        if self.audit:
            self.kernel.check_jobs()


def where(act: ref.Activation) -> dict[str, Any]:
    return {"node": act.node, "visit": act.visit, "index": act.index}


def prefixes(events: Sequence[AnyEvent], most: int = 40) -> Iterator[int]:
    """All lengths of a short log, and an even choice of those of a long one."""
    step = max(1, len(events) // most)
    yield from range(0, len(events) + 1, step)
