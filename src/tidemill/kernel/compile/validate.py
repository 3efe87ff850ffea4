"""Checks that need the whole graph but no expression: joins, widths, rules that can never match, inputs.

Each records its problems and changes nothing. What concerns single fields is in `nodes`, loops are in `loops`,
references in `references`.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable

import msgspec

from tidemill.expressions.conditions import compiled, meaning
from tidemill.expressions.failure import ExpressionError
from tidemill.expressions.schema import check_schema
from tidemill.kernel.compile.graph import Graph
from tidemill.kernel.document.clauses import Use
from tidemill.kernel.document.findings import Place, shown
from tidemill.kernel.document.normal import Draft
from tidemill.kernel.model import Json, Limits

_ENCODER = msgspec.json.Encoder(order="sorted")
_INPUT = re.compile(r"\binputs\.([A-Za-z_][A-Za-z0-9_]*)")
_OPENING = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "patternProperties")


def check_joins(draft: Draft, graph: Graph) -> None:
    """A join needs edges to wait for, and a quorum must be within their number."""
    for number, node in enumerate(draft.nodes):
        join = node.get("join")
        if join is None:
            continue
        edges = len(graph.into[number])
        if not edges:
            hint = "leave `join` away, or let the node depend on others"
            draft.place(number).problem(
                "join_on_entry", "join", "nothing leads here, so there is nothing to join", hint
            )
        elif isinstance(join, dict) and join["quorum"] > edges:
            message = f"a quorum of {join['quorum']} can never be reached by {edges} incoming edges"
            draft.place(number).problem("quorum_too_large", "join/quorum", message, f"at most {edges}")


def check_widths(draft: Draft, graph: Graph) -> None:
    """No node may fan out, and no literal list may be mapped, wider than the limit."""
    width_max = draft.document.get("limits", {}).get("max_fanout", Limits().max_fanout)
    for number, targets in enumerate(graph.out):
        over = draft.nodes[number].get("map", {}).get("over")
        width = max(len(targets), len(over) if isinstance(over, list) else 0)
        if width > width_max:
            message = f"fans out to {width} at once, at most {width_max} are allowed"
            draft.place(number).problem("fanout_too_wide", "", message, "raise `limits.max_fanout`")


def check_rules(draft: Draft) -> None:
    """The first matching rule wins, so a repeated condition can never match."""
    for number, node in enumerate(draft.nodes):
        rules = node.get("branch", {}).get("rules", ())
        if len(rules) < 2:
            continue
        first: dict[Hashable, int] = {}
        for step, rule in enumerate(rules):
            if "condition" not in rule:
                continue
            earlier = first.setdefault(_meaning(rule["condition"]), step)
            if earlier != step:
                message = f"rule {step + 1} can never match: rule {earlier + 1} has the same condition"
                place = draft.place(number)
                place.problem("unreachable_rule", f"branch/rules/{step}/condition", message, "join their `next_nodes`")


def _meaning(condition: Json) -> Hashable:
    """Give what is the same for conditions that say the same; one that cannot be read only says what it says."""
    try:
        return meaning(compiled(condition))
    except ExpressionError:
        return _ENCODER.encode(condition)


def check_inputs(draft: Draft) -> None:
    schema = draft.document.get("inputs")
    if schema is not None:
        draft.found.extend(check_schema(schema, "/inputs"))


def closed_names(schema: Json) -> set[str] | None:
    """The only names that inputs can have, or None where the schema leaves that open."""
    if not isinstance(schema, dict) or schema.get("additionalProperties") is not False:
        return None
    properties = schema.get("properties", {})
    if any(key in schema for key in _OPENING) or not isinstance(properties, dict):
        return None
    return set(properties)


def warn_of_inputs(place: Place, uses: Iterable[Use], names: set[str]) -> None:
    """Warn of inputs that the schema rules out; only a warning, for `default` and `has` may expect just that."""
    for use in uses:
        if "inputs" in use.reach.roots:
            for name in sorted(set(_INPUT.findall(_text(use.value))) - names):
                message = f"the schema of `inputs` has no `{shown(name)}` and allows nothing else"
                place.warning("unknown_input", use.key, message, place.found.nearest(name, names))


def _text(value: Json) -> str:
    """A template as it is; a condition, which may be a mapping, as one text to search."""
    return value if isinstance(value, str) else _ENCODER.encode(value).decode()
