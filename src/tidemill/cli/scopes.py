"""What an expression sees that is tried out on the command line: a scope, made from the values of options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tidemill.cli.sources import read_exact
from tidemill.errors import Problem, Rejected, rejected
from tidemill.expressions.references import NODE_MAPS, RESERVED
from tidemill.expressions.scope import Scope, Seen

T = TypeVar("T")

PARTS = frozenset({"output", "meta"})
_OWN = frozenset({"inputs", "run", "item", "index", "iteration"})


class Readings:
    """Reads several options and keeps the problems of each, so that all of them are told at once."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def take(self, read: Callable[[], T]) -> T | None:
        """Read something; None if it was refused."""
        try:
            return read()
        except Rejected as refusal:
            self.problems += refusal.problems
            return None

    def refuse(self) -> None:
        """Raise Rejected if anything was refused."""
        if self.problems:
            raise Rejected(self.problems)


def read_mapping(option: str, text: str) -> dict[str, Any]:
    """The value of an option that is a JSON object. Raises Rejected."""
    return _mapping(option, read_exact(option, text))


def seen_nodes(outputs: Mapping[str, Any]) -> dict[str, Seen]:
    """The nodes by their ids: `{node: output}`, or `{node: {output, meta}}`.

    The longer form is meant if every value is an object with an output and nothing else than an output and a meta.
    """
    if outputs and all(
        isinstance(each, dict) and "output" in each and each.keys() <= PARTS for each in outputs.values()
    ):
        return {
            node: Seen(each["output"], _mapping(f"meta of {node}", each.get("meta", {})))
            for node, each in outputs.items()
        }
    return {node: Seen(output) for node, output in outputs.items()}


def template_scope(given: Mapping[str, Any], option: str) -> Scope:
    """The scope of a template: reserved names mean what they mean in a document, any other is a node."""
    nodes = {node: Seen(output) for node, output in given.items() if node not in RESERVED}
    for name in sorted(NODE_MAPS & given.keys()):
        nodes |= seen_nodes(_mapping(f"{option}: {name}", given[name]))
    unknown = (RESERVED & given.keys()) - _OWN - NODE_MAPS
    if unknown:
        name = min(unknown)
        message = f"{option}: a template cannot see {name}"
        known = ", ".join(sorted(_OWN | NODE_MAPS))
        raise rejected("option_invalid", message, hint=f"known are {known}; any other name is a node's")
    return Scope(
        nodes=nodes,
        inputs=given.get("inputs", {}),
        run=_mapping(f"{option}: run", given.get("run", {})),
        iteration=_count(f"{option}: iteration", given.get("iteration", 0)),
        has_item="item" in given,
        item=given.get("item"),
        index=_count(f"{option}: index", given.get("index", 0)),
    )


def _mapping(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise rejected("option_invalid", f"{what} is not a JSON object", hint='write {"name": value, …}')
    return value


def _count(what: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise rejected("option_invalid", f"{what} is a whole number from 0", hint="the first is 0")
    return value
