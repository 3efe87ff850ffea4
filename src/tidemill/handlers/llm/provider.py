"""The interface between the node types over models and providers, and the provider `scripted`.

A provider is a function from a question to a reply; it knows nothing of nodes, schemas or repairs. `scripted` answers
from the config, always alike, so that examples, tests and dry runs need neither a network nor a key.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from tidemill.expressions.errors import ExpressionError, shorten
from tidemill.expressions.templates.regex import compile_pattern, work_of
from tidemill.handlers.contract import Fail

Message = dict[str, Any]
"""`role` and `content`, as the protocol has them."""

OPENAI_URL = "https://api.openai.com/v1"


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of a million tokens, in any currency."""

    input_per_million: float = 0.0
    output_per_million: float = 0.0
    cached_input_per_million: float | None = None
    """For input tokens from the provider's cache; the price of other input if unset."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one or more turns."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """The part of the input that came from the provider's cache."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})

    def cost(self, prices: Prices) -> float:
        cached_price = prices.cached_input_per_million
        cached_price = prices.input_per_million if cached_price is None else cached_price
        fresh = self.input_tokens - self.cached_tokens
        sum_ = fresh * prices.input_per_million + self.cached_tokens * cached_price
        return round((sum_ + self.output_tokens * prices.output_per_million) / 1_000_000, 10)

    def to_output(self) -> dict[str, int]:
        return msgspec.structs.asdict(self) | {"total_tokens": self.input_tokens + self.output_tokens}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The config fields that all node types over models share."""

    provider: str = "openai"
    model: str = ""
    base_url: str = OPENAI_URL
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
    timeout_seconds: float = 120.0
    first_token_seconds: float | None = None
    prices: Prices | None = None
    answers: list[Any] | dict[str, Any] = []
    """For the provider `scripted`."""


ForbiddenAt = Callable[[str], str] | None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    settings: Settings
    messages: tuple[Message, ...]
    correction: tuple[Message, ...] = ()
    """In the second turn: the first answer, and what is wrong with it."""
    form: Any = None
    """JSON Schema of the answer."""
    stream: bool = False
    logprobs: bool = False
    forbidden_at: ForbiddenAt = None
    """See `Call`."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    model: str = ""
    finish_reason: str = ""
    refusal: str = ""
    usage: Usage | None = None
    """None if the provider does not report it."""
    logprobs: tuple[tuple[str, float], ...] = ()
    """Tokens of the text with the logarithms of their probabilities, if the provider reports them."""


OnText = Callable[[str], None]
"""Receives each part of a streamed answer."""

Ask = Callable[[Question, OnText], Awaitable[Reply]]
Providers = Mapping[str, Ask]


def ignore_text(part: str) -> None:
    """An `OnText` that drops the text."""


# The provider `scripted`.

_WORD = re.compile(r"\S+\s*|\s+")


async def scripted(question: Question, on_text: OnText) -> Reply:
    """Return the configured answer to a prompt. A word counts as a token."""
    prompt = next((_text(each) for each in reversed(question.messages) if each.get("role") == "user"), "")
    answer = _select_answer(question.settings.answers, prompt, 1 if question.correction else 0)
    text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
    if question.stream:
        for word in _WORD.findall(text):
            on_text(word)
    words = sum(len(_text(message).split()) for message in (*question.messages, *question.correction))
    usage = Usage(input_tokens=words, output_tokens=len(text.split()))
    return Reply(text=text, model=question.settings.model or "scripted", finish_reason="stop", usage=usage)


def _text(message: Message) -> str:
    """The text of a message, or of its text parts."""
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return str(content or "")


def _select_answer(answers: list[Any] | dict[str, Any], prompt: str, turn: int) -> Any:
    """The answer of a turn: lists are used in order and repeat their last item; the longest matching pattern wins."""
    if isinstance(answers, dict):
        # Stored mappings are sorted by key, so the order in the document is lost.
        found = [pattern for pattern in answers if _matches(pattern, prompt)]
        if not found:
            hint = "a pattern such as .* stands for every other prompt"
            raise Fail("script_unmatched", f"no scripted answer suits {shorten(prompt, 200)!r}", hint=hint)
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
