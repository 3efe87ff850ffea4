"""Jobs of a run: body codec, keys, and `expected_jobs`, the jobs the store should hold for a state.

A job is named after what it serves, so that inserting it twice does nothing and the reconciler can compare. Kinds:
`run` an activation, `wake` and `expire` (timers of a wait), `deadline`, `outputs`, `undo` (a compensation), and
messages to another run: start a `child`, `close` it, `report` to the parent. `maintain`, a task for a whole tenant, and
`fire`, the due time of a schedule, belong to no run. Also here: commands that settle a job without a handler. Pure; the
store's side of jobs is in `stores`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Literal

import msgspec

from tidemill.kernel.activation import DISPATCHED, QUEUED_ITEM, Activation
from tidemill.kernel.commands import AnyCommand, DeadlineReached, RequeueJob, TimerFired, WaitExpired
from tidemill.kernel.decide.edges_and_joins import owns_job
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.state import CompletedStep, State, peek_at

JOB_FORMAT = 1

JobKind = Literal[
    "run", "wake", "expire", "deadline", "outputs", "undo", "child", "close", "report", "maintain", "fire"
]  # fmt: skip

DISPATCHING: frozenset[JobKind] = frozenset({"run", "outputs", "child"})
"""Jobs that advance the run, as opposed to timers; a paused run has none of them."""

MESSAGES: frozenset[JobKind] = frozenset({"child", "close", "report"})
"""Messages to another run."""

UNLISTED: frozenset[JobKind] = frozenset({"close", "report"})
"""Messages that `expected_jobs` never lists; if one is lost, the reconciler of the other run repairs it."""

WITHOUT_RUN: frozenset[JobKind] = frozenset({"maintain", "fire"})
"""Jobs that belong to no run; their streams hold something else."""

SYSTEM_QUEUE = "system"
"""Timers and the rendering of outputs need no node type, so every worker claims this queue."""
MAINTENANCE_QUEUE = "maintenance"
"""Tasks for a whole tenant; every worker claims this queue, too."""


class JobBody(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    kind: JobKind
    node: str = ""
    visit: int = 0
    index: int = NOT_AN_ITEM
    v: int = JOB_FORMAT
    seq: int = 0
    """The run's seq that called for the job; a worker with an older state must reload first."""
    attempt: int = 0
    """For `close`: the attempt that no longer waits for the child run."""
    child: str = ""
    """For `close`: the id of the child run; a job of an earlier version has none."""

    @property
    def key(self) -> str:
        return key_of(self.kind, self.node, self.visit, self.index)


class JobSpec(msgspec.Struct, frozen=True, gc=False):
    """A job to insert unless it exists."""

    key: str
    task: JobBody
    queue: str = SYSTEM_QUEUE
    priority: int = 5
    ready_at_ms: int = 0
    caps: tuple[str, ...] = ()
    """Names of concurrency limits that count this job while a worker holds it."""


def cap_of(type_key: str) -> str:
    return f"type:{type_key}"


LIMITED = ("queue", "type", "workflow", "label")
"""What a concurrency limit can name."""


def limits_of(limits: Mapping[str, int], tenant: str, flow: Workflow, state: State, key: str, queue: str) -> list[str]:
    """The caps of the limits that hold for a job, each with its bound. Only jobs that call a handler are limited.

    Queues and types are shared by all tenants; workflows and labels are a tenant's own.
    """
    kind, _, rest = key.partition("/")
    node = flow.by_id.get(rest.rsplit("/", 2)[0]) if kind in ("run", "undo") else None
    if node is None:
        return []
    type_ = node.compensator.type if kind == "undo" and node.compensator is not None else node.type
    named = {f"queue:{queue}": "", f"type:{type_.partition('@')[0]}": "", f"workflow:{state.workflow}": f"{tenant}/"}
    caps = [f"{scope}{name}<={limits[name]}" for name, scope in named.items() if name in limits]
    labels = ((label, value) for label, value in state.labels.items() if f"label:{label}" in limits)
    return [*caps, *(f"{tenant}/label:{label}={value}<={limits[f'label:{label}']}" for label, value in labels)]


def key_of(kind: JobKind, node: str = "", visit: int = 0, index: int = NOT_AN_ITEM) -> str:
    return f"{kind}/{node}/{visit}/{index}"


def run_job(node: Node, visit: int, index: int = NOT_AN_ITEM, ready_at_ms: int = 0) -> JobSpec:
    task = JobBody("run", node.id, visit, index)
    caps = (cap_of(node.type),) if node.capped else ()
    return JobSpec(f"run/{node.id}/{visit}/{index}", task, node.queue, node.priority, ready_at_ms, caps)


def system_job(
    kind: JobKind, ready_at_ms: int = 0, node: str = "", visit: int = 0, index: int = NOT_AN_ITEM
) -> JobSpec:
    task = JobBody(kind, node, visit, index)
    return JobSpec(task.key, task, ready_at_ms=ready_at_ms)


def close_job(node: str, visit: int, index: int, attempt: int, child: str) -> JobSpec:
    task = JobBody("close", node, visit, index, attempt=attempt, child=child)
    return JobSpec(task.key, task)


def wait_jobs(node: str, visit: int, index: int, act: Activation) -> Iterator[JobSpec]:
    """Jobs of a waiting activation: the earlier of its timers, and the message that starts its child run."""
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
    node = flow.by_id[undo.node]
    task = JobBody("undo", undo.node, undo.visit, undo.index)
    return JobSpec(task.key, task, node.queue, node.priority, undo.retry_at_ms or 0)


def expected_jobs(flow: Workflow, state: State) -> Iterator[JobSpec]:
    """Every job that should exist for a run; a paused run has only timers and back-offs."""
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
        visit = state.peek(node.id)
        paused = state.status == "PAUSED"
        if visit.status == "WAITING" or owns_job(visit):
            yield from _jobs_at(node, visit.visit, NOT_AN_ITEM, visit, paused)
        if visit.map is not None:
            for index in range(visit.map.next):
                yield from _jobs_at(node, visit.visit, index, visit.map.get(index) or QUEUED_ITEM, paused)


def _jobs_at(node: Node, visit: int, index: int, act: Activation, paused: bool) -> Iterator[JobSpec]:
    if act.status == "WAITING":
        waits = wait_jobs(node.id, visit, index, act)
        yield from (job for job in waits if not (paused and job.task.kind in DISPATCHING))
    elif act.status in DISPATCHED and not (paused and act.retry_at_ms is None):
        yield run_job(node, visit, index, act.retry_at_ms or 0)


_ENCODE = msgspec.msgpack.Encoder().encode
_FIELDS_BEFORE_SEQ = attrgetter("kind", "node", "visit", "index", "v")


def body_of(task: JobBody, seq: int) -> bytes:
    """The body of a job that the run's event of this seq called for; `child`, which is newer, only where it is set."""
    fields = (*_FIELDS_BEFORE_SEQ(task), seq, task.attempt)
    return _ENCODE((*fields, task.child) if task.child else fields)


_TASK = msgspec.msgpack.Decoder(JobBody)
_NEWER = JobBody("run", v=JOB_FORMAT + 1)


def task_of(body: bytes) -> JobBody:
    """Decode a job's body; one of a newer version gets a newer format number, so that this worker leaves it alone.

    That is one of an unknown kind, of a newer format, with more fields than there are here, or an unreadable one.
    """
    try:
        return _TASK.decode(body)
    except msgspec.MsgspecError:
        return _NEWER


def shelved(task: JobBody) -> RequeueJob:
    """The command that puts back a job that must not run now."""
    return RequeueJob(node=task.node, visit=task.visit, index=task.index, kind=task.kind)


def timer_of(task: JobBody) -> AnyCommand:
    if task.kind == "deadline":
        return DeadlineReached()
    kind = TimerFired if task.kind == "wake" else WaitExpired
    return kind(node=task.node, visit=task.visit, index=task.index)


def may_run(task: JobBody, state: State) -> bool:
    """Whether a job may run now; after the end of a run only messages and compensations do."""
    if task.kind == "child" and state.status == "PAUSED":
        return False
    return state.live or task.kind in ("deadline", "undo") or task.kind in MESSAGES


def begun_elsewhere(state: State, task: JobBody, token: int) -> bool:
    """Whether an attempt was started under another lease; with at-most-once delivery it is lost."""
    act = peek_at(state.peek(task.node), task.index)
    return act is not None and act.running and act.token != token
