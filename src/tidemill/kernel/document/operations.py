"""The operations of a JSON Patch (RFC 6902) as somebody wrote them, read into values that can be applied.

A patch comes from outside, so everything that is ill-formed in it is reported at once, each with its place in the
patch; what an operation does to a document is the business of `patch`. Pointers follow RFC 6901. Members that no
operation has are ignored, as the standard wants.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidemill.kernel.document.fields import kind
from tidemill.kernel.document.findings import Findings, shown
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
    found = Findings()
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


def _operation(found: Findings, place: str, raw: Json) -> Operation | None:
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


def _name(found: Findings, place: str, raw: dict[str, Json]) -> str | None:
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


def _spot(found: Findings, place: str, raw: dict[str, Json], member: str) -> Spot | None:
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
