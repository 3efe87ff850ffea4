"""What only Anthropic's protocol has: blocks, turns that alternate, marks of the cache."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from tests.fixtures.model_protocols import Called, Refuses, Says
from tests.fixtures.model_questions import PROMPT, SYSTEM, continued, failed, question_to, replied
from tests.fixtures.model_servers import NOW_MS, by_conversation, model_providers, model_server
from tests.fixtures.servers.llm_server import SSE_HEAD, output
from tests.fixtures.servers.web import json_reply, raw
from tidemill.handlers.llm.anthropic import body_of
from tidemill.handlers.llm.node import llm_handler
from tidemill.handlers.llm.provider import Question, Settings, Usage

TITLE = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}


def body(*messages: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return body_of(Question(settings=Settings(provider="anthropic", model="m", **settings), messages=messages))


def test_instructions_stand_first_and_later_ones_in_their_place() -> None:
    later = {"role": "system", "content": "Be brief"}
    asked = body(SYSTEM, {"role": "developer", "content": "Be kind"}, PROMPT, later)
    assert [block["text"] for block in asked["system"]] == ["Use the tools", "Be kind"]
    [message] = asked["messages"]
    assert [block["text"] for block in message["content"]] == ["How high is the tide?", "Be brief"]


def test_parts_become_blocks() -> None:
    parts = [
        {"type": "text", "text": "See"},
        {"type": "text", "text": " "},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "document", "source": {"type": "text"}},
    ]
    [message] = body({"role": "user", "content": parts})["messages"]
    assert message["content"] == [
        {"type": "text", "text": "See"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {"type": "document", "source": {"type": "text"}},
    ]


def test_messages_without_text_are_left_out() -> None:
    assert body(PROMPT, {"role": "assistant", "content": " "}, PROMPT)["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": PROMPT["content"]}] * 2}
    ]


def test_settings_have_the_names_of_the_protocol() -> None:
    asked = body(PROMPT, stop="END", top_p=0.5, temperature=0.0, extra={"top_k": 3, "model": "no"})
    assert (asked["stop_sequences"], asked["top_p"], asked["temperature"]) == (["END"], 0.5, 0.0)
    assert (asked["max_tokens"], asked["top_k"], asked["model"]) == (8_192, 3, "m")
    assert body(PROMPT, max_tokens=9)["max_tokens"] == 9


def test_a_failed_call_says_what_is_wrong() -> None:
    calls = [{"id": each, "name": "now", "arguments": "{}"} for each in ("a", "b", "c")]
    results = [
        {"role": "tool", "tool_call_id": "a", "content": "no clock", "error": True},
        {"role": "tool", "tool_call_id": "b", "content": "", "error": True},
        {"role": "tool", "tool_call_id": "c", "content": ""},
    ]
    asked = body(PROMPT, {"role": "assistant", "content": "", "tool_calls": calls}, *results)
    first, second, third = asked["messages"][-1]["content"]
    assert (first["is_error"], first["content"]) == (True, [{"type": "text", "text": "no clock"}])
    assert (second["is_error"], third) == (True, {"type": "tool_result", "tool_use_id": "c"})
    assert second["content"]


# The cache


def marked(body: dict[str, Any]) -> list[tuple[str, int]]:
    """Which blocks of a request are marked: tools and system by number, of messages the number of the message."""
    found = [(part, index) for part in ("tools", "system") for index, each in enumerate(body[part]) if _is_marked(each)]
    for index, message in enumerate(body["messages"]):
        *others, last = message["content"]
        assert not any(map(_is_marked, others))
        found += [("messages", index)] if _is_marked(last) else []
    return found


def _is_marked(block: dict[str, Any]) -> bool:
    return block.get("cache_control") == {"type": "ephemeral"}


async def test_the_prefix_and_the_last_turns_are_marked() -> None:
    turns = (*[Says(calls=(Called("now"), Called("now")))] * 3, Says("done"))
    async with model_providers() as providers, model_server(choose=by_conversation(*turns)) as server:
        question = question_to(server, "anthropic")
        while (reply := await replied(providers, question)).tool_calls:
            question = continued(question, reply, "noon")
        prefix = [("system", 0)]
        assert [marked(each) for each in server.bodies] == [
            [*prefix, ("messages", 0)],
            [*prefix, ("messages", 0), ("messages", 2)],
            [*prefix, ("messages", 2), ("messages", 4)],
            [*prefix, ("messages", 4), ("messages", 6)],
        ]
        assert server.complaints == []
        assert all(raw.count(b"cache_control") <= 4 for raw in (request.raw for request in server.requests))


async def test_messages_that_other_conversations_share_are_marked() -> None:
    example = ({"role": "user", "content": "The moon?"}, {"role": "assistant", "content": "A stone"})
    async with model_providers() as providers, model_server(Says("yes")) as server:
        await replied(providers, question_to(server, "anthropic", messages=(SYSTEM, *example, PROMPT), stable=3))
        assert marked(server.bodies[0]) == [("messages", 0), ("messages", 1), ("messages", 2)]


async def test_what_was_cached_is_still_there_in_the_next_turn() -> None:
    """Without the marks, which are not content, each request begins with all of the request before it."""
    turns = (Says("a", (Called("now"),)), Says(calls=(Called("now"),)), Says("done"))
    async with model_providers() as providers, model_server(choose=by_conversation(*turns)) as server:
        question = question_to(server, "anthropic")
        while (reply := await replied(providers, question)).tool_calls:
            question = continued(question, reply, "noon")
        plain = [request.raw.replace(b',"cache_control":{"type":"ephemeral"}', b"") for request in server.requests]
        assert len(plain) == 3
        for before, after in itertools.pairwise(plain):
            assert after.startswith(before.rstrip(b"]}"))


@pytest.mark.parametrize(
    ("settings", "tools", "expected"), [({}, False, 0), ({"cache": True}, False, 2), ({"cache": False}, True, 0)]
)
async def test_one_may_choose_whether_the_cache_is_used(settings: dict[str, Any], tools: bool, expected: int) -> None:
    async with model_providers() as providers, model_server(Says("yes")) as server:
        question = question_to(server, "anthropic", settings)
        await replied(providers, question if tools else msgspec.structs.replace(question, tools=()))
        assert server.requests[0].raw.count(b"cache_control") == expected


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_that_are_added_to_the_cache_are_counted_apart(stream: bool) -> None:
    turn = Says("yes", input_tokens=100, cached_tokens=60, cache_write_tokens=30)
    prices = {"input_per_million": 1, "output_per_million": 0, "cached_input_per_million": 0.1}
    async with model_providers() as providers, model_server(turn) as server:
        config = {"prices": {**prices, "cache_write_per_million": 2}}
        reply = await replied(providers, question_to(server, "anthropic", config, stream=stream))
        assert reply.usage == Usage(input_tokens=100, output_tokens=4, cached_tokens=60, cache_write_tokens=30)
        assert reply.cost == pytest.approx((10 + 6 + 60) / 1e6)


# Answers


async def test_a_schema_is_enforced_by_the_provider_where_it_can() -> None:
    rejects = {"output_config": "output_config: Extra inputs are not permitted"}
    async with model_providers() as providers:
        async with model_server(Says('{"title": "x"}')) as server:
            found = await output(llm_handler(providers), server.config("anthropic", prompt="?", schema=TITLE))
            assert (found["value"], found["repaired"]) == ({"title": "x"}, False)
            assert server.bodies[0]["output_config"] == {"format": {"type": "json_schema", "schema": TITLE}}
        async with model_server(Says('{"title": "x"}'), rejects=rejects) as server:
            found = await output(llm_handler(providers), server.config("anthropic", prompt="?", schema=TITLE))
            assert found["value"] == {"title": "x"}
            assert ["output_config" in each for each in server.bodies] == [True, False]


@pytest.mark.parametrize(
    ("headers", "expected_ms"),
    [
        (
            {
                "anthropic_ratelimit_requests_remaining": "0",
                "anthropic_ratelimit_requests_reset": "2023-11-14T22:13:30Z",
                "anthropic_ratelimit_tokens_remaining": "500",
                "anthropic_ratelimit_tokens_reset": "2023-11-14T22:20:00Z",
            },
            10_000,
        ),
        ({"anthropic_ratelimit_input_tokens_reset": "2023-11-14T23:13:21+01:00"}, 1_000),
        ({"anthropic_ratelimit_tokens_reset": "2022-01-01T00:00:00Z"}, 0),
        ({"anthropic_ratelimit_tokens_reset": "9999-01-01T00:00:00Z"}, 86_400_000),
        ({"anthropic_ratelimit_tokens_reset": "soon"}, None),
        ({"Retry_After": "3", "anthropic_ratelimit_tokens_reset": "2023-11-14T22:20:00Z"}, 3_000),
    ],
)
async def test_a_rate_limit_says_when_it_ends(headers: dict[str, str], expected_ms: int | None) -> None:
    assert NOW_MS == 1_700_000_000_000, "which is 2023-11-14T22:13:20Z"
    async with model_providers() as providers, model_server(Refuses(429, headers=headers)) as server:
        failure = await failed(providers, question_to(server, "anthropic"))
        assert (failure.code, failure.retry_after_ms) == ("rate_limited", expected_ms)


@pytest.mark.parametrize(
    ("answer", "retryable"),
    [
        (json_reply({"content": None}), True),
        (json_reply({"content": [{"type": "text", "text": 7}]}), True),
        (json_reply({"content": 7}), True),
        (json_reply([]), True),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<html"), False),
    ],
)
async def test_an_answer_in_another_form_is_refused(answer: Any, retryable: bool) -> None:
    async with model_providers() as providers, model_server(answer) as server:
        failure = await failed(providers, question_to(server, "anthropic"))
        assert (failure.code, failure.retryable) == ("response_invalid", retryable)


async def test_a_delta_without_a_beginning_is_refused() -> None:
    event = b'data: {"type":"content_block_delta","index":4,"delta":{"type":"text_delta","text":"x"}}\n\n'
    async with model_providers() as providers, model_server(raw(SSE_HEAD, event)) as server:
        assert (await failed(providers, question_to(server, "anthropic", stream=True))).code == "response_invalid"


async def test_other_blocks_are_passed_over() -> None:
    content = [{"type": "server_tool_use", "id": "s", "name": "web", "input": {}}, {"type": "text", "text": "yes"}]
    async with model_providers() as providers, model_server(json_reply({"content": content})) as server:
        reply = await replied(providers, question_to(server, "anthropic"))
        assert (reply.text, reply.tool_calls, reply.usage, reply.native) == ("yes", (), None, None)
