"""Dicts in front of dicts: how a draft changes what it shares with the state it was drawn from.

Containers that can grow with a run are never copied whole; changes are kept in front of them and written into
them once they are committed.
"""

from __future__ import annotations

from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


GONE: Any = object()
"""What a layer has in the place of an entry that was taken out."""


class Layer(dict[K, V]):
    """A dict in front of another one that it never changes. Only `get`, `in` (own keys) and item writes are used."""

    __slots__ = ("behind",)

    def __init__(self, behind: dict[K, V]) -> None:
        self.behind = behind

    def get(self, key: K, default: Any = None) -> Any:
        """The own value, else the base's."""
        own = dict.get(self, key)
        if own is None:
            return self.behind.get(key, default)
        return default if own is GONE else own


def take_out(mapping: dict[K, V], key: K) -> None:
    """Remove an entry, also one that is behind a layer."""
    if type(mapping) is Layer:
        mapping[key] = GONE
    else:
        mapping.pop(key, None)


def everything(mapping: dict[K, V]) -> dict[K, V]:
    """All entries of a dict, those behind a layer included."""
    return _with(mapping, dict(mapping.behind)) if type(mapping) is Layer else mapping


def merged(layer: dict[K, V]) -> dict[K, V]:
    """A layer's changes written into what is behind it."""
    return _with(layer, layer.behind) if type(layer) is Layer else layer


def _with(layer: dict[K, V], base: dict[K, V]) -> dict[K, V]:
    base.update(layer)
    for key in [key for key, value in layer.items() if value is GONE]:
        del base[key]
    return base
