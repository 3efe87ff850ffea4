"""The services of an engine as requests to a server.

The arguments of a method keep their names, in the path, the query or the body of its request, and the answer is decoded
into the type that the method declares. Who acts is said by the credential, so `actor`, `roles`, `author` and
`submitted_by` are not sent. A request that changes something carries an id and may be repeated.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, cast
from urllib.parse import quote
from uuid import uuid4

import httpx2
import msgspec

from tidemill.engine.catalog import Diff, Published
from tidemill.engine.index_rows import ApprovalRow, DeadLetterRow, RunRow
from tidemill.engine.run_query import Moment
from tidemill.engine.services.approvals import ApprovalService
from tidemill.engine.services.blobs import BlobService
from tidemill.engine.services.bulk import BulkService
from tidemill.engine.services.concurrency import ConcurrencyService
from tidemill.engine.services.dead_letters import DeadLetterService
from tidemill.engine.services.inspection import InspectionService, LogLine
from tidemill.engine.services.patches import PatchService
from tidemill.engine.services.runs import UNSET, RunPage, RunService
from tidemill.engine.services.workers import WorkerService
from tidemill.engine.services.workflows import Document, WorkflowService
from tidemill.engine.versions import TagMoved, Version
from tidemill.engine.views import ApprovalView, RunView, activation_id
from tidemill.errors import Rejected, rejected
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.model import Workflow, decode_workflow
from tidemill.remote.connection import (
    FIRST_PAUSE_S,
    TIMEOUT_S,
    Connection,
    frames,
    hints,
    raise_problem,
    received,
    sent,
)

PAGE = 500
BATCH = 1_000
"""Runs that one request starts."""
WAIT_S = 30.0
"""How long one request waits for the end of a run."""
LOOK_S = 1.0
LIVE_KINDS = frozenset({"NodeStreamed", "NodeProgressed"})
FROM_CREDENTIAL = frozenset({"actor", "roles", "submitted_by", "author"})
"""Arguments that the server takes from the credential."""


class Route(NamedTuple):
    method: str
    path: str
    """With the names of arguments in braces; the others go into the query of a GET, else into the body."""
    within: str = ""
    """The key of the answer that holds the result; empty for the whole answer."""


class RemoteService:
    """The methods of a service as requests, by the table `ROUTES`; what differs is a method of a subclass."""

    SERVICE: ClassVar[type]
    ROUTES: ClassVar[Mapping[str, Route]] = {}

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.SERVICE, name)
        route = self.ROUTES.get(name)
        if route is None:
            return partial(_refuse, name)
        return lambda *args, **kwargs: self._call(method, route, args, kwargs)

    async def _call(
        self, method: Callable[..., Any], route: Route, args: Sequence[Any], given: Mapping[str, Any]
    ) -> Any:
        signature = inspect.signature(method)
        arguments = {
            name: sent(value)
            for name, value in signature.bind(self, *args, **given).arguments.items()
            if name != "self" and name not in FROM_CREDENTIAL and value is not None
        }
        if route.method != "GET" and "command_id" in signature.parameters:
            arguments.setdefault("command_id", uuid4().hex)
        answer = await self._ask(route, arguments)
        kind = hints(method).get("return")
        if kind is type(None):
            return None
        if isinstance(answer, dict) and "items" in answer and "next" in answer:
            return _page(kind, answer)
        return received(kind, answer[route.within] if route.within else answer)

    async def _ask(self, route: Route, arguments: dict[str, Any], headers: Mapping[str, str] = {}) -> Any:
        """The decoded answer of a request with these arguments in its path, and in its query or body."""
        names = [name for name in arguments if f"{{{name}}}" in route.path]
        path = route.path.format(**{name: quote(str(arguments.pop(name)), safe="") for name in names})
        asked = {"query": arguments} if route.method in ("GET", "DELETE") else {"body": arguments}
        response = await self._connection.ask(route.method, path, headers=headers, **asked)
        return msgspec.json.decode(response.content or b"null")

    async def _all(self, path: str) -> list[Any]:
        """The items of all pages."""
        items: list[Any] = []
        after: str | None = None
        while True:
            query = {"limit": PAGE} if after is None else {"limit": PAGE, "after": after}
            page = msgspec.json.decode((await self._connection.ask("GET", path, query=query)).content)
            items += page["items"]
            after = page["next"]
            if after is None:
                return items


async def _refuse(name: str, *args: Any, **kwargs: Any) -> NoReturn:
    hint = "do it beside the store: --store URL, or tidemill.open(URL)"
    raise rejected("not_remote", f"a server does not offer `{name}`", hint=hint)


def _page(kind: Any, answer: Mapping[str, Any]) -> Any:
    """A page as the method answers it: its rows and the cursor of the next one; or its rows alone."""
    if isinstance(kind, type) and hasattr(kind, "_fields"):
        return kind(received(hints(kind)["rows"], answer["items"]), answer["next"])
    if typing.get_origin(kind) is tuple:
        return received(typing.get_args(kind)[0], answer["items"]), answer["next"]
    return received(kind, answer["items"])


def query_text(
    query: str | Iterable[str] = "",
    *,
    terms: Iterable[str] = (),
    status: str | None = None,
    workflow: str | None = None,
    label: str | Mapping[str, str] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
) -> str:
    """The arguments of `find` as one text of the query language."""
    conditions = [query] if isinstance(query, str) else [_quoted(each) for each in query]
    conditions += [_quoted(each) for each in terms]
    conditions += [_quoted(f"{name}:{value}") for name, value in (("status", status), ("workflow", workflow)) if value]
    labels = [label] if isinstance(label, str) else [f"{key}={value}" for key, value in (label or {}).items()]
    conditions += [_quoted(f"label.{each}") for each in labels]
    conditions += [f"started>={_moment(since)}"] if since is not None else []
    conditions += [f"started<{_moment(until)}"] if until is not None else []
    return " ".join(filter(None, conditions))


def _quoted(condition: str) -> str:
    return f'"{condition}"' if any(character.isspace() for character in condition) else condition


def _moment(moment: Moment) -> str:
    if isinstance(moment, timedelta):
        return f"-{abs(moment.total_seconds()):g}s"
    if isinstance(moment, datetime):
        return moment.isoformat()
    return f"-{moment}" if moment[:1].isdecimal() and moment[-1:].isalpha() and "T" not in moment else moment


class RemoteRuns(RemoteService):
    SERVICE = RunService
    ROUTES: ClassVar[Mapping[str, Route]] = {
        **{
            name: Route("POST", f"/runs/{{run_id}}/{name}")
            for name in ("cancel", "pause", "resume", "retry", "rewind", "rollback", "relabel")
        },
        "signal": Route("POST", "/runs/{run_id}/signal", within="signal_id"),
        "resolve": Route("GET", "/runs/resolve/{text}", within="run_id"),
    }

    async def start(
        self,
        workflow: str,
        inputs: Any = None,
        *,
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
        submitted_by: str = "",
        correlation_id: str = "",
        deadline_seconds: float | None = None,
    ) -> str:
        body = {
            "workflow": workflow,
            "inputs": inputs,
            "labels": dict(labels or {}),
            "correlation_id": correlation_id,
            "deadline_seconds": deadline_seconds,
        }
        headers = {"Idempotency-Key": key or uuid4().hex}
        started = await self._ask(Route("POST", "/runs"), body, headers)
        return str(started["run_id"])

    async def start_many(
        self,
        workflow: str,
        inputs: Iterable[Any],
        *,
        keys: Iterable[str] | None = None,
        labels: Mapping[str, str] | None = None,
        submitted_by: str = "",
        correlation_id: str = "",
        deadline_seconds: float | None = None,
    ) -> list[str]:
        given = list(inputs)
        named = [uuid4().hex for _ in given] if keys is None else list(keys)
        if len(named) != len(given):
            message = f"{len(named)} keys for {len(given)} inputs"
            raise rejected("keys_mismatch", message, path="/keys", hint="give one key of its own for each input")
        shared = {
            "workflow": workflow,
            "labels": dict(labels or {}),
            "correlation_id": correlation_id,
            "deadline_seconds": deadline_seconds,
        }
        run_ids: list[str] = []
        for at in range(0, len(given), BATCH):
            pairs = zip(given[at : at + BATCH], named[at : at + BATCH], strict=True)
            body = {**shared, "runs": [{"inputs": value, "key": key} for value, key in pairs]}
            answer = await self._ask(Route("POST", "/runs/batch"), body)
            run_ids += [each["run_id"] for each in answer["runs"]]
        return run_ids

    async def result(
        self,
        run_id: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as callers guess it
        timeout_s: float | None = None,
    ) -> RunView:
        seconds = timeout_s if timeout is None else timeout
        until = None if seconds is None else asyncio.get_running_loop().time() + seconds
        path = f"/runs/{quote(run_id, safe='')}/result"
        while True:
            left = WAIT_S if until is None else min(WAIT_S, max(0.0, until - asyncio.get_running_loop().time()))
            response = await self._connection.ask("GET", path, query={"timeout": left}, timeout=left + TIMEOUT_S)
            if response.status_code != 202:
                return RunView.from_dict(msgspec.json.decode(response.content))
            if until is not None and asyncio.get_running_loop().time() >= until:
                again = f"it continues, and result({run_id!r}) waits again"
                raise TimeoutError(f"run {run_id} has not ended after {seconds:g} s; {again}")

    async def follow(
        self, run_id: str, after: int = 0, *, live: bool = False, awaited: bool = False
    ) -> AsyncIterator[dict[str, Any]]:
        last, path = after, f"/runs/{quote(run_id, safe='')}/stream"
        while True:
            try:
                async with self._connection.stream(path, {"Last-Event-ID": str(last)}) as response:
                    if response.status_code >= 400:
                        await response.aread()
                        raise_problem(response)
                    async for kind, seq, data in frames(response):
                        if kind == "end":
                            return
                        if seq is not None:
                            last = seq
                            yield data
                        elif live and kind in LIVE_KINDS:
                            yield data
            except httpx2.HTTPError:
                pass  # The next request continues behind the last event.
            except Rejected as refusal:
                if not awaited or refusal.code != "run_unknown":
                    raise
            await asyncio.sleep(FIRST_PAUSE_S)

    async def find(
        self, query: str | Iterable[str] = "", *, after: str | None = None, limit: int = 50, **more: Any
    ) -> RunPage:
        asked = {"query": query_text(query, **more), "after": after, "limit": limit}
        page = await self._ask(Route("GET", "/runs"), {name: value for name, value in asked.items() if value})
        return RunPage(received(list[RunRow], page["items"]), page["next"])

    async def iterate(self, query: str | Iterable[str] = "", **more: Any) -> AsyncIterator[RunRow]:
        after: str | None = None
        while True:
            rows, after = await self.find(query, after=after, limit=PAGE, **more)
            for row in rows:
                yield row
            if after is None:
                return

    async def count(self, query: str | Iterable[str] = "", *, at_most: int = 10_000, **more: Any) -> int:
        asked = {"query": query_text(query, **more), "at_most": at_most}
        return int((await self._ask(Route("GET", "/runs/count"), asked))["count"])

    async def override(self, run_id: str, node: str, *, value: Any = UNSET, **more: Any) -> None:
        body = {name: each for name, each in more.items() if each is not None and name not in FROM_CREDENTIAL}
        body = {"run_id": run_id, "node": node, **({} if value is UNSET else {"value": value}), **body}
        await self._ask(Route("POST", "/runs/{run_id}/override"), {"command_id": uuid4().hex, **body})


class RemoteBulk(RemoteService):
    SERVICE = BulkService
    ROUTES: ClassVar[Mapping[str, Route]] = {"bulk": Route("POST", "/runs/bulk")}


class RemoteInspection(RemoteService):
    SERVICE = InspectionService
    ROUTES: ClassVar[Mapping[str, Route]] = {
        "show": Route("GET", "/runs/{run_id}"),
        "path": Route("GET", "/runs/{run_id}/path"),
        "tokens": Route("GET", "/runs/{run_id}/tokens"),
        "why": Route("GET", "/runs/{run_id}/why"),
        "why_node": Route("GET", "/runs/{run_id}/why/{node}"),
        "compare": Route("GET", "/runs/{run_id}/compare/{other_id}"),
        "logs": Route("GET", "/runs/{run_id}/logs"),
    }

    async def events(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        path = f"/runs/{quote(run_id, safe='')}/events"
        while limit is None or len(events) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(events))
            page = msgspec.json.decode(
                (await self._connection.ask("GET", path, query={"after": str(after), "limit": size})).content
            )
            events += page["items"]
            if page["next"] is None:
                break
            after = int(page["next"])
        return events

    async def follow_logs(self, run_id: str, node: str | None = None, **more: Any) -> AsyncIterator[LogLine]:
        shown = 0
        while True:
            over = (await self.show(run_id)).ended_ms is not None
            lines = await self.logs(run_id, node, **more)
            for line in lines[shown:]:
                yield line
            shown = len(lines)
            if over:
                return
            await asyncio.sleep(LOOK_S)


class RemotePatches(RemoteService):
    SERVICE = PatchService
    ROUTES: ClassVar[Mapping[str, Route]] = {
        "document": Route("GET", "/runs/{run_id}/document"),
        "patch": Route("POST", "/runs/{run_id}/patch"),
    }

    async def fork(self, run_id: str, *, key: str | None = None, **more: Any) -> str:
        body = {name: sent(value) for name, value in more.items() if value is not None and name not in FROM_CREDENTIAL}
        headers = {"Idempotency-Key": key or uuid4().hex}
        return str(
            (await self._ask(Route("POST", "/runs/{run_id}/fork"), {"run_id": run_id, **body}, headers))["run_id"]
        )


class RemoteApprovals(RemoteService):
    SERVICE = ApprovalService

    async def find(
        self, terms: str | Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> tuple[list[ApprovalRow], str | None]:
        query = terms if isinstance(terms, str) else " ".join(terms)
        asked = {"query": query, "after": after, "limit": limit}
        page = await self._ask(Route("GET", "/approvals"), {name: value for name, value in asked.items() if value})
        return received(list[ApprovalRow], page["items"]), page["next"]

    async def show(self, run_id: str, node: str, *, visit: int | None = None, index: int | None = None) -> ApprovalView:
        approval_id = await self._id(run_id, node, visit, index)
        return ApprovalView.from_dict(await self._ask(Route("GET", "/approvals/{id}"), {"id": approval_id}))

    async def decide(self, run_id: str, node: str, verb: str, **more: Any) -> ApprovalView:
        place = {name: more.pop(name, None) for name in ("visit", "index")}
        approval_id = await self._id(run_id, node, **place)
        body = {name: value for name, value in more.items() if value is not None and name not in FROM_CREDENTIAL}
        body = {"command_id": uuid4().hex, **body, "id": approval_id, "decision": verb}
        await self._ask(Route("POST", "/approvals/{id}/decide"), body)
        return ApprovalView.from_dict(await self._ask(Route("GET", "/approvals/{id}"), {"id": approval_id}))

    async def delegate(self, run_id: str, node: str, to: str, **more: Any) -> ApprovalView:
        place = {name: more.pop(name, None) for name in ("visit", "index")}
        body = {name: value for name, value in more.items() if value is not None and name not in FROM_CREDENTIAL}
        body = {"command_id": uuid4().hex, **body, "id": await self._id(run_id, node, **place), "to": to}
        return ApprovalView.from_dict(await self._ask(Route("POST", "/approvals/{id}/delegate"), body))

    async def _id(self, run_id: str, node: str, visit: int | None, index: int | None) -> str:
        """The id of an approval; without a visit of the latest one."""
        if visit is None:
            rows, _ = await self.find(f"run:{run_id}", limit=PAGE)
            wanted = NOT_AN_ITEM if index is None else index
            visits = [row.visit for row in rows if row.node == node and row.index == wanted]
            if not visits:
                hint = "see `tidemill approvals list`"
                raise rejected("approval_unknown", f"node {node} waits for no decision", hint=hint)
            visit = max(visits)
        return activation_id(run_id, node, visit, NOT_AN_ITEM if index is None else index)


class RemoteDeadLetters(RemoteService):
    SERVICE = DeadLetterService
    ROUTES: ClassVar[Mapping[str, Route]] = {"reprocess": Route("POST", "/dead-letters/reprocess")}

    async def find(
        self, terms: str | Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> tuple[list[DeadLetterRow], str | None]:
        query = terms if isinstance(terms, str) else " ".join(terms)
        asked = {"query": query, "after": after, "limit": limit}
        page = await self._ask(Route("GET", "/dead-letters"), {name: value for name, value in asked.items() if value})
        return received(list[DeadLetterRow], page["items"]), page["next"]

    async def show(self, run_id: str, node: str, *, visit: int | None = None, index: int | None = None) -> Any:
        letter_id = await self._id(run_id, node, visit, index)
        return await self._ask(Route("GET", "/dead-letters/{id}"), {"id": letter_id})

    async def discard(self, run_id: str, node: str, **more: Any) -> None:
        place = {name: more.pop(name, None) for name in ("visit", "index")}
        body = {name: value for name, value in more.items() if value is not None and name not in FROM_CREDENTIAL}
        body = {"command_id": uuid4().hex, **body, "id": await self._id(run_id, node, **place)}
        await self._ask(Route("POST", "/dead-letters/{id}/discard"), body)

    async def _id(self, run_id: str, node: str, visit: int | None, index: int | None) -> str:
        wanted = NOT_AN_ITEM if index is None else index
        if visit is None:
            rows, _ = await self.find(f"run:{run_id}", limit=PAGE)
            visits = [row.visit for row in rows if row.node == node and row.index == wanted]
            if not visits:
                hint = "see `tidemill dlq list`"
                raise rejected("dead_letter_unknown", f"node {node} has no dead letter", hint=hint)
            visit = max(visits)
        return activation_id(run_id, node, visit, wanted)


class RemoteWorkflows(RemoteService):
    SERVICE = WorkflowService
    ROUTES: ClassVar[Mapping[str, Route]] = {
        "find": Route("GET", "/workflows"),
        "document": Route("GET", "/workflows/{reference}/document"),
        "patch": Route("POST", "/workflows/{reference}/patch"),
        "tags": Route("GET", "/workflows/{name}/tags"),
        "untag": Route("DELETE", "/workflows/{name}/tags/{tag}"),
        "tag": Route("PUT", "/workflows/{name}/tags/{tag}"),
        "rollback_tag": Route("POST", "/workflows/{name}/tags/{tag}/rollback"),
        "delete": Route("DELETE", "/workflows/{name}"),
    }

    async def publish(self, document: Document, *, author: str = "", message: str = "") -> Published:
        if isinstance(document, Path):
            document = await asyncio.to_thread(document.read_text)
        given = document.decode() if isinstance(document, bytes) else document
        body = {"document": given, "message": message}
        return cast(Published, received(Published, await self._ask(Route("POST", "/workflows"), body)))

    async def show(self, reference: str) -> Workflow:
        response = await self._connection.ask("GET", f"/workflows/{quote(reference, safe='')}/graph")
        return decode_workflow(response.content)

    async def versions(self, name: str) -> list[Version]:
        return cast(
            list[Version], received(list[Version], await self._all(f"/workflows/{quote(name, safe='')}/versions"))
        )

    async def tag_history(self, name: str, tag: str | None = None) -> list[TagMoved]:
        moves = await self._all(f"/workflows/{quote(name, safe='')}/tag-history")
        return [move for move in received(list[TagMoved], moves) if tag is None or move.tag == tag]

    async def diff(self, left: str, right: str) -> Diff:
        route = Route("GET", "/workflows/{left}/diff")
        return cast(Diff, received(Diff, await self._ask(route, {"left": left, "to": right})))


class RemoteBlobs(RemoteService):
    SERVICE = BlobService
    ROUTES: ClassVar[Mapping[str, Route]] = {
        "show": Route("GET", "/blobs/{digest}/info"),
        "find": Route("GET", "/blobs"),
    }


class RemoteWorkers(RemoteService):
    SERVICE = WorkerService
    ROUTES: ClassVar[Mapping[str, Route]] = {
        "find": Route("GET", "/workers"),
        "node_types": Route("GET", "/node-types"),
    }


class RemoteConcurrency(RemoteService):
    SERVICE = ConcurrencyService
    ROUTES: ClassVar[Mapping[str, Route]] = {
        "find": Route("GET", "/concurrency"),
        "set": Route("PUT", "/concurrency/{name}"),
        "remove": Route("DELETE", "/concurrency/{name}"),
    }
