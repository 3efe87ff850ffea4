"""Patch: a run goes on under another graph; what has happened stays, and no token is lost or doubled."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.fixtures.kernel.operator_steps import OperatorSteps
from tests.fixtures.kernel.tables import flow, loop, rows
from tidemill.kernel import events as ev
from tidemill.kernel.commands import Decide, Patch
from tidemill.kernel.decide.patch import problems, verdict
from tidemill.kernel.model import Workflow


def joins(run: OperatorSteps) -> str:
    """What the latest patch said about joins, as `b a:taken *1`."""
    words = {True: "taken", False: "dead"}
    told = []
    for join in run.of(ev.RunPatched)[-1].joins:
        edges = "".join(f" {source}:{words[taken]}" for source, taken in join.edges)
        told.append(f"{join.node}{edges} *{join.tokens}")
    return "; ".join(told)


def test_a_node_behind_a_finished_one_begins_at_once() -> None:
    run = OperatorSteps("a; x").begun()
    run.done("a")
    assert run.patch(flow("a > n; x"), actor="ann", message="more") == rows("RunPatched; NodeScheduled n; put run n")
    event = run.of(ev.RunPatched)[-1]
    assert (event.added, event.emitted, event.counter, event.revision) == (("n",), 1, 2, 1)
    assert (event.actor, run.kernel.state.digest, run.kernel.state.patched_by) == ("ann", event.digest, ("ann",))
    run.end("n", "x")
    assert run.status == "COMPLETED"


@pytest.mark.parametrize(
    ("end", "nodes", "status"),
    [
        ("skip", {"a": {"when": "inputs.x"}}, "SKIPPED"),
        ("fail", {"a": {"on_error": "continue"}}, "QUEUED"),
        ("fail", {"a": {"on_error": {"route": ["e"]}}}, "SKIPPED"),
        ("done", {"a": {"on_error": {"route": ["e"]}}}, "QUEUED"),
    ],
)
def test_an_edge_from_a_finished_node_is_decided_by_how_it_went_on(end: str, nodes: Any, status: str) -> None:
    run = OperatorSteps("a > e; x", nodes).begun()
    getattr(run, end)("a")
    run.patch(flow("a > e n; x", nodes))
    assert run.cell("n").status == status


@pytest.mark.parametrize(("again", "status"), [(True, "SKIPPED"), (False, "QUEUED")])
def test_behind_a_loop_it_matters_whether_its_passes_were_used_up(again: bool, status: str) -> None:
    nodes = {"l": {"loop": loop(1, break_path="z", timeout_path="z")}}
    run = OperatorSteps("l > z; x", nodes).begun()
    run.done("l", again=again)
    run.patch(flow("l > z n; x", nodes))
    assert run.cell("n").status == status


@pytest.mark.parametrize(("verb", "status"), [("approve", "QUEUED"), ("reject", "SKIPPED")])
def test_behind_a_decision_it_matters_whether_it_was_an_exit(verb: Any, status: str) -> None:
    human = {"type": "human", "config": {"title": "?", "rejection_path": ["f"]}}
    run = OperatorSteps("h > f; x", {"h": human}).begun()
    run.ask("h")
    run.do(Decide(node="h", visit=1, verb=verb, actor="user:ann"))
    run.patch(flow("h > f n; x", {"h": human}))
    assert run.cell("n").status == status


def test_a_node_before_a_pending_join_makes_it_wait() -> None:
    run = OperatorSteps("a b > j").begun()
    run.done("a")
    assert run.patch(flow("a b n > j"))[1:] == rows("NodeScheduled n; put run n")
    assert (joins(run), run.counter) == ("n *1; j a:taken *1", 3)
    run.done("b")
    assert run.nodes("j") == "j=PENDING"
    run.end("n", "j")
    assert run.status == "COMPLETED"


def test_more_to_do_withdraws_the_rendering_of_the_outputs() -> None:
    run = OperatorSteps("a", outputs={"x": 1}).begun()
    run.done("a")
    assert run.patch(flow("a > n", outputs={"x": 1})) == rows("RunPatched; NodeScheduled n; drop outputs; put run n")
    assert run.counter == 1
    assert run.done("n")[1] == "NodeCompleted n counter=1 renders"
    run.render()
    assert run.status == "COMPLETED"


def test_outputs_that_are_being_rendered_go_on_when_nothing_is_added() -> None:
    run = OperatorSteps("a", outputs={"x": 1}).begun()
    run.done("a")
    assert run.patch(flow("a", outputs={"x": 2})) == rows("RunPatched")
    assert (run.counter, run.jobs) == (1, "outputs")
    assert run.refused(run.patching(flow("a"))) == "patch_too_late"


def test_a_pending_node_goes_with_the_tokens_that_stood_at_it() -> None:
    run = OperatorSteps("a b > j > z; c").begun()
    run.done("a")
    run.patch(flow("a b c"))
    event = run.of(ev.RunPatched)[-1]
    assert (event.removed, event.consumed, event.counter) == (("j", "z"), 1, 2)
    run.end("b", "c")
    assert run.status == "COMPLETED"


def test_a_node_without_an_edge_left_begins_by_itself() -> None:
    run = OperatorSteps("a > b > c").begun()
    run.patch(flow("a; c"))
    assert (joins(run), run.nodes(), run.counter) == ("c *1", "a=QUEUED c=QUEUED", 2)


def test_a_join_fires_when_its_last_open_edge_goes() -> None:
    run = OperatorSteps("a b > j").begun()
    run.done("a")
    run.patch(flow("a > j; b"))
    assert run.nodes("j") == "j=QUEUED"
    run.end("b", "j")
    assert run.status == "COMPLETED"


def test_a_held_node_leaves_the_queue() -> None:
    run = OperatorSteps("a b c d", limits={"max_parallel": 1}).begun()
    run.patch(flow("a b d", limits={"max_parallel": 1}))
    assert run.counter == 3
    run.end("a", "b", "d")
    assert run.status == "COMPLETED"


def test_a_loop_goes_on_when_what_it_waited_for_is_gone() -> None:
    """`p` was settled before the loop began, so that its token stands at `j` and `l` has its result early."""
    nodes = {"l": {"join": "any", "loop": loop(back_to="e")}}
    run = OperatorSteps("a > e > p q > j > k > l > z; q > k; p > l", nodes).begun()
    run.override("p")
    assert run.done("l", again=True)[1] == "NodeWaiting l on=loop"
    assert run.patch(flow("a > e > p q; q > k > l > z; p > l", nodes))[1:4] == rows(
        "NodeCompleted l counter=2; LoopContinued l entry=e iteration=1 body=e,p,q,k,l; NodeScheduled e#2"
    )
    run.end("a", "e", "p", "q", "k", "l", "z")
    assert (run.status, run.counter) == ("COMPLETED", 0)


def test_a_node_that_comes_back_counts_its_visits_on() -> None:
    run = OperatorSteps("a > b > c; x").begun()
    run.done("a")
    run.fail("b")
    run.patch(flow("a; x"), retry=True)
    run.patch(flow("a > b; x"))
    assert (run.cell("b").visit, run.jobs) == (2, "run b#2; run x")


def test_a_pending_node_is_another_one_when_it_begins() -> None:
    run = OperatorSteps("a > b").begun()
    assert run.patch(flow("a > b", {"b": {"timeout_seconds": 5}})) == rows("RunPatched")
    assert run.of(ev.RunPatched)[-1].changed == ("b",)
    run.done("a")
    assert run.wait("b", 9_000)[1] == "NodeWaiting b on=timer until=+9000 expires=+5000"


def test_a_join_of_another_kind_fires_by_the_edges_it_has() -> None:
    run = OperatorSteps("a b > j").begun()
    run.done("a")
    assert run.patch(flow("a b > j", {"j": {"join": "any"}}))[1:] == rows("NodeScheduled j; put run j")
    run.end("b", "j")
    assert run.status == "COMPLETED"


def test_limits_may_change() -> None:
    run = OperatorSteps("a b c", limits={"max_parallel": 1}).begun()
    assert run.patch(flow("a b c", limits={"max_parallel": 2}))[1:] == rows("NodeScheduled b; put run b")
    assert run.patch(flow("a b c"))[1:] == rows("NodeScheduled c; put run c")


def test_a_deadline_is_counted_from_the_same_moment() -> None:
    run = OperatorSteps("a", limits={"deadline_seconds": 5}).begun()
    run.kernel.now = 3_000
    assert run.patch(flow("a", limits={"deadline_seconds": 9})) == rows(
        "RunPatched; drop deadline; put deadline at=+7000"
    )
    assert run.patch(flow("a")) == rows("RunPatched; drop deadline")
    assert run.patch(flow("a", limits={"deadline_seconds": 4})) == rows(
        "RunPatched; drop deadline; put deadline at=+2000"
    )


def test_a_tighter_deadline_of_the_run_itself_outlives_patches_of_the_limit() -> None:
    run = OperatorSteps("a", limits={"deadline_seconds": 9})
    run.start(deadline_ms=5_000)
    run.kernel.now = 3_000
    assert run.patch(flow("a")) == rows("RunPatched")
    assert run.patch(flow("a", limits={"deadline_seconds": 7})) == rows("RunPatched")
    assert run.kernel.state.deadline_ms == 6_000
    assert run.patch(flow("a", limits={"deadline_seconds": 4})) == rows(
        "RunPatched; drop deadline; put deadline at=+2000"
    )


def body(looped: bool) -> Workflow:
    nodes: dict[str, Any] = {"s": {"on_error": {"route": ["t"]}}}
    if looped:
        nodes["l"] = {"loop": loop(back_to="e")}
    return flow("e > s > l > z; y > t", nodes)


def test_an_error_path_is_decided_when_the_loop_that_kept_it_open_is_gone() -> None:
    run = OperatorSteps(body(looped=True)).begun()
    run.end("e", "s")
    assert run.edges("t") == "s:undecided y:undecided"
    run.rewind("s")
    run.done("s")
    run.cancel()
    run.patch(body(looped=False), retry=True)
    assert run.edges("t") == "s:dead y:undecided"
    run.end("l", "z", "y", "t")
    assert run.status == "COMPLETED"


def test_an_error_path_is_open_again_when_a_loop_is_made_around_it() -> None:
    run = OperatorSteps(body(looped=False)).begun()
    run.done("e")
    run.done("s")
    assert run.edges("t") == "s:dead y:undecided"
    run.cancel()
    run.patch(body(looped=True), retry=True)
    assert run.edges("t") == "s:undecided y:undecided"
    run.done("l", again=True)
    run.done("e")
    run.fail("s")
    run.done("y")
    assert run.edges("t") == "s:taken y:taken"
    run.end("t")
    assert (run.status, run.counter) == ("COMPLETED", 0)


def test_what_an_earlier_pass_took_stays_taken_when_the_loop_is_gone() -> None:
    def graph(**more: Any) -> Workflow:
        nodes = {"s": {"on_error": {"route": ["t"]}}, "l": {"join": "any", **more}}
        return flow("e > s x > l > z; y > t", nodes)

    run = OperatorSteps(graph(loop=loop(back_to="e"))).begun()
    run.done("e")
    run.fail("s")
    run.done("x")
    run.done("l", again=True)
    run.cancel()
    run.patch(graph(), retry=True)
    run.done("e")
    assert run.done("s")[1] == "NodeCompleted s#2 taken=l counter=4"
    run.end("y", "t", "x", "l", "z")
    assert (run.status, run.edges("t")) == ("COMPLETED", "s:taken y:taken")


def test_no_loop_is_made_around_an_error_path_that_has_been_settled() -> None:
    run = OperatorSteps("e > s > l; s > t", {"s": {"on_error": {"route": ["t"]}}}).begun()
    run.end("e", "s")
    assert run.nodes("t") == "t=SKIPPED"
    run.cancel()
    new = flow("e > s > l; s > t", {"s": {"on_error": {"route": ["t"]}}, "l": {"loop": loop(back_to="e")}})
    assert run.refused(run.patching(new, retry=True)) == "patch_join_fired"


def test_what_failed_is_corrected_and_goes_on() -> None:
    run = OperatorSteps("a > b > c").begun()
    run.done("a")
    run.fail("b")
    fixed = flow("a > b > n > c", {"b": {"timeout_seconds": 9}})
    assert run.refused(run.patching(fixed)) == "patch_needs_retry"
    assert run.patch(fixed, retry=True) == rows(
        "RunPatched; RunRetried; DeadLetterClosed b; NodeScheduled b; drop report; put run b"
    )
    run.end("b", "n", "c")
    assert (run.status, run.act("b").attempt) == ("COMPLETED", 2)


def test_what_failed_may_be_left_out() -> None:
    run = OperatorSteps("a > b > c; x").begun()
    run.end("a", "x")
    run.fail("b")
    run.patch(flow("a > c; x"), retry=True)
    assert run.nodes() == "a=COMPLETED c=QUEUED x=COMPLETED"
    run.done("c")
    assert run.status == "COMPLETED"


def test_outputs_may_be_left_out() -> None:
    run = OperatorSteps("a", outputs={"x": 1}).begun()
    run.done("a")
    run.render("template_failed")
    assert run.patch(flow("a"), retry=True)[:3] == rows("RunPatched; RunRetried; RunCompleted")


def mapped(**options: Any) -> dict[str, Any]:
    return {"m": {"map": {"over": [1], **options}}}


def test_a_map_keeps_the_items_that_completed() -> None:
    run = OperatorSteps("m", mapped()).begun()
    run.expand("m", 3)
    run.done("m[0]")
    run.fail("m[1]")
    run.patch(flow("m", {"m": {"timeout_seconds": 9, **mapped(tolerate=1)["m"]}}), retry=True)
    assert (run.of(ev.RunPatched)[-1].relisted, run.jobs) == ((), "run m[1]; run m[2]")
    run.fail("m[1]")
    run.done("m[2]")
    assert run.jobs == "run m"


def test_another_list_is_made_if_no_item_has_begun() -> None:
    run = OperatorSteps("m", mapped()).begun()
    run.expand("m", 3)
    run.cancel()
    run.patch(flow("m", mapped(over=[1, 2])), retry=True)
    assert (run.of(ev.RunPatched)[-1].relisted, run.jobs, run.kernel.state.items) == (("m",), "run m", 0)
    run.expand("m", 1)
    run.done("m[0]")
    run.assemble("m")
    assert run.status == "COMPLETED"


def test_items_of_another_list_are_not_taken_for_those_that_have_begun() -> None:
    """They would have the effect keys of the old ones."""
    run = OperatorSteps("m", mapped()).begun()
    run.expand("m", 2)
    run.done("m[0]")
    run.fail("m[1]")
    assert run.refused(run.patching(flow("m", mapped(over=[5])), retry=True)) == "patch_items_begun"
    assert run.refused(run.patching(flow("m"), retry=True)) == "patch_items_begun"


UNDO = {"compensator": {"type": "value"}}


def test_a_stale_patch_is_refused() -> None:
    run = OperatorSteps("a > b").begun()
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
    run = OperatorSteps("a > b > c > d").begun()
    run.done("a")
    found = {each.code for each in problems(run.flow, run.kernel.state, run.patching(flow(graph, nodes)))}
    assert found and found <= set(code.split())
    assert run.refused(run.patching(flow(graph, nodes))) in code.split()


def test_the_hint_is_a_way_that_is_open() -> None:
    """A live node can be changed once the run is cancelled; a finished one only in a fork."""
    run = OperatorSteps("a > b > c").begun()
    changed, joined = flow("a > b > c", {"a": {"timeout_seconds": 5}}), flow("n > a > b > c")
    (live,) = problems(run.flow, run.kernel.state, run.patching(changed))
    assert live.hint.startswith("cancel the run and patch it together with a retry, or fork the run")
    run.done("a")
    for asked in (run.patching(changed), run.patching(joined)):
        (finished,) = problems(run.flow, run.kernel.state, asked)
        assert finished.hint == "fork the run with this patch, beginning at a"


def test_other_refusals() -> None:
    run = OperatorSteps("a > b", {"a": UNDO}).begun()
    renamed = msgspec.structs.replace(run.flow, name="other")
    assert run.refused(run.patching(renamed)) == "patch_name"
    run.done("a")
    run.fail("b")
    run.rollback()
    assert run.refused(run.patching(flow("a > c", {"a": UNDO}), retry=True)) == "run_rolled_back"
    run = OperatorSteps("a").begun()
    run.done("a")
    assert run.refused(run.patching(flow("a > b"), retry=True)) == "run_completed"
    run = OperatorSteps("a", {"a": {"delivery": "at_most_once"}}).begun()
    run.begin("a", token=1)
    run.lost("a")
    new = flow("a > b", {"a": {"delivery": "at_most_once"}})
    assert run.refused(run.patching(new, retry=True)) == "outcome_unknown"
    run.patch(new, retry=True, confirmed_not_done=("a",))


def test_a_patch_is_done_once_per_command() -> None:
    run = OperatorSteps("a").begun()
    new = run.patching(flow("a b"), id="p1")
    run.do(new)
    assert run.do(new) == []
    assert run.kernel.state.revision == 1


def test_the_verdict_says_what_would_happen() -> None:
    run = OperatorSteps("a > b > c > d; x").begun()
    run.end("a", "x")
    run.fail("b")
    seen = verdict(run.flow, flow("a > b > n > d; x", {"b": {"timeout_seconds": 5}}), run.kernel.state)
    assert (seen.added, seen.removed, seen.changed) == (("n",), ("c",), ("b",))
    assert (seen.rerun, seen.kept) == (("b",), ("a", "x"))
    live = OperatorSteps("a > b").begun()
    assert verdict(live.flow, flow("a > b c"), live.kernel.state).rerun == ()
