"""`tidemill verify`."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest

from tests.fixtures.command_line import EXAMPLES, InProcessCli, on_terminal, process
from tidemill.cli import main
from tidemill.cli.commands import verification

FLOW = """\
name: order
nodes:
  - {id: cart, type: value, config: {total: 42}}
  - id: charge
    type: python
    dependencies: [cart]
    config: {function: "shop_of_verify:charge", args: {total: "{{ cart.total }}"}}
  - {id: done, type: value, dependencies: [charge], config: "{{ charge.id }}"}
"""
FAKES = {"nodes": {"charge": {"id": 7}}, "repeatable": ["charge"]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "order.yaml").write_text(FLOW)
    (tmp_path / "fakes.json").write_text(json.dumps(FAKES))
    return tmp_path


def test_a_warning_names_the_line_and_the_seed(inside: InProcessCli, folder: Path) -> None:
    ended = inside("verify", "order.yaml", "--seeds", "2")
    assert ended.code == main.OK, ended
    assert "the effect of charge happens twice" in ended.out and "order.yaml:4" in ended.out
    assert "1 warning" in ended.out
    command = ended.out.partition("replay: tidemill ")[2].partition("\n")[0]
    again = inside(*command.split())
    assert again.code == main.OK, again
    assert "✗ the worker dies after effect" in again.out and "happens twice" in again.out
    assert inside("verify", "order.yaml", "--seeds", "0", "--strict").code == main.FAILED


def test_fakes_in_yaml_flow_style(inside: InProcessCli, folder: Path) -> None:
    (folder / "flow.yaml").write_text("{inputs: {}, nodes: {}, signals: {x: 1}}")
    assert "json_syntax" not in inside("verify", "order.yaml", "--fakes", "flow.yaml", "--seeds", "0").err
    (folder / "broken.yaml").write_text("{nodes: {a: ]")
    ended = inside("verify", "order.yaml", "--fakes", "broken.yaml", "--seeds", "0")
    assert ended.code == 2 and "broken.yaml: line 1, column" in ended.err and "yaml_syntax" in ended.err


def test_fakes_and_json(inside: InProcessCli, folder: Path) -> None:
    found = inside("verify", "order.yaml", "--fakes", "fakes.json", "--seeds", "1", "--json")
    assert found.code == main.OK
    assert found.json["ok"] is True and found.json["findings"] == [] and found.json["random"] == 1
    assert found.json["boundaries"]["effect"] == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--fakes", "missing.json"), "file_missing"),
        (("--fakes", "wrong.json"), "fakes_invalid"),
        (("--real", "nothing"), "node_unknown"),
        (("--seed", "9999"), "seed_unknown"),
        (("--with", "missing.yaml"), "file_missing"),
        (("-i", "x"), "input_invalid"),
    ],
)
def test_bad_input(inside: InProcessCli, folder: Path, arguments: tuple[str, ...], code: str) -> None:
    (folder / "wrong.json").write_text('{"node": {}}')
    ended = inside("verify", "order.yaml", *arguments, "--json")
    assert ended.code == main.REFUSED
    assert [problem["code"] for problem in ended.json["problems"]] == [code]


def test_a_refused_document(inside: InProcessCli, folder: Path) -> None:
    (folder / "bad.yaml").write_text("name: x\nnodes: [{id: a, type: valeu}]\n")
    ended = inside("verify", "bad.yaml", "--json")
    assert ended.code == main.REFUSED
    assert ended.json["problems"][0]["code"] == "unknown_node_type"


@pytest.mark.parametrize("name", ["branches", "loops", "map", "saga", "approval", "signals", "payment-retry", "errors"])
def test_examples_survive(inside: InProcessCli, name: str) -> None:
    ended = inside("verify", str(EXAMPLES / f"{name}.yaml"), "--boundaries", "20", "--seeds", "2", "--json")
    assert ended.code == main.OK, ended.out


def test_on_a_terminal(folder: Path) -> None:
    code, text = on_terminal("verify", "order.yaml", "--seeds", "1", cwd=folder)
    assert code == main.OK and "charge" in text and "\033[33m!" in text


def test_standard_input() -> None:
    ended = process("verify", "-", "--seeds", "0", given=b"name: x\nnodes: [{id: a, type: value, config: 1}]\n")
    assert ended.code == main.OK, ended


def test_a_finding_in_a_workflow_in_python_names_the_line_of_the_call(inside: InProcessCli, folder: Path) -> None:
    (folder / "verified_flow.py").write_text(
        "import tidemill\n@tidemill.task\ndef charge(total: int) -> int:\n    return total\n"
        "@tidemill.workflow\ndef order(total: int) -> int:\n    return charge(total)\n"
    )
    (finding,) = inside("verify", "verified_flow.py", "-i", "total=1", "--json").json["findings"]
    assert (finding["node"], finding["path"]) == ("charge", "verified_flow.py:7")


def test_functions_that_are_called_again_are_one_finding(inside: InProcessCli, folder: Path) -> None:
    (folder / "verified_twice.py").write_text(
        "import tidemill\n@tidemill.task\ndef price(n: int) -> int:\n    return n\n"
        "@tidemill.task\ndef charge(n: int) -> int:\n    return n\n"
        "@tidemill.workflow\ndef order(n: int) -> int:\n    return charge(price(n))\n"
    )
    shown = inside("verify", "verified_twice.py", "-i", "n=1", "--seeds", "0").out
    assert shown.count("\n! ") == 1 and "! 2 functions are called again when" in shown and "price, charge" in shown
    assert "harmless where a function only computes" in shown and "`at_most_once=True`" in shown
    found = inside("verify", "verified_twice.py", "-i", "n=1", "--seeds", "0", "--json").json["findings"]
    assert [each["node"] for each in found] == ["price", "charge"]


def test_a_run_that_fails_without_a_crash_gets_no_tick(inside: InProcessCli, folder: Path) -> None:
    (folder / "refused.yaml").write_text(
        "name: refused\nnodes:\n  - {id: kid, type: workflow, config: {workflow: child}}\n"
        "  - {id: rest, type: value, dependencies: [kid], config: 1}\n"
    )
    ended = inside("verify", "refused.yaml", "--seeds", "0")
    assert ended.code == main.OK and "✓ every run" not in ended.out
    assert "⚠ every run ended, and no effect was lost, but the run ends FAILED without a crash, 1 warning" in ended.out
    assert "→ 1 of 2 nodes did not run, and were not tested: rest; other inputs (-i)" in ended.out
    assert "--with child.yaml" in ended.out
    assert inside("verify", "refused.yaml", "--seeds", "0", "--strict").code == main.FAILED
    assert "⚠ the run ends FAILED without a crash" in inside("verify", "refused.yaml", "--seed", "0").out


def test_an_arm_that_is_not_taken_is_named(inside: InProcessCli) -> None:
    ended = inside("verify", str(EXAMPLES / "branches.yaml"), "--seeds", "0", "--strict")
    assert ended.code == main.OK and "4 of 7 nodes did not run, and were not tested: board, manager" in ended.out


def test_compensators_that_did_not_run_and_a_partial_rollback_are_told(inside: InProcessCli, folder: Path) -> None:
    undo = "compensator: {type: python, config: {function: 'shop_of_verify:undo'}}"
    (folder / "saga.yaml").write_text(
        "name: saga\non_failure: {compensate: automatic}\nnodes:\n"
        "  - {id: stock, type: python, config: {function: 'shop_of_verify:take'}, " + undo + "}\n"
        "  - {id: ship, type: python, dependencies: [stock], config: {function: 'shop_of_verify:ship'}}\n"
    )
    calm = inside("verify", "saga.yaml", "--seeds", "0")
    assert "→ compensators did not run, and were not tested: those of stock; let a step fail, with `$fail`" in calm.out
    assert inside("verify", "saga.yaml", "--seeds", "0", "--json").json["unreached"] == ["stock/undo"]
    fail = {"$fail": {"code": "down", "message": "none"}}
    (folder / "fail.json").write_text(json.dumps({"nodes": {"ship": fail, "stock/undo": fail}}))
    broken = inside("verify", "saga.yaml", "--seeds", "0", "--fakes", "fail.json")
    assert "the rollback is partial without a crash: stock stays as it is" in " ".join(broken.out.split())
    (folder / "fail.json").write_text(json.dumps({"nodes": {"ship": fail}}))
    undone = inside("verify", "saga.yaml", "--seeds", "0", "--fakes", "fail.json")
    assert "not tested" not in undone.out and "partial" not in undone.out


def test_compensators_and_statements_of_the_store_are_named(inside: InProcessCli, folder: Path) -> None:
    (folder / "verified_saga.py").write_text(
        "import tidemill\n@tidemill.task\ndef undo(n: int) -> None: ...\n"
        "@tidemill.task(compensate=undo)\ndef book(room: int) -> int:\n    return room\n"
        "@tidemill.task\ndef pay(n: int) -> int:\n    return n\n"
        "@tidemill.workflow(compensate=True)\ndef trip(n: int) -> int:\n    return pay(book(n))\n"
    )
    (folder / "fail.json").write_text('{"nodes": {"pay": {"$fail": {"code": "broke", "message": "no"}}}}')
    shown = inside("verify", "verified_saga.py", "--fakes", "fail.json", "--seeds", "0").out
    assert "2 functions are called again" in shown and "book, the compensator of" in shown
    (folder / "up.yaml").write_text(
        'name: up\nnodes: [{id: up, type: sql, config: {statement: "update stock set n = 1"}}]\n'
    )
    shown = inside("verify", "up.yaml", "--seeds", "0").out
    assert "up was tried again in 2 histories: the store executes its statement exactly once" in shown


LOST = """\
name: lost
nodes:
  - {id: pay, type: python, delivery: at_most_once, on_error: continue, config: {function: "shop_of_verify:charge"}}
  - {id: done, type: value, dependencies: [pay], config: shipped}
outputs: "{{ done.output }}"
"""


def test_the_verdict_names_an_effect_that_may_be_lost(inside: InProcessCli, folder: Path) -> None:
    (folder / "lost.yaml").write_text(LOST)
    whole = " ".join(inside("verify", "lost.yaml", "--seeds", "0").out.split())
    assert "! pay may never have happened, and the run completes as if it had" in whole
    assert "⚠ every run ended, but the effect of pay may be lost, 1 warning" in whole
    assert "⚠ the run ended, but the effect of pay may be lost" in inside("verify", "lost.yaml", "--seed", "5").out


def test_the_verdict_says_how_runs_ended_where_a_deadline_passed(inside: InProcessCli, folder: Path) -> None:
    http = "type: http, config: {method: POST, url: 'https://x.example'}"
    (folder / "late.yaml").write_text(
        "name: late\nlimits: {deadline_seconds: 5}\nnodes:\n"
        f"  - {{id: a, {http}}}\n  - {{id: b, dependencies: [a], {http}}}\n"
    )
    shown = inside("verify", "late.yaml", "--seeds", "0").out
    assert "✓ every run ended, 8 of 10 FAILED, and no completed node lost its effect, 1 warning" in shown
    found = inside("verify", "late.yaml", "--seeds", "0", "--json").json
    assert (found["claim"], found["ended"]) == ("no completed node lost its effect", {"COMPLETED": 2, "FAILED": 8})


def test_a_saga_that_is_meant_to_fail_passes(inside: InProcessCli, folder: Path) -> None:
    given = {
        "nodes": {"car": {"$fail": {"code": "none", "message": "no car"}}},
        "repeatable": ["flight", "nights", "car"],
    }
    (folder / "no-car.json").write_text(json.dumps(given))
    saga = ("verify", str(EXAMPLES / "saga.yaml"), "--fakes", "no-car.json", "--boundaries", "20", "--seeds", "2")
    ended = inside(*saga, "--strict", "--expect", "failed")
    assert ended.code == main.OK and "FAILED without a crash, as expected" in ended.out
    assert "✓ every run ended FAILED as expected, its rollback done, and no effect was lost" in ended.out
    assert "if it is meant to fail, `--expect failed`" in " ".join(inside(*saga).out.split())
    other = inside(*saga, "--expect", "completed")
    assert other.code == main.FAILED and "the run ends FAILED without a crash, and is to end COMPLETED" in other.out


def test_nodes_that_differ_for_one_reason_are_one_finding(inside: InProcessCli, folder: Path) -> None:
    (folder / "verified_attempts.py").write_text(
        "import itertools\ncount = itertools.count()\ndef attempt(context): return context.attempt\n"
        "def other(): return next(count)\n"
    )
    call = "type: python, config: {function: 'verified_attempts"
    (folder / "attempts.yaml").write_text(
        f"name: attempts\nnodes:\n  - {{id: a, {call}:attempt'}}}}\n  - {{id: r, {call}:other'}}}}\n"
        "  - {id: b, type: value, dependencies: [a], config: '{{ a.output }}'}\n"
    )
    shown = inside("verify", "attempts.yaml", "--real", "*", "--seeds", "0").out
    assert "! 2 nodes have another output after the crash than without it: a, b" in shown
    assert "→ r: not compared, because two runs without a crash differ there" in shown
    found = inside("verify", "attempts.yaml", "--real", "*", "--seeds", "0", "--json").json
    assert {each["node"] for each in found["findings"] if each["kind"] == "different"} == {"a", "b"}


def test_an_interrupt_ends_it_also_inside_a_function_that_is_called_for_real(
    inside: InProcessCli, folder: Path
) -> None:
    (folder / "verified_interrupt.py").write_text(
        "import os, signal\nasync def stop():\n    os.kill(os.getpid(), signal.SIGINT)\n    return 1\n"
    )
    call = "{id: a, type: python, config: {function: 'verified_interrupt:stop'}}"
    (folder / "interrupt.yaml").write_text(f"name: interrupt\nnodes: [{call}]\n")
    handler = signal.getsignal(signal.SIGINT)
    ended = inside("verify", "interrupt.yaml", "--real", "a")
    assert (ended.code, ended.out) == (main.INTERRUPTED, "")
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_real_call_that_does_not_return_is_named_meanwhile(
    inside: InProcessCli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CALL_SECONDS", "TICK_SECONDS"):
        monkeypatch.setattr(verification, name, 0.0)
    said = threading.Event()
    say = verification._Progress._say

    def saying(self: verification._Progress, text: str) -> None:
        say(self, text)
        said.set()

    monkeypatch.setattr(verification._Progress, "_say", saying)
    monkeypatch.setattr("builtins.said_by_verify", said.wait, raising=False)
    (folder / "verified_waiting.py").write_text("def wait(): return said_by_verify()\n")
    call = "{id: a, type: python, config: {function: 'verified_waiting:wait'}}"
    (folder / "waiting.yaml").write_text(f"name: waiting\nnodes: [{call}]\n")
    ended = inside("verify", "waiting.yaml", "--real", "a", "--seed", "0")
    assert ended.code == main.OK
    assert "verify: still calling a for 0 s: --real calls it, and it has not returned" in ended.err
