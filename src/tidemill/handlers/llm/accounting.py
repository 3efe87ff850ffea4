"""The cost of model calls: an amount is reserved before each call, and settled by the real cost.

`limits.budget` of a run and the budget of the tenant's day hold for every node that asks a model. An agent records its
turns itself; for nodes that ask once, `accounted` records each call of their chain of models in the log of the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from tidemill.errors import Unavailable
from tidemill.expressions.errors import shorten
from tidemill.handlers.contract import Appender, Fail, NodeContext
from tidemill.handlers.llm.provider import (
    Ask,
    Message,
    OnText,
    Prices,
    Providers,
    Question,
    Reply,
    Settings,
    Usage,
    message_text,
)
from tidemill.kernel.spending import BUDGET_RESERVED, NOTHING_SPENT, PRICES, PRICES_HINT, SET_ASIDE_MS, Spend

MICROS = 1_000_000
CHARACTERS_PER_TOKEN = 3
"""Fewer than in English text: an estimate should not be too low."""
MESSAGE_TOKENS = 8
OUTPUT_TOKENS = 4_096
"""What an answer may have where `max_tokens` says nothing."""
RUN_PAUSED = "run_paused"
MONEY_MAX = 10.0**9
"""Of one call."""
UNBILLED = frozenset(
    {
        *("auth_failed", "quota_exhausted", "rate_limited", "provider_unavailable", "provider_refused"),
        *("model_unknown", "context_too_long", "content_refused", "connection_failed", "host_unreachable"),
        *("egress_refused", "origin_not_allowed", "url_invalid", "request_invalid", "tls_failed"),
        *("script_unmatched", "config_invalid"),
    }
)
"""Codes of failed calls that cost nothing, unless the provider may have received the request before it was cut off;
any other call is assumed to cost the reserved amount."""


# Amounts


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
    amount = amount_of(usage, settings.prices, None)
    priced = settings.prices is not None or settings.provider == "scripted"
    return msgspec.structs.replace(amount, micros=max(1, amount.micros)) if priced else amount


def spent_by(reply: Reply, reserved: Spend, prices: Prices | None) -> Spend:
    """The cost of a reply; where the provider does not report it, the reserved amount."""
    return reserved if reply.usage is None else amount_of(reply.usage, prices, reply.cost)


def spent_by_failure(failed: Fail, reserved: Spend) -> Spend:
    return Spend(1) if failed.code in UNBILLED and not failed.unknown_outcome else reserved


def amount_of(usage: Usage, prices: Prices | None, cost: float | None) -> Spend:
    money = cost if cost is not None else 0.0 if prices is None else usage.cost(prices)
    micros = round(min(max(0.0, money), MONEY_MAX) * MICROS)
    return Spend(1, usage.input_tokens + usage.output_tokens, micros, usage.cached_tokens)


def amounts_of(spent: Spend | Usage) -> list[int]:
    """The numbers without the zeros at the end, for a record."""
    amounts = [*msgspec.structs.astuple(spent)]
    while amounts and not amounts[-1]:
        amounts.pop()
    return amounts


# Accounts


class DayBudget:
    """The tenant's budget of the day, for the calls of one attempt."""

    def __init__(self, context: NodeContext) -> None:
        self._accounts, self._count = context.accounts, 0
        self._place = f"{context.effect_key}/{context.attempt}"

    async def reserve(self, amount: Spend, seconds: float, turn: int = 0) -> str:
        """Reserve an amount for a call of at most `seconds`; return the key to settle it by."""
        if self._accounts is None:
            return ""
        self._count += 1
        key = f"{self._place}/{turn}.{self._count}"
        used_up = await self._accounts.reserve(key, amount, seconds)
        if used_up == PRICES:
            message = "the tenant has a budget of money for the day, and the model has no `prices`"
            raise Fail("price_unknown", message, hint=PRICES_HINT)
        if used_up == BUDGET_RESERVED:
            message, hint = "the budget of the tenant for today is set aside for other calls", "set `max_tokens`"
            raise Fail(BUDGET_RESERVED, message, hint=hint, retryable=True, retry_after_ms=SET_ASIDE_MS)
        if used_up:
            message = f"the budget of the tenant for today has no {used_up} left"
            raise Fail("budget_exceeded", message, hint="it resets at midnight UTC; the operator sets it")
        return key

    async def settle(self, key: str, spent: Spend) -> None:
        """Settle the amount behind the record of the call: one that is not settled counts as spent after a while."""
        if key:
            with suppress(Unavailable):
                await self._accounts.settle(key, spent)


def accounted(providers: Providers, context: NodeContext) -> Providers:
    """The providers for one attempt: every call of them is paid, and recorded without its text."""
    if context.append is None:
        return providers
    account = _Account(context, context.append)
    return {name: partial(account.call, ask) for name, ask in providers.items()}


class _Account:
    def __init__(self, context: NodeContext, append: Appender) -> None:
        self._append, self._day = append, DayBudget(context)
        self._clock = asyncio.get_running_loop().time

    async def call(self, ask: Ask, question: Question, on_text: OnText) -> Reply:
        settings = question.settings
        reserved = estimated(0, question.conversation, settings)
        try:
            await self._append({"t": "asked", "ask": amounts_of(reserved)}, reserve=reserved)
        except Fail as refused:
            # What has begun goes to its end, and is paid.
            if refused.code != RUN_PAUSED:
                raise
        record: dict[str, Any] = {"t": "call", "asked": [settings.provider, settings.model]}
        try:
            key = await self._day.reserve(reserved, settings.timeout_seconds)
        except Fail as refused:
            await self._append(record | _words(refused), spent=NOTHING_SPENT)
            raise
        began = self._clock()
        try:
            reply = await ask(question, on_text)
        except Fail as failed:
            await self._settle(record | _words(failed), spent_by_failure(failed, reserved), key, began)
            raise
        usage = {} if reply.usage is None else {"usage": amounts_of(reply.usage)}
        await self._settle(
            record | {"model": reply.model, **usage}, spent_by(reply, reserved, settings.prices), key, began
        )
        return reply

    async def _settle(self, record: dict[str, Any], spent: Spend, key: str, began: float) -> None:
        ms = round((self._clock() - began) * 1_000)
        await self._append(record | {"ms": ms, "spent": amounts_of(spent)}, spent=spent)
        await self._day.settle(key, spent)


def _words(failed: Fail) -> dict[str, str]:
    return {"code": failed.code, "message": shorten(failed.message, 1_000)}
