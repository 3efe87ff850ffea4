"""Dominators against their definition: the nodes that every path from the start passes through."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.graphs import graph_of
from tidemill.cli.render.graph import LANES_MAX, START, DominatorTree, LoopSpan, loop_brackets

edge = st.tuples(st.integers(0, 11), st.integers(0, 11)).map(lambda pair: (min(pair), max(pair)))


def dominator(inbound: dict[int, list[int]], node: int, dominators: dict[int, set[int]]) -> set[int]:
    shared = [dominators[above] for above in inbound[node]]
    return {node} | (set.intersection(*shared) if shared else {START})


@given(st.lists(edge, min_size=1, max_size=40))
def test_a_node_hangs_below_its_dominator(edges: list[tuple[int, int]]) -> None:
    workflow = graph_of(edges)
    outline = DominatorTree(workflow)
    inbound = {
        number: [int(name.removeprefix("n")) for name in node.inbound] for number, node in enumerate(workflow.nodes)
    }
    dominators: dict[int, set[int]] = {START: {START}}
    for number in outline.order:
        dominators[number] = dominator(inbound, number, dominators)
    parents = {
        child: parent for kids in (outline.arms, outline.joins) for parent, all_ in kids.items() for child in all_
    }
    assert set(parents) == set(range(len(workflow.nodes)))
    for number, parent in parents.items():
        assert parent == max(dominators[number] - {number}, key=lambda above: len(dominators[above]))


@given(st.lists(edge, min_size=1, max_size=40))
def test_the_order_respects_every_edge(edges: list[tuple[int, int]]) -> None:
    workflow = graph_of(edges)
    outline = DominatorTree(workflow)
    place = {number: position for position, number in enumerate(outline.order)}
    assert all(place[source] < place[target] for source, target in edges if source != target)


def test_loops_are_brackets_and_outer_ones_stand_left() -> None:
    assert loop_brackets([LoopSpan(0, 4), LoopSpan(1, 3)], 6) == ["╭▶  ", "│ ╭▶", "│ │ ", "│ ╰─", "╰─  ", "    "]


def test_loops_one_after_another_share_a_lane() -> None:
    assert loop_brackets([LoopSpan(2, 3), LoopSpan(0, 1)], 4) == ["╭▶", "╰─", "╭▶", "╰─"]


def test_a_loop_of_one_node_is_a_mark() -> None:
    assert loop_brackets([LoopSpan(1, 1)], 2) == ["  ", " ↺"]
    assert loop_brackets([], 2) == ["", ""]


def test_loops_nested_too_deeply_have_no_bracket() -> None:
    spans = [LoopSpan(number, 40 - number) for number in range(20)]
    assert {len(line) for line in loop_brackets(spans, 41)} == {2 * LANES_MAX}
