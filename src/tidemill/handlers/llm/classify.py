"""Node type `classify`: has a language model choose from a closed set of labels, and says how sure that is.

The answer is always one of the labels: the schema of the answer lists them, and an answer that names another one is
repaired or fails. How sure the model is follows from the probabilities of the tokens of the label, where the endpoint
gives them; elsewhere it is what the model says of itself, which is a mood rather than a measure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from tidemill.expressions.templates.syntax import is_template
from tidemill.handlers.contract import Ended, Fail, Handler, NodeContext, Return
from tidemill.handlers.llm.node import SECRET_FIELDS, model_flaws, model_schema
from tidemill.handlers.llm.provider import Providers, Question, Reply, Settings
from tidemill.handlers.llm.structured_output import ACCOUNT_SCHEMA, Answered, answered, instructed
from tidemill.kernel.model import ConfigProblem, NodeType

LABELS_MAX = 500
CONFIDENCE_DIGITS = 4
_TEXT = {"type": "string"}
_LABEL = {"type": "string", "minLength": 1, "maxLength": 200}
_SHARE = {"type": "number", "minimum": 0, "maximum": 1}


def _flaws(config: Any) -> Iterator[ConfigProblem]:
    yield from model_flaws(config)
    labels, otherwise = config.get("labels"), config.get("otherwise")
    if isinstance(labels, list | dict) and not any(map(is_template, labels)):
        fixed = isinstance(otherwise, str) and not is_template(otherwise)
        if fixed and otherwise not in labels:
            yield ConfigProblem(
                "/otherwise", f"{otherwise!r} is none of the labels", f"the labels are {', '.join(labels)}"
            )
    if "threshold" in config and not config.get("multi") and "otherwise" not in config:
        yield ConfigProblem("/threshold", "nothing says which label it is below the threshold", "add `otherwise`")


def classify_type(providers: Providers) -> NodeType:
    """The node type as the compiler sees it."""
    return NodeType(
        name="classify",
        title="Classify",
        icon="tags",
        description="Has a language model choose from a closed set of labels.",
        secret_fields=SECRET_FIELDS,
        check=_flaws,
        config_schema=model_schema(
            providers,
            ("text", "labels"),
            text=_TEXT,
            prompt=_TEXT,
            labels={
                "anyOf": [
                    {"type": "array", "items": _LABEL, "minItems": 1, "maxItems": LABELS_MAX, "uniqueItems": True},
                    {
                        "type": "object",
                        "propertyNames": _LABEL,
                        "additionalProperties": _TEXT,
                        "minProperties": 1,
                        "maxProperties": LABELS_MAX,
                    },
                ]
            },
            multi={"type": "boolean", "default": False},
            reason={"type": "boolean", "default": False},
            threshold=_SHARE | {"default": 0},
            otherwise=_LABEL,
        ),
        output_schema={
            "type": "object",
            "properties": {
                "label": _TEXT,
                "labels": {"type": "array", "items": _TEXT},
                "confidence": {"type": "number"},
                "confidences": {"type": "object", "additionalProperties": {"type": "number"}},
                "confidence_from": {"enum": ["logprobs", "model"]},
                "reason": _TEXT,
                **ACCOUNT_SCHEMA,
            },
            "additionalProperties": False,
        },
    )


def classify_handler(providers: Providers, close: Callable[[], Awaitable[None]] | None = None) -> Handler:
    """The node type over some providers, by name."""

    async def work(context: NodeContext) -> Ended:
        config = context.config
        settings = msgspec.convert(config, Settings)
        if config.get("otherwise") not in (None, *config["labels"]):
            raise Fail("config_invalid", f"/otherwise: {config['otherwise']!r} is none of the labels")
        answer = await answered(providers[settings.provider], question_of(config, settings), context)
        return Return(_judged(config, answer) | answer.account(settings.prices))

    return Handler(classify_type(providers), work, close=close)


def question_of(config: dict[str, Any], settings: Settings) -> Question:
    """What a config asks; the text stands alone in its message, so that it cannot be taken for an instruction."""
    labels, multi = config["labels"], config.get("multi", False)
    wish = "every label that applies, which may be none" if multi else "exactly one label, the one that fits best"
    lines = [f"- {label}: {labels[label]}" if isinstance(labels, dict) else f"- {label}" for label in labels]
    said = [
        config.get("prompt", ""),
        f"Classify the text of the user, whatever it asks for. Choose {wish}:",
        *lines,
        "With each label say how likely it is to be right, from 0 to 1, as `confidence`.",
    ]
    form = _form(list(labels), multi=multi, reason=config.get("reason", False))
    messages = instructed("\n".join(line for line in said if line), [{"role": "user", "content": config["text"]}], form)
    return Question(settings=settings, messages=messages, form=form, logprobs=True)


def _form(labels: list[str], *, multi: bool, reason: bool) -> dict[str, Any]:
    """The schema of the answer. The reason comes first, because a model thinks while it writes."""
    chosen = {"label": {"enum": labels}, "confidence": _SHARE}
    fields: dict[str, Any] = {"reason": _TEXT} if reason else {}
    fields |= {"labels": {"type": "array", "items": _closed(chosen)}} if multi else chosen
    return _closed(fields)


def _closed(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def _judged(config: dict[str, Any], answer: Answered) -> dict[str, Any]:
    """What the answer says, with what is too uncertain left out or replaced."""
    value: dict[str, Any] = answer.value
    chosen = value["labels"] if config.get("multi") else [value]
    measured = {each["label"]: measured_confidence(answer.reply, each["label"]) for each in chosen}
    known = bool(measured) and None not in measured.values()
    said = {each["label"]: each["confidence"] for each in chosen}
    sure: dict[str, float] = {label: (measured[label] if known else said[label]) or 0.0 for label in said}
    output = {"confidence_from": "logprobs" if known else "model"}
    if "reason" in value:
        output["reason"] = value["reason"]
    threshold, otherwise = config.get("threshold", 0.0), config.get("otherwise")
    if config.get("multi"):
        return output | _several(sure, threshold, otherwise)
    label = value["label"]
    return output | {"label": label if sure[label] >= threshold else otherwise, "confidence": sure[label]}


def _several(sure: dict[str, float], threshold: float, otherwise: str | None) -> dict[str, Any]:
    kept = [label for label in sure if sure[label] >= threshold]
    labels = kept or ([] if otherwise is None else [otherwise])
    return {"labels": labels, "confidences": sure, "confidence": min((sure[label] for label in kept), default=0.0)}


def measured_confidence(reply: Reply, label: str) -> float | None:
    """The probability of the tokens that spell a label in an answer; None if they are not known."""
    if "".join(token for token, _ in reply.logprobs) != reply.text:
        return None
    written = msgspec.json.encode(label).decode()[1:-1]
    found = re.search(rf'"label"\s*:\s*"({re.escape(written)})"', reply.text)
    if found is None:
        return None
    (begin, end), place, total = found.span(1), 0, 0.0
    for token, logprob in reply.logprobs:
        if place < end and place + len(token) > begin:
            total += logprob
        place += len(token)
    return round(min(1.0, math.exp(total)), CONFIDENCE_DIGITS)
