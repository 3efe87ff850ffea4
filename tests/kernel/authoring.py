"""Short ways to write documents in tests, and to ask what the compiler says of them."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.errors import Problem, Rejected
from tidemill.kernel.compile.compiler import Compiled, compile_document
from tidemill.kernel.model import NodeType

Json = Any

TYPES = {
    "value": [NodeType(name="value")],
    "python": [
        NodeType(
            name="python",
            config_schema={
                "type": "object",
                "required": ["function"],
                "properties": {"function": {"type": "string"}, "args": {"type": "object"}},
                "additionalProperties": False,
            },
        )
    ],
    "sleep": [NodeType(name="sleep", waits=True, queue="timers")],
    "http": [
        NodeType(name="http", major=1, config_schema={"type": "object", "required": ["url"]}),
        NodeType(
            name="http",
            major=2,
            config_schema={
                "type": "object",
                "required": ["url"],
                "properties": {
                    "url": {"type": "string"},
                    "port": {"type": "integer"},
                    "headers": {"type": "object"},
                    "auth": {"type": "object"},
                },
                "additionalProperties": False,
            },
            secret_fields=("headers", "auth.token"),
        ),
    ],
    "human": [NodeType(name="human", waits=True, exits=("rejection_path", "changes_path"))],
}


def node(id_: str, *dependencies: str, **fields: Json) -> dict[str, Json]:
    """A node of type `value` unless told otherwise."""
    return {"id": id_, "type": "value", "dependencies": list(dependencies), **fields}


def document(*nodes: Json, **top: Json) -> dict[str, Json]:
    return {"name": "test", "nodes": list(nodes), **top}


def chain(*ids: str, **top: Json) -> dict[str, Json]:
    """Nodes that follow one another."""
    return document(*(node(id_, *ids[:number][-1:]) for number, id_ in enumerate(ids)), **top)


def compiled(*nodes: Json, **top: Json) -> Compiled:
    return compile_document(document(*nodes, **top), TYPES)


def refusal(raw: Json) -> tuple[Problem, ...]:
    """The problems of a document that must be refused."""
    with pytest.raises(Rejected) as caught:
        compile_document(raw, TYPES)
    return caught.value.problems


def said(raw: Json) -> list[tuple[str, str]]:
    """Code and path of every problem."""
    return [(problem.code, problem.path) for problem in refusal(raw)]
