"""Conditions in CEL: compiled once, given only what they read, and true or false or an error.

The native library converts a whole variable at every evaluation, so each expression gets its roots cut down
to the keys that it names.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tidemill.errors import Problem
from tidemill.expressions.bounds import DEPTH_MAX, deeper_than
from tidemill.expressions.cel_faults import Fault, compile_faults, reading_faults, run_time_words
from tidemill.expressions.cel_native import NativeExpression, NativeValue, native_env
from tidemill.expressions.cel_syntax import Chain, chains
from tidemill.expressions.failure import ExpressionError, condition_failed
from tidemill.expressions.leaf import DEADLINE_MS
from tidemill.expressions.paths import READERS, is_nothing
from tidemill.expressions.references import References
from tidemill.expressions.scope import Absent, Json, Scope, Seen
from tidemill.expressions.wording import shorten

ROOTS = frozenset({"output", "ctx", "inputs", "run", "iteration", "current"})
"""What a condition can see. `current` is the node's own output, like `output`."""

EXPRESSION_MAX = 8192

Tree = dict[str, "Tree | None"]
"""The keys that are read, level by level: None takes the whole value, an empty tree only asks if it is there."""


@dataclass(frozen=True, slots=True)
class Cel:
    """An expression in CEL, compiled, and what it reads."""

    expression: str
    native: NativeExpression
    chains: tuple[Chain, ...]
    tree: Tree
    references: References
    light: bool = True
    deadline_ms: int = DEADLINE_MS

    def normal(self) -> Json:
        """Write it in the one form in which it is stored."""
        return {"type": "cel", "expression": self.expression}

    def bind(self, scope: Scope) -> dict[str, Json]:
        """Give each root, cut down to what is read of it."""
        return bound(self, scope)

    def holds(self, data: Json, scope: Scope) -> bool:
        """Decide; raise `ExpressionError` if there is no strict boolean answer."""
        return evaluate_cel(self, data, scope)

    def told(self) -> str:
        """Name it in a sentence."""
        return shorten(self.expression)


def parse_cel(expression: str, path: str, problems: list[Problem]) -> Cel | None:
    """Compile an expression, or report every problem with it; nothing is evaluated."""
    compiled = _compiled(expression) if len(expression) <= EXPRESSION_MAX else _TOO_LONG
    if isinstance(compiled, Cel):
        return compiled
    problems += [Problem(code=each.code, message=each.message, path=path, hint=each.hint) for each in compiled]
    return None


_TOO_LONG = (Fault("condition_syntax", f"a condition is limited to {EXPRESSION_MAX} characters"),)


def evaluate_cel(program: Cel, data: Json, scope: Scope) -> bool:
    """Decide over what was bound; the scope is only for the words of a failure."""
    try:
        answer = program.native.eval(data=data)
    except Exception as error:
        raise _failed(program, scope, str(error)) from None
    value = _content(answer)
    # Only a BOOL has one of the two Python booleans as its value, so this is also the check of its type.
    if value is True or value is False:
        return bool(value)
    kind = answer.type().name()
    if kind == "ERROR" and value is not None:
        raise _failed(program, scope, str(value))
    shown = "optional" if kind == "ERROR" else kind.lower()
    raise condition_failed(
        f"a condition must be true or false, and `{shorten(program.expression)}` is {shown}",
        "compare the value with something: x > 0, x == 'yes', size(x) > 0",
    )


def _content(answer: NativeValue) -> object:
    try:
        return answer.value()
    except TypeError:
        # An optional has no counterpart in Python; it is no boolean either.
        return None


@lru_cache(maxsize=4096)
def _compiled(expression: str) -> Cel | tuple[Fault, ...]:
    env = native_env(tuple(sorted(ROOTS)))
    try:
        native = env.compile(expression)
    except Exception as error:
        faults = compile_faults(expression, str(error), ROOTS)
        if faults:
            return faults
        # All that the checker minded was a comparison of an integer with a double, which works.
        native = env.compile(expression, disable_check=True)
    found = tuple(chains(native.serialize(), ROOTS))
    faults = reading_faults(found, native.return_type().name())
    return faults or Cel(expression, native, found, _tree(found), _references(found))


def _references(found: tuple[Chain, ...]) -> References:
    nodes = frozenset(chain.keys[0] for chain in found if chain.root == "ctx" and chain.keys)
    dynamic = any(chain.root == "ctx" and not chain.keys for chain in found)
    return References(nodes=nodes, roots=frozenset(chain.root for chain in found), dynamic=dynamic)


def _tree(found: tuple[Chain, ...]) -> Tree:
    top: Tree = {}
    for chain in found:
        _plant(top, (chain.root, *chain.keys), chain.tested)
    return top


def _plant(level: Tree, keys: tuple[str, ...], tested: bool) -> None:
    """Add one chain; where a value is taken whole already, there is nothing to add."""
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
    """Give each root, cut down to what is read of it."""
    data: dict[str, Json] = {}
    for root, tree in program.tree.items():
        if root == "ctx":
            data[root] = _every_node(program.references, scope) if tree is None else _named_nodes(tree, scope)
            continue
        value = READERS[root](scope)
        if not is_nothing(value):
            data[root] = _cut(value, tree)
    return data


def _named_nodes(tree: Tree, scope: Scope) -> dict[str, Json]:
    """Give the nodes that are named; one without an output is empty, so that `has(ctx.a.output)` is false."""
    nodes: dict[str, Json] = {}
    for node, parts in tree.items():
        seen = scope.nodes.get(node)
        nodes[node] = {} if seen is None else _entry(seen, parts)
    return nodes


def _every_node(references: References, scope: Scope) -> dict[str, Json]:
    """Give all there is to an expression that computes a node's name.

    What has no output is left out, unless it is also named: then it is empty, as everywhere.
    """
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
            raise condition_failed(f"a value is nested more than {DEPTH_MAX} levels deep")
        return value
    if isinstance(value, dict):
        return {key: _cut(value[key], below) for key, below in tree.items() if key in value}
    return [] if isinstance(value, list) else value


def _failed(program: Cel, scope: Scope, said: str) -> ExpressionError:
    reason, hint = run_time_words(said, program.chains, scope)
    return condition_failed(f"{reason} (in `{shorten(program.expression)}`)", hint)
