"""Timelines: bars where work was, idle time drawn short, few lanes for many items."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import Ledger, call
from tests.unit.pictures.test_svg import check_golden, texts, titles
from tidemill import pictures
from tidemill.pictures.timeline import TimeScale


def test_a_scale_without_gaps_is_even() -> None:
    scale = TimeScale(1_000, 2_000, [(1_000, 2_000)], 500)
    assert scale.gaps == []
    assert [scale.x(at) for at in (1_000, 1_500, 2_000, 3_000)] == [0, 250, 500, 500]
    assert list(scale.ticks())[:3] == [(1_000, "0"), (1_200, "200 ms"), (1_400, "400 ms")]


def test_a_long_idle_time_is_drawn_short() -> None:
    day = 86_400_000
    scale = TimeScale(0, day + 2_000, [(0, 1_000), (day + 1_000, day + 2_000)], 900)
    ((begin, end),) = scale.gaps
    assert (begin, end) == (1_000, day + 1_000)
    assert scale.x(1_000) == pytest.approx(360)
    assert scale.x(day + 1_000) == pytest.approx(540)
    assert scale.x(day + 2_000) == pytest.approx(900)
    ticks = dict(scale.ticks())
    assert ticks[0] == "0"
    assert ticks[day + 1_500] == "+500 ms", "after a gap, time is counted from its end"
    assert not any(begin < tick < end for tick in ticks)


def test_a_run_that_only_waits_keeps_its_length() -> None:
    assert TimeScale(0, 5_000, [], 100).gaps == []
    assert TimeScale(0, 5_000, [(0, 0), (5_000, 5_000)], 100).gaps == []


def test_places_never_go_back() -> None:
    scale = TimeScale(0, 10_000, [(0, 5), (4_000, 4_005), (9_990, 9_999)], 600)
    places = [scale.x(at) for at in range(0, 10_001, 7)]
    assert places == sorted(places)
    assert len(scale.gaps) == 2


def test_ticks_keep_their_distance() -> None:
    for length in (3, 17, 999, 12_345, 600_000, 9_000_000, 10**9, 10**12):
        scale = TimeScale(0, length, [(0, length)], 620)
        places = [scale.x(tick) for tick, _ in scale.ticks()]
        assert 1 <= len(places) <= 12
        assert all(later - earlier >= 62 for earlier, later in itertools.pairwise(places))


async def waited(mill: Cluster) -> tuple[Any, list[dict[str, Any]]]:
    """A run with a night of waiting, a retry, a map and a loop."""
    worker = await mill.process(functions={"work": Ledger().work})
    flow = document(
        call("load", args={"seconds": 4}),
        node("night", "load", type="sleep", config={"seconds": 7_200}),
        call("each", "night", args={"seconds": "{{ item }}"}, map={"over": [2, 3, 1, 2], "max_parallel": 2}),
        node(
            "flaky",
            "night",
            type="fail",
            config={"attempts": 1, "retryable": True, "value": 1},
            retry={"backoff_seconds": 2, "jitter": 0},
        ),
        call("poll", "each", "flaky", args={"seconds": 1}, loop={"condition": "iteration < 2", "max_iterations": 9}),
        node("never", "poll", when="false"),
    )
    run_id = await worker.start(flow, key="run-2")
    view = await worker.engine.result(run_id, timeout_s=10_000)
    return view, await worker.engine.events(run_id)


@simulated
async def test_a_night_of_waiting_and_some_seconds_of_work(mill: Cluster) -> None:
    view, events = await waited(mill)
    picture = pictures.timeline_svg(view, events)
    check_golden("timeline.svg", picture)
    said = texts(picture)
    assert {"load", "night", "each", "flaky", "poll"} <= set(said)
    assert "never" not in said, "what was skipped took no time"
    assert "⋯ 2 h 00 m" in said
    assert {"worked", "attempt failed", "waited", "backed off", "idle time, drawn short"} <= set(said)
    assert "attempt 1 failed: <1 ms" in titles(picture)
    assert ElementTree.fromstring(picture).get("role") == "img"


@simulated
async def test_a_page_has_graph_timeline_and_table(mill: Cluster) -> None:
    view, events = await waited(mill)
    page = pictures.run_html(view, events)
    assert page.startswith("<!doctype html>")
    assert page.count("<figure>") == 3
    assert page.count("<svg xmlns") == 2
    assert page.count("<tr>") == 1 + len(view.nodes)
    assert "<td>flaky</td><td>fail</td><td>completed</td><td>2 attempts · 2.0 s</td><td></td>" in page


@simulated
async def test_many_items_share_one_bar(mill: Cluster) -> None:
    worker = await mill.process(functions={"work": Ledger().work}, concurrency=100)
    view = await worker.run(document(call("m", args={"seconds": "{{ item }}"}, map={"over": list(range(1, 60))})))
    picture = pictures.timeline_svg(view, await worker.engine.events(view.run_id))
    assert titles(picture).count("ran: 59.0 s") == 1
    assert len(titles(picture)) < 10


@simulated
async def test_a_run_that_goes_on_is_drawn_until_now(mill: Cluster) -> None:
    worker = await mill.process(functions={"work": Ledger().work})
    run_id = await worker.start(document(node("nap", type="sleep", config={"seconds": 900})))
    await asyncio.sleep(60)
    view = await worker.engine.show(run_id)
    picture = pictures.timeline_svg(view, await worker.engine.events(run_id), now_ms=mill.now_ms())
    assert "waited: 1 m 00 s" in titles(picture)
