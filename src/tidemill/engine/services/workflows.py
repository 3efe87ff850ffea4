"""Published workflows, as callers see them: publish, look up, compare, tag and patch versions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tidemill.engine.catalog import Diff, Published, Tagged
from tidemill.engine.compiled import off_loop
from tidemill.engine.run_query import checked_terms
from tidemill.engine.services.context import ServiceContext
from tidemill.engine.versions import TagMoved, Version, WorkflowRow
from tidemill.errors import Rejected
from tidemill.kernel.document.reader import format_of, read_document, with_places
from tidemill.kernel.model import Json, Workflow

Document = Mapping[str, Any] | str | bytes | Path
"""What can be published: a mapping, YAML or JSON text, or the path of a file."""


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
        """Make a new version of a published one with a JSON Patch on its document."""
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
        """Published workflows, the one that changed last first."""
        wanted = checked_terms(terms, ("tag", "workflow"))
        return await self._context.catalog.find(self._context.tenant, wanted, after=after, limit=limit)

    async def versions(self, name: str) -> list[Version]:
        """All versions of a workflow, oldest first."""
        await self._context.catalog.resolve(self._context.tenant, name)
        return await self._context.catalog.versions(self._context.tenant, name)

    async def tag(self, name: str, tag: str, version: int, *, actor: str = "", message: str = "") -> Tagged:
        """Make a tag point to a version."""
        context = self._context
        words = {"actor": actor, "message": message}
        return await context.catalog.tag(context.tenant, name, tag, version, audited=context.audited, **words)

    async def untag(self, name: str, tag: str, *, actor: str = "", message: str = "") -> Tagged:
        """Take a tag away."""
        context = self._context
        words = {"actor": actor, "message": message}
        return await context.catalog.untag(context.tenant, name, tag, audited=context.audited, **words)

    async def tags(self, name: str) -> dict[str, int]:
        """Where the tags of a workflow point, `latest` included."""
        return await self._context.catalog.tags(self._context.tenant, name)

    async def tag_history(self, name: str, tag: str | None = None) -> list[TagMoved]:
        """Where the tags of a workflow have pointed, oldest first."""
        return await self._context.catalog.tag_history(self._context.tenant, name, tag)

    async def diff(self, left: str, right: str) -> Diff:
        """What lies between two versions, as a JSON Patch and as a difference of graphs."""
        return await self._context.catalog.diff(self._context.tenant, left, right)
