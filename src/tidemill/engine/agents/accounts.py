"""What the engine keeps for agents beyond their runs: the memories of sessions, and the budget of each tenant's day.

A session is a stream; its snapshot is written with each compaction, so that reading costs what the memory holds. A day
is a stream too: an amount is reserved under a key with a time at which it expires, and settled by what was spent.
Changes of one day that arrive during a commit share the next one, so that many agents of a process make few commits. An
amount that was reserved and never settled counts as spent when it expires: the call was cancelled or its worker was
lost, and the provider may charge it. Maintenance also forgets old days, and sessions that no agent has used for a year.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from tidemill.agents.memory import Compacted, Memory, Remembered, SessionRecord, additions, remembered
from tidemill.engine.corruption import require_intact
from tidemill.engine.index_rows import DAY_MS
from tidemill.engine.maintenance.schedule import Cursor, TaskResult
from tidemill.errors import TidemillError, Unavailable
from tidemill.handlers.contract import NodeContext
from tidemill.kernel.spending import (
    BUDGET_RESERVED,
    NO_BUDGET,
    NOTHING_SPENT,
    Budget,
    Spend,
    cut,
    exhausted,
    is_set_aside,
    left_of,
)
from tidemill.security.masking import NO_MASK, Mask
from tidemill.stores.contract import Commit, Committed, Snapshot, Store, Stream, Tail

SESSION, DAY = "agent_session", "agent_day"
"""Kinds of streams."""
RACES_MAX = 64
SETTLED_WITHIN_MS = 60_000
"""Behind the time that a call may take; after that its worker is believed to be lost."""
SETTLE_EVERY_MS = 60_000
FORGET_OLD_EVERY_MS = 3_600_000
FORGOTTEN_MAX = 200
"""Streams that one call of the maintenance task looks at."""
DAYS_KEPT = 35
SESSION_DAYS_KEPT = 365
"""Days after the last turn of a session."""
SNAPSHOT_AFTER = 500
DAYS_KNOWN = 100
RESERVATIONS_KNOWN = 100_000
_PLAIN = re.compile(r"[A-Za-z0-9_.:-]{1,100}")

_ENCODE = msgspec.msgpack.Encoder().encode
_SESSION_RECORD = msgspec.msgpack.Decoder(SessionRecord)
_MEMORY = msgspec.msgpack.Decoder(Memory)


class Reserved(msgspec.Struct, frozen=True, kw_only=True, tag="reserved"):
    key: str
    amount: Spend
    expires_ms: int


class Settled(msgspec.Struct, frozen=True, kw_only=True, tag="settled"):
    key: str
    spent: Spend


class Released(msgspec.Struct, frozen=True, kw_only=True, tag="released"):
    """Earlier versions gave back what was never settled; the days that they wrote are still read."""

    key: str


DayRecord = Reserved | Settled | Released
_DAY_RECORD = msgspec.msgpack.Decoder(DayRecord)


class DayState(msgspec.Struct):
    """A day: what is spent, and what is reserved by key."""

    spent: Spend = NOTHING_SPENT
    reservations: dict[str, Reserved] = {}

    def add(self, record: DayRecord) -> None:
        if isinstance(record, Reserved):
            self.reservations[record.key] = record
            return
        self.reservations.pop(record.key, None)
        if isinstance(record, Settled):
            self.spent += record.spent

    @property
    def used(self) -> Spend:
        total = self.spent
        for reserved in self.reservations.values():
            total += reserved.amount
        return total

    def copy(self) -> DayState:
        return DayState(self.spent, dict(self.reservations))


_DAY_STATE = msgspec.msgpack.Decoder(DayState)

Decide = Callable[[DayState, int], tuple[list[DayRecord], str]]
"""The records of a change at a moment, and its answer: what is used up, or an empty text."""


class _Change(NamedTuple):
    decide: Decide
    done: asyncio.Future[str]


class _KnownDay(msgspec.Struct):
    state: DayState
    version: int
    since_snapshot: int = 0


class AgentAccounts:
    """The accounts of all tenants, for one process. `budget` is what a tenant may spend in a day."""

    def __init__(self, store: Store, budget: Budget = NO_BUDGET) -> None:
        self._store, self._budget = store, budget
        self._days: dict[Stream, _KnownDay] = {}
        self._waiting: dict[Stream, list[_Change]] = {}
        self._committing: dict[Stream, asyncio.Task[None]] = {}
        self._open: dict[str, tuple[Stream, Reserved]] = {}
        """The reservations of this process, and where each of them stands: it may be settled on the next day."""

    def of(self, tenant: str, mask: Callable[[], Mask] = lambda: NO_MASK) -> TenantAccounts:
        return TenantAccounts(self, tenant, mask)

    @property
    def has_budget(self) -> bool:
        return self._budget != NO_BUDGET

    @property
    def now_ms(self) -> int:
        return self._store.now_ms()

    # Sessions

    async def memory(self, tenant: str, name: str) -> tuple[Memory, int]:
        """The memory of a session, and the version of its stream."""
        (tail,) = await self._store.load({_session(tenant, name): 0})
        require_intact(tail)
        return _memory_of(tail), tail.version

    async def remember(self, tenant: str, name: str, turn: Remembered) -> None:
        for _ in range(RACES_MAX):
            memory, version = await self.memory(tenant, name)
            records = additions(memory, turn)
            if not records:
                return
            for record in records:
                memory.add(record)
            compacted = any(isinstance(record, Compacted) for record in records)
            snapshot = Snapshot(version=version + len(records), body=_ENCODE(memory)) if compacted else None
            commit = Commit(_session(tenant, name), version, tuple(map(_ENCODE, records)), snapshot)
            (result,) = await self._store.commit([commit])
            if isinstance(result, Committed):
                return
        raise Unavailable("too many agents are writing to the session at once")

    # Days

    async def reserve(self, tenant: str, key: str, amount: Spend, seconds: float = 0.0) -> str:
        """Reserve an amount of today's budget for `seconds`; return what is used up instead, or an empty text."""
        if self._budget == NO_BUDGET:
            return ""
        stream, made = self._today(tenant), list[Reserved]()

        def decide(day: DayState, now_ms: int) -> tuple[list[DayRecord], str]:
            records = _expired(day, now_ms)
            for record in records:
                day.add(record)
            if key in day.reservations:
                made.append(day.reservations[key])
                return records, ""
            left = left_of(self._budget, day.used)
            if used_up := exhausted(left, amount):
                return records, BUDGET_RESERVED if is_set_aside(self._budget, day.spent, amount, used_up) else used_up
            expires_ms = now_ms + round(seconds * 1_000) + SETTLED_WITHIN_MS
            made.append(Reserved(key=key, amount=cut(amount, left), expires_ms=expires_ms))
            return [*records, made[-1]], ""

        used_up = await self._change(stream, decide)
        if not used_up:
            self._open[key] = stream, made[-1]
            if len(self._open) > RESERVATIONS_KNOWN:
                del self._open[next(iter(self._open))]
        return used_up

    async def settle(self, tenant: str, key: str, spent: Spend) -> None:
        """Count what was spent, once, also of a call that took longer than its amount was set aside for."""
        if key not in self._open:
            return
        stream, reserved = self._open.pop(key)

        def decide(day: DayState, now_ms: int) -> tuple[list[DayRecord], str]:
            # What has expired counts as spent already.
            more = spent if key in day.reservations else spent - reserved.amount
            return [Settled(key=key, spent=more)], ""

        await self._change(stream, decide)

    async def settle_expired(self, tenant: str, cursor: Cursor) -> Cursor:
        """Count what was reserved and never settled as spent, as a maintenance task."""
        if self._budget != NO_BUDGET:
            today = self._store.now_ms() // DAY_MS
            for day in (today - 1, today):
                await self._change(Stream(tenant, DAY, str(day)), lambda state, now_ms: (_expired(state, now_ms), ""))
        return cursor

    async def forget_old(self, tenant: str, cursor: Cursor) -> TaskResult:
        """Remove days and sessions that are too old, as a maintenance task; the cursor goes round all of them."""
        kind = cursor.get("kind", DAY)
        found = await self._store.streams(kind, after=Stream(tenant, kind, cursor.get("key", "")), limit=FORGOTTEN_MAX)
        own = [stream for stream in found if stream.tenant == tenant]
        for stream in own:
            (tail,) = await self._store.load({stream: 0})
            if not tail.damage and self._is_old(tail):
                # One that was used meanwhile has another version, and stays.
                await self._store.forget(stream, expected=tail.version)
        if len(own) == FORGOTTEN_MAX:
            return TaskResult({"kind": kind, "key": own[-1].key}, more=True)
        return TaskResult({"kind": SESSION if kind == DAY else DAY}, more=kind == DAY)

    def _is_old(self, tail: Tail) -> bool:
        now_ms = self._store.now_ms()
        if tail.stream.kind == DAY:
            return tail.stream.key.isdecimal() and int(tail.stream.key) < now_ms // DAY_MS - DAYS_KEPT
        memory = _memory_of(tail)
        return bool(memory.turns) and memory.turns[-1].at_ms < now_ms - SESSION_DAYS_KEPT * DAY_MS

    async def spent_today(self, tenant: str) -> Spend:
        known = await self._load(self._today(tenant))
        return known.state.spent

    def _today(self, tenant: str) -> Stream:
        return Stream(tenant, DAY, str(self._store.now_ms() // DAY_MS))

    async def _change(self, stream: Stream, decide: Decide) -> str:
        """Make a change, together with others of the same day; raises `Unavailable`."""
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(stream, []).append(_Change(decide, done))
        if stream not in self._committing:
            self._committing[stream] = asyncio.create_task(self._commit_waiting(stream), name="tidemill-agent-day")
        return await done

    async def _commit_waiting(self, stream: Stream) -> None:
        try:
            while changes := self._waiting.pop(stream, None):
                try:
                    answers = await self._commit(stream, changes)
                except Exception as error:
                    self._days.pop(stream, None)
                    refused = error if isinstance(error, TidemillError) else Unavailable(f"the day's budget: {error!r}")
                    for change in changes:
                        if not change.done.done():
                            change.done.set_exception(refused)
                    continue
                for change, answer in zip(changes, answers, strict=True):
                    if not change.done.done():
                        change.done.set_result(answer)
        finally:
            del self._committing[stream]

    async def _commit(self, stream: Stream, changes: list[_Change]) -> list[str]:
        for _ in range(RACES_MAX):
            known = self._days.get(stream)
            is_fresh = known is None
            if known is None:
                known = await self._load(stream)
            day, now_ms = known.state.copy(), self._store.now_ms()
            records: list[DayRecord] = []
            answers: list[str] = []
            for change in changes:
                made, answer = change.decide(day, now_ms)
                for record in made:
                    day.add(record)
                records += made
                answers.append(answer)
            if any(answers) and not is_fresh:
                # Another process may have settled or released something since.
                self._days.pop(stream, None)
                continue
            if not records or await self._is_committed(stream, known, day, records):
                return answers
            self._days.pop(stream, None)
        raise Unavailable("too many processes are changing the day's budget at once")

    async def _is_committed(self, stream: Stream, known: _KnownDay, day: DayState, records: list[DayRecord]) -> bool:
        version = known.version + len(records)
        since = known.since_snapshot + len(records)
        snapshot = Snapshot(version=version, body=_ENCODE(day)) if since >= SNAPSHOT_AFTER else None
        commit = Commit(stream, known.version, tuple(map(_ENCODE, records)), snapshot)
        (result,) = await self._store.commit([commit])
        if not isinstance(result, Committed):
            return False
        self._days.pop(stream, None)
        self._days[stream] = _KnownDay(day, version, 0 if snapshot is not None else since)
        if len(self._days) > DAYS_KNOWN:
            del self._days[next(iter(self._days))]
        return True

    async def _load(self, stream: Stream) -> _KnownDay:
        (tail,) = await self._store.load({stream: 0})
        require_intact(tail)
        state = DayState() if tail.snapshot is None else _DAY_STATE.decode(tail.snapshot)
        for record in tail.records:
            state.add(_DAY_RECORD.decode(record))
        return _KnownDay(state, tail.version, len(tail.records))


def _expired(day: DayState, now_ms: int) -> list[DayRecord]:
    over = [reserved for reserved in day.reservations.values() if reserved.expires_ms <= now_ms]
    return [Settled(key=reserved.key, spent=reserved.amount) for reserved in over]


def _memory_of(tail: Tail) -> Memory:
    memory = Memory() if tail.snapshot is None else _MEMORY.decode(tail.snapshot)
    for record in tail.records:
        memory.add(_SESSION_RECORD.decode(record))
    return memory


def _session(tenant: str, name: str) -> Stream:
    key = name if _PLAIN.fullmatch(name) else "digest:" + hashlib.sha256(name.encode()).hexdigest()
    return Stream(tenant, SESSION, key)


class TenantAccounts:
    """The accounts of one tenant, as its agents see them: `tidemill.agents.memory.Accounts`."""

    def __init__(self, accounts: AgentAccounts, tenant: str, mask: Callable[[], Mask]) -> None:
        self._accounts, self._tenant, self._mask = accounts, tenant, mask

    async def session(self, name: str) -> Memory:
        memory, _ = await self._accounts.memory(self._tenant, name)
        return memory

    async def remember(self, name: str, key: str, prompt: str, answer: str) -> None:
        # An endpoint may repeat a secret that it was sent; other agents read the session.
        at_ms, mask = self._accounts.now_ms, self._mask()
        if mask:
            prompt, answer = mask.text(prompt), mask.text(answer)
        await self._accounts.remember(self._tenant, name, remembered(key, prompt, answer, at_ms))

    async def reserve(self, key: str, amount: Spend, seconds: float) -> str:
        return await self._accounts.reserve(self._tenant, key, amount, seconds)

    async def settle(self, key: str, spent: Spend) -> None:
        await self._accounts.settle(self._tenant, key, spent)


class AgentHost:
    """Gives the attempts of agents what they need of the engine."""

    def __init__(self, accounts: AgentAccounts) -> None:
        self.accounts = accounts
        self.port: Callable[[str, NodeContext, Callable[[], Mask]], Any] | None = None
        """Makes the port of an attempt for its tenant."""

    def serve(self, tenant: str, context: NodeContext, mask: Callable[[], Mask]) -> None:
        context.accounts = self.accounts.of(tenant, mask)
        if self.port is not None:
            context.port = self.port(tenant, context, mask)
