"""Node types that installed distributions offer, and how those of all origins become one set.

A distribution names them in its metadata, as entry points of the group `tidemill.nodes`; nothing is imported that has
none. What cannot be used is put aside with the reason, and the others are not touched by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from tidemill.errors import rejected
from tidemill.expressions.schema import check_schema
from tidemill.handlers.contract import Handler, handler_of, text_of
from tidemill.kernel.model import NodeType

GROUP = "tidemill.nodes"
WHAT = "a Handler, an object with `type` and `call`, several of them, or a function that returns those"


class NodeTypeSource(NamedTuple):
    """A node type, and where it comes from."""

    handler: Handler
    origin: str


class UnusableNodeType(NamedTuple):
    """What cannot be used."""

    name: str
    """Of the entry point, or of the node type if that is known."""
    origin: str
    reason: str

    def __str__(self) -> str:
        return f"{self.origin} offers node types as `{self.name}` that cannot be used: {self.reason}"


class Offered(NamedTuple):
    """What can be used, and what is offered in vain."""

    offers: tuple[NodeTypeSource, ...] = ()
    broken: tuple[UnusableNodeType, ...] = ()


def installed() -> Offered:
    """Import what the entry points name."""
    offers: list[NodeTypeSource] = []
    broken: list[UnusableNodeType] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: (_distribution(point), point.name)):
        origin = _distribution(point)
        try:
            offers += [NodeTypeSource(handler, origin) for handler in handlers_in(point.load())]
        except BaseException as error:
            broken.append(UnusableNodeType(point.name, origin, f"{type(error).__name__}: {text_of(error)}"))
    return Offered(tuple(offers), tuple(broken))


def handlers_in(target: Any) -> list[Handler]:
    """The node types that an object stands for. Raises TypeError."""
    return list(_found(target() if _makes_some(target) else target))


def _makes_some(target: Any) -> bool:
    return callable(target) and not _is_node(target)


def _found(target: Any) -> Iterator[Handler]:
    if _is_node(target):
        yield handler_of(target)
    elif isinstance(target, Sequence) and not isinstance(target, (str, bytes)):
        for each in target:
            yield from _found(each() if isinstance(each, type) else each)
    else:
        raise TypeError(f"{type(target).__name__} is not {WHAT}")


def _is_node(target: Any) -> bool:
    """A class that describes a node type is none yet: its object is."""
    if isinstance(target, Handler):
        return True
    return isinstance(getattr(target, "type", None), NodeType) and not isinstance(target, type)


def collect_node_types(own: Sequence[NodeTypeSource], found: Offered, given: Sequence[NodeTypeSource]) -> Offered:
    """Everything that is offered, each type once.

    Who installs a distribution may not know what it offers, so of those only what is unmistakable is taken. Who gives
    one is told: raises Rejected where it has the name and major version of another.
    """
    broken = list(found.broken)
    taken = {offer.handler.type.key: offer for offer in own}
    for offer in (*_unmistakable(own, found.offers, broken), *given):
        type_ = offer.handler.type
        if flaw := _flaw(type_):
            broken.append(UnusableNodeType(type_.name, offer.origin, flaw))
            continue
        other = taken.setdefault(type_.key, offer)
        if other is not offer:
            message = f"the node type {type_.key} comes from {other.origin} and from {offer.origin}"
            hint = "rename one of them, or give it another major version"
            raise rejected("node_type_twice", message, path=f"/{type_.key}", hint=hint)
    return Offered(tuple(taken.values()), tuple(broken))


def _unmistakable(
    own: Sequence[NodeTypeSource], found: Sequence[NodeTypeSource], broken: list[UnusableNodeType]
) -> Iterator[NodeTypeSource]:
    """Those that have no name of another; the others are broken."""
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


def _flaw(type_: NodeType) -> str:
    """What is wrong with the schemas of a type."""
    for part in ("config_schema", "input_schema", "output_schema"):
        try:
            problems = check_schema(getattr(type_, part))
        except Exception as error:
            return f"{part} of {type_.key}: {type(error).__name__}: {text_of(error)}"
        if problems:
            return f"{part} of {type_.key} is no JSON Schema: {problems[0].sentence}"
    return ""


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
