"""What people come for: find out why a run failed, go back in time, watch an agent, and all of it by keyboard."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.web.conftest import PHONE, NewPage, Watch
from tests.web.screens import open_screen
from tests.web.server import Server, served, wait


@pytest.fixture
def failed(server: Server) -> str:
    """A nightly report that failed for a currency that there is not."""
    run_id = server.start("nightly-report", {"day": "Monday"})
    server.until(run_id, "FAILED")
    return run_id


def test_find_why_it_failed(page: Page, server: Server, failed: str) -> None:
    open_screen(page, server, "/runs?q=status:failed")
    page.locator(f'[role=row] a[href*="{failed}"]').click()
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
    convert = page.get_by_role("button", name=re.compile(r"^convert ?, "))
    expect(convert).not_to_have_accessible_name(re.compile("failed", re.IGNORECASE))
    page.get_by_role("button", name="Back to now").click()
    expect(convert).to_have_accessible_name(re.compile("failed", re.IGNORECASE))
    expect(page).not_to_have_url(re.compile(r"at="))


def test_watch_an_agent(page: Page, server: Server) -> None:
    run_id = server.start("complaint-desk", {"customer": "Ada", "complaint": "The desk came late."})
    page.goto(f"{server.url}/runs/{run_id}?node=answer&tab=transcript")
    step = page.get_by_role("complementary", name="Step answer")
    # The words of the turn under way come as they are streamed, long before the agent has ended.
    expect(step.get_by_role("region", name="Turn 1")).to_contain_text("I look for the orders")
    assert server.run(run_id)["status"] == "RUNNING"
    expect(step.get_by_role("region", name="Turn 1")).to_contain_text("execute_pipeline")
    expect(step.get_by_role("region", name="Turn 3")).to_contain_text("We are sorry", timeout=60_000)
    expect(step).to_contain_text("cached")
    # What it spends is told while it works, and in the list when the run has ended.
    expect(page.locator("header", has_text="Agents spent")).to_contain_text(re.compile(r"\$0\.00\d+ ?· [\d,]+ tokens"))
    server.post(f"/approvals/{server.approval(run_id)['approval_id']}/decide", {"decision": "approve"})
    server.until(run_id, "COMPLETED")
    open_screen(page, server, "/runs?q=workflow:complaint-desk status:completed")
    expect(page.get_by_role("columnheader", name="Spent")).to_be_visible()
    expect(page.locator("[role=row]", has=page.locator(f'a[href*="{run_id}"]'))).to_contain_text(re.compile(r"\$0\.00"))


def test_fix_and_continue(page: Page, server: Server, failed: str) -> None:
    open_screen(page, server, f"/runs/{failed}")
    page.get_by_role("complementary").get_by_role("button", name="Fix and continue").click()
    dialog = page.get_by_role("dialog", name=re.compile("Patch this run of nightly-report@"))
    editor = dialog.get_by_role("textbox", name="Document of the run")
    expect(editor).to_contain_text("currency")
    editor.click()
    # As a person would: find the wrong word, and write the right one.
    page.keyboard.press("Control+f")
    page.keyboard.type("EURO")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    page.keyboard.type("EUR")
    dialog.get_by_role("button", name="See what it does").click()
    verdict = dialog.get_by_role("group", name="What the patch does")
    expect(verdict).to_contain_text("convert")
    expect(dialog).to_contain_text("EURO")
    dialog.get_by_label(re.compile("What the patch is about")).fill("the currency is called EUR")
    dialog.get_by_role("button", name="Apply and retry").click()
    expect(page.get_by_role("button", name=re.compile("^publish ?, value, succeeded"))).to_be_visible()
    run = server.run(failed)
    assert run["status"] == "COMPLETED" and run["revision"] == 1


def test_a_patch_that_another_one_overtook(page: Page, server: Server, watch: Watch) -> None:
    watch.expected.append("409 (Conflict)")
    run_id = server.start("parcel-dispatch")
    open_screen(page, server, f"/runs/{run_id}")
    page.get_by_role("group", name="Actions", exact=True).get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name=re.compile("^Patch")).click()
    dialog = page.get_by_role("dialog")
    editor = dialog.get_by_role("textbox", name="Document of the run")
    expect(editor).to_contain_text("courier")
    operation = {"op": "replace", "path": "/nodes/dispatch/config", "value": "left by bicycle"}
    server.post(f"/runs/{run_id}/patch", {"operations": [operation], "message": "no courier"})
    editor.click()
    page.keyboard.press("Control+End")
    page.keyboard.type("\n# by train")
    dialog.get_by_role("button", name="See what it does").click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    expect(dialog.get_by_role("button", name="Compare mine with the new document")).to_be_visible()
    dialog.get_by_role("button", name="Begin again from the new document").click()
    expect(editor).to_contain_text("left by bicycle")


def test_fork(page: Page, server: Server) -> None:
    done = server.start("order-fulfilment", {"customer": "Ada"})
    server.until(done, "COMPLETED")
    open_screen(page, server, f"/runs/{done}?node=hand-over")
    page.get_by_role("button", name="Fork from here").click()
    dialog = page.get_by_role("dialog", name="Fork the run")
    expect(dialog).to_contain_text("hand-over")
    dialog.get_by_role("button", name="Fork", exact=True).click()
    expect(page).not_to_have_url(re.compile(done))
    forked = page.url.partition("/runs/")[2].partition("?")[0]
    assert done in str(server.until(forked, "COMPLETED")["forked_from"])


def test_a_run_that_succeeded_is_forked_as_a_whole(page: Page, server: Server) -> None:
    """Nothing of it is left: its fork would do nothing."""
    done = server.start("lead-triage", {"message": "Hello"})
    server.until(done, "COMPLETED")
    open_screen(page, server, f"/runs/{done}")
    page.get_by_role("group", name="Actions", exact=True).get_by_role("button", name="Fork").click()
    dialog = page.get_by_role("dialog", name="Fork the run")
    first = server.get(f"/runs/{done}?graph=true")["graph"]["entries"][0]
    expect(dialog.get_by_label("Runs again from")).to_have_value(first)
    expect(dialog.get_by_text("only what is left")).to_have_count(0)


def test_a_run_that_retries_says_what_failed(page: Page, server: Server) -> None:
    run_id = server.start("supplier-sync")
    server.until_node(run_id, "pull", "QUEUED")
    open_screen(page, server, f"/runs/{run_id}")
    header = page.get_by_role("main").locator("header").first
    expect(header).to_contain_text("ConnectionError Northwind does not answer")
    expect(header).to_contain_text("next attempt")


def test_a_letter_whose_run_was_rolled_back(page: Page, server: Server) -> None:
    """What cannot be reprocessed says why, and what to do instead."""
    run_id = server.start("trip-booking", {"city": "Lisbon"})
    server.until(run_id, "FAILED")
    open_screen(page, server, f"/dead-letters?q=run:{run_id}")
    page.get_by_role("row", name=re.compile("there is no car left")).first.click()
    page.get_by_role("dialog").get_by_role("button", name="Reprocess", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_have_count(1)
    expect(dialog).to_contain_text("Nothing can be reprocessed")
    expect(dialog).to_contain_text("Discard the letter, or open its run and fork it")


def test_start_a_run_from_a_form(page: Page, server: Server, watch: Watch) -> None:
    open_screen(page, server, "/start/invoice-approval")
    page.get_by_label(re.compile("Invoice number")).fill("2044")
    page.get_by_label(re.compile("Supplier")).fill("Northwind \N{SLIGHTLY SMILING FACE} \u05d0\u05d1\u05d2")
    page.get_by_label(re.compile("Amount")).fill("72.9")
    watch.expected += ["422", "400"]
    page.get_by_role("button", name="Start the run").click()
    expect(page.get_by_role("alert").first).to_be_visible()
    expect(page.get_by_label(re.compile("Invoice number"))).to_be_focused()
    # What is missing is asked for plainly; what is wrong says what it takes.
    page.get_by_label(re.compile("Supplier")).fill("")
    page.get_by_role("button", name="Start the run").click()
    expect(page.get_by_text("Please fill this in.", exact=True)).to_be_visible()
    expect(page.get_by_label(re.compile("Invoice number"))).to_be_focused()
    page.get_by_label(re.compile("Supplier")).fill("Northwind \N{SLIGHTLY SMILING FACE} \u05d0\u05d1\u05d2")
    page.get_by_label(re.compile("Invoice number")).fill("IN-2044")
    page.get_by_role("button", name="Start the run").click()
    expect(page.get_by_role("heading", name="invoice-approval", level=1)).to_be_visible()


def test_approve_on_a_phone(new_page: NewPage, server: Server, watch: Watch) -> None:
    watch.expected.append("422 (Unprocessable Entity)")
    run_id = server.start("invoice-approval", {"number": "IN-7", "supplier": "Acme Phones", "amount": 900})
    server.approval(run_id)
    page = new_page(viewport=PHONE, has_touch=True, is_mobile=True)
    open_screen(page, server, "/approvals")
    page.get_by_role("link", name=re.compile("Acme Phones")).tap()
    expect(page.get_by_role("heading", name="Pay 900 EUR to Acme Phones?")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    approve = page.get_by_role("button", name="Approve", exact=True)
    assert (approve.bounding_box() or {})["height"] >= 36
    approve.tap()
    expect(page.get_by_text("The form is not complete yet")).to_be_visible()
    page.get_by_label(re.compile("Which account pays")).select_option("Projects")
    approve.tap()
    expect(page.get_by_text("approved").first).to_be_visible()
    assert server.until(run_id, "COMPLETED")["outputs"]["from"] == "Projects"


def test_decide_by_a_signed_link(new_page: NewPage, server: Server, watch: Watch) -> None:
    watch.expected.append("404 (Not Found)")
    run_id = server.start("invoice-approval", {"number": "IN-8", "supplier": "Acme Links", "amount": 700})
    approval = server.approval(run_id)["approval_id"]
    url = server.post(f"/approvals/{approval}/links")["url"]
    page = new_page(viewport=PHONE, has_touch=True, is_mobile=True)
    page.goto(url)
    expect(page.get_by_role("heading", name="Pay 700 EUR to Acme Links?")).to_be_visible()
    expect(page.get_by_text("This link lets you decide once")).to_be_visible()
    assert server.get(f"/approvals/{approval}")["status"] == "pending"
    page.get_by_label(re.compile("Which account pays")).select_option("Projects")
    page.get_by_role("button", name="Approve", exact=True).tap()
    expect(page.get_by_text("You approved it.")).to_be_visible()
    assert server.until(run_id, "COMPLETED")["outputs"]["from"] == "Projects"
    page.goto(url)
    expect(page.get_by_text("approved it")).to_be_visible()
    expect(page.get_by_role("button", name="Approve", exact=True)).to_have_count(0)
    page.goto(f"{url[:-3]}abc")
    expect(page.get_by_role("heading", name="This link cannot be used")).to_be_visible()


def test_a_decision_that_another_one_overtook(page: Page, server: Server, watch: Watch) -> None:
    watch.expected.append("409 (Conflict)")
    run_id = server.start("lead-triage", {"message": "What is the price of 10 seats?"})
    approval = server.approval(run_id)["approval_id"]
    open_screen(page, server, f"/approvals/{approval}")
    expect(page.get_by_role("button", name="Approve", exact=True)).to_be_enabled()
    page.route(
        "**/api/v1/approvals**", lambda route: route.abort() if route.request.method == "GET" else route.continue_()
    )
    server.post(f"/approvals/{approval}/decide", {"decision": "reject", "comments": "no"})
    page.unroute("**/api/v1/approvals**")
    approve = page.get_by_role("button", name="Approve", exact=True)
    if approve.count() and approve.is_enabled():
        approve.click()
    expect(page.get_by_text(re.compile("already|rejected")).first).to_be_visible()


def test_a_run_changes_before_the_eyes(page: Page, server: Server) -> None:
    run_id = server.start("parcel-dispatch")
    open_screen(page, server, f"/runs/{run_id}?view=graph")
    dispatch = page.get_by_role("button", name=re.compile(r"^dispatch ?, "))
    expect(dispatch).to_have_accessible_name(re.compile("2 of 3 arrived, waiting for courier"))
    server.post(f"/runs/{run_id}/signal", {"name": "courier", "payload": {"name": "Kim"}})
    expect(dispatch).to_have_accessible_name(re.compile("succeeded", re.IGNORECASE))


def test_rows_do_not_wait_for_code_nor_for_counts(page: Page, server: Server, failed: str) -> None:
    asked: list[str] = []
    counts: list[Route] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(server.url)))
    # The code of the list comes only after its rows were asked for, and its counts come later.
    with page.expect_request(re.compile(r"/api/v1/runs\?")) as rows:
        page.route(re.compile(r"/assets/runs-.*\.js"), lambda route: rows.value and route.continue_())
        page.route(re.compile("/runs/summary"), lambda route: counts.append(route))
        page.goto(f"{server.url}/runs?q=status:failed", wait_until="commit")
    expect(page.locator(f'[role=row] a[href*="{failed}"]')).to_be_visible()
    wait(lambda: page.wait_for_timeout(20) or counts, bool, "nothing is counted")
    # Counts of other queries and what only completions need are not asked for.
    assert sum("/runs/summary" in each for each in asked) == 1
    assert not any("/api/v1/workflows" in each for each in asked)
    page.keyboard.press("/")
    with page.expect_response(re.compile("/api/v1/workflows")):
        page.keyboard.type(" work")
    counts[0].continue_()
    expect(page.get_by_role("tab", name=re.compile(r"^Runs \d"))).to_be_visible()


def test_the_inbox_follows_runs(new_page: NewPage, tmp_path: Path) -> None:
    with served(tmp_path) as server:
        server.publish_demo("invoice-approval")
        page = new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url) if "/approvals?" in request.url else None)
        page.clock.install()
        page.goto(f"{server.url}/approvals?tab=all")
        expect(page.get_by_text("Nothing waits for people")).to_be_visible()
        before = sum("limit=50" in each for each in asked)
        # Nothing happens, and nothing is asked.
        page.clock.fast_forward(20_000)
        assert sum("limit=50" in each for each in asked) == before
        run_id = server.start("invoice-approval", {"number": "IN-2044", "supplier": "Northwind", "amount": 4_820.5})
        server.approval(run_id)
        expect(page.get_by_role("link", name=re.compile("Northwind"))).to_be_visible()
        server.post(f"/runs/{run_id}/cancel")
        expect(page.get_by_role("link", name=re.compile("Northwind"))).to_have_count(0)
        page.close()


def test_from_page_to_page(page: Page, server: Server) -> None:
    """Pages share a cache: what one has read breaks no other. Each has a title."""
    main, tab = page.get_by_role("main"), page.get_by_role("tab")
    open_screen(page, server, "/runs")
    expect(page).to_have_title("Runs · Tidemill")
    with page.expect_response(re.compile("/runs/summary.*live")):
        page.get_by_role("button", name="Not ended").click()
    page.get_by_role("link", name="Workflows").click()
    expect(main.get_by_role("heading", name="Workflows")).to_be_visible()
    expect(page).to_have_title("Workflows · Tidemill")
    main.get_by_role("link", name="Start nightly-report").click()
    expect(main.get_by_label("Day")).to_have_value("yesterday")
    expect(page).to_have_title("Start nightly-report · Tidemill")
    page.get_by_role("link", name="Workflows").click()
    main.get_by_role("link", name="nightly-report", exact=True).click()
    tab.filter(has_text="Document").click()
    document = main.get_by_role("textbox", name="Document of nightly-report")
    expect(document).to_contain_text("name: nightly-report")
    main.get_by_role("button", name="Show as JSON").click()
    expect(document).to_contain_text('"name": "nightly-report"')
    tab.filter(has_text="Versions").click()
    expect(main.get_by_role("row", name=re.compile("@1"))).to_contain_text("first version")
    expect(page).to_have_title("nightly-report · Tidemill")
    main.get_by_role("link", name="Start a run").click()
    expect(main.get_by_label("Day")).to_have_value("yesterday")
    page.goto(f"{server.url}/sign-in")
    page.get_by_role("button", name="Continue").click()
    expect(page).to_have_title("Runs · Tidemill")


def test_keyboard_only(page: Page, server: Server, failed: str) -> None:
    open_screen(page, server, "/runs")
    expect(page.get_by_role("row").filter(has_text="nightly-report").first).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("combobox", name="Query for runs")).to_be_focused()
    page.keyboard.type("status:failed workflow:nightly-report")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("q="))
    expect(page.get_by_role("row").filter(has_text="supplier-payout")).to_have_count(0)
    expect(page.get_by_role("row").filter(has_text="nightly-report").first).to_be_visible()
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
    expect(page.get_by_role("dialog").get_by_role("combobox")).to_be_focused()
    page.keyboard.type("approvals")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/approvals"))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement !== document.body")
