"""The façade: everything that can be done with runs and workflows, in one place.

An engine is a store, a blob store, a catalog and turns; with a worker and a keeper it also does the work. Its
verbs come in groups of their own (operators, inbox, letters, history, logs, library); starting, following and finding
runs is here. Everything is async; `tidemill.open` offers the same verbs to callers that are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

from tidemill.ambient import Ambient
from tidemill.blobs.archive import Archive
from tidemill.blobs.contract import Blobs
from tidemill.blobs.payloads import decode_value, encode_given
from tidemill.engine.attempts.runtime import ProcessRuntime
from tidemill.engine.attempts.streaming import OutputBroadcaster, shown
from tidemill.engine.catalog import Catalog
from tidemill.engine.children import ChildRunMessenger
from tidemill.engine.index_rows import RUN, RunRow, read_run_row
from tidemill.engine.maintenance.blob_gc import BlobPlaceOwnership
from tidemill.engine.maintenance.reconciler import AuditSampler, Reconciler
from tidemill.engine.maintenance.retention import RetentionTask
from tidemill.engine.maintenance.verify import Auditor
from tidemill.engine.run_cache import CachedRun, RunCache
from tidemill.engine.services.approvals import Inbox
from tidemill.engine.services.blobs import Vault
from tidemill.engine.services.dead_letters import Letters
from tidemill.engine.services.inspection import History, Logs
from tidemill.engine.services.maintenance import Upkeep
from tidemill.engine.services.workflows import Library
from tidemill.engine.turn import TurnLoop
from tidemill.engine.validation import check_labels, check_run_id, check_words, checked_inputs, with_defaults
from tidemill.engine.versions import Version
from tidemill.engine.views import RunView, view_run
from tidemill.engine.worker.registry import Registry
from tidemill.engine.worker.worker import Worker, WorkerOptions
from tidemill.errors import Rejected, Unavailable, rejected
from tidemill.expressions.sandbox.pool import Isolation, NoSandbox
from tidemill.handlers.contract import Handler
from tidemill.kernel.codec import decode_event, plain
from tidemill.kernel.commands import Start
from tidemill.kernel.events import BlobRef, Payload, RollbackFinished, RunCancelled, RunCompleted, RunFailed
from tidemill.kernel.model import RETENTION_DAYS, NodeType
from tidemill.security.secrets import ChainedSecrets, Secrets
from tidemill.stores.contract import Frame, IdleCallback, Store, Stream


class Engine(Letters, Inbox, History, Logs, Library, Upkeep, Vault):
    """The verbs, and the life of a process that serves them. `worker`: it also runs nodes."""

    def __init__(
        self,
        *,
        store: Store,
        blobs: Blobs,
        ambient: Ambient,
        handlers: Sequence[Handler],
        worker: WorkerOptions | None = None,
        tenant: str = "default",
        user: str = "",
        audit_every_ms: int = 10_000,
        archive: Archive | None = None,
        retention_days: float | None = RETENTION_DAYS,
        isolation: Isolation | None = None,
        secrets: Secrets | None = None,
        in_vain: Sequence[str] = (),
        lodging: BlobPlaceOwnership | None = None,
    ) -> None:
        self._lodging = lodging
        self._user, self._archive, self._retention_days = user, archive, retention_days
        self._around = ProcessRuntime(
            self._others, isolation or NoSandbox(), secrets or ChainedSecrets(), OutputBroadcaster(store, ambient)
        )
        types: dict[str, list[NodeType]] = {}
        for handler in handlers:
            types.setdefault(handler.type.name, []).append(handler.type)
        self.types: Mapping[str, Sequence[NodeType]] = types
        catalog = Catalog(store, blobs, ambient, types, in_vain)
        runs = RunCache(store, catalog)
        lease_ms, owner = (worker.lease_ms, worker.name) if worker else (15_000, "")
        turns = TurnLoop(store, runs, ambient, owner=owner, lease_ms=lease_ms)
        super().__init__(
            store=store, blobs=blobs, ambient=ambient, catalog=catalog, runs=runs, turns=turns, tenant=tenant
        )
        self.worker: Worker | None = None
        self.keeper: Reconciler | None = None
        self.sweeper: RetentionTask | None = None
        if worker is not None:
            errands = ChildRunMessenger(runs, turns, catalog, blobs)
            self.worker = Worker(
                store=store,
                runs=runs,
                turns=turns,
                blobs=blobs,
                ambient=ambient,
                handlers={handler.type.key: handler for handler in handlers},
                errands=errands,
                options=worker,
                around=self._around,
            )
            self.registry = Registry(
                tenant=tenant,
                store=store,
                ambient=ambient,
                worker=self.worker,
                options=worker,
                types=(handler.type.key for handler in handlers),
                lacks=self._around.lacks,
            )
            self.keeper = Reconciler(
                tenant=tenant,
                store=store,
                runs=runs,
                turns=turns,
                errands=errands,
                ambient=ambient,
                sampling=AuditSampler(
                    tenant=tenant, store=store, auditor=Auditor(store, blobs, catalog), ambient=ambient
                ),
                every_ms=audit_every_ms,
            )
            if archive is not None:
                self.sweeper = RetentionTask(self.retirer(), ambient)

    async def open(self) -> Engine:
        """Begin; idempotent through the store."""
        await self._store.open()
        await self._blobs.open()
        if self._lodging is not None:
            await self._settle(self._lodging)
        self.turns.open()
        if self.worker is not None:
            self._around.open()
            self.worker.open()
        if self.registry is not None:
            self.registry.open()
        if self.keeper is not None:
            self.keeper.open()
        if self.sweeper is not None:
            self.sweeper.open()
        return self

    async def _settle(self, lodging: BlobPlaceOwnership) -> None:
        try:
            await lodging.verify_or_claim()
        except BaseException:
            await self._blobs.close()
            await self._store.close()
            raise

    def drain(self) -> None:
        """Take on no more work from this moment on, and let others know; `close` waits for what is in hand."""
        if self.worker is not None:
            self.worker.drain()
        if self.registry is not None:
            self.registry.announce()

    async def close(self) -> None:
        """Drain the worker and let go of the store."""
        self.drain()
        if self.keeper is not None:
            await self.keeper.close()
        if self.sweeper is not None:
            await self.sweeper.close()
        if self.worker is not None:
            await self.worker.close()
        await self._around.close()
        if self.registry is not None:
            await self.registry.close()
        await self.turns.close()
        await self._blobs.close()
        await self._store.close()

    async def __aenter__(self) -> Engine:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # Runs

    async def start(
        self,
        workflow: str,
        inputs: Any = None,
        *,
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
        submitted_by: str = "",
        correlation_id: str = "",
    ) -> str:
        """Start a run and return its id once it is durable.

        `key` makes it idempotent: the same key with the same inputs answers the same run, with others it is refused.
        Without `submitted_by` it is whoever this process runs for.
        """
        marks, submitted_by = check_labels(labels or {}), submitted_by or self._user
        check_words(submitted_by=submitted_by, correlation_id=correlation_id)
        version = await self.catalog.resolve(self._tenant, workflow)
        flow = await self.catalog.flow(self._tenant, version.digest)
        payload = await checked_inputs(self._tenant, inputs, flow.workflow.inputs, self._blobs)
        run_id = key if key is not None else self._ambient.new_id()
        check_run_id(run_id)
        stream = self._stream(run_id)
        command = Start(
            id=f"start:{run_id}",
            version=version.version,
            digest=version.digest,
            inputs=payload,
            labels=marks,
            submitted_by=submitted_by,
            actor=submitted_by or None,
            correlation_id=correlation_id,
            tag_used=workflow,
        )
        answer = await self.turns.command(stream, command, start=flow)
        if answer.problem is not None:
            raise Rejected(answer.problem)
        if key is not None:
            await self._same_start(stream, version, inputs)
        return run_id

    async def _same_start(self, stream: Stream, version: Version, inputs: Any) -> None:
        """Refuse a key that was used for another workflow or other inputs, or by a run of another origin.

        Defaults are those of the version that the run was started with: a newer one does not make a repeated request
        another request.
        """
        entry = await self._entry(stream.key)
        state, given = entry.state, with_defaults(inputs, entry.flow.workflow.inputs)
        foreign = state.parent is not None or state.forked_from is not None
        if foreign or state.workflow != version.name or not await self._is_recorded(state.inputs, given):
            raise rejected(
                "key_reused",
                f"key {stream.key} belongs to a run with other inputs",
                hint="use a new key for a new request",
            )

    async def _is_recorded(self, recorded: Payload, value: Any) -> bool:
        """Whether a value is the recorded one; the order of keys does not matter."""
        text = encode_given(value)
        known = await self._blobs.get(self._tenant, recorded.digest) if isinstance(recorded, BlobRef) else recorded
        return known == text or bool(decode_value(known) == decode_value(text))

    async def result(self, run_id: str, *, timeout_s: float | None = None) -> RunView:
        """Wait until the run has ended and show it. Raises TimeoutError when that takes too long."""
        async with asyncio.timeout(timeout_s):
            # What this process knows of a run may be old, but never too new to follow it from there.
            self.runs.forget_unseen()
            entry = self.runs.get(self._stream(run_id)) or await self._entry(run_id)
            if entry.state.busy:
                entry = await self._ended(run_id, entry.state.seq)
        return await view_run(self._stream(run_id), entry.state, entry.flow, self._blobs)

    async def follow(self, run_id: str, after: int = 0, *, live: bool = False) -> AsyncIterator[dict[str, Any]]:
        """The run's events from `after` + 1 on, as they are committed; ends with the run.

        With `live` also what handlers show meanwhile: `NodeStreamed` with a part of a result, `NodeProgressed`. Those
        have no `seq` and are not kept, and whoever is slow may miss some.
        """
        entry = await self._entry(run_id)
        if not 0 <= after <= entry.state.seq:
            message = f"the run has events 1 to {entry.state.seq}, so nothing can be followed after {after}"
            raise rejected(
                "cursor_invalid", message, path="/after", hint="pass the seq of the last event you have seen"
            )
        if not entry.state.busy and after >= entry.state.seq:
            return
        # Behind the end of a run there may be late results that were discarded, and nothing after them.
        last = None if entry.state.busy else entry.state.seq
        async with aclosing(self._frames(run_id, after, live=live)) as frames:
            async for frame in frames:
                seq = frame.version
                if not seq:
                    for told in shown(frame.body):
                        yield told
                    continue
                event = decode_event(frame.body)
                yield plain(event, seq)
                if seq == last or (last is None and type(event) in _ENDS and await self._over(run_id, seq)):
                    return

    async def _ended(self, run_id: str, after: int) -> CachedRun:
        """Wait for the end of a run, looking at nothing but that: many wait for many."""
        begun = self._ambient.monotonic_ms()

        async def breathe() -> None:
            """Look less often at what takes long: its end is told a twentieth later at most."""
            late_ms = min(LOOK_AGAIN_MS, (self._ambient.monotonic_ms() - begun) / 20)
            if late_ms > 0.5:
                await self._ambient.sleep(late_ms)

        async with aclosing(self._frames(run_id, after, breathe)) as frames:
            async for frame in frames:
                if frame.version and type(decode_event(frame.body)) in _ENDS:
                    over = await self._over(run_id, frame.version)
                    if over is not None:
                        return over
        raise Unavailable("the store was closed before the run ended")

    def _frames(
        self, run_id: str, after: int, breath: IdleCallback | None = None, *, live: bool = False
    ) -> AsyncGenerator[Frame, None]:
        """Committed events behind `after` and live frames, without end."""
        return cast(AsyncGenerator[Frame, None], self._store.follow(self._stream(run_id), after, breath, live=live))

    async def _over(self, run_id: str, seq: int) -> CachedRun | None:
        """The run, if nothing follows by itself after an event: it is not reopened behind it, nor rolled back."""
        entry = await self._entry(run_id)
        return None if entry.state.busy or seq < entry.state.ended_seq else entry

    async def find(
        self, terms: Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> tuple[list[RunRow], str | None]:
        """Runs that have all terms (`status:FAILED`, `workflow:billing`, `label:k=v`, `stuck`…), newest first."""
        page = await self._page(RUN, terms, after, limit)
        return [read_run_row(row) for row in page.rows], page.after


LOOK_AGAIN_MS = 5.0
"""How much later than it could the end of a long run is told to whoever waits for nothing else."""

_ENDS = {RunCompleted, RunFailed, RunCancelled, RollbackFinished}
"""Events after which a run may be over."""
