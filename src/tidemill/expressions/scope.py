"""The values an expression may read (`Scope`), and what it refers to (`References`).

The engine fills a `Scope` from a run's state before it renders a template or decides a condition; expressions never see
the state. A node without an output is `Absent` with the reason in words, for the message of a strict reference. The
engine loads only the outputs that `References` names: an expression must not reach any other node unless `dynamic`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = Any
"""A JSON value: None, bool, int, float, str, list or dict with string keys. Not checked here."""


@dataclass(slots=True)
class Seen:
    """A node whose latest visit has ended with an output (a tolerated failure's envelope included)."""

    output: Json
    meta: Mapping[str, Json] = field(default_factory=dict)
    """status, attempts, duration_ms"""


@dataclass(slots=True)
class Absent:
    """A node without an output; `reason` completes the sentence "node x ..."."""

    reason: str
    meta: Mapping[str, Json] = field(default_factory=dict)
    """Known even without an output, once its visit has ended."""


@dataclass(slots=True, kw_only=True)
class Scope:
    """Everything an expression can refer to. `nodes` may decode its values only when they are asked for.

    It is made for every attempt, and a frozen one takes three times as long to make: only its maker sets fields.
    """

    nodes: Mapping[str, Seen | Absent]
    inputs: Json
    run: Mapping[str, Json]
    iteration: int = 0
    has_output: bool = False
    output: Json = None
    """The node's own output: present in branch and loop conditions only."""
    has_item: bool = False
    item: Json = None
    index: int = 0
    secrets: Mapping[str, str] = field(default_factory=dict)


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
    found = [part for part in parts if part is not NOTHING]
    if len(found) < 2:
        return found[0] if found else NOTHING
    return References(
        nodes=frozenset().union(*(part.nodes for part in found)),
        roots=frozenset().union(*(part.roots for part in found)),
        dynamic=any(part.dynamic for part in found),
    )


# Templates: decided without importing Jinja, because handlers and the compiler ask before they render.

_TEMPLATE_SYNTAX = re.compile(r"\{[{%#]")


def has_syntax(source: str) -> bool:
    """Whether a string is a template at all."""
    return "{" in source and _TEMPLATE_SYNTAX.search(source) is not None


def is_template(value: Json) -> bool:
    """Whether a value is a string with template syntax, so that its real value is not known yet."""
    return isinstance(value, str) and has_syntax(value)
