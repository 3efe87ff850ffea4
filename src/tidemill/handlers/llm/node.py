"""Node type `llm`: asks a language model, and returns its text or, with a schema, a checked JSON value.

Also the config fields that all node types over models share: which model, at which endpoint, and how it answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import msgspec

from tidemill.handlers.contract import Done, Handler, HandlerOutcome, NodeContext, object_schema
from tidemill.handlers.http import exchange
from tidemill.handlers.llm.provider import OPENAI_URL, ForbiddenAt, Message, Providers, Question, Settings
from tidemill.handlers.llm.structured_output import ACCOUNT_SCHEMA, answered, instructed
from tidemill.kernel.model import Capabilities, ConfigProblem, NodeType

# Shared config.

SECRET_FIELDS = ("api_key", "headers", "base_url")
_PRICE = {"type": "number", "minimum": 0}
_RESERVED = ("messages", "model", "n", "stream", "tools")


def model_schema(providers: Iterable[str], required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    """The schema of a config: the shared fields and some of its own."""
    shared = {
        "provider": {"enum": sorted(providers), "default": "openai"},
        "model": {"type": "string", "minLength": 1},
        "base_url": {"type": "string", "minLength": 1, "default": OPENAI_URL},
        "api_key": {"type": "string"},
        "headers": exchange.HEADERS_SCHEMA,
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
        "max_tokens": {"type": "integer", "minimum": 1},
        "seed": {"type": "integer"},
        "extra": {"type": "object", "propertyNames": {"not": {"enum": list(_RESERVED)}}},
        "response_format": {"enum": ["json_schema", "json_object", "none"], "default": "json_schema"},
        "strict": {"type": "boolean", "default": False},
        "timeout_seconds": exchange.TIMEOUT_SCHEMA | {"default": 120},
        "prices": object_schema(
            ("input_per_million", "output_per_million"),
            input_per_million=_PRICE,
            output_per_million=_PRICE,
            cached_input_per_million=_PRICE,
        ),
        "answers": {"anyOf": [{"type": "array", "minItems": 1}, {"type": "object", "minProperties": 1}]},
    }
    return object_schema(required, **shared, **properties) | {
        "if": {"properties": {"provider": {"const": "scripted"}}, "required": ["provider"]},
        "then": {"required": ["answers"]},
        "else": {"required": ["model"]},
    }


def check_model(config: Any) -> Iterator[ConfigProblem]:
    """Checks of the shared fields beyond the schema."""
    yield from exchange.check_not_literal(config.get("api_key"), "/api_key", "key")
    yield from exchange.check_url(config.get("base_url"), "/base_url")
    yield from exchange.check_headers(config.get("headers"))


# The node type.

_TEXT = {"type": "string"}
_MESSAGE = object_schema(
    ("role", "content"),
    role={"enum": ["system", "developer", "user", "assistant"]},
    content={"anyOf": [_TEXT, {"type": "array", "items": {"type": "object"}, "minItems": 1}]},
    name=_TEXT,
)
_STOP = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 16}]}


def _check(config: Any) -> Iterator[ConfigProblem]:
    yield from check_model(config)
    if "prompt" not in config and "messages" not in config:
        yield ConfigProblem("", "there is nothing to ask", "write `prompt` or `messages`")
    if "first_token_seconds" in config and config.get("stream") in (None, False):
        yield ConfigProblem("/first_token_seconds", "only a stream has a first token", "add stream: true")


def llm_type(providers: Providers) -> NodeType:
    return NodeType(
        name="llm",
        title="Language model",
        icon="sparkles",
        description="Asks a language model; with a schema, its answer is a checked JSON value.",
        capabilities=Capabilities(streaming=True),
        secret_fields=SECRET_FIELDS,
        schemas=("schema",),
        check=_check,
        config_schema=model_schema(
            providers,
            (),
            prompt=_TEXT,
            messages={"type": "array", "items": _MESSAGE, "minItems": 1},
            system=_TEXT,
            schema={"type": ["object", "boolean"]},
            stream={"type": "boolean", "default": False},
            stop=_STOP,
            first_token_seconds=exchange.TIMEOUT_SCHEMA,
        ),
        output_schema={
            "type": "object",
            "properties": {"text": _TEXT, "value": True, "finish_reason": _TEXT, **ACCOUNT_SCHEMA},
            "additionalProperties": False,
        },
    )


def llm_handler(providers: Providers, close: Callable[[], Awaitable[None]] | None = None) -> Handler:
    async def work(context: NodeContext) -> HandlerOutcome:
        settings = msgspec.convert(context.config, Settings)
        question = question_of(context.config, settings, context.forbidden_at)
        answer = await answered(providers[settings.provider], question, context)
        reply = answer.reply
        output = {"text": reply.text, "finish_reason": reply.finish_reason, **answer.account(settings.prices)}
        return Done(output if "schema" not in context.config else output | {"value": answer.value})

    return Handler(llm_type(providers), work, close=close)


def question_of(config: dict[str, Any], settings: Settings, forbidden_at: ForbiddenAt = None) -> Question:
    """The question of a config: its messages, with the prompt as the last one."""
    messages: list[Message] = [*config.get("messages", ())]
    if "prompt" in config:
        messages.append({"role": "user", "content": config["prompt"]})
    form, stream = config.get("schema"), config.get("stream", False)
    instructions = instructed(config.get("system", ""), messages, form)
    return Question(settings=settings, messages=instructions, form=form, stream=stream, forbidden_at=forbidden_at)
