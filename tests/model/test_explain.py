"""An explanation is total and complete: at every step of random runs, whatever has happened to them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.kernel.reasons import EVERYTHING, facts
from tests.fixtures.kernel.tables import Run
from tests.model import reference as ref
from tests.model.kernel_walks import Walk, random_flow, where
from tests.model.operator_walks import OperatedWalk, interrupt, override, retry, rewind
from tests.model.random_commands import RandomCommands
from tidemill.kernel.activation import ENDED, Activation
from tidemill.kernel.codec import encode_state
from tidemill.kernel.commands import ChildBegan, ChildEnded, Decide, Delivered, Override, Request, Result, WaitRequested
from tidemill.kernel.explain.blockers import Edge, Join, Lease
from tidemill.kernel.explain.explain import Explanation, explain
from tidemill.kernel.explain.survey import Bounds, Workers
from tidemill.kernel.jobs import JobSpec
from tidemill.kernel.model import Node
from tidemill.kernel.state import State, Visit

FOLLOWING = {"edge", "join", "loop"}


class Explainer:
    """Asks for explanations of a walk, and checks what must hold of each."""

    def __init__(self, seed: object) -> None:
        self.rng = random.Random(f"asker {seed}")
        self.kinds: Counter[str] = Counter()

    def ask(self, walk: Walk) -> None:
        kernel, rng = walk.kernel, self.rng
        leased = " ".join(key for key in kernel.jobs if rng.random() < 0.3)
        known = [] if rng.random() < 0.1 else facts(kernel, leased)
        workers = rng.choice((None, Workers(), Workers(queues=None, types=frozenset({"value@1", "python@1"}))))
        before = encode_state(kernel.state)
        now = kernel.now + rng.choice((0, 0, 5_000, -5_000))
        found = explain(kernel.flow, kernel.state, known, now, workers=workers, bounds=EVERYTHING)
        small = explain(kernel.flow, kernel.state, known, now, bounds=Bounds(roots=1, followers=1, items=1, names=1))
        assert encode_state(kernel.state) == before, "explaining changed the state"
        self.kinds.update(each.kind for each in found.blockers)
        self.check(walk, found)
        for each in (found, small):
            assert msgspec.json.decode(msgspec.json.encode(each), type=Explanation) == each
        assert len(small.blockers) <= 2 + small.counts.get("outputs", 0) + small.counts.get("missing", 0) + 2

    def check(self, walk: Walk, found: Explanation) -> None:
        state = walk.kernel.state
        assert found.headline
        roots = [each.root for each in found.blockers]
        assert roots == sorted(roots, reverse=True), "roots come first"
        assert all(each.words and each.unblock for each in found.blockers)
        if not state.live:
            assert {each.kind for each in found.blockers} <= {"rollback"}
            assert (found.first_cause is not None) == (state.status == "FAILED") == bool(found.chain)
            return
        assert roots and roots[0], "a live run waits for something that is live or outside"
        visits = Counter((each.node, each.visit) for each in found.blockers if each.index < 0 and each.node)
        unfinished = [node.id for node in walk.kernel.flow.nodes if state.peek(node.id).status not in ENDED]
        assert visits == Counter((name, state.peek(name).visit) for name in unfinished)
        self.check_items(state, found)
        self.check_origins(state, found)

    def check_items(self, state: State, found: Explanation) -> None:
        """Every item in flight is told of once."""
        items = Counter((each.node, each.index) for each in found.blockers if each.index >= 0)
        flying = {name: cell.map.flying for name, cell in state.cells.items() if cell.map and cell.status == "RUNNING"}
        assert Counter(node for node, _ in items.elements()) == Counter({name: n for name, n in flying.items() if n})
        assert set(items.values()) <= {1}

    def check_origins(self, state: State, found: Explanation) -> None:
        """What an undecided edge leads up to is told of, and is no such edge itself."""
        kinds = {each.node: each.kind for each in found.blockers if each.index < 0}
        for each in found.blockers:
            if isinstance(each, Edge | Join):
                assert each.origins and each.undecided
                for origin in each.origins:
                    assert kinds[origin.node] == origin.kind not in FOLLOWING
            if isinstance(each, Lease):
                assert each.owner == "w1" and each.until_ms


class Asked(Walk):
    """A walk that is asked after every step; its handlers also wait for people, signals, children and whatnot."""

    def __init__(self, seed: int, size: int, order: list[int]) -> None:
        self.rng = random.Random(seed)
        super().__init__(random_flow(seed, size), seed, self.rng.choice((0.0, 0.1, 0.3)), order)
        self.asker = Explainer(seed)

    def check(self, events: Any) -> None:
        super().check(events)
        self.asker.ask(self)

    def attempt(self, node: Node, act: ref.Activation, put: JobSpec, outcome: ref.Outcome) -> None:
        if act.phase != "call" or self.rng.random() < 0.7:
            super().attempt(node, act, put, outcome)
            return
        quorum = self.rng.choice((1, 2))
        waits = self.rng.choice(
            (
                WaitRequested(
                    on="human", approval=Request(title="well?", quorum=quorum, timeout_ms=self.rng.choice((None, 9)))
                ),
                WaitRequested(on="child", name="kid", ask=b"{}"),
                WaitRequested(on="signal", name="paid"),
                WaitRequested(on="timer"),
                WaitRequested(on="the moon", until_ms=self.rng.choice((None, 10**9))),
            )
        )
        self.do(Result(token=self.kernel.next_token(), outcome=waits, **where(act)), put.key)

    def step(self, meddle: bool = False) -> None:
        """End a wait that no job ends now and then, and always when nothing else is left to do."""
        waiting = list(waits_of(self.kernel.state))
        jobs = [key for key in self.kernel.jobs if key.startswith(("run", "outputs"))]
        if waiting and (not jobs or self.rng.random() < 0.2):
            self.kernel.now += 10
            self.settle(*self.rng.choice(waiting))
        else:
            super().step(meddle)

    def work(self, put: JobSpec) -> None:
        """Messages to children arrive; everything else is as in any walk."""
        task = put.task
        if task.kind == "child":
            self.begin_child({"node": task.node, "visit": task.visit, "index": task.index})
        elif task.kind == "close":
            self.do(Delivered(), put.key)
        else:
            super().work(put)

    def begin_child(self, at: Any) -> None:
        key = f"child/{at['node']}/{at['visit']}/{at['index']}"
        self.do(ChildBegan(child="kid", workflow="w", version=1, digest="sha256:1", **at), key)

    def settle(self, node: str, index: int, act: Activation) -> None:
        assert act.wait is not None
        at: Any = {"node": node, "visit": self.kernel.state.peek(node).visit, "index": index}
        if act.wait.on == "human":
            self.do(Decide(verb="approve", actor=self.rng.choice(("ann", "bob", "eve")), **at))
        elif act.wait.on == "child":
            self.begin_child(at)
            self.do(ChildEnded(child="kid", status="COMPLETED", **at))
        else:
            self.do(Override(output=b"7", **at))


def waits_of(state: State) -> Any:
    """Activations that wait for something other than their loop."""
    for name, cell in state.cells.items():
        acts = [(-1, cell), *(cell.map.known() if cell.map is not None else ())]
        for index, act in acts:
            if act.status == "WAITING" and act.wait is not None and act.wait.on != "loop":
                yield name, index, act


@settings(max_examples=90)
@given(st.integers(0, 1_000_000))
def test_every_step_of_a_run_is_explained(seed: int) -> None:
    rng = random.Random(seed)
    walk = Asked(seed, rng.choice((1, 3, 6, 10)), [rng.randrange(1_000) for _ in range(400)])
    walk.run(meddle=rng.random() < 0.5)
    assert not walk.kernel.state.live


def test_such_runs_meet_nearly_everything_there_is_to_wait_for() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(60):
        rng = random.Random(seed)
        walk = Asked(seed, 8, [rng.randrange(1_000) for _ in range(300)])
        walk.run(meddle=seed % 2 == 0)
        kinds += walk.asker.kinds
    assert set(kinds) >= {
        "edge", "join", "limit", "items", "worker", "lease", "retry", "timer", "person", "signal", "child", "loop",
        "pause", "outputs", "wait", "missing",
    }  # fmt: skip


class ExplainedOperatedWalk(OperatedWalk):
    """Operators at work, and somebody who asks after every step."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, (retry, rewind, override, interrupt))
        self.asker = Explainer(seed)

    def check(self, events: Any) -> None:
        super().check(events)
        self.asker.ask(self)


@settings(max_examples=80)
@given(st.integers(0, 1_000_000))
def test_every_step_is_explained_whatever_operators_do(seed: int) -> None:
    walk = ExplainedOperatedWalk(seed).run()
    assert walk.asker.kinds or not walk.flow.nodes


@settings(max_examples=100)
@given(st.integers(0, 1_000_000))
def test_nonsense_is_explained_too(seed: int) -> None:
    rng = random.Random(seed)
    walk = Walk(random_flow(seed, rng.randint(1, 8)), seed)
    asker = Explainer(seed)
    asker.ask(walk)
    walk.kernel.start()
    garbage = RandomCommands(walk.flow, rng)
    for _ in range(40):
        garbage.targets = [put.task for put in walk.kernel.jobs.values()]
        walk.kernel.ask(garbage.result() if rng.random() < 0.6 else garbage.command())
        asker.ask(walk)
    assert walk.kernel.state.seq


def chain(count: int) -> str:
    return " > ".join(f"n{number}" for number in range(count))


def fan(count: int) -> str:
    return f"a > {' '.join(f'n{number}' for number in range(count))} > z"


def layers(count: int) -> str:
    return " > ".join(" ".join(f"n{layer}_{number}" for number in range(20)) for layer in range(count // 20))


@pytest.mark.parametrize("graph", [chain, fan, layers])
@pytest.mark.parametrize("backwards", [False, True])
def test_the_cost_grows_with_the_graph_and_not_with_its_square(graph: Any, backwards: bool) -> None:
    """Looks at cells are counted, because time is not to be trusted on a busy machine."""
    costs = []
    for count in (400, 1_600):
        run = Run(graph(count))
        nodes = run.flow.nodes[::-1] if backwards else run.flow.nodes
        run.flow = msgspec.structs.replace(run.flow, nodes=nodes)
        run.kernel.flow = run.flow
        run.kernel.start()
        known, edges = facts(run.kernel), sum(len(node.inbound) for node in nodes)
        with Counting() as looks:
            explain(run.flow, run.kernel.state, known, run.kernel.now, bounds=Bounds(followers=10**9))
        costs.append(looks.count / (len(nodes) + edges))
    assert costs[1] < 1.5 * costs[0] < 15


class Counting:
    """Counts looks at the cells of any state."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Counting:
        real = self._real = State.peek

        def counted(state: State, node: str) -> Visit:
            self.count += 1
            return real(state, node)

        State.peek = counted  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        State.peek = self._real  # type: ignore[method-assign]
