"""Numbered migrations and named statements, read from the files in `sql/`.

A migration is a file `0001_what_it_does.sql`, applied once, in order, in a transaction, and recorded with a checksum of
its statements. A recorded checksum that differs from the file is refused. Executing SQL is left to the store.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tidemill.errors import rejected

FOLDER = Path(__file__).parent / "sql"


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """Covers the statements; comments may be edited."""
        lines = [line for line in self.sql.splitlines() if line.strip() and not line.lstrip().startswith("--")]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A migration in the list of a store."""

    number: int
    name: str
    applied_ms: int | None
    """When it was applied; None while it is pending."""


def migrations(dialect: str) -> tuple[Migration, ...]:
    found = (
        Migration(number=int(match[1]), name=match[2], sql=entry.read_text(encoding="utf-8"))
        for entry in (FOLDER / dialect).iterdir()
        if (match := re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name))
    )
    return tuple(sorted(found, key=lambda each: each.number))


def pending(
    known: Sequence[Migration], applied: Mapping[int, str], store: object = "the store"
) -> tuple[Migration, ...]:
    """The migrations that a store lacks, given those applied (number to checksum); refuses an unknown schema."""
    newest = known[-1].number if known else 0
    if any(number > newest for number in applied):
        message = f"{store} has schema {max(applied)}, and this version of Tidemill knows schemas up to {newest}"
        raise rejected("store_newer", message, hint="upgrade Tidemill: nothing was changed")
    for each in known:
        if applied.get(each.number, each.checksum) != each.checksum:
            message = f"migration {each.number} ({each.name}) of {store} is not the one that this version knows"
            hint = "open it with the version that made it: nothing was changed"
            raise rejected("store_schema_unknown", message, hint=hint)
    missing = tuple(each for each in known if each.number not in applied)
    if applied and missing and missing[0].number < max(applied):
        message = f"the list of migrations of {store} lacks number {missing[0].number}, and has number {max(applied)}"
        hint = "rows of the table `migrations` were removed: restore them or a backup; nothing was changed"
        raise rejected("store_damaged", message, hint=hint)
    return missing


_NAMED = re.compile(r"^-- name: (\w+)\n(.*?);\s*$(?=\n*(?:-- name: |\Z))", re.MULTILINE | re.DOTALL)


def statements(dialect: str) -> Mapping[str, str]:
    text = (FOLDER / dialect / "statements.sql").read_text(encoding="utf-8")
    found = {name: " ".join(body.split()) for name, body in _NAMED.findall(text)}
    if len(found) != text.count("-- name: "):
        raise ValueError(f"a statement of {dialect} is written twice, or does not end with a semicolon")
    return found
