"""Concurrency limits of the fleet: per queue, node type, workflow, or label value.

The store counts leases, so that a limit holds for all workers together and a dead one frees its places. The limits are
rows of the store, which every process reads again every few seconds. A node is under the limits that are known when it
is scheduled: one that waits already is not affected by a new limit.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tidemill.engine.maintenance.audit_chain import require_actor, waiting_row
from tidemill.errors import rejected
from tidemill.kernel.jobs import LIMITED, limits_of
from tidemill.kernel.model import Workflow
from tidemill.kernel.state import State
from tidemill.security.roles import OPERATOR_TENANT
from tidemill.stores.contract import Commit, Job, Row, Store, Stream, cap_bound

CONCURRENCY = "concurrency"
"""Kind of the rows of limits; they belong to no tenant."""
STREAM = Stream("", "store", CONCURRENCY)
LIMITS_MAX = 1_000
KNOWN_FOR_MS = 5_000
LIMIT_MAX = 1_000_000
HINT = "name a queue, type, workflow or label: queue:gpu, type:http, workflow:billing, label:customer"

_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(int).decode


class ConcurrencyLimit(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    limit: int


class KnownLimits:
    """The limits as this process last read them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read_ms: int | None = None
        self.limits: Mapping[str, int] = {}

    async def refresh(self, *, at_once: bool = False) -> None:
        """Read the limits, unless they were read within the last few seconds."""
        now_ms = self._store.now_ms()
        if not at_once and self._read_ms is not None and abs(now_ms - self._read_ms) < KNOWN_FOR_MS:
            return
        page = await self._store.find("", CONCURRENCY, limit=LIMITS_MAX)
        self.limits, self._read_ms = {row.key: _DECODE(row.body) for row in page.rows}, now_ms

    def apply(self, jobs: tuple[Job, ...], stream: Stream, flow: Workflow, state: State) -> tuple[Job, ...]:
        """The jobs of a run with the caps of the limits that hold for them."""
        return tuple(self._limited(job, stream, flow, state) for job in jobs)

    def _limited(self, job: Job, stream: Stream, flow: Workflow, state: State) -> Job:
        # A job that is queued already has those of earlier limits, which carry their bound in the name.
        kept = tuple(cap for cap in job.caps if cap_bound(cap, {}) is None)
        caps = (*kept, *limits_of(self.limits, stream.tenant, flow, state, job.key, job.queue))
        return msgspec.structs.replace(job, caps=caps) if caps != job.caps else job


class ConcurrencyService:
    def __init__(self, store: Store, known: KnownLimits, *, audited: bool = False) -> None:
        self._store, self._known, self._audited = store, known, audited

    async def find(self) -> list[ConcurrencyLimit]:
        """Every limit, by name."""
        await self._known.refresh(at_once=True)
        return [ConcurrencyLimit(name=name, limit=limit) for name, limit in sorted(self._known.limits.items())]

    async def set(self, name: str, limit: int, *, actor: str = "") -> ConcurrencyLimit:
        """Let at most `limit` nodes of a queue, type, workflow or label value run at once."""
        kind, colon, which = name.partition(":")
        if kind not in LIMITED or not colon or not which or len(name) > 200:
            raise rejected("limit_name_invalid", f"{name!r} cannot be limited", path="/name", hint=HINT)
        if isinstance(limit, bool) or not 0 <= limit <= LIMIT_MAX:
            message = f"a limit is a number from 0 to {LIMIT_MAX:,}, not {limit}"
            raise rejected(
                "limit_invalid", message, path="/limit", hint="0 stops all nodes; `remove` removes the limit"
            )
        await self._known.refresh(at_once=True)
        if name not in self._known.limits and len(self._known.limits) >= LIMITS_MAX:
            raise rejected("limit_invalid", f"there are {LIMITS_MAX} limits already", hint="remove one")
        await self._write(Row(kind=CONCURRENCY, key=name, sort=0, body=_ENCODE(limit)), "set", actor, f"{limit}")
        return ConcurrencyLimit(name=name, limit=limit)

    async def remove(self, name: str, *, actor: str = "") -> None:
        """Remove a limit, also for nodes that wait under it."""
        await self._known.refresh(at_once=True)
        if name not in self._known.limits:
            raise rejected("limit_unknown", f"there is no limit {name}", hint="see `tidemill concurrency`")
        await self._write(Row(kind=CONCURRENCY, key=name, sort=0, deleted=True), "remove", actor)

    async def _write(self, row: Row, command: str, actor: str, detail: str = "") -> None:
        commits = [Commit(stream=STREAM, expected=None, rows=(row,))]
        if self._audited:
            # Limits belong to no tenant and have no log: the operator's audit has them, dated by the moment.
            stream, now_ms = Stream(OPERATOR_TENANT, "concurrency_limit", row.key), self._store.now_ms()
            words = {"actor": require_actor(actor), "command": command, "detail": detail}
            audit = waiting_row(stream, now_ms, row.body, at_ms=now_ms, **words)
            commits.append(Commit(stream=stream, expected=None, rows=(audit,)))
        await self._store.commit(commits)
        await self._known.refresh(at_once=True)
