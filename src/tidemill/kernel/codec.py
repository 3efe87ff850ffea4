"""Events and snapshots to bytes and back. Golden samples of every event are under test: the bytes are stored for ever.

The upcasts of its type lift an event of an older format, one format at a time, so that the kernel sees only the
present format. An event of a newer version is refused (`event_newer`) instead of being misread: one of an unknown type,
of a newer format, or with more fields than its type has here. A process of this version then leaves the run alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import Any, get_args

import msgspec

from tidemill.errors import Rejected, rejected
from tidemill.kernel.events import AnyEvent
from tidemill.kernel.state import State

Upcast = Callable[[list[Any]], list[Any]]

UPCASTS: dict[tuple[str, int], Upcast] = {}
"""(event type, format v) → a function from the raw fields of format v to those of v + 1, tag first."""

FORMATS: dict[str, int] = {}
"""The present format of event types that have left format 1."""

DAMAGE = (msgspec.DecodeError, UnicodeDecodeError, TypeError, ValueError, RecursionError)
"""Exceptions that damaged bytes may cause; any other is a bug."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(AnyEvent)
_TAGS = frozenset(kind.__name__ for kind in get_args(AnyEvent))
_TOO_LONG = "of at most length"
"""What the decoder says of a struct with more fields than it has here; a test checks this."""


def encode_event(event: AnyEvent) -> bytes:
    return _ENCODER.encode(event)


def encode_events(events: Iterable[AnyEvent]) -> tuple[bytes, ...]:
    return tuple(map(_ENCODER.encode, events))


def decode_event(raw: bytes) -> AnyEvent:
    """Decode a record of this or an older format."""
    try:
        event: AnyEvent = _DECODER.decode(raw)
    except DAMAGE:
        return _lift(_fields(raw))
    if event.v != FORMATS.get(type(event).__name__, 1):
        return _lift(_fields(raw))
    return event


def _fields(raw: bytes) -> Any:
    try:
        return msgspec.msgpack.decode(raw)
    except DAMAGE as error:
        raise rejected("event_unreadable", f"a record is damaged: {error}") from None


def _lift(fields: Any) -> AnyEvent:
    """Upcast raw fields to the present format; each step raises `v` by one, so the loop ends."""
    if not isinstance(fields, list) or len(fields) < 2 or type(fields[0]) is not str or type(fields[1]) is not int:
        raise rejected("event_unreadable", "a record is not an event")
    tag, present = fields[0], FORMATS.get(fields[0], 1)
    if tag not in _TAGS:
        raise _newer(tag)
    while fields[1] < present:
        upcast = UPCASTS.get((tag, fields[1]))
        if upcast is None:
            raise rejected("event_unreadable", f"nothing reads format {fields[1]} of {tag}")
        fields = upcast(fields)
    if fields[1] > present:
        raise _newer(tag)
    try:
        event: AnyEvent = msgspec.convert(fields, AnyEvent)
    except DAMAGE as error:
        if _TOO_LONG in str(error):
            raise _newer(tag) from None
        raise rejected("event_unreadable", f"a {tag} does not have the expected fields: {error}") from None
    return event


def _newer(tag: str) -> Rejected:
    message = f"an event of type {tag[:100]} was written by a newer version"
    return rejected("event_newer", message, hint="upgrade Tidemill; workers of the newer version continue the run")


def plain(event: AnyEvent, seq: int, *, bytes_max: int | None = None) -> dict[str, Any]:
    """An event as a readable mapping: defaults left out, payloads decoded; longer ones than `bytes_max` begun."""
    shown: dict[str, Any] = {"seq": seq, "type": type(event).__name__}
    for name, default in zip(event.__struct_fields__, _defaults(type(event)), strict=True):
        value = getattr(event, name)
        if value != default or name == "at_ms":
            long = bytes_max is not None and type(value) is bytes and len(value) > bytes_max
            shown[name] = _begun(value, bytes_max) if long else _readable(value)
    return shown


def _begun(text: bytes, bytes_max: int | None) -> dict[str, Any]:
    return {"preview": text[:bytes_max].decode("utf-8", "ignore"), "bytes": len(text)}


@lru_cache(maxsize=256)
def _defaults(kind: type[msgspec.Struct]) -> tuple[Any, ...]:
    return tuple(field.default for field in msgspec.structs.fields(kind))


def _readable(value: Any) -> Any:
    if isinstance(value, bytes):
        return msgspec.json.decode(value) if value else None
    if isinstance(value, msgspec.Struct):
        return {name: _readable(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
        return [_readable(each) for each in value]
    return value


SNAPSHOT_FORMAT = 7
"""First byte of a snapshot. Raise it whenever the fields of `State` or of an event change; a test checks this.

A snapshot hides the events before it. With another format an older version folds the log instead, and meets there what
it does not know.

It stays below 0x80, because snapshots of earlier versions start as msgpack arrays do: 0xdc, or 0x90 to 0x9f.
"""

_SNAPSHOT_MARK = bytes([SNAPSHOT_FORMAT])


class SnapshotFormatUnknown(ValueError):
    """Another version wrote the snapshot: fold the log from its first event."""


def encode_state(state: State) -> bytes:
    return _SNAPSHOT_MARK + _ENCODER.encode(state)


def decode_state(raw: bytes) -> State:
    if raw[:1] != _SNAPSHOT_MARK:
        raise SnapshotFormatUnknown(f"a snapshot of another format: it begins with {raw[:1].hex() or 'nothing'}")
    return _state_decoder().decode(memoryview(raw)[1:])


@cache
def _state_decoder() -> msgspec.msgpack.Decoder[State]:
    return msgspec.msgpack.Decoder(State)
