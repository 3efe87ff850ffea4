"""`tidemill approvals`: what people are asked, and their answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shop import Shop

PLAIN: dict[str, Any] = {
    "name": "plain",
    "nodes": [
        {"id": "ok", "type": "human", "config": {"title": "Fine?", "rejection_path": ["no"], "changes_path": ["redo"]}},
        {"id": "no", "type": "value", "config": "rejected"},
        {"id": "redo", "type": "value", "config": "changes"},
    ],
}


def codes(problems: list[dict[str, str]]) -> list[str]:
    return [problem["code"] for problem in problems]


def plain(shop: Shop) -> str:
    run_id = shop.start(PLAIN)
    shop.until(run_id, lambda view: view.nodes["ok"]["status"] == "WAITING")
    return run_id


def test_approvals_are_found_by_what_they_are(shop: Shop) -> None:
    release, other = shop.asking(), plain(shop)
    shop.mill.decide(other, "ok", "approve", actor="eve")

    def found(*options: str) -> list[str]:
        return sorted(row["run_id"] for row in shop.json("approvals", "list", *options)["approvals"])

    assert found() == [release]
    assert found("--status", "all") == sorted([release, other])
    assert found("--status", "decided") == [other]
    assert found("--approver", "user:ada") == [release]
    assert found("--approver", "anyone", "--status", "all") == [other]
    assert found("--run", other) == []
    assert found("--workflow", "release") == [release]
    shown = shop.fine("approvals", "list", "--status", "decided").splitlines()
    assert re.search(r"  ok  +approved  ", shown[1])
    assert re.fullmatch(r"  Fine\? · by user:eve (just now|\d s ago)", shown[2])
    cursor = shop.json("approvals", "list", "--status", "all", "--limit", "1")["next"]
    assert found("--status", "all", "--limit", "1", "--after", cursor) == [release]


def test_two_people_agree(shop: Shop) -> None:
    run_id = shop.asking()
    decide = ("approvals", "decide", run_id, "review", "approve")
    first = shop.fine(*decide, "--as", "ada", "-f", "window=night", "--comment", "fine")
    assert first == "✓ review: your vote counts, 1 of 2 agree so far\n"
    again = shop.fine(*decide, "--as", "ada", "-f", "window=night")
    assert again == first
    assert "agreed     user:ada\n" in shop.fine("approvals", "show", run_id, "review")
    second = shop.fine(*decide, "--as", "carl", "--role", "ops", "--form", "window=day", "--form", "count=3")
    assert second == "✓ review: approved by user:carl\n"
    output = shop.mill.show(run_id).nodes["review"]["output"]
    assert (output["decided_by"], output["form"]) == ("user:carl", {"window": "day", "count": 3})
    told = shop.fine("approvals", "show", run_id, "review")
    assert "decision   approved\n" in told and "decided    by user:carl " in told
    assert "→" not in told


def test_a_form_from_a_file(shop: Shop, tmp_path: Path) -> None:
    form = tmp_path / "form.yaml"
    form.write_text("window: day\ncount: 1\n")
    run_id = shop.asking()
    shop.fine("approvals", "decide", run_id, "review", "approve", "--as", "ada", "--form", f"@{form}", "-f", "count=2")
    assert shop.json("approvals", "show", run_id, "review")["votes"][0]["form"] == {"window": "day", "count": 2}


@pytest.mark.parametrize(
    ("verb", "words", "outputs"),
    [
        ("reject", "rejected", {"no": "rejected"}),
        ("changes", "changes requested", {"redo": "changes"}),
    ],
)
def test_other_decisions(shop: Shop, verb: str, words: str, outputs: Any) -> None:
    run_id = plain(shop)
    told = shop.fine("approvals", "decide", run_id, "ok", verb, "--as", "eve", "--reason", "not yet")
    assert told == f"✓ ok: {words} by user:eve\n"
    shop.until(run_id, lambda view: view.status == "COMPLETED")
    assert shop.mill.show(run_id).outputs == outputs
    shown = shop.json("approvals", "show", run_id, "ok")
    assert (shown["decision"], shown["comments"]) == (verb, "not yet")


def test_a_contrary_decision_is_a_conflict(shop: Shop) -> None:
    run_id = plain(shop)
    shop.fine("approvals", "decide", run_id, "ok", "reject", "--as", "eve")
    assert codes(shop.refused("approvals", "decide", run_id, "ok", "approve", "--as", "eve")) == ["decision_conflict"]


def test_items_of_a_map_are_decided_one_by_one(shop: Shop) -> None:
    flow = {
        "name": "many",
        "nodes": [
            {"id": "list", "type": "value", "config": ["a", "b"]},
            {"id": "ok", "type": "human", "dependencies": ["list"], "map": {"over": "{{ list.output }}"}},
        ],
    }
    run_id = shop.start(flow)
    shop.until(run_id, lambda view: len(shop.mill.approvals([f"run:{view.run_id}"])[0]) == 2)
    assert re.search(r"  ok item 1  pending  ", shop.fine("approvals", "list"))
    told = shop.fine("approvals", "show", run_id, "ok", "--item", "1")
    assert "node       ok, item 1\n" in told and told.endswith(f"decide {run_id} ok approve --item 1\n")
    for item in ("0", "1"):
        shop.fine("approvals", "decide", run_id, "ok", "approve", "--item", item, "--as", "eve")
    shop.until(run_id, lambda view: view.status == "COMPLETED")
