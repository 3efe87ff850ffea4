"""What a patch may not do to a run, and what it would do: the reason is given, and nothing is written."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.kernel.acts import Acts
from tests.kernel.tables import flow, loop
from tidemill.kernel.commands import Patch
from tidemill.kernel.patching import problems, verdict

UNDO = {"compensator": {"type": "value"}}


def test_a_stale_patch_is_refused() -> None:
    run = Acts("a > b").begun()
    new = flow("a > b c")
    assert run.refused(Patch(base="sha256:other", workflow=new, patch=b"[]")) == "patch_stale"
    assert run.refused(run.patching(new, expected_seq=1)) == "patch_stale"
    run.patch(new, expected_seq=2)
    old = Patch(base=flow("a > b").digest, workflow=new, patch=b"[]")
    assert run.refused(old) == "patch_stale"


@pytest.mark.parametrize(
    ("graph", "nodes", "code"),
    [
        ("a > b > c > d", {"b": {"timeout_seconds": 5}}, "patch_live_node"),
        ("a > c > d", {}, "patch_join_fired patch_live_node"),
        ("a > b > c > d", {"a": {"timeout_seconds": 5}}, "patch_finished_node"),
        ("b > c > d", {}, "patch_finished_node patch_join_fired"),
        ("a n > b > c > d", {}, "patch_join_fired"),
        ("n > a > b > c > d", {}, "patch_join_fired"),
        ("a > b > c > d", {"b": {"loop": loop(back_to="a")}}, "patch_live_node patch_join_fired"),
        ("a > b > c > d", {"c": {"loop": loop(back_to="b")}}, "patch_live_node"),
    ],
)
def test_what_has_happened_stays(graph: str, nodes: Any, code: str) -> None:
    """`a` has completed, `b` is queued."""
    run = Acts("a > b > c > d").begun()
    run.done("a")
    found = {each.code for each in problems(run.flow, run.kernel.state, run.patching(flow(graph, nodes)))}
    assert found and found <= set(code.split())
    assert run.refused(run.patching(flow(graph, nodes))) in code.split()


def test_the_hint_is_a_way_that_is_open() -> None:
    """Only a live run can be rewound; one that has ended is forked with the patch."""
    run = Acts("a > b > c").begun()
    run.done("a")
    changed, joined = flow("a > b > c", {"a": {"timeout_seconds": 5}}), flow("n > a > b > c")
    patches = [run.patching(changed), run.patching(joined)]
    for patch in patches:
        (live,) = problems(run.flow, run.kernel.state, patch)
        assert live.hint == "rewind the run to a first, or fork the run with this patch, beginning at a"
    run.fail("b")
    for patch in (run.patching(changed, retry=True), run.patching(joined, retry=True)):
        (ended,) = problems(run.flow, run.kernel.state, patch)
        assert ended.hint.startswith("fork the run with this patch, beginning at a")
        assert "rewind the run" not in ended.hint


def test_other_refusals() -> None:
    run = Acts("a > b", {"a": UNDO}).begun()
    renamed = msgspec.structs.replace(run.flow, name="other")
    assert run.refused(run.patching(renamed)) == "patch_name"
    run.done("a")
    run.fail("b")
    run.rollback()
    assert run.refused(run.patching(flow("a > c", {"a": UNDO}), retry=True)) == "run_rolled_back"
    run = Acts("a").begun()
    run.done("a")
    assert run.refused(run.patching(flow("a > b"), retry=True)) == "run_completed"
    run = Acts("a", {"a": {"delivery": "at_most_once"}}).begun()
    run.begin("a", token=1)
    run.lost("a")
    new = flow("a > b", {"a": {"delivery": "at_most_once"}})
    assert run.refused(run.patching(new, retry=True)) == "outcome_unknown"
    run.patch(new, retry=True, sure=("a",))


def test_a_patch_is_done_once_per_command() -> None:
    run = Acts("a").begun()
    new = run.patching(flow("a b"), id="p1")
    run.do(new)
    assert run.do(new) == []
    assert run.kernel.state.revision == 1


def test_the_verdict_says_what_would_happen() -> None:
    run = Acts("a > b > c > d; x").begun()
    run.end("a", "x")
    run.fail("b")
    seen = verdict(run.flow, flow("a > b > n > d; x", {"b": {"timeout_seconds": 5}}), run.kernel.state)
    assert (seen.added, seen.removed, seen.changed) == (("n",), ("c",), ("b",))
    assert (seen.rerun, seen.kept) == (("b",), ("a", "x"))
    live = Acts("a > b").begun()
    assert verdict(live.flow, flow("a > b c"), live.kernel.state).rerun == ()
