"""Node types of installed distributions, and the merge of node types of all origins.

A distribution lists its node types as entry points of the group `tidemill.nodes`. A node type that cannot be loaded or
clashes with another is reported with the reason, and does not affect the others.
"""

from __future__ import annotations

import os
import site
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill.errors import rejected
from tidemill.expressions.schema import check_schema
from tidemill.handlers.contract import Handler, handler_of, text_of
from tidemill.kernel.model import NodeType

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "tidemill.nodes"


class NodeTypeSource(NamedTuple):
    handler: Handler
    origin: str


class UnusableNodeType(NamedTuple):
    name: str
    """Name of the entry point, or of the node type if it is known."""
    origin: str
    reason: str

    def __str__(self) -> str:
        return f"{self.origin} offers node types as `{self.name}` that cannot be used: {self.reason}"


class DiscoveredNodeTypes(NamedTuple):
    offers: tuple[NodeTypeSource, ...] = ()
    broken: tuple[UnusableNodeType, ...] = ()


def installed() -> DiscoveredNodeTypes:
    """Import the node types of all installed distributions."""
    offers: list[NodeTypeSource] = []
    broken: list[UnusableNodeType] = []
    for point in sorted(_entry_points(), key=lambda point: (_distribution(point), point.name)):
        origin = _distribution(point)
        try:
            offers += [NodeTypeSource(handler, origin) for handler in handlers_in(point.load())]
        except BaseException as error:
            broken.append(UnusableNodeType(point.name, origin, f"{type(error).__name__}: {text_of(error)}"))
    return DiscoveredNodeTypes(tuple(offers), tuple(broken))


def _entry_points() -> Iterator[EntryPoint]:
    """The entry points of what was installed, never of the current folder or a document's."""
    places = site.getsitepackages()
    places += [site.getusersitepackages(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    places = [place for place in dict.fromkeys(places) if os.path.isabs(place) and _offers_nodes(place)]
    if not places:
        return
    from importlib.metadata import distributions

    names = set()
    for each in distributions(path=places):
        if each.name not in names:
            names.add(each.name)
            yield from (point for point in each.entry_points if point.group == GROUP)


def _offers_nodes(place: str) -> bool:
    """Whether a distribution in a folder may offer node types; importing the reader of metadata takes longer."""
    try:
        found = [each.path for each in os.scandir(place) if each.name.endswith((".dist-info", ".egg-info", ".egg"))]
        return any(path.endswith(".egg") or GROUP.encode() in _entry_points_of(path) for path in found)
    except OSError:
        return os.path.exists(place)


def _entry_points_of(folder: str) -> bytes:
    try:
        return Path(folder, "entry_points.txt").read_bytes()
    except OSError:
        return b""


def handlers_in(target: Any) -> list[Handler]:
    """The node types that an entry point refers to. Raises TypeError."""
    return list(_handlers(target() if callable(target) and not _is_node(target) else target))


def _handlers(target: Any) -> Iterator[Handler]:
    if _is_node(target):
        yield handler_of(target)
    elif isinstance(target, Sequence) and not isinstance(target, (str, bytes)):
        for each in target:
            yield from _handlers(each() if isinstance(each, type) else each)
    else:
        what = "a Handler, an object with `type` and `call`, several of them, or a function that returns those"
        raise TypeError(f"{type(target).__name__} is not {what}")


def _is_node(target: Any) -> bool:
    """Whether an object describes a node type; a class does not, its instances do."""
    if isinstance(target, Handler):
        return True
    return isinstance(getattr(target, "type", None), NodeType) and not isinstance(target, type)


def collect_node_types(
    own: Sequence[NodeTypeSource], found: DiscoveredNodeTypes, given: Sequence[NodeTypeSource]
) -> DiscoveredNodeTypes:
    """Merge node types by key. A clash makes an installed one unusable, and raises Rejected for a given one."""
    broken = list(found.broken)
    taken = {offer.handler.type.key: offer for offer in own}
    for offer in (*_without_clashes(own, found.offers, broken), *given):
        type_ = offer.handler.type
        if reason := _schema_problem(type_):
            broken.append(UnusableNodeType(type_.name, offer.origin, reason))
            continue
        other = taken.setdefault(type_.key, offer)
        if other is not offer:
            message = f"the node type {type_.key} comes from {other.origin} and from {offer.origin}"
            hint = "rename one of them, or give it another major version"
            raise rejected("node_type_twice", message, path=f"/{type_.key}", hint=hint)
    return DiscoveredNodeTypes(tuple(taken.values()), tuple(broken))


def _without_clashes(
    own: Sequence[NodeTypeSource], found: Sequence[NodeTypeSource], broken: list[UnusableNodeType]
) -> Iterator[NodeTypeSource]:
    """The installed node types whose key is unique; the others are added to `broken`."""
    origins: dict[str, list[str]] = {}
    for offer in (*own, *found):
        origins.setdefault(offer.handler.type.key, []).append(offer.origin)
    for offer in found:
        key = offer.handler.type.key
        others = list(origins[key])
        others.remove(offer.origin)
        if others:
            broken.append(UnusableNodeType(offer.handler.type.name, offer.origin, f"{key} comes from {others[0]} too"))
        else:
            yield offer


def _schema_problem(type_: NodeType) -> str:
    for part in ("config_schema", "input_schema", "output_schema"):
        try:
            problems = check_schema(getattr(type_, part))
        except Exception as error:
            return f"{part} of {type_.key}: {type(error).__name__}: {text_of(error)}"
        if problems:
            return f"{part} of {type_.key} is not a JSON Schema: {problems[0].sentence}"
    return ""


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
