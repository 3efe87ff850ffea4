"""What must hold once a run has ended: the log against the store's rows and jobs, the ledger, the clients."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from tidemill.engine.index_rows import RUN, read_run_row
from tidemill.engine.maintenance.reindex import all_rows, rows_beside, rows_of
from tidemill.kernel.codec import decode_event, decode_state, encode_state
from tidemill.kernel.events import AnyEvent, BlobRef, NodeCompleted, NodeStarted, RunCreated
from tidemill.kernel.evolve import evolve, replay
from tidemill.kernel.state import State
from tidemill.stores.contract import Stream, Tail

if TYPE_CHECKING:
    from tests.simulation.world import World


MUST_BE_WRITTEN = ("retry-", "rewind-", "override-", "patch-", "rollback-", "relabel-")
"""Acts that leave an event whenever they are not refused."""


async def check(world: World, run: str) -> list[str]:
    """Everything that is wrong with an ended run."""
    stream = Stream("default", RUN, run)
    (whole,) = await world.store.load({stream: 0}, snapshots=False)
    events = [decode_event(record) for record in whole.records]
    state = replay(events)
    complaints = [complaint async for complaint in _store_agrees(world, stream, state)]
    complaints += _acknowledged(world, run, state)
    complaints += world.effects.check(world, run, state)
    complaints += [complaint async for complaint in _ledger_agrees(world, run, events)]
    complaints += [complaint async for complaint in _rows_follow(world, whole)]
    (short,) = await world.store.load({stream: 0})
    if short.snapshot is not None:
        folded = decode_state(short.snapshot)
        for record in short.records:
            evolve(folded, decode_event(record))
        if encode_state(folded) != encode_state(state):
            complaints.append("folding the snapshot differs from folding the log")
    return complaints


async def _rows_follow(world: World, whole: Tail) -> AsyncIterator[str]:
    """What was written along the way, commit by commit, is what follows from the log as a whole, byte for byte."""
    _, rows = await rows_of(world.clients[0].catalog, whole)
    there = await rows_beside(world.store, whole.stream)
    async for row in all_rows(world.store, whole.stream.tenant, RUN):
        if row.key == whole.stream.key:
            there[RUN, row.key] = row
    for name in rows.keys() | there.keys():
        if rows.get(name) != there.get(name):
            yield f"the row {name} is {there.get(name)}, the log calls for {rows.get(name)}"


async def _store_agrees(world: World, stream: Stream, state: State) -> AsyncIterator[str]:
    """Rows show what the log says, and no job is left over."""
    page = await world.store.find("default", RUN, [f"status:{state.status}"], limit=len(world.checkers))
    row = next((read_run_row(row) for row in page.rows if row.key == stream.key), None)
    if row is None:
        yield f"no row with status {state.status}"
    elif (row.events, row.counter, row.dead_letters) != (state.seq, state.counter, state.dead_letters):
        yield f"the row shows {row}, the log {state.seq} events"
    left = [view.job.key for view in await world.store.jobs(stream)]
    if left:
        yield f"jobs are left: {left}"
    letters = await world.store.count("default", "dead_letter", [f"run:{stream.key}", "status:open"])
    if letters != state.dead_letters:
        yield f"{letters} open dead letter rows for {state.dead_letters} in the log"
    if letters and state.status != "FAILED":
        yield f"{letters} dead letters are open, which no retry can close: the run is {state.status}"
    waiting = await world.store.count("default", "approval", [f"run:{stream.key}", "status:pending"])
    if waiting:
        yield f"{waiting} approvals are shown as pending after the end"


def _named(command: str) -> str:
    """What the façade remembers an act under: its verb and the id."""
    return f"{command.partition('-')[0]}:{command}"


def _acknowledged(world: World, run: str, state: State) -> list[str]:
    """What a client was told happened is in the log, unless it changed nothing."""
    complaints = []
    for of, command in world.acknowledged:
        if of == run and command.startswith("start:") and command not in state.commands:
            complaints.append(f"{command} was acknowledged and is not in the log")
        if of == run and command.startswith(MUST_BE_WRITTEN) and _named(command) not in state.commands:
            complaints.append(f"{command} was acknowledged and is not in the log")
        if of == run and command.startswith("cancel") and state.status not in ("CANCELLED", "COMPLETED", "FAILED"):
            complaints.append(f"{command} was acknowledged and the run is {state.status}")
    return complaints


def _calls(world: World, run: str, event: NodeCompleted) -> list[str]:
    """Calls that may have given a result: those of the run, and of the one it was forked from while that went on."""
    found: list[str] = []
    while run:
        found += world.ledger.calls[f"{run}/{event.node}/{event.visit}/{event.index}"]
        run = world.forks.get(run, "")
    return found


async def _ledger_agrees(world: World, run: str, events: list[AnyEvent]) -> AsyncIterator[str]:
    """A committed result is that of a call that really happened; at-most-once calls were announced first."""
    started: dict[str, int] = {}
    first = events[0]
    shared = first.forked_from[1] if isinstance(first, RunCreated) and first.forked_from is not None else 0
    for event in events[shared:]:
        if isinstance(event, NodeStarted):
            key = f"{run}/{event.node}/{event.visit}/{event.index}"
            started[key] = started.get(key, 0) + 1
        if isinstance(event, NodeCompleted) and not isinstance(event.output, BlobRef):
            value = json.loads(event.output)
            key = f"{run}/{event.node}/{event.visit}/{event.index}"
            if isinstance(value, dict) and "nonce" in value and value["nonce"] not in _calls(world, run, event):
                yield f"the output of {key} comes from no call"
    for node in world.checkers[run].workflow.nodes:
        if node.delivery == "at_most_once":
            for key, calls in world.ledger.calls.items():
                mine = key.startswith(f"{run}/{node.id}/") and not key.endswith("/undo")
                if mine and len(calls) > started.get(key, 0):
                    yield f"{key} was called {len(calls)} times and announced {started.get(key, 0)} times"
