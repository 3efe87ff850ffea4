"""The jobs that a state calls for: what the store should hold for a run, as a pure function.

A job is named after the thing it serves, so inserting it twice does nothing and the audit can compare what is
there with what should be. There are five kinds: `run` an activation, `wake` a waiting visit, `expire` its
time-out, the run's `deadline`, and the rendering of its `outputs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.routing import owns_job
from tidemill.kernel.state import DISPATCHED, QUEUED_ITEM, Activation, Cell, State

JOB_FORMAT = 1

JobKind = Literal["run", "wake", "expire", "deadline", "outputs"]

DISPATCHING: frozenset[JobKind] = frozenset({"run", "outputs"})
"""Jobs that do the run's work, as opposed to timers: a paused run has none of them."""

SYSTEM_QUEUE = "system"
"""Timers and the rendering of outputs need no node type, so every worker takes them."""


class Task(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a job asks for; its body in the store."""

    kind: JobKind
    node: str = ""
    visit: int = 0
    index: int = NOT_AN_ITEM
    v: int = JOB_FORMAT

    @property
    def key(self) -> str:
        """The job's name within its run."""
        return key_of(self.kind, self.node, self.visit, self.index)


class Put(msgspec.Struct, frozen=True, gc=False):
    """A job to insert unless it is there."""

    key: str
    task: Task
    queue: str = SYSTEM_QUEUE
    priority: int = 5
    ready_at_ms: int = 0


def key_of(kind: JobKind, node: str = "", visit: int = 0, index: int = NOT_AN_ITEM) -> str:
    """The name of a job within its run."""
    return f"{kind}/{node}/{visit}/{index}"


def run_job(node: Node, visit: int, index: int = NOT_AN_ITEM, ready_at_ms: int = 0) -> Put:
    """The job that lets a worker make an attempt at an activation."""
    return Put(
        f"run/{node.id}/{visit}/{index}", Task("run", node.id, visit, index), node.queue, node.priority, ready_at_ms
    )


def system_job(kind: JobKind, ready_at_ms: int = 0, node: str = "", visit: int = 0, index: int = NOT_AN_ITEM) -> Put:
    """A timer, or the rendering of the outputs."""
    task = Task(kind, node, visit, index)
    return Put(task.key, task, ready_at_ms=ready_at_ms)


def wait_job(node: str, visit: int, index: int, act: Activation) -> Put | None:
    """The timer of a waiting activation: whichever of waking and expiry comes first, or none."""
    wait = act.wait
    if wait is None:
        return None
    if wait.until_ms is not None and (wait.expires_ms is None or wait.until_ms <= wait.expires_ms):
        return system_job("wake", wait.until_ms, node, visit, index)
    if wait.expires_ms is not None:
        return system_job("expire", wait.expires_ms, node, visit, index)
    return None


def expected_jobs(flow: Workflow, state: State) -> Iterator[Put]:
    """Every job that should exist for a live run. A paused run has its timers and back-offs only."""
    if not state.live:
        return
    if state.deadline_ms is not None:
        yield system_job("deadline", state.deadline_ms)
    if state.rendering and state.status == "RUNNING":
        yield system_job("outputs")
    for node in flow.nodes:
        yield from _jobs_of(node, state.peek(node.id), state.status == "PAUSED")


def _jobs_of(node: Node, cell: Cell, paused: bool) -> Iterator[Put]:
    job = _job_of(node, cell.visit, NOT_AN_ITEM, cell, paused) if cell.status == "WAITING" or owns_job(cell) else None
    if job is not None:
        yield job
    if cell.map is not None:
        for index in range(cell.map.next):
            job = _job_of(node, cell.visit, index, cell.map.at.get(index) or QUEUED_ITEM, paused)
            if job is not None:
                yield job


def _job_of(node: Node, visit: int, index: int, act: Activation, paused: bool) -> Put | None:
    if act.status == "WAITING":
        return wait_job(node.id, visit, index, act)
    if act.status not in DISPATCHED or (paused and act.retry_at_ms is None):
        return None
    return run_job(node, visit, index, act.retry_at_ms or 0)
