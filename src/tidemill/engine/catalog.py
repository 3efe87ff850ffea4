"""Published workflows: versions by name, compiled forms by digest.

A version is a record in the workflow's stream; the compiled form is a blob under the digest that runs are pinned to.
Publishing content that already is a version returns that version and writes nothing. A writer that loses a race for
the next record reads the stream again and decides again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tidemill.ambient import Ambient
from tidemill.blobs.contract import Blobs, digest_of
from tidemill.blobs.payloads import decode_value, encode_value
from tidemill.engine.blob_references import mark_new_tenant, reference_rows, run_refers, version_references
from tidemill.engine.compiled import CONTENT_BYTES_MAX, CompiledWorkflow, filled_in, off_loop
from tidemill.engine.corruption import corrupt_stream
from tidemill.engine.index_rows import RUN
from tidemill.engine.maintenance.audit_chain import require_actor, waiting_row
from tidemill.engine.offered_types import NodeTypeDirectory
from tidemill.engine.validation import check_words
from tidemill.engine.versions import (
    DESCRIPTION_LENGTH_MAX,
    WORKFLOW,
    History,
    Record,
    TagMoved,
    Version,
    WorkflowDeleted,
    WorkflowRow,
    check_tag,
    encode_record,
    is_name,
    main_version,
    read_history,
    read_workflow_row,
    split_reference,
    unknown_workflow,
)
from tidemill.errors import Problem, Rejected, Unavailable, rejected
from tidemill.kernel.model import NodeType, decode_workflow, encode_workflow
from tidemill.stores.contract import Commit, Committed, Row, Store, Stream

if TYPE_CHECKING:
    from tidemill.kernel.compile.compiler import Compiled
    from tidemill.kernel.document.diff import GraphDiff


FLOWS_MAX = 256
FLOWS_BYTES_MAX = 16 << 20
"""Compiled workflows kept in memory, and their encoded bytes, which become about ten times as many; one is kept."""
HELD_MAX = 256
RACES_MAX = 16
UNKNOWN_TYPE = frozenset({"unknown_node_type", "unknown_type_version"})
COUNTED_MAX = 10_000
"""Runs that have not ended, counted before a workflow is deleted."""
NAMES_MAX = 1_000
"""Names searched for the nearest match of an unknown one."""

__all__ = ["Catalog", "Diff", "Published", "TagMoved", "Tagged", "Version", "WorkflowDeletion", "WorkflowRow"]


class Published(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: int
    digest: str
    created: bool
    warnings: tuple[Problem, ...] = ()
    from_workers: tuple[str, ...] = ()
    """Node types that this process does not have: workers offer them, as `name@major`."""


class Tagged(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a move of a tag; `version` is 0 when it was removed, `was` when it did not exist."""

    name: str
    tag: str
    version: int
    was: int
    weights: dict[int, int] = {}
    """The percentages of the versions that share it now; empty if it points to one."""
    was_weights: dict[int, int] = {}

    @property
    def moved(self) -> bool:
        return (self.version, self.weights) != (self.was, self.was_weights)


class WorkflowDeletion(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    versions: int
    """How many versions it had."""


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    left: Version
    right: Version
    document: tuple[dict[str, Any], ...]
    """A JSON Patch from the left document to the right one."""
    graph: GraphDiff


class _Candidate(NamedTuple):
    """Content that may become a version."""

    compiled: Compiled
    digest: str
    document: str
    parent: int
    patch: bytes | None = None


class Catalog:
    """The workflows of a store, with a bounded cache of compiled ones."""

    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        ambient: Ambient,
        types: Mapping[str, Sequence[NodeType]],
        unusable: Sequence[str] = (),
        tenant_types: Mapping[str, Mapping[str, Sequence[NodeType]]] = {},
        *,
        fleet: str = "default",
    ) -> None:
        self._store, self._blobs, self._ambient, self._unusable = store, blobs, ambient, unusable
        self.node_types = NodeTypeDirectory(store, ambient, types, fleet, tenant_types)
        self._flows: OrderedDict[tuple[str, str], tuple[CompiledWorkflow, int]] = OrderedDict()
        self._flows_bytes = 0
        self._held: dict[Stream, History] = {}
        """Histories as last read; read-only."""
        self._known_tenants: set[str] = set()
        """Tenants that are not new: whether their blob references are complete is settled."""

    # Publishing

    async def _content(self, tenant: str, digest: str) -> bytes:
        """What a document refers to. A value of a run is no content, unless it is kept: a digest is not a key."""
        known = await self._blobs.stat(tenant, digest)
        if known is not None and known.size > CONTENT_BYTES_MAX:
            raise ValueError(f"it has {known.size:,} bytes, and {CONTENT_BYTES_MAX:,} is the limit")
        if known is not None and not known.kept and await run_refers(self._store, tenant, digest):
            raise ValueError("it belongs to a run; store it with `tidemill blobs put --keep`")
        return await self._blobs.get(tenant, digest)

    async def compile(self, tenant: str, document: Any) -> Compiled:
        """Compile a document, with all content that it refers to inlined. Nothing is stored."""
        # Imported here, because the compiler is large and only publishing needs it.
        from tidemill.kernel.compile.compiler import compile_document

        filled = await filled_in(document, partial(self._content, tenant))
        compiling = partial(compile_document, filled, unusable_types=self._unusable, of_workers=True)
        types = await self.node_types.union(tenant)
        try:
            return await off_loop(filled, compiling, types)
        except Rejected as refusal:
            if UNKNOWN_TYPE.isdisjoint(problem.code for problem in refusal.problems):
                raise
            # A worker may have offered it a moment ago.
            now = await self.node_types.union(tenant, fresh=True)
            if now == types:
                raise
        return await off_loop(filled, compiling, now)

    async def store_flow(self, tenant: str, compiled: Compiled) -> tuple[str, str]:
        """Store a compiled workflow and its document; returns the digests of both."""
        body = encode_workflow(compiled.workflow)
        digest = await self._blobs.put(tenant, body)
        text = await self._blobs.put(tenant, msgspec.json.encode(compiled.document, order="sorted"))
        # As other workers read it: the bytes have the keys in alphabetical order, which templates and outputs show.
        workflow = await off_loop(compiled.document, decode_workflow, body)
        self._keep((tenant, digest), CompiledWorkflow(workflow), len(body))
        return digest, text

    async def publish(
        self, tenant: str, document: Any, *, author: str = "", message: str = "", audited: bool = False
    ) -> Published:
        """Compile a document and make it the newest version of its workflow, unless it already is one."""
        check_words(author=author, message=message)
        compiled = await self.compile(tenant, document)
        digests = await self.store_flow(tenant, compiled)

        async def offer(history: History) -> _Candidate:
            return _Candidate(compiled, *digests, parent=len(history.versions) if history.published else 0)

        return await self._add_version(tenant, compiled.workflow.name, offer, author, message, audited)

    async def patch(
        self,
        tenant: str,
        reference: str,
        operations: Any,
        *,
        author: str = "",
        message: str = "",
        base_digest: str | None = None,
        audited: bool = False,
    ) -> Published:
        """Make a new version by a JSON Patch of the referenced version, or return the version it equals.

        With `base_digest` it is refused (`patch_stale`) once the reference means other content. Without, a patch of
        `name` or of a tag that loses a race is applied again, to the version that the reference means by then.
        """
        from tidemill.kernel.document.json_patch import apply_patch

        check_words(author=author, message=message)
        name = (await self.resolve(tenant, reference)).name

        async def offer(history: History) -> _Candidate:
            base = history.meant_by(reference)
            if base_digest not in (None, base.digest):
                stale = f"the patch was made for other content than that of {base.name}@{base.version}"
                hint = "read the present document and make the patch again"
                raise rejected("patch_stale", stale, path="/base_digest", hint=hint)
            patched = apply_patch(await self.document(tenant, base), operations)
            compiled = await self.compile(tenant, patched)
            if compiled.workflow.name != name:
                renamed = f"the patch would turn {name} into {compiled.workflow.name}"
                raise rejected("patch_invalid", renamed, path="/name", hint="publish the document under its new name")
            digests = await self.store_flow(tenant, compiled)
            return _Candidate(compiled, *digests, parent=base.version, patch=encode_value(operations))

        return await self._add_version(tenant, name, offer, author, message, audited)

    async def _add_version(
        self,
        tenant: str,
        name: str,
        make: Callable[[History], Awaitable[_Candidate]],
        author: str,
        message: str,
        audited: bool,
    ) -> Published:
        if audited:
            require_actor(author)
        for _ in range(RACES_MAX):
            history = await self._history(tenant, name)
            offer = await make(history)
            known = next((version for version in history.published if version.digest == offer.digest), None)
            if known is not None:
                return self._published(known, offer.compiled, created=False)
            version = Version(
                name=name,
                version=len(history.versions) + 1,
                digest=offer.digest,
                document=offer.document,
                at_ms=self._ambient.now_ms(),
                author=author,
                message=message,
                parent=offer.parent,
                patch=None if offer.patch is None else await self._blobs.put(tenant, offer.patch),
                description=offer.compiled.workflow.description[:DESCRIPTION_LENGTH_MAX],
            )
            if await self._append(tenant, history, version, audited):
                return self._published(version, offer.compiled, created=True)
        raise Unavailable(f"workflow {name} is being published by too many callers at once")

    def _published(self, version: Version, compiled: Compiled, *, created: bool) -> Published:
        nodes = compiled.workflow.nodes
        used = {node.type for node in nodes} | {node.compensator.type for node in nodes if node.compensator is not None}
        return Published(
            name=version.name,
            version=version.version,
            digest=version.digest,
            created=created,
            warnings=compiled.warnings,
            from_workers=tuple(sorted(used - self.node_types.own_types.keys())),
        )

    async def _append(self, tenant: str, history: History, record: Record, audited: bool) -> bool:
        """Write the record that follows a history, and the row of both; false when another writer was faster."""
        expected, stream = history.length, Stream(tenant, WORKFLOW, history.name)
        if not expected and tenant not in self._known_tenants:
            await mark_new_tenant(self._store, tenant)
            self._known_tenants.add(tenant)
        history.add(record)
        references = reference_rows(stream, version_references(record)) if isinstance(record, Version) else ()
        encoded, rows = encode_record(record), (history.row(), *references)
        if audited:
            rows += (_audit_row(stream, expected + 1, record, encoded),)
        commit = Commit(stream=stream, expected=expected, records=(encoded,), rows=rows)
        (result,) = await self._store.commit([commit])
        return isinstance(result, Committed)

    # Tags

    async def tag(
        self,
        tenant: str,
        name: str,
        tag: str,
        version: int | Mapping[Any, int],
        *,
        weight: int | None = None,
        actor: str = "",
        message: str = "",
        audited: bool = False,
    ) -> Tagged:
        """Make a tag point to a version, or let several share it. Writes nothing if it already is so."""
        check_tag(tag)

        def shares(history: History) -> dict[int, int]:
            history.check_new_tag(tag)
            return history.shares(tag, version, weight)

        return await self._move_tag(tenant, name, tag, shares, actor, message, audited)

    async def rollback_tag(
        self, tenant: str, name: str, tag: str, *, actor: str = "", message: str = "", audited: bool = False
    ) -> Tagged:
        """Move a tag back to where it pointed before."""
        check_tag(tag)
        return await self._move_tag(tenant, name, tag, lambda history: history.before(tag), actor, message, audited)

    async def untag(
        self, tenant: str, name: str, tag: str, *, actor: str = "", message: str = "", audited: bool = False
    ) -> Tagged:
        """Remove a tag; its history stays. Idempotent."""
        check_tag(tag)

        def shares(history: History) -> dict[int, int]:
            if not any(move.tag == tag for move in history.moves):
                history.tagged(tag)
            return {}

        return await self._move_tag(tenant, name, tag, shares, actor, message, audited)

    async def _move_tag(
        self,
        tenant: str,
        name: str,
        tag: str,
        shares_after: Callable[[History], dict[int, int]],
        actor: str,
        message: str,
        audited: bool,
    ) -> Tagged:
        check_words(actor=actor, message=message)
        if audited:
            require_actor(actor)
        for _ in range(RACES_MAX):
            history = await self._known(tenant, name)
            shares = shares_after(history)
            weights = shares if len(shares) > 1 else {}
            answer = Tagged(
                name=name,
                tag=tag,
                version=main_version(shares) if shares else 0,
                was=history.tags.get(tag, 0),
                weights=weights,
                was_weights=history.weights.get(tag, {}),
            )
            if not answer.moved:
                return answer
            record = TagMoved(
                name=name,
                tag=tag,
                version=answer.version,
                was=answer.was,
                at_ms=self._ambient.now_ms(),
                actor=actor,
                message=message,
                weights=tuple(sorted(weights.items())),
            )
            if await self._append(tenant, history, record, audited):
                return answer
        raise Unavailable(f"the tags of {name} are being moved by too many callers at once")

    async def delete(
        self, tenant: str, name: str, *, actor: str = "", message: str = "", audited: bool = False
    ) -> WorkflowDeletion:
        """Delete a workflow from the catalog. Refused while runs of it have not ended; ended ones stay readable."""
        check_words(actor=actor, message=message)
        if audited:
            require_actor(actor)
        for _ in range(RACES_MAX):
            history = await self._known(tenant, name)
            found = [[f"workflow:{name}", term] for term in ("live", "rollback:running")]
            live = sum([await self._store.count(tenant, RUN, terms, at_most=COUNTED_MAX) for terms in found])
            if live:
                count = f"{live}" if live < COUNTED_MAX else f"{COUNTED_MAX:,} or more"
                said = f"{count} run{'s' * (live > 1)} of {name} {'have' if live > 1 else 'has'} not ended"
                hint = f"wait for them, or `tidemill runs bulk cancel workflow:{name} live`"
                raise rejected("workflow_in_use", said, path="/name", hint=hint)
            record = WorkflowDeleted(name=name, at_ms=self._ambient.now_ms(), actor=actor, message=message)
            versions = len(history.published)
            if await self._append(tenant, history, record, audited):
                return WorkflowDeletion(name=name, versions=versions)
        raise Unavailable(f"workflow {name} is being changed by too many callers at once")

    async def tags(self, tenant: str, name: str) -> dict[str, int]:
        return (await self._known(tenant, name)).all_tags()

    async def weights(self, tenant: str, name: str) -> dict[str, dict[int, int]]:
        return (await self._known(tenant, name)).weights

    async def tag_history(self, tenant: str, name: str, tag: str | None = None) -> list[TagMoved]:
        """Every move of a tag, or of all tags, oldest first. `latest` has none: it follows the versions."""
        history = await self._known(tenant, name)
        moves = [move for move in history.moves if tag in (None, move.tag)]
        if tag is not None and not moves:
            history.tagged(tag)
        return moves

    # Lookup

    async def versions(self, tenant: str, name: str) -> list[Version]:
        return (await self._history(tenant, name)).published

    async def version(self, tenant: str, name: str, number: int) -> Version:
        """The version that a run was started with, also if it was deleted since."""
        history = await self._history(tenant, name)
        return history.versions[number - 1] if 0 < number <= len(history.versions) else history.numbered(number)

    async def resolve(self, tenant: str, reference: str, run_id: str = "") -> Version:
        """Find a version: `name` and `name:latest` are the newest, `name@3` is version 3, `name:stable` a tag.

        If several versions share the tag, it is the one that a run of this id gets, and without an id the main one.
        """
        return (await self._current(tenant, reference)).meant_by(reference, run_id)

    async def resolve_each(self, tenant: str, reference: str, run_ids: Sequence[str]) -> list[Version]:
        """The version that each of these runs gets."""
        history = await self._current(tenant, reference)
        if not run_ids:
            history.meant_by(reference)
        return [history.meant_by(reference, run_id) for run_id in run_ids]

    async def _current(self, tenant: str, reference: str) -> History:
        name = split_reference(reference)[0]
        stream = Stream(tenant, WORKFLOW, name)
        held = self._held.get(stream)
        if held is not None:
            # Every start of a run resolves a reference: one load tells whether anything was published since.
            length = held.length
            (tail,) = await self._store.load({stream: length})
            if tail.version == length and len(held.versions) > held.deleted:
                return held
        history = await self._known(tenant, name)
        self._hold(stream, history)
        return history

    def _hold(self, stream: Stream, history: History) -> None:
        if len(self._held) >= HELD_MAX:
            self._held.clear()
        self._held[stream] = history

    async def publishes(self, tenant: str, name: str, version: int, digest: str) -> bool:
        """Whether this content is this version of a workflow; false if that cannot be read."""
        stream = Stream(tenant, WORKFLOW, name)
        held = self._held.get(stream)
        if held is None or len(held.versions) < version:
            try:
                held = await self._history(tenant, name)
            except Rejected:
                return False
            self._hold(stream, held)
        return 0 < version <= len(held.versions) and held.versions[version - 1].digest == digest

    async def find(
        self, tenant: str, terms: Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> tuple[list[WorkflowRow], str | None]:
        """Workflows that have all terms (`tag:stable`), last changed first."""
        if limit < 1:
            raise rejected("limit_invalid", f"a page has at least one row, not {limit}", path="/limit")
        page = await self._store.find(tenant, WORKFLOW, terms, after=after, limit=limit)
        return [read_workflow_row(row) for row in page.rows], page.after

    async def diff(self, tenant: str, left: str, right: str) -> Diff:
        from tidemill.kernel.document.diff import diff_documents, diff_workflows

        old, new = await self.resolve(tenant, left), await self.resolve(tenant, right)
        before, after = await self.document(tenant, old), await self.document(tenant, new)
        flows = [await self.flow(tenant, version.digest) for version in (old, new)]
        return Diff(
            left=old,
            right=new,
            document=tuple(diff_documents(before, after)),
            graph=diff_workflows(flows[0].workflow, before, flows[1].workflow, after),
        )

    async def document(self, tenant: str, version: Version) -> Any:
        return decode_value(await self._blobs.get(tenant, version.document))

    async def patch_of(self, tenant: str, version: Version) -> Any:
        """The JSON Patch that made a version from its parent; None when it was published whole."""
        return None if version.patch is None else decode_value(await self._blobs.get(tenant, version.patch))

    async def _history(self, tenant: str, name: str) -> History:
        if not is_name(name):
            return History(name)
        (tail,) = await self._store.load({Stream(tenant, WORKFLOW, name): 0})
        return read_history(name, tail)

    async def _known(self, tenant: str, name: str) -> History:
        """The history of a workflow that must exist; the refusal names the nearest existing name."""
        history = await self._history(tenant, name)
        if history.published:
            return history
        page = await self._store.find(tenant, WORKFLOW, (), limit=NAMES_MAX)
        names = [row.key for row in page.rows]
        if name not in names:
            raise unknown_workflow(name, names)
        # Rows are written with the records, so it was published just now or its records were lost.
        history = await self._history(tenant, name)
        if not history.published:
            raise corrupt_stream(Stream(tenant, WORKFLOW, name), "it is listed, and there are none")
        return history

    # Compiled workflows

    async def flow(self, tenant: str, digest: str) -> CompiledWorkflow:
        known = self._flows.get((tenant, digest))
        if known is not None:
            self._flows.move_to_end((tenant, digest))
            return known[0]
        body = await self._blobs.get(tenant, digest)
        if digest_of(body) != digest:
            raise Unavailable(f"workflow {digest} is damaged")
        flow = CompiledWorkflow(decode_workflow(body))
        self._keep((tenant, digest), flow, len(body))
        return flow

    def _keep(self, key: tuple[str, str], flow: CompiledWorkflow, size: int) -> None:
        _, before = self._flows.pop(key, (flow, 0))
        self._flows[key] = flow, size
        self._flows_bytes += size - before
        while len(self._flows) > FLOWS_MAX or (self._flows_bytes > FLOWS_BYTES_MAX and len(self._flows) > 1):
            _, (_, dropped) = self._flows.popitem(last=False)
            self._flows_bytes -= dropped


def _audit_row(stream: Stream, number: int, record: Record, encoded: bytes) -> Row:
    if isinstance(record, Version):
        words = {"actor": record.author, "command": "publish", "detail": f"version {record.version}"}
    elif isinstance(record, WorkflowDeleted):
        words = {"actor": record.actor, "command": "delete", "detail": record.message}
    else:
        shared = ", ".join(f"{number} {percent} %" for number, percent in record.weights)
        moved = f"{record.tag}: {record.was or '–'} → {shared or record.version or '–'}"
        words = {"actor": record.actor, "command": "tag" if record.version else "untag", "detail": moved}
    return waiting_row(stream, number, encoded, at_ms=record.at_ms, **words)
