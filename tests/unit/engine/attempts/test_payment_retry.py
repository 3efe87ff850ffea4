"""A payment that is tried again: one node with a loop over a condition of three kinds, and a branch behind it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import call
from tidemill.kernel.events import NodeCompleted
from tidemill.kernel.model import Json

PASSES = 5
AGAIN = {
    "type": "composite",
    "operator": "AND",
    "conditions": [
        {"type": "cel", "expression": "output.status != 'success'"},
        {
            "type": "jsonpath",
            "query": "$.error_code",
            "operator": "in",
            "value": ["TIMEOUT", "RATE_LIMIT", "TEMP_ERROR"],
        },
        {
            "type": "cross_node_comparison",
            "left": {"source": "current", "path": "output.amount"},
            "operator": "==",
            "right": {"source": "context", "node": "total", "path": "output.final_amount"},
        },
    ],
}
PAYMENT = document(
    node("total", config={"final_amount": "{{ inputs.amount }}"}),
    call(
        "pay",
        "total",
        function="provider",
        loop={
            "enabled": True,
            "condition": AGAIN,
            "max_iterations": PASSES,
            "loop_back_to": "pay",
            "break_path": ["confirm"],
            "timeout_path": ["refund"],
        },
        branch={
            "enabled": True,
            "type": "conditional",
            "rules": [
                {
                    "condition": {"type": "cel", "expression": "output.status == 'success' && output.amount >= 1000"},
                    "next_nodes": ["premium", "crm"],
                },
                {"condition": {"type": "cel", "expression": "output.status == 'success'"}, "next_nodes": ["standard"]},
            ],
            "default": ["review"],
        },
    ),
    *(node(name) for name in ("confirm", "refund", "premium", "crm", "standard", "review")),
)


def failed(code: str, amount: Json = 50) -> dict[str, Json]:
    return {"status": "failed", "error_code": code, "amount": amount}


def paid(amount: Json = 50) -> dict[str, Json]:
    return {"status": "success", "amount": amount}


@pytest.mark.parametrize(
    ("amount", "answers", "reached", "why"),
    [
        (50, [paid()], {"confirm", "standard"}, "AND, part 1 of 3: output.status != 'success' is false"),
        (50, [failed("TIMEOUT"), failed("RATE_LIMIT"), paid()], {"confirm", "standard"}, "part 1 of 3"),
        (2000, [failed("TEMP_ERROR", 2000), paid(2000)], {"confirm", "premium", "crm"}, "part 1 of 3"),
        (1000.0, [paid(1000)], {"confirm", "premium", "crm"}, "part 1 of 3"),
        (50, [failed("TIMEOUT"), failed("DECLINED")], {"confirm", "review"}, "part 2 of 3: $.error_code in"),
        (50, [{"status": "failed", "amount": 50}], {"confirm", "review"}, "part 2 of 3"),
        (
            50,
            [failed("TIMEOUT", 49)],
            {"confirm", "review"},
            "part 3 of 3: output.amount == ctx.total.output",
        ),
        (50, [failed("TIMEOUT", 50.0), paid()], {"confirm", "standard"}, "part 1 of 3"),
    ],
)
@simulated
async def test_a_payment_is_tried_again_while_that_makes_sense(
    mill: Cluster, amount: Json, answers: list[Json], reached: set[str], why: str
) -> None:
    left = list(answers)
    worker = await mill.process(functions={"provider": lambda: left.pop(0)})
    run = await worker.run(PAYMENT, {"amount": amount})
    assert (run.status, left, run.nodes["pay"]["visits"]) == ("COMPLETED", [], len(answers)), run.error
    done = {name for name, shown in run.nodes.items() if shown["status"] == "COMPLETED"}
    assert done - {"total", "pay"} == reached
    *passes, last = await mill.of(run.run_id, NodeCompleted, "pay")
    assert all(event.route and event.route.again_reason == "AND: all 3 parts are true" for event in passes)
    assert last.route is not None and why in last.route.again_reason
    # A part that was not asked has read nothing.
    assert [name for name, _ in last.route.reads] == ["output", *["ctx.total"] * ("part 3" in why)]


@simulated
async def test_after_the_last_pass_the_money_is_given_back(mill: Cluster) -> None:
    calls: list[int] = []

    def provider() -> Any:
        calls.append(1)
        return failed("TIMEOUT")

    worker = await mill.process(functions={"provider": provider})
    run = await worker.run(PAYMENT, {"amount": 50})
    done = {name for name, shown in run.nodes.items() if shown["status"] == "COMPLETED"}
    assert (run.status, len(calls), done) == ("COMPLETED", PASSES, {"total", "pay", "refund"})
    account = await worker.engine.why_node(run.run_id, "pay")
    assert account.headline == (
        "pay (visit 5) completed and went to refund: the loop has no pass left: AND: all 3 parts are true"
    )


@simulated
async def test_an_amount_of_another_kind_is_another_amount(mill: Cluster) -> None:
    """Equality is strict, so a string of digits is not a number: the loop ends instead of paying on."""
    worker = await mill.process(functions={"provider": lambda: failed("TIMEOUT", "50")})
    run = await worker.run(PAYMENT, {"amount": 50})
    assert (run.nodes["pay"]["visits"], run.nodes["review"]["status"]) == (1, "COMPLETED")
