"""Requests of one tenant with ids, cursors, digests, keys and names of another, through every route.

Each request is made twice from the same random numbers: with what the other tenant has, and with ids of the same form
that nothing has. The two answers must be the same but for the ids, and none may hold anything of the other tenant that
the request itself did not say.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx2

from tests.fixtures.api_server import ApiServer
from tests.fixtures.api_world import World, absent, furnished, operations, stored, world_server

ENDLESS = ("/api/v1/stream",)
"""Streams that do not end by themselves; they have tests of their own."""
OPEN = ("/livez", "/readyz", "/metrics", "/api/v1/errors/{code}", "/api/v1/decisions/{token}")
"""A link is the credential of its tenant, so it is not asked with."""
VARYING_HEADERS = frozenset({"date"})
KINDS = {
    "run_id": "run",
    "other_id": "run",
    "approval_id": "approval",
    "dead_letter_id": "dead letter",
    "digest": "blob",
    "key_id": "key",
    "reference": "workflow",
    "workflow": "workflow",
    "to": "workflow",
    "parent": "run",
    "text": "run",
}
"""What a parameter or a field of a body is an id of, by its name."""
NAMES = {"node": "node", "tag": "tag"}
QUERIES = (
    *("parent:{run}", "root:{run}", "forked_from:{run}", "workflow:{workflow}", "live", "status:failed", ""),
    *("run:{run}", "status:open", "label.team={workflow}", "by:key:admin", "failure:{run}", "tag:stable"),
)


class Sent(NamedTuple):
    method: str
    path: str
    params: dict[str, Any]
    body: Any
    headers: dict[str, str]

    def text(self) -> str:
        return f"{self.path} {json.dumps(self.params)} {json.dumps(self.body)} {self.headers}"


class Requests:
    """Makes requests of operations; the same random numbers give the same request with other ids."""

    def __init__(self, own: World, ids: dict[str, list[str]], schemas: dict[str, Any], numbers: random.Random) -> None:
        self._own, self._ids, self._schemas, self._numbers = own, ids, schemas, numbers
        self.cursor = False

    def make(self, method: str, path: str, operation: dict[str, Any]) -> Sent:
        params: dict[str, Any] = {}
        headers = dict(self._own.headers)
        filled = path
        for parameter in operation.get("parameters", ()):
            name, place = parameter["name"], parameter["in"]
            if place == "path":
                filled = filled.replace(f"{{{name}}}", quote(str(self._in_path(name, method, path)), safe=":@"))
            elif place == "query" and (parameter.get("required") or self._numbers.random() < 0.4):
                params[name] = self._value(name, parameter["schema"])
            elif place == "header" and self._numbers.random() < 0.2:
                headers[name] = self._header(name)
        if path.endswith("/result"):
            params["timeout"] = 0
        if self._numbers.random() < 0.02:
            # The id of the other tenant's key with a secret of one's own.
            headers["Authorization"] = f"Bearer tm_{self._id('key')}_{self._own.key.split('_', 2)[2]}"
        return Sent(method, filled, params, self._body(operation), headers)

    def _id(self, kind: str) -> str:
        return self._numbers.choice(self._ids[kind])

    def _some(self, kind: str) -> str:
        """Mostly something of the other tenant, else what both call the same."""
        if kind in self._ids and (self._numbers.random() < 0.8 or kind not in self._own.names):
            return self._id(kind)
        return self._numbers.choice(self._own.names[kind])

    def _in_path(self, name: str, method: str, path: str) -> str:
        if name == "name":
            kinds = {"schedules": "schedule", "node-types": "node type", "workflows": "workflow"}
            kind = kinds.get(path.split("/")[3], "workflow")
            # One's own things are not removed, so that there is something to find.
            return self._id("workflow") if method == "DELETE" or kind not in self._own.names else self._some(kind)
        if name in NAMES:
            return self._numbers.choice(self._own.names[NAMES[name]])
        return self._id(KINDS[name]) if method == "DELETE" or path.endswith("/stream") else self._some(KINDS[name])

    def _header(self, name: str) -> str:
        return "the same order" if name.lower() == "idempotency-key" else self._numbers.choice(["0", "1", "bytes=0-3"])

    def _body(self, operation: dict[str, Any]) -> Any:
        content = operation.get("requestBody", {}).get("content", {})
        if "application/json" not in content:
            return None
        return self._value("", content["application/json"]["schema"], in_body=True)

    def _value(self, name: str, schema: dict[str, Any], *, in_body: bool = False) -> Any:
        numbers = self._numbers
        if "$ref" in schema:
            return self._value(name, self._schemas[schema["$ref"].rpartition("/")[2]], in_body=in_body)
        if name in KINDS and not (in_body and name == "to"):
            return self._some(KINDS[name])
        if name in NAMES:
            return numbers.choice(self._own.names[NAMES[name]])
        if name in ("query", "term"):
            query = numbers.choice(QUERIES).format(run=self._id("run"), workflow=self._id("workflow"))
            return query if name == "query" else [query]
        if name == "after":
            self.cursor = True
            return self._id("cursor")
        if name in ("base_digest", "head"):
            return self._id("blob")
        if "anyOf" in schema:
            return self._value("", numbers.choice(schema["anyOf"]), in_body=in_body)
        if "enum" in schema or "const" in schema:
            return numbers.choice(schema.get("enum") or [schema["const"]])
        kind = schema.get("type")
        if kind == "object":
            wanted = set(schema.get("required", ()))
            return {
                key: self._value(key, each, in_body=in_body)
                for key, each in schema.get("properties", {}).items()
                if key in wanted or numbers.random() < 0.4
            }
        if kind == "array":
            return [self._value("", schema.get("items", {}), in_body=in_body) for _ in range(numbers.choice([1, 1, 2]))]
        if kind in ("integer", "number"):
            return numbers.choice([schema.get("minimum", 1), 1, 2])
        if kind == "boolean":
            return numbers.random() < 0.5
        if kind == "null":
            return None
        # What a body says may be kept, and would be told again without being a leak.
        return numbers.choice(["x", "value"] if in_body else [self._id("run"), self._id("workflow"), "x"])


class TenantFuzz:
    """`wrong` tells what has leaked or differed, `asked` how often each operation was asked."""

    def __init__(self, server: ApiServer, own: World, other: World, seed: int) -> None:
        self._server, self._own, self._other, self._seed = server, own, other, seed
        self._absent = {kind: [absent(kind, each) for each in values] for kind, values in other.ids.items()}
        document = server.app.openapi()
        self._schemas = document["components"]["schemas"]
        # The stream of a tenant's own run goes on until the run ends.
        live = ("/api/v1/runs/{run_id}/stream",) if own.tenant == other.tenant else ()
        self._operations = [each for each in operations(document) if each[1] not in (*OPEN, *ENDLESS, *live)]
        self.wrong: list[str] = []
        self.asked: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.compared = 0

    async def run(self, requests: int) -> None:
        number = 0
        while self.asked.total() < requests:
            method, path, operation = self._operations[number % len(self._operations)]
            made = []
            for ids in (self._other.ids, self._absent):
                maker = Requests(self._own, ids, self._schemas, random.Random(f"{self._seed} {number}"))
                made.append((maker.make(method, path, operation), maker))
            (sent, maker), (like, _) = made
            answer = await self._answer(sent, path)
            self._check_leak(sent, answer)
            if sent.path != like.path and answer.is_success and method != "GET":
                self.wrong.append(f"{method} {sent.text()} has changed something: {answer.text[:500]}")
            if sent.text() != like.text() and not maker.cursor:
                self._compare(sent, answer, like, await self._answer(like, path))
            number += 1

    async def _answer(self, sent: Sent, template: str) -> httpx2.Response:
        options: dict[str, Any] = {} if sent.body is None else {"json": sent.body}
        url = f"{self._server.url}{sent.path}"
        answer = await self._server.http.request(sent.method, url, params=sent.params, headers=sent.headers, **options)
        self._server.http.cookies.clear()
        self.asked[f"{sent.method} {template}"] += 1
        self.statuses[answer.status_code] += 1
        if answer.status_code >= 500:
            self.wrong.append(f"{sent.method} {sent.text()}: {answer.status_code} {answer.text}")
        return answer

    def _check_leak(self, sent: Sent, answer: httpx2.Response) -> None:
        told = answer.content + b"\n".join(name + b": " + value for name, value in answer.headers.raw)
        for secret in self._other.unsaid(sent.text()):
            if secret.encode() in told:
                self.wrong.append(f"{sent.method} {sent.text()} tells {secret}: {answer.text[:500]}")

    def _compare(self, sent: Sent, answer: httpx2.Response, like: Sent, other: httpx2.Response) -> None:
        if sent.method != "GET" and sent.path == like.path and (answer.is_success or other.is_success):
            # Something of one's own was made or changed, so that the second answer may be another one.
            return
        self.compared += 1
        foreign, nothing = self._without_ids(answer), self._without_ids(other)
        if foreign != nothing:
            self.wrong.append(f"{sent.method} {sent.text()}:\n{foreign}\nis not like one that is absent:\n{nothing}")

    def _without_ids(self, answer: httpx2.Response) -> tuple[int, str, list[tuple[str, str]]]:
        headers = [(name, self._blank(value)) for name, value in answer.headers.items() if name not in VARYING_HEADERS]
        return answer.status_code, self._blank(answer.text), sorted(headers)

    def _blank(self, text: str) -> str:
        for kind, values in self._other.ids.items():
            for value, nothing in zip(values, self._absent[kind], strict=True):
                text = text.replace(value, "ID").replace(nothing, "ID")
        return text


class FuzzOutcome(NamedTuple):
    sent: int
    wrong: list[str]
    """Where something of another tenant was told or changed."""


async def fuzz_tenants(folder: Path, *, requests: int, seed: int) -> FuzzOutcome:
    """Each of two tenants asks half of the requests about the other, of which nothing shall be told or changed."""
    sent, wrong = 0, list[str]()
    worlds = await furnished(folder, "acme", "globex")
    pairs = [(worlds["acme"], worlds["globex"]), (worlds["globex"], worlds["acme"])]
    for own, other in pairs:
        async with world_server(folder) as server:
            before = stored(folder / "store.db", other.tenant)
            fuzz = TenantFuzz(server, own, other, seed)
            await fuzz.run(requests // len(pairs))
            sent, wrong = sent + sum(fuzz.statuses.values()), [*wrong, *fuzz.wrong]
            if stored(folder / "store.db", other.tenant) != before:
                wrong.append(f"what {other.tenant} has was changed")
        assert {*fuzz.statuses} >= {200, 201, 401, 404, 422}, fuzz.statuses
        assert len(fuzz.asked) > 80 and fuzz.compared > requests // 10, "too little was asked"
    return FuzzOutcome(sent, wrong)
