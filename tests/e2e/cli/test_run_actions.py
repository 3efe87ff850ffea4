"""`tidemill runs …`: what can be done to a run, and how it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.cli_store import CliStore

UNDO: dict[str, Any] = {
    "name": "undoable",
    "nodes": [
        {"id": "a", "type": "value", "config": 1, "compensator": {"type": "value", "config": "undone"}},
        {"id": "b", "type": "value", "config": 2, "dependencies": ["a"]},
    ],
}


def last_event(cli_store: CliStore, run_id: str, kind: str) -> dict[str, Any]:
    return [event for event in cli_store.mill.events(run_id) if event["type"] == kind][-1]


def codes(problems: list[dict[str, str]]) -> list[str]:
    return [problem["code"] for problem in problems]


def test_retry_lets_a_run_go_on(cli_store: CliStore) -> None:
    flow = {"name": "flaky", "nodes": [{"id": "a", "type": "fail", "config": {"attempts": 1, "value": "up"}}]}
    run_id = cli_store.start(flow)
    cli_store.until(run_id, lambda view: view.status == "FAILED")
    assert cli_store.fine("runs", "retry", run_id, "--reason", "once more").startswith("✓ retried; run ")
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    assert last_event(cli_store, run_id, "RunRetried")["reason"] == "once more"
    assert codes(cli_store.refused("runs", "retry", run_id)) == ["run_completed"]


def test_rewind(cli_store: CliStore) -> None:
    run_id = cli_store.asking()
    assert cli_store.fine("runs", "rewind", run_id, "build") == f"✓ rewound to build; run {run_id} is RUNNING\n"
    cli_store.until(run_id, lambda view: view.nodes["review"]["visits"] == 2)
    told = cli_store.fine("runs", "events", run_id)
    assert "RunRewound             build again: build, review · by " in told
    assert codes(cli_store.refused("runs", "rewind", run_id, "nope")) == ["node_unknown"]
    assert codes(cli_store.refused("runs", "rewind", cli_store.failed(), "receive")) == ["run_ended"]


@pytest.mark.parametrize(
    ("value", "payload"),
    [((), None), (('{"when": "now"}',), {"when": "now"}), (("hello",), "hello"), (("@payload.yaml",), {"a": [1]})],
)
def test_signal(
    cli_store: CliStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: tuple[str, ...], payload: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("payload.yaml").write_text("a: [1]\n")
    run_id = cli_store.agreed()
    told = cli_store.fine("runs", "signal", run_id, "go", *value, "--key", "s-1")
    assert told == "✓ signal go was sent: s-1\n"
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    assert cli_store.mill.show(run_id).outputs == {"ship": payload}


@pytest.mark.parametrize(
    ("options", "status", "output"),
    [
        (("--value", '{"paid": true}'), "COMPLETED", {"paid": True}),
        (("--value", "null"), "COMPLETED", None),
        (("--value", "by hand"), "COMPLETED", "by hand"),
        (("--skip",), "SKIPPED", None),
    ],
)
def test_override(cli_store: CliStore, options: tuple[str, ...], status: str, output: Any) -> None:
    run_id = cli_store.failed()
    cli_store.fine("runs", "override", run_id, "transfer", *options, "--reason", "seen to")
    node = cli_store.mill.show(run_id).nodes["transfer"]
    assert (node["status"], node["output"]) == (status, output)
    assert last_event(cli_store, run_id, "NodeOverridden")["reason"] == "seen to"


def test_rollback(cli_store: CliStore) -> None:
    run_id = cli_store.start(UNDO)
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    assert cli_store.fine("runs", "rollback", run_id).startswith("✓ rollback asked for; run ")
    cli_store.until(run_id, lambda view: view.rollback["status"] == "done")
    assert "rollback  done\n" in cli_store.fine("runs", "show", run_id)
    assert codes(cli_store.refused("runs", "rollback", cli_store.failed())) == ["nothing_to_roll_back"]


def test_fork(cli_store: CliStore, tmp_path: Path) -> None:
    run_id = cli_store.failed()
    patch = tmp_path / "patch.json"
    patch.write_text(json.dumps([{"op": "replace", "path": "/nodes/transfer/type", "value": "value"}]))
    options = ("--node", "transfer", "--patch", str(patch), "--label", "try=2", "--key", "second")
    assert cli_store.fine("runs", "fork", run_id, *options) == "second\n"
    cli_store.until("second", lambda view: view.status == "COMPLETED")
    assert cli_store.mill.show("second").labels == {"try": "2"}
    assert f"forked from  {run_id} after event " in cli_store.fine("runs", "show", "second")
    third = cli_store.json("runs", "fork", run_id, "--at", "4")
    assert third["forked_from"] == run_id
    cli_store.until(third["run_id"], lambda view: view.status == "FAILED")


def test_fork_with_other_inputs(cli_store: CliStore) -> None:
    run_id = cli_store.start(
        {"name": "echo", "nodes": [{"id": "a", "type": "value", "config": "{{ inputs.n }}"}]}, {"n": 1}
    )
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    new = cli_store.fine("runs", "fork", run_id, "--node", "a", "-i", "n=2").strip()
    cli_store.until(new, lambda view: view.status == "COMPLETED")
    assert cli_store.mill.show(new).outputs == {"a": 2}


def test_patch_says_what_it_would_do_and_then_does_it(cli_store: CliStore) -> None:
    run_id = cli_store.failed()
    change = ("runs", "patch", run_id, "--set", "/nodes/transfer/config/attempts=0", "--retry")
    planned = cli_store.fine(*change, "--dry-run").splitlines()
    assert planned[0] == "○ this patch can be applied; nothing was done"
    assert planned[1:6] == [
        "  added    —",
        "  removed  —",
        "  changed  transfer",
        "  re-run   transfer",
        "  kept     receive",
    ]
    assert cli_store.mill.show(run_id).events == 10
    done = cli_store.fine(*change, "--publish", "-m", "the account is there")
    assert done.startswith(f"✓ patched; run {run_id} is at revision 1\n")
    assert done.endswith("→ published as payment@2\n")
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    assert "payment@1+1" in cli_store.fine("runs", "show", run_id)
    assert "RunPatched             revision 1 · changed transfer · the account is there" in cli_store.fine(
        "runs", "events", run_id
    )


def test_a_dry_run_on_a_failed_run_says_that_retry_is_needed(cli_store: CliStore) -> None:
    run_id = cli_store.failed()
    change = ("runs", "patch", run_id, "--set", "/nodes/transfer/type=value")
    shown = cli_store.fine(*change, "--dry-run")
    assert shown.startswith("○ this patch can be applied; nothing was done\n")
    assert "  re-run   transfer\n" in shown
    assert shown.endswith("→ the run has ended: add --retry to apply the patch and let the run continue\n")
    assert "--retry" not in cli_store.fine(*change, "--dry-run", "--retry")
    assert [cli_store.json(*change, "--dry-run", *more)["needs_retry"] for more in ((), ("--retry",))] == [True, False]
    assert codes(cli_store.refused(*change)) == ["patch_needs_retry"]
    assert cli_store.mill.show(run_id).events == 10


def test_patch_from_a_file_as_json(cli_store: CliStore, tmp_path: Path) -> None:
    run_id = cli_store.asking()
    patch = tmp_path / "patch.yaml"
    patch.write_text("- {op: add, path: /nodes/late, value: {type: value, config: 1}}\n")
    outcome = cli_store.json("runs", "patch", run_id, str(patch), "--set", "/nodes/ship/config=other", "--dry-run")
    assert outcome["applied"] is False
    assert (outcome["added"], outcome["changed"], outcome["kept"]) == (["late"], ["ship"], ["build"])
    assert outcome["published"] is None


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), "option_invalid"),
        (("--set", "nodes=1"), "option_invalid"),
        (("--set", "/nodes/transfer/type"), "option_invalid"),
        (("--set", "/nodes/transfer/type=valeu", "--retry"), "unknown_node_type"),
        (("--set", "/nodes/receive/config=1", "--retry"), "patch_finished_node"),
        (("--set", "/nodes/transfer/config/attempts=0"), "patch_needs_retry"),
        (("--set", "/nodes/transfer/config/attempts=0", "--retry", "--base", "sha256:x"), "patch_stale"),
        (("--set", "/nodes/transfer/config/attempts=0", "--retry", "--expect", "3"), "patch_stale"),
        (("nope.json",), "file_missing"),
        (("mapping.json",), "patch_invalid"),
        (("broken.json",), "json_syntax"),
        (("latin.json",), "not_utf8"),
        (("operation.json", "--retry"), "patch_invalid"),
    ],
)
def test_a_patch_is_refused(
    cli_store: CliStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mapping.json").write_text("{}")
    Path("broken.json").write_text("[")
    Path("latin.json").write_bytes(b'["\xff"]')
    Path("operation.json").write_text('[{"op": "paint", "path": "/x"}]')
    run_id = cli_store.failed()
    assert codes(cli_store.refused("runs", "patch", run_id, *options))[0] == code
    assert cli_store.mill.show(run_id).events == 10


def test_reasons_that_cannot_be_kept_are_refused(cli_store: CliStore) -> None:
    run_id = cli_store.asking()
    assert codes(cli_store.refused("runs", "pause", run_id, "--reason", "x" * 5000)) == ["text_invalid"]
