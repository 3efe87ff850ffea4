"""What a model is asked and what it answers: the seam between the node types and whoever runs a model.

A provider is a function from a question to a reply. It knows nothing of nodes, schemas or repairs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

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
