"""Why a run is where it is: what each unfinished visit waits for, or how the run ended.

`explain` is a pure, total function of the workflow, the state and what the store and the workers report, so it works on
any point of any log. It returns data; front ends render it. `survey` looks at every node once, and blockers are built
only for the listed ones: keep the cost linear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from tidemill.kernel.decide.completion import ABANDON
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.explain import ended, live, upstream
from tidemill.kernel.explain.blockers import AnyBlocker, Deadline, Failure, shown
from tidemill.kernel.explain.survey import Bounds, ExplainInput, JobFact, WaitingVisit, Workers, label, survey
from tidemill.kernel.model import Workflow
from tidemill.kernel.queries import dead_ends, message_of
from tidemill.kernel.state import RollbackStatus, RunStatus, State

_NOUNS = {
    "worker": ("waits for a worker", "wait for workers"),
    "lease": ("is running", "are running"),
    "retry": ("is waiting for its next attempt", "are waiting for their next attempts"),
    "timer": ("sleeps", "sleep"),
    "person": ("waits for people", "wait for people"),
    "signal": ("waits for a signal", "wait for signals"),
    "child": ("waits for a child run", "wait for child runs"),
    "wait": ("waits for something else", "wait for something else"),
    "missing": ("lacks its job", "lack their jobs"),
    "outputs": ("rendering is left", "renderings are left"),
}
"""Singular and plural of the kinds that can be a root."""

_LEFT_MAX = 3
"""Names in the sentence about an incomplete rollback; the list has all."""


def _live_headline(state: State, blockers: Sequence[AnyBlocker], counts: Mapping[str, int]) -> str:
    if not blockers:
        return f"the run is {state.status} and is not waiting for anything known"
    first = blockers[0]
    others = {kind: counts.get(kind, 0) - (kind == first.kind) for kind in _NOUNS}
    rest = [f"{number} {_NOUNS[kind][number > 1]}" for kind, number in others.items() if number]
    return f"{first.words}; also, {', '.join(rest)}" if rest else first.words


def _ended_headline(state: State, cause: ended.Cause | None, blockers: Sequence[AnyBlocker]) -> str:
    match state.status:
        case "FAILED" if cause is not None:
            where = f" at {label(cause.node, cause.visit, cause.index)}" if cause.node else ""
            words = f"the run failed{where} with {cause.error.code}: {message_of(cause.error)}"
        case "FAILED":
            words = "the run failed"
        case "CANCELLED":
            words = f"the run was cancelled: {state.reason}" if state.reason else "the run was cancelled"
        case "COMPLETED":
            tolerated = f", tolerated failures: {state.tolerated}" if state.tolerated else ""
            unread = f", unread signals: {len(state.signals)}" if state.signals else ""
            words = f"the run completed{tolerated}{unread}"
        case _:
            return "there is no such run"
    return words + _rollback(state, blockers)


def _rollback(state: State, blockers: Sequence[AnyBlocker]) -> str:
    if state.rollback == "running" and blockers:
        return f"; {blockers[0].words}"
    if state.rollback == "done":
        return "; its completed steps with a compensator were undone"
    if state.rollback != "partial":
        return ""
    more = " and more" if len(state.undo_left) > _LEFT_MAX else ""
    keys = (key.rsplit("/", 2) for key in state.undo_left[:_LEFT_MAX])
    names = ", ".join(label(node, int(visit), int(index)) for node, visit, index in keys)
    return f"; its rollback could not undo: {names}{more}"


class Alike(NamedTuple):
    """The first of some blockers that say the same of items of one map, and how many follow it."""

    first: AnyBlocker
    more: int

    @property
    def others(self) -> str:
        return f"and {self.more} more item{'s' if self.more > 1 else ''}" if self.more else ""


def folded(blockers: Sequence[AnyBlocker]) -> list[Alike]:
    """The blockers, those of a map's items together that differ in nothing but the item and its moments."""
    groups: dict[tuple[object, ...], list[AnyBlocker]] = {}
    for number, blocker in enumerate(blockers):
        place: object = number
        if blocker.index != NOT_AN_ITEM:
            facts: dict[str, object] = msgspec.to_builtins(blocker)
            facts["words"] = blocker.words.replace(f"{blocker.node}[{blocker.index}]", blocker.node)
            place = repr({name: facts[name] for name in facts if name != "index" and not name.endswith("_ms")})
        groups.setdefault((blocker.node, blocker.visit, place), []).append(blocker)
    return [Alike(same[0], len(same) - 1) for same in groups.values()]


BOUNDS = Bounds()

BlockerBuilder = Callable[[ExplainInput, WaitingVisit], AnyBlocker]


class Explanation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    status: RunStatus
    headline: str
    stuck: str = ""
    """Why a worker gave up on the run for now; the other fields are still filled."""
    newer: str = ""
    """What a newer version has written, and which workers continue it; if it is the log, only `status` is known."""
    since_ms: int | None
    """Since when the headline is true, if known."""
    blockers: tuple[AnyBlocker, ...] = ()
    """Roots first (live or external), then what only waits for other nodes."""
    counts: dict[str, int] = {}
    """Blockers by kind, including those not listed; of a map's items only those that would be listed."""
    more_roots: int = 0
    more_followers: int = 0
    deadline: Deadline | None = None
    first_cause: ended.Cause | None = None
    """Of a FAILED run."""
    chain: tuple[ended.Link, ...] = ()
    reason: str = ""
    """Why an operator paused or cancelled it."""
    failures_tolerated: int = 0
    tolerated: ended.Sample = ended.Sample()
    unread: dict[str, int] = {}
    """Untaken signals by name."""
    dead_letters: int = 0
    rollback: RollbackStatus = "none"
    left: ended.Sample = ended.Sample()
    """What a rollback could not undo, as node/visit/index."""
    left_error: Failure | None = None
    """Why the first of them could not be undone, if its compensator ran."""
    warnings: tuple[str, ...] = ()
    """What is odd about a run that completed."""
    unblock: str = ""
    """How an ended run can continue; a live run has it in each blocker."""
    command: str = ""

    def __str__(self) -> str:
        """For `print`: the headline, what the run is waiting for, and how it can continue."""
        roots = [each for each in self.blockers if each.root] or self.blockers
        waits = (": ".join(filter(None, (self._words(*each), each.first.unblock))) for each in folded(roots))
        cause = "" if self.first_cause is None else self.first_cause.error.hint
        return "\n  ".join(filter(None, (self.headline, self.stuck, *waits, cause, self.unblock)))

    def _repr_html_(self) -> str:
        """For notebooks: the text of `print`."""
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """As a JSON value."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        return shown

    def _words(self, blocker: AnyBlocker, more: int) -> str:
        """What a blocker says beside the headline, beginning with its node."""
        if blocker.words == self.headline:
            return ""
        words = blocker.words if blocker.words.startswith(blocker.node) else f"{blocker.node}: {blocker.words}"
        return f"{words} ({Alike(blocker, more).others})" if more else words


def explain(
    workflow: Workflow,
    state: State,
    jobs: Sequence[JobFact],
    now_ms: int,
    *,
    workers: Workers | None = None,
    bounds: Bounds = BOUNDS,
) -> Explanation:
    """Explain what a run waits for, or how it ended; defined for every state.

    `jobs` are those of the run, read at about the same time as the state; `workers` is None when they are unknown.
    """
    facts = ExplainInput(workflow, state, jobs, now_ms, workers, bounds)
    return _live(facts) if state.live else _ended(facts)


def beside_parent(found: Explanation, state: State, parent: ended.ParentRun) -> Explanation:
    """The explanation of a child run whose parent does not wait for it any more; one that completed needs none."""
    if parent.waits or state.status == "COMPLETED":
        return found
    told = f"{found.headline}; its parent run {parent.run_id} {parent.fate}"
    if state.close == ABANDON:
        alone = "; it goes on alone, and no run takes its result" if state.live else ""
        return msgspec.structs.replace(found, headline=f"{told}{alone}")
    if state.live:
        return msgspec.structs.replace(found, headline=f"{told}, so it is about to be cancelled")
    if state.rollback != "none":
        return msgspec.structs.replace(found, headline=told)
    unblock, command = parent.way_on(retries=state.status == "FAILED")
    return msgspec.structs.replace(found, headline=told, unblock=unblock, command=command)


def _live(facts: ExplainInput) -> Explanation:
    state, bounds = facts.state, facts.bounds
    whole, cases = list(live.run_blockers(facts)), survey(facts)
    first = next((place for place, case in enumerate(cases) if not case.root), len(cases))
    roots, followers = cases[:first], cases[first:]
    search = upstream.Upstream(facts, cases)
    listed = [*roots[: bounds.roots], *followers[: bounds.followers]]
    edges: BlockerBuilder = partial(upstream.behind_edges, search)
    builders: dict[str, BlockerBuilder] = {
        **_BUILDERS,
        "edge": edges,
        "join": edges,
        "loop": partial(upstream.behind_body, search),
    }
    blockers = [*whole, *(builders[case.kind](facts, case) for case in listed)]
    blockers.sort(key=lambda blocker: not blocker.root)
    counts = dict(Counter([*(each.kind for each in whole), *(case.kind for case in cases)]))
    return Explanation(
        status=state.status,
        headline=_live_headline(state, blockers, counts),
        since_ms=blockers[0].since_ms if blockers else state.last_ms,
        blockers=tuple(blockers),
        counts=counts,
        more_roots=max(0, len(roots) - bounds.roots),
        more_followers=max(0, len(followers) - bounds.followers),
        deadline=live.deadline_of(facts),
        reason=state.reason,
        failures_tolerated=state.tolerated,
        unread=ended.unread(state),
        dead_letters=state.dead_letters,
    )


def _ended(facts: ExplainInput) -> Explanation:
    state, limit = facts.state, facts.bounds.names
    blockers, cause, found = tuple(live.run_blockers(facts)), ended.first_cause(facts), ended.outcome_counts(facts)
    unblock, command = ended.way_on(state, found)
    undo = ended.not_undone(state)
    return Explanation(
        status=state.status,
        headline=_ended_headline(state, cause, blockers),
        since_ms=state.ended_ms,
        blockers=blockers,
        counts=dict(Counter(each.kind for each in blockers)),
        first_cause=cause,
        chain=() if cause is None else ended.chain_of(cause, found, state.peek(cause.node)),
        reason=state.reason,
        failures_tolerated=state.tolerated,
        tolerated=found.tolerated,
        unread=ended.unread(state),
        dead_letters=state.dead_letters,
        rollback=state.rollback,
        left=ended.Sample(count=len(state.undo_left), names=state.undo_left[:limit]),
        left_error=None if undo is None else shown(undo.error),
        warnings=dead_ends(facts.flow, state),
        unblock=unblock,
        command=command,
    )


_BUILDERS: dict[str, BlockerBuilder] = {
    "worker": live.unclaimed,
    "lease": live.leased,
    "retry": live.backing_off,
    "pause": live.paused,
    "missing": live.missing,
    "items": live.items_of,
    "timer": live.timer,
    "person": live.approval_of,
    "signal": live.signal,
    "child": live.child_run,
    "wait": live.waits,
    "limit": upstream.behind_limit,
}
"""One builder per kind; `edge`, `join` and `loop` share a search, so `_live` adds them."""
