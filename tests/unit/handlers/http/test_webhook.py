"""Node type `webhook`: signed, sent once per visit however often it is tried, never redirected."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.fixtures.handler_harness import called
from tests.fixtures.servers.web import Web, cut, redirect, reply, web
from tidemill.errors import Rejected
from tidemill.handlers.contract import Done, Fail, Handler
from tidemill.handlers.http.webhook import webhook_handler
from tidemill.kernel.compile.compiler import compile_document
from tidemill.net.egress import Egress
from tidemill.net.http_client import Fetcher
from tidemill.node_types import built_in_types
from tidemill.security.signing import verify

KEY = "whsec_" + base64.b64encode(b"k" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"o" * 32).decode()
NOW_MS = 1_700_000_000_000


@pytest.fixture
async def served() -> AsyncIterator[Web]:
    async with web({"/hook": reply(b"", 204)}) as server:
        yield server


@pytest.fixture
async def webhook() -> AsyncIterator[Handler]:
    fetcher = Fetcher(Egress(allow=("127.0.0.1:*",)))
    yield webhook_handler(fetcher, lambda: NOW_MS)
    await fetcher.close()


def config(served: Web, **more: Any) -> dict[str, Any]:
    return {"url": served.url("/hook"), "type": "order.paid", "data": {"order": 7}, "secret": KEY, **more}


async def test_a_message_can_be_verified(webhook: Handler, served: Web) -> None:
    ended = await called(webhook, config(served, headers={"X-Source": "mill"}))
    (asked,) = served.asked
    message_id = verify([KEY], asked.headers, asked.body, NOW_MS)
    assert ended == Done({"id": message_id, "status": 204})
    assert msgspec.json.decode(asked.body) == {
        "type": "order.paid",
        "timestamp": "2023-11-14T22:13:20.000+00:00",
        "data": {"order": 7},
    }
    assert (asked.method, asked.headers["content-type"], asked.headers["x-source"]) == (
        "POST",
        "application/json",
        "mill",
    )


async def test_two_keys_sign_while_one_replaces_the_other(webhook: Handler, served: Web) -> None:
    await called(webhook, config(served, secret=[KEY, OTHER]))
    (asked,) = served.asked
    for key in (KEY, OTHER):
        assert verify([key], asked.headers, asked.body, NOW_MS)


async def test_the_id_is_that_of_the_visit(webhook: Handler, served: Web) -> None:
    for fields in ({"attempt": 1}, {"attempt": 2}, {"visit": 2}, {"index": 3}, {"run_id": "other"}):
        await called(webhook, config(served), **fields)
    ids = [asked.headers["webhook-id"] for asked in served.asked]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 4
    assert all("." not in each and each.startswith("msg_") for each in ids)


async def test_a_header_cannot_replace_the_signature(webhook: Handler, served: Web) -> None:
    await called(webhook, config(served, headers={"Webhook-Signature": "v1,x", "Webhook-Id": "y"}))
    (asked,) = served.asked
    assert verify([KEY], asked.headers, asked.body, NOW_MS)


@pytest.mark.parametrize(
    ("script", "code", "retryable", "after_ms"),
    [
        (reply(b"", 429, Retry_After="3"), "http_status", True, 3_000),
        (reply(b"", 500), "http_status", True, None),
        (reply(b"", 410), "http_status", False, None),
        (cut, "connection_failed", True, None),
    ],
)
async def test_what_is_tried_again(
    webhook: Handler, served: Web, script: Any, code: str, retryable: bool, after_ms: int | None
) -> None:
    served.routes["/hook"] = script
    with pytest.raises(Fail) as failed:
        await called(webhook, config(served))
    assert (failed.value.code, failed.value.retryable, failed.value.retry_after_ms) == (code, retryable, after_ms)
    assert len(served.asked) == 1


async def test_a_redirect_is_not_followed(webhook: Handler, served: Web) -> None:
    served.routes |= {"/hook": redirect("/elsewhere"), "/elsewhere": reply(b"", 204)}
    with pytest.raises(Fail) as failed:
        await called(webhook, config(served))
    assert (failed.value.code, failed.value.retryable) == ("http_status", False)
    assert [asked.path for asked in served.asked] == ["/hook"]


async def test_a_closed_address_is_refused(webhook: Handler, served: Web) -> None:
    with pytest.raises(Fail) as failed:
        await called(webhook, config(served, url="http://10.0.0.1/hook"))
    assert failed.value.code == "egress_refused"


async def test_a_key_that_cannot_be_read_is_not_told(webhook: Handler, served: Web) -> None:
    with pytest.raises(Fail) as failed:
        await called(webhook, config(served, secret="sesame"))
    assert (failed.value.code, failed.value.retryable) == ("signing_key_invalid", False)
    assert "sesame" not in failed.value.message and "base64" in failed.value.hint
    assert served.asked == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"url": "example.com"}, "/url"),
        ({"type": ""}, "/type"),
        ({"secret": KEY}, "/secret"),
        ({"secret": []}, "/secret"),
        ({"secret": ["{{ secrets.A }}", "{{ secrets.B }}", "{{ secrets.C }}"]}, "/secret"),
        ({"method": "PUT"}, "/method"),
        ({"headers": {"host": "x"}}, "/headers/host"),
    ],
)
def test_a_config_that_cannot_work(changes: Any, path: str) -> None:
    good = {"url": "https://a.example/hook", "type": "t", "secret": "{{ secrets.KEY }}"}
    document = {"name": "t", "nodes": [{"id": "a", "type": "webhook", "config": good}]}
    compile_document(document, built_in_types())
    document["nodes"] = [{"id": "a", "type": "webhook", "config": good | changes}]
    with pytest.raises(Rejected) as refused:
        compile_document(document, built_in_types())
    assert any(problem.path.startswith(f"/nodes/0/config{path}") for problem in refused.value.problems)
