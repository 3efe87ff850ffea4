"""Jobs as a worker reads them: what their bytes ask for, and the commands that settle those that call no handler."""

from __future__ import annotations

import msgspec

from tidemill.engine.runs import Entry
from tidemill.kernel.commands import AnyCommand, DeadlineReached, Expire, Shelve, Wake
from tidemill.kernel.jobs import JOB_FORMAT, MESSAGES, Task
from tidemill.kernel.model import Node
from tidemill.kernel.standing import standing
from tidemill.kernel.state import State, peek_at
from tidemill.stores.contract import Lease

_TASK = msgspec.msgpack.Decoder(Task)


def task_of(body: bytes) -> Task:
    """What a job asks for; one that cannot be read was written by a newer version, so it is for somebody else."""
    try:
        return _TASK.decode(body)
    except msgspec.MsgspecError:
        return Task("run", v=JOB_FORMAT + 1)


def shelved(task: Task) -> Shelve:
    """Put a job back that must not be run now."""
    return Shelve(node=task.node, visit=task.visit, index=task.index, kind=task.kind)


def timer_of(task: Task) -> AnyCommand:
    """What a timer that has come due says."""
    if task.kind == "deadline":
        return DeadlineReached()
    kind = Wake if task.kind == "wake" else Expire
    return kind(node=task.node, visit=task.visit, index=task.index)


def may_run(task: Task, state: State) -> bool:
    """Whether a job can have a meaning: when a run has ended, only messages and its rollback are left."""
    if task.kind == "child" and state.status == "PAUSED":
        return False
    return state.live or task.kind in ("deadline", "undo") or task.kind in MESSAGES


def begun_elsewhere(node: Node, state: State, task: Task, lease: Lease) -> bool:
    """Whether an at-most-once attempt was announced under another lease: it may have happened, so it is lost."""
    if node.delivery != "at_most_once":
        return False
    act = peek_at(state.peek(task.node), task.index)
    return act is not None and act.running and act.token != lease.token


def seen_by(entry: Entry | None, task: Task, lease: Lease) -> bool:
    """Whether a cached state is recent enough to do a job: it has seen what called for it."""
    if entry is None or not task.seq or entry.state.seq < task.seq:
        return False
    if task.kind != "run":
        return task.kind != "outputs"
    return standing(entry.state, task.node, task.visit, task.index, lease.token) == "current"
