"""The conditions of a document: where they stand, each parsed once and written back in its normal form.

Compiling CEL is the dearest thing a compiler does per node, and documents repeat conditions, so equal ones are
parsed together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from tidemill.expressions import conditions
from tidemill.expressions.references import References
from tidemill.kernel.document.normal import Draft
from tidemill.kernel.model import Json

_ENCODER = msgspec.json.Encoder(order="sorted")

CONDITIONED_KEYS = frozenset(("when", "loop", "branch"))
"""The keys of a node below which there are conditions, and no other expressions."""


class Clause(NamedTuple):
    """A place where a condition stands: the mapping that holds it and its key there."""

    key: str
    holder: dict[str, Json]
    field: str


class Use(NamedTuple):
    """A value of a node that refers to something."""

    key: str
    value: Json
    reach: References


def settle_conditions(draft: Draft) -> dict[int, list[Use]]:
    """Parse every condition, record its problems, put its normal form in its place, and tell what it refers to."""
    uses: dict[int, list[Use]] = {}
    parsed: dict[bytes, tuple[Json, References]] = {}
    for number, node in enumerate(draft.nodes):
        if node.keys().isdisjoint(CONDITIONED_KEYS):
            continue
        for clause in clauses_of(node):
            raw = clause.holder[clause.field]
            fingerprint = _ENCODER.encode(raw)
            if fingerprint not in parsed:
                normal = _parse(draft, number, clause.key, raw)
                if normal is None:
                    continue
                parsed[fingerprint] = normal
            clause.holder[clause.field], reach = parsed[fingerprint]
            uses.setdefault(number, []).append(Use(clause.key, raw, reach))
    return uses


def clauses_of(node: dict[str, Json]) -> Iterator[Clause]:
    """Every condition of a node."""
    if "when" in node:
        yield Clause("when", node, "when")
    if "condition" in node.get("loop", ()):
        yield Clause("loop/condition", node["loop"], "condition")
    for step, rule in enumerate(node.get("branch", {}).get("rules", ())):
        if "condition" in rule:
            yield Clause(f"branch/rules/{step}/condition", rule, "condition")


def _parse(draft: Draft, number: int, key: str, raw: Json) -> tuple[Json, References] | None:
    place = draft.place(number)
    condition, problems = conditions.parse_condition(raw, f"{place.path}/{key}")
    for problem in problems:
        place.found.problem(problem.code, problem.path, f"{place.who}: {problem.message}", problem.hint)
    if condition is None:
        return None
    return conditions.normal(condition), condition.references
