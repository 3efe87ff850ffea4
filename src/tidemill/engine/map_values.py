"""The values of a map: the list that it goes over, and the list that its items make up."""

from __future__ import annotations

from typing import Any

from tidemill.blobs.payloads import decode_value
from tidemill.engine.values import Fetched, text_of
from tidemill.kernel.activation import QUEUED_ITEM
from tidemill.kernel.events import Payload
from tidemill.kernel.items import MapState
from tidemill.kernel.jobs import Task

Lists = dict[tuple[str, int], list[Any]]
"""Decoded lists of maps by (node, visit): decoded once, not once per item."""


def outputs_of(items: MapState) -> list[Payload]:
    """What the items came to, in index order; a tolerated failure's entry is its envelope."""
    found = [(items.get(index) or QUEUED_ITEM).output for index in range(items.count)]
    return [output for output in found if output is not None]


def assembled(items: MapState, fetched: Fetched) -> bytes:
    """The text of the list that the items make up."""
    return b"[" + b",".join([text_of(output, fetched) for output in outputs_of(items)]) + b"]"


def item_of(lists: Lists, task: Task, items: MapState, fetched: Fetched) -> Any:
    """The item that a task is about."""
    key = (task.node, task.visit)
    if key not in lists:
        lists[key] = decode_value(text_of(items.items, fetched))
    return lists[key][task.index]
