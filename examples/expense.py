"""An approval in Python: one expense is approved with a form, another one is rejected and takes another path.

python examples/expense.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import tidemill


@dataclass
class Booking:
    """What the approver fills in. The class is the form: other accounts are refused."""

    account: Literal["office", "travel"]


@tidemill.task
def pay(purpose: str, booking: Booking, by: str) -> str:
    return f"{purpose} is paid from {booking.account}, says {by}"


@tidemill.task
def tell(purpose: str, why: str) -> str:
    return f"{purpose} is not paid: {why}"


# Nothing runs while people think: the run continues in whichever process is there when they decide.
@tidemill.workflow
def expense(purpose: str, amount: int) -> str:
    asked = tidemill.approve(f"Pay {amount} EUR for {purpose}?", id="ask", form=Booking, approvers=["role:finance"])
    paid = pay(purpose, asked.form, by=asked.decided_by)
    with tidemill.on_reject(asked):
        told = tell(purpose, asked.comments)
    # Only one of them has a result.
    return tidemill.default(paid, told)


def main() -> None:
    with tidemill.open("memory://") as mill:
        for purpose, amount in (("a desk", 400), ("a boat", 90_000)):
            run = mill.start(expense, purpose=purpose, amount=amount)
            next(event for event in mill.follow(run) if event["type"] == "ApprovalRequested")
            print(mill.approval(run, "ask").title)
            if amount < 1_000:
                mill.decide(run, "ask", "approve", form={"account": "office"}, actor="bob", roles=["finance"])
            else:
                mill.decide(run, "ask", "reject", comments="the sea is far away", actor="bob", roles=["finance"])
            print(" ", mill.result(run, timeout=10).outputs)


if __name__ == "__main__":
    main()
