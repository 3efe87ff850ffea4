"""Every screen in both themes: drawn without an error, and free of serious faults for people with other abilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page

from tests.web.conftest import PHONE, ROOT, NewPage, Watch
from tests.web.screens import open_screen
from tests.web.server import Server

AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
SERIOUS = ("serious", "critical")
SCREENS = (
    *("runs", "failures", "graph", "timeline", "history", "state", "failed", "agent", "waiting", "map", "children"),
    *("approvals", "approval", "start", "workflows", "workflow", "document", "workers", "dead-letters", "sign-in"),
    *("event", "versions", "bad-query"),
)


@pytest.fixture(scope="module")
def paths(server: Server) -> Mapping[str, str]:
    server.publish_demo("complaint-desk", "supplier-sync")
    order = server.start("order-fulfilment", {"customer": "Ada"}, labels={"team": "shop"})
    failed, trip = server.start("supplier-payout", {"account": "DE02", "amount": 5}), server.start("trip-booking")
    waiting = server.start("invoice-approval", {"number": "IN-2044", "supplier": "Northwind", "amount": 4_820.5})
    children = server.start("employee-onboarding", {"person": "Katherine"})
    agent = server.start("complaint-desk", {"customer": "Ada", "complaint": "late"})
    for run_id, status in ((order, "COMPLETED"), (failed, "FAILED"), (trip, "FAILED")):
        server.until(run_id, status)
    approval = server.approval(waiting)["approval_id"]
    server.approval(agent)
    return {
        "runs": "/runs",
        "failures": "/runs?show=failures",
        **{view: f"/runs/{order}?view={view}" for view in ("graph", "timeline", "history", "state")},
        "event": f"/runs/{order}?view=history&event=4",
        "versions": "/workflows/nightly-report?view=versions",
        "bad-query": "/runs?q=statsu:failed",
        "failed": f"/runs/{failed}",
        "agent": f"/runs/{agent}?node=answer&tab=transcript",
        "waiting": f"/runs/{waiting}",
        "map": f"/runs/{order}?node=pack",
        "children": f"/runs/{children}",
        "approvals": "/approvals",
        "approval": f"/approvals/{quote(approval)}",
        "start": "/start/invoice-approval",
        "workflows": "/workflows",
        "workflow": "/workflows/order-fulfilment",
        "document": "/workflows/order-fulfilment?view=document",
        "workers": "/workers",
        "dead-letters": "/dead-letters",
        "sign-in": "/sign-in",
    }


def faults(page: Page) -> list[str]:
    """What axe finds that is serious."""
    page.evaluate(AXE.read_text())
    found: dict[str, Any] = page.evaluate(
        "rules => window.axe.run(document, {runOnly: rules, resultTypes: ['violations']})", list(RULES)
    )
    return [
        f"{each['id']} ({each['impact']}): {each['help']}: {node['target']} {node['html'][:160]}"
        for each in found["violations"]
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_has_no_serious_fault(
    new_page: NewPage, server: Server, paths: Mapping[str, str], screen: str, theme: str, watch: Watch
) -> None:
    watch.expected += ["422"] if screen == "bad-query" else []
    page = new_page(color_scheme=theme, bypass_csp=True)
    open_screen(page, server, paths[screen])
    page.wait_for_load_state("networkidle") if screen == "sign-in" else page.wait_for_timeout(300)
    assert faults(page) == []


@pytest.mark.parametrize("screen", ["runs", "graph", "approvals", "approval", "start", "workflows", "dead-letters"])
def test_a_phone_shows_it_without_scrolling_sideways(
    new_page: NewPage, server: Server, paths: Mapping[str, str], screen: str
) -> None:
    page = new_page(viewport=PHONE, bypass_csp=True, has_touch=True, is_mobile=True)
    open_screen(page, server, paths[screen])
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert faults(page) == []
    # No list hides a column beside the screen.
    assert page.evaluate(
        "[...document.querySelectorAll('main [role=grid]')].every(e => e.scrollWidth <= e.clientWidth)"
    )
