"""Random walks with operators in the way: retries, rewinds, overrides and patches at random moments."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from tests.fixtures.kernel.operator_steps import RunLedger
from tests.model.document_mutations import changed
from tests.model.documents import random_document, translate
from tests.model.kernel_walks import STEPS_MAX, Walk
from tests.model.laws import check_letters
from tests.model.lockstep import with_time_outs
from tests.model.reference import Activation, Outcome
from tests.model.walks import Script
from tidemill.errors import Problem
from tidemill.kernel.activation import ENDED
from tidemill.kernel.commands import (
    AnyCommand,
    Cancel,
    CompensationResult,
    CompensationWorkerLost,
    DeadlineReached,
    Done,
    Failed,
    Fork,
    Override,
    Patch,
    Pause,
    Resume,
    Retry,
    Rewind,
    Rollback,
)
from tidemill.kernel.events import Error
from tidemill.kernel.model import Compensator, Workflow
from tidemill.kernel.model import Retry as RetryPolicy

Act = Callable[["OperatedWalk"], AnyCommand | None]

ACTS_MAX = 6
"""Acts that one walk sees: each lets something happen again, so there must be an end of them."""
ORDER_MAX = 3_000


def flow_of(document: dict[str, Any]) -> Workflow:
    """The graph of a random document, in which any wait can take too long."""
    return with_time_outs(translate(document))


def undoable(flow: Workflow) -> Workflow:
    """The same graph, in which everything can be undone."""
    undo = Compensator(type="value@1", retry=RetryPolicy(max_attempts=2))
    nodes = tuple(msgspec.structs.replace(node, compensator=undo) for node in flow.nodes)
    return msgspec.structs.replace(flow, nodes=nodes)


class OperatedWalk(Walk):
    """One walk of a random document with operators who choose among some acts."""

    def __init__(self, seed: int, acts: tuple[Act, ...], audit: bool = True, undoes: bool = False) -> None:
        self.rng = random.Random(seed)
        self.document = random_document(self.rng, self.rng.choice((2, 4, 7, 11)))
        trouble = self.rng.choice((0.0, 0.05, 0.15, 0.3))
        order = [self.rng.randrange(1_000) for _ in range(ORDER_MAX)]
        flow = flow_of(self.document)
        super().__init__(undoable(flow) if undoes else flow, seed, trouble, order, audit)
        self.laws: Any = RunLedger(self.flow)
        self.flows = {self.flow.digest: self.flow}
        """Every graph that the run has had."""
        self.acts, self.undoes = acts, undoes
        self.left = self.rng.randint(1, ACTS_MAX)
        self.likely = self.rng.choice((0.05, 0.2, 0.5))
        self.done: list[str] = []
        self.proposed = self.document

    def run(self, meddle: bool = False) -> OperatedWalk:
        """To an end that nobody reopens any more."""
        self.check(self.kernel.start().events)
        for _ in range(STEPS_MAX):
            if self.left and self.rng.random() < self.likely:
                self.meddle()
            if self.kernel.state.live:
                self.step(meddle)
            elif self.left:
                self.meddle()
            else:
                self.kernel.check_fold()
                return self
        raise AssertionError("the run does not end")

    def meddle(self) -> None:
        """Let an operator try something; what is refused leaves no trace."""
        self.left -= 1
        command = self.rng.choice(self.acts)(self)
        if command is None:
            return
        if self.undoes:
            runs = [key for key in self.kernel.jobs if key.startswith("run/")]
            self.kernel.claimed = {key for key in runs if self.rng.random() < 0.8}
        before = len(self.kernel.events)
        answer = self.kernel.ask(command)
        if isinstance(answer, Problem):
            assert len(self.kernel.events) == before
            return
        self.done.append(type(command).__name__)
        if isinstance(command, Patch):
            self.document = self.proposed
        self.flow = self.script.workflow = self.kernel.flow
        self.flows[self.flow.digest] = self.flow
        self.check(answer.events)

    def roll_back(self) -> None:
        """Undo what completed; now and then a step fails, for a while or for good, or its worker is lost."""
        answer = self.kernel.ask(Rollback())
        if isinstance(answer, Problem):
            return
        self.check(answer.events)
        while self.kernel.state.rollback == "running":
            (put,) = self.kernel.jobs.values()
            task, luck = put.task, self.rng.random()
            where = {"node": task.node, "visit": task.visit, "index": task.index, "token": self.kernel.next_token()}
            failed = Failed(error=Error("x", "told to", retryable=luck < 0.2))
            command = CompensationResult(outcome=failed if luck < 0.3 else Done(output=b"null"), **where)
            self.do(CompensationWorkerLost(**where) if luck > 0.9 else command, put.key)

    def settle(self) -> None:
        """Say of every step whose outcome is unknown whether it happened."""
        for key in self.kernel.state.unknown:
            node, visit, index = key.rsplit("/", 2)
            output = b"7" if self.rng.random() < 0.5 and int(visit) == self.kernel.state.peek(node).visit else None
            answer = self.kernel.ask(Override(node=node, visit=int(visit), index=int(index), output=output))
            if not isinstance(answer, Problem):
                self.done.append("settle")
                self.check(answer.events)

    def check(self, events: Any) -> None:
        """The laws, under the graph that the run goes by now."""
        self.laws.read(events, self.kernel.flow)
        check_letters(events, self.kernel.state)
        self.laws.check(self.kernel.state)
        if self.audit:
            self.kernel.check_jobs()


class Steady(Script):
    """Outcomes that depend on the activation alone, so that whatever is done twice comes to the same."""

    def outcome(self, act: Activation) -> Outcome:
        self.ends.clear()
        return super().outcome(act)


class Branched(Walk):
    """A fork of a walk at some event, which goes on by itself."""

    def __init__(self, walk: OperatedWalk, flow: Workflow, until: int, seed: int, **more: Any) -> None:
        order = random.Random(f"{seed}/{until}")
        super().__init__(flow, 0, order=[order.randrange(1_000) for _ in range(ORDER_MAX)], audit=True)
        self.laws: Any = RunLedger(flow, walk.flows.values())
        self.script = Steady(flow, walk.script.seed, walk.script.trouble)
        self.kernel.now = walk.kernel.now
        decision = self.kernel.do(Fork(run="other", prefix=tuple(walk.kernel.events[:until]), **more))
        self.forked = len(decision.events)
        self.flow = self.script.workflow = self.kernel.flow
        self.check(decision.events)

    def run(self, meddle: bool = False) -> Branched:
        """To the end."""
        for _ in range(STEPS_MAX):
            if not self.kernel.state.live:
                self.kernel.check_fold()
                return self
            self.step()
        raise AssertionError("the fork does not end")

    def check(self, events: Any) -> None:
        self.laws.read(events, self.kernel.flow)
        self.laws.check(self.kernel.state)
        self.kernel.check_jobs()


def retry(walk: OperatedWalk) -> AnyCommand:
    return Retry(confirmed_not_done=tuple(walk.flow.by_id))


def rewind(walk: OperatedWalk) -> AnyCommand:
    return Rewind(node=walk.rng.choice(walk.flow.nodes).id)


def interrupt(walk: OperatedWalk) -> AnyCommand:
    """Now and then somebody stops the run, for a while or for good."""
    if walk.rng.random() < 0.7:
        return walk.rng.choice((Pause(), Resume()))
    return walk.rng.choice((Cancel(), DeadlineReached()))


def override(walk: OperatedWalk) -> AnyCommand | None:
    """Settle anything that can be settled, in any way."""
    state, rng = walk.kernel.state, walk.rng
    names = [node.id for node in walk.flow.nodes if state.peek(node.id).status not in ("COMPLETED", "SKIPPED")]
    if not names:
        return None
    node = walk.flow.by_id[rng.choice(names)]
    items = state.peek(node.id).map
    index = rng.randrange(items.next) if items is not None and items.next and rng.random() < 0.6 else -1
    output = rng.choice((None, b"7", b"7"))
    ways = node.branch.default if node.branch is not None else ()
    chosen = ways if node.routed and output is not None and index < 0 and rng.random() < 0.5 else None
    return Override(node=node.id, visit=0, index=index, output=output, next_nodes=chosen)


def patch(walk: OperatedWalk) -> AnyCommand | None:
    """Change the document at random, a few times, as long as it stays one."""
    state = walk.kernel.state
    proposed = changed(walk.rng, walk.document)
    if proposed is None:
        return None
    walk.proposed = proposed
    new, sure = flow_of(proposed), tuple(walk.flow.by_id)
    return Patch(base=state.digest, workflow=new, patch=b"[]", retry=not state.live, confirmed_not_done=sure)


def settled(walk: OperatedWalk) -> bool:
    """Whether every node of the present graph has come to something."""
    return all(walk.kernel.state.peek(node.id).status in ENDED for node in walk.flow.nodes)
