"""Dead letters: one for every failure that nobody tries again by itself, until somebody takes care of it."""

from __future__ import annotations

from typing import Any

from tests.kernel.acts import Acts
from tests.kernel.tables import flow, loop, rows
from tidemill.kernel import events as ev
from tidemill.kernel.commands import CloseDeadLetter


def failed(graph: str = "a > b", nodes: dict[str, Any] | None = None) -> Acts:
    run = Acts(graph, nodes).begun()
    run.fail("a")
    return run


def closings(run: Acts) -> str:
    """What became of letters, as `a/1/-1:reprocessed`."""
    return " ".join(f"{each.node}/{each.visit}/{each.index}:{each.status}" for each in run.of(ev.DeadLetterClosed))


def test_a_letter_is_open_until_somebody_discards_it() -> None:
    run = failed()
    assert (run.letters, run.kernel.state.dead_letters) == ("a/1/-1", 1)
    close = CloseDeadLetter(node="a", visit=1, actor="ann", reason="known", id="c1")
    assert run.do(close) == rows("DeadLetterClosed a")
    event = run.of(ev.DeadLetterClosed)[0]
    assert (event.status, event.actor, event.reason, event.command) == ("discarded", "ann", "known", "c1")
    assert (run.letters, run.kernel.state.dead_letters, run.status) == ("", 0, "FAILED")


def test_discarding_twice_is_once() -> None:
    run = failed()
    run.discard("a")
    assert run.discard("a") == []
    assert run.do(CloseDeadLetter(node="a", visit=1, id="c9")) == []


def test_only_failures_have_letters() -> None:
    run = failed()
    for node, visit, index in (("b", 1, -1), ("a", 2, -1), ("a", 1, 0), ("nobody", 1, -1)):
        assert run.refused(CloseDeadLetter(node=node, visit=visit, index=index)) == "dead_letter_unknown"


def test_a_retry_closes_the_letters_of_what_it_reopens() -> None:
    run = Acts("a b", {"b": {"on_error": "continue"}}).begun()
    run.fail("b")
    run.fail("a")
    run.retry(reason="fixed")
    assert (closings(run), run.letters) == ("a/1/-1:reprocessed", "b/1/-1")
    assert run.of(ev.DeadLetterClosed)[0].reason == "fixed"


def test_a_letter_that_was_discarded_is_not_closed_again() -> None:
    run = failed()
    run.discard("a")
    run.retry()
    assert closings(run) == "a/1/-1:discarded"


def test_failing_again_opens_it_again() -> None:
    run = failed()
    run.retry()
    run.fail("a", "bang")
    letter = run.kernel.state.letters["a/1/-1"]
    assert (letter.open, letter.attempts, letter.error.code, run.kernel.state.dead_letters) == (True, 2, "bang", 1)
    run.retry()
    assert (closings(run), run.letters) == ("a/1/-1:reprocessed a/1/-1:reprocessed", "")


def test_a_map_and_its_items_have_letters_of_their_own() -> None:
    run = Acts("m", {"m": {"map": {"over": [1], "tolerate": 1}}}).begun()
    run.expand("m", 3)
    run.fail("m[2]")
    run.fail("m[0]")
    assert run.letters == "m/1/2 m/1/0 m/1/-1"
    run.retry()
    assert (closings(run), run.letters) == ("m/1/0:reprocessed m/1/-1:reprocessed", "m/1/2")


def test_a_list_that_is_made_anew_leaves_no_letter_behind() -> None:
    """The item failed before anybody called it, so nothing speaks against another list."""
    run = Acts("m > z", {"m": {"map": {"over": [1]}}}).begun()
    run.expand("m", 2)
    run.fail("m[1]", called=False)
    run.patch(flow("m > z", {"m": {"map": {"over": [1, 2, 3]}}}), retry=True)
    assert (closings(run), run.letters) == ("m/1/1:reprocessed m/1/-1:reprocessed", "")


def test_letters_of_earlier_passes_stay_and_can_be_discarded() -> None:
    run = Acts("a > l", {"a": {"on_error": "continue"}, "l": {"loop": loop(back_to="a")}}).begun()
    run.fail("a")
    run.done("l", again=True)
    run.fail("a")
    assert run.letters == "a/1/-1 a/2/-1"
    run.discard("a#1")
    assert run.letters == "a/2/-1"


def test_a_letter_of_a_node_that_is_gone_can_be_discarded() -> None:
    run = Acts("a > b; c").begun()
    run.fail("a")
    run.patch(flow("b; c"), retry=True)
    assert run.letters == "a/1/-1"
    assert run.do(CloseDeadLetter(node="a", visit=1)) == rows("DeadLetterClosed a")
