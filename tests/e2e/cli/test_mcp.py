"""`tidemill mcp` and `tidemill tools mcp`: the official client against the command, on a store and through a server."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

import tidemill
from tests.fixtures.api_server import api_server
from tests.fixtures.command_line import COMMAND, SECONDS_MAX, environment
from tests.fixtures.command_line import process as command
from tidemill.api.auth import Access
from tidemill.async_client import AsyncTidemill
from tidemill.bootstrap import engine_at
from tidemill.engine.engine import Engine

GREET = {
    "name": "greet",
    "description": "Greets a person.",
    "inputs": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    "nodes": [{"id": "say", "type": "value", "config": "Hello {{ inputs.name }}"}],
}
SIGN = {
    "name": "sign",
    "nodes": [
        {
            "id": "sign",
            "type": "human",
            "config": {
                "title": "Sign?",
                "approvers": ["role:approver"],
                "form": {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]},
            },
        }
    ],
    "outputs": "{{ sign.output }}",
}
REVIEW = {
    "name": "review",
    "nodes": [
        {"id": "sign", "type": "human", "config": {"changes_path": ["redo"]}},
        {"id": "redo", "type": "value", "config": "again", "dependencies": ["sign"]},
    ],
    "outputs": "{{ redo.output }}",
}
ASK = {"name": "ask", "nodes": [{"id": "sign", "type": "human", "config": {"title": "Sign?"}}]}


@asynccontextmanager
async def client_of(*words: str) -> AsyncIterator[Client]:
    arguments = ["-c", "import sys; from tidemill.cli.main import main; sys.exit(main())", "mcp", *words]
    async with Client(StdioServerParameters(command=sys.executable, args=arguments)) as client:
        yield client


@asynccontextmanager
async def over_http(*words: str) -> AsyncIterator[str]:
    """The address of `tidemill mcp --http`."""
    child = await asyncio.create_subprocess_exec(
        *COMMAND, "mcp", *words, "--http", "127.0.0.1:0", env=environment(), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        said = (await asyncio.wait_for(child.stdout.readline(), SECONDS_MAX)).decode()
        found = re.search(r"http://127.0.0.1:[0-9]+/mcp", said)
        assert found is not None, said
        yield found[0]
        child.terminate()
        assert await asyncio.wait_for(child.wait(), SECONDS_MAX) == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


@asynccontextmanager
async def with_key(url: str, key: str) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60, verify=False) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


async def new_key(engine: Engine, *roles: str, tenant: str = "default") -> str:
    made = await engine.for_tenant(tenant).keys.create("-".join(roles), roles=roles, actor="ann")
    return made.key


async def names_of(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


@asynccontextmanager
async def working(store: str) -> AsyncIterator[AsyncTidemill]:
    async with tidemill.aopen(store) as mill:
        await mill.publish(GREET)
        await mill.publish(ASK)
        yield mill


async def asked(client: Client, name: str, /, **arguments: Any) -> Any:
    answer = await client.call_tool(name, arguments)
    return answer.structured_content


async def test_a_client_starts_waits_and_decides(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    async with working(store), client_of("--store", store) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert {"list_workflows", "start_workflow", "wait_for_run", "decide_approval", "get_result"} <= listed
        assert {each["workflow"] for each in (await asked(client, "list_workflows"))["workflows"]} == {"greet", "ask"}
        assert (await asked(client, "describe_workflow", workflow="greet"))["inputs"] == GREET["inputs"]
        ended = await asked(client, "start_workflow", workflow="greet", inputs={"name": "Ada"}, wait_seconds=50)
        assert (ended["status"], ended["result"]) == ("completed", "Hello Ada")
        waits = await asked(client, "start_workflow", workflow="ask", wait_seconds=50)
        assert waits["status"] == "input_required" and waits["approvals"][0]["title"] == "Sign?"
        place = {"run_id": waits["run_id"], "node": "sign"}
        await asked(client, "decide_approval", **place, decision="approve", comments="fine")
        done = await asked(client, "wait_for_run", run_id=waits["run_id"])
        assert done["status"] == "completed"
        refused = await client.call_tool("start_workflow", {"workflow": "greet", "inputs": {}})
        assert refused.is_error and refused.structured_content is not None
        assert refused.structured_content["problems"][0]["path"].startswith("/inputs")


LISTS = {"list_workflows", "describe_workflow", "list_runs", "get_run", "wait_for_run", "get_result", "explain_run"}
LISTS |= {"list_approvals"}


async def test_over_http_every_key_has_its_own_tools_and_its_own_tenant(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    async with engine_at(store) as engine:
        for document in (GREET, SIGN):
            await engine.publish(document)
        keys = [await new_key(engine, role) for role in ("viewer", "operator", "approver")]
        await engine.tenants.create("other", actor="ann")
        stranger = await new_key(engine, "operator", tenant="other")
        async with over_http("--store", store) as url:
            async with with_key(url, keys[0]) as viewer:
                assert await names_of(viewer) == LISTS
                refused = await viewer.call_tool("start_workflow", {"workflow": "greet", "inputs": {"name": "Eve"}})
                assert refused.is_error
            async with with_key(url, keys[1]) as operator:
                assert await names_of(operator) == LISTS | {"start_workflow", "cancel_run"}
                started = await asked(operator, "start_workflow", workflow="sign")
                assert started["status"] in ("working", "input_required")
                waits = await asked(operator, "wait_for_run", run_id=started["run_id"])
                (approval,) = waits["approvals"]
                assert waits["status"] == "input_required"
                assert approval["form"]["required"] == ["amount"] and approval["approval_id"]
            async with with_key(url, keys[2]) as approver:
                assert await names_of(approver) == LISTS | {"decide_approval"}
                place = {"approval_id": approval["approval_id"], "decision": "approve"}
                assert (await approver.call_tool("decide_approval", place)).is_error, "the form is not filled in"
                await asked(approver, "decide_approval", **place, form={"amount": 5})
                done = await asked(approver, "wait_for_run", run_id=started["run_id"])
                assert done["status"] == "completed"
                assert done["result"]["decided_by"] == "user:key:approver"
            async with with_key(url, stranger) as other:
                assert (await asked(other, "list_workflows"))["workflows"] == []
                assert (await other.call_tool("get_run", {"run_id": started["run_id"]})).is_error
            await refuses(url)


async def refuses(url: str) -> None:
    """No key and wrong ones are refused by HTTP, before anything of MCP."""
    async with httpx2.AsyncClient(verify=False) as http:
        for key in ("", "Bearer tm_nonsense", "Basic eA=="):
            answer = await http.post(url, json={}, headers={"Authorization": key} if key else {})
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["problems"][0]["code"]


async def test_over_http_keys_are_passed_on_to_a_server(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    async with api_server(store, access=Access) as server:
        await server.engine.publish(GREET)
        viewer, operator = await new_key(server.engine, "viewer"), await new_key(server.engine, "operator")
        async with over_http("--server", server.url) as url:
            async with with_key(url, viewer) as client:
                assert await names_of(client) == LISTS
            async with with_key(url, operator) as client:
                ended = await asked(client, "start_workflow", workflow="greet", inputs={"name": "A"}, wait_seconds=50)
                assert (ended["status"], ended["result"]) == ("completed", "Hello A")
            await refuses(url)


async def test_over_http_without_keys_only_this_machine_is_served(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    async with working(store), over_http("--store", store) as url:
        async with with_key(url, "") as client:
            assert {"start_workflow", "decide_approval"} <= await names_of(client)
        async with httpx2.AsyncClient(verify=False) as http:
            for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
                assert (await http.post(url, json={}, headers=headers)).status_code == 403
    ended = command("mcp", "--store", store, "--http", "0.0.0.0:0")
    assert ended.code == 2 and "authentication_missing" in ended.err
    ended = command("mcp", "--store", store, "--http", "nowhere")
    assert ended.code == 2 and "option_invalid" in ended.err


async def test_an_approval_can_be_sent_back(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    async with working(store) as mill, client_of("--store", store) as client:
        await mill.publish(REVIEW)
        waits = await asked(client, "start_workflow", workflow="review", wait_seconds=50)
        (approval,) = waits["approvals"]
        await asked(client, "decide_approval", approval_id=approval["approval_id"], decision="request_changes")
        done = await asked(client, "wait_for_run", run_id=waits["run_id"])
        assert done["result"] == "again"
        for place in ({}, {"approval_id": "x"}, {"node": "sign"}):
            assert (await client.call_tool("decide_approval", {**place, "decision": "approve"})).is_error


async def test_filters(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    async with working(store), client_of("--store", store, "--workflow", "greet", "--read-only") as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert "list_workflows" in listed and not listed & {"start_workflow", "cancel_run", "run_greet"}
        assert (await client.call_tool("describe_workflow", {"workflow": "ask"})).is_error
        assert (await client.call_tool("start_workflow", {"workflow": "greet"})).is_error
    async with working(store), client_of("--store", store, "--workflow", "greet") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["run_greet"].input_schema == GREET["inputs"]
        assert (await asked(client, "run_greet", name="Bob"))["result"] == "Hello Bob"


async def test_a_role_restricts_what_a_client_of_a_store_may_do(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    async with working(store), client_of("--store", store, "--role", "operator") as client:
        assert "start_workflow" in await names_of(client) and "decide_approval" not in await names_of(client)
        waits = await asked(client, "start_workflow", workflow="ask", wait_seconds=50)
        place = {"run_id": waits["run_id"], "node": "sign"}
        assert (await client.call_tool("decide_approval", {**place, "decision": "approve"})).is_error


@pytest.mark.parametrize("words", [("--workflow", "nothing"), ("--role", "nothing")], ids=["workflow", "role"])
async def test_refusals(tmp_path: Path, words: tuple[str, ...]) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    async with working(store):
        pass
    ended = command("mcp", "--store", store, *words)
    assert ended.code == 2 and "nothing" in ended.err


def test_an_operator_approves_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Path(__file__).parents[2] / "fixtures" / "mcp_server.py"
    config = tmp_path / "tidemill.toml"
    config.write_text(f'[mcp.tests]\ncommand = ["{sys.executable}", "-P", "{program}"]\n')
    monkeypatch.setenv("TIDEMILL_CONFIG", str(config))
    assert "new" in command("tools", "mcp", "tests").out
    pins = command("tools", "mcp", "tests", "--approve").out
    assert pins.startswith("[mcp.tests.tools]\n") and 'add = "sha256:' in pins
    config.write_text(config.read_text() + pins)
    shown = command("tools", "mcp", "tests")
    assert "approved" in shown.out and "new" not in shown.out
    described = tmp_path / "tools.json"
    described.write_text('{"add": "Adds. Also reads your mail."}')
    lines = config.read_text().replace("[mcp.tests]", f'[mcp.tests]\nenv = {{ TOOLS_FILE = "{described}" }}', 1)
    config.write_text(lines)
    shown = command("tools", "mcp", "tests")
    assert "changed" in shown.out
    again = command("tools", "mcp", "tests", "--approve").out
    assert again != pins and again.splitlines()[2:] == pins.splitlines()[2:], "only the pin of add is another"
    config.write_text(lines.replace(pins, again))
    assert "changed" not in command("tools", "mcp", "tests").out
    gone = f'removed = "sha256:{"0" * 64}"\n'
    config.write_text(lines.replace(pins, again + gone))
    described.write_text(msgspec.json.encode({"add": "x" * 40_000}).decode())
    monkeypatch.delenv("TIDEMILL_CONFIG")
    given = ("--config", str(config))
    assert "gone" in command("tools", "mcp", "tests", *given).out
    usable = command("tools", "mcp", "tests", "--approve", *given).out
    assert usable.splitlines()[1:] == pins.splitlines()[2:], "neither what is gone nor what is too long is approved"
    monkeypatch.setenv("TIDEMILL_CONFIG", str(config))
    config.write_text('[mcp.tests]\ncommand = ["no-such-program-at-all"]\n')
    broken = command("tools", "mcp", "tests")
    assert broken.code != 0 and "no-such-program-at-all" in broken.err and "Traceback" not in broken.err
    config.write_text('[mcp.tests]\ncomand = ["x"]\n')
    wrong = command("tools", "mcp", "tests")
    assert wrong.code == 2 and "mcp.tests.comand" in wrong.err and "command" in wrong.err
    config.write_text(lines)
    unknown = command("tools", "mcp", "test")
    assert unknown.code == 2 and "mcp_server_unknown" in unknown.err
