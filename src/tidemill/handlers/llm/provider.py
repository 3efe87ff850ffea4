"""Provider seam, usage/prices, scripted provider.

What a model is asked and what it answers: the seam between the node types and whoever runs a model.

A provider is a function from a question to a reply. It knows nothing of nodes, schemas or repairs.

The provider `scripted`: a model that says what the config tells it to say.

It runs everywhere, at once and always alike, so that examples, tests and dry runs need neither a network nor a key.
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
COST_DIGITS = 10


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """What a million tokens cost, in whatever currency."""

    input_per_million: float = 0.0
    output_per_million: float = 0.0
    cached_input_per_million: float | None = None
    """Of input that the provider had seen before; without it, as much as any input."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one or more turns."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """The part of the input that the provider had seen before."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
        )

    def cost(self, prices: Prices) -> float:
        """What the tokens cost."""
        cached_price = prices.cached_input_per_million
        cached_price = prices.input_per_million if cached_price is None else cached_price
        fresh = self.input_tokens - self.cached_tokens
        sum_ = fresh * prices.input_per_million + self.cached_tokens * cached_price
        return round((sum_ + self.output_tokens * prices.output_per_million) / 1_000_000, COST_DIGITS)

    def shown(self) -> dict[str, int]:
        """As a node returns it."""
        return msgspec.structs.asdict(self) | {"total_tokens": self.input_tokens + self.output_tokens}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Which model, and how it is to answer: what the configs of all node types over models have in common."""

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


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a conversation."""

    settings: Settings
    messages: tuple[Message, ...]
    correction: tuple[Message, ...] = ()
    """In a second turn: what was answered in the first, and what is wrong with it."""
    form: Any = None
    """A JSON Schema that the answer must suit."""
    stream: bool = False
    logprobs: bool = False


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a model answered."""

    text: str
    model: str = ""
    finish_reason: str = ""
    refusal: str = ""
    usage: Usage | None = None
    """None if the provider does not say."""
    logprobs: tuple[tuple[str, float], ...] = ()
    """The tokens of the text, each with the logarithm of its probability, if the provider gives them."""


Hear = Callable[[str], None]
"""Is told each part of an answer as it comes."""

Ask = Callable[[Question, Hear], Awaitable[Reply]]
Providers = Mapping[str, Ask]


def deaf(part: str) -> None:
    """Hear nothing, when nobody wants the parts of an answer."""


MODEL = "scripted"
_WORD = re.compile(r"\S+\s*|\s+")


async def scripted(question: Question, hear: Hear) -> Reply:
    """Say the answer that is meant for a prompt. A word counts as a token."""
    answer = _meant(question.settings.answers, _prompt(question.messages), 1 if question.correction else 0)
    text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
    if question.stream:
        for word in _WORD.findall(text):
            hear(word)
    said = sum(len(_text(message).split()) for message in (*question.messages, *question.correction))
    usage = Usage(input_tokens=said, output_tokens=len(text.split()))
    return Reply(text=text, model=question.settings.model or MODEL, finish_reason="stop", usage=usage)


def _prompt(messages: tuple[Message, ...]) -> str:
    return next((_text(each) for each in reversed(messages) if each.get("role") == "user"), "")


def _text(message: Message) -> str:
    """The words of a message; of parts, those that have any."""
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return str(content or "")


def _meant(answers: list[Any] | dict[str, Any], prompt: str, turn: int) -> Any:
    """The answer of a turn: of a list, in order, and the last again; by pattern, that of the longest that matches."""
    if isinstance(answers, dict):
        # Mappings are stored in the order of their keys, so the order in the document says nothing.
        found = [pattern for pattern in answers if _matches(pattern, prompt)]
        if not found:
            hint = "a pattern such as .* stands for every other prompt"
            raise Fail("script_unmatched", f"no scripted answer suits {shorten(prompt, 200)!r}", hint=hint)
        meant = answers[max(found, key=lambda pattern: (len(pattern), pattern))]
        answers = meant if isinstance(meant, list) else [meant]
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
