"""Maps: expansion, window, tolerated failures, assembly, and items in the state."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.fixtures.kernel.tables import Run, begun, choose, loop, rows
from tidemill.kernel.activation import CHUNK_ITEMS, QUEUED_ITEM, Activation, MapState, OverlayDict, merged
from tidemill.kernel.commands import Done, Result, SkipRequested
from tidemill.kernel.events import BlobRef, Error, NodeExpanded, NodeFailed, Route

Json = Any


def mapped(graph: str = "a > z", limits: Json = None, **options: Json) -> Run:
    more = {key: options.pop(key) for key in list(options) if key not in ("max_parallel", "tolerate")}
    return begun(graph, {"a": {"map": {"over": [1], **options}, **more}}, **({"limits": limits} if limits else {}))


def test_a_list_is_expanded_run_and_assembled_in_the_freed_slot() -> None:
    run = mapped()
    assert run.expand("a", 2) == rows(
        "NodeExpanded a count=2 window=2; NodeScheduled a[0] until=2; put run a[0]; put run a[1]"
    )
    assert run.done("a[1]") == rows("NodeStarted a[1]; NodeCompleted a[1]")
    assert run.done("a[0]") == rows("NodeStarted a[0]; NodeCompleted a[0]; NodeScheduled a; put run a")
    assert run.assemble("a") == rows("NodeCompleted a taken=z counter=1; NodeScheduled z; put run z")
    assert run.cell("a").attempt == 1


def test_an_empty_list_completes_at_once() -> None:
    run = mapped()
    assert run.expand("a", 0) == rows(
        "NodeExpanded a count=0 window=0; NodeCompleted a attempt=0 taken=z counter=1; NodeScheduled z; put run z"
    )
    assert (run.cell("a").output, run.cell("a").attempt) == (b"[]", 0)


def test_when_is_asked_once_before_the_list() -> None:
    run = mapped(when="inputs.go")
    assert run.skip("a") == rows("NodeSkipped a dead=z counter=0; NodeSkipped z counter=0; RunCompleted")
    assert run.of(NodeExpanded) == []


def test_a_window_slides_with_every_item_that_ends() -> None:
    run = mapped(max_parallel=2)
    assert run.expand("a", 4) == rows(
        "NodeExpanded a count=4 window=2; NodeScheduled a[0] until=2; put run a[0]; put run a[1]"
    )
    assert run.done("a[1]") == rows("NodeStarted a[1]; NodeCompleted a[1]; NodeScheduled a[2] until=3; put run a[2]")
    assert run.done("a[2]")[-1] == "put run a[3]"
    assert run.done("a[0]") == rows("NodeStarted a[0]; NodeCompleted a[0]")
    assert run.done("a[3]")[-1] == "put run a"


def test_an_item_keeps_its_place_in_back_off_and_while_it_waits() -> None:
    run = mapped(max_parallel=1)
    run.expand("a", 2)
    assert run.fail("a[0]", retryable=True) == rows(
        "NodeStarted a[0]; NodeFailed a[0] code=boom retry=+1000; put run a[0] at=+1000"
    )
    assert run.wait("a[0]") == rows(
        "NodeStarted a[0] attempt=2; NodeWaiting a[0] attempt=2 on=timer until=+1000; put wake a[0] at=+1000"
    )
    assert run.wake("a[0]") == rows(
        "NodeCompleted a[0] attempt=2; NodeScheduled a[1] until=2; drop wake a[0]; put run a[1]"
    )


def test_a_failed_item_fails_the_map_and_cancels_the_rest() -> None:
    run = mapped(max_parallel=2)
    run.expand("a", 5)
    run.wait("a[1]")
    assert run.fail("a[0]") == rows(
        "NodeStarted a[0]; NodeFailed a[0] code=boom; DeadLettered a[0] code=boom attempts=1; NodeCancelled a[1];"
        "NodeFailed a code=boom counter=0;"
        "NodeFailed z attempt=0 code=upstream_failed counter=0; RunFailed node=a code=boom;"
        "drop wake a[1]"
    )


def test_the_error_of_a_map_names_its_item() -> None:
    run = mapped(on_error="continue")
    run.expand("a", 3)
    run.fail("a[2]")
    failed = run.of(NodeFailed)[-1]
    assert (failed.error.code, failed.error.message, failed.error.index) == ("boom", "item 2: boom happened", 2)
    assert msgspec.json.decode(failed.output) == {
        "error": {"code": "boom", "message": "item 2: boom happened", "index": 2}
    }


def test_a_map_fails_at_the_first_failure_beyond_tolerate() -> None:
    run = mapped(tolerate=2, on_error="continue")
    run.expand("a", 5)
    for index in (4, 1):
        assert run.fail(f"a[{index}]") == rows(f"NodeStarted a[{index}]; NodeFailed a[{index}] code=boom tolerated")
    run.done("a[0]")
    assert run.fail("a[3]") == rows(
        "NodeStarted a[3]; NodeFailed a[3] code=boom; NodeCancelled a[2];"
        "NodeFailed a code=boom tolerated taken=z counter=1;"
        "NodeScheduled z; drop run a[2]; put run z"
    )


def test_a_tolerated_item_is_an_envelope_in_the_list_and_counted() -> None:
    run = mapped(tolerate=1)
    run.expand("a", 2)
    run.fail("a[1]")
    assert run.done("a[0]")[-1] == "put run a"
    assert run.act("a[1]").output == b'{"error":{"code":"boom","message":"boom happened"}}'
    run.assemble("a")
    assert run.done("z")[-1] == "RunCompleted tolerated=1"
    assert (run.kernel.state.tolerated, run.kernel.state.dead_letters) == (1, 0)


def test_the_attempts_of_a_map_are_the_largest_of_any_item() -> None:
    run = mapped()
    run.expand("a", 3)
    run.done("a[0]")
    run.fail("a[1]", retryable=True)
    run.fail("a[1]", retryable=True)
    run.done("a[1]")
    run.fail("a[2]", retryable=True)
    run.done("a[2]")
    assert run.assemble("a")[0] == "NodeCompleted a attempt=3 taken=z counter=1"
    assert run.cell("a").attempt == 3


def test_an_item_whose_handler_skips_is_null_in_the_list() -> None:
    """The list has an entry for every item."""
    run = mapped()
    run.expand("a", 2)
    assert run.result("a[0]", SkipRequested(reason="not needed")) == rows("NodeStarted a[0]; NodeCompleted a[0]")
    assert run.act("a[0]").output == b"null"
    assert run.done("a[1]")[-1] == "put run a"


def test_a_list_that_is_too_wide_fails_the_visit() -> None:
    run = mapped(limits={"max_fanout": 3})
    assert run.expand("a", 4)[:2] == rows(
        "NodeFailed a attempt=0 code=max_fanout_exceeded counter=0;DeadLettered a code=max_fanout_exceeded attempts=0"
    )
    run = mapped(limits={"max_fanout": 3})
    assert run.expand("a", 3)[0] == "NodeExpanded a count=3 window=3"


def test_a_list_that_cannot_be_evaluated_fails_the_visit_without_an_attempt() -> None:
    run = mapped(on_error="continue")
    assert run.fail("a", "template_failed", called=False) == rows(
        "NodeFailed a attempt=0 code=template_failed tolerated taken=z counter=1;NodeScheduled z; put run z"
    )


def test_an_assembly_that_fails_fails_the_visit() -> None:
    run = mapped(on_error="continue")
    run.expand("a", 1)
    run.done("a[0]")
    assert run.fail("a", "output_too_large", called=False)[0] == (
        "NodeFailed a code=output_too_large tolerated taken=z counter=1"
    )


def test_results_of_items_after_the_map_has_failed_are_discarded() -> None:
    run = mapped(on_error="continue")
    run.expand("a", 2)
    run.fail("a[0]")
    assert run.done("a[1]", token=50) == rows("ResultDiscarded a[1] outcome=Done reason=visit_ended")
    assert run.done("a[0]", token=99) == rows("ResultDiscarded a[0] outcome=Done reason=visit_ended")


def test_a_lost_expansion_or_assembly_is_done_again_and_is_no_attempt() -> None:
    run = mapped()
    assert run.lost("a") == rows("NodeFailed a attempt=0 code=worker_lost retry=+0; put run a")
    run.expand("a", 1)
    run.done("a[0]")
    assert run.lost("a") == rows("NodeFailed a code=worker_lost retry=+0; put run a")
    run.assemble("a")
    assert (run.cell("a").status, run.cell("a").attempt) == ("COMPLETED", 1)


# Map, loop and branch on one node: map first, then loop, then branch


def test_map_then_loop_then_branch() -> None:
    run = mapped("a; b; c", loop=loop(3), branch=choose("b", "c"))
    run.expand("a", 2)
    run.done("a[0]")
    run.done("a[1]")
    assert run.assemble("a", again=True) == rows(
        "NodeCompleted a counter=1; LoopContinued a entry=a iteration=1 body=a; NodeScheduled a#2; put run a#2"
    )
    assert run.expand("a", 1) == rows("NodeExpanded a#2 count=1 window=1; NodeScheduled a#2[0] until=1; put run a#2[0]")
    assert run.done("a[0]")[-2:] == rows("NodeScheduled a#2; put run a#2")
    assert run.assemble("a", "c", again=False) == rows(
        "NodeCompleted a#2 taken=c dead=b counter=1; NodeScheduled c; NodeSkipped b counter=1; put run c"
    )


def test_an_empty_list_is_routed_by_whoever_expanded_it() -> None:
    run = mapped("a; b; c", branch=choose("b", "c"))
    assert run.expand("a", 0, route=Route(None, ("c",), 1))[:2] == rows(
        "NodeExpanded a count=0 window=0; NodeCompleted a attempt=0 taken=c dead=b counter=1"
    )


def test_the_items_of_an_earlier_pass_never_meet_the_next() -> None:
    run = mapped("a", loop=loop(3))
    run.expand("a", 1)
    run.done("a[0]", token=7)
    run.assemble("a", again=True)
    run.expand("a", 1)
    late = Result(node="a", visit=1, index=0, token=900, outcome=Done(output=b"0"))
    assert run.do(late) == rows("ResultDiscarded a[0] outcome=Done reason=visit_ended")
    assert run.act("a[0]").status == "QUEUED"


def test_items_take_slots_behind_nodes_that_were_ready_before() -> None:
    run = begun("a b c", {"a": {"map": {"over": [1]}}}, limits={"max_parallel": 2})
    assert run.expand("a", 3) == rows("NodeExpanded a count=3 window=3; NodeScheduled c; put run c")
    assert run.done("b") == rows("NodeStarted b; NodeCompleted b counter=2; NodeScheduled a[0] until=1; put run a[0]")
    assert run.done("c")[-1] == "put run a[1]"
    assert run.done("a[0]")[-1] == "put run a[2]"


@pytest.mark.parametrize("width", [1, 1_000])
def test_a_wide_map_costs_one_event_to_queue(width: int) -> None:
    run = mapped()
    shown = run.expand("a", width)
    assert shown[:2] == rows(f"NodeExpanded a count={width} window={width}; NodeScheduled a[0] until={width}")
    assert len(shown) == 2 + width


def test_a_repeated_assembly_leaves_nothing() -> None:
    """No handler is called for it, so only the event that completes the map can remember under which lease."""
    run = begun("m > z", {"m": {"map": {"over": [1]}}})
    run.expand("m", 1)
    run.end("m[0]")
    assembly = Result(node="m", visit=1, token=90, outcome=Done(output=b"[1]"), called=False)
    run.do(assembly, "run/m/1/-1")
    assert run.nodes("m z") == "m=COMPLETED z=QUEUED"
    assert run.do(msgspec.structs.replace(assembly, again=True)) == []


DONE = Activation(
    status="COMPLETED",
    attempt=2,
    token=77,
    reported=77,
    output=b'{"x":1}',
    since_ms=1_760_000_000_000,
    ended_seq=9,
    duration_ms=12,
)


def holding(item: Activation) -> MapState:
    items = MapState(count=3, items=b"[1,2,3]", window=3, next=3, by_index={1: item})
    items.settle(1)
    return items


def test_a_completed_item_is_kept_as_bytes_and_read_as_it_was() -> None:
    items = holding(DONE)
    assert isinstance(items.by_index[1], bytes)
    assert items.get(1) == DONE
    assert list(items.known()) == [(1, DONE)]
    assert items.get(0) is None


@pytest.mark.parametrize(
    "story",
    [
        {"failures": 1},
        {"reported": 76},
        {"discarded": 1},
        {"checkpoint": b"1"},
        {"error": Error("failed", "it failed")},
        {"status": "FAILED"},
        {"output": BlobRef("sha256:" + "0" * 64, 70_000)},
        {"output": None},
        {"duration_ms": 1 << 32},
        {"token": 1 << 64, "reported": 1 << 64},
    ],
    ids=str,
)
def test_an_item_with_a_story_is_kept_whole(story: dict[str, object]) -> None:
    item = msgspec.structs.replace(DONE, **story)
    items = holding(item)
    assert items.by_index[1] is item
    assert items.get(1) == item


def test_an_item_is_written_to_in_front_of_the_state_it_was_drawn_from() -> None:
    base = holding(DONE)
    drawn = msgspec.structs.replace(base, by_index=OverlayDict(base.by_index))
    drawn.edit(1).discarded = 3
    drawn.edit(0).status = "RUNNING"
    assert base.get(1) == DONE
    assert base.get(0) is None
    assert QUEUED_ITEM.status == "QUEUED"
    assert [item.discarded for _, item in drawn.known()] == [3, 0]
    assert drawn.edit(1).discarded == 3, "what was changed once is changed again in place"


def many(count: int) -> MapState:
    return MapState(count=count, items=b"[]", window=count, next=count)


def done(index: int) -> Activation:
    return msgspec.structs.replace(DONE, ended_seq=index, output=b'"%d"' % index * (1 + index % 3))


def complete(items: MapState, *indexes: int) -> None:
    for index in indexes:
        items.by_index[index] = done(index)
        items.settle(index)


@pytest.mark.parametrize("count", [1, CHUNK_ITEMS - 1, CHUNK_ITEMS, CHUNK_ITEMS + 1, 3 * CHUNK_ITEMS])
@pytest.mark.parametrize("order", ["forwards", "backwards", "mixed"])
def test_items_that_have_completed_share_a_shelf_and_are_read_as_they_were(count: int, order: str) -> None:
    items, indexes = many(count), list(range(count))
    if order != "forwards":
        indexes = indexes[::-1] if order == "backwards" else [*indexes[::2], *indexes[1::2]]
    complete(items, *indexes)
    assert len(items.by_index) == -(-count // CHUNK_ITEMS), "one string for all items of a stretch"
    assert [items.get(index) for index in range(count)] == [done(index) for index in range(count)]
    assert sorted(items.known()) == [(index, done(index)) for index in range(count)]
    assert items.get(count) is None
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(items), type=MapState) == items


def test_one_item_with_a_story_keeps_its_stretch_off_the_shelf() -> None:
    items = many(2 * CHUNK_ITEMS)
    items.by_index[3] = msgspec.structs.replace(DONE, failures=1)
    complete(items, *(index for index in range(2 * CHUNK_ITEMS) if index != 3))
    assert len(items.by_index) == CHUNK_ITEMS + 1
    assert items.get(3) == items.by_index[3]
    assert [index for index, _ in items.known() if index >= CHUNK_ITEMS] == list(range(CHUNK_ITEMS, 2 * CHUNK_ITEMS))


def test_an_item_is_taken_from_its_shelf_when_it_changes() -> None:
    items = many(CHUNK_ITEMS)
    complete(items, *range(CHUNK_ITEMS))
    items.edit(5).discarded = 2
    assert [item.discarded for _, item in sorted(items.known())] == [0] * 5 + [2] + [0] * (CHUNK_ITEMS - 6)
    items.settle(5)
    assert items.get(5) == msgspec.structs.replace(done(5), discarded=2)
    assert items.get(4) == done(4)


def test_a_draft_fills_a_shelf_in_front_of_the_state_it_was_drawn_from() -> None:
    """What its base still has of an item is older than the shelf."""
    base = many(CHUNK_ITEMS)
    complete(base, *range(CHUNK_ITEMS - 2))
    base.edit(CHUNK_ITEMS - 2).status = "RUNNING"
    before = dict(base.by_index)
    drawn = msgspec.structs.replace(base, by_index=OverlayDict(base.by_index))
    complete(drawn, CHUNK_ITEMS - 2, CHUNK_ITEMS - 1)
    assert [drawn.get(index) for index in range(CHUNK_ITEMS)] == [done(index) for index in range(CHUNK_ITEMS)]
    assert sorted(drawn.known()) == [(index, done(index)) for index in range(CHUNK_ITEMS)]
    assert base.by_index == before
    at_once = many(CHUNK_ITEMS)
    complete(at_once, *range(CHUNK_ITEMS))
    assert merged(drawn.by_index) == at_once.by_index


def test_an_item_that_was_just_put_on_a_shelf_can_be_written() -> None:
    drawn = msgspec.structs.replace(many(CHUNK_ITEMS), by_index=OverlayDict({}))
    complete(drawn, *range(CHUNK_ITEMS))
    drawn.edit(0).discarded = 1
    assert drawn.get(0) == msgspec.structs.replace(done(0), discarded=1)
    assert drawn.get(1) == done(1)
