"""Budgets of runs for language models: what is spent, reserved and left.

An amount is reserved in the commit before a call and settled in the commit after it, so that calls at the same time
never share what is left. A run whose budget is used up makes no further call; a call whose end is unknown counts as
spent. A child run gets a part of its parent's budget, which is reserved while the parent waits for it.
"""

from __future__ import annotations

import msgspec


class Spend(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Use of language models: calls, tokens, and millionths of the currency of their prices."""

    calls: int = 0
    tokens: int = 0
    micros: int = 0
    cached: int = 0
    """Those of the tokens that came from the provider's cache; no budget limits them."""

    @property
    def cost(self) -> float:
        return self.micros / 1_000_000

    def __add__(self, other: Spend) -> Spend:
        calls, tokens, micros = self.calls + other.calls, self.tokens + other.tokens, self.micros + other.micros
        return Spend(calls, tokens, micros, self.cached + other.cached)

    def __sub__(self, other: Spend) -> Spend:
        calls, tokens, micros = self.calls - other.calls, self.tokens - other.tokens, self.micros - other.micros
        return Spend(calls, tokens, micros, self.cached - other.cached)


NOTHING_SPENT = Spend()


class Budget(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """The most that may be spent on language models; None means no limit."""

    calls: int | None = None
    tokens: int | None = None
    micros: int | None = None


NO_BUDGET = Budget()
PRICES = "prices"
BUDGET_RESERVED = "budget_reserved"
SET_ASIDE_MS = 5_000
"""How long to wait for an amount that is set aside for other calls."""
PRICES_HINT = "write `prices` for the model and for each of its `fallbacks`; those of a free model are 0"


def stricter(one: Budget | None, other: Budget | None) -> Budget:
    """The limits that hold when both budgets do."""
    pairs = zip(_limits(one), _limits(other), strict=True)
    return Budget(*(min((each for each in pair if each is not None), default=None) for pair in pairs))


def left_of(budget: Budget, used: Spend) -> Budget:
    """What is left of a budget, never less than nothing."""
    amounts = zip(_limits(budget), _amounts(used), strict=True)
    return Budget(*(None if limit is None else max(0, limit - amount) for limit, amount in amounts))


def exhausted(left: Budget, wanted: Spend) -> str:
    """What of a wanted amount nothing is left of: `calls`, `tokens` or `money`; empty if there is something of all.

    A call with a price sets at least a millionth aside. Where money is limited, one without a price could cost
    anything: then `PRICES` are missing.
    """
    for name, limit, amount in zip(("calls", "tokens", "money"), _limits(left), _amounts(wanted), strict=True):
        if limit == 0 and amount > 0:
            return name
    return PRICES if left.micros is not None and wanted.calls and not wanted.micros else ""


def is_set_aside(budget: Budget, spent: Spend, wanted: Spend, used_up: str) -> bool:
    """Whether what is used up is only set aside: calls under way may give some of it back. They give back no calls."""
    return used_up in ("tokens", "money") and not exhausted(left_of(budget, spent), wanted)


def cut(wanted: Spend, left: Budget) -> Spend:
    """The part of an amount that is left: the last call of a budget may still spend more than that."""
    amounts = zip(_amounts(wanted), _limits(left), strict=True)
    return Spend(*(max(0, amount) if limit is None else max(0, min(amount, limit)) for amount, limit in amounts))


def share_of(wanted: Budget | None, left: Budget) -> Budget:
    """The part of what is left that a child run gets: what was asked for, or all."""
    return stricter(wanted, left)


def as_spend(budget: Budget) -> Spend:
    """The amount that a budget reserves; it reserves nothing that it does not limit."""
    return Spend(*(limit or 0 for limit in _limits(budget)))


def _limits(budget: Budget | None) -> tuple[int | None, int | None, int | None]:
    return (None, None, None) if budget is None else (budget.calls, budget.tokens, budget.micros)


def _amounts(spend: Spend) -> tuple[int, int, int]:
    return spend.calls, spend.tokens, spend.micros
