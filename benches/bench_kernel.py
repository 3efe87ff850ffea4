"""What the kernel costs by itself: deciding and folding, replaying, and how much a state weighs."""

from __future__ import annotations

import tracemalloc

from benches.figures import Figure, best_of, stopwatch
from benches.graphs import chain, compiled, diamond, fan
from tidemill.errors import Problem
from tidemill.kernel.codec import decode_event, encode_event
from tidemill.kernel.commands import AnyCommand, Done, Result, Start
from tidemill.kernel.decide.decide import decide
from tidemill.kernel.events import AnyEvent
from tidemill.kernel.evolve import evolve, replay
from tidemill.kernel.jobs import JobSpec
from tidemill.kernel.model import Workflow
from tidemill.kernel.state import State

DONE = Done(output=b'{"n":1}', size=7)


class Run:
    """A run without an engine: every job completes at once, in the order of the queue."""

    def __init__(self, flow: Workflow, keep_events: bool = False) -> None:
        self.flow, self.state = flow, State()
        self.events: list[AnyEvent] | None = [] if keep_events else None
        self.queue: list[JobSpec] = []
        self.token = 0

    def do(self, command: AnyCommand) -> None:
        """Decide, then fold into the state that is kept, as a turn does."""
        decision = decide(self.flow, self.state, command, 1)
        assert not isinstance(decision, Problem), decision
        for event in decision.events:
            evolve(self.state, event)
        if self.events is not None:
            self.events.extend(decision.events)
        self.queue.extend(decision.work.put)

    def start(self) -> None:
        """Create the run."""
        self.do(Start(version=1, digest="sha256:0", inputs=b"{}"))

    def step(self, job: JobSpec) -> None:
        """Complete one job."""
        self.token += 1
        task = job.task
        self.do(Result(node=task.node, visit=task.visit, index=task.index, token=self.token, outcome=DONE, worker="w"))

    def to_end(self) -> None:
        """Complete everything; the queue is walked by position, so that its length costs nothing."""
        position = 0
        while position < len(self.queue):
            self.step(self.queue[position])
            position += 1


def per_node_us(flow: Workflow, times: int) -> float:
    """Microseconds per node of whole runs."""
    with stopwatch() as seconds:
        for _ in range(times):
            run = Run(flow)
            run.start()
            run.to_end()
        return seconds() / times / len(flow.nodes) * 1e6


def tenths(flow: Workflow) -> tuple[float, float]:
    """Seconds of the first and of the last tenth of a run's nodes."""
    run = Run(flow)
    run.start()
    tenth = len(flow.nodes) // 10
    first = last = 0.0
    with stopwatch() as seconds:
        for position in range(len(flow.nodes)):
            if position == 1:
                first = -seconds()
            run.step(run.queue[position])
            run.queue[position] = run.queue[0]
            if position == tenth:
                first += seconds()
            if position == len(flow.nodes) - tenth - 1:
                last = -seconds()
            if position == len(flow.nodes) - 2:
                last += seconds()
    assert run.state.status == "COMPLETED"
    return first, last


def bytes_per_node(flow: Workflow) -> float:
    """Memory of a finished run's state, by what the allocator hands out."""
    run = Run(flow, keep_events=True)
    run.start()
    run.to_end()
    assert run.events is not None
    records = [encode_event(event) for event in run.events]
    del run
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    state = replay(decode_event(record) for record in records)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used / len(state.cells)


def replay_seconds(events_wanted: int) -> float:
    """Seconds to decode and fold a log of this many events."""
    run = Run(compiled(chain(events_wanted // 3)), keep_events=True)
    run.start()
    run.to_end()
    assert run.events is not None
    records = [encode_event(event) for event in run.events][:events_wanted]
    with stopwatch() as seconds:
        replay(decode_event(record) for record in records)
        return seconds()


def figures() -> list[Figure]:
    """Measure."""
    small = compiled(diamond())
    found = [
        Figure("decide + evolve, diamond of 5", best_of(5, lambda: per_node_us(small, 1_000)), "µs/node", 40, 30),
    ]
    for name, document in (("chain", chain(100_000)), ("fan 1→n→1", fan(100_000))):
        flow = compiled(document)
        first, last = min((tenths(flow) for _ in range(2)), key=lambda pair: pair[1] / pair[0])
        found.append(Figure(f"{name} of 100,000: last tenth / first tenth", last / first, "×", 1.5))
        found.append(Figure(f"{name} of 100,000: first tenth", first / 10_000 * 1e6, "µs/node"))
        found.append(Figure(f"{name}: state", bytes_per_node(flow) / 1024, "KiB/node", 2.0))
    found.append(Figure("replay of 50,000 events", best_of(3, lambda: replay_seconds(50_000)), "s", 1.0))
    return found
