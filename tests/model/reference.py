"""A slow and obvious model of what a run does, written from the rules and the IR alone.

It shares no code with the kernel: everything is a plain dict, and whatever can be recomputed is recomputed.
Nothing here renders, calls or times anything; the caller says how each activation ended and asks what follows.

Decided from the start: D1 on break `break_path`, plain edges and the branch's targets are taken, on exhaustion only
`timeout_path`. D2 `attempts` counts handler calls. D3 a failed map carries the failing item's code. D4 a limit fails
the run with its code and names the visit not dispatched; every unfinished visit is CANCELLED. D5 an error edge that
leaves several loops is undecided until all of them are over and the current visit of its source has ended.

Where the specification is silent, this model decides as follows (the reason in brackets).
Names
 A1  A plain activation has index -1, as have `expand`, `assemble` and `route`; the outputs are ("", 1, -1, "outputs").
 A2  QUEUED stands for QUEUED or RUNNING [a start is not an input here]; an expanded map is QUEUED until it ends, also
     when all its items wait. A visit held by `max_parallel` or by a pause is PENDING.
 A3  `visits` counts the current visit, a PENDING one included [a loop sets body nodes to PENDING with `visit + 1`].
 A4  A time-out has the code `timeout` [the page names none].
Order
 B1  Within one turn nodes become ready breadth-first: all edges of the visit in `outbound` order, then the edges of
     what was skipped, then escapes of a loop that is over, then the loop that continues. Items follow their index.
 B2  Limits are checked after all joins of the turn are settled, in that order, `max_visits` before `max_hops` [so
     which nodes are SKIPPED does not depend on who met the limit]. A visit counts for `max_visits` when its join
     fires, also if it is then held. A loop that meets the limit has continued: its body is CANCELLED in `visit + 1`.
 B3  The start token has hop 0, so the visit of an entry node has hop 1; it is too much when hop > `max_hops`. A visit's
     hop is fixed when it fires; absorbed tokens do not raise it.
Edges
 C1  A visit that fails the run, or that the run ends, decides no edges [retry recomputes them].
 C2  After LoopContinued the edges into the body are undecided again, except those into `loop_back_to` and those that
     leave the body; the looping node's own edges were never decided.
 C3  A break does not wait for other visits of the body. They go on, and an outer loop waits for them.
 C4  A delay begins with the end of the looping visit. The next pass begins when a look after it finds the body quiet.
Attempts
 E1  A lost call counts in `attempts` ["an attempt that ended worker_lost"] but not against `max_attempts`. Lost
     `expand`, `assemble` and `route` count in no `attempts`, yet all losses in a row of one activation count to five.
 E2  Any reported outcome ends the row. It is kept per item. Five lost renderings of the outputs are `outputs_failed`.
 E3  `at_most_once`: `unknown_outcome` for a lost call and for a time-out, waiting included; a reported retryable
     failure is retried [its outcome is known], as is a lost `expand`, `assemble` or `route` [no handler is called].
 E4  Failures of `expand`, `assemble`, `route` and outputs are never retried, nor are `loop_exhausted`,
     `max_fanout_exceeded` and `route_not_allowed` found by the kernel.
 E5  `condition_failed` of `when` is `Uncalled(code)`; of loop or branch `Uncalled(code, called=True)`.
Map
 F1  An item holds its place in the window until it ends, waiting and back-off included [a window of jobs].
 F2  An empty list of a node with conditions still gets an `assemble` activation [somebody must evaluate them].
 F3  `assemble` and `route` are dispatched at once, not queued behind held nodes ["stay PENDING" is for nodes that never
     started]; with a retry after a wait they may exceed `max_parallel` until something ends. A retry keeps its place.
 F4  When a map has failed, `attempts` is the largest that was reported until then.
Run
 G1  While PAUSED nothing new is dispatched: ready visits are PENDING, retries, `route`, `assemble` and outputs wait
     for resume. Results and ends of waits are taken, loops continue, and the run may COMPLETE or fail.
 G2  A finished run ignores everything; an activation that is not in flight is an error of the caller.
Seen
 H1  In the first pass of the innermost loop around both, a past reference is absent even if an outer loop has passed
     before ["undefined in the first"].
 H2  "In this pass" is the pass of the innermost loop around reader and target. A reader outside the target's loop sees
     its latest ended visit, also while a newer one runs. A reader that is no relative sees nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidemill.kernel.model import Loop, Map, Node, Workflow

ENDED = ("COMPLETED", "FAILED", "SKIPPED", "CANCELLED")  # of a visit
OVER = ("COMPLETED", "FAILED", "CANCELLED")  # of a run
TIMEOUT = "timeout"
LOSSES_MAX = 5


class Activation(NamedTuple):
    """One thing that a worker or a timer can end."""

    node: str
    visit: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    phase: str


@dataclass(frozen=True)
class Done:
    """The work succeeded; with the values of the loop condition and of the branch, where the node has them."""

    again: bool | None = None
    branch: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Failed:
    """The handler, or what was waited for, failed."""

    code: str = "failed"
    retryable: bool = False


@dataclass(frozen=True)
class Uncalled:
    """A template or condition failed; `called` says that the handler had been called before."""

    code: str = "template_failed"
    called: bool = False


@dataclass(frozen=True)
class SkippedByWhen:
    """The `when` condition was false."""


@dataclass(frozen=True)
class Expanded:
    """A map's list was evaluated."""

    count: int


@dataclass(frozen=True)
class Waits:
    """The handler asked to wait."""


@dataclass(frozen=True)
class Lost:
    """The worker's lease expired."""


@dataclass(frozen=True)
class TimedOut:
    """The attempt took longer than `timeout_seconds`."""


Outcome = Done | Failed | Uncalled | SkippedByWhen | Expanded | Waits | Lost | TimedOut

LEGAL: dict[str, tuple[type, ...]] = {
    "call": (Done, Failed, Uncalled, SkippedByWhen, Waits, Lost, TimedOut),
    "expand": (Expanded, Failed, Uncalled, SkippedByWhen, Lost),
    "assemble": (Done, Failed, Uncalled, Lost),
    "route": (Done, Failed, Uncalled, Lost),
    "wait": (Done, Failed, TimedOut),
    "outputs": (Done, Failed, Uncalled, Lost),
}

Record = dict[str, Any]


def _visit(number: int) -> Record:
    """A fresh visit: `held` are its tokens with their hops, `slots` its unfinished activations by index."""
    return {
        "visit": number,
        "status": "PENDING",
        "attempts": 0,
        "error": None,
        "join": "open",
        "held": {},
        "hop": 0,
        "slots": {},
        "map": None,
        "again": False,
    }


def _slot(phase: str, live: bool) -> Record:
    """An activation; `live` means dispatched, `withheld` that a pause keeps it from workers."""
    return {"phase": phase, "live": live, "withheld": False, "attempts": 0, "used": 0, "lost": 0}


class Reference:
    """One run of a workflow."""

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self.by_id: dict[str, Node] = {node.id: node for node in workflow.nodes}
        self.loops: dict[str, Loop] = {node.id: node.loop for node in workflow.nodes if node.loop is not None}
        self.maps: dict[str, Map] = {node.id: node.map for node in workflow.nodes if node.map is not None}
        self.edge: dict[tuple[str, str], str] = {(n.id, to): "undecided" for n in workflow.nodes for to in n.outbound}
        self.now: dict[str, Record] = {node.id: _visit(1) for node in workflow.nodes}
        self.history: dict[str, dict[int, str]] = {node.id: {} for node in workflow.nodes}
        self.ended_by_run: set[tuple[str, int]] = set()
        self.passes: dict[str, int] = dict.fromkeys(self.loops, 1)
        self.first: dict[str, dict[str, int]] = {at: dict.fromkeys(self._body(at), 1) for at in self.loops}
        self.over: set[str] = set()
        self.ready: list[tuple[str, int]] = []
        self.fired_total = 0
        self.emitted = 0
        self.consumed = 0
        self.outputs: Record = {}
        self.status = "CREATED"
        self.error_code: str | None = None
        self.error_node: str | None = None
        self._newly_fired: list[str] = []
        self._to_examine: list[str] = []

    def start(self) -> None:
        """Emit one token per entry node."""
        self.status = "RUNNING"
        for entry in self.workflow.entries:
            self._put(entry, "start", 0)
            self._fire(entry)
        self._turn()

    def finish(self, act: Activation, outcome: Outcome) -> None:
        """Report how an activation ended."""
        if self.status in OVER:
            return
        self._refuse_nonsense(act, outcome)
        if act.phase == "outputs":
            self._finish_outputs(outcome)
        else:
            self._report(act, self.now[act.node]["slots"][act.index], outcome)
        self._turn()

    def cancel(self) -> None:
        """End the run by hand."""
        if self.status not in OVER:
            self._end_run("CANCELLED", None, None, set())
            self.check()

    def deadline(self) -> None:
        """Let the run's deadline pass."""
        if self.status not in OVER:
            self._end_run("FAILED", "deadline_exceeded", None, set())
            self.check()

    def pause(self) -> None:
        """Dispatch nothing more."""
        if self.status == "RUNNING":
            self.status = "PAUSED"

    def resume(self) -> None:
        """Dispatch again."""
        if self.status == "PAUSED":
            self.status = "RUNNING"
            for slot in self._all_slots():
                slot["withheld"] = False
            self._turn()

    def in_flight(self) -> list[Activation]:
        """Every activation that may end now: dispatched and not kept back by a pause."""
        found = [
            Activation(at, record["visit"], index, slot["phase"])
            for at, record in self.now.items()
            for index, slot in record["slots"].items()
            if slot["live"] and not slot["withheld"]
        ]
        if self.outputs and not self.outputs["withheld"]:
            found.append(Activation("", 1, -1, "outputs"))
        return sorted(found)

    def delayed(self, act: Activation) -> bool:
        """Whether an activation is the delay between two passes, which nothing but time ends."""
        return act.phase == "wait" and bool(self.now[act.node]["again"])

    @property
    def counter(self) -> int:
        """Tokens emitted and not consumed."""
        return self.emitted - self.consumed

    def nodes(self) -> dict[str, tuple[str, int, int]]:
        """Status, visits and attempts of every node."""
        return {at: (self._status(at), record["visit"], record["attempts"]) for at, record in self.now.items()}

    def errors(self) -> dict[str, str]:
        """The error codes of the FAILED nodes."""
        return {at: record["error"] for at, record in self.now.items() if record["status"] == "FAILED"}

    def edges(self) -> dict[tuple[str, str], str]:
        """Every edge of the current pass: taken, dead or undecided."""
        return dict(self.edge)

    def outcomes(self) -> dict[tuple[str, int], str]:
        """How each visit ended that was not ended by the run."""
        found = {(at, visit): status for at, visits in self.history.items() for visit, status in visits.items()}
        return {key: status for key, status in found.items() if key not in self.ended_by_run}

    def iteration(self, at: str) -> int:
        """Passes already made through the innermost loop around a node."""
        loops = self.by_id[at].loops
        return self.passes[loops[0]] - 1 if loops else 0

    def visible(self, reader: str, target: str) -> str:
        """Which visit's output a reference from reader (`""`: the run's outputs) to target sees now."""
        around = [] if reader == "" else [at for at in self.by_id[reader].loops if target in self._body(at)]
        first = self.first[around[0]][target] if around else 1
        if reader == "" or reader in self.descendants(target):
            seen = [visit for visit in self.history[target] if visit >= first]
        elif around and self.passes[around[0]] > 1:
            seen = [visit for visit in self.history[target] if visit < first]
        else:
            seen = []
        latest = max(seen, default=0)
        how = self.history[target].get(latest)
        has_output = how == "COMPLETED" or (how == "FAILED" and self.by_id[target].on_error != "fail")
        return f"value:{latest}" if has_output and (target, latest) not in self.ended_by_run else "absent"

    def descendants(self, at: str) -> set[str]:
        """Every node over any edges, loop-backs excluded."""
        found: set[str] = set()
        frontier = [at]
        while frontier:
            new = [to for to in self.by_id[frontier.pop()].outbound if to not in found]
            found.update(new)
            frontier.extend(new)
        return found

    # How an activation ends.

    def _refuse_nonsense(self, act: Activation, outcome: Outcome) -> None:
        """Raise when the caller reports what cannot happen."""
        if act not in self.in_flight():
            raise ValueError(f"{act} is not in flight")
        if not isinstance(outcome, LEGAL[act.phase]):
            raise ValueError(f"{act} cannot end with {outcome}")
        if act.phase == "outputs":
            return
        node, slot = self.by_id[act.node], self.now[act.node]["slots"][act.index]
        if isinstance(outcome, SkippedByWhen) and (act.index >= 0 or node.when is None or slot["used"]):
            raise ValueError(f"{act} has no `when` to evaluate")
        if isinstance(outcome, Done):
            self._refuse_route(node, act, outcome)

    def _refuse_route(self, node: Node, act: Activation, done: Done) -> None:
        """Raise when the reported conditions do not fit the node."""
        conditions = act.index < 0 and act.phase != "wait"
        branch = node.branch if conditions and not done.again else None
        if (done.again is not None) != (conditions and node.loop is not None):
            raise ValueError(f"{act}: loop condition {done.again}")
        if (done.branch is None) != (branch is None):
            raise ValueError(f"{act}: branch {done.branch}")
        known = {branch.default, *(rule.next_nodes for rule in branch.rules)} if branch is not None else set()
        if branch is not None and branch.kind == "conditional" and done.branch not in known:
            raise ValueError(f"{act}: no rule chooses {done.branch}")

    def _report(self, act: Activation, slot: Record, outcome: Outcome) -> None:
        """One ended activation of a node."""
        called = not isinstance(outcome, SkippedByWhen) and not (isinstance(outcome, Uncalled) and not outcome.called)
        if act.phase == "call" and called:
            slot["attempts"] += 1
            self.now[act.node]["attempts"] = max(self.now[act.node]["attempts"], slot["attempts"])
        slot["lost"] = slot["lost"] + 1 if isinstance(outcome, Lost) else 0
        match outcome:
            case Done():
                self._succeeded(act, outcome)
            case Failed(code, retryable):
                self._attempt_failed(act, slot, code, retryable)
            case TimedOut():
                known = self.by_id[act.node].delivery == "at_least_once"
                self._attempt_failed(act, slot, TIMEOUT if known else "unknown_outcome", known)
            case Lost():
                self._lost(act, slot)
            case Uncalled(code):
                self._unit_failed(act, code)
            case SkippedByWhen():
                self._end(act.node, "SKIPPED", ())
            case Waits():
                slot["phase"] = "wait"
            case Expanded(count):
                self._expanded(act.node, count)

    def _succeeded(self, act: Activation, done: Done) -> None:
        """The handler, a wait, or the conditions after them came to a good end."""
        node = self.by_id[act.node]
        if act.index >= 0:
            self._item_ended(act)
        elif self.delayed(act):
            # The delay before the next pass is over; while the body is busy, it goes on.
            if not self._busy_body(act.node):
                self.now[act.node]["slots"] = {}
        elif act.phase == "wait" and node.routed:
            self._again_as(self.now[act.node]["slots"][-1], "route")
        else:
            self._completed(node, done)

    def _attempt_failed(self, act: Activation, slot: Record, code: str, retryable: bool) -> None:
        """Try again if that is allowed."""
        slot["used"] += 1
        left = slot["used"] < self.by_id[act.node].retry.max_attempts
        if retryable and left and act.phase in ("call", "wait"):
            self._again_as(slot, "call")
        else:
            self._unit_failed(act, code)

    def _lost(self, act: Activation, slot: Record) -> None:
        """A lost worker is tried again without limit of attempts, but not five times in a row."""
        if act.phase == "call" and self.by_id[act.node].delivery == "at_most_once":
            self._unit_failed(act, "unknown_outcome")
        elif slot["lost"] >= LOSSES_MAX:
            self._unit_failed(act, "worker_killer")
        else:
            self._again_as(slot, act.phase)

    def _again_as(self, slot: Record, phase: str) -> None:
        """Queue an activation that had its place already."""
        slot["phase"] = phase
        slot["withheld"] = self.status == "PAUSED"

    def _unit_failed(self, act: Activation, code: str) -> None:
        """An item or a whole visit failed for good."""
        if act.index < 0:
            self._failed(act.node, code)
            return
        progress = self.now[act.node]["map"]
        progress["failures"] += 1
        if progress["failures"] > self.maps[act.node].tolerate:
            self._failed(act.node, code)
        else:
            self._item_ended(act)

    def _finish_outputs(self, outcome: Outcome) -> None:
        """The run's last step."""
        self.outputs["lost"] += 1
        if isinstance(outcome, Done):
            self._drop_outputs()
            self.status = "COMPLETED"
        elif isinstance(outcome, Lost) and self.outputs["lost"] < LOSSES_MAX:
            self._again_as(self.outputs, "outputs")
        else:
            self._end_run("FAILED", "outputs_failed", None, set())

    # Maps.

    def _expanded(self, at: str, count: int) -> None:
        """The list is known: open the window."""
        if count > self.workflow.limits.max_fanout:
            self._failed(at, "max_fanout_exceeded")
        elif count == 0 and not self.by_id[at].routed:
            self._completed(self.by_id[at], Done())
        else:
            self.now[at]["map"] = {"count": count, "next": 0, "failures": 0}
            self.now[at]["slots"] = {}
            self._fill_window(at)

    def _item_ended(self, act: Activation) -> None:
        """An item succeeded or its failure is tolerated."""
        del self.now[act.node]["slots"][act.index]
        self._fill_window(act.node)

    def _fill_window(self, at: str) -> None:
        """Make items ready while the window has room; when none is left, assemble."""
        record = self.now[at]
        progress, slots = record["map"], record["slots"]
        window = self.maps[at].max_parallel or progress["count"]
        while progress["next"] < progress["count"] and len(slots) < window:
            slots[progress["next"]] = _slot("call", live=False)
            self.ready.append((at, progress["next"]))
            progress["next"] += 1
        if not slots:
            slots[-1] = _slot("assemble", live=True)
            self._again_as(slots[-1], "assemble")

    # How a visit ends.

    def _completed(self, node: Node, done: Done) -> None:
        """Loop first, then branch."""
        if node.branch is not None and done.branch is not None and node.branch.kind == "agent_driven":
            allowed = set(done.branch) <= set(node.branch.available) or done.branch == node.branch.default
            if not allowed:
                self._failed(node.id, "route_not_allowed")
                return
            done = Done(done.again, done.branch or node.branch.default)
        if node.loop is None or not done.again:
            breaks = () if node.loop is None else node.loop.break_path
            self._end(node.id, "COMPLETED", {*node.plain, *breaks, *(done.branch or ())})
        elif node.loop.max_iterations is None or self.passes[node.id] < node.loop.max_iterations:
            slots = {-1: _slot("wait", live=True)} if node.loop.delay_ms else {}
            self.now[node.id].update(status="WAITING", again=True, slots=slots, map=None)
        elif node.loop.timeout_path:
            self._end(node.id, "COMPLETED", node.loop.timeout_path)
        else:
            self._failed(node.id, "loop_exhausted")

    def _failed(self, at: str, code: str) -> None:
        """A visit failed for good: `on_error` says what that means."""
        node = self.by_id[at]
        self.now[at]["error"] = code
        if node.on_error == "continue":
            breaks = () if node.loop is None else node.loop.break_path
            default = () if node.branch is None else node.branch.default
            self._end(at, "FAILED", {*node.plain, *breaks, *default})
        elif node.on_error == "route":
            self._end(at, "FAILED", node.error_path)
        else:
            self._close(at, "FAILED")
            self._end_run("FAILED", code, at, self.descendants(at))

    def _close(self, at: str, status: str) -> None:
        """End the current visit and consume its tokens."""
        record = self.now[at]
        self.consumed += len(record["held"])
        record.update(status=status, held={}, slots={}, map=None, again=False)
        self.ready = [(node, index) for node, index in self.ready if node != at]
        self.history[at][record["visit"]] = status

    def _end(self, at: str, status: str, taken: Iterable[str]) -> None:
        """End a visit that does not loop: decide all its edges."""
        taken = set(taken)
        self._close(at, status)
        if at in self.loops:
            self.over.add(at)
        for to in self.by_id[at].outbound:
            if to in taken:
                self._take(at, to)
            elif not self._left_by(at, to):
                self._kill(at, to)

    def _end_run(self, status: str, code: str | None, culprit: str | None, downstream: set[str]) -> None:
        """End every unfinished visit; PENDING descendants of the failure fail with it."""
        for at, record in self.now.items():
            if record["status"] in ENDED:
                continue
            self.ended_by_run.add((at, record["visit"]))
            if at in downstream and self._status(at) == "PENDING":
                record["error"] = "upstream_failed"
                self._close(at, "FAILED")
            else:
                self._close(at, "CANCELLED")
        self._drop_outputs()
        self.status, self.error_code, self.error_node = status, code, culprit

    def _drop_outputs(self) -> None:
        self.consumed += bool(self.outputs)
        self.outputs = {}

    # Edges, tokens, joins.

    def _body(self, at: str) -> tuple[str, ...]:
        return self.loops[at].body

    def _left_by(self, source: str, to: str) -> list[str]:
        """The loops that an edge leaves from a node other than their looping one."""
        return [at for at in self.by_id[source].loops if at != source and to not in self._body(at)]

    def _put(self, at: str, token: str, hop: int) -> None:
        """A token arrives: it is held until the visit ends, or absorbed if the join is settled."""
        self.emitted += 1
        if self.now[at]["join"] == "open":
            self.now[at]["held"][token] = hop
        else:
            self.consumed += 1

    def _take(self, source: str, to: str) -> None:
        if self.edge[source, to] == "taken":  # an escape that an earlier pass took: absorbed
            return
        assert self.edge[source, to] == "undecided"
        self.edge[source, to] = "taken"
        self._put(to, source, self.now[source]["hop"])
        self._to_examine.append(to)

    def _kill(self, source: str, to: str) -> None:
        assert self.edge[source, to] == "undecided"
        self.edge[source, to] = "dead"
        self._to_examine.append(to)

    def _examine(self, at: str) -> None:
        """Fire or skip a node whose join is decided now."""
        if self.now[at]["join"] != "open":
            return
        states = [self.edge[source, at] for source in self.by_id[at].inbound]
        verdict = self._verdict(self.by_id[at], states)
        if verdict == "fire":
            self._fire(at)
        elif verdict == "skip":
            self.now[at]["join"] = "skipped"
            self._end(at, "SKIPPED", ())

    def _verdict(self, node: Node, states: list[str]) -> str:
        """The table of 2.3."""
        taken, undecided = states.count("taken"), states.count("undecided")
        if node.join == "any":
            return "fire" if taken else "wait" if undecided else "skip"
        if node.join == "quorum":
            return "fire" if taken >= node.quorum else "wait" if taken + undecided >= node.quorum else "skip"
        if undecided:
            return "wait"
        if node.join == "strict":
            return "fire" if taken == len(states) else "skip"
        return "fire" if taken else "skip"

    def _fire(self, at: str) -> None:
        record = self.now[at]
        record["join"] = "fired"
        record["hop"] = 1 + max(record["held"].values())
        self._newly_fired.append(at)

    # The turn: draw every consequence of what happened.

    def _turn(self) -> None:
        if self.status not in OVER:
            self._settle()
            self._schedule()
        if self.status not in OVER and self.counter == 0:
            self._complete()
        self._dispatch()
        self.check()

    def _settle(self) -> None:
        """Joins, escapes and loops, until nothing changes."""
        while True:
            while self._to_examine:
                self._examine(self._to_examine.pop(0))
            if not (self._close_escapes() or self._continue_a_loop()):
                return

    def _close_escapes(self) -> bool:
        """Edges that left loops by an error path are dead when the loops are over without taking them."""
        closed = False
        for (source, to), state in list(self.edge.items()):
            loops = self._left_by(source, to)
            ended = self.now[source]["status"] in ENDED
            if state == "undecided" and loops and ended and all(at in self.over for at in loops):
                self._kill(source, to)
                closed = True
        return closed

    def _busy_body(self, at: str) -> bool:
        return any(self.now[to]["held"] for to in self._body(at) if to != at)

    def _continue_a_loop(self) -> bool:
        """Continue the innermost loop whose looping visit wants it and whose body is quiet."""
        for at in sorted(self.loops, key=lambda at: len(self._body(at))):
            if self.now[at]["again"] and not self.now[at]["slots"] and not self._busy_body(at):
                self._continue_loop(at)
                return True
        return False

    def _continue_loop(self, at: str) -> None:
        """All nodes of the body become PENDING with `visit + 1`; the entry has the loop's token."""
        body, entry, hop = self._body(at), self.loops[at].back_to, self.now[at]["hop"]
        self._close(at, "COMPLETED")
        self.passes[at] += 1
        for to in body:
            assert self.now[to]["status"] in ENDED, f"{to} has not ended when the loop of {at} continues"
            self.now[to] = _visit(self.now[to]["visit"] + 1)
        for source, to in self.edge:
            if to in body and to != entry:
                self.edge[source, to] = "undecided"
        for inner in [to for to in body if to in self.loops]:
            self.first[inner] = {to: self.now[to]["visit"] for to in self._body(inner)}
            self.over.discard(inner)
            if inner != at:
                self.passes[inner] = 1
        self._put(entry, "loop", hop)
        self._fire(entry)

    def _schedule(self) -> None:
        """Newly fired visits become ready, within the limits of the run."""
        limits = self.workflow.limits
        fired, self._newly_fired = self._newly_fired, []
        for at in fired:
            self.fired_total += 1
            if self.fired_total > limits.max_visits:
                self._end_run("FAILED", "max_visits_exceeded", at, set())
                break
            if limits.max_hops is not None and self.now[at]["hop"] > limits.max_hops:
                self._end_run("FAILED", "max_hops_exceeded", at, set())
                break
            self.now[at]["slots"][-1] = _slot("call" if self.by_id[at].map is None else "expand", live=False)
            self.ready.append((at, -1))

    def _complete(self) -> None:
        """Nothing is in flight: render the outputs, or be done."""
        if self.workflow.outputs is None:
            self.status = "COMPLETED"
        else:
            self.emitted += 1
            self.outputs = _slot("outputs", live=True)
            self._again_as(self.outputs, "outputs")

    def _dispatch(self) -> None:
        """Give ready visits and items to workers, first come first served."""
        limit = self.workflow.limits.max_parallel
        while self.status == "RUNNING" and self.ready and (limit is None or self._load() < limit):
            at, index = self.ready.pop(0)
            self.now[at]["slots"][index]["live"] = True

    def _load(self) -> int:
        """Activations that are QUEUED or RUNNING; WAITING ones do not count."""
        return sum(slot["live"] and slot["phase"] != "wait" for slot in self._all_slots())

    def _all_slots(self) -> list[Record]:
        slots = [slot for record in self.now.values() for slot in record["slots"].values()]
        return [*slots, self.outputs] if self.outputs else slots

    def _status(self, at: str) -> str:
        """A node's status as people see it."""
        record = self.now[at]
        slot = record["slots"].get(-1)
        if record["status"] != "PENDING":
            return str(record["status"])
        if record["map"] is not None:
            return "QUEUED"
        if slot is None or not slot["live"]:
            return "PENDING"
        return "WAITING" if slot["phase"] == "wait" else "QUEUED"

    def check(self) -> None:
        """Laws that hold after every step."""
        held = sum(len(record["held"]) for record in self.now.values())
        assert self.counter == held + bool(self.outputs)
        assert (self.counter == 0) == (self.status in OVER)
        for at, record in self.now.items():
            ended = record["status"] in ENDED
            assert not (ended and (record["held"] or record["slots"])), at
            assert ended == (record["visit"] in self.history[at]), at
            assert bool(record["slots"]) <= bool(record["held"]), at
            assert (record["join"] == "fired") <= (ended or bool(record["held"])), at
        if self.status in OVER:
            assert all(record["status"] in ENDED for record in self.now.values())
            assert not self.in_flight() and not self.ready
        if self.status == "RUNNING":
            assert self.in_flight(), "nothing can happen"
        limit = self.workflow.limits.max_parallel
        assert limit is None or self.status != "RUNNING" or not self.ready or self._load() >= limit
