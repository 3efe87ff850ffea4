"""Whatever the values and whatever the expression: a boolean, a JSON value, a typed failure, or problems."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.random_expressions import (
    CEL,
    COMPARISONS,
    COMPOSITES,
    JSONPATH,
    MATCHING,
    NONSENSE,
    SANDBOX,
    SCOPES,
    TEMPLATES,
)
from tests.fixtures.scopes import is_plain
from tidemill.errors import Problem
from tidemill.expressions.conditions import Condition, Verdict, decide, normal, parse_condition
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.sandbox.pool import SandboxPool, run_steps
from tidemill.expressions.scope import Json, Scope
from tidemill.expressions.templates.template import check_template, compile_template


@dataclass(frozen=True)
class Decider:
    """Decides as the engine does: here, or in a real child process."""

    runner: asyncio.Runner
    processes: SandboxPool

    def outcome(self, condition: Condition, scope: Scope) -> Verdict | Problem:
        try:
            verdict = run_steps(decide(condition, scope), self.processes)
            return self.runner.run(_awaited(verdict)) if isinstance(verdict, Awaitable) else verdict
        except ExpressionError as failure:
            return failure.problem()


async def _awaited(verdict: Awaitable[Verdict]) -> Verdict:
    return await verdict


@pytest.fixture(scope="module")
def decider() -> Iterator[Decider]:
    with asyncio.Runner() as runner:
        made = Decider(runner, SandboxPool(1))
        yield made
        runner.run(made.processes.close())


def check(raw: Json, scope: Scope, decider: Decider) -> None:
    """Check every law of conditions on one."""
    condition, problems = parse_condition(raw, "/when")
    assert (condition is None) is bool(problems)
    for problem in problems:
        assert problem.code and problem.message and problem.path.startswith("/when")
    if condition is None:
        return
    outcome = decider.outcome(condition, scope)
    if isinstance(outcome, Verdict):
        assert type(outcome.value) is bool
        assert outcome.reason
    else:
        assert outcome.code == "condition_failed"
        assert outcome.message
    stored = normal(condition)
    again, problems = parse_condition(stored)
    assert again is not None, problems
    assert normal(again) == stored
    assert again.references == condition.references
    assert decider.outcome(again, scope) == outcome


CONDITIONS = {
    "cel": CEL,
    "query": JSONPATH,
    "schema": MATCHING,
    "comparison": COMPARISONS,
    "code": SANDBOX,
    "composite": COMPOSITES,
    "nonsense": NONSENSE,
}


@pytest.mark.parametrize("kind", CONDITIONS)
@settings(max_examples=200)
@given(data=st.data(), scope=SCOPES)
def test_any_condition(decider: Decider, kind: str, data: st.DataObject, scope: Scope) -> None:
    check(data.draw(CONDITIONS[kind]), scope, decider)


@settings(max_examples=250)
@given(TEMPLATES, SCOPES)
def test_any_template(value: Json, scope: Scope) -> None:
    problems, references = check_template(value, "/config")
    assert all(each.code == "template_syntax" and each.message for each in problems)
    if problems:
        with pytest.raises(ExpressionError):
            compile_template(value)
        return
    template = compile_template(value)
    assert template.references == references
    assert _rendered(value, scope) == _rendered(value, scope)


def _rendered(value: Json, scope: Scope) -> Json | Problem:
    try:
        rendered = compile_template(value).render(scope)
    except ExpressionError as failure:
        return failure.problem()
    assert is_plain(rendered)
    return rendered
