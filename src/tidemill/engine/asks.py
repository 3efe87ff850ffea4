"""Commands on their way to a decision, and what becomes of them when a commit is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tidemill.engine.programs import Flow
from tidemill.errors import Problem, TidemillError, Unavailable
from tidemill.kernel.commands import AnyCommand, Done, Failed, Result
from tidemill.kernel.events import AnyEvent, Error, NodeCompleted
from tidemill.stores.contract import Lease, LeasesLost, Statement, StatementRefused, Stream, VersionConflict

LOG = logging.getLogger(__name__)

CHANGED_AGAIN_MS = 20
"""When to rehearse a statement again that came out otherwise, because somebody was quicker."""

_STATEMENT = msgspec.msgpack.Decoder(Statement)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an ask. Without a problem or an error it is durable."""

    problem: Problem | None = None
    error: Exception | None = None


DURABLE = Answer()


class Ask(msgspec.Struct):
    """A command on its way to a decision."""

    command: AnyCommand
    done: Callable[[Ask, Answer], None]
    """Called once, when the outcome is known."""
    about: Any = None
    """Whatever the asker wants to find again when it is answered."""
    ack: Lease | None = None
    """The lease this command settles: its job is removed in the same commit."""
    hold: Lease | None = None
    """The lease that must still be held, and stays so."""
    start: Flow | None = None
    """The workflow of a run that is to be created."""
    flow: Flow | None = None
    """The workflow that the run goes on under, when the command changes it."""


Refusal = VersionConflict | LeasesLost | StatementRefused


def statements_of(asks: Iterable[Ask], events: Sequence[AnyEvent]) -> tuple[Statement, ...]:
    """What the store is to do in the same transaction: for results that are taken, not for those that are discarded."""
    wanted: dict[tuple[str, int, int], bytes] = {}
    for ask in asks:
        result = ask.command
        if type(result) is Result and (within := _within(result)):
            wanted[result.node, result.visit, result.index] = within
    if not wanted:
        return ()
    taken = [(each.node, each.visit, each.index) for each in events if isinstance(each, NodeCompleted)]
    return tuple([_STATEMENT.decode(wanted[place]) for place in taken if place in wanted])


def _within(result: Result) -> bytes:
    """The statement that goes with a result, if there is one."""
    return result.outcome.within if type(result.outcome) is Done else b""


def with_standing(asks: list[Ask], result: Refusal) -> list[Ask]:
    """The asks to decide again. One whose lease is gone has nothing to say any more, except that it came too late."""
    if isinstance(result, VersionConflict):
        return asks
    if isinstance(result, StatementRefused):
        return [_without_statement(ask, result) for ask in asks]
    kept: list[Ask] = []
    for ask in asks:
        lease = ask.ack or ask.hold
        if lease is None or lease.key not in result.keys:
            kept.append(ask)
        elif isinstance(ask.command, Result):
            ask.command = msgspec.structs.replace(ask.command, late=True)
            ask.ack = ask.hold = None
            kept.append(ask)
        else:
            problem = Problem(code="lease_lost", message="somebody else holds the job now")
            ask.done(ask, Answer(problem=problem))
    return kept


def _without_statement(ask: Ask, refused: StatementRefused) -> Ask:
    """A result whose statement was refused is a failure; the others that shared its commit stay what they are."""
    result = ask.command
    if isinstance(result, Result) and _within(result):
        error = Error("sql_failed", refused.message, retryable=refused.changed)
        failed = Failed(error=error, retry_after_ms=CHANGED_AGAIN_MS if refused.changed else None)
        ask.command = msgspec.structs.replace(result, outcome=failed, route=None)
    return ask


def mark_unsure(asks: Iterable[Ask]) -> None:
    for ask in asks:
        if isinstance(ask.command, Result):
            ask.command = msgspec.structs.replace(ask.command, again=True)


def asks_of(batch: Mapping[Stream, list[Ask]]) -> Iterator[Ask]:
    return (ask for asks in batch.values() for ask in asks)


def answer_all(asks: Iterable[Ask], error: Exception) -> None:
    shown = error if isinstance(error, TidemillError) else Unavailable(f"a turn failed: {error!r}")
    if shown is not error:
        LOG.error("a turn failed", exc_info=error)
        shown.__cause__ = error
    for ask in asks:
        ask.done(ask, Answer(error=shown))
