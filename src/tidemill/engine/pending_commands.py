"""Commands that wait for their outcome, and what becomes of them when a commit is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tidemill.engine.attempts.results import TransactionalStatement
from tidemill.engine.compiled import CompiledWorkflow
from tidemill.engine.run_cache import CachedRun
from tidemill.errors import Problem, TidemillError, Unavailable
from tidemill.kernel.commands import AnyCommand, CompensationResult, Result
from tidemill.kernel.decide.builder import Decision
from tidemill.kernel.events import AnyEvent, CompensationCompleted, NodeCompleted
from tidemill.stores.contract import Commit, Lease, LeasesLost, Statement, StatementRefused, Stream, VersionConflict


class CommandOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a command. Without a problem or an error it is durable."""

    problem: Problem | None = None
    error: Exception | None = None
    repeated: bool = False
    """The run was started before, by the same command."""


COMMITTED = CommandOutcome()
REPEATED = CommandOutcome(repeated=True)
STATEMENT_CONFLICT = CommandOutcome(
    error=Unavailable("the result of its statement has changed: another statement was committed in between")
)
"""Nothing was written; the attempt is repeated, because its statement must be dry-run again."""


class PendingCommand(msgspec.Struct):
    command: AnyCommand
    done: Callable[[PendingCommand, CommandOutcome], None]
    """Called once, when the outcome is known."""
    about: Any = None
    """The caller's own reference, for `done`."""
    ack: Lease | None = None
    """The lease that this command settles: the same commit removes its job."""
    hold: Lease | None = None
    """The lease that must still be held; the commit does not settle it."""
    start: CompiledWorkflow | None = None
    """The workflow of a run to create."""
    flow: CompiledWorkflow | None = None
    """The new workflow of the run, when the command changes it."""
    statement: TransactionalStatement | None = None
    """The statement that the store executes in the same transaction."""
    asked_ms: float = 0.0
    """When it was queued; only measured for metrics."""
    audited: bool = False
    """Whether the commit also writes an audit entry of the tenant."""


class PlannedCommit(msgspec.Struct):
    stream: Stream
    entry: CachedRun
    commands: list[PendingCommand]
    decision: Decision
    problems: list[Problem | None]
    commit: Commit | None = None
    """None when there is nothing to write."""


Refusal = VersionConflict | LeasesLost | StatementRefused


def statements_of(commands: Iterable[PendingCommand], events: Sequence[AnyEvent]) -> tuple[Statement, ...]:
    """Statements to execute in the same transaction: those of accepted results, not of discarded ones."""
    wanted: dict[tuple[type, str, int, int], Statement] = {}
    for pending in commands:
        if pending.statement is not None:
            command = pending.command
            assert isinstance(command, (Result, CompensationResult)), "nothing else brings a statement"
            wanted[_TAKEN[type(command)], command.node, command.visit, command.index] = pending.statement.statement
    if not wanted:
        return ()
    ended = [each for each in events if isinstance(each, (NodeCompleted, CompensationCompleted))]
    taken = [(type(each), each.node, each.visit, each.index) for each in ended]
    return tuple([wanted[place] for place in taken if place in wanted])


_TAKEN: Mapping[type, type] = {Result: NodeCompleted, CompensationResult: CompensationCompleted}
"""The event that accepts the result of a command."""


def still_valid(commands: list[PendingCommand], result: Refusal) -> list[PendingCommand]:
    """The commands to decide again. A result whose lease is lost is kept as late; other such commands are answered."""
    if isinstance(result, VersionConflict):
        return commands
    if isinstance(result, StatementRefused):
        return _without_statement(commands, result)
    kept: list[PendingCommand] = []
    for pending in commands:
        lease = pending.ack or pending.hold
        if lease is None or lease.key not in result.keys:
            kept.append(pending)
        elif isinstance(pending.command, Result):
            pending.command = msgspec.structs.replace(pending.command, late=True)
            pending.ack = pending.hold = None
            kept.append(pending)
        else:
            problem = Problem(code="lease_lost", message="another worker holds the job now")
            pending.done(pending, CommandOutcome(problem=problem))
    return kept


def leased_keys(commands: Iterable[PendingCommand]) -> frozenset[str]:
    """The jobs whose leases commands settle or hold."""
    leases = [lease for pending in commands for lease in (pending.ack, pending.hold) if lease is not None]
    return frozenset([lease.key for lease in leases])


def not_idle(plan: PlannedCommit, result: LeasesLost) -> frozenset[str]:
    """The jobs that the decision took for idle, and that were not: a worker may have called their handlers."""
    return frozenset(plan.decision.work.idle).intersection(result.keys)


def _without_statement(commands: list[PendingCommand], refused: StatementRefused) -> list[PendingCommand]:
    """Make a result whose statement was refused a failure; commands that shared its commit stay unchanged.

    After a conflict (`changed`) the result is repeated instead, and so are the statements after it, which were dry-run
    too early. Those before it stay, so of conflicting statements the first succeeds.
    """
    with_statement = [
        (number, pending.statement) for number, pending in enumerate(commands) if pending.statement is not None
    ]
    equals = [(number, statement) for number, statement in with_statement if statement.statement == refused.statement]
    place, refused_one = equals[refused.equals]
    if refused.changed:
        late = [number for number, _ in with_statement if number >= place]
        for number in late:
            commands[number].done(commands[number], STATEMENT_CONFLICT)
        return [pending for number, pending in enumerate(commands) if number not in late]
    command, failed = commands[place].command, refused_one.refusal(refused)
    assert isinstance(command, (Result, CompensationResult)), "nothing else brings a statement"
    routed = {"route": None} if isinstance(command, Result) else {}
    commands[place].command = msgspec.structs.replace(command, outcome=failed, **routed)
    commands[place].statement = None
    return commands


def mark_unknown_outcome(commands: Iterable[PendingCommand]) -> None:
    for pending in commands:
        if isinstance(pending.command, Result):
            pending.command = msgspec.structs.replace(pending.command, again=True)


def all_pending(batch: Mapping[Stream, list[PendingCommand]]) -> Iterator[PendingCommand]:
    return (pending for commands in batch.values() for pending in commands)


def resolve_all(commands: Iterable[PendingCommand], error: TidemillError) -> None:
    for pending in commands:
        pending.done(pending, CommandOutcome(error=error))
