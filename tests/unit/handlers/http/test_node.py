"""Node type `http` against a server on loopback: what is sent, what comes back, what fails and how."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fixtures.grants import give_secrets
from tests.fixtures.handler_harness import called
from tests.fixtures.servers.web import Asked, Script, Web, Writer, cut, in_turn, json_reply, raw, redirect, reply, web
from tidemill.bootstrap import engine_at
from tidemill.errors import Rejected
from tidemill.handlers.contract import Blob, Done, Fail, Handler
from tidemill.handlers.http.exchange import retry_after_ms, with_query
from tidemill.handlers.http.node import http_handler
from tidemill.kernel.compile.compiler import compile_document
from tidemill.net.egress import Egress, Limits
from tidemill.net.http_client import Fetcher
from tidemill.node_types import built_in_types

NOW_MS = 1_700_000_000_000


@pytest.fixture
async def served() -> AsyncIterator[Web]:
    async with web() as server:
        yield server


@pytest.fixture
async def http() -> AsyncIterator[Handler]:
    fetcher = Fetcher(Egress(allow=("127.0.0.1:*",)))
    yield http_handler(fetcher, now_ms=lambda: NOW_MS)
    await fetcher.close()


async def output(handler: Handler, config: Any, **fields: Any) -> dict[str, Any]:
    ended = await called(handler, config, **fields)
    assert isinstance(ended, Done)
    found: dict[str, Any] = ended.value
    return found


async def failure(handler: Handler, config: Any, **fields: Any) -> Fail:
    with pytest.raises(Fail) as failed:
        await called(handler, config, **fields)
    return failed.value


async def test_a_get(http: Handler, served: Web) -> None:
    served.routes["/a"] = json_reply({"n": 1}, X_One="1")
    found = await output(
        http, {"url": served.url("/a"), "query": {"q": "ü &", "n": 1, "on": True, "no": None, "l": [1, 2]}}
    )
    assert (found["status"], found["body"]) == (200, {"n": 1})
    assert (found["headers"]["x-one"], found["headers"]["content-type"]) == ("1", "application/json")
    (asked,) = served.asked
    assert (asked.method, asked.target) == ("GET", "/a?q=%C3%BC+%26&n=1&on=true&l=1&l=2")
    assert found["url"] == served.url(asked.target)
    assert "idempotency-key" not in asked.headers


async def test_credentials_in_the_answer_are_not_stored_unless_the_node_asks_for_them(
    http: Handler, served: Web
) -> None:
    served.routes["/"] = json_reply(1, Set_Cookie="session=canary", X_Auth_Token="canary", X_One="1")
    found = await output(http, {"url": served.url()})
    assert "canary" not in str(found)
    assert (found["headers"]["set-cookie"], found["headers"]["x-one"]) == ("***", "1")
    found = await output(http, {"url": served.url(), "response_headers": ["Set-Cookie", "x-none"]})
    assert found["headers"] == {"set-cookie": "session=canary"}
    found = await output(http, {"url": served.url(), "pagination": {"next": "link"}})
    assert "canary" not in str(found)


@pytest.mark.parametrize(
    ("body", "sent", "media_type"),
    [
        ({"json": {"a": [1, "ü"]}}, '{"a":[1,"ü"]}'.encode(), "application/json"),
        ({"json": None}, b"null", "application/json"),
        ({"text": "hällo"}, "hällo".encode(), "text/plain; charset=utf-8"),
        ({"form": {"a": "b c", "n": [1, 2]}}, b"a=b+c&n=1&n=2", "application/x-www-form-urlencoded"),
    ],
)
async def test_bodies(http: Handler, served: Web, body: Any, sent: bytes, media_type: str) -> None:
    served.routes["/"] = reply(b"", 204)
    found = await output(http, {"url": served.url(), "body": body})
    assert (found["status"], found["body"]) == (204, None)
    (asked,) = served.asked
    assert (asked.method, asked.body, asked.headers["content-type"]) == ("POST", sent, media_type)


async def test_a_file_as_body(http: Handler, served: Web) -> None:
    async def read(described: Any) -> bytes:
        assert described["$blob"] == "sha256:1"
        return b"%PDF"

    served.routes["/"] = json_reply(1)
    described = {"$blob": "sha256:1", "size": 4, "media_type": "application/pdf", "name": "a.pdf"}
    await output(http, {"url": served.url(), "method": "PUT", "body": described}, read=read)
    (asked,) = served.asked
    assert (asked.method, asked.body, asked.headers["content-type"]) == ("PUT", b"%PDF", "application/pdf")


@pytest.mark.parametrize("body", [{"jsn": 1}, {"text": 1}, {"$blob": "sha256:1"}])
async def test_a_body_that_is_none(http: Handler, served: Web, body: Any) -> None:
    assert (await failure(http, {"url": served.url(), "body": body})).code == "config_invalid"


@pytest.mark.parametrize(
    ("auth", "name", "value"),
    [
        ({"bearer": "t"}, "authorization", "Bearer t"),
        ({"basic": {"username": "u", "password": "p:ü"}}, "authorization", "Basic dTpwOsO8"),
        ({"header": {"name": "X-Api-Key", "value": "k"}}, "x-api-key", "k"),
    ],
)  # fmt: skip
async def test_credentials(http: Handler, served: Web, auth: Any, name: str, value: str) -> None:
    async with web({"/": json_reply(1)}) as other:
        served.routes |= {"/": json_reply(1), "/away": redirect(other.url())}
        for path in ("/", "/away"):
            await output(http, {"url": served.url(path), "auth": auth})
        assert [asked.headers.get(name) for asked in served.asked] == [value, value]
        assert [asked.headers.get(name) for asked in other.asked] == [None]


@pytest.mark.parametrize(
    ("config", "sent"),
    [
        ({}, {"idempotency-key": "r/n/1/-1"}),
        ({"idempotency_header": "X-Once"}, {"x-once": "r/n/1/-1"}),
        ({"idempotency_header": False}, {}),
        ({"headers": {"Idempotency-Key": "mine"}}, {"idempotency-key": "mine"}),
        ({"method": "GET"}, {}),
    ],
)
async def test_all_attempts_carry_one_key(http: Handler, served: Web, config: Any, sent: dict[str, str]) -> None:
    served.routes["/"] = json_reply(1)
    for attempt in (1, 2):
        await output(http, {"url": served.url(), "method": "POST", **config}, attempt=attempt)
    for asked in served.asked:
        keys = {name: value for name, value in asked.headers.items() if name in ("idempotency-key", "x-once")}
        assert keys == sent


async def test_a_key_with_odd_letters_can_be_sent(http: Handler, served: Web) -> None:
    served.routes["/"] = json_reply(1)
    await output(http, {"url": served.url(), "method": "DELETE"}, node="prüfen")
    assert served.asked[0].headers["idempotency-key"] == "r/pr%C3%BCfen/1/-1"


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("http://a", "http://a?x=1"), ("http://a?", "http://a?x=1"), ("http://a?y=2", "http://a?y=2&x=1"),
        ("http://a?y=2&", "http://a?y=2&x=1"), ("http://a/b#c", "http://a/b?x=1#c"),
    ],
)  # fmt: skip
def test_a_query_is_added(url: str, whole: str) -> None:
    assert with_query(url, {"x": 1}) == whole
    assert with_query(url, {}) == url


@pytest.mark.parametrize(
    ("media_type", "body", "parse", "value"),
    [
        ("application/json", b'{"a": 1}', "auto", {"a": 1}),
        ("application/problem+json; charset=utf-8", b"[1]", "auto", [1]),
        ("application/json", b"\xef\xbb\xbf[1]", "auto", [1]),
        ("application/json", b"123456789012345678901234567890", "auto", 123456789012345678901234567890),
        ("application/json", b"", "auto", None),
        ("text/plain", b"[1]", "json", [1]),
        ("text/html; charset=ISO-8859-1", b"\xfc", "auto", "ü"),
        ('text/plain; charset="utf-8"', "ü".encode(), "auto", "ü"),
        ("text/plain; charset=klingon", "ü".encode(), "auto", "ü"),
        ("application/xml", b"<a/>", "auto", "<a/>"),
        ("text/plain", b"\xff", "auto", "\ufffd"),
        ("application/json", b"[1]", "text", "[1]"),
    ],
)
async def test_what_becomes_of_a_body(
    http: Handler, served: Web, media_type: str, body: bytes, parse: str, value: Any
) -> None:
    served.routes["/"] = reply(body, Content_Type=media_type)
    assert (await output(http, {"url": served.url(), "parse": parse}))["body"] == value


@pytest.mark.parametrize(("media_type", "parse"), [("image/png", "auto"), ("", "auto"), ("application/json", "bytes")])
async def test_other_bodies_are_files(http: Handler, served: Web, media_type: str, parse: str) -> None:
    served.routes["/"] = reply(b"\x89PNG", Content_Type=media_type)
    found = (await output(http, {"url": served.url(), "parse": parse}))["body"]
    assert isinstance(found, Blob)
    assert (found.data, found.media_type) == (b"\x89PNG", media_type or "application/octet-stream")


@pytest.mark.parametrize("body", [b"{", b"nonsense", b"<html>", b"NaN", b'{"a": 1', b"\xff", b"[" * 100_000])
async def test_a_body_that_is_not_json(http: Handler, served: Web, body: bytes) -> None:
    served.routes["/"] = reply(body, Content_Type="application/json")
    failed = await failure(http, {"url": served.url()})
    assert (failed.code, failed.retryable) == ("response_invalid", False)
    assert f"it begins: {body.decode(errors='replace')[:20]}" in failed.message
    assert failed.__cause__ is not None


@pytest.mark.parametrize(
    ("status", "expect", "good"),
    [
        (200, None, True), (204, None, True), (299, None, True), (302, None, False), (404, None, False),
        (404, [404], True), (404, ["2xx"], False), (404, ["2xx", "4xx"], True), (418, ["400-420"], True),
        (421, ["400-420"], False), (200, [404], False), (503, ["503"], True),
    ],
)  # fmt: skip
async def test_which_answers_are_expected(http: Handler, served: Web, status: int, expect: Any, good: bool) -> None:
    served.routes["/"] = json_reply({"why": "so"}, status)
    config = {"url": served.url(), **({} if expect is None else {"expect": expect})}
    if good:
        assert (await output(http, config))["status"] == status
    else:
        assert (await failure(http, config)).code == "http_status"


@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        *[(status, False) for status in (302, 400, 401, 403, 404, 409, 422)],
        *[(status, True) for status in (408, 425, 429, 500, 502, 503, 504)],
    ],
)  # fmt: skip
async def test_which_failures_are_tried_again(http: Handler, served: Web, status: int, retryable: bool) -> None:
    served.routes["/a"] = reply(b"because\r\n  of  this", status)
    failed = await failure(http, {"url": served.url("/a?token=sesame")})
    assert (failed.code, failed.retryable) == ("http_status", retryable)
    assert f"answered with {status}" in failed.message and failed.message.endswith("because of this")
    assert "sesame" not in failed.message


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("said", "ms"),
    [
        ("7", 7_000), (format_datetime(datetime.fromtimestamp(NOW_MS / 1_000 + 90, UTC), usegmt=True), 90_000),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0), ("soon", None), ("", None), ("-1", None), ("9" * 5_000, 86_400_000),
            ("000012", 12_000), ("86401", 86_400_000), ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400_000),
    ],
    ids=["seconds", "date", "past", "words", "nothing", "negative", "huge", "zeros", "long", "far"],
)  # fmt: skip
async def test_a_server_says_when_to_come_again(
    http: Handler, served: Web, status: int, said: str, ms: int | None
) -> None:
    served.routes["/"] = reply(b"", status, Retry_After=said)
    failed = await failure(http, {"url": served.url()})
    assert (failed.retryable, failed.retry_after_ms) == (True, ms)
    assert failed.hint
    assert retry_after_ms(said, NOW_MS) == ms


@pytest.mark.parametrize(
    ("script", "config", "code", "retryable"),
    [
        (cut, {}, "connection_failed", True),
        (raw(3.0), {"timeout_seconds": 0.2}, "timeout", True),
        (reply(b"x" * 1_001), {"max_bytes": 1_000}, "response_too_large", False),
        (redirect("/"), {}, "too_many_redirects", False),
        (redirect("/"), {"max_redirects": 0}, "http_status", False),
        (redirect("http://10.0.0.1/"), {}, "egress_refused", False),
        (json_reply(1), {"headers": {"X": "a\nb"}}, "request_invalid", False),
        (json_reply(1), {"url": "http://10.0.0.1/"}, "egress_refused", False),
        (json_reply(1), {"url": "http://no-such-host.invalid/"}, "host_unreachable", True),
        (json_reply(1), {"url": "http://127.0.0.1:1/"}, "connection_failed", True),
        (json_reply(1), {"url": "http://u:sesame@127.0.0.1/"}, "url_invalid", False),
    ],
)
async def test_calls_without_an_answer(
    http: Handler, served: Web, script: Script, config: Any, code: str, retryable: bool
) -> None:
    served.routes["/"] = script
    failed = await failure(http, {"url": served.url(), **config})
    assert (failed.code, failed.retryable) == (code, retryable)
    assert "sesame" not in failed.message
    assert failed.__cause__ is not None or code == "http_status"
    answered = "127.0.0.1:1/" not in str(config.get("url"))
    assert failed.unknown_outcome is (code in ("connection_failed", "timeout", "response_too_large") and answered)


def pages(total: int, *, link: bool = False) -> Script:
    async def script(asked: Asked, write: Writer) -> None:
        page = int(asked.target.partition("page=")[2] or 1)
        following = f"/items?page={page + 1}" if page < total else None
        value = {"items": [page * 10, page * 10 + 1], "next": following, "cursor": page + 1 if page < total else ""}
        said = f'</items?page=1>; rel="first", <{following}>; title="a, b"; rel="next"' if link and following else ""
        await json_reply(value, Link=said)(asked, write)

    return script


@pytest.mark.parametrize(
    ("link", "pagination"),
    [
        (False, {"next": "$.next", "items": "$.items"}),
        (False, {"next": "$.next", "items": "$.items[*]"}),
        (True, {"next": "link", "items": "$.items"}),
        (False, {"next": "$.cursor", "parameter": "page", "items": "$.items"}),
    ],
)
async def test_all_pages(http: Handler, served: Web, link: bool, pagination: Any) -> None:
    served.routes["/items"] = pages(3, link=link)
    config = {"url": served.url("/items"), "auth": {"bearer": "t"}, "pagination": pagination}
    found = await output(http, config)
    assert (found["body"], found["pages"], found["more"]) == ([10, 11, 20, 21, 30, 31], 3, False)
    assert [asked.headers["authorization"] for asked in served.asked] == ["Bearer t"] * 3


@pytest.mark.parametrize(
    ("bounds", "items", "count"),
    [({"max_pages": 2}, [10, 11, 20, 21], 2), ({"max_items": 3}, [10, 11, 20], 2), ({"max_items": 2}, [10, 11], 1)],
)
async def test_no_more_pages_than_wanted(http: Handler, served: Web, bounds: Any, items: Any, count: int) -> None:
    served.routes["/items"] = pages(10**9)
    pagination = {"next": "$.next", "items": "$.items", **bounds}
    found = await output(http, {"url": served.url("/items"), "pagination": pagination})
    assert (found["body"], found["pages"], found["more"], len(served.asked)) == (items, count, True, count)


async def test_a_page_elsewhere_gets_no_credentials(http: Handler, served: Web) -> None:
    async with web({"/b": json_reply([2])}) as other:
        served.routes["/"] = json_reply([1], Link=f"<{other.url('/b')}>; rel=next")
        config = {
            "url": served.url(),
            "auth": {"bearer": "t"},
            "headers": {"X-Key": "k"},
            "pagination": {"next": "link"},
        }
        assert (await output(http, config))["body"] == [1, 2]
        assert served.asked[0].headers["authorization"] == "Bearer t"
        assert not {"authorization", "x-key"} & set(other.asked[0].headers)


@pytest.mark.parametrize("target", ["http://10.0.0.1/", "file:///etc/passwd", 7, ["x"]])
async def test_a_page_that_must_not_be_called(http: Handler, served: Web, target: Any) -> None:
    served.routes["/"] = json_reply({"next": target})
    failed = await failure(http, {"url": served.url(), "pagination": {"next": "$.next"}})
    assert failed.code in ("egress_refused", "response_invalid") and not failed.retryable


@pytest.mark.parametrize("paging", [{"next": "$.url"}, {"next": "$.cursor", "parameter": "c"}], ids=["url", "cursor"])
async def test_a_page_that_leads_back_ends_it(http: Handler, served: Web, paging: Any) -> None:
    served.routes["/"] = json_reply({"url": served.url("/"), "cursor": "same"})
    failed = await failure(http, {"url": served.url("/"), "pagination": paging})
    assert (failed.code, failed.retryable, "leads back" in failed.message) == ("response_invalid", False, True)
    assert len(served.asked) <= 2


async def test_all_pages_together_keep_within_the_limit(http: Handler, served: Web) -> None:
    served.routes["/items"] = pages(10**9)
    config = {"url": served.url("/items"), "max_bytes": 500, "pagination": {"next": "$.next"}}
    assert (await failure(http, config)).code == "response_too_large"
    assert 5 < len(served.asked) < 12


# What is refused when it is published


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({}, ""),
        ({"url": ""}, "/url"),
        ({"url": "example.com"}, "/url"),
        ({"url": "ftp://example.com"}, "/url"),
        ({"url": "http://"}, "/url"),
        ({"url": "http://2130706433/"}, "/url"),
        ({"url": "http://[::1"}, "/url"),
        ({"url": "http://a:99999/"}, "/url"),
        ({"url": "https://u:p@example.com/"}, "/url"),
        ({"url": "https://a.example", "method": "FETCH"}, "/method"),
        ({"url": "https://a.example", "method": "get"}, "/method"),
        ({"url": "https://a.example", "headers": {"Host": "b"}}, "/headers/Host"),
        ({"url": "https://a.example", "headers": {"a": 1}}, "/headers/a"),
        ({"url": "https://a.example", "retries": 3}, "/retries"),
        ({"url": "https://a.example", "body": "text"}, "/body"),
        ({"url": "https://a.example", "auth": {}}, "/auth"),
        ({"url": "https://a.example", "auth": {"bearer": "a", "basic": {"username": "u", "password": "p"}}}, "/auth"),
        ({"url": "https://a.example", "auth": {"basic": {"username": "u"}}}, "/auth/basic"),
        ({"url": "https://a.example", "expect": ["ok"]}, "/expect/0"),
        ({"url": "https://a.example", "expect": []}, "/expect"),
        ({"url": "https://a.example", "parse": "xml"}, "/parse"),
        ({"url": "https://a.example", "max_redirects": 4}, "/max_redirects"),
        ({"url": "https://a.example", "max_bytes": 10_000_001}, "/max_bytes"),
        ({"url": "https://a.example", "timeout_seconds": 0}, "/timeout_seconds"),
        ({"url": "https://a.example", "pagination": {"items": "$"}}, "/pagination"),
        ({"url": "https://a.example", "pagination": {"next": "$["}}, "/pagination/next"),
        ({"url": "https://a.example", "pagination": {"next": "link", "items": "items["}}, "/pagination/items"),
        ({"url": "https://a.example", "idempotency_header": True}, "/idempotency_header"),
    ],
)
def test_a_config_that_cannot_work(config: Any, path: str) -> None:
    with pytest.raises(Rejected) as refused:
        compile_document({"name": "t", "nodes": [{"id": "a", "type": "http", "config": config}]}, built_in_types())
    assert {problem.code for problem in refused.value.problems} == {"config_invalid"}
    assert any(problem.path.startswith(f"/nodes/0/config{path}") for problem in refused.value.problems)


def test_nobody_is_promised_more_than_the_deployment_allows() -> None:
    handler = http_handler(Fetcher(Egress(limits=Limits(bytes_max=1_000, redirects_max=1))))
    node = {"id": "a", "type": "http", "config": {"url": "https://a.example", "max_bytes": 1_001, "max_redirects": 2}}
    with pytest.raises(Rejected) as refused:
        compile_document({"name": "t", "nodes": [node]}, {"http": [handler.type]})
    told = [problem.message for problem in refused.value.problems]
    assert any("1000" in message for message in told) and any("maximum of 1" in message for message in told)


@pytest.mark.parametrize(
    "config",
    [
        {"url": "{{ inputs.url }}", "method": "{{ inputs.method }}"},
        {"url": "https://{{ inputs.host }}/", "auth": {"bearer": "{{ secrets.TOKEN }}"}},
        {"url": "https://a.example", "headers": {"X-Key": "{{ secrets.KEY }}"}, "query": {"k": "{{ secrets.KEY }}"}},
        {"url": "https://bücher.example/"},
        {"url": "http://10.0.0.1:8080/"},
        {"url": "https://[2606:2800:21f::1]/"},
    ],
)
def test_a_config_that_may_work(config: Any) -> None:
    document = {"name": "t", "nodes": [{"id": "a", "type": "http", "config": config}]}
    assert compile_document(document, built_in_types())


@pytest.mark.parametrize(
    ("config", "fields", "calls"),
    [
        ({"body": {"text": "x"}}, {}, 3),
        ({"body": {"text": "x"}, "idempotency_header": False}, {}, 2),
        ({"body": {"text": "x"}}, {"at_most_once": True}, 2),
        ({"method": "PUT", "idempotency_header": False}, {}, 3),
        ({}, {"at_most_once": True}, 2),
    ],
    ids=["with a key", "without", "at most once", "put", "get at most once"],
)
async def test_what_a_kept_connection_has_swallowed(
    http: Handler, served: Web, config: Any, fields: Any, calls: int
) -> None:
    served.routes["/"] = in_turn(reply(b"x"), cut, reply(b"x"))
    await output(http, {"url": served.url()})
    if calls == 3:
        assert (await output(http, {"url": served.url(), **config}, **fields))["status"] == 200
    else:
        failed = await failure(http, {"url": served.url(), **config}, **fields)
        assert (failed.code, failed.retryable, failed.unknown_outcome) == ("connection_failed", True, True)
    assert len(served.asked) == calls


async def test_a_call_that_may_have_arrived_is_not_made_again_where_that_is_asked_for(
    served: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the connection was kept, and dies as if the server had closed it meanwhile."""
    monkeypatch.setenv("TIDEMILL_EGRESS_ALLOW", f"127.0.0.1:{served.port}")
    served.routes |= {"/": reply(b"x"), "/pay": cut}
    look = {"id": "look", "type": "http", "config": {"url": served.url()}}
    pay = {"id": "pay", "type": "http", "config": {"url": served.url("/pay"), "method": "PUT"}}
    pay |= {"delivery": "at_most_once", "dependencies": ["look"]}
    async with engine_at("memory://") as engine:
        await engine.publish({"name": "payment", "nodes": [look, pay]})
        ended = await engine.result(await engine.start("payment", {}))
    assert ended.error is not None and ended.error["code"] == "unknown_outcome"
    assert (len(served.asked), served.connections) == (2, 1)


async def test_in_a_run(served: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried again after the time that the server names, with the same key; its answer is the node's output."""
    monkeypatch.setenv("TIDEMILL_EGRESS_ALLOW", f"127.0.0.1:{served.port}")
    busy_first = in_turn(reply(b"busy", 503, Retry_After="0"), json_reply({"paid": True}))
    served.routes |= {"/pay": busy_first, "/logo": reply(b"\x89PNG", Content_Type="image/png")}
    pay = {"url": served.url("/pay"), "body": {"json": {"sum": "{{ inputs.sum }}"}}}
    document = {
        "name": "payment",
        "nodes": [
            {"id": "pay", "type": "http", "config": pay},
            {"id": "logo", "type": "http", "config": {"url": served.url("/logo")}},
        ],
    }
    async with engine_at("memory://") as engine:
        await engine.publish(document)
        ended = await engine.result(await engine.start("payment", {"sum": 7}))
    assert ended.error is None and ended.outputs is not None
    assert ended.outputs["pay"]["body"] == {"paid": True}
    assert ended.outputs["logo"]["body"]["media_type"] == "image/png"
    first, second = (asked for asked in served.asked if asked.path == "/pay")
    assert msgspec.json.decode(first.body) == {"sum": 7}
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/hook/T0/../x7FqZk3?key=k9Wm", id="tidied"),
        pytest.param("/hook/x7FqZk3?key=k9Wm", id="queried"),
        pytest.param("/hook/x7Fq Zk3", id="escaped"),
    ],
)
async def test_a_url_that_is_a_secret_is_nowhere(
    served: Web, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where it was tidied, nor where its query is hidden before anybody looks for it."""
    monkeypatch.setenv("TIDEMILL_EGRESS_ALLOW", "127.0.0.1:*")
    give_secrets(monkeypatch, HOOK=served.url(path.replace(" ", "%20")))
    target = path.replace("/T0/..", "").replace(" ", "%20")
    served.routes[target.partition("?")[0]] = in_turn(json_reply({"at": target}), reply(target.encode(), 404))
    node = {"type": "http", "config": {"url": "{{ secrets.HOOK }}", "query": {"a": 1}}, "on_error": "continue"}
    nodes = [{"id": "good", "dependents": ["bad"], **node}, {"id": "bad", **node}]
    async with engine_at(f"sqlite:///{tmp_path}/mill.db") as engine:
        await engine.publish({"name": "hooks", "nodes": nodes})
        run_id = await engine.start("hooks")
        view = await engine.result(run_id)
    assert len(served.asked) == 2 and served.asked[0].target.startswith(target)
    assert view.nodes["good"]["output"]["status"] == 200
    assert "answered with 404" in view.nodes["bad"]["error"]["message"]
    left = repr(view).encode() + (tmp_path / "mill.db").read_bytes()
    assert [piece for piece in (b"x7Fq", b"Zk3", b"k9Wm") if piece in left] == []
