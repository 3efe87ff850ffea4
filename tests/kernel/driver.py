"""Drives the kernel without an engine: a state, the jobs its decisions ask for, and laws checked at every step."""

from __future__ import annotations

from typing import Any

from tidemill.errors import Problem
from tidemill.kernel.codec import decode_event, encode_event
from tidemill.kernel.commands import AnyCommand, Fork, Patch, Start, TimerFired, WaitExpired
from tidemill.kernel.decide.builder import Decision
from tidemill.kernel.decide.decide import decide
from tidemill.kernel.events import AnyEvent
from tidemill.kernel.evolve import evolve, replay
from tidemill.kernel.jobs import UNLISTED, JobSpec, expected_jobs
from tidemill.kernel.model import Workflow
from tidemill.kernel.state import State, adopt, decode_state, encode_state, peek_at


class Driver:
    """One run. `jobs` is what a store would hold, `flow` the graph that the run goes by now."""

    def __init__(self, flow: Workflow) -> None:
        self.flow = flow
        self.state = State()
        self.events: list[AnyEvent] = []
        self.jobs: dict[str, JobSpec] = {}
        self.token = 0
        self.now = 1_000

    def start(self, inputs: bytes = b"{}", **more: Any) -> Decision:
        """Create the run."""
        return self.do(Start(version=1, digest=self.flow.digest, inputs=inputs, **more))

    def next_token(self) -> int:
        """A fresh fence, as a claim would give."""
        self.token += 1
        return self.token

    def reach(self, timer: TimerFired | WaitExpired) -> None:
        """Let the clock go on until a timer is due, if anything waits for it."""
        act = peek_at(self.state.peek(timer.node), timer.index)
        if act is not None and act.wait is not None:
            due = act.wait.until_ms if isinstance(timer, TimerFired) else act.wait.expires_ms
            self.now = max(self.now, due or 0)

    def do(self, command: AnyCommand, ack: str = "") -> Decision:
        """Carry out a command that must not be refused."""
        decision = self.ask(command, ack)
        assert isinstance(decision, Decision), decision
        return decision

    def ask(self, command: AnyCommand, ack: str = "") -> Decision | Problem:
        """Carry out a command as a turn would: decide, commit, fold; and check what must always hold."""
        before = encode_state(self.state)
        decision = decide(self.flow, self.state, command, self.now)
        assert encode_state(self.state) == before, "decide changed the state it was given"
        if isinstance(decision, Problem):
            return decision
        self.jobs.pop(ack, None)
        for event in decision.events:
            evolve(self.state, decode_event(encode_event(event)))
        drawn = decide(self.flow, decode_state(before), command, self.now)
        assert isinstance(drawn, Decision)
        assert encode_state(adopt(drawn.after)) == encode_state(self.state), "adopting a draft is not folding"
        self.keep(decision, command)
        return decision

    def keep(self, decision: Decision, command: AnyCommand | None = None) -> None:
        """What a commit leaves behind: the log, the jobs, and after a patch another graph."""
        self.events.extend(decision.events)
        for key in (*decision.work.drop, *decision.work.withdraw):
            self.jobs.pop(key, None)
        for put in decision.work.put:
            self.jobs.setdefault(put.key, put)
        patch = command.patch if isinstance(command, Fork) else command
        if isinstance(patch, Patch) and decision.events:
            self.flow = patch.workflow

    def check_jobs(self) -> None:
        """What the store holds is what the state calls for, and messages on their way to other runs."""
        expected = {put.key for put in expected_jobs(self.flow, self.state)}
        held = {key for key, put in self.jobs.items() if put.task.kind not in UNLISTED}
        if self.state.status == "PAUSED":
            # An attempt that was under way when the run was paused has its job still.
            held, expected = _but_runs(held), _but_runs(expected)
        assert held == expected

    def check_fold(self) -> None:
        """Folding the log from the start, or from a snapshot, gives the state at hand."""
        whole = encode_state(self.state)
        assert encode_state(replay(self.events)) == whole
        half = len(self.events) // 2
        resumed = decode_state(encode_state(replay(self.events, until=half)))
        for event in self.events[half:]:
            evolve(resumed, event)
        assert encode_state(resumed) == whole


def _but_runs(keys: set[str]) -> set[str]:
    return {key for key in keys if not key.startswith("run/")}
