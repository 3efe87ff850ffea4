"""What a handler asked for instead of returning a value, checked before it goes into the log.

A handler is somebody else's code: what it answers is written down for ever and read by every later worker, so
a word that cannot be stored or a moment that is none is its failure, here, and not the log's later.
"""

from __future__ import annotations

from tidemill.engine.failures import clipped
from tidemill.handlers.contract import Fail, Pause, Skip
from tidemill.kernel.commands import Skips, Waits

WAIT_MS_MAX = 3_155_760_000_000
"""A hundred years, as for the node type `sleep`."""
WORDS_MAX = 500
RESERVED = frozenset({"loop"})
"""Waits that only the engine begins."""


def asked_for(ended: Pause | Skip) -> Skips | Waits:
    """The outcome of a handler that skips or waits; raises `Fail` when it asked for something impossible."""
    if isinstance(ended, Skip):
        return Skips(reason=_word(ended.reason, "reason"))
    for_ms = ended.for_ms
    if for_ms is not None and (type(for_ms) is not int or not 0 <= for_ms <= WAIT_MS_MAX):
        raise Fail("answer_invalid", f"for_ms is {clipped(for_ms, 100)}, not a number of milliseconds from now")
    if ended.on in RESERVED:
        raise Fail("answer_invalid", f"{ended.on!r} is what the engine itself waits for", hint="use another word")
    return Waits(on=_word(ended.on, "on"), name=_word(ended.name, "name"), for_ms=for_ms)


def _word(said: object, field: str) -> str:
    if not isinstance(said, str):
        raise Fail("answer_invalid", f"{field} is {type(said).__name__}, not text")
    return clipped(said, WORDS_MAX)
