"""`delegate_to_agent`: child runs, agents of other systems, the code interpreter, the researcher."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.fixtures.agent_tools import NOW_MS, code, content, workbench
from tests.fixtures.servers.web import Web, in_turn, json_reply, raw, redirect, web
from tidemill.agents.delegation import researcher_document
from tidemill.agents.interpreter import CodeRequest, execute
from tidemill.agents.tools import Pending, ToolResult
from tidemill.security.signing import verify

KEY = "whsec_" + base64.b64encode(b"k" * 32).decode()


def agents(**named: Any) -> dict[str, Any]:
    return {"name": "delegate_to_agent", "agents": named}


async def test_a_workflow_is_a_child_run_with_a_slice_of_the_budget() -> None:
    async with workbench(agents(clerk={"workflow": "other", "budget": {"calls": 3}})) as bench:
        asked = {"agent": "clerk", "task": "count", "inputs": {"n": 3}}
        pending = await bench.call("delegate_to_agent", asked)
        assert isinstance(pending, Pending)
        child = pending.wait.child
        assert child is not None and (child.workflow, child.inputs, child.failure) == ("other@1", {"n": 3}, "return")
        assert child.budget == {"calls": 3}
        done = content(await bench.resume("delegate_to_agent", asked, pending, {"a": 3}))
        assert done == {"result": {"a": 3}, "workflow": "other@1"}
        failed = {"$child_failed": {"child": "r.x", "status": "FAILED", "code": "boom", "message": "no", "hint": ""}}
        ended = await bench.resume("delegate_to_agent", asked, pending, failed)
        assert code(ended) == "delegation_failed"
        other = await bench.call("delegate_to_agent", asked)
        assert isinstance(other, Pending) and other.wait.child is not None
        assert other.wait.child.key != child.key


async def test_only_named_agents_get_tasks() -> None:
    async with workbench(agents(clerk={"workflow": "other"})) as bench:
        for wrong in ({"agent": "bench"}, {"agent": "clerk", "workflow": "bench"}, {"agent": "clerk", "budget": {}}):
            assert code(await bench.call("delegate_to_agent", wrong, task="x")) == "arguments_invalid"


SPECIALIST = {
    "name": "specialist",
    "nodes": [
        {
            "id": "a",
            "type": "agent",
            "config": {
                "provider": "scripted",
                "prompt": "work",
                "answers": ["done"],
                "tools": [
                    "execute_pipeline",
                    {"name": "delegate_to_agent", "agents": {"x": {"workflow": "other", "tools": ["ask_human"]}}},
                ],
            },
        }
    ],
}


@pytest.mark.parametrize(
    ("tools", "beyond"),
    [
        ([], "ask_human, execute_pipeline"),
        (["execute_pipeline"], "ask_human"),
        (["execute_pipeline", "ask_human"], ""),
    ],
)
async def test_agents_of_a_child_have_no_tools_beyond_those_of_the_parent_and_its_grant(
    tools: list[str], beyond: str
) -> None:
    async with workbench(agents(helper={"workflow": "specialist", "tools": tools})) as bench:
        await bench.engine.publish(SPECIALIST)
        ended = await bench.call("delegate_to_agent", {"agent": "helper", "task": "count"})
        if beyond:
            assert code(ended) == "tool_not_granted" and isinstance(ended, ToolResult)
            assert beyond in ended.content["error"]["message"]
        else:
            assert isinstance(ended, Pending)


async def test_own_tools_of_the_parent_need_no_grant() -> None:
    own = ("execute_pipeline", {"name": "ask_human", "approvers": ["user:ada"]})
    async with workbench(*own, agents(helper={"workflow": "specialist"})) as bench:
        await bench.engine.publish(SPECIALIST)
        ended = await bench.call("delegate_to_agent", {"agent": "helper", "task": "count"})
        assert isinstance(ended, Pending)


@pytest.fixture
async def served() -> AsyncIterator[Web]:
    async with web() as server:
        yield server


async def test_another_system_answers_at_once(served: Web) -> None:
    served.routes["/agent"] = json_reply({"result": 42})
    async with workbench(agents(far={"url": served.url("/agent"), "keys": [KEY]})) as bench:
        asked = {"agent": "far", "task": "count", "inputs": {"n": 1}}
        assert content(await bench.call("delegate_to_agent", asked)) == {"result": 42}
        (sent,) = served.asked
        message_id = verify([KEY], sent.headers, sent.body, NOW_MS)
        body = msgspec.json.decode(sent.body)
        assert (body["task"], body["inputs"], body["id"]) == ("count", {"n": 1}, message_id)
        await bench.again("delegate_to_agent", asked)
        assert msgspec.json.decode(served.asked[1].body)["id"] == message_id


async def test_another_system_is_polled(served: Web) -> None:
    status = served.url("/status/1")
    served.routes |= {"/agent": json_reply({"status_url": status}, 202), "/status/1": json_reply({}, 202)}
    async with workbench(agents(far={"url": served.url("/agent"), "keys": [KEY], "poll_seconds": 2})) as bench:
        asked = {"agent": "far", "task": "count"}
        pending = await bench.call("delegate_to_agent", asked)
        assert isinstance(pending, Pending) and (pending.wait.on, pending.wait.for_ms) == ("timer", 2_000)
        again = await bench.resume("delegate_to_agent", asked, pending, None)
        assert isinstance(again, Pending)
        served.routes["/status/1"] = json_reply({"result": 7})
        assert content(await bench.resume("delegate_to_agent", asked, again, None)) == {"result": 7}
        assert all(verify([KEY], each.headers, each.body, NOW_MS) for each in served.asked)


async def test_another_system_calls_back(served: Web) -> None:
    served.routes["/agent"] = json_reply({"callback": True}, 202)
    async with workbench(agents(far={"url": served.url("/agent"), "keys": [KEY]})) as bench:
        asked = {"agent": "far", "task": "count"}
        pending = await bench.call("delegate_to_agent", asked)
        assert isinstance(pending, Pending) and pending.wait.on == "signal"
        told = msgspec.json.decode(served.asked[0].body)["callback"]
        assert told == {"run_id": bench.node.run_id, "signal": pending.wait.name}
        assert content(await bench.resume("delegate_to_agent", asked, pending, {"n": 1})) == {"result": {"n": 1}}


async def test_a_callback_that_never_comes_ends_with_the_time_of_the_delegation(served: Web) -> None:
    served.routes["/agent"] = json_reply({"callback": True}, 202)
    far = {"url": served.url("/agent"), "keys": [KEY], "timeout_seconds": 60}
    async with workbench(agents(far=far)) as bench:
        asked = {"agent": "far", "task": "count"}
        pending = await bench.call("delegate_to_agent", asked)
        assert isinstance(pending, Pending) and pending.wait.for_ms == 60_000
        bench.clock[0] += 60_000
        ended = await bench.resume("delegate_to_agent", asked, pending, None)
        assert code(ended) == "agent_late" and isinstance(ended, ToolResult) and ended.unknown_outcome


async def test_the_limit_of_the_node_does_not_end_the_wait_for_a_callback(served: Web) -> None:
    served.routes["/agent"] = json_reply({"callback": True}, 202)
    far = {"url": served.url("/agent"), "keys": [KEY], "timeout_seconds": 60}
    async with workbench(agents(far=far)) as bench:
        bench.node.timeout_ms = 50_000
        asked = {"agent": "far", "task": "count"}
        pending = await bench.call("delegate_to_agent", asked)
        assert isinstance(pending, Pending) and pending.wait.for_ms == 45_000
        bench.clock[0] += 45_000
        again = await bench.resume("delegate_to_agent", asked, pending, None)
        assert isinstance(again, Pending)
        assert (again.wait.on, again.wait.name, again.wait.for_ms) == ("signal", pending.wait.name, 15_000)
        assert len(served.asked) == 1, "the task is sent once"


async def test_a_poll_that_fails_for_a_while_is_made_again_later_and_later(served: Web) -> None:
    cut = raw(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{")
    busy = json_reply({}, 429, retry_after="30")
    outage = [json_reply({}, 503), cut, busy, json_reply({}, 202), json_reply({}, 500), json_reply({"result": 7})]
    served.routes |= {"/agent": json_reply({"status_url": served.url("/s")}, 202), "/s": in_turn(*outage)}
    async with workbench(agents(far={"url": served.url("/agent"), "keys": [KEY], "poll_seconds": 2})) as bench:
        asked = {"agent": "far", "task": "count"}
        ended, pauses = await bench.call("delegate_to_agent", asked), []
        while isinstance(ended, Pending):
            pauses.append(ended.wait.for_ms)
            ended = await bench.resume("delegate_to_agent", asked, ended, None)
        assert pauses == [2_000, 4_000, 8_000, 30_000, 2_000, 4_000]
        assert content(ended) == {"result": 7}


async def test_an_agent_that_stays_away_is_late_and_one_that_refuses_has_failed(served: Web) -> None:
    served.routes |= {"/agent": json_reply({"status_url": served.url("/s")}, 202), "/s": json_reply({}, 503)}
    far = {"url": served.url("/agent"), "keys": [KEY], "poll_seconds": 200, "timeout_seconds": 500}
    async with workbench(agents(far=far)) as bench:
        asked = {"agent": "far", "task": "count"}
        first = ended = await bench.call("delegate_to_agent", asked)
        pauses = []
        while isinstance(ended, Pending):
            pauses.append(ended.wait.for_ms)
            bench.clock[0] += ended.wait.for_ms or 0
            ended = await bench.resume("delegate_to_agent", asked, ended, None)
        assert pauses == [200_000, 300_000] and code(ended) == "agent_late"
        assert isinstance(ended, ToolResult) and "status 503" in ended.text
        bench.clock[0], served.routes["/s"] = NOW_MS, json_reply({}, 410)
        assert isinstance(first, Pending)
        assert code(await bench.resume("delegate_to_agent", asked, first, None)) == "agent_failed"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (json_reply({"status_url": "http://evil.example/"}, 202), "agent_answer_invalid"),
        (json_reply({}, 202), "agent_answer_invalid"),
        (json_reply([1]), "agent_answer_invalid"),
        (json_reply({"error": "no"}), "agent_failed"),
        (json_reply({}, 500), "agent_failed"),
        (redirect("/elsewhere"), "agent_failed"),
    ],
)
async def test_answers_that_cannot_be_used(served: Web, answer: Any, error: str) -> None:
    served.routes["/agent"] = answer
    async with workbench(agents(far={"url": served.url("/agent"), "keys": [KEY]})) as bench:
        assert code(await bench.call("delegate_to_agent", agent="far", task="x")) == error
        assert len(served.asked) == 1


async def test_code_runs_on_data() -> None:
    async with workbench(agents(code={"builtin": "code_interpreter"})) as bench:
        inputs = {"code": "def main(data):\n    return sum(data)", "data": [1, 2, 3]}
        assert content(await bench.call("delegate_to_agent", agent="code", task="sum", inputs=inputs))["result"] == 6
        stored = await bench.port.put_blob([4, 5])
        by_reference = {**inputs, "data": stored.reference}
        ended = await bench.call("delegate_to_agent", agent="code", task="sum", inputs=by_reference)
        assert content(ended)["result"] == 9
        assert code(await bench.call("delegate_to_agent", agent="code", task="sum")) == "arguments_invalid"


HOSTILE = {
    "a file": "def main(data):\n    return open('/etc/passwd').read()",
    "a socket": "import socket\ndef main(data):\n    return socket.create_connection(('127.0.0.1', 80))",
    "a process": "import subprocess\ndef main(data):\n    return subprocess.run(['id'])",
    "a command": "import os\ndef main(data):\n    return os.system('id')",
    "the environment of the process": "def main(data):\n    return open('/proc/self/environ').read()",
    "a library": "import ctypes\ndef main(data):\n    return ctypes.CDLL(None).getpid()",
    "a folder": "import os\ndef main(data):\n    return os.listdir('/')",
    "a write": "import json, os\ndef main(data):\n    return open(os.path.dirname(json.__file__) + '/x', 'w')",
    "a changed module": (
        "import json, posixpath\ndef main(data):\n    posixpath.abspath = lambda path: json.__file__\n"
        "    return open('/etc/passwd').read()"
    ),
    "a path with methods": (
        "import builtins, posixpath\nclass Path(str):\n    def startswith(self, *names): return True\n"
        "def main(data):\n    builtins.isinstance = lambda *given: True\n"
        "    posixpath.realpath = posixpath.abspath = Path\n    return open(Path('/etc/passwd')).read()"
    ),
    "a process without an audit": (
        "import subprocess, sys\ndef main(data):\n    sys.audit = lambda *given: None\n"
        "    return subprocess.call(['true'])"
    ),
    "another folder": "import json, os\ndef main(data):\n    return os.chdir(os.path.dirname(json.__file__))",
    "no function": "x = 1",
    "no JSON": "def main(data):\n    return object()",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("packages", [[], ["statistics"]], ids=["sandbox", "process"])
async def test_code_has_no_world(name: str, packages: list[str]) -> None:
    agent: dict[str, Any] = {"builtin": "code_interpreter", "time_seconds": 10}
    if packages:
        agent["packages"] = packages
    async with workbench(agents(code=agent), packages=("statistics",)) as bench:
        ended = await bench.call("delegate_to_agent", agent="code", task="x", inputs={"code": HOSTILE[name], "data": 1})
        assert code(ended) in ("code_failed", "condition_failed"), ended


async def test_packages_are_the_operators_choice() -> None:
    inputs = {"code": "def main(data):\n    return statistics.mean(data)", "data": [1, 2, 3]}
    agent = {"builtin": "code_interpreter", "packages": ["statistics"]}
    async with workbench(agents(code=agent)) as bench:
        ended = await bench.call("delegate_to_agent", agent="code", task="x", inputs=inputs)
        assert code(ended) == "package_not_allowed"
    async with workbench(agents(code=agent), packages=("statistics",)) as bench:
        assert content(await bench.call("delegate_to_agent", agent="code", task="x", inputs=inputs))["result"] == 2


async def test_a_result_of_too_many_values_is_not_decoded() -> None:
    agent = {"builtin": "code_interpreter", "packages": ["statistics"]}
    inputs = {"code": "def main(data):\n    return [[]] * 1_200_000", "data": 1}
    async with workbench(agents(code=agent), packages=("statistics",)) as bench:
        ended = await bench.call("delegate_to_agent", agent="code", task="x", inputs=inputs)
        assert code(ended) == "code_failed" and "so many values" in str(ended)


async def test_code_that_never_ends_is_killed() -> None:
    agent = {"builtin": "code_interpreter", "packages": ["statistics"], "time_seconds": 0.5}
    async with workbench(agents(code=agent), packages=("statistics",)) as bench:
        inputs = {"code": "def main(data):\n    while True: pass", "data": 1}
        assert code(await bench.call("delegate_to_agent", agent="code", task="x", inputs=inputs)) == "code_timeout"


def test_code_gets_its_modules_and_its_data() -> None:
    request = CodeRequest(code="", data=msgspec.Raw(b"1"), packages=(), time_seconds=1, memory_mb=128)
    assert request.memory_mb == 128
    assert execute("def main(data):\n    return data + y", 1, {"y": 2}) == 3


def test_the_researcher_only_reads_and_holds_no_secret() -> None:
    agent = {"builtin": "researcher", "model": "m", "origins": ["https://a.example"], "api_key_secret": "KEY"}
    (node,) = researcher_document(agent)["nodes"]
    assert node["config"]["api_key"] == "{{ secrets.KEY }}"
    reads = {"name": "execute_pipeline", "origins": ["https://a.example"], "methods": ["GET"]}
    assert node["config"]["tools"] == [reads]


async def test_the_list_of_agents_is_a_constant() -> None:
    async with workbench("ask_human") as bench:
        wrong = [agents(far={"url": "{{ inputs.url }}", "keys": ["{{ secrets.KEY }}"]})]
        assert [each.code for each in bench.registry.problems(wrong)] == ["tool_not_constant"]
        fine = [agents(far={"url": "https://a.example", "keys": ["{{ secrets.KEY }}"]})]
        assert bench.registry.problems(fine) == []


@pytest.mark.parametrize("budget", [{"calls": 0}, {"money": 0}, {"seconds": 5}])
async def test_a_slice_of_nothing_and_one_that_nobody_keeps_are_refused(budget: dict[str, float]) -> None:
    async with workbench("ask_human") as bench:
        wrong = [agents(helper={"workflow": "other", "budget": budget})]
        assert [each.code for each in bench.registry.problems(wrong)] == ["config_invalid"]
