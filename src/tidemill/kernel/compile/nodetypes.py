"""What the registered node types have to say about a document: do they exist, and does the configuration suit them?

The kernel knows a type only by its description (`NodeType`); the code behind it is never called here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.expressions.schema import Schema, check_schema, compile_schema
from tidemill.expressions.templates import is_template
from tidemill.kernel.document.fields import node_ids
from tidemill.kernel.document.findings import Place, shown
from tidemill.kernel.document.normal import Draft
from tidemill.kernel.model import Flaw, Json, NodeType

Types = Mapping[str, Sequence[NodeType]]

IN_VAIN_MAX = 3
"""Offers that came to nothing of which a problem speaks."""


class TypeTable:
    """The described types, by the names that documents use; a few names come very often, so answers are kept."""

    def __init__(self, types: Types, in_vain: Sequence[str] = ()) -> None:
        self.types, self._in_vain = types, in_vain
        self.known: dict[str, NodeType | None] = {}
        self.schemas: dict[str, Schema] = {}

    def find(self, name: str) -> NodeType | None:
        """The type in the version asked for, or the newest."""
        if name not in self.known:
            self.known[name] = self._look(name)
        return self.known[name]

    def _look(self, name: str) -> NodeType | None:
        base, _, major = name.partition("@")
        versions = [each for each in self.types.get(base, ()) if not major or each.major == int(major)]
        return max(versions, key=lambda each: each.major, default=None)

    def missing(self, place: Place, name: str) -> None:
        """Record that there is no such type, or not in that version."""
        base, _, major = name.partition("@")
        versions = self.types.get(base)
        if versions:
            hint = "known: " + ", ".join(each.key for each in versions)
            place.problem("unknown_type_version", "type", f"type `{base}` has no version {major}", hint)
        else:
            hint = place.found.nearest(base, self.types) or f"known types: {', '.join(sorted(self.types)[:20])}"
            if self._in_vain:
                told = "; ".join(shown(each, 300) for each in self._in_vain[:IN_VAIN_MAX])
                hint += f"; or it is one of those: {told}"
            place.problem("unknown_node_type", "type", f"there is no node type `{shown(base)}`", hint)

    def check_config(self, draft: Draft, number: int, type_: NodeType, owner: Mapping[str, Json], key: str) -> None:
        """Check a configuration against its type's schema; what a template will become cannot be known yet."""
        if "config_ref" in owner:
            return
        config = owner.get("config")
        config = {} if config is None else config
        if not self._suits(draft, number, type_, config, key):
            return
        if isinstance(config, dict) and (type_.schemas or type_.check is not None):
            self._check_closely(draft.place(number), type_, config, key)

    def _suits(self, draft: Draft, number: int, type_: NodeType, config: Json, key: str) -> bool:
        """Whether a configuration follows its type's schema, with every problem reported."""
        if type_.config_schema is True:
            return True
        schema = self.schemas.get(type_.key)
        if schema is None:
            schema = self.schemas[type_.key] = compile_schema(type_.config_schema)
        if schema.accepts(config):
            return True
        place = draft.place(number)
        found = schema.problems(config, f"{place.path}/{key}", wildcard=is_template, code="config_invalid")
        for problem in found:
            place.found.problem(problem.code, problem.path, f"{place.who}: {problem.message}", problem.hint)
        return not found

    def _check_closely(self, place: Place, type_: NodeType, config: dict[str, Json], key: str) -> None:
        """Report what a type says of a config beyond its schema: schemas in it that are none, and its own flaws."""
        flaws = list(type_.check(config)) if type_.check is not None else []
        for field in type_.schemas:
            inner = config.get(field)
            if inner is not None and not _holds_template(inner):
                flaws += [Flaw(each.path, each.message, each.hint) for each in check_schema(inner, f"/{field}")]
        for flaw in flaws:
            path = f"{place.path}/{key}{flaw.path}"
            place.found.problem("config_invalid", path, f"{place.who}: {flaw.message}", flaw.hint)


def _holds_template(value: Json) -> bool:
    """Whether any part of a value is not known before it is rendered."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, (dict, list)):
            left += each.values() if isinstance(each, dict) else each
        elif is_template(each):
            return True
    return False


def find_types(draft: Draft, table: TypeTable) -> list[NodeType | None]:
    """The type of every node in document order, None where it is unknown."""
    types: list[NodeType | None] = []
    for number, node in enumerate(draft.nodes):
        name = node.get("type")
        types.append(table.find(name) if name is not None else None)
        if name is not None and types[-1] is None:
            table.missing(draft.place(number), name)
    return types


def find_compensator_types(draft: Draft, table: TypeTable) -> dict[int, NodeType]:
    """The types of compensators, by the number of the node that they undo."""
    types: dict[int, NodeType] = {}
    for number, node in enumerate(draft.nodes):
        name = node["compensator"].get("type") if "compensator" in node else None
        if name is None:
            continue
        type_ = table.find(name)
        if type_ is None:
            table.missing(draft.place(number).inside("compensator"), name)
        else:
            types[number] = type_
    return types


def find_exits(draft: Draft, types: Sequence[NodeType | None]) -> dict[int, dict[str, list[str]]]:
    """The ways out that waiting nodes name in their configuration, such as `rejection_path`."""
    exits: dict[int, dict[str, list[str]]] = {}
    for number, type_ in enumerate(types):
        if type_ is not None and not type_.exits:
            continue
        config = draft.nodes[number].get("config")
        if isinstance(config, dict):
            for field in type_.exits if type_ is not None else _likely_exits(draft, config):
                if config.get(field) is not None:
                    targets = node_ids(draft.place(number).inside("config"), field, config[field])
                    exits.setdefault(number, {})[field] = targets or []
    return exits


def _likely_exits(draft: Draft, config: Mapping[str, Json]) -> list[str]:
    """Guess the exits of an unknown type, so that its one problem does not become one of every node behind it."""
    return [
        field
        for field, targets in config.items()
        if field.endswith("_path") and isinstance(targets, list) and all(str(name) in draft.index for name in targets)
    ]
