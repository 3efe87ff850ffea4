"""What people come for: find out why a run failed, go back in time, watch an agent, and all of it by keyboard."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.web.screens import open_screen
from tests.web.server import Server

BREAK_REPORT = [{"op": "replace", "path": "/nodes/convert/config/args/currency", "value": "EURO"}]


@pytest.fixture
def failed(server: Server) -> str:
    """A nightly report that failed for a currency that there is not."""
    server.post("/workflows/nightly-report/patch", {"operations": BREAK_REPORT, "message": "report in euros"})
    run_id = server.start("nightly-report", {"day": "Monday"})
    server.until(run_id, "FAILED")
    return run_id


def test_find_why_it_failed(page: Page, server: Server, failed: str) -> None:
    open_screen(page, server, "/runs?q=status:failed")
    page.get_by_role("row").filter(has_text=failed[-6:]).get_by_role("link", name="nightly-report").first.click()
    expect(page.get_by_role("heading", name="nightly-report", level=1)).to_be_visible()
    expect(page.get_by_text("Failed first at convert")).to_be_visible()
    step = page.get_by_role("complementary", name="Step convert")
    expect(step.get_by_role("tab", name="Error")).to_have_attribute("aria-selected", "true")
    error = step.get_by_role("region", name="Error")
    expect(error).to_contain_text("no exchange rate for 'EURO'; there are EUR, USD, GBP, CHF")
    expect(error).to_contain_text("KeyError: 'EURO'")
    expect(error).to_contain_text("convert_currency")
    expect(step).to_contain_text("2 attempts")
    step.get_by_role("tab", name="Logs").click()
    expect(step.get_by_role("log", name="Logs")).to_contain_text("converting 4 amounts to EURO")
    step.get_by_role("tab", name="Input").click()
    expect(step).to_contain_text("EURO")


def test_time_travel(page: Page, server: Server, failed: str) -> None:
    open_screen(page, server, f"/runs/{failed}?view=state")
    slider = page.get_by_role("slider", name="Event")
    last = int(slider.get_attribute("aria-valuemax") or slider.get_attribute("max") or 0)
    assert last == len(server.get(f"/runs/{failed}/events?limit=1000")["items"])
    slider.focus()
    page.keyboard.press("Home")
    expect(page).to_have_url(re.compile(r"at=1\b"))
    values = page.get_by_label("Values")
    expect(values).not_to_contain_text("north")
    page.get_by_role("tab", name="Graph").click()
    convert = page.get_by_role("button", name=re.compile(r"^convert, "))
    expect(convert).not_to_have_accessible_name(re.compile("failed", re.IGNORECASE))
    page.get_by_role("button", name="Back to now").click()
    expect(convert).to_have_accessible_name(re.compile("failed", re.IGNORECASE))
    expect(page).not_to_have_url(re.compile(r"at="))


def test_watch_an_agent(page: Page, server: Server) -> None:
    server.publish_demo("complaint-desk")
    run_id = server.start("complaint-desk", {"customer": "Ada", "complaint": "The desk came late."})
    page.goto(f"{server.url}/runs/{run_id}?node=answer&tab=transcript")
    step = page.get_by_role("complementary", name="Step answer")
    # The words of the turn under way come as they are streamed, long before the agent has ended.
    expect(step.get_by_role("region", name="Turn 1")).to_contain_text("I look for the orders")
    assert server.run(run_id)["status"] == "RUNNING"
    expect(step.get_by_role("region", name="Turn 1")).to_contain_text("execute_pipeline")
    expect(step.get_by_role("region", name="Turn 3")).to_contain_text("We are sorry", timeout=60_000)
    expect(step).to_contain_text("tokens")
    server.approval(run_id)


def test_a_run_changes_before_the_eyes(page: Page, server: Server) -> None:
    run_id = server.start("parcel-dispatch")
    open_screen(page, server, f"/runs/{run_id}?view=graph")
    dispatch = page.get_by_role("button", name=re.compile(r"^dispatch, "))
    expect(dispatch).to_have_accessible_name(re.compile("2 of 3 arrived, waiting for courier"))
    server.post(f"/runs/{run_id}/signal", {"name": "courier", "payload": {"name": "Kim"}})
    expect(dispatch).to_have_accessible_name(re.compile("succeeded", re.IGNORECASE))


def test_keyboard_only(page: Page, server: Server, failed: str) -> None:
    open_screen(page, server, "/runs")
    page.keyboard.press("/")
    page.keyboard.type("status:failed workflow:nightly-report")
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("q="))
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Failed first at convert")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("palette")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Control+k")
    page.keyboard.type("approvals")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/approvals"))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement !== document.body")
