"""What the registered node types have to say about a document: do they exist, and does the configuration suit them?

The kernel knows a type only by its description (`NodeType`); the code behind it is never called here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.expressions.schema import compile_schema
from tidemill.expressions.templates import is_template
from tidemill.kernel.fields import node_ids
from tidemill.kernel.findings import Place, nearest, shown
from tidemill.kernel.model import Json, NodeType
from tidemill.kernel.normal import Draft

Types = Mapping[str, Sequence[NodeType]]


class TypeTable:
    """Finds the described type behind a name, remembering each answer: documents repeat a few names often."""

    def __init__(self, types: Types) -> None:
        self.types = types
        self.known: dict[str, NodeType | None] = {}

    def find(self, place: Place, name: str) -> NodeType | None:
        """The type in the version asked for, or the newest; records a problem where there is none."""
        if name not in self.known:
            self.known[name] = self._look(name)
        found = self.known[name]
        if found is None:
            self._missing(place, name)
        return found

    def _look(self, name: str) -> NodeType | None:
        base, _, major = name.partition("@")
        versions = [each for each in self.types.get(base, ()) if not major or each.major == int(major)]
        return max(versions, key=lambda each: each.major, default=None)

    def _missing(self, place: Place, name: str) -> None:
        base, _, major = name.partition("@")
        versions = self.types.get(base)
        if versions:
            hint = "known: " + ", ".join(each.key for each in versions)
            place.problem("unknown_type_version", "type", f"type `{base}` has no version {major}", hint)
        else:
            hint = nearest(base, self.types) or f"known types: {', '.join(sorted(self.types)[:20])}"
            place.problem("unknown_node_type", "type", f"there is no node type `{shown(base)}`", hint)


def find_types(draft: Draft, table: TypeTable) -> list[NodeType | None]:
    """The type of every node in document order, None where it is unknown."""
    return [
        table.find(draft.place(number), node["type"]) if "type" in node else None
        for number, node in enumerate(draft.nodes)
    ]


def check_config(place: Place, type_: NodeType, owner: Mapping[str, Json], key: str = "config") -> None:
    """Check a configuration against its type's schema; what a template will become cannot be known yet."""
    if type_.config_schema is True or "config_ref" in owner:
        return
    config = owner.get("config")
    schema = compile_schema(type_.config_schema)
    problems = schema.problems(
        {} if config is None else config, f"{place.path}/{key}", wildcard=is_template, code="config_invalid"
    )
    for problem in problems:
        place.found.problem(problem.code, problem.path, f"{place.who}: {problem.message}", problem.hint)


def find_exits(draft: Draft, types: Sequence[NodeType | None]) -> dict[int, dict[str, list[str]]]:
    """The ways out that waiting nodes name in their configuration, such as `rejection_path`."""
    exits: dict[int, dict[str, list[str]]] = {}
    for number, type_ in enumerate(types):
        if type_ is None or not type_.exits:
            continue
        config = draft.nodes[number].get("config")
        if not isinstance(config, dict):
            continue
        for field in type_.exits:
            if config.get(field) is not None:
                targets = node_ids(draft.place(number).inside("config"), field, config[field])
                exits.setdefault(number, {})[field] = targets or []
    return exits
