"""What is said when a CEL expression cannot be evaluated over the values of a run.

The library answers with a sentence of its own. What it is about is looked up once more in the values, so that the
message names the place, and the hint says what to write instead. Values themselves are never told, only their kinds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from tidemill.expressions.cel_faults import operand_hint, plain, shown_operator
from tidemill.expressions.cel_syntax import Chain
from tidemill.expressions.failure import NO_OUTPUT
from tidemill.expressions.paths import READERS, is_nothing, step
from tidemill.expressions.scope import Absent, Scope, Seen
from tidemill.expressions.wording import kind_of, lacking, listing, place, shorten

TOO_LARGE = "out of range"
NO_OVERLOAD = "No matching overloads"
"""What the library says of an integer without room, and of an operator that does not take its operands."""

Words = tuple[str, str]
"""A message and its hint."""

_OVERLOAD = re.compile(NO_OVERLOAD + r" found : (\S+?)(?:\((.*)\))?$")
_METHOD = re.compile(r"\((.*?)\)\.(\w+)")
_KEY = re.compile(r'Key not found in map : "(.*)"$')
_LOGIC = {"_&&_": "&&", "_||_": "||", "!_": "!", "<jump_condition>": "? :"}
_KINDS = {"int64": "int", "uint64": "uint", "null_type": "null"}
_HOLDERS = {
    "<iter_range>": ("only a list or an object can be gone through", "ask type(x) == list first"),
    "@in": ("in needs a list or an object on its right", "a text in a text is x.contains('y')"),
    "size": ("size is there for lists, objects and strings", "of a number, compare the number itself"),
}


def run_time_words(said: str, found: Iterable[Chain], scope: Scope) -> Words:
    """Translate what an evaluation answered, as message and hint."""
    said = plain(said)
    if (key := _KEY.search(said)) or said == "Applying SELECT to non-message type":
        return _key_words(key[1] if key else None, found, scope)
    if overload := _OVERLOAD.search(said):
        return _overload_words(overload[1], overload[2] or "")
    for sign, words in _SIGNS:
        if match := re.search(sign, said):
            return words(*match.groups())
    return shorten(said, 200), ""


def _always(message: str, hint: str) -> Callable[..., Words]:
    return lambda *_: (message, hint)


def _unconverted(kind: str, wanted: str) -> Words:
    ways = {
        "int": "ask first: x.matches('^-?[0-9]+$')",
        "uint": "ask first: x.matches('^[0-9]+$')",
        "double": "ask first: x.matches('^-?[0-9]+([.][0-9]+)?$')",
        "bool": "true and false are written so",
        "timestamp": "a moment is written 2030-01-31T12:00:00Z",
        "duration": "a duration is written 90s or 1h30m",
    }
    wanted = wanted.lower()
    return f"a {kind.lower()} cannot be read as {wanted}", ways.get(wanted, "")


_SIGNS: tuple[tuple[str, Callable[..., Words]], ...] = (
    (
        r"Index error: index=(-?\d+) size=(\d+)",
        lambda index, size: (f"the list has {size} items, so there is no [{index}]", "ask size(...) first"),
    ),
    (
        r"Index error: expected integer type, got (\w+)",
        lambda kind: (f"a list has no key that is a {kind}", "choose an item: x[0], x.exists(i, i.key == 1)"),
    ),
    (
        r"Key not found in map : (-?\d+)$",
        lambda key: (f"an object has no [{key}]", f'only lists have numbers; the key of an object is x["{key}"]'),
    ),
    (r'No value with name "(\w+)" found', lambda name: (f"{name} is not available here", NO_OUTPUT)),
    (r"(?:divide|modulus) by zero", _always("an integer is divided by zero", "ask first: n != 0 && x / n > 1")),
    (r"integer overflow", _always("the result has more than 64 bits", "compute with doubles: double(x) * 2.0")),
    (r"cannot convert (\w+) to (\w+)", _unconverted),
    (r"Type conversion error from '(\w+)' to '(\w+)'", _unconverted),
    (r"(String) to (\w+) conversion failed", _unconverted),
    (r"out of u?int64 range", _always("a number does not fit into an integer of 64 bits", "compare it as it is")),
    (r"greater than <string>.size\(\)", _always("a position is behind the end of the string", "ask size(...) first")),
    (TOO_LARGE, _always("an integer is too large", "integers in conditions have 64 bits")),
    (
        r"Iteration budget exceeded",
        _always("the expression goes through too many items", "10,000 is the limit; a jsonpath condition goes further"),
    ),
    (r"bad_alloc", _always("the expression needs too much memory", "go through fewer items, or keep less of each")),
    (r"basic_string", _always("a string is not valid Unicode", "it holds half of a surrogate pair")),
)
"""Sentences of the library, and how each is told; the parts in parentheses are handed over."""


def _overload_words(operator: str, types: str) -> Words:
    if operator in _LOGIC:
        return f"{_LOGIC[operator]} needs true or false", "compare the value with something: x > 0, x != null"
    if operator in _HOLDERS:
        return _HOLDERS[operator]
    given = [_KINDS.get(each, each) for each in types.split(", ")]
    if method := _METHOD.fullmatch(operator):
        owner = _KINDS.get(method[1], method[1])
        hint = "whether a list has an item is written: item in list" if operator == "(list).contains" else ""
        if owner == "null":
            hint = "ask x != null first"
        return f"{method[2]}({', '.join(given)}) is not there for {owner}", hint or "string(x) makes a string of it"
    hint = "ask x != null first" if "null" in given else operand_hint(operator, given)
    if "uint" in given and hint:
        hint = "an integer of 64 bits that is larger than 2^63 - 1 mixes with no other: write double(x) around both"
    return f"{shown_operator(operator)} does not take {' and '.join(given)}", hint


def _key_words(key: str | None, found: Iterable[Chain], scope: Scope) -> Words:
    """Find out which of the chains of keys has ended too early; `key` is None if a value had no keys at all."""
    chains = list(found)
    for chain in chains:
        words = _dead_end(chain, scope, key)
        if words is not None:
            return words
    if key is None:
        return "a value that is not an object was asked for a key", "ask type(x) == map first"
    entry = scope.nodes.get(key)
    if isinstance(entry, Absent):
        return f'node "{key}" {entry.reason}', f'ask "{key}" in ctx first'
    if entry is None and any(chain.root == "ctx" and not chain.keys for chain in chains):
        known = listing(sorted(scope.nodes)) or "none"
        return f'the key "{key}" is missing', f"ask first whether it is in ctx; nodes in reach: {known}"
    return f'the key "{key}" is missing', "ask has(...) first"


def _dead_end(chain: Chain, scope: Scope, key: str | None) -> Words | None:
    """Say where a chain ends too early, if it is the one that the error is about."""
    keys = list(chain.keys)
    if chain.root != "ctx":
        value = READERS[chain.root](scope)
        return None if is_nothing(value) else _walked(chain.root, value, keys, key, chain.tested)
    if len(keys) < 2 + chain.tested:
        return None
    node = keys.pop(0)
    seen = scope.nodes.get(node)
    if isinstance(seen, Seen):
        entry = {"output": seen.output, "meta": seen.meta}
        return _walked(place("ctx", node), entry, keys, key, chain.tested)
    if key != keys[0]:
        return None
    reason = seen.reason if seen is not None else "is not in reach"
    return f'node "{node}" {reason}', f"ask has({place('ctx', node)}.output) first"


def _walked(where: str, value: object, keys: list[str], missing: str | None, tested: bool) -> Words | None:
    """Follow the keys. The last one of a test may be missing, but what it is asked of must be an object."""
    for number, each in enumerate(keys, start=1):
        below = step(value, each)
        if is_nothing(below):
            is_object = kind_of(value) == "an object"
            about_this = not is_object if missing is None else each == missing
            if not about_this or (is_object and tested and number == len(keys)):
                return None
            message, hint = lacking(where, value, each)
            return message, hint or (f"ask has({place(where, each)}) first" if is_object else _KEYLESS)
        value, where = below, place(where, each)
    return None


_KEYLESS = "only objects have keys: ask type(x) == map first"
