"""What an expression refers to, known without evaluating it.

The compiler checks these against the graph (does that node come before this one?), and the engine loads only
the outputs that are named here. So an expression must never be able to reach a node that is not listed,
unless `dynamic` says that it may reach any.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

RESERVED = frozenset({"inputs", "run", "item", "index", "iteration", "secrets", "ctx", "nodes", "output", "current"})
"""Names with a fixed meaning; no node may be called like one of them."""

NODE_MAPS = frozenset({"ctx", "nodes"})
"""The reserved names under which every node in reach is found by its id."""


@dataclass(frozen=True, slots=True)
class References:
    """The static reach of one expression, or of many taken together."""

    nodes: frozenset[str] = frozenset()
    roots: frozenset[str] = frozenset()
    """Reserved names in use; ids of nodes are not repeated here."""
    dynamic: bool = False
    """A node is chosen by a computed name (`ctx[inputs.which]`), so any node in reach may be read."""

    def __or__(self, other: References) -> References:
        return merged((self, other))


NOTHING = References()


def merged(parts: Iterable[References]) -> References:
    """Unite the reach of several expressions."""
    found = [part for part in parts if part is not NOTHING]
    if len(found) < 2:
        return found[0] if found else NOTHING
    return References(
        nodes=frozenset().union(*(part.nodes for part in found)),
        roots=frozenset().union(*(part.roots for part in found)),
        dynamic=any(part.dynamic for part in found),
    )
