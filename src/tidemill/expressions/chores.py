"""Sandbox tasks other than conditions: filter rows by a condition, run a jq program, evaluate a JSONPath query.

Like an errand, a chore is executed in a killable child process with a deadline; its result is JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import msgspec

from tidemill.expressions.failure import ExpressionError, condition_failed
from tidemill.expressions.leaf import Leaf
from tidemill.expressions.scope import Json, Scope

CHORE_MS = 10_000
"""What a chore may take, unless it says otherwise."""


@dataclass(frozen=True, slots=True)
class FilterRows:
    """A condition to be decided for each of many rows, each of which is the output that it looks at."""

    what: ClassVar[str] = "the condition"
    leaf: Leaf
    scope: Scope
    rows: list[Json]
    deadline_ms: int = CHORE_MS


class Jq(msgspec.Struct, frozen=True, kw_only=True, tag="jq"):
    """A program in jq, and the text of what it is given; `each` asks it about every item of a list."""

    what: ClassVar[str] = "the program"
    program: str
    value: msgspec.Raw
    each: bool = False
    deadline_ms: int = CHORE_MS


class RunQuery(msgspec.Struct, frozen=True, kw_only=True, tag="find"):
    """A JSONPath query, and the text of what it looks into."""

    what: ClassVar[str] = "the query"
    query: str
    value: msgspec.Raw
    deadline_ms: int = CHORE_MS


SandboxTask = FilterRows | Jq | RunQuery

Judge = Callable[[Leaf, Scope], bool]
"""Decides a condition over a scope."""


def done(chore: SandboxTask, judge: Judge) -> bytes:
    """Do a chore and return its result as JSON; raise `ExpressionError` if there is none."""
    match chore:
        case FilterRows():
            return msgspec.json.encode(_sifted(chore, judge))
        case Jq():
            # Only a child process runs jq: a crash of the native code ends its process.
            from tidemill.expressions.jq import run_jq

            return run_jq(chore.program, bytes(chore.value), each=chore.each)
        case RunQuery():
            return msgspec.json.encode(find_all(chore.query, msgspec.json.decode(chore.value)))


def find_all(query: str, value: Json) -> list[Json]:
    """Give all that a query finds; raise `ExpressionError` if it is none."""
    from tidemill.expressions.jsonpath_syntax import QueryFault, read_query

    try:
        return list(read_query(query).find(value, value))
    except QueryFault as fault:
        raise condition_failed(fault.message, fault.hint) from None


def _sifted(sift: FilterRows, judge: Judge) -> list[bool]:
    held: list[bool] = []
    for row in sift.rows:
        try:
            held.append(judge(sift.leaf, replace(sift.scope, has_output=True, output=row)))
        except ExpressionError as failure:
            failure.path = f"/{len(held)}"
            raise
    return held
