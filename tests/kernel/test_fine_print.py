"""The fine print of a run, rule by rule: every test is named after the rule it stands for.

The subjects' own files go deeper.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.kernel.tables import TYPES, Run, choose, error, flow, loop, rows
from tidemill.errors import Rejected
from tidemill.expressions.scope import Absent, Scope
from tidemill.expressions.templates import compile_template
from tidemill.handlers.contract import Fail, NodeContext, Return
from tidemill.handlers.plain import fail
from tidemill.kernel.commands import Failed, Result
from tidemill.kernel.compile import compile_document
from tidemill.kernel.events import LoopContinued, NodeSkipped, RunFailed
from tidemill.kernel.sight import iteration, visible

Json = Any


def refusals(graph: str, nodes: dict[str, Json]) -> list[str]:
    with pytest.raises(Rejected) as caught:
        flow(graph, nodes)
    return [problem.code for problem in caught.value.problems]


def sees(run: Run, reader: str, target: str) -> Any:
    return visible(run.flow, run.kernel.state, run.node(reader), target)


# Edges and tokens


def test_all_outgoing_edges_of_a_visit_are_decided_before_any_consequence_of_one_is_drawn() -> None:
    run = Run("a > b > c; a > c", {"a": {"branch": choose("b", "c")}})
    run.start()
    shown = run.done("a", "c")
    assert shown[1] == "NodeCompleted a taken=c dead=b counter=1"
    # `c` fires only after its edge from the skipped `b` is dead too, and once.
    assert shown[2:] == rows("NodeSkipped b dead=c counter=1; NodeScheduled c; put run c")


def test_results_committed_together_are_decided_one_after_another_so_one_visit_fails_the_run() -> None:
    run = Run("a b c")
    run.start()
    run.together(*(Result(node=name, visit=1, token=9, outcome=Failed(error=error(f"{name}_broke"))) for name in "abc"))
    assert [event.error.code for event in run.of(RunFailed)] == ["a_broke"]
    assert run.nodes() == "a=FAILED b=CANCELLED c=CANCELLED"


@pytest.mark.parametrize("join", ["all", "strict", "any", {"quorum": 2}])
def test_a_token_that_reaches_a_join_already_fired_or_skipped_in_this_visit_is_absorbed(join: Json) -> None:
    """Of whatever kind: even an `all` join can be reached late, by an escape that is taken a second time."""
    nodes: Json = {"e": {"on_error": {"route": ["j"]}}, "l": {"join": "any", "loop": loop(4, "a")}, "j": {"join": join}}
    run = Run("x > j; a > e f > l; y > j", nodes)
    run.start()
    run.end("x", "y", "a", "f")
    run.fail("e")
    assert run.nodes("j") == "j=QUEUED"
    run.done("l", again=True)
    run.end("a", "f")
    before = run.counter
    run.fail("e")
    assert (run.counter, run.cell("j").visit, run.cell("j").taken) == (before - 1, 1, 3)


def test_an_edge_named_by_several_rules_is_taken_when_any_rule_that_applies_takes_it() -> None:
    run = Run("a; b; c", {"a": {"loop": loop(2, break_path="b"), "branch": choose("b c", "c")}})
    run.start()
    assert run.done("a", "c", again=False)[1] == "NodeCompleted a taken=b,c counter=2"


def test_a_target_may_also_list_the_node_in_dependencies_which_changes_nothing() -> None:
    nodes: Json = {"a": {"branch": choose("b", "c"), "on_error": {"route": ["h"]}}}
    assert flow("a > b c h", nodes).digest == flow("a; b; c; h", nodes).digest


def test_joins_look_at_edges_never_at_statuses() -> None:
    run = Run("a b > j", {"a": {"on_error": "continue"}, "j": {"join": "strict"}})
    run.start()
    run.fail("a")
    run.done("b")
    assert run.nodes("a j") == "a=FAILED j=QUEUED"


def test_join_is_refused_on_an_entry_beside_wait_for_all_and_with_an_impossible_quorum() -> None:
    assert refusals("a > b", {"a": {"join": "any"}}) == ["join_on_entry"]
    assert refusals("a > b", {"b": {"join": "any", "wait_for_all": True}}) == ["conflicting_keys"]
    assert refusals("a > b", {"b": {"join": {"quorum": 2}}}) == ["quorum_too_large"]
    assert refusals("a > b", {"b": {"join": {"quorum": 0}}}) == ["out_of_range"]


@pytest.mark.parametrize("end", ["fail", "cancel", "deadline"])
def test_ending_a_run_ends_every_unfinished_visit_and_consumes_its_tokens_parked_ones_included(end: str) -> None:
    run = Run("a b c > j > k", limits={"deadline_seconds": 1})
    run.start()
    run.end("a", "b")
    assert (run.counter, run.cell("j").tokens) == (3, 2)
    {"fail": lambda: run.fail("c"), "cancel": run.cancel, "deadline": run.deadline}[end]()
    assert (run.counter, run.cell("j").tokens) == (0, 0)
    assert all(run.cell(name).status in ("COMPLETED", "FAILED", "CANCELLED") for name in "abcjk")


# Loops


def test_the_join_of_loop_back_to_is_evaluated_once_per_pass_of_the_loop_around_it() -> None:
    """Later passes start by the loop's own token, and late outside tokens are absorbed."""
    run = Run("o > p q > a > b > z", {"a": {"join": "any"}, "b": {"loop": loop(3, "a")}, "z": {"loop": loop(3, "o")}})
    run.start()
    run.end("o", "p", "a")
    run.done("b", again=True)
    assert run.done("q") == rows("NodeStarted q; NodeCompleted q taken=a counter=1")
    run.end("a", "b")
    run.done("z", again=True)
    assert run.edges("a") == "p:undecided q:undecided"
    run.end("o")
    assert "NodeScheduled a#3" in run.done("q")


def test_an_error_edge_that_leaves_a_body_stays_undecided_until_it_is_taken_or_that_loop_is_over() -> None:
    """Once taken it stays taken, and taking it again is absorbed."""
    nodes: Json = {"e": {"on_error": {"route": ["h"]}}, "l": {"join": "any", "loop": loop(5, "a")}}
    run = Run("a > e f > l > z; h", nodes)
    run.start()
    seen = []
    for fails in (False, True, True, False):
        run.end("a", "f")
        if fails:
            run.fail("e")
        else:
            run.done("e")
        run.done("l", again=True)
        seen.append(run.edges("h"))
    assert seen == ["e:undecided", "e:taken", "e:taken", "e:taken"]
    assert run.cell("h").visit == 1
    other = Run("a > e f > l > z; h", nodes)
    other.start()
    other.end("a", "e", "f", "l")
    assert (other.edges("h"), other.nodes("h")) == ("e:dead", "h=SKIPPED")


def test_a_looping_node_that_is_skipped_evaluates_no_condition_its_loop_is_over_and_its_edges_are_dead() -> None:
    run = Run("a; b > l > z", {"a": {"branch": choose("b")}, "l": {"loop": loop(9, "b")}})
    run.start()
    run.done("a", "")
    assert (run.status, run.nodes("l z"), run.of(LoopContinued)) == ("COMPLETED", "l=SKIPPED z=SKIPPED", [])


def test_when_is_evaluated_once_per_visit_after_the_join_fired_in_every_pass_loop_back_to_included() -> None:
    """The kernel leaves it to the attempt: a visit becomes ready, and only then may it be skipped."""
    run = Run("a > b", {"a": {"when": "iteration < 1"}, "b": {"loop": loop(3, "a")}})
    run.start()
    run.done("a")
    assert run.done("b", again=True)[-1] == "put run a#2"
    run.skip("a")
    assert [(event.node, event.visit) for event in run.of(NodeSkipped)] == [("a", 2), ("b", 2)]


# Errors


def test_with_continue_no_condition_is_evaluated_over_the_error() -> None:
    """Plain edges, `break_path` and the branch's `default` are taken, all others dead; the loop does not continue."""
    nodes: Json = {
        "a": {
            "on_error": "continue",
            "loop": loop(5, break_path="b", timeout_path="t"),
            "branch": choose("r", default="d"),
        }
    }
    run = Run("a > p; b; t; r; d", nodes)
    run.start()
    assert run.fail("a")[1] == "NodeFailed a code=boom tolerated taken=p,b,d dead=t,r counter=3"
    assert run.of(LoopContinued) == []


@pytest.mark.parametrize("on_error", ["continue", {"route": ["b"]}])
def test_with_continue_and_with_route_the_output_is_the_error(on_error: Json) -> None:
    run = Run("a > b", {"a": {"on_error": on_error}})
    run.start()
    run.fail("a", "broken")
    output = run.cell("a").output
    assert isinstance(output, bytes)
    assert msgspec.json.decode(output) == {"error": {"code": "broken", "message": "broken happened"}}


@pytest.mark.parametrize("code", ["condition_failed", "template_failed"])
def test_an_error_in_a_condition_or_template_fails_the_visit_and_on_error_applies(code: str) -> None:
    run = Run("a > b; h", {"a": {"on_error": {"route": ["h"]}, "retry": {"max_attempts": 5}}})
    run.start()
    assert run.fail("a", code, called=False)[0] == (
        f"NodeFailed a attempt=0 code={code} tolerated taken=h dead=b counter=1"
    )


def test_a_nodes_retry_overrides_the_defaults_and_they_the_built_in_ones_key_by_key() -> None:
    workflow = flow(
        "a b",
        {"a": {"retry": {"multiplier": 3}}},
        defaults={"retry": {"max_attempts": 7, "multiplier": 5, "backoff_seconds": 2}},
    )
    own, other = workflow.by_id["a"].retry, workflow.by_id["b"].retry
    assert (own.max_attempts, own.multiplier, own.backoff_ms, own.jitter) == (7, 3, 2_000, 0.1)
    assert (other.max_attempts, other.multiplier, other.max_backoff_ms) == (7, 5, 60_000)


def test_a_map_fails_at_the_first_failure_beyond_tolerate() -> None:
    """Its unfinished items are cancelled, its `attempts` is the largest of any item."""
    run = Run("a", {"a": {"map": {"over": [1], "tolerate": 1}}})
    run.start()
    run.expand("a", 4)
    run.fail("a[3]", retryable=True)
    run.fail("a[0]")
    assert run.fail("a[1]")[3:6] == rows("NodeCancelled a[2]; NodeCancelled a[3]; NodeFailed a code=boom counter=0")
    run = Run("a", {"a": {"map": {"over": [1]}}})
    run.start()
    run.expand("a", 2)
    run.fail("a[0]", retryable=True)
    run.done("a[0]")
    run.fail("a[1]")
    assert run.cell("a").attempt == 2


def test_descendants_fail_over_any_edge_loop_backs_excluded_and_whatever_their_joins() -> None:
    """QUEUED, RUNNING and WAITING ones are CANCELLED instead."""
    nodes: Json = {name: {"join": "any"} for name in "qrw"} | {"x": {"branch": choose("n")}}
    run = Run("s > q r w; x > q r w; n; s > l > b", nodes | {"b": {"loop": loop(2, "l")}})
    run.start()
    run.done("s")
    run.begin("r")
    run.wait("w")
    run.fail("x")
    assert run.nodes("q r w n l b") == "q=CANCELLED r=CANCELLED w=CANCELLED n=FAILED l=CANCELLED b=CANCELLED"


def test_the_visit_that_would_exceed_max_visits_is_not_dispatched() -> None:
    run = Run("a > b", limits={"max_visits": 1})
    run.start()
    assert run.done("a")[-1] == "RunFailed node=b code=max_visits_exceeded"
    assert (run.cell("b").attempt, run.kernel.state.visits) == (0, 1)


# What is seen


def test_visits_is_the_number_of_the_latest_visit_and_attempts_are_its_own() -> None:
    """Whether it ran, was skipped or was ended by the run; 0 attempts if the handler was never called."""
    run = Run("a > b > c > z", {"b": {"when": "inputs.go"}, "c": {"loop": loop(3, "a")}})
    run.start()
    run.done("a")
    run.fail("b", retryable=True)
    run.done("b")
    assert (run.cell("b").visit, run.cell("b").attempt) == (1, 2)
    run.done("c", again=True)
    assert (run.cell("b").visit, run.cell("b").attempt) == (2, 0)
    run.done("a")
    run.skip("b")
    assert [(run.cell(name).visit, run.cell(name).attempt) for name in "bcz"] == [(2, 0), (2, 0), (1, 0)]
    ended = Run("a > b")
    ended.start()
    ended.cancel()
    assert [(ended.cell(name).visit, ended.cell(name).attempt) for name in "ab"] == [(1, 0), (1, 0)]


def test_the_output_is_that_of_the_latest_ended_visit_never_an_older_passs() -> None:
    nodes: Json = {"b": {"when": "iteration == 0"}, "c": {"loop": loop(3, "a"), "config": "{{ b.output }}"}}
    run = Run("a > b > c; a > c", nodes)
    run.start()
    run.end("a", "b")
    assert sees(run, "c", "b").visit == 1
    run.done("c", again=True)
    run.done("a")
    run.skip("b")
    assert sees(run, "c", "b") == "was skipped"


def test_a_node_that_refers_to_itself_sees_the_value_it_had_when_the_pass_began() -> None:
    run = Run("a", {"a": {"loop": loop(3), "config": "{{ a.output | default(0) }}"}})
    run.start()
    assert sees(run, "a", "a") == "has no value in the first pass"
    run.done("a", again=True, output=b"1")
    assert sees(run, "a", "a").payload == b"1"


def test_a_reference_to_an_ancestor_that_has_not_ended_in_this_pass_is_undefined_and_warned_of() -> None:
    document = {
        "name": "t",
        "nodes": [
            {"id": "a", "type": "value"},
            {"id": "b", "type": "value"},
            {
                "id": "j",
                "type": "value",
                "dependencies": ["a", "b"],
                "join": "any",
                "config": "{{ b.output | default(1) }}",
            },
        ],
    }
    compiled = compile_document(document, TYPES)
    assert [warning.code for warning in compiled.warnings] == ["early_reference"]
    run = Run(compiled.workflow)
    run.start()
    run.done("a")
    assert sees(run, "j", "b") == "has not ended"


@pytest.mark.parametrize("template", ["{{a.output.x|default(1)}}", "  {{ a.output.x | default(1) }}\n"])
def test_white_space_around_a_single_expression_does_not_matter_and_undefined_is_chainable(template: str) -> None:
    scope = Scope(nodes={"a": Absent("was skipped")}, inputs={}, run={})
    assert compile_template(template).render(scope) == 1


def test_conditions_see_inputs_ctx_run_iteration_and_except_in_when_output() -> None:
    every = "inputs.x == 1 && ctx.a.output == 1 && run.id != '' && iteration == 0"
    assert flow("a > b", {"b": {"when": every}}).by_id["b"].when
    judged = flow("a > b; c", {"b": {"branch": {"type": "conditional", "rules": [rule(every + " && output == 1")]}}})
    assert judged.by_id["b"].branch is not None
    assert refusals("a > b", {"b": {"when": "output == 1"}}) != []
    assert refusals("a > b", {"b": {"when": "item == 1", "map": {"over": [1]}}}) != []
    assert refusals("a > b", {"b": {"config": "{{ item }}"}}) != []
    assert flow("a > b", {"b": {"config": "{{ item + index }}", "map": {"over": [1]}}}).by_id["b"].map is not None
    run = Run("a")
    run.start()
    assert iteration(run.kernel.state, run.node("a")) == 0


def rule(condition: str) -> Json:
    return {"condition": condition, "next_nodes": ["c"]}


def test_default_outputs_hold_every_terminal_node_with_an_output() -> None:
    """Tolerated failures with their envelope, skipped ones absent; a run that is not COMPLETED has none."""
    run = Run("a > x y z", {"y": {"on_error": "continue"}, "z": {"when": "inputs.go"}})
    run.start()
    run.end("a", "x")
    run.fail("y")
    run.skip("z")
    assert (run.status, run.flow.terminals) == ("COMPLETED", ("x", "y", "z"))
    outputs = {name: run.cell(name).output for name in run.flow.terminals if run.cell(name).output is not None}
    assert outputs == {"x": b"1", "y": b'{"error":{"code":"boom","message":"boom happened"}}'}
    assert run.kernel.state.outputs is None


def attempt(number: int, **config: Json) -> Any:
    context = NodeContext(run_id="r", node="a", visit=1, index=-1, attempt=number, config=config, upstream={})
    try:
        return fail(context)
    except Fail as failed:
        return failed.code, failed.retryable


def test_node_type_fail_is_not_retryable_unless_it_says_so_and_counts_attempts_per_visit_and_item() -> None:
    assert attempt(1) == ("failed", False)
    assert attempt(1, kind="odd", retryable=True) == ("odd", True)
    assert attempt(2, attempts=2, value=7) == ("failed", False)
    assert attempt(3, attempts=2, value=7) == Return(7)
    run = Run("a", {"a": {"type": "fail", "map": {"over": [1]}, "loop": loop(3)}})
    run.start()
    run.expand("a", 2)
    run.fail("a[0]", retryable=True)
    assert (run.act("a[0]").attempt, run.act("a[1]").attempt) == (1, 0)


def test_sleep_outputs_null() -> None:
    run = Run("a", {"a": {"type": "sleep", "config": {"seconds": 1}}})
    run.start()
    run.wait("a")
    run.wake("a")
    assert run.cell("a").output == b"null"
