"""Limits on the time and memory an expression may use in this process.

Authors of documents are not trusted with either. Native libraries recurse on the C stack and kill the process on values
nested some thousand levels deep. Every number is here, so that the reference pages have one place to quote.
"""

from __future__ import annotations

from tidemill.expressions.scope import Json

DEPTH_MAX = 200
"""Nesting of lists and objects. CEL was seen to overflow the C stack between 1,000 and 10,000 levels."""

TEXT_MAX = 1 << 20
"""Characters in any string that a template makes, intermediate ones included."""

VALUES_MAX = 1_000_000
"""Values in one rendered result, counted with repetition, so that `[a, a]` nested in itself stays finite."""

STEPS_MAX = 1_000_000
"""Loop passes, calls and filtered items in the rendering of one value, however many strings it has."""

RENDER_MS_MAX = 1000
"""Processor time of one rendering, checked between steps, so the last step may exceed it."""

LOOP_MS_MAX = 20
LOOP_STEPS_MAX = 50_000
LOOP_TEXT_MAX = 1 << 16
LOOP_VALUES_MAX = 10_000
"""What a rendering may take on the event loop: processor time, steps, characters that a filter works on at once, values
that are printed at once. A rendering that needs more is begun again in a child process, with the limits above."""

RANGE_MAX = 100_000
"""Numbers in one `range()`."""

INT_BITS_MAX = 1 << 14
"""Bits of a product or power; longer ones could not be stored, and comparing lists of them would take seconds."""

WRITABLE_BITS_MAX = 14_280
"""Bits of an integer that can be stored: Python writes and reads no number of more than 4,300 digits."""

SOURCE_MAX = 1 << 18
"""Characters in the source of one template string."""

SOURCE_PARTS_MAX = 5000
"""Names, constants, operators, filters and tags in one template string: a second of compiling it."""

PATTERN_MAX = 1000
"""Characters in a regular expression of a template."""

PATTERN_BYTES_MAX = 1 << 20
"""Memory for one compiled regular expression; counted repetitions of counted repetitions end here."""

PATTERN_WORK_MAX = 1 << 26
"""Instructions of a compiled regular expression times bytes of the text: at worst 0.3 seconds."""


DECODED_BYTES_MAX = 256 << 20
"""Memory that JSON text from outside may become."""

DIGITS_MAX = 1_000_000
"""Digits of all long integers in a value: writing 4,000 digits takes 0.2 ms, which nothing interrupts."""

_DIGITS_BLOCK = 400


def json_excess(text: bytes) -> str:
    """Why JSON text must not be decoded, or an empty text: nothing interrupts the parser, and all runs wait for it."""
    if len(text) <= DIGITS_MAX:
        return ""
    if decoded_size(text) > DECODED_BYTES_MAX:
        return f"it has so many values that it takes more than {DECODED_BYTES_MAX >> 20} MB of memory"
    if long_digits(text) > DIGITS_MAX:
        return f"its long integers have more than {DIGITS_MAX} digits together"
    return ""


def decoded_size(text: bytes) -> int:
    """About how much memory JSON text becomes; from above for small values: `[],` becomes 64 bytes."""
    return len(text) + 60 * text.count(b",") + 184 * (text.count(b"[") + text.count(b"{"))


def long_digits(text: bytes) -> int:
    """About how many digits of JSON text are in integers of more than 800."""
    blocks = range(0, len(text) - _DIGITS_BLOCK + 1, _DIGITS_BLOCK)
    return _DIGITS_BLOCK * sum([text[at : at + _DIGITS_BLOCK].isdigit() for at in blocks])


def deeper_than(value: Json, limit: int = DEPTH_MAX) -> bool:
    """Whether lists and objects are nested beyond the limit, without recursion."""
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
