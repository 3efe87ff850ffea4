"""Evaluating a node's loop and branch over its output: the last thing an attempt does.

It happens in the worker, once, right after the handler; the outcome is recorded and never evaluated again.
"""

from __future__ import annotations

from typing import Any

from tidemill.engine.failures import clipped
from tidemill.engine.programs import Program
from tidemill.expressions.conditions import evaluate
from tidemill.expressions.failure import ExpressionError
from tidemill.expressions.scope import Scope
from tidemill.kernel.commands import Failed
from tidemill.kernel.events import Error, Route
from tidemill.kernel.model import Branch, Node

NAMED_MAX = 5
"""Wrong choices that an error names."""

Chosen = tuple[str, ...] | None
"""What a handler itself chose to go on with, where an agent-driven branch lets it."""


def find_route(node: Node, program: Program, scope: Scope, chosen: Chosen) -> Route | Failed:
    """Which way a visit goes; `scope` holds its output. An error in a condition fails the visit."""
    try:
        again = None if program.again is None else evaluate(program.again, scope).value
        if again or node.branch is None:
            return Route(again)
        if node.branch.kind == "agent_driven":
            return _by_agent(node.branch, again, scope.output, chosen)
        return _by_rules(node.branch, again, program, scope)
    except ExpressionError as error:
        return Failed(error=Error("condition_failed", error.message, hint=error.hint))


def _by_rules(branch: Branch, again: bool | None, program: Program, scope: Scope) -> Route:
    for number, rule in enumerate(program.rules):
        verdict = evaluate(rule, scope)
        if verdict.value:
            return Route(again, branch.rules[number].next_nodes, number, verdict.reason)
    return Route(again, branch.default, -1, "no rule matched")


def _by_agent(branch: Branch, again: bool | None, output: Any, chosen: Chosen) -> Route | Failed:
    names: Any = chosen
    if names is None and isinstance(output, dict):
        names = output.get("next_nodes")
    if isinstance(names, str):
        names = [names]
    if not names:
        return Route(again, branch.default, -1, "nothing was chosen")
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        return Failed(error=Error("route_not_allowed", "next_nodes is not a list of node ids"))
    strange = [name for name in names if name not in branch.available and name not in branch.default]
    if strange:
        said = clipped(", ".join(strange[:NAMED_MAX]), 500)
        return Failed(error=Error("route_not_allowed", f"{said} is not among the nodes it may choose"))
    return Route(again, tuple(names), -1, "chosen by the node")
