"""Decisions in words: one row per event and per piece of work, as the tables spell them.

An activation is written `a`, `a#2` (second visit) or `a[3]` (item). Fields at their usual value are left out, and
times are relative to the moment of the decision.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.kernel import events as ev
from tidemill.kernel.decide.builder import Decision
from tidemill.kernel.jobs import JobSpec

Rows = list[str]


def shown(decision: Decision, now: int) -> Rows:
    """A decision in rows: events, then work."""
    work = decision.work
    return [
        *(event_row(event, now) for event in decision.events),
        *(f"drop {job_row(key)}" for key in work.drop),
        *(f"withdraw {job_row(key)}" for key in work.withdraw),
        *(_put_row(put, now) for put in work.put),
    ]


def _put_row(put: JobSpec, now: int) -> str:
    return f"put {job_row(put.key)}" + (f" at=+{put.ready_at_ms - now}" if put.ready_at_ms else "")


def job_row(key: str) -> str:
    """The name of a job in words."""
    kind, name, visit, index = key.split("/")
    return f"{kind} {_at(name, int(visit), int(index))}" if name else kind


def _at(name: str, visit: int, index: int = ev.NOT_AN_ITEM) -> str:
    return name + (f"#{visit}" if visit != 1 else "") + (f"[{index}]" if index != ev.NOT_AN_ITEM else "")


def event_row(event: ev.AnyEvent, now: int = 0) -> str:
    """One event in words."""
    kind = type(event).__name__
    words = [kind]
    if isinstance(event, ev.NodeEvent):
        words.append(_at(event.node, event.visit, event.index))
    words += [word for word in _words(event, now) if word]
    return " ".join(words)


def _words(event: ev.AnyEvent, now: int) -> Sequence[str]:
    match event:
        case ev.RunCreated():
            return (f"entries={','.join(event.entries)}", f"counter={event.counter}")
        case ev.RunCompleted():
            return (f"tolerated={event.tolerated}" if event.tolerated else "", _unread(event.unread))
        case ev.RunFailed():
            where = f"node={_at(event.node, event.visit)}" if event.node else ""
            return (where, f"code={event.error.code}", _unread(event.unread))
        case ev.RunCancelled():
            return (_unread(event.unread),)
        case ev.RunRepaired():
            return (
                f"restored={','.join(map(job_row, event.restored))}" if event.restored else "",
                f"dropped={','.join(map(job_row, event.dropped))}" if event.dropped else "",
            )
        case ev.LoopContinued():
            return (f"{event.node} entry={event.entry}", f"iteration={event.iteration}", f"body={','.join(event.body)}")
        case ev.NodeScheduled():
            until = f"until={event.until}" if event.until != ev.NOT_AN_ITEM else ""
            resumed = "" if event.resumed is None else "recalled" if event.recall else "resumed"
            return (until, "held" if event.held else "", resumed)
        case ev.NodeStarted():
            return (_attempt(event.attempt),)
        case ev.NodeCheckpointed():
            return (_attempt(event.attempt), f"value={event.value!r}")
        case ev.NodeExpanded():
            return (f"count={event.count}", f"window={event.window}")
        case ev.NodeWaiting():
            until = "" if event.until_ms is None else f"until=+{event.until_ms - now}"
            expires = "" if event.expires_ms is None else f"expires=+{event.expires_ms - now}"
            taken = f"signal={event.signal}" if event.signal else ""
            return (_attempt(event.attempt), f"on={event.on}", until, expires, taken)
        case ev.ResultDiscarded():
            return (f"outcome={event.outcome}", f"reason={event.reason}")
        case ev.DeadLettered():
            return (f"code={event.error.code}", f"attempts={event.attempts}")
        case ev.NodeCompleted():
            return (_attempt(event.attempt), *_ending(event))
        case ev.NodeFailed():
            retry = "" if event.retry_at_ms is None else f"retry=+{event.retry_at_ms - now}"
            how = "tolerated" if event.tolerated else ""
            return (_attempt(event.attempt), f"code={event.error.code}", retry, how, *_ending(event))
        case ev.NodeSkipped() | ev.NodeCancelled():
            return _ending(event)
        case _:
            return _wait_words(event, now)


def _wait_words(event: ev.AnyEvent, now: int) -> Sequence[str]:
    match event:
        case ev.ApprovalRequested() | ev.ApprovalEscalated():
            to = f"to={','.join(event.to)}" if isinstance(event, ev.ApprovalEscalated) else ""
            return (to, "" if event.expires_ms is None else f"expires=+{event.expires_ms - now}")
        case ev.ApprovalVoted() | ev.ApprovalReturned() | ev.ApprovalDecided():
            decision = f"decision={event.decision}" if isinstance(event, ev.ApprovalDecided) else ""
            return (decision, f"by={event.by}", f"for={event.on_behalf_of}" if event.on_behalf_of else "")
        case ev.ApprovalDelegated():
            return (f"by={event.by}", f"to={event.to}")
        case ev.SignalReceived():
            taker = f"taker={_at(event.node, event.visit, event.index)}" if event.node else ""
            return (f"{event.name}={event.signal}", taker)
        case ev.ChildStarted():
            return (f"child={event.child}",)
        case ev.ChildFinished():
            return (f"child={event.child}", f"status={event.status}" if event.status else "")
        case _:
            return ()


def _unread(names: Sequence[str]) -> str:
    return f"unread={','.join(names)}" if names else ""


def _attempt(number: int) -> str:
    return f"attempt={number}" if number != 1 else ""


def _ending(event: ev.NodeCompleted | ev.NodeFailed | ev.NodeSkipped | ev.NodeCancelled) -> Sequence[str]:
    """Edges and tokens; an item and an attempt that is tried again have none."""
    if event.index != ev.NOT_AN_ITEM or (isinstance(event, ev.NodeFailed) and event.retry_at_ms is not None):
        return ()
    escapes = ",".join(f"{source}>{to}" for source, to in event.dead_escapes)
    return (
        f"taken={','.join(event.taken)}" if event.taken else "",
        f"dead={','.join(event.dead)}" if event.dead else "",
        f"escapes={escapes}" if escapes else "",
        f"counter={event.counter}",
        "renders" if event.renders else "",
    )
