"""Compare two documents in normal form: as a JSON Patch from one to the other, and as a diff of their graphs.

Both sides must be normalized first, so spelling makes no difference. Nodes match by id. The patch describes the text;
the graph diff describes nodes, edges, entries and terminals, including edges that rules and paths imply.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import TypeVar

import msgspec

from tidemill.kernel.document.json_patch import OPERATIONS_MAX, POINTER_LENGTH_MAX, step_of
from tidemill.kernel.model import Json, Workflow

_LISTS = ("nodes", "edges")

T = TypeVar("T")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    field: str
    old: Json = None
    new: Json = None


class NodeChange(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    fields: tuple[Change, ...]


class GraphDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What the new workflow has and the old one has not, and the reverse."""

    nodes_added: tuple[str, ...]
    nodes_removed: tuple[str, ...]
    nodes_changed: tuple[NodeChange, ...]
    edges_added: tuple[tuple[str, str], ...]
    """Edges of all kinds: plain dependencies and the targets of rules and paths."""
    edges_removed: tuple[tuple[str, str], ...]
    entries_added: tuple[str, ...]
    entries_removed: tuple[str, ...]
    terminals_added: tuple[str, ...]
    terminals_removed: tuple[str, ...]
    keys: tuple[Change, ...]
    """Top-level keys other than `nodes` and `edges`."""
    reordered: bool
    """The common nodes are in another order."""


def diff_documents(old: Json, new: Json) -> list[dict[str, Json]]:
    """A JSON Patch to the normal form of `new`; one with too many operations replaces the whole document instead."""
    operations = list(islice(_operations(old, new), OPERATIONS_MAX + 1))
    return operations if len(operations) <= OPERATIONS_MAX else [_replace("", new)]


def diff_workflows(old: Workflow, old_document: Json, new: Workflow, new_document: Json) -> GraphDiff:
    before, after = _fields_by_node(old, old_document), _fields_by_node(new, new_document)
    both = [name for name in before if name in after]
    changes = ((name, tuple(_changes(before[name], after[name]))) for name in both)
    old_edges, new_edges = (
        [(node.id, target) for node in workflow.nodes for target in node.outbound] for workflow in (old, new)
    )
    edges_added, edges_removed = _gained_and_lost(old_edges, new_edges)
    entries_added, entries_removed = _gained_and_lost(old.entries, new.entries)
    terminals_added, terminals_removed = _gained_and_lost(old.terminals, new.terminals)
    return GraphDiff(
        nodes_added=tuple(name for name in after if name not in before),
        nodes_removed=tuple(name for name in before if name not in after),
        nodes_changed=tuple(NodeChange(id=name, fields=fields) for name, fields in changes if fields),
        edges_added=edges_added,
        edges_removed=edges_removed,
        entries_added=entries_added,
        entries_removed=entries_removed,
        terminals_added=terminals_added,
        terminals_removed=terminals_removed,
        keys=tuple(_changes(_without_lists(old_document), _without_lists(new_document))),
        reordered=both != [name for name in after if name in before],
    )


def identical(one: Json, other: Json) -> bool:
    """Whether two values have the same JSON text, apart from the order of keys: 1 and 1.0 differ."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(identical(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(identical, one, other))
    # 0.0 and -0.0 are equal but written differently.
    return bool(one == other) and (not isinstance(one, float) or repr(one) == repr(other))


def _fields_by_node(workflow: Workflow, document: Json) -> dict[str, dict[str, Json]]:
    pinned = workflow.by_id
    return {node["id"]: {**node, "type": pinned[node["id"]].type} for node in document["nodes"]}


def _changes(old: Mapping[str, Json], new: Mapping[str, Json]) -> Iterator[Change]:
    for field in dict.fromkeys((*old, *new)):
        before, after = old.get(field), new.get(field)
        if not identical(before, after):
            yield Change(field=field, old=before, new=after)


def _gained_and_lost(old: Collection[T], new: Collection[T]) -> tuple[tuple[T, ...], tuple[T, ...]]:
    before, after = set(old), set(new)
    return tuple(one for one in new if one not in before), tuple(one for one in old if one not in after)


def _without_lists(document: Json) -> dict[str, Json]:
    return {key: value for key, value in document.items() if key not in _LISTS}


def _operations(old: Json, new: Json) -> Iterator[dict[str, Json]]:
    yield from _values("", _without_lists(old), _without_lists(new))
    before = {node["id"]: node for node in old["nodes"]}
    after = {node["id"]: node for node in new["nodes"]}
    kept = [name for name in before if name in after]
    # Removing a node also removes its edges, so the edges are compared afterwards.
    yield from ({"op": "remove", "path": f"/nodes/{name}"} for name in before if name not in after)
    yield from _order_nodes(kept, after)
    for name in kept:
        yield from _values(f"/nodes/{name}", before[name], after[name])
    # Edges are a set; removals go from the end so that the other indexes stay valid.
    edges = [(edge["from"], edge["to"]) for edge in old["edges"] if edge["from"] in after and edge["to"] in after]
    known, wanted = set(edges), {(edge["from"], edge["to"]) for edge in new["edges"]}
    for number in reversed(range(len(edges))):
        if edges[number] not in wanted:
            yield {"op": "remove", "path": f"/edges/{number}"}
    for edge in new["edges"]:
        if (edge["from"], edge["to"]) not in known:
            yield {"op": "add", "path": "/edges/-", "value": edge}


def _values(path: str, old: Json, new: Json) -> Iterator[dict[str, Json]]:
    """Change a value where it differs; lists are replaced as a whole."""
    if identical(old, new):
        return
    # Whether pointers to all keys are short enough for an operation.
    if (
        not isinstance(old, dict)
        or not isinstance(new, dict)
        or not all(len(path) + 1 + len(step_of(key)) <= POINTER_LENGTH_MAX for key in ((*old, *new)))
    ):
        yield _replace(path, new)
        return
    yield from ({"op": "remove", "path": f"{path}/{step_of(key)}"} for key in old if key not in new)
    for key, value in new.items():
        inner = f"{path}/{step_of(key)}"
        if key in old:
            yield from _values(inner, old[key], value)
        else:
            yield {"op": "add", "path": inner, "value": value}


def _order_nodes(kept: list[str], after: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    """Reorder the kept nodes and insert the new ones, with few moves."""
    known, placed, at = set(kept), list(kept), 0
    staying = _longest_increasing(kept, {name: position for position, name in enumerate(after)})
    for name, node in after.items():
        if name in staying:
            at = placed.index(name, at) + 1
            continue
        if name in known:
            here = placed.index(name)
            del placed[here]
            at -= here < at
            yield {"op": "move", "from": f"/nodes/{name}", "path": f"/nodes/{at}"}
        else:
            yield {"op": "add", "path": f"/nodes/{name if at == len(placed) else at}", "value": node}
        placed.insert(at, name)
        at += 1


def _longest_increasing(names: list[str], rank: Mapping[str, int]) -> set[str]:
    """The longest increasing subsequence: these nodes need not move."""
    ends: list[int] = []
    last: list[str] = []
    before: dict[str, str | None] = {}
    for name in names:
        length = bisect_left(ends, rank[name])
        before[name] = last[length - 1] if length else None
        ends[length : length + 1] = [rank[name]]
        last[length : length + 1] = [name]
    found: set[str] = set()
    tail = last[-1] if last else None
    while tail is not None:
        found.add(tail)
        tail = before[tail]
    return found


def _replace(path: str, value: Json) -> dict[str, Json]:
    return {"op": "replace", "path": path, "value": value}
