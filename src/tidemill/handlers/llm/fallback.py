"""Ask the models of a chain one after the other, until one of them replies.

The next model is asked after a failure that need not happen there too: an overloaded provider, a wrong key, a model
that does not exist. A refusal to answer is not one of them, nor is what the operator forbids. A failed call may have
cost money, so every one stands in the reply. Nothing is asked twice here; only the engine retries.
"""

from __future__ import annotations

import msgspec

from tidemill.handlers.contract import Fail
from tidemill.handlers.llm.provider import (
    Ask,
    FailedCall,
    OnText,
    Providers,
    Question,
    Reply,
    Settings,
    ignore_text,
)

ELSEWHERE = frozenset(
    {
        *("auth_failed", "quota_exhausted", "rate_limited", "provider_unavailable", "provider_refused"),
        *("model_unknown", "context_too_long", "stream_cut", "first_token_late", "timeout", "response_invalid"),
        *("response_too_large", "connection_failed", "host_unreachable", "tls_failed"),
    }
)
"""Codes of failures after which the next model is asked."""


def ask_in_order(providers: Providers) -> Ask:
    """A provider that follows `Settings.chain`, beginning with the model that the question names."""

    async def ask(question: Question, on_text: OnText) -> Reply:
        chain = question.settings.chain()
        failures: list[tuple[Settings, Fail]] = []
        heard = False

        def listen(part: str) -> None:
            nonlocal heard
            heard = True
            on_text(part)

        for step in range(len(chain)):
            position = (question.begin_with + step) % len(chain)
            settings = chain[position]
            asked = msgspec.structs.replace(question, settings=settings)
            # Followers who have heard a part of another answer do not hear this one; they get it as a whole.
            hearer = ignore_text if heard else listen
            try:
                reply = await providers[settings.provider](asked, hearer)
            except Fail as error:
                failures.append((settings, error))
                if error.code not in ELSEWHERE:
                    break
            else:
                return msgspec.structs.replace(
                    reply,
                    provider=settings.provider,
                    position=position,
                    cost=None if reply.usage is None or settings.prices is None else reply.usage.cost(settings.prices),
                    failed=tuple(_failed_call(*failure) for failure in failures),
                )
        raise combined(failures)

    return ask


def _failed_call(settings: Settings, error: Fail) -> FailedCall:
    return FailedCall(
        provider=settings.provider,
        model=settings.model,
        code=error.code,
        message=error.message,
        unknown_outcome=bool(error.unknown_outcome),
    )


def combined(failures: list[tuple[Settings, Fail]]) -> Fail:
    """The failure of a chain: its first retryable one, or else its first one; notes list the others."""
    retryable = [error for _, error in failures if error.retryable]
    chosen = retryable[0] if retryable else failures[0][1]
    for settings, error in failures:
        if error is not chosen:
            chosen.add_note(f"{settings.model or settings.provider} failed too: {error.code}: {error.message}")
    waits = [error.retry_after_ms for error in retryable]
    known = [wait for wait in waits if wait is not None]
    # One model that does not ask to wait is enough to try again soon.
    chosen.retry_after_ms = min(known) if known and len(known) == len(waits) else None
    chosen.unknown_outcome = any(error.unknown_outcome for _, error in failures)
    return chosen
