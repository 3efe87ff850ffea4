"""What an expression may look at, as plain values.

The engine fills a `Scope` from a run's state just before it renders a template or evaluates a condition;
expressions never see the state itself. A node that has nothing to show is `Absent` with the reason in
words, so that a strict reference can say "was skipped" instead of "is undefined".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = Any
"""A JSON value: None, bool, int, float, str, list or dict with string keys. Checked at the doors, not here."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A node whose latest visit has ended with an output (a tolerated failure's envelope included)."""

    output: Json
    meta: Mapping[str, Json] = field(default_factory=dict)
    """status, attempts, duration_ms"""


@dataclass(frozen=True, slots=True)
class Absent:
    """A node without an output; `reason` completes the sentence "node x ..."."""

    reason: str
    meta: Mapping[str, Json] = field(default_factory=dict)
    """What is known of it all the same, once its visit has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Everything an expression can refer to. `nodes` may decode its values only when they are asked for."""

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
