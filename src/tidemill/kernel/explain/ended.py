"""Ended runs: the root cause of a failure, what followed from it, how to continue; and the history of one node.

The node's history reads the log, because only the log records what conditions decided. All texts are public output.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from shlex import quote
from typing import Literal

import msgspec

from tidemill.kernel.activation import items_merged
from tidemill.kernel.decide.completion import UPSTREAM_FAILED
from tidemill.kernel.decide.operations import REOPENABLE
from tidemill.kernel.decide.waits import CHILD_FAILED
from tidemill.kernel.events import NOT_AN_ITEM, AnyEvent
from tidemill.kernel.explain.blockers import AnyBlocker, Failure, shown
from tidemill.kernel.explain.survey import ExplainInput, label
from tidemill.kernel.model import Node
from tidemill.kernel.queries import PathStep, message_of, path
from tidemill.kernel.state import LIVE, CompletedStep, State, Visit, peek_at

UNKNOWN_OUTCOME = "unknown_outcome"


class Cause(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a failed run failed first. No node: its deadline or its outputs failed."""

    node: str
    visit: int
    index: int
    """The failing item, if a map failed because of one."""
    attempts: int
    at_ms: int | None
    error: Failure


class Sample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    count: int = 0
    names: tuple[str, ...] = ()


class Link(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    what: Literal["cause", "item", "node", "run", "failed_with", "cancelled"]
    words: str
    nodes: Sample = Sample()


class OutcomeCounts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    failed_with: Sample
    cancelled: Sample
    tolerated: Sample
    unsure: Sample
    """Nodes with an unknown outcome."""


def outcome_counts(facts: ExplainInput) -> OutcomeCounts:
    found: dict[str, list[str]] = {"failed_with": [], "cancelled": [], "tolerated": [], "unsure": []}
    for node in facts.flow.nodes:
        visit = facts.state.peek(node.id)
        if visit.status == "CANCELLED":
            found["cancelled"].append(node.id)
        elif visit.tolerated or (visit.status == "COMPLETED" and visit.map is not None and visit.map.failed):
            found["tolerated"].append(node.id)
        elif visit.status == "FAILED" and visit.error is not None:
            if visit.error.code == UPSTREAM_FAILED:
                found["failed_with"].append(node.id)
            elif visit.error.code == UNKNOWN_OUTCOME:
                found["unsure"].append(node.id)
    limit = facts.bounds.names
    return OutcomeCounts(
        **{fate: Sample(count=len(names), names=tuple(names[:limit])) for fate, names in found.items()}
    )


def first_cause(facts: ExplainInput) -> Cause | None:
    state = facts.state
    error = shown(state.error)
    if state.status != "FAILED" or state.error is None or error is None:
        return None
    name, index = state.failed_node, state.error.index
    if not name:
        return Cause(node="", visit=0, index=NOT_AN_ITEM, attempts=0, at_ms=state.ended_ms, error=error)
    visit = state.peek(name)
    act = peek_at(visit, index) or visit
    return Cause(
        node=name,
        visit=visit.visit,
        index=index,
        attempts=act.attempt,
        at_ms=act.since_ms or state.ended_ms,
        error=error,
    )


def chain_of(cause: Cause, found: OutcomeCounts, visit: Visit) -> tuple[Link, ...]:
    error = cause.error
    of_child = error.code == CHILD_FAILED and bool(error.causes)
    # Of a child the causes are codes only.
    told = (_of_child(error),) if of_child else reversed(error.causes)
    links = [Link(what="cause", words=text) for text in told]
    text = f"{error.code}: {message_of(error)}"
    if cause.index != NOT_AN_ITEM:
        words = f"{label(cause.node, cause.visit, cause.index)} failed after {_counted(cause.attempts, 'attempt')}"
        links.append(Link(what="item", words=words))
    if cause.node and visit.status == "FAILED":
        after = "" if cause.index != NOT_AN_ITEM else f" after {_counted(cause.attempts, 'attempt')}"
        links.append(Link(what="node", words=f"{label(cause.node, cause.visit)} failed{after} with {text}"))
        links.append(Link(what="run", words=f"the run failed with {cause.node}"))
    elif cause.error.code == UNKNOWN_OUTCOME and visit.status in ("COMPLETED", "SKIPPED"):
        happened = "happened" if visit.status == "COMPLETED" else "did not happen, or was undone"
        links.append(Link(what="run", words=f"the run failed with {label(cause.node, cause.visit)} with {text}"))
        links.append(Link(what="run", words=f"an operator has settled since that it {happened}"))
    else:
        before = f" before {cause.node} could start" if cause.node else ""
        links.append(Link(what="run", words=f"the run failed{before} with {text}"))
    if found.failed_with.count:
        words = f"{_counted(found.failed_with.count, 'node')} downstream of it failed with it and never started"
        links.append(Link(what="failed_with", words=words, nodes=found.failed_with))
    if found.cancelled.count:
        words = f"{_counted(found.cancelled.count, 'node')} cancelled"
        links.append(Link(what="cancelled", words=words, nodes=found.cancelled))
    return tuple(links)


_FRAME = re.compile(r'File "([^"]+)", line ([0-9]+)')


def _of_child(error: Failure) -> str:
    """What failed in the child run, or in the last of its own children, and where."""
    run, _, said = error.message.removeprefix("child ").partition(": ")
    frames = _FRAME.findall(error.traceback)
    own = [frame for frame in frames if "site-packages" not in frame[0]] or frames
    at = f" at {own[-1][0].rpartition('/')[2]}:{own[-1][1]}" if own else ""
    return f"child run {run} failed with {error.causes[-1]}: {said}{at}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def unread(state: State) -> dict[str, int]:
    return dict(Counter(signal.name for signal in state.signals))


def not_undone(state: State) -> CompletedStep | None:
    """The first step that is left and can be undone: one that failed, if any did."""
    if state.rollback != "partial":
        return None
    steps = (state.undo.get(key) for key in state.undo_left)
    left = [undo for undo in steps if undo is not None and undo.status != "done"]
    return next((undo for undo in left if undo.error is not None), left[0] if left else None)


IN_THE_DOCUMENT = frozenset(
    {"template_failed", "condition_failed", "arguments_invalid", "config_invalid", "outputs_failed"}
)
"""Failures that a retry of the same document repeats."""


def remedy(code: str) -> tuple[str, str]:
    """What to do about a failure with this code, and the command for it."""
    if code in IN_THE_DOCUMENT:
        words = "correct the document, then patch and retry the run, because a retry alone fails again"
        return f"{words}; completed nodes keep their results", "tidemill runs patch {run} FILE --retry"
    words = "fix the cause, then retry the run: completed nodes keep their results"
    if code == "sql_failed":
        words += "; if the statement is wrong, correct the document and patch the run with --retry"
    if code == "exception":
        words += "; workers run the code that they have loaded, so restart them after a change"
    return words, "tidemill runs retry {run}"


def way_on(state: State, found: OutcomeCounts) -> tuple[str, str]:
    """How an ended run can continue, and the command for it."""
    if state.rollback == "running":
        return "a run that is being rolled back cannot continue", ""
    if state.rollback == "partial" and (way := _way_to_undo(state)):
        return way
    if state.status == "COMPLETED":
        return "", ""
    if state.rollback != "none":
        words = "a run that was rolled back cannot continue: fork it upstream of what was undone, or start a new run"
        return words, "tidemill runs fork {run} --node NODE"
    if found.unsure.count:
        name = found.unsure.names[0]
        words = (
            f"the outcome of {name} is unknown: settle it with its value, or retry the run with --did-not-happen {name}"
        )
        return words, f"tidemill runs override {{run}} {name} --value VALUE"
    if state.status == "FAILED":
        return remedy("" if state.error is None else state.error.code)
    return "retry the run: completed nodes keep their results", "tidemill runs retry {run}"


WAYS = (
    "settle it with its value if it happened, or skip it if it did not, once its call has surely ended (a plain "
    "function continues in its thread)"
)


def _way_to_undo(state: State) -> tuple[str, str] | None:
    """How what a partial rollback has left can be undone; None if nothing can be done about it."""
    undo, again = not_undone(state), "tidemill runs rollback {run}"
    if undo is not None and undo.error is not None:
        name = label(undo.node, undo.visit, undo.index)
        return f"fix what kept {name} from being undone, then roll back again", again
    unknown = next((key for key in state.undo_left if key in state.unknown), None)
    if unknown is None:
        return "what a rollback has left is settled, or can be undone: roll back again", again
    node, visit, index = unknown.rsplit("/", 2)
    name, cell = label(node, int(visit), int(index)), state.peek(node)
    act = peek_at(cell, int(index)) if int(visit) == cell.visit else None
    what, which = f"the outcome of {name} is unknown", "" if index == "-1" else f" --item {index}"
    ways, how = WAYS, "--value VALUE"
    if act is None:
        ways, how, which = "undo it by hand if it happened, then skip it", "--skip", f" --visit {visit}{which}"
    elif not act.attempt:
        what = f"the log holds no start of {name}, but a worker had it in hand and may have begun it"
    return f"{what}: {ways}; then roll back again", f"tidemill runs override {{run}} {node}{which} {how}"


class ParentRun(msgspec.Struct, frozen=True, gc=False):
    """The parent of a run, as the run sees it."""

    run_id: str
    node: str
    state: State | None
    """None: it is not in the store any more."""
    waits: bool
    """Whether it waits for the run."""

    @property
    def fate(self) -> str:
        """Why it does not wait any more."""
        status = "" if self.state is None else self.state.status
        if status in LIVE:
            return f"continues without it: {self.node} was settled, timed out or rewound"
        known = {"FAILED": "has failed", "CANCELLED": "was cancelled", "COMPLETED": "has completed"}
        return known.get(status, "is not in the store any more")

    def way_on(self, *, retries: bool) -> tuple[str, str]:
        """What can be done about a run that its parent does not wait for, and the command; `retries`: it had failed."""
        state, fork = self.state, "fork this run: the fork has no parent"
        if state is not None and state.status in REOPENABLE and state.rollback == "none":
            fix = "fix the cause, then " if retries else ""
            words = f"{fix}retry the parent run {self.run_id}, which continues this run; or {fork}"
            return words, f"tidemill runs retry {quote(self.run_id)}"
        if state is not None and state.live:
            words = f"rewind the parent run {self.run_id} to {self.node}, which starts a new child; or {fork}"
            return words, f"tidemill runs rewind {quote(self.run_id)} {self.node}"
        return fork, "tidemill runs fork {run}"


STEPS_MAX = 20
"""The limit visits, and the limit preceding nodes, that are listed."""


class NodeHistory(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    node: str
    status: str
    headline: str
    visits: tuple[PathStep, ...] = ()
    """Its ended visits, the latest last."""
    before: tuple[PathStep, ...] = ()
    """The latest ends of the nodes that lead to it."""
    blockers: tuple[AnyBlocker, ...] = ()
    error: Failure | None = None
    """Why its latest visit failed, or its latest attempt, or its compensation."""
    values: dict[str, object] = {}
    """What its latest decision read, by the names in `reads`, as far as the store still has it."""


def account_for(state: State, events: Iterable[AnyEvent], node: Node, blockers: Sequence[AnyBlocker]) -> NodeHistory:
    steps = list(path(events))
    latest = {step.node: step for step in steps}
    own = [step for step in steps if step.node == node.id]
    waits = tuple(each for each in blockers if each.node == node.id)
    visit = state.peek(node.id)
    steps_back = (step for step in items_merged(state.undo).values() if step.node == node.id)
    undo = next((step for step in steps_back if step.error is not None and step.status != "done"), None)
    headline, error = _headline(node.id, own, waits) + _tolerated_items(visit), shown(visit.error)
    if visit.status not in ("FAILED", "QUEUED", "RUNNING"):
        error = None if undo is None else shown(undo.error)
        if error is not None and not waits:
            headline += f"; undoing it failed: {message_of(error)} [{error.code}]"
    return NodeHistory(
        node=node.id,
        status=visit.status,
        headline=headline,
        visits=tuple(own[-STEPS_MAX:]),
        before=tuple(latest[name] for name in node.inbound if name in latest)[:STEPS_MAX],
        blockers=waits,
        error=error,
    )


ITEMS_NAMED_MAX = 3


def _tolerated_items(visit: Visit) -> str:
    """Which items of a completed map failed, the first of them with their errors."""
    items = visit.map
    if visit.status != "COMPLETED" or items is None or not items.failed:
        return ""
    failed = ((index, shown(act.error)) for index, act in items.known() if act.status == "FAILED")
    errors = [f"[{index}] {message_of(error)}" for index, error in islice(failed, ITEMS_NAMED_MAX) if error is not None]
    more = ["…"] if items.failed > ITEMS_NAMED_MAX else []
    return f"; {items.failed} of its {_counted(items.count, 'item')} failed: {'; '.join(errors + more)}"


def _headline(name: str, own: Sequence[PathStep], waits: Sequence[AnyBlocker]) -> str:
    if waits:
        return waits[0].words
    if not own:
        return f"{name} has not started"
    step = own[-1]
    targets = f" and went to {', '.join(step.went)}" if step.went else ""
    why = f": {step.why}" if step.why else ""
    return f"{label(name, step.visit)} {_ENDED[step.status]}{targets}{why}"


_ENDED = {"COMPLETED": "completed", "SKIPPED": "was skipped", "FAILED": "failed", "CANCELLED": "was cancelled"}
