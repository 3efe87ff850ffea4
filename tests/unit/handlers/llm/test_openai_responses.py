"""What only OpenAI's Responses have: items, a conversation without state, encrypted reasoning."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.fixtures.model_protocols import Called, Says, event
from tests.fixtures.model_questions import PROMPT, SYSTEM, continued, failed, question_to, replied
from tests.fixtures.model_servers import model_providers, model_server
from tests.fixtures.servers.llm_server import SSE_HEAD, ends, output
from tests.fixtures.servers.web import json_reply, raw
from tidemill.handlers.llm.node import llm_handler
from tidemill.handlers.llm.openai import body_of as chat_body
from tidemill.handlers.llm.openai_responses import body_of
from tidemill.handlers.llm.provider import Question, Settings

RESPONSES = "openai_responses"
TITLE = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}


def question(*messages: dict[str, Any], **fields: Any) -> Question:
    settings = Settings(provider=RESPONSES, model="m", **fields.pop("settings", {}))
    return Question(settings=settings, messages=messages or (PROMPT,), **fields)


def test_nothing_is_stored_at_the_provider_unless_the_config_says_so() -> None:
    assert body_of(question())["store"] is False
    assert body_of(question(settings={"extra": {"store": True}}))["store"] is True


def test_parts_become_parts_of_the_input() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    parts = [{"type": "text", "text": "See"}, image, {"type": "input_file", "file_id": "f"}]
    earlier = {"role": "assistant", "content": [{"type": "text", "text": "Yes?"}]}
    asked = body_of(question(SYSTEM, earlier, {"role": "user", "content": parts}))["input"]
    assert asked == [
        {"role": "system", "content": "Use the tools"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Yes?"}]},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "See"},
                {"type": "input_image", "image_url": "https://example.com/a.png"},
                {"type": "input_file", "file_id": "f"},
            ],
        },
    ]


def test_a_cache_key_is_for_openai_only() -> None:
    for write in (body_of, chat_body):
        assert write(question(cache_key="k"))["prompt_cache_key"] == "k"
        assert write(question(cache_key="sha256:" + "a" * 64))["prompt_cache_key"] == "a" * 64, "it takes no more"
        assert "prompt_cache_key" not in write(question(cache_key="k", settings={"base_url": "http://localhost:1/v1"}))


async def test_the_form_of_an_answer_is_given_to_the_provider() -> None:
    async with model_providers() as providers, model_server(Says('{"title": "x"}')) as server:
        config = server.config(RESPONSES, prompt="?", schema=TITLE, strict=True, extra={"text": {"verbosity": "low"}})
        found = await output(llm_handler(providers), config)
        assert (found["value"], found["finish_reason"]) == ({"title": "x"}, "stop")
        wanted = {"type": "json_schema", "name": "answer", "schema": TITLE, "strict": True}
        assert server.bodies[0]["text"] == {"verbosity": "low", "format": wanted}
        for kind in ("json_object", "none"):
            config = server.config(RESPONSES, prompt="?", schema=TITLE, response_format=kind)
            await output(llm_handler(providers), config)
        assert [each.get("text") for each in server.bodies[1:]] == [{"format": {"type": "json_object"}}, None]


async def test_a_model_that_cannot_reason_is_asked_to_once() -> None:
    rejects = {"include": "Encrypted content is not supported with this model."}
    async with model_providers() as providers, model_server(Says("yes"), rejects=rejects) as server:
        for _ in range(3):
            await replied(providers, question_to(server, RESPONSES))
        await replied(providers, question_to(server, RESPONSES, {"model": "other"}))
        assert ["include" in each for each in server.bodies] == [True, False, False, False, True, False]


async def test_reasoning_is_not_sent_to_another_model() -> None:
    async with model_providers() as providers, model_server(Says(calls=(Called("now"),), thought="hm")) as server:
        asked = question_to(server, RESPONSES)
        reply = await replied(providers, asked)
        elsewhere = msgspec.structs.replace(asked.settings, model="other")
        for settings, kinds in (
            (asked.settings, ["reasoning", "function_call", "function_call_output"]),
            (elsewhere, ["function_call", "function_call_output"]),
        ):
            again = msgspec.structs.replace(asked, settings=settings)
            await replied(providers, continued(again, reply, "noon"))
            assert [item["type"] for item in server.bodies[-1]["input"] if "type" in item] == kinds
        assert server.complaints == []


async def test_an_answer_may_have_probabilities() -> None:
    tokens = [{"token": "ye", "logprob": -0.5}, {"token": "s", "logprob": 0.0}]
    content = [{"type": "output_text", "text": "yes", "logprobs": tokens}]
    answer = json_reply({"status": "completed", "output": [{"type": "message", "content": content}]})
    async with model_providers() as providers, model_server(answer) as server:
        reply = await replied(providers, question_to(server, RESPONSES, tools=(), logprobs=True))
        assert (reply.text, reply.logprobs, reply.usage) == ("yes", (("ye", -0.5), ("s", 0.0)), None)
        assert server.bodies[0]["include"] == ["message.output_text.logprobs"]


async def test_a_stream_whose_last_event_lacks_the_output_is_complete() -> None:
    message = {"type": "message", "content": [{"type": "output_text", "text": "yes"}]}
    call = {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"}
    events = [
        event({"type": "response.output_item.done", "output_index": 1, "item": call}),
        event({"type": "response.output_item.done", "output_index": 0, "item": message}),
        event({"type": "response.completed", "response": {"status": "completed", "output": []}}),
    ]
    heard: list[str] = []
    async with model_providers() as providers, model_server(ends(raw(SSE_HEAD, *events))) as server:
        reply = await replied(providers, question_to(server, RESPONSES, stream=True), heard.append)
        assert (reply.text, [call.id for call in reply.tool_calls], heard) == ("yes", ["c"], ["yes"])


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"status": "failed", "error": {"code": "server_error", "message": "died"}}, "provider_unavailable"),
        ({"status": "failed", "output": [], "error": {"code": "rate_limit_exceeded", "message": "m"}}, "rate_limited"),
        ({"status": "failed", "output": []}, "provider_unavailable"),
        ({"status": "completed"}, "response_invalid"),
        ({"output": [{"type": "message", "content": 7}]}, "response_invalid"),
        ({"output": [{"type": "function_call", "name": ["now"]}]}, "response_invalid"),
    ],
)
async def test_an_answer_may_be_none(answer: Any, code: str) -> None:
    async with model_providers() as providers, model_server(json_reply(answer)) as server:
        assert (await failed(providers, question_to(server, RESPONSES))).code == code
