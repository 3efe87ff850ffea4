"""Node type `llm` against an endpoint on loopback: what is sent, what comes back, what is repaired."""

from __future__ import annotations

from typing import Any

import pytest

import tidemill
from tests.fixtures.servers.llm_server import (
    CHUNKED_HEAD,
    END,
    USED,
    endpoint,
    event,
    failure,
    output,
    piece,
    refuses,
    says,
    streams,
)
from tests.fixtures.servers.web import json_reply, raw
from tidemill.errors import Rejected
from tidemill.handlers.contract import NullSink, causes_of
from tidemill.handlers.llm.node import llm_handler
from tidemill.handlers.llm.provider import scripted
from tidemill.kernel.compile.compiler import Compiled, compile_document
from tidemill.node_types import built_in_types

TITLE = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
PRICES = {"input_per_million": 2.0, "output_per_million": 8.0}


class Heard(NullSink):
    """A voice that keeps what was streamed."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def chunk(self, value: Any) -> None:
        self.parts.append(value)


# What is sent and what comes back


async def test_a_prompt_is_answered_with_words_usage_and_cost() -> None:
    async with endpoint(says("Hello, Ada!")) as model:
        config = model.config(prompt="Greet Ada", system="Be kind", prices=PRICES)
        found = await output(llm_handler(model.providers), config)
        assert found == {
            "text": "Hello, Ada!",
            "model": "tiny-2026",
            "finish_reason": "stop",
            "usage": {"input_tokens": 10, "output_tokens": 4, "cached_tokens": 0, "total_tokens": 14},
            "cost": pytest.approx((10 * 2 + 4 * 8) / 1_000_000),
            "repaired": False,
        }
        [body] = model.bodies
        assert body["messages"] == [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Greet Ada"}]
        assert (body["model"], body["stream"]) == ("tiny", False)


async def test_all_settings_are_passed_on() -> None:
    settings = {"temperature": 0, "top_p": 0.5, "max_tokens": 7, "stop": ["END"], "seed": 3}
    async with endpoint(says("yes")) as model:
        config = model.config(prompt="?", **settings, extra={"reasoning_effort": "low", "model": "no"})
        await output(llm_handler(model.providers), config)
        [body] = model.bodies
        assert {name: body[name] for name in settings} == settings
        assert (body["reasoning_effort"], body["model"]) == ("low", "tiny")


async def test_a_prompt_follows_the_messages_and_all_instructions_are_one_message() -> None:
    earlier = [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hi!"},
    ]
    async with endpoint(says('{"title": "x"}')) as model:
        config = model.config(messages=earlier, prompt="A title, please", system="Be kind", schema=TITLE)
        await output(llm_handler(model.providers), config)
        system, *others = model.bodies[0]["messages"]
        assert [each["role"] for each in others] == ["user", "assistant", "user"]
        assert system["content"].startswith("Be kind\n\nBe brief\n\nAnswer with JSON")


async def test_the_key_and_the_headers_of_the_config_are_sent_and_nothing_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID"):
        monkeypatch.setenv(f"OPENAI_{name}", "canary")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Internal: canary\nAuthorization: canary")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://canary.example")
    async with endpoint(says("yes")) as model:
        llm = llm_handler(model.providers)
        await output(llm, model.config(prompt="?", api_key="k-1", headers={"X-Team": "blue"}))
        await output(llm, model.config(prompt="?"))
        first, second = [asked.headers for asked in model.served.asked]
        assert (first["authorization"], first["x-team"]) == ("Bearer k-1", "blue")
        assert set(second) == {
            *("accept", "accept-encoding", "content-length", "content-type", "host", "user-agent"),
        }
        assert "canary" not in str((first, second))


async def test_the_addresses_of_models_are_guarded_like_all_others() -> None:
    async with endpoint(says("yes")) as model:
        llm = llm_handler(model.providers)
        refused = await failure(
            llm, model.config(prompt="?", timeout_seconds=2) | {"base_url": "http://169.254.169.254/v1"}
        )
        assert (refused.code, refused.retryable) == ("egress_refused", False)
        refused = await failure(llm, model.config(prompt="?") | {"base_url": "http://me:pass@127.0.0.1/v1"})
        assert refused.code == "url_invalid" and "pass" not in refused.message
        assert model.served.asked == []


async def test_a_redirect_is_not_followed() -> None:
    async with endpoint(json_reply({}, 307, Location="http://127.0.0.1:1/elsewhere")) as model:
        refused = await failure(llm_handler(model.providers), model.config(prompt="?", api_key="k-1"))
        assert refused.code == "provider_refused" and "base_url" in refused.hint
        assert len(model.served.asked) == 1


async def test_a_query_of_the_base_url_is_kept() -> None:
    async with endpoint(says("yes")) as model:
        config = model.config(prompt="?") | {"base_url": f"{model.url}/?api-version=7"}
        await output(llm_handler(model.providers), config)
        assert [asked.target for asked in model.served.asked] == ["/v1/chat/completions?api-version=7"]


async def test_usage_may_be_missing_and_cached_tokens_cost_less() -> None:
    cached = USED | {"prompt_tokens_details": {"cached_tokens": 8}}
    async with endpoint(says("a", usage=None), says("b", usage=cached)) as model:
        llm = llm_handler(model.providers)
        config = model.config(prompt="?", prices=PRICES | {"cached_input_per_million": 1.0})
        first, second = await output(llm, config), await output(llm, config)
        assert (first["usage"], first["cost"]) == (None, None)
        assert second["usage"]["cached_tokens"] == 8
        assert second["cost"] == pytest.approx((2 * 2 + 8 * 1 + 4 * 8) / 1_000_000)


# Schemas and the one repair


async def test_an_answer_that_suits_its_schema_has_a_value() -> None:
    async with endpoint(says('```json\n{"title": "Tides"}\n```')) as model:
        found = await output(llm_handler(model.providers), model.config(prompt="?", schema=TITLE))
        assert (found["value"], found["repaired"]) == ({"title": "Tides"}, False)
        wanted = model.bodies[0]["response_format"]["json_schema"]
        assert (wanted["schema"], wanted["strict"]) == (TITLE, False)


@pytest.mark.parametrize(
    ("wrong", "said"), [('{"titel": "x"}', 'the key "title" is missing'), ("Sure! Here you go", "not JSON")]
)
async def test_a_wrong_answer_is_repaired_once_and_both_turns_are_counted(wrong: str, said: str) -> None:
    async with endpoint(says(wrong), says('{"title": "x"}')) as model:
        config = model.config(prompt="?", schema=TITLE, prices=PRICES)
        found = await output(llm_handler(model.providers), config)
        assert (found["value"], found["repaired"]) == ({"title": "x"}, True)
        assert found["usage"] == {"input_tokens": 20, "output_tokens": 8, "cached_tokens": 0, "total_tokens": 28}
        assert found["cost"] == pytest.approx((20 * 2 + 8 * 8) / 1_000_000)
        _, repair = model.bodies
        assert repair["messages"][-2] == {"role": "assistant", "content": wrong}
        assert said in repair["messages"][-1]["content"]


async def test_there_is_no_second_repair() -> None:
    async with endpoint(says("nonsense"), says("nonsense again"), says('{"title": "late"}')) as model:
        failed = await failure(llm_handler(model.providers), model.config(prompt="?", schema=TITLE))
        assert (failed.code, failed.retryable) == ("output_invalid", False)
        assert causes_of(failed) == ("note: the model answered: nonsense again",)
        assert len(model.bodies) == 2


async def test_an_answer_that_was_cut_short_is_not_repaired() -> None:
    async with endpoint(says('{"title": "x', finish="length")) as model:
        failed = await failure(llm_handler(model.providers), model.config(prompt="?", schema=TITLE))
        assert failed.code == "output_invalid" and "max_tokens" in failed.hint
        assert len(model.bodies) == 1


async def test_an_endpoint_that_does_not_know_schemas_is_asked_without() -> None:
    complaint = refuses(400, "Unknown parameter: 'response_format.json_schema'")
    async with endpoint(complaint, says('{"title": "x"}')) as model:
        found = await output(llm_handler(model.providers), model.config(prompt="?", schema=TITLE))
        assert found["value"] == {"title": "x"}
        first, second = model.bodies
        assert "response_format" in first and "response_format" not in second
        assert '"title"' in second["messages"][0]["content"]


async def test_the_form_of_an_answer_can_be_asked_for_in_other_ways() -> None:
    async with endpoint(says('{"title": "x"}')) as model:
        llm = llm_handler(model.providers)
        for kind in ("json_object", "none"):
            await output(llm, model.config(prompt="?", schema=TITLE, response_format=kind))
        first, second = model.bodies
        assert first["response_format"] == {"type": "json_object"}
        assert "response_format" not in second


async def test_a_stream_is_heard_part_by_part_and_returned_as_a_whole() -> None:
    voice = Heard()
    async with endpoint(streams("Hello", ", ", "Ada!")) as model:
        found = await output(llm_handler(model.providers), model.config(prompt="?", stream=True), voice=voice)
        assert voice.parts == ["Hello", ", ", "Ada!"]
        assert (found["text"], found["finish_reason"]) == ("Hello, Ada!", "stop")
        assert found["usage"]["total_tokens"] == 14
        assert model.bodies[0]["stream_options"] == {"include_usage": True}


async def test_a_stream_leaves_its_connection_for_the_next() -> None:
    whole = piece("yes") + piece(finish="stop") + END
    kept = raw(CHUNKED_HEAD, f"{len(whole):x}\r\n".encode() + whole + b"\r\n", 0.02, b"0\r\n\r\n")
    async with endpoint(kept) as model:
        llm = llm_handler(model.providers)
        for _ in range(2):
            assert (await output(llm, model.config(prompt="?", stream=True)))["text"] == "yes"
        assert (len(model.served.asked), model.served.connections) == (2, 1)


async def test_a_repair_is_not_heard() -> None:
    voice = Heard()
    async with endpoint(streams("non", "sense"), says('{"title": "x"}')) as model:
        config = model.config(prompt="?", stream=True, schema=TITLE)
        found = await output(llm_handler(model.providers), config, voice=voice)
        assert (found["value"], voice.parts) == ({"title": "x"}, ["non", "sense"])


async def test_an_endpoint_may_answer_at_once_where_a_stream_was_wanted() -> None:
    voice = Heard()
    async with endpoint(says("All of it")) as model:
        found = await output(llm_handler(model.providers), model.config(prompt="?", stream=True), voice=voice)
        assert (found["text"], voice.parts) == ("All of it", ["All of it"])


async def test_an_endpoint_that_does_not_count_streams_is_asked_without() -> None:
    async with endpoint(refuses(422, "extra field: stream_options"), streams("yes")) as model:
        found = await output(llm_handler(model.providers), model.config(prompt="?", stream=True))
        assert found["text"] == "yes"
        assert ["stream_options" in body for body in model.bodies] == [True, False]


async def test_an_empty_part_is_no_part() -> None:
    voice = Heard()
    async with endpoint(streams(piece(), event({"choices": []}), "word", "")) as model:
        found = await output(llm_handler(model.providers), model.config(prompt="?", stream=True), voice=voice)
        assert (found["text"], voice.parts) == ("word", ["word"])


def compiled(config: dict[str, Any]) -> Compiled:
    return compile_document({"name": "f", "nodes": [{"id": "ask", "type": "llm", "config": config}]}, built_in_types())


@pytest.mark.parametrize(
    ("config", "path", "words"),
    [
        ({"model": "m"}, "/config", "there is no prompt"),
        ({"prompt": "?"}, "/config", '"model" is missing'),
        ({"prompt": "?", "provider": "scripted"}, "/config", '"answers" is missing'),
        ({"prompt": "?", "model": "m", "provider": "opneai"}, "/config/provider", "openai"),
        ({"prompt": "?", "model": "m", "temprature": 1}, "/config/temprature", "no key"),
        ({"prompt": "?", "model": "m", "temperature": 3}, "/config/temperature", "3"),
        ({"prompt": "?", "model": "m", "base_url": "ftp://x"}, "/config/base_url", "not a scheme"),
        ({"prompt": "?", "model": "m", "headers": {"Host": "x"}}, "/config/headers/Host", "belongs to the connection"),
        ({"prompt": "?", "model": "m", "first_token_seconds": 1}, "/config/first_token_seconds", "only a stream"),
        ({"prompt": "?", "model": "m", "schema": {"type": "objekt"}}, "/config/schema", "objekt"),
        ({"prompt": "?", "model": "m", "extra": {"tools": []}}, "/config/extra", "tools"),
        ({"messages": [{"role": "boss", "content": "?"}], "model": "m"}, "/config/messages/0/role", "boss"),
        ({"prompt": "{{ secrets.KEY }}", "model": "m"}, "/config/prompt", "secret"),
    ],
)
def test_what_a_config_must_not_say(config: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(Rejected) as refused:
        compiled(config)
    assert [problem for problem in refused.value.problems if path in problem.path and words in str(problem)]


def test_a_key_must_not_stand_in_a_document() -> None:
    with pytest.raises(Rejected) as refused:
        compiled({"prompt": "?", "model": "m", "api_key": "sk-1"})
    [problem] = refused.value.problems
    assert problem.path.endswith("/config/api_key") and "sk-1" not in str(problem)


def test_what_a_config_may_say() -> None:
    said = [{"role": "user", "content": [{"type": "text", "text": "?"}]}]
    for config in (
        {"prompt": "?", "model": "m", "api_key": "{{ secrets.KEY }}", "headers": {"api-key": "{{ secrets.KEY }}"}},
        {"prompt": "?", "provider": "{{ inputs.provider }}", "model": "m", "answers": ["yes"]},
        {"messages": said, "model": "m", "stop": "END"},
    ):
        assert "ask" in compiled(config).workflow.by_id


# The provider that says what it is told to say


LLM = llm_handler({"scripted": scripted})


def config(answers: Any, prompt: str = "What is a tide?", **fields: Any) -> dict[str, Any]:
    return {"provider": "scripted", "prompt": prompt, "answers": answers, **fields}


async def test_it_counts_words_and_names_itself() -> None:
    found = await output(LLM, config(["The sea, rising"]))
    assert (found["text"], found["model"], found["finish_reason"]) == ("The sea, rising", "scripted", "stop")
    assert found["usage"] == {"input_tokens": 4, "output_tokens": 3, "cached_tokens": 0, "total_tokens": 7}
    assert (await output(LLM, config(["x"], model="tiny")))["model"] == "tiny"


@pytest.mark.parametrize(
    ("prompt", "said"),
    [("a tide table", "a table"), ("the tide", "the sea"), ("what is TIME", "else"), ("high tide at 7", "high water")],
)
async def test_the_longest_pattern_that_matches_the_prompt_counts(prompt: str, said: str) -> None:
    answers = {"tide": "the sea", "tide table": "a table", r"high.*\d": "high water", ".": "else"}
    assert (await output(LLM, config(answers, prompt)))["text"] == said


async def test_only_the_last_message_of_the_user_is_looked_at() -> None:
    messages = [{"role": "user", "content": "tide"}, {"role": "user", "content": [{"type": "text", "text": "moon"}]}]
    asked = {"provider": "scripted", "messages": messages, "answers": {"tide": "sea", "moon": "stone"}}
    assert (await output(LLM, asked))["text"] == "stone"


async def test_values_are_said_as_json_and_the_second_answer_is_the_repair() -> None:
    found = await output(LLM, config({"tide": ["nonsense", {"title": "Tides"}]}, schema=TITLE))
    assert (found["value"], found["repaired"]) == ({"title": "Tides"}, True)
    failed = await failure(LLM, config(["nonsense"], schema=TITLE))
    assert failed.code == "output_invalid"


async def test_it_streams_word_by_word() -> None:
    voice = Heard()
    found = await output(LLM, config([" The sea,\n rising"], stream=True), voice=voice)
    assert voice.parts == [" ", "The ", "sea,\n ", "rising"]
    assert found["text"] == "".join(voice.parts)


async def test_a_prompt_without_an_answer_fails() -> None:
    assert (await failure(LLM, config({"moon": "stone"}))).code == "script_unmatched"
    assert (await failure(LLM, config({"(": "stone"}))).code == "config_invalid"


async def test_a_pattern_that_is_too_much_for_a_prompt_is_not_tried() -> None:
    failed = await failure(LLM, config({"(a{1,1000}b{1,1000})": "stone"}, "a" * 20_000))
    assert failed.code == "config_invalid" and "too complex" in failed.message


def test_followers_see_the_parts_and_the_log_says_what_they_took() -> None:
    nodes = [
        {"id": "wait", "type": "sleep", "config": {"ms": 300}},
        {"id": "ask", "type": "llm", "dependencies": ["wait"], "config": config(["The sea, rising"], stream=True)},
        {"id": "rest", "type": "sleep", "dependencies": ["ask"], "config": {"ms": 200}},
    ]
    with tidemill.open("memory://") as mill:
        mill.publish({"name": "tides", "nodes": nodes})
        run_id = mill.start("tides")
        frames = list(mill.follow(run_id, live=True))
        assert [each["value"] for each in frames if each["type"] == "NodeStreamed"] == ["The ", "sea, ", "rising"]
        assert [line.text for line in mill.follow_logs(run_id)] == ["scripted answered: stop, 4 + 3 tokens"]
