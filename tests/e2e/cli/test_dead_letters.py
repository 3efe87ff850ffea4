"""`tidemill dlq`: what was given up on, and what people do about it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fixtures.cli_store import CliStore
from tidemill.cli import main


def test_runs_are_retried_together_after_a_repair(cli_store: CliStore, tmp_path: Path) -> None:
    runs = sorted(cli_store.failed(key=key) for key in ("one", "two"))
    planned = cli_store.fine("dlq", "retry", "--workflow", "payment", "--dry-run").splitlines()
    assert planned[0].split() == ["RUN", "LETTERS", "RESULT"]
    assert sorted(planned[1:3]) == ["one        1  would retry", "two        1  would retry"]
    assert planned[3] == "→ 2 dead letters in 2 runs, 2 would be retried"
    patch = tmp_path / "patch.json"
    patch.write_text(json.dumps([{"op": "replace", "path": "/nodes/transfer/type", "value": "value"}]))
    done = cli_store.json("dlq", "retry", "--code", "no_account", "--patch", str(patch), "--reason", "repaired")
    assert done["matched"] == 2
    assert sorted((run["run_id"], run["result"]) for run in done["runs"]) == [(name, "retried") for name in runs]
    for name in runs:
        cli_store.until(name, lambda view: view.status == "COMPLETED")
    assert cli_store.fine("dlq", "retry", "--workflow", "payment") == "no open dead letter matches\n"


def test_the_only_dead_letter_of_a_run_needs_no_node(cli_store: CliStore) -> None:
    run_id = cli_store.failed()
    assert cli_store.fine("dlq", "show", run_id) == cli_store.fine("dlq", "show", run_id, "transfer")
    first = {"id": "a", "type": "fail"}
    several = cli_store.start({"name": "several", "nodes": [first, {**first, "id": "b", "dependencies": ["a"]}]})
    for node in "ab":
        cli_store.until(several, lambda view: view.status == "FAILED")
        assert cli_store.fine("dlq", "show", several) == cli_store.fine("dlq", "show", several, node)
        cli_store.fine("runs", "override", several, node, "--value", "1")
    cli_store.until(several, lambda view: view.status == "COMPLETED")
    refused = cli_store("dlq", "show", several)
    assert "2 nodes of this run have a dead letter: " in refused.err and f"dlq show {several} " in refused.err
    fine = cli_store.start({"name": "fine", "nodes": [{"id": "a", "type": "value"}]})
    cli_store.until(fine, lambda view: view.status == "COMPLETED")
    assert "this run has no dead letter" in cli_store("dlq", "show", fine).err


def test_what_is_set_repairs_every_run(cli_store: CliStore) -> None:
    runs = [cli_store.failed(key=key) for key in ("three", "four")]
    cli_store.fine("dlq", "retry", "--workflow", "payment", "--set", "/nodes/transfer/type=value")
    for name in runs:
        cli_store.until(name, lambda view: view.status == "COMPLETED")
        assert cli_store.mill.document(name).document["nodes"][1]["type"] == "value@1"


def test_a_fork_is_changed_by_set(cli_store: CliStore) -> None:
    forked = cli_store.json(
        "runs", "fork", cli_store.failed(), "--node", "transfer", "--set", "/nodes/transfer/type=value"
    )
    cli_store.until(forked["run_id"], lambda view: view.status == "COMPLETED")
    assert cli_store.mill.show(forked["forked_from"]).status == "FAILED", "the other run is left as it is"
    compared = cli_store.fine("runs", "compare", forked["forked_from"], forked["run_id"])
    assert "error no such account [no_account]" in compared


def test_the_letter_of_a_run_that_was_rolled_back_recommends_a_fork(cli_store: CliStore) -> None:
    """Such a run is never reopened, so no retry is recommended."""
    paid = {"id": "pay", "type": "value", "config": 1, "compensator": {"type": "value", "config": 2}}
    last = {"id": "last", "type": "fail", "dependencies": ["pay"]}
    flow = {"name": "undone", "nodes": [paid, last], "on_failure": {"compensate": "automatic"}}
    run_id = cli_store.start(flow)
    cli_store.until(run_id, lambda view: view.rollback["status"] == "done")
    shown = cli_store.fine("dlq", "show", run_id, "last")
    assert f"→ tidemill runs fork {run_id} --node NODE" in shown
    assert f"→ tidemill dlq discard {run_id} last" in shown
    assert "dlq retry" not in shown
    refused = cli_store("dlq", "retry", "--run", run_id)
    assert "stays as it is: tidemill runs fork RUN --node NODE" in refused.out
    assert "to close its dead letter: tidemill dlq discard RUN NODE" in refused.out
    planned = cli_store("dlq", "retry", "--run", run_id, "--dry-run")
    assert planned.code == refused.code == main.REFUSED, "a rehearsal ends like the real call"
    assert planned.out == refused.out.replace("0 retried", "0 would be retried")
    cli_store.fine("dlq", "discard", run_id, "last")


def test_one_failed_item_has_one_letter(cli_store: CliStore) -> None:
    failing = {"id": "m", "type": "fail", "map": {"over": [1, 2], "tolerate": 1, "max_parallel": 1}}
    run_id = cli_store.start({"name": "mapped", "nodes": [failing]})
    cli_store.until(run_id, lambda view: view.status == "FAILED")
    assert "dead letters  1\n" in cli_store.fine("why", run_id)
    assert cli_store.json("dlq", "show", run_id, "m")["index"] == 1
    cli_store.fine("dlq", "discard", run_id, "m")
    assert cli_store.json("dlq", "list", "--run", run_id, "--status", "open")["dead_letters"] == []


def test_a_tolerated_item_is_no_dead_letter(cli_store: CliStore) -> None:
    failing = {"id": "m", "type": "fail", "map": {"over": [1], "tolerate": 1}}
    run_id = cli_store.start({"name": "tolerant", "nodes": [failing]})
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    assert "dead letters" not in cli_store.fine("why", run_id)
    assert cli_store.fine("dlq", "retry", "--run", run_id) == "no open dead letter matches\n"


def test_a_retry_names_the_tolerated_failures_that_it_leaves(cli_store: CliStore) -> None:
    items = {"id": "items", "type": "fail", "map": {"over": [1, 2], "tolerate": 2}}
    soft = {"id": "soft", "type": "fail", "on_error": "continue"}
    last = {"id": "last", "type": "fail", "dependencies": ["items", "soft"]}
    run_id = cli_store.start({"name": "tolerant", "nodes": [items, soft, last]})
    cli_store.until(run_id, lambda view: view.status == "FAILED")
    told = cli_store.fine("runs", "retry", run_id)
    assert "→ tolerated failures stay as they are: items (2 items), soft\n" in told
    assert f"→ to rerun one and everything downstream: tidemill runs rewind {run_id} items\n" in told
    cli_store.until(run_id, lambda view: view.status == "FAILED")
    assert cli_store.json("runs", "retry", run_id)["tolerated"] == {"items": 2, "soft": 0}
