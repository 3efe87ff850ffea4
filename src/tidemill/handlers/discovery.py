"""Node types that installed distributions offer, and how those of all origins become one set.

A distribution names them in its metadata, as entry points of the group `tidemill.nodes`; nothing is imported that has
none. One that cannot be used is put aside with the reason, and the others are not touched by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from tidemill.errors import rejected
from tidemill.handlers.contract import Handler, handler_of
from tidemill.kernel.model import NodeType

GROUP = "tidemill.nodes"
WHAT = "a Handler, an object with `type` and `call`, several of them, or a function that returns those"


class Offer(NamedTuple):
    """A node type, and where it comes from."""

    handler: Handler
    origin: str


class Broken(NamedTuple):
    """An entry point that cannot be used."""

    name: str
    origin: str
    reason: str

    def __str__(self) -> str:
        return f"{self.origin} offers node types as `{self.name}` that cannot be used: {self.reason}"


class Installed(NamedTuple):
    """What distributions offer, and what they offer in vain."""

    offers: tuple[Offer, ...] = ()
    broken: tuple[Broken, ...] = ()


def installed() -> Installed:
    """Import what the entry points name."""
    offers: list[Offer] = []
    broken: list[Broken] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: (_distribution(point), point.name)):
        origin = _distribution(point)
        try:
            offers += [Offer(handler, origin) for handler in handlers_in(point.load())]
        except (Exception, SystemExit) as error:
            broken.append(Broken(point.name, origin, f"{type(error).__name__}: {error}"))
    return Installed(tuple(offers), tuple(broken))


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


def gathered(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """Everything that is offered, each type once. Raises Rejected where two have one name and major version."""
    known: dict[str, Offer] = {}
    for offer in offers:
        key = offer.handler.type.key
        other = known.setdefault(key, offer)
        if other is not offer:
            message = f"the node type {key} comes from {other.origin} and from {offer.origin}"
            hint = "rename one of them, or give it another major version"
            raise rejected("node_type_twice", message, path=f"/{key}", hint=hint)
    return tuple(known.values())


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
