"""A run as data for pictures: joins, loops, maps, children, and the timeline, from a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.api_server import ApiServer, api_server, sqlite_url

JOIN = """
name: join
nodes:
  - {id: a, type: value, config: 1, dependents: [all, skipped]}
  - {id: b, type: value, config: 2, dependents: [all]}
  - {id: c, type: signal, config: {name: go}, dependents: [all]}
  - {id: skipped, type: value, when: "false", config: 0}
  - {id: all, type: value, config: 3}
"""
LOOP = """
name: loop
nodes:
  - {id: draft, type: value, config: 1}
  - id: review
    type: value
    dependencies: [draft]
    config: {pass: "{{ iteration }}"}
    loop: {loop_back_to: draft, condition: "output.pass < 2", max_iterations: 5}
  - {id: publish, type: value, dependencies: [review], config: 1}
"""
MAP = """
name: map
nodes:
  - id: each
    type: fail
    config: {attempts: "{{ 1 if item == 2 else 0 }}", value: 1}
    map: {over: [1, 2, 3], tolerate: 1}
"""
CHILD = "name: child\nnodes: [{id: a, type: value, config: 1}]\n"
PARENT = "name: parent\nnodes: [{id: call, type: workflow, config: {workflow: child}}]\n"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with api_server(sqlite_url(tmp_path)) as served:
        yield served


async def started(server: ApiServer, document: str) -> str:
    return str((await server.post("/runs", {"workflow": await server.publish(document)}))["run_id"])


def by_id(graph: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {node["id"]: node for node in graph["nodes"]}


async def test_a_join_tells_what_has_arrived_and_what_it_waits_for(server: ApiServer) -> None:
    run_id = await started(server, JOIN)
    nodes: dict[str, Any] = {}
    while not nodes or nodes["c"]["status"] != "WAITING" or nodes["all"]["join"]["arrived"] < 2:
        graph = await server.get(f"/runs/{run_id}/graph")
        nodes = by_id(graph)
    counts = {"needs": 3, "of": 3, "arrived": 2, "skipped": 0}
    assert nodes["all"]["join"] == {"kind": "all", "settled": False, "waits_for": ["c"]} | counts
    assert nodes["c"]["wait"]["on"] == "signal"
    taken = {(edge["from"], edge["to"]): edge["taken"] for edge in graph["edges"]}
    assert taken == {("a", "all"): True, ("a", "skipped"): True, ("b", "all"): True, ("c", "all"): None}

    timeline = await server.get(f"/runs/{run_id}/timeline")
    (waiting,) = [row for row in timeline["rows"] if row["node"] == "c"]
    kind, begin, end, _, under_way = waiting["tracks"][0]["segments"][-1]
    assert (kind, under_way, end) == ("waiting", True, timeline["end_ms"])
    assert begin >= timeline["begin_ms"]

    await server.post(f"/runs/{run_id}/signal", {"name": "go"})
    await server.get(f"/runs/{run_id}/result")
    nodes = by_id(await server.get(f"/runs/{run_id}/graph"))
    assert nodes["all"]["join"]["settled"]
    assert nodes["skipped"]["status"] == "SKIPPED"
    assert nodes["skipped"]["why"]
    timeline = await server.get(f"/runs/{run_id}/timeline")
    after = {row["node"]: row["tracks"][0]["after"] for row in timeline["rows"] if row["node"] != "skipped"}
    assert after == {"a": None, "b": None, "c": None, "all": ["c", 1, -1]}
    assert timeline["last"] == ["all", 1, -1]


async def test_the_graph_as_it_was_when_a_pass_of_a_loop_ended(server: ApiServer) -> None:
    run_id = await started(server, LOOP)
    await server.get(f"/runs/{run_id}/result")
    graph = await server.get(f"/runs/{run_id}/graph")
    assert by_id(graph)["review"]["loop"] == {"pass": 3, "max": 5, "back_to": "draft", "body": ["draft", "review"]}
    assert {"from": "review", "to": "draft", "label": "again", "kind": "loop", "taken": None} in graph["edges"]
    first = by_id(await server.get(f"/runs/{run_id}/graph", **{"loop": "review", "pass": 1}))
    visits = {name: (node["status"], node["visits"]) for name, node in first.items()}
    assert visits == {"draft": ("COMPLETED", 1), "review": ("COMPLETED", 1), "publish": ("PENDING", 1)}
    assert await server.get(f"/runs/{run_id}/graph", **{"loop": "review", "pass": 3}) == graph
    refused = await server.http.get(f"/runs/{run_id}/graph", params={"loop": "review", "pass": 4})
    assert (refused.status_code, refused.json()["code"]) == (422, "place_invalid")

    timeline = await server.get(f"/runs/{run_id}/timeline")
    (row,) = [row for row in timeline["rows"] if row["node"] == "draft"]
    assert [(track["visit"], track["after"]) for track in row["tracks"]] == [
        (1, None),
        (2, ["review", 1, -1]),
        (3, ["review", 2, -1]),
    ]
    past = await server.get(f"/runs/{run_id}/timeline", at=2)
    assert [row["node"] for row in past["rows"]] in ([], ["draft"])


async def test_items_and_children(server: ApiServer) -> None:
    run_id = await started(server, MAP)
    await server.get(f"/runs/{run_id}/result")
    items = by_id(await server.get(f"/runs/{run_id}/graph"))["each"]["items"]
    assert {name: count for name, count in items.items() if count} == {"count": 3, "done": 2, "failed": 1}
    (row,) = (await server.get(f"/runs/{run_id}/timeline"))["rows"]
    assert row["items"]
    assert sorted(track["index"] for track in row["tracks"] if track["index"] >= 0) == [0, 1, 2]

    await server.publish(CHILD)
    run_id = await started(server, PARENT)
    await server.get(f"/runs/{run_id}/result")
    child = by_id(await server.get(f"/runs/{run_id}/graph"))["call"]["child"]
    assert (await server.get(f"/runs/{child}"))["parent"] == run_id
