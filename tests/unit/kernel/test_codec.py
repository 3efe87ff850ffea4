"""Events to bytes and back: golden samples, older and newer formats, damage; and that nothing is left out."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.kernel.sample_events import SAMPLES
from tests.model.kernel_walks import Walk, random_flow
from tidemill.errors import Rejected
from tidemill.kernel import codec, commands, events
from tidemill.kernel.codec import decode_event, encode_event, encode_events, plain
from tidemill.kernel.events import RunCreated
from tidemill.kernel.evolve import _FOLDS

GOLDEN: dict[str, list[str]] = json.loads((Path(__file__).parent / "golden_events.json").read_text())
KINDS: tuple[type, ...] = get_args(events.AnyEvent)
BY_NAME = {type(event).__name__: event for event in SAMPLES}


def test_every_event_type_has_golden_bytes_and_a_sample() -> None:
    names = {kind.__name__ for kind in KINDS}
    assert names == set(GOLDEN) == set(BY_NAME)
    assert len(SAMPLES) == len(KINDS)


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_golden_bytes_are_read_and_written_again_as_they_were(name: str) -> None:
    newest = bytes.fromhex(GOLDEN[name][-1])
    assert decode_event(newest) == BY_NAME[name]
    assert encode_event(decode_event(newest)) == newest


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_bytes_of_any_age_are_read(name: str) -> None:
    for text in GOLDEN[name]:
        event = decode_event(bytes.fromhex(text))
        assert type(event).__name__ == name
        assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: type(event).__name__)
def test_a_sample_leaves_no_field_at_its_default(event: events.AnyEvent) -> None:
    """Otherwise a change of that field would not show in the bytes. `v` is the format itself."""
    for field in msgspec.structs.fields(event):
        assert field.name == "v" or getattr(event, field.name) != field.default, field.name


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: type(event).__name__)
def test_a_record_of_before_its_newest_field_is_read(event: events.AnyEvent) -> None:
    """New fields are appended with a default, so an older record is simply shorter."""
    fields = msgspec.msgpack.decode(encode_event(event))
    last = msgspec.structs.fields(event)[-1]
    if last.required:
        with pytest.raises(Rejected, match="event_unreadable"):
            decode_event(msgspec.msgpack.encode(fields[:-1]))
    else:
        default = last.default if last.default is not msgspec.NODEFAULT else last.default_factory()
        assert getattr(decode_event(msgspec.msgpack.encode(fields[:-1])), last.name) == default


def test_a_batch_is_its_events_one_by_one() -> None:
    assert encode_events(SAMPLES) == tuple(encode_event(event) for event in SAMPLES)


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 8))
def test_the_events_of_a_run_survive_the_bytes(seed: int, size: int) -> None:
    for event in Walk(random_flow(seed, size), seed, 0.2, range(50)).run().kernel.events:
        assert decode_event(encode_event(event)) == event


def older(name: str, v: int, *fields: Any) -> bytes:
    return msgspec.msgpack.encode([name, v, 5, 0, None, None, *fields])


def test_an_older_format_is_lifted_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suppose that once a pause had a list of reasons, then one text in capitals, and now one text."""
    monkeypatch.setitem(codec.FORMATS, "RunPaused", 3)
    monkeypatch.setitem(codec.UPCASTS, ("RunPaused", 1), lambda old: [old[0], 2, *old[2:6], " ".join(old[6])])
    monkeypatch.setitem(codec.UPCASTS, ("RunPaused", 2), lambda old: [old[0], 3, *old[2:6], old[6].lower()])
    first = decode_event(older("RunPaused", 1, ["OUT", "FOR", "LUNCH"]))
    assert first == decode_event(older("RunPaused", 2, "OUT FOR LUNCH"))
    assert first == events.RunPaused(v=3, at_ms=5, reason="out for lunch")
    assert decode_event(older("RunPaused", 3, "as it is")) == events.RunPaused(v=3, at_ms=5, reason="as it is")


def test_a_format_that_fits_by_accident_is_lifted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old fields have the types of the new ones, but another meaning."""
    monkeypatch.setitem(codec.FORMATS, "RunPaused", 2)
    monkeypatch.setitem(codec.UPCASTS, ("RunPaused", 1), lambda old: [old[0], 2, *old[2:6], f"was {old[6]}"])
    assert decode_event(older("RunPaused", 1, "x")) == events.RunPaused(v=2, at_ms=5, reason="was x")


def test_an_older_format_without_an_upcast_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(codec.FORMATS, "RunPaused", 2)
    assert refusal(older("RunPaused", 1, "x")) == "event_unreadable"
    assert refusal(older("RunResumed", 0, "x")) == "event_unreadable"


@pytest.mark.parametrize("fields", [("x",), (["new", "shape"],), (), ("x", 1, 2, 3)])
def test_a_newer_format_is_refused_and_not_misread(fields: tuple[Any, ...]) -> None:
    assert refusal(older("RunPaused", 2, *fields)) == "event_newer"
    with pytest.raises(Rejected, match="upgrade Tidemill"):
        decode_event(older("RunPaused", 2, *fields))


def test_an_unknown_type_is_that_of_a_newer_version() -> None:
    assert refusal(older("RunExploded", 1, "boom")) == "event_newer"


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: type(event).__name__)
def test_an_event_with_an_added_field_is_refused_and_not_cut_short(event: events.AnyEvent) -> None:
    fields = msgspec.msgpack.decode(encode_event(event))
    assert refusal(msgspec.msgpack.encode([*fields, None])) == "event_newer"


def test_an_added_field_inside_an_event_is_refused_too() -> None:
    failed = events.NodeFailed(
        node="a", visit=1, attempt=1, error=events.Error("e", "m"), taken=(), dead=(), consumed=0, counter=0
    )
    fields = msgspec.msgpack.decode(encode_event(failed))
    (place,) = [number for number, value in enumerate(fields) if isinstance(value, list) and value[:1] == ["e"]]
    fields[place].append("severity")
    assert refusal(msgspec.msgpack.encode(fields)) == "event_newer"


def test_no_upcast_is_left_without_its_format() -> None:
    for name, present in codec.FORMATS.items():
        assert all((name, v) in codec.UPCASTS for v in range(1, present))
    assert all(v < codec.FORMATS.get(name, 1) for name, v in codec.UPCASTS)


def refusal(raw: bytes) -> str:
    with pytest.raises(Rejected) as caught:
        decode_event(raw)
    return caught.value.code


DAMAGED = {
    "nothing": b"",
    "not msgpack": b"\xc1",
    "cut short": encode_event(SAMPLES[0])[:-1],
    "something behind it": encode_event(SAMPLES[1]) + b"\x00",
    "a number": msgspec.msgpack.encode(5),
    "an unknown type without a format": msgspec.msgpack.encode(["RunExploded", None, 0, 0, None, None]),
    "a format that is not a number": msgspec.msgpack.encode(["RunPaused", "one"]),
    "a field of another type": msgspec.msgpack.encode(["RunPaused", 1, "noon", 0, None, None, ""]),
    "too few fields": msgspec.msgpack.encode(["NodeStarted", 1, 0, 0, None, None, "a"]),
    "a type that is a list": msgspec.msgpack.encode([["RunPaused"], 1]),
    "a type that is not utf-8": b"\x92\xa2\xff\xff\x01",
    "a text that is not utf-8": b"\x97\xa9RunPaused\x01\x00\x00\xc0\xc0\xa1\xff",
    "nested too deep": b"\x91" * 5_000,
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damage_is_called_damage(what: str) -> None:
    assert refusal(DAMAGED[what]) == "event_unreadable"


READ_OR_REFUSED = ("", "event_unreadable", "event_newer")


@settings(max_examples=120)
@given(
    st.binary(max_size=60)
    | st.recursive(st.integers(-(2**63), 2**64 - 1) | st.text() | st.none(), st.lists).map(msgspec.msgpack.encode)
)
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    assert reading(raw) in READ_OR_REFUSED


@settings(max_examples=120)
@given(st.sampled_from(SAMPLES), st.data())
def test_a_flipped_byte_is_read_or_refused(event: events.AnyEvent, data: st.DataObject) -> None:
    raw = bytearray(encode_event(event))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    assert reading(bytes(raw)) in READ_OR_REFUSED


def reading(raw: bytes) -> str:
    """Why bytes cannot be read; empty if they are an event."""
    try:
        event = decode_event(raw)
    except Rejected as refused:
        return refused.code
    return "" if isinstance(event, KINDS) else "not an event"


def test_every_event_has_a_fold() -> None:
    assert set(_FOLDS) == set(KINDS)


def leaves(module: Any, base: type) -> set[type]:
    """The classes of a module that derive from a base and that nothing derives from."""
    kinds = {kind for _, kind in inspect.getmembers(module, inspect.isclass) if issubclass(kind, base)}
    return {kind for kind in kinds if not any(kind in other.__bases__ for other in kinds)}


def test_the_unions_are_closed() -> None:
    assert leaves(events, events.Event) == set(KINDS)
    assert leaves(commands, commands.Command) == set(get_args(commands.AnyCommand))


def test_every_tag_is_the_name_of_its_type() -> None:
    for event in SAMPLES:
        assert msgspec.msgpack.decode(encode_event(event))[0] == type(event).__name__


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: type(event).__name__)
def test_an_event_can_be_shown(event: events.AnyEvent) -> None:
    shown = json.loads(msgspec.json.encode(plain(event, 12)))
    assert (shown["seq"], shown["type"], shown["at_ms"]) == (12, type(event).__name__, event.at_ms)
    assert "v" not in shown
    if isinstance(event, events.RunCreated):
        assert shown["inputs"] == {"customer": "acme"}


def test_what_is_at_its_default_is_not_shown() -> None:
    assert plain(events.RunPaused(at_ms=3), 1) == {"seq": 1, "type": "RunPaused", "at_ms": 3}


CREATED = RunCreated(workflow="w", version=1, digest="d", inputs=b"{}", entries=("a",), counter=1)


def test_an_event_of_a_newer_version_is_refused() -> None:
    raw = codec.encode_event(msgspec.structs.replace(CREATED, v=2))
    with pytest.raises(Rejected) as refusal:
        codec.decode_event(raw)
    assert refusal.value.code == "event_newer"


def test_an_event_of_an_older_format_is_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when its fields happen to fit the present format."""
    monkeypatch.setitem(codec.FORMATS, "RunCreated", 2)
    monkeypatch.setitem(codec.UPCASTS, ("RunCreated", 1), lambda fields: [fields[0], 2, *fields[2:6], "W", *fields[7:]])
    lifted = codec.decode_event(codec.encode_event(CREATED))
    assert isinstance(lifted, RunCreated)
    assert (lifted.v, lifted.workflow) == (2, "W")
