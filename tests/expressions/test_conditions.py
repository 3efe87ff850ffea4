"""The union of conditions: reading, normal form, deciding."""

from __future__ import annotations

from typing import Any

import pytest

from tests.expressions.scopes import AFTER, evaluate
from tidemill.expressions.cel.evaluate import Cel
from tidemill.expressions.conditions import Composite, Condition, compiled, normal, parse_condition
from tidemill.expressions.errors import ExpressionError

YES, NO, BROKEN = "output.score > 1", "output.score < 1", "output.missing > 1"


def parsed(raw: Any) -> Condition:
    condition, problems = parse_condition(raw, "")
    assert condition is not None, problems
    return condition


def all_of(*parts: Any) -> dict[str, Any]:
    return {"type": "composite", "operator": "AND", "conditions": list(parts)}


def any_of(*parts: Any) -> dict[str, Any]:
    return {"type": "composite", "operator": "OR", "conditions": list(parts)}


def none_of(*parts: Any) -> dict[str, Any]:
    return {"type": "composite", "operator": "NOT", "conditions": list(parts)}


def test_a_plain_string_is_cel() -> None:
    assert parsed(YES) == parsed({"type": "cel", "expression": YES})
    assert normal(parsed(YES)) == {"type": "cel", "expression": YES}


def test_the_normal_form_writes_everything_out() -> None:
    cel = {"type": "cel", "expression": YES}
    raw = all_of(YES, any_of(NO, none_of(YES)))
    expected = all_of(cel, any_of({"type": "cel", "expression": NO}, none_of(cel)))
    assert normal(parsed(raw)) == expected
    assert normal(parsed(expected)) == expected, "it is its own normal form"


@pytest.mark.parametrize(
    ("raw", "value", "reason"),
    [
        (YES, True, "output.score > 1 is true"),
        (NO, False, "output.score < 1 is false"),
        ({"type": "cel", "expression": YES}, True, "output.score > 1 is true"),
        (all_of(YES, YES), True, "AND: all 2 parts are true"),
        (all_of(YES, NO, YES), False, "AND, part 2 of 3: output.score < 1 is false"),
        (any_of(NO, YES), True, "OR, part 2 of 2: output.score > 1 is true"),
        (any_of(NO, NO), False, "OR: all 2 parts are false"),
        (none_of(NO), True, "NOT: output.score < 1 is false"),
        (none_of(all_of(YES, NO)), True, "NOT: AND, part 2 of 2: output.score < 1 is false"),
        (any_of(NO, all_of(YES, none_of(NO))), True, "OR, part 2 of 2: AND: all 2 parts are true"),
        # Short circuit: what is not needed is not evaluated.
        (all_of(NO, BROKEN), False, "AND, part 1 of 2: output.score < 1 is false"),
        (any_of(YES, BROKEN), True, "OR, part 1 of 2: output.score > 1 is true"),
    ],
)
def test_a_condition_decides(raw: Any, value: bool, reason: str) -> None:
    verdict = evaluate(parsed(raw), AFTER)
    assert verdict.value is value
    assert verdict.reason == reason


@pytest.mark.parametrize("raw", [BROKEN, all_of(YES, BROKEN), any_of(NO, BROKEN), any_of(BROKEN, YES), none_of(BROKEN)])
def test_an_error_decides_nothing(raw: Any) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(parsed(raw), AFTER)
    assert caught.value.code == "condition_failed"


def test_the_references_of_the_parts_are_united() -> None:
    condition = parsed(all_of("ctx.a.output == 1", any_of("inputs.x == 1", none_of("ctx[inputs.y].output == 1"))))
    assert condition.references.nodes == {"a"}
    assert condition.references.roots == {"ctx", "inputs"}
    assert condition.references.dynamic


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (None, [("condition_shape", "")]),
        (1, [("condition_shape", "")]),
        (True, [("condition_shape", "")]),
        ([YES], [("condition_shape", "")]),
        ({}, [("condition_shape", "")]),
        ({"expression": YES}, [("condition_shape", "")]),
        ({"type": "cel"}, [("condition_shape", "")]),
        ({"type": "cel", "expression": 1}, [("condition_shape", "")]),
        ({"type": "cel", "expression": YES, "expresion": 1}, [("condition_shape", "/expresion")]),
        ({"type": "nope"}, [("condition_unknown_kind", "/type")]),
        ({"type": ["cel"]}, [("condition_unknown_kind", "/type")]),
        ({"type": None}, [("condition_unknown_kind", "/type")]),
        ("foo > 1", [("condition_unknown_name", "")]),
        ({"type": "cel", "expression": "foo > 1"}, [("condition_unknown_name", "/expression")]),
        ({"type": "cel", "expression": "1 +"}, [("condition_syntax", "/expression")]),
        ({"type": "composite"}, [("condition_shape", "/operator"), ("condition_shape", "/conditions")]),
        (all_of(), [("condition_shape", "/conditions")]),
        (none_of(YES, YES), [("condition_shape", "/conditions")]),
        (none_of(), [("condition_shape", "/conditions")]),
        ({**all_of(YES), "operator": "XOR"}, [("condition_shape", "/operator")]),
        ({**all_of(YES), "operator": ["AND"]}, [("condition_shape", "/operator")]),
        ({**all_of(YES), "conditions": YES}, [("condition_shape", "/conditions")]),
        (all_of(*[YES] * 501), [("condition_shape", "/conditions")]),
        (
            all_of("foo > 1", {"type": "nope"}, any_of(1, "1 +")),
            [
                ("condition_unknown_name", "/conditions/0"),
                ("condition_unknown_kind", "/conditions/1/type"),
                ("condition_shape", "/conditions/2/conditions/0"),
                ("condition_syntax", "/conditions/2/conditions/1"),
            ],
        ),
    ],
)
def test_every_problem_is_reported_with_its_place(raw: Any, found: list[tuple[str, str]]) -> None:
    condition, problems = parse_condition(raw, "/when")
    assert condition is None
    assert [(problem.code, problem.path) for problem in problems] == [(code, f"/when{path}") for code, path in found]
    with pytest.raises(ExpressionError):
        compiled(raw)


def test_an_unknown_kind_is_answered_with_the_known_ones() -> None:
    _, problems = parse_condition({"type": "jsonpth"}, "")
    assert "cel, composite" in problems[0].hint


def test_conditions_are_not_nested_endlessly() -> None:
    raw: Any = YES
    for _ in range(20):
        raw = none_of(raw)
    assert parse_condition(raw, "")[1] == []
    deep = raw
    for _ in range(100_000):
        deep = none_of(deep)
    assert [problem.code for problem in parse_condition(deep, "")[1]] == ["condition_shape"]
    with pytest.raises(ExpressionError):
        compiled(deep)


def test_the_compiled_form_is_cached_by_content() -> None:
    assert compiled(YES) is compiled(YES)
    first = compiled({"type": "cel", "expression": NO})
    assert compiled({"expression": NO, "type": "cel"}) is first
    assert isinstance(first, Cel)
    assert isinstance(compiled(all_of(YES)), Composite)
    assert evaluate(compiled(normal(parsed(all_of(YES, YES)))), AFTER).value
