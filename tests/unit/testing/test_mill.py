"""An engine in memory under a clock that the test moves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

import tidemill
from tests.fixtures.kernel.authoring import document, node
from tidemill import testing
from tidemill.testing import SimulatedMill, StillWaiting, in_turn
from tidemill.testing.mill import BEGIN, CrashPoint

Opens = Callable[..., SimulatedMill]

ASK = document(
    node("ask", type="human", config={"title": "Refund?", "timeout_hours": 4}),
    node("pay", "ask", type="python", config={"function": "pay", "args": {"amount": "{{ inputs.amount }}"}}),
)


def calls(name: str, *dependencies: str, function: str | None = None, **more: Any) -> dict[str, Any]:
    return node(name, *dependencies, type="python", config={"function": function or name}, **more)


def test_a_time_out_of_four_hours(mill: SimulatedMill) -> None:
    run = mill.start(ASK, {"amount": 12})
    assert mill.show(run).waiting_for == ("human (ask)",)
    mill.clock.advance(hours=3, minutes=59)
    assert mill.show(run).status == "RUNNING"
    mill.clock.advance(minutes=2)
    assert mill.show(run).error["code"] == "approval_expired"
    assert timedelta(hours=4) < mill.clock.now - BEGIN < timedelta(hours=4, minutes=2)


def test_a_simulation_tells_its_time(open_mill: Opens) -> None:
    mill = open_mill()
    assert repr(mill) == f"<SimulatedMill open, {BEGIN.isoformat()}>"
    mill.clock.advance(hours=1)
    mill.close()
    assert repr(mill) == f"<SimulatedMill closed, {(BEGIN + timedelta(hours=1)).isoformat()}>"


def test_a_decision_in_time(mill: SimulatedMill) -> None:
    mill.fake("pay", lambda amount: {"paid": amount})
    run = mill.start(ASK, {"amount": 12})
    mill.decide(run, "ask", "approve", actor="ada")
    assert mill.show(run).outputs == {"pay": {"paid": 12}}
    assert mill.clock.now - BEGIN < timedelta(minutes=1)


def test_the_clock_jumps_to_the_next_timer(mill: SimulatedMill) -> None:
    naps = document(
        node("a", type="sleep", config={"seconds": 3_000_000}), node("b", "a", type="sleep", config={"seconds": 5})
    )
    assert mill.run(naps).status == "COMPLETED"
    assert 3_000_005 <= (mill.clock.now - BEGIN).total_seconds() < 3_000_010


def test_a_run_that_time_does_not_end_is_named(mill: SimulatedMill) -> None:
    run = mill.start(document(node("go", type="signal")))
    with pytest.raises(StillWaiting, match=rf"run {run} is RUNNING and waits for signal \(go\)"):
        mill.result(run)
    assert mill.awaited_signals() == [(run, "go")]
    mill.signal(run, "go", {"n": 1})
    assert mill.result(run).outputs == {"go": {"n": 1}}


def test_the_clock_begins_where_the_test_says(open_mill: Opens) -> None:
    mill = open_mill(begin=datetime(2031, 5, 1, tzinfo=UTC))
    run = mill.run(document(node("a", type="wait_until", config={"at": "2031-05-03T00:00:00Z"})))
    assert run.status == "COMPLETED"
    assert mill.clock.now.date().isoformat() == "2031-05-03"
    with pytest.raises(ValueError, match="back"):
        mill.clock.advance(timedelta(seconds=-1))


# Fakes and functions


def test_fakes_by_node_by_type_and_by_workflow(open_mill: Opens) -> None:
    get = {"url": "https://example.com"}
    nodes = [node(name, type="http", config=get) for name in ("a", "b", "c")]
    mill = open_mill(fakes={"a": {"status": 201}, "test.b": lambda context: {"url": context.config["url"]}, "http": {}})
    assert mill.run(document(*nodes)).outputs == {"a": {"status": 201}, "b": get, "c": {}}


def test_without_a_fake_a_node_returns_what_its_schema_allows_and_its_readers_need(mill: SimulatedMill) -> None:
    fetch = node("fetch", type="http", config={"url": "https://example.com"})
    total = node("total", "fetch", config="{{ fetch.status }} {{ fetch.body.total }}")
    assert mill.run(document(fetch, total)).outputs == {"total": "200 1"}


def test_models_answer_what_their_config_allows(mill: SimulatedMill) -> None:
    """Also where `on_error` makes the workflow read something that only a failure has."""
    schema = {
        "type": "object",
        "properties": {"size": {"enum": ["low", "high"]}, "title": {"type": "string"}},
        "required": ["size", "title"],
        "additionalProperties": False,
    }
    model = {"model": "m", "prompt": "hello"}
    flow = document(
        node("ask", type="llm", config={**model, "schema": schema}, on_error={"route": ["no"]}),
        node("no", "ask", config="{{ ask.error.message }}"),
        node("again", "ask", type="llm", config={**model, "schema": {"type": "integer", "minimum": 7}}),
        node("label", "again", type="classify", config={"model": "m", "text": "x", "labels": {"bug": "", "wish": ""}}),
        node("both", "label", type="classify", config={"model": "m", "text": "x", "labels": ["a", "b"], "multi": True}),
        node("act", "both", type="agent", config={**model, "output_schema": schema}),
        outputs={
            "ask": "{{ ask.value.size }} {{ ask.text }}",
            "again": "{{ again.value }}",
            "label": "{{ label.label }} {{ both.labels[0] }} {{ both.confidences.a }}",
            "act": "{{ act.output.value.title }}",
        },
    )
    run = mill.run(flow)
    assert run.error is None and run.outputs == {
        "ask": 'low {"size":"low","title":"fake"}',
        "again": 7,
        "label": "bug a 1.0",
        "act": "fake",
    }


def test_failures_in_turn_are_retried(mill: SimulatedMill) -> None:
    busy = tidemill.Fail("busy", "later", retryable=True, retry_after_ms=3_600_000)
    mill.fake("a", in_turn(busy, ConnectionError("no"), {"id": 7}))
    run = mill.run(document(calls("a")))
    assert (run.outputs, run.nodes["a"]["attempts"]) == ({"a": {"id": 7}}, 3)
    assert mill.clock.now - BEGIN > timedelta(hours=1)
    assert [effect.outcome for effect in mill.effects("a")] == ["failed", "failed", "returned"]


def test_functions_are_called_in_threads_in_the_loop_and_as_generators(open_mill: Opens) -> None:
    def plain() -> int:
        return asyncio.run(later())

    async def later() -> int:
        await asyncio.sleep(0)
        return 2

    def parts() -> Any:
        yield "a"
        yield "b"

    mill = open_mill(functions=[plain, later, parts])
    outputs = mill.run(document(calls("plain"), calls("later"), calls("parts"))).outputs
    assert outputs == {"plain": 2, "later": 2, "parts": "ab"}


def test_a_blocking_function_keeps_checkpoints_over_a_crash(mill: SimulatedMill) -> None:
    begun: list[Any] = []

    def work(context: tidemill.NodeContext) -> str:
        begun.append(context.last_checkpoint)
        context.checkpoint({"at": len(begun)})  # type: ignore[misc,unused-coroutine]
        return "done"

    mill.register(work)
    mill.crash("after effect", node="work")
    assert mill.run(document(calls("work"))).outputs == {"work": "done"}
    assert begun == [None, {"at": 1}]


def test_an_async_function_sleeps_in_simulated_time(mill: SimulatedMill) -> None:
    async def slow() -> str:
        await asyncio.sleep(900)
        return "late"

    mill.register(slow)
    assert mill.run(document(calls("slow"))).outputs == {"slow": "late"}
    assert timedelta(minutes=15) <= mill.clock.now - BEGIN < timedelta(minutes=16)


def test_secrets_have_values(open_mill: Opens) -> None:
    config = {"url": "https://example.com", "headers": {"X-Key": "{{ secrets.KEY }}"}}
    seen: list[str] = []
    fakes = {"http": lambda context: seen.append(context.config["headers"]["X-Key"])}
    for secrets in ({}, {"KEY": "given-value"}):
        open_mill(fakes=fakes, secrets=secrets).run(document(node("a", type="http", config=config)))
    assert seen == ["secret-KEY", "given-value"]


def test_granted_types_need_no_grant(mill: SimulatedMill) -> None:
    run = mill.run(document(node("a", type="shell", config={"argv": ["rm", "-rf", "/"]})))
    assert run.status == "COMPLETED", run.error


# Crashes


@pytest.mark.parametrize("point", get_args(CrashPoint))
def test_a_crash_at_every_point(open_mill: Opens, point: CrashPoint) -> None:
    mill = open_mill(fakes={"python": "done"})
    mill.crash(point)
    run = mill.run(document(calls("a"), calls("b", "a")))
    assert run.outputs == {"b": "done"}
    assert [f"{each.when} {each.kind}" for each in mill.crashes] == [point]
    assert mill.complaints() == []
    assert len(mill.effects()) == (3 if point in ("before commit", "after effect") else 2)


def test_the_nth_time_of_a_node(mill: SimulatedMill) -> None:
    mill.fake("b", 1)
    mill.crash("before effect", node="b", nth=2)
    work = node("b", "a", type="python", config={"function": "b"}, map={"over": "{{ a.output }}", "max_parallel": 1})
    assert mill.run(document(node("a", config=[1, 2, 3]), work)).outputs == {"b": [1, 1, 1]}
    assert len(mill.crashes) == 1 and "/1/1" in mill.crashes[0].about


def test_a_fake_of_a_node_that_is_not_there_fails_the_test() -> None:
    with testing.open(functions={"charge": lambda: 1}) as mill:
        mill.fake("charge", 7)
        mill.fake("http", {})
        assert mill.run(document(calls("charge"))).status == "COMPLETED"
    mill = testing.open(functions={"charge": lambda: 1})
    mill.fake("chrage", 7)
    mill.run(document(calls("charge")))
    with pytest.raises(AssertionError, match="no node chrage to fake: did you mean `charge`"):
        mill.close()


def test_nodes_of_workflows_that_it_starts_can_be_faked() -> None:
    for fakes in ({"doubled": 99}, {"doubled-twice.doubled": 99}):
        with testing.open(fakes=fakes) as mill:
            assert mill.run(outer, n=1).outputs == 99


def test_time_is_given_as_numbers_or_a_timedelta(mill: SimulatedMill) -> None:
    mill.clock.advance(timedelta(hours=1))
    mill.clock.advance(hours=0)
    wrong: list[dict[str, Any]] = [{}, {"by": "4h"}, {"by": 4}, {"hours": "4"}]
    for given in wrong:
        with pytest.raises(TypeError, match=r"clock.advance\(hours=4\)"):
            mill.clock.advance(**given)
    slow = document(node("a", type="sleep", config={"seconds": 60}))
    assert mill.run(slow, timeout=timedelta(minutes=2)).status == "COMPLETED"
    with pytest.raises(StillWaiting, match="not ended after 30 seconds"):
        mill.run(slow, timeout=30)
    with pytest.raises(tidemill.Rejected, match="timeout_invalid"):
        mill.run(slow, timeout="1")  # type: ignore[arg-type]


def test_a_crash_that_never_happens_fails_the_test() -> None:
    mill = testing.open()
    mill.crash("after effect", node="b")
    mill.run(document(node("a")))
    with pytest.raises(AssertionError, match="killed after effect of b"):
        mill.close()
    mill = testing.open()
    mill.crash("before send", node="a", nth=2)
    mill.run(document(node("a", type="http", config={"url": "https://x.example"})))
    with pytest.raises(AssertionError, match="before send of a: the boundary was reached only 1 of 2 times"):
        mill.close()
    mill = testing.open()
    mill.crash("after effect", node="bb")
    mill.run(document(node("b")))
    with pytest.raises(AssertionError, match="never reached; there is no node bb: did you mean"):
        mill.close()
    with pytest.raises(ValueError, match="not a boundary"), testing.open() as mill:
        mill.crash("after lunch")  # type: ignore[arg-type]


def test_killed_and_started_by_hand(mill: SimulatedMill) -> None:
    mill.fake("a", 1)
    mill.kill()
    run = mill.start(document(calls("a")))
    with pytest.raises(StillWaiting):
        mill.result(run)
    mill.restart()
    assert mill.result(run).outputs == {"a": 1}


def test_the_same_simulation_twice_is_the_same(open_mill: Opens) -> None:
    def history() -> tuple[list[str], datetime]:
        mill = open_mill(functions={"b": lambda: 1, "c": lambda: 2})
        mill.crash("after effect", node="c")
        mill.run(document(node("a"), calls("b", "a"), calls("c", "a"), node("d", "b", "c")), key="r")
        return [str(each) for each in mill.boundaries], mill.clock.now

    assert history() == history()


def test_a_function_that_is_not_there_is_asked_for(mill: SimulatedMill) -> None:
    with pytest.raises(StillWaiting, match=r"waits for a worker for a: none that runs can call it; give `functions`"):
        mill.run(document(node("a", type="python", config={"function": "nowhere_at_all:f"})))


def test_a_fake_with_other_parameters_is_named() -> None:
    with testing.open(fakes={doubled: lambda m: m}) as mill:
        error = mill.run(twice, n=1).error
    assert error["message"].startswith("the fake of doubled: args do not match")


def test_scripted_models_answer(mill: SimulatedMill) -> None:
    scripted = {"provider": "scripted", "prompt": "Hi", "answers": ["Hello"]}
    assert mill.run(document(node("a", type="llm", config=scripted))).nodes["a"]["output"]["text"] == "Hello"


# Its life


async def test_an_async_test_is_told_to_be_plain(mill_factory: Opens) -> None:
    with pytest.raises(RuntimeError, match="plain test"):
        mill_factory()


@pytest.fixture
def mill_factory() -> Opens:
    return testing.open


def test_after_its_end_it_says_so() -> None:
    with testing.open() as mill:
        assert mill.run(document(node("a", config=1))).outputs == {"a": 1}
    with pytest.raises(RuntimeError, match="closed"):
        mill.show("x")


def test_ordinary_use_never_imports_it_and_the_plugin_imports_no_engine() -> None:
    ordinary = "import tidemill, sys; tidemill.open('memory://').close(); from tidemill.cli import app"
    checks = {
        f"{ordinary}; assert not any(n.startswith('tidemill.testing') for n in sys.modules)": "",
        "import tidemill.testing.plugin, sys; assert 'tidemill.engine.engine' not in sys.modules": "",
    }
    for program in checks:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr


def test_the_fixtures_come_with_the_package(tmp_path: Path) -> None:
    test = "def test_it(mill):\n    assert mill.run({'name': 'x', 'nodes': [{'id': 'a', 'type': 'value'}]}).status\n"
    (tmp_path / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@tidemill.task
def doubled(n: int) -> int:
    return 2 * n


@tidemill.workflow
def twice(n: int) -> int:
    return doubled(doubled(n))


@tidemill.workflow
def doubled_twice(n: int) -> int:
    return doubled(n)


@tidemill.workflow
def outer(n: int) -> int:
    return doubled_twice(n)


def test_a_workflow_written_in_python_runs() -> None:
    with testing.open() as mill:
        assert mill.run(twice, n=3).outputs == 12


@pytest.mark.parametrize(
    ("point", "said"), [("before send", "without a send: use `before effect`"), ("after effect", "never reached$")]
)
def test_a_boundary_that_is_missing_because_of_a_hand_over_says_so(point: testing.CrashPoint, said: str) -> None:
    mill = testing.open(fakes={"doubled_2": 4} if point == "before send" else {"doubled": tidemill.Fail("no", "no")})
    mill.crash(point, node="doubled_2")
    mill.run(quadrupled, n=1)
    with pytest.raises(AssertionError, match=said):
        mill.close()


@tidemill.workflow
def quadrupled(n: int) -> int:
    return doubled(doubled(n))


# Tasks and workflows as fakes


@dataclass
class Order:
    total: int


@tidemill.task
def charge(order: Order, fee: int = 1) -> Order:
    return Order(order.total + fee)


@tidemill.workflow
def shop(n: int) -> dict[str, Any]:
    return {"first": doubled(n), "second": doubled(2), "child": doubled_twice(n), "order": charge(Order(total=n))}


def test_a_task_is_faked_wherever_it_is_called_and_so_is_a_workflow() -> None:
    with testing.open(fakes={doubled: lambda n: n * 100}) as mill:
        mill.fake(doubled_twice, 7)
        mill.crash("after effect", node=doubled)
        assert mill.run(shop, n=1).outputs == {"first": 100, "second": 200, "child": 7, "order": {"total": 2}}
        assert {each.node for each in mill.effects(doubled)} == {"doubled", "doubled_2"}
        assert len(mill.effects(doubled)) == 3 and [each.node for each in mill.effects(charge)] == ["charge"]


@tidemill.workflow
def settled(order: Order, times: int = 4) -> Order:
    return charge(order, times)


@tidemill.workflow
def settled_twice(totals: list[int]) -> dict[str, Any]:
    return {"one": settled(Order(9)), "all": settled.map([Order(1)])}


@pytest.mark.parametrize(
    ("name", "fake", "found"),
    [
        (settled, lambda order: Order(order.total * 10), {"one": {"total": 90}, "all": [{"total": 10}]}),
        (settled, lambda order, times: Order(order.total + times), {"one": {"total": 13}, "all": [{"total": 5}]}),
        ("workflow", lambda order: order, {"one": {"total": 9}, "all": [{"total": 1}]}),
        ("settled", lambda order, context: Order(context.attempt), {"one": {"total": 1}, "all": [{"total": 5}]}),
        (settled, lambda context: Order(len(context.config["inputs"])), {"one": {"total": 1}, "all": [{"total": 1}]}),
    ],
)
def test_a_fake_of_a_workflow_gets_what_the_workflow_would_get(name: Any, fake: Any, found: Any) -> None:
    with testing.open(fakes={name: fake}) as mill:
        assert mill.run(settled_twice, totals=[]).outputs == found


def test_a_fake_that_the_workflow_could_not_return_is_refused() -> None:
    with testing.open(fakes={settled: lambda order: 3}) as mill:
        error = mill.run(settled_twice, totals=[]).error
    assert error["message"].startswith("the fake of settled(…): the result must be Order, but 3 is not")


def test_what_is_neither_a_name_nor_a_task_cannot_be_faked(mill: SimulatedMill) -> None:
    for wrong in (7, print, None):
        with pytest.raises(TypeError, match=r"name a node, `workflow\.node`, `node/undo`, .* not"):
            mill.fake(wrong, 1)  # type: ignore[arg-type]
    other = testing.open(fakes={doubled: 1})
    other.publish(charged)
    with pytest.raises(AssertionError, match="no node calls the task doubled, which is faked"):
        other.close()


@tidemill.workflow
def charged(n: int) -> int:
    return charge(Order(total=n)).total


def test_nodes_that_wait_can_be_faked(mill: SimulatedMill) -> None:
    nodes = [
        node("ask", type="human", config={"title": "Go?"}),
        node("go", "ask", type="signal"),
        node("nap", "go", type="sleep", config={"seconds": 86_400}),
    ]
    for name, value in {"ask": {"decision": "approve"}, "go": {"n": 1}, "nap": None}.items():
        mill.fake(name, value)
    assert mill.show(mill.start(document(*nodes, outputs="{{ go.output.n }}"))).outputs == 1


@pytest.mark.parametrize(
    "fake",
    [
        lambda order: Order(order.total + 1),
        lambda order, fee: {"total": order.total + fee},
        lambda order, fee=1: order,
        {"total": 2},
    ],
)
def test_a_fake_gets_what_the_real_function_would_get(fake: Any) -> None:
    with testing.open(fakes={"charge": fake}) as mill:
        assert mill.run(charged, n=1).outputs in (1, 2)


def test_a_fake_has_type_hints_of_its_own() -> None:
    def fake(order: dict[str, int], fee: str = "9") -> Order:
        return Order(order["total"] + int(fee))

    with testing.open(fakes={charge: fake}) as mill:
        assert mill.run(charged, n=1).outputs == 10


def test_a_fake_that_the_task_could_not_return_is_refused() -> None:
    for wrong in ({"total": "much"}, lambda order: None):
        with testing.open(fakes={charge: wrong}) as mill:
            error = mill.run(charged, n=1).error
        assert error["code"] == "output_invalid"
        assert error["message"].startswith("the fake of charge(…): the result must be Order, but")


# Compensators

UNDONE: list[str] = []


@tidemill.task(retries=2, retry_delay=60)
def unbook(booking: str) -> str:
    UNDONE.append(booking)
    return f"{booking} is cancelled"


@tidemill.task(compensate=unbook)
def book(city: str) -> str:
    return f"a bed in {city}"


@tidemill.task
def pay(booking: str) -> None:
    raise tidemill.Fail("broke", "no money")


@tidemill.workflow(compensate=True)
def trip(city: str) -> str:
    booked = book(city)
    pay(booked)
    return booked


@pytest.fixture
def undone() -> list[str]:
    UNDONE.clear()
    return UNDONE


@pytest.mark.parametrize("name", [unbook, "book/undo", "trip.book/undo"])
def test_a_compensator_is_faked_by_its_task_or_by_its_node(name: Any, undone: list[str]) -> None:
    busy = tidemill.Fail("busy", "later", retryable=True)
    with testing.open(fakes={name: testing.in_turn(busy, lambda booking: f"no {booking}")}) as mill:
        run = mill.run(trip, city="Rome")
        assert run.rollback["undone"] == ["book/1/-1"] and not undone
        assert [each.outcome for each in mill.effects(name)] == ["failed", "returned"]
        assert [each.node for each in mill.effects("book")] == ["book"]


def test_a_compensator_that_fails_for_good(undone: list[str]) -> None:
    with testing.open(fakes={unbook: tidemill.Fail("locked", "no")}) as mill:
        assert mill.run(trip, city="Rome").rollback["status"] == "partial"
    with testing.open(fakes={unbook: 7}) as mill:
        failed = mill.run(trip, city="Rome").rollback["errors"]["book/1/-1"]
    assert failed["message"].startswith("the fake of unbook(…): the result must be str") and not undone


@pytest.mark.parametrize("step", [book, "book", "trip.book", "python"])
def test_the_compensator_of_a_faked_step_does_nothing(step: Any, undone: list[str]) -> None:
    with testing.open(fakes={step: "a tent", pay: tidemill.Fail("broke", "no")}) as mill:
        assert mill.run(trip, city="Rome").rollback["status"] == "done"
        assert len(mill.effects(unbook)) == 1 and not undone


@pytest.mark.parametrize("real", [unbook, "book/undo"])
def test_the_compensator_of_a_faked_step_can_be_real(real: Any, undone: list[str]) -> None:
    with testing.open(fakes={book: "a tent"}, real=[real]) as mill:
        mill.run(trip, city="Rome")
    assert undone == ["a tent"]


def test_the_compensator_of_a_real_step_is_real(undone: list[str]) -> None:
    with testing.open() as mill:
        mill.crash("after effect", node=unbook)
        mill.crash("after commit", node="book/undo")
        mill.run(trip, city="Rome")
    assert undone == ["a bed in Rome"] * 2


def test_the_compensator_of_a_made_up_step_does_nothing(mill: SimulatedMill, undone: list[str]) -> None:
    undo = {"type": "python", "config": {"function": "unbook", "args": {"booking": "{{ output.body }}"}}}
    mill.register(unbook.function, "unbook")
    flow = document(
        node("book", type="http", config={"url": "https://x.example"}, compensator=undo),
        node("stop", "book", type="fail", config={"message": "no"}),
        on_failure={"compensate": "automatic"},
    )
    assert mill.run(flow).rollback["status"] == "done" and not undone


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("unbook", "no node unbook to fake: give the task itself, or the node that calls it, `book/undo`"),
        ("pay/undo", "no node pay/undo to fake: pay has no compensator"),
        ("boook", "no node boook to fake: did you mean `book`"),
    ],
)
def test_a_fake_that_nothing_uses_says_what_to_write(name: str, said: str, undone: list[str]) -> None:
    with pytest.raises(AssertionError, match=said), testing.open(fakes={name: 1}) as mill:
        mill.run(trip, city="Rome")
    with pytest.raises(AssertionError, match="there is no node chrge to call"), testing.open(real=["chrge"]) as mill:
        mill.run(trip, city="Rome")


def test_effects_of_a_node_that_is_not_there_are_refused(undone: list[str]) -> None:
    with testing.open() as mill:
        mill.run(trip, city="Rome")
        with pytest.raises(ValueError, match="there is no node boook: did you mean `book`"):
            mill.effects("boook")


# More crashes, and more verbs


@tidemill.workflow
def after_a_nap(n: int) -> int:
    tidemill.sleep(3600)
    return doubled(n)


@pytest.mark.parametrize("point", get_args(CrashPoint))
def test_a_crash_after_a_timer_needs_only_time(point: CrashPoint) -> None:
    for nth in range(1, 20):
        with suppress(AssertionError), testing.open() as mill:
            mill.crash(point, nth=nth)
            assert mill.result(mill.start(after_a_nap, n=2)).outputs == 4
        if not mill.crashes:
            break
    assert nth > 1


def test_schedules_start_runs_as_time_passes(mill: SimulatedMill) -> None:
    mill.publish(twice)
    mill.create_schedule("nightly", "twice", cron="0 6 * * *", inputs={"n": 3})
    mill.clock.advance(days=30)
    assert mill.count("label:schedule=nightly") == 30
    assert next(mill.runs(workflow="twice")).status == "COMPLETED"
    mill.delete_schedule("nightly")
    mill.clock.advance(days=2)
    assert mill.count() == 30


def test_many_runs_are_started_and_acted_on_at_once(mill: SimulatedMill) -> None:
    runs = mill.start_many(after_a_nap, [{"n": 1}, {"n": 2}])
    assert mill.document(runs[0]).workflow == "after-a-nap"
    mill.bulk("cancel", run_ids=runs)
    assert [mill.show(run).status for run in runs] == ["CANCELLED"] * 2
    assert mill.result(mill.show(mill.start(after_a_nap, n=1))).status == "COMPLETED"


def test_a_refusal_does_not_show_the_inside_of_the_simulation(mill: SimulatedMill) -> None:
    with pytest.raises(tidemill.Rejected, match="run_unknown") as refused:
        mill.show("nobody")
    assert {Path(str(each.path)).name for each in refused.traceback} == {"test_mill.py", "mill.py"}


def test_the_names_are_listed() -> None:
    assert {"open", "SimulatedMill", "verify", "in_turn"} <= set(dir(testing))
    with pytest.raises(AttributeError, match="no attribute 'opne': did you mean `open`"):
        testing.opne  # type: ignore[attr-defined]  # noqa: B018
