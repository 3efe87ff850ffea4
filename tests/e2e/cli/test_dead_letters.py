"""`tidemill dlq`: what was given up on, and what people do about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fixtures.cli_store import PAYMENT, CliStore
from tidemill.cli import main


def codes(problems: list[dict[str, str]]) -> list[str]:
    return [problem["code"] for problem in problems]


@pytest.mark.parametrize(
    ("options", "number"),
    [
        (("--workflow", "payment"), 2),
        (("--workflow", "other"), 0),
        (("--code", "no_account"), 2),
        (("--code", "exception"), 0),
        (("--run", "one"), 1),
        (("--status", "discarded"), 0),
        (("--limit", "1"), 1),
    ],
)
def test_dead_letters_are_found(cli_store: CliStore, options: tuple[str, ...], number: int) -> None:
    for key in ("one", "two"):
        cli_store.failed(key=key)
    found = cli_store.json("dlq", "list", *options)
    assert len(found["dead_letters"]) == number
    assert (found["next"] is not None) == ("--limit" in options)


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


def test_a_refusal_is_told_beside_its_run(cli_store: CliStore, tmp_path: Path) -> None:
    run_id = cli_store.failed()
    patch = tmp_path / "patch.json"
    patch.write_text(json.dumps([{"op": "replace", "path": "/nodes/receive/config", "value": 1}]))
    ended = cli_store("dlq", "retry", "--run", run_id, "--patch", str(patch))
    assert (ended.code, ended.err) == (main.REFUSED, "")
    told = ended.out.splitlines()
    assert told[1] == f"{run_id}        1  refused"
    assert told[2].startswith("  ") and told[2].endswith("]")
    assert told[3] == "→ 1 dead letter in 1 run, 0 retried"
    assert cli_store("dlq", "retry", "--run", run_id, "--patch", str(patch), "--json").code == main.REFUSED
    cli_store.fine("dlq", "retry", "--run", run_id, "--patch", str(patch), "--dry-run")


def test_runs_that_refuse_do_not_spoil_the_others(cli_store: CliStore) -> None:
    """A tolerated failure has a letter too, and its run, which completed, is not retried."""
    tolerant = {**PAYMENT, "name": "tolerant", "nodes": [{**PAYMENT["nodes"][1], "dependencies": []}]}
    tolerant["nodes"][0] |= {"on_error": "continue"}
    failed = cli_store.failed(key="failed")
    for number in range(2):
        run_id = cli_store.start(tolerant, key=f"fine-{number}")
        cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    found = cli_store.json("dlq", "retry", "--node", "transfer", "--limit", "1")
    results = {run["run_id"]: run["result"] for run in found["runs"]}
    assert results == {failed: "retried", "fine-0": "refused", "fine-1": "refused"}
    assert (found["matched"], found["more"]) == (3, False)


def test_a_corrected_config(cli_store: CliStore) -> None:
    run_id = cli_store.failed()
    cli_store.fine("dlq", "retry", "--run", run_id, "--node", "transfer", "--config", '{"attempts": 0}')
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    assert cli_store.mill.document(run_id).revision == 1
