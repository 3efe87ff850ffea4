"""JSON values to payload bytes and back: every value enters the log through this module.

NaN, infinities, lone surrogates and values that are not JSON are refused with their path; big integers stay exact.
msgspec would write NaN as null, so a value whose text contains a null is walked to find out.
"""

from __future__ import annotations

import math
from pathlib import PurePath
from typing import Any

import msgspec

DEPTH_MAX = 200


class NotJson(ValueError):
    """A value cannot be written as JSON."""


def as_builtin(value: Any) -> Any:
    """What a value of a foreign type is in JSON: a path is its text, a Pydantic model writes itself.

    Raises TypeError for others.
    """
    if isinstance(value, PurePath):
        return str(value)
    dump = getattr(type(value), "model_dump", None)
    if dump is None:
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return dump(value, mode="json", by_alias=True)


_CONTAINERS = (dict, list, tuple)
_ENCODER = msgspec.json.Encoder(enc_hook=as_builtin)
_DECODER = msgspec.json.Decoder()


def encode_value(value: Any) -> bytes:
    text = encode_text(value)
    check_text(value, text)
    return text


def encode_text(value: Any) -> bytes:
    """The text of a value for `check_text`, which takes much longer."""
    try:
        return _ENCODER.encode(value)
    except RecursionError:
        raise NotJson("the value is nested too deeply or contains itself") from None
    except UnicodeEncodeError as error:
        raise NotJson(f"a string is not valid Unicode: {error.reason}") from None
    except (TypeError, ValueError, msgspec.EncodeError) as error:
        reason = "an integer has more than 4,300 digits" if "int_max_str_digits" in str(error) else error
        raise NotJson(f"the value is not JSON: {reason}") from None


def check_text(value: Any, text: bytes) -> None:
    """Refuse a value whose text others could not read, or would read as another value."""
    # `in` first tries to read the bytes as a number, which takes longer than the search.
    if text.find(b"null") >= 0:
        _refuse_nan(value, "", 0)
    if len(text) > DEPTH_MAX and text.count(b"[") + text.count(b"{") > DEPTH_MAX:
        _refuse_deep(value)


def encode_given(value: Any) -> bytes:
    """The JSON text of a caller's value, the same in every process: sets, whose order differs, are sorted."""
    return given_text(value, encode_text(value))


def given_text(value: Any, text: bytes) -> bytes:
    """The same, of a value with its text. Raises NotJson."""
    check_text(value, text)
    return encode_value(_in_order(value)) if text.find(b"[") >= 0 else text


def _in_order(value: Any) -> Any:
    """The value with a sorted list for every set in it."""
    if isinstance(value, dict):
        return {key: _in_order(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_in_order(inner) for inner in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(_in_order, value), key=encode_value)
    return value


def _refuse_deep(value: Any) -> None:
    """Refuse a depth at which other JSON readers give up."""
    level = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(DEPTH_MAX):
        outers = [outer.values() if isinstance(outer, dict) else outer for outer in level]
        level = [inner for outer in outers for inner in outer if isinstance(inner, _CONTAINERS)]
        if not level:
            return
    raise NotJson("the value is nested too deeply")


def _refuse_nan(value: Any, path: str, depth: int) -> None:
    """Refuse a float that JSON cannot represent."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotJson(f"{path or 'the value'} is {value}, which JSON has no number for")
    elif depth > DEPTH_MAX:
        raise NotJson("the value is nested too deeply")
    elif isinstance(value, dict):
        for key, inner in value.items():
            _refuse_nan(inner, f"{path}/{key}", depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, inner in enumerate(value):
            _refuse_nan(inner, f"{path}/{index}", depth + 1)
    elif not isinstance(value, (str, int, type(None), bytes)):
        _refuse_nan(msgspec.to_builtins(value, enc_hook=as_builtin), path, depth + 1)


def decode_value(text: bytes) -> Any:
    return _DECODER.decode(text)
