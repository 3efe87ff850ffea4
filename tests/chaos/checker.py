"""What must hold after a storm: the file, the logs in it, the ledger of effects and what was acknowledged agree."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.chaos.chaos_run import ChaosRun
from tests.chaos.client import DONE, read_acks
from tests.chaos.effects import begun, read_ledger
from tests.chaos.flows import KINDS, Planned, outputs_of, plan
from tests.chaos.readings import (
    ELSEWHERE,
    Events,
    attempts,
    completions,
    given_up,
    growing_tokens,
    hasty_killers,
    led_to,
    one_result_each,
    returned,
)
from tidemill.bootstrap import engine_at
from tidemill.engine.engine import Engine
from tidemill.engine.index_rows import RUN
from tidemill.engine.maintenance.verify import compare
from tidemill.engine.run_cache import CachedRun
from tidemill.kernel.codec import decode_event
from tidemill.kernel.events import ApprovalDecided, CompensationCompleted, RunCreated, SignalReceived
from tidemill.kernel.evolve import replay
from tidemill.kernel.invariants.checker import check_log
from tidemill.kernel.model import Workflow
from tidemill.kernel.state import State
from tidemill.storage_urls import open_storage
from tidemill.stores.contract import Store, Stream

TENANT = "default"
PYTHON = "python@1"
AWAITED = ("decide", "signal", "cancel")
"""Acts without which a run cannot end as planned."""


_POSTPONED = re.compile(r"the maintenance task \w+ is postponed: [^\n]*\n")
"""Six workers in a row were killed while they had it in hand."""
_WATCHDOG = re.compile(r"the event loop (?:was|has been) blocked for .*\n(?: +.*\n)*")
"""What the watchdog says of a process that was stopped or had to wait for the disk, with the stack that it saw."""


@dataclass
class Finding:
    """What the judge came to."""

    complaints: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    """What the logs and the ledger show to have happened."""
    takeover_s: list[float] = field(default_factory=list)
    """From the death of a worker to the moment at which another one begins again with what it had begun."""


def unfinished(url: str) -> list[str]:
    """Runs that have not ended or are being rolled back, as the lists show them."""

    async def look() -> list[str]:
        async with engine_at(url, work=False) as engine:
            found = []
            for term in ("status:RUNNING", "status:PAUSED", "rollback:running"):
                rows, _ = await engine.find([term], limit=1_000)
                found += [f"{row.run_id} {row.status}" for row in rows]
            return found

    return asyncio.run(look())


def check(chaos_run: ChaosRun) -> Finding:
    """Read everything; nothing may be running any more."""
    return asyncio.run(Checker(chaos_run).whole())


class Checker:
    """Reads the folder of one storm."""

    def __init__(self, chaos_run: ChaosRun) -> None:
        self._storm, self._finding = chaos_run, Finding()
        self._acks = read_acks(chaos_run.acks_file)
        self._planned = {each.key: each for each in plan(chaos_run.disturbance.seed, chaos_run.disturbance.runs)}
        self._entries = read_ledger(chaos_run.folder / "effects.jsonl")
        self._calls = begun(self._entries)
        self._places: dict[str, list[str]] = defaultdict(list)
        """Effect keys without their run, by run."""
        for key in self._calls:
            run, node, rest = _parted(key)
            self._places[run].append(f"{node}/{rest}")

    async def whole(self) -> Finding:
        url = self._storm.store.url
        store = open_storage(url).store
        await store.open()
        try:
            async with engine_at(url, work=False) as engine:
                await self._runs(engine, store)
                verdict = await engine.verify_log()
                self._complain("verify-log", (f"{each.run}: {each.code} {each.message}" for each in verdict.findings))
        finally:
            await store.close()
        self._complain("integrity", self._storm.store.integrity())
        self._complain("stderr", self._said())
        self._takeovers()
        return self._finding

    def _complain(self, where: str, words: Iterable[str]) -> None:
        self._finding.complaints += [f"{where}: {word}" for word in words]

    async def _runs(self, engine: Engine, store: Store) -> None:
        """Every planned run is there, acknowledged, and as it must be; so are the children."""
        met: set[str] = set()
        after: Stream | None = None
        while page := await store.streams(RUN, after=after, limit=200):
            for stream in page:
                met.add(stream.key)
                self._complain(stream.key, await self._run(engine, store, stream))
            after = page[-1]
        self._finding.seen["runs"] = len(met)
        self._complain("log", (f"{key} was acknowledged and is not there" for key in self._planned if key not in met))
        self._complain("client", () if (DONE, "") in self._acks else ("it never came to its end",))

    async def _run(self, engine: Engine, store: Store, stream: Stream) -> list[str]:
        (tail,) = await store.load({stream: 0}, snapshots=False)
        events = [decode_event(record) for record in tail.records]
        created = events[0]
        assert isinstance(created, RunCreated)
        self._finding.seen += led_to(events)
        flow, state = await engine.catalog.flow(TENANT, created.digest), replay(events)
        complaints = [
            f"{found.law} at event {found.seq}: {found.message}" for found in check_log(flow.workflow, events)
        ]
        jobs = await store.jobs(stream)
        audit = compare(CachedRun(state, flow), jobs)
        if jobs or audit.missing or audit.surplus:
            complaints.append(f"jobs at the end: {[view.job.key for view in jobs]}, {audit}")
        complaints += one_result_each(events)
        complaints += growing_tokens(events)
        complaints += hasty_killers(events)
        complaints += self._ledger_agrees(stream.key, flow.workflow, events)
        complaints += self._acknowledged(stream.key, state, events)
        planned = self._planned.get(stream.key) or _child(stream.key, created)
        complaints += self._ended_well(planned, state, events) if planned else ["nobody has planned this run"]
        return complaints

    # How it ended

    def _ended_well(self, planned: Planned, state: State, events: Events) -> Iterator[str]:
        excuse, ends = given_up(events), KINDS[planned.kind].ends
        if state.rollback == "running":
            yield "it is still being rolled back"
        if excuse:
            self._finding.seen[f"runs given up: {excuse}"] += 1
            if state.status not in ("FAILED", "CANCELLED"):
                yield f"it gave up ({excuse}) and is {state.status}"
            return
        if state.status not in ends:
            yield f"it is {state.status}, not {' or '.join(ends)}"
        if state.status == "COMPLETED" and returned(events) not in (outputs_of(planned), ELSEWHERE):
            yield f"it returned {returned(events)!r}, not {outputs_of(planned)!r}"
        if planned.kind == "doomed":
            undone = [event.node for event in events if isinstance(event, CompensationCompleted)]
            if (state.rollback, undone) != ("done", ["b", "a"]):
                yield f"its rollback is {state.rollback}, undone were {undone}"

    def _acknowledged(self, key: str, state: State, events: Events) -> Iterator[str]:
        """What a client was told happened is in the log, once; what it never was told cannot be missing."""
        if key not in self._planned:
            return
        told = {act for act in ("start", *AWAITED) if (act, key) in self._acks}
        act = KINDS[state.workflow].act
        if "start" not in told:
            yield "its start was never acknowledged"
        if f"start:{key}" not in state.commands:
            yield "its start is not in the log"
        decided = [event.decision for event in events if isinstance(event, ApprovalDecided)]
        if "decide" in told and decided != [self._planned[key].verb]:
            yield f"the decision to {self._planned[key].verb} was acknowledged, the log has {decided}"
        signals = [event.signal for event in events if isinstance(event, SignalReceived)]
        if "signal" in told and signals != [f"go-{key}"]:
            yield f"a signal was acknowledged, the log has {signals}"
        if "cancel" in told and state.status != "CANCELLED":
            yield f"a cancel was acknowledged, and the run is {state.status}"
        if act in AWAITED and act not in told and not given_up(events):
            yield f"it ended without the {act} that it needs"

    # What really happened

    def _ledger_agrees(self, run: str, workflow: Workflow, events: Events) -> Iterator[str]:
        admitted, seen = attempts(events), self._finding.seen
        for place in self._places[run]:
            calls = len(self._calls[f"{run}/{place}"])
            node = workflow.by_id[place.partition("/")[0]]
            if calls > admitted[place]:
                yield f"{place} was called {calls} times, the log admits to {admitted[place]} attempts"
            if node.delivery == "at_most_once" and calls > 1:
                yield f"{place} was called {calls} times, at most once was promised"
            seen["effects done"] += 1
            seen["effects repeated, which an effect key tells"] += calls - 1
        for place, output in completions(events).items():
            node = workflow.by_id[place.partition("/")[0]]
            is_list = node.map is not None and place.endswith("/-1")
            if node.type == PYTHON and not is_list:
                yield from self._done_once(f"{run}/{place}", output)
        for event in events:
            if isinstance(event, CompensationCompleted):
                yield from self._done_once(f"{run}/{event.node}/{event.visit}/{event.index}/undo", ELSEWHERE)

    def _done_once(self, key: str, output: Any) -> Iterator[str]:
        """A receiver that honours effect keys has seen one effect, and the result is that of one of its calls."""
        nonces = {entry.nonce for entry in self._calls.get(key, ())}
        if not nonces:
            yield f"{key} counts as done, and nobody did it"
        elif output is not ELSEWHERE and output["nonce"] not in nonces:
            yield f"the result of {key} comes from no call"

    def _takeovers(self) -> None:
        """Count effects that one process had begun and another one began again, and why it did."""
        seen, stops = self._finding.seen, defaultdict(list)
        for stop in self._storm.stopped:
            stops[stop.pid].append(stop)
        ends = {entry.nonce: entry.at_ns for entry in self._entries if entry.what == "end"}
        for calls in self._calls.values():
            for before, after in pairwise(calls):
                if before.pid == after.pid:
                    continue
                killed_ns = self._storm.killed.get(before.pid, 0)
                if before.at_ns < killed_ns < after.at_ns:
                    seen["taken over from a killed process"] += 1
                    self._finding.takeover_s.append((after.at_ns - killed_ns) / 1e9)
                seen["taken over from a stopped process"] += any(
                    before.at_ns <= stop.begin_ns < after.at_ns < stop.end_ns for stop in stops[before.pid]
                )
                seen["effects that ended after they were taken over"] += ends.get(before.nonce, 0) > after.at_ns

    def _said(self) -> Iterator[str]:
        """Nobody has anything to complain of, whatever happens to the others, but that it was stopped for a while."""
        for file in sorted(self._storm.folder.glob("*.err")):
            if text := _excused(self._storm.store.said, file.read_text()):
                yield f"{file.stem} wrote {text[-2_000:]}"


def _excused(said: re.Pattern[str], text: str) -> str:
    """What is left of it without what a process may say of what happened to it, to others and to the store."""
    for pattern in (_WATCHDOG, _POSTPONED, said):
        text = pattern.sub("", text)
    return text


def _parted(key: str) -> tuple[str, str, str]:
    """Run, node and the rest of an effect key; the id of a child has slashes of its own."""
    undo = "/undo" if key.endswith("/undo") else ""
    run, node, visit, index = key.removesuffix("/undo").rsplit("/", 3)
    return run, node, f"{visit}/{index}{undo}"


def _child(key: str, created: RunCreated) -> Planned | None:
    """What a child of a planned run must come to."""
    if created.parent is None or not isinstance(created.inputs, bytes):
        return None
    return Planned(key, created.workflow, json.loads(created.inputs)["n"])
