"""The public contract for authors of node types: `Handler`, `NodeContext`, the outcomes, `Fail`.

A handler gets a `NodeContext` and ends with an outcome or an exception; it never sees templates, tokens or the state.
A plain function is called in the event loop's thread, so it must not block; an async one is awaited.

Exceptions of foreign code may raise when asked for their message, hold megabytes, or be their own cause. They are
described as bounded text where they are caught, so that the description can also come from another process.
Every name here is public API. No handler and nothing of the engine belongs here.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
import traceback
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, Literal, Protocol, overload

import msgspec

from tidemill.kernel.model import NodeType
from tidemill.kernel.spending import Spend
from tidemill.stores.contract import Statement


class Done(msgspec.Struct, frozen=True, gc=False):
    """The visit succeeded. `next_nodes` is an agent's choice of branches, where the node has such a branch."""

    value: Any
    next_nodes: tuple[str, ...] | None = None
    statement: Statement | None = None
    """A statement that the store executes in the transaction that records the value."""


class ApprovalRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An approval request."""

    title: str
    description: str = ""
    form: Any = None
    """JSON Schema of the form that approvers fill in."""
    approvers: tuple[str, ...] = ()
    """`user:…` and `role:…`; empty is anyone."""
    quorum: int = 1
    four_eyes: bool = False
    timeout_ms: int | None = None
    on_timeout: Literal["approve", "reject", "escalate", "fail"] = "fail"
    escalate_to: tuple[str, ...] = ()
    url: str = ""


class ChildRun(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A child run; its outputs end the wait."""

    workflow: str
    inputs: Any = None
    close: Literal["cancel", "abandon"] = "cancel"
    """What happens to the child run when its parent no longer waits for it."""
    labels: dict[str, str] = {}
    budget: dict[str, float] | None = None
    """What it may spend on language models: `calls`, `tokens`, `money`; None is all that the run has left."""
    key: str = ""
    """Tells the child runs of one visit apart: a letter, then letters, digits, - and _."""
    failure: Literal["fail", "return"] = "fail"
    """Whether a failed child fails the visit, or is the result of a wait with `resume`: `{"$child_failed": …}`."""


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Wait for a timer, a signal, an approval or a child run, without occupying a worker."""

    on: str
    name: str = ""
    for_ms: int | None = None
    until_ms: int | None = None
    """An absolute time, instead of `for_ms`."""
    resume: bool = False
    """Call the handler again after the wait, with its result in `context.resumed`."""
    approval: ApprovalRequest | None = None
    child: ChildRun | None = None


class Skip(msgspec.Struct, frozen=True, gc=False):
    """End the visit as skipped."""

    reason: str


class Blob:
    """Bytes that a handler returns, alone or inside a JSON value; they may come from a file or an iterator.

    The worker stores them by content before it commits the result, in which they are replaced by a description:
    `{"$blob": digest, "size": …, "media_type": …, "name": …}`. Not a struct, because the value encoder would
    encode one as a JSON object.
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
        """Exempt it from garbage collection."""


_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEDIA_TYPE = re.compile(rf'{_TOKEN}/{_TOKEN}(?: *; *{_TOKEN}=(?:{_TOKEN}|"[^"\\]*"))*')


def is_media_type(text: str) -> bool:
    """Whether a text is a media type, such as `image/png` or `text/csv; charset=utf-8`."""
    return len(text) <= 255 and text.isprintable() and _MEDIA_TYPE.fullmatch(text) is not None


class Fail(Exception):
    """The attempt failed with a known error code."""

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
        self.code, self.message, self.hint = code, message, hint
        self.retryable, self.retry_after_ms = retryable, retry_after_ms
        self.unknown_outcome = unknown_outcome
        """The effect may have happened: a node with at-most-once delivery is not retried."""


class CapabilityMissing(Fail):
    """The worker lacks something: it releases the job to others; if there are none, the attempt fails.

    Raise it before anything is done: a job that was released counts as one that no worker has begun.
    """


HandlerOutcome = Done | Wait | Skip


class PendingOutcome(asyncio.Future["HandlerOutcome"]):
    """The outcome of a call that another thread makes: a handler may return it instead of a coroutine.

    Cancelling it is final: what the thread still returns is ignored. So the engine waits for it without a task.
    """


# Names of version 0.1, for one more release.
Return, Pause, Asked, Child = Done, Wait, ApprovalRequest, ChildRun

Checkpointer = Callable[[Any], Awaitable[None]]
Reader = Callable[[Any], Awaitable[bytes]]


class Appender(Protocol):
    async def __call__(self, record: Any, *, reserve: Spend | None = None, spent: Spend | None = None) -> None:
        """Add a record to those of this visit; it is durable when this returns.

        `reserve` sets an amount of the budget of the run aside for a call of a model, and `spent` says what the last
        call has spent. Raises `Fail` if nothing is left (`budget_exceeded`) or no model is asked because the run is
        paused (`run_paused`), and then adds nothing.
        """


class ProgressSink(Protocol):
    """Live output and cancellation of a running attempt. Every method may be called from any thread."""

    def chunk(self, value: Any) -> None:
        """Publish a part of the result to followers."""

    def progress(self, fraction: float | None, message: str) -> None:
        """Publish progress to followers; it is not recorded as an event."""

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` if the attempt no longer counts."""

    def folded(self) -> Any:
        """All published parts as one value: a string if all are strings, otherwise a list."""


class Cancelled(Exception):
    """The attempt no longer counts: its run was cancelled, its time is up, or its lease is lost."""


class NullSink:
    """Drops everything, as in a unit test of a handler."""

    def chunk(self, value: Any) -> None: ...

    def progress(self, fraction: float | None, message: str) -> None: ...

    def raise_if_cancelled(self) -> None: ...

    def folded(self) -> Any:
        return []


class NodeContext(msgspec.Struct):
    """Everything an attempt can read and do."""

    run_id: str
    node: str
    visit: int
    index: int
    attempt: int
    config: Any
    """Rendered: templates are evaluated and secrets inserted."""
    upstream: Mapping[str, Any]
    """Outputs of the parents whose edges were taken, by node id."""
    deadline_ms: int | None = None
    last_checkpoint: Any = None
    resumed: Any = None
    """Result of the wait that this handler requested, when it is called again."""
    checkpoint: Checkpointer | None = None
    read: Reader | None = None
    """Read the bytes of a blob of this run's tenant, by its description or digest."""
    undoing: bool = False
    """True when the handler is called to undo a visit."""
    at_most_once: bool = False
    """At-most-once delivery: do not resend a request that may have arrived."""
    given: Callable[[], Any] = dict
    voice: ProgressSink = NullSink()
    secrets: Mapping[str, str] = {}
    """Secrets by name. Their values are masked in everything that the attempt records."""
    workflow: str = ""
    """The name of the workflow."""
    timeout_ms: int | None = None
    """How long this attempt may take before it is cancelled."""
    append: Appender | None = None
    """For agents: add a record to the log of this visit. It uses up `resumed`."""
    appended: tuple[Any, ...] = ()
    """For agents: the records of this visit so far, also those of earlier attempts."""
    recalled: bool = False
    """For agents: the handler is called again after a wait, with its result in `resumed`."""
    routes: tuple[str, ...] = ()
    """The nodes that a branch of type `agent_driven` may choose from."""
    port: Any = None
    """For agents: what tools may ask of the engine (`tidemill.agents.port.AgentPort`)."""
    accounts: Any = None
    """For agents: session memories and the budget of the tenant (`tidemill.agents.memory.Accounts`)."""
    child_spent: Spend | None = None
    """For agents: what the child run has spent that it waited for, if no record says so yet."""
    traceparent: str = ""
    """The trace that the attempt belongs to, as W3C writes it; empty without tracing. Pass it on to what you call."""

    @property
    def forbidden_at(self) -> Callable[[str], str] | None:
        """Says which secret of this attempt may not be sent to an origin; for the clients of network services."""
        return getattr(self.secrets, "forbidden_at", None)

    @property
    def effect_key(self) -> str:
        """Equal for every attempt of this visit: pass it to receivers that deduplicate requests."""
        key = f"{self.run_id}/{self.node}/{self.visit}/{self.index}"
        return f"{key}/undo" if self.undoing else key

    @property
    def inputs(self) -> Any:
        """A copy of the run's inputs."""
        return self.given()

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines are stored with the attempt."""
        where = {"run": self.run_id, "node": self.node, "visit": self.visit, "attempt": self.attempt}
        return logging.LoggerAdapter(NODE_LOG, where)

    def stream(self, chunk: Any) -> None:
        """Publish a part of the result, a JSON value, to followers of the run. Only the whole result is stored."""
        self.voice.chunk(chunk)

    def progress(self, fraction: float | None = None, message: str = "") -> None:
        """Publish progress, from 0 to 1."""
        self.voice.progress(fraction, message)

    def heartbeat(self) -> None:
        """Raise `Cancelled` if the attempt no longer counts; for code in a thread, which cannot be cancelled."""
        self.voice.raise_if_cancelled()


NODE_LOG = logging.getLogger("tidemill.node")


def enable_node_log() -> None:
    """Let `context.log` create records of every level, unless the operator has set one; called before handlers run."""
    if NODE_LOG.level == logging.NOTSET:
        NODE_LOG.setLevel(logging.DEBUG)


Call = Callable[[NodeContext], HandlerOutcome | Awaitable[HandlerOutcome]]
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
    agent: bool = False
    """Its attempts append records, as those that ask models do: their start is recorded before the call."""
    captured: bool = True
    """What the call prints and logs is kept. Only code that does neither, as that of control nodes, goes without."""
    has_lifecycle: bool = field(init=False)
    """Whether an attempt needs more than the call; `close` costs an attempt nothing."""

    def __post_init__(self) -> None:
        steps = (self.open, self.prepare, self.finish)
        object.__setattr__(self, "has_lifecycle", any(step is not None for step in steps))


class NodeClass(Protocol):
    """A node type as an object: `type`, `call`, and optionally the other steps of a `Handler`."""

    type: NodeType

    def call(self, context: NodeContext) -> Any: ...


def handler_of(node: Handler | NodeClass) -> Handler:
    """Convert an object that describes a node type; its `call` may return a plain value."""
    if isinstance(node, Handler):
        return node
    steps: dict[str, Any] = {name: getattr(node, name, None) for name in ("open", "close", "prepare", "finish")}
    return Handler(node.type, _with_outcome(node.call), **steps)


@overload
def node_type(name: Callable[[NodeContext], Any], /) -> Handler: ...
@overload
def node_type(name: str | None = None, **described: Any) -> Callable[[Callable[[NodeContext], Any]], Handler]: ...
def node_type(name: Any = None, **described: Any) -> Any:
    """Make a node type of a function: `@tidemill.node_type("shout", config_schema={…})`.

    The default name is the function's. The function gets the attempt's context and returns a JSON value or an outcome;
    it may be async. The keywords are those of `NodeType`.
    """

    def wrap(function: Any) -> Handler:
        type_name = getattr(function, "__name__", None) if name is None or name is function else name
        if not callable(function) or not type_name:
            raise TypeError(f"tidemill.node_type is for functions, and {function!r} is not a function with a name")
        fields = {"description": inspect.getdoc(function) or "", **described}
        return Handler(NodeType(name=type_name, **fields), _with_outcome(function))

    if callable(name):
        return wrap(name)
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"tidemill.node_type takes the name of a node type or a function, not {name!r}")
    return wrap


def _with_outcome(function: Callable[[NodeContext], Any]) -> Call:
    if inspect.iscoroutinefunction(function):
        # The function's own coroutine is made when this one begins: an attempt may be cut off before.
        @wraps(function)
        async def begin(context: NodeContext) -> HandlerOutcome:
            return ended(await function(context))

        return begin

    @wraps(function)
    def call(context: NodeContext) -> HandlerOutcome | Awaitable[HandlerOutcome]:
        result = function(context)
        return _await_outcome(result) if inspect.isawaitable(result) else ended(result)

    return call


async def _await_outcome(result: Awaitable[Any]) -> HandlerOutcome:
    return ended(await result)


def ended(result: Any) -> HandlerOutcome:
    """Convert what a handler returned to an outcome: a plain value becomes `Done`."""
    return result if isinstance(result, (Done, Wait, Skip)) else Done(result)


# Description of exceptions.

MESSAGE_MAX = 2_000
CAUSE_MAX = 500
TRACEBACK_MAX = 8_000
CAUSES_MAX = 8


class ExceptionInfo(Exception):
    """The description of an exception of foreign code."""

    def __init__(
        self, kind: str, message: str, *, retryable: bool, causes: tuple[str, ...] = (), traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.kind = kind
        """The name of its class."""
        self.message, self.retryable = message, retryable
        self.causes, self.traceback = causes, traceback


def describe_exception(error: BaseException) -> ExceptionInfo:
    """Describe an exception. One that is meant to end a program, such as `SystemExit`, is not retryable."""
    if isinstance(error, ExceptionInfo):
        return error
    return ExceptionInfo(
        truncate(type(error).__name__, 100),
        truncate(text_of(error)),
        retryable=isinstance(error, Exception),
        causes=causes_of(error),
        traceback=_traceback(error),
    )


def truncate(value: object, limit: int = MESSAGE_MAX) -> str:
    """Convert to bounded text without lone surrogates; an ellipsis marks the cut, where masking looks for secrets."""
    # A subclass of str may override any method, so only its characters are used.
    text = str.__str__(str(value))[: limit + 1]
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def ending(text: str, limit: int) -> str:
    """The end of a text, cleaned and marked like `truncate`."""
    clean = text[-limit - 1 :].encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= limit else "…" + clean[1 - limit :]


def text_of(error: BaseException) -> str:
    """The message of an exception; a placeholder if `str()` raises."""
    try:
        return str(error) or type(error).__name__
    except BaseException:
        return f"{type(error).__name__} (its message cannot be shown)"


def causes_of(error: BaseException) -> tuple[str, ...]:
    """Notes, grouped exceptions and causes of an exception, nearest first, each once."""
    found, seen, pending = _notes(error), {id(error)}, _direct_causes(error)
    while pending and len(found) < CAUSES_MAX:
        cause = pending.pop(0)
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        if isinstance(cause, ExceptionInfo):
            found += [truncate(f"{cause.kind}: {cause.message}", CAUSE_MAX), *cause.causes]
            continue
        found += [truncate(f"{type(cause).__name__}: {text_of(cause)}", CAUSE_MAX), *_notes(cause)]
        pending = _direct_causes(cause) + pending
    return tuple(found[:CAUSES_MAX])


def _direct_causes(error: BaseException) -> list[BaseException]:
    grouped = error.exceptions[:CAUSES_MAX] if isinstance(error, BaseExceptionGroup) else ()
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return [*grouped, *([] if cause is None else [cause])]


def _notes(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", ())
    listed = notes[:CAUSES_MAX] if isinstance(notes, list) else ()
    return [truncate(f"note: {note}", CAUSE_MAX) for note in listed if isinstance(note, str)]


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARY = os.path.dirname(os.__file__)
_ENGINE = (
    *(os.path.join(folder, "") for folder in (_PACKAGE, f"{_LIBRARY}/asyncio", f"{_LIBRARY}/concurrent")),
    "<frozen ",
)
"""How the paths of files begin that call foreign code."""


def _traceback(error: BaseException) -> str:
    """The traceback, from the first frame of foreign code on."""
    try:
        found = traceback.TracebackException.from_exception(error, compact=True)
        _drop_engine_frames(found)
        _mark_changed_lines(found, error)
        return ending("".join(found.format()), TRACEBACK_MAX)
    except BaseException:
        return ""


def _drop_engine_frames(found: traceback.TracebackException) -> None:
    """Drop the frames before the first one of foreign code, also in causes; a traceback without such a one stays."""
    pending = [found]
    while pending:
        each = pending.pop()
        own = (at for at, frame in enumerate(each.stack) if not frame.filename.startswith(_ENGINE))
        del each.stack[: next(own, 0)]
        pending += [more for more in (each.__cause__, each.__context__, *(each.exceptions or ())) if more is not None]


CHANGED = "(the file has changed since this process loaded it: restart the worker)"
SOURCE_BYTES_MAX = 1_000_000


def _mark_changed_lines(found: traceback.TracebackException, error: BaseException | None) -> None:
    """Replace lines of files that no longer hold the code that ran: they are read from the file as it is now."""
    pending = [(found, error)]
    while pending:
        shown, raised = pending.pop()
        if raised is None:
            continue
        loaders = {
            frame.f_code: frame.f_globals.get("__loader__") for frame, _ in traceback.walk_tb(raised.__traceback__)
        }
        stale = {(code.co_filename, code.co_name) for code, loader in loaders.items() if _has_changed(code, loader)}
        for at, frame in enumerate(shown.stack):
            if (frame.filename, frame.name) in stale:
                shown.stack[at] = traceback.FrameSummary(frame.filename, frame.lineno, frame.name, line=CHANGED)
        more = [(shown.__cause__, raised.__cause__), (shown.__context__, raised.__context__)]
        grouped = raised.exceptions if isinstance(raised, BaseExceptionGroup) else ()
        more += zip(shown.exceptions or (), grouped, strict=False)
        pending += [(each, its) for each, its in more if each is not None]


def _has_changed(code: CodeType, loader: object) -> bool:
    # Other loaders may rewrite what they load, as pytest does.
    if (
        type(loader) is not SourceFileLoader
        or code.co_filename.startswith(_LIBRARY)
        or "site-packages" in code.co_filename
    ):
        return False
    try:
        about = os.stat(code.co_filename)
    except OSError:
        return False
    return about.st_size <= SOURCE_BYTES_MAX and code not in _codes_of(code.co_filename, about.st_mtime_ns)


@lru_cache(maxsize=64)
def _codes_of(path: str, _mtime_ns: int) -> frozenset[CodeType]:
    """All code in a source file; none of a file that is no Python any more."""
    try:
        with open(path, "rb") as file:
            pending = [compile(file.read(), path, "exec", dont_inherit=True)]
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    found = set[CodeType]()
    while pending:
        code = pending.pop()
        found.add(code)
        pending += [each for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(found)


def object_schema(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    """The schema of an object with these fields and no others."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
