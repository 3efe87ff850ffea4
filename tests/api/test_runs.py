"""Runs over HTTP: start, look, wait, act, fork, compare and patch, on a real server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.fixtures.api_server import ApiServer, api_server, sqlite_url
from tests.fixtures.api_world import operations
from tidemill.api.auth import Access
from tidemill.engine.engine import Engine
from tidemill.errors import Rejected
from tidemill.security.roles import Principal

DOUBLE = """
name: double
inputs: {type: object, properties: {n: {type: integer, default: 1}}}
outputs: {n: "{{ nodes.b }}"}
nodes:
  - {id: a, type: value, config: "{{ inputs.n * 2 }}", dependents: [b]}
  - {id: b, type: value, config: "{{ nodes.a }}"}
"""
BOOKED = """
name: booked
nodes:
  - {id: a, type: value, config: 1, compensator: {type: value, config: back}}
  - {id: b, type: signal, dependencies: [a]}
"""
ASLEEP = """
name: asleep
nodes:
  - {id: a, type: sleep, config: {seconds: 600}, dependents: [b]}
  - {id: b, type: value, config: 1}
"""
BROKEN = "name: broken\nnodes: [{id: a, type: python, config: {function: fails}, retry: {max_attempts: 1}}]\n"
WAITING = "name: waiting\nnodes: [{id: a, type: signal, config: {name: paid}}]\n"
COUNTS = """
name: counts
nodes:
  - id: a
    type: value
    config: {n: "{{ iteration }}"}
    loop: {condition: "iteration < 2", max_iterations: 5}
    dependents: [list]
  - {id: list, type: value, config: [x, y, z], dependents: [each]}
  - {id: each, type: value, map: {over: "{{ nodes.list }}"}, config: "{{ item }}!"}
"""
LARGE = "name: large\nnodes: [{id: a, type: python, config: {function: large}}]\n"
SAYS = "name: says\nnodes: [{id: a, type: python, config: {function: says}}]\n"
AGENT = """
name: agent
nodes:
  - id: a
    type: agent
    config: {provider: scripted, prompt: How high is the tide?, answers: [4.2 m]}
"""
LOG = logging.getLogger("flow")


def fails() -> None:
    raise ValueError("no luck")


def large() -> str:
    return "ä" * 100_000


def says() -> int:
    LOG.warning("hello")
    LOG.warning("world")
    return 1


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with api_server(sqlite_url(tmp_path), functions=[fails, large, says]) as served:
        yield served


async def ended(server: ApiServer, workflow: str, **body: Any) -> dict[str, Any]:
    started = await server.post("/runs", {"workflow": workflow, **body})
    shown: dict[str, Any] = await server.get(f"/runs/{started['run_id']}/result")
    return shown


async def test_a_run_is_started_shown_and_waited_for(server: ApiServer) -> None:
    await server.publish(DOUBLE)
    response = await server.http.post("/runs", json={"workflow": "double", "inputs": {"n": 4}, "labels": {"k": "v"}})
    assert response.status_code == 201
    run_id = response.json()["run_id"]
    assert response.headers["location"] == f"/api/v1/runs/{run_id}"
    shown = await server.get(f"/runs/{run_id}/result")
    assert (shown["status"], shown["outputs"], shown["submitted_by"]) == ("COMPLETED", {"n": 8}, "local")
    assert shown == await server.get(f"/runs/{run_id}")
    assert shown == (await server.engine.show(run_id)).to_dict()
    assert (await server.get(f"/runs/{run_id}", at=1))["status"] == "RUNNING"
    page = await server.get("/runs", query="workflow:double label.k=v")
    assert [row["run_id"] for row in page["items"]] == [run_id]
    assert page["next"] is None


async def test_events_come_by_pages_and_the_rest_can_be_looked_at(server: ApiServer) -> None:
    await server.publish(DOUBLE)
    run_id = (await ended(server, "double@1"))["run_id"]
    events, after = [], "0"
    while after is not None:
        page = await server.get(f"/runs/{run_id}/events", after=after, limit=2)
        events += page["items"]
        after = page["next"]
    assert events == await server.events(run_id)
    assert [step["node"] for step in (await server.get(f"/runs/{run_id}/path"))["items"]] == ["a", "b"]
    assert (await server.get(f"/runs/{run_id}/tokens"))["items"] == []
    assert (await server.get(f"/runs/{run_id}/why"))["status"] == "COMPLETED"
    assert (await server.get(f"/runs/{run_id}/why/a"))["status"] == "COMPLETED"
    assert (await server.get(f"/runs/{run_id}/document"))["document"]["name"] == "double"
    graph = await server.get(f"/runs/{run_id}/graph")
    assert graph["edges"] == [{"from": "a", "to": "b", "label": "", "kind": "edge", "taken": True}]
    drawn = await server.http.get(f"/runs/{run_id}/graph", params={"format": "svg"})
    assert "style-src 'unsafe-inline'; sandbox" in drawn.headers["content-security-policy"], "it has styles of its own"
    assert drawn.headers["content-type"].startswith("image/svg+xml")
    assert drawn.text.startswith("<svg")


async def test_logs_of_a_run(server: ApiServer) -> None:
    await server.publish(SAYS)
    run_id = (await ended(server, "says"))["run_id"]
    lines = (await server.get(f"/runs/{run_id}/logs"))["items"]
    assert [(line["node"], line["text"]) for line in lines] == [("a", "hello"), ("a", "world")]
    assert [line["text"] for line in (await server.get(f"/runs/{run_id}/logs", limit=1))["items"]] == ["world"]


async def test_the_output_of_a_node_whole_in_parts_and_as_a_preview(server: ApiServer) -> None:
    await server.publish(DOUBLE)
    await server.publish(LARGE)
    small = (await ended(server, "double", inputs={"n": 21}))["run_id"]
    path = f"/runs/{small}/nodes/a/output"
    shown = await server.get(path)
    assert (shown["value"], shown["size"], shown["preview"]) == (42, 2, None)
    part = await server.http.get(path, headers={"Range": "bytes=1-"})
    assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"2", "bytes 1-1/2")
    beyond = await server.http.get(path, headers={"Range": "bytes=5-"})
    assert (beyond.status_code, beyond.json()["code"]) == (416, "range_invalid")

    big = (await ended(server, "large"))["run_id"]
    shown = await server.get(f"/runs/{big}/nodes/a/output")
    assert (shown["value"], shown["size"]) == (None, 200_002)
    assert shown["preview"] == '"' + "ä" * 3_999
    parts = [
        (await server.http.get(f"/runs/{big}/nodes/a/output", headers={"Range": f"bytes={at}-{at + 49_999}"})).content
        for at in range(0, 200_002, 50_000)
    ]
    assert b"".join(parts).decode() == f'"{large()}"'


async def test_the_transcript_of_an_agent(server: ApiServer) -> None:
    await server.publish(AGENT)
    run_id = (await ended(server, "agent"))["run_id"]
    shown = await server.get(f"/runs/{run_id}/nodes/a/transcript")
    assert (shown["status"], shown["prompt"]) == ("COMPLETED", "How high is the tide?")
    assert [turn["text"] for turn in shown["turns"]] == ["4.2 m"]
    unknown = await server.http.get(f"/runs/{run_id}/nodes/a/transcript", params={"visit": 2})
    assert (unknown.status_code, unknown.json()["code"]) == (422, "attempt_unknown")


async def test_a_run_without_its_values_has_its_graph_and_edges(server: ApiServer) -> None:
    await server.publish(LARGE)
    run_id = (await ended(server, "large"))["run_id"]
    response = await server.http.get(f"/runs/{run_id}", params={"values": "false", "graph": "true"})
    shown = response.json()
    assert len(response.content) < 10_000
    assert (shown["outputs"], shown["nodes"]["a"]["output"], shown["nodes"]["a"]["status"]) == (None, None, "COMPLETED")
    assert (shown["graph"]["name"], shown["edges"]) == ("large", [])


async def test_what_a_node_was_given_then_and_without_secrets(server: ApiServer) -> None:
    await server.publish(COUNTS)
    run_id = (await ended(server, "counts"))["run_id"]
    path = f"/runs/{run_id}/nodes/a/input"
    assert [(await server.get(path, visit=each))["value"] for each in (1, 2, 3)] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert (await server.get(path))["visit"] == 3
    assert (await server.get(path, visit=4))["size"] == 0
    assert (await server.get(f"/runs/{run_id}/nodes/each/input"))["value"] == ["x", "y", "z"]
    assert (await server.get(f"/runs/{run_id}/nodes/each/input", index=1))["value"] == "y!"
    part = await server.http.get(path, headers={"Range": "bytes=0-3"})
    assert (part.status_code, part.content) == (206, b'{"n"')


async def test_the_items_of_a_map_by_page_and_status(server: ApiServer) -> None:
    await server.publish(COUNTS)
    run_id = (await ended(server, "counts"))["run_id"]
    path = f"/runs/{run_id}/nodes/each/items"
    page = await server.get(path, limit=2)
    assert ([each["index"] for each in page["items"]], page["next"]) == ([0, 1], "1")
    page = await server.get(path, limit=2, after=page["next"])
    assert page == {"items": [{"index": 2, "status": "COMPLETED", "attempts": 1, "error": None}], "next": None}
    assert (await server.get(path, status="FAILED"))["items"] == []
    assert (await server.get(f"/runs/{run_id}/nodes/a/items"))["items"] == []


async def test_events_that_meet_conditions(server: ApiServer) -> None:
    await server.publish(COUNTS)
    await server.publish(LARGE)
    run = await ended(server, "counts")
    path = f"/runs/{run['run_id']}/events"
    everything = (await server.get(path))["items"]
    assert [each["seq"] for each in everything] == list(range(1, run["events"] + 1))
    mine = (await server.get(path, node="a", visit=2))["items"]
    assert mine == [each for each in everything if each.get("node") == "a" and each.get("visit") == 2]
    ends = (await server.get(path, type=["NodeCompleted", "RunCompleted"]))["items"]
    assert {each["type"] for each in ends} == {"NodeCompleted", "RunCompleted"}
    first = await server.get(path, type="NodeCompleted", limit=1)
    assert (await server.get(path, type="NodeCompleted", limit=1, after=first["next"]))["items"] == [ends[1]]
    one = (await server.get(path, node="each", index=1, type=["NodeStarted", "NodeCompleted"]))["items"]
    assert [each.get("index") for each in one][:2] == [1, 1]
    assert not {0, 2} & {each.get("index") for each in one}
    assert [each["type"] for each in (await server.get(path, contains="RUNCREATED"))["items"]] == ["RunCreated"]
    assert (await server.get(path, contains="nowhere to be found")) == {"items": [], "next": None}

    big = f"/runs/{(await ended(server, 'large'))['run_id']}/events"
    (done,) = (await server.get(big, type="NodeCompleted", brief="true"))["items"]
    assert done["output"]["size"] == 200_002
    await server.publish(COUNTS.replace("[x, y, z]", f"[{'x' * 300}]").replace("counts", "wide"))
    wide = f"/runs/{(await ended(server, 'wide'))['run_id']}/events"
    (known,) = (await server.get(wide, type="NodeExpanded", brief="true"))["items"]
    assert known["items"] == {"preview": '["' + "x" * 198, "bytes": 304}


async def test_waiting_for_a_run_that_does_not_end_answers_how_it_stands(server: ApiServer) -> None:
    await server.publish(ASLEEP)
    run_id = (await server.post("/runs", {"workflow": "asleep"}))["run_id"]
    response = await server.http.get(f"/runs/{run_id}/result", params={"timeout": 0.05})
    assert (response.status_code, response.json()["status"]) == (202, "RUNNING")


async def test_the_same_key_and_body_answer_the_same_run(server: ApiServer) -> None:
    await server.publish(DOUBLE)
    body = {"workflow": "double", "inputs": {"n": 2}, "labels": {"a": "b"}}
    key = {"Idempotency-Key": "order/17"}
    first = await server.http.post("/runs", json=body, headers=key)
    await server.publish(DOUBLE.replace("* 2", "* 3"))
    again = await server.http.post("/runs", json=dict(reversed(body.items())), headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == {**again.json(), "created": True}
    run_id = first.json()["run_id"]
    assert again.json()["run_id"] == run_id and again.headers["location"].endswith(run_id)
    for other in ({"inputs": {"n": 3}}, {"labels": {}}, {"correlation_id": "x"}, {"workflow": "double@1"}):
        refused = await server.http.post("/runs", json={**body, **other}, headers=key)
        assert (refused.status_code, refused.json()["code"]) == (422, "key_reused"), other
    assert await server.engine.count() == 1
    # A run of the embedded engine may have the text of the key as its id.
    assert await server.engine.start("double", {"n": 5}, key="order/17") != run_id


async def test_many_requests_with_one_key_start_one_run(server: ApiServer) -> None:
    await server.publish(DOUBLE)
    key = {"Idempotency-Key": "k"}

    async def sent(path: str, body: Any) -> str:
        """Twenty requests at once: one of them has started the run, and the others say so."""
        answers = await asyncio.gather(*(server.http.post(path, json=body, headers=key) for _ in range(20)))
        assert sorted(each.status_code for each in answers) == [200] * 19 + [201]
        assert all(each.json()["created"] is (each.status_code == 201) for each in answers)
        (run_id,) = {each.json()["run_id"] for each in answers}
        return str(run_id)

    run_id = await sent("/runs", {"workflow": "double", "inputs": {"n": 1}})
    assert await server.engine.count() == 1
    await server.engine.result(run_id, timeout=30)
    await sent(f"/runs/{run_id}/fork", {"node": "b"})
    assert await server.engine.count() == 2
    batch = {"workflow": "double", "runs": [{"inputs": {"n": 1}, "key": each} for each in ("b1", "b2")]}
    batches = await asyncio.gather(*(server.post("/runs/batch", batch) for _ in range(5)))
    assert sum(each["created"] for started in batches for each in started["runs"]) == 2


async def test_every_route_reaches_a_run_whose_id_has_slashes_and_escapes(server: ApiServer) -> None:
    ids = {"plain": "plain", "slashes": "team/a/1", "escapes": "50%2F 1?x=y#z &\u00e9/../%25", "dots": "../x"}
    await server.publish(DOUBLE)
    for run_id in ids.values():
        await server.engine.start("double", {"n": 2}, key=run_id)
        await server.engine.result(run_id, timeout=30)
    bodies = {"rewind": {"node": "b"}, "override": {"node": "b", "skip": True}, "signal": {"name": "x"}}
    bodies |= {"relabel": {"set": {"a": "b"}}, "rehearse": {"action": "cancel"}, "fork": {"node": "b"}}
    told: dict[str, dict[str, tuple[int, str]]] = {}
    for method, path, operation in operations(server.app.openapi()):
        if "{run_id}" not in path or path.endswith("/stream"):
            continue
        for name, run_id in ids.items():
            values = {"run_id": run_id, "other_id": run_id, "node": "b"}
            url = server.url + "/".join(
                quote(values[part[1:-1]], safe="") if part.startswith("{") else part for part in path.split("/")
            )
            body = {"json": bodies.get(path.rpartition("/")[2], {})} if "requestBody" in operation else {}
            answer = await server.http.request(method, url, **body)
            code = answer.json().get("code", "") if answer.status_code >= 400 else ""
            assert code not in ("path_unknown", "run_unknown", "method_not_allowed"), (method, path, run_id)
            told.setdefault(f"{method} {path}", {})[name] = answer.status_code, code
    assert len(told) > 25
    assert [route for route, answers in told.items() if len(set(answers.values())) > 1] == []
    shown = await server.get(f"/runs/{quote(ids['escapes'], safe='')}")
    assert shown["run_id"] == ids["escapes"]


@pytest.mark.parametrize("run_id", [".", "..", "count", "batch"])
async def test_a_run_cannot_have_the_address_of_something_else(server: ApiServer, run_id: str) -> None:
    await server.publish(DOUBLE)
    with pytest.raises(Rejected) as refused:
        await server.engine.start("double", {"n": 2}, key=run_id)
    assert refused.value.code == "run_key_invalid" and refused.value.problems[0].hint


async def test_a_document_can_be_started_at_once(server: ApiServer) -> None:
    body = {"document": DOUBLE, "inputs": {"n": 1}}
    key = {"Idempotency-Key": "k"}
    first = await server.post("/runs", body, **key)
    assert (await server.get(f"/runs/{first['run_id']}/result"))["outputs"] == {"n": 2}
    assert (await server.post("/runs", body, **key))["run_id"] == first["run_id"]
    other = await server.http.post("/runs", json={"document": DOUBLE.replace("* 2", "* 3")}, headers=key)
    assert other.json()["code"] == "key_reused"
    assert len(await server.engine.versions("double")) == 1


async def test_a_batch_starts_all_or_none(server: ApiServer) -> None:
    await server.publish(DOUBLE)
    runs = [{"inputs": {"n": n}} for n in range(300)]
    started = (await server.post("/runs/batch", {"workflow": "double", "runs": runs, "labels": {"b": "1"}}))["runs"]
    assert len({each["run_id"] for each in started}) == 300
    assert await server.engine.count("label.b=1") == 300
    keyed = [{"inputs": {"n": n}, "key": f"k{n}"} for n in range(5)]
    first = await server.post("/runs/batch", {"workflow": "double", "runs": keyed})
    more = [*keyed, {"inputs": {"n": 5}, "key": "k5"}, {"inputs": {"n": 6}}]
    again = (await server.post("/runs/batch", {"workflow": "double", "runs": more}))["runs"]
    assert [each["run_id"] for each in again[:5]] == [each["run_id"] for each in first["runs"]]
    assert [each["created"] for each in again] == [False] * 5 + [True] * 2
    before = await server.engine.count()
    for bad in (
        [{"inputs": {"n": 7}}, {"inputs": {"n": "x"}}],
        [{"key": "new"}, {"inputs": {"n": 9}, "key": "k0"}],
        [{"key": "same"}, {"key": "same"}],
    ):
        refused = await server.http.post("/runs/batch", json={"workflow": "double", "runs": bad})
        assert refused.status_code == 422, bad
    assert await server.engine.count() == before


async def test_a_deadline_of_one_run(server: ApiServer) -> None:
    await server.publish(ASLEEP)
    shown = await ended(server, "asleep", deadline_seconds=0.05)
    assert (shown["status"], shown["error"]["code"]) == ("FAILED", "deadline_exceeded")
    refused = await server.http.post("/runs", json={"workflow": "asleep", "deadline_seconds": 0})
    assert refused.json()["code"] == "deadline_invalid"


async def test_pause_resume_cancel_and_labels(server: ApiServer) -> None:
    await server.publish(ASLEEP)
    run_id = (await server.post("/runs", {"workflow": "asleep"}))["run_id"]
    assert (await server.post(f"/runs/{run_id}/pause", {"reason": "wait", "command_id": "c1"}))["status"] == "PAUSED"
    assert (await server.post(f"/runs/{run_id}/resume"))["status"] == "RUNNING"
    # The first pause was carried out already: the same command changes nothing.
    assert (await server.post(f"/runs/{run_id}/pause", {"command_id": "c1"}))["status"] == "RUNNING"
    labelled = await server.post(f"/runs/{run_id}/relabel", {"set": {"team": "a"}})
    assert labelled["labels"] == {"team": "a"}
    settled = await server.post(f"/runs/{run_id}/override", {"node": "a", "value": None})
    assert settled["nodes"]["a"]["status"] == "COMPLETED"
    other = (await server.post("/runs", {"workflow": "asleep"}))["run_id"]
    response = await server.http.post(f"/runs/{other}/cancel")
    assert response.json()["status"] == "CANCELLED"
    assert (await server.http.post(f"/runs/{other}/pause")).status_code == 409
    actors = {event.get("actor") for event in await server.events(other) if event["type"] == "RunCancelled"}
    assert actors == {"local"}


async def test_a_signal_reaches_the_run(server: ApiServer) -> None:
    await server.publish(WAITING)
    run_id = (await server.post("/runs", {"workflow": "waiting"}))["run_id"]
    sent = await server.post(f"/runs/{run_id}/signal", {"name": "paid", "payload": 7, "signal_id": "s1"})
    assert sent == {"run_id": run_id, "signal_id": "s1"}
    assert (await server.get(f"/runs/{run_id}/result"))["nodes"]["a"]["status"] == "COMPLETED"


async def test_publish_start_fail_patch_retry_fork_and_compare(server: ApiServer) -> None:
    await server.publish(BROKEN)
    run_id = (await ended(server, "broken"))["run_id"]
    shown = await server.get(f"/runs/{run_id}/document")
    operations = [
        {"op": "replace", "path": "/nodes/0/type", "value": "value"},
        {"op": "replace", "path": "/nodes/0/config", "value": 5},
    ]
    patch = {"operations": operations, "base_digest": shown["digest"]}
    dry = await server.post(f"/runs/{run_id}/patch", {**patch, "dry_run": True})
    assert (dry["applied"], dry["needs_retry"], dry["changed"]) == (False, True, ["a"])
    refused = await server.http.post(f"/runs/{run_id}/patch", json=patch)
    assert (refused.status_code, refused.json()["code"]) == (409, "patch_needs_retry")
    fork = await server.http.post(f"/runs/{run_id}/fork", json={"patch": operations}, headers={"Idempotency-Key": "f"})
    assert (fork.status_code, fork.json()["created"]) == (201, True)
    again = await server.http.post(f"/runs/{run_id}/fork", json={"patch": operations}, headers={"Idempotency-Key": "f"})
    assert (again.status_code, again.json()) == (200, {**fork.json(), "created": False})
    applied = await server.post(f"/runs/{run_id}/patch", {**patch, "retry": True, "command_id": "p"})
    assert applied["applied"]
    assert (await server.get(f"/runs/{run_id}/result"))["status"] == "COMPLETED"
    fork_id = fork.json()["run_id"]
    assert (await server.get(f"/runs/{fork_id}/result"))["forked_from"][0] == run_id
    compared = await server.get(f"/runs/{run_id}/compare/{fork_id}")
    assert (compared["same"], compared["first_divergence"]) == (True, None)


async def test_a_patch_of_a_run_that_moved_says_what_moved(server: ApiServer) -> None:
    await server.publish(ASLEEP)
    run_id = (await server.post("/runs", {"workflow": "asleep"}))["run_id"]
    operations = [{"op": "replace", "path": "/nodes/1/config", "value": 2}]
    await server.post(f"/runs/{run_id}/patch", {"operations": operations})
    stale = {"operations": operations, "expected_seq": 1}
    refused = await server.http.post(f"/runs/{run_id}/patch", json=stale)
    body = refused.json()
    assert (refused.status_code, body["code"]) == (409, "patch_stale")
    shown = await server.get(f"/runs/{run_id}/document")
    assert (body["moved"]["digest"], body["moved"]["revision"]) == (shown["digest"], 1)
    assert "a" in body["moved"]["nodes"]
    refused = await server.http.post(
        f"/runs/{run_id}/patch", json={"operations": operations, "base_digest": "sha256:0"}
    )
    assert refused.status_code == 409


async def test_a_patch_and_a_fork_take_the_document_as_it_shall_become(server: ApiServer) -> None:
    await server.publish(BROKEN)
    run_id = (await ended(server, "broken"))["run_id"]
    shown = await server.get(f"/runs/{run_id}/document", text=True)
    fixed = shown["text"].replace("type: python@1", "type: value@1")
    assert "id: a" in fixed and fixed != shown["text"]
    both = await server.http.post(f"/runs/{run_id}/patch", json={"document": fixed, "operations": []})
    assert (both.status_code, both.json()["code"]) == (422, "patch_invalid")
    wrong = await server.http.post(
        f"/runs/{run_id}/patch", json={"document": fixed.replace("type: value@1", "type: nothing@1")}
    )
    assert wrong.status_code == 422
    assert wrong.json()["problems"][0]["line"] == 1 + shown["text"][: shown["text"].index("type: python@1")].count("\n")
    patch = {"document": fixed, "base_digest": shown["digest"], "retry": True}
    dry = await server.post(f"/runs/{run_id}/patch", {**patch, "dry_run": True})
    assert (dry["applied"], dry["changed"], dry["rerun"]) == (False, ["a"], ["a"])
    fork_id = (await server.http.post(f"/runs/{run_id}/fork", json={"document": fixed})).json()["run_id"]
    assert (await server.get(f"/runs/{fork_id}/result"))["status"] == "COMPLETED"
    await server.post(f"/runs/{run_id}/patch", patch)
    assert (await server.get(f"/runs/{run_id}/result"))["status"] == "COMPLETED"
    events = (await server.get(f"/runs/{run_id}/events"))["items"]
    assert [each["changed"] for each in events if each["type"] == "RunPatched"] == [["a"]]


async def test_a_rehearsal_says_what_an_action_would_do_and_changes_nothing(server: ApiServer) -> None:
    await server.publish(BROKEN)
    run_id = (await ended(server, "broken"))["run_id"]
    before = await server.get(f"/runs/{run_id}")
    again = await server.post(f"/runs/{run_id}/rehearse", {"action": "retry"})
    assert (again["status"], again["again"], again["seq"]) == ("RUNNING", ["a"], before["events"])
    assert again["events"][0] == "RunRetried"
    settled = await server.post(f"/runs/{run_id}/rehearse", {"action": "override", "node": "a", "skip": True})
    assert (settled["again"], settled["skipped"]) == ([], ["a"])
    for action, code in (("pause", "run_ended"), ("rewind", "run_ended"), ("rollback", "nothing_to_roll_back")):
        refused = await server.http.post(f"/runs/{run_id}/rehearse", json={"action": action, "node": "a"})
        assert refused.json()["code"] == code, action
    unknown = await server.http.post(f"/runs/{run_id}/rehearse", json={"action": "rewind", "node": "z"})
    assert unknown.json()["code"] == "node_unknown"
    assert await server.get(f"/runs/{run_id}") == before


async def test_a_rehearsal_names_what_is_cancelled_undone_and_unknown(server: ApiServer) -> None:
    await server.publish(BOOKED)
    run_id = (await server.post("/runs", {"workflow": "booked"}))["run_id"]
    async for event in server.engine.follow(run_id):
        if event["type"] == "NodeWaiting":
            break
    dry = await server.post(f"/runs/{run_id}/rehearse", {"action": "cancel", "compensate": True})
    assert (dry["status"], dry["cancelled"], dry["undone"]) == ("CANCELLED", ["b"], ["a/1/-1"])
    assert (await server.post(f"/runs/{run_id}/rehearse", {"action": "cancel"}))["undone"] == []
    rewound = await server.post(f"/runs/{run_id}/rehearse", {"action": "rewind", "node": "a"})
    assert (rewound["again"], rewound["cancelled"], rewound["unsure"]) == (["a", "b"], ["b"], [])
    assert (await server.get(f"/runs/{run_id}"))["status"] == "RUNNING"


async def test_bulk_acts_count_first(server: ApiServer) -> None:
    await server.publish(ASLEEP)
    for _ in range(3):
        await server.post("/runs", {"workflow": "asleep"})
    query = {"action": "cancel", "query": "workflow:asleep status:running"}
    dry = await server.post("/runs/bulk", {**query, "dry_run": True})
    assert (dry["count"], dry["done"], dry["more"]) == (3, 0, False)
    assert await server.engine.count("status:running") == 3
    done = await server.post("/runs/bulk", {**query, "limit": 2})
    assert (done["count"], done["done"], done["refused"], done["more"]) == (2, 2, 0, True)
    assert await server.engine.count("status:cancelled") == 2


async def test_bulk_acts_get_past_runs_without_effect(server: ApiServer) -> None:
    await server.publish(ASLEEP)
    old, *newer = [(await server.post("/runs", {"workflow": "asleep"}))["run_id"] for _ in range(3)]
    for run_id in newer:
        await server.post(f"/runs/{run_id}/cancel", {})
    asked = {"action": "cancel", "query": "workflow:asleep", "limit": 1}
    dry = await server.post("/runs/bulk", {**asked, "dry_run": True})
    assert ([run["run_id"] for run in dry["runs"]], dry["skipped"], dry["more"]) == ([old], 2, False)
    named = await server.post("/runs/bulk", {"action": "cancel", "run_ids": [*newer, old], "limit": 1, "dry_run": True})
    assert named == dry
    for action, done, skipped in (
        ("resume", 0, 3),
        ("pause", 1, 2),
        ("pause", 0, 3),
        ("cancel", 1, 2),
        ("cancel", 0, 3),
    ):
        outcome = await server.post("/runs/bulk", {**asked, "action": action})
        assert (outcome["done"], outcome["refused"], outcome["skipped"]) == (done, 0, skipped), action
    retried = await server.post("/runs/bulk", {**asked, "action": "retry", "limit": 2})
    assert (retried["done"], retried["skipped"], retried["more"]) == (2, 0, True)
    assert (await server.get(f"/runs/{old}"))["status"] == "CANCELLED"


async def test_bulk_acts_on_named_runs_and_says_first_which_refuse(server: ApiServer) -> None:
    await server.publish(ASLEEP)
    first, second = [(await server.post("/runs", {"workflow": "asleep"}))["run_id"] for _ in range(2)]
    await server.post(f"/runs/{first}/cancel", {})
    named = {"action": "pause", "run_ids": [first, second, second, "nobody"], "reason": "closing"}
    dry = await server.post("/runs/bulk", {**named, "dry_run": True})
    assert (dry["count"], dry["done"], dry["refused"], dry["skipped"]) == (2, 0, 1, 1)
    assert [(run["run_id"], run["status"], run["result"], run["code"]) for run in dry["runs"]] == [
        (second, "RUNNING", "would be done", ""),
        ("nobody", "", "refused", "run_unknown"),
    ]
    assert await server.engine.count("status:running") == 1
    done = await server.post("/runs/bulk", named)
    assert (done["count"], done["done"], done["refused"], done["skipped"]) == (2, 1, 1, 1)
    assert await server.engine.count("status:paused") == 1
    both = await server.http.post("/runs/bulk", json={**named, "query": "live"})
    assert (both.status_code, both.json()["path"]) == (422, "/run_ids")


async def test_a_document_and_a_patch_need_the_permission_to_write_workflows(tmp_path: Path) -> None:
    def operator(engine: Engine) -> Access:
        return Access(engine, open_as=Principal(tenant="default", name="key:ops", roles=("operator",)))

    async with api_server(sqlite_url(tmp_path), access=operator) as server:
        await server.publish(ASLEEP)
        refused = await server.http.post("/runs", json={"document": DOUBLE})
        assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed")
        run_id = (await server.post("/runs", {"workflow": "asleep"}))["run_id"]
        assert (await server.get(f"/runs/{run_id}"))["submitted_by"] == "key:ops"
        for path, body in (("patch", {"operations": []}), ("fork", {"patch": []})):
            assert (await server.http.post(f"/runs/{run_id}/{path}", json=body)).status_code == 403
        assert await server.engine.count() == 1


async def test_openapi_describes_every_route_of_runs(server: ApiServer) -> None:
    document = (await server.http.get("/openapi.json")).json()
    operations = [(path, operation) for path, methods in document["paths"].items() for operation in methods.values()]
    mine = [operation for path, operation in operations if path.startswith(("/api/v1/runs", "/api/v1/stream"))]
    assert len(mine) >= 28
    assert all(each["operationId"] and each["summary"] and each["x-permission"] for each in mine)
    assert "RunView" in document["components"]["schemas"]
    started = document["paths"]["/api/v1/runs"]["post"]["responses"]["201"]["content"]["application/json"]["schema"]
    assert started == {"$ref": "#/components/schemas/StartedRun"}


async def test_a_run_of_another_tenant_is_as_unknown_as_none(server: ApiServer) -> None:
    other = server.engine.for_tenant("other")
    await other.workflows.publish(ASLEEP)
    foreign = await other.runs.start("asleep", key="theirs")
    await server.publish(ASLEEP)
    for method, path, body in (
        ("GET", "/runs/{}", None),
        ("GET", "/runs/{}/events", None),
        ("GET", "/runs/{}/result", None),
        ("GET", "/runs/{}/nodes/a/output", None),
        ("GET", "/runs/{}/nodes/a/transcript", None),
        ("GET", "/runs/{}/nodes/a/input", None),
        ("GET", "/runs/{}/nodes/a/items", None),
        ("POST", "/runs/{}/cancel", {}),
        ("POST", "/runs/{}/fork", {}),
        ("POST", "/runs/{}/patch", {"operations": []}),
    ):
        theirs, none = [
            await server.http.request(method, path.format(each), json=body) for each in (foreign, "nothing")
        ]
        assert (theirs.status_code, theirs.text.replace(foreign, "nothing")) == (404, none.text), path
    assert (await other.inspection.show(foreign)).status == "RUNNING"
    assert (await server.get("/runs"))["items"] == []
