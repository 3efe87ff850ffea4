"""Messages between the two; files in results.

Messages between a worker and the process in which it calls functions.

The worker sends a `Call` and replies to what the function asks for; the process sends the function's output and at
last one `Answer`. A message is msgpack; JSON values travel as their texts.

Files in the result of a function that runs in a process: taken out of the value there, put back in the worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tidemill.blobs.payloads import NotJson
from tidemill.handlers.contract import (
    Blob,
    CapabilityMissing,
    ExceptionInfo,
    Fail,
    Pause,
    causes_of,
    describe_exception,
    truncate,
)

MARK = "$sent-blob"
"""The key of what stands in the place of a file on its way."""


class SentBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A `Blob` that travels: its bytes, or the path of a file that both processes can read."""

    data: bytes
    path: str
    media_type: str
    name: str
    keep: bool

    def blob(self) -> Blob:
        """The blob."""
        return Blob(Path(self.path) if self.path else self.data, self.media_type, self.name, keep=self.keep)


def taken_out(value: Any, refusal: NotJson) -> tuple[Any, list[SentBlob]]:
    """A value that can be written, and the files that were in it; raises `refusal` if they are not what was wrong."""
    found: list[SentBlob] = []

    def take(thing: Any) -> dict[str, int]:
        if not isinstance(thing, Blob):
            raise NotImplementedError
        found.append(_sent(thing))
        return {MARK: len(found) - 1}

    try:
        plain = msgspec.to_builtins(value, enc_hook=take)
    except (NotImplementedError, TypeError, ValueError, RecursionError):
        raise refusal from None
    if not found:
        raise refusal
    return plain, found


def put_back(value: Any, blobs: Sequence[SentBlob]) -> Any:
    """The value with its files."""
    match value:
        case {"$sent-blob": int(number)} if len(value) == 1 and 0 <= number < len(blobs):
            return blobs[number].blob()
        case dict():
            return {key: put_back(each, blobs) for key, each in value.items()}
        case list():
            return [put_back(each, blobs) for each in value]
    return value


def _sent(blob: Blob) -> SentBlob:
    data, path = b"", ""
    held: object = blob.data
    if isinstance(held, Path):
        path = str(held.absolute())
    elif isinstance(held, (bytes, bytearray, memoryview)):
        data = bytes(held)
    elif isinstance(held, Iterable) and not isinstance(held, str):
        data = b"".join(held)
    else:
        hint = "give it bytes, a pathlib.Path, or something that yields bytes"
        raise Fail("blob_invalid", "a blob of a function in a process holds bytes or names a file", hint=hint)
    return SentBlob(data=data, path=path, media_type=str(blob.media_type), name=str(blob.name), keep=bool(blob.keep))


FRAME_MAX = 288 << 20
"""The largest message that a worker accepts."""
RESULT_MAX = 256 << 20
"""Bytes of a result; a larger one belongs into a file."""
CODE_MAX = 100
OUT_OF_MEMORY_STATUS = 71
"""Exit status of a process that has no memory left to report that."""


class Call(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Call a function. What an attempt may never look at, such as its inputs, is asked for."""

    function: str
    run_id: str
    node: str
    visit: int
    index: int
    attempt: int
    config: bytes
    deadline_ms: int | None
    last_checkpoint: bytes
    resumed: bytes
    undoing: bool
    at_most_once: bool
    memory_mb: int | None
    log_level: int
    paths: list[str]


class Reply(msgspec.Struct, frozen=True, tag=True):
    """What was asked for; nothing if there is none."""

    value: bytes | None
    failed: Failed | None = None


class Ask(msgspec.Struct, frozen=True, tag=True):
    """The function wants something: `inputs`, `upstream`, `checkpoint`, `read` or `secret`."""

    what: str
    value: bytes


class Part(msgspec.Struct, frozen=True, tag=True):
    """A part of the result."""

    value: bytes
    blobs: list[SentBlob] = []
    """The files in it."""


class Progress(msgspec.Struct, frozen=True, tag=True):
    """How far the function has come."""

    fraction: float | None
    message: str


class Said(msgspec.Struct, frozen=True, tag=True):
    """Something was printed, to `stdout` or `stderr`."""

    source: str
    text: str


class Logged(msgspec.Struct, frozen=True, tag=True):
    """Something was logged."""

    name: str
    level: int
    text: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """The function returned a value; without one, the parts of the result are it."""

    value: bytes | None
    next_nodes: tuple[str, ...] | None = None
    blobs: list[SentBlob] = []
    """The files in the value."""
    retire: bool = False
    """The process has grown too large to be used again."""


class Paused(msgspec.Struct, frozen=True, tag=True):
    """The function waits."""

    pause: Pause


class Skipped(msgspec.Struct, frozen=True, tag=True):
    """The visit turns out not to be needed."""

    reason: str


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The function raised something that it understands, or that a worker does."""

    code: str
    message: str
    retryable: bool = False
    retry_after_ms: float | None = None
    hint: str = ""
    lacking: bool = False
    cause: Threw | None = None

    def error(self) -> Fail:
        """The exception."""
        make = CapabilityMissing if self.lacking else Fail
        after_ms = None if self.retry_after_ms is None else int(self.retry_after_ms)
        fail = make(self.code, self.message, retryable=self.retryable, retry_after_ms=after_ms, hint=self.hint)
        fail.__cause__ = None if self.cause is None else self.cause.error()
        return fail


class Threw(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The function raised anything else."""

    kind: str
    message: str
    retryable: bool
    causes: tuple[str, ...]
    traceback: str

    def error(self) -> ExceptionInfo:
        """What is known of the exception."""
        return ExceptionInfo(
            self.kind, self.message, retryable=self.retryable, causes=self.causes, traceback=self.traceback
        )


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """The function was told to stop, and did."""


Answer = Done | Paused | Skipped | Failed | Threw | Stopped
Message = Ask | Part | Progress | Said | Logged | Answer

_ENCODER = msgspec.msgpack.Encoder()


def packed(message: Message | Call | Reply) -> bytes:
    """Encode a message."""
    return _ENCODER.encode(message)


def unpacked(body: bytes) -> Message:
    """Decode a message of the process."""
    return _messages().decode(body)


def order_of(body: bytes) -> Call | Reply:
    """Decode a message of the worker."""
    return _orders().decode(body)


@cache
def _messages() -> msgspec.msgpack.Decoder[Message]:
    return msgspec.msgpack.Decoder(Message)


@cache
def _orders() -> msgspec.msgpack.Decoder[Call | Reply]:
    return msgspec.msgpack.Decoder(Call | Reply)


def failed_of(fail: Fail) -> Failed:
    """Write down a failure, whatever its author put into its fields."""
    after_ms: object = fail.retry_after_ms
    cause = fail.__cause__ or fail.__context__
    return Failed(
        code=truncate(fail.code, CODE_MAX) or "failed",
        message=truncate(fail.message),
        retryable=bool(fail.retryable),
        retry_after_ms=float(after_ms) if isinstance(after_ms, (int, float)) and after_ms == after_ms else None,
        hint=truncate(fail.hint or ""),
        lacking=isinstance(fail, CapabilityMissing),
        cause=None if cause is None else threw(cause),
    )


def threw(error: BaseException) -> Threw:
    """Write down any other exception."""
    raised = describe_exception(error)
    return Threw(
        kind=raised.kind,
        message=raised.message,
        retryable=raised.retryable,
        causes=causes_of(error),
        traceback=raised.traceback,
    )
