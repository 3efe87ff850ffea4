"""Dicts in front of dicts: how a draft changes what it shares with the state it was drawn from.

Containers that can grow with a run are never copied whole; changes are kept in front of them and written into
them once they are committed.
"""

from __future__ import annotations

from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Layer(dict[K, V]):
    """A dict in front of another one that it never changes. Only `get`, `in` (own keys) and item writes are used.

    Nothing can be deleted: what is gone is written as a false value.
    """

    __slots__ = ("behind",)

    def __init__(self, behind: dict[K, V]) -> None:
        self.behind = behind

    def get(self, key: K, default: Any = None) -> Any:
        """The own value, else the base's."""
        own = dict.get(self, key)
        return own if own is not None else self.behind.get(key, default)


def everything(mapping: dict[K, V]) -> dict[K, V]:
    """All entries of a dict, those behind a layer included."""
    return {**mapping.behind, **mapping} if type(mapping) is Layer else mapping


def merged(layer: dict[K, V]) -> dict[K, V]:
    """A layer's changes written into what is behind it."""
    if type(layer) is not Layer:
        return layer
    layer.behind.update(layer)
    return layer.behind
