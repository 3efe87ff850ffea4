"""What a node type is made of: a description for the compiler and a function for the worker.

A handler gets a `NodeContext` and ends with one of the outcomes below. It never sees templates, tokens or
the state. It may be a plain function (called in the loop's thread, so it must not block) or return an
awaitable. An exception becomes a failure; `Fail` is the way to say which one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tidemill.kernel.model import NodeType


class Return(msgspec.Struct, frozen=True, gc=False):
    """The visit has a value. `next_nodes` is an agent's choice, where the branch asks for one."""

    value: Any
    next_nodes: tuple[str, ...] | None = None


class Pause(msgspec.Struct, frozen=True, gc=False):
    """Wait, without holding a worker, for a timer or for something with a name."""

    on: str
    name: str = ""
    for_ms: int | None = None


class Skip(msgspec.Struct, frozen=True, gc=False):
    """The visit turns out not to be needed."""

    reason: str


class Fail(Exception):
    """The attempt failed in a way its author understands."""

    def __init__(
        self, code: str, message: str, *, retryable: bool = False, retry_after_ms: int | None = None, hint: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms
        self.hint = hint


Ended = Return | Pause | Skip

Checkpointer = Callable[[Any], Awaitable[None]]


class NodeContext(msgspec.Struct, kw_only=True):
    """What one attempt is given."""

    run_id: str
    node: str
    visit: int
    index: int
    attempt: int
    config: Any
    """Rendered: templates are gone, secrets are in."""
    upstream: Mapping[str, Any]
    """Outputs of the parents whose edges were taken, by id."""
    deadline_ms: int | None = None
    last_checkpoint: Any = None
    checkpoint: Checkpointer | None = None

    @property
    def effect_key(self) -> str:
        """The same for every attempt at this activation: hand it to receivers that can tell repetitions apart."""
        return f"{self.run_id}/{self.node}/{self.visit}/{self.index}"


@dataclass(frozen=True, slots=True)
class Handler:
    """A node type with its code."""

    type: NodeType
    call: Callable[[NodeContext], Ended | Awaitable[Ended]]
