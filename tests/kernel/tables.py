"""The notation of the kernel's tables: a graph in a line, a step in a call, what follows in words.

    run = begun("a > b c > d", {"d": {"join": "any"}})
    assert run.done("a") == rows("NodeStarted a; NodeCompleted a taken=b,c counter=2; NodeScheduled b; …")

A step answers with its events and its work, one row each (see `wording`). After every step the laws of the log are
checked, and that the store would hold exactly the jobs that the state calls for.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tests.kernel.driver import Driver
from tests.kernel.laws import Laws
from tests.kernel.wording import Rows, job_row, shown
from tidemill.errors import Problem
from tidemill.handlers.control import FAIL, HUMAN, SIGNAL, SLEEP, VALUE, WAIT_UNTIL, WORKFLOW
from tidemill.handlers.python.node import PYTHON
from tidemill.kernel import events as ev
from tidemill.kernel.activation import Activation, Approval
from tidemill.kernel.commands import (
    AnyCommand,
    AttemptStarted,
    Cancel,
    Checkpoint,
    ChildBegan,
    ChildEnded,
    DeadlineReached,
    Decide,
    Delegate,
    Done,
    Failed,
    MapExpanded,
    Outcome,
    OutputsRendered,
    Pause,
    Request,
    Result,
    Resume,
    Signal,
    SkipRequested,
    TimerFired,
    Verb,
    WaitExpired,
    WaitRequested,
    WorkerLost,
)
from tidemill.kernel.compile.compiler import compile_document
from tidemill.kernel.decide.builder import Decision
from tidemill.kernel.decide.decide import decide_all
from tidemill.kernel.evolve import evolve
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.state import Visit, encode_state, peek_at

Json = Any

TYPES = {each.name: (each,) for each in (VALUE, FAIL, SLEEP, PYTHON, HUMAN, SIGNAL, WORKFLOW, WAIT_UNTIL)}


def flow(graph: str, nodes: dict[str, dict[str, Json]] | None = None, **top: Json) -> Workflow:
    """Compile `a > b c > d; e`: each side of an arrow depends on all of the other, nodes in order of appearance."""
    given = nodes or {}
    needs: dict[str, list[str]] = {}
    for chain in graph.split(";"):
        before: list[str] = []
        for group in chain.split(">"):
            for name in group.split():
                needs.setdefault(name, []).extend(before)
            before = group.split()
    written = [
        {"id": name, "type": "value", "dependencies": sources, **given.get(name, {})} for name, sources in needs.items()
    ]
    assert set(given) <= set(needs), "every node is named in the graph"
    return compile_document({"name": "table", "nodes": written, **top}, TYPES).workflow


def choose(*ways: str, default: str = "") -> Json:
    """A conditional branch, one rule per way; a way names its targets as `b c`."""
    rules = [{"condition": f"inputs.x == {number}", "next_nodes": way.split()} for number, way in enumerate(ways)]
    return {"type": "conditional", "rules": rules, **({"default": default.split()} if default else {})}


def agent(available: str, default: str = "") -> Json:
    """A branch that the node's handler decides."""
    more = {"default": default.split()} if default else {}
    return {"type": "agent_driven", "available_next_nodes": available.split(), **more}


def loop(passes: int | str = 3, back_to: str = "", break_path: str = "", timeout_path: str = "") -> Json:
    """A loop of at most so many passes."""
    paths = {"loop_back_to": back_to, "break_path": break_path.split(), "timeout_path": timeout_path.split()}
    return {"condition": "inputs.again", "max_iterations": passes, **{key: to for key, to in paths.items() if to}}


def human(rejection: str = "", changes: str = "", **options: Json) -> Json:
    """A node that asks people, with its ways out; whom it asks is said when its handler does (`Run.ask`)."""
    paths = {"rejection_path": rejection.split(), "changes_path": changes.split()}
    return {"type": "human", "config": {key: to for key, to in paths.items() if to}, **options}


def rows(text: str) -> Rows:
    """Split expected rows at semicolons and line ends."""
    return [row.strip() for row in re.split(r"[;\n]", text) if row.strip()]


def error(code: str = "boom", *, retryable: bool = False) -> ev.Error:
    return ev.Error(code, f"{code} happened", retryable=retryable)


class Run:
    """One run under a table: its driver, and a method for each thing that can happen to it."""

    def __init__(self, graph: str | Workflow, nodes: dict[str, dict[str, Json]] | None = None, **top: Json) -> None:
        self.flow = graph if isinstance(graph, Workflow) else flow(graph, nodes, **top)
        self.kernel = Driver(self.flow)
        self.laws = Laws(self.flow)

    # What can happen

    def start(self, **more: Any) -> Rows:
        return self._shown(self.kernel.start(**more))

    def done(
        self,
        at: str,
        branch: str | None = None,
        *,
        again: bool | None = None,
        rule: int | None = None,
        output: bytes = b"1",
        size: int = 0,
        **more: Any,
    ) -> Rows:
        """The handler returned, and the conditions of its node (if any) gave this."""
        node = self.node(at)
        route = None
        if node.routed and self.where(at)["index"] < 0:
            route = self.route(node, branch, again, rule)
        return self.result(at, Done(output=output, size=size), route=more.pop("route", route), **more)

    def fail(
        self, at: str, code: str = "boom", *, retryable: bool = False, retry_after_ms: int | None = None, **more: Any
    ) -> Rows:
        outcome = Failed(error=error(code, retryable=retryable), retry_after_ms=retry_after_ms)
        return self.result(at, outcome, **more)

    def time_out(self, at: str, **more: Any) -> Rows:
        failed = Failed(error=error("timeout", retryable=True), unknown_outcome=True)
        return self.result(at, failed, **more)

    def wait(self, at: str, for_ms: int | None = 1_000, on: str = "timer", **more: Any) -> Rows:
        return self.result(at, WaitRequested(on=on, for_ms=for_ms), **more)

    def ask(self, at: str, who: str = "", *, recall: bool = False, for_ms: int | None = None, **asked: Any) -> Rows:
        """The handler asks people, whom it names as `user:ann role:boss`."""
        request = Request(title="Well?", approvers=tuple(who.split()), **asked)
        return self.result(at, WaitRequested(on="human", approval=request, recall=recall, for_ms=for_ms))

    def listen(self, at: str, name: str = "paid", **more: Any) -> Rows:
        """The handler waits for a signal."""
        return self.result(at, WaitRequested(on="signal", name=name, **more))

    def call(self, at: str, child: str = "kid", **more: Any) -> Rows:
        """The handler asks for a child run."""
        return self.result(at, WaitRequested(on="child", name=child, ask=b"{}", **more))

    def decision(self, verb: Verb, at: str, by: str = "ann", roles: str = "", **more: Any) -> Decide:
        return Decide(verb=verb, actor=by, roles=tuple(roles.split()), **self.where(at), **more)

    def approve(self, at: str, by: str = "ann", roles: str = "", **more: Any) -> Rows:
        return self.do(self.decision("approve", at, by, roles, **more))

    def reject(self, at: str, by: str = "ann", roles: str = "", **more: Any) -> Rows:
        return self.do(self.decision("reject", at, by, roles, **more))

    def changes(self, at: str, by: str = "ann", roles: str = "", **more: Any) -> Rows:
        return self.do(self.decision("changes", at, by, roles, **more))

    def delegate(self, at: str, by: str, to: str, roles: str = "") -> Rows:
        return self.do(Delegate(to=to, actor=by, roles=tuple(roles.split()), **self.where(at)))

    def signal(self, signal: str, name: str = "paid", payload: bytes = b"1") -> Rows:
        """Somebody tells the run something."""
        return self.do(Signal(name=name, signal=signal, payload=payload))

    def child_began(self, at: str, child: str = "kid", close: str = "") -> Rows:
        began = ChildBegan(child=child, workflow="w", version=1, digest="sha256:1", close=close, **self.where(at))
        return self.do(began, self.key("child", at))

    def child_ended(self, at: str, status: str = "COMPLETED", child: str = "kid", **more: Any) -> Rows:
        return self.do(ChildEnded(child=child, status=status, **self.where(at), **more))

    def skip(self, at: str, *, called: bool = False) -> Rows:
        return self.result(at, SkipRequested(), called=called)

    def expand(self, at: str, count: int, **more: Any) -> Rows:
        return self.result(at, MapExpanded(count=count, items=b"[]"), called=False, **more)

    def assemble(self, at: str, branch: str | None = None, *, again: bool | None = None) -> Rows:
        return self.done(at, branch, again=again, called=False, output=b"[1]")

    def result(self, at: str, outcome: Outcome, *, token: int | None = None, **more: Any) -> Rows:
        """Any outcome of an attempt, by default under a fresh lease."""
        result = Result(outcome=outcome, token=self.fence(token), **self.where(at), **more)
        return self.do(result, self.key("run", at))

    def begin(self, at: str, token: int | None = None) -> Rows:
        return self.do(AttemptStarted(token=self.fence(token), **self.where(at)))

    def checkpoint(self, at: str, value: bytes, token: int) -> Rows:
        return self.do(Checkpoint(token=self.fence(token), value=value, **self.where(at)))

    def lost(self, at: str, times: int = 1) -> Rows:
        lost = WorkerLost(token=self.kernel.next_token(), times=times, **self.where(at))
        return self.do(lost, self.key("run", at))

    def wake(self, at: str) -> Rows:
        """The timer of a wait came due."""
        return self._timer(TimerFired(**self.where(at)), self.key("wake", at))

    def expire(self, at: str) -> Rows:
        """The time-out of a wait came due."""
        return self._timer(WaitExpired(**self.where(at)), self.key("expire", at))

    def _timer(self, timer: TimerFired | WaitExpired, ack: str) -> Rows:
        self.kernel.reach(timer)
        return self.do(timer, ack)

    def render(self, code: str = "") -> Rows:
        outcome: Done | Failed = Failed(error=error(code)) if code else Done(output=b'{"o":1}')
        return self.do(OutputsRendered(outcome=outcome), "outputs//0/-1")

    def cancel(self, reason: str = "") -> Rows:
        return self.do(Cancel(reason=reason))

    def pause(self) -> Rows:
        return self.do(Pause())

    def resume(self) -> Rows:
        return self.do(Resume())

    def deadline(self) -> Rows:
        return self.do(DeadlineReached(), "deadline//0/-1")

    def do(self, command: AnyCommand, ack: str = "") -> Rows:
        """Carry out a command that must not be refused."""
        return self._shown(self.kernel.do(command, ack))

    def refused(self, command: AnyCommand) -> str:
        """The code with which a command is refused."""
        before = len(self.kernel.events)
        problem = self.kernel.ask(command)
        assert isinstance(problem, Problem), "the command was carried out"
        assert len(self.kernel.events) == before
        return problem.code

    def together(self, *commands: AnyCommand) -> Rows:
        """Results that gathered: decided one after the other, committed once."""
        kernel = self.kernel
        before = encode_state(kernel.state)
        decision, problems = decide_all(self.flow, kernel.state, commands, kernel.now)
        assert problems == [None] * len(commands)
        assert encode_state(kernel.state) == before, "decide changed the state it was given"
        for command in commands:
            if isinstance(command, Result):
                kernel.jobs.pop(f"run/{command.node}/{command.visit}/{command.index}", None)
        for event in decision.events:
            evolve(kernel.state, event)
        kernel.keep(decision)
        return self._shown(decision)

    def end(self, *ats: str) -> None:
        """End several activations well, one after the other."""
        for at in ats:
            self.done(at)

    # What can be asked

    @property
    def status(self) -> str:
        return self.kernel.state.status

    @property
    def counter(self) -> int:
        return self.kernel.state.counter

    @property
    def jobs(self) -> str:
        """What the store holds, sorted."""
        return "; ".join(sorted(job_row(key) for key in self.kernel.jobs))

    def nodes(self, names: str = "") -> str:
        """Statuses, as `a=COMPLETED b=QUEUED`."""
        ids = names.split() or [node.id for node in self.flow.nodes]
        return " ".join(f"{name}={self.kernel.state.peek(name).status}" for name in ids)

    def edges(self, target: str) -> str:
        """The inbound edges of a node, as `a:taken b:dead c:undecided`."""
        edges = self.kernel.state.peek(target).edges
        words = {True: "taken", False: "dead", None: "undecided"}
        return " ".join(f"{source}:{words[edges.get(source)]}" for source in self.node(target).inbound)

    def cell(self, name: str) -> Visit:
        return self.kernel.state.peek(name)

    def act(self, at: str) -> Activation:
        """The activation itself, of the latest visit."""
        found = peek_at(self.cell(self.where(at)["node"]), self.where(at)["index"])
        assert found is not None
        return found

    def output(self, at: str) -> Json:
        """What an activation ended with, read."""
        value = self.act(at).output
        assert isinstance(value, bytes)
        return msgspec.json.decode(value)

    def approval(self, at: str) -> Approval:
        """What was asked, and how that stands."""
        found = self.act(at).approval
        assert found is not None
        return found

    def of(self, kind: type[ev.Event]) -> list[Any]:
        """All events of one type so far."""
        return [event for event in self.kernel.events if isinstance(event, kind)]

    def node(self, at: str) -> Node:
        return self.flow.by_id[self.where(at)["node"]]

    def where(self, at: str) -> dict[str, Any]:
        """The coordinates of an activation; without `#` of the latest visit."""
        found = re.fullmatch(r"([\w-]+)(?:#(\d+))?(?:\[(\d+)\])?", at)
        assert found, at
        name, visit, index = found.groups()
        return {
            "node": name,
            "visit": int(visit) if visit else self.kernel.state.peek(name).visit,
            "index": int(index) if index else ev.NOT_AN_ITEM,
        }

    def key(self, kind: str, at: str) -> str:
        """The name of a job in the store."""
        where = self.where(at)
        return f"{kind}/{where['node']}/{where['visit']}/{where['index']}"

    def fence(self, token: int | None) -> int:
        """A lease's token: the next, or a given one, which later ones exceed."""
        if token is None:
            return self.kernel.next_token()
        self.kernel.token = max(self.kernel.token, token)
        return token

    def route(self, node: Node, branch: str | None, again: bool | None, rule: int | None) -> ev.Route:
        """What a worker reports; without a choice, the loop is left and the branch has its default."""
        if node.loop is not None and again is None:
            again = False
        if node.branch is None or again:
            return ev.Route(again)
        chosen = node.branch.default if branch is None else tuple(branch.split())
        if rule is None:
            ways = [each.next_nodes for each in node.branch.rules]
            rule = ways.index(chosen) if chosen in ways and branch is not None else -1
        return ev.Route(again, chosen, rule)

    def _shown(self, decision: Decision) -> Rows:
        """Check what must always hold, then say what happened."""
        kernel = self.kernel
        self.flow = kernel.flow
        self.laws.read(decision.events, kernel.flow)
        self.laws.check(kernel.state)
        kernel.check_jobs()
        return shown(decision, kernel.now)


def begun(graph: str | Workflow, nodes: dict[str, dict[str, Json]] | None = None, **top: Json) -> Run:
    """A run that was started."""
    run = Run(graph, nodes, **top)
    run.start()
    return run


def asked(graph: str = "h > z", who: str = "", node: Json = None, **request: Any) -> Run:
    """A run that rita has submitted, whose node `h` has asked people."""
    run = Run(graph, {"h": node or human()})
    run.start(submitted_by="rita")
    run.ask("h", who, **request)
    return run
