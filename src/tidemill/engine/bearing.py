"""A handler's result together with a SQL statement that the store executes in the same commit.

The store may refuse the statement after the attempt has ended, so the secrets that mask its error message go along.
The ask of a worker carries this in memory beside the command; it is never part of the command and never written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.engine.contexts import masked
from tidemill.kernel.commands import Failed
from tidemill.kernel.events import Error
from tidemill.security.masking import Mask
from tidemill.stores.contract import Statement, StatementRefused

HINT = "it did work when it was rehearsed: see what has changed, and try it by hand with the same parameters"


@dataclass(frozen=True, slots=True)
class TransactionalStatement:
    """A statement, and the secrets that were disclosed to the attempt which asks for it."""

    statement: Statement = field(repr=False)
    _secrets: tuple[str, ...] = field(repr=False)

    def refusal(self, refused: StatementRefused) -> Failed:
        """What the result becomes when the store refuses the statement: a database quotes values in its messages."""
        return masked(Failed(error=Error("sql_failed", refused.message, hint=HINT)), Mask(self._secrets))


def transactional(statement: Statement | None, secrets: Mapping[str, str]) -> TransactionalStatement | None:
    return None if statement is None else TransactionalStatement(statement, tuple(secrets.values()))
