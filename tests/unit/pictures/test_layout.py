"""Boxes keep apart, links run down and around boxes, and every shape is laid out, however deep or wide."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.graphs import SHAPES, Edges
from tidemill.pictures.layout import Box, Layout, Link, place

BOX = Box(100, 40)
edge = st.tuples(st.integers(0, 13), st.integers(0, 13)).filter(lambda pair: pair[0] != pair[1])


def laid_out(edges: Edges, boxes: list[Box] | None = None) -> Layout:
    size = max(max(pair) for pair in edges) + 1
    links = [Link(source, target) for source, target in dict.fromkeys(edges) if source != target]
    return place(boxes or [BOX] * size, links)


def overlapping(layout: Layout, boxes: list[Box]) -> list[tuple[int, int]]:
    areas = [
        (at.x - box.width / 2, at.x + box.width / 2, at.y - box.height / 2, at.y + box.height / 2)
        for at, box in zip(layout.boxes, boxes, strict=True)
    ]
    return [
        (one, other)
        for one, (left, right, top, bottom) in enumerate(areas)
        for other, (west, east, north, south) in enumerate(areas[:one])
        if left < east - 1e-6 and west < right - 1e-6 and top < south and north < bottom
    ]


@given(st.lists(edge.map(lambda pair: (min(pair), max(pair))), min_size=1, max_size=40), st.integers(0, 9))
def test_boxes_never_overlap_and_links_lead_down_around_them(edges: Edges, seed: int) -> None:
    size = max(max(pair) for pair in edges) + 1
    boxes = [Box(40 + 30 * ((number + seed) % 5), 30 + 15 * (number % 3)) for number in range(size)]
    links = [Link(source, target, Box(50, 16) if (source + seed) % 3 == 0 else None) for source, target in set(edges)]
    layout = place(boxes, links)
    assert not overlapping(layout, boxes)
    for link, route in zip(links, layout.routes, strict=True):
        heights = [point.y for point in route.points]
        assert heights == sorted(heights)
        assert heights[0] == layout.boxes[link.source].y + boxes[link.source].height / 2
        assert heights[-1] == layout.boxes[link.target].y - boxes[link.target].height / 2
        assert (route.label is None) == (link.label is None)
        for point in route.points[1:-1]:
            inside = [
                number
                for number, at in enumerate(layout.boxes)
                if abs(point.x - at.x) < boxes[number].width / 2 and abs(point.y - at.y) < boxes[number].height / 2
            ]
            assert not inside
    xs = [at.x for at in layout.boxes]
    assert min(xs) >= 0 and max(xs) <= layout.width
    assert max(at.y for at in layout.boxes) <= layout.height


def test_the_same_graph_is_laid_out_the_same() -> None:
    edges = SHAPES["ladder"](40)
    assert laid_out(edges) == laid_out(edges)


def test_a_chain_is_straight_and_a_diamond_is_even() -> None:
    assert len({at.x for at in laid_out(SHAPES["chain"](6)).boxes}) == 1
    top, left, right, bottom = laid_out([(0, 1), (0, 2), (1, 3), (2, 3)]).boxes
    assert top.x == bottom.x == pytest.approx((left.x + right.x) / 2)
    assert left.y == right.y
    assert left.x < right.x, "the order of the document is kept"


def test_a_tree_has_no_crossings() -> None:
    layout = laid_out(SHAPES["tree"](63))
    rows: dict[float, list[int]] = {}
    for number, at in enumerate(layout.boxes):
        rows.setdefault(at.y, []).append(number)
    for numbers in rows.values():
        parents = [layout.boxes[(number - 1) // 2].x for number in sorted(numbers, key=lambda n: layout.boxes[n].x)]
        assert parents == sorted(parents)


def test_crossings_that_the_order_of_the_document_has_are_removed() -> None:
    layout = laid_out([(0, 4), (1, 3), (2, 5), (3, 6), (4, 6), (5, 6)])
    first = sorted((0, 1, 2), key=lambda number: layout.boxes[number].x)
    second = sorted((3, 4, 5), key=lambda number: layout.boxes[number].x)
    assert [{0: 4, 1: 3, 2: 5}[number] for number in first] == second


def test_an_entry_is_near_what_it_leads_to() -> None:
    layout = laid_out([(0, 1), (1, 2), (2, 3), (4, 3)])
    assert layout.boxes[4].y == layout.boxes[2].y


def test_a_link_back_leads_up_beside_its_body() -> None:
    links = [Link(0, 1), Link(1, 2), Link(2, 0, Box(60, 16), back=True)]
    layout = place([BOX] * 3, links)
    assert max(at.x for at in layout.boxes) - min(at.x for at in layout.boxes) < 1, "the body stays straight"
    points = layout.routes[2].points
    assert [point.y for point in points] == sorted((point.y for point in points), reverse=True)
    assert points[0].y == layout.boxes[2].y - BOX.height / 2
    assert points[-1].y == layout.boxes[0].y + BOX.height / 2
    beside = [point for point in points if abs(point.y - layout.boxes[1].y) <= BOX.height / 2]
    assert beside and all(abs(point.x - layout.boxes[1].x) > BOX.width / 2 for point in beside)


def test_nothing_at_all_is_laid_out() -> None:
    assert place([], []) == Layout(0, 0, [], [])


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_five_hundred_nodes_take_well_below_a_second(shape: str) -> None:
    began = time.monotonic()
    laid_out(SHAPES[shape](500))
    assert time.monotonic() - began < 10
