"""Errors of the CEL library in the author's words: what is wrong, where, and what to write instead.

The library speaks of overloads, tokens and undeclared references. A table maps its sentences to messages and hints; a
missing key is looked up in the values of the run, so that the message names the place. Messages name kinds and keys,
never values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from tidemill.expressions.cel.ast import Chain
from tidemill.expressions.errors import NO_OUTPUT, kind_of, lacking, listing, meant, place, shorten
from tidemill.expressions.scope import RESERVED, Absent, Scope, Seen
from tidemill.expressions.templates.lookup import READERS, is_nothing, step

LEVELS_MAX = 32
"""Nesting of an expression that the native parser takes."""

TOO_LARGE = "out of range"
NO_OVERLOAD = "No matching overloads"
"""The library's words for an integer beyond 64 bits, and for operands an operator does not take."""

Words = tuple[str, str]
"""A message and its hint."""

_ERROR = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_STATUS = re.compile(r"^[A-Z_]+: | \[[A-Z_]+\]$")
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)'")
_OPERANDS = re.compile(r"found no matching overload for '([^']*)' applied to '\((.*)\)'")
_LOST = re.compile(r"(?:token recognition error at:|mismatched input|extraneous input) '(.*?)\s*'$")
_OVERLOAD = re.compile(NO_OVERLOAD + r" found : (\S+?)(?:\((.*)\))?$")
_METHOD = re.compile(r"\((.*?)\)\.(\w+)")
_KEY = re.compile(r'Key not found in map : "(.*)"$')
_CONVERSION = re.compile(r"(?:cannot convert|conversion error from) '?(\w+)'? to '?(\w+)|(String) to (\w+) conversion")

_KINDS = {"int64": "int", "uint64": "uint", "null_type": "null"}
_NUMBER = re.compile(r"(?:list\()?(?:int|uint|double)\)?$")
_NUMBERS = {"int", "int64", "uint", "uint64", "double"}
_COMPARISONS = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in"})
_ARITHMETIC = frozenset({"_+_", "_-_", "_*_", "_/_", "_%_"})

COMPARE = "compare the value with something: x > 0, x == 'yes', size(x) > 0"
CONVERT = "compare values of one type: int(x), double(x) and string(x) convert"
MIXING = "integers and doubles do not mix in arithmetic: write double(x) around the integer"
TO_NUMBER = "int(x) and double(x) convert a string to a number"
_WHOLE = "% takes integers only: int(x) % 2"
_NOT_NULL = "check x != null first"
_TYPED = "only objects have keys: check type(x) == map first"
_DEPTH = (
    f"the expression is nested more than {LEVELS_MAX} levels deep",
    "every + and - of a chain is a level: group it with parentheses, or write the parts of a composite condition",
)

_SENTENCES = (
    (r"found : _?(&&|\|\||!)_", "{0} needs true or false", "compare the value with something: x > 0, x != null"),
    (r"found : <jump_condition>", "? : needs true or false", "compare the value with something: x > 0, x != null"),
    (r"found : <iter_range>", "only a list or an object can be iterated over", "check type(x) == list first"),
    (r"found : @in\b", "in needs a list or an object on its right", "to search a string, write x.contains('y')"),
    (r"found : size\b", "size() takes lists, objects and strings", "compare the number itself"),
    (r"index=(-?\d+) size=(\d+)", "the list has {1} items, so there is no [{0}]", "ask size(...) first"),
    (
        r"Index error: expected integer type, got (\w+)",
        "a list has no key that is a {0}",
        "choose an item: x[0], x.exists(i, i.key == 1)",
    ),
    (
        r"Key not found in map : (-?\d+)$",
        "an object has no [{0}]",
        'only lists have numbers; the key of an object is x["{0}"]',
    ),
    (r'No value with name "(\w+)" found', "{0} is not available here", NO_OUTPUT),
    (r"(?:divide|modulus) by zero", "an integer is divided by zero", "check first: n != 0 && x / n > 1"),
    (r"integer overflow", "the result has more than 64 bits", "use doubles: double(x) * 2.0"),
    (r"out of u?int64 range", "a number does not fit into an integer of 64 bits", "compare it as it is"),
    (r"greater than <string>.size\(\)", "a position is past the end of the string", "ask size(...) first"),
    (TOO_LARGE, "an integer is too large", "integers in conditions have 64 bits"),
    (
        r"Iteration budget exceeded",
        "the expression iterates over too many items",
        "the limit is 10,000; a jsonpath condition allows more",
    ),
    (r"bad_alloc", "the expression needs too much memory", "iterate over fewer items, or keep less of each"),
    (r"basic_string", "a string is not valid Unicode", "it holds half of a surrogate pair"),
)
"""Sentences of the library about an evaluation: pattern, message, hint; {0} is the pattern's first group."""

_CONVERSIONS = {
    "int": "ask first: x.matches('^-?[0-9]+$')",
    "uint": "ask first: x.matches('^[0-9]+$')",
    "double": "ask first: x.matches('^-?[0-9]+([.][0-9]+)?$')",
    "bool": "write true or false",
    "timestamp": "write a timestamp like 2030-01-31T12:00:00Z",
    "duration": "write a duration like 90s or 1h30m",
}

_COMMON_MISTAKES = tuple(
    (re.compile(sign.replace("@", "\0"), re.IGNORECASE), hint)
    for sign, hint in (
        (r"(?:\{\{.*|^\{?)@[{}]", "a condition is an expression already: leave out the {{ }}"),
        (r"^\s*@\$", 'a JSONPath is {"type": "jsonpath", "query": "$.x", "operator": "==", "value": 1}'),
        (r"[=!]=@=", "equality is written ==, the opposite !="),
        (r"[^=!<>]@=(?!=)", "equality is written =="),
        (r"<@>", "the opposite of == is !="),
        (r">@>|<@<", "there are no shifts; write a comparison with one sign: x > 1"),
        (r"\bnot\s+@", "not is written !: !(x > 1)"),
        (r"@(?:and\b|&(?!&))", "and is written &&"),
        (r"@(?:or\b|\|(?!\|))", "or is written ||"),
        (r"@not\b", "not is written !: !(x > 1), !(x in y)"),
        (r"@(?:is|eq|equals)\b", "equality is written =="),
        (r"@(?:matches|contains|startsWith|endsWith)\b", "it is a function: x.contains('y'), x.matches('y+')"),
        (r"\bin\s*\([^()]*@,", "a list is written [1, 2]"),
        (r"@[“”„‘’`]", "strings stand between \" or '"),
        (r"@[\"']", "the string has no end"),
        (r"@;", "it is one expression: leave out the ;"),
        (r"^\s*@if\b", "a choice is written x ? y : z"),
    )
)
"""Constructs of other languages: a pattern of the line, where @ is the place at which the parser stopped; a hint."""

_FUNCTIONS_ELSEWHERE = {
    **dict.fromkeys(("len", "length", "count"), "size"),
    **dict.fromkeys(("any", "some"), "exists"),
    **dict.fromkeys(("lower", "toLowerCase"), "lowerAscii"),
    **dict.fromkeys(("upper", "toUpperCase"), "upperAscii"),
    **dict.fromkeys(("float", "number"), "double"),
    "every": "all",
    "find": "filter",
    "includes": "contains",
    "str": "string",
    "strip": "trim",
    "match": "matches",
    "max": "math.greatest",
    "min": "math.least",
    "sum": 'a condition of type jsonpath with "sum_gt"',
}
_OF_OTHERS = {
    **dict.fromkeys(("always", "cancelled"), "leave `when` out, and write on_error: continue at the nodes before"),
    "success": "leave `when` out: a node runs after its dependencies have completed",
    **dict.fromkeys(("failed", "failure"), "write on_error: {route: [THIS_NODE]} at the node that may fail"),
}
_FUNCTIONS = (
    *("size", "contains", "startsWith", "endsWith", "matches", "lowerAscii", "upperAscii"),
    *("split", "join", "replace", "substring", "indexOf", "trim", "has", "all", "exists", "exists_one", "map"),
    *("filter", "int", "double", "string", "bool", "timestamp", "duration"),
)
_LITERALS = {
    **dict.fromkeys(("null", "none", "nil", "undefined"), "null"),
    **dict.fromkeys(("true", "yes"), "true"),
    **dict.fromkeys(("false", "no"), "false"),
}


class Fault(NamedTuple):
    code: str
    message: str
    hint: str = ""


def compile_faults(expression: str, said: str, roots: frozenset[str], *, doubles: bool = False) -> tuple[Fault, ...]:
    """Translate compiler errors; empty if it only objected to integers next to doubles where that works."""
    if "max recursion depth" in said or "recursion limit exceeded" in said:
        return (Fault("condition_syntax", *_DEPTH),)
    errors = _ERROR.findall(said)
    if not errors:
        return (Fault("condition_syntax", shorten(_plain(said))),)
    found = [_fault(expression, int(line), int(column), _plain(each), roots, doubles) for line, column, each in errors]
    faults = [fault for fault in dict.fromkeys(found) if fault is not None]
    # After a syntax error, most further errors are its consequences.
    known_mistake = next((fault for fault in faults if fault.code == "condition_syntax" and fault.hint), None)
    return (known_mistake,) if known_mistake is not None and "Syntax error" in said else tuple(faults)


def _plain(said: str) -> str:
    return _STATUS.sub("", _STATUS.sub("", said))


def _fault(expression: str, line: int, column: int, message: str, roots: frozenset[str], doubles: bool) -> Fault | None:
    lines = expression.split("\n")
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    before, after = text[: max(column - 1, 0)], text[max(column - 1, 0) :]
    where = f"line {line}, column {column}: " if line > 0 else ""
    if undeclared := _UNDECLARED.match(message):
        root = undeclared[1].split(".")[0]
        if after.startswith("("):
            known = meant(root, _FUNCTIONS) or f"functions are {listing(_FUNCTIONS)}"
            if root in _OF_OTHERS:
                known = _OF_OTHERS[root]
            elif root in _FUNCTIONS_ELSEWHERE:
                known = f"it is called {_FUNCTIONS_ELSEWHERE[root]}"
            return Fault("condition_unknown_name", f'there is no function called "{root}"', known)
        return Fault("condition_unknown_name", f'there is no name "{root}"', _name_hint(expression, root, roots))
    if overload := _OPERANDS.match(message):
        operator, types = overload[1], overload[2].split(", ")
        if (doubles or operator in _COMPARISONS) and all(_NUMBER.match(each) for each in types):
            return None
        return Fault("condition_syntax", f"{where}{_not_taken(operator, types)}", _operand_hint(operator, types))
    if message.startswith("<<nil>>"):
        # Follows an error that the parser has already reported.
        return None
    said, hint = _syntax_words(expression, message.removeprefix("Syntax error: ").split(" expecting ")[0])
    mistake = next((way for sign, way in _COMMON_MISTAKES if sign.search(f"{before}\0{after}")), "")
    return Fault("condition_syntax", f"{where}{said}", mistake if hint is None else hint)


def _syntax_words(expression: str, said: str) -> tuple[str, str | None]:
    """Translate a syntax error; the hint is None where the text at that place gives it."""
    if "<EOF>" in said:
        if not expression.strip():
            return "the expression is empty", "such as output.score > 80"
        missing = [end for begin, end in ("()", "[]", "{}") if expression.count(begin) > expression.count(end)]
        return "the expression ends too early", f"a {missing[0]} is missing" if missing else ""
    if "has() argument" in said:
        return said, 'has() takes a field: has(x.key); for any other key write "a key" in x'
    lost = _LOST.search(said)
    return (f"{shorten(lost[1], 60)} is unexpected here" if lost else said), None


def _not_taken(operator: str, kinds: Iterable[str]) -> str:
    return f"{shown_operator(operator)} does not take {' and '.join(kinds)}"


def shown_operator(operator: str) -> str:
    return operator.strip("_@") or operator


def _operand_hint(operator: str, types: Iterable[str]) -> str:
    given = set(types)
    if operator == "_%_" and "double" in given and given <= {"dyn", *_NUMBERS}:
        return _WHOLE
    if operator in _ARITHMETIC and given <= _NUMBERS:
        return MIXING
    if operator == "@in":
        return "its right side must be a list, or an object whose keys are searched"
    if operator in _COMPARISONS:
        return CONVERT
    return TO_NUMBER if operator in _ARITHMETIC | {"-_"} else ""


def _name_hint(expression: str, root: str, roots: frozenset[str]) -> str:
    dashed = re.search(rf"\bctx\.([A-Za-z_]\w*(?:-\w+)*-{re.escape(root)})\b", expression)
    if dashed:
        return f'an id with "-" is written ctx["{dashed[1]}"]'
    if root.lower() in _LITERALS:
        return f"it is written {_LITERALS[root.lower()]}"
    seen = f"conditions see {listing(sorted(roots))}"
    if root in RESERVED:
        return seen
    near = meant(root, sorted({*roots, *_LITERALS.values()}))
    written = f"a node is written ctx.{root}.output, in `branch` and `loop` a key of the own output output.{root}"
    return f"{near} {seen}" if near else f"{written}; {seen}"


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
        message = f"a condition must be true or false, but this is {result.lower()}"
        faults.append(Fault("condition_syntax", message, COMPARE))
    return tuple(dict.fromkeys(faults))


def run_time_words(said: str, found: Iterable[Chain], scope: Scope) -> Words:
    """Translate what an evaluation answered, as message and hint."""
    said = _plain(said)
    if (key := _KEY.search(said)) or said == "Applying SELECT to non-message type":
        return _key_words(key[1] if key else None, list(found), scope)
    if conversion := _CONVERSION.search(said):
        kind, wanted = (each.lower() for each in conversion.groups() if each)
        return f"a {kind} cannot be read as {wanted}", _CONVERSIONS.get(wanted, "")
    for sign, message, hint in _SENTENCES:
        if match := re.search(sign, said):
            return message.format(*match.groups()), hint.format(*match.groups())
    if overload := _OVERLOAD.search(said):
        return _overload_words(overload[1], [_KINDS.get(each, each) for each in (overload[2] or "").split(", ")])
    return shorten(said, 200), ""


def _overload_words(operator: str, given: list[str]) -> Words:
    if method := _METHOD.fullmatch(operator):
        owner = _KINDS.get(method[1], method[1])
        hint = "string(x) converts it to a string"
        if operator == "(list).contains":
            hint = "whether a list has an item is written: item in list"
        return f"{method[2]}({', '.join(given)}) does not exist for {owner}", _NOT_NULL if owner == "null" else hint
    hint = _NOT_NULL if "null" in given else _operand_hint(operator, given)
    if "uint" in given and hint:
        hint = "an integer of 64 bits that is larger than 2^63 - 1 mixes with no other: write double(x) around both"
    return _not_taken(operator, given), hint


def _key_words(key: str | None, chains: list[Chain], scope: Scope) -> Words:
    """Find the chain whose key is missing; `key` is None if a value had no keys at all."""
    for chain in chains:
        words = _dead_end(chain, scope, key)
        if words is not None:
            return words
    if key is None:
        return "a key was read from a value that is not an object", "check type(x) == map first"
    entry = scope.nodes.get(key)
    if isinstance(entry, Absent):
        return f'node "{key}" {entry.reason}', f'check "{key}" in ctx first'
    if entry is None and any(chain.root == "ctx" and not chain.keys for chain in chains):
        known = listing(sorted(scope.nodes)) or "none"
        return f'the key "{key}" is missing', f"check first whether it is in ctx; available nodes: {known}"
    return f'the key "{key}" is missing', "ask has(...) first"


def _dead_end(chain: Chain, scope: Scope, key: str | None) -> Words | None:
    """Say where a chain ends too early, if it is the one that the error is about."""
    keys = list(chain.keys)
    if chain.root != "ctx":
        value = READERS[chain.root](scope)
        return None if is_nothing(value) else _first_missing(chain.root, value, keys, key, chain.tested)
    if len(keys) < 2 + chain.tested:
        return None
    node = keys.pop(0)
    seen = scope.nodes.get(node)
    if isinstance(seen, Seen):
        entry = {"output": seen.output, "meta": seen.meta}
        return _first_missing(place("ctx", node), entry, keys, key, chain.tested)
    if key != keys[0]:
        return None
    reason = seen.reason if seen is not None else "is not in reach"
    return f'node "{node}" {reason}', f"check has({place('ctx', node)}.output) first"


def _first_missing(where: str, value: object, keys: list[str], missing: str | None, tested: bool) -> Words | None:
    """Follow the keys. The last one of a test may be missing, but what it is asked of must be an object."""
    for number, each in enumerate(keys, start=1):
        below = step(value, each)
        if is_nothing(below):
            is_object = kind_of(value) == "an object"
            about_this = not is_object if missing is None else each == missing
            if not about_this or (is_object and tested and number == len(keys)):
                return None
            message, hint = lacking(where, value, each)
            return message, hint or (f"check has({place(where, each)}) first" if is_object else _TYPED)
        value, where = below, place(where, each)
    return None
