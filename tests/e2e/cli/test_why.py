"""The command line says why a branch was taken, a loop went on or ended, a node was skipped."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.cli_store import CliStore
from tidemill.blobs.contract import digest_of

CREDIT: dict[str, Any] = {
    "name": "credit",
    "nodes": [
        {
            "id": "ask",
            "type": "value",
            "config": "{{ iteration }}",
            "loop": {"condition": "output < 1", "max_iterations": 5},
        },
        {
            "id": "score",
            "type": "value",
            "dependencies": ["ask"],
            "config": {"score": 85},
            "branch": {
                "rules": [
                    {"condition": "output.score > 90", "next_nodes": ["grant"]},
                    {"condition": "output.score > inputs.least", "next_nodes": ["review"]},
                ],
                "default": ["refuse"],
            },
        },
        {"id": "grant", "type": "value"},
        {"id": "review", "type": "value", "when": "inputs.least > 80"},
        {"id": "refuse", "type": "value"},
    ],
}
MATCHED = "rule 2 of 2 matched: output.score > inputs.least is true"
SKIPPED = "when: inputs.least > 80 is false"


@pytest.fixture
def run(cli_store: CliStore) -> str:
    """A credit that has been decided."""
    run_id = cli_store.start(CREDIT, {"least": 80})
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    return run_id


def test_events_say_why(cli_store: CliStore, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    said = [" ".join(line.split()) for line in cli_store.fine("runs", "events", run).splitlines()]
    for words in (
        "NodeCompleted ask the loop goes on: output < 1 is true · 0",
        "LoopContinued ask pass 2 begins at ask",
        "NodeCompleted ask#2 → score · the loop ended: output < 1 is false · 1",
        f"NodeCompleted score → review · {MATCHED}",
        f"NodeSkipped review {SKIPPED}",
    ):
        assert any(words in line for line in said), (words, said)


def test_events_hold_what_was_read(cli_store: CliStore, run: str) -> None:
    events = cli_store.json("runs", "events", run)["events"]
    (scored,) = [event for event in events if event["type"] == "NodeCompleted" and event["node"] == "score"]
    reads = [["output", digest_of(b'{"score":85}')], ["inputs", digest_of(b'{"least":80}')]]
    assert (scored["route"]["rule"], scored["route"]["reason"], scored["route"]["reads"]) == (1, MATCHED, reads)
    (skipped,) = [event for event in events if event["type"] == "NodeSkipped" and event["node"] == "review"]
    assert skipped["reads"] == reads[1:]


def test_the_path_and_the_run_say_why(cli_store: CliStore, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    path, shown = cli_store.fine("runs", "path", run), cli_store.fine("runs", "show", run)
    for words in (MATCHED, SKIPPED, "the loop ended: output < 1 is false", "no inbound edge was taken"):
        assert words in path and words in shown
    assert MATCHED not in cli_store.fine("runs", "show", run, "--at", "3")
    (step,) = [step for step in cli_store.json("runs", "path", run) if step["node"] == "score"]
    assert (step["why"], list(step["reads"])) == (MATCHED, ["output", "inputs"])


def test_why_a_node_went_its_way(cli_store: CliStore, run: str) -> None:
    assert cli_store.fine("why", run, "score").splitlines() == [
        f"score completed and went to review: {MATCHED}",
        "",
        "read    output " + digest_of(b'{"score":85}'),
        "        inputs " + digest_of(b'{"least":80}'),
        "before  ask#2 COMPLETED → score · the loop ended: output < 1 is false",
    ]
    assert cli_store.fine("why", run, "refuse").splitlines() == [
        "refuse was skipped: no inbound edge was taken",
        "",
        f"before  score COMPLETED → review · {MATCHED}",
    ]
    assert cli_store.fine("why", run, "ask").splitlines()[2:4] == [
        "visits  ask COMPLETED · the loop goes on: output < 1 is true",
        "        ask#2 COMPLETED → score · the loop ended: output < 1 is false",
    ]


def test_why_a_node_went_its_way_for_programs(cli_store: CliStore, run: str) -> None:
    found = cli_store.json("runs", "why", run, "review")
    assert (found["node"], found["status"], found["blockers"]) == ("review", "SKIPPED", [])
    assert found["headline"] == f"review was skipped: {SKIPPED}"
    assert found["visits"] == [
        {
            "node": "review",
            "visit": 1,
            "status": "SKIPPED",
            "went": [],
            "why": SKIPPED,
            "reads": {"inputs": digest_of(b'{"least":80}')},
        }
    ]
    assert [step["node"] for step in found["before"]] == ["score"]


def test_a_visit_that_happens_says_why(cli_store: CliStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    run_id = cli_store.start(CREDIT, {"least": 84})
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    reason, read = "when: inputs.least > 80 is true", digest_of(b'{"least":84}')
    lines = [line for line in cli_store.fine("runs", "events", run_id).splitlines() if "NodeStarted" in line]
    assert [reason in line for line in lines] == ["review" in line for line in lines]
    assert any(reason in line for line in lines)
    assert cli_store.fine("why", run_id, "review").splitlines()[:3] == [
        f"review completed: {reason}",
        "",
        f"read    inputs {read}",
    ]


def test_why_a_node_waits(cli_store: CliStore) -> None:
    run_id = cli_store.asking()
    text, found = cli_store.fine("why", run_id, "review"), cli_store.json("why", run_id, "review")
    assert text.startswith("review waits for people")
    assert f"tidemill approvals decide {run_id} review approve" in text
    assert found["blockers"][0]["command"].startswith(f"tidemill approvals decide {run_id}")
    assert found["blockers"][0]["index"] is None
    assert cli_store.json("why", run_id, "ship")["headline"].startswith("ship waits for go")


def test_a_node_that_is_not_there(cli_store: CliStore, run: str) -> None:
    (problem,) = cli_store.refused("why", run, "scroe")
    assert (problem["code"], "score" in problem["hint"]) == ("node_unknown", True)
