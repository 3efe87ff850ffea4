"""Every example runs and returns what it says."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.docs.pages import rows_of
from tests.e2e.cli.golden_world import forget
from tests.examples import ExampleCommand, commands, example_files
from tests.fixtures.command_line import EXAMPLES, SECONDS_MAX, Ended, InProcessCli, environment, process
from tests.fixtures.grants import enable_sql
from tidemill.cli import main

CASES: list[tuple[str, dict[str, Any], Any]] = [
    ("hello", {}, {"greeting": "Hello, world!", "louder": "HELLO, WORLD!"}),
    ("hello", {"name": "Ada"}, {"greeting": "Hello, Ada!", "louder": "HELLO, ADA!"}),
    ("branches", {"amount": 50}, {"approved_by": "nobody", "audited": False, "gift": None}),
    ("branches", {"amount": 500.5}, {"approved_by": "a manager", "audited": False, "gift": None}),
    (
        "branches",
        {"amount": 5000, "vip": True},
        {"approved_by": "the board", "audited": True, "gift": "a box of chocolates"},
    ),
    (
        "payment-retry",
        {"amount": 1500, "failures": 2},
        {"status": "paid", "passes": 3, "told": ["a call", "a note"]},
    ),
    ("payment-retry", {"amount": 20}, {"status": "paid", "passes": 1, "told": ["a letter"]}),
    (
        "payment-retry",
        {"amount": 20, "failures": 9},
        {"status": "failed", "passes": 4, "told": ["nothing was taken"]},
    ),
    (
        "payment-retry",
        {"amount": 20, "failures": 1, "error": "CARD_EXPIRED"},
        {"status": "failed", "passes": 1, "told": ["somebody looks into it"]},
    ),
    ("loops", {}, {"result": "published after pass 3", "quality": 9}),
    ("loops", {"wanted": 99}, {"result": "gave up after pass 4", "quality": 11}),
    (
        "map",
        {},
        {"total": 2854, "squares": [16, 64, 225, 256, 529, 1764], "last": "number 5 got through", "nothing": []},
    ),
    ("map", {"numbers": [3]}, {"total": 9, "squares": [9], "last": "number 0 got through", "nothing": []}),
    (
        "errors",
        {},
        {
            "connection": "connected",
            "newsletter": "newsletter_down",
            "money": "refunded, because the card was declined",
        },
    ),
    ("approval", {"amount": 50}, {"paid": "50 EUR for a new lamp", "from": "petty cash"}),
    ("signals", {}, "A-1001 waits to be collected (timeout)"),
    (
        "saga",
        {"cars": 1},
        {"flight": "flight-1", "nights": ["nights-1", "nights-2"], "car": "the red one"},
    ),
    ("children", {}, {"sum": 108, "runs": 11}),
    (
        "pipeline",
        {"most": 300},
        {
            "cheapest": [
                {"airline": "United", "price": 275, "leaves": "2026-07-03T11:45:00-04:00"},
                {"airline": "Delta", "price": 299, "leaves": "2026-07-01T08:30:00-04:00"},
            ],
            "totals": [
                {"code": "DL", "flights": 1, "total": 299, "dearest": 299},
                {"code": "KL", "flights": 1, "total": 189.5, "dearest": 189.5},
                {"code": "UA", "flights": 1, "total": 275, "dearest": 275},
            ],
        },
    ),
    ("search", {}, {"result": {"titles": ["Moby-Dick", "The Old Man and the Sea"], "best": "Moby-Dick"}}),
    ("search", {"query": "miserables"}, {"result": {"titles": ["Les Misérables"], "best": "Les Misérables"}}),
    ("search", {"query": "zebra"}, {"result": {"titles": [], "best": "nothing"}}),
    (
        "triage",
        {},
        {
            "topic": "bug",
            "ticket": {"title": "Export button does nothing", "severity": "high"},
            "repaired": True,
            "goes": "to the engineers",
        },
    ),
    (
        "triage",
        {"message": "I was charged twice"},
        {"topic": "billing", "ticket": None, "repaired": False, "goes": "to the accountants"},
    ),
    (
        "triage",
        {"message": "Hello?"},
        {"topic": "other", "ticket": None, "repaired": False, "goes": "to whoever is on duty"},
    ),
    (
        "report",
        {"primes_below": 30},
        {"report": "2 3 5 7 11 13 17 19 23 29 ", "longest_gap": 6, "crash": "process_died"},
    ),
    (
        "ledger",
        {},
        {"balances": [{"owner": "ada", "balance": 50}, {"owner": "ben", "balance": 50}], "refused": 1},
    ),
    (
        "etl",
        {},
        {
            "read": 6,
            "loaded": 3,
            "best": [{"customer": "Hamilton", "total": 310}, {"customer": "Hopper", "total": 175}],
        },
    ),
    ("polling", {}, {"result": "export-42 downloaded", "asked": 3}),
    ("polling", {"ready_after": 99}, {"result": "export-42 is still running", "asked": 5}),
    (
        "invoices",
        {},
        {
            "sent": 8,
            "undelivered": ["invoice 2003: nobody@ is not an address", "invoice 2006: nowhere@ is not an address"],
        },
    ),
    ("trial", {"half_seconds": 0.01}, "closed A-77"),
    ("quotes", {}, {"ordered_from": "Contoso"}),
    ("words", {}, {"words": 10, "often": ["be", "to"]}),
    ("words", {"text": "$(rm -r /) ; once"}, {"words": 5, "often": []}),
    ("files", {"sales": [3, 1]}, {"file": "sales.svg", "type": "image/svg+xml", "size": 117, "bars": 2}),
    ("leads", {}, "Acme gets the newsletter: A small lead."),
    (
        "flights",
        {},
        {
            "answer": "Munich to Rome for 95 and Berlin to Rome for 120; below 100 only Munich to Rome.",
            "calls": 2,
        },
    ),
    (
        "incident",
        {},
        {
            "report": "I have added a step that rolls back the last release.",
            "roll_back": "checkout is back at release 41",
        },
    ),
    (
        "research",
        {},
        {"answer": "On average it is 5.4 m.", "calls": [{"name": "delegate_to_agent"}] * 2},
    ),
]


@pytest.mark.parametrize(("name", "inputs", "outputs"), CASES)
def test_small_examples(
    name: str, inputs: dict[str, Any], outputs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("TIDEMILL_SHELL", "on")
    enable_sql(monkeypatch)
    with tidemill.open(f"sqlite:///{tmp_path}/runs.db" if name in ("ledger", "etl") else "memory://") as mill:
        view = mill.run(EXAMPLES / f"{name}.yaml", inputs, timeout_s=20)
    assert (view.status, view.outputs) == ("COMPLETED", outputs)


def test_every_example_is_tried_and_introduces_itself() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.yaml")}
    assert names == {name for name, _, _ in CASES} | {"showcase"}
    for name in names:
        lines = (EXAMPLES / f"{name}.yaml").read_text().splitlines()
        assert lines[0].startswith("# ")
        assert any(line.startswith(f"#   tidemill run examples/{name}.yaml") for line in lines)


def test_the_showcase_shows_everything() -> None:
    ended = process("run", str(EXAMPLES / "showcase.yaml"), "--json")
    assert ended.code == main.OK
    view = ended.json
    nodes = view["nodes"]
    assert view["outputs"] == {
        "order": "A-1001",
        "customer": "Ada Lovelace",
        "cleared_by": "the rules",
        "paid": 1152,
        "parcels": 8,
        "route": "11 km after 4 passes",
        "text_message": "FAILED",
        "tracking": "TM-008-011",
    }
    assert nodes["review"]["status"] == "SKIPPED"
    assert nodes["charge"]["attempts"] == 2
    assert nodes["plan-route"]["visits"] == 4
    assert nodes["check-stock"]["items"] == {"count": 8, "done": 8, "failed": 0}
    assert nodes["text-message"]["status"] == "FAILED"


PRINTED = {
    "python examples/mail_report.py": "The largest is 42.\nCOMPLETED ['ada@example.com']\n",
    "python examples/call_http.py": "received orders.counted {'open': 3} signed\nCOMPLETED after 3 calls",
    "python examples/exports.py": "export of stock: downloaded\nexport of staff: not ready in time\n3 child runs",
    "python examples/expense.py": "a desk is paid from office, says user:bob\n",
    "python examples/trip.py": "a hotel in Rome is cancelled\n  a flight to Rome is cancelled\nFAILED",
    "tidemill run examples/sales.py": '"Rome": 100.0,',
    "tidemill run examples/tickets.py": "ticket (high): Export is broken",
    "python examples/onboarding.py": "Welcome! ada@mail, ada@wiki, ada@payroll\nada-1.accounts.1.0 COMPLETED\n",
}
SHOWCASE = "tidemill run examples/showcase.yaml"
"""Takes some seconds, and is run above."""


@pytest.mark.parametrize("command", [each for each in commands() if each.line != SHOWCASE], ids=lambda each: each.line)
def test_the_command_in_the_header_works_as_it_stands(
    inside: InProcessCli, command: ExampleCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEMILL_STORE")
    for name, value in command.environment.items():
        monkeypatch.setenv(name, value)
    program, *arguments = shlex.split(command.line)
    if program == "tidemill":
        monkeypatch.setattr("sys.stdin", io.StringIO())
        ended = inside(*arguments)
        forget(tmp_path)
    else:
        done = subprocess.run(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment({"HOME": os.fspath(tmp_path)}),
            timeout=SECONDS_MAX,
            check=False,
        )
        ended = Ended(done.returncode, done.stdout, done.stderr)
    assert ended.code == command.code, ended
    assert PRINTED.get(command.line, "") in ended.out


def test_every_example_has_a_command_that_was_tried() -> None:
    tried = {line.split()[1 if line.startswith("python") else 2] for line, _ in commands()}
    written = {f"examples/{path.name}" for path in example_files()}
    assert {name for name in written if not name.endswith("_steps.py")} == tried


def test_every_example_is_in_the_table_once() -> None:
    listed = [row[0].strip("`") for row in rows_of((EXAMPLES / "README.md").read_text())[1:]]
    assert sorted(listed) == sorted(path.name for path in example_files() if not path.name.endswith("_steps.py"))
    assert len(listed) >= 20
