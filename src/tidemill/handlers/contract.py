"""What a node type is made of: a description for the compiler and a function for the worker.

A handler gets a `NodeContext` and ends with one of the outcomes below. It never sees templates, tokens or
the state. It may be a plain function (called in the loop's thread, so it must not block) or return an
awaitable. An exception becomes a failure; `Fail` is the way to say which one.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from tidemill.kernel.model import NodeType


class Return(msgspec.Struct, frozen=True, gc=False):
    """The visit has a value. `next_nodes` is an agent's choice, where the branch asks for one."""

    value: Any
    next_nodes: tuple[str, ...] | None = None


class Asked(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is asked of people, and of whom."""

    title: str
    description: str = ""
    form: Any = None
    """A JSON Schema of what they fill in."""
    approvers: tuple[str, ...] = ()
    """`user:…` and `role:…`; empty is anyone."""
    quorum: int = 1
    four_eyes: bool = False
    timeout_ms: int | None = None
    on_timeout: Literal["approve", "reject", "escalate", "fail"] = "fail"
    escalate_to: tuple[str, ...] = ()
    url: str = ""


class Child(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Another workflow that is to be run; its outputs end the wait."""

    workflow: str
    inputs: Any = None
    close: Literal["cancel", "abandon"] = "cancel"
    """What becomes of it when nobody waits for it any more."""
    labels: dict[str, str] = {}


class Pause(msgspec.Struct, frozen=True, gc=False):
    """Wait, without holding a worker, for a timer or for something with a name."""

    on: str
    name: str = ""
    for_ms: int | None = None
    until_ms: int | None = None
    """A moment, instead of a time from now."""
    resume: bool = False
    """Call the handler again once the wait is over, with what it ended with in `context.resumed`."""
    approval: Asked | None = None
    """For `human`."""
    child: Child | None = None
    """For `child`."""


class Skip(msgspec.Struct, frozen=True, gc=False):
    """The visit turns out not to be needed."""

    reason: str


class Blob:
    """Bytes that a handler returns, alone or anywhere in a JSON value; they may come from a file or bit by bit.

    They are stored by content before anything is written down, and in their place stands a description:
    `{"$blob": digest, "size": …, "media_type": …, "name": …}`. Not a struct, because the encoder of values would
    take one for a JSON object.
    """

    __slots__ = ("data", "keep", "media_type", "name")

    def __init__(
        self,
        data: bytes | bytearray | memoryview | Path | Iterable[bytes] | AsyncIterable[bytes],
        media_type: str = "application/octet-stream",
        name: str = "",
        *,
        keep: bool = False,
    ) -> None:
        self.data, self.media_type, self.name = data, media_type, name
        self.keep = keep
        """Never collect it, not even when nothing refers to it any more."""


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


class Lacking(Fail):
    """A process does not have what the node needs, and another one may.

    The job is left to other workers as long as there are some; where there are none, it is a failure like any other.
    """


Ended = Return | Pause | Skip

Checkpointer = Callable[[Any], Awaitable[None]]
Reader = Callable[[Any], Awaitable[bytes]]


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
    resumed: Any = None
    """What the wait ended with that this handler had asked for, when it is called again."""
    checkpoint: Checkpointer | None = None
    read: Reader | None = None
    """The bytes behind the description of a `Blob`, or behind a digest, that this run's tenant has stored."""
    undoing: bool = False
    """The handler is called to undo what a visit did."""

    @property
    def effect_key(self) -> str:
        """The same for every attempt at this activation: hand it to receivers that can tell repetitions apart."""
        key = f"{self.run_id}/{self.node}/{self.visit}/{self.index}"
        return f"{key}/undo" if self.undoing else key


@dataclass(frozen=True, slots=True)
class Handler:
    """A node type with its code."""

    type: NodeType
    call: Callable[[NodeContext], Ended | Awaitable[Ended]]
