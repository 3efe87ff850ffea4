"""Every act on a run or an approval in the browser: what it would do is said first, and what came of it is true."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.web.conftest import NewPage, Watch
from tests.web.screens import open_screen
from tests.web.server import Server

WAITS = {
    "name": "waits",
    "nodes": [
        {"id": "first", "type": "value", "config": "begun"},
        {"id": "courier", "type": "signal", "config": {"name": "courier"}, "dependencies": ["first"]},
        {"id": "left", "type": "value", "config": "{{ courier }}", "dependencies": ["courier"]},
    ],
}
BOOKED = {
    "name": "booked",
    "nodes": [
        {
            "id": "book",
            "type": "value",
            "config": "seat 12",
            "compensator": {"type": "value", "config": "given back"},
        },
        {"id": "pay", "type": "fail", "config": {"message": "no money"}, "dependencies": ["book"]},
    ],
}


@pytest.fixture
def waiting(server: Server) -> str:
    server.publish(WAITS)
    run_id = server.start("waits")
    server.until_node(run_id, "courier", "WAITING")
    return run_id


def more(page: Page, act: str) -> Locator:
    """Choose an act from the menu; its dialog."""
    page.get_by_role("group", name="Actions", exact=True).get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name=re.compile(f"^{act}")).click()
    return page.get_by_role("dialog")


def shot(page: Page, name: str) -> None:
    if folder := os.environ.get("SHOTS"):
        page.wait_for_timeout(400)
        page.screenshot(path=Path(folder, f"{name}.png"))


def finish(dialog: Locator, verb: str, reason: str = "tried by hand") -> None:
    expect(dialog).to_contain_text("What happens")
    shot(dialog.page, f"act-{verb.lower().replace(' ', '-')}")
    if dialog.get_by_label(re.compile("^Reason")).count():
        dialog.get_by_label(re.compile("^Reason")).fill(reason)
    dialog.get_by_role("button", name=verb, exact=True).click()
    expect(dialog).to_have_count(0)


def reasons(server: Server, run_id: str) -> list[Any]:
    return [event.get("reason") for event in server.get(f"/runs/{run_id}/events?limit=1000")["items"]]


def test_pause_and_resume(page: Page, server: Server, waiting: str) -> None:
    open_screen(page, server, f"/runs/{waiting}")
    page.get_by_role("button", name="Pause", exact=True).click()
    finish(page.get_by_role("dialog", name="Pause the run"), "Pause")
    assert server.until(waiting, "PAUSED") and "tried by hand" in reasons(server, waiting)
    expect(page.get_by_text("paused").first).to_be_visible()
    shot(page, "paused")
    page.get_by_role("button", name="Resume", exact=True).first.click()
    finish(page.get_by_role("dialog", name="Resume the run"), "Resume")
    server.until(waiting, "RUNNING")
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()


def test_signal(page: Page, server: Server, waiting: str) -> None:
    open_screen(page, server, f"/runs/{waiting}")
    shot(page, "waiting")
    page.get_by_role("button", name="Send the signal").first.click()
    dialog = page.get_by_role("dialog", name="Send a signal")
    expect(dialog.get_by_label("Name")).to_have_value("courier")
    expect(dialog).to_contain_text("courier takes it and continues")
    dialog.get_by_role("textbox", name="Payload").click()
    page.keyboard.type('{"name": ')
    expect(dialog).to_contain_text("not JSON yet")
    expect(dialog.get_by_role("button", name="Send", exact=True)).to_be_disabled()
    shot(page, "signal-not-json")
    page.keyboard.type('"Kim"}')
    finish(dialog, "Send")
    assert server.until(waiting, "COMPLETED")["nodes"]["left"]["output"] == {"name": "Kim"}


def test_settle_by_hand_and_skip(page: Page, server: Server, waiting: str) -> None:
    open_screen(page, server, f"/runs/{waiting}?node=courier")
    page.get_by_role("button", name="Settle by hand").click()
    dialog = page.get_by_role("dialog", name="Settle courier by hand")
    dialog.get_by_role("textbox", name="Output").click()
    page.keyboard.type('"by bicycle"')
    expect(dialog).to_contain_text("Continues with: left")
    finish(dialog, "Settle")
    assert server.until(waiting, "COMPLETED")["nodes"]["left"]["output"] == "by bicycle"
    other = server.start("waits")
    server.until_node(other, "courier", "WAITING")
    open_screen(page, server, f"/runs/{other}?node=courier")
    page.get_by_role("button", name="Skip", exact=True).click()
    dialog = page.get_by_role("dialog", name="Skip courier")
    expect(dialog).to_contain_text("left")
    finish(dialog, "Skip")
    expect(page.get_by_role("button", name=re.compile("^courier ?, signal, skipped"))).to_be_visible()
    shot(page, "skipped")


def test_rewind(page: Page, server: Server, waiting: str) -> None:
    open_screen(page, server, f"/runs/{waiting}?node=first")
    page.get_by_role("button", name="Rewind to here").click()
    dialog = page.get_by_role("dialog", name="Rewind the run to first")
    expect(dialog).to_contain_text("courier")
    finish(dialog, "Rewind")
    again = server.until_node(waiting, "courier", "WAITING", visits=2)
    assert again["nodes"]["first"]["visits"] == 2
    expect(page.get_by_role("button", name=re.compile("^courier ?, signal, waiting"))).to_be_visible()
    shot(page, "rewound")


def test_cancel_and_retry(page: Page, server: Server, waiting: str) -> None:
    open_screen(page, server, f"/runs/{waiting}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    finish(page.get_by_role("dialog", name="Cancel the run"), "Cancel the run")
    assert server.until(waiting, "CANCELLED")["status"] == "CANCELLED"
    page.get_by_role("group", name="Actions", exact=True).get_by_role("button", name="Retry").click()
    finish(page.get_by_role("dialog", name="Retry the run"), "Retry")
    assert server.until(waiting, "RUNNING")["status"] == "RUNNING"


def test_roll_back(page: Page, server: Server) -> None:
    server.publish(BOOKED)
    run_id = server.start("booked")
    server.until(run_id, "FAILED")
    open_screen(page, server, f"/runs/{run_id}")
    dialog = more(page, "Roll back")
    expect(dialog).to_contain_text("Undoes, in this order: book")
    finish(dialog, "Roll back")
    expect(page.get_by_text("rolled back").first).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^book ?, value, rolled back"))).to_be_visible()
    shot(page, "rolled-back")
    # What is not possible now is said, with the way that is.
    page.get_by_role("group", name="Actions", exact=True).get_by_role("button", name="Retry").hover()
    expect(page.get_by_role("tooltip")).to_contain_text("fork it, or start a new one")


@pytest.mark.parametrize("happened", [True, False])
def test_unknown_outcome(page: Page, server: Server, happened: bool) -> None:
    run_id = server.start("supplier-payout", {"account": "DE02", "amount": 5})
    server.until(run_id, "FAILED")
    open_screen(page, server, f"/runs/{run_id}")
    shot(page, "unknown")
    page.get_by_role("button", name="Say what happened").first.click()
    dialog = page.get_by_role("dialog", name=re.compile("^Did .* happen"))
    verb = "Settle with its result" if happened else "Run it again"
    dialog.get_by_label(re.compile("^It happened" if happened else "^It did not happen")).check()
    if happened:
        dialog.get_by_role("textbox", name="Its result").click()
        page.keyboard.type('{"transfer": "T-1"}')
    finish(dialog, verb)
    if happened:
        server.until(run_id, "COMPLETED")
    else:
        assert "tried by hand" in reasons(server, run_id)


def test_fork_while_travelling_in_time(page: Page, server: Server, waiting: str) -> None:
    server.post(f"/runs/{waiting}/signal", {"name": "courier"})
    events = server.until(waiting, "COMPLETED")["events"]
    open_screen(page, server, f"/runs/{waiting}?at={events - 4}")
    page.get_by_role("button", name="Fork from this moment").click()
    dialog = page.get_by_role("dialog", name="Fork the run")
    expect(dialog.get_by_label(re.compile("up to event"))).to_be_checked()
    finish(dialog, "Fork")
    expect(page).not_to_have_url(re.compile(waiting))
    expect(page).not_to_have_url(re.compile("at="))
    forked = page.url.partition("/runs/")[2].partition("?")[0]
    assert server.run(forked)["forked_from"] == [waiting, events - 4]
    shot(page, "forked")
    # And from a step, as it was then.
    open_screen(page, server, f"/runs/{waiting}?at={events - 1}&node=courier")
    page.get_by_role("button", name="Fork from here").click()
    finish(page.get_by_role("dialog", name="Fork the run"), "Fork")
    expect(page).not_to_have_url(re.compile(waiting))


def test_two_tabs_patch_the_same_run(new_page: NewPage, server: Server, waiting: str, watch: Watch) -> None:
    watch.expected.append("409 (Conflict)")
    one, other = new_page(), new_page()
    for page in (one, other):
        open_screen(page, server, f"/runs/{waiting}")
        dialog = more(page, "Patch")
        editor = dialog.get_by_role("textbox", name="Document of the run")
        expect(editor).to_contain_text("courier")
        editor.click()
        page.keyboard.press("Control+f")
        page.keyboard.type("{{ courier }}")
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        page.keyboard.type("by train" if page is one else "by ship")
        dialog.get_by_role("button", name="See what it does").click()
        expect(dialog.get_by_role("group", name="What the patch does")).to_contain_text("left")
    for page in (one, other):
        page.get_by_role("dialog").get_by_role("button", name=re.compile("^Apply")).click()
        if page is one:
            expect(page.get_by_role("dialog")).to_have_count(0)
    dialog = other.get_by_role("dialog")
    expect(dialog.get_by_role("alert")).to_be_visible()
    shot(other, "raced-patch")
    dialog.get_by_role("button", name="Compare mine with the new document").click()
    expect(dialog).to_contain_text("by train")
    shot(other, "raced-patch-compared")
    assert server.run(waiting)["revision"] == 1


def test_request_changes_and_delegate(page: Page, server: Server) -> None:
    run_id = server.start("lead-triage", {"message": "What is the price of 10 seats?"})
    approval = server.approval(run_id)["approval_id"]
    open_screen(page, server, f"/approvals/{approval}")
    shot(page, "approval")
    page.get_by_role("button", name="Delegate", exact=True).click()
    dialog = page.get_by_role("dialog", name="Delegate the decision")
    dialog.get_by_label("Person").fill("grace")
    shot(page, "delegate")
    dialog.get_by_role("button", name="Delegate", exact=True).click()
    expect(page.get_by_role("main")).to_contain_text("grace")
    shot(page, "delegated")
    other = server.start("invoice-approval", {"number": "IN-8", "supplier": "Acme", "amount": 900})
    open_screen(page, server, f"/approvals/{server.approval(other)['approval_id']}")
    changes = page.get_by_role("button", name="Request changes")
    changes.click()
    # A reason is wanted.
    expect(page.get_by_role("alert").or_(page.locator("[aria-invalid=true]")).first).to_be_visible()
    shot(page, "changes-why")
    page.get_by_label(re.compile("Comment|Reason|Why", re.IGNORECASE)).first.fill("say the discount, too")
    changes.click()
    expect(page.get_by_role("main")).to_contain_text(re.compile("changes", re.IGNORECASE))
    shot(page, "changes")
