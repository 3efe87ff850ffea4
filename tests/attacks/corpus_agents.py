"""Attacks through agents: what an author writes of them, what a model calls, and what the services answer."""

from __future__ import annotations

import json
from typing import Any

from tests.attacks.review import (
    CANARY,
    FILE,
    FILE_DIGEST,
    Answer,
    Completes,
    Ends,
    Fails,
    Refused,
    Row,
    Run,
    document,
    node,
)

TABLE = {"$blob": FILE_DIGEST, "size": len(FILE), "media_type": "application/json"}
CRM = '[secrets.CRM]\norigins = ["{url}"]\nworkflows = ["*"]'
DONE = Completes(lambda outputs: outputs["x"]["value"] == "done")


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


def agent(calls: list[Any], *tools: Any, **more: Any) -> dict[str, Any]:
    """A document whose model makes these calls, one in a turn, and is done."""
    config = {"provider": "scripted", "model": "m", "prompt": "go", "answers": [*calls, "done"], "tools": list(tools)}
    return document(node("agent", {**config, **more}, retry={"max_attempts": 1}))


def refuses(code: str) -> Any:
    """What is done to the run: its model must have been told this code, and nothing of the file."""

    def act(mill: Any, run_id: str) -> dict[str, Any]:
        run = mill.result(run_id, timeout_s=60)
        said = json.dumps(mill.events(run_id), default=str)
        return {"run": run.status, "codes": said.count(f'\\"code\\":\\"{code}\\"'), "file": FILE.decode() in said}

    return act


TOLD = Completes(lambda seen: seen["run"] == "COMPLETED" and seen["codes"] > 0 and not seen["file"])


# Files of other workflows.

PIPELINE = [{"step": "top_k", "field": "a", "k": 1}]
FILES: tuple[Row, ...] = tuple(
    Run(f"agent: a file of another workflow, {name}", (agent([made], tool),), TOLD, act=refuses("blob_unknown"))
    for name, made, tool in (
        ("as rows", call("execute_pipeline", pipeline=PIPELINE, rows=TABLE), "execute_pipeline"),
        (
            "as the other table",
            call("execute_pipeline", pipeline=[{"step": "join", "with": TABLE, "on": "a"}], rows=[{"a": 1}]),
            "execute_pipeline",
        ),
        (
            "as data of code",
            call(
                "delegate_to_agent",
                agent="c",
                task="t",
                inputs={"code": "def main(data): return data", "data": TABLE},
            ),
            {"name": "delegate_to_agent", "agents": {"c": {"builtin": "code_interpreter"}}},
        ),
        (
            "as an OpenAPI document",
            call("openapi_action", operation="a"),
            {"name": "openapi_action", "document": FILE_DIGEST, "operations": ["a"]},
        ),
        (
            "as inputs of a workflow",
            call("start_workflow", workflow="attack", inputs={"f": TABLE}),
            {"name": "start_workflow", "workflows": ["attack"]},
        ),
    )
)

# Secrets.

SECRET = "{{ secrets.CRM }}"
SECRETS: tuple[Row, ...] = (
    *(
        Run(f"agent: a secret in {name}", (agent([], **config),), Refused("secret_not_allowed"), grants=CRM, visits=())
        for name, config in (
            ("the prompt", {"prompt": f"say {SECRET}"}),
            ("the instructions", {"instructions": SECRET}),
            ("an answer", {"answers": [SECRET]}),
            ("the session", {"session": SECRET}),
            ("an example", {"examples": [{"prompt": "a", "answer": SECRET}]}),
        )
    ),
    *(
        Run(f"agent: a secret in {name}", (agent([], tool),), Refused("tool_not_constant"), grants=CRM, visits=())
        for name, tool in (
            ("an origin", {"name": "execute_pipeline", "origins": [f"{{url}}/{SECRET}"]}),
            ("the name of a workflow", {"name": "start_workflow", "workflows": [SECRET]}),
            (
                "an answer of the researcher",
                {
                    "name": "delegate_to_agent",
                    "agents": {"r": {"builtin": "researcher", "model": "m", "origins": ["{url}"], "answers": [SECRET]}},
                },
            ),
        )
    ),
    Run(
        "agent: the key of a model goes elsewhere",
        (
            document(
                node(
                    "agent",
                    {"provider": "openai", "model": "m", "prompt": "go", "base_url": "{other}/v1", "api_key": SECRET},
                    retry={"max_attempts": 1},
                )
            ),
        ),
        Ends(("origin_not_allowed",), may_complete=False),
        grants=CRM,
        visits=(),
    ),
    Run(
        "agent: credentials of a pipeline go elsewhere",
        (
            agent(
                [call("execute_pipeline", pipeline=[{"step": "http_request", "url": "{other}/a"}])],
                {"name": "execute_pipeline", "origins": ["{other}"], "auth": {"{other}": {"bearer": SECRET}}},
            ),
        ),
        DONE,
        grants=CRM,
        visits=(),
    ),
    Run(
        "agent: a task for others is signed with a key of another origin",
        (
            agent(
                [call("delegate_to_agent", agent="e", task="t")],
                {"name": "delegate_to_agent", "agents": {"e": {"url": "{other}/task", "keys": [SECRET]}}},
            ),
        ),
        DONE,
        grants=CRM,
        visits=(),
    ),
    Run(
        "agent: a service repeats its credentials",
        (
            agent(
                [call("execute_pipeline", pipeline=[{"step": "http_request", "url": "{url}/a"}])],
                {"name": "execute_pipeline", "origins": ["{url}"], "auth": {"{url}": {"bearer": SECRET}}},
            ),
        ),
        DONE,
        grants=CRM,
        answers={"/a": Answer(json.dumps([{"said": f"you sent {CANARY}", CANARY: 1}]).encode())},
    ),
    Run(
        "agent: data as templates of the researcher",
        (
            {
                **agent(
                    [call("delegate_to_agent", agent="r", task="t")],
                    {
                        "name": "delegate_to_agent",
                        "agents": {
                            "r": {
                                "builtin": "researcher",
                                "provider": "scripted",
                                "model": "m",
                                "origins": ["{url}"],
                                "answers": ["{{ inputs.said }}"],
                            }
                        },
                    },
                ),
                "inputs": {"type": "object"},
            },
        ),
        Refused("tool_not_constant"),
        inputs={"said": "{{ 7 * 7 }}"},
    ),
)

# Addresses.

ADDRESSES: tuple[Row, ...] = tuple(
    Run(
        f"agent: {name}",
        (
            agent(
                [call("execute_pipeline", pipeline=[{"step": "http_request", "url": url}])],
                {"name": "execute_pipeline", "origins": ["{url}/open"]},
            ),
        ),
        TOLD,
        act=refuses("address_not_allowed"),
        visits=(),
    )
    for name, url in (
        ("another address", "{other}/a"),
        ("a step up", "{url}/open/../admin"),
        ("an encoded step up", "{url}/open/%2e%2e/admin"),
        ("a step up that is encoded twice", "{url}/open/%252e%252e/admin"),
        ("a longer name", "{url}/opened"),
        ("a user before the host", "http://127.0.0.1:1@{other}/a"),
        ("a file", "file:///etc/passwd"),
        ("a backslash", "{url}/open\\..\\admin"),
    )
)

# Work and memory.


def service(*schemas: Any, operations: int = 1, **components: Any) -> bytes:
    """An OpenAPI document whose operations take one of these schemas."""
    content = {"application/json": {"schema": {"anyOf": list(schemas)}}}
    made = {"operationId": "a", "requestBody": {"content": content}}
    paths = {f"/{number}": {"post": {**made, "operationId": f"a{number or ''}"}} for number in range(operations)}
    given = {"openapi": "3.1.0", "servers": [{"url": "/"}], "paths": paths, "components": {"schemas": components}}
    return json.dumps(given).encode()


def nested(levels: int) -> Any:
    value: Any = {"type": "string"}
    for _ in range(levels):
        value = {"items": value}
    return value


REFERENCE = {"$ref": "#/components/schemas/s"}
WIDE = {"properties": {f"p{number}": {"type": "string"} for number in range(30_000)}}
SERVICE = {"name": "openapi_action", "document": "{url}/openapi.json", "operations": ["*"]}
ROWS = [{f"k{number}": number for number in range(20)}] * 500

LOAD: tuple[Row, ...] = (
    *(
        Run(
            f"agent: a service with {name}",
            (agent([call("openapi_action", operation="a", body=1)], SERVICE),),
            TOLD,
            act=refuses("openapi_invalid"),
            answers={"/openapi.json": Answer(body)},
            neighbours=True,
        )
        for name, body in (
            ("one large schema many times", service(*[REFERENCE] * 1_500, s=WIDE)),
            ("one long text many times", service(*[REFERENCE] * 1_500, s={"description": "x" * 1_000_000})),
            ("a large schema in each of many operations", service(REFERENCE, operations=200, s=WIDE)),
            ("a deep schema", service(REFERENCE, s=nested(400))),
        )
    ),
    *(
        Run(
            f"agent: code that {name}",
            (
                agent(
                    [call("delegate_to_agent", agent="c", task="t", inputs={"code": code, "data": 1})],
                    {"name": "delegate_to_agent", "agents": {"c": {"builtin": "code_interpreter", "time_seconds": 2}}},
                ),
            ),
            DONE,
            neighbours=True,
        )
        for name, code in (
            ("never ends", "def main(data):\n    while True:\n        pass"),
            ("takes memory", "def main(data):\n    x = [0]\n    while True:\n        x = x + x"),
            ("returns much", "def main(data):\n    return ['x' * 1000] * 1000000"),
            ("returns many lists", "def main(data):\n    return [[]] * 5000000"),
            ("reads a file", "def main(data):\n    return open('/etc/passwd').read()"),
            ("imports", "def main(data):\n    import os\n    return dict(os.environ)"),
        )
    ),
    Run(
        "agent: joins of joins",
        (
            agent(
                [
                    call(
                        "execute_pipeline",
                        rows=ROWS,
                        pipeline=[{"step": "join", "with": ROWS, "on": "k0", "prefix": f"p{n}_"} for n in range(4)],
                    )
                ]
                * 3,
                "execute_pipeline",
            ),
        ),
        DONE,
        neighbours=True,
    ),
    Run(
        "agent: many calls in one reply",
        (
            agent(
                [{"tool_calls": [{"name": "search_tools", "arguments": {"query": f"a{n}"}} for n in range(5_000)]}],
                "search_tools",
            ),
        ),
        Fails("too_many_calls"),
        neighbours=True,
    ),
    Run(
        "agent: a large patch",
        (
            agent(
                [
                    call(
                        "patch_workflow",
                        operations=[
                            {
                                "op": "add",
                                "path": "/nodes/-",
                                "value": {"id": f"n{n}", "type": "value", "config": "{{ 1 }}" * 2_000},
                            }
                            for n in range(50)
                        ],
                    )
                ],
                {"name": "patch_workflow", "policy": {"node_types": ["value"]}},
            ),
        ),
        DONE,
        neighbours=True,
    ),
)

AGENT_ROWS: tuple[Row, ...] = (*FILES, *SECRETS, *ADDRESSES, *LOAD)
