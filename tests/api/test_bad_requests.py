"""Bad requests about runs: the right status, a problem with code and message, and nothing changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.api_server import ApiServer, api_server, sqlite_url
from tidemill.api import protection

ASLEEP = """
name: asleep
inputs: {type: object, properties: {n: {type: integer}}}
nodes: [{id: a, type: sleep, config: {seconds: 600}}]
"""
RUN = "{run}"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with api_server(sqlite_url(tmp_path)) as served:
        yield served


def send(path: str, content: bytes | str, kind: str = "application/json") -> dict[str, Any]:
    return {"method": "POST", "url": path, "content": content, "headers": {"Content-Type": kind}}


def read(path: str, **params: Any) -> dict[str, Any]:
    return {"method": "GET", "url": path, "params": params}


TABLE: dict[str, tuple[dict[str, Any], int, str]] = {
    "malformed JSON": (send("/runs", b'{"workflow": '), 400, "body_malformed"),
    "JSON that is too deep": (send("/runs", b"[" * 200_000), 413, "body_too_complex"),
    "half a character": (
        send("/runs", b'{"workflow": "asleep", "correlation_id": "\\ud800"}'), 400, "body_malformed",
    ),
    "half a character with a key": (
        {**send("/runs", b'{"workflow": "asleep", "inputs": {"m": "\\udc00"}}'),
         "headers": {"Content-Type": "application/json", "Idempotency-Key": "half"}},
        400, "body_malformed",
    ),
    "JSON in UTF-16": (send("/runs", '{"workflow": "asleep"}'.encode("utf-16-le")), 400, "body_malformed"),
    "a key that is too long": (
        {**send("/runs", b'{"workflow": "asleep"}'),
         "headers": {"Content-Type": "application/json", "Idempotency-Key": "x" * 201}},
        422, "run_key_invalid",
    ),
    "an integer of 5,000 digits": (
        send("/runs", b'{"workflow": "asleep", "inputs": {"n": ' + b"9" * 5_000 + b"}}"), 400, "body_malformed",
    ),
    "no JSON at all": (send("/runs", b"\xff\xfe"), 400, "body_malformed"),
    "another content type": (send("/runs", b'{"workflow": "asleep"}', "text/plain"), 415, "content_type_unsupported"),
    "a form": (send("/runs", b"workflow=asleep", "application/x-www-form-urlencoded"), 415, "content_type_unsupported"),
    "no body": ({"method": "POST", "url": "/runs"}, 422, "request_invalid"),
    "a list": (send("/runs", b"[]"), 422, "request_invalid"),
    "an unknown key": (send("/runs", b'{"workflow": "asleep", "input": {}}'), 422, "request_invalid"),
    "neither workflow nor document": (send("/runs", b"{}"), 422, "request_invalid"),
    "workflow and document": (send("/runs", b'{"workflow": "asleep", "document": {}}'), 422, "request_invalid"),
    "an unknown workflow": (send("/runs", b'{"workflow": "nothing"}'), 404, "workflow_unknown"),
    "an unknown version": (send("/runs", b'{"workflow": "asleep@9"}'), 404, "version_unknown"),
    "an unknown tag": (send("/runs", b'{"workflow": "asleep:stable"}'), 404, "tag_unknown"),
    "inputs that do not follow the schema": (
        send("/runs", b'{"workflow": "asleep", "inputs": {"n": "x"}}'), 422, "inputs_invalid",
    ),
    "inputs that are no JSON": (send("/runs", b'{"workflow": "asleep", "inputs": {"m": NaN}}'), 422, "inputs_not_json"),
    "inputs that are too large": (
        send("/runs", b'{"workflow": "asleep", "inputs": {"m": "' + b"x" * 1_100_000 + b'"}}'), 413, "inputs_too_large",
    ),
    "a label that is no text": (send("/runs", b'{"workflow": "asleep", "labels": {"a": 1}}'), 422, "request_invalid"),
    "a deadline in the past": (
        send("/runs", b'{"workflow": "asleep", "deadline_seconds": -1}'), 422, "deadline_invalid",
    ),
    "an invalid document": (send("/runs", b'{"document": {"name": "x"}}'), 422, "missing_key"),
    "an empty key": (
        {**send("/runs", b'{"workflow": "asleep"}'),
         "headers": {"Content-Type": "application/json", "Idempotency-Key": ""}},
        422, "run_key_invalid",
    ),
    "an empty key in a batch": (
        send("/runs/batch", b'{"workflow": "asleep", "runs": [{"key": ""}, {}]}'), 422, "run_key_invalid",
    ),
    "an empty command id": (send(f"/runs/{RUN}/cancel", b'{"command_id": ""}'), 422, "command_id_invalid"),
    "an empty signal id": (
        send(f"/runs/{RUN}/signal", b'{"name": "paid", "signal_id": ""}'), 422, "signal_invalid",
    ),
    "an empty batch": (send("/runs/batch", b'{"workflow": "asleep", "runs": []}'), 422, "request_invalid"),
    "a batch that is too large": (
        send("/runs/batch", b'{"workflow": "asleep", "runs": [' + b"{}," * 1_000 + b"{}]}"), 422, "request_invalid",
    ),
    "a query that is not understood": (read("/runs", query="statu:failed"), 422, "query_term_unknown"),
    "a bad cursor of runs": (read("/runs", after="nonsense"), 400, "bad_cursor"),
    "a mistyped query parameter": (read("/runs", limt=3), 422, "request_invalid"),
    "a query parameter of another path": (read("/me", query="live"), 422, "request_invalid"),
    "a parameter beside a body": (send(f"/runs/{RUN}/cancel?reason=x", b"{}"), 422, "request_invalid"),
    "a query parameter twice": ({"method": "GET", "url": "/runs?limit=1&limit=2"}, 422, "request_invalid"),
    "a label without a key": (send("/runs", b'{"workflow": "asleep", "labels": {"": "x"}}'), 422, "labels_invalid"),
    "a page without rows": (read("/runs", limit=0), 422, "request_invalid"),
    "a page that is too large": (read("/runs", limit=501), 422, "request_invalid"),
    "an unknown run": (read("/runs/none"), 404, "run_unknown"),
    "an event that is not there": (read(f"/runs/{RUN}", at=99), 422, "event_unknown"),
    "an event that cannot be": (read(f"/runs/{RUN}", at=10**30), 422, "request_invalid"),
    "a patch at an event that cannot be": (
        send(f"/runs/{RUN}/patch", b'{"operations": [], "expected_seq": 1' + b"0" * 30 + b"}"), 422, "request_invalid",
    ),
    "events of an unknown run": (read("/runs/none/events"), 404, "run_unknown"),
    "a bad cursor of events": (read(f"/runs/{RUN}/events", after="x"), 400, "bad_cursor"),
    "a negative cursor": (read(f"/runs/{RUN}/events", after="-1"), 400, "bad_cursor"),
    "why of an unknown node": (read(f"/runs/{RUN}/why/nope"), 404, "node_unknown"),
    "output of an unknown node": (read(f"/runs/{RUN}/nodes/nope/output"), 404, "node_unknown"),
    "output of an unknown item": (read(f"/runs/{RUN}/nodes/a/output", index=3), 422, "place_invalid"),
    "the result of an unknown run": (read("/runs/none/result"), 404, "run_unknown"),
    "a wait that is too long": (read(f"/runs/{RUN}/result", timeout=1e9), 422, "request_invalid"),
    "a drawing in another form": (read(f"/runs/{RUN}/graph", format="png"), 422, "request_invalid"),
    "a comparison with an unknown run": (read(f"/runs/{RUN}/compare/none"), 404, "run_unknown"),
    "a stream of an unknown run": (read("/runs/none/stream"), 404, "run_unknown"),
    "a stream from a bad place": (read(f"/runs/{RUN}/stream", after="x"), 400, "bad_cursor"),
    "a stream from behind the end": (read(f"/runs/{RUN}/stream", after="99"), 400, "cursor_invalid"),
    "a stream of runs with a bad query": (read("/stream", query="x"), 422, "query_term_unknown"),
    "an act on an unknown run": (send("/runs/none/cancel", b"{}"), 404, "run_unknown"),
    "an act with an unknown key": (send(f"/runs/{RUN}/pause", b'{"why": "x"}'), 422, "request_invalid"),
    "a reason that is no text": (send(f"/runs/{RUN}/pause", b'{"reason": 1}'), 422, "request_invalid"),
    "an override that says nothing": (send(f"/runs/{RUN}/override", b'{"node": "a"}'), 422, "override_unclear"),
    "a rewind to an unknown node": (send(f"/runs/{RUN}/rewind", b'{"node": "z"}'), 404, "node_unknown"),
    "a retry of a run that runs": (send(f"/runs/{RUN}/retry", b"{}"), 409, "run_not_ended"),
    "a rollback of a run that runs": (send(f"/runs/{RUN}/rollback", b"{}"), 409, "run_not_ended"),
    "a signal without a name": (send(f"/runs/{RUN}/signal", b'{"name": ""}'), 422, "signal_invalid"),
    "labels that are too long": (
        send(f"/runs/{RUN}/relabel", b'{"set": {"a": "' + b"x" * 300 + b'"}}'), 422, "labels_invalid",
    ),
    "a fork at an event that is not there": (send(f"/runs/{RUN}/fork", b'{"at": 99}'), 422, "event_unknown"),
    "a patch that is none": (send(f"/runs/{RUN}/patch", b'{"operations": 3}'), 422, "patch_invalid"),
    "a bulk act without a query": (send("/runs/bulk", b'{"action": "cancel", "query": " "}'), 422, "query_empty"),
    "a bulk act that is none": (send("/runs/bulk", b'{"action": "delete", "query": "live"}'), 422, "request_invalid"),
    "an unknown path": (read("/runs/x/y/z/nothing"), 404, "path_unknown"),
    "another method": ({"method": "DELETE", "url": "/runs"}, 405, "method_not_allowed"),
}  # fmt: skip


async def test_bad_requests_are_refused_and_change_nothing(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # A body that has arrived whole is refused at once: nothing more is waited for.
    monkeypatch.setattr(protection, "DRAINED_SECONDS", 600.0)
    await server.publish(ASLEEP)
    run_id = (await server.post("/runs", {"workflow": "asleep"}))["run_id"]
    while not (await server.engine.show(run_id)).waiting_for:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    before = await server.events(run_id)
    wrong = []
    for name, (request, status, code) in TABLE.items():
        response = await server.http.request(**{**request, "url": request["url"].replace(RUN, run_id)})
        body = response.json()
        answered = (response.status_code, body.get("code"))
        is_problem = response.headers["content-type"] == "application/problem+json" and body["detail"]
        if answered != (status, code) or not is_problem:
            wrong.append(f"{name}: {answered}, not {(status, code)}: {body['detail']}")
    assert not wrong, "\n".join(wrong)
    assert await server.events(run_id) == before
    assert await server.engine.count() == 1
    assert [row.name for row in (await server.engine.workflows.find())[0]] == ["asleep"]


async def test_a_name_that_is_not_known_is_answered_with_the_nearest(server: ApiServer) -> None:
    wrong = (await server.http.get("/runs", params={"limt": 3, "zz": "1"})).json()
    assert [(each["path"], each["hint"]) for each in wrong["problems"]] == [
        ("/limt", "did you mean `limit`?"),
        ("/zz", "known: query, after, limit"),
    ]
    for path in ("/runs", "/workflows", "/approvals", "/blobs", "/audit"):
        assert (await server.http.get(path, params={"after": "x"})).json()["path"] == "/after"
    wrong = (await server.http.post("/runs", json={"workflow": "asleep", "input": {}})).json()
    assert (wrong["path"], wrong["hint"]) == ("/input", "did you mean `inputs`?")


async def test_problems_of_a_batch_say_which_run_they_are_of(server: ApiServer) -> None:
    await server.publish(ASLEEP)
    good, bad = {"inputs": {"n": 1}}, {"inputs": {"n": "x"}}

    async def paths(runs: list[dict[str, Any]]) -> list[str]:
        refused = await server.http.post("/runs/batch", json={"workflow": "asleep", "runs": runs})
        assert refused.status_code == 422
        return [each["path"] for each in refused.json()["problems"]]

    assert await paths([good, bad, bad]) == ["/runs/1/inputs/n", "/runs/2/inputs/n"]
    assert await paths([bad]) == ["/runs/0/inputs/n"]
    assert await paths([good, {"key": ""}]) == ["/runs/1/key"]
    await server.post("/runs/batch", {"workflow": "asleep", "runs": [{**good, "key": "known"}]})
    assert await paths([{**good, "key": "known"}, bad]) == ["/runs/1/inputs/n"]
    assert await paths([good, {"inputs": {"n": 2}, "key": "known"}]) == ["/runs/1/key"]


async def test_a_request_with_very_many_wrong_names_is_told_of_some(server: ApiServer) -> None:
    names = {f"{number}-{'x' * 50}": 1 for number in range(20_000)}
    refused = await server.http.post("/runs", json={"workflow": "asleep", **names})
    assert (refused.status_code, len(refused.json()["problems"])) == (422, 100)
    refused = await server.http.get("/runs", params={name[:6]: "1" for name in list(names)[:2_000]})
    assert (refused.status_code, len(refused.json()["problems"])) == (422, 100)
