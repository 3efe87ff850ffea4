"""`make web-pictures`: photographs every screen of a demo, light and dark, for README and the documentation."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from tests.fixtures.serve_process import ServeProcess
from tests.web.conftest import FLAGS, PHONE, chrome
from tests.web.screens import open_screen
from tests.web.server import Server, wait

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "docs" / "assets"
WITHOUT = """part => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(part, "");
}"""
"""Takes a text away wherever it stands: tracebacks name the folder of this clone."""
DESK = {"width": 1280, "height": 760}
COLOURS = 64
BYTES_MAX = 60_000


class Screen(NamedTuple):
    name: str
    path: str
    phone: bool = False


def newest(server: Server, query: str) -> str:
    """The newest run that a query finds, once there is one."""
    path = f"/runs?limit=1&query={quote(query)}"
    return str(wait(lambda: server.get(path)["items"], bool, f"no run is {query}")[0]["run_id"])


def screens(server: Server) -> list[Screen]:
    failed = newest(server, "workflow:nightly-report status:FAILED")
    order = newest(server, "workflow:order-fulfilment")
    approval = wait(
        lambda: server.get(f"/approvals?query={quote('workflow:invoice-approval status:pending')}")["items"],
        bool,
        "nothing waits for people",
    )[0]["approval_id"]
    return [
        Screen("runs", "/runs"),
        Screen("run-graph", f"/runs/{order}?view=graph"),
        Screen("run-failed", f"/runs/{failed}"),
        Screen("run-timeline", f"/runs/{order}?view=timeline"),
        Screen("run-history", f"/runs/{order}?view=history"),
        Screen("run-state", f"/runs/{order}?view=state"),
        Screen("approvals", "/approvals"),
        Screen("approval", f"/approvals/{quote(approval)}"),
        Screen("approval-phone", f"/approvals/{quote(approval)}", phone=True),
        Screen("start", "/start/invoice-approval"),
        Screen("workflows", "/workflows"),
        Screen("workflow", "/workflows/nightly-report"),
        Screen("workers", "/workers"),
        Screen("dead-letters", "/dead-letters"),
        *_agents(server),
    ]


def _agents(server: Server) -> list[Screen]:
    found = server.get(f"/runs?limit=1&query={quote('workflow:complaint-desk')}")["items"]
    return [Screen("run-agent", f"/runs/{found[0]['run_id']}?node=answer&tab=transcript")] if found else []


def photograph(page: Page, server: Server, screen: Screen, target: Path) -> None:
    open_screen(page, server, screen.path)
    expect(page.locator("main h1, main [role=tablist], main table").first).to_be_visible()
    page.wait_for_timeout(700)
    page.evaluate(WITHOUT, f"{ROOT}/")
    page.screenshot(path=target, animations="disabled")
    colours = COLOURS
    while True:
        # Colours that few pixels have are those of statuses: they count as much as others.
        few = (
            Image.open(target)
            .convert("RGB")
            .quantize(colours, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
        )
        few.save(target, optimize=True)
        if target.stat().st_size <= BYTES_MAX or colours <= 8:
            break
        colours //= 2
    print(f"{target.name}: {target.stat().st_size:,} bytes")


def main(folder: Path = ASSETS) -> None:
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        process = ServeProcess(Path(place), "", "--demo")
        browser = playwright.chromium.launch(executable_path=chrome(), args=list(FLAGS))
        try:
            process.start()
            server = Server(process)
            for screen in screens(server):
                for theme in ("light", "dark"):
                    context = browser.new_context(
                        viewport=PHONE if screen.phone else DESK,  # type: ignore[arg-type]
                        color_scheme=theme,  # type: ignore[arg-type]
                        reduced_motion="reduce",
                    )
                    photograph(context.new_page(), server, screen, folder / f"web-{screen.name}-{theme}.png")
                    context.close()
        finally:
            browser.close()
            process.bury()


if __name__ == "__main__":
    main()
