"""`tidemill tools`: pipelines of agents that have become tools."""

from __future__ import annotations

import json
from typing import Any

from tests.fixtures.cli_store import CliStore

ROWS = [{"n": 1}, {"n": 2}]


def _first(k: int) -> dict[str, Any]:
    arguments = {"pipeline": [{"step": "top_k", "k": k}], "rows": ROWS}
    return {"tool_calls": [{"name": "execute_pipeline", "arguments": arguments}]}


def test_a_tool_from_its_promotion_to_its_end(cli_store: CliStore) -> None:
    cli = cli_store
    assert "no pipeline has become a composite tool" in cli("tools", "list").out
    answers = [_first(1), _first(2), "ok"]
    config = {"provider": "scripted", "prompt": "Go.", "tools": ["execute_pipeline"], "answers": answers}
    run = cli.mill.run({"name": "asks", "nodes": [{"id": "a", "type": "agent", "config": config}]})
    assert run.status == "COMPLETED", run.error
    (tool,) = json.loads(cli("tools", "list", "--json").out)
    name = tool["name"]
    assert "$parameter: k" in cli("tools", "show", name).out
    assert f"{name}@1" in cli("tools", "pin", name).out
    renamed = cli("tools", "rename", name, "first-rows", "--description", "The first rows", "--as", "ann")
    assert "first-rows@1, pinned: The first rows" in renamed.out
    assert cli("tools", "show", name).code == 2
    assert "retired" in cli("tools", "retire", "first-rows").out
    assert "no pipeline has become a composite tool" in cli("tools", "list").out
    assert "first-rows" in cli("tools", "list", "--retired").out
    assert "pinned" in cli("tools", "retire", "first-rows", "--off").out
