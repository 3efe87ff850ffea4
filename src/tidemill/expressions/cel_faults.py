"""What is said when a CEL expression cannot be compiled or evaluated.

The native library speaks of overloads, messages and activations; authors of workflows speak of nodes, keys
and numbers. All translation between the two is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from tidemill.expressions.cel_syntax import Chain
from tidemill.expressions.paths import READERS, is_nothing, step
from tidemill.expressions.references import RESERVED
from tidemill.expressions.scope import Absent, Scope, Seen
from tidemill.expressions.wording import kind_of, lacking, listing, meant, place, shorten

_ERROR = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)'")
_OVERLOAD = re.compile(r"found no matching overload for '([^']*)' applied to '\((.*)\)'")
_RUN_TIME_OVERLOAD = re.compile(r"No matching overloads found : (\S+?)(?:\((.*)\))?$")
_METHOD = re.compile(r"\((.*?)\)\.(\w+)")
_KEY = re.compile(r'Key not found in map : "(.*)"$')
_INDEX = re.compile(r"Index error: index=(-?\d+) size=(\d+)")
_NO_VALUE = re.compile(r'No value with name "(\w+)" found')
_STATUS = re.compile(r"^[A-Z_]+: | \[[A-Z_]+\]$")

_COMPARISONS = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in"})
_NUMBER = re.compile(r"(?:list\()?(?:int|uint|double)\)?$")
_NUMBERS = {"int", "int64", "uint", "uint64", "double"}
_ARITHMETIC = frozenset({"_+_", "_-_", "_*_", "_/_", "_%_"})
MIXING = "integers and doubles do not mix in arithmetic: write double(x) around the integer"
_LOGIC = {"_&&_": "&&", "_||_": "||", "!_": "!", "<jump_condition>": "? :"}


class Fault(NamedTuple):
    """Something that is wrong with an expression before it is ever evaluated."""

    code: str
    message: str
    hint: str = ""


def compile_faults(expression: str, said: str, roots: frozenset[str], *, doubles: bool = False) -> tuple[Fault, ...]:
    """Translate what the compiler said; nothing if it only minded comparing integers with doubles.

    Where every number becomes a double, nothing is said about any of them.
    """
    errors = _ERROR.findall(said)
    if not errors:
        return (Fault("condition_syntax", shorten(_STATUS.sub("", _STATUS.sub("", said)))),)
    found = [
        _fault(expression, int(line), int(column), message, roots)
        for line, column, message in errors
        if not (doubles and _is_about_numbers(message))
    ]
    return tuple(fault for fault in found if fault is not None)


def _is_about_numbers(message: str) -> bool:
    overload = _OVERLOAD.match(message)
    return overload is not None and all(_NUMBER.match(each) for each in overload[2].split(", "))


def _fault(expression: str, line: int, column: int, message: str, roots: frozenset[str]) -> Fault | None:
    message = _STATUS.sub("", message)
    where = f"line {line}, column {column}: " if line > 0 else ""
    if undeclared := _UNDECLARED.match(message):
        return _unknown(expression, line, column, undeclared[1], roots)
    if overload := _OVERLOAD.match(message):
        operator, types = overload[1], overload[2].split(", ")
        if operator in _COMPARISONS and all(_NUMBER.match(each) for each in types):
            return None
        hint = MIXING if operator in _ARITHMETIC and set(types) <= _NUMBERS else ""
        return Fault("condition_syntax", f"{where}{shown_operator(operator)} does not take {' and '.join(types)}", hint)
    reason = message.removeprefix("Syntax error: ").split(" expecting ")[0]
    if "<EOF>" in reason:
        reason = "the expression ends too early" if expression.strip() else "the expression is empty"
    return Fault("condition_syntax", f"{where}{reason}")


def _unknown(expression: str, line: int, column: int, name: str, roots: frozenset[str]) -> Fault:
    root = name.split(".")[0]
    rest = expression.split("\n")[line - 1][column - 1 :] if line > 0 else ""
    if rest.startswith("("):
        return Fault("condition_unknown_name", f'there is no function called "{root}"')
    dashed = re.search(rf"\bctx\.([A-Za-z_]\w*(?:-\w+)*-{re.escape(root)})\b", expression)
    if dashed:
        hint = f'an id with "-" is written ctx["{dashed[1]}"]'
    elif root in RESERVED:
        hint = f"conditions see {listing(sorted(roots))}"
    else:
        hint = f"{meant(root, roots)} a node is written ctx.{root}.output; conditions see {listing(sorted(roots))}"
    return Fault("condition_unknown_name", f'nothing is called "{root}"', hint.strip())


def reading_faults(found: Iterable[Chain], result: str) -> tuple[Fault, ...]:
    """Refuse what compiles but can never work: keys a node does not have, and answers that are not boolean."""
    faults: list[Fault] = []
    for chain in found:
        if chain.root != "ctx" or not chain.keys:
            continue
        node = place("ctx", chain.keys[0])
        if len(chain.keys) == 1 and chain.tested:
            faults.append(Fault("condition_syntax", f"has({node}) says nothing", f"write has({node}.output)"))
        elif len(chain.keys) > 1 and chain.keys[1] not in ("output", "meta"):
            hint = f"write {place(node + '.output', chain.keys[1])}; a node has output and meta"
            faults.append(Fault("condition_unknown_name", f'{node} has no "{chain.keys[1]}"', hint))
    if result not in ("BOOL", "DYN"):
        hint = "compare the value with something: x > 0, x == 'yes', size(x) > 0"
        faults.append(
            Fault("condition_syntax", f"a condition must be true or false, and this is {result.lower()}", hint)
        )
    return tuple(faults)


def run_time_words(said: str, found: Iterable[Chain], scope: Scope) -> tuple[str, str]:
    """Translate what an evaluation answered, as message and hint."""
    said = _STATUS.sub("", _STATUS.sub("", said))
    if (key := _KEY.search(said)) or said == "Applying SELECT to non-message type":
        return _key_words(key[1] if key else None, found, scope)
    if overload := _RUN_TIME_OVERLOAD.search(said):
        return _overload_words(overload[1], overload[2] or "")
    if index := _INDEX.search(said):
        return f"the list has {index[2]} items, so there is no [{index[1]}]", "ask size(...) first"
    if name := _NO_VALUE.search(said):
        return f"{name[1]} is not available here", "`when` is decided before the node has an output"
    for sign, words in _SIGNS.items():
        if sign in said:
            return words
    return shorten(said, 200), ""


_SIGNS = {
    "out of range": ("an integer is too large", "integers in conditions have 64 bits"),
    "Iteration budget exceeded": ("the expression goes through too many items", "10,000 is the limit"),
    "bad_alloc": ("the expression needs too much memory", "go through fewer items, or keep less of each"),
    "basic_string": ("a string is not valid Unicode", ""),
}


def _overload_words(operator: str, types: str) -> tuple[str, str]:
    if operator in _LOGIC:
        return f"{_LOGIC[operator]} needs true or false", "compare the value with something: x > 0, x != null"
    given = [each.replace("int64", "int") for each in types.split(", ")]
    if method := _METHOD.fullmatch(operator):
        hint = "whether a list has an item is written: item in list" if operator == "(list).contains" else ""
        return f"{method[2]}({', '.join(given)}) is not there for {method[1].replace('int64', 'int')}", hint
    mixed = operator in _ARITHMETIC and set(given) <= _NUMBERS and len(set(given)) > 1
    return f"{shown_operator(operator)} does not take {' and '.join(given)}", MIXING if mixed else ""


def shown_operator(operator: str) -> str:
    """Write an operator the way an author does."""
    return operator.strip("_@") or operator


def _key_words(key: str | None, found: Iterable[Chain], scope: Scope) -> tuple[str, str]:
    """Find out which of the chains of keys has ended too early; `key` is None if a value had no keys at all."""
    for chain in found:
        words = _dead_end(chain, scope, key)
        if words is not None:
            return words
    if key is None:
        return "a value that is not an object was asked for a key", ""
    entry = scope.nodes.get(key)
    if isinstance(entry, Absent):
        return f'node "{key}" {entry.reason}', f'ask "{key}" in ctx first'
    return f'the key "{key}" is missing', "ask has(...) first"


def _dead_end(chain: Chain, scope: Scope, key: str | None) -> tuple[str, str] | None:
    """Say where a chain ends too early, if it is the one that the error is about."""
    keys = list(chain.keys[:-1] if chain.tested else chain.keys)
    if chain.root != "ctx":
        value = READERS[chain.root](scope)
        return None if is_nothing(value) else _walked(chain.root, value, keys, key)
    if len(keys) < 2:
        return None
    node = keys.pop(0)
    seen = scope.nodes.get(node)
    if isinstance(seen, Seen):
        return _walked(place("ctx", node), {"output": seen.output, "meta": seen.meta}, keys, key)
    if key != keys[0]:
        return None
    reason = seen.reason if seen is not None else "is not in reach"
    return f'node "{node}" {reason}', f"ask has({place('ctx', node)}.output) first"


def _walked(where: str, value: object, keys: list[str], missing: str | None) -> tuple[str, str] | None:
    for each in keys:
        below = step(value, each)
        if is_nothing(below):
            about_this = each == missing if missing is not None else kind_of(value) != "an object"
            return lacking(where, value, each) if about_this else None
        value, where = below, place(where, each)
    return None
