"""Handler, NodeContext, outcomes, Fail; description of exceptions.

What a node type is made of: a description for the compiler and a function for the worker.

A handler gets a `NodeContext` and ends with one of the outcomes below. It never sees templates, tokens or
the state. It may be a plain function (called in the loop's thread, so it must not block) or return an
awaitable. An exception becomes a failure; `Fail` is the way to say which one.

What is known of an exception once it has been caught: always text, whatever it holds or does when it is looked at.

Exceptions of foreign code may raise when they are asked for their message, hold megabytes, or be their own cause.
They are described where they are caught, so that the description can also travel from another process.
"""

from __future__ import annotations

import inspect
import logging
import re
import traceback
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Literal, Protocol, overload

import msgspec

from tidemill.kernel.model import NodeType
from tidemill.stores.contract import Statement


class Return(msgspec.Struct, frozen=True, gc=False):
    """The visit has a value. `next_nodes` is an agent's choice, where the branch asks for one."""

    value: Any
    next_nodes: tuple[str, ...] | None = None
    statement: Statement | None = None
    """What the store is to do in the same transaction in which it records the value."""


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


_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEDIA_TYPE = re.compile(rf'{_TOKEN}/{_TOKEN}(?: *; *{_TOKEN}=(?:{_TOKEN}|"[^"\\]*"))*')
MEDIA_TYPE_LENGTH_MAX = 255


def is_media_type(text: str) -> bool:
    """Whether a text names a kind of content, such as `image/png` or `text/csv; charset=utf-8`."""
    return len(text) <= MEDIA_TYPE_LENGTH_MAX and text.isprintable() and _MEDIA_TYPE.fullmatch(text) is not None


class Fail(Exception):
    """The attempt failed in a way its author understands."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        retry_after_ms: int | None = None,
        hint: str = "",
        unknown_outcome: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms
        self.hint = hint
        self.unknown_outcome = unknown_outcome
        """Nobody knows whether the effect has happened: a node that is delivered at most once is not tried again."""


class CapabilityMissing(Fail):
    """A process does not have what the node needs, and another one may.

    The job is left to other workers as long as there are some; where there are none, it is a failure like any other.
    """


Ended = Return | Pause | Skip

Checkpointer = Callable[[Any], Awaitable[None]]
Reader = Callable[[Any], Awaitable[bytes]]


class ProgressSink(Protocol):
    """How an attempt makes itself heard while it runs. Everything here may be called from any thread."""

    def chunk(self, value: Any) -> None:
        """Show followers a part of the result."""
        ...

    def progress(self, fraction: float | None, message: str) -> None:
        """Show followers how far it has come; never an event."""
        ...

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` if the attempt no longer counts."""
        ...

    def folded(self) -> Any:
        """All parts that were shown, as one value: a string if all are strings, otherwise a list."""
        ...


class Cancelled(Exception):
    """The attempt no longer counts: its run was cancelled, its time is up, or its lease is lost."""


class NullSink:
    """The voice of a context that nobody listens to, as in a test of a handler."""

    def chunk(self, value: Any) -> None: ...

    def progress(self, fraction: float | None, message: str) -> None: ...

    def raise_if_cancelled(self) -> None: ...

    def folded(self) -> Any:
        return []


class NodeContext(msgspec.Struct):
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
    at_most_once: bool = False
    """The node would rather fail than have an effect twice: repeat nothing that may have arrived."""
    given: Callable[[], Any] = dict
    """Where `inputs` come from."""
    voice: ProgressSink = NullSink()
    secrets: Mapping[str, str] = {}
    """Secrets by name. Their values are masked in whatever the attempt leaves behind."""

    @property
    def effect_key(self) -> str:
        """The same for every attempt at this activation: hand it to receivers that can tell repetitions apart."""
        key = f"{self.run_id}/{self.node}/{self.visit}/{self.index}"
        return f"{key}/undo" if self.undoing else key

    @property
    def inputs(self) -> Any:
        """What the run was started with; a copy."""
        return self.given()

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines are kept with the attempt."""
        where = {"run": self.run_id, "node": self.node, "visit": self.visit, "attempt": self.attempt}
        return logging.LoggerAdapter(NODE_LOG, where)

    def stream(self, chunk: Any) -> None:
        """Show a part of the result, a JSON value, to whoever follows the run. Only the whole result is kept."""
        self.voice.chunk(chunk)

    def progress(self, fraction: float | None = None, message: str = "") -> None:
        """Show how far the attempt has come, from 0 to 1."""
        self.voice.progress(fraction, message)

    def heartbeat(self) -> None:
        """Ask whether to go on: raises `Cancelled` when nobody wants the result any more.

        The lease is kept alive without it. It is for code in a thread, which nobody can cancel from outside.
        """
        self.voice.raise_if_cancelled()


NODE_LOG = logging.getLogger("tidemill.node")


def enable_node_log() -> None:
    """Have `context.log` make records of every level. A process calls it before it runs handlers.

    Without a level of its own the logger drops what the root logger drops. An operator's own level is respected.
    """
    if NODE_LOG.level == logging.NOTSET:
        NODE_LOG.setLevel(logging.DEBUG)


Call = Callable[[NodeContext], Ended | Awaitable[Ended]]
Step = Callable[[NodeContext], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Handler:
    """A node type with its code.

    `open` and `close` are called once per process, `open` before the first attempt. `prepare` and `finish` are called
    around each attempt, `finish` always.
    """

    type: NodeType
    call: Call
    open: Callable[[], Awaitable[None] | None] | None = None
    close: Callable[[], Awaitable[None] | None] | None = None
    prepare: Step | None = None
    finish: Step | None = None

    @property
    def has_lifecycle(self) -> bool:
        """Whether there is more to an attempt than the call; being closed one day costs it nothing."""
        return self.open is not None or self.prepare is not None or self.finish is not None


class NodeClass(Protocol):
    """A node type as an object: `type`, `call`, and any of the other steps of a `Handler`."""

    type: NodeType

    def call(self, context: NodeContext) -> Any: ...


def handler_of(node: Handler | NodeClass) -> Handler:
    """Make a handler of an object that describes a node type; what it returns may be a plain value."""
    if isinstance(node, Handler):
        return node
    steps = {name: getattr(node, name, None) for name in ("open", "close", "prepare", "finish")}
    return Handler(node.type, _ending(node.call), **steps)


@overload
def node_type(name: Callable[[NodeContext], Any], /) -> Handler: ...
@overload
def node_type(name: str | None = None, **described: Any) -> Callable[[Callable[[NodeContext], Any]], Handler]: ...
def node_type(name: Any = None, **described: Any) -> Any:
    """Make a node type of a function: `@tidemill.node_type("shout", config_schema={…})`.

    Without a name it is the function's. The function gets the attempt's context and returns a JSON value, or one of the
    outcomes; it may be async. The keywords are those of `NodeType`.
    """

    def wrap(function: Any) -> Handler:
        called = getattr(function, "__name__", None) if name is None or name is function else name
        if not callable(function) or not called:
            raise TypeError(f"tidemill.node_type is for functions, and {function!r} is not a function with a name")
        words = {"description": inspect.getdoc(function) or "", **described}
        return Handler(NodeType(name=called, **words), _ending(function))

    if callable(name):
        return wrap(name)
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"tidemill.node_type takes the name of a node type or a function, not {name!r}")
    return wrap


def _ending(function: Callable[[NodeContext], Any]) -> Call:
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call_async(context: NodeContext) -> Ended:
            return ended(await function(context))

        return call_async

    @wraps(function)
    def call(context: NodeContext) -> Ended | Awaitable[Ended]:
        result = function(context)
        return _awaited(result) if inspect.isawaitable(result) else ended(result)

    return call


async def _awaited(result: Awaitable[Any]) -> Ended:
    return ended(await result)


def ended(result: Any) -> Ended:
    """Take what a function returned for an outcome: a plain value is a result."""
    return result if isinstance(result, (Return, Pause, Skip)) else Return(result)


MESSAGE_MAX = 2_000
NAME_MAX = 100
CAUSE_MAX = 500
TRACEBACK_MAX = 8_000
CAUSES_MAX = 8


class ExceptionInfo(Exception):
    """An exception of foreign code as it was described."""

    def __init__(
        self, kind: str, message: str, *, retryable: bool, causes: tuple[str, ...] = (), traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.kind = kind
        """The name of its class."""
        self.message = message
        self.retryable = retryable
        self.causes = causes
        self.traceback = traceback


def describe_exception(error: BaseException) -> ExceptionInfo:
    """Describe an exception. What is meant to end a program, such as `SystemExit`, is nothing to try again."""
    if isinstance(error, ExceptionInfo):
        return error
    return ExceptionInfo(
        truncate(type(error).__name__, NAME_MAX),
        truncate(text_of(error)),
        retryable=isinstance(error, Exception),
        causes=causes_of(error),
        traceback=_traceback(error),
    )


def truncate(said: object, limit: int = MESSAGE_MAX) -> str:
    """Whatever somebody said as text that can be stored: lone surrogates as question marks, and not too long.

    An ellipsis marks the cut: a mask looks there for what is left of a secret.
    """
    # A subclass of str may lie about itself, so it is asked for its characters only.
    text = str.__str__(str(said))[: limit + 1]
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def ending(said: str, limit: int) -> str:
    """The end of a text, for which the same holds."""
    clean = said[-limit - 1 :].encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= limit else "…" + clean[1 - limit :]


def text_of(error: BaseException) -> str:
    """The message of an exception, or that it has none to show."""
    try:
        return str(error) or type(error).__name__
    except BaseException:
        return f"{type(error).__name__} (its message cannot be shown)"


def causes_of(error: BaseException) -> tuple[str, ...]:
    """What is behind an exception, the nearest first: its notes, those it groups, what led to it; each once."""
    found, seen, sought = _notes(error), {id(error)}, _behind(error)
    while sought and len(found) < CAUSES_MAX:
        cause = sought.pop(0)
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        if isinstance(cause, ExceptionInfo):
            found += [truncate(f"{cause.kind}: {cause.message}", CAUSE_MAX), *cause.causes]
            continue
        found += [truncate(f"{type(cause).__name__}: {text_of(cause)}", CAUSE_MAX), *_notes(cause)]
        sought = _behind(cause) + sought
    return tuple(found[:CAUSES_MAX])


def _behind(error: BaseException) -> list[BaseException]:
    grouped = error.exceptions[:CAUSES_MAX] if isinstance(error, BaseExceptionGroup) else ()
    cause = error.__cause__ or error.__context__
    return [*grouped, *([] if cause is None else [cause])]


def _notes(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", ())
    listed = notes[:CAUSES_MAX] if isinstance(notes, list) else ()
    return [truncate(f"note: {note}", CAUSE_MAX) for note in listed if isinstance(note, str)]


def _traceback(error: BaseException) -> str:
    try:
        return ending("".join(traceback.format_exception(error)), TRACEBACK_MAX)
    except BaseException:
        return ""
