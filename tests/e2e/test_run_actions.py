"""`tidemill runs …`: what can be done to a run, and how it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.cli_store import Shop

UNDO: dict[str, Any] = {
    "name": "undoable",
    "nodes": [
        {"id": "a", "type": "value", "config": 1, "compensator": {"type": "value", "config": "undone"}},
        {"id": "b", "type": "value", "config": 2, "dependencies": ["a"]},
    ],
}


def last_event(shop: Shop, run_id: str, kind: str) -> dict[str, Any]:
    return [event for event in shop.mill.events(run_id) if event["type"] == kind][-1]


def codes(problems: list[dict[str, str]]) -> list[str]:
    return [problem["code"] for problem in problems]


def test_retry_lets_a_run_go_on(shop: Shop) -> None:
    flow = {"name": "flaky", "nodes": [{"id": "a", "type": "fail", "config": {"attempts": 1, "value": "up"}}]}
    run_id = shop.start(flow)
    shop.until(run_id, lambda view: view.status == "FAILED")
    assert shop.fine("runs", "retry", run_id, "--reason", "once more").startswith("✓ retried; run ")
    shop.until(run_id, lambda view: view.status == "COMPLETED")
    assert last_event(shop, run_id, "RunRetried")["reason"] == "once more"
    assert codes(shop.refused("runs", "retry", run_id)) == ["run_completed"]


def test_rewind(shop: Shop) -> None:
    run_id = shop.asking()
    assert shop.fine("runs", "rewind", run_id, "build") == f"✓ rewound to build; run {run_id} is RUNNING\n"
    shop.until(run_id, lambda view: view.nodes["review"]["visits"] == 2)
    told = shop.fine("runs", "events", run_id)
    assert "RunRewound             build again: build, review · by " in told
    assert codes(shop.refused("runs", "rewind", run_id, "nope")) == ["node_unknown"]
    assert codes(shop.refused("runs", "rewind", shop.failed(), "receive")) == ["run_ended"]


@pytest.mark.parametrize(
    ("value", "payload"),
    [((), None), (('{"when": "now"}',), {"when": "now"}), (("hello",), "hello"), (("@payload.yaml",), {"a": [1]})],
)
def test_signal(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: tuple[str, ...], payload: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("payload.yaml").write_text("a: [1]\n")
    run_id = shop.agreed()
    told = shop.fine("runs", "signal", run_id, "go", *value, "--key", "s-1")
    assert told == "✓ signal go was sent: s-1\n"
    shop.until(run_id, lambda view: view.status == "COMPLETED")
    assert shop.mill.show(run_id).outputs == {"ship": payload}


@pytest.mark.parametrize(
    ("options", "status", "output"),
    [
        (("--value", '{"paid": true}'), "COMPLETED", {"paid": True}),
        (("--value", "null"), "COMPLETED", None),
        (("--value", "by hand"), "COMPLETED", "by hand"),
        (("--skip",), "SKIPPED", None),
    ],
)
def test_override(shop: Shop, options: tuple[str, ...], status: str, output: Any) -> None:
    run_id = shop.failed()
    shop.fine("runs", "override", run_id, "transfer", *options, "--reason", "seen to")
    node = shop.mill.show(run_id).nodes["transfer"]
    assert (node["status"], node["output"]) == (status, output)
    assert last_event(shop, run_id, "NodeOverridden")["reason"] == "seen to"


def test_rollback(shop: Shop) -> None:
    run_id = shop.start(UNDO)
    shop.until(run_id, lambda view: view.status == "COMPLETED")
    assert shop.fine("runs", "rollback", run_id).startswith("✓ rollback asked for; run ")
    shop.until(run_id, lambda view: view.rollback["status"] == "done")
    assert "rollback  done\n" in shop.fine("runs", "show", run_id)
    assert codes(shop.refused("runs", "rollback", shop.failed())) == ["nothing_to_roll_back"]


def test_fork(shop: Shop, tmp_path: Path) -> None:
    run_id = shop.failed()
    patch = tmp_path / "patch.json"
    patch.write_text(json.dumps([{"op": "replace", "path": "/nodes/transfer/type", "value": "value"}]))
    options = ("--node", "transfer", "--patch", str(patch), "--label", "try=2", "--key", "second")
    assert shop.fine("runs", "fork", run_id, *options) == "second\n"
    shop.until("second", lambda view: view.status == "COMPLETED")
    assert shop.mill.show("second").labels == {"try": "2"}
    assert f"forked from  {run_id} after event " in shop.fine("runs", "show", "second")
    third = shop.json("runs", "fork", run_id, "--at", "4")
    assert third["forked_from"] == run_id
    shop.until(third["run_id"], lambda view: view.status == "FAILED")


def test_fork_with_other_inputs(shop: Shop) -> None:
    run_id = shop.start({"name": "echo", "nodes": [{"id": "a", "type": "value", "config": "{{ inputs.n }}"}]}, {"n": 1})
    shop.until(run_id, lambda view: view.status == "COMPLETED")
    new = shop.fine("runs", "fork", run_id, "--node", "a", "-i", "n=2").strip()
    shop.until(new, lambda view: view.status == "COMPLETED")
    assert shop.mill.show(new).outputs == {"a": 2}


def test_patch_says_what_it_would_do_and_then_does_it(shop: Shop) -> None:
    run_id = shop.failed()
    change = ("runs", "patch", run_id, "--set", "/nodes/transfer/config/attempts=0", "--retry")
    planned = shop.fine(*change, "--dry-run").splitlines()
    assert planned[0] == "○ this patch can be applied; nothing was done"
    assert planned[1:6] == [
        "  added    —",
        "  removed  —",
        "  changed  transfer",
        "  re-run   transfer",
        "  kept     receive",
    ]
    assert shop.mill.show(run_id).events == 10
    done = shop.fine(*change, "--publish", "-m", "the account is there")
    assert done.startswith(f"✓ patched; run {run_id} is at revision 1\n")
    assert done.endswith("→ published as payment@2\n")
    shop.until(run_id, lambda view: view.status == "COMPLETED")
    assert "payment@1+1" in shop.fine("runs", "show", run_id)
    assert "RunPatched             revision 1 · changed transfer · the account is there" in shop.fine(
        "runs", "events", run_id
    )


def test_a_dry_run_on_a_failed_run_says_that_retry_is_needed(shop: Shop) -> None:
    run_id = shop.failed()
    change = ("runs", "patch", run_id, "--set", "/nodes/transfer/type=value")
    shown = shop.fine(*change, "--dry-run")
    assert shown.startswith("○ this patch can be applied; nothing was done\n")
    assert "  re-run   transfer\n" in shown
    assert shown.endswith("→ the run has ended: add --retry to apply the patch and let the run continue\n")
    assert "--retry" not in shop.fine(*change, "--dry-run", "--retry")
    assert [shop.json(*change, "--dry-run", *more)["needs_retry"] for more in ((), ("--retry",))] == [True, False]
    assert codes(shop.refused(*change)) == ["patch_needs_retry"]
    assert shop.mill.show(run_id).events == 10


def test_patch_from_a_file_as_json(shop: Shop, tmp_path: Path) -> None:
    run_id = shop.asking()
    patch = tmp_path / "patch.yaml"
    patch.write_text("- {op: add, path: /nodes/late, value: {type: value, config: 1}}\n")
    outcome = shop.json("runs", "patch", run_id, str(patch), "--set", "/nodes/ship/config=other", "--dry-run")
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
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mapping.json").write_text("{}")
    Path("broken.json").write_text("[")
    Path("latin.json").write_bytes(b'["\xff"]')
    Path("operation.json").write_text('[{"op": "paint", "path": "/x"}]')
    run_id = shop.failed()
    assert codes(shop.refused("runs", "patch", run_id, *options))[0] == code
    assert shop.mill.show(run_id).events == 10


def test_reasons_that_cannot_be_kept_are_refused(shop: Shop) -> None:
    run_id = shop.asking()
    assert codes(shop.refused("runs", "pause", run_id, "--reason", "x" * 5000)) == ["text_invalid"]
