"""SQL by name: statements live in files of their own, and Python asks for them by what they are called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files

_NAMED = re.compile(r"^-- name: (\w+)\n(.*?);\s*$(?=\n*(?:-- name: |\Z))", re.MULTILINE | re.DOTALL)


def statements(dialect: str) -> Mapping[str, str]:
    """The statements of a dialect, from its `statements.sql`."""
    text = (files("tidemill.stores") / "sql" / dialect / "statements.sql").read_text(encoding="utf-8")
    found = {name: " ".join(body.split()) for name, body in _NAMED.findall(text)}
    if len(found) != text.count("-- name: "):
        raise ValueError(f"a statement of {dialect} is written twice, or does not end with a semicolon")
    return found
