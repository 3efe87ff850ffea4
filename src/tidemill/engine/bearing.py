"""Results that bear a statement for the store: it is done, or refused, when nobody knows the attempt any more.

So what must be hidden from a refusal is borne along. None of it is ever written.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tidemill.engine.contexts import masked
from tidemill.kernel.commands import Failed
from tidemill.kernel.events import Error
from tidemill.security.masking import Mask
from tidemill.stores.contract import Statement, StatementRefused

HINT = "it did work when it was rehearsed: see what has changed, and try it by hand with the same parameters"


class Borne(msgspec.Struct, frozen=True, array_like=True):
    """A statement, and the secrets that the attempt knew which asks for it."""

    statement: Statement
    secrets: tuple[str, ...]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Borne)


def borne(statement: Statement | None, secrets: Mapping[str, str]) -> bytes:
    """As a result bears it; nothing without a statement."""
    return b"" if statement is None else _ENCODER.encode(Borne(statement, tuple(secrets.values())))


def statement_of(within: bytes) -> Statement:
    """What the store is to do."""
    return _DECODER.decode(within).statement


def refusal_of(within: bytes, refused: StatementRefused) -> Failed:
    """What a result comes to whose statement the store refuses: the words of a database quote values."""
    failed = Failed(error=Error("sql_failed", refused.message, hint=HINT))
    return masked(failed, Mask(_DECODER.decode(within).secrets))
