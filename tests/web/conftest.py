"""A Chromium, a server and pages that must stay free of errors; see `make test-web`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.web.server import Server, served

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
expect.set_options(timeout=30_000)
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1360, "height": 860}


def chrome() -> str:
    """The browser to test with. Ends the program where there is none, and says so."""
    found = os.environ.get("CHROME") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found or not Path(found).exists():
        what = f"CHROME={found} is not there" if found else "there is no Chromium"
        sys.exit(f"{what}: install the package `chromium`, or say CHROME=path")
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    try:
        path = chrome()
    except SystemExit as missing:
        pytest.exit(str(missing), returncode=2)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo, so that every screen has something to show, with people of every role."""
    with served(tmp_path_factory.mktemp("web"), "--demo") as server:
        yield server


class Watch:
    """What went wrong in a page: errors on the console, exceptions, and dialogs that a script has opened."""

    def __init__(self) -> None:
        self.troubles: list[str] = []
        self.expected: list[str] = []
        """Parts of errors that a test brings about."""

    def watch(self, page: Page) -> None:
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.troubles.append(f"exception: {error}"))
        page.on("dialog", lambda dialog: (self.troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            place = message.location.get("url", "")
            self.troubles.append(f"{message.type}: {message.text} {place}")

    @property
    def unexpected(self) -> list[str]:
        return [each for each in self.troubles if not any(part in each for part in self.expected)]


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    yield watch
    assert watch.unexpected == []


NewPage = Callable[..., Page]


@pytest.fixture
def new_page(browser: Browser, watch: Watch) -> Iterator[NewPage]:
    """A page in a context of its own; the arguments are those of `Browser.new_context`."""
    contexts: list[BrowserContext] = []

    def new(**options: object) -> Page:
        context = browser.new_context(**{"viewport": DESK, "reduced_motion": "reduce", **options})  # type: ignore[arg-type]
        context.set_default_timeout(30_000)
        contexts.append(context)
        page = context.new_page()
        watch.watch(page)
        return page

    yield new
    for context in contexts:
        context.close()


@pytest.fixture
def page(new_page: NewPage) -> Page:
    return new_page()
