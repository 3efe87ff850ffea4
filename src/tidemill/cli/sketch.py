"""A workflow as a person reads it: labelled edges, and a few words about each node. Both drawings start here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from tidemill.cli.terminal import one_line
from tidemill.kernel.model import Loop, Map, Node

CONDITION_COLUMNS_MAX = 56


class Edge(NamedTuple):
    """A way from a node to the next. A plain one has no label; `error` ones are taken only after a failure."""

    target: str
    label: str = ""
    error: bool = False


def edges_of(node: Node) -> list[Edge]:
    """Every edge of a node once, in the order of the document, with all labels that rules give it."""
    labels: dict[str, list[str]] = {}
    errors, plain = set(node.error_path), set(node.plain)
    for target, label in _labels(node):
        labels.setdefault(target, []).append(label)
    return [
        Edge(
            target,
            "" if target in plain else ", or ".join(dict.fromkeys(labels.get(target, ()))),
            target in errors and len(labels.get(target, ())) == 1,
        )
        for target in node.outbound
    ]


def _labels(node: Node) -> Iterator[tuple[str, str]]:
    branch, loop = node.branch, node.loop
    if branch is not None:
        for rule in branch.rules:
            for target in rule.next_nodes:
                yield target, f"if {condition_words(rule.condition)}"
        for target in branch.available:
            yield target, "if chosen"
        for target in branch.default:
            yield target, "otherwise"
    if loop is not None:
        for target in loop.break_path:
            yield target, "when done"
        for target in loop.timeout_path:
            yield target, "when passes are used up"
    for target in node.error_path:
        yield target, "on error"
    for name, targets in node.exits.items():
        for target in targets:
            yield target, f"on {name.removesuffix('_path')}"


def condition_words(condition: Any, columns_max: int = CONDITION_COLUMNS_MAX) -> str:
    """A condition on one line."""
    return one_line(_condition(condition), columns_max)


def _condition(condition: Any) -> str:
    match condition:
        case str():
            return condition
        case {"type": "cel", "expression": str(text)}:
            return text
        case {"type": "composite", "operator": "NOT", "conditions": [only]}:
            return f"not ({_condition(only)})"
        case {"type": "composite", "operator": str(operator), "conditions": [*parts]}:
            return f" {operator.lower()} ".join(f"({_condition(part)})" for part in parts)
        case {"type": str(kind), **rest}:
            return f"{kind} {_inline(rest)}"
        case _:
            return _inline(condition)


def _inline(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def notes_of(node: Node) -> list[str]:
    """What else a reader should know of a node, besides its edges."""
    found = []
    if node.when is not None:
        found.append(f"only if {condition_words(node.when)}")
    if node.map is not None:
        found.append(map_words(node.map))
    if node.loop is not None:
        found.append(loop_words(node, node.loop))
    if node.on_error == "continue":
        found.append("failure tolerated")
    return found


def map_words(over: Map) -> str:
    """A map in words."""
    words = f"for each of {one_line(_inline(over.over), CONDITION_COLUMNS_MAX)}"
    if over.max_parallel is not None:
        words += f", {over.max_parallel} at a time"
    if over.tolerate:
        words += f", {over.tolerate} may fail"
    return words


def loop_words(node: Node, loop: Loop) -> str:
    """A loop in words, as they stand at its looping node."""
    where = "again" if loop.back_to == node.id else f"back to {loop.back_to}"
    limit = "" if loop.max_iterations is None else f", at most {loop.max_iterations} passes"
    return f"↺ {where} while {condition_words(loop.condition)}{limit}"


def join_words(node: Node, names_max: int = 6) -> str:
    """Where the tokens of a join come from, and how many of them it needs."""
    inbound = node.inbound
    names = ", ".join(inbound[:names_max])
    if len(inbound) > names_max:
        names += f" and {len(inbound) - names_max} more"
    match node.join:
        case "all":
            return f"← {names}"
        case "quorum":
            return f"← {node.quorum} of {names}"
        case kind:
            return f"← {kind} of {names}"


def type_name(node: Node) -> str:
    """The node's type without its version."""
    return node.type.partition("@")[0]
