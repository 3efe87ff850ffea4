"""RFC 6902 reading and applying, nodes addressable by id.

Applying a JSON Patch (RFC 6902) to a document in its normal form.

A node is also found by its id: `/nodes/fetch/config/url` is wherever the node `fetch` stands in the list. That is
the one extension, and what goes with it: a new node is added at `/nodes/<its id>`, and a node removed by its id
takes its edges along. By an index, everything is exactly what the standard says.

The result is not judged here. It may be a document that no compiler takes, so it goes through the compiler like any
other; that is also where values are found that have become too deep or too large by being copied.

The operations of a JSON Patch (RFC 6902) as somebody wrote them, read into values that can be applied.

A patch comes from outside, so everything that is ill-formed in it is reported at once, each with its place in the
patch; what an operation does to a document is the business of `patch`. Pointers follow RFC 6901. Members that no
operation has are ignored, as the standard wants.
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


class Spot(NamedTuple):
    """A place in the document that an operation names."""

    said_at: str
    """Where in the patch the name stands, e.g. `/3/path`."""
    pointer: str
    steps: Steps


class Operation(NamedTuple):
    """One well-formed operation; `source` is the place itself where the operation has no `from`."""

    name: str
    place: str
    """Where in the patch it stands, e.g. `/3`."""
    target: Spot
    source: Spot
    value: Json


def read_operations(raw: Json) -> list[Operation]:
    """The operations of a patch in their order. Raises Rejected with everything that is ill-formed."""
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
    """Whether one place lies within the value at the other."""
    return len(inner) > len(outer) and inner[: len(outer)] == outer


def step_of(key: str) -> str:
    """A key as a step of a pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _operation(found: ProblemCollector, place: str, raw: Json) -> Operation | None:
    if not isinstance(raw, dict):
        found.problem("patch_invalid", place, f"an operation is a mapping, not {kind(raw)}", "write {op, path, …}")
        return None
    name = _name(found, place, raw)
    target = _spot(found, place, raw, "path")
    source = _spot(found, place, raw, "from") if name in _WITH_SOURCE else target
    if name in _WITH_VALUE and "value" not in raw:
        hint = "null is a value too, but it has to be written"
        found.problem("patch_invalid", place, f"`{name}` needs a `value`", hint)
    if name is None or target is None or source is None:
        return None
    if name == "remove" and not target.steps:
        found.problem("patch_invalid", target.said_at, "the whole document cannot be removed", "name a part of it")
    if name == "move" and inside(target.steps, source.steps):
        found.problem("patch_invalid", target.said_at, "a value cannot be moved into itself", "copy it instead")
    return Operation(name, place, target, source, raw.get("value"))


def _name(found: ProblemCollector, place: str, raw: dict[str, Json]) -> str | None:
    name = raw.get("op")
    if isinstance(name, str) and name in NAMES:
        return name
    if "op" not in raw:
        message = "`op` is missing"
    else:
        message = f"`{shown(name)}` is no operation" if isinstance(name, str) else f"`op` is a word, not {kind(name)}"
    nearest = found.nearest(name, NAMES) if isinstance(name, str) else ""
    place = f"{place}/op" if "op" in raw else place
    found.problem("patch_invalid", place, message, nearest or f"one of {', '.join(NAMES)}")
    return None


def _spot(found: ProblemCollector, place: str, raw: dict[str, Json], member: str) -> Spot | None:
    pointer, said_at = raw.get(member), f"{place}/{member}"
    if member not in raw:
        found.problem("patch_invalid", place, f"`{member}` is missing", "a pointer such as /nodes/fetch/config/url")
    elif not isinstance(pointer, str):
        found.problem("patch_invalid", said_at, f"`{member}` is a JSON pointer, not {kind(pointer)}")
    elif len(pointer) > POINTER_LENGTH_MAX:
        found.problem("patch_invalid", said_at, f"a pointer has at most {POINTER_LENGTH_MAX} characters")
    elif not _POINTER.fullmatch(pointer):
        hint = "it begins with /, and ~ is written ~0 and / inside a key ~1"
        found.problem("patch_invalid", said_at, f"`{shown(pointer)}` is not a JSON pointer", hint)
    else:
        steps = tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])
        return Spot(said_at, pointer, steps)
    return None


POINTER_SHOWN_MAX = 200

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_END = "-"
_NODES = "nodes"


def apply_patch(document: Json, operations: Json) -> Json:
    """The document after all operations, in their order; the one given stays as it is.

    The two share what did not change. Raises Rejected with everything that is ill-formed in the patch, or with the
    first operation that does not fit the document.
    """
    sheet = _Sheet(document)
    for operation in read_operations(operations):
        sheet.apply(operation)
    return sheet.finished()


def same_value(one: Json, other: Json) -> bool:
    """Whether two JSON values are equal: numbers by what they are worth, and a boolean is not a number."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_value(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_value, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


class _Sheet:
    """A document that is being written on. Whatever is changed is copied first, and once."""

    __slots__ = ("gone", "owned", "root", "seats", "slack")

    def __init__(self, document: Json) -> None:
        self.root = document
        self.owned: dict[int, Json] = {}
        """Lists and mappings that only this sheet holds, by identity; they may be changed in place."""
        self.seats: dict[str, int] | None = None
        """Where each node stood, by id, when they were counted; None when that is no help any more."""
        self.slack = 0
        """How many nodes were removed since: none has moved further than that, and only towards the front."""
        self.gone: set[str] = set()
        """Nodes removed by id whose edges are still there; many are cut off in one go."""

    def finished(self) -> Json:
        """The document, when nothing more is to come."""
        self._cut_edges()
        return self.root

    def apply(self, operation: Operation) -> None:
        """Do one operation, or refuse it."""
        if not self._removes_by_id(operation):
            self._cut_edges()
        match operation.name:
            case "test":
                self._test(operation)
            case "add":
                self._put(operation, operation.value)
            case "replace":
                self._get(operation.target)
                self._put(operation, operation.value)
            case "remove":
                self._take(operation.target)
                if self._removes_by_id(operation):
                    self.gone.add(operation.target.steps[1])
            case "move":
                self._move(operation)
            case "copy":
                value = self._get(operation.source)
                # From now on it stands in two places, and what is written in one must not show in the other.
                self.owned.clear()
                self._put(operation, value)

    # The operations

    def _test(self, operation: Operation) -> None:
        value = self._get(operation.target)
        if not same_value(value, operation.value):
            message = f"{_told(operation.target)} is {_brief(value)}, not {_brief(operation.value)}"
            hint = "look at the document as it is now and make the patch again"
            raise rejected("patch_test_failed", message, path=operation.place, hint=hint)

    def _move(self, operation: Operation) -> None:
        value = self._get(operation.source)
        source, target = self._plain(operation.source.steps), self._plain(operation.target.steps)
        if inside(target, source):
            # An id and an index can be two names of one node, so this is only known now.
            raise _unfit(operation.target.said_at, "a value cannot be moved into itself", "copy it instead")
        if source != target:
            self._take(operation.source)
            self._put(operation, value)

    def _removes_by_id(self, operation: Operation) -> bool:
        steps = operation.target.steps
        return operation.name == "remove" and self._is_seat(steps) and not _INDEX.fullmatch(steps[1])

    def _cut_edges(self) -> None:
        if self.gone and isinstance(self.root.get("edges"), list):
            gone = self.gone
            self.root["edges"] = [edge for edge in self.root["edges"] if not _touches(edge, gone)]
        self.gone = set()

    def _take(self, spot: Spot) -> None:
        holder = self._open(spot)
        key = self._key(spot, holder, len(spot.steps) - 1)
        del holder[key]
        if self._is_seat(spot.steps):
            self.slack += 1
        else:
            self._forget_seats(spot.steps)

    def _put(self, operation: Operation, value: Json) -> None:
        """Write a value where the target says: into a list before the entry that is there, over one elsewhere."""
        spot = operation.target
        if not spot.steps:
            self.root, self.seats = value, None
            return
        holder, step = self._open(spot), spot.steps[-1]
        if isinstance(holder, dict):
            holder[step] = value
        elif not isinstance(holder, list):
            raise self._missing(spot, holder, len(spot.steps) - 1)
        elif _INDEX.fullmatch(step) or step == _END:
            self._put_at(operation, holder, value)
        elif self._is_seat(spot.steps) and is_id(step):
            self._seat_node(holder, step, _named(operation, value, step))
            return
        else:
            raise self._missing(spot, holder, len(spot.steps) - 1)
        self._forget_seats(spot.steps)

    def _put_at(self, operation: Operation, holder: list[Json], value: Json) -> None:
        spot, last = operation.target, len(operation.target.steps) - 1
        if operation.name == "replace":
            holder[int(spot.steps[last])] = value
            return
        at = len(holder) if spot.steps[last] == _END else int(spot.steps[last])
        if at > len(holder):
            raise self._missing(spot, holder, last)
        holder.insert(at, value)

    def _seat_node(self, nodes: list[Json], name: str, node: Json) -> None:
        at = self._seat(nodes, name)
        if at is not None:
            nodes[at] = node
            return
        if self.seats is not None:
            self.seats[name] = len(nodes)
        nodes.append(node)

    # The way to a place

    def _get(self, spot: Spot) -> Json:
        """The value at a place."""
        here = self.root
        for depth in range(len(spot.steps)):
            here = here[self._key(spot, here, depth)]
        return here

    def _open(self, spot: Spot) -> Json:
        """The list or mapping that holds a place, ready to be changed, like everything on the way to it."""
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

    def _key(self, spot: Spot, here: Json, depth: int) -> str | int:
        """What a step means where it is taken; refuses a step that leads nowhere."""
        step = spot.steps[depth]
        if isinstance(here, dict) and step in here:
            return step
        if isinstance(here, list):
            if _INDEX.fullmatch(step) and int(step) < len(here):
                return int(step)
            at = self._seat(here, step) if self._is_seat(spot.steps[: depth + 1]) else None
            if at is not None:
                return at
        raise self._missing(spot, here, depth)

    def _missing(self, spot: Spot, here: Json, depth: int) -> Rejected:
        above = "/".join(map(step_of, spot.steps[:depth]))
        parent = f"`/{shown(above, POINTER_SHOWN_MAX)}`" if depth else "the document"
        step = shown(spot.steps[depth])
        if not isinstance(here, dict | list):
            message, hint = f"{parent} is {kind(here)}, so there is no `{step}` in it", ""
        else:
            message, hint = f"{parent} has no `{step}`", self._nearest(spot.steps, here, depth)
        return rejected("patch_path_missing", message, path=spot.said_at, hint=hint)

    def _nearest(self, steps: Steps, here: Json, depth: int) -> str:
        if isinstance(here, dict):
            return ProblemCollector().nearest(steps[depth], here)
        entries = f"the list has {len(here)} entries, counted from 0"
        if not self._is_seat(steps[: depth + 1]) or _INDEX.fullmatch(steps[depth]):
            return entries
        return ProblemCollector().nearest(steps[depth], _counted(here)) or "name a node by its id, or by its index"

    # Nodes by id

    def _is_seat(self, steps: Steps) -> bool:
        """Whether the steps lead to an entry of the list of nodes, the one list whose entries have names."""
        nodes = self.root.get(_NODES) if isinstance(self.root, dict) else None
        return len(steps) == 2 and steps[0] == _NODES and isinstance(nodes, list)

    def _seat(self, nodes: list[Json], name: str) -> int | None:
        """Where a node stands. Counting a large document anew for every operation would take minutes."""
        if self.seats is not None:
            last = min(self.seats.get(name, -1), len(nodes) - 1)
            for at in range(last, max(last - self.slack, 0) - 1, -1):
                if _id_of(nodes[at]) == name:
                    return at
        if self.seats is None or self.slack:
            self.seats, self.slack = _counted(nodes), 0
            return self.seats.get(name)
        return None

    def _forget_seats(self, steps: Steps) -> None:
        if steps[0] == _NODES and (len(steps) < 3 or steps[2:] == ("id",)):
            self.seats = None

    def _plain(self, steps: Steps) -> Steps:
        """The same place with a node's index instead of its id."""
        if not self._is_seat(steps[:2]):
            return steps
        seat = self._seat(self.root[_NODES], steps[1])
        return steps if seat is None else (_NODES, str(seat), *steps[2:])


def _named(operation: Operation, value: Json, name: str) -> Json:
    """A node that is written under an id has it, even if the value does not say so."""
    place = f"{operation.place}/value" if operation.name in ("add", "replace") else operation.place
    if not isinstance(value, dict):
        raise _unfit(place, f"a node is a mapping, not {kind(value)}")
    given = _id_of(value)
    if given is None:
        return {**value, "id": name}
    if given != name:
        said = f"`{shown(given)}`" if isinstance(given, str) else kind(given)
        raise _unfit(place, f"the path says `{shown(name)}`, the node's own id is {said}", "keep one of the two")
    return value


def _counted(nodes: list[Json]) -> dict[str, int]:
    """Where each node stands, by id. Of two nodes with one id the first counts, as it does for the compiler."""
    seats: dict[str, int] = {}
    for number, node in enumerate(nodes):
        name = _id_of(node)
        if isinstance(name, str):
            seats.setdefault(name, number)
    return seats


def _id_of(node: Json) -> Json:
    """A node's id; a node that was added may have the other spelling until the document is read again."""
    if not isinstance(node, dict):
        return None
    given = node.get("id")
    return given if given is not None else node.get("node_id")


def _touches(edge: Json, names: set[str]) -> bool:
    ends = (edge.get("from"), edge.get("to")) if isinstance(edge, dict) else ()
    return any(isinstance(end, str) and end in names for end in ends)


def _unfit(path: str, message: str, hint: str = "") -> Rejected:
    return rejected("patch_invalid", message, path=path, hint=hint)


def _told(spot: Spot) -> str:
    return f"`{shown(spot.pointer, POINTER_SHOWN_MAX)}`" if spot.steps else "the document"


def _brief(value: Json) -> str:
    """A value in a sentence: only what is small is written out."""
    if isinstance(value, str):
        return f"`{shown(value)}`"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        return f"{kind(value)} of {len(value)}"
    return f"{value}" if abs(value) < 10**15 else kind(value)
