"""Models that call tools, over every protocol, whole and as a stream: the same script gives the same replies."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.fixtures.model_protocols import Called, Refuses, Says
from tests.fixtures.model_questions import (
    PROMPT,
    PROTOCOLS,
    SYSTEM,
    TOOLS,
    continued,
    failed,
    question_to,
    replied,
)
from tests.fixtures.model_servers import by_conversation, model_providers, model_server, model_server_thread
from tidemill.handlers.contract import Fail
from tidemill.handlers.llm.provider import Settings, Usage, tool_message
from tidemill.handlers.llm.structured_output import check_reply

SEARCH = Called("search", {"query": "high tide, “Brest”"})
NOW = Called("now", "")

pytestmark = pytest.mark.parametrize("provider", PROTOCOLS)
both_ways = pytest.mark.parametrize("stream", [False, True])


@both_ways
async def test_a_reply_has_text_and_parallel_calls(provider: str, stream: bool) -> None:
    heard: list[str] = []
    async with model_providers() as providers, model_server(Says("Let me see.", (SEARCH, NOW, SEARCH))) as server:
        reply = await replied(providers, question_to(server, provider, stream=stream), heard.append)
        assert (reply.text, reply.finish_reason, reply.model) == ("Let me see.", "tool_calls", "tiny-2026")
        assert "".join(heard) == "Let me see."
        assert [call.name for call in reply.tool_calls] == ["search", "now", "search"]
        assert [call.arguments() for call in reply.tool_calls] == [SEARCH.arguments, {}, SEARCH.arguments]
        assert len({call.id for call in reply.tool_calls}) == 3
        assert reply.usage == Usage(input_tokens=10, output_tokens=4)
        assert (reply.provider, reply.position, reply.failed, server.complaints) == (provider, 0, (), [])


@both_ways
async def test_results_go_back_with_the_calls_they_belong_to(provider: str, stream: bool) -> None:
    turns = (Says(calls=(SEARCH, NOW)), Says(calls=(Called("now", {}, id="call_9"),)), Says("4.2 m"))
    async with model_providers() as providers, model_server(choose=by_conversation(*turns)) as server:
        question = question_to(server, provider, stream=stream)
        for results in (("a page", "noon"), ("one o'clock",)):
            reply = await replied(providers, question)
            assert len(reply.tool_calls) == len(results)
            question = continued(question, reply, *results)
        reply = await replied(providers, question)
        assert (reply.text, reply.tool_calls) == ("4.2 m", ())
        assert (server.complaints, [request.replies for request in server.requests]) == ([], [0, 1, 2])
        last = server.requests[-1].raw
        assert last.index(b"a page") < last.index(b"noon") < last.index(b"one o'clock")


@both_ways
async def test_arguments_that_are_not_json_are_kept_and_can_be_answered(provider: str, stream: bool) -> None:
    async with model_providers() as providers, model_server(Says(calls=(Called("search", '{"query": "ti'),))) as server:
        question = question_to(server, provider, stream=stream)
        reply = await replied(providers, question)
        [call] = reply.tool_calls
        with pytest.raises(ValueError, match="the arguments are not"):
            call.arguments()
        messages = (*question.messages, reply.message(), tool_message(call, "that was not JSON", failed=True))
        await replied(providers, msgspec.structs.replace(question, messages=messages))
        assert server.complaints == []
        assert b"that was not JSON" in server.requests[-1].raw


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        ("auto", True, {"openai": (None, None), "anthropic": ({"type": "auto"}, None)}),
        ("none", True, {"openai": ("none", None), "anthropic": ({"type": "none"}, None)}),
        (
            "required",
            False,
            {"openai": ("required", False), "anthropic": ({"type": "any", "disable_parallel_tool_use": True}, None)},
        ),
        (
            "now",
            True,
            {
                "openai": ({"type": "function", "function": {"name": "now"}}, None),
                "openai_responses": ({"type": "function", "name": "now"}, None),
                "anthropic": ({"type": "tool", "name": "now"}, None),
            },
        ),
    ],
)
async def test_a_question_says_which_tools_may_be_called(
    provider: str, choice: str, parallel: bool, expected: dict[str, Any]
) -> None:
    async with model_providers() as providers, model_server(Says("yes")) as server:
        await replied(providers, question_to(server, provider, tool_choice=choice, parallel_tool_calls=parallel))
        [body] = server.bodies
        found = (body.get("tool_choice"), body.get("parallel_tool_calls"))
        assert found == expected.get(provider, expected["openai"])
        names = [tool.get("name") or tool["function"]["name"] for tool in body["tools"]]
        assert names == ["search", "now"]


@both_ways
async def test_what_a_model_has_thought_is_sent_back_unchanged(provider: str, stream: bool) -> None:
    thinking: dict[str, Any] = {"extra": {"thinking": {"type": "adaptive"}}} if provider == "anthropic" else {}
    async with model_providers() as providers, model_server(Says("Hm.", (SEARCH,), thought="It is late")) as server:
        question = question_to(server, provider, thinking, stream=stream)
        reply = await replied(providers, question)
        assert (reply.native is None) == (provider == "openai")
        await replied(providers, continued(question, reply, "a page"))
        assert server.complaints == []
        assert (b"It is late" in server.requests[-1].raw) == (provider != "openai")
        for other in {*PROTOCOLS} - {provider}:
            elsewhere = continued(question_to(server, other, stream=stream), reply, "a page")
            await replied(providers, elsewhere)
            assert (server.complaints, b"It is late" in server.requests[-1].raw) == ([], False)


@both_ways
async def test_a_refusal_is_no_answer(provider: str, stream: bool) -> None:
    async with model_providers() as providers, model_server(Says(refusal="I cannot help")) as server:
        reply = await replied(providers, question_to(server, provider, stream=stream))
        with pytest.raises(Fail, match="does not answer"):
            check_reply(reply)


@both_ways
async def test_an_answer_may_reach_its_limit(provider: str, stream: bool) -> None:
    async with model_providers() as providers, model_server(Says("The tide is", finish="length")) as server:
        reply = await replied(providers, question_to(server, provider, {"max_tokens": 3}, stream=stream))
        assert (reply.text, reply.finish_reason) == ("The tide is", "length")
        limits = {"max_tokens", "max_output_tokens"} & set(server.bodies[0])
        assert [server.bodies[0][name] for name in limits] == [3]


@both_ways
async def test_cached_tokens_are_counted(provider: str, stream: bool) -> None:
    turn = Says("yes", input_tokens=100, output_tokens=5, cached_tokens=60)
    async with model_providers() as providers, model_server(turn) as server:
        reply = await replied(providers, question_to(server, provider, stream=stream))
        assert reply.usage == Usage(input_tokens=100, output_tokens=5, cached_tokens=60)


@pytest.mark.parametrize(
    ("turn", "code", "wait_ms"),
    [
        (Refuses(429, "slow down", headers={"Retry_After": "7"}), "rate_limited", 7_000),
        (Refuses(503, "busy", headers={"Retry_After_Ms": "20"}), "provider_unavailable", 20),
        (Refuses(529, "overloaded"), "provider_unavailable", None),
        (Refuses(404, "model: tiny does not exist", "not_found_error"), "model_unknown", None),
        (Refuses(400, "prompt is too long: 9 tokens > 8 maximum"), "context_too_long", None),
        (Refuses(400, "Your credit balance is too low"), "quota_exhausted", None),
    ],
)
@both_ways
async def test_refusals_have_the_same_codes_everywhere(
    provider: str, turn: Refuses, code: str, wait_ms: int | None, stream: bool
) -> None:
    async with model_providers() as providers, model_server(turn) as server:
        failure = await failed(providers, question_to(server, provider, stream=stream))
        assert (failure.code, failure.retry_after_ms) == (code, wait_ms)
        assert len(server.requests) == 1


async def test_without_a_key_the_provider_is_not_called(provider: str) -> None:
    async with model_providers() as providers, model_server(Says("yes")) as server:
        question = question_to(server, provider)
        keyless = msgspec.structs.replace(question, settings=Settings(provider=provider, model="tiny"))
        failure = await failed(providers, keyless)
        assert (failure.code, failure.retryable) == ("auth_failed", False) and "api_key" in failure.hint
        assert (await replied(providers, question)).text == "yes", "a server of one's own may need none"


async def test_a_key_is_sent_as_the_provider_wants_it(provider: str) -> None:
    async with model_providers() as providers, model_server(Says("yes"), key="k-1") as server:
        assert (await failed(providers, question_to(server, provider, {"api_key": "k-2"}))).code == "auth_failed"
        assert (await replied(providers, question_to(server, provider, {"api_key": "k-1"}))).text == "yes"
        others = {"authorization", "x-api-key"} & set(server.requests[-1].headers)
        assert len(others) == 1


@pytest.mark.parametrize("turn", [Says("a long text that is cut", cut=True), Says(calls=(SEARCH, SEARCH), cut=True)])
async def test_a_stream_that_is_cut_gives_no_reply(provider: str, turn: Says) -> None:
    async with model_providers() as providers, model_server(turn) as server:
        failure = await failed(providers, question_to(server, provider, stream=True))
        assert (failure.code, failure.retryable) == ("stream_cut", True)


async def test_a_stream_may_end_with_an_error(provider: str) -> None:
    async with model_providers() as providers, model_server(Says("a long text", breaks="engine died")) as server:
        failure = await failed(providers, question_to(server, provider, stream=True))
        assert (failure.code, failure.retryable) == ("provider_unavailable", True)
        assert "engine died" in failure.message


async def test_a_slow_first_token_ends_the_wait(provider: str) -> None:
    async with model_providers() as providers, model_server(Says(calls=(NOW,), first_token_after=30.0)) as server:
        question = question_to(server, provider, {"first_token_seconds": 0.2}, stream=True)
        assert (await failed(providers, question)).code == "first_token_late"


async def test_an_answer_that_is_none_is_said_to_be_none(provider: str) -> None:
    async with model_providers() as providers, model_server(Says("")) as server:
        reply = await replied(providers, question_to(server, provider))
        with pytest.raises(Fail) as failure:
            check_reply(reply)
        assert failure.value.code == "empty_answer"


async def test_the_prefix_of_a_request_is_the_same_for_every_turn_and_run(provider: str) -> None:
    """Byte by byte, because providers cache by bytes: everything before the messages, and all earlier messages."""
    turns = (Says(calls=(SEARCH,)), Says("4.2 m"))
    async with model_providers() as providers, model_server(choose=by_conversation(*turns)) as server:
        for prompt in ("How high is the tide?", "And tomorrow?"):
            question = question_to(server, provider, messages=(SYSTEM, PROMPT | {"content": prompt}))
            await replied(providers, continued(question, await replied(providers, question), "a page"))
        key = b'"input":' if provider == "openai_responses" else b'"messages":'
        heads = {request.raw.partition(key)[0] for request in server.requests}
        assert len(heads) == 1 and b"Finds pages" in heads.pop()
        if provider != "anthropic":
            # The marks of its cache move on with the conversation; they do not count as content.
            first, second = server.requests[:2]
            assert second.raw.startswith(first.raw.rstrip(b"]}"))


def test_a_server_in_a_thread_answers_those_who_block(provider: str) -> None:
    async def ask() -> str:
        async with model_providers() as providers:
            return (await replied(providers, question_to(server, provider, tools=TOOLS))).text

    with model_server_thread(Says("yes")) as server:
        assert asyncio.run(ask()) == "yes"
        assert len(server.requests) == 1
