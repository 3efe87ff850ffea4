"""Job body codec, keys, expected_jobs(state); commands that settle a job without a handler.

The jobs that a state calls for: what the store should hold for a run, as a pure function.

A job is named after the thing it serves, so inserting it twice does nothing and the audit can compare what is
there with what should be. `run` an activation, `wake` a waiting visit, `expire` its time-out, the run's
`deadline`, the rendering of its `outputs`, and `undo` a completed visit. Three are messages to another run, taken
once: start a `child`, `close` one that nobody waits for any more, and `report` to the parent.

Jobs as a worker reads them: what their bytes ask for, and the commands that settle those that call no handler.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from tidemill.kernel.activation import DISPATCHED, QUEUED_ITEM, Activation
from tidemill.kernel.commands import AnyCommand, DeadlineReached, RequeueJob, TimerFired, WaitExpired
from tidemill.kernel.decide.routing import owns_job
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.state import CompletedStep, State, Visit, peek_at

JOB_FORMAT = 1

JobKind = Literal["run", "wake", "expire", "deadline", "outputs", "undo", "child", "close", "report"]

DISPATCHING: frozenset[JobKind] = frozenset({"run", "outputs", "child"})
"""Jobs that do the run's work, as opposed to timers: a paused run has none of them."""

MESSAGES: frozenset[JobKind] = frozenset({"child", "close", "report"})
"""Jobs that tell another run something."""

UNLISTED: frozenset[JobKind] = frozenset({"close", "report"})
"""Messages that no state calls for: once sent they are forgotten, so an audit has nothing to compare them with.
Should one be lost, the keeper of the run at the other end notices."""

SYSTEM_QUEUE = "system"
"""Timers and the rendering of outputs need no node type, so every worker takes them."""


class JobBody(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a job asks for; its body in the store."""

    kind: JobKind
    node: str = ""
    visit: int = 0
    index: int = NOT_AN_ITEM
    v: int = JOB_FORMAT
    seq: int = 0
    """The version of the run that called for the job: whoever knows less must look before doing it."""
    attempt: int = 0
    """For `close`: the attempt that no longer waits for the child."""

    @property
    def key(self) -> str:
        """The job's name within its run."""
        return key_of(self.kind, self.node, self.visit, self.index)


class JobSpec(msgspec.Struct, frozen=True, gc=False):
    """A job to insert unless it is there."""

    key: str
    task: JobBody
    queue: str = SYSTEM_QUEUE
    priority: int = 5
    ready_at_ms: int = 0
    caps: tuple[str, ...] = ()
    """Names under which jobs in hand are counted, where their number is bounded."""


def cap_of(type_key: str) -> str:
    """The name under which the nodes of a type are counted."""
    return f"type:{type_key}"


def key_of(kind: JobKind, node: str = "", visit: int = 0, index: int = NOT_AN_ITEM) -> str:
    """The name of a job within its run."""
    return f"{kind}/{node}/{visit}/{index}"


def run_job(node: Node, visit: int, index: int = NOT_AN_ITEM, ready_at_ms: int = 0) -> JobSpec:
    """The job that lets a worker make an attempt at an activation."""
    task = JobBody("run", node.id, visit, index)
    caps = (cap_of(node.type),) if node.capped else ()
    return JobSpec(f"run/{node.id}/{visit}/{index}", task, node.queue, node.priority, ready_at_ms, caps)


def system_job(
    kind: JobKind, ready_at_ms: int = 0, node: str = "", visit: int = 0, index: int = NOT_AN_ITEM
) -> JobSpec:
    """A timer, or the rendering of the outputs."""
    task = JobBody(kind, node, visit, index)
    return JobSpec(task.key, task, ready_at_ms=ready_at_ms)


def close_job(node: str, visit: int, index: int, attempt: int) -> JobSpec:
    """The message that an attempt no longer waits for its child."""
    task = JobBody("close", node, visit, index, attempt=attempt)
    return JobSpec(task.key, task)


def wait_jobs(node: str, visit: int, index: int, act: Activation) -> Iterator[JobSpec]:
    """What a waiting activation needs: whichever timer comes first, and the message that starts its child."""
    wait = act.wait
    if wait is None:
        return
    if wait.until_ms is not None and (wait.expires_ms is None or wait.until_ms <= wait.expires_ms):
        yield system_job("wake", wait.until_ms, node, visit, index)
    elif wait.expires_ms is not None:
        yield system_job("expire", wait.expires_ms, node, visit, index)
    if wait.on == "child" and not wait.started:
        yield system_job("child", 0, node, visit, index)


def undo_job(flow: Workflow, undo: CompletedStep) -> JobSpec:
    """The job that lets a worker undo a completed visit or item."""
    node = flow.by_id[undo.node]
    task = JobBody("undo", undo.node, undo.visit, undo.index)
    return JobSpec(task.key, task, node.queue, node.priority, undo.retry_at_ms or 0)


def expected_jobs(flow: Workflow, state: State) -> Iterator[JobSpec]:
    """Every job that should exist for a run. A paused one has its timers and back-offs only."""
    if state.rollback == "running" and state.undo_at < len(state.undo_order):
        undo = state.undo.get(state.undo_order[state.undo_at])
        if undo is not None:
            yield undo_job(flow, undo)
    if not state.live:
        return
    if state.deadline_ms is not None:
        yield system_job("deadline", state.deadline_ms)
    if state.rendering and state.status == "RUNNING":
        yield system_job("outputs")
    for node in flow.nodes:
        yield from _jobs_of(node, state.peek(node.id), state.status == "PAUSED")


def _jobs_of(node: Node, visit: Visit, paused: bool) -> Iterator[JobSpec]:
    if visit.status == "WAITING" or owns_job(visit):
        yield from _jobs_at(node, visit.visit, NOT_AN_ITEM, visit, paused)
    if visit.map is not None:
        for index in range(visit.map.next):
            yield from _jobs_at(node, visit.visit, index, visit.map.get(index) or QUEUED_ITEM, paused)


def _jobs_at(node: Node, visit: int, index: int, act: Activation, paused: bool) -> Iterator[JobSpec]:
    if act.status == "WAITING":
        waits = wait_jobs(node.id, visit, index, act)
        yield from (put for put in waits if not (paused and put.task.kind in DISPATCHING))
    elif act.status in DISPATCHED and not (paused and act.retry_at_ms is None):
        yield run_job(node, visit, index, act.retry_at_ms or 0)


_TASK = msgspec.msgpack.Decoder(JobBody)


def task_of(body: bytes) -> JobBody:
    """What a job asks for; one that cannot be read was written by a newer version, so it is for somebody else."""
    try:
        return _TASK.decode(body)
    except msgspec.MsgspecError:
        return JobBody("run", v=JOB_FORMAT + 1)


def shelved(task: JobBody) -> RequeueJob:
    """Put a job back that must not be run now."""
    return RequeueJob(node=task.node, visit=task.visit, index=task.index, kind=task.kind)


def timer_of(task: JobBody) -> AnyCommand:
    """What a timer that has come due says."""
    if task.kind == "deadline":
        return DeadlineReached()
    kind = TimerFired if task.kind == "wake" else WaitExpired
    return kind(node=task.node, visit=task.visit, index=task.index)


def may_run(task: JobBody, state: State) -> bool:
    """Whether a job can have a meaning: when a run has ended, only messages and its rollback are left."""
    if task.kind == "child" and state.status == "PAUSED":
        return False
    return state.live or task.kind in ("deadline", "undo") or task.kind in MESSAGES


def begun_elsewhere(node: Node, state: State, task: JobBody, token: int) -> bool:
    """Whether an at-most-once attempt was announced under another lease: it may have happened, so it is lost."""
    if node.delivery != "at_most_once":
        return False
    act = peek_at(state.peek(task.node), task.index)
    return act is not None and act.running and act.token != token
