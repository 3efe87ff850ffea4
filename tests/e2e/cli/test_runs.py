"""`tidemill runs`: finding runs and looking at them, in text and as JSON."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from tests.fixtures.cli_store import PAYMENT, RELEASE, CliStore
from tests.fixtures.command_line import EXAMPLES, process
from tidemill.cli import main
from tidemill.errors import Rejected


def matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.MULTILINE) is not None


def test_looking_at_a_store_that_is_not_there_makes_none(tmp_path: Path) -> None:
    looked = process("runs", "list", cwd=tmp_path, env={"TIDEMILL_STORE": ""})
    assert looked.code == main.REFUSED
    assert "there is no store tidemill.db [store_missing]" in looked.err
    assert list(tmp_path.iterdir()) == []


def test_show_prints_the_same_object_as_run(cli_store: CliStore) -> None:
    ran = cli_store("run", str(EXAMPLES / "hello.yaml"), "--json").json
    assert cli_store.json("runs", "show", ran["run_id"]) == ran


def test_long_outputs_are_clipped_in_text_only(cli_store: CliStore) -> None:
    run_id = cli_store.start({"name": "long", "nodes": [{"id": "a", "type": "value", "config": "word " * 1000}]})
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    row = next(line for line in cli_store.fine("runs", "show", run_id).splitlines() if line.startswith("✓"))
    assert len(row) <= 120 and row.endswith("…")
    assert cli_store.json("runs", "show", run_id)["nodes"]["a"]["output"] == "word " * 1000


def test_a_run_of_many_nodes_shows_those_that_matter(cli_store: CliStore) -> None:
    nodes = [{"id": f"n{number}", "type": "value"} for number in range(250)]
    run_id = cli_store.start({"name": "wide", "nodes": [*nodes, {"id": "bad", "type": "fail", "on_error": "continue"}]})
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    shown = cli_store.fine("runs", "show", run_id)
    assert "!  bad " in shown
    assert "→ and 51 more nodes; --json shows them all" in shown


def test_events_are_followed_to_the_end(cli_store: CliStore) -> None:
    run_id = cli_store.start({"name": "nap", "nodes": [{"id": "a", "type": "sleep", "config": {"ms": 300}}]})
    told = cli_store("runs", "events", run_id, "--follow", "--json")
    assert told.code == main.OK
    events = [json.loads(line) for line in told.out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "RunCompleted"
    text = cli_store.fine("runs", "events", run_id, "-f", "--after", "1")
    assert "RunCreated" not in text and text.splitlines()[-1].endswith("RunCompleted")


def test_commands_that_are_recommended_name_the_store(cli_store: CliStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = cli_store.failed()
    monkeypatch.delenv("TIDEMILL_STORE")
    assert cli_store.fine("why", run_id, "--store", cli_store.url).endswith(
        f"→ tidemill runs retry {run_id} --store {cli_store.url}\n"
    )
    assert f"→ what to do about it: tidemill why {run_id} --store {cli_store.url}" in cli_store.fine(
        "runs", "show", run_id, "--store", cli_store.url
    )


def test_a_run_with_an_odd_name_is_quoted_in_commands(cli_store: CliStore) -> None:
    cli_store.failed(key="order 7; rm *")
    assert cli_store.fine("why", "order 7; rm *").endswith("→ tidemill runs retry 'order 7; rm *'\n")
    assert "→ what to do about it: tidemill why 'order 7; rm *'\n" in cli_store.fine("runs", "show", "order 7; rm *")


def test_the_document_of_a_run_can_be_published_again(cli_store: CliStore) -> None:
    run_id = cli_store.asking()
    found = cli_store.json("runs", "document", run_id)
    assert (found["workflow"], found["version"], found["revision"]) == ("release", 1, 0)
    text = cli_store.fine("runs", "document", run_id)
    assert text.splitlines()[:2] == [f"# release@1, {found['digest']}", "name: release"]
    again = cli_store.mill.publish(text)
    assert (again.version, again.created) == (1, False)


def test_a_run_that_failed_as_a_whole_is_listed_as_such(cli_store: CliStore) -> None:
    nodes = [{"id": "a", "type": "value", "config": 1}]
    run_id = cli_store.start({"name": "odd", "nodes": nodes, "outputs": {"x": "{{ a.output.nothing.there }}"}})
    cli_store.until(run_id, lambda view: view.status == "FAILED")
    assert "  failed as a whole: " in cli_store.fine("runs", "list")
    cli_store.failed()
    assert "  failed at transfer: no such account [no_account]\n" in cli_store.fine("runs", "list", "workflow:payment")


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


def test_a_rollback_that_is_not_complete(cli_store: CliStore) -> None:
    """People are told names of steps, the reason, and to try again; never to retry the run."""
    run_id = cli_store.start(BOOKED)
    cli_store.until(run_id, lambda view: view.nodes["wait"]["status"] == "WAITING")
    cli_store.fine("runs", "cancel", run_id)
    cli_store.fine("runs", "rollback", run_id)
    cli_store.until(run_id, lambda view: view.rollback["status"] == "partial")
    why, shown, events = (cli_store.fine("runs", verb, run_id) for verb in ("why", "show", "events"))
    for told in (why, shown, events):
        assert "hotel/1" not in told and "hotel" in told
    assert shown.endswith(f"→ what to do about it: tidemill why {run_id}\n") and "retry" not in shown
    assert matches(r"not undone: hotel\n +hotel: no answer \[stuck\]$", shown)
    of_node = cli_store.fine("runs", "why", run_id, "hotel")
    assert of_node.startswith("hotel completed") and "; undoing it failed: no answer [stuck]" in of_node
    assert "no answer [stuck]" in why and why.endswith(f"→ tidemill runs rollback {run_id}\n")
    assert matches(r" RollbackFinished       partial · not undone: hotel$", events)
    assert matches(r" CompensationScheduled  hotel", events)


def test_items_that_wait_for_the_same_are_told_once(cli_store: CliStore) -> None:
    nodes = [{"id": "m", "type": "signal", "config": {"name": "go"}, "map": {"over": [1, 2, 3]}}]
    run_id = cli_store.start({"name": "wide", "nodes": nodes})
    cli_store.until(run_id, lambda _: cli_store.json("why", run_id)["counts"].get("signal") == 3)
    told = cli_store.fine("why", run_id)
    assert told.count("unblock") == 1 and matches(r"^◷ m\[0\] and 2 more items  signal$", told), told


UNSURE = {
    "name": "unsure",
    "nodes": [
        {
            "id": "charge",
            "type": "sleep",
            "config": {"seconds": 60},
            "timeout_seconds": 0.1,
            "delivery": "at_most_once",
            "compensator": {"type": "value", "config": "{{ output }} given back"},
        },
    ],
}


def test_an_unknown_outcome_is_settled_and_then_undone(cli_store: CliStore) -> None:
    run_id = cli_store.start(UNSURE)
    cli_store.until(run_id, lambda view: view.status == "FAILED")
    cli_store.fine("runs", "rollback", run_id)
    cli_store.until(run_id, lambda view: view.rollback["status"] == "partial")
    shown, why = cli_store.fine("runs", "show", run_id), cli_store.fine("why", run_id)
    assert matches(r"not undone: charge\n +charge: its outcome is unknown: settle it, then roll back again$", shown)
    assert why.endswith(f"→ tidemill runs override {run_id} charge --value VALUE\n")
    refused = cli_store("runs", "rollback", run_id).err
    assert "[outcome_unknown]" in refused and "tidemill runs override RUN NODE --value VALUE" in refused
    cli_store.fine("runs", "override", run_id, "charge", "--value", "9")
    assert cli_store.fine("why", run_id).endswith(f"→ tidemill runs rollback {run_id}\n")
    cli_store.fine("runs", "rollback", run_id)
    cli_store.until(run_id, lambda view: view.rollback["status"] == "done")
    assert "9 given back" in cli_store.fine("runs", "events", run_id)


def test_an_item_that_is_skipped_is_named(cli_store: CliStore) -> None:
    config = {"seconds": "{{ item }}"}
    nodes = [{"id": "load", "type": "sleep", "map": {"over": [0, 0, -1], "max_parallel": 1}, "config": config}]
    run_id = cli_store.start({"name": "batch", "nodes": nodes})
    cli_store.until(run_id, lambda view: view.status == "FAILED")
    told = cli_store.fine("runs", "override", run_id, "load", "--item", "2", "--skip")
    assert told.startswith("✓ item 2 of load is skipped; run ")


def test_items_that_are_queued_together_are_one_range(cli_store: CliStore) -> None:
    """A map that is retried is held until its items are let in, though there is no limit."""
    tries = {"attempts": "{{ 9 if item else 0 }}"}
    nodes = [{"id": "m", "type": "fail", "config": tries, "map": {"over": [0, 0, 1]}}]
    run_id = cli_store.start({"name": "many", "nodes": nodes})
    cli_store.until(run_id, lambda view: view.status == "FAILED")
    assert matches(r" NodeScheduled          m\[0…2\]$", cli_store.fine("runs", "events", run_id))
    cli_store.mill.retry(run_id)
    cli_store.until(run_id, lambda view: view.status == "FAILED" and view.nodes["m"]["items"]["done"] > 0)
    told = cli_store.fine("runs", "events", run_id)
    assert "held back" in told and "max_parallel" not in told


def test_failed_items_of_a_completed_map_are_told(cli_store: CliStore) -> None:
    config = {"attempts": "{{ 0 if item else 9 }}", "message": "no {{ index }}", "kind": "odd"}
    nodes = [{"id": "m", "type": "fail", "config": config, "map": {"over": [1, 0, 0, 0, 0], "tolerate": 4}}]
    run_id = cli_store.start({"name": "some", "nodes": nodes})
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    told = cli_store.json("why", run_id, "m")["headline"]
    assert told == "m completed; 4 of its 5 items failed: [1] no 1; [2] no 2; [3] no 3; …"


def test_a_rewind_names_the_nodes_that_there_are(cli_store: CliStore) -> None:
    run_id = cli_store.start({"name": "asleep", "nodes": [{"id": "nap", "type": "sleep", "config": {"seconds": 600}}]})
    (problem,) = cli_store.refused("runs", "rewind", run_id, "npa")
    assert (problem["code"], problem["hint"]) == ("node_unknown", "did you mean `nap`?")


def test_a_failure_that_was_handled_is_not_shown_as_the_failure_of_the_run(cli_store: CliStore) -> None:
    nodes = [
        {"id": "pay", "type": "fail", "config": {"kind": "declined", "message": "no"}, "on_error": {"route": ["tell"]}},
        {"id": "tell", "type": "value", "config": 1},
        {"id": "one", "type": "value", "map": {"over": [1]}},
    ]
    run_id = cli_store.start({"name": "handled", "nodes": nodes})
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    shown = cli_store.fine("runs", "show", run_id)
    assert matches(r"^!  pay +tolerated .* no \[declined\]$", shown)
    assert "1 tolerated" in shown and "FAILED" not in shown
    assert matches(r"NodeExpanded +one 1 item$", cli_store.fine("runs", "events", run_id))


def test_retry_lets_a_run_go_on(cli_store: CliStore) -> None:
    flow = {"name": "flaky", "nodes": [{"id": "a", "type": "fail", "config": {"attempts": 1, "value": "up"}}]}
    run_id = cli_store.start(flow)
    cli_store.until(run_id, lambda view: view.status == "FAILED")
    assert cli_store.fine("runs", "retry", run_id, "--reason", "once more").startswith("✓ retried; run ")
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    assert [event["reason"] for event in cli_store.mill.events(run_id) if event["type"] == "RunRetried"] == [
        "once more"
    ]


# Queries


def test_runs_are_listed_and_counted_by_a_query(cli_store: CliStore) -> None:
    paid = cli_store.start(PAYMENT, key="pay", labels={"customer": "acme"})
    asked = cli_store.start(RELEASE, key="ask", labels={"customer": "acme corp"})
    cli_store.until(paid, lambda view: view.status == "FAILED")
    cli_store.until(asked, lambda view: bool(view.waiting_for))

    def listed(*arguments: str) -> list[str]:
        found = [row["run_id"] for row in cli_store.json("runs", "list", *arguments)["runs"]]
        assert cli_store.json("runs", "count", *arguments) == {"count": len(found)}
        return found

    assert listed("status:failed", "label.customer=acme", "started>-2h") == ["pay"]
    assert listed("status:failed label.customer=acme started>-2h") == ["pay"]
    assert listed("waiting:approval") == listed('label.customer="acme corp"') == ["ask"]
    assert sorted(listed("--since", "2h")) == sorted(listed("--since", "-2h")) == ["ask", "pay"]
    assert listed("started<-2h") == []
    assert listed("status:failed", "--workflow", "release") == []
    assert listed("--status", "failed", "-l", "customer=acme", "--term", "workflow:payment") == ["pay"]
    assert cli_store.fine("runs", "count", "live") == "1\n"


@pytest.mark.parametrize(
    ("arguments", "path", "hint"),
    [
        (["statuss:failed"], "/query:1", "did you mean `status`?"),
        (["live", "status:faild"], "/query:6", "did you mean `failed`?"),
        (["--term", "statuss:FAILED"], "/terms/0", "did you mean `status`?"),
        (["--since", "soon"], "/since", "write -2h"),
    ],
)
@pytest.mark.parametrize("command", ["list", "count"])
def test_a_mistyped_query_is_not_an_empty_list(
    cli_store: CliStore, command: str, arguments: list[str], path: str, hint: str
) -> None:
    (problem,) = cli_store.refused("runs", command, *arguments)
    assert problem["path"] == path and hint in problem["hint"]


def test_a_run_is_named_by_the_beginning_of_its_id_or_as_the_last(cli_store: CliStore) -> None:
    first, second = cli_store.failed(key="order-17"), cli_store.failed(key="order-18")
    assert cli_store.json("runs", "show", "order-17")["run_id"] == first
    assert cli_store.json("runs", "show", "@last")["run_id"] == second
    engine_made = cli_store.failed()
    for beginning in (engine_made[:20], engine_made[:-1], "@last"):
        assert cli_store.json("runs", "show", beginning)["run_id"] == engine_made
        assert f"run {engine_made} is FAILED" in cli_store.fine("runs", "relabel", beginning, "-l", "seen=yes")
    assert cli_store.json("why", "@last")["command"] == f"tidemill runs retry {engine_made}"
    assert cli_store.json("runs", "compare", "order-17", "@last")["right"] == engine_made
    assert [row["run_id"] for row in cli_store.json("dlq", "list", "--run", "@last")["dead_letters"]] == [engine_made]
    (problem,) = cli_store.refused("runs", "show", "order")
    assert (problem["code"], "order-17, order-18" in problem["hint"]) == ("run_ambiguous", True)
    (problem,) = cli_store.refused("runs", "show", "nobody")
    assert problem["code"] == "run_unknown"
    (problem,) = cli_store.refused("runs", "show", "@lst")
    assert (problem["code"], problem["hint"]) == ("run_unknown", "the newest run is @last")


def test_children_are_counted_beside_their_parents_and_ended_runs_have_a_duration(cli_store: CliStore) -> None:
    cli_store.mill.publish({"name": "kid", "nodes": [{"id": "a", "type": "value"}]})
    items = {"over": [1, 2, 3]}
    parent = {"id": "kids", "type": "workflow", "config": {"workflow": "kid"}, "map": items}
    run_id = cli_store.start({"name": "family", "nodes": [parent]})
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    heads, row, note = cli_store.fine("runs", "list", "--limit", "1").splitlines()
    assert heads.split() == ["RUN", "STATUS", "WORKFLOW", "STARTED", "TOOK"]
    assert row.startswith(run_id) and matches(r"(ms|s)$", row)
    assert note.strip() == "3 child runs"
    assert [row["run_id"] for row in cli_store.json("runs", "list")["runs"]] == [run_id]
    assert len(cli_store.json("runs", "list", "--children")["runs"]) == 4
    assert len([line for line in cli_store.fine("runs", "list", "--children").splitlines() if "COMPLETED" in line]) == 4
    assert len(cli_store.fine("runs", "list", "--workflow", "kid").splitlines()) == 4, "they are asked for"
    assert len(cli_store.fine("runs", "list", "--term", f"parent:{run_id}").splitlines()) == 4
    assert len(cli_store.fine("runs", "list", f"parent:{run_id[:30]}").splitlines()) == 4
    assert cli_store("runs", "count", "parent:nobody").err.startswith("✗ there is no run nobody [run_unknown]")


def test_what_counts_and_bulk_actions_are_about_is_what_the_list_shows(cli_store: CliStore) -> None:
    cli_store.mill.publish({"name": "kid", "nodes": [{"id": "a", "type": "fail"}]})
    calm = {"id": "kids", "type": "workflow", "config": {"workflow": "kid"}, "map": {"over": [1, 2]}}
    calm_id = cli_store.start(
        {"name": "calm", "nodes": [{**calm, "on_error": "continue", "map": {"over": [1, 2], "tolerate": 2}}]}
    )
    family = cli_store.start({"name": "family", "nodes": [calm]})
    cli_store.until(calm_id, lambda view: view.status == "COMPLETED")
    cli_store.until(family, lambda view: view.status == "FAILED")
    for given, number in (((), 1), (("--children",), 5), (("workflow:kid",), 4), ((f"root:{calm_id}",), 2)):
        query = ("status:failed", *given)
        assert cli_store.json("runs", "count", *query)["count"] == number
        assert cli_store.json("runs", "summary", *query)["facets"]["counted"] == number
        assert cli_store.json("runs", "failures", *query)["counted"] == number
        acted = json.loads(cli_store("runs", "bulk", "retry", *query, "--dry-run", "--json").out)
        listed = cli_store.json("runs", "list", *query)
        assert [run["run_id"] for run in acted["runs"]] == [run["run_id"] for run in listed["runs"]]
        assert len(listed["runs"]) == number
    assert [run["run_id"] for run in cli_store.json("runs", "list", "status:failed")["runs"]] == [family]
    assert "left out; --children includes them" in cli_store.fine("runs", "bulk", "retry", "status:failed", "--dry-run")
    assert [row.run_id for row in cli_store.mill.runs("status:failed top")] == [family]
    assert cli_store.mill.count("top") == 2 and cli_store.mill.count("top", since="1h") == 2


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("approvals", "approve"), "tidemill approvals decide RUN NODE approve"),
        (("runs", "stop"), "tidemill runs cancel RUN"),
        (("runs", "publish"), "tidemill publish"),
        (("logs",), "tidemill runs logs"),
        (("runs", "shwo"), "'show'"),
    ],
)
def test_a_command_of_another_name_or_place_is_understood(
    cli_store: CliStore, arguments: tuple[str, ...], meant: str
) -> None:
    ended = cli_store(*arguments)
    assert ended.code == main.REFUSED
    assert "Did you mean" in ended.err and meant in ended.err


def test_a_traceback_is_shown_wherever_a_failure_is(cli_store: CliStore) -> None:
    run_id = cli_store.start(
        {
            "name": "broken",
            "nodes": [
                {"id": "a", "type": "python", "config": {"function": "json:loads", "args": {"s": "{"}}, "retry": 1},
                {"id": "b", "type": "value", "dependencies": ["a"]},
            ],
        }
    )
    cli_store.until(run_id, lambda view: view.status == "FAILED")
    for command in (("runs", "show"), ("why",), ("runs", "logs")):
        shown = cli_store.fine(*command, run_id)
        assert "Traceback (most recent call last):" in shown and "in loads" in shown, command
        assert "tidemill/" not in shown
    why = cli_store.fine("why", run_id)
    assert why.count("JSONDecodeError: Expecting") == 2, "in the head and at the end of the traceback"
    for command in (("dlq", "show"), ("why",)):
        assert "in loads" in cli_store.fine(*command, run_id, "a")
    shown = cli_store.fine("runs", "show", run_id)
    assert "1 failed, 1 not reached" in shown and matches(r"^○  b  not reached +node a failed$", shown)
    assert matches(r"^error +a: JSONDecodeError: .* \[exception\]$", shown)
    assert "in loads" in cli_store.json("runs", "show", run_id)["nodes"]["a"]["error"]["traceback"]


# Many runs at once


def test_an_action_on_all_runs_of_a_query(cli_store: CliStore) -> None:
    for key in ("pay-1", "pay-2"):
        cli_store.failed(key=key)
    cli_store.asking(key="ask-1")
    planned = cli_store.json("runs", "bulk", "retry", "status:failed", "workflow:payment", "--dry-run")
    assert sorted((run["run_id"], run["result"]) for run in planned["runs"]) == [
        ("pay-1", "would be done"),
        ("pay-2", "would be done"),
    ]
    (problem,) = cli_store.refused("runs", "bulk", "cancel", "live")
    assert problem["code"] == "confirmation_missing" and "--yes" in problem["hint"]
    assert cli_store.mill.show("ask-1").status == "RUNNING"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", None)  # It was closed.
        (problem,) = cli_store.refused("runs", "bulk", "cancel", "live")
    assert problem["code"] == "confirmation_missing"
    told = cli_store.fine("runs", "bulk", "cancel", "live", "--yes", "--reason", "closing time")
    assert "ask-1" in told and told.endswith("cancel: 1 of 1 run done\n")
    assert cli_store.mill.show("ask-1").status == "CANCELLED"
    told = cli_store.fine("runs", "bulk", "pause", "status:cancelled", "-y")
    assert told == "nothing was done\n→ 1 run skipped: pause has no effect\n"
    assert cli_store.fine("runs", "bulk", "cancel", "workflow:nothing", "-y").startswith("nothing was done")
    for query, said in (
        ("workflow:nothing", "nothing was done: no run matches\n"),
        ("status:cancelled", "nothing was done\n→ 1 run skipped: cancel has no effect\n"),
    ):
        assert cli_store.fine("runs", "bulk", "cancel", query) == said, "there is nothing to confirm"
    assert cli_store.json("runs", "bulk", "cancel", "workflow:nothing")["runs"] == []
    (problem,) = cli_store.refused("runs", "bulk", "cancel", "statuss:failed", "-y")
    assert "did you mean `status`?" in problem["hint"]


def test_a_query_and_a_known_action_are_needed(cli_store: CliStore) -> None:
    for action, query, code in (("cancel", " ", "query_empty"), ("explode", "live", "action_unknown")):
        with pytest.raises(Rejected) as refused:
            cli_store.mill.bulk(action, query)  # type: ignore[arg-type]
        assert refused.value.code == code


def test_a_run_shows_how_long_each_node_took(cli_store: CliStore) -> None:
    nodes = [
        {"id": "rest", "type": "sleep", "config": {"seconds": 0.3}},
        {"id": "end", "type": "value", "dependencies": ["rest"]},
        {"id": "no", "type": "value", "when": "false"},
    ]
    run_id = cli_store.start({"name": "timed", "nodes": nodes})
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    shown = cli_store.fine("runs", "show", run_id)
    assert re.search(r"✓  rest  COMPLETED +(?:[3-9]\d\d ms|\d+\.\d s)$", shown, re.MULTILINE)
    assert re.search(r"⊘  no    SKIPPED +[^\d ]", shown), "what never began took no time"


def test_what_is_done_later_does_not_lengthen_a_run(cli_store: CliStore) -> None:
    run_id = cli_store.failed()
    before = re.search(r"^took +(.+)$", cli_store.fine("runs", "show", run_id), re.MULTILINE)
    time.sleep(1.1)
    cli_store.fine("runs", "relabel", run_id, "--label", "seen=yes")
    after = re.search(r"^took +(.+)$", cli_store.fine("runs", "show", run_id), re.MULTILINE)
    assert before is not None and after is not None
    assert before[1] == after[1]


def test_every_failed_item_of_a_map_is_listed(cli_store: CliStore) -> None:
    config = {"message": "bad {{ item }}"}
    nodes = [{"id": "m", "type": "fail", "map": {"over": list(range(12)), "tolerate": 12}, "config": config}]
    run_id = cli_store.start({"name": "mapped", "nodes": nodes})
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    lines = cli_store.fine("runs", "show", run_id, "--failed-items", "m").splitlines()
    assert len(lines) == 13 and lines[-1].split() == ["11", "1", "bad", "11", "[failed]"]
    failed = cli_store.json("runs", "show", run_id, "--failed-items", "m")["failed"]
    assert [each["index"] for each in failed] == list(range(12))
    assert cli_store("runs", "show", run_id, "--failed-items", "n").code == main.REFUSED
    assert "stands alone" in cli_store("runs", "show", run_id, "--failed-items", "m", "--at", "2").err
