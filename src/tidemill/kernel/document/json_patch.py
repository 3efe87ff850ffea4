"""JSON Patch (RFC 6902, pointers RFC 6901) on a document in normal form: reading operations and applying them.

One extension: `/nodes/<id>` addresses a node by id. `add` there appends or replaces the node, and `remove` also removes
its edges; by index everything is as in the standard. All ill-formed operations are reported at once. The result is not
validated here: the caller compiles it, which also finds values that copies made too deep or too large.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidemill.errors import Rejected, rejected
from tidemill.kernel.document.fields import is_id, kind
from tidemill.kernel.document.problems import ProblemCollector, shown
from tidemill.kernel.document.values import check_values
from tidemill.kernel.model import Json

OPERATIONS_MAX = 1_000
POINTER_LENGTH_MAX = 1_000

NAMES = ("add", "remove", "replace", "move", "copy", "test")
_WITH_VALUE = frozenset({"add", "replace", "test"})
_WITH_SOURCE = frozenset({"move", "copy"})
_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)*", re.DOTALL)

Steps = tuple[str, ...]


class PatchPointer(NamedTuple):
    patch_path: str
    """Where the pointer is in the patch, e.g. `/3/path`."""
    pointer: str
    steps: Steps


class Operation(NamedTuple):
    """One well-formed operation; `source` equals `target` where there is no `from`."""

    name: str
    place: str
    """Where it is in the patch, e.g. `/3`."""
    target: PatchPointer
    source: PatchPointer
    value: Json


def read_operations(raw: Json) -> list[Operation]:
    """Read the operations in order. Raises Rejected with everything that is ill-formed."""
    found = ProblemCollector()
    if not isinstance(raw, list):
        found.problem("patch_invalid", "", f"a patch is a list of operations, not {kind(raw)}", "write [{op, path, …}]")
    elif len(raw) > OPERATIONS_MAX:
        hint = "make several patches, or publish the whole document"
        found.problem("patch_invalid", "", f"{len(raw)} operations, at most {OPERATIONS_MAX} are taken", hint)
    else:
        check_values(raw, found)
    found.refuse()
    read = [_operation(found, f"/{number}", operation) for number, operation in enumerate(raw)]
    found.refuse()
    return [operation for operation in read if operation is not None]


def inside(inner: Steps, outer: Steps) -> bool:
    return len(inner) > len(outer) and inner[: len(outer)] == outer


def step_of(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _operation(found: ProblemCollector, place: str, raw: Json) -> Operation | None:
    if not isinstance(raw, dict):
        found.problem("patch_invalid", place, f"an operation is a mapping, not {kind(raw)}", "write {op, path, …}")
        return None
    name = _name(found, place, raw)
    target = _spot(found, place, raw, "path")
    source = _spot(found, place, raw, "from") if name in _WITH_SOURCE else target
    if name in _WITH_VALUE and "value" not in raw:
        hint = "null is a value too: write it out"
        found.problem("patch_invalid", place, f"`{name}` needs a `value`", hint)
    if name is None or target is None or source is None:
        return None
    if name == "remove" and not target.steps:
        found.problem(
            "patch_invalid", target.patch_path, "the whole document cannot be removed", "name a part of the document"
        )
    if name == "move" and inside(target.steps, source.steps):
        found.problem("patch_invalid", target.patch_path, "a value cannot be moved into itself", "copy it instead")
    return Operation(name, place, target, source, raw.get("value"))


def _name(found: ProblemCollector, place: str, raw: dict[str, Json]) -> str | None:
    name = raw.get("op")
    if isinstance(name, str) and name in NAMES:
        return name
    if "op" not in raw:
        message = "`op` is missing"
    else:
        message = (
            f"`{shown(name)}` is not an operation" if isinstance(name, str) else f"`op` is a word, not {kind(name)}"
        )
    nearest = found.nearest(name, NAMES) if isinstance(name, str) else ""
    place = f"{place}/op" if "op" in raw else place
    found.problem("patch_invalid", place, message, nearest or f"one of {', '.join(NAMES)}")
    return None


def _spot(found: ProblemCollector, place: str, raw: dict[str, Json], member: str) -> PatchPointer | None:
    pointer, patch_path = raw.get(member), f"{place}/{member}"
    if member not in raw:
        found.problem("patch_invalid", place, f"`{member}` is missing", "a pointer such as /nodes/fetch/config/url")
    elif not isinstance(pointer, str):
        found.problem("patch_invalid", patch_path, f"`{member}` is a JSON pointer, not {kind(pointer)}")
    elif len(pointer) > POINTER_LENGTH_MAX:
        found.problem("patch_invalid", patch_path, f"a pointer has at most {POINTER_LENGTH_MAX} characters")
    elif not _POINTER.fullmatch(pointer):
        hint = "it begins with /, and ~ is written ~0 and / inside a key ~1"
        found.problem("patch_invalid", patch_path, f"`{shown(pointer)}` is not a JSON pointer", hint)
    else:
        steps = tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])
        return PatchPointer(patch_path, pointer, steps)
    return None


POINTER_SHOWN_MAX = 200

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_END = "-"
_NODES = "nodes"


def apply_patch(document: Json, operations: Json) -> Json:
    """The document after all operations; the original is unchanged and shares unchanged parts.

    Raises Rejected with everything that is ill-formed in the patch, or with the first operation that does not fit.
    """
    patched = _PatchedDocument(document)
    for operation in read_operations(operations):
        patched.apply(operation)
    return patched.result()


def same_value(one: Json, other: Json) -> bool:
    """Whether two JSON values are equal: numbers by value, and a boolean is not a number."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_value(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_value, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


class _PatchedDocument:
    """A document under change. Containers are copied once, before the first write."""

    __slots__ = ("indexes", "owned", "removed", "root", "shift")

    def __init__(self, document: Json) -> None:
        self.root = document
        self.owned: dict[int, Json] = {}
        """Copied containers by identity; they may be changed in place."""
        self.indexes: dict[str, int] | None = None
        """Index of each node by id when last counted; None if unusable."""
        self.shift = 0
        """Nodes removed since: each index is at most this much too high."""
        self.removed: set[str] = set()
        """Nodes removed by id whose edges are still there; their edges are removed together."""

    def result(self) -> Json:
        self._cut_edges()
        return self.root

    def apply(self, operation: Operation) -> None:
        if not self._removes_by_id(operation):
            self._cut_edges()
        match operation.name:
            case "test":
                value = self._get(operation.target)
                if not same_value(value, operation.value):
                    raise _test_failed(operation, value)
            case "add":
                self._put(operation, operation.value)
            case "replace":
                self._get(operation.target)
                self._put(operation, operation.value)
            case "remove":
                self._take(operation.target)
                if self._removes_by_id(operation):
                    self.removed.add(operation.target.steps[1])
            case "move":
                value = self._get(operation.source)
                source, target = self._plain(operation.source.steps), self._plain(operation.target.steps)
                if inside(target, source):
                    # An id and an index may address the same node, so only the resolved steps tell.
                    message = "a value cannot be moved into itself"
                    raise _invalid(operation.target.patch_path, message, "copy it instead")
                if source != target:
                    self._take(operation.source)
                    self._put(operation, value)
            case "copy":
                value = self._get(operation.source)
                # The value is now in two places; a write to one must copy it again.
                self.owned.clear()
                self._put(operation, value)

    def _removes_by_id(self, operation: Operation) -> bool:
        steps = operation.target.steps
        return operation.name == "remove" and self._is_node(steps) and not _INDEX.fullmatch(steps[1])

    def _cut_edges(self) -> None:
        if self.removed and isinstance(self.root.get("edges"), list):
            self.root["edges"] = [edge for edge in self.root["edges"] if not _touches(edge, self.removed)]
        self.removed = set()

    def _take(self, spot: PatchPointer) -> None:
        holder = self._open(spot)
        key = self._key(spot, holder, len(spot.steps) - 1)
        del holder[key]
        if self._is_node(spot.steps):
            self.shift += 1
        else:
            self._forget_indexes(spot.steps)

    def _put(self, operation: Operation, value: Json) -> None:
        """Write at the target: insert before the entry of a list, overwrite elsewhere."""
        spot = operation.target
        if not spot.steps:
            self.root, self.indexes = value, None
            return
        holder, step = self._open(spot), spot.steps[-1]
        if isinstance(holder, dict):
            holder[step] = value
        elif not isinstance(holder, list):
            raise self._missing(spot, holder, len(spot.steps) - 1)
        elif _INDEX.fullmatch(step) or step == _END:
            self._put_at(operation, holder, value)
        elif self._is_node(spot.steps) and is_id(step):
            self._put_node(holder, step, _named(operation, value, step))
            return
        else:
            raise self._missing(spot, holder, len(spot.steps) - 1)
        self._forget_indexes(spot.steps)

    def _put_at(self, operation: Operation, holder: list[Json], value: Json) -> None:
        spot, last = operation.target, len(operation.target.steps) - 1
        if operation.name == "replace":
            holder[int(spot.steps[last])] = value
            return
        at = len(holder) if spot.steps[last] == _END else int(spot.steps[last])
        if at > len(holder):
            raise self._missing(spot, holder, last)
        holder.insert(at, value)

    def _put_node(self, nodes: list[Json], name: str, node: Json) -> None:
        at = self._node_index(nodes, name)
        if at is not None:
            nodes[at] = node
            return
        if self.indexes is not None:
            self.indexes[name] = len(nodes)
        nodes.append(node)

    def _get(self, spot: PatchPointer) -> Json:
        here = self.root
        for depth in range(len(spot.steps)):
            here = here[self._key(spot, here, depth)]
        return here

    def _open(self, spot: PatchPointer) -> Json:
        """The container of a place, copied for writing like everything above it."""
        here = self.root = self._own(self.root)
        for depth in range(len(spot.steps) - 1):
            key = self._key(spot, here, depth)
            here[key] = self._own(here[key])
            here = here[key]
        return here

    def _own(self, value: Json) -> Json:
        if id(value) in self.owned or not isinstance(value, dict | list):
            return value
        copied = value.copy()
        self.owned[id(copied)] = copied
        return copied

    def _key(self, spot: PatchPointer, here: Json, depth: int) -> str | int:
        """Resolve a step to a key or index, or refuse it."""
        step = spot.steps[depth]
        if isinstance(here, dict) and step in here:
            return step
        if isinstance(here, list):
            if _INDEX.fullmatch(step) and int(step) < len(here):
                return int(step)
            at = self._node_index(here, step) if self._is_node(spot.steps[: depth + 1]) else None
            if at is not None:
                return at
        raise self._missing(spot, here, depth)

    def _missing(self, spot: PatchPointer, here: Json, depth: int) -> Rejected:
        above = "/".join(map(step_of, spot.steps[:depth]))
        parent = f"`/{shown(above, POINTER_SHOWN_MAX)}`" if depth else "the document"
        step = shown(spot.steps[depth])
        if not isinstance(here, dict | list):
            message, hint = f"{parent} is {kind(here)}, so there is no `{step}` in it", ""
        else:
            message, hint = f"{parent} has no `{step}`", self._nearest(spot.steps, here, depth)
        return rejected("patch_path_missing", message, path=spot.patch_path, hint=hint)

    def _nearest(self, steps: Steps, here: Json, depth: int) -> str:
        if isinstance(here, dict):
            return ProblemCollector().nearest(steps[depth], here)
        entries = f"the list has {len(here)} entries, counted from 0"
        if not self._is_node(steps[: depth + 1]) or _INDEX.fullmatch(steps[depth]):
            return entries
        return ProblemCollector().nearest(steps[depth], _counted(here)) or "name a node by its id, or by its index"

    def _is_node(self, steps: Steps) -> bool:
        """Whether the steps lead to a node, the only list entries with names."""
        nodes = self.root.get(_NODES) if isinstance(self.root, dict) else None
        return len(steps) == 2 and steps[0] == _NODES and isinstance(nodes, list)

    def _node_index(self, nodes: list[Json], name: str) -> int | None:
        """The index of a node; counting all nodes for every operation would take minutes."""
        if self.indexes is not None:
            last = min(self.indexes.get(name, -1), len(nodes) - 1)
            for at in range(last, max(last - self.shift, 0) - 1, -1):
                if _id_of(nodes[at]) == name:
                    return at
        if self.indexes is None or self.shift:
            self.indexes, self.shift = _counted(nodes), 0
            return self.indexes.get(name)
        return None

    def _forget_indexes(self, steps: Steps) -> None:
        if steps[0] == _NODES and (len(steps) < 3 or steps[2:] == ("id",)):
            self.indexes = None

    def _plain(self, steps: Steps) -> Steps:
        """The same place with the node's index instead of its id."""
        if not self._is_node(steps[:2]):
            return steps
        index = self._node_index(self.root[_NODES], steps[1])
        return steps if index is None else (_NODES, str(index), *steps[2:])


def _named(operation: Operation, value: Json, name: str) -> Json:
    """A node added under an id gets that id, unless the value has another one."""
    place = f"{operation.place}/value" if operation.name in ("add", "replace") else operation.place
    if not isinstance(value, dict):
        raise _invalid(place, f"a node is a mapping, not {kind(value)}")
    given = _id_of(value)
    if given is None:
        return {**value, "id": name}
    if given != name:
        said = f"`{shown(given)}`" if isinstance(given, str) else kind(given)
        raise _invalid(place, f"the path says `{shown(name)}`, the node's own id is {said}", "keep one of the two")
    return value


def _counted(nodes: list[Json]) -> dict[str, int]:
    """Index of each node by id; of two nodes with one id the first counts, as in the compiler."""
    indexes: dict[str, int] = {}
    for number, node in enumerate(nodes):
        name = _id_of(node)
        if isinstance(name, str):
            indexes.setdefault(name, number)
    return indexes


def _id_of(node: Json) -> Json:
    """A node's id, in either spelling: an added node is not normalized yet."""
    if not isinstance(node, dict):
        return None
    given = node.get("id")
    return given if given is not None else node.get("node_id")


def _touches(edge: Json, names: set[str]) -> bool:
    ends = (edge.get("from"), edge.get("to")) if isinstance(edge, dict) else ()
    return any(isinstance(end, str) and end in names for end in ends)


def _test_failed(operation: Operation, value: Json) -> Rejected:
    spot = operation.target
    name = f"`{shown(spot.pointer, POINTER_SHOWN_MAX)}`" if spot.steps else "the document"
    message = f"{name} is {_brief(value)}, not {_brief(operation.value)}"
    hint = "read the present document and make the patch again"
    return rejected("patch_test_failed", message, path=operation.place, hint=hint)


def _invalid(path: str, message: str, hint: str = "") -> Rejected:
    return rejected("patch_invalid", message, path=path, hint=hint)


def _brief(value: Json) -> str:
    if isinstance(value, str):
        return f"`{shown(value)}`"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        return f"{kind(value)} of {len(value)}"
    return f"{value}" if abs(value) < 10**15 else kind(value)
