"""Blocks and nodes of workflow functions: what they become, and what runs of them do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pydantic
import pytest

import tidemill
from tidemill import task, workflow
from tidemill.kernel.compile.compiler import compile_document
from tidemill.node_types import built_in_types


@task
def double(n: int) -> int:
    return 2 * n


@task
def say(text: str) -> str:
    return text


@task
def join(left: Any, right: Any = None) -> Any:
    return [left, right]


@task(retries=0)
def odd_only(n: int) -> int:
    if n % 2 == 0:
        raise tidemill.Fail("even", f"{n} is even")
    return n


def run(flow: Any, /, **inputs: Any) -> Any:
    with tidemill.open("memory://") as mill:
        result = mill.run(flow, **inputs)
    assert result.error is None, result.error
    return result


def statuses(result: Any) -> dict[str, str]:
    return {name: node["status"] for name, node in result.nodes.items()}


def problems(flow: Any) -> list[str]:
    with pytest.raises(tidemill.Rejected) as refused:
        flow.document()
    return [problem.code for problem in refused.value.problems]


# Conditions.


@workflow
def branch(n: int) -> Any:
    twice = double(n)
    with tidemill.when(twice > 10):
        large = say(f"{twice} is large")
        shown = join(large, n)
    with tidemill.otherwise():
        small = say("small")
    return tidemill.default(shown, small)


def test_when_and_otherwise() -> None:
    nodes = {node["id"]: node for node in branch.document()["nodes"]}
    assert nodes["say"]["when"] == "ctx.double.output > 10"
    assert "when" not in nodes["join"], "it is skipped with what it needs"
    assert nodes["say_2"]["when"] == "!(ctx.double.output > 10)"
    assert run(branch, n=6).outputs == ["12 is large", 6]
    few = run(branch, n=1)
    assert few.outputs == "small"
    assert statuses(few) == {"double": "COMPLETED", "say": "SKIPPED", "join": "SKIPPED", "say_2": "COMPLETED"}


def test_a_step_is_skipped_with_what_it_needs_and_merges_with_a_default() -> None:
    @workflow
    def merge(n: int) -> Any:
        twice = double(n)
        with tidemill.when(n > 3):
            more = double(twice)
            inner = join(more, twice)
        return {"inner": tidemill.default(inner, None), "end": join(tidemill.default(more, 0), twice)}

    nodes = {node["id"]: node for node in merge.document()["nodes"]}
    assert nodes["join"]["join"] == "strict"
    assert run(merge, n=5).outputs == {"inner": [20, 10], "end": [20, 10]}
    assert run(merge, n=1).outputs == {"inner": None, "end": [0, 2]}


def test_a_step_whose_values_may_all_be_missing_still_runs() -> None:
    @workflow
    def anyway(n: int, vip: bool) -> Any:
        with tidemill.when(vip):
            gift = say("chocolates")
        return join(tidemill.default(gift, None), n)

    assert run(anyway, n=1, vip=False).outputs == [None, 1]
    assert run(anyway, n=1, vip=True).outputs == ["chocolates", 1]

    @workflow
    def beside(n: int) -> Any:
        first = double(n)
        with tidemill.when(n > 3):
            gift = say("x")
        return join(tidemill.default(gift, None), first)

    assert run(beside, n=1).outputs == [None, 2]


def test_the_first_of_many_that_is_not_missing() -> None:
    @workflow
    def first(n: int) -> Any:
        with tidemill.when(n == 1):
            one = double(1)
        with tidemill.when(n <= 2):
            two = double(2)
        with tidemill.when(n <= 3):
            three = double(3)
        return [tidemill.default(one, two, three, 0), say(f"{tidemill.default(one, two, three, 0)}")]

    assert [run(first, n=n).outputs for n in range(1, 5)] == [[2, "2"], [4, "4"], [6, "6"], [0, "0"]]


def test_a_decimal_behind_a_default_a_form_or_an_input_is_not_compared() -> None:
    class Form(pydantic.BaseModel):
        amount: Decimal

    @workflow
    def defaulted(n: int) -> Any:
        with tidemill.when(n > 3):
            found = join(1)
        with tidemill.when(tidemill.default(found, Decimal(2)) > 1):
            say("x")

    @workflow
    def filled(n: int) -> Any:
        ok = tidemill.approve("x", form=Form)
        with tidemill.when(ok.form.amount > n):
            say("x")

    @workflow
    def given(price: Decimal) -> Any:
        with tidemill.loop(max_iterations=3) as again:
            found = join(1)
            again.until(found > price)

    assert [problems(each) for each in (defaulted, filled, given)] == [["condition_operand"]] * 3


def test_nested_conditions() -> None:
    @workflow
    def nested(n: int) -> Any:
        with tidemill.when(n > 3):
            with tidemill.when(n > 10):
                huge = say("huge")
            with tidemill.otherwise():
                large = say("large")
            size = say(tidemill.default(huge, large))
        with tidemill.otherwise():
            small = say("small")
        return tidemill.default(size, small)

    assert [run(nested, n=n).outputs for n in (1, 5, 50)] == ["small", "large", "huge"]


def test_conditions_of_many_kinds() -> None:
    @workflow
    def kinds(n: int, name: str) -> Any:
        twice = double(n)
        found = []
        for condition in (
            (twice > 2) & (name == "a"),
            (n == 1) | tidemill.not_(name == "a"),
            "inputs.n > 1 && ctx.double.output < 10",
            {"type": "jsonpath", "query": "$.double.output", "operator": "==", "value": 4, "source": "ctx"},
        ):
            with tidemill.when(condition):
                found.append(say("yes"))
        return [tidemill.default(each, "no") for each in found]

    assert run(kinds, n=2, name="a").outputs == ["yes", "no", "yes", "yes"]
    assert run(kinds, n=1, name="b").outputs == ["no", "yes", "no", "no"]


def test_a_value_of_a_block_is_not_used_outside_without_a_default() -> None:
    @workflow
    def leak(n: int) -> Any:
        with tidemill.when(n > 3):
            more = double(n)
        with tidemill.when(more > 1):
            say("x")
        double(more)
        return more

    assert problems(leak) == ["value_may_be_missing"] * 3


def test_otherwise_follows_its_when() -> None:
    @workflow
    def alone(n: int) -> None:
        with tidemill.when(n > 3):
            double(n)
        double(n)
        with tidemill.otherwise():
            double(n)

    @workflow
    def twice(n: int) -> None:
        with tidemill.when(n > 3):
            double(n)
        with tidemill.otherwise():
            double(n)
        with tidemill.otherwise():
            double(n)

    assert problems(alone) == problems(twice) == ["otherwise_alone"]


# Loops.


def test_a_loop_of_one_task() -> None:
    @task
    def grow(before: int | None) -> int:
        return (before or 0) + 3

    @workflow
    def growing(limit: int) -> Any:
        with tidemill.loop(max_iterations=10) as again:
            size = grow(again.previous(grow))
            again.until(size >= limit)
        return size

    node = growing.document()["nodes"][0]
    assert node["loop"] == {"condition": "!(output >= inputs.limit)", "max_iterations": 10, "loop_back_to": "grow"}
    result = run(growing, limit=7)
    assert (result.outputs, result.nodes["grow"]["visits"]) == (9, 3)


@pytest.mark.parametrize(
    ("first", "found"),
    [(lambda text, _: text, "tides"), (lambda _, made: made, "Tides"), (lambda text, _: f"{text}!", "tide!s")],
)
def test_the_first_value_of_a_loop_may_be_a_result(first: Any, found: str) -> None:
    @task
    def extended(text: str) -> str:
        return text + "s"

    @task
    def large(text: str) -> str:
        return text.title()

    @workflow
    def extending(text: str) -> str:
        made = large(text)
        with tidemill.loop(max_iterations=1) as again:
            longer = extended(again.previous(extended, first(text, made)))
            again.until(longer != "")
        return longer

    assert run(extending, text="tide").outputs == found


def test_a_loop_of_several_tasks_and_what_follows_it() -> None:
    @workflow
    def drafting(topic: str) -> Any:
        start = say(f"about {topic}")
        with tidemill.loop(max_iterations=5) as again:
            left = double(tidemill.template("{{ iteration }}"))
            right = say(start)
            with tidemill.when(left > 2):
                note = say("almost")
            both = join(left, right)
            again.repeat_while(left < 4)
        return {"both": join(both, left), "note": tidemill.default(note, None)}

    result = run(drafting, topic="tides")
    assert result.outputs == {"both": [[4, "about tides"], 4], "note": "almost"}
    assert result.nodes["join"]["visits"] == 3


def test_a_loop_that_is_used_up() -> None:
    @workflow
    def endless(n: int) -> Any:
        with tidemill.loop(max_iterations=2) as again:
            value = double(n)
            again.until(value > 100)
        with tidemill.on_exhausted(again):
            sorry = say("gave up")
        done = say(f"reached {value}")
        return tidemill.default(done, sorry)

    assert run(endless, n=1).outputs == "gave up"
    assert run(endless, n=60).outputs == "reached 120"

    @workflow
    def asked(n: int) -> Any:
        with tidemill.loop(max_iterations=2) as again:
            value = double(n)
            again.until(value > 100)
        with tidemill.on_exhausted(again):
            sorry = say("gave up")
        return tidemill.default(value, sorry)

    # The result of the last pass is there as well, and is not the one that is meant.
    assert run(asked, n=1).outputs == "gave up"
    assert run(asked, n=60).outputs == 120


def test_a_loop_counts_its_passes() -> None:
    @workflow
    def counting() -> Any:
        with tidemill.loop(max_iterations=9) as again:
            value = double(again.iteration)
            again.until(value >= 6)
        with tidemill.on_exhausted(again):
            say("never")
        return value

    result = run(counting)
    assert (result.outputs, result.nodes["double"]["visits"], result.warnings) == (6, 4, ())

    @workflow
    def elsewhere() -> Any:
        with tidemill.loop(max_iterations=2) as outer:
            with tidemill.loop(max_iterations=2) as inner:
                value = double(outer.iteration)
                inner.until(value > 1)
            outer.until(value > 1)
        return value

    assert problems(elsewhere) == ["loop_incomplete"]


def test_nested_loops() -> None:
    @workflow
    def nested() -> Any:
        with tidemill.loop(max_iterations=2) as outer:
            first = say("a")
            with tidemill.loop(max_iterations=3) as inner:
                second = join(first)
                inner.repeat_while("iteration < 2")
            last = join(second)
            outer.repeat_while("iteration < 1")
        return last

    result = run(nested)
    assert result.outputs == [["a", None], None]
    assert {name: node["visits"] for name, node in result.nodes.items() if name in ("say", "join", "join_2")} == {
        "say": 2,
        "join": 6,
        "join_2": 2,
    }


@pytest.mark.parametrize("conditions", [0, 2])
def test_a_loop_has_one_condition(conditions: int) -> None:
    @workflow
    def wrong(n: int) -> None:
        with tidemill.loop(max_iterations=2) as again:
            double(n)
            for _ in range(conditions):
                again.until(n > 1)

    assert problems(wrong) == ["loop_incomplete"]


def test_an_empty_loop_is_refused() -> None:
    @workflow
    def empty(n: int) -> None:
        double(n)
        with tidemill.loop(max_iterations=2) as again:
            again.until(n > 1)

    assert problems(empty) == ["loop_incomplete"]


# Errors.


def test_an_error_can_take_another_way() -> None:
    @workflow
    def handled(n: int) -> Any:
        odd = odd_only(n)
        with tidemill.on_error(odd) as error:
            sorry = say(f"sorry: {error.message}")
            more = join(sorry, error.code)
        fine = double(odd)
        return tidemill.default(fine, more)

    node = handled.document()["nodes"][0]
    assert node["on_error"] == {"route": ["say", "join"]}
    assert run(handled, n=3).outputs == 6
    failed = run(handled, n=2)
    assert failed.outputs == ["sorry: 2 is even", "even"]
    assert statuses(failed)["double"] == "SKIPPED"


def test_a_default_stands_in_for_a_handled_failure() -> None:
    @workflow
    def either(n: int) -> Any:
        odd = odd_only(n)
        with tidemill.on_error(odd):
            even = say("even")
        with tidemill.when(tidemill.default(odd, 0) > 2):
            large = say("large")
        return [tidemill.default(odd, even), tidemill.default(large, None)]

    assert run(either, n=3).outputs == [3, "large"]
    assert run(either, n=2).outputs == ["even", None]

    @workflow
    def unsaid(n: int) -> Any:
        odd = odd_only(n)
        with tidemill.on_error(odd):
            say("even")
        return odd

    assert problems(unsaid) == ["value_may_be_missing"]


def test_an_error_is_handled_by_one_task_and_the_rest_goes_on() -> None:
    @workflow
    def tolerant(n: int) -> Any:
        odd = odd_only.options(on_error="continue")(n)
        return join(odd, double(n))

    envelope, twice = run(tolerant, n=2).outputs
    assert (envelope["error"]["code"], twice) == ("even", 4)


def test_blocks_are_given_results() -> None:
    for block in (tidemill.on_error, tidemill.on_reject):

        def body(n: int) -> None:
            with block(n):  # noqa: B023 - called at once
                double(n)

        assert problems(workflow(body)) == ["result_expected"]

    def not_an_approval(n: int) -> None:
        with tidemill.on_reject(double(n)):  # type: ignore[arg-type]
            double(n)

    assert problems(workflow(not_an_approval)) == ["result_expected"]


# People.


@dataclass
class Account:
    number: str


@workflow
def payment(amount: int) -> Any:
    double(amount)
    ok = tidemill.approve(f"Pay {amount}?", form=Account, approvers=["user:ada", "role:finance"], timeout=3600)
    with tidemill.on_reject(ok):
        told = say(f"{ok.decided_by} says no: {ok.comments}")
    paid = join(amount, ok.form.number)
    sent = say("sent")
    return {
        "paid": tidemill.default(paid, None),
        "told": tidemill.default(told, None),
        "sent": tidemill.default(sent, ""),
    }


def decide(flow: Any, verb: Any, **inputs: Any) -> Any:
    with tidemill.open("memory://") as mill:
        run_id = mill.start(flow, **inputs)
        asked = (event for event in mill.follow(run_id) if event["type"] == "ApprovalRequested")
        event = next(asked)
        before = statuses(mill.show(run_id))
        form = {"number": "A1"} if verb == "approve" and flow is payment else None
        mill.decide(run_id, event["node"], verb, actor="ada", comments="why not", form=form)
        result = mill.result(run_id)
    assert result.error is None, result.error
    return before, result


def test_an_approval_is_a_gate() -> None:
    nodes = {node["id"]: node for node in payment.document()["nodes"]}
    assert nodes["approve"]["dependencies"] == ["double"]
    assert nodes["approve"]["config"]["title"] == "Pay {{ inputs.amount }}?"
    assert nodes["approve"]["config"]["rejection_path"] == ["say"]
    assert nodes["approve"]["config"]["form"]["required"] == ["number"]
    before, result = decide(payment, "approve", amount=9)
    assert before["double"] == "COMPLETED" and before["say_2"] == before["join"] == "PENDING"
    assert result.outputs == {"paid": [9, "A1"], "told": None, "sent": "sent"}


@pytest.mark.parametrize(("verb", "expected"), [("approve", "paid, told"), ("reject", "no, told")])
def test_a_step_after_both_paths_of_an_approval_runs(verb: Any, expected: str) -> None:
    @workflow
    def settled() -> Any:
        ok = tidemill.approve("Pay?")
        paid = say.after(ok)("paid")
        with tidemill.on_reject(ok):
            told = say("no")
        return say(f"{tidemill.default(paid, told)}, told")

    with tidemill.open("memory://") as mill:
        run_id = mill.start(settled)
        next(event for event in mill.follow(run_id) if event["type"] == "ApprovalRequested")
        mill.decide(run_id, "approve", verb, actor="ada")
        assert mill.result(run_id, timeout=20).output == expected


class Invoice(pydantic.BaseModel):
    number: str
    amount: int


@workflow
def invoice() -> Any:
    ok = tidemill.approve("Pay?", form=Invoice)
    return join(ok.form.amount, ok.form.number)


def test_the_form_of_a_model_is_checked() -> None:
    with tidemill.open("memory://") as mill:
        run_id = mill.start(invoice)
        next(event for event in mill.follow(run_id) if event["type"] == "ApprovalRequested")
        with pytest.raises(tidemill.Rejected) as refusal:
            mill.decide(run_id, "approve", "approve", actor="ada", form={"amount": "x"})
        assert len(refusal.value.problems) == 2
        mill.decide(run_id, "approve", "approve", actor="ada", form=Invoice(number="A", amount=3))
        assert mill.result(run_id).output == [3, "A"]


def test_a_rejection_takes_its_way_and_nothing_else_runs() -> None:
    _, result = decide(payment, "reject", amount=9)
    assert result.outputs == {"paid": None, "told": "user:ada says no: why not", "sent": ""}
    assert statuses(result)["say_2"] == statuses(result)["join"] == "SKIPPED"


def test_an_approval_inside_a_condition_holds_back_what_follows() -> None:
    @workflow
    def guarded(amount: int) -> Any:
        with tidemill.when(amount > 100):
            ok = tidemill.approve("Really?")
            with tidemill.on_reject(ok):
                say("stopped")
        return {"paid": tidemill.default(double(amount), None)}

    before, result = decide(guarded, "approve", amount=500)
    assert before["double"] == "PENDING" and result.outputs == {"paid": 1000}
    _, result = decide(guarded, "reject", amount=500)
    assert result.outputs == {"paid": None} and statuses(result)["double"] == "SKIPPED"
    assert run(guarded, amount=5).outputs == {"paid": 10}


def test_requested_changes_and_order_without_data() -> None:
    @workflow
    def article() -> Any:
        draft = say("draft")
        ok = tidemill.approve("Print?", after=draft, gate=False)
        other = say("meanwhile")
        with tidemill.on_changes(ok):
            again = join(draft, ok.comments)
        printed = say.after(ok)("printed")
        return [other, tidemill.default(printed, again)]

    before, result = decide(article, "changes")
    assert before["say_2"] != "PENDING"
    assert result.outputs == ["meanwhile", ["draft", "why not"]]
    assert decide(article, "approve")[1].outputs == ["meanwhile", "printed"]


def test_timers_and_signals_are_gates_too() -> None:
    @workflow
    def paused(n: int) -> Any:
        before = double(n)
        tidemill.sleep(0.001)
        news = tidemill.signal("go")
        after = say(f"{news.text}")
        return [before, after]

    nodes = {node["id"]: node.get("dependencies", []) for node in paused.document()["nodes"]}
    assert nodes == {"double": [], "sleep": ["double"], "go": ["sleep"], "say": ["go"]}
    with tidemill.open("memory://") as mill:
        run_id = mill.start(paused, n=1)
        mill.signal(run_id, "go", {"text": "hi"})
        assert mill.result(run_id).outputs == [2, "hi"]


# Other nodes.


def test_nodes_of_any_type() -> None:
    @workflow
    def raw(n: int) -> Any:
        twice = double(n)
        shown = tidemill.node("value", {"n": twice, "text": "{{ inputs.n }} and {{ double.output }}"}, id="shown")
        late = tidemill.node("value", "late", after=[shown, "double"], timeout=5, when="inputs.n > 1", priority=3)
        mapped = tidemill.node("value", "{{ item + 1 }}", map={"over": [1, n], "tolerate": 1})
        return [shown.text, tidemill.default(late, None), mapped, tidemill.template("{{ double.output | string }}")]

    document = raw.document()
    assert document["nodes"][2] == {
        "id": "value",
        "type": "value",
        "dependencies": ["shown", "double"],
        "config": "late",
        "when": "inputs.n > 1",
        "priority": 3,
        "timeout_seconds": 5,
    }
    assert run(raw, n=3).outputs == ["3 and 6", "late", [2, 4], "6"]


def test_a_gate_waits_for_a_loop_that_has_an_exhausted_block() -> None:
    """What follows the loop is skipped if it has used up its passes, as after `on_error`."""

    @workflow
    def gated(n: int) -> Any:
        with tidemill.loop(max_iterations=3) as again:
            last = double(again.iteration)
            again.until(last >= n)
        with tidemill.on_exhausted(again):
            gave_up = double(100)
        tidemill.sleep(0)
        return tidemill.default(double(n), gave_up)

    with tidemill.open("memory://") as mill:
        assert [mill.run(gated, n=n).outputs for n in (2, 50)] == [4, 200]


def test_what_cannot_be_said() -> None:
    @workflow
    def wrong(n: int) -> Any:
        join(n > 3)
        join(object())
        join.after(3)(1)
        return tidemill.default(tidemill.default(double(n), 1), 2)

    assert problems(wrong) == [
        "argument_not_json",
        "argument_not_json",
        "after_invalid",
        "default_twice",
    ]


@workflow
def nested_defaults(n: int) -> Any:
    with tidemill.when(n > 5):
        large = double(n)
    with tidemill.when(n > 3):
        medium = odd_only(n)
    with tidemill.when(n > 1):
        small = say("small")
    nearest: Any = tidemill.default(large, medium)
    return [
        tidemill.default(tidemill.default(nearest, small), "none"),
        tidemill.default(nearest, tidemill.default(small, f"only {n}")),
        join(tidemill.default(tidemill.default(nearest, small), f"{n} is none")),
    ]


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (7, [14, 14, [14, None]]),
        (5, [5, 5, [5, None]]),
        (2, ["small", "small", ["small", None]]),
        (1, ["none", "only 1", ["1 is none", None]]),
    ],
)
def test_defaults_may_be_nested_on_both_sides(n: int, expected: list[Any]) -> None:
    assert run(nested_defaults, n=n).output == expected


def test_a_nested_default_stands_in_for_a_failed_task_and_for_a_loop_that_gave_up() -> None:
    @workflow
    def failed(n: int) -> Any:
        paid = odd_only(n)
        with tidemill.on_error(paid):
            with tidemill.when(n > 3):
                large = say("large")
            other = say("other")
        return tidemill.default(tidemill.default(paid, large), other)

    assert [run(failed, n=n).output for n in (3, 4, 2)] == [3, "large", "other"]

    @workflow
    def given_up(n: int) -> Any:
        with tidemill.when(n > 9):
            first = double(n)
        with tidemill.loop(max_iterations=2) as again:
            found = double(n)
            again.until(found > 9)
        with tidemill.on_exhausted(again):
            sorry = say("sorry")
        return tidemill.default(tidemill.default(first, found), sorry)

    assert [run(given_up, n=n).output for n in (10, 5, 1)] == [20, 10, "sorry"]


@pytest.mark.parametrize(
    "use",
    [
        lambda: tidemill.when("1 == 1").__enter__(),
        lambda: tidemill.loop(max_iterations=1).__enter__(),
        lambda: tidemill.approve("?"),
        lambda: tidemill.node("value"),
        lambda: tidemill.sleep(1),
        lambda: tidemill.template("x"),
    ],
)
def test_outside_of_a_workflow_function(use: Callable[[], Any]) -> None:
    with pytest.raises(tidemill.Rejected, match="outside_workflow"):
        use()


def test_every_workflow_of_this_page_compiles() -> None:
    for flow in (branch, payment):
        assert compile_document(flow.document(), built_in_types()).warnings == ()


def test_a_loop_may_wait_between_its_passes() -> None:
    @tidemill.task
    def poll(n: int = 0) -> dict[str, int]:
        return {"n": n}

    @tidemill.workflow
    def polling() -> None:
        with tidemill.loop(max_iterations=3, delay=2.5) as again:
            again.until(poll()["n"] > 1)

    (loop,) = [node["loop"] for node in polling.document()["nodes"] if "loop" in node]
    assert loop["delay_seconds"] == 2.5
    with tidemill.open("memory://") as mill:
        mill.publish(polling)


def test_the_wait_between_passes_may_be_a_result() -> None:
    @workflow
    def polling(n: int, seconds: float) -> Any:
        pause = double(n)
        with tidemill.loop(max_iterations=3, delay=pause) as again:
            with tidemill.loop(max_iterations=3, delay=seconds) as inner:
                found = double(inner.iteration)
                inner.until(found >= 2)
            again.until(found >= 2)
        return found

    loops = [node["loop"] for node in polling.document()["nodes"] if "loop" in node]
    assert [loop["delay_seconds"] for loop in loops] == ["{{ inputs.seconds }}", "{{ double.output }}"]
    assert run(polling, n=0, seconds=0.01).output == 2


def test_the_number_of_the_pass_in_a_condition() -> None:
    @workflow
    def passes(n: int) -> Any:
        with tidemill.loop(max_iterations=9) as again:
            found = double(again.iteration)
            with tidemill.when(again.iteration > 1):
                late = say(f"pass {again.iteration}")
            again.until(again.iteration >= 2)
        return [found, tidemill.default(late, "never")]

    assert run(passes, n=1).output == [4, "pass 2"]


def test_tuples_are_lists() -> None:
    @dataclass
    class Pair:
        both: tuple[int, int]

    @task
    def swap(pair: tuple[int, int]) -> tuple[int, int]:
        return pair[1], pair[0]

    @workflow
    def tuples(n: int, bounds: tuple[int, int] = (7, 8)) -> tuple[Any, Any, Pair, Any]:
        return swap((double(n), 1)), (n, (2,)), Pair((double(n), 3)), bounds

    assert run(tuples, n=2).output == [[1, 4], [2, [2]], {"both": [4, 3]}, [7, 8]]
