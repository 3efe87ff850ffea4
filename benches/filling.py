"""A store with as many finished runs as asked for, in minutes instead of hours.

A few runs are really run, one for each workflow and ending. Every other run is a copy of one of them: the same
events with another id, other times and other labels, folded by the kernel's own rules into the row that lists it,
and written by the store's own commit, thousands at a time. What is left out is the engine between the two, and
that a run usually takes several commits; each copy is written in one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from tidemill.bootstrap import engine_at
from tidemill.engine.engine import Engine
from tidemill.engine.index_rows import RUN, rows_along
from tidemill.engine.maintenance.reindex import expected_run_row
from tidemill.kernel.codec import decode_event, encode_event
from tidemill.kernel.events import AnyEvent, RunCreated
from tidemill.kernel.model import Workflow
from tidemill.kernel.state import State
from tidemill.stores.contract import Commit, Committed, Row, Store, Stream

WORKFLOWS = ("billing", "shipping", "signup")
REGIONS = ("east", "south", "west")
"""Of billing; the others have `north` as well. So both terms are large, and they meet in `MEETINGS` runs only."""
MEETINGS = 5
VIPS = 20
RUNS_PER_CUSTOMER = 50
FAILED_EVERY, CANCELLED_EVERY = 33, 50
SPREAD_MS = 3 * 86_400_000
"""The runs were created in the last three days, one after the other."""
AT_ONCE = 2_000
TENANT = "default"


class Original(NamedTuple):
    """A run that was really run."""

    created: RunCreated
    rest: tuple[AnyEvent, ...]
    flow: Workflow
    beside: bool
    """Whether it has rows besides its own, those of dead letters."""


class Moved(NamedTuple):
    """An original at another time."""

    created: RunCreated
    events: tuple[AnyEvent, ...]
    records: tuple[bytes, ...]
    state: State


async def work(how: str) -> str:
    """What the only step of each workflow does."""
    if how == "fail":
        raise ValueError("no such account")
    if how == "wait":
        await asyncio.sleep(60)
    return "ok"


def document(name: str) -> dict[str, Any]:
    """A step and something that reads it."""
    config = {"function": "work", "args": {"how": "{{ inputs.how }}"}}
    step = {"id": "work", "type": "python", "config": config, "retry": {"max_attempts": 1}}
    return {"name": name, "nodes": [step, {"id": "note", "type": "value", "dependencies": ["work"], "config": 1}]}


def open_engine(url: str) -> Engine:
    """An engine that can run those workflows."""
    return engine_at(url, functions={"work": work})


async def originals(engine: Engine) -> dict[tuple[str, str], Original]:
    """One real run for each workflow and ending."""
    found: dict[tuple[str, str], Original] = {}
    for name in WORKFLOWS:
        await engine.publish(document(name))
        for how, ending in (("go", "COMPLETED"), ("fail", "FAILED"), ("wait", "CANCELLED")):
            run = await engine.start(name, {"how": how}, submitted_by="ada")
            if how == "wait":
                await engine.cancel(run)
            view = await engine.result(run)
            assert view.status == ending, view
            found[name, ending] = await _original(engine, Stream(TENANT, RUN, run))
    return found


async def _original(engine: Engine, stream: Stream) -> Original:
    (tail,) = await engine._store.load({stream: 0}, snapshots=False)
    created, *rest = map(decode_event, tail.records)
    assert isinstance(created, RunCreated)
    _, beside = rows_along(stream, (created, *rest))
    flow = await engine.catalog.flow(TENANT, created.digest)
    return Original(created, tuple(rest), flow.workflow, bool(beside))


def moved(original: Original, to_ms: int) -> Moved:
    """An original that began at another moment."""
    by = to_ms - original.created.at_ms
    created = msgspec.structs.replace(original.created, at_ms=to_ms)
    events = tuple(msgspec.structs.replace(event, at_ms=event.at_ms + by) for event in original.rest)
    state, _ = rows_along(Stream(TENANT, RUN, ""), (created, *events))
    return Moved(created, events, tuple(map(encode_event, events)), state)


def run_id(at_ms: int, number: int) -> str:
    """An id as the engine makes them: in the order of time."""
    time_part = f"{at_ms:012x}"
    # The last part only has to look as if it were drawn by lot.
    scattered = number * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFF
    return f"{time_part[:8]}-{time_part[8:]}-7{number & 0xFFF:03x}-8{number >> 12 & 0xFFF:03x}-{scattered:012x}"


def kind_of(number: int) -> tuple[str, str]:
    """The workflow and the ending of the run with this number."""
    ending = "FAILED" if number % FAILED_EVERY == 0 else "CANCELLED" if number % CANCELLED_EVERY == 0 else "COMPLETED"
    return WORKFLOWS[number % len(WORKFLOWS)], ending


def labels_of(number: int, runs: int) -> dict[str, str]:
    """The labels of the run with this number; there are huge terms and tiny ones."""
    billing = kind_of(number)[0] == "billing"
    regions = REGIONS if billing else (*REGIONS, "north")
    labels = {
        "customer": f"c{number % max(1, runs // RUNS_PER_CUSTOMER)}",
        "region": regions[number // len(WORKFLOWS) % len(regions)],
    }
    if number % max(1, runs // VIPS) == 0:
        labels["vip"] = "yes"
    if billing and number // len(WORKFLOWS) % max(1, runs // len(WORKFLOWS) // MEETINGS) == 0:
        labels["region"] = "north"
    return labels


def copy(original: Original, like: Moved, name: str, labels: dict[str, str]) -> Commit:
    """A run like another one, with its own name and labels."""
    stream = Stream(TENANT, RUN, name)
    created = msgspec.structs.replace(like.created, labels=labels, command=f"start:{name}")
    like.state.labels = labels
    rows: tuple[Row, ...] = (expected_run_row(stream, like.state, original.flow),)
    if original.beside:
        rows += tuple(rows_along(stream, (created, *like.events))[1].values())
    return Commit(stream=stream, expected=0, records=(encode_event(created), *like.records), rows=rows)


def copies(found: dict[tuple[str, str], Original], runs: int, until_ms: int) -> Iterator[list[Commit]]:
    """All runs, in batches; those of one batch and kind began at the same moment."""
    for first in range(0, runs, AT_ONCE):
        at_ms = until_ms - SPREAD_MS + SPREAD_MS * first // runs
        shifted = {kind: moved(original, at_ms) for kind, original in found.items()}
        batch = []
        for number in range(first, min(first + AT_ONCE, runs)):
            kind = kind_of(number)
            batch.append(copy(found[kind], shifted[kind], run_id(at_ms, number), labels_of(number, runs)))
        yield batch


async def fill(engine: Engine, runs: int) -> None:
    """Fill an engine's store."""
    store: Store = engine._store
    for batch in copies(await originals(engine), runs, store.now_ms()):
        answers = await store.commit(batch)
        assert all(isinstance(answer, Committed) for answer in answers)
