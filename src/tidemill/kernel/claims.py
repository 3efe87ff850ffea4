"""What a claimed job comes to that calls no handler: a timer that is due, a lost worker, a job to put back."""

from __future__ import annotations

from tidemill.kernel import deciding
from tidemill.kernel.activation import DISPATCHED
from tidemill.kernel.attempts import take_lost
from tidemill.kernel.commands import Expire, Lost, Shelve, Wake
from tidemill.kernel.jobs import DISPATCHING, Put, expected_jobs, key_of, run_job, system_job, wait_jobs
from tidemill.kernel.pen import Pen
from tidemill.kernel.routing import owns_job
from tidemill.kernel.standing import standing
from tidemill.kernel.state import peek_at
from tidemill.kernel.waits import wait_expired, wait_over

NULL = b"null"


def worker_lost(pen: Pen, lost: Lost) -> None:
    """Earlier leases on a job expired."""
    status = standing(pen.state, lost.node, lost.visit, lost.index, lost.token)
    if status == "current":
        take_lost(pen, pen.flow.by_id[lost.node], lost)


def timer_due(pen: Pen, timer: Wake | Expire) -> None:
    """A timer came due: it counts only while its visit still waits for it, and never before its time."""
    cell = pen.state.peek(timer.node)
    act = peek_at(cell, timer.index) if cell.visit == timer.visit else None
    if not pen.state.live or act is None or act.status != "WAITING" or act.wait is None:
        return
    node, wait = pen.flow.by_id[timer.node], act.wait
    due = wait.until_ms if isinstance(timer, Wake) else wait.expires_ms
    if due is None:
        return
    if due > pen.now:
        pen.put(system_job("wake" if isinstance(timer, Wake) else "expire", due, node.id, timer.visit, timer.index))
        return
    pen.cause = pen.state.seq
    if isinstance(timer, Wake):
        wait_over(pen, node, timer.index, NULL)
    elif act.approval is not None and act.approval.status == "pending":
        deciding.timed_out(pen, node, timer.index)
    else:
        wait_expired(pen, node, timer.index)


def shelve(pen: Pen, shelve: Shelve) -> None:
    """Put a job back that nobody may run now, if the state still calls for it; a paused run waits for its resume."""
    put = _called_for(pen, shelve)
    if put is None:
        return
    if pen.state.status == "RUNNING" or (pen.state.busy and put.task.kind not in DISPATCHING):
        pen.put(put)


def _called_for(pen: Pen, shelve: Shelve) -> Put | None:
    """The job as the state wants it, or None when nothing calls for it any more."""
    state = pen.state
    if shelve.kind == "outputs":
        return system_job("outputs") if state.rendering else None
    if shelve.kind == "deadline":
        return None if state.deadline_ms is None else system_job("deadline", state.deadline_ms)
    if shelve.kind == "undo":
        key = key_of("undo", shelve.node, shelve.visit, shelve.index)
        return next((put for put in expected_jobs(pen.flow, state) if put.key == key), None)
    cell, node = state.peek(shelve.node), pen.flow.by_id.get(shelve.node)
    act = peek_at(cell, shelve.index) if cell.visit == shelve.visit else None
    if act is None or node is None:
        return None
    if shelve.kind != "run":
        waits = wait_jobs(node.id, cell.visit, shelve.index, act)
        return next((put for put in waits if put.task.kind == shelve.kind), None)
    if act.status not in DISPATCHED or (act is cell and not owns_job(cell)):
        return None
    return run_job(node, cell.visit, shelve.index, act.retry_at_ms or 0)
