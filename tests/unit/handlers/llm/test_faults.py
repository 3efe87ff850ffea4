"""What goes wrong between a node and a model: refusals, cut streams, nonsense, silence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fixtures.grants import give_secrets
from tests.fixtures.servers.llm_server import (
    CHUNKED_HEAD,
    END,
    NOW_MS,
    SSE_HEAD,
    Endpoint,
    endpoint,
    ends,
    event,
    failure,
    output,
    piece,
    refuses,
    says,
    streams,
)
from tests.fixtures.servers.web import Asked, Script, Writer, cut, json_reply, raw, reply
from tests.pace import allowed
from tidemill.bootstrap import engine_at
from tidemill.handlers.contract import Fail
from tidemill.handlers.llm.endpoint import ProviderRefused, duration_ms, events, refusal, wait_ms
from tidemill.handlers.llm.node import llm_handler
from tidemill.handlers.llm.openai import openai_provider
from tidemill.net.egress import Egress, Limits
from tidemill.net.http_client import Fetcher


async def fails(model: Endpoint, **fields: Any) -> Fail:
    """How an attempt fails; it is one request and no more."""
    failed = await failure(llm_handler(model.providers), model.config(prompt="?", **fields))
    assert len(model.served.asked) == 1
    return failed


@pytest.mark.parametrize(
    ("script", "code", "retryable"),
    [
        (refuses(401, "Incorrect API key provided"), "auth_failed", False),
        (refuses(403, "You may not use this model"), "auth_failed", False),
        (refuses(404, "The model `tiny` does not exist", "model_not_found"), "model_unknown", False),
        (refuses(400, "model tiny is unknown"), "model_unknown", False),
        (refuses(400, "too much", "context_length_exceeded"), "context_too_long", False),
        (refuses(400, "This model's maximum context length is 8192 tokens"), "context_too_long", False),
        (refuses(413, "too large"), "context_too_long", False),
        (refuses(400, "flagged", "content_filter"), "content_refused", False),
        (refuses(400, "temperature is not supported"), "provider_refused", False),
        (refuses(429, "slow down"), "rate_limited", True),
        (refuses(429, "You exceeded your current quota", "insufficient_quota"), "quota_exhausted", False),
        (refuses(429, "Rate limit reached. Add a payment method under account/billing"), "rate_limited", True),
        (refuses(402, "Payment required"), "quota_exhausted", False),
        (refuses(500, "oops"), "provider_unavailable", True),
        (refuses(503, "busy"), "provider_unavailable", True),
        (refuses(529, "Overloaded"), "provider_unavailable", True),
        (reply(b"<html>Bad Gateway</html>", 502, Content_Type="text/html"), "provider_unavailable", True),
        (reply(b"not found", 404), "provider_refused", False),
        (json_reply({"error": {"message": "overloaded"}}), "rate_limited", True),
        (json_reply({"choices": []}), "response_invalid", True),
        (json_reply({"choices": [{"message": {"content": 7}}]}), "response_invalid", True),
        (reply(b'{"choices": [', 200, Content_Type="application/json"), "response_invalid", True),
        (reply(b"<!doctype html><p>Hi", 200, Content_Type="text/html"), "response_invalid", False),
        (says(""), "empty_answer", True),
        (says(None), "empty_answer", True),
        (says("", finish="length"), "empty_answer", False),
        (says(None, message={"refusal": "I cannot help with that"}), "content_refused", False),
        (says("Well", finish="content_filter"), "content_refused", False),
        (cut, "connection_failed", True),
    ],
)
async def test_every_refusal_has_a_code(script: Script, code: str, retryable: bool) -> None:
    async with endpoint(script) as model:
        failed = await fails(model)
        assert (failed.code, failed.retryable) == (code, retryable)


async def test_no_model_at_the_address_says_where_it_was_sought_and_what_to_do() -> None:
    async with endpoint(says("never")) as model:
        config = model.config(prompt="?") | {"base_url": "http://127.0.0.1:9/v1"}
        failed = await failure(llm_handler(model.providers), config)
    assert (failed.code, failed.retryable) == ("connection_failed", True)
    for word in ("http://127.0.0.1:9/v1", "`base_url`", "`fallbacks`"):
        assert word in failed.hint
    assert "`fallbacks`" in refusal(503, "busy", {}, NOW_MS).hint


async def test_a_failure_quotes_the_provider_and_keeps_its_cause() -> None:
    async with endpoint(refuses(429, "Rate limit\n  reached " + "x" * 5_000)) as model:
        failed = await fails(model)
        assert failed.message.startswith("the provider answered with 429: Rate limit reached x")
        assert len(failed.message) < 400
        assert isinstance(failed.__cause__, ProviderRefused)


@pytest.mark.parametrize(
    ("headers", "expected_ms"),
    [
        ({"Retry_After_Ms": "1500", "Retry_After": "60"}, 1_500),
        ({"Retry_After": "7"}, 7_000),
        ({"Retry_After": "0.25"}, 250),
        ({"Retry_After": "Tue, 14 Nov 2023 22:13:30 GMT"}, 10_000),
        ({"X_RateLimit_Reset_Requests": "6m0s", "X_RateLimit_Reset_Tokens": "20ms"}, 360_000),
        (
            {
                "X_RateLimit_Reset_Requests": "6m0s",
                "X_RateLimit_Remaining_Requests": "12",
                "X_RateLimit_Reset_Tokens": "20ms",
                "X_RateLimit_Remaining_Tokens": "0",
            },
            20,
        ),
        ({"X_RateLimit_Reset": str(NOW_MS // 1_000 + 90)}, 90_000),
        ({"Retry_After": "soon"}, None),
        ({}, None),
    ],
)
async def test_a_rate_limit_says_how_long_to_wait(headers: dict[str, str], expected_ms: int | None) -> None:
    async with endpoint(refuses(429, **headers)) as model:
        failed = await fails(model)
        assert (failed.code, failed.retry_after_ms) == ("rate_limited", expected_ms)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1s", 1_000),
        ("1m30.5s", 90_500),
        ("120ms", 120),
        ("1d2h", 93_600_000),
        ("8.64s", 8_640),
        ("2023-11-14T22:13:21Z", 1_000),
        ("2023-11-14T22:13:21", 1_000),
        ("2020-01-01T00:00:00Z", 0),
        ("", None),
        ("x", None),
    ],
)
def test_durations(text: str, expected_ms: int | None) -> None:
    assert duration_ms(text, NOW_MS) == expected_ms


def test_a_long_refusal_is_not_read_to_its_end() -> None:
    began = time.thread_time()
    refused = refusal(400, {"message": "model " * 8_000}, {}, NOW_MS)
    assert refused.code == "provider_refused"
    assert time.thread_time() - began < allowed(0.5)


def test_who_may_not_try_again_need_not_wait() -> None:
    assert wait_ms({"retry-after": "-5"}, NOW_MS) is None
    assert wait_ms({"retry-after-ms": "nan", "retry-after": "2"}, NOW_MS) == 2_000


async def test_a_stream_that_just_ends_was_cut() -> None:
    async with endpoint(streams("Once upon", " a time", finish=None)) as model:
        failed = await fails(model, stream=True)
        assert (failed.code, failed.retryable) == ("stream_cut", True)


async def test_a_stream_whose_connection_breaks_was_cut() -> None:
    begun = piece("Once")
    broken = ends(raw(CHUNKED_HEAD, f"{len(begun):x}\r\n".encode() + begun + b"\r\n", 0.05, b"ff\r\nhalf a chu"))
    async with endpoint(broken) as model:
        failed = await fails(model, stream=True)
        assert (failed.code, failed.retryable) == ("stream_cut", True)
        assert failed.__cause__ is not None and "connection" in str(failed.__cause__)


async def test_a_stream_with_nonsense_in_it() -> None:
    async with endpoint(streams("Once", event(b"{oops"))) as model:
        failed = await fails(model, stream=True)
        assert (failed.code, failed.retryable) == ("response_invalid", True)
    async with endpoint(streams("Once", event({"choices": 7}))) as model:
        assert (await fails(model, stream=True)).code == "response_invalid"


async def test_an_error_in_the_middle_of_a_stream() -> None:
    async with endpoint(streams("Once", event({"error": {"message": "engine died", "code": "server_error"}}))) as model:
        failed = await fails(model, stream=True)
        assert (failed.code, failed.retryable) == ("provider_unavailable", True)
        assert "engine died" in failed.message
    async with endpoint(streams("Once", event({"error": {"message": "no", "code": "content_filter"}}))) as model:
        failed = await fails(model, stream=True)
        assert (failed.code, failed.retryable) == ("content_refused", False)


async def test_a_stream_can_be_refused_like_anything_else() -> None:
    async with endpoint(refuses(429, "slow down", Retry_After="3")) as model:
        failed = await fails(model, stream=True)
        assert (failed.code, failed.retry_after_ms) == ("rate_limited", 3_000)


async def test_a_stream_without_end_is_cut_off() -> None:
    async def babbles(asked: Asked, write: Writer) -> None:
        await write(SSE_HEAD)
        while True:
            await write(piece("and "))

    async with endpoint(babbles) as model:
        limited = Fetcher(Egress(allow=("127.0.0.1:*",), limits=Limits(bytes_max=50_000)))
        llm = llm_handler({"openai": openai_provider(limited)})
        failed = await failure(llm, model.config(prompt="?", stream=True))
        assert (failed.code, failed.retryable) == ("response_too_large", False)
        await limited.close()


async def test_an_event_without_end_is_cut_off() -> None:
    async def babbles(asked: Asked, write: Writer) -> None:
        await write(SSE_HEAD + b"data: ")
        while True:
            await write(b"x" * 60_000)

    async with endpoint(babbles) as model:
        began = time.monotonic()
        assert (await fails(model, stream=True)).code == "response_too_large"
        assert time.monotonic() - began < 50


async def test_a_refusal_without_end_is_read_in_part() -> None:
    async def babbles(asked: Asked, write: Writer) -> None:
        await write(b"HTTP/1.1 503 Busy\r\nConnection: close\r\n\r\n")
        while True:
            await write(b"busy " * 1_000)

    async with endpoint(babbles) as model:
        assert (await fails(model)).code == "provider_unavailable"


async def test_after_its_last_event_a_stream_need_not_end() -> None:
    async with endpoint(streams("yes", piece(finish="stop"), END, 30.0, finish=None)) as model:
        config = model.config(prompt="?", stream=True, timeout_seconds=10)
        assert (await output(llm_handler(model.providers), config))["text"] == "yes"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"data: a\n\ndata: b\n\n", ["a", "b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
        (b"data: a\r\rdata:b\r\r\n", ["a", "b"]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b": ping\n\nevent: x\nid: 7\ndata: a\n\n\n\n", ["a"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b"data\n\ndata:\n\ndata:  a\n\n", [" a"]),
        ("data: ä🌊\u2028\n\n".encode(), ["ä🌊\u2028"]),
        (b"data: a\n\ndata: b\n", ["a"]),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 1_000])
async def test_server_sent_events(sent: bytes, expected: list[str], size: int) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for begin in range(0, len(sent), size):
            yield sent[begin : begin + size]

    assert [data async for data in events(chunks())] == expected


async def test_a_slow_first_token_ends_the_wait() -> None:
    async with endpoint(streams(piece(), 5.0, "too late")) as model:
        failed = await fails(model, stream=True, first_token_seconds=0.2)
        assert (failed.code, failed.retryable) == ("first_token_late", True)


async def test_after_the_first_token_there_is_time() -> None:
    async with endpoint(streams("in time", 0.4, " and complete")) as model:
        config = model.config(prompt="?", stream=True, first_token_seconds=0.25)
        found = await output(llm_handler(model.providers), config)
        assert found["text"] == "in time and complete"


async def test_an_answer_has_a_time_limit() -> None:
    async with endpoint(raw(5.0)) as model:
        failed = await fails(model, timeout_seconds=0.2)
        assert (failed.code, failed.retryable) == ("timeout", True)
    async with endpoint(streams("begun", 5.0)) as model:
        failed = await fails(model, stream=True, timeout_seconds=0.3, first_token_seconds=0.2)
        assert (failed.code, failed.retryable) == ("timeout", True)


async def test_whoever_gives_up_waiting_closes_the_connection() -> None:
    left = asyncio.Event()

    async def babbles(asked: Asked, write: Writer) -> None:
        try:
            await write(SSE_HEAD)
            while True:
                await write(piece("and "))
                await asyncio.sleep(0.02)
        finally:
            left.set()

    async with endpoint(babbles) as model:
        asking = asyncio.ensure_future(output(llm_handler(model.providers), model.config(prompt="?", stream=True)))
        async with asyncio.timeout(60):
            while not model.served.asked:  # noqa: ASYNC110 - another thread answers
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert len(model.served.asked) == 1 and not left.is_set()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(left.wait(), 60)


async def test_an_engine_waits_as_long_as_it_is_told_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_EGRESS_ALLOW", "127.0.0.1:*")
    give_secrets(monkeypatch, KEY="sk-canary-0123456789")
    async with endpoint(refuses(429, "slow down", Retry_After_Ms="30"), says("at last")) as model:
        flow = {"name": "f", "nodes": [{"id": "ask", "type": "llm", "config": _secret(model)}]}
        async with engine_at("memory://") as engine:
            await engine.publish(flow)
            ended = await engine.result(await engine.start("f"))
        assert ended.outputs is not None and ended.outputs["ask"]["text"] == "at last"
        assert [asked.headers["authorization"] for asked in model.served.asked] == ["Bearer sk-canary-0123456789"] * 2


async def test_a_key_that_a_provider_repeats_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_EGRESS_ALLOW", "127.0.0.1:*")
    give_secrets(monkeypatch, KEY="sk-canary-0123456789")
    async with endpoint(refuses(401, "Incorrect API key provided: sk-canary-0123456789")) as model:
        flow = {"name": "f", "nodes": [{"id": "ask", "type": "llm", "config": _secret(model)}]}
        async with engine_at("memory://") as engine:
            await engine.publish(flow)
            ended = await engine.result(await engine.start("f"))
        error = ended.error
        assert error is not None and error["code"] == "auth_failed"
        assert "Incorrect API key provided: ***" in error["message"]
        assert error["causes"] and "sk-canary" not in str(ended)


def _secret(model: Endpoint) -> dict[str, Any]:
    return model.config(prompt="?", api_key="{{ secrets.KEY }}")
