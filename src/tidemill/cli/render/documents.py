"""Documents as YAML that reads back as the same document, how two differ, and node types with their configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tidemill.cli.render.tables import (
    Column,
    Line,
    age,
    names,
    print_facts,
    print_hint,
    print_rows,
    print_table,
    print_title,
    snippet,
)
from tidemill.cli.render.terminal import DIM, GREEN, RED, YELLOW, Styler, columns, counted, sanitize
from tidemill.engine.catalog import Diff
from tidemill.errors import offered, rejected
from tidemill.handlers.discovery import UnusableNodeType
from tidemill.kernel.document.diff import Change, GraphDiff
from tidemill.kernel.model import Json, NodeType
from tidemill.node_types import BUILT_IN, NodeTypes
from tidemill.version import __version__

if TYPE_CHECKING:
    from tidemill.engine.services.workers import NodeTypeView


def print_document(about: str, document: Any) -> None:
    """Print a document so that it can be edited and published again."""
    from tidemill.kernel.document.text import as_yaml

    print(Styler()(f"# {sanitize(about)}", DIM))
    print(as_yaml(document), end="")


DEPTH_MAX = 3
"""Fields within fields within fields: what lies deeper is left to --json."""
TYPE_COLUMNS_MAX = 48


class KnownTypes(NamedTuple):
    """The node types of this process, and with a store those of its workers."""

    here: NodeTypes
    views: tuple[NodeTypeView, ...] | None = None
    """What the store knows of types; None where none was asked."""

    @property
    def by_name(self) -> dict[str, Sequence[NodeType]]:
        """What the compiler knows: types of this process win."""
        types: dict[str, list[NodeType]] = {}
        for each in self.details:
            types.setdefault(each.type.name, []).append(each.type)
        return {**types}

    @property
    def unusable_types(self) -> tuple[str, ...]:
        return self.here.unusable_types

    @property
    def details(self) -> list[NodeTypeDetails]:
        seen = {view.node_type.key: view for view in self.views or ()}
        own = {offer.handler.type.key: (offer.handler.type, offer.origin) for offer in self.here.offers}
        found = {key: (view.node_type, WORKERS) for key, view in seen.items()} | own
        return [NodeTypeDetails(*found[key], seen.get(key)) for key in sorted(found)]


WORKERS = "workers"
"""The origin of a type that this process does not have."""


class NodeTypeDetails(NamedTuple):
    type: NodeType
    origin: str
    view: NodeTypeView | None = None
    """Who has it, where a store was asked."""

    @property
    def workers(self) -> str:
        """How many workers have it, and since when none has."""
        if self.view is None or self.view.last_seen_ms is None:
            return ""
        if self.view.workers:
            return counted(self.view.workers, "worker")
        return f"last seen {age(self.view.last_seen_ms)}"

    def to_dict(self) -> dict[str, Any]:
        shown = ("name", "major", "title", "description", "icon", "queue")
        schemas = ("config_schema", "input_schema", "output_schema")
        return {
            "type": self.type.key,
            **{name: getattr(self.type, name) for name in shown},
            # What comes with Tidemill has no version but Tidemill's.
            "version": self.type.version or (__version__ if self.origin == BUILT_IN else ""),
            "origin": self.origin,
            "here": self.origin != WORKERS,
            "workers": None if self.view is None else self.view.workers,
            "last_seen_ms": None if self.view is None else self.view.last_seen_ms,
            "image": "" if self.view is None else self.view.image,
            "waits": self.type.waits,
            "capabilities": msgspec.structs.asdict(self.type.capabilities),
            "secret_fields": list(self.type.secret_fields),
            **{name: getattr(self.type, name) for name in schemas},
        }


class NodeTypeList:
    def __init__(self, types: KnownTypes) -> None:
        self.shown = types.details
        self.broken: Sequence[UnusableNodeType] = types.here.broken

    def to_dict(self) -> dict[str, Any]:
        broken = [{"entry_point": each.name, "origin": each.origin, "reason": each.reason} for each in self.broken]
        return {"types": [each.to_dict() for each in self.shown], "broken": broken}


def print_node_types(types: NodeTypeList) -> None:
    columns = (
        Column("TYPE", lambda each: each.type.name),
        Column("VERSION", lambda each: each.type.version or each.type.major),
        Column("QUEUE", lambda each: each.type.queue),
        Column("FROM", lambda each: each.origin, gives=True),
        *([Column("WORKERS", lambda each: each.workers)] if any(each.workers for each in types.shown) else []),
        Column("CAN", lambda each: names(_abilities(each.type)), gives=True),
    )
    print_rows(columns, types.shown, lambda each: each.type.description.partition("\n")[0] or each.type.title)
    for broken in types.broken:
        print_hint(str(broken))


def _abilities(type_: NodeType) -> list[str]:
    """What is out of the ordinary about a type, in words."""
    capabilities = type_.capabilities
    abilities = {
        "wait": type_.waits,
        "stream": capabilities.streaming,
        "checkpoint": capabilities.checkpointing,
        "own process": capabilities.process,
        "at most once": capabilities.at_most_once,
        "no retries": not capabilities.retryable,
        f"{capabilities.concurrency} at a time": capabilities.concurrency is not None,
    }
    return [words for words, applies in abilities.items() if applies]


def find_node_type(types: KnownTypes, name: str) -> NodeTypeDetails:
    """The type of a name, in the version asked for or the newest. Raises Rejected."""
    base, _, major = name.partition("@")
    every = types.details
    found = [each for each in every if each.type.name == base]
    named = [each for each in found if not major or str(each.type.major) == major]
    if named:
        return max(named, key=lambda each: each.type.major)
    broken = next((str(each) for each in types.here.broken if each.name == base), "")
    known = [each.type.key for each in found] or [each.type.name for each in every]
    raise rejected("unknown_node_type", f"there is no node type {name}", hint=broken or offered(name, known))


def print_node_type(each: NodeTypeDetails) -> None:
    type_ = each.type
    print_title(type_.key, *filter(None, (type_.title,)))
    output = type_.output_schema
    returned = ", ".join(output.get("properties") or ()) if isinstance(output, Mapping) else ""
    print_facts(
        (
            ("about", type_.description),
            ("from", each.origin),
            ("workers", each.workers),
            ("image", "" if each.view is None else each.view.image),
            ("version", type_.version),
            ("icon", type_.icon),
            ("queue", type_.queue),
            ("can", ", ".join(_abilities(type_))),
            ("expects", "" if type_.input_schema is True else _kind(type_.input_schema)),
            ("returns", "" if output is True else _kind(output) + (f" with {returned}" if returned else "")),
        )
    )
    fields = list(_fields(type_.config_schema, type_.secret_fields))
    print()
    if not fields:
        print("its config is any JSON value")
        if type_.secret_fields:
            print(f"fields that accept secrets: {', '.join(type_.secret_fields)}")
        return
    heads = (Column("FIELD"), Column("TYPE", gives=True), Column("DEFAULT", gives=True), Column(""))
    print_table(heads, fields)


def _fields(schema: Json, secret: Sequence[str], above: str = "", depth: int = 0) -> Iterator[Line]:
    """The fields of a schema with those inside them; those of the entries of a list stand behind a star."""
    if not isinstance(schema, Mapping) or depth >= DEPTH_MAX:
        return
    required = schema.get("required") or ()
    for name, inner in (schema.get("properties") or {}).items():
        path = f"{above}{name}"
        marks = ["required"] * (name in required) + ["may hold secrets"] * (path in secret)
        keys = inner if isinstance(inner, Mapping) else {}
        default = snippet(keys["default"], TYPE_COLUMNS_MAX) if "default" in keys else ""
        yield Line((path, _kind(inner), default, ", ".join(marks)), str(keys.get("description") or ""))
        yield from _fields(keys, secret, f"{path}.", depth + 1)
        yield from _fields(keys.get("items"), secret, f"{path}.*.", depth + 1)


def _kind(schema: Json) -> str:
    if not isinstance(schema, Mapping):
        return "anything" if schema in (True, None) else "nothing"
    if "enum" in schema:
        return " | ".join(snippet(each, TYPE_COLUMNS_MAX) for each in schema["enum"])
    if "const" in schema:
        return snippet(schema["const"], TYPE_COLUMNS_MAX)
    for joined in ("anyOf", "oneOf"):
        if joined in schema and "type" not in schema:
            return " | ".join(dict.fromkeys(_kind(each) for each in schema[joined]))
    kinds = schema.get("type", "anything")
    if kinds == "array" and "items" in schema:
        return f"array of {_kind(schema['items'])}"
    return kinds if isinstance(kinds, str) else " | ".join(kinds)


# Differences


def print_diff(found: Diff) -> None:
    sides = (("left", found.left), ("right", found.right))
    print_facts((label, f"{side.name}@{side.version}  {side.digest}") for label, side in sides)
    lines = list(_graph_lines(found.graph))
    print()
    if not lines:
        print("they are identical")
        return
    paint = Styler()
    colours = {"+": GREEN, "-": RED, "~": YELLOW}
    for sign, text in lines:
        print(f"{paint(sign, colours.get(sign, DIM))} {sanitize(text)}".rstrip())


def _graph_lines(graph: GraphDiff) -> Iterator[tuple[str, str]]:
    yield from (("+", f"node {name}") for name in graph.nodes_added)
    yield from (("-", f"node {name}") for name in graph.nodes_removed)
    for change in graph.nodes_changed:
        yield "~", f"node {change.id}"
        yield from (("", f"  {line}") for line in _change_lines(change.fields))
    yield from (("+", f"edge {source} → {target}") for source, target in graph.edges_added)
    yield from (("-", f"edge {source} → {target}") for source, target in graph.edges_removed)
    yield from (("~", line) for line in _change_lines(graph.keys))
    if graph.reordered:
        yield "~", "the order of the nodes"


def _change_lines(changes: Sequence[Change]) -> Iterator[str]:
    for change in changes:
        for place, old, new in _places(change.field, change.old, change.new):
            room = max(16, (columns() - len(place) - 10) // 2)
            yield f"{place}: {_shown(old, room)} → {_shown(new, room)}"


def _places(place: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """The innermost places in which two values differ, as far as both are mappings."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        yield place, old, new
        return
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key, _ABSENT), new.get(key, _ABSENT)
        if before != after:
            yield from _places(f"{place}/{key}", before, after)


def _shown(value: Any, room: int) -> str:
    return "—" if value is _ABSENT else snippet(value, room)


_ABSENT = object()
