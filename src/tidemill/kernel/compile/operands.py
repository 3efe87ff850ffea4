"""Conditions whose operands can never fit together, where a schema says what they are.

What is known: the inputs, if the document describes them; what the engine itself supplies; and the output of a node
whose type promises one. Nothing is said about what is not certain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tidemill.expressions.conditions import compiled
from tidemill.expressions.expectations import Kinds, Lacking, expected
from tidemill.kernel.document.clauses import Use
from tidemill.kernel.document.normal import Draft
from tidemill.kernel.model import Json, NodeType

if TYPE_CHECKING:
    from tidemill.expressions.cel_syntax import Chain

_TEXT, _WHOLE = {"type": "string"}, {"type": "integer"}
_RUN = {
    "type": "object",
    "properties": {"id": _TEXT, "workflow": _TEXT, "version": _WHOLE},
    "additionalProperties": False,
}
_META = {
    "type": "object",
    "properties": {"status": _TEXT, "attempts": _WHOLE, "duration_ms": _WHOLE},
    "additionalProperties": False,
}


class _Known:
    """What is promised of the values that the conditions of a document can read."""

    def __init__(self, draft: Draft, types: Sequence[NodeType | None]) -> None:
        self._inputs = draft.document.get("inputs")
        self._outputs = {
            node["id"]: type_.output_schema
            for node, type_ in zip(draft.nodes, types, strict=True)
            if type_ is not None and type_.output_schema is not True and _is_plain(node)
        }

    def look(self, node: str, chain: Chain) -> Kinds | Lacking | None:
        """Tell what is promised of a chain of keys in a condition of a node."""
        root, keys = chain.root, chain.keys
        if root == "ctx":
            return self._of_node(keys)
        schema = {"inputs": self._inputs, "run": _RUN, "iteration": _WHOLE}.get(root)
        return expected(self._outputs.get(node) if root in ("output", "current") else schema, keys)

    def _of_node(self, keys: Sequence[str]) -> Kinds | Lacking | None:
        if len(keys) < 2:
            return None
        schema = self._outputs.get(keys[0]) if keys[1] == "output" else _META
        found = expected(schema, keys[2:])
        return Lacking(found.at + 2, found.kinds, found.known) if isinstance(found, Lacking) else found


def _is_plain(node: Mapping[str, Json]) -> bool:
    """Whether a node's output is what its handler returns: neither a list of many, nor the envelope of an error."""
    return "map" not in node and node.get("on_error", "fail") == "fail"


def check_operands(draft: Draft, clauses: Mapping[int, list[Use]], types: Sequence[NodeType | None]) -> None:
    """Record the conditions that can never be decided, whatever the values are."""
    if not any(clauses.values()):
        return
    # It knows every kind of condition, and most documents have one or none.
    from tidemill.expressions.fitting import misfits

    known = _Known(draft, types)
    for number, uses in clauses.items():
        place, name = draft.place(number), str(draft.nodes[number].get("id"))
        for use in uses:
            for key, found in misfits(compiled(use.value), use.value, partial(known.look, name)):
                place.problem("condition_type", f"{use.key}{key}", found.message, found.hint)
