"""Files in the result of a function that runs in a process: taken out of the value there, put back in the worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidemill.blobs.payloads import NotJson
from tidemill.handlers.contract import Blob, Fail

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
