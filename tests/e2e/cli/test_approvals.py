"""`tidemill approvals`: what people are asked, and their answers."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

import tidemill
from tests.fixtures.cli_store import CliStore
from tests.fixtures.command_line import SECONDS_MAX, Conversation, InProcessCli, eventually, running
from tidemill.cli import main
from tidemill.cli.render.progress import Lines


def test_a_form_from_a_file(cli_store: CliStore, tmp_path: Path) -> None:
    form = tmp_path / "form.yaml"
    form.write_text("window: day\ncount: 1\n")
    run_id = cli_store.asking()
    cli_store.fine(
        "approvals", "decide", run_id, "review", "approve", "--as", "ada", "--form", f"@{form}", "-f", "count=2"
    )
    assert cli_store.json("approvals", "show", run_id, "review")["votes"][0]["form"] == {"window": "day", "count": 2}


def test_a_form_as_json(cli_store: CliStore) -> None:
    run_id = cli_store.asking()
    form = '{"window": "night", "count": 3}'
    cli_store.fine("approvals", "decide", run_id, "review", "approve", "--as", "ada", "--form", form)
    assert cli_store.json("approvals", "show", run_id, "review")["votes"][0]["form"] == {"window": "night", "count": 3}
    (problem,) = cli_store.refused("approvals", "decide", run_id, "review", "approve", "--form", '{"window": ')
    assert problem["message"].startswith("--form: ")


def test_a_field_that_is_left_out_gets_its_default(cli_store: CliStore) -> None:
    form = {
        "type": "object",
        "required": ["window", "count"],
        "properties": {"window": {"type": "string"}, "count": {"type": "integer", "default": 7}},
    }
    nodes = [{"id": "ask", "type": "human", "config": {"title": "Well?", "form": form}}]
    run_id = cli_store.start({"name": "patient", "nodes": nodes})
    cli_store.until(run_id, lambda view: view.nodes["ask"]["status"] == "WAITING")
    assert cli_store.fine("approvals", "show", run_id, "ask").endswith("ask approve --form window=VALUE\n")
    refused = cli_store("approvals", "decide", run_id, "ask", "approve", "--as", "ada", "-f", "window=12345")
    assert """to pass a text: --form 'window="12345"'""" in refused.err
    cli_store.fine("approvals", "decide", run_id, "ask", "approve", "--as", "ada", "-f", "window=day")
    assert cli_store.json("approvals", "show", run_id, "ask")["votes"][0]["form"] == {"window": "day", "count": 7}


def test_the_printed_command_fills_in_the_fields_that_the_form_requires(cli_store: CliStore) -> None:
    run_id = cli_store.asking()
    command = f"tidemill approvals decide {run_id} review approve --form window=VALUE"
    assert f"{command} --role ops" in " ".join(cli_store.fine("runs", "why", run_id).split())
    assert cli_store.fine("approvals", "show", run_id, "review").endswith(f"→ {command} --role ops\n")
    pasted = shlex.split(command.replace("VALUE", "day"))[1:]
    assert cli_store.fine(*pasted, "--as", "ada") == "✓ review: your vote counts, 1 of 2 agree so far\n"


FOUR_EYES = {"title": "Spend?", "approvers": ["role:boss", "user:bob"], "four_eyes": True}


def test_who_submitted_is_shown_no_command_that_is_refused(
    cli_store: CliStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "mia")
    document = {"name": "spend", "nodes": [{"id": "ask", "type": "human", "config": FOUR_EYES}]}
    run_id = cli_store.start(document, submitted_by="mia")
    cli_store.until(run_id, lambda view: view.nodes["ask"]["status"] == "WAITING")
    command = f"tidemill approvals decide {run_id} ask approve --as PERSON --role boss"
    for shown in (cli_store.fine("why", run_id), cli_store.fine("approvals", "show", run_id, "ask")):
        assert command in " ".join(shown.split())
    assert cli_store(*shlex.split(command.replace("PERSON", "mia"))[1:]).code == main.REFUSED
    cli_store.fine(*shlex.split(command.replace("PERSON", "ada"))[1:])


def test_what_follows_a_time_out_is_told_where_there_is_one(cli_store: CliStore) -> None:
    assert "on timeout" in cli_store.fine("why", cli_store.asking())
    run_id = cli_store.start(
        {"name": "patient", "nodes": [{"id": "ask", "type": "human", "config": {"title": "Well?"}}]}
    )
    cli_store.until(run_id, lambda view: view.nodes["ask"]["status"] == "WAITING")
    assert "on timeout" not in cli_store.fine("why", run_id)


def test_an_escalation_is_told_with_its_time_and_the_votes_so_far(cli_store: CliStore) -> None:
    asked = {"title": "Pay?", "approvers": ["user:ann", "user:bob"], "quorum": 2, "timeout_seconds": 2}
    config = {**asked, "on_timeout": "escalate", "escalate_to": ["role:boss"]}
    run_id = cli_store.start({"name": "escalating", "nodes": [{"id": "ok", "type": "human", "config": config}]})
    cli_store.until(run_id, lambda view: view.nodes["ok"]["status"] == "WAITING")
    cli_store.fine("approvals", "decide", run_id, "ok", "approve", "--as", "ann", "--comment", "fine")
    shown = cli_store.fine("approvals", "show", run_id, "ok")
    assert re.search(r"^expires +.*, then: escalate to role:boss$", shown, re.MULTILINE), shown
    eventually(lambda: cli_store.json("approvals", "show", run_id, "ok")["escalated"], "it is escalated")
    shown = cli_store.fine("approvals", "show", run_id, "ok")
    for pattern in (
        r"^approvers +role:boss; 2 must agree$",
        r"^escalated +(just now|\d+ m?s ago) \(.*\) · to role:boss$",
        r"^votes +1 of 2 agree\n +user:ann · fine$",
        r"^expires +in .*, then: fail$",
    ):
        assert re.search(pattern, shown, re.MULTILINE), shown


def test_items_of_a_map_are_decided_one_by_one(cli_store: CliStore) -> None:
    flow = {
        "name": "many",
        "nodes": [
            {"id": "list", "type": "value", "config": ["a", "b"]},
            {"id": "ok", "type": "human", "dependencies": ["list"], "map": {"over": "{{ list.output }}"}},
        ],
    }
    run_id = cli_store.start(flow)
    cli_store.until(run_id, lambda view: len(cli_store.mill.approvals([f"run:{view.run_id}"])[0]) == 2)
    assert re.search(r"  ok item 1  pending  ", cli_store.fine("approvals", "list"))
    told = cli_store.fine("approvals", "show", run_id, "ok", "--item", "1")
    assert "node       ok, item 1\n" in told and told.endswith(f"decide {run_id} ok approve --item 1\n")
    for item in ("0", "1"):
        cli_store.fine("approvals", "decide", run_id, "ok", "approve", "--item", item, "--as", "eve")
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")


# A run that waits for people: asked at the terminal, told elsewhere


QUESTION = "[a]pprove, [r]eject, or [l]ater?"


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    return tmp_path / "flow.yaml"


def ask(flow: Path, config: str) -> str:
    flow.write_text(
        f"""
name: release
nodes:
  - {{id: build, type: value, config: 1}}
  - {{id: review, type: human, dependencies: [build], config: {{{config}}}}}
  - {{id: ship, type: value, dependencies: [review], config: "{{{{ review.output.form }}}}"}}
"""
    )
    return str(flow)


INTERRUPTED = "[d]etach and leave it running, [c]ancel it, or keep [w]atching?"
FORM = (
    "form: {type: object, required: [when], properties: {when: {enum: [day, night]}, count: {type: integer}, "
    "why: {type: string, title: Why}, copies: {type: integer, default: 2}}}"
)


def test_somebody_at_the_terminal_decides(flow: Path) -> None:
    talk = Conversation("run", ask(flow, f"title: Release?, description: All is green., {FORM}"), "--as", "ada")
    talk.expect("waits for a decision by anyone")
    talk.expect("◷ Release?  review\n  about  All is green.\n  asks   anyone\n")
    for expected, answer in (
        (QUESTION, "perhaps"),
        ("please answer a, r or l", None),
        (QUESTION, "a"),
        ("copies (integer, default 2):", ""),
        ("count (integer, may be empty):", "many"),
        ('"many" is not of type "integer"', None),
        ("count (integer, may be empty):", "3"),
        ("when (day | night, required):", "noon"),
        ('"noon" is not one of "day" or "night"', None),
        ("when (day | night, required):", ""),
        ("when is required", None),
        ("when (day | night, required):", "day"),
        ("Why (why, string, may be empty):", "12"),
        ("comment (may be empty):", "fine by me"),
    ):
        talk.expect(expected)
        if answer is not None:
            talk.say(answer)
    code, text = talk.end()
    assert code == main.OK
    assert "✓ review: approved by user:ada" in text
    last = text[text.rindex("release@1  run ") :]
    assert "✓ review" in last and "✓ completed in" in last
    for filled in ('"when": "day"', '"count": 3', '"why": "12"', '"copies": 2'):
        assert filled in last


def test_changes_are_offered_where_there_is_a_way_for_them(flow: Path) -> None:
    config = "title: Release?, changes_path: [ship]"
    talk = Conversation("run", ask(flow, config))
    talk.expect("[a]pprove, [r]eject, request [c]hanges, or [l]ater?")
    talk.say("r")
    talk.expect("comment")
    talk.say("")
    assert talk.end()[0] == main.FAILED


def test_a_question_is_given_up_when_its_time_has_passed(flow: Path) -> None:
    talk = Conversation("run", ask(flow, "title: Quick?, timeout_seconds: 1, on_timeout: reject"))
    talk.expect(QUESTION)
    code, text = talk.end()
    assert code == main.FAILED
    assert "this has been decided in the meantime" in text
    assert "✗ failed at review" in text


def test_later_is_an_answer_and_an_interrupt_asks(flow: Path) -> None:
    talk = Conversation("run", ask(flow, "title: Release?"))
    talk.expect(QUESTION)
    talk.say("l")
    talk.expect("left for later; the run keeps waiting (Ctrl-C to leave)")
    talk.expect("→ tidemill approvals decide")
    talk.expect("◷ review")
    talk.interrupt()
    talk.expect(INTERRUPTED)
    talk.say("w")
    talk.expect("◷ review")
    talk.interrupt()
    talk.expect(INTERRUPTED)
    talk.say("c")
    code, text = talk.end()
    assert code == main.INTERRUPTED
    assert "⊘ cancelled after" in text


def test_an_interrupt_at_the_question_leaves_the_run_as_it_is(flow: Path) -> None:
    talk = Conversation("run", ask(flow, "title: Release?"))
    talk.expect(QUESTION)
    talk.interrupt()
    talk.expect(INTERRUPTED)
    talk.say("")
    code, text = talk.end()
    assert code == main.INTERRUPTED
    assert "Traceback" not in text
    assert "→ detached: run " in text and "--resume" in text


@pytest.mark.parametrize("arguments", [("--as", "eve"), ("--as", "eve", "--role", "dev")])
def test_nobody_is_asked_who_may_not_decide(flow: Path, arguments: tuple[str, ...]) -> None:
    talk = Conversation("run", ask(flow, "title: Release?, approvers: ['user:ada', 'role:ops']"), *arguments)
    talk.expect("◷ review waits for a decision by user:ada, role:ops")
    talk.expect("review approve --role ops")
    talk.interrupt()
    talk.expect(INTERRUPTED)
    talk.interrupt()
    code, text = talk.end()
    assert code == main.INTERRUPTED
    assert QUESTION not in text


def test_who_submitted_is_told_why_nothing_is_asked(flow: Path) -> None:
    config = "title: Release?, approvers: ['role:ops'], four_eyes: true"
    talk = Conversation("run", ask(flow, config), "--as", "eve", "--role", "ops", columns=200)
    talk.expect("◷ review waits for a decision by role:ops, and not by eve, who submitted the run (four eyes)")
    talk.expect("review approve --as PERSON --role ops")
    talk.interrupt()
    talk.expect(INTERRUPTED)
    talk.interrupt()
    code, text = talk.end()
    assert code == main.INTERRUPTED and QUESTION not in text


def test_roles_count(flow: Path) -> None:
    file = ask(flow, "title: Release?, approvers: ['role:ops']")
    talk = Conversation("run", file, "--as", "eve", "--role", "ops")
    talk.expect(QUESTION)
    talk.say("r")
    talk.expect("comment")
    talk.say("not on a Friday")
    code, text = talk.end()
    assert code == main.FAILED
    assert "✓ review: rejected by user:eve" in text


@pytest.mark.parametrize(
    ("options", "stream"), [((), "out"), (("--json",), "err"), (("--quiet",), "err")], ids=["lines", "json", "quiet"]
)
def test_elsewhere_one_line_says_what_is_waited_for(flow: Path, options: tuple[str, ...], stream: str) -> None:
    file = ask(flow, "title: Release?, approvers: ['user:ada']")
    written = {name: flow.with_suffix(f".{name}") for name in ("out", "err")}
    line = "◷ review waits for a decision by user:ada · "
    with (
        written["out"].open("w") as out,
        written["err"].open("w") as err,
        running("run", file, *options, stdin=subprocess.DEVNULL, stdout=out, stderr=err) as child,
    ):
        eventually(lambda: line in written[stream].read_text(), "the line was not written")
        assert written[stream].read_text().count("◷") == 1
        child.send_signal(signal.SIGINT)
        assert child.wait() == main.INTERRUPTED


# In the background of a terminal, a process that reads there is stopped, and the run with it


def approve(url: str) -> None:
    with tidemill.open(url, work=False) as mill:
        (row,), _ = mill.approvals(["status:pending"])
        mill.decide(row.run_id, "review", "approve", actor="ada")


def test_nobody_is_asked_in_the_background_of_a_terminal(flow: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/behind.db"
    talk = Conversation("run", ask(flow, "title: Release?"), "--store", url, job="background")
    talk.expect("◷ review waits for a decision by anyone")
    talk.say("this is for the shell")
    approve(url)
    code, text = talk.end()
    assert code == main.OK
    assert QUESTION not in text and "✓ completed in" in text


def test_a_question_whose_terminal_is_taken_away_reads_nothing(flow: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/behind.db"
    talk = Conversation("run", ask(flow, "title: Release?"), "--store", url, job="foreground")
    talk.expect(QUESTION)
    talk.say("perhaps")
    talk.expect("please answer a, r or l")
    talk.expect(QUESTION)
    talk.to_background()
    talk.say("a")
    talk.say("this is for the shell")
    approve(url)
    code, text = talk.end()
    assert code == main.OK
    assert "this has been decided in the meantime" in text


def test_a_store_that_others_reach_is_named_in_the_command(
    inside: InProcessCli, flow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, say = threading.Event(), Lines.say

    def say_and_tell(self: Lines, text: str, style: str = "") -> None:
        say(self, text, style)
        if "waits" in text:
            told.set()

    monkeypatch.setattr(Lines, "say", say_and_tell)
    url = f"memory://people-{time.monotonic_ns()}"
    file = ask(flow, "title: Release?, approvers: ['user:ada']")

    def decide() -> None:
        with tidemill.open(url, work=False) as mill:
            assert told.wait(SECONDS_MAX / 2)
            (row,), _ = mill.approvals(["status:pending"])
            mill.decide(row.run_id, "review", "approve", actor="ada")

    other = threading.Thread(target=decide)
    other.start()
    ended = inside("run", file, "--store", url)
    other.join()
    assert ended.code == main.OK
    assert f" review approve --as ada --store {url}\n" in ended.out
    assert "✓ review" in ended.out


def test_a_signal_that_is_waited_for_is_told(inside: InProcessCli, flow: Path) -> None:
    url = f"memory://signal-{time.monotonic_ns()}"
    flow.write_text("name: wait\nnodes: [{id: go, type: signal, config: {name: now}}]\n")

    def send() -> None:
        with tidemill.open(url, work=False) as mill:
            eventually(lambda: bool(mill.find(["waiting"])[0]), "nothing waits")
            mill.signal(mill.find(["waiting"])[0][0].run_id, "now", 7)

    other = threading.Thread(target=send)
    other.start()
    ended = inside("run", str(flow), "--store", url)
    other.join()
    assert ended.code == main.OK
    assert "◷ go waits for the signal now · tidemill runs signal " in ended.out
