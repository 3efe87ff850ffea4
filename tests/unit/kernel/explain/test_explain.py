"""Why a run is where it is, one table per kind of thing it can wait for, and how the end of a run is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.fixtures.kernel.operator_steps import OperatorSteps
from tests.fixtures.kernel.reasons import blocker, facts, shown, why
from tests.fixtures.kernel.tables import Run, begun, choose, loop
from tidemill.kernel.commands import Cancel, Failed, Pause, SkipRequested, WaitRequested
from tidemill.kernel.events import Error
from tidemill.kernel.explain.explain import explain, folded
from tidemill.kernel.explain.survey import Bounds, WorkerCapability, Workers
from tidemill.kernel.state import State

Json = Any

HERE = Workers(queues=frozenset({"default"}), types=frozenset({"value@1"}))
NEEDS_CODE = "tidemill worker --queues gpu --app MODULE"
UNDO = {"type": "value", "config": 1, "retry": {"max_attempts": 2}}


@pytest.mark.parametrize(
    ("workers", "need", "said", "command"),
    [
        (None, "busy", "waiting for a free worker on queue gpu", ""),
        (Workers(), "no_worker", "no worker is running", "tidemill worker"),
        (Workers(unresponsive_but_running=("w1",)), "silent", "have stopped sending heartbeats", "tidemill workers"),
        (HERE, "no_queue", "no worker on queue gpu", "tidemill worker --queues gpu"),
        (Workers(queues=None), "no_type", "no worker has type value@1", NEEDS_CODE),
        (Workers(queues=None, types=HERE.types), "busy", "waiting for a free worker", ""),
    ],
)
def test_a_queued_node_waits_for_a_worker(workers: Workers | None, need: str, said: str, command: str) -> None:
    run = begun("a", {"a": {"queue": "gpu"}})
    run.kernel.now += 500
    found = why(run.kernel, workers=workers)
    mine = blocker(found, "a")
    assert (mine.kind, mine.queue, mine.need, mine.since_ms, mine.root) == ("worker", "gpu", need, 1_000, True)
    assert said in mine.words and mine.command == command
    assert found.headline == mine.words and found.since_ms == 1_000


@pytest.mark.parametrize(
    ("function", "options"),
    [("shop.tasks:charge", " --allow-import shop.tasks"), ("charge", " --app FILE.py"), ("{{ inputs.f }}", "")],
)
def test_the_command_for_a_worker_names_the_code_of_a_function(function: str, options: str) -> None:
    run = begun("a", {"a": {"type": "python", "config": {"function": function}}})
    assert why(run.kernel, workers=Workers()).blockers[0].command == f"tidemill worker{options}"
    found = why(run.kernel, workers=Workers(queues=None)).blockers[0]
    assert found.command == f"tidemill worker --queues default{options or ' --app MODULE'}"


def test_whoever_knows_a_type_must_serve_the_queue_too() -> None:
    run = begun("a", {"a": {"queue": "gpu"}})
    plain = WorkerCapability(name="plain", queues=frozenset({"gpu"}), types=frozenset({"fail@1"}))
    other = WorkerCapability(name="other", queues=frozenset({"default"}), types=frozenset({"value@1"}))
    mine = blocker(why(run.kernel, workers=Workers.of([plain, other])), "a")
    assert (mine.need, mine.alive, mine.able_elsewhere) == ("no_type", ("plain", "other"), ("other",))
    assert "no worker on queue gpu has type value@1, but other does on other queues" in mine.words
    assert mine.command == NEEDS_CODE
    alone = blocker(why(run.kernel, workers=Workers.of([other])), "a")
    assert (alone.need, alone.alive, alone.able_elsewhere) == ("no_queue", ("other",), ())
    every = WorkerCapability(name="every", queues=None, types=frozenset({"value@1"}))
    found = blocker(why(run.kernel, workers=Workers.of([plain, other, every])), "a")
    assert (found.need, found.alive, found.command) == ("busy", (), "")


def test_work_for_which_there_is_no_worker_comes_first() -> None:
    run = begun("a b c", {"b": {"queue": "gpu"}})
    run.ask("c")
    assert shown(why(run.kernel, workers=HERE)) == "worker b; person c; worker a"


def test_evaluating_conditions_needs_a_worker_but_not_the_node_type() -> None:
    run = begun("a; b", {"a": {"branch": choose("b")}})
    run.wait("a")
    run.wake("a")
    assert blocker(why(run.kernel, workers=Workers(queues=None)), "a").need == "busy"


def test_a_lease_names_the_worker_and_the_attempt() -> None:
    run = begun("a", {"a": {"timeout_seconds": 30}})
    run.fail("a", retryable=True)
    run.kernel.now = 10_000
    run.begin("a", token=9)
    mine = blocker(why(run.kernel, leased="run/a/1/-1"), "a")
    assert (mine.kind, mine.owner, mine.phase, mine.status) == ("lease", "w1", "call", "RUNNING")
    assert (mine.attempt, mine.tries, mine.max_attempts) == (2, 2, 3)
    assert (mine.since_ms, mine.until_ms, mine.timeout_at_ms) == (10_000, 25_000, 40_000)
    assert mine.words == "worker w1 works on a, attempt 2 of 3" and mine.command == ""


def test_a_lease_of_a_worker_that_looks_dead_says_so() -> None:
    run = begun("a")
    run.begin("a", token=9)
    silent = Workers(queues=None, unresponsive={"w1": 400, "w2": 300})
    mine = blocker(why(run.kernel, leased="run/a/1/-1", workers=silent), "a")
    assert (mine.kind, mine.silent_since_ms, mine.until_ms) == ("lease", 400, 16_000)
    assert mine.words == "worker w1, which has stopped sending heartbeats, works on a, attempt 1 of 3"
    assert "another worker takes over when its lease expires" in mine.unblock
    others = Workers(queues=None, unresponsive={"w2": 300})
    mine = blocker(why(run.kernel, leased="run/a/1/-1", workers=others), "a")
    assert (mine.silent_since_ms, mine.words) == (None, "worker w1 works on a, attempt 1 of 3")


def test_attempts_of_lost_workers_do_not_count() -> None:
    run = begun("a")
    run.lost("a", times=2)
    assert blocker(why(run.kernel, leased="run/a/1/-1"), "a").words.endswith("attempt 3 (try 1 of 3)")


def test_a_lease_that_has_run_out_waits_for_another_worker() -> None:
    run = begun("a")
    run.begin("a", token=5)
    mine = blocker(why(run.kernel, lost="run/a/1/-1"), "a")
    assert (mine.kind, mine.need, mine.lost) == ("worker", "lost", "w1")
    void = [msgspec.structs.replace(job, expired=True) for job in facts(run.kernel, leased="run/a/1/-1")]
    assert blocker(explain(run.flow, run.kernel.state, void, run.kernel.now), "a").need == "lost"


def test_a_job_that_was_put_aside_is_taken_up_again() -> None:
    run = begun("a")
    aside = [msgspec.structs.replace(job, ready_at_ms=9_000) for job in facts(run.kernel)]
    mine = blocker(explain(run.flow, run.kernel.state, aside, run.kernel.now), "a")
    assert (mine.kind, mine.need, mine.until_ms, mine.command) == ("worker", "later", 9_000, "")


def test_a_retry_says_when_and_after_what() -> None:
    run = begun("a")
    run.fail("a", retryable=True)
    mine = blocker(why(run.kernel), "a")
    assert (mine.kind, mine.attempt, mine.max_attempts, mine.until_ms) == ("retry", 2, 3, 2_000)
    assert mine.error.code == "boom" and mine.words == "a is retried after boom: attempt 2 of 3"
    run.kernel.now = 2_000
    assert blocker(why(run.kernel), "a").kind == "worker"


def test_an_activation_without_its_job_is_missing_it() -> None:
    run = begun("a b c d")
    run.wait("b")
    run.call("c")
    run.begin("d")
    found = explain(run.flow, run.kernel.state, [], run.kernel.now)
    assert shown(found) == "missing a; missing b; missing c; missing d"
    assert [blocker(found, name).job for name in "abcd"] == ["run/a/1/-1", "wake/b/1/-1", "child/c/1/-1", "run/d/1/-1"]
    assert "reconciler" in found.blockers[0].unblock


def test_an_edge_leads_up_to_what_is_really_live() -> None:
    run = begun("a > b > c > d")
    run.done("a")
    run.kernel.now = 5_000
    run.begin("b", token=9)
    found = why(run.kernel, leased="run/b/1/-1")
    assert shown(found) == "lease b | edge c; edge d"
    mine = blocker(found, "d")
    assert [(edge.source, edge.status) for edge in mine.undecided] == [("c", "PENDING")]
    assert [(up.node, up.status, up.kind) for up in mine.origins] == [("b", "RUNNING", "lease")]
    assert mine.words == "d is waiting for c (PENDING), ultimately for b" and mine.since_ms == 5_000
    assert blocker(found, "c").words == "c is waiting for b (RUNNING)"


@pytest.mark.parametrize(
    ("join", "needed"), [("all", 3), ("strict", 3), ({"quorum": 2}, 2)], ids=["all", "strict", "quorum"]
)
def test_a_join_counts_its_edges(join: Json, needed: int) -> None:
    run = begun("a b c > z", {"z": {"join": join}})
    run.done("a")
    mine = blocker(why(run.kernel), "z")
    assert (mine.kind, mine.arrived, mine.dead, mine.of, mine.needed) == ("join", 1, 0, 3, needed)
    assert [up.node for up in mine.origins] == ["b", "c"]
    assert mine.words.startswith(f"z has 1 of the {needed} edges it needs (3 inbound); it is waiting for b (QUEUED), c")


def test_a_strict_join_with_a_dead_edge_says_that_it_will_be_skipped() -> None:
    run = begun("a > z; b > z; a > y", {"a": {"branch": choose("y", "z")}, "z": {"join": "strict"}})
    run.done("a", "y")
    assert "will be skipped" in blocker(why(run.kernel), "z").words


def test_many_origins_are_not_all_named() -> None:
    run = begun(" ".join(f"n{number}" for number in range(9)) + " > z > y")
    mine = blocker(why(run.kernel), "y")
    assert ([up.node for up in mine.origins], mine.more_origins) == (["n0", "n1", "n2", "n3", "n4"], True)
    assert "n4 and others" in mine.words


def test_an_edge_out_of_a_loop_waits_for_the_loop() -> None:
    """Its source has ended, but the loop may come back to it."""
    run = begun("a > b; a > x", {"a": {"on_error": {"route": ["x"]}}, "b": {"loop": loop(3, "a")}})
    run.done("a")
    mine = blocker(why(run.kernel), "x")
    assert [(edge.source, edge.status, edge.loop) for edge in mine.undecided] == [("a", "COMPLETED", "b")]
    assert [up.node for up in mine.origins] == ["b"]


def test_a_limit_says_where_in_the_queue() -> None:
    run = begun("a b c d", limits={"max_parallel": 2})
    found = why(run.kernel)
    assert shown(found) == "worker a; worker b | limit c; limit d"
    mine = blocker(found, "d")
    assert (mine.position, mine.max_parallel, mine.in_flight, mine.since_ms) == (2, 2, 2, 1_000)


def test_a_looping_node_waits_for_the_rest_of_its_body() -> None:
    run = begun("a > b c > d > e", {"d": {"join": "any", "loop": loop(3, "a")}})
    run.end("a", "b")
    run.done("d", again=True)
    found = why(run.kernel)
    assert shown(found) == "worker c | loop d; edge e"
    assert (blocker(found, "d").body, blocker(found, "d").body_count) == (("c",), 1)
    assert [up.node for up in blocker(found, "e").origins] == ["c"]


def test_a_map_counts_its_items_and_lists_the_first() -> None:
    run = begun("a", {"a": {"map": {"over": [1], "max_parallel": 5, "tolerate": 1}}})
    run.expand("a", 9)
    run.done("a[0]")
    run.fail("a[1]")
    run.listen("a[4]")
    run.begin("a[3]")
    found = why(run.kernel, leased="run/a/1/3", bounds=Bounds(items=3))
    assert shown(found) == "signal a[4]; worker a[2]; lease a[3] | items a"
    mine = blocker(found, "a")
    assert (mine.count, mine.done, mine.failed, mine.unqueued, mine.listed) == (9, 2, 1, 2, 3)
    assert (mine.queued, mine.running, mine.waiting) == (3, 1, 1)
    assert [(item.index, item.attempts, item.error.code) for item in mine.broken] == [(1, 1, "boom")]
    assert mine.words == "a has 2 of 9 items (3 queued, 1 running, 1 waiting, 2 not started yet)"
    assert blocker(found, "a", 4).command == "tidemill runs signal {run} paid"


def test_expanding_and_assembling_are_no_attempts() -> None:
    run = begun("a", {"a": {"map": {"over": [1]}}})
    assert blocker(why(run.kernel, leased="run/a/1/-1"), "a").words == "worker w1 evaluates the list of a"
    run.expand("a", 1)
    run.done("a[0]")
    assert blocker(why(run.kernel, leased="run/a/1/-1"), "a").phase == "assemble"


def test_a_timer_says_until_when() -> None:
    run = begun("a", {"a": {"timeout_seconds": 3}})
    run.wait("a", 2_000)
    mine = blocker(why(run.kernel), "a")
    assert (mine.kind, mine.since_ms, mine.until_ms, mine.expires) == ("timer", 1_000, 3_000, False)
    run.kernel.now = 3_000
    due = blocker(why(run.kernel, workers=Workers()), "a")
    assert (due.kind, due.queue, due.need, due.since_ms) == ("worker", "system", "no_worker", 3_000)
    assert blocker(why(run.kernel, leased="wake/a/1/-1"), "a").words == "worker w1 wakes a"


def test_people_are_named_with_what_happens_if_they_do_nothing() -> None:
    run = Run("a")
    run.start(submitted_by="eve")
    asked: Json = {"timeout_ms": 5_000, "on_timeout": "escalate", "escalate_to": ("role:boss",)}
    run.ask("a", "user:ann user:bob role:ops", quorum=2, four_eyes=True, **asked)
    run.approve("a", "ann")
    run.delegate("a", "bob", "cid")
    mine = blocker(why(run.kernel), "a")
    assert (mine.kind, mine.title, mine.quorum, mine.voted) == ("person", "Well?", 2, ("user:ann",))
    assert mine.approvers == ("user:ann", "role:ops", "user:cid") and mine.barred == ("user:eve",)
    assert mine.delegated == (("user:bob", "user:cid"),)
    assert (mine.since_ms, mine.until_ms, mine.on_timeout) == (1_000, 6_000, "escalate")
    assert mine.words == "a is waiting for people, with 1 of 2 votes so far: Well?"
    assert mine.unblock.endswith("without a decision in time, role:boss is asked")
    assert mine.command == "tidemill approvals decide {run} a approve"
    run.expire("a")
    later = blocker(why(run.kernel), "a")
    assert (later.escalated, later.on_timeout, later.until_ms) == (True, "fail", 11_000)
    assert later.unblock.endswith("the visit fails")


def test_a_signal_is_named_safely() -> None:
    run = begun("a", {"a": {"timeout_seconds": 3}})
    run.listen("a", "it's paid; rm")
    mine = blocker(why(run.kernel), "a")
    assert (mine.kind, mine.name, mine.until_ms) == ("signal", "it's paid; rm", 4_000)
    assert mine.command == """tidemill runs signal {run} 'it'"'"'s paid; rm'"""


def test_a_child_is_named_started_or_not() -> None:
    run = begun("a")
    run.call("a", "kid")
    mine = blocker(why(run.kernel, workers=Workers()), "a")
    assert (mine.kind, mine.child, mine.started, mine.need) == ("child", "kid", False, "no_worker")
    assert "no worker has started yet" in mine.words and mine.command == "tidemill worker"
    run.child_began("a")
    mine = blocker(why(run.kernel), "a")
    assert (mine.started, mine.words, mine.command) == (True, "a is waiting for its child run kid", "tidemill why kid")


def test_whatever_else_a_handler_waits_for_is_told_in_its_words() -> None:
    run = begun("a b", {"a": {"timeout_seconds": 3}})
    run.result("a", WaitRequested(on="webhook", name="order-7"))
    run.result("b", WaitRequested(on="timer"))
    mine = blocker(why(run.kernel), "a")
    assert (mine.kind, mine.words, mine.expires_ms) == ("wait", "a is waiting for webhook order-7", 4_000)
    assert mine.command == "tidemill runs override {run} a --value VALUE"
    assert blocker(why(run.kernel), "b").kind == "wait"


def test_a_paused_run_says_why_and_what_it_keeps_back() -> None:
    run = begun("a b c d > e")
    run.begin("b", token=7)
    run.fail("c", retryable=True)
    run.wait("d")
    running = run.kernel.jobs["run/b/1/-1"]
    run.kernel.do(Pause(reason="lunch"))
    # The store spares what somebody holds.
    run.kernel.jobs[running.key] = running
    found = why(run.kernel, leased="run/b/1/-1")
    assert shown(found) == "pause; retry c; lease b; timer d | pause a; join e"
    assert (found.headline.partition(";")[0], found.reason) == ("the run is paused: lunch", "lunch")
    assert found.blockers[0].command == "tidemill runs resume {run}"
    again = blocker(found, "c")
    assert "by itself" not in again.unblock and again.unblock.startswith("resume the run")
    assert again.words.endswith("once the run is resumed") and again.command == "tidemill runs resume {run}"
    run.kernel.now = 9_000
    assert blocker(why(run.kernel), "c").kind == "pause"


def test_the_rendering_of_outputs_is_the_last_thing_to_wait_for() -> None:
    run = begun("a", outputs={"x": 1})
    run.done("a")
    assert shown(why(run.kernel)) == "outputs"
    assert why(run.kernel, workers=Workers()).blockers[0].command == "tidemill worker"
    assert why(run.kernel, leased="outputs//0/-1").headline == "worker w1 renders the outputs of the run"
    assert shown(explain(run.flow, run.kernel.state, [], 0)) == "missing"
    run.pause()
    assert shown(why(run.kernel)) == "pause | outputs"


def test_a_deadline_is_a_fact_beside_the_blockers() -> None:
    run = begun("a", limits={"deadline_seconds": 60})
    found = why(run.kernel)
    assert found.deadline is not None and (found.deadline.until_ms, found.deadline.kind) == (61_000, "deadline")
    assert shown(found) == "worker a"
    assert shown(explain(run.flow, run.kernel.state, facts(run.kernel)[1:], 0)) == "missing; worker a"


def test_the_headline_counts_what_it_does_not_tell() -> None:
    run = begun("a b c d")
    run.ask("b")
    run.wait("c")
    found = why(run.kernel, leased="run/a/1/-1 run/d/1/-1")
    assert found.headline == ("b is waiting for people, with no decision so far: Well?; also, 2 are running, 1 sleeps")
    assert found.counts == {"person": 1, "lease": 2, "timer": 1}


def test_lists_are_bounded_and_the_rest_is_counted() -> None:
    run = begun("a b c > x y z")
    found = why(run.kernel, bounds=Bounds(roots=2, followers=1))
    assert shown(found) == "worker a; worker b | join x"
    assert (found.more_roots, found.more_followers, found.counts) == (1, 2, {"worker": 3, "join": 3})


def test_a_failed_run_names_its_first_cause_and_what_followed() -> None:
    run = begun("a > b > c; d")
    error = Error("http_failed", "500", "HttpError", hint="look at the service", causes=("refused", "no route"))
    run.result("a", Failed(error=error))
    found = why(run.kernel)
    cause = found.first_cause
    assert cause is not None
    assert (cause.node, cause.visit, cause.index, cause.attempts, cause.at_ms) == ("a", 1, -1, 1, 1_000)
    assert (cause.error.code, cause.error.hint, cause.error.causes) == (error.code, error.hint, error.causes)
    assert [(link.what, link.words) for link in found.chain] == [
        ("cause", "no route"),
        ("cause", "refused"),
        ("node", "a failed after 1 attempt with http_failed: 500"),
        ("run", "the run failed with a"),
        ("failed_with", "2 nodes downstream of it failed with it and never started"),
        ("cancelled", "1 node cancelled"),
    ]
    assert [link.nodes.names for link in found.chain[-2:]] == [("b", "c"), ("d",)]
    assert (found.headline, found.since_ms) == ("the run failed at a with http_failed: 500", 1_000)
    assert (found.command, found.dead_letters, found.blockers) == ("tidemill runs retry {run}", 1, ())


def test_a_map_that_failed_names_the_item() -> None:
    run = begun("a", {"a": {"map": {"over": [1]}}})
    run.expand("a", 3)
    run.fail("a[1]")
    found = why(run.kernel)
    assert found.first_cause is not None and (found.first_cause.node, found.first_cause.index) == ("a", 1)
    assert [link.what for link in found.chain] == ["item", "node", "run"]
    assert found.headline == "the run failed at a[1] with boom: item 1: boom happened"


def test_the_chain_of_a_failed_child_says_what_failed_there_and_where() -> None:
    run = begun("a")
    frames = 'File "/x/inv.py", line 5, in f\n  File "/v/site-packages/lib.py", line 9, in g\n'
    told = Error("child_failed", "child r.a.1: KeyError: 'x'", "KeyError", causes=("exception",), traceback=frames)
    run.result("a", Failed(error=told))
    assert why(run.kernel).chain[0].words == "child run r.a.1 failed with exception: KeyError: 'x' at inv.py:5"


def test_a_run_can_fail_as_a_whole() -> None:
    run = begun("a", limits={"deadline_seconds": 60})
    run.deadline()
    found = why(run.kernel)
    assert found.first_cause is not None and found.first_cause.node == ""
    assert [link.what for link in found.chain] == ["run", "cancelled"]
    assert found.headline.startswith("the run failed with deadline_exceeded")


def test_an_unknown_outcome_is_to_be_settled_first() -> None:
    run = begun("a", {"a": {"delivery": "at_most_once"}})
    run.begin("a", token=5)
    run.lost("a")
    found = why(run.kernel)
    assert found.command == "tidemill runs override {run} a --value VALUE"
    assert found.unblock.endswith("or retry the run with --did-not-happen a")


@pytest.mark.parametrize("code", ["template_failed", "condition_failed", "outputs_failed", "arguments_invalid"])
def test_what_a_retry_alone_repeats_needs_a_patch(code: str) -> None:
    run = begun("a")
    run.result("a", Failed(error=Error(code, "wrong")))
    found = why(run.kernel)
    assert found.command == "tidemill runs patch {run} FILE --retry" and "correct the document" in found.unblock


@pytest.mark.parametrize("code", ["secret_missing", "secret_not_granted", "egress_refused", "sql_failed"])
def test_what_the_document_did_not_cause_needs_a_retry(code: str) -> None:
    run = begun("a")
    run.result("a", Failed(error=Error(code, "wrong")))
    found = why(run.kernel)
    assert found.command == "tidemill runs retry {run}" and found.unblock.startswith("fix the cause, then retry")


def test_after_an_exception_workers_may_need_a_restart() -> None:
    run = begun("a")
    run.result("a", Failed(error=Error("exception", "wrong", "KeyError")))
    found = why(run.kernel)
    assert found.command == "tidemill runs retry {run}" and "restart them after a change" in found.unblock


def test_a_cancelled_run_says_why() -> None:
    run = begun("a")
    run.kernel.do(Cancel(reason="not needed"))
    found = why(run.kernel)
    assert (found.headline, found.reason) == ("the run was cancelled: not needed", "not needed")
    assert found.command == "tidemill runs retry {run}"


def test_a_completed_run_names_what_was_tolerated_and_never_read() -> None:
    run = begun("a b c", {"a": {"on_error": "continue"}, "c": {"type": "signal", "config": {"name": "paid"}}})
    run.signal("s1")
    run.signal("s2")
    run.fail("a")
    run.end("b", "c")
    found = why(run.kernel)
    assert (found.failures_tolerated, found.tolerated.names, found.unread) == (1, ("a",), {"paid": 2})
    assert found.headline == "the run completed, tolerated failures: 1, unread signals: 2"
    assert (found.unblock, found.command) == ("", "")


def test_a_run_that_does_not_exist_is_explained_too() -> None:
    found = explain(Run("a").flow, State(), [], 0)
    assert (found.status, found.headline, found.blockers) == ("NEW", "there is no such run", ())


def undoing() -> OperatorSteps:
    run = OperatorSteps("a > b > c", {"a": {"compensator": UNDO}, "b": {"compensator": UNDO}}).begun()
    run.end("a", "b")
    run.fail("c")
    run.rollback()
    return run


def test_a_rollback_says_which_step_is_under_way() -> None:
    run = undoing()
    found = why(run.kernel, leased="undo/b/1/-1")
    mine: Any = found.blockers[0]
    assert mine.kind == "rollback"
    assert (mine.node, mine.step, mine.steps, mine.compensator, mine.owner) == ("b", 1, 2, "value@1", "w1")
    assert found.headline.startswith("the run failed at c with boom: boom happened; the run is being rolled back")
    assert "step 1 of 2 undoes b" in mine.words and found.rollback == "running"


def test_a_rollback_in_back_off_says_when_and_a_lost_job_is_missing() -> None:
    run = undoing()
    run.undone("b", "stuck", retryable=True)
    mine: Any = why(run.kernel).blockers[0]
    assert (mine.need, mine.until_ms, mine.attempt, mine.max_attempts) == ("retry", 2_000, 2, 2)
    assert mine.error is not None and mine.error.code == "stuck"
    lost: Any = explain(run.flow, run.kernel.state, [], run.kernel.now).blockers[0]
    assert lost.need == "missing"


def test_a_rollback_names_what_it_leaves() -> None:
    run = undoing()
    run.undone("b", "stuck")
    mine: Any = why(run.kernel, workers=Workers()).blockers[0]
    assert (mine.left, mine.left_count, mine.need) == (("b/1/-1",), 1, "no_worker")
    run.undone("a")
    found = why(run.kernel)
    assert (found.rollback, found.left.names, found.blockers) == ("partial", ("b/1/-1",), ())
    assert found.headline.endswith("its rollback could not undo: b")
    assert found.left_error is not None and found.left_error.code == "stuck"
    assert found.unblock.startswith("fix what kept b from being undone")
    assert found.command == "tidemill runs rollback {run}"


def test_a_rollback_that_left_an_unknown_outcome_asks_to_settle_it() -> None:
    undo = {"compensator": {"type": "value"}}
    run = OperatorSteps("a", {"a": {**undo, "delivery": "at_most_once"}}).begun()
    run.begin("a", token=5)
    run.lost("a")
    run.rollback()
    found = why(run.kernel)
    assert found.unblock.startswith("the outcome of a is unknown: settle it") and "roll back again" in found.unblock
    assert found.command == "tidemill runs override {run} a --value VALUE"
    run.override("a")
    found = why(run.kernel)
    assert (found.unblock.endswith("roll back again"), found.command) == (True, "tidemill runs rollback {run}")
    assert [link.words for link in found.chain][-1] == "an operator has settled since that it happened"
    run.rollback()
    run.undone("a")
    assert why(run.kernel).rollback == "done"


def test_a_rollback_that_left_an_item_or_an_earlier_visit_names_it_in_the_command() -> None:
    undo = {"compensator": {"type": "value"}}
    run = OperatorSteps("m", {"m": {**undo, "map": {"over": [1]}}}).begun()
    run.expand("m", 2)
    run.claim("m[0]")
    run.do(Cancel(compensate=True))
    found = why(run.kernel)
    assert found.command == "tidemill runs override {run} m --item 0 --value VALUE"
    assert found.unblock.startswith("the log holds no start of m[0], but a worker had it in hand and may have begun it")
    assert "settle it with its value if it happened, or skip it" in found.unblock
    run = OperatorSteps("t > l", {"t": {**undo}, "l": {"loop": loop(back_to="t")}}).begun()
    run.claim("t")
    run.rewind("t")
    run.do(Cancel(compensate=True))
    assert why(run.kernel).command == "tidemill runs override {run} t --visit 1 --skip"


def test_a_run_that_was_rolled_back_is_not_forked_as_it_is() -> None:
    run = undoing()
    run.undone("b")
    run.undone("a")
    found = why(run.kernel)
    assert (found.rollback, found.left_error) == ("done", None)
    assert "fork it upstream of what was undone, or start a new run" in found.unblock
    assert found.command == "tidemill runs fork {run} --node NODE"


def test_items_that_wait_for_the_same_are_told_once() -> None:
    run = begun("m n", {"m": {"map": {"over": [1]}}})
    run.expand("m", 4)
    run.fail("m[1]", "flaky", retryable=True)
    found = why(run.kernel, workers=Workers())
    first, second, *rest = folded([each for each in found.blockers if each.root])
    assert [(each.first.node, each.first.index, each.more) for each in (first, second)] == [("m", 0, 2), ("n", -1, 0)]
    assert [(each.first.kind, each.more) for each in rest] == [("retry", 0)]
    assert first.others == "and 2 more items"
    assert str(found).count("no worker is running") == 3  # The headline, the items, and `n`.
    assert "(and 2 more items)" in str(found)


def test_items_that_wait_for_different_things_are_told_one_by_one() -> None:
    run = OperatorSteps("m", {"m": {"map": {"over": [1]}}}).begun()
    run.expand("m", 2)
    for item in "m[0]", "m[1]":
        run.ask(item)
    found = why(run.kernel)
    assert [each.more for each in folded(found.blockers) if each.first.kind == "person"] == [0, 0]


def test_a_delay_before_the_next_pass_is_a_timer() -> None:
    run = begun("a > b", {"a": {"loop": {**loop(3), "delay_seconds": 5}}})
    run.done("a", again=True)
    found = why(run.kernel)
    assert shown(found) == "timer a | edge b"
    assert found.headline == "a has its result; the next pass of its loop begins after a delay"
    assert found.blockers[0].until_ms == run.kernel.now + 5_000


def test_an_error_keeps_its_traceback() -> None:
    run = begun("a", {"a": {"map": {"over": [1]}}})
    run.expand("a", 1)
    run.result("a[0]", Failed(error=Error("exception", "'x'", "KeyError", traceback="Traceback …")))
    found = why(run.kernel)
    assert found.first_cause is not None and found.first_cause.error.traceback == "Traceback …"


def test_a_run_that_came_to_nothing_is_warned_of() -> None:
    run = begun("a > b", {"b": {"when": "inputs.x"}})
    run.done("a")
    run.result("b", SkipRequested(reason="no"), called=False)
    assert why(run.kernel).warnings == ("no terminal node completed: b was skipped (no)",)
