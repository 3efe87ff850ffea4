"""Content that the conditions of a document refer to by digest instead of holding it: a schema, or code.

Whoever has the blobs puts the content in its place before the document is compiled. Whoever has none, because it only
looks at a file, puts something neutral there, so that all the rest of the document can be checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import NamedTuple

from tidemill.errors import Problem
from tidemill.kernel.document.findings import pointer
from tidemill.kernel.model import Json

SCHEME = "cas://"
"""Another way to write a digest begins like this."""

_BORROWED = {"schema_validation": ("schema_ref", "schema"), "python_sandbox": ("code_ref", "code")}
_STAND_INS: Mapping[str, Json] = {"schema": True, "code": "def evaluate(output, context):\n    return True\n"}
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Borrowed(NamedTuple):
    """A condition that refers to content by digest."""

    condition: dict[str, Json]
    key: str
    """Under which it refers: `schema_ref` or `code_ref`."""
    field: str
    """Where the content belongs."""
    path: str

    @property
    def digest(self) -> str | None:
        """The digest; nothing if what is written there is none."""
        value = self.condition[self.key]
        digest = value.removeprefix(SCHEME) if isinstance(value, str) else ""
        return digest if _DIGEST.fullmatch(digest) else None

    def fill(self, content: Json) -> None:
        """Put the content in the place of the reference."""
        del self.condition[self.key]
        self.condition[self.field] = content

    def misspelt(self) -> Problem:
        """Report that it is no digest."""
        message = f"{self.key} is the digest of a stored blob, such as sha256:…, with 64 hexadecimal digits"
        return Problem(code="condition_shape", message=message, path=self.path, hint="`tidemill blobs put` prints it")


def borrowed_in(document: Json) -> list[Borrowed]:
    """List every reference in a document as it was written; what is not shaped like a document has none."""
    found: list[Borrowed] = []
    seen: set[int] = set()
    waiting = list(_conditions(document))
    while waiting:
        path, condition = waiting.pop()
        # The same object may stand in many places, and even inside itself.
        if not isinstance(condition, dict) or id(condition) in seen:
            continue
        seen.add(id(condition))
        kind = condition.get("type")
        if isinstance(kind, str) and kind in _BORROWED:
            key, field = _BORROWED[kind]
            if key in condition and field not in condition:
                found.append(Borrowed(condition, key, field, f"{path}/{key}"))
        waiting += _steps(f"{path}/conditions", condition.get("conditions"))
    return sorted(found, key=lambda each: each.path)


def with_stand_ins(document: Json) -> tuple[Json, list[Problem]]:
    """Put something neutral in the place of every reference; answers a warning for each.

    A reference that is misspelt stays, and the compiler refuses it.
    """
    if not borrowed_in(document):
        return document, []
    copy = deepcopy(document)
    warnings: list[Problem] = []
    for each in borrowed_in(copy):
        if each.digest is not None:
            each.fill(_STAND_INS[each.field])
            message = f"what {each.key} names is not checked here, but when the document is published"
            warnings.append(Problem(code="condition_ref_unchecked", message=message, path=each.path))
    return copy, warnings


def _conditions(document: Json) -> Iterator[tuple[str, Json]]:
    nodes = document.get("nodes") if isinstance(document, dict) else None
    for path, node in _steps("/nodes", nodes):
        if isinstance(node, dict):
            yield f"{path}/when", node.get("when")
            yield f"{path}/loop/condition", _entry(node.get("loop"), "condition")
            for at, rule in _steps(f"{path}/branch/rules", _entry(node.get("branch"), "rules")):
                yield f"{at}/condition", _entry(rule, "condition")


def _steps(path: str, holder: Json) -> list[tuple[str, Json]]:
    items = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
    return [(pointer(path, key), value) for key, value in items]


def _entry(holder: Json, key: str) -> Json:
    return holder.get(key) if isinstance(holder, dict) else None
