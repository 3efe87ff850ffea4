"""What is said when a CEL expression cannot be compiled.

The native library speaks of overloads, tokens and undeclared references; authors of workflows speak of nodes, keys
and numbers. The translation between the two is here; that of what fails while it is evaluated is in `cel_failings`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from tidemill.expressions.cel_slips import DEPTH, LITERALS, function_hint, goes_too_deep, syntax_words
from tidemill.expressions.cel_syntax import Chain
from tidemill.expressions.references import RESERVED
from tidemill.expressions.wording import listing, meant, place, shorten

_ERROR = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)'")
_OVERLOAD = re.compile(r"found no matching overload for '([^']*)' applied to '\((.*)\)'")
_STATUS = re.compile(r"^[A-Z_]+: | \[[A-Z_]+\]$")

_COMPARISONS = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in"})
_NUMBER = re.compile(r"(?:list\()?(?:int|uint|double)\)?$")
NUMBERS = {"int", "int64", "uint", "uint64", "double"}
ARITHMETIC = frozenset({"_+_", "_-_", "_*_", "_/_", "_%_"})
MIXING = "integers and doubles do not mix in arithmetic: write double(x) around the integer"
WHOLE = "% is there for integers only: int(x) % 2"
CONVERT = "compare values of one type: int(x), double(x) and string(x) convert"
TO_NUMBER = "int(x) and double(x) make a number of a string"
COMPARE = "compare the value with something: x > 0, x == 'yes', size(x) > 0"


class Fault(NamedTuple):
    """Something that is wrong with an expression before it is ever evaluated."""

    code: str
    message: str
    hint: str = ""


def compile_faults(expression: str, said: str, roots: frozenset[str], *, doubles: bool = False) -> tuple[Fault, ...]:
    """Translate what the compiler said; nothing if it only minded comparing integers with doubles.

    Where every number becomes a double, nothing is said about any of them.
    """
    if goes_too_deep(said):
        return (Fault("condition_syntax", *DEPTH),)
    errors = _ERROR.findall(said)
    if not errors:
        return (Fault("condition_syntax", shorten(plain(said))),)
    found = [
        _fault(expression, int(line), int(column), message, roots)
        for line, column, message in errors
        if not (doubles and _is_about_numbers(message))
    ]
    faults = [fault for fault in dict.fromkeys(found) if fault is not None]
    # Once the parser is lost, most of what it says comes of that.
    known_slip = next((fault for fault in faults if fault.code == "condition_syntax" and fault.hint), None)
    return (known_slip,) if known_slip is not None and "Syntax error" in said else tuple(faults)


def plain(said: str) -> str:
    """Leave out what the library says about itself."""
    return _STATUS.sub("", _STATUS.sub("", said))


def _is_about_numbers(message: str) -> bool:
    overload = _OVERLOAD.match(message)
    return overload is not None and all(_NUMBER.match(each) for each in overload[2].split(", "))


def _fault(expression: str, line: int, column: int, message: str, roots: frozenset[str]) -> Fault | None:
    message = plain(message)
    where = f"line {line}, column {column}: " if line > 0 else ""
    if undeclared := _UNDECLARED.match(message):
        return _unknown(expression, line, column, undeclared[1], roots)
    if overload := _OVERLOAD.match(message):
        operator, types = overload[1], overload[2].split(", ")
        if operator in _COMPARISONS and all(_NUMBER.match(each) for each in types):
            return None
        said = f"{where}{shown_operator(operator)} does not take {' and '.join(types)}"
        return Fault("condition_syntax", said, operand_hint(operator, types))
    if message.startswith("<<nil>>"):
        # There is nothing where something was expected, which the parser has said before.
        return None
    said, hint = syntax_words(expression, message.removeprefix("Syntax error: ").split(" expecting ")[0], line, column)
    return Fault("condition_syntax", f"{where}{said}", hint)


def operand_hint(operator: str, types: Iterable[str]) -> str:
    """Tell what to do about operands that an operator does not take."""
    given = set(types)
    if operator == "_%_" and "double" in given and given <= {"dyn", *NUMBERS}:
        return WHOLE
    if operator in ARITHMETIC and given <= NUMBERS:
        return MIXING
    if operator == "@in":
        return "on its right stands a list, or an object that is asked for a key"
    if operator in _COMPARISONS:
        return CONVERT
    return TO_NUMBER if operator in ARITHMETIC | {"-_"} else ""


def _unknown(expression: str, line: int, column: int, name: str, roots: frozenset[str]) -> Fault:
    root = name.split(".")[0]
    rest = expression.split("\n")[line - 1][column - 1 :] if line > 0 else ""
    if rest.startswith("("):
        return Fault("condition_unknown_name", f'there is no function called "{root}"', function_hint(root))
    return Fault("condition_unknown_name", f'nothing is called "{root}"', _name_hint(expression, root, roots))


def _name_hint(expression: str, root: str, roots: frozenset[str]) -> str:
    dashed = re.search(rf"\bctx\.([A-Za-z_]\w*(?:-\w+)*-{re.escape(root)})\b", expression)
    if dashed:
        return f'an id with "-" is written ctx["{dashed[1]}"]'
    if root.lower() in LITERALS:
        return f"it is written {LITERALS[root.lower()]}"
    seen = f"conditions see {listing(sorted(roots))}"
    if root in RESERVED:
        return seen
    near = meant(root, sorted({*roots, *LITERALS.values()}))
    return f"{near} {seen}" if near else f"a node is written ctx.{root}.output; {seen}"


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
        message = f"a condition must be true or false, and this is {result.lower()}"
        faults.append(Fault("condition_syntax", message, COMPARE))
    return tuple(dict.fromkeys(faults))


def shown_operator(operator: str) -> str:
    """Write an operator the way an author does."""
    return operator.strip("_@") or operator
