"""What concerns the run as a whole: a pause, the rendering of its outputs, its deadline, its rollback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from tidemill.kernel.explain.active import RESUME, Help, holder, start_worker
from tidemill.kernel.explain.blockers import AnyBlocker, Deadline, Missing, Need, Outputs, Pause, Rollback, shown
from tidemill.kernel.explain.scene import JobFact, Scene, label
from tidemill.kernel.jobs import key_of
from tidemill.kernel.state import Undo

_AUDIT = "the next audit puts it back; nothing is lost"


def of_the_run(scene: Scene) -> Iterator[AnyBlocker]:
    """What holds the whole run up, or is its only business left."""
    state = scene.state
    if scene.paused:
        why = f": {state.reason}" if state.reason else ""
        yield Pause(
            status=state.status,
            reason=state.reason,
            words=f"the run is paused{why}",
            unblock="resume the run",
            command=RESUME,
        )
    if state.rollback == "running":
        yield _rollback(scene)
    if state.live and state.deadline_ms is not None and key_of("deadline") not in scene.jobs:
        yield _lost_job(scene, key_of("deadline"), "its deadline")
    if state.live and state.rendering:
        yield _outputs(scene)


def _lost_job(scene: Scene, key: str, what: str) -> Missing:
    words = f"{what} calls for a job that the store does not have: {key}"
    return Missing(job=key, status=scene.state.status, since_ms=scene.state.last_ms, words=words, unblock=_AUDIT)


def _outputs(scene: Scene) -> Outputs | Missing:
    state, job = scene.state, scene.jobs.get(key_of("outputs"))
    common: dict[str, Any] = {"status": state.status, "since_ms": state.last_ms}
    if job is not None and scene.holds(job):
        told, unblock, _ = holder(scene, job, "renders the outputs of the run")
        return Outputs(owner=job.owner, until_ms=job.lease_expires_at_ms, words=told, unblock=unblock, **common)
    if scene.paused:
        words = "the outputs are still to be rendered, but the run is paused"
        return Outputs(words=words, unblock="resume the run", command=RESUME, root=False, **common)
    if job is None:
        return _lost_job(scene, key_of("outputs"), "the rendering of the outputs")
    need = scene.need(job)
    told, unblock, command = start_worker(need, job.queue, "", lacking=job.unread)
    words = f"the outputs of the run are still to be rendered: {told}"
    return Outputs(need=need, words=words, unblock=unblock, command=command, **common)


def deadline_of(scene: Scene) -> Deadline | None:
    """When the run fails whatever it waits for."""
    state = scene.state
    if not state.live or state.deadline_ms is None:
        return None
    passed = state.deadline_ms <= scene.now
    return Deadline(
        status=state.status,
        since_ms=state.created_ms,
        until_ms=state.deadline_ms,
        root=False,
        words="the deadline has passed and the run is about to fail" if passed else "the run has a deadline",
        unblock="a retry after it has failed gives it a fresh deadline",
    )


def _rollback(scene: Scene) -> Rollback:
    state, most = scene.state, scene.bounds.names
    steps, at = len(state.undo_order), state.undo_at
    undo = state.undo.get(state.undo_order[at]) if at < steps else None
    failed = [
        key for key in state.undo_order[:at] if (gone := state.undo.get(key)) is not None and gone.status != "done"
    ]
    left = (*failed, *state.undo_left)
    common: dict[str, Any] = {
        "step": min(at + 1, steps),
        "steps": steps,
        "left": left[:most],
        "left_count": len(left),
        "status": state.status,
    }
    so_far = f"; {len(left)} will be left as they are" if left else ""
    if undo is None:
        words = f"the run is being rolled back{so_far}"
        return Rollback(compensator="", attempt=0, max_attempts=0, words=words, unblock=_AUDIT, **common)
    return _step(scene, undo, so_far, common)


def _step(scene: Scene, undo: Undo, so_far: str, common: dict[str, Any]) -> Rollback:
    node = scene.flow.by_id.get(undo.node)
    compensator = None if node is None else node.compensator
    job = scene.jobs.get(key_of("undo", undo.node, undo.visit, undo.index))
    type_ = "" if compensator is None else compensator.type
    need, (told, unblock, command) = _state_of_step(scene, undo, job, type_)
    held = job is not None and need == ""
    what = f"step {common['step']} of {common['steps']} undoes {label(undo.node, undo.visit, undo.index)}"
    return Rollback(
        node=undo.node,
        visit=undo.visit,
        index=undo.index,
        since_ms=scene.state.last_ms,
        until_ms=undo.retry_at_ms if need == "retry" else job.lease_expires_at_ms if job is not None and held else None,
        compensator=type_,
        attempt=undo.attempt + 1,
        max_attempts=0 if compensator is None else compensator.retry.max_attempts,
        owner=job.owner if job is not None and held else "",
        need=need,
        error=shown(undo.error),
        words=f"the run is being rolled back: {what} with {type_ or 'nothing'}, {told}{so_far}",
        unblock=unblock,
        command=command,
        **common,
    )


def _state_of_step(
    scene: Scene, undo: Undo, job: JobFact | None, type_: str
) -> tuple[Need | Literal["", "retry", "missing"], Help]:
    """Why nobody works on the step (empty if somebody does), in words, with what helps."""
    if job is None:
        return "missing", Help("but its job is missing", _AUDIT)
    if scene.holds(job):
        return "", holder(scene, job, "works on it")
    if undo.retry_at_ms is not None and max(undo.retry_at_ms, job.ready_at_ms) > scene.now:
        code = "" if undo.error is None else f" after {undo.error.code}"
        return "retry", Help(f"which is tried again{code}", "it is tried again by itself")
    need = scene.need(job, type_)
    elsewhere = scene.workers.elsewhere(job.queue, type_) if scene.workers is not None else ()
    return need, start_worker(need, job.queue, type_, elsewhere, job.unread or scene.lacking(job, type_))
