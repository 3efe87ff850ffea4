"""Chores: work that is no condition, and that must not be done in this process all the same.

A chore goes the way of an errand, to a child that can be killed, and comes back with a value instead of true or
false: which rows of a table a condition holds for, what a program in jq makes of a value, what a query finds in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from tidemill.expressions.failure import ExpressionError, condition_failed
from tidemill.expressions.leaf import Leaf
from tidemill.expressions.scope import Json, Scope

CHORE_MS = 10_000
"""What a chore may take, unless it says otherwise."""


@dataclass(frozen=True, slots=True)
class Sift:
    """A condition to be decided for each of many rows, each of which is the output that it looks at."""

    leaf: Leaf
    scope: Scope
    rows: list[Json]
    deadline_ms: int = CHORE_MS

    @property
    def what(self) -> str:
        """What is spoken of when it has no answer."""
        return "the condition"


class Jq(msgspec.Struct, frozen=True, kw_only=True, tag="jq"):
    """A program in jq, and the text of what it is given; `each` asks it about every item of a list."""

    program: str
    value: msgspec.Raw
    each: bool = False
    deadline_ms: int = CHORE_MS

    @property
    def what(self) -> str:
        """What is spoken of when it has no answer."""
        return "the program"


class Find(msgspec.Struct, frozen=True, kw_only=True, tag="find"):
    """A JSONPath query, and the text of what it looks into."""

    query: str
    value: msgspec.Raw
    deadline_ms: int = CHORE_MS

    @property
    def what(self) -> str:
        """What is spoken of when it has no answer."""
        return "the query"


Chore = Sift | Jq | Find

Judge = Callable[[Leaf, Scope], bool]
"""Decides a condition over a scope."""


def done(chore: Chore, judge: Judge) -> bytes:
    """Do a chore and give the text of its result; raise `ExpressionError` if there is none."""
    match chore:
        case Sift():
            return msgspec.json.encode(_sifted(chore, judge))
        case Jq():
            # Only children run programs: it is native code, which could be the end of its process.
            from tidemill.expressions.jq import run_jq

            return run_jq(chore.program, bytes(chore.value), each=chore.each)
        case Find():
            return msgspec.json.encode(find_all(chore.query, msgspec.json.decode(chore.value)))


def find_all(query: str, value: Json) -> list[Json]:
    """Give all that a query finds; raise `ExpressionError` if it is none."""
    from tidemill.expressions.jsonpath_syntax import QueryFault, read_query

    try:
        return list(read_query(query).find(value, value))
    except QueryFault as fault:
        raise condition_failed(fault.message, fault.hint) from None


def _sifted(sift: Sift, judge: Judge) -> list[bool]:
    held: list[bool] = []
    for row in sift.rows:
        try:
            held.append(judge(sift.leaf, replace(sift.scope, has_output=True, output=row)))
        except ExpressionError as failure:
            failure.path = f"/{len(held)}"
            raise
    return held
