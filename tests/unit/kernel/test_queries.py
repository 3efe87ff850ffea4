"""What a node sees of others, what flows into it, the tokens in flight and the path taken."""

from __future__ import annotations

from typing import Any

from tests.fixtures.kernel.tables import Run, begun, choose, loop
from tidemill.kernel.commands import SkipRequested
from tidemill.kernel.queries import Token, VisibleOutput, dead_ends, iteration, path, tokens, upstream, visible_output

Json = Any


def sees(run: Run, reader: str, target: str) -> str:
    """What `reader` sees of `target`: `value@visit`, or the words that say why not."""
    seen = visible_output(run.flow, run.kernel.state, run.node(reader), target)
    return f"{seen.payload.decode()}@{seen.visit}" if isinstance(seen, VisibleOutput) else seen  # type: ignore[union-attr]


def reading(*names: str) -> Json:
    return {"config": {name: f"{{{{ {name}.output | default(0) }}}}" for name in names}}


def test_an_ancestor_is_seen_once_it_has_ended() -> None:
    run = begun("a > b > c", {"c": reading("a", "b")})
    assert (sees(run, "c", "a"), sees(run, "c", "b")) == ("has not ended", "has not ended")
    run.done("a", output=b"7")
    assert sees(run, "c", "a") == "7@1"


def test_an_ancestor_that_has_not_ended_in_this_pass_is_undefined() -> None:
    """Past an `any` join a reader may run before one of its ancestors."""
    run = begun("a > b c > d", {"d": {"join": "any", "loop": loop(3, "a"), **reading("c")}})
    run.end("a", "b")
    assert sees(run, "d", "c") == "has not ended"
    run.done("c", output=b"1")
    assert sees(run, "d", "c") == "1@1"
    run.done("d", again=True)
    run.end("a", "b")
    assert sees(run, "d", "c") == "has not ended", "an older pass's value is never shown"


def test_skipped_cancelled_and_failed_nodes_have_no_output() -> None:
    run = begun("a > b c > d", {"b": {"when": "inputs.go"}, "d": reading("b", "c")})
    run.done("a")
    run.skip("b")
    assert sees(run, "d", "b") == "was skipped"
    run.cancel()
    assert sees(run, "d", "c") == "was cancelled"
    run = begun("a > d", {"d": reading("a")})
    run.fail("a")
    assert sees(run, "d", "a") == "failed"


def test_a_skipped_visit_hides_the_value_of_an_older_pass() -> None:
    nodes: Json = {"b": {"when": "iteration == 0"}, "c": {"loop": loop(3, "a"), **reading("b")}, "z": reading("b")}
    run = begun("a > b > c > z; a > c", nodes)
    run.done("a")
    run.done("b", output=b"5")
    assert sees(run, "c", "b") == "5@1"
    run.done("c", again=True)
    run.done("a")
    run.skip("b")
    assert (sees(run, "c", "b"), sees(run, "z", "b")) == ("was skipped", "was skipped")


def test_a_node_sees_itself_as_it_was_when_the_pass_began() -> None:
    run = begun("a", {"a": {"loop": loop(4), **reading("a")}})
    assert sees(run, "a", "a") == "has no value in the first pass"
    run.done("a", again=True, output=b"1")
    assert sees(run, "a", "a") == "1@1"
    run.done("a", again=True, output=b"2")
    assert sees(run, "a", "a") == "2@2"


def test_a_non_ancestor_in_the_loop_is_seen_as_it_was_when_the_pass_began() -> None:
    """`a` reads `c`, which runs after it: what it sees is one pass old, also when `c` has ended since."""
    run = begun("a > b c > d", {"a": reading("c"), "b": reading("c"), "d": {"loop": loop(4, "a")}})
    assert sees(run, "a", "c") == "has no value in the first pass"
    run.done("a")
    run.done("c", output=b"1")
    assert sees(run, "b", "c") == "has no value in the first pass"
    run.done("b")
    run.done("d", again=True)
    assert sees(run, "a", "c") == "1@1"
    run.done("a")
    run.done("c", output=b"2")
    assert sees(run, "b", "c") == "1@1"


def test_what_was_seen_in_an_outer_pass_is_gone_in_the_first_inner_one() -> None:
    run = begun("a > b > d", {"b": {"loop": loop(3), **reading("b")}, "d": {"loop": loop(3, "a")}})
    run.done("a")
    run.done("b", again=True, output=b"1")
    assert sees(run, "b", "b") == "1@1"
    run.done("b", again=False, output=b"2")
    run.done("d", again=True)
    run.done("a")
    assert sees(run, "b", "b") == "has no value in the first pass"


def test_a_reader_outside_the_loop_sees_the_latest_visit_that_ended() -> None:
    run = begun("a > b > z; h", {"b": {"loop": loop(3, "a")}, "a": {"on_error": {"route": ["h"]}}, "h": reading("a")})
    run.done("a", output=b"1")
    assert sees(run, "h", "a") == "1@1"
    run.done("b", again=True)
    assert sees(run, "h", "a") == "1@1", "a new pass has begun and has no value yet"
    run.fail("a")
    assert sees(run, "h", "a").startswith('{"error"')


def test_iteration_is_that_of_the_innermost_loop() -> None:
    run = begun("a > b > c > d > z", {"c": {"loop": loop(3, "b")}, "d": {"loop": loop(3, "a")}})
    run.end("a", "b")
    run.done("c", again=True)
    run.done("b")
    run.done("c", again=False)
    run.done("d", again=True)
    assert [iteration(run.kernel.state, run.node(name)) for name in "abcdz"] == [1, 0, 0, 1, 0]


def test_upstream_are_the_outputs_of_parents_whose_edges_were_taken() -> None:
    run = begun("a b c > j", {"a": {"branch": choose("j")}, "c": {"on_error": "continue"}})
    run.done("a", "", output=b"1")
    run.done("b", output=b"2")
    run.fail("c")
    found = upstream(run.flow, run.kernel.state, run.node("j"))
    assert sorted(found) == ["b", "c"]
    assert (found["b"], found["c"]) == (b"2", b'{"error":{"code":"boom","message":"boom happened"}}')


def test_in_a_later_pass_the_entry_still_has_its_outside_parents() -> None:
    run = begun("s > a > b", {"b": {"loop": loop(3, "a")}})
    run.done("s", output=b"4")
    run.done("a")
    run.done("b", again=True)
    assert upstream(run.flow, run.kernel.state, run.node("a")) == {"s": b"4"}


def test_the_tokens_are_named() -> None:
    run = begun("a b > j > k", {"k": {"loop": loop(3, "j")}})
    state = run.kernel.state
    assert list(tokens(run.flow, state)) == [Token("", "a", 1, 1), Token("", "b", 1, 1)]
    run.done("a")
    assert list(tokens(run.flow, state)) == [Token("", "b", 1, 1), Token("a", "j", 1, 1)]
    run.done("b")
    assert list(tokens(run.flow, state)) == [Token("a", "j", 1, 2), Token("b", "j", 1, 2)]
    run.done("j")
    run.done("k", again=True)
    assert list(tokens(run.flow, state)) == [Token("", "j", 2, 4)]


def test_the_path_is_the_ended_visits_in_their_order() -> None:
    run = begun("a; b; c > d", {"a": {"branch": choose("b c", "c")}, "b": {}})
    run.done("a", "c")
    run.end("c", "d")
    went = [(step.node, step.went) for step in path(run.kernel.events)]
    assert went == [("a", ("c",)), ("b", ()), ("c", ("d",)), ("d", ())]


def test_an_output_of_an_earlier_pass_is_not_shown_as_one_of_this() -> None:
    run = begun("e > x y > l > z", {"l": {"loop": loop(3, "e"), "join": "any"}})
    run.end("e", "x", "y")
    run.done("l", again=True)
    run.end("e", "x")
    state, nodes = run.kernel.state, run.flow.by_id
    assert visible_output(run.flow, state, nodes["l"], "y") == "has not ended"
    assert isinstance(visible_output(run.flow, state, nodes["z"], "y"), VisibleOutput)


def test_a_loop_that_is_skipped_into_nothing_is_warned_of() -> None:
    run = begun("a > b > c > z", {"b": {"when": "inputs.x"}, "c": {"loop": loop(3, "a")}})
    run.done("a")
    run.result("b", SkipRequested(reason="when: inputs.x is false"), called=False)
    assert (run.status, run.nodes("b c z")) == ("COMPLETED", "b=SKIPPED c=SKIPPED z=SKIPPED")
    (warning,) = dead_ends(run.flow, run.kernel.state)
    assert warning == (
        "no terminal node completed: b was skipped (when: inputs.x is false) and c with it, which ended the loop; "
        "end the loop with the condition of c instead"
    )


def test_where_a_way_ended_is_told_only_if_nothing_came_of_it() -> None:
    run = begun("a > b; c", {"b": {"when": "inputs.x"}})
    run.done("a")
    run.done("c")
    assert dead_ends(run.flow, run.kernel.state) == (), "it has not ended"
    run.result("b", SkipRequested(reason="when: inputs.x is false"), called=False)
    assert (run.status, dead_ends(run.flow, run.kernel.state)) == ("COMPLETED", ())
    run = begun("a > b", {"b": {"when": "inputs.x"}})
    run.done("a")
    run.result("b", SkipRequested(reason="no"), called=False)
    assert dead_ends(run.flow, run.kernel.state) == ("no terminal node completed: b was skipped (no)",)
