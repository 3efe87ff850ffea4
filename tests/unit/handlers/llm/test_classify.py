"""Node type `classify`: always one of the labels, and how sure that is."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from tests.fixtures.servers.llm_server import endpoint, failure, output, refuses, says
from tidemill.errors import Rejected
from tidemill.handlers.llm.classify import classify_handler, measured_confidence
from tidemill.handlers.llm.provider import Reply, scripted
from tidemill.kernel.compile.compiler import compile_document
from tidemill.node_types import built_in_types

LABELS = {"billing": "money", "bug": "something is broken", "other": "anything else"}
CLASSIFY = classify_handler({"scripted": scripted})


def config(*answers: Any, **fields: Any) -> dict[str, Any]:
    return {"provider": "scripted", "text": "My invoice is wrong", "labels": LABELS, "answers": [*answers], **fields}


def tokens(*pairs: tuple[str, float]) -> dict[str, Any]:
    """Logprobs as an endpoint gives them, from texts and their probabilities."""
    content = [{"token": text, "logprob": math.log(share), "bytes": None} for text, share in pairs]
    return {"content": content}


async def test_one_label_with_what_the_model_says_of_itself() -> None:
    found = await output(CLASSIFY, config({"label": "billing", "confidence": 0.9}))
    assert (found["label"], found["confidence"], found["confidence_from"]) == ("billing", 0.9, "model")
    assert (found["repaired"], found["cost"]) == (False, None)
    assert "reason" not in found


async def test_probabilities_count_more_than_words() -> None:
    pairs = [('{"label": "', 0.99), ("bill", 0.8), ('ing"', 0.5), (', "confidence": 1.0}', 0.9)]
    answer = says("".join(text for text, _ in pairs), logprobs=tokens(*pairs))
    async with endpoint(answer) as model:
        asked = model.config(text="My invoice is wrong", labels=LABELS)
        found = await output(classify_handler(model.providers), asked)
        assert (found["label"], found["confidence"], found["confidence_from"]) == ("billing", 0.4, "logprobs")
        [body] = model.bodies
        assert body["logprobs"] is True
        label = body["response_format"]["json_schema"]["schema"]["properties"]["label"]
        assert set(label["enum"]) == set(LABELS)
        system, user = body["messages"]
        assert "- bug: something is broken" in system["content"]
        assert user == {"role": "user", "content": "My invoice is wrong"}


async def test_an_endpoint_without_probabilities_is_asked_without() -> None:
    refusal = refuses(400, "logprobs are not supported with this model")
    async with endpoint(refusal, says('{"label": "bug", "confidence": 0.7}')) as model:
        found = await output(classify_handler(model.providers), model.config(text="It crashes", labels=["bug", "idea"]))
        assert (found["label"], found["confidence"], found["confidence_from"]) == ("bug", 0.7, "model")
        assert ["logprobs" in body for body in model.bodies] == [True, False]


async def test_another_label_is_repaired_or_fails() -> None:
    wrong = {"label": "Invoices", "confidence": 1}
    found = await output(CLASSIFY, config(wrong, {"label": "billing", "confidence": 0.6}))
    assert (found["label"], found["repaired"]) == ("billing", True)
    failed = await failure(CLASSIFY, config(wrong))
    assert failed.code == "output_invalid" and "Invoices" in failed.message


async def test_a_confidence_beyond_one_is_no_confidence() -> None:
    assert (await failure(CLASSIFY, config({"label": "bug", "confidence": 95}))).code == "output_invalid"


async def test_a_reason_is_given_when_it_is_wanted() -> None:
    answer = {"reason": "It is about money", "label": "billing", "confidence": 0.9}
    assert (await output(CLASSIFY, config(answer, reason=True)))["reason"] == "It is about money"
    assert (await failure(CLASSIFY, config(answer))).code == "output_invalid"


async def test_below_the_threshold_it_is_the_other_label() -> None:
    doubtful = config({"label": "bug", "confidence": 0.4}, threshold=0.5, otherwise="other")
    found = await output(CLASSIFY, doubtful)
    assert (found["label"], found["confidence"]) == ("other", 0.4)
    exactly = config({"label": "bug", "confidence": 0.5}, threshold=0.5, otherwise="other")
    assert (await output(CLASSIFY, exactly))["label"] == "bug"


async def test_several_labels() -> None:
    answer = {"labels": [{"label": "bug", "confidence": 0.9}, {"label": "billing", "confidence": 0.3}]}
    found = await output(CLASSIFY, config(answer, multi=True))
    assert (found["labels"], found["confidence"]) == (["bug", "billing"], 0.3)
    assert found["confidences"] == {"bug": 0.9, "billing": 0.3}
    found = await output(CLASSIFY, config(answer, multi=True, threshold=0.5))
    assert (found["labels"], found["confidence"]) == (["bug"], 0.9)
    found = await output(CLASSIFY, config(answer, multi=True, threshold=0.95, otherwise="other"))
    assert (found["labels"], found["confidence"]) == (["other"], 0.0)
    found = await output(CLASSIFY, config({"labels": []}, multi=True))
    assert (found["labels"], found["confidence"]) == ([], 0.0)


def reply(text: str, *pairs: tuple[str, float]) -> Reply:
    return Reply(text=text, logprobs=tuple((token, math.log(share)) for token, share in pairs))


def test_only_the_tokens_of_the_label_are_counted() -> None:
    text = '{"label":"a","confidence":0.1}'
    assert measured_confidence(reply(text, ('{"label":"', 0.1), ("a", 0.5), ('","confidence":0.1}', 0.1)), "a") == 0.5
    assert measured_confidence(reply(text, ('{"label":"a"', 0.25), (',"confidence":0.1}', 0.1)), "a") == 0.25
    assert measured_confidence(reply(text, ("something else", 0.5)), "a") is None
    assert measured_confidence(reply(text, (text, 0.5)), "b") is None
    assert measured_confidence(reply(text), "a") is None
    spelled = msgspec.json.encode({"label": 'é"\\'}).decode()
    assert measured_confidence(reply(spelled, (spelled, 0.5)), 'é"\\') == 0.5


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ({"labels": []}, "/config/labels", ""),
        ({"labels": ["a", "a"]}, "/config/labels", ""),
        ({"otherwise": "else"}, "/config/otherwise", "none of the labels"),
        ({"threshold": 0.5}, "/config/threshold", "below the threshold"),
        ({"threshold": 50, "otherwise": "bug"}, "/config/threshold", "50"),
        ({"text": None}, "/config/text", ""),
    ],
)
def test_what_a_config_must_not_say(fields: dict[str, Any], path: str, words: str) -> None:
    node = {"id": "sort", "type": "classify", "config": config({}) | fields}
    with pytest.raises(Rejected) as refused:
        compile_document({"name": "f", "nodes": [node]}, built_in_types())
    assert [problem for problem in refused.value.problems if path in problem.path and words in str(problem)]


async def test_a_rendered_label_is_checked_again() -> None:
    failed = await failure(CLASSIFY, config({"label": "bug", "confidence": 1}, otherwise="else"))
    assert failed.code == "config_invalid"
