"""The port of models: tool calls, chains of settings, what tokens cost, and the provider `scripted` with tools."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.fixtures.model_questions import PROMPT, TOOLS
from tidemill.handlers.contract import Fail
from tidemill.handlers.llm.provider import (
    ANTHROPIC_URL,
    OPENAI_URL,
    Prices,
    Question,
    Reply,
    Settings,
    ToolCall,
    Usage,
    ignore_text,
    scripted,
    tool_message,
)


@pytest.mark.parametrize(("text", "expected"), [('{"a": [1]}', {"a": [1]}), ("", {}), (" \n", {}), ("{}", {})])
def test_the_arguments_of_a_call_are_an_object(text: str, expected: dict[str, Any]) -> None:
    assert ToolCall("1", "f", text).arguments() == expected


@pytest.mark.parametrize("text", ["[1]", "7", "null", "{", '{"a": "\\ud800"}', "nonsense", "[" * 100_000])
def test_other_arguments_are_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match="the arguments are not"):
        ToolCall("1", "f", text).arguments()


def test_a_reply_is_a_message_of_the_conversation() -> None:
    call = ToolCall("c", "f", "{}")
    assert Reply(text="yes").message() == {"role": "assistant", "content": "yes"}
    message = Reply(text="", tool_calls=(call,), native={"provider": "p"}).message()
    assert message["tool_calls"] == [{"id": "c", "name": "f", "arguments": "{}"}]
    assert message["native"] == {"provider": "p"}
    broken = Reply(text="", tool_calls=(ToolCall("c", "f", "{"), ToolCall("d", "g", ""))).message()["tool_calls"]
    assert [each["arguments"] for each in broken] == ['{"INVALID_JSON":"{"}', "{}"]
    assert tool_message(call, "7") == {"role": "tool", "tool_call_id": "c", "content": "7"}
    assert tool_message(call, "no", failed=True)["error"] is True


def test_tokens_for_the_cache_have_prices_of_their_own() -> None:
    usage = Usage(input_tokens=100, output_tokens=10, cached_tokens=60, cache_write_tokens=30)
    assert usage.cost(Prices(input_per_million=2.0, output_per_million=8.0)) == pytest.approx(280e-6)
    exact = Prices(
        input_per_million=2.0, output_per_million=8.0, cached_input_per_million=0.2, cache_write_per_million=2.5
    )
    assert usage.cost(exact) == pytest.approx((10 * 2 + 60 * 0.2 + 30 * 2.5 + 10 * 8) / 1e6)
    assert usage.to_output()["cache_write_tokens"] == 30
    assert "cache_write_tokens" not in Usage(input_tokens=1).to_output()


# Chains of settings.


def chain(*fallbacks: dict[str, Any], **main: Any) -> tuple[Settings, ...]:
    given = {"model": "m", "api_key": "k", "headers": {"x": "y"}, "extra": {"a": 1}, "temperature": 0.5, **main}
    return msgspec.convert({**given, "fallbacks": list(fallbacks)}, Settings).chain()


def test_a_fallback_at_the_same_endpoint_inherits_its_key() -> None:
    prices = {"input_per_million": 1, "output_per_million": 1}
    _, cheap, same = chain({"model": "small"}, {"model": "s", "provider": "openai", "temperature": 1}, prices=prices)
    assert (cheap.model, cheap.api_key, cheap.headers, cheap.extra) == ("small", "k", {"x": "y"}, {"a": 1})
    assert (cheap.temperature, cheap.prices, cheap.fallbacks, cheap.url) == (0.5, None, [], OPENAI_URL)
    assert (same.api_key, same.temperature) == ("k", 1.0)


def test_a_fallback_at_another_endpoint_gets_no_key() -> None:
    _, other, local, responses = chain(
        {"provider": "anthropic", "model": "c"},
        {"base_url": "http://localhost:1/v1", "model": "l"},
        {"provider": "openai_responses", "model": "r"},
    )
    assert [each.url for each in (other, local, responses)] == [ANTHROPIC_URL, "http://localhost:1/v1", OPENAI_URL]
    for each in (other, local, responses):
        assert (each.api_key, each.headers, each.extra, each.temperature) == ("", {}, {}, 0.5)
    assert local.provider == "openai"


def test_a_fallback_of_another_provider_is_not_asked_at_the_first_address() -> None:
    _, other = chain({"provider": "anthropic", "model": "c"}, base_url="http://localhost:1/v1")
    assert other.url == ANTHROPIC_URL


# The provider `scripted`.


def question(answers: Any, **fields: Any) -> Question:
    asked = {"messages": (PROMPT,), "tools": TOOLS}
    return Question(settings=Settings(provider="scripted", answers=answers), **(asked | fields))


async def test_a_script_calls_tools_and_then_answers() -> None:
    calls = [{"name": "search", "arguments": {"query": "tide"}}, {"name": "now", "id": "mine"}]
    asked = question([{"tool_calls": calls, "text": "Let me see"}, "4.2 m"])
    first = await scripted(asked, ignore_text)
    assert (first.text, first.finish_reason) == ("Let me see", "tool_calls")
    assert first.tool_calls == (ToolCall("call_1_1", "search", '{"query":"tide"}'), ToolCall("mine", "now", "{}"))
    results = [tool_message(call, "a page") for call in first.tool_calls]
    messages = (*asked.messages, first.message(), *results)
    second = await scripted(msgspec.structs.replace(asked, messages=messages), ignore_text)
    assert (second.text, second.tool_calls, second.finish_reason) == ("4.2 m", (), "stop")


async def test_the_turn_of_a_question_chooses_the_answer() -> None:
    answers = {"tide": [{"tool_calls": [{"name": "now"}]}, "one", "two"], ".": "else"}
    said = [(await scripted(question(answers, turn=turn), ignore_text)).text for turn in range(5)]
    assert said == ["", "one", "two", "two", "two"]
    reply = await scripted(question(answers, turn=0, tools=()), ignore_text)
    assert [call.id for call in reply.tool_calls] == ["call_1_1"]


async def test_a_script_may_say_what_no_model_should() -> None:
    calls = [{"name": "rm -rf", "arguments": '{"path": '}]
    reply = await scripted(question([{"tool_calls": calls}]), ignore_text)
    assert reply.tool_calls == (ToolCall("call_1_1", "rm -rf", '{"path": '),)


async def test_without_tools_a_mapping_is_text() -> None:
    reply = await scripted(question([{"tool_calls": [{"name": "now"}]}], tools=()), ignore_text)
    assert (reply.text, reply.tool_calls) == ('{"tool_calls":[{"name":"now"}]}', ())


@pytest.mark.parametrize("call", ["now", {"arguments": {}}, {"name": 7}])
async def test_a_scripted_call_needs_a_name(call: Any) -> None:
    with pytest.raises(Fail, match="no name") as failed:
        await scripted(question([{"tool_calls": [call]}]), ignore_text)
    assert failed.value.code == "config_invalid"
