"""Reading the raw form of a condition: what every kind asks of the object it is written as."""

from __future__ import annotations

from tidemill.errors import Problem
from tidemill.expressions.scope import Json
from tidemill.expressions.wording import listing, meant, pointer, shorten

Raw = dict[str, Json]


def shape(message: str, path: str, hint: str = "") -> Problem:
    """Report that a condition is not written as its kind wants it."""
    return Problem(code="condition_shape", message=message, path=path, hint=hint)


def no_other_keys(raw: Raw, known: tuple[str, ...], path: str, problems: list[Problem]) -> None:
    """Report every key that the kind does not know."""
    for key in raw:
        if key not in known:
            hint = meant(str(key), known) or f"known keys: {listing(known)}"
            problems.append(shape(f'there is no key "{shorten(str(key), 60)}" here', pointer(path, key), hint))
