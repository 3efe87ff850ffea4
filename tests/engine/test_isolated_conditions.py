"""Runs whose conditions are decided by real child processes: many items, code of authors, and what never ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.kernel.authoring import document, node

GROWTH = """
def evaluate(output, context):
    revenue = output.get("revenue", 0)
    before = context.get("last_month", {}).get("output", {}).get("revenue", 0)
    growth = (revenue - before) / before if before > 0 else 0
    return growth > 0.2 and output.get("churn_rate", 1) < 0.05
"""
FOREVER = "def evaluate(output, context):\n    while True:\n        pass\n"
ENDLESS = "output.all(a, output.all(b, output.all(c, output.all(d, a + b + c + d >= 0))))"


@pytest.fixture
def mill() -> Iterator[tidemill.Tidemill]:
    """An engine as everybody opens it. Nothing that it has started may be left when it is closed."""
    before = _children()
    with tidemill.open("memory://") as opened:
        yield opened
    assert _children() <= before


def _children() -> set[str]:
    found = [thread.read_text().split() for thread in Path(f"/proc/{os.getpid()}/task").glob("*/children")]
    return {child for children in found for child in children}


def run(mill: tidemill.Tidemill, output: Any, condition: Any, *more: Any) -> tidemill.RunView:
    branch = {"rules": [{"condition": condition, "next_nodes": ["yes"]}], "default": ["no"]}
    before = [each["id"] for each in more]
    flow = document(
        *more, node("a", *before, config=output, branch=branch), node("yes", config=1), node("no", config=0)
    )
    return mill.run(flow, timeout_s=40)


def test_a_condition_over_many_items(mill: tidemill.Tidemill) -> None:
    rows = list(range(5_000))
    assert run(mill, rows, "output.all(x, x >= 0)").outputs == {"yes": 1}
    assert run(mill, rows, "output.exists(x, x > 5000)").outputs == {"no": 0}
    view = run(mill, rows, {"type": "jsonpath", "query": "$[?@ > 4990]", "operator": "count_eq", "value": 9})
    assert view.outputs == {"yes": 1}
    (step,) = [step for step in mill.path(view.run_id) if step["node"] == "a"]
    assert step["why"].startswith("rule 1 of 1 matched: ") and list(step["reads"]) == ["output"]


@pytest.mark.parametrize(
    ("revenue", "churn_rate", "outputs"), [(130, 0.01, {"yes": 1}), (110, 0.01, {"no": 0}), (130, 0.2, {"no": 0})]
)
def test_code_of_an_author(mill: tidemill.Tidemill, revenue: int, churn_rate: float, outputs: Any) -> None:
    condition = {"type": "python_sandbox", "code": GROWTH}
    last_month = node("last_month", config={"revenue": 100})
    view = run(mill, {"revenue": revenue, "churn_rate": churn_rate}, condition, last_month)
    assert view.outputs == outputs, view.error
    (step,) = [step for step in mill.path(view.run_id) if step["node"] == "a"]
    assert list(step["reads"]) == ["output", "ctx.last_month"]


@pytest.mark.parametrize(
    ("output", "condition"),
    [
        (1, {"type": "python_sandbox", "code": FOREVER, "timeout_ms": 200}),
        (list(range(900)), ENDLESS),
    ],
)
def test_what_never_ends_fails_the_visit(mill: tidemill.Tidemill, output: Any, condition: Any) -> None:
    view = run(mill, output, condition)
    assert (view.status, view.failed_node) == ("FAILED", "a")
    assert view.error is not None and view.error["code"] == "condition_failed", view.error
    assert run(mill, 1, "output == 1").outputs == {"yes": 1}, "the engine goes on"


def test_code_that_fails_says_where(mill: tidemill.Tidemill) -> None:
    code = "def evaluate(output, context):\n    return output['gone'] > 1\n"
    view = run(mill, {}, {"type": "python_sandbox", "code": code})
    assert view.error is not None and view.error["code"] == "condition_failed"
    assert "KeyError" in view.error["message"]
