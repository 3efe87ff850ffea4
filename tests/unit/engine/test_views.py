"""A run as people see it, and what it is said to wait for."""

from __future__ import annotations

import asyncio
import base64
import json
import re

import pytest

from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.engine.views import RunView, activation_id, error_view, read_activation_id
from tidemill.kernel.events import Error


def test_an_error_shows_what_there_is() -> None:
    assert error_view(None) is None
    assert error_view(Error("c", "m")) == {"code": "c", "message": "m"}
    whole = error_view(Error("c", "m", "T", True, "h", ("x: y",), "trace", 3))
    told = {"type": "T", "hint": "h", "causes": ["x: y"], "traceback": "trace", "index": 3}
    assert whole == {"code": "c", "message": "m", **told}


@simulated
async def test_a_view_is_plain_json(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(
        document(
            node("a", config={"x": [1, None, 2.5, "é"]}),
            call("m", "a", args={"seconds": "{{ item * 10 }}"}, map={"over": [1, 5], "tolerate": 1}),
            node("b", "m"),
        )
    )
    await asyncio.sleep(20)
    view = await worker.engine.show(run_id)
    shown = view.to_dict()
    for nodes in (view.nodes, RunView.from_dict(shown).nodes):
        with pytest.raises(KeyError, match=rf"run {run_id} has no node bb: did you mean `b`"):
            nodes["bb"]
    assert json.loads(json.dumps(shown)) == shown
    assert list(shown) == [
        "run_id", "workflow", "version", "revision", "status", "inputs", "outputs", "error", "counter", "events",
        "rollback", "failed_node", "waiting_for", "created_ms", "ended_ms", "last_event_ms", "submitted_by",
        "labels", "parent", "forked_from", "nodes",
    ]  # fmt: skip
    assert shown["nodes"]["m"]["items"] == {"count": 2, "done": 1, "failed": 0}
    assert set(shown["nodes"]["b"]) == {"status", "visits", "attempts", "output", "error"}


@simulated
async def test_the_error_of_an_attempt_that_will_be_tried_again_is_shown(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(
        document(
            node(
                "f",
                type="fail",
                config={"kind": "flaky", "attempts": 1, "retryable": True, "value": 1},
                retry={"backoff_seconds": 50},
            )
        )
    )
    await asyncio.sleep(5)
    shown = (await worker.engine.show(run_id)).nodes["f"]
    assert (shown["status"], shown["attempts"], shown["error"]["code"]) == ("QUEUED", 1, "flaky")
    assert (await worker.end(run_id)).nodes["f"]["error"] is None


@simulated
async def test_a_failed_item_is_named(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(
        document(node("m", type="fail", config={"attempts": "{{ item }}", "kind": "bad"}, map={"over": [0, 0, 7]}))
    )
    error = run.nodes["m"]["error"]
    assert (run.status, error["code"], error["index"]) == ("FAILED", "bad", 2)
    assert error["message"].startswith("item 2:")


@simulated
async def test_a_thousand_waits_are_not_all_named(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(*(node(f"s{i}", type="sleep", config={"seconds": 900}) for i in range(50))))
    await asyncio.sleep(1)
    row = await mill.row(run_id)
    assert row.waiting_for and len(row.waiting_for) <= 20


@pytest.mark.parametrize(
    "place",
    [("01J", "ask", 1, -1), ("order/7 ü", "a-b_c", 12, 99_999), ("x" * 200, "y" * 200, 1, 0)],
)
def test_an_id_stands_for_one_activation_and_is_safe_in_a_path(place: tuple[str, str, int, int]) -> None:
    text = activation_id(*place)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
    assert read_activation_id(text) == place


@pytest.mark.parametrize("text", ["", "x", "ü", "cnVu", f"{activation_id('r', 'n', 1, -1)}=", "a" * 9_999])
def test_what_is_no_id_stands_for_nothing(text: str) -> None:
    assert read_activation_id(text) is None


@pytest.mark.parametrize("key", ["r/n/0/-1", "r/n/1/-2", "r/n/01/-1", "r/n/1/+1", "n/1/-1", "r/n/1/x"])
def test_a_place_has_one_spelling(key: str) -> None:
    assert read_activation_id(base64.urlsafe_b64encode(key.encode()).rstrip(b"=").decode()) is None
