"""Segments and edges, folded from the events of real runs under virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.fixtures.cluster import Cluster, Process, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.pictures.history import History, Row, VisitTimes, merged


def segments(history: History, name: str) -> list[tuple[str, int, int]]:
    """What a node did, in seconds since the run began."""
    begin = history.begin_ms or 0
    return [
        (segment.kind, (segment.begin_ms - begin) // 1000, (segment.end_ms - begin) // 1000)
        for row in history.rows
        if row.node == name and not row.undo
        for track in row.tracks
        for segment in track.segments
        if segment.end_ms - segment.begin_ms >= 1000 or segment.kind == "failed"
    ]


async def history_of(worker: Process, run_id: str, **more: Any) -> History:
    return History(await worker.engine.events(run_id), **more)


@simulated
async def test_work_waits_and_back_offs_are_told_apart(mill: Cluster) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    run = await worker.run(
        document(
            call("a", args={"seconds": 3}),
            node("s", "a", type="sleep", config={"seconds": 20}),
            node(
                "f",
                "s",
                type="fail",
                config={"attempts": 1, "retryable": True, "value": 1},
                retry={"backoff_seconds": 10, "jitter": 0},
            ),
        )
    )
    history = await history_of(worker, run.run_id)
    assert segments(history, "a") == [("running", 0, 3)]
    assert segments(history, "s") == [("waiting", 3, 23)]
    assert segments(history, "f") == [("failed", 23, 23), ("retry", 23, 33)]
    assert [row.node for row in history.rows] == ["a", "s", "f"]
    assert history.taken == {("a", "s"), ("s", "f")}
    assert not history.dead


@simulated
async def test_what_is_under_way_reaches_until_now(mill: Cluster) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(node("s", type="sleep", config={"seconds": 900})))
    await asyncio.sleep(60)
    history = await history_of(worker, run_id, until_ms=mill.now_ms())
    assert segments(history, "s") == [("waiting", 0, 60)]
    assert history.rows[0].tracks[0].segments[-1].under_way


@simulated
async def test_dead_edges_and_passes_are_known(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(
        document(
            node(
                "a",
                config=1,
                branch={"rules": [{"condition": "output > 5", "next_nodes": ["b"]}], "default": ["c"]},
            ),
            node("b"),
            node("c", loop={"condition": "iteration < 2", "max_iterations": 5}),
        )
    )
    history = await history_of(worker, run.run_id)
    assert history.taken == {("a", "c")}
    assert ("a", "b") in history.dead
    assert {row.node: len(row.tracks) for row in history.rows} == {"a": 1, "c": 3}


@simulated
async def test_items_of_a_map_are_tracks_of_one_row(mill: Cluster) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    run = await worker.run(
        document(call("m", args={"seconds": "{{ item }}"}, map={"over": [2, 4, 6], "max_parallel": 2}))
    )
    history = await history_of(worker, run.run_id)
    (row,) = history.rows
    assert row.items
    assert segments(history, "m") == [("running", 0, 2), ("running", 0, 4), ("running", 2, 8)]
    assert 8_000 <= row.elapsed_ms < 8_100


@simulated
async def test_the_time_of_the_latest_visit_is_known_while_the_events_come(mill: Cluster) -> None:
    """It counts as the rows of a timeline do, for one visit."""
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    loop = {"condition": "iteration < 2", "max_iterations": 5, "delay_seconds": 1}
    run = await worker.run(
        document(
            call("m", args={"seconds": "{{ item }}"}, map={"over": [2, 4, 6], "max_parallel": 2}),
            node("l", "m", type="sleep", config={"seconds": 3}, loop=loop),
            node("s", "l", when="false"),
        )
    )
    events = await worker.engine.events(run.run_id)
    times, (m, *_) = VisitTimes(events), History(events).rows
    assert times.elapsed_ms("m") == m.elapsed_ms
    assert 3_000 <= (times.elapsed_ms("l") or 0) < 4_000, "of three passes the latest"
    assert times.elapsed_ms("s") is None and times.elapsed_ms("stranger") is None
    half = VisitTimes(event for event in events if event["at_ms"] <= events[0]["at_ms"] + 3_000)
    assert 4_900 < (half.elapsed_ms("m", events[0]["at_ms"] + 5_000) or 0) <= 5_000


@simulated
async def test_a_pause_and_a_rollback_are_there(mill: Cluster) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(
        document(
            call("a", args={"seconds": 2}, compensator={"type": "value", "config": "undone"}),
            node("b", "a", type="sleep", config={"seconds": 1}),
        )
    )
    await asyncio.sleep(1)
    await worker.engine.pause(run_id)
    await asyncio.sleep(30)
    await worker.engine.resume(run_id)
    await worker.end(run_id)
    await worker.engine.rollback(run_id)
    await asyncio.sleep(5)
    history = await history_of(worker, run_id)
    ((begin, end),) = history.pauses
    assert end - begin == 30_000
    assert [row.node for row in history.rows if row.undo] == ["a"]


def test_spans_that_touch_are_joined() -> None:
    assert list(merged([(0, 2), (1, 3), (3, 4), (6, 7)])) == [(0, 4), (6, 7)]
    assert list(merged([])) == []


def test_a_log_without_events_has_no_rows() -> None:
    history = History([])
    assert history.rows == list[Row]()
