"""Loop bodies: what belongs to one, how they nest, what may leave them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.kernel.authoring import compiled, document, node, refusal
from tidemill.kernel.model import Loop, Workflow

CONDITION = "output.again"


def looping(id_: str, *dependencies: str, back_to: str | None = None, **fields: Any) -> dict[str, Any]:
    loop: dict[str, Any] = {"condition": CONDITION, "max_iterations": 3}
    if back_to is not None:
        loop["loop_back_to"] = back_to
    return node(id_, *dependencies, loop={**loop, **fields.pop("loop", {})}, **fields)


def bodies(workflow: Workflow) -> dict[str, str]:
    """Each loop's body, by looping node; ids of one letter, joined."""
    return {each.id: "".join(each.loop.body) for each in workflow.nodes if each.loop is not None}


def around(workflow: Workflow) -> dict[str, str]:
    return {each.id: "".join(each.loops) for each in workflow.nodes if each.loops}


BODIES: list[tuple[str, list[Any], dict[str, str], dict[str, str]]] = [
    ("itself", [node("a"), looping("b", "a"), node("c", "b")], {"b": "b"}, {"b": "b"}),
    (
        "a chain",
        [node("a"), node("b", "a"), looping("c", "b", back_to="a"), node("d", "c")],
        {"c": "abc"},
        {"a": "c", "b": "c", "c": "c"},
    ),
    (
        "a diamond",
        [node("a"), node("b", "a"), node("c", "a"), looping("d", "b", "c", back_to="a")],
        {"d": "abcd"},
        {"a": "d", "b": "d", "c": "d", "d": "d"},
    ),
    (
        "the document's order does not matter",
        [looping("d", "b", "c", back_to="a"), node("c", "a"), node("b", "a"), node("a")],
        {"d": "dcba"},
        {"a": "d", "b": "d", "c": "d", "d": "d"},
    ),
    (
        "nested with an own entry",
        [node("a"), node("b", "a"), looping("c", "b", back_to="b"), looping("d", "c", back_to="a")],
        {"c": "bc", "d": "abcd"},
        {"a": "d", "b": "cd", "c": "cd", "d": "d"},
    ),
    (
        "nested with the same entry",
        [node("a"), looping("b", "a", back_to="a"), looping("c", "b", back_to="a")],
        {"b": "ab", "c": "abc"},
        {"a": "bc", "b": "bc", "c": "c"},
    ),
    (
        "one in itself inside another",
        [looping("a"), looping("b", "a", back_to="a")],
        {"a": "a", "b": "ab"},
        {"a": "ab", "b": "b"},
    ),
    (
        "three deep",
        [node("a"), looping("b", "a"), looping("c", "b", back_to="b"), looping("d", "c", back_to="a")],
        {"b": "b", "c": "bc", "d": "abcd"},
        {"a": "d", "b": "bcd", "c": "cd", "d": "d"},
    ),
    (
        "one after the other",
        [node("a"), looping("b", "a", back_to="a"), node("c", "b"), looping("d", "c", back_to="c")],
        {"b": "ab", "d": "cd"},
        {"a": "b", "b": "b", "c": "d", "d": "d"},
    ),
    (
        "side by side",
        [node("a"), looping("b", "a"), looping("c", "a"), node("d", "b", "c")],
        {"b": "b", "c": "c"},
        {"b": "b", "c": "c"},
    ),
    (
        "an error path that comes back is inside",
        [node("a", on_error={"route": ["b"]}), node("b"), looping("c", "a", "b", back_to="a")],
        {"c": "abc"},
        {"a": "c", "b": "c", "c": "c"},
    ),
]


@pytest.mark.parametrize(("nodes", "expected", "loops"), [row[1:] for row in BODIES], ids=[row[0] for row in BODIES])
def test_a_body_is(nodes: list[Any], expected: dict[str, str], loops: dict[str, str]) -> None:
    workflow = compiled(*nodes).workflow
    assert bodies(workflow) == expected
    assert around(workflow) == loops


def test_a_loop_in_the_ir() -> None:
    workflow = compiled(
        node("a"),
        looping("b", "a", back_to="a", loop={"break_path": ["c"], "timeout_path": ["d"]}),
        node("c", "b"),
        node("d"),
        node("e", "b"),
    ).workflow
    b = workflow.by_id["b"]
    assert b.loop == Loop(
        condition={"type": "cel", "expression": CONDITION},
        max_iterations=3,
        back_to="a",
        break_path=("c",),
        timeout_path=("d",),
        body=("a", "b"),
    )
    assert (b.outbound, b.plain) == (("c", "d", "e"), ("e",))


@pytest.mark.parametrize("limits", [{"deadline_seconds": 5}, {"max_visits": 5}])
def test_an_unlimited_loop_with_another_bound(limits: dict[str, Any]) -> None:
    loop = compiled(looping("a", loop={"max_iterations": "unlimited"}), limits=limits).workflow.nodes[0].loop
    assert loop is not None
    assert loop.max_iterations is None


ESCAPES: list[tuple[str, list[Any], dict[str, tuple[tuple[str, str], ...]]]] = [
    (
        "an error path",
        [node("a", on_error={"route": ["c"]}), looping("b", "a", back_to="a"), node("c")],
        {"b": (("a", "c"),)},
    ),
    (
        "a rejection path",
        [node("a", type="human", config={"rejection_path": ["c"]}), looping("b", "a", back_to="a"), node("c", "b")],
        {"b": (("a", "c"),)},
    ),
    (
        "an error path listed as a dependency too",
        [node("a", on_error={"route": ["c"]}), looping("b", "a", back_to="a"), node("c", "a")],
        {"b": (("a", "c"),)},
    ),
    (
        "out of the inner loop only",
        [
            node("a"),
            node("b", "a", on_error={"route": ["d"]}),
            looping("c", "b", back_to="b"),
            node("d", "c"),
            looping("e", "d", back_to="a"),
        ],
        {"c": (("b", "d"),), "e": ()},
    ),
    (
        "out of both loops at once",
        [
            node("a", on_error={"route": ["d"]}),
            looping("b", "a", back_to="a"),
            looping("c", "b", back_to="a"),
            node("d"),
        ],
        {"b": (("a", "d"),), "c": (("a", "d"),)},
    ),
    (
        "the looping node's own error path is no escape, but it leaves the outer loop",
        [node("a"), looping("b", "a", on_error={"route": ["d"]}), looping("c", "b", back_to="a"), node("d")],
        {"b": (), "c": (("b", "d"),)},
    ),
]


@pytest.mark.parametrize(("nodes", "expected"), [row[1:] for row in ESCAPES], ids=[row[0] for row in ESCAPES])
def test_escapes(nodes: list[Any], expected: dict[str, Any]) -> None:
    workflow = compiled(*nodes).workflow
    assert {each.id: each.loop.escapes for each in workflow.nodes if each.loop is not None} == expected


REFUSED: list[tuple[str, list[Any], str, str]] = [
    ("entered beside", [node("x"), node("a"), looping("b", "a", "x", back_to="a")], "loop_entered_inside", "x → b"),
    (
        "entered by an error path",
        [node("x", on_error={"route": ["b"]}), node("a"), looping("b", "a", back_to="a")],
        "loop_entered_inside",
        "x → b",
    ),
    ("left by a plain edge", [node("a"), looping("b", "a", back_to="a"), node("c", "a")], "loop_left_inside", "a → c"),
    (
        "left by a branch",
        [
            node("a", branch={"rules": [{"condition": "output.x", "next_nodes": ["c"]}]}),
            looping("b", "a", back_to="a"),
            node("c"),
        ],
        "loop_left_inside",
        "a → c",
    ),
    (
        "left by an error path that a branch names too",
        [
            node("a", on_error={"route": ["c"]}, branch={"rules": [{"condition": "output.x", "next_nodes": ["c"]}]}),
            looping("b", "a", back_to="a"),
            node("c"),
        ],
        "loop_left_inside",
        "a → c",
    ),
    (
        "left by the break of an inner loop",
        [looping("a", loop={"break_path": ["c"]}), looping("b", "a", back_to="a"), node("c")],
        "loop_left_inside",
        "a → c",
    ),
    ("going back to a stranger", [node("a"), looping("b", back_to="a")], "loop_back_not_ancestor", "`a`"),
    ("going back to a descendant", [looping("a", back_to="b"), node("b", "a")], "loop_back_not_ancestor", "`b`"),
    (
        "overlapping",
        [node("a"), node("b", "a"), looping("c", "b", back_to="a"), looping("d", "c", back_to="b")],
        "loops_overlap",
        "`b`",
    ),
]


@pytest.mark.parametrize(("nodes", "code", "named"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_loop_is_refused_and_the_culprit_named(nodes: list[Any], code: str, named: str) -> None:
    (problem,) = refusal(document(*nodes))
    assert problem.code == code
    assert named in problem.message
    assert problem.hint


def test_hostile_nesting_ends_early() -> None:
    count = 3000
    nodes = [node("n0"), *(looping(f"n{number}", f"n{number - 1}", back_to="n0") for number in range(1, count))]
    assert [problem.code for problem in refusal(document(*nodes))] == ["loops_too_deep"]
    onion = [
        *(node(f"a{number}", *([f"a{number - 1}"] if number else [])) for number in range(count)),
        *(
            looping(f"b{number}", f"b{number + 1}" if number < count - 1 else f"a{number}", back_to=f"a{number}")
            for number in reversed(range(count))
        ),
    ]
    assert [problem.code for problem in refusal(document(*onion))] == ["loops_too_deep"]
