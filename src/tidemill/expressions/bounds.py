"""The bounds that keep an expression from hurting the process it runs in.

Authors of documents are not trusted with time or memory. Native libraries recurse on the C stack and kill the
process on data that is nested some thousand levels deep; loops and repeated strings eat it slowly. Every
number is here, so that the reference pages have one place to quote.
"""

from __future__ import annotations

from tidemill.expressions.scope import Json

DEPTH_MAX = 200
"""Nesting of lists and objects. CEL was seen to overflow the C stack between 1,000 and 10,000 levels."""

TEXT_MAX = 1 << 20
"""Characters in any string that a template makes, in between or at the end."""

VALUES_MAX = 1_000_000
"""Values in one rendered result, counted with repetition, so that `[a, a]` nested in itself stays finite."""

STEPS_MAX = 1_000_000
"""Loop passes, calls and filtered items in the rendering of one string."""

RANGE_MAX = 100_000
"""Numbers in one `range()`."""

INT_BITS_MAX = 1 << 16
"""Bits of a product or power; beyond it a few multiplications in a loop would take minutes."""

SOURCE_MAX = 1 << 18
"""Characters in the source of one template string."""


def deeper_than(value: Json, limit: int = DEPTH_MAX) -> bool:
    """Tell whether lists and objects are nested beyond the limit, without recursion."""
    level: list[Json] = [value]
    for _ in range(limit + 1):
        below: list[Json] = []
        for each in level:
            kind = type(each)
            if kind is dict:
                below.extend(each.values())
            elif kind is list or kind is tuple:
                below.extend(each)
        if not below:
            return False
        level = below
    return True
