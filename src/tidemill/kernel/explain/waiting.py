"""Activations that wait for the world: a moment, people, a signal, another run, or whatever a handler asked for."""

from __future__ import annotations

from shlex import quote
from typing import Literal

from tidemill.kernel.approval import Approval
from tidemill.kernel.deciding import as_user
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.explain.active import place_of, start_worker, who
from tidemill.kernel.explain.blockers import Child, Need, Person, Signal, Timer, Wait
from tidemill.kernel.explain.scene import Scene
from tidemill.kernel.explain.survey import Case, expires_first
from tidemill.kernel.state import State

_THEN = {
    "approve": "it counts as approved",
    "reject": "it counts as rejected",
    "fail": "the visit fails",
}


def _item(case: Case) -> str:
    """The option that names an item of a map."""
    return f" --item {case.item}" if case.item != NOT_AN_ITEM else ""


def asleep(_: Scene, case: Case) -> Timer:
    """It waits for a moment."""
    wait = case.act.wait
    assert wait is not None, "whoever sleeps has a wait"
    expires = expires_first(wait)
    return Timer(
        wakes_ms=wait.until_ms,
        expires=expires,
        words=f"{who(case)} sleeps" + (", and its time-out comes before it would wake" if expires else ""),
        unblock="it wakes by itself" if not expires else "it times out by itself",
        **place_of(case, wait.since_ms, wait.expires_ms if expires else wait.until_ms),
    )


def undecided(scene: Scene, case: Case) -> Person:
    """People have to decide."""
    approval = case.act.approval
    assert approval is not None, "its kind was found by looking at its approval"
    approvers, voted = _entitled(approval), tuple(vote.by for vote in approval.votes)
    then = "fail" if approval.on_timeout == "escalate" and approval.escalated else approval.on_timeout
    told = f"{len(voted)} of {approval.quorum} votes" if approval.quorum > 1 else "no decision"
    expires = case.act.wait.expires_ms if case.act.wait is not None else approval.expires_ms
    asked = ", ".join(approvers[: scene.bounds.names]) or "anyone"
    next_ = _THEN.get(then, f"{', '.join(approval.escalate_to) or 'nobody'} is asked")
    return Person(
        title=approval.title,
        approvers=approvers,
        barred=_barred(approval, scene.state),
        quorum=approval.quorum,
        voted=voted,
        delegated=approval.delegated,
        escalated=approval.escalated,
        on_timeout=then,
        escalate_to=approval.escalate_to,
        url=approval.url,
        words=f"{who(case)} waits for people, with {told} so far: {approval.title}",
        unblock=f"{asked} may decide" + ("" if expires is None else f"; if nobody does in time, {next_}"),
        command=f"tidemill approvals decide {{run}} {case.node.id} approve{_item(case)}",
        **place_of(case, approval.requested_ms, expires),
    )


def _entitled(approval: Approval) -> tuple[str, ...]:
    """Who may decide, after everything that was passed on. Where anyone may, there is nobody to name."""
    if not approval.approvers:
        return ()
    found = dict.fromkeys(approval.approvers)
    for by, to in approval.delegated:
        found.pop(by, None)
        found[to] = None
    return tuple(found)


def _barred(approval: Approval, state: State) -> tuple[str, ...]:
    if not approval.four_eyes:
        return ()
    return tuple(dict.fromkeys(as_user(name) for name in (approval.requester, *state.patched_by) if name))


def listening(_: Scene, case: Case) -> Signal:
    """It waits for a signal."""
    wait = case.act.wait
    assert wait is not None, "whoever listens has a wait"
    return Signal(
        name=wait.name,
        words=f"{who(case)} waits for the signal {wait.name}",
        unblock=f"somebody sends the signal {wait.name}",
        command=f"tidemill runs signal {{run}} {quote(wait.name)}",
        **place_of(case, wait.since_ms, wait.expires_ms),
    )


def parent(scene: Scene, case: Case) -> Child:
    """It waits for another run."""
    wait, job = case.act.wait, case.job
    assert wait is not None, "whoever has a child has a wait"
    need: Need | Literal[""] = ""
    words, unblock = f"waits for its child run {wait.name}", "the child ends; ask what it waits for itself"
    command = f"tidemill why {quote(wait.name)}"
    if not wait.started and job is not None and not scene.holds(job):
        need = scene.need(job)
        told, unblock, command = start_worker(need, job.queue, "")
        if need == "value" and job.unread is not None:
            told, unblock = job.unread.message, job.unread.hint
        words = f"asked for a child run {wait.name} that nobody has started yet: {told}"
    return Child(
        child=wait.name,
        started=wait.started,
        need=need,
        words=f"{who(case)} {words}",
        unblock=unblock,
        command=command,
        **place_of(case, wait.since_ms, wait.expires_ms),
    )


def waits(_: Scene, case: Case) -> Wait:
    """It waits for something that only its handler understands."""
    wait = case.act.wait
    on, name = ("something without a name", "") if wait is None else (wait.on, wait.name)
    told = f"{on} {name}".strip() or "something without a name"
    return Wait(
        on=on,
        name=name,
        expires_ms=None if wait is None else wait.expires_ms,
        words=f"{who(case)} waits for {told}",
        unblock="whatever it waits for happens, or it is settled by hand",
        command=f"tidemill runs override {{run}} {case.node.id} --value VALUE{_item(case)}",
        **place_of(case, None if wait is None else wait.since_ms, None if wait is None else wait.until_ms),
    )
