"""Tables, moments and values as people read them."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.fixtures.command_line import on_terminal, shown
from tidemill.cli import main
from tidemill.cli.commands.verification import VerifyOptions, _print_finding
from tidemill.cli.commands.workflows import print_published
from tidemill.cli.inputs import read_edits
from tidemill.cli.options import acting
from tidemill.cli.render.runs import _compact, _reasons, print_comparison
from tidemill.cli.render.tables import Column, Line, age, iso, moment, names, print_facts, print_table, snippet
from tidemill.cli.render.terminal import padded, room, truncate
from tidemill.cli.render.why import _link
from tidemill.engine.catalog import Published
from tidemill.engine.index_rows import ApprovalRow, RunRow
from tidemill.engine.services.inspection import Comparison
from tidemill.engine.views import plain
from tidemill.kernel.document.text import as_yaml, read_yaml
from tidemill.kernel.explain.blockers import Failure
from tidemill.kernel.explain.ended import Link
from tidemill.testing.report import CrashFinding

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("past_ms", "words"),
    [
        (0, "just now"),
        (400, "just now"),
        (2 * SECOND, "2 s ago"),
        (59 * SECOND, "59 s ago"),
        (MINUTE, "1 min ago"),
        (3 * MINUTE + 10 * SECOND, "3 min ago"),
        (HOUR - 1, "1 h ago"),
        (4 * HOUR - SECOND, "4 h ago"),
        (30 * HOUR, "30 h ago"),
        (3 * DAY, "3 days ago"),
        (4000 * DAY, "4,000 days ago"),
        (-4 * HOUR + SECOND, "in 4 h"),
        (-300, "just now"),
    ],
)
def test_ages(past_ms: int, words: str) -> None:
    assert age(10_000 * DAY - past_ms, 10_000 * DAY) == words


def test_moments() -> None:
    assert iso(0) == "1970-01-01T00:00:00Z"
    assert iso(10**18) == "9999-12-31T23:59:59Z"
    assert moment(0).endswith(" days ago (1970-01-01T00:00:00Z)")
    assert (age(None), iso(None), moment(None)) == ("", "", "")


def test_columns_are_counted_as_a_terminal_does() -> None:
    assert [room(text) for text in ("abc", "日本", "e\u0301", "✓")] == [3, 4, 1, 1]
    assert truncate("日本語", 5) == "日本…"
    assert truncate("short", 5) == "short"
    assert padded("日本", 6) == "日本  "


def test_a_wide_table_is_cut_where_it_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    heads = (Column("A", gives=True), Column("NUMBER", number=True), Column("C"))
    print_table(heads, [Line(("x" * 200, "7", "kept"), "a note"), Line(("日本", "1234567", ""))])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == 120
    assert lines[1].endswith("…        7  kept")
    assert lines[2] == "  a note"
    assert lines[3].endswith("1234567")
    assert lines[0].rstrip() == lines[0]


def test_control_characters_never_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table((Column(""), Column("")), [Line(("a\x1b[31m", "b\nc\td"), "n\x07")])
    print_facts([("label", "x\x1b]0;title\x07\nsecond"), ("empty", None)])
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x07" not in out
    assert out.splitlines() == ["a\\x1b[31m  b c d", "  n\\x07", "label  x\\x1b]0;title\\x07", "       second"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ("", '""'),
        ("a\n b", "a b"),
        ({"a": [1, "b"]}, '{"a":[1,"b"]}'),
        ("x" * 100, "x" * 19 + "…"),
        (list(range(100_000)), "[0,1,2,3,4,5,6,7,8,…"),
        ({str(n): n for n in range(1000)}, '{"0":0,"1":1,"2":2,…'),
    ],
)
def test_snippets(value: Any, text: str) -> None:
    assert snippet(value, 20) == text


def test_names() -> None:
    assert names([]) == ""
    assert names(["a", "b"]) == "a, b"
    assert names(["x" * 30] * 5, 60) == "x" * 30 + " and 4 more"
    assert names(["x" * 90]) == "x" * 90


def test_rows_are_plain_mappings_whatever_they_are_stored_as() -> None:
    row = RunRow(
        run_id="r",
        workflow="w",
        version=1,
        digest="d",
        status="FAILED",
        created_ms=1,
        last_event_ms=2,
        counter=0,
        events=3,
    )
    assert plain(row)["run_id"] == "r" and "v" not in plain(row)
    approval = ApprovalRow(
        run_id="r",
        workflow="w",
        node="n",
        visit=1,
        index=-1,
        status="pending",
        title="t",
        description="",
        approvers=("user:a",),
        quorum=1,
        requested_ms=1,
    )
    assert plain({"rows": (approval,)})["rows"][0]["approvers"] == ["user:a"]
    assert plain(approval)["votes"] == []


def test_without_a_name_of_the_operating_system_nobody_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert acting(None) == ""
    assert acting("ada") == "ada"


@pytest.mark.parametrize(
    "value",
    [
        {
            "name": "x",
            "nodes": [{"config": {"a": "1e5", "b": "0o7", "c": "on", "d": "~", "e": "-", "f": ""}, "id": "a"}],
        },
        {
            "name": "x",
            "nodes": [],
            "edges": [{"from": "a", "to": "b"}],
            "outputs": {"text": "one\ntwo\n", "q": "a: b # c"},
        },
        {"shared": [[1, 2]] * 2, "big": 123456789012345678901234567890, "float": 0.1, "no": None, "text": "007"},
        {"nodes": "odd", "name": ["odd"], "strange": "tab\there \x07 é 日本"},
    ],
)
def test_yaml_reads_back_as_the_same_value(value: Any) -> None:
    text = as_yaml(value)
    assert read_yaml(text) == value
    assert "&" not in text


def test_a_place_is_added_or_replaced_by_what_is_there() -> None:
    document = {"name": "x", "nodes": [{"id": "a", "config": {"u/r": 1}}], "edges": [{"from": "a", "to": "b"}]}
    sets = ["/name=y", "/nodes/a/config/u~1r=2", "/nodes/a/retry={}", "/edges/0/to=c", "/edges/7/to=c", "/edges/a=1"]
    operations = read_edits(None, sets, lambda: document)
    assert [(each["op"], each["path"], each["value"]) for each in operations] == [
        ("replace", "/name", "y"),
        ("replace", "/nodes/a/config/u~1r", 2),
        ("add", "/nodes/a/retry", {}),
        ("replace", "/edges/0/to", "c"),
        ("add", "/edges/7/to", "c"),
        ("add", "/edges/a", 1),
    ]


def test_help_fits_and_is_not_cut() -> None:
    code, written = on_terminal("runs", "--help", columns=80)
    assert code == main.OK
    lines = shown(written).splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("...") for line in lines if not line.startswith("Usage"))


def test_outputs_on_a_terminal_keep_what_fits_on_one_line() -> None:
    value = {"rows": list(range(30)), "one": {"a": [1, 2]}, "note": "é\x1b"}
    shown = _compact(value, 40)
    assert json.loads(shown) == value
    assert '"one": {"a": [1, 2]}' in shown
    assert all(len(line) <= 41 for line in shown.split("\n"))
    assert len(shown.split("\n")) < 12


def test_the_chain_of_a_failure_does_not_repeat_the_error() -> None:
    error = Failure(code="no_account", message="no such account")
    assert _link(Link(what="cause", words="a failed after 1 attempt with no_account: no such account"), error) == (
        "a failed after 1 attempt"
    )
    other = "b failed with child_failed: another"
    assert _link(Link(what="node", words=other), error) == other


def test_notes_and_causes_of_an_error_have_labels_of_their_own() -> None:
    told = list(_reasons(["note: the model answered: bug", "KeyError: 'a'", "OSError: b"]))
    assert told == [("note", "the model answered: bug"), ("cause", "KeyError: 'a'\nOSError: b")]


def test_sentences_are_folded_between_words_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    sides = {"left": {"status": "COMPLETED"}, "right": {"status": "FAILED"}, "same": False}
    node = {"node": "a-node-of-a-rather-long-name", **sides}
    print_comparison(
        "one", "two", Comparison(left="one", right="two", same=False, outputs_same=False, nodes=(node,),
                                 first_divergence=node["node"]),
    )  # fmt: skip
    print_published(Published(name="w", version=1, digest=f"sha256:{'a' * 64}", created=True))
    options = VerifyOptions(
        file="shop/flow.yaml", given=(), others=(), apps=(), fakes=None, real=(), seeds=1, seed=None, boundaries=1,
        strict=False, as_json=False,
    )  # fmt: skip
    charged = "charge was called again after a crash " * 4
    _print_finding(CrashFinding("duplicate", "error", "charge", charged, "say so", seeds=[0]), options)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80, lines
    assert f"digest  sha256:{'a' * 64}" in lines
    assert " ".join(" ".join(lines).split()).count(charged.strip()) == 1
