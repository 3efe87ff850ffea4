"""The kernel and the independent reference model, side by side over random documents, outcomes and orders."""

from __future__ import annotations

import random

import msgspec

from tests.fixtures.kernel.driver import Driver
from tests.model import reference as ref
from tests.model.documents import random_ir
from tests.model.walks import Script, random_done
from tidemill.kernel.commands import (
    AnyCommand,
    AttemptStarted,
    Cancel,
    DeadlineReached,
    Done,
    Failed,
    MapExpanded,
    OutputsRendered,
    Pause,
    Result,
    Resume,
    SkipRequested,
    TimerFired,
    WaitExpired,
    WaitRequested,
    WorkerLost,
)
from tidemill.kernel.events import Error, Route
from tidemill.kernel.invariants.checker import check_log
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.queries import VisibleOutput, iteration, visible_output

STEPS_MAX = 5_000
LIMIT_CODES = {"max_visits_exceeded", "max_hops_exceeded"}


def route_of(node: Node, done: ref.Done) -> Route | None:
    """A worker's report of the conditions, from the reference's words for it."""
    if not node.routed:
        return None
    if done.branch is None or node.branch is None:
        return Route(done.again)
    if node.branch.kind == "agent_driven":
        return Route(done.again, done.branch or node.branch.default)
    for number, rule in enumerate(node.branch.rules):
        if rule.next_nodes == done.branch:
            return Route(done.again, done.branch, number)
    return Route(done.again, node.branch.default)


class Lockstep:
    """Plays one script on both and compares after every step."""

    def __init__(self, flow: Workflow, seed: object, trouble: float) -> None:
        self.flow = flow
        self.script = Script(flow, seed, trouble)
        self.model = ref.Reference(flow)
        self.kernel = Driver(flow)
        self.loose = flow.limits.max_parallel is not None
        """The order in which held nodes and items that became ready in one turn get a free slot is not specified."""
        self.paused = False
        """A node that becomes ready while a run is paused is QUEUED in the kernel and PENDING in the model."""

    def has(self, act: ref.Activation) -> bool:
        """Whether the kernel has dispatched this activation too."""
        if not self.loose or act.phase in ("wait", "outputs"):
            return True
        return f"run/{act.node}/{act.visit}/{act.index}" in self.kernel.jobs

    def play(self, order: random.Random, meddle: float = 0.0) -> None:
        """Run to the end in random order, meddling (pause, resume, cancel, deadline) with some probability."""
        self.model.start()
        self.kernel.start()
        self.compare()
        for _ in range(STEPS_MAX):
            if order.random() < meddle:
                self.meddle(order)
            flying = self.model.in_flight()
            if not flying:
                if self.model.status != "PAUSED":
                    break
                self.model.resume()
                self.kernel.do(Resume())
                continue
            both = [act for act in flying if self.has(act)]
            if not both and self.loose:
                if self.model.status != "PAUSED":
                    return
                self.model.resume()
                self.kernel.do(Resume())
                continue
            self.step(order.choice(both))
        else:
            raise AssertionError("the run does not end")
        self.compare()
        self.kernel.check_fold()
        broken = check_log(self.flow, self.kernel.events)
        assert not broken, broken

    def meddle(self, order: random.Random) -> None:
        """Somebody outside does something."""
        act = order.choice(["pause", "resume", "pause", "resume", "cancel", "deadline"])
        if self.model.status not in ("RUNNING", "PAUSED"):
            return
        commands: dict[str, AnyCommand] = {
            "pause": Pause(),
            "resume": Resume(),
            "cancel": Cancel(reason="test"),
            "deadline": DeadlineReached(),
        }
        if act in ("cancel", "deadline") and order.random() < 0.7:
            return
        getattr(self.model, act)()
        self.paused = self.paused or act == "pause"
        self.kernel.do(commands[act])
        self.compare()

    def step(self, act: ref.Activation) -> None:
        """End one activation on both sides."""
        outcome = self.script.outcome(act)
        if act.phase == "wait" and isinstance(outcome, ref.Failed):
            outcome = ref.TimedOut()
        if self.model.delayed(act):
            outcome = ref.Done()
        if act.phase in ("expand", "assemble", "route") and isinstance(outcome, ref.Failed):
            outcome = ref.Failed(outcome.code, retryable=False)
        if act.phase == "outputs" and isinstance(outcome, ref.Lost):
            outcome = ref.Done()
        self.model.finish(act, outcome)
        route = None
        node = self.flow.by_id.get(act.node)
        if isinstance(outcome, ref.Expanded) and outcome.count == 0 and node is not None and node.routed:
            # An empty list is routed by the worker that expanded it; the model gives that an activation of its own.
            done = random_done(random.Random(f"{self.script.seed}/{act}"), node, act._replace(phase="assemble"))
            again = ref.Activation(act.node, act.visit, -1, "assemble")
            if self.model.status == "PAUSED":
                self.model.resume()
                self.kernel.do(Resume())
            self.model.finish(again, done)
            route = route_of(node, done)
        self.report(act, outcome, route)
        self.compare()

    def report(self, act: ref.Activation, outcome: ref.Outcome, route: Route | None) -> None:
        """Tell the kernel what the model was told."""
        kernel = self.kernel
        where = {"node": act.node, "visit": act.visit, "index": act.index}
        if act.phase == "outputs":
            ok = isinstance(outcome, ref.Done)
            rendered = Done(output=b"{}") if ok else Failed(error=Error("template_failed", "no"))
            kernel.do(OutputsRendered(outcome=rendered), "outputs//0/-1")
            return
        if act.phase == "wait":
            for kind in ("wake", "expire"):
                kernel.jobs.pop(f"{kind}/{act.node}/{act.visit}/{act.index}", None)
            timer = WaitExpired(**where) if isinstance(outcome, ref.TimedOut) else TimerFired(**where)
            kernel.reach(timer)
            kernel.do(timer)
            return
        node = self.flow.by_id[act.node]
        key = f"run/{act.node}/{act.visit}/{act.index}"
        assert key in kernel.jobs or self.model.status == "PAUSED" or kernel.state.status == "PAUSED", key
        token = kernel.next_token()
        calls = act.phase == "call"
        if node.delivery == "at_most_once" and calls and not isinstance(outcome, (ref.SkippedByWhen, ref.Uncalled)):
            kernel.do(AttemptStarted(token=token, **where))
        if isinstance(outcome, ref.Lost):
            kernel.do(WorkerLost(token=token, times=1, **where), key)
            return
        called = calls and not isinstance(outcome, ref.SkippedByWhen)
        if isinstance(outcome, ref.Uncalled):
            called = outcome.called
        kernel.do(
            Result(
                token=token,
                outcome=translate(outcome),
                route=route or (route_of(node, outcome) if isinstance(outcome, ref.Done) and act.index < 0 else None),
                called=called,
                **where,
            ),
            key,
        )

    def compare(self) -> None:
        """Both know the same."""
        model, state = self.model, self.kernel.state
        assert model.status == state.status, (model.status, state.status)
        code = state.error.code if state.error else None
        assert model.error_code == code
        if code in LIMIT_CODES:
            # Which of the remaining nodes were skipped before the limit was met is a matter of order.
            assert state.counter == 0
            return
        assert model.counter == state.counter
        if state.status == "PAUSED":
            return
        self.kernel.check_jobs()
        for name, (status, visits, attempts) in model.nodes().items():
            cell = state.peek(name)
            mine = "QUEUED" if cell.status == "RUNNING" else cell.status
            if self.loose and {status, mine} == {"QUEUED", "PENDING"}:
                continue
            if self.paused and state.status == "FAILED" and {status, mine} == {"FAILED", "CANCELLED"}:
                continue
            assert (status, visits, attempts) == (mine, cell.visit, cell.attempt), (
                name,
                (status, visits, attempts),
                (mine, cell.visit, cell.attempt),
            )
        for (source, target), decided in model.edges().items():
            edge = state.peek(target).edges.get(source)
            assert decided == {True: "taken", False: "dead", None: "undecided"}[edge], (source, target)
        for node in self.flow.nodes:
            assert model.iteration(node.id) == iteration(state, node)
            for target in node.reads + node.reads_past:
                seen = visible_output(self.flow, state, node, target)
                shown = f"value:{seen.visit}" if isinstance(seen, VisibleOutput) else "absent"
                assert shown == model.visible(node.id, target), (node.id, target)


def translate(outcome: ref.Outcome) -> Done | Failed | WaitRequested | SkipRequested | MapExpanded:
    """The reference's words for an outcome, in the kernel's."""
    match outcome:
        case ref.Done():
            return Done(output=b"1", size=1)
        case ref.Failed(code, retryable):
            return Failed(error=Error(code, "told to", retryable=retryable))
        case ref.Uncalled(code):
            return Failed(error=Error(code, "could not be evaluated"))
        case ref.SkippedByWhen():
            return SkipRequested()
        case ref.Expanded(count):
            return MapExpanded(count=count, items=b"[]")
        case ref.Waits():
            return WaitRequested(on="timer", for_ms=1_000)
        case ref.TimedOut():
            return Failed(error=Error("timeout", "too slow", retryable=True), unknown_outcome=True)
        case _:
            raise AssertionError(outcome)


def with_time_outs(flow: Workflow) -> Workflow:
    """The same graph, in which any wait can take too long: before its timer is due, or after."""
    nodes = [
        msgspec.structs.replace(node, timeout_ms=500 if number % 2 else 3_000) for number, node in enumerate(flow.nodes)
    ]
    return msgspec.structs.replace(flow, nodes=tuple(nodes))


def play_seed(seed: int) -> Lockstep:
    """One random document, one random script, one random order."""
    rng = random.Random(seed)
    flow = with_time_outs(random_ir(rng, rng.choice((3, 6, 10, 16))))
    pair = Lockstep(flow, seed, rng.choice((0.0, 0.05, 0.2)))
    pair.play(rng, meddle=rng.choice((0.0, 0.0, 0.05, 0.2)))
    return pair
