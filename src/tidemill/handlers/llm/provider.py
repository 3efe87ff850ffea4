"""The interface between the node types over models and providers, and the provider `scripted`.

A provider is a function from a question to a reply; it knows nothing of nodes, schemas, repairs or what tools do.
`scripted` answers from the config, always alike, so that examples, tests and dry runs need neither a network nor a key.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from tidemill.expressions.errors import ExpressionError, shorten
from tidemill.expressions.templates.regex import compile_pattern, work_of
from tidemill.handlers.contract import Fail

Message = dict[str, Any]
"""`role` and `content`, as OpenAI's chat completions have them.

A message of the role `assistant` may have `tool_calls`, each with `id`, `name` and `arguments` (a text), and `native`,
the provider's own form of it (see `Reply`). One of the role `tool` is the result of the call that its `tool_call_id`
names; `error: true` marks a failed call.
"""

OPENAI_URL = "https://api.openai.com/v1"
ANTHROPIC_URL = "https://api.anthropic.com/v1"
DEFAULT_URLS = {"openai": OPENAI_URL, "openai_responses": OPENAI_URL, "anthropic": ANTHROPIC_URL}

NOT_JSON = (msgspec.MsgspecError, ValueError, RecursionError)
"""What decoding raises for a text that is not JSON, or not of the expected type."""
MALFORMED = "INVALID_JSON"
"""In a conversation, the key for the arguments of a call that were not a JSON object."""


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of a million tokens, in any currency."""

    input_per_million: float = 0.0
    output_per_million: float = 0.0
    cached_input_per_million: float | None = None
    """For input tokens from the provider's cache; the price of other input if unset."""
    cache_write_per_million: float | None = None
    """For input tokens that the provider adds to its cache; the price of other input if unset."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one or more turns."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """The part of the input that came from the provider's cache."""
    cache_write_tokens: int = 0
    """The part of the input that the provider has added to its cache, where it says so."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})

    def cost(self, prices: Prices) -> float:
        usual = prices.input_per_million
        cached = usual if prices.cached_input_per_million is None else prices.cached_input_per_million
        written = usual if prices.cache_write_per_million is None else prices.cache_write_per_million
        fresh_tokens = self.input_tokens - self.cached_tokens - self.cache_write_tokens
        sum_ = fresh_tokens * usual + self.cached_tokens * cached + self.cache_write_tokens * written
        return round((sum_ + self.output_tokens * prices.output_per_million) / 1_000_000, 10)

    def to_output(self) -> dict[str, int]:
        counted = msgspec.structs.asdict(self)
        if not self.cache_write_tokens:
            del counted["cache_write_tokens"]
        return counted | {"total_tokens": self.input_tokens + self.output_tokens}


TOKENS_MAX = 10**9
"""Of one reply; an endpoint that counts more is not believed."""


def bounded_usage(usage: Usage) -> Usage:
    """The usage that an endpoint reports, within what can be: a wrong count must not give a budget anything back."""
    given, made = (min(max(0, count), TOKENS_MAX) for count in (usage.input_tokens, usage.output_tokens))
    cached = min(max(0, usage.cached_tokens), given)
    written = min(max(0, usage.cache_write_tokens), given - cached)
    return Usage(input_tokens=given, output_tokens=made, cached_tokens=cached, cache_write_tokens=written)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The config fields that all node types over models share."""

    provider: str = "openai"
    model: str = ""
    base_url: str = ""
    api_key: str = ""
    headers: dict[str, str] = {}
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    extra: dict[str, Any] = {}
    """Further fields of the request."""
    response_format: str = "json_schema"
    strict: bool = False
    cache: bool | None = None
    """Mark the prefix for the provider's prompt cache; None: only if the model is given tools."""
    timeout_seconds: float = 120.0
    first_token_seconds: float | None = None
    prices: Prices | None = None
    answers: list[Any] | dict[str, Any] = []
    """For the provider `scripted`."""
    fallbacks: list[dict[str, Any]] = []
    """Configs of the models to ask if this one fails, in order."""

    @property
    def url(self) -> str:
        """The endpoint: `base_url`, or that of the provider."""
        return self.base_url or DEFAULT_URLS.get(self.provider, OPENAI_URL)

    def chain(self) -> tuple[Settings, ...]:
        """These settings and those of the fallbacks."""
        return (self, *map(self._fallback, self.fallbacks))

    def _fallback(self, config: dict[str, Any]) -> Settings:
        """A fallback inherits what it does not set, but key, headers and fields only at the same endpoint."""
        provider = config.get("provider", self.provider)
        base_url = config.get("base_url", self.base_url if provider == self.provider else "")
        inherited = msgspec.structs.asdict(self) | {"provider": provider, "base_url": base_url}
        inherited |= {"prices": None, "answers": [], "fallbacks": []}
        if (provider, base_url) != (self.provider, self.base_url):
            inherited |= {"api_key": "", "headers": {}, "extra": {}}
        return msgspec.convert(inherited | config, Settings)


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a model sees it."""

    name: str
    """Every provider accepts 1 to 64 letters, digits, `_` and `-`."""
    description: str = ""
    parameters: dict[str, Any] = {}
    """JSON Schema of the arguments, an object; empty if there are none."""
    strict: bool = False
    """The provider enforces the schema, where it can."""

    @property
    def schema(self) -> dict[str, Any]:
        return self.parameters or {"type": "object", "properties": {}}


class ToolCall(msgspec.Struct, frozen=True):
    """A call that a model asks for. Neither name nor arguments are checked."""

    id: str
    name: str
    arguments_text: str = ""

    def arguments(self) -> dict[str, Any]:
        """The arguments as JSON object; no text means none. Raises `ValueError` with a message for the model."""
        try:
            value = msgspec.json.decode(self.arguments_text.strip() or "{}")
        except NOT_JSON as error:
            raise ValueError(f"the arguments are not JSON: {error}") from error
        if not isinstance(value, dict):
            raise ValueError("the arguments are not a JSON object")
        return value

    def object_text(self) -> str:
        """The arguments for the conversation: endpoints that decode them want an object, whatever the model wrote."""
        try:
            self.arguments()
        except ValueError:
            return msgspec.json.encode({MALFORMED: self.arguments_text}).decode()
        return self.arguments_text.strip() or "{}"


ForbiddenAt = Callable[..., str] | None
"""Names a secret that may not be sent to an origin; of those in `texts`, if they are given."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    settings: Settings
    messages: tuple[Message, ...]
    correction: tuple[Message, ...] = ()
    """In the second turn: the first answer, and what is wrong with it."""
    form: Any = None
    """JSON Schema of the answer."""
    stream: bool = False
    logprobs: bool = False
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or the name of the tool to call."""
    parallel_tool_calls: bool = True
    stable: int = 0
    """How many messages at the beginning are equal in other conversations too, so that they are cached for those."""
    cache_key: str = ""
    """Equal for questions with the same prefix; OpenAI sends them to the same cache, by the last 64 characters."""
    turn: int | None = None
    """How many replies this conversation already has, for `scripted`; None: as many as called tools."""
    begin_with: int = 0
    """The position in `Settings.chain` of the model that is asked first."""
    forbidden_at: ForbiddenAt = None

    @property
    def conversation(self) -> tuple[Message, ...]:
        return (*self.messages, *self.correction)

    @property
    def cached(self) -> bool:
        """Whether the prefix is marked for the provider's cache."""
        return bool(self.tools) if self.settings.cache is None else self.settings.cache


class FailedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call to a model that failed, before another model was asked."""

    provider: str
    model: str
    code: str
    message: str
    unknown_outcome: bool = False
    """The provider may have received the request."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    model: str = ""
    finish_reason: str = ""
    """`stop`, `length`, `tool_calls`, `content_filter`, or a word of the provider."""
    refusal: str = ""
    usage: Usage | None = None
    """None if the provider does not report it."""
    logprobs: tuple[tuple[str, float], ...] = ()
    """Tokens of the text with the logarithms of their probabilities, if the provider reports them."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The calls that the model asks for, in its order; more than one are to be made in parallel."""
    native: Any = None
    """`provider`, `model` and `content` of a reply with parts that only they read, and must get back unchanged."""
    provider: str = ""
    position: int = 0
    """Which model of `Settings.chain` replied."""
    cost: float | None = None
    """None without usage or prices."""
    failed: tuple[FailedCall, ...] = ()
    """Calls to other models of the chain that failed before."""

    def message(self) -> Message:
        """The reply as a message of the conversation."""
        message: Message = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": each.id, "name": each.name, "arguments": each.object_text()} for each in self.tool_calls
            ]
        return message if self.native is None else message | {"native": self.native}


def tool_message(call: ToolCall, content: str, *, failed: bool = False) -> Message:
    """The result of a tool call as a message of the conversation."""
    message: Message = {"role": "tool", "tool_call_id": call.id, "content": content}
    return message | {"error": True} if failed else message


OnText = Callable[[str], None]
"""Receives each part of a streamed answer."""

Ask = Callable[[Question, OnText], Awaitable[Reply]]
Providers = Mapping[str, Ask]


def ignore_text(part: str) -> None:
    """An `OnText` that drops the text."""


# The provider `scripted`.

_WORD = re.compile(r"\S+\s*|\s+")


async def scripted(question: Question, on_text: OnText) -> Reply:
    """Return the configured answer to a prompt. A word counts as a token.

    `extra: {words_per_second: 5}` streams it as slowly as a model does.
    """
    prompt = next((message_text(each) for each in reversed(question.messages) if each.get("role") == "user"), "")
    turn = sum("tool_calls" in each for each in question.messages) if question.turn is None else question.turn
    turn += 1 if question.correction else 0
    answer = _select_answer(question.settings.answers, prompt, turn)
    text, calls = _played(question, answer, turn)
    if question.stream:
        pace = question.settings.extra.get("words_per_second")
        for word in _WORD.findall(text):
            on_text(word)
            if isinstance(pace, (int, float)) and pace > 0:
                await asyncio.sleep(1 / pace)
    words = sum(len(message_text(message).split()) for message in question.conversation)
    said = len(text.split()) + sum(1 + len(call.arguments_text.split()) for call in calls)
    return Reply(
        text=text,
        model=question.settings.model or "scripted",
        finish_reason="tool_calls" if calls else "stop",
        usage=Usage(input_tokens=words, output_tokens=said),
        tool_calls=calls,
    )


def message_text(message: Message) -> str:
    """The text of a message, or of its text parts."""
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return str(content or "")


def _played(question: Question, answer: Any, turn: int) -> tuple[str, tuple[ToolCall, ...]]:
    """The text and the tool calls of an answer; in a question without tools, any mapping is text."""
    in_loop = bool(question.tools) or question.turn is not None
    if in_loop and isinstance(answer, dict) and isinstance(answer.get("tool_calls"), list):
        calls = [_call(each, f"call_{turn + 1}_{number}") for number, each in enumerate(answer["tool_calls"], 1)]
        return str(answer.get("text") or ""), tuple(calls)
    return (answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()), ()


def _call(call: Any, default_id: str) -> ToolCall:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        hint = "for example {name: search, arguments: {query: tides}}"
        raise Fail("config_invalid", "/answers: a tool call has no name", hint=hint)
    arguments = call.get("arguments", {})
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return ToolCall(str(call.get("id") or default_id), call["name"], text)


def _select_answer(answers: list[Any] | dict[str, Any], prompt: str, turn: int) -> Any:
    """The answer of a turn: lists are used in order and repeat their last item; the longest matching pattern wins."""
    if isinstance(answers, dict):
        # Stored mappings are sorted by key, so the order in the document is lost.
        found = [pattern for pattern in answers if _matches(pattern, prompt)]
        if not found:
            hint = "a pattern such as .* stands for every other prompt"
            raise Fail("script_unmatched", f"no scripted answer matches {shorten(prompt, 200)!r}", hint=hint)
        selected = answers[max(found, key=lambda pattern: (len(pattern), pattern))]
        answers = selected if isinstance(selected, list) else [selected]
    if not answers:
        raise Fail("script_unmatched", "the scripted model has no answers", hint="write them under `answers`")
    return answers[min(turn, len(answers) - 1)]


def _matches(pattern: str, prompt: str) -> bool:
    try:
        compiled = compile_pattern(pattern)
        work_of(compiled, prompt)
    except ExpressionError as error:
        raise Fail("config_invalid", f"/answers: {error.message}", hint=error.hint) from error
    return compiled.search(prompt) is not None
