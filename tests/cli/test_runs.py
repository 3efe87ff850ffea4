"""`tidemill runs`: finding runs and looking at them, in text and as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.kit import EXAMPLES, process
from tests.cli.shop import Shop
from tidemill.cli import main

AGO = r"(just now|\d+ s ago)"
MOMENT = AGO + r" \(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\)"


def matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.MULTILINE) is not None


def test_runs_are_listed_newest_first_with_what_matters(shop: Shop) -> None:
    failed = shop.failed(labels={"customer": "acme"})
    waiting = shop.asking()
    lines = shop.fine("runs", "list").splitlines()
    assert lines[0].split() == ["RUN", "STATUS", "WORKFLOW", "STARTED"]
    assert re.fullmatch(rf"{waiting}  RUNNING  release@1  {AGO}", lines[1])
    assert lines[2] == "  waits for human (review)"
    assert re.fullmatch(rf"{failed}  FAILED   payment@1  {AGO}", lines[3])
    assert lines[4] == "  failed at transfer [no_account] · customer=acme"
    assert len(lines) == 5


def test_runs_are_listed_as_json(shop: Shop) -> None:
    run_id = shop.failed()
    listed = shop.json("runs", "list")
    assert listed["next"] is None
    (row,) = listed["runs"]
    assert (row["run_id"], row["status"], row["workflow"], row["version"]) == (run_id, "FAILED", "payment", 1)
    assert isinstance(row["created_ms"], int)
    assert "v" not in row


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--status", "failed"), ["one", "two"]),
        (("--status", "RUNNING"), ["asks"]),
        (("--workflow", "release"), ["asks"]),
        (("--label", "customer=acme"), ["one"]),
        (("--label", "customer=acme", "--status", "COMPLETED"), []),
        (("--term", "live"), ["asks"]),
        (("--term", "by:bob", "--term", "status:FAILED"), ["two"]),
    ],
)
def test_runs_are_found_by_what_they_are(shop: Shop, options: tuple[str, ...], found: list[str]) -> None:
    shop.failed(key="one", labels={"customer": "acme"})
    shop.failed(key="two", labels={"customer": "other"}, submitted_by="bob")
    shop.asking(key="asks")
    assert sorted(row["run_id"] for row in shop.json("runs", "list", *options)["runs"]) == found


def test_a_list_says_how_to_get_its_next_page(shop: Shop) -> None:
    for number in range(3):
        shop.failed(key=f"run-{number}")
    first = shop.fine("runs", "list", "--limit", "2")
    cursor = first.splitlines()[-1].partition("--after ")[2]
    assert first.splitlines()[-1].startswith("→ next page: --after ")
    second = shop.fine("runs", "list", "--limit", "2", "--after", cursor)
    assert [line.split()[0] for line in (first + second).splitlines() if line.startswith("run-")] == [
        "run-2",
        "run-1",
        "run-0",
    ]
    assert "next page" not in second
    assert shop.json("runs", "list", "--limit", "2")["next"] == cursor


def test_an_empty_list_is_a_sentence(shop: Shop) -> None:
    assert shop.fine("runs", "list") == "no run matches\n"


def test_a_private_store_is_named_as_the_reason_for_finding_nothing() -> None:
    listed = process("runs", "list", "--store", "memory://")
    assert (listed.code, listed.out.splitlines()) == (
        main.OK,
        ["no run matches", "→ memory:// begins empty in every process: use --store, or TIDEMILL_STORE"],
    )
    missing = process("runs", "show", "x", "--store", "memory://")
    assert missing.code == main.REFUSED
    assert "use --store" in missing.err


def test_looking_at_a_store_that_is_not_there_makes_none(tmp_path: Path) -> None:
    looked = process("runs", "list", cwd=tmp_path, env={"TIDEMILL_STORE": ""})
    assert looked.code == main.REFUSED
    assert "there is no store tidemill.db [store_missing]" in looked.err
    assert list(tmp_path.iterdir()) == []


def test_a_failed_run_is_shown(shop: Shop) -> None:
    run_id = shop.failed(submitted_by="bob", labels={"customer": "acme"})
    lines = shop.fine("runs", "show", run_id).splitlines()
    assert lines[0] == f"payment@1  run {run_id}"
    assert lines[1] == "status   FAILED"
    assert re.fullmatch(rf"started  {MOMENT}", lines[2])
    assert re.fullmatch(r"took     (\d+|<1) ms", lines[3])
    assert lines[4:] == [
        "by       bob",
        "labels   customer=acme",
        "error    transfer: no such account [no_account]",
        "nodes    1 completed, 2 failed · 10 events",
        "",
        '✓  receive   COMPLETED  {"amount":42}',
        "✗  transfer  FAILED     no such account [no_account]",
        "✗  book      FAILED     node transfer failed [upstream_failed]",
        "",
        f"→ tidemill runs why {run_id}",
    ]


def test_a_completed_run_is_shown_with_its_outputs(shop: Shop) -> None:
    run_id = shop.start({"name": "sum", "nodes": [{"id": "a", "type": "value", "config": {"n": [1, 2]}}]})
    shop.until(run_id, lambda view: view.status == "COMPLETED")
    shown = shop.fine("runs", "show", run_id)
    assert json.loads(shown.partition("\n\n")[2].partition("\n\n")[2]) == {"a": {"n": [1, 2]}}
    assert "→" not in shown


def test_show_prints_the_same_object_as_run(shop: Shop) -> None:
    ran = shop("run", str(EXAMPLES / "hello.yaml"), "--json").json
    assert shop.json("runs", "show", ran["run_id"]) == ran


def test_long_outputs_are_clipped_in_text_only(shop: Shop) -> None:
    run_id = shop.start({"name": "long", "nodes": [{"id": "a", "type": "value", "config": "word " * 1000}]})
    shop.until(run_id, lambda view: view.status == "COMPLETED")
    row = next(line for line in shop.fine("runs", "show", run_id).splitlines() if line.startswith("✓"))
    assert len(row) <= 120 and row.endswith("…")
    assert shop.json("runs", "show", run_id)["nodes"]["a"]["output"] == "word " * 1000


def test_a_run_of_many_nodes_shows_those_that_matter(shop: Shop) -> None:
    nodes = [{"id": f"n{number}", "type": "value"} for number in range(250)]
    run_id = shop.start({"name": "wide", "nodes": [*nodes, {"id": "bad", "type": "fail", "on_error": "continue"}]})
    shop.until(run_id, lambda view: view.status == "COMPLETED")
    shown = shop.fine("runs", "show", run_id)
    assert "✗  bad " in shown
    assert "→ and 51 more nodes; --json shows them all" in shown


def test_a_run_as_it_was(shop: Shop) -> None:
    run_id = shop.failed()
    for command in (("runs", "state"), ("runs", "show")):
        then = shop.json(*command, run_id, "--at", "4")
        assert (then["status"], then["events"]) == ("RUNNING", 4)
        assert then["nodes"]["receive"]["status"] == "COMPLETED"
        assert then["nodes"]["transfer"]["status"] == "PENDING"
        text = shop.fine(*command, run_id, "--at", "4")
        assert matches(r"^○  transfer  PENDING$", text) and "status       RUNNING" in text
    assert [problem["code"] for problem in shop.refused("runs", "state", run_id, "--at", "99")] == ["event_unknown"]


def test_events_are_told_one_by_one(shop: Shop) -> None:
    run_id = shop.failed(submitted_by="bob")
    lines = shop.fine("runs", "events", run_id).splitlines()
    assert re.fullmatch(r"times since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", lines[0])
    told = [re.fullmatch(r" +(\d+) +\+(?:\d+ ms|\d\.\d s)  (\w+) *(.*)", line) for line in lines[1:]]
    assert [(match[1], match[2], match[3]) for match in told if match] == [
        ("1", "RunCreated", "payment@1 · by bob"),
        ("2", "NodeScheduled", "receive"),
        ("3", "NodeStarted", "receive"),
        ("4", "NodeCompleted", 'receive → transfer · {"amount":42}'),
        ("5", "NodeScheduled", "transfer"),
        ("6", "NodeStarted", "transfer"),
        ("7", "NodeFailed", "transfer no such account [no_account]"),
        ("8", "DeadLettered", "transfer given up after 1 attempt"),
        ("9", "NodeFailed", "book node transfer failed [upstream_failed]"),
        ("10", "RunFailed", "transfer no such account [no_account]"),
    ]


def test_events_come_in_pages(shop: Shop) -> None:
    run_id = shop.failed()
    page = shop.json("runs", "events", run_id, "--after", "2", "--limit", "3")
    assert [event["seq"] for event in page["events"]] == [3, 4, 5]
    assert page["next"] == "5"
    assert shop.fine("runs", "events", run_id, "--after", "2", "--limit", "3").endswith("→ next page: --after 5\n")
    last = shop.json("runs", "events", run_id, "--after", "8")
    assert ([event["type"] for event in last["events"]], last["next"]) == (["NodeFailed", "RunFailed"], None)
    assert shop.fine("runs", "events", run_id, "--after", "10") == "no events behind that one\n"


def test_events_are_followed_to_the_end(shop: Shop) -> None:
    run_id = shop.start({"name": "nap", "nodes": [{"id": "a", "type": "sleep", "config": {"ms": 300}}]})
    told = shop("runs", "events", run_id, "--follow", "--json")
    assert told.code == main.OK
    events = [json.loads(line) for line in told.out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "RunCompleted"
    text = shop.fine("runs", "events", run_id, "-f", "--after", "1")
    assert "RunCreated" not in text and text.splitlines()[-1].endswith("RunCompleted")


def test_the_way_a_run_went(shop: Shop) -> None:
    run_id = shop.failed()
    assert shop.fine("runs", "path", run_id).splitlines() == [
        "NODE      VISIT  STATUS     WENT",
        "receive       1  COMPLETED  → transfer",
        "transfer      1  FAILED",
        "  no such account [no_account]",
        "book          1  FAILED",
        "  node transfer failed [upstream_failed]",
    ]
    assert shop.json("runs", "path", run_id)[0] == {
        "node": "receive",
        "visit": 1,
        "status": "COMPLETED",
        "went": ["transfer"],
        "why": "",
        "reads": {},
    }
    assert shop.json("runs", "path", run_id, "--at", "4") == shop.json("runs", "path", run_id)[:1]
    assert shop.fine("runs", "path", run_id, "--at", "1") == "nothing has happened yet\n"


def test_the_tokens_of_a_run(shop: Shop) -> None:
    run_id = shop.asking()
    assert shop.fine("runs", "path", run_id, "--tokens").splitlines() == [
        "FROM   TO      VISIT  HOP",
        "build  review      1    2",
    ]
    assert shop.json("runs", "path", run_id, "--tokens") == [{"from": "build", "to": "review", "visit": 1, "hop": 2}]
    assert shop.fine("runs", "path", shop.failed(), "--tokens") == "no token is under way\n"


@pytest.mark.parametrize("command", [("why",), ("runs", "why")])
def test_why_a_run_failed(shop: Shop, command: tuple[str, ...]) -> None:
    run_id = shop.failed()
    told = shop.fine(*command, run_id)
    assert told.splitlines()[0] == "the run failed at transfer with no_account: no such account"
    assert "✗ transfer  the first cause\n  error  no such account [no_account]\n" in told
    assert "1 node behind it failed with it and never began: book\n" in told
    assert told.endswith(f"→ tidemill runs retry {run_id}\n")
    found = shop.json(*command, run_id)
    assert found["first_cause"]["error"]["code"] == "no_account"
    assert found["command"] == f"tidemill runs retry {run_id}"


def test_why_a_run_waits_for_people(shop: Shop) -> None:
    run_id = shop.asking()
    told = shop.fine("why", run_id)
    assert told.startswith("review waits for people")
    assert "◷ review  person\n" in told
    assert matches(rf"^  since       {MOMENT}$", told)
    assert matches(r"^  until       in 4 h \(", told)
    assert "  approvers   user:ada, role:ops\n" in told
    assert f"  how         tidemill approvals decide {run_id} review" in told
    (person, *_) = shop.json("why", run_id)["blockers"]
    assert (person["kind"], person["node"], person["quorum"]) == ("person", "review", 2)
    assert person["command"].startswith(f"tidemill approvals decide {run_id} review")


def test_commands_that_are_recommended_name_the_store(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = shop.failed()
    monkeypatch.delenv("TIDEMILL_STORE")
    assert shop.fine("why", run_id, "--store", shop.url).endswith(
        f"→ tidemill runs retry {run_id} --store {shop.url}\n"
    )
    assert f"→ tidemill runs why {run_id} --store {shop.url}" in shop.fine("runs", "show", run_id, "--store", shop.url)


def test_a_run_with_an_odd_name_is_quoted_in_commands(shop: Shop) -> None:
    shop.failed(key="order 7; rm *")
    assert shop.fine("why", "order 7; rm *").endswith("→ tidemill runs retry 'order 7; rm *'\n")
    assert "→ tidemill runs why 'order 7; rm *'\n" in shop.fine("runs", "show", "order 7; rm *")


def test_why_a_paused_run_waits(shop: Shop) -> None:
    run_id = shop.asking()
    shop.mill.pause(run_id, reason="lunch")
    told = shop.fine("why", run_id)
    assert "the run is paused: lunch" in told
    assert f"  how      tidemill runs resume {run_id}\n" in told


def test_the_document_of_a_run_can_be_published_again(shop: Shop) -> None:
    run_id = shop.asking()
    found = shop.json("runs", "document", run_id)
    assert (found["workflow"], found["version"], found["revision"]) == ("release", 1, 0)
    text = shop.fine("runs", "document", run_id)
    assert text.splitlines()[:2] == [f"# release@1, {found['digest']}", "name: release"]
    again = shop.mill.publish(text)
    assert (again.version, again.created) == (1, False)


def test_runs_are_compared(shop: Shop) -> None:
    left, right = shop.failed(), shop.failed()
    assert shop.fine("runs", "compare", left, right).splitlines() == [
        f"left   {left}",
        f"right  {right}",
        "0 different, 3 nodes the same · the same outputs",
    ]
    shop.mill.override(right, "transfer", value={"paid": True})
    shop.until(right, lambda view: view.status == "COMPLETED")
    told = shop.fine("runs", "compare", left, right)
    assert matches(r"^transfer +status FAILED +status COMPLETED$", told)
    assert matches(r"^ +output null +output \{\"paid\":true\}$", told)
    assert told.splitlines()[-1] == "first difference at transfer · 2 different, 1 node the same · other outputs"
    found = shop.json("runs", "compare", left, right)
    assert (found["first_divergence"], found["outputs_same"]) == ("transfer", False)


def test_runs_of_different_graphs_are_compared(shop: Shop) -> None:
    told = shop.fine("runs", "compare", shop.failed(), shop.asking())
    assert matches(r"^build +\(not there\) +COMPLETED$", told)


def test_the_last_events(shop: Shop) -> None:
    run_id = shop.failed()
    whole = shop.json("runs", "events", run_id)["events"]
    assert shop.json("runs", "events", run_id, "--last", "2") == {"events": whole[-2:], "next": None}
    assert shop.json("runs", "events", run_id, "--last", "1000")["events"] == whole
    followed = shop("runs", "events", run_id, "--last", "2", "--follow", "--json").out.splitlines()
    assert [json.loads(line) for line in followed] == whole[-2:]


def test_a_run_that_failed_as_a_whole_is_listed_as_such(shop: Shop) -> None:
    nodes = [{"id": "a", "type": "value", "config": 1}]
    run_id = shop.start({"name": "odd", "nodes": nodes, "outputs": {"x": "{{ a.output.nothing.there }}"}})
    shop.until(run_id, lambda view: view.status == "FAILED")
    assert "  failed as a whole [" in shop.fine("runs", "list")


BOOKED = {
    "name": "trip",
    "nodes": [
        {
            "id": "hotel",
            "type": "value",
            "config": 1,
            "compensator": {"type": "fail", "config": {"kind": "stuck", "message": "no answer"}},
        },
        {"id": "wait", "type": "signal", "dependencies": ["hotel"]},
    ],
}


def test_a_rollback_that_is_not_complete(shop: Shop) -> None:
    """People are told names of steps, the reason, and to try again; never to retry the run."""
    run_id = shop.start(BOOKED)
    shop.until(run_id, lambda view: view.nodes["wait"]["status"] == "WAITING")
    shop.fine("runs", "cancel", run_id)
    shop.fine("runs", "rollback", run_id)
    shop.until(run_id, lambda view: view.rollback["status"] == "partial")
    why, shown, events = (shop.fine("runs", verb, run_id) for verb in ("why", "show", "events"))
    for told in (why, shown, events):
        assert "hotel/1" not in told and "hotel" in told
    assert shown.endswith(f"→ tidemill runs why {run_id}\n") and "retry" not in shown
    assert "no answer [stuck]" in why and why.endswith(f"→ tidemill runs rollback {run_id}\n")
    assert matches(r" RollbackFinished       partial · not undone: hotel$", events)
    assert matches(r" CompensationScheduled  hotel", events)


def test_items_that_are_queued_together_are_one_range(shop: Shop) -> None:
    """A map that is retried is held until its items are let in, though there is no limit."""
    tries = {"attempts": "{{ 9 if item else 0 }}"}
    nodes = [{"id": "m", "type": "fail", "config": tries, "map": {"over": [0, 0, 1]}}]
    run_id = shop.start({"name": "many", "nodes": nodes})
    shop.until(run_id, lambda view: view.status == "FAILED")
    assert matches(r" NodeScheduled          m\[0…2\]$", shop.fine("runs", "events", run_id))
    shop.mill.retry(run_id)
    shop.until(run_id, lambda view: view.status == "FAILED" and view.nodes["m"]["items"]["done"] > 0)
    told = shop.fine("runs", "events", run_id)
    assert "held back" in told and "max_parallel" not in told


def test_programs_are_told_an_index_of_items_only(shop: Shop) -> None:
    failed, asked = shop.failed(), shop.asking()
    (letter,) = shop.json("dlq", "list")["dead_letters"]
    (approval,) = shop.json("approvals", "list")["approvals"]
    assert letter["index"] is approval["index"] is None
    assert shop.json("why", failed)["first_cause"]["index"] is None
    assert {blocker["index"] for blocker in shop.json("why", asked)["blockers"]} == {None}


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs", "show", "nope"),
        ("runs", "state", "nope", "--at", "1"),
        ("runs", "events", "nope"),
        ("runs", "events", "nope", "--follow"),
        ("runs", "path", "nope"),
        ("runs", "path", "nope", "--tokens"),
        ("runs", "why", "nope"),
        ("why", "nope"),
        ("runs", "document", "nope"),
        ("runs", "compare", "nope", "nope"),
    ],
)
def test_a_run_that_is_not_there_is_refused(shop: Shop, arguments: tuple[str, ...]) -> None:
    assert [problem["code"] for problem in shop.refused(*arguments)] == ["run_unknown"]
