"""Values in few words: one line of JSON, cut where there is no more room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tidemill.cli.paint import clipped
from tidemill.cli.terminal import clean

TEXT_BYTES_MAX = 4_000
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def snippet(value: Any, columns_max: int) -> str:
    """A value on one line, no wider than this."""
    if value is None:
        return "null"
    if isinstance(value, str):
        # The longest texts are cut before they are looked at letter by letter.
        return clipped(clean(" ".join(value[:TEXT_BYTES_MAX].split())) or '""', columns_max)
    if isinstance(value, dict) and isinstance(value.get("$blob"), str):
        return clipped(clean(file_words(value)), columns_max)
    text = msgspec.json.encode(_shallow(value)).decode()
    return clipped(clean(text[:TEXT_BYTES_MAX]), columns_max)


def file_words(described: Mapping[str, Any]) -> str:
    """The description of a stored file, as people read it."""
    size = described.get("size")
    about = [str(described.get("media_type") or ""), size_of(size) if isinstance(size, int) else ""]
    name = str(described.get("name") or described["$blob"])
    return f"{name} ({', '.join(part for part in about if part)})"


def size_of(count: int) -> str:
    """A number of bytes as people read it."""
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{count} B" if not unit else f"{amount:.1f} {UNITS[unit]}"


def _shallow(value: Any) -> Any:
    """The beginning of a long list or mapping; more of it could not be shown anyway."""
    if isinstance(value, list):
        return value[:100]
    if isinstance(value, dict) and len(value) > 100:
        return {key: value[key] for key, _ in zip(value, range(100), strict=False)}
    return value


def names(found: Any, columns_max: int = 60) -> str:
    """Names in a row: the first of them, and how many more there are."""
    parts = [str(name) for name in found]
    shown: list[str] = []
    for name in parts:
        if shown and sum(map(len, shown)) + 2 * len(shown) + len(name) > columns_max:
            return f"{', '.join(shown)} and {len(parts) - len(shown)} more"
        shown.append(name)
    return ", ".join(shown)
