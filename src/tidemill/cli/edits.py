"""JSON Patches as people give them: a file, single places with `--set`, or both.

`--set /nodes/fetch/config/url=VALUE` means "this place shall have this value". Whether that is an `add` or a
`replace` depends on what is there, so it is looked up in the document that the patch is for. Whether the patch
makes sense is left to those who apply it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tidemill.cli.sources import parse_value, read_data
from tidemill.errors import rejected
from tidemill.front import Tidemill

_NODES = "nodes"


def read_edits(file: str | None, sets: Sequence[str], document: Callable[[], Any]) -> list[Any]:
    """The operations of a file, then those of the `--set` options. Raises Rejected."""
    if file is None and not sets:
        hint = "name a FILE with a JSON Patch, or use --set /nodes/fetch/config/url=VALUE"
        raise rejected("option_invalid", "nothing to change is given", hint=hint)
    operations = [] if file is None else _from_file(file)
    pairs = [_pair(text) for text in sets]
    if pairs:
        base = document()
        operations += [_set(base, pointer, value) for pointer, value in pairs]
    return operations


class Edits(NamedTuple):
    """A patch for a run, and the digest of the document that it is for, where that matters."""

    operations: list[Any]
    base: str | None


def edits_for(mill: Tidemill, run_id: str, file: str | None, sets: Sequence[str], base: str | None) -> Edits:
    """The patch for a run. What `--set` means depends on its document, so it is made for that and no other."""
    if not sets:
        return Edits(read_edits(file, (), lambda: None), base)
    found = mill.document(run_id)
    return Edits(read_edits(file, sets, lambda: found.document), base or found.digest)


def _from_file(name: str) -> list[Any]:
    found = read_data(name)
    if not isinstance(found, list):
        shown = "standard input" if name == "-" else name
        hint = "a JSON Patch is a list of {op, path, value}"
        raise rejected("patch_invalid", f"{shown} does not hold a list of operations", hint=hint)
    return found


def _pair(text: str) -> tuple[str, Any]:
    pointer, equals, value = text.partition("=")
    if not equals or not pointer.startswith("/"):
        hint = "write /place/in/the/document=VALUE"
        raise rejected("option_invalid", f"--set {text!r} is not /pointer=VALUE", hint=hint)
    return pointer, parse_value(f"--set {pointer}", value)


def _set(document: Any, pointer: str, value: Any) -> dict[str, Any]:
    steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    return {"op": "replace" if _exists(document, steps) else "add", "path": pointer, "value": value}


def _exists(document: Any, steps: Sequence[str]) -> bool:
    place = document
    for number, step in enumerate(steps):
        if isinstance(place, dict) and step in place:
            place = place[step]
        elif isinstance(place, list) and (entry := _entry(place, step, by_id=steps[:number] == [_NODES])) is not None:
            place = entry
        else:
            return False
    return True


def _entry(entries: list[Any], step: str, *, by_id: bool) -> Any:
    """An entry of a list by its number, of the list of nodes by its id too."""
    if step.isdecimal() and step.isascii():
        return entries[int(step)] if len(step) < 9 and int(step) < len(entries) else None
    return (
        next((entry for entry in entries if isinstance(entry, dict) and entry.get("id") == step), None)
        if by_id
        else None
    )
