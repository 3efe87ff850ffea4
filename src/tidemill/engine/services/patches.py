"""Patch the graph of a run, and fork a run.

A patch is made against the run's document, which is that of its version with the run's own patches in it. Node
types stay those that the run was compiled with, whatever has been registered since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tidemill.blobs.payloads import decode_value
from tidemill.engine.catalog import Published
from tidemill.engine.compiled import CompiledWorkflow, off_loop
from tidemill.engine.run_cache import CachedRun
from tidemill.engine.services.context import ServiceContext, command_name
from tidemill.engine.validation import check_command_id, check_labels, check_run_id, check_words, checked_inputs
from tidemill.errors import Problem, Rejected, rejected
from tidemill.kernel.commands import Fork, Patch
from tidemill.kernel.decide.decide import decide
from tidemill.kernel.decide.fork import graph_after, shared_prefix, undone
from tidemill.kernel.decide.patch import problems, verdict
from tidemill.kernel.document.diff import diff_documents
from tidemill.kernel.document.json_patch import apply_patch
from tidemill.kernel.document.reader import normalise, read_document, with_places
from tidemill.kernel.events import Payload, RunPatched
from tidemill.kernel.evolve import replay
from tidemill.kernel.model import Json, Workflow

if TYPE_CHECKING:
    from tidemill.kernel.compile.compiler import Compiled


class RunDocument(msgspec.Struct, frozen=True, kw_only=True):
    document: Json
    digest: str
    workflow: str
    version: int
    revision: int


class PatchOutcome(msgspec.Struct, frozen=True, kw_only=True):
    applied: bool
    digest: str
    revision: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    """Nodes, and keys of the document beside them as pointers: `/outputs`."""
    rerun: tuple[str, ...]
    kept: tuple[str, ...]
    warnings: tuple[Problem, ...] = ()
    published: Published | None = None
    needs_retry: bool = False
    """The run has ended: the patch can be applied only with `retry`, which this dry run was not given."""


class Change(NamedTuple):
    """One of the two: how a document changes, or what it becomes."""

    operations: Any
    document: Mapping[str, Any] | str | None


class PatchService:
    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def document(self, run_id: str) -> RunDocument:
        """The run's document in its normal form: what patches are made against."""
        return await self._document(run_id, await self._context.entry(run_id))

    async def _document(self, run_id: str, entry: CachedRun) -> RunDocument:
        state = entry.state
        version = await self._context.catalog.version(self._context.tenant, state.workflow, state.version)
        document = await self._pinned(
            await self._context.catalog.document(self._context.tenant, version), version.digest
        )
        if state.revision:
            patches = [event for event in await self._context.log(run_id) if isinstance(event, RunPatched)]
            for event in patches[: state.revision]:
                operations = decode_value(await self._context.text(event.patch))
                patched, _ = await off_loop(document, normalise, apply_patch(document, operations))
                document = await self._pinned(patched, event.digest)
        copied = {name: getattr(state, name) for name in ("digest", "workflow", "version", "revision")}
        return RunDocument(document=document, **copied)

    async def _pinned(self, document: Json, digest: str) -> Json:
        return pinned(document, (await self._context.catalog.flow(self._context.tenant, digest)).workflow)

    async def patch(
        self,
        run_id: str,
        operations: Any = None,
        *,
        document: Mapping[str, Any] | str | None = None,
        base_digest: str | None = None,
        expected_seq: int | None = None,
        retry: bool = False,
        dry_run: bool = False,
        did_not_happen: Sequence[str] = (),
        publish: bool = False,
        message: str = "",
        actor: str = "",
        command_id: str | None = None,
    ) -> PatchOutcome:
        """Change the graph of a run with a JSON Patch on its document, or see what that would do (`dry_run`).

        A FAILED or CANCELLED run is patched and retried at once (`retry`); a dry run without it says that applying the
        patch needs it. `base_digest` is the digest that it was made against; `publish` makes a version of the outcome.
        Instead of operations, `document` is the new document of the run, as a mapping or as text.
        """
        check_words(message=message, actor=actor)
        check_command_id(command_id)
        await self._context.check_parent(run_id)
        entry = await self._context.entry(run_id)
        if command_id is not None and entry.state.commands.get(command_name(Patch, command_id)) is not None:
            return await self._patched_before(run_id, command_name(Patch, command_id), publish, message, actor)
        given = Change(operations, document)
        command, compiled = await self._patch_command(run_id, entry, given, base_digest, expected_seq)
        flow, state = entry.flow.workflow, entry.state
        who, sure = actor or None, tuple(did_not_happen)
        command = msgspec.structs.replace(
            command, id=command_id, actor=who, retry=retry or dry_run, confirmed_not_done=sure, message=message
        )
        found = tuple(problems(flow, state, command))
        if found:
            raise Rejected(found)
        trial = decide(flow, state, command, self._context.store.now_ms())
        if isinstance(trial, Problem):
            raise Rejected(trial)
        seen = verdict(flow, compiled.workflow, state)
        if not dry_run:
            await self._context.command(run_id, command, flow=await self._stored(compiled))
        published: Published | None = None
        if publish and not dry_run:
            published = await self._publish_patched(state.version, compiled, actor, message)
        return PatchOutcome(
            applied=not dry_run,
            digest=compiled.workflow.digest,
            revision=state.revision + 1,
            added=seen.added,
            removed=seen.removed,
            changed=seen.changed + _other_changes(flow, compiled.workflow),
            rerun=seen.rerun,
            kept=seen.kept,
            warnings=compiled.warnings,
            published=published,
            needs_retry=dry_run and not retry and not state.live,
        )

    async def _stored(self, compiled: Compiled) -> CompiledWorkflow:
        """A compiled workflow as every worker reads it."""
        catalog, tenant = self._context.catalog, self._context.tenant
        digest, _ = await catalog.store_flow(tenant, compiled)
        return await catalog.flow(tenant, digest)

    async def _patched_before(
        self, run_id: str, command_id: str, publish: bool, message: str, actor: str
    ) -> PatchOutcome:
        """The result of a patch that was applied before; it may not have been published yet."""
        events = await self._context.log(run_id)
        patched = ((seq, each) for seq, each in enumerate(events, 1) if isinstance(each, RunPatched))
        seq, event = next((seq, each) for seq, each in patched if each.command == command_id)
        published: Published | None = None
        before, flow = [
            await self._context.catalog.flow(self._context.tenant, each) for each in (event.base, event.digest)
        ]
        if publish:
            entry = CachedRun(replay(events, until=seq), flow)
            shown = await self._document(run_id, entry)
            compiled = await self._context.catalog.compile(self._context.tenant, shown.document)
            published = await self._publish_patched(entry.state.version, compiled, actor, message)
        return PatchOutcome(
            applied=True,
            digest=event.digest,
            revision=event.revision,
            added=event.added,
            removed=event.removed,
            changed=event.changed + _other_changes(before.workflow, flow.workflow),
            rerun=(),
            kept=(),
            published=published,
        )

    async def _patch_command(
        self, run_id: str, entry: CachedRun, change: Change, base_digest: str | None, expected_seq: int | None
    ) -> tuple[Patch, Compiled]:
        shown = await self._document(run_id, entry)
        if base_digest is not None and base_digest != shown.digest:
            hint = "read the run's document again and make the patch against it"
            raise rejected("patch_stale", "the graph of the run has changed since", path="/base_digest", hint=hint)
        operations, compiled = await self._compiled(shown.document, change)
        payload = await self._context.packed(operations, code="patch_invalid", path="/operations")
        patch = Patch(base=shown.digest, workflow=compiled.workflow, patch=payload, expected_seq=expected_seq or 0)
        return patch, compiled

    async def _compiled(self, document: Json, change: Change) -> tuple[Any, Compiled]:
        """The operations of a change, and the graph that they lead to. Problems of a text have line and column."""
        if (change.operations is None) is (change.document is None):
            message = "give either operations or a document"
            raise rejected("patch_invalid", message, path="/operations", hint="write [{op, path, …}]")
        catalog, tenant = self._context.catalog, self._context.tenant
        if change.document is None:
            return change.operations, await catalog.compile(tenant, apply_patch(document, change.operations))
        text = change.document if isinstance(change.document, str) else None
        wanted: Any = change.document
        if text is not None:
            wanted = await off_loop(text, lambda: read_document(text, format=None))
        try:
            compiled = await catalog.compile(tenant, wanted)
        except Rejected as refusal:
            if text is None:
                raise
            raise Rejected(await off_loop(text, with_places, refusal.problems, text)) from None
        return diff_documents(document, compiled.document), compiled

    async def _publish_patched(self, version: int, compiled: Compiled, actor: str, message: str) -> Published:
        """Make what the run runs a version, as a patch of the version that the run was started with."""
        reference = f"{compiled.workflow.name}@{version}"
        base = await self._context.catalog.document(
            self._context.tenant, await self._context.catalog.resolve(self._context.tenant, reference)
        )
        operations = diff_documents(base, unpinned(compiled.document, base))
        return await self._context.catalog.patch(
            self._context.tenant, reference, operations, author=actor, message=message, audited=self._context.audited
        )

    # Another run

    async def fork(
        self,
        run_id: str,
        *,
        at: int | None = None,
        node: str | None = None,
        inputs: Any = None,
        patch: Any = None,
        document: Mapping[str, Any] | str | None = None,
        labels: Mapping[str, str] | None = None,
        reason: str = "",
        actor: str = "",
        key: str | None = None,
    ) -> str:
        """Fork a run: start a new one with its history up to event `at`, by default all of it.

        `node` runs again there. `inputs` replace those of the same name; a JSON Patch, or a `document`, changes the
        graph. With `key` the call may be repeated.
        """
        if at is not None and type(at) is not int:
            hint = "`mill.events(run)` lists them; leave it out for all"
            raise rejected(
                "event_unknown", f"`at` is the number of an event, not {type(at).__name__}", path="/at", hint=hint
            )
        fork_id = key if key is not None else self._context.ambient.new_id()
        change = Change(patch, document)
        await self.fork_as(
            fork_id, run_id, change, at=at, node=node, inputs=inputs, labels=labels, reason=reason, actor=actor
        )
        return fork_id

    async def fork_as(
        self,
        fork_id: str,
        run_id: str,
        change: Change,
        *,
        at: int | None,
        node: str | None,
        inputs: Any,
        labels: Mapping[str, str] | None,
        reason: str,
        actor: str,
        known: int | None = None,
    ) -> bool:
        """Start a fork under an id, and return whether it is new: false if it was started before.

        With `known`, only its first `known` events are copied: the caller has checked no more.
        """
        check_words(reason=reason, actor=actor)
        self._context.check_actor(actor)
        check_run_id(fork_id)
        events = await self._context.log(run_id, limit=known)
        last = shared_prefix(events, rewinds=node is not None) if at is None else at
        if not 1 <= last <= len(events):
            message = f"the run has events 1 to {len(events)}, not {last}"
            raise rejected("event_unknown", message, path="/at", hint="see `tidemill runs events`")
        prefix = tuple(events[:last])
        flow = await self._context.catalog.flow(self._context.tenant, graph_after(prefix))
        payload: Payload | None = None
        if inputs is not None:
            context, first = self._context, decode_value(await self._context.text(replay(prefix).inputs))
            if isinstance(inputs, Mapping) and isinstance(first, dict):
                inputs = {**first, **inputs}
            payload = await checked_inputs(
                context.tenant, inputs, flow.workflow.inputs, context.blobs, context.input_bytes_max
            )
        command = Fork(
            id=f"fork:{fork_id}",
            actor=actor or None,
            run=run_id,
            prefix=prefix,
            rewind=node or "",
            undone=tuple(undone(events)),
            inputs=payload,
            labels=None if labels is None else check_labels(labels),
            submitted_by=actor,
            reason=reason,
        )
        after: CompiledWorkflow | None = None
        if change.operations is not None or change.document is not None:
            entry = CachedRun(replay(prefix), flow)
            patched, compiled = await self._patch_command(run_id, entry, change, None, None)
            after = await self._stored(compiled)
            command = msgspec.structs.replace(
                command, patch=msgspec.structs.replace(patched, retry=True, message=reason)
            )
        stream, audited = self._context.stream(fork_id), self._context.audited
        self._context.run_cache.note_started(stream)
        answer = await self._context.turns.command(stream, command, start=flow, flow=after, audited=audited)
        if answer.problem is not None and answer.problem.code != "run_exists":
            raise Rejected(answer.problem)
        made = (await self._context.entry(fork_id)).state.forked_from
        if made is None or made[0] != run_id:
            raise rejected("key_reused", f"key {fork_id} belongs to another run", hint="use a new key")
        return answer.problem is None and not answer.repeated


_KEYS = ("description", "inputs", "outputs", "limits", "compensate", "retention")


def _other_changes(old: Workflow, new: Workflow) -> tuple[str, ...]:
    return tuple(f"/{key}" for key in _KEYS if getattr(old, key) != getattr(new, key))


def pinned(document: Json, workflow: Workflow) -> Json:
    """A document whose node types are those that the run was compiled with, even if newer ones exist."""
    undoing = {node.id: node.compensator.type for node in workflow.nodes if node.compensator is not None}
    return _with_types(document, {node.id: node.type for node in workflow.nodes}, undoing)


def unpinned(document: Json, base: Json) -> Json:
    """A document whose node types are written as in another one, where they are the same types."""
    undoing = {node["id"]: node["compensator"]["type"] for node in base["nodes"] if "compensator" in node}
    return _with_types(document, {node["id"]: node["type"] for node in base["nodes"]}, undoing)


def _with_types(document: Json, types: Mapping[str, str], undoing: Mapping[str, str]) -> Json:
    """The document with these types of nodes and of compensators, by node, where only the version differs."""

    def typed(part: Json, known: str) -> Json:
        return {**part, "type": known} if part["type"].partition("@")[0] == known.partition("@")[0] else {**part}

    nodes = []
    for node in document["nodes"]:
        name = node["id"]
        if name in types:
            node = typed(node, types[name])
            if "compensator" in node and name in undoing:
                node["compensator"] = typed(node["compensator"], undoing[name])
        nodes.append(node)
    return {**document, "nodes": nodes}
