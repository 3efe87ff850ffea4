"""Published workflows, as callers see them: publish, look up, compare, tag and patch versions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tidemill.engine.catalog import Diff, Published, Tagged, WorkflowDeletion
from tidemill.engine.compiled import off_loop
from tidemill.engine.run_query import checked_terms
from tidemill.engine.services.context import ServiceContext
from tidemill.engine.versions import FILE_ENDINGS, TagMoved, Version, WorkflowRow
from tidemill.errors import Problem, Rejected, rejected
from tidemill.kernel.document.problems import shown
from tidemill.kernel.document.reader import format_of, read_document, with_places
from tidemill.kernel.model import Json, Workflow

Document = Mapping[str, Any] | str | bytes | Path
"""What can be published: a mapping, YAML or JSON text, or the path of a file."""


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a document, or what it would become."""

    valid: bool
    name: str | None = None
    nodes: int | None = None
    digest: str | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


class WorkflowService:
    """Publish, find, tag, compare and patch workflows.

    A reference is `name` (the latest version), `name@3` or `name:tag`.
    """

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def publish(self, document: Document, *, author: str = "", message: str = "") -> Published:
        """Publish a document: a mapping, YAML or JSON text, or the path of a file.

        Refused whole, with every problem in `Rejected.problems`, or taken whole.
        """
        text: bytes | str | None = None
        read: Any = document
        if isinstance(document, Path):
            text = await asyncio.to_thread(document.read_bytes)
            read = await off_loop(text, partial(read_document, format=format_of(document.suffix)), text)
        elif isinstance(document, (str, bytes)):
            if isinstance(document, str) and document.endswith(FILE_ENDINGS) and "\n" not in document:
                hint = f'the document in a file is `Path("{shown(document)}")`'
                raise rejected("not_a_mapping", "this text is the name of a file, not a document", hint=hint)
            text = document
            read = await off_loop(text, partial(read_document, format=None), text)
        publishing = self._context.catalog.publish(
            self._context.tenant, read, author=author, message=message, audited=self._context.audited
        )
        if text is None:
            return await publishing
        try:
            published = await publishing
        except Rejected as refusal:
            raise Rejected(await off_loop(text, with_places, refusal.problems, text)) from None
        if not published.warnings:
            return published
        warnings = await off_loop(text, with_places, published.warnings, text)
        return msgspec.structs.replace(published, warnings=warnings)

    async def validate(self, document: Mapping[str, Any] | str | bytes) -> Validation:
        """Compile a document without publishing it. Every problem is reported, of a text with line and column."""
        text = document if isinstance(document, (str, bytes)) else None
        try:
            read: Any = document
            if text is not None:
                read = await off_loop(text, partial(read_document, format=None), text)
            compiled = await self._context.catalog.compile(self._context.tenant, read)
        except Rejected as refusal:
            return Validation(valid=False, problems=await _placed(refusal.problems, text))
        workflow = compiled.workflow
        return Validation(
            valid=True,
            name=workflow.name,
            nodes=len(workflow.nodes),
            digest=workflow.digest,
            warnings=await _placed(compiled.warnings, text),
        )

    async def version(self, reference: str) -> Version:
        """The version that a reference means."""
        return await self._context.catalog.resolve(self._context.tenant, reference)

    async def show(self, reference: str) -> Workflow:
        """The compiled form of a published workflow: `name`, or `name@3`."""
        version = await self._context.catalog.resolve(self._context.tenant, reference)
        return (await self._context.catalog.flow(self._context.tenant, version.digest)).workflow

    async def document(self, reference: str) -> Json:
        """The document of a published workflow, in its normal form."""
        version = await self._context.catalog.resolve(self._context.tenant, reference)
        return await self._context.catalog.document(self._context.tenant, version)

    async def patch(
        self, reference: str, operations: Any, *, base_digest: str | None = None, author: str = "", message: str = ""
    ) -> Published:
        """Publish a new version with a JSON Patch of another one's document."""
        return await self._context.catalog.patch(
            self._context.tenant,
            reference,
            operations,
            base_digest=base_digest,
            author=author,
            message=message,
            audited=self._context.audited,
        )

    async def find(
        self, terms: str | Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> tuple[list[WorkflowRow], str | None]:
        """Published workflows, most recently changed first."""
        wanted = checked_terms(terms, ("tag", "workflow"))
        return await self._context.catalog.find(self._context.tenant, wanted, after=after, limit=limit)

    async def versions(self, name: str) -> list[Version]:
        """All versions of a workflow, oldest first."""
        await self._context.catalog.resolve(self._context.tenant, name)
        return await self._context.catalog.versions(self._context.tenant, name)

    async def tag(
        self,
        name: str,
        tag: str,
        version: int | Mapping[int, int],
        *,
        weight: int | None = None,
        actor: str = "",
        message: str = "",
    ) -> Tagged:
        """Point a tag to a version, or let several versions share it.

        With a `weight` the version gets that percentage of the runs that are started by the tag, and the versions that
        have the tag now keep the rest; `{2: 90, 3: 10}` names all of them. The id of a run decides which version it
        gets, so that a start that is repeated with the same key gets the same.
        """
        context = self._context
        words: dict[str, Any] = {"actor": actor, "message": message, "audited": context.audited}
        return await context.catalog.tag(context.tenant, name, tag, version, weight=weight, **words)

    async def rollback_tag(self, name: str, tag: str, *, actor: str = "", message: str = "") -> Tagged:
        """Move a tag back to where it pointed before. Done twice, it points where it does now."""
        context = self._context
        words: dict[str, Any] = {"actor": actor, "message": message, "audited": context.audited}
        return await context.catalog.rollback_tag(context.tenant, name, tag, **words)

    async def delete(self, name: str, *, actor: str = "", message: str = "") -> WorkflowDeletion:
        """Delete a workflow from the catalog; refused while runs of it have not ended.

        Ended runs stay readable. A document that is published under the name later continues the version numbers.
        """
        context = self._context
        words: dict[str, Any] = {"actor": actor, "message": message, "audited": context.audited}
        return await context.catalog.delete(context.tenant, name, **words)

    async def untag(self, name: str, tag: str, *, actor: str = "", message: str = "") -> Tagged:
        """Remove a tag."""
        context = self._context
        words = {"actor": actor, "message": message}
        return await context.catalog.untag(context.tenant, name, tag, audited=context.audited, **words)

    async def tags(self, name: str) -> dict[str, int]:
        """Where the tags of a workflow point, `latest` included."""
        return await self._context.catalog.tags(self._context.tenant, name)

    async def weights(self, name: str) -> dict[str, dict[int, int]]:
        """By tag that several versions share: their percentages."""
        return await self._context.catalog.weights(self._context.tenant, name)

    async def tag_history(self, name: str, tag: str | None = None) -> list[TagMoved]:
        """Where the tags of a workflow have pointed, oldest first."""
        return await self._context.catalog.tag_history(self._context.tenant, name, tag)

    async def diff(self, left: str, right: str) -> Diff:
        """The differences between two versions, as a JSON Patch and as a difference of graphs."""
        return await self._context.catalog.diff(self._context.tenant, left, right)


async def _placed(problems: tuple[Problem, ...], text: str | bytes | None) -> tuple[Problem, ...]:
    return problems if text is None or not problems else await off_loop(text, with_places, problems, text)
