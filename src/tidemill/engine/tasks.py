"""Jobs as a worker reads them: what their bytes ask for, and the commands that settle those that call no handler."""

from __future__ import annotations

import msgspec

from tidemill.kernel.commands import AnyCommand, DeadlineReached, Expire, Shelve, Wake
from tidemill.kernel.jobs import JOB_FORMAT, Task

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
