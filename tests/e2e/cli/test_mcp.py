"""`tidemill mcp` and `tidemill tools mcp`: the official client against the command, on a store and through a server."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

import tidemill
from tests.fixtures.command_line import process as command
from tidemill.async_client import AsyncTidemill

GREET = {
    "name": "greet",
    "description": "Greets a person.",
    "inputs": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    "nodes": [{"id": "say", "type": "value", "config": "Hello {{ inputs.name }}"}],
}
ASK = {"name": "ask", "nodes": [{"id": "sign", "type": "human", "config": {"title": "Sign?"}}]}


@asynccontextmanager
async def client_of(*words: str) -> AsyncIterator[Client]:
    arguments = ["-c", "import sys; from tidemill.cli.main import main; sys.exit(main())", "mcp", *words]
    async with Client(StdioServerParameters(command=sys.executable, args=arguments)) as client:
        yield client


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


@pytest.mark.parametrize("words", [("--workflow", "nothing")], ids=["no such workflow"])
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
    unknown = command("tools", "mcp", "test")
    assert unknown.code == 2 and "mcp_server_unknown" in unknown.err
