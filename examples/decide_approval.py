"""Decide an approval from Python: find what is pending for a role, request changes once, then approve.

python examples/decide_approval.py
"""

from __future__ import annotations

from pathlib import Path

import tidemill

HERE = Path(__file__).parent


def main() -> None:
    with tidemill.open("memory://") as mill:
        mill.publish(HERE / "approval.yaml")
        run = mill.start("approval", {"amount": 900, "purpose": "a desk"}, submitted_by="ada")
        asked = (event for event in mill.follow(run) if event["type"] == "ApprovalRequested")

        next(asked)
        print(mill.why(run).headline)
        rows, _ = mill.approvals(["status:pending", "approver:role:finance"])
        place = {"actor": "bob", "roles": ["finance"], "visit": rows[0].visit}
        mill.decide(run, "decide", "changes", comments="which desk?", **place)

        next(asked)
        view = mill.approval(run, "decide")
        print(view.title, "| visit", view.visit)
        mill.decide(run, "decide", "approve", actor="bob", roles=["finance"], form={"account": "office"})

        # The same decision again is answered like the first one; a contrary one is refused.
        mill.decide(run, "decide", "approve", actor="bob", roles=["finance"])
        try:
            mill.decide(run, "decide", "reject", actor="eve", roles=["finance"])
        except tidemill.Rejected as refusal:
            print(refusal.code)
        print(mill.result(run, timeout=10).outputs)


if __name__ == "__main__":
    main()
