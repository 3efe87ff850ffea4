"""Compile CEL conditions, bind the values they read, and evaluate them to true, false or an error.

The native library converts a whole variable at every evaluation, so each root is cut down to the keys that are read.
It has 64-bit integers and converts a value before it reads any of it, so one larger integer would fail conditions that
never read it. Only after such a refusal is the integer replaced by an object that equals the same integer and nothing
else, and that no operator accepts.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from tidemill.errors import Problem
from tidemill.expressions.cel import messages
from tidemill.expressions.cel.ast import Chain, NativeExpression, chains, native_env, read_tree, write_tree
from tidemill.expressions.cel.ast import Tree as Syntax
from tidemill.expressions.cel.cost import is_cheap, pattern_problem
from tidemill.expressions.cel.doubles import Unsuited, in_doubles
from tidemill.expressions.conditions import DEADLINE_MS
from tidemill.expressions.errors import ExpressionError, condition_failed, place, shorten, within
from tidemill.expressions.limits import DEPTH_MAX, deeper_than
from tidemill.expressions.scope import Absent, Json, References, Scope, Seen
from tidemill.expressions.templates.lookup import READERS, is_nothing

LARGEST = (1 << 64) - 1
SMALLEST = -(1 << 63)
HINT = "integers in conditions have 64 bits: compare it in a jsonpath condition"

_ASIDE = "an integer of more than 64 bits"


def oversized(data: Json, where: str = "") -> str | None:
    """Name the first place with an integer beyond 64 bits; the caller limits nesting."""
    if type(data) is int:
        return None if SMALLEST <= data <= LARGEST else where
    if isinstance(data, dict):
        places = ((place(where, key) if where else key, value) for key, value in data.items())
    elif isinstance(data, list):
        places = ((place(where, number), value) for number, value in enumerate(data))
    else:
        return None
    return next((found for at, value in places if (found := oversized(value, at)) is not None), None)


def put_aside(data: Json) -> Json:
    """Copy a value, replacing each such integer by an object, which CEL only compares."""
    if type(data) is int and not SMALLEST <= data <= LARGEST:
        return {_ASIDE: hex(data)}
    if isinstance(data, dict):
        return {key: put_aside(value) for key, value in data.items()}
    return [put_aside(each) for each in data] if isinstance(data, list) else data


ROOTS = frozenset({"output", "ctx", "inputs", "run", "iteration", "current"})
"""Variables of a condition; `current` is the node's own output, like `output`."""

EXPRESSION_MAX = 8192

DOUBLINGS_MAX = 4
"""Uses of the macros that duplicate their operand: thirty nested ones would make a billion copies."""

_DOUBLING = re.compile(r"\bopt(?:Flat)?Map\b")

Tree = dict[str, "Tree | None"]
"""The keys that are read, level by level: None is the whole value, an empty tree only tests presence."""


class Cel(msgspec.Struct, frozen=True):
    expression: str
    native: NativeExpression
    syntax: Syntax
    chains: tuple[Chain, ...]
    tree: Tree
    references: References
    light: bool = True
    deadline_ms: int = DEADLINE_MS

    def normal(self) -> Json:
        return {"type": "cel", "expression": self.expression}

    def bind(self, scope: Scope) -> dict[str, Json]:
        return bound(self, scope)

    def holds(self, data: Json, scope: Scope) -> bool:
        return evaluate_cel(self, data, scope)

    def told(self) -> str:
        return shorten(self.expression)


def parse_cel(expression: str, path: str, problems: list[Problem], *, doubles: bool = False) -> Cel | None:
    """Compile an expression, or report every problem with it; with `doubles` every number in it is a double."""
    compiled = _sized(expression) or _compiled(expression, doubles)
    if isinstance(compiled, Cel):
        return compiled
    problems += [Problem(code=each.code, message=each.message, path=path, hint=each.hint) for each in compiled]
    return None


def _sized(expression: str) -> tuple[messages.Fault, ...]:
    """Refuse what must not reach the native parser."""
    if len(expression) > EXPRESSION_MAX:
        return (messages.Fault("condition_syntax", f"a condition is limited to {EXPRESSION_MAX} characters"),)
    if len(_DOUBLING.findall(expression)) > DOUBLINGS_MAX:
        message = f"optMap and optFlatMap are limited to {DOUBLINGS_MAX} in one expression"
        return (messages.Fault("condition_syntax", message, "test with hasValue() ? ... : ... instead"),)
    try:
        expression.encode()
    except UnicodeEncodeError:
        return (messages.Fault("condition_syntax", "the expression is not valid Unicode text"),)
    return ()


def evaluate_cel(program: Cel, data: Json, scope: Scope) -> bool:
    """Decide over bound data; the scope only serves messages of a failure."""
    answer = _evaluated(program, data)
    large = oversized(data) if isinstance(answer, str) and messages.TOO_LARGE in answer else None
    if large is not None:
        answer = _evaluated(program, put_aside(data))
        if isinstance(answer, str) and messages.NO_OVERLOAD in answer:
            raise within(program.told(), condition_failed(f"{large} has more than 64 bits", HINT))
    if isinstance(answer, str):
        raise within(program.told(), condition_failed(*messages.run_time_words(answer, program.chains, scope)))
    return answer


def _evaluated(program: Cel, data: Json) -> bool | str:
    """Return the answer or the library's error; raise `ExpressionError` if the answer is not a boolean."""
    try:
        answer = program.native.eval(data=data)
    except Exception as error:
        return str(error)
    try:
        value: object = answer.value()
    except TypeError:
        # An optional has no counterpart in Python.
        value = None
    # Only a BOOL has one of the two Python booleans as its value, so this is also the check of its type.
    if value is True or value is False:
        return bool(value)
    kind = answer.type().name()
    if kind == "ERROR" and value is not None:
        return str(value)
    shown = "optional" if kind == "ERROR" else kind.lower()
    raise condition_failed(
        f"a condition must be true or false, but `{shorten(program.expression)}` is {shown}", messages.COMPARE
    )


@lru_cache(maxsize=4096)
def _compiled(expression: str, doubles: bool) -> Cel | tuple[messages.Fault, ...]:
    env = native_env(tuple(sorted(ROOTS)))
    try:
        native = env.compile(expression)
    except Exception as error:
        faults = messages.compile_faults(expression, str(error), ROOTS, doubles=doubles)
        if faults:
            return faults
        # The checker only objected to comparing integers with doubles, which works.
        native = env.compile(expression, disable_check=True)
    try:
        answer = native.return_type().name()
    except RuntimeError:
        # The result is a map whose keys only the parser accepts.
        return (
            messages.Fault(
                "condition_syntax", "a condition must be true or false, and this is a map", messages.COMPARE
            ),
        )
    syntax = read_tree(native.serialize())
    if doubles:
        try:
            # A checked tree has resolved names, so the unchecked one is rewritten.
            syntax = in_doubles(read_tree(env.compile(expression, disable_check=True).serialize()))
        except Unsuited as unsuited:
            return (messages.Fault("condition_syntax", unsuited.message, unsuited.hint),)
        native = env.deserialize(write_tree(syntax))
    found = tuple(chains(syntax, ROOTS))
    faults = messages.reading_faults(found, answer)
    if problem := pattern_problem(syntax, env):
        faults = (*faults, messages.Fault("condition_syntax", problem))
    return faults or Cel(
        expression, native, syntax, found, _tree(found), _references(found), light=is_cheap(syntax, ROOTS)
    )


def _references(found: tuple[Chain, ...]) -> References:
    nodes = frozenset(chain.keys[0] for chain in found if chain.root == "ctx" and chain.keys)
    dynamic = any(chain.root == "ctx" and not chain.keys for chain in found)
    return References(nodes=nodes, roots=frozenset(chain.root for chain in found), dynamic=dynamic)


def _tree(found: tuple[Chain, ...]) -> Tree:
    top: Tree = {}
    for chain in found:
        _add_chain(top, (chain.root, *chain.keys), chain.tested)
    return top


def _add_chain(level: Tree, keys: tuple[str, ...], tested: bool) -> None:
    """Add one chain, unless a value above it is read as a whole."""
    *inner, last = keys
    for key in inner:
        below = level.setdefault(key, {})
        if below is None:
            return
        level = below
    if tested:
        level.setdefault(last, {})
    else:
        level[last] = None


def bound(program: Cel, scope: Scope) -> dict[str, Json]:
    data: dict[str, Json] = {}
    try:
        for root, tree in program.tree.items():
            if root == "ctx":
                data[root] = _every_node(program.references, scope) if tree is None else _named_nodes(tree, scope)
                continue
            value = READERS[root](scope)
            if not is_nothing(value):
                data[root] = _cut(value, tree)
    except ExpressionError as error:
        raise within(program.told(), error) from None
    return data


def _named_nodes(tree: Tree, scope: Scope) -> dict[str, Json]:
    """Return the named nodes; one without an output is empty, so that `has(ctx.a.output)` is false."""
    nodes: dict[str, Json] = {}
    for node, parts in tree.items():
        seen = scope.nodes.get(node)
        nodes[node] = {} if seen is None else _entry(seen, parts)
    return nodes


def _every_node(references: References, scope: Scope) -> dict[str, Json]:
    """Return all nodes with an output, for an expression that computes a node's name; named ones may be empty."""
    entries = ((node, scope.nodes[node]) for node in scope.nodes)
    nodes: dict[str, Json] = {node: _entry(seen, None) for node, seen in entries if isinstance(seen, Seen)}
    for node in references.nodes:
        nodes.setdefault(node, {})
    return nodes


def _entry(seen: Seen | Absent, parts: Tree | None) -> dict[str, Json]:
    if parts is None:
        parts = {"output": None, "meta": None}
    entry: dict[str, Json] = {}
    if "output" in parts and isinstance(seen, Seen):
        entry["output"] = _cut(seen.output, parts["output"])
    if "meta" in parts and seen.meta:
        entry["meta"] = _cut(dict(seen.meta), parts["meta"])
    return entry


def _cut(value: Json, tree: Tree | None) -> Json:
    if tree is None:
        if isinstance(value, dict | list) and deeper_than(value):
            raise condition_failed(f"a value is nested more than {DEPTH_MAX} levels deep", "read a part of it: x.key")
        return value
    if isinstance(value, dict):
        return {key: _cut(value[key], below) for key, below in tree.items() if key in value}
    return [] if isinstance(value, list) else value
