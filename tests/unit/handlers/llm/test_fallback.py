"""Chains of models: who is asked next, what is recorded, and which secrets go where."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.grants import secret_grants
from tests.fixtures.handler_harness import called
from tests.fixtures.model_protocols import Refuses, Says
from tests.fixtures.model_questions import PROTOCOLS
from tests.fixtures.model_servers import ModelServer, model_providers, model_server
from tests.fixtures.servers.llm_server import failure, output
from tests.fixtures.servers.web import Script, raw
from tidemill.bootstrap import engine_at
from tidemill.errors import Rejected
from tidemill.handlers.contract import Done, NullSink, causes_of
from tidemill.handlers.llm.classify import classify_handler
from tidemill.handlers.llm.node import llm_handler
from tidemill.kernel.compile.compiler import compile_document
from tidemill.node_types import built_in_types
from tidemill.security.secrets import PREFIX

BUSY = Refuses(503, "busy")
PRICES = {"input_per_million": 2.0, "output_per_million": 8.0}
TITLE = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}


def chained(first: ModelServer, *others: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return first.config("openai", prompt="?", fallbacks=list(others), **fields)


async def test_the_next_model_is_asked_and_both_calls_are_recorded() -> None:
    async with model_providers() as providers, model_server(BUSY) as first, model_server(Says("yes")) as second:
        config = chained(
            first,
            second.config("anthropic", model="small", prices=PRICES),
            prices={"input_per_million": 500, "output_per_million": 500},
        )
        found = await output(llm_handler(providers), config)
        assert (found["text"], found["provider"], found["model"]) == ("yes", "anthropic", "tiny-2026")
        assert found["cost"] == pytest.approx((10 * 2 + 4 * 8) / 1e6)
        [call] = found["failed_calls"]
        assert call["message"] == "the provider answered with 503: busy"
        assert (call["provider"], call["model"], call["code"]) == ("openai", "tiny", "provider_unavailable")
        assert (len(first.requests), [request.protocol for request in second.requests]) == (1, ["anthropic"])


async def test_without_failures_only_the_first_model_is_asked() -> None:
    async with model_providers() as providers, model_server(Says("yes")) as first, model_server(BUSY) as second:
        found = await output(llm_handler(providers), chained(first, second.config("anthropic")))
        assert (found["provider"], found["failed_calls"], second.requests) == ("openai", [], [])
        assert "failed_calls" not in await output(llm_handler(providers), first.config("openai", prompt="?"))


async def test_a_refusal_to_answer_is_not_passed_on() -> None:
    turns = [Says(refusal="no"), Refuses(400, "flagged", "content_filter")]
    for turn in turns:
        async with model_providers() as providers, model_server(turn) as first, model_server(Says("yes")) as second:
            failed = await failure(llm_handler(providers), chained(first, second.config("openai")))
            assert (failed.code, second.requests) == ("content_refused", [])


async def test_what_the_operator_forbids_is_not_passed_on() -> None:
    async with model_providers() as providers, model_server(Says("yes")) as second:
        config = chained(second, second.config("anthropic")) | {"base_url": "http://169.254.169.254/v1"}
        assert (await failure(llm_handler(providers), config)).code == "egress_refused"
        assert second.requests == []


@pytest.mark.parametrize(
    ("turns", "code", "retryable", "wait_ms"),
    [
        ([Refuses(401), BUSY], "provider_unavailable", True, None),
        ([Refuses(401), Refuses(404)], "auth_failed", False, None),
        (
            [Refuses(429, headers={"Retry_After": "9"}), Refuses(429, headers={"Retry_After": "4"})],
            "rate_limited",
            True,
            4_000,
        ),
        ([Refuses(429, headers={"Retry_After": "9"}), BUSY], "rate_limited", True, None),
        ([Refuses(429, headers={"Retry_After": "9"}), Refuses(401)], "rate_limited", True, 9_000),
    ],
)
async def test_if_all_fail_the_engine_retries_what_can_be_retried(
    turns: list[Refuses], code: str, retryable: bool, wait_ms: int | None
) -> None:
    async with model_providers() as providers, model_server(turns[0]) as first, model_server(turns[1]) as second:
        failed = await failure(llm_handler(providers), chained(first, second.config("anthropic", model="other")))
        assert (failed.code, failed.retryable, failed.retry_after_ms) == (code, retryable, wait_ms)
        assert any("failed too" in cause for cause in causes_of(failed))
        assert (len(first.requests), len(second.requests)) == (1, 1)


class Heard(NullSink):
    def __init__(self) -> None:
        self.parts: list[Any] = []

    def chunk(self, value: Any) -> None:
        self.parts.append(value)


@pytest.mark.parametrize(("broken", "heard"), [(BUSY, "in full"), (Says("half of an answer", cut=True), "half of")])
async def test_followers_never_hear_two_answers(broken: Refuses | Says, heard: str) -> None:
    voice = Heard()
    async with model_providers() as providers, model_server(broken) as first, model_server(Says("in full")) as second:
        config = chained(first, second.config("anthropic"), stream=True)
        found = await output(llm_handler(providers), config, voice=voice)
        assert found["text"] == "in full"
        assert "".join(voice.parts).startswith(heard) and ("in full" in "".join(voice.parts)) == (heard == "in full")


async def test_a_repair_is_asked_of_the_model_that_answered() -> None:
    answers = (Says("nonsense"), Says('{"title": "x"}'))
    async with model_providers() as providers, model_server(BUSY) as first, model_server(*answers) as second:
        config = chained(first, second.config("openai_responses", prices=PRICES), schema=TITLE)
        found = await output(llm_handler(providers), config)
        assert (found["value"], found["repaired"]) == ({"title": "x"}, True)
        assert (len(first.requests), len(second.requests), len(found["failed_calls"])) == (1, 2, 1)
        assert found["cost"] == pytest.approx(2 * (10 * 2 + 4 * 8) / 1e6)


async def test_if_the_model_of_a_repair_fails_the_first_one_is_asked() -> None:
    answers = (Says("nonsense"), BUSY)
    turns = (BUSY, Says('{"title": "x"}'))
    async with model_providers() as providers, model_server(*turns) as first, model_server(*answers) as second:
        found = await output(llm_handler(providers), chained(first, second.config("anthropic"), schema=TITLE))
        assert (found["value"], found["provider"]) == ({"title": "x"}, "openai")
        assert [call["provider"] for call in found["failed_calls"]] == ["openai", "anthropic"]


async def test_a_silent_model_is_given_up() -> None:
    silent: Script = raw(30.0)
    async with model_providers() as providers, model_server(silent) as first, model_server(Says("yes")) as second:
        config = chained(first, second.config("openai", timeout_seconds=60), timeout_seconds=0.2)
        found = await output(llm_handler(providers), config)
        assert (found["text"], found["failed_calls"][0]["code"]) == ("yes", "timeout")


@pytest.mark.parametrize("provider", PROTOCOLS)
async def test_classify_has_fallbacks_too(provider: str) -> None:
    answer = Says('{"label": "bug", "confidence": 0.9}')
    async with model_providers() as providers, model_server(BUSY) as first, model_server(answer) as second:
        config = first.config("openai", text="It broke", labels=["bug", "other"], fallbacks=[second.config(provider)])
        ended = await called(classify_handler(providers), config)
        assert isinstance(ended, Done)
        assert (ended.value["label"], ended.value["provider"]) == ("bug", provider)
        assert (len(ended.value["failed_calls"]), second.complaints) == (1, [])


# Keys


async def test_each_endpoint_gets_its_own_key_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though both secrets are read by the same attempt, and each is granted for one origin only."""
    async with model_server(BUSY, key="first-key") as first, model_server(Says("yes"), key="second-key") as second:
        monkeypatch.setenv("TIDEMILL_EGRESS_ALLOW", "127.0.0.1:*")
        monkeypatch.setenv(f"{PREFIX}ONE", "first-key")
        monkeypatch.setenv(f"{PREFIX}TWO", "second-key")
        origins = [server.url.removesuffix("/v1") for server in (first, second)]
        grants = ";".join(secret_grants([name], origins=[at]) for name, at in zip(("ONE", "TWO"), origins, strict=True))
        monkeypatch.setenv("TIDEMILL_SECRET_GRANTS", grants)
        fallback = second.config("anthropic", api_key="{{ secrets.TWO }}")
        good = chained(first, fallback, api_key="{{ secrets.ONE }}")
        swapped = chained(first, fallback | {"api_key": "{{ secrets.ONE }}"}, api_key="{{ secrets.ONE }}")
        async with engine_at("memory://") as engine:
            for name, config in (("good", good), ("swapped", swapped)):
                node = {"id": "ask", "type": "llm", "retry": {"max_attempts": 1}, "config": config}
                await engine.publish({"name": name, "nodes": [node]})
            ended = await engine.result(await engine.start("good"))
            assert ended.outputs is not None and ended.outputs["ask"]["text"] == "yes"
            sent = len(second.requests)
            ended = await engine.result(await engine.start("swapped"))
            assert ended.error is not None and "origin_not_allowed" in str(ended.error)
            assert len(second.requests) == sent
        assert "second-key" not in str(first.requests) and "first-key" not in str(second.requests)


# Configs


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ({"fallbacks": []}, "/config/fallbacks", ""),
        ({"fallbacks": [{"provider": "anthropic"}]}, "/config/fallbacks/0", '"model" is missing'),
        ({"fallbacks": [{"provider": "scripted"}]}, "/config/fallbacks/0", '"answers" is missing'),
        ({"fallbacks": [{"model": "m"}] * 6}, "/config/fallbacks", ""),
        ({"fallbacks": [{"model": "m", "api_key": "sk-1"}]}, "/config/fallbacks/0/api_key", "must not stand"),
        ({"fallbacks": [{"model": "m", "base_url": "ftp://x"}]}, "/config/fallbacks/0/base_url", "not a scheme"),
        ({"fallbacks": [{"model": "m", "headers": {"Host": "x"}}]}, "/config/fallbacks/0/headers/Host", "connection"),
        ({"fallbacks": [{"model": "m", "stream": True}]}, "/config/fallbacks/0/stream", "no key"),
        ({"provider": "anthropic", "seed": 1}, "/config/seed", "knows no"),
        ({"provider": "openai_responses", "stop": "END"}, "/config/stop", "knows no"),
    ],
)
def test_what_a_config_must_not_say(fields: dict[str, Any], path: str, words: str) -> None:
    node = {"id": "ask", "type": "llm", "config": {"prompt": "?", "model": "m", **fields}}
    with pytest.raises(Rejected) as refused:
        compile_document({"name": "f", "nodes": [node]}, built_in_types())
    assert [problem for problem in refused.value.problems if path in problem.path and words in str(problem)]


def test_a_fallback_may_have_a_secret_of_its_own() -> None:
    fallback = {"provider": "anthropic", "model": "c", "api_key": "{{ secrets.TWO }}"}
    config = {"prompt": "?", "model": "m", "api_key": "{{ secrets.ONE }}", "fallbacks": [fallback]}
    node = {"id": "ask", "type": "llm", "config": config}
    assert "ask" in compile_document({"name": "f", "nodes": [node]}, built_in_types()).workflow.by_id
