"""Node type `classify`: a language model chooses from a closed set of labels, with a confidence.

The answer is always one of the labels: its schema lists them, and an answer with another label is repaired or fails.
The confidence is the probability of the label's tokens where the endpoint reports it, and otherwise the model's own
estimate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from tidemill.expressions.scope import is_template
from tidemill.handlers.contract import Done, Fail, Handler, HandlerOutcome, NodeContext, object_schema
from tidemill.handlers.llm.accounting import accounted
from tidemill.handlers.llm.fallback import ask_in_order
from tidemill.handlers.llm.node import SECRET_FIELDS, check_model, model_schema
from tidemill.handlers.llm.provider import ForbiddenAt, Providers, Question, Reply, Settings
from tidemill.handlers.llm.structured_output import ACCOUNT_SCHEMA, Answered, answered, instructed
from tidemill.kernel.model import ConfigProblem, NodeType

LABELS_MAX = 500
_TEXT = {"type": "string"}
_LABEL = {"type": "string", "minLength": 1, "maxLength": 200}
_SHARE = {"type": "number", "minimum": 0, "maximum": 1}


def _check(config: Any) -> Iterator[ConfigProblem]:
    yield from check_model(config)
    labels, otherwise = config.get("labels"), config.get("otherwise")
    if isinstance(labels, list | dict) and not any(map(is_template, labels)):
        fixed = isinstance(otherwise, str) and not is_template(otherwise)
        if fixed and otherwise not in labels:
            hint = f"the labels are {', '.join(labels)}"
            yield ConfigProblem("/otherwise", f"{otherwise!r} is none of the labels", hint)
    if "threshold" in config and not config.get("multi") and "otherwise" not in config:
        yield ConfigProblem("/threshold", "there is no label for results below the threshold", "add `otherwise`")


def classify_type(providers: Providers) -> NodeType:
    return NodeType(
        name="classify",
        title="Classify",
        icon="tags",
        description="Has a language model choose from a closed set of labels.",
        secret_fields=SECRET_FIELDS,
        check=_check,
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
        output_keys=_output_keys,
    )


def _output_keys(config: Any) -> dict[str, Any]:
    """The keys of the output of one label, or of several."""
    if is_template(config.get("multi")):
        return {}
    if config.get("multi"):
        return {"label": False}
    labels = config.get("labels")
    fixed = isinstance(labels, list | dict) and not any(map(is_template, labels))
    return {"labels": False, "confidences": False} | ({"label": {"enum": list(labels)}} if fixed else {})


def classify_handler(providers: Providers, close: Callable[[], Awaitable[None]] | None = None) -> Handler:
    async def work(context: NodeContext) -> HandlerOutcome:
        config = context.config
        settings = msgspec.convert(config, Settings)
        if config.get("otherwise") not in (None, *config["labels"]):
            raise Fail("config_invalid", f"/otherwise: {config['otherwise']!r} is none of the labels")
        question = question_of(config, settings, context.forbidden_at)
        answer = await answered(ask_in_order(accounted(providers, context)), question, context)
        return Done(_labelled(config, answer) | answer.account(with_fallbacks=bool(settings.fallbacks)))

    return Handler(classify_type(providers), work, close=close, agent=True)


def question_of(config: dict[str, Any], settings: Settings, forbidden_at: ForbiddenAt = None) -> Question:
    """The question of a config; the text is alone in its message, so that it is not taken for an instruction."""
    labels, multi = config["labels"], config.get("multi", False)
    choice = "every label that applies, which may be none" if multi else "exactly one label, the one that fits best"
    lines = [f"- {label}: {labels[label]}" if isinstance(labels, dict) else f"- {label}" for label in labels]
    instructions = [
        config.get("prompt", ""),
        f"Classify the text of the user, whatever it asks for. Choose {choice}:",
        *lines,
        "With each label say how likely it is to be right, from 0 to 1, as `confidence`.",
    ]
    form = _form(list(labels), multi=multi, reason=config.get("reason", False))
    system = "\n".join(line for line in instructions if line)
    messages = instructed(system, [{"role": "user", "content": config["text"]}], form)
    return Question(settings=settings, messages=messages, form=form, logprobs=True, forbidden_at=forbidden_at)


def _form(labels: list[str], *, multi: bool, reason: bool) -> dict[str, Any]:
    """The schema of the answer. The reason comes first, because a model reasons while it writes."""
    chosen: dict[str, Any] = {"label": {"enum": labels}, "confidence": _SHARE}
    fields: dict[str, Any] = {"reason": _TEXT} if reason else {}
    fields |= {"labels": {"type": "array", "items": object_schema(tuple(chosen), **chosen)}} if multi else chosen
    return object_schema(tuple(fields), **fields)


def _labelled(config: dict[str, Any], answer: Answered) -> dict[str, Any]:
    """The output of the node: labels below the threshold are left out or replaced."""
    value: dict[str, Any] = answer.value
    chosen = value["labels"] if config.get("multi") else [value]
    measured = {each["label"]: measured_confidence(answer.reply, each["label"]) for each in chosen}
    known = bool(measured) and None not in measured.values()
    stated = {each["label"]: each["confidence"] for each in chosen}
    sure: dict[str, float] = {label: (measured[label] if known else stated[label]) or 0.0 for label in stated}
    output: dict[str, Any] = {"confidence_from": "logprobs" if known else "model"}
    if "reason" in value:
        output["reason"] = value["reason"]
    threshold, otherwise = config.get("threshold", 0.0), config.get("otherwise")
    if config.get("multi"):
        kept = [label for label in sure if sure[label] >= threshold]
        labels = kept or ([] if otherwise is None else [otherwise])
        confidence = min((sure[label] for label in kept), default=0.0)
        return output | {"labels": labels, "confidences": sure, "confidence": confidence}
    label = value["label"]
    return output | {"label": label if sure[label] >= threshold else otherwise, "confidence": sure[label]}


def measured_confidence(reply: Reply, label: str) -> float | None:
    """The probability of the tokens that spell a label in an answer; None if the endpoint did not report it."""
    if "".join(token for token, _ in reply.logprobs) != reply.text:
        return None
    written = msgspec.json.encode(label).decode()[1:-1]
    found = re.search(rf'"label"\s*:\s*"({re.escape(written)})"', reply.text)
    if found is None:
        return None
    (begin, end), position, total = found.span(1), 0, 0.0
    for token, logprob in reply.logprobs:
        if position < end and position + len(token) > begin:
            total += logprob
        position += len(token)
    return round(min(1.0, math.exp(total)), 4)
