"""The screens of the page, and how to know that one has been drawn."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.web.server import Server

VIEWS = ("graph", "timeline", "history", "state")


def open_screen(page: Page, server: Server, path: str) -> None:
    """Open a screen and wait until nothing of it is loading any more."""
    page.goto(server.url + path)
    expect(page.get_by_role("main")).to_be_visible()
    expect(page.locator("main [aria-busy=true]")).to_have_count(0)
