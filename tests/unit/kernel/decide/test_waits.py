"""Waiting without a worker: timers, expiry, conditions after a wait, and checkpoints on the way."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.kernel.tables import Run, begun, choose, loop, rows
from tidemill.kernel.commands import Pause, Result, Resume, Signal, TimerFired, WaitExpired, WaitRequested
from tidemill.kernel.decide.waits import SIGNALS_MAX
from tidemill.kernel.events import NodeWaiting, SignalReceived

Json = Any


def one(graph: str = "a > z", **options: Json) -> Run:
    return begun(graph, {"a": options})


def test_a_timer_wakes_and_completes_the_visit_in_the_same_turn() -> None:
    run = one()
    assert run.wait("a", 5_000) == rows("NodeStarted a; NodeWaiting a on=timer until=+5000; put wake a at=+5000")
    assert (run.cell("a").status, run.counter, run.kernel.state.in_flight) == ("WAITING", 1, 0)
    assert run.wake("a") == rows("NodeCompleted a taken=z counter=1; NodeScheduled z; drop wake a; put run z")
    assert run.cell("a").output == b"null"


@pytest.mark.parametrize(("wait", "timer", "kind"), [(5_000, TimerFired, "wake"), (None, WaitExpired, "expire")])
def test_a_timer_that_is_claimed_before_its_time_is_put_back(wait: int | None, timer: type, kind: str) -> None:
    """The clock of the process that decides may be behind that of the store."""
    run = one(**({} if wait else {"timeout_seconds": 5}))
    run.wait("a", wait)
    run.kernel.now += 4_999
    assert run.do(timer(**run.where("a")), run.key(kind, "a")) == rows(f"put {kind} a at=+1")
    run.kernel.now += 1
    assert run.do(timer(**run.where("a")), run.key(kind, "a")) != []
    assert run.cell("a").status != "WAITING"


def test_only_the_kernel_waits_for_the_body_of_a_loop() -> None:
    """A handler that asks for such a wait has no result to hold: the visit fails instead of looping without one."""
    run = begun("a > b", {"b": {"loop": loop(back_to="a")}})
    run.end("a")
    assert "code=outcome_not_allowed" in run.wait("b", on="loop")[0]


def test_waiting_for_something_with_a_name_has_no_timer() -> None:
    run = one()
    assert run.wait("a", None, on="signal") == rows("NodeStarted a; NodeWaiting a on=signal")
    assert run.jobs == ""
    assert run.wake("a") == []


def test_the_time_out_of_an_attempt_includes_its_waiting() -> None:
    run = one(timeout_seconds=3)
    assert run.wait("a", None, on="signal", duration_ms=400) == rows(
        "NodeStarted a; NodeWaiting a on=signal expires=+2600; put expire a at=+2600"
    )


@pytest.mark.parametrize(
    ("for_ms", "timeout", "job"),
    [(2_000, 3, "put wake a at=+2000"), (3_000, 3, "put wake a at=+3000"), (4_000, 3, "put expire a at=+3000")],
    ids=["the timer is first", "at the same moment", "the time-out is first"],
)
def test_a_wait_has_one_timer_whichever_comes_first(for_ms: int, timeout: int, job: str) -> None:
    assert one(timeout_seconds=timeout).wait("a", for_ms)[-1] == job


def test_a_wait_that_expires_is_a_time_out_and_is_retried() -> None:
    run = one(timeout_seconds=3)
    run.wait("a", 10_000)
    assert run.expire("a") == rows(
        "NodeFailed a code=timeout retry=+1000; drop wake a; drop expire a; put run a at=+1000"
    )
    assert run.wait("a", 10_000) == rows(
        "NodeStarted a attempt=2; NodeWaiting a attempt=2 on=timer until=+10000 expires=+3000; put expire a at=+3000"
    )
    run.expire("a")
    run.wait("a", 10_000)
    assert run.expire("a")[:2] == rows(
        "NodeFailed a attempt=3 code=timeout counter=0; DeadLettered a code=timeout attempts=3"
    )


def test_a_wait_that_expires_at_most_once_is_an_unknown_outcome() -> None:
    run = one(timeout_seconds=3, delivery="at_most_once")
    run.begin("a", token=5)
    run.wait("a", 10_000, token=5)
    assert run.expire("a")[0] == "NodeFailed a code=unknown_outcome counter=0"


@pytest.mark.parametrize("options", [{"branch": choose("b", "c")}, {"loop": loop(3)}], ids=["branch", "loop"])
def test_a_wait_with_conditions_is_queued_once_more(options: Json) -> None:
    """A worker evaluates them; the handler is not called again, so it is not an attempt."""
    run = one("a; b; c", **options)
    run.wait("a")
    assert run.wake("a") == rows("NodeScheduled a resumed; drop wake a; put run a")
    assert (run.cell("a").status, run.cell("a").resumed, run.cell("a").attempt) == ("QUEUED", b"null", 1)
    shown = run.done("a", "b" if "branch" in options else None, called=False)
    assert shown[0].startswith("NodeCompleted a")
    assert (run.cell("a").attempt, run.cell("a").resumed) == (1, None)


def test_a_wait_with_conditions_that_fail_is_not_retried() -> None:
    run = one("a; b", branch=choose("b"))
    run.wait("a")
    run.wake("a")
    assert run.fail("a", "condition_failed", called=False)[0] == "NodeFailed a code=condition_failed counter=0"


def test_a_lost_evaluation_after_a_wait_is_done_again_and_is_no_attempt() -> None:
    run = one("a; b", branch=choose("b"), delivery="at_most_once")
    run.begin("a", token=5)
    run.wait("a", token=5)
    run.wake("a")
    assert run.lost("a") == rows("NodeFailed a code=worker_lost retry=+0; put run a")
    assert run.done("a", "b", called=False)[0] == "NodeCompleted a taken=b counter=1"


def test_a_wait_that_ends_may_exceed_the_slots() -> None:
    """It has begun, so no limit holds it back."""
    run = begun("a c; b", {"a": {"branch": choose("b")}}, limits={"max_parallel": 1})
    run.wait("a")
    assert run.jobs == "run c; wake a"
    assert run.wake("a")[-1] == "put run a"
    assert run.kernel.state.in_flight == 2


def test_waiting_frees_a_slot() -> None:
    run = begun("a b", limits={"max_parallel": 1})
    assert run.wait("a")[-2:] == rows("put wake a at=+1000; put run b")


def test_a_timer_counts_only_while_its_visit_waits_for_it() -> None:
    run = one("a > z", loop=loop(3))
    assert run.wake("a") == run.expire("a") == []
    run.wait("a")
    run.wake("a")
    assert run.wake("a") == run.expire("a") == []
    run.done("a", again=True, called=False)
    run.wait("a")
    assert run.do(TimerFired(node="a", visit=1)) == []
    assert run.do(TimerFired(node="a", visit=3)) == []
    assert run.do(TimerFired(node="a", visit=2, index=0)) == []
    assert run.cell("a").status == "WAITING"


def test_an_expiry_ends_only_a_wait_that_can_expire() -> None:
    """A looping visit that waits for its body has no time-out any more: its attempt has ended."""
    run = begun("a > b c > d", {"d": {"join": "any", "loop": loop(3, "a"), "timeout_seconds": 5}})
    run.end("a", "b")
    run.done("d", again=True)
    assert run.expire("d") == []
    assert run.cell("d").status == "WAITING"


def test_items_of_a_map_wait_on_their_own() -> None:
    run = one(map={"over": [1]}, timeout_seconds=3)
    run.expand("a", 2)
    assert run.wait("a[0]", 500)[-1] == "put wake a[0] at=+500"
    assert run.wait("a[1]", 9_000)[-1] == "put expire a[1] at=+3000"
    assert run.wake("a[0]") == rows("NodeCompleted a[0]; drop wake a[0]; drop expire a[0]")
    assert run.expire("a[1]") == rows(
        "NodeFailed a[1] code=timeout retry=+1000; drop wake a[1]; drop expire a[1]; put run a[1] at=+1000"
    )


def test_a_wait_is_recorded_with_its_name_and_moment() -> None:
    run = one()
    run.kernel.now = 7_000
    run.result("a", WaitRequested(on="signal", name="paid"), worker="w1", duration_ms=12)
    [waiting] = run.of(NodeWaiting)
    assert (waiting.on, waiting.name, waiting.at_ms, waiting.worker) == ("signal", "paid", 7_000, "w1")
    wait = run.cell("a").wait
    assert wait is not None and (wait.on, wait.name, wait.since_ms) == ("signal", "paid", 7_000)


def test_a_checkpoint_is_kept_for_the_attempt_after_a_crash() -> None:
    run = one()
    assert run.checkpoint("a", b"1", token=5) == rows("NodeStarted a; NodeCheckpointed a value=b'1'")
    assert run.checkpoint("a", b"2", token=5) == rows("NodeCheckpointed a value=b'2'")
    run.lost("a")
    assert run.cell("a").checkpoint == b"2"
    run.done("a")
    assert run.cell("a").attempt == 2


def test_a_checkpoint_belongs_to_its_visit_and_item() -> None:
    run = one(map={"over": [1]}, loop=loop(3))
    run.expand("a", 2)
    run.checkpoint("a[1]", b"7", token=5)
    assert (run.act("a[0]").checkpoint, run.act("a[1]").checkpoint) == (None, b"7")
    run.done("a[0]", token=6)
    run.done("a[1]", token=5)
    run.assemble("a", again=True)
    assert run.cell("a").checkpoint is None


# Signals: kept until somebody asks, taken once and in order by whoever has waited longest, named when nobody did


WAITS: Json = {"type": "signal", "config": {"name": "paid"}}
GIVES_UP: Json = {**WAITS, "timeout_seconds": 5, "retry": {"max_attempts": 1}, "on_error": "continue"}


def started(graph: str = "s > z", **nodes: Json) -> Run:
    """A run in which `s` will wait for `paid`."""
    return begun(graph, {"s": WAITS, **nodes})


def told(signal: str, name: str = "paid", payload: bytes = b"1") -> Signal:
    return Signal(name=name, signal=signal, payload=payload)


def test_a_signal_ends_the_wait_and_is_the_output() -> None:
    run = started()
    assert run.listen("s") == rows("NodeStarted s; NodeWaiting s on=signal")
    assert (run.jobs, run.counter) == ("", 1)
    assert run.signal("s1", payload=b'{"eur":12}') == rows(
        "SignalReceived paid=s1 taker=s; NodeCompleted s taken=z counter=1; NodeScheduled z; put run z"
    )
    assert run.output("s") == {"eur": 12}
    assert (run.kernel.state.signals, run.kernel.state.listening) == ((), {"paid": ()})


def test_a_signal_that_comes_first_is_kept() -> None:
    run = started()
    assert run.signal("s1", payload=b"7") == rows("SignalReceived paid=s1")
    assert run.listen("s") == rows(
        "NodeStarted s; NodeWaiting s on=signal signal=s1; NodeCompleted s taken=z counter=1; NodeScheduled z;put run z"
    )
    assert (run.output("s"), run.kernel.state.signals) == (7, ())
    assert [waiting.signal for waiting in run.of(NodeWaiting)] == ["s1"]


def test_kept_signals_are_taken_in_order_and_once() -> None:
    run = started("s t u", t=WAITS, u=WAITS)
    run.signal("s1", payload=b"1")
    run.signal("s2", payload=b"2")
    run.listen("t")
    run.listen("s")
    assert (run.output("t"), run.output("s")) == (1, 2)
    assert run.listen("u") == rows("NodeStarted u; NodeWaiting u on=signal")


def test_who_has_waited_longest_is_served_first() -> None:
    run = started("s t", t=WAITS)
    run.listen("t")
    run.listen("s")
    assert run.signal("s1")[:2] == rows("SignalReceived paid=s1 taker=t; NodeCompleted t counter=1")
    assert run.signal("s2")[:2] == rows("SignalReceived paid=s2 taker=s; NodeCompleted s counter=0")


def test_signals_of_other_names_do_not_matter() -> None:
    run = started("s t", t={"type": "signal", "config": {"name": "sent"}})
    run.signal("s1", "sent")
    assert run.listen("s") == rows("NodeStarted s; NodeWaiting s on=signal")
    assert run.signal("s2", "sent") == rows("SignalReceived sent=s2")
    assert run.listen("t", "sent")[1] == "NodeWaiting t on=signal signal=s1"


def test_the_same_signal_twice_changes_nothing() -> None:
    run = started("s t > z", t=WAITS)
    run.signal("s1")
    assert run.signal("s1") == run.signal("s1", payload=b"2") == []
    run.listen("s")
    run.listen("t")
    assert run.signal("s1") == []
    assert run.signal("s2")[0] == "SignalReceived paid=s2 taker=t"
    run.done("z")
    assert (run.status, run.signal("s2")) == ("COMPLETED", [])


def test_in_one_commit_a_signal_meets_the_wait_that_begins() -> None:
    run = started("s > z", s={**WAITS, "timeout_seconds": 9})
    waits = Result(outcome=WaitRequested(on="signal", name="paid"), token=1, **run.where("s"))
    assert run.together(waits, told("s1")) == rows(
        "NodeStarted s; NodeWaiting s on=signal expires=+9000; SignalReceived paid=s1 taker=s;"
        "NodeCompleted s taken=z counter=1; NodeScheduled z; drop expire s; put run z"
    )


def test_outputs_of_signals_count_towards_the_bytes_of_the_run() -> None:
    run = begun("s t", {"s": WAITS, "t": WAITS}, limits={"max_bytes": 6})
    run.listen("s")
    run.listen("t")
    run.signal("s1", payload=b"1234")
    assert run.kernel.state.size == 4
    assert run.signal("s2", payload=b"123")[1] == "NodeFailed t code=max_bytes_exceeded counter=0"


def test_a_name_that_no_node_waits_for_is_refused() -> None:
    run = started("s t", t={"type": "signal"})
    assert run.refused(told("s1", "payed")) == "signal_unknown"
    assert run.signal("s1", "t") == rows("SignalReceived t=s1")


def test_a_name_that_is_known_only_at_run_time_may_be_anything() -> None:
    run = started("s > t", t={"type": "signal", "config": {"name": "{{ s.output }}"}})
    assert run.signal("s1", "whatever") == rows("SignalReceived whatever=s1")


def test_a_name_that_a_handler_asked_for_is_known() -> None:
    run = begun("a b > z")
    assert run.refused(told("s1", "go")) == "signal_unknown"
    run.listen("a", "go")
    assert run.signal("s1", "go")[0] == "SignalReceived go=s1 taker=a"
    assert run.signal("s2", "go") == rows("SignalReceived go=s2")


def test_so_many_are_kept_and_no_more() -> None:
    run = started("s a")
    for number in range(SIGNALS_MAX):
        run.kernel.do(told(f"s{number}"))
    assert run.refused(told("one more")) == "signals_full"
    assert run.kernel.do(told("s7")).events == ()


def test_who_waits_is_served_however_many_are_kept() -> None:
    run = started("s t", t={"type": "signal", "config": {"name": "sent"}})
    run.listen("s")
    for number in range(SIGNALS_MAX):
        run.kernel.do(told(f"s{number}", "sent"))
    assert run.refused(told("one more", "sent")) == "signals_full"
    assert run.kernel.do(told("p1")).events[0] == run.of(SignalReceived)[-1]
    assert run.output("s") == 1


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
def test_after_the_end_nobody_is_left_to_be_told(end: str) -> None:
    run = started("a; s", s={**WAITS, "on_error": "continue"})
    run.listen("s")
    {"completed": lambda: run.end("a"), "failed": lambda: run.fail("a"), "cancelled": run.cancel}[end]()
    if end == "completed":
        run.signal("s1")
    assert run.status == end.upper()
    assert run.refused(told("s9")) == "run_ended"


def unread(**top: Json) -> Run:
    run = begun("a; s t", {"s": WAITS, "t": {"type": "signal", "config": {"name": "sent"}}}, **top)
    run.listen("s")
    for number, name in enumerate(("sent", "paid", "paid", "sent", "paid")):
        run.signal(f"s{number}", name)
    return run


def test_a_cancelled_run_names_what_nobody_took() -> None:
    assert "RunCancelled unread=sent,paid" in unread().cancel()


def test_a_failed_run_names_what_nobody_took() -> None:
    assert "RunFailed node=a code=boom unread=sent,paid" in unread().fail("a")
    late = unread(limits={"deadline_seconds": 5}).deadline()
    assert "RunFailed code=deadline_exceeded unread=sent,paid" in late


def test_a_completed_run_names_what_nobody_took() -> None:
    run = unread()
    run.listen("t", "sent")
    assert run.done("a")[-1] == "RunCompleted unread=paid,sent"


def test_rendered_outputs_change_nothing_about_that() -> None:
    run = unread(outputs={"x": 1})
    run.listen("t", "sent")
    run.done("a")
    assert run.render()[0] == "RunCompleted unread=paid,sent"
    run = unread(outputs={"x": 1})
    run.listen("t", "sent")
    run.done("a")
    assert run.render("boom")[0] == "RunFailed code=outputs_failed unread=paid,sent"


def test_items_of_a_map_take_one_signal_each() -> None:
    run = started("s > z", s={**WAITS, "map": {"over": [1]}})
    run.expand("s", 3)
    run.listen("s[2]")
    run.listen("s[0]")
    assert run.signal("s1", payload=b"2") == rows("SignalReceived paid=s1 taker=s[2]; NodeCompleted s[2]")
    run.signal("s2", payload=b"0")
    run.signal("s3", payload=b"1")
    assert run.listen("s[1]")[1:4] == rows("NodeWaiting s[1] on=signal signal=s3; NodeCompleted s[1]; NodeScheduled s")
    assert [run.output(f"s[{index}]") for index in range(3)] == [0, 1, 2]


def test_every_pass_of_a_loop_takes_a_signal_of_its_own() -> None:
    run = started("s > z", s={**WAITS, "loop": loop(3)})
    run.listen("s")
    run.signal("s1")
    run.signal("s2")
    run.done("s", again=True, called=False)
    assert run.listen("s")[1] == "NodeWaiting s#2 on=signal signal=s2"
    run.done("s", again=True, called=False)
    run.listen("s")
    assert run.signal("s3")[0] == "SignalReceived paid=s3 taker=s#3"


def test_a_wait_that_takes_too_long_is_a_time_out_and_listens_again() -> None:
    run = started("s > z", s={**WAITS, "timeout_seconds": 5})
    assert run.listen("s")[-1] == "put expire s at=+5000"
    assert run.expire("s") == rows("NodeFailed s code=timeout retry=+1000; drop expire s; put run s at=+1000")
    assert run.signal("s1") == rows("SignalReceived paid=s1")
    assert run.listen("s")[:3] == rows(
        "NodeStarted s attempt=2; NodeWaiting s attempt=2 on=signal expires=+5000 signal=s1;"
        "NodeCompleted s attempt=2 taken=z counter=1"
    )


def test_who_listens_again_stands_behind_those_who_have_waited_since() -> None:
    run = started("s t", s={**WAITS, "timeout_seconds": 5}, t=WAITS)
    run.listen("s")
    run.listen("t")
    run.expire("s")
    run.listen("s")
    assert run.kernel.state.listening == {"paid": (("t", 1, -1), ("s", 1, -1))}
    assert run.signal("s1")[0] == "SignalReceived paid=s1 taker=t"
    assert run.signal("s2")[0] == "SignalReceived paid=s2 taker=s"


def test_who_waits_no_more_is_not_remembered_for_ever() -> None:
    run = begun("a > s > d", {"s": GIVES_UP, "d": {"loop": loop(50, "a")}})
    for _ in range(9):
        run.done("a")
        run.listen("s")
        run.expire("s")
        run.done("d", again=True)
    assert len(run.kernel.state.listening["paid"]) == 1


AGAIN = {"retry": {"max_attempts": 3, "backoff_seconds": 0}, "timeout_seconds": 5}


def test_a_signal_is_not_taken_for_a_command_of_the_same_id() -> None:
    run = begun("s", {"s": {"type": "signal", "config": {"name": "paid"}}})
    run.do(Pause(id="x"))
    run.do(Resume(id="y"))
    run.listen("s")
    assert run.signal("x")[-1] == "RunCompleted"


def waited_before() -> Run:
    """A run whose node `a` has waited for a signal `paid` until its time was over, and is to be tried again."""
    run = begun("a", {"a": AGAIN})
    run.listen("a", "paid")
    run.expire("a")
    return run


def test_who_waits_for_another_signal_by_now_is_passed_over() -> None:
    run = waited_before()
    run.listen("a", "sent")
    assert run.signal("s1", "paid") == rows("SignalReceived paid=s1")
    run.signal("s2", "sent")
    assert run.status == "COMPLETED"
