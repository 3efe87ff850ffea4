"""The other services of an engine over HTTP: approvals, dead letters, workflows, blobs, the fleet, access."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, cast
from urllib.parse import quote
from uuid import uuid4

import msgspec

from tidemill.blobs.contract import damaged
from tidemill.engine.agents.composite_tools import CompositeToolService
from tidemill.engine.attempts.results import UNREADABLE
from tidemill.engine.catalog import Diff, Published, Tagged
from tidemill.engine.index_rows import ApprovalRow, DeadLetterRow
from tidemill.engine.maintenance.usage import UsageService
from tidemill.engine.services.access import EXPIRES_DAYS, AuditService, CreatedKey, KeyService, TenantService
from tidemill.engine.services.approvals import ApprovalService, check_verb
from tidemill.engine.services.blobs import BlobService
from tidemill.engine.services.concurrency import ConcurrencyService
from tidemill.engine.services.dead_letters import DeadLetterService
from tidemill.engine.services.maintenance import MaintenanceService
from tidemill.engine.services.workers import NodeTypeView, QueueService, WorkerService
from tidemill.engine.services.workflows import Document, WorkflowService
from tidemill.engine.versions import TagMoved, Version
from tidemill.engine.views import ApprovalView, activation_id
from tidemill.errors import ServerUnavailable, rejected
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.model import Workflow, decode_workflow
from tidemill.remote.connection import CutOff, hints, pause_s, received
from tidemill.remote.requests import (
    CHUNK,
    LONG_S,
    TRIES,
    YAML,
    RemoteService,
    Route,
    given_only,
    json_value,
    page_of,
)
from tidemill.security.roles import check_roles_of_key
from tidemill.triggers.service import ScheduleService


class ByPlace(RemoteService):
    """What belongs to a visit of a node: approvals and dead letters. Without a visit it is the latest one."""

    LISTED: ClassVar[str]
    FILTERS: ClassVar[Mapping[str, str]] = {}
    """What the list is asked for, beside a query, to leave nothing out."""

    async def _find(
        self, row: Any, terms: str | Sequence[str], after: str | None, limit: int
    ) -> tuple[list[Any], str | None]:
        query = terms if isinstance(terms, str) else " ".join(terms)
        page = await self._page(
            Route("GET", self.LISTED), given_only({**self.FILTERS, "query": query, "after": after, "limit": limit})
        )
        return received(list[row], page["items"]), page["next"]

    async def _id(self, run_id: str, node: str, visit: int | None = None, index: int | None = None) -> str:
        wanted = NOT_AN_ITEM if index is None else index
        if visit is None:
            rows = await self._all(self.LISTED, **self.FILTERS, query=f"run:{run_id}")
            # Of a place without one the server says what is wrong with it.
            visit = max((row["visit"] for row in rows if row["node"] == node and row["index"] == wanted), default=1)
        return activation_id(run_id, node, visit, wanted)

    async def _act(self, run_id: str, node: str, path: str, more: dict[str, Any], **body: Any) -> tuple[str, Any]:
        """The id of the place, and the answer to a request about it."""
        place = {name: more.pop(name, None) for name in ("visit", "index")}
        body = {"command_id": uuid4().hex, **body, **given_only(more), "id": await self._id(run_id, node, **place)}
        return body["id"], await self._ask(Route("POST", f"{self.LISTED}/{{id}}/{path}"), body)


class RemoteApprovals(ByPlace):
    SERVICE = ApprovalService
    LISTED, FILTERS = "/approvals", {"status": "all"}

    async def find(
        self, terms: str | Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> tuple[list[ApprovalRow], str | None]:
        return await self._find(ApprovalRow, terms, after, limit)

    async def show(self, run_id: str, node: str, *, visit: int | None = None, index: int | None = None) -> ApprovalView:
        return await self._shown(await self._id(run_id, node, visit, index))

    async def _shown(self, approval_id: str) -> ApprovalView:
        return ApprovalView.from_dict(await self._ask(Route("GET", "/approvals/{id}"), {"id": approval_id}))

    async def decide(self, run_id: str, node: str, verb: str, **more: Any) -> ApprovalView:
        check_verb(verb)
        approval_id, _ = await self._act(run_id, node, "decide", more, decision=verb)
        return await self._shown(approval_id)

    async def delegate(self, run_id: str, node: str, to: str, **more: Any) -> ApprovalView:
        _, shown = await self._act(run_id, node, "delegate", more, to=to)
        return ApprovalView.from_dict(shown)


class RemoteDeadLetters(ByPlace):
    SERVICE = DeadLetterService
    ROUTES: ClassVar[Mapping[str, Route]] = {"reprocess": Route("POST", "/dead-letters/reprocess", repeats=False)}
    LISTED = "/dead-letters"

    async def find(
        self, terms: str | Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> tuple[list[DeadLetterRow], str | None]:
        return await self._find(DeadLetterRow, terms, after, limit)

    async def show(
        self, run_id: str, node: str, *, visit: int | None = None, index: int | None = None
    ) -> dict[str, Any]:
        letter_id = await self._id(run_id, node, visit, index)
        shown: dict[str, Any] = await self._ask(Route("GET", "/dead-letters/{id}"), {"id": letter_id})
        del shown["dead_letter_id"]
        return shown

    async def discard(self, run_id: str, node: str, **more: Any) -> None:
        await self._act(run_id, node, "discard", more)


class RemoteWorkflows(RemoteService):
    SERVICE = WorkflowService
    ROUTES: ClassVar[Mapping[str, Route]] = {
        "document": Route("GET", "/workflows/{reference}/document"),
        "patch": Route("POST", "/workflows/{reference}/patch"),
        "tags": Route("GET", "/workflows/{name}/tags"),
        "untag": Route("DELETE", "/workflows/{name}/tags/{tag}"),
        "rollback_tag": Route("POST", "/workflows/{name}/tags/{tag}/rollback", repeats=False),
        "delete": Route("DELETE", "/workflows/{name}", repeats=False),
    }

    async def publish(self, document: Document, *, author: str = "", message: str = "") -> Published:
        if isinstance(document, Path):
            document = await asyncio.to_thread(document.read_bytes)
        if isinstance(document, Mapping):
            body = {"document": json_value(document, "document_not_json", ""), "message": message}
            return cast(Published, received(Published, await self._ask(Route("POST", "/workflows"), body)))
        # As text, so that problems have the lines and columns of the author.
        text = document.encode() if isinstance(document, str) else document
        response = await self._connection.ask(
            "POST", "/workflows", query={"message": message}, content=text, headers={"Content-Type": YAML}
        )
        return cast(Published, received(Published, msgspec.json.decode(response.content)))

    async def find(self, terms: str | Sequence[str] = (), *, after: str | None = None, limit: int = 50) -> Any:
        query = terms if isinstance(terms, str) else " ".join(terms)
        page = await self._page(
            Route("GET", "/workflows"), given_only({"query": query, "after": after, "limit": limit})
        )
        return page_of(hints(WorkflowService.find)["return"], page)

    async def show(self, reference: str) -> Workflow:
        response = await self._connection.ask("GET", f"/workflows/{quote(reference, safe='')}/graph")
        return decode_workflow(response.content)

    async def tag(
        self, name: str, tag: str, version: int | Mapping[int, int], *, weight: int | None = None, **more: Any
    ) -> Tagged:
        target: dict[str, Any] = {"version": version}
        if isinstance(version, Mapping):
            target = {"weights": {str(each): share for each, share in version.items()}}
        body = given_only({"name": name, "tag": tag, **target, "weight": weight, **more})
        return cast(Tagged, received(Tagged, await self._ask(Route("PUT", "/workflows/{name}/tags/{tag}"), body)))

    async def versions(self, name: str) -> list[Version]:
        found = await self._all(f"/workflows/{quote(name, safe='')}/versions")
        return cast(list[Version], received(list[Version], found))

    async def tag_history(self, name: str, tag: str | None = None) -> list[TagMoved]:
        moves = await self._all(
            f"/workflows/{quote(name, safe='')}/tag-history", **({} if tag is None else {"tag": tag})
        )
        return cast(list[TagMoved], received(list[TagMoved], moves))

    async def diff(self, left: str, right: str) -> Diff:
        route = Route("GET", "/workflows/{left}/diff")
        return cast(Diff, received(Diff, await self._ask(route, {"left": left, "to": right})))


class RemoteBlobs(RemoteService):
    SERVICE = BlobService
    ROUTES: ClassVar[Mapping[str, Route]] = {
        "show": Route("GET", "/blobs/{digest}/info"),
        "find": Route("GET", "/blobs"),
    }

    async def put(
        self,
        data: bytes | Path | AsyncIterable[bytes],
        *,
        media_type: str = "application/octet-stream",
        name: str = "",
        keep: bool = False,
        actor: str = "",
    ) -> dict[str, Any]:
        # The server knows the actor from the credential.
        if isinstance(data, Path):
            name, data = name or data.name, await asyncio.to_thread(_read, data)
        asked: dict[str, Any] = {
            "query": {"name": name, "keep": str(keep).lower()},
            "headers": {"Content-Type": media_type},
        }
        repeats = isinstance(data, bytes)
        response = await self._connection.ask("POST", "/blobs", content=data, repeats=repeats, timeout=LONG_S, **asked)
        described: dict[str, Any] = msgspec.json.decode(response.content)
        return described

    async def save(self, digest: str, file: IO[bytes]) -> int:
        info, written, attempt, seen = await self.show(digest), 0, 0, hashlib.sha256()
        while written < info.size:
            part = {"Range": f"bytes={written}-"}
            try:
                async with self._connection.stream(f"/blobs/{quote(digest, safe='')}", headers=part) as response:
                    if response.status_code >= 400:
                        await response.aread()
                        self._connection.raise_problem(response)
                    async for chunk in response.aiter_bytes(CHUNK):
                        file.write(chunk)
                        seen.update(chunk)
                        written, attempt = written + len(chunk), 0
            except CutOff as error:
                attempt += 1
                if attempt > TRIES:
                    raise ServerUnavailable(f"the server at {self._connection.url} does not answer: {error}") from error
                await asyncio.sleep(pause_s(attempt))
        # The server does not check what it sends from a later byte on.
        if f"sha256:{seen.hexdigest()}" != digest:
            raise damaged(digest)
        return written


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise rejected(UNREADABLE, f"{path}: {error.strerror}", hint="name a file that can be read") from None


class RemoteWorkers(RemoteService):
    SERVICE = WorkerService
    ROUTES: ClassVar[Mapping[str, Route]] = {"find": Route("GET", "/workers")}

    async def node_types(self) -> list[NodeTypeView]:
        page = await self._ask(Route("GET", "/node-types"), {})
        return [received(NodeTypeView, {**each, "node_type": each}) for each in page["items"]]


class RemoteQueues(RemoteService):
    SERVICE = QueueService
    ROUTES: ClassVar[Mapping[str, Route]] = {"find": Route("GET", "/queues")}


class RemoteUsage(RemoteService):
    SERVICE = UsageService
    ROUTES: ClassVar[Mapping[str, Route]] = {"find": Route("GET", "/usage")}


class RemoteTools(RemoteService):
    SERVICE = CompositeToolService
    ROUTES: ClassVar[Mapping[str, Route]] = {"find": Route("GET", "/tools"), "show": Route("GET", "/tools/{reference}")}

    async def rename(self, name: str, new_name: str, *, description: str | None = None, actor: str = "") -> Any:
        return await self._change(name, {"name": new_name, **given_only({"description": description})})

    async def pin(self, name: str, *, pinned: bool = True, actor: str = "") -> Any:
        return await self._change(name, {"pinned": pinned})

    async def retire(self, name: str, *, retired: bool = True, actor: str = "") -> Any:
        return await self._change(name, {"retired": retired})

    async def _change(self, tool: str, changes: dict[str, Any]) -> Any:
        changed = await self._ask(Route("PATCH", "/tools/{tool}"), {"tool": tool, **changes})
        return received(hints(CompositeToolService.rename)["return"], changed)


class RemoteConcurrency(RemoteService):
    SERVICE = ConcurrencyService
    ROUTES: ClassVar[Mapping[str, Route]] = {
        "find": Route("GET", "/concurrency"),
        "set": Route("PUT", "/concurrency/{name}"),
        "remove": Route("DELETE", "/concurrency/{name}", repeats=False),
    }


class RemoteSchedules(RemoteService):
    SERVICE = ScheduleService
    ROUTES: ClassVar[Mapping[str, Route]] = {
        "create": Route("POST", "/schedules", repeats=False),
        "update": Route("PATCH", "/schedules/{name}", nulls=True),
        "show": Route("GET", "/schedules/{name}"),
        "times": Route("GET", "/schedules/{name}/times", within="times_ms"),
        "pause": Route("POST", "/schedules/{name}/pause"),
        "resume": Route("POST", "/schedules/{name}/resume"),
        "delete": Route("DELETE", "/schedules/{name}", repeats=False),
    }

    async def find(self, terms: str | Sequence[str] = (), *, after: str | None = None, limit: int = 50) -> Any:
        wanted = terms.split() if isinstance(terms, str) else list(terms)
        page = await self._page(
            Route("GET", "/schedules"), given_only({"term": wanted, "after": after, "limit": limit})
        )
        return page_of(hints(ScheduleService.find)["return"], page)

    async def trigger(self, name: str, *, key: str | None = None, actor: str = "") -> str:
        headers = {"Idempotency-Key": key or uuid4().hex}
        return str((await self._ask(Route("POST", "/schedules/{name}/trigger"), {"name": name}, headers))["run_id"])


class RemoteKeys(RemoteService):
    SERVICE = KeyService
    ROUTES: ClassVar[Mapping[str, Route]] = {
        "find": Route("GET", "/keys"),
        "revoke": Route("DELETE", "/keys/{key_id}"),
    }

    async def create(
        self, label: str, *, roles: Sequence[str], expires_days: float | None = EXPIRES_DAYS, actor: str = ""
    ) -> CreatedKey:
        body = {"label": label, "roles": list(check_roles_of_key(roles)), "expires_days": expires_days}
        return cast(CreatedKey, received(CreatedKey, await self._ask(Route("POST", "/keys", repeats=False), body)))


class RemoteTenants(RemoteService):
    SERVICE = TenantService
    ROUTES: ClassVar[Mapping[str, Route]] = {
        "create": Route("POST", "/tenants", repeats=False),
        "find": Route("GET", "/tenants"),
        "disable": Route("POST", "/tenants/{name}/disable"),
        "enable": Route("POST", "/tenants/{name}/enable"),
    }


class RemoteAudit(RemoteService):
    SERVICE = AuditService
    ROUTES: ClassVar[Mapping[str, Route]] = {"find": Route("GET", "/audit")}

    async def verify(self, known_head: str = "") -> Any:
        checked = await self._ask(Route("GET", "/audit/verify"), {"head": known_head})
        return received(hints(AuditService.verify)["return"], checked)


class RemoteMaintenance(RemoteService):
    """Maintenance of a store, which a server does not offer."""

    SERVICE = MaintenanceService
