"""Commands on their way to a decision, and what becomes of them when a commit is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tidemill.engine.bearing import TransactionalStatement
from tidemill.engine.programs import Flow
from tidemill.errors import Problem, TidemillError, Unavailable
from tidemill.kernel.commands import AnyCommand, Result, Undone
from tidemill.kernel.events import AnyEvent, CompensationCompleted, NodeCompleted
from tidemill.stores.contract import Lease, LeasesLost, Statement, StatementRefused, Stream, VersionConflict


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an ask. Without a problem or an error it is durable."""

    problem: Problem | None = None
    error: Exception | None = None


DURABLE = Answer()
OVERTAKEN = Answer(error=Unavailable("its statement came out otherwise, because somebody was quicker"))
"""Nothing is written, and the same attempt is made again: what it was to do has to be rehearsed anew."""


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
    statement: TransactionalStatement | None = None
    """What the store is to do in the transaction that takes the result."""


Refusal = VersionConflict | LeasesLost | StatementRefused


def statements_of(asks: Iterable[Ask], events: Sequence[AnyEvent]) -> tuple[Statement, ...]:
    """What the store is to do in the same transaction: for results that are taken, not for those that are discarded."""
    wanted: dict[tuple[type, str, int, int], Statement] = {}
    for ask in asks:
        if ask.statement is not None:
            command = ask.command
            assert isinstance(command, (Result, Undone)), "nothing else brings a statement"
            wanted[_TAKEN[type(command)], command.node, command.visit, command.index] = ask.statement.statement
    if not wanted:
        return ()
    ended = [each for each in events if isinstance(each, (NodeCompleted, CompensationCompleted))]
    taken = [(type(each), each.node, each.visit, each.index) for each in ended]
    return tuple([wanted[place] for place in taken if place in wanted])


_TAKEN: Mapping[type, type] = {Result: NodeCompleted, Undone: CompensationCompleted}
"""Which event says that what a command brings is taken."""


def with_standing(asks: list[Ask], result: Refusal) -> list[Ask]:
    """The asks to decide again. One whose lease is gone has nothing to say any more, except that it came too late."""
    if isinstance(result, VersionConflict):
        return asks
    if isinstance(result, StatementRefused):
        return _without_statement(asks, result)
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


def _without_statement(asks: list[Ask], refused: StatementRefused) -> list[Ask]:
    """A result whose statement was refused is a failure; the others that shared its commit stay what they are.

    Where somebody was quicker, it does not count, and those behind it were rehearsed too early as well. Those before it
    stay, so of statements that get into each other's way the first is done.
    """
    bearing = [(number, ask.statement) for number, ask in enumerate(asks) if ask.statement is not None]
    equals = [(number, bears) for number, bears in bearing if bears.statement == refused.statement]
    place, refused_one = equals[refused.equals]
    if refused.changed:
        late = [number for number, _ in bearing if number >= place]
        for number in late:
            asks[number].done(asks[number], OVERTAKEN)
        return [ask for number, ask in enumerate(asks) if number not in late]
    command, failed = asks[place].command, refused_one.refusal(refused)
    assert isinstance(command, (Result, Undone)), "nothing else brings a statement"
    routed = {"route": None} if isinstance(command, Result) else {}
    asks[place].command = msgspec.structs.replace(command, outcome=failed, **routed)
    asks[place].statement = None
    return asks


def mark_unsure(asks: Iterable[Ask]) -> None:
    for ask in asks:
        if isinstance(ask.command, Result):
            ask.command = msgspec.structs.replace(ask.command, again=True)


def asks_of(batch: Mapping[Stream, list[Ask]]) -> Iterator[Ask]:
    return (ask for asks in batch.values() for ask in asks)


def answer_all(asks: Iterable[Ask], error: TidemillError) -> None:
    for ask in asks:
        ask.done(ask, Answer(error=error))
