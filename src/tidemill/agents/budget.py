"""The budget of an agent node: what is used of it, and when the model is warned.

The node's own budget is judged from the records of its visit, in which one call at a time is made, so it is exceeded by
one call at most. The budgets of the run and of the tenant's day are kept by the engine: an amount is set aside before
each call and settled after it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tidemill.agents.conversation import Conversation
from tidemill.handlers.contract import Wait, object_schema
from tidemill.handlers.llm.accounting import MICROS

CHILD_AMOUNTS = ("calls", "tokens", "money")
"""What a child run gets a part of; its time is its own."""
_COUNT = {"type": "integer", "minimum": 1, "maximum": 10**12}
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
    """The share from which on the agent asks the model to finish."""
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

    def left(self, conversation: Conversation) -> dict[str, float]:
        """By limited amount: what is left for a child run."""
        amounts = self.used(conversation, 0.0)
        return {name: max(0.0, limit - used) for name, (used, limit) in amounts.items() if name in CHILD_AMOUNTS}

    def exceeded(self, conversation: Conversation, seconds: float) -> str:
        """What is used up, as words; empty while there is something of everything."""
        for name, (used, limit) in self.used(conversation, seconds).items():
            if used >= limit:
                return f"{_number(used)} of {_number(limit)} {name}"
        return ""

    def warning(self, conversation: Conversation, seconds: float) -> str:
        """The message to the model, once, when most of the budget is used; empty before."""
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


def bounded(wait: Wait, left: dict[str, float]) -> Wait:
    """The wait of a tool; a child run that it waits for gets no more than the node has left."""
    if wait.child is None:
        return wait
    asked = wait.child.budget or {}
    budget = {name: float(min(each[name] for each in (asked, left) if name in each)) for name in asked | left}
    return msgspec.structs.replace(wait, child=msgspec.structs.replace(wait.child, budget=budget or None))
