"""The provider that says what it is told to say."""

from __future__ import annotations

from typing import Any

import pytest

import tidemill
from tests.handlers.llm_server import failure, output
from tests.handlers.test_llm import TITLE, Heard
from tidemill.handlers.llm.node import llm_handler
from tidemill.handlers.llm.provider import scripted

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
