"""Messages between a worker and the child process in which it calls functions.

The worker sends a `Call` and replies to requests; the child sends the function's output and at last one `Answer`.
Messages are msgpack; JSON values are sent as JSON text, and blobs beside the value that refers to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidemill.blobs.payloads import NotJson, encode_value
from tidemill.handlers.contract import (
    Blob,
    CapabilityMissing,
    ExceptionInfo,
    Fail,
    Wait,
    causes_of,
    describe_exception,
    truncate,
)

# Blobs in values.

MARK = "$sent-blob"
"""The key of a placeholder for a blob."""


class SentBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A `Blob` in a message: its bytes, or the path of a file that both processes can read."""

    data: bytes
    path: str
    media_type: str
    name: str
    keep: bool

    def blob(self) -> Blob:
        return Blob(Path(self.path) if self.path else self.data, self.media_type, self.name, keep=self.keep)


def encode_with_blobs(value: Any) -> tuple[bytes, list[SentBlob]]:
    """The JSON text of a value with placeholders for its blobs, and the blobs; raises `NotJson`."""
    found: list[SentBlob] = []

    def replace(thing: Any) -> dict[str, int]:
        if not isinstance(thing, Blob):
            raise NotImplementedError
        found.append(_to_sent(thing))
        return {MARK: len(found) - 1}

    try:
        return encode_value(value), found
    except NotJson as refusal:
        try:
            plain = msgspec.to_builtins(value, enc_hook=replace)
        except (NotImplementedError, TypeError, ValueError, RecursionError):
            raise refusal from None
        if not found:
            raise
    return encode_value(plain), found


def restore_blobs(value: Any, blobs: Sequence[SentBlob]) -> Any:
    """Replace the placeholders of `encode_with_blobs` by the blobs."""
    match value:
        case {"$sent-blob": int(number)} if len(value) == 1 and 0 <= number < len(blobs):
            return blobs[number].blob()
        case dict():
            return {key: restore_blobs(each, blobs) for key, each in value.items()}
        case list():
            return [restore_blobs(each, blobs) for each in value]
    return value


def _to_sent(blob: Blob) -> SentBlob:
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


# Messages.

FRAME_MAX = 288 << 20
"""The largest message that a worker accepts."""
RESULT_MAX = 256 << 20
"""Bytes of a result; a larger one belongs in a file."""
CODE_MAX = 100
OUT_OF_MEMORY_STATUS = 71
"""Exit status of a process that has no memory left to report that."""


class Call(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Call a function. Values that it may never read, such as the inputs, are sent on request."""

    function: str
    run_id: str
    node: str
    visit: int
    index: int
    attempt: int
    config: bytes
    deadline_ms: int | None
    timeout_ms: int | None
    last_checkpoint: bytes
    resumed: bytes
    undoing: bool
    at_most_once: bool
    memory_mb: int | None
    log_level: int
    paths: list[str]


PLAIN_FIELDS = ("run_id", "node", "visit", "index", "attempt", "deadline_ms", "timeout_ms", "undoing", "at_most_once")
JSON_FIELDS = ("config", "last_checkpoint", "resumed")
"""The fields of a `Call` that are fields of the attempt's context too: as they are, and as JSON text."""


class Reply(msgspec.Struct, frozen=True, tag=True):
    """The reply to an `Ask`; None if there is no such value."""

    value: bytes | None
    failed: Failed | None = None


class Ask(msgspec.Struct, frozen=True, tag=True):
    """A request of the function: `inputs`, `names`, `upstream`, `checkpoint`, `read`, `secret` or `forbidden_at`."""

    what: str
    value: bytes


class Part(msgspec.Struct, frozen=True, tag=True):
    value: bytes
    blobs: list[SentBlob] = []


class Progress(msgspec.Struct, frozen=True, tag=True):
    fraction: float | None
    message: str


class PrintedText(msgspec.Struct, frozen=True, tag=True):
    """Text printed to `stdout` or `stderr`."""

    source: str
    text: str


class Logged(msgspec.Struct, frozen=True, tag=True):
    name: str
    level: int
    text: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """The function returned a value; None means the parts that it has sent."""

    value: bytes | None
    next_nodes: tuple[str, ...] | None = None
    blobs: list[SentBlob] = []
    retire: bool = False
    """The process has grown too large to be reused."""


class Paused(msgspec.Struct, frozen=True, tag=True):
    pause: Wait


class Skipped(msgspec.Struct, frozen=True, tag=True):
    reason: str


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The function raised `Fail`, or failed in a way that the child or worker recognises."""

    code: str
    message: str
    retryable: bool = False
    retry_after_ms: float | None = None
    hint: str = ""
    lacking: bool = False
    cause: Threw | None = None

    def error(self) -> Fail:
        make = CapabilityMissing if self.lacking else Fail
        after_ms = None if self.retry_after_ms is None else int(self.retry_after_ms)
        fail = make(self.code, self.message, retryable=self.retryable, retry_after_ms=after_ms, hint=self.hint)
        fail.__cause__ = None if self.cause is None else self.cause.error()
        return fail


class Threw(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The function raised another exception."""

    kind: str
    message: str
    retryable: bool
    causes: tuple[str, ...]
    traceback: str

    def error(self) -> ExceptionInfo:
        return ExceptionInfo(**msgspec.structs.asdict(self))


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """The function was told to stop, and did."""


Answer = Done | Paused | Skipped | Failed | Threw | Stopped
Message = Ask | Part | Progress | PrintedText | Logged | Answer

encode: Callable[[Message | Call | Reply], bytes] = msgspec.msgpack.Encoder().encode
decode_message: Callable[[bytes], Message] = msgspec.msgpack.Decoder(Message).decode
"""Decode a message of the child."""
decode_order: Callable[[bytes], Call | Reply] = msgspec.msgpack.Decoder(Call | Reply).decode
"""Decode a message of the worker."""


def failed_of(fail: Fail) -> Failed:
    """Convert a failure; its fields may hold anything."""
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
    raised = describe_exception(error)
    return Threw(
        kind=raised.kind,
        message=raised.message,
        retryable=raised.retryable,
        causes=causes_of(error),
        traceback=raised.traceback,
    )
