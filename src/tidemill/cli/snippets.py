"""Values in few words: one line of JSON, cut where there is no more room."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.cli.paint import clipped
from tidemill.cli.terminal import clean

TEXT_BYTES_MAX = 4_000


def snippet(value: Any, columns_max: int) -> str:
    """A value on one line, no wider than this."""
    if value is None:
        return "null"
    if isinstance(value, str):
        # The longest texts are cut before they are looked at letter by letter.
        return clipped(clean(" ".join(value[:TEXT_BYTES_MAX].split())) or '""', columns_max)
    text = msgspec.json.encode(_shallow(value)).decode()
    return clipped(clean(text[:TEXT_BYTES_MAX]), columns_max)


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
