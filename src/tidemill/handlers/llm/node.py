"""Node type `llm`: asks a language model, and returns its text or, with a schema, a checked JSON value.

Also the config fields that all node types over models share: which model, at which endpoint, and how it answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import msgspec

from tidemill.handlers.contract import Done, Handler, HandlerOutcome, NodeContext, object_schema
from tidemill.handlers.http import exchange
from tidemill.handlers.llm.accounting import accounted
from tidemill.handlers.llm.fallback import ask_in_order
from tidemill.handlers.llm.provider import TOKENS_MAX, ForbiddenAt, Message, Providers, Question, Settings
from tidemill.handlers.llm.structured_output import ACCOUNT_SCHEMA, answered, instructed
from tidemill.kernel.model import Capabilities, ConfigProblem, NodeType
from tidemill.kernel.spending import PRICES_HINT

# Shared config.

_ENDPOINT_FIELDS = ("api_key", "headers", "base_url")
SECRET_FIELDS = (*_ENDPOINT_FIELDS, *(f"fallbacks.*.{name}" for name in _ENDPOINT_FIELDS))
FALLBACKS_MAX = 5
_PRICE = {"type": "number", "minimum": 0, "maximum": 10**8}
_RESERVED = ("messages", "model", "n", "stream", "tools")
_UNKNOWN_TO = {"anthropic": ("seed",), "openai_responses": ("seed", "stop")}
"""Fields that a protocol lacks."""


def model_schema(providers: Iterable[str], required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    """The schema of a config: the shared fields and some of its own."""
    provider = {"enum": sorted(providers)}
    model = _model_fields(provider)
    shared = {
        **model,
        "provider": provider | {"default": "openai"},
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
        "seed": {"type": "integer"},
        "response_format": {"enum": ["json_schema", "json_object", "none"], "default": "json_schema"},
        "strict": {"type": "boolean", "default": False},
        "cache": {"type": "boolean"},
        "timeout_seconds": exchange.TIMEOUT_SCHEMA | {"default": 120},
        "fallbacks": {
            "type": "array",
            "items": object_schema((), **model) | _REQUIRED,
            "minItems": 1,
            "maxItems": FALLBACKS_MAX,
        },
    }
    return object_schema(required, **shared, **properties) | _REQUIRED


_REQUIRED = {
    "if": {"properties": {"provider": {"const": "scripted"}}, "required": ["provider"]},
    "then": {"required": ["answers"]},
    "else": {"required": ["model"]},
}


_MODEL = "the name of a model; provider: scripted takes `answers` instead"


def _model_fields(provider: dict[str, Any]) -> dict[str, Any]:
    """The fields that say which model at which endpoint; also those of a fallback."""
    return {
        "provider": provider,
        "model": {"type": "string", "minLength": 1, "description": _MODEL},
        "base_url": {"type": "string", "minLength": 1},
        "api_key": {"type": "string"},
        "headers": exchange.HEADERS_SCHEMA,
        "max_tokens": {"type": "integer", "minimum": 1, "maximum": TOKENS_MAX},
        "extra": {"type": "object", "propertyNames": {"not": {"enum": list(_RESERVED)}}},
        "timeout_seconds": exchange.TIMEOUT_SCHEMA,
        "prices": object_schema(
            ("input_per_million", "output_per_million"),
            input_per_million=_PRICE,
            output_per_million=_PRICE,
            cached_input_per_million=_PRICE,
            cache_write_per_million=_PRICE,
        ),
        "answers": {"anyOf": [{"type": "array", "minItems": 1}, {"type": "object", "minProperties": 1}]},
    }


def _models(config: Any) -> list[tuple[str, dict[str, Any]]]:
    """The models of a config, each with its place."""
    fallbacks = config.get("fallbacks")
    listed = enumerate(fallbacks if isinstance(fallbacks, list) else ())
    return [("", config), *((f"/fallbacks/{index}", each) for index, each in listed if isinstance(each, dict))]


def check_prices(config: Any) -> Iterator[ConfigProblem]:
    """A budget of money holds only for models that have prices; a fallback does not inherit them."""
    for place, model in _models(config):
        if "prices" not in model and model.get("provider", config.get("provider")) != "scripted":
            yield ConfigProblem(f"{place}/prices", "money has a limit, and this model has no prices", PRICES_HINT)


def check_model(config: Any) -> Iterator[ConfigProblem]:
    """Checks of the shared fields beyond the schema."""
    for place, model in _models(config):
        yield from exchange.check_not_literal(model.get("api_key"), f"{place}/api_key", "key")
        yield from exchange.check_url(model.get("base_url"), f"{place}/base_url")
        for problem in exchange.check_headers(model.get("headers")):
            yield ConfigProblem(f"{place}{problem.path}", problem.message, problem.hint)
    provider = config.get("provider")
    for name in _UNKNOWN_TO.get(provider, ()) if isinstance(provider, str) else ():
        if name in config:
            yield ConfigProblem(f"/{name}", f"{provider} knows no `{name}`", "leave it out, or use the provider openai")
    if "first_token_seconds" in config and config.get("stream") in (None, False):
        yield ConfigProblem("/first_token_seconds", "only a stream has a first token", "add stream: true")


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
        yield ConfigProblem("", "there is no prompt", "write `prompt` or `messages`")


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
        output_keys=lambda config: {"value": config.get("schema", False)},
    )


def llm_handler(providers: Providers, close: Callable[[], Awaitable[None]] | None = None) -> Handler:
    async def work(context: NodeContext) -> HandlerOutcome:
        settings = msgspec.convert(context.config, Settings)
        question = question_of(context.config, settings, context.forbidden_at)
        answer = await answered(ask_in_order(accounted(providers, context)), question, context)
        account = answer.account(with_fallbacks=bool(settings.fallbacks))
        output = {"text": answer.reply.text, "finish_reason": answer.reply.finish_reason, **account}
        return Done(output if "schema" not in context.config else output | {"value": answer.value})

    return Handler(llm_type(providers), work, close=close, agent=True)


def question_of(config: dict[str, Any], settings: Settings, forbidden_at: ForbiddenAt = None) -> Question:
    """The question of a config: its messages, with the prompt as the last one."""
    messages: list[Message] = [*config.get("messages", ())]
    if "prompt" in config:
        messages.append({"role": "user", "content": config["prompt"]})
    form, stream = config.get("schema"), config.get("stream", False)
    instructions = instructed(config.get("system", ""), messages, form)
    return Question(settings=settings, messages=instructions, form=form, stream=stream, forbidden_at=forbidden_at)
