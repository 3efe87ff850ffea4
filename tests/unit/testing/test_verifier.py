"""A workflow whose worker is killed at every boundary."""

from __future__ import annotations

import datetime
import threading
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures.kernel.authoring import document, node
from tidemill.errors import Rejected
from tidemill.testing.fakes import FakesFile, fake_value, read_fakes
from tidemill.testing.report import Report
from tidemill.testing.verifier import RANDOM_FIRST, Verifier, verify


def keyed(context: Any) -> Any:
    return context.effect_key


def unkeyed(n: int = 0) -> Any:
    return n


def calls(name: str, *dependencies: str, function: str = "unkeyed", **more: Any) -> dict[str, Any]:
    return node(name, *dependencies, type="python", config={"function": function}, **more)


FUNCTIONS = {"keyed": keyed, "unkeyed": unkeyed}
DIAMOND = document(
    calls("a", function="keyed"),
    calls("b", "a", function="keyed"),
    calls("c", "a", function="keyed"),
    calls("d", "b", "c", function="keyed"),
    node("e", "d", config="{{ b.x }}{{ c.x }}"),
)


def kinds(report: Report) -> list[tuple[str, str, str]]:
    return [(each.kind, each.severity, each.node) for each in report.findings]


def test_the_diamond_survives_every_boundary() -> None:
    verifier = Verifier(DIAMOND, functions=FUNCTIONS)
    report = verifier.verify(seeds=5)
    assert report.ok and report.findings == [], report.to_dict()
    assert sum(report.boundaries.values()) == report.boundaries_reached == len(verifier.undisturbed.reached)
    assert set(report.boundaries) == {"commit", "send", "effect"}
    assert report.boundaries["effect"] == 8
    assert (report.status, report.random) == ("COMPLETED", 5)
    assert report.crashes > report.boundaries_reached
    assert set(report.keyed) == {"a", "b", "c", "d"}


def test_a_boundary_of_every_kind_is_crossed_in_both_ways() -> None:
    reached = Verifier(DIAMOND, functions=FUNCTIONS).undisturbed.reached
    assert {(each.when, each.kind) for each in reached} == {
        (when, kind) for when in ("before", "after") for kind in ("commit", "send", "effect")
    }


def test_an_effect_without_a_key_is_a_warning_with_its_line() -> None:
    text = "name: test\nnodes:\n  - id: a\n    type: python\n  - id: pay\n    type: python\n"
    verifier = Verifier(document(calls("a", function="keyed"), calls("pay", "a")), text=text, functions=FUNCTIONS)
    report = verifier.verify(seeds=0)
    assert report.ok
    assert kinds(report) == [("duplicate", "warning", "pay")]
    (finding,) = report.findings
    assert (finding.path, finding.line) == ("/nodes/1", 5)
    assert "at_most_once" in finding.hint
    crashes = [crash for seed in finding.seeds for crash in verifier.history(seed).crashes]
    assert [(crash.when, crash.kind) for crash in crashes] == [("after", "effect"), ("before", "commit")]
    assert all("pay" in crash.nodes for crash in crashes)


def test_at_most_once_fails_visibly_and_never_repeats() -> None:
    report = verify(document(calls("pay", delivery="at_most_once"), node("b", "pay")), functions=FUNCTIONS, seeds=0)
    assert report.ok
    assert set(kinds(report)) == {("unknown_outcome", "warning", "pay")}


@pytest.mark.parametrize(
    ("type_", "config", "found"),
    [
        ("http", {"url": "https://x.example"}, False),
        ("http", {"url": "https://x.example", "method": "POST"}, False),
        ("http", {"url": "https://x.example", "method": "POST", "idempotency_header": False}, True),
        ("shell", {"argv": ["true"]}, True),
        ("sql", {"database": "crm", "statement": "SELECT 1"}, False),
        ("sql", {"database": "crm", "statement": "INSERT INTO t VALUES (1)"}, True),
        ("sql", {"database": "crm", "statement": "INSERT INTO t VALUES (:effect_key)"}, False),
        ("webhook", {"url": "https://x.example", "type": "t", "secret": "{{ secrets.HOOK }}"}, False),
        ("llm", {"model": "m", "prompt": "hello"}, False),
        ("llm", {"model": "m", "prompt": "hello", "schema": {"type": "object", "required": ["a"]}}, False),
        ("python", {"function": "keyed"}, False),
        ("python", {"function": "no.such.module:f"}, True),
    ],
)
def test_which_repetitions_matter(type_: str, config: dict[str, Any], found: bool) -> None:
    report = verify(document(node("a", type=type_, config=config)), functions=FUNCTIONS, seeds=0)
    assert report.ok and bool(report.findings) is found, report.to_dict()


def test_repeatable_nodes_are_not_reported() -> None:
    report = verify(document(calls("a")), functions=FUNCTIONS, seeds=3, fakes={"repeatable": ["a"]})
    assert report.findings == []


def test_people_signals_children_maps_loops_and_timers() -> None:
    child = {"name": "child", "nodes": [calls("work", function="keyed")]}
    approval = {
        "title": "Go?", "approvers": ["role:boss", "user:ada"], "quorum": 2, "timeout_hours": 4,
        "form": {"type": "object", "required": ["why"], "properties": {"why": {"type": "string"}}},
    }  # fmt: skip
    loop = {"condition": "iteration < 2", "max_iterations": 5}
    nodes = (
        node("ask", type="human", config=approval),
        node("go", "ask", type="signal"),
        node("kid", "go", type="workflow", config={"workflow": "child"}),
        node("nap", "kid", type="sleep", config={"seconds": 86_400}),
        calls("each", "nap", function="keyed", map={"over": "{{ go.rows }}"}),
        calls("again", "each", function="keyed", loop=loop),
    )
    fakes = FakesFile(signals={"go": {"rows": [1, 2]}}, nodes={"again": "1"})
    verifier = Verifier(document(*nodes), functions=FUNCTIONS, fakes=fakes, others=[child])
    report = verifier.verify(seeds=3, boundaries_max=25)
    assert report.status == "COMPLETED" and report.findings == [], report.to_dict()
    assert sum(report.boundaries.values()) == 25 < report.boundaries_reached


def test_the_boundaries_of_many_items_are_sampled_and_those_of_other_nodes_all_tried() -> None:
    each = calls("each", "a", function="keyed", map={"over": "{{ range(200) | list }}"})
    nodes = (calls("a", function="keyed"), each, calls("z", "each", function="keyed"))
    verifier = Verifier(document(*nodes), functions=FUNCTIONS)
    reached = verifier.undisturbed.reached
    assert len(reached) > 100
    tried = [reached[seed - 1] for seed in verifier.verify(seeds=0, boundaries_max=40).kinds]
    assert len(tried) == 40
    for name in "az":
        assert [each for each in tried if each.nodes == (name,)] == [each for each in reached if each.nodes == (name,)]


@pytest.mark.parametrize("approvers", [[], ["role:finance"], ["role:finance", "role:boss"], ["user:ada", "role:boss"]])
def test_a_quorum_of_members_of_a_role(approvers: list[str]) -> None:
    config = {"title": "Go?", "approvers": approvers, "quorum": 3, "four_eyes": True}
    report = verify(document(node("ask", type="human", config=config)), seeds=1)
    assert report.status == "COMPLETED" and report.findings == [], report.to_dict()


def test_a_decision_of_the_fakes() -> None:
    flow = document(node("ask", type="human", config={"title": "Go?"}), node("b", "ask"))
    report = verify(flow, fakes={"approvals": {"ask": {"decision": "reject"}}}, seeds=0)
    assert report.status == "FAILED"
    assert kinds(report) == [("undisturbed", "warning", "ask")]


def test_a_run_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.testing.verifier.WAKES_MAX", 100)
    loop = {"condition": "true", "max_iterations": 50_000}
    limits = {"max_visits": 60_000}
    flow = document(node("a", type="sleep", config={"seconds": 1}, loop=loop), limits=limits)
    report = Verifier(flow).verify(seeds=3)
    assert not report.ok
    assert kinds(report) == [("undisturbed", "error", "")]
    assert report.crashes == 0


def test_inputs_are_made_from_their_schema() -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}, "m": {"type": "string"}}}
    flow = document(node("a", config="{{ inputs.n }}"), inputs=schema)
    assert Verifier(flow).undisturbed.view.outputs == {"a": 1}
    assert Verifier(flow, inputs={"n": 5}).undisturbed.view.outputs == {"a": 5}


def test_a_real_node_is_called() -> None:
    seen: list[int] = []

    def real(context: Any) -> str:
        seen.append(context.attempt)
        return str(context.effect_key)

    verifier = Verifier(document(calls("a", function="real")), functions={"real": real}, real=["a"])
    assert verifier.undisturbed.view.outputs == {"a": "verify/a/1/-1"}
    assert verifier.verify(seeds=0).ok and len(seen) > 3
    with pytest.raises(Rejected, match="no such node"):
        Verifier(document(calls("a")), real=["b"])


# Seeds


@pytest.mark.parametrize("seed", [3, RANDOM_FIRST, RANDOM_FIRST + 7])
def test_a_seed_is_one_history(seed: int) -> None:
    first, second = (Verifier(DIAMOND, functions=FUNCTIONS).history(seed) for _ in range(2))
    assert first.reached == second.reached and first.crashes == second.crashes
    assert list(first.story()) == list(second.story())


def test_replaying_tells_what_happens() -> None:
    verifier = Verifier(DIAMOND, functions=FUNCTIONS)
    report = verifier.replay(4)
    assert sum(line.startswith("✗ the worker dies") for line in report.story) == 1
    assert len(report.story) > 4
    with pytest.raises(Rejected, match="reaches"):
        verifier.replay(9_999)


# It bites: histories as a broken engine would leave them.


def judged(**changes: Any) -> Report:
    verifier = Verifier(document(calls("a", delivery="at_most_once"), calls("b", "a")), functions=FUNCTIONS)
    history, report = verifier.undisturbed, verifier._report()
    verifier._judge(report, replace(history, seed=1, **changes))
    return report


def test_an_undisturbed_history_has_no_findings() -> None:
    assert judged().findings == []


def test_a_second_effect_of_an_at_most_once_node_is_an_error() -> None:
    report = judged(returned=Counter({"verify/a/1/-1": 2, "verify/b/1/-1": 1}))
    assert kinds(report) == [("duplicate", "error", "a")] and not report.ok


def test_a_lost_effect_is_an_error() -> None:
    report = judged(returned=Counter({"verify/a/1/-1": 1}))
    assert kinds(report) == [("lost", "error", "b")] and not report.ok


def test_a_stuck_run_is_an_error() -> None:
    report = judged(view=None, stuck="run verify is RUNNING")
    assert kinds(report) == [("stuck", "error", "")] and not report.ok


def test_a_broken_law_is_an_error() -> None:
    report = judged(complaints=["the counter is -1"])
    assert kinds(report) == [("invariant", "error", "")] and not report.ok


def test_fakes_for_what_is_not_there_are_refused() -> None:
    fakes = FakesFile(nodes={"x": 1, "http": {}}, approvals={"y": {}}, repeatable=["a", "z"])
    with pytest.raises(Rejected) as refused:
        Verifier(document(calls("a")), functions=FUNCTIONS, fakes=fakes)
    assert [each.path for each in refused.value.problems] == ["/nodes", "/approvals", "/repeatable"]


def test_a_file_of_fakes_is_checked() -> None:
    assert read_fakes({"nodes": {"a": 1}}).nodes == {"a": 1}
    for wrong in ({"node": {}}, {"nodes": []}, [], None):
        with pytest.raises(Rejected, match="fakes"):
            read_fakes(wrong)


def test_a_child_whose_report_a_dead_worker_held_is_no_finding() -> None:
    """The parent ends before the lease of the job expires that tells it of the child's end."""
    child = {"name": "kid", "nodes": [{"id": "a", "type": "value", "config": 1}]}
    nodes = [{"id": "kid", "type": "workflow", "config": {"workflow": "kid"}}]
    report = Verifier({"name": "parent", "nodes": nodes}, others=[child]).verify(seeds=30)
    assert [finding.message for finding in report.findings if finding.severity == "error"] == []


@tidemill.task
def priced(n: int) -> int:
    return 3 * n


@tidemill.workflow
def one_price(n: int) -> int:
    return priced(n)


@tidemill.workflow
def bought(n: int) -> int:
    return priced(one_price(n))


def test_a_workflow_written_in_python_brings_its_functions_and_children() -> None:
    report = verify(bought, inputs={"n": 1}, real=["*"], seeds=2)
    assert (report.status, report.ok) == ("COMPLETED", True)
    (finding,) = [each for each in report.findings if each.node == "priced"]
    assert finding.path.startswith("test_verifier.py:") and "`at_most_once=True`" in finding.hint
    with pytest.raises(Rejected, match="not a workflow"):
        verify(priced)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fakes",
    [
        {priced: lambda n: 7 * n, one_price: 2},
        {"priced": lambda n: 7 * n, one_price: lambda n: 2 * n},
        {"nodes": {priced: lambda n: 7 * n, "bought.one_price": 2}},
        {"inputs": {"n": 1}, "nodes": {"priced": 14, one_price: 2}, "repeatable": ["priced"]},
    ],
)
def test_fakes_are_those_of_a_file_or_those_of_nodes_and_tasks(fakes: Any) -> None:
    report = verify(bought, inputs={"n": 1}, fakes=fakes, seeds=2)
    assert (report.status, report.ok) == ("COMPLETED", True)


def test_fakes_that_nothing_uses_and_both_shapes_at_once_are_refused() -> None:
    for fakes, said in (
        ({charged: 1}, "no node calls the task charged"),
        ({"prised": 1}, "there is no node prised .*did you mean `priced`"),
        ({"inputs": {}, priced: 1}, "`fakes` holds <task priced> beside 'inputs' .*put it under `nodes`"),
        ({"nodes": [1]}, "Expected `object`, got `array`"),
    ):
        with pytest.raises(Rejected, match=said):
            verify(bought, fakes=fakes)


def test_a_task_is_called_for_real() -> None:
    report = verify(bought, inputs={"n": 1}, real=[priced, one_price], seeds=0)
    assert (report.status, report.ok) == ("COMPLETED", True)


def test_text_and_files_are_documents(tmp_path: Path) -> None:
    config = "{url: 'https://x.example', method: POST, idempotency_header: false}"
    text = f"name: x\nnodes:\n  - id: a\n    type: http\n    config: {config}\n"
    (tmp_path / "x.yaml").write_text(text)
    for given in (text, tmp_path / "x.yaml"):
        assert [each.line for each in verify(given, seeds=0).findings] == [3]


@tidemill.task
def charged(n: int) -> int:
    return n


@tidemill.task(at_most_once=True)
def charged_once(n: int) -> int:
    return n


@tidemill.workflow
def paid(n: int) -> int:
    return charged(n)


@tidemill.workflow
def paid_once(n: int) -> int:
    return charged_once(n)


@tidemill.workflow
def pays(n: int) -> int:
    return paid(n)


@tidemill.workflow
def pays_each(n: int) -> list[int]:
    return paid.map([n, 2])


@tidemill.workflow
def pays_once(n: int) -> int:
    return paid_once(n)


@pytest.mark.parametrize(
    ("flow", "kind", "node"),
    [
        (paid, "duplicate", "charged"),
        (pays, "duplicate", "charged"),
        (pays_each, "duplicate", "charged"),
        (paid_once, "unknown_outcome", "charged_once"),
        (pays_once, "unknown_outcome", "paid_once"),
    ],
)
def test_the_effects_of_children_are_judged_like_those_of_parents(flow: Any, kind: str, node: str) -> None:
    (finding,) = verify(flow, inputs={"n": 1}, seeds=2).findings
    assert (finding.kind, finding.severity, finding.node) == (kind, "warning", node)


@tidemill.task
def unbook(booking: int) -> None: ...


@tidemill.task(compensate=unbook)
def book(room: int) -> int:
    return room


@tidemill.task
def pay(booking: int) -> None: ...


@tidemill.workflow(compensate=True)
def trip(room: int) -> int:
    booked = book(room)
    pay(booked)
    return booked


BROKE = {"pay": {"$fail": {"code": "broke", "message": "no money"}}}


def test_a_compensator_is_named_as_such() -> None:
    report = verify(trip, fakes={"nodes": BROKE}, seeds=0)
    found = {each.node: each.message for each in report.findings if each.kind == "duplicate"}
    assert found.keys() == {"book", "book/undo"}
    assert found["book/undo"].startswith("the effect of the compensator of book happens twice")


def test_compensators_are_faked_and_repeatable_by_name() -> None:
    locked = {"book/undo": {"$fail": {"code": "locked", "message": "no"}}}
    for fakes in ({"nodes": BROKE | locked}, {"nodes": BROKE, "repeatable": ["book/undo"]}):
        report = verify(trip, fakes=fakes, real=["book"], seeds=0)
        assert {each.node for each in report.findings if each.kind == "duplicate"} == {"book"}
    with pytest.raises(Rejected, match="there is no node unbook"):
        verify(trip, fakes={"nodes": {"unbook": 1}})


def test_a_statement_on_the_store_is_executed_once() -> None:
    up = {"id": "up", "type": "sql", "config": {"statement": "update stock set n = 1"}}
    report = verify({"name": "x", "nodes": [up]}, seeds=0)
    assert report.once.keys() == {"up"} and not report.keyed and not report.findings


# What verify makes up, and what it leaves out

FORM = {
    "type": "object",
    "required": ["centre", "n"],
    "properties": {"centre": {"type": "string", "pattern": "^CC-[0-9]$"}, "n": {"type": "integer"}},
}
ASK = {"name": "x", "nodes": [{"id": "ask", "type": "human", "config": {"title": "Go?", "form": FORM}}]}


def test_a_made_up_form_that_does_not_fit_says_what_to_write() -> None:
    with pytest.raises(Rejected) as refused:
        verify(ASK, seeds=0)
    (problem,) = refused.value.problems
    assert (problem.code, problem.path) == ("form_invalid", "/form/centre")
    written = "`--fakes FILE` with `approvals: {ask: {form: {centre: …, n: 1}}}`"
    assert problem.hint == f"verify made this value up; give one that fits: {written}"
    assert verify(ASK, fakes={"approvals": {"ask": {"form": {"centre": "CC-1", "n": 1}}}}, seeds=0).ok
    with pytest.raises(Rejected, match="form_invalid") as mine:
        verify(ASK, fakes={"approvals": {"ask": {"form": {"centre": "1", "n": 1}}}}, seeds=0)
    assert "made this value up" not in str(mine.value)


def test_a_made_up_input_that_does_not_fit_says_what_to_write() -> None:
    flow = {"name": "x", "inputs": FORM, "nodes": [{"id": "a", "type": "value", "config": 1}]}
    with pytest.raises(Rejected, match="made this value up; give one that fits: `-i centre=…`, or `--fakes FILE`"):
        verify(flow, seeds=0)
    with pytest.raises(Rejected) as mine:
        verify(flow, inputs={"centre": "1"}, seeds=0)
    assert "made this value up" not in str(mine.value)


def test_a_missing_child_is_asked_for_and_what_did_not_run_is_named() -> None:
    kid = node("kid", type="workflow", config={"workflow": "child"})
    flow = document(node("a"), {**kid, "dependencies": ["a"]}, node("z", "kid"), node("zz", "z"))
    report = verify(flow, seeds=0)
    assert (report.status, report.unreached) == ("FAILED", ["z", "zz"])
    (finding,) = report.findings
    assert finding.hint.startswith("give its document, `--with child.yaml`, or what the node returns: `--fakes FILE`")
    whole = verify(flow, children=[{"name": "child", "nodes": [{"id": "c", "type": "value", "config": 1}]}], seeds=0)
    assert (whole.status, whole.unreached, whole.findings) == ("COMPLETED", [], [])


@dataclass
class Ready:
    is_ready: bool
    names: list[str]


@tidemill.task
def look(n: int) -> Ready:
    raise NotImplementedError


@tidemill.workflow
def looked(n: int) -> Ready:
    return look(n)


def test_a_made_up_result_fits_the_type_hint() -> None:
    report = verify(looked, inputs={"n": 1}, seeds=0)
    assert report.status == "COMPLETED"
    outputs = Verifier(looked.document(), functions=looked.functions, inputs={"n": 1}).undisturbed.view
    assert outputs is not None and outputs.outputs == {"is_ready": True, "names": ["fake"]}


def test_a_function_that_returns_none_is_read_as_if_it_failed() -> None:
    flow = document(calls("a", function="nothing"), outputs="{{ a.error }}")
    assert verify(flow, functions={"nothing": unbook.function}, seeds=0).status == "COMPLETED"


def test_a_failure_names_the_nodes_whose_values_are_made_up() -> None:
    flow = document(node("a", type="http", config={"url": "https://x.example"}), node("b", "a", type="fail", config={}))
    (finding,) = verify(flow, seeds=0).findings
    assert finding.hint.startswith(
        "if the made-up values of a are the cause, give others: `--fakes FILE` with `nodes: {a"
    )
    (finding,) = verify(flow, fakes={"nodes": {"a": 1}}, seeds=0).findings
    assert finding.hint == (
        "if it should complete, give other inputs, `-i NAME=VALUE`, or values, `--fakes FILE`;"
        " if it is meant to fail, `--expect failed`"
    )


# Effects that are lost


def once(name: str = "pay", **more: Any) -> dict[str, Any]:
    return calls(name, function="keyed", delivery="at_most_once", **more)


def test_a_run_that_completes_as_if_an_unknown_call_had_happened_loses_it() -> None:
    flow = document(once(on_error="continue"), node("done", "pay", config="shipped"), outputs="{{ done.output }}")
    report = verify(flow, functions=FUNCTIONS, seeds=2)
    (finding,) = report.findings
    assert (finding.kind, finding.severity, finding.node) == ("unknown_outcome", "warning", "pay")
    assert finding.message == "pay may never have happened, and the run completes as if it had"
    assert "`on_error: continue` lets the run continue" in finding.hint
    assert (report.lost, report.claim) == (["pay"], "the effect of pay may be lost")
    assert set(report.ended) == {"COMPLETED"}


def test_an_item_that_a_map_tolerates_may_be_lost() -> None:
    flow = document(once(map={"over": [1, 2], "tolerate": 2}))
    report = verify(flow, functions=FUNCTIONS, seeds=0)
    assert {each.message for each in report.findings} == {
        "pay may never have happened, and the run completes as if it had"
    }
    assert report.lost == ["pay"] and "`tolerate` lets the run continue" in report.findings[0].hint


def test_an_unknown_call_that_leads_to_another_node_is_not_lost() -> None:
    flow = document(once(on_error={"route": ["check"]}), node("done", "pay"), node("check"))
    report = verify(flow, functions=FUNCTIONS, seeds=0)
    (finding,) = report.findings
    assert finding.message.endswith("is unknown when its worker dies during the call, and the run continues at check")
    assert (report.lost, report.claim) == ([], "no completed node lost its effect")


def test_an_unknown_call_inside_a_child_that_completes_is_told() -> None:
    child = {"name": "child", "nodes": [once(on_error="continue")]}
    flow = document(node("kid", type="workflow", config={"workflow": "child"}))
    report = verify(flow, functions=FUNCTIONS, children=[child], seeds=0)
    assert [(each.kind, each.node) for each in report.findings] == [("unknown_outcome", "pay")]
    assert report.lost == ["pay"]


def test_what_a_failure_cuts_short_inside_a_child_or_a_map_is_not_lost() -> None:
    child = {"name": "child", "nodes": [calls("a", function="keyed"), node("b", type="fail", config={})]}
    kid = {"type": "workflow", "config": {"workflow": "child"}, "on_error": "continue"}
    fakes = {"nodes": {"each": {"$fail": {"code": "no", "message": "no"}}}}
    each = calls("each", function="keyed", map={"over": [1, 2, 3]}, on_error="continue")
    flow = document(node("kid", **kid), node("other", **kid), each, node("z", "kid", "other", "each"))
    report = verify(flow, functions=FUNCTIONS, children=[child], fakes=fakes, seeds=20)
    assert report.status == "COMPLETED" and report.ok, report.to_dict()


def test_a_run_that_fails_visibly_does_not_claim_that_every_effect_happened() -> None:
    report = verify(document(once(), node("b", "pay")), functions=FUNCTIONS, seeds=0)
    assert report.claim == "no completed node lost its effect"
    assert report.ended["FAILED"] > 0 and report.ended["COMPLETED"] > 0


def test_effects_are_judged_where_a_deadline_passes() -> None:
    flow = document(calls("a", function="keyed"), calls("b", "a", function="keyed"), limits={"deadline_seconds": 5})
    verifier = Verifier(flow, functions=FUNCTIONS)
    report = verifier.verify(seeds=0)
    assert kinds(report) == [("different", "warning", "")]
    assert report.claim == "no completed node lost its effect" and report.ended["FAILED"] > 0
    late = verifier.history(report.findings[0].seeds[-1])
    done = next(key for key, (_, end) in late.ends().items() if end.status == "COMPLETED")
    assert lost_in(verifier, replace(late, returned=Counter(key for key in late.returned if key != done)))


def lost_in(verifier: Verifier, history: Any) -> list[str]:
    report = verifier._report()
    verifier._judge(report, history)
    return [each.node for each in report.findings if (each.kind, each.severity) == ("lost", "error")]


@pytest.mark.parametrize(
    "flow",
    [
        document(calls("a"), calls("b"), node("z", "a", "b", join="any")),
        document(calls("a"), node("b", "a", type="fail", config={})),
    ],
)
def test_effects_are_judged_where_a_race_or_a_failure_decides_which_nodes_run(flow: dict[str, Any]) -> None:
    verifier = Verifier(flow, functions=FUNCTIONS)
    assert lost_in(verifier, verifier.history(3)) == []
    assert lost_in(verifier, replace(verifier.undisturbed, seed=1, returned=Counter())) == sorted(
        {name for _, name in verifier.undisturbed.nodes.values()}
    )


def test_a_visit_that_is_missing_from_a_completed_run_is_lost() -> None:
    verifier = Verifier(document(calls("a", map={"over": [1, 2]})), functions=FUNCTIONS)
    first, key = verifier.undisturbed, "verify/a/1/1"
    log = first.logs["verify"]._replace(ends={k: end for k, end in first.logs["verify"].ends.items() if k != key})
    returned = Counter(each for each in first.returned if each != key)
    assert lost_in(verifier, replace(first, seed=1, returned=returned, logs={"verify": log})) == ["a"]


# Real functions


def steady(context: Any) -> Any:
    return {"attempt": context.attempt, "key": context.effect_key}


def dice() -> int:
    return next(THROWS)


THROWS = iter(range(1_000_000))


def test_real_nodes_that_depend_on_the_attempt_differ_and_random_ones_are_not_compared() -> None:
    flow = document(
        calls("a", function="steady"), node("b", "a", config="{{ a.attempt }}"),
        calls("r", function="dice"), node("s", "r", config="{{ r.output }}"),
    )  # fmt: skip
    report = verify(flow, functions={"steady": steady, "dice": dice}, real=["*"], seeds=0)
    assert {each.node for each in report.findings if each.kind == "different"} == {"a", "b"}
    assert report.unsteady == ["r", "s"] and report.ok
    assert verify(flow, functions={"steady": steady, "dice": dice}, real=["a"], seeds=0).unsteady == []


def only_at_first(context: Any) -> None:
    if context.attempt > 1 and context.effect_key:
        raise ValueError("too late")


def test_a_real_call_that_fails_when_it_is_repeated_and_is_passed_over_is_lost() -> None:
    flow = document(calls("a", function="late", on_error="continue", retry={"max_attempts": 1}), node("b", "a"))
    report = verify(flow, functions={"late": only_at_first}, real=["a"], seeds=0)
    assert report.ok and report.lost == ["a"]
    (finding,) = [each for each in report.findings if each.node == "a"]
    assert (finding.kind, finding.severity) == ("different", "warning") and "--real" in finding.hint


def test_what_is_called_for_real_can_be_asked_for() -> None:
    seen: list[tuple[int, dict[str, float]]] = []

    def asks() -> None:
        seen.append(verifier.activity)

    verifier = Verifier(document(calls("a", function="asks")), functions={"asks": asks}, real=["a"])
    assert verifier.activity == (0, {})
    assert verifier.undisturbed.stuck == ""
    ((reached, calling),) = seen
    assert reached > 0 and list(calling) == ["a"]


def test_a_real_call_that_does_not_return_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.testing.simulated_loop.REAL_SECONDS_MAX", 0.01)
    monkeypatch.setattr("tidemill.testing.simulated_loop.END_SECONDS_MAX", 0.01)
    free = threading.Event()
    report = verify(document(calls("a", function="waits")), functions={"waits": free.wait}, real=["a"])
    free.set()
    (finding,) = report.findings
    assert (finding.kind, finding.severity) == ("undisturbed", "error")
    assert "a has not returned for" in finding.message and "called for real" in finding.hint


# Long runs


LONG = document(calls("a", function="keyed", loop={"condition": "iteration < 40", "max_iterations": 99}))


def test_a_run_with_too_many_boundaries_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.testing.verifier.REACHED_MAX", 50)
    report = verify(LONG, functions=FUNCTIONS)
    (finding,) = report.findings
    assert (finding.kind, finding.severity, report.crashes) == ("undisturbed", "error", 0)
    assert "places at which a worker may die" in finding.message and "other inputs" in finding.hint


def test_a_long_run_is_lived_through_less_often_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.testing.verifier.WORK_MAX", 1)
    short = Verifier(LONG, functions=FUNCTIONS).verify()
    assert (sum(short.boundaries.values()), short.random) == (10, 10)
    asked = Verifier(LONG, functions=FUNCTIONS).verify(seeds=11, boundaries_max=12)
    assert (sum(asked.boundaries.values()), asked.random) == (12, 11)


def test_the_seeds_of_random_histories_begin_beyond_those_of_boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.testing.verifier.RANDOM_FIRST", 20)
    report = Verifier(LONG, functions=FUNCTIONS).verify(seeds=2, boundaries_max=30)
    assert (sum(report.boundaries.values()), report.random) == (30, 2)
    assert [seed for seed, kind in report.kinds.items() if kind == "random"] == [1_000_000, 1_000_001]


# Expected ends


SAGA = {"nodes": BROKE, "repeatable": ["book", "pay"]}


def test_a_run_that_is_meant_to_fail_and_is_rolled_back_has_no_finding() -> None:
    for given in ({"fakes": SAGA, "expect": "failed"}, {"fakes": {**SAGA, "expect": "failed"}}):
        report = verify(trip, seeds=3, **given)  # type: ignore[arg-type]
        assert report.findings == [] and report.is_as_expected
        assert (report.rollback, set(report.ended)) == ("done", {"FAILED"})


@pytest.mark.parametrize(("fakes", "expect", "status"), [(SAGA, "completed", "FAILED"), ({}, "failed", "COMPLETED")])
def test_a_run_that_does_not_end_as_expected_is_an_error(fakes: Any, expect: Any, status: str) -> None:
    report = verify(trip, fakes=fakes, expect=expect, seeds=0)
    assert not report.ok and not report.is_as_expected
    (finding,) = [each for each in report.findings if each.kind == "undisturbed"]
    assert f"the run ends {status} without a crash, and is to end {expect.upper()}" in finding.message


def test_a_history_that_does_not_end_as_expected_is_an_error() -> None:
    flow = document(
        calls("a", function="attempt"), node("b", "a", type="fail", config={}, when="ctx.a.output.attempt == 1")
    )
    verifier = Verifier(flow, functions={"attempt": steady}, real=["a"], expect="failed")
    report = verifier.verify(seeds=0)
    assert ("different", "error", "") in kinds(report)
    (finding,) = [each for each in report.findings if each.severity == "error"]
    assert finding.message == "the run ends COMPLETED after the crash, and is to end FAILED"


def test_other_nodes_of_a_run_that_is_meant_to_fail_may_get_less_far() -> None:
    flow = document(
        calls("a", function="keyed"), calls("b", "a", function="keyed"),
        calls("x", function="keyed"), node("y", "x", type="fail", config={}),
    )  # fmt: skip
    assert verify(flow, functions=FUNCTIONS, seeds=20).findings != []
    assert verify(flow, functions=FUNCTIONS, seeds=20, expect="failed").findings == []


# Made-up values


@tidemill.task
def noted(at: datetime.datetime) -> datetime.datetime:
    return at


@tidemill.workflow
def dated(
    at: datetime.datetime,
    day: datetime.date,
    span: datetime.timedelta,
    key: uuid.UUID,
    cost: Decimal,
    pair: tuple[int, str],
) -> datetime.datetime:
    return noted(at)


def test_inputs_are_made_for_every_type_that_tidemill_writes_a_schema_for() -> None:
    assert verify(dated, seeds=0).status == "COMPLETED"


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"}, "2030-01-01"),
        ({"type": "string", "pattern": "^CC-[0-9]$"}, "fake"),
        ({"type": "string", "format": "decimal", "formatMinimum": "12.5"}, "12.5"),
        ({"type": "string", "format": "duration"}, "PT1H"),
    ],
)
def test_made_up_texts_fit_formats_and_the_patterns_of_usual_values(schema: dict[str, Any], made: str) -> None:
    assert fake_value(schema) == made
