"""The graphs that benchmarks run, compiled directly: chains, fans and diamonds of `value` nodes."""

from __future__ import annotations

from typing import Any

from tidemill.kernel.compile.compiler import compile_document
from tidemill.kernel.model import Workflow
from tidemill.node_types import built_in_types


def node(name: str, *parents: str) -> dict[str, Any]:
    """A node that does nothing but return a small value."""
    return {"id": name, "type": "value", "config": {"n": 1}, "dependencies": list(parents)}


def diamond() -> dict[str, Any]:
    """A → (B, C) → D → E."""
    nodes = [node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c"), node("e", "d")]
    return {"name": "diamond", "nodes": nodes}


def chain(length: int) -> dict[str, Any]:
    """One node after another."""
    nodes = [node("n0"), *(node(f"n{i}", f"n{i - 1}") for i in range(1, length))]
    return {"name": "chain", "nodes": nodes}


def fan(width: int) -> dict[str, Any]:
    """1 → width → 1."""
    arms = [f"n{i}" for i in range(width)]
    return {"name": "fan", "nodes": [node("first"), *(node(arm, "first") for arm in arms), node("last", *arms)]}


def compiled(document: dict[str, Any]) -> Workflow:
    """The workflow behind a document."""
    return compile_document(document, built_in_types()).workflow
