"""The budget of an agent node: what is used of it, when the model is warned, and what one call may cost.

The node's own budget is judged from the records of its visit, in which one call at a time is made, so it is exceeded by
one call at most. The budgets of the run and of the tenant's day are kept by the engine: an amount is set aside before
each call and settled after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from tidemill.agents.conversation import Conversation
from tidemill.agents.port import BudgetSlice
from tidemill.handlers.contract import Fail, object_schema
from tidemill.handlers.llm.provider import Message, Prices, Reply, Settings, Usage, message_text
from tidemill.kernel.spending import Spend

MICROS = 1_000_000
CHARACTERS_PER_TOKEN = 3
"""Fewer than in English text: an estimate should not be too low."""
MESSAGE_TOKENS = 8
OUTPUT_TOKENS = 4_096
"""What an answer may have where `max_tokens` says nothing."""
UNBILLED = frozenset(
    {
        *("auth_failed", "quota_exhausted", "rate_limited", "provider_unavailable", "provider_refused"),
        *("model_unknown", "context_too_long", "content_refused", "connection_failed", "host_unreachable"),
        *("egress_refused", "origin_not_allowed", "url_invalid", "request_invalid", "tls_failed"),
        *("script_unmatched", "config_invalid"),
    }
)
"""Codes of failed calls that cost nothing, unless the provider may have received the request before it was cut off; of
any other it is assumed that they cost what was set aside."""

_COUNT = {"type": "integer", "minimum": 1, "maximum": 10**12}
MONEY_MAX = 10.0**9
"""Of one call."""
BUDGET_SCHEMA: dict[str, Any] = object_schema(
    (),
    calls=_COUNT,
    tokens=_COUNT,
    money={"type": "number", "exclusiveMinimum": 0, "maximum": 10**9},
    seconds={"type": "number", "exclusiveMinimum": 0},
    identical_calls=_COUNT | {"maximum": 100, "default": 3},
    warn_at={"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 0.8},
    degrade={"type": "boolean", "default": False},
    on_exceeded={"enum": ["fail", "finish"], "default": "fail"},
)


class NodeBudget(msgspec.Struct, frozen=True, kw_only=True):
    calls: int | None = None
    """Of models."""
    tokens: int | None = None
    money: float | None = None
    seconds: float | None = None
    """Time of models and tools; waiting for people and child runs does not count."""
    identical_calls: int = 3
    """The same call of a tool is made this often in a row."""
    warn_at: float = 0.8
    """The share from which on the model is told to finish."""
    degrade: bool = False
    """From then on the first of the `fallbacks` is asked."""
    on_exceeded: Literal["fail", "finish"] = "fail"

    def used(self, conversation: Conversation, seconds: float) -> dict[str, tuple[float, float]]:
        """By limited amount: what is used, and the limit."""
        spent = conversation.spent
        amounts: dict[str, tuple[float, float | None]] = {
            "calls": (spent.calls, self.calls),
            "tokens": (spent.tokens, self.tokens),
            "money": (spent.micros / MICROS, self.money),
            "seconds": (seconds, self.seconds),
        }
        return {name: (used, limit) for name, (used, limit) in amounts.items() if limit is not None}

    def left(self, conversation: Conversation) -> BudgetSlice:
        """What is left for a child run."""
        spent = conversation.spent
        return BudgetSlice(
            calls=None if self.calls is None else max(0, self.calls - spent.calls),
            tokens=None if self.tokens is None else max(0, self.tokens - spent.tokens),
            money=None if self.money is None else max(0.0, self.money - spent.micros / MICROS),
        )

    def exceeded(self, conversation: Conversation, seconds: float) -> str:
        """What is used up, as words; empty while there is something of everything."""
        for name, (used, limit) in self.used(conversation, seconds).items():
            if used >= limit:
                return f"{_number(used)} of {_number(limit)} {name}"
        return ""

    def warning(self, conversation: Conversation, seconds: float) -> str:
        """What the model is told once when most of the budget is used; empty before."""
        near = [
            f"{_number(used)} of {_number(limit)} {name}"
            for name, (used, limit) in self.used(conversation, seconds).items()
            if used >= self.warn_at * limit
        ]
        if not near or conversation.warned:
            return ""
        return f"Note of the engine: you have used {' and '.join(near)}. Finish now with what you have."


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def input_tokens(prefix_size: int, messages: Iterable[Message]) -> int:
    """About how many tokens a question has; `prefix_size` is the number of characters of the stable prefix."""
    characters, count = prefix_size, 0
    for message in messages:
        count += 1
        characters += len(message_text(message))
        characters += sum(len(call["arguments"]) for call in message.get("tool_calls", ()))
    return characters // CHARACTERS_PER_TOKEN + count * MESSAGE_TOKENS


def estimated(prefix_size: int, messages: Iterable[Message], settings: Settings) -> Spend:
    """What a call may spend, before it is made."""
    tokens = input_tokens(prefix_size, messages)
    usage = Usage(input_tokens=tokens, output_tokens=settings.max_tokens or OUTPUT_TOKENS)
    return amount_of(usage, settings.prices, None)


def spent_by(reply: Reply, reserved: Spend, prices: Prices | None) -> Spend:
    """What a reply has cost; where the provider does not say, what was set aside."""
    return reserved if reply.usage is None else amount_of(reply.usage, prices, reply.cost)


def spent_by_failure(failed: Fail, reserved: Spend) -> Spend:
    return Spend(1) if failed.code in UNBILLED and not failed.unknown_outcome else reserved


def amount_of(usage: Usage, prices: Prices | None, cost: float | None) -> Spend:
    money = cost if cost is not None else 0.0 if prices is None else usage.cost(prices)
    micros = round(min(max(0.0, money), MONEY_MAX) * MICROS)
    return Spend(1, usage.input_tokens + usage.output_tokens, micros, usage.cached_tokens)
