"""The page in a headless Chromium: how soon it shows what was asked for, how little it does when nothing happens.

Times are the browser's own: from the start of a navigation to the frame behind the moment when the wanted thing is
there. "Warm": the browser has been at the same route before. "First": the page is open at the runs, and has not shown
a run yet. "Cold": the browser knows nothing of the page; the server is warm. CPU is that of the page's process, its
worker included; other load changes it less than times. Needs what `make test-web` needs. `RUNS=100000` fills the long
list with fewer runs.
"""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from benches.figures import Figure, Note
from benches.filling import fill, open_engine
from benches.load import quantile
from tests.web.conftest import DESK, FLAGS, chrome
from tests.web.server import Server, served

RUNS = int(os.environ.get("RUNS") or 1_000_000)
PAINT_MUST_S, SCRIPT_MUST_KB = 1.0, 350.0
GRAPH_MUST_MS, LARGE_GRAPH_MUST_MS = 700.0, 1_500.0
HISTORY_MUST_MS, TASK_MUST_MS, LIST_MUST_MS = 500.0, 100.0, 500.0
LIVE_MUST_MS, CPU_MUST = 500.0, 2.0
FOLLOWERS, SIGNALS, ROUNDS = 19, 5, 8
IDLE_SECONDS = 15.0
REPEATS = 5
EVENTS = 50_000
EVENTS_PER_ITEM = 2
FANOUT = 5_000
"""Items of one map; the history needs several."""

# Keeps the time of the first frame in which a selector matches, and the longest task. Installed before any script runs.
OBSERVE = """(() => {
  window.longest = 0;
  const keep = list => list.getEntries().forEach(each => { window.longest = Math.max(window.longest, each.duration); });
  new PerformanceObserver(keep).observe({type: 'longtask', buffered: true});
  window.seen = (selector, since = 0) => new Promise((resolve, reject) => {
    const end = performance.now() + 60000;
    const look = () => {
      const done = () => resolve(performance.now() - since);
      if (document.querySelector(selector)) requestAnimationFrame(() => setTimeout(done));
      else if (performance.now() > end) reject(new Error(`there is no ${selector}`));
      else requestAnimationFrame(look);
    };
    look();
  });
  window.opened = (path, selector) => {
    const since = performance.now();
    history.pushState(null, '', path);
    return window.seen(selector, since);
  };
})()"""


def chain(name: str, nodes: int) -> dict[str, Any]:
    """Nodes in layers of ten, each behind two of the layer before."""
    made = []
    for number in range(nodes):
        behind = [f"n{number - 10}", f"n{number - 10 - number % 10 + (number + 1) % 10}"] if number >= 10 else []
        made.append({"id": f"n{number}", "type": "value", "config": number, "dependencies": sorted(set(behind))})
    return {"name": name, "nodes": made}


def long_history() -> dict[str, Any]:
    items = f"{{{{ range({FANOUT}) | list }}}}"
    maps = range(math.ceil(EVENTS / (FANOUT * EVENTS_PER_ITEM)))
    return {
        "name": "long-history",
        "limits": {"max_fanout": FANOUT},
        "nodes": [
            {"id": f"map{number}", "type": "value", "map": {"over": items}, "config": "{{ item }}"} for number in maps
        ],
    }


LARGE = {
    "name": "large-output",
    "nodes": [{"id": "large", "type": "python", "config": {"function": "large", "args": {"megabytes": 10}}}],
}
LISTENS = {
    "name": "listens",
    "nodes": [
        {"id": f"s{n}", "type": "signal", "config": {"name": f"n{n}"}, "dependencies": [f"s{n - 1}"] if n else []}
        for n in range(SIGNALS + 1)
    ],
}


def node(name: str, status: str = "") -> str:
    """The selector of a node in the graph."""
    return f'[data-status="{status}"] #node-{name}' if status else f"#node-{name}"


def shown_ms(page: Page, url: str, selector: str) -> float:
    """The best time from a navigation to the frame that shows it, with a warm cache."""
    times = []
    for _ in range(REPEATS):
        page.goto(url, wait_until="commit")
        times.append(page.evaluate("selector => window.seen(selector)", selector))
    return min(times[1:])


class Opened(NamedTuple):
    """Milliseconds from the choice of a run to the frame that shows the view, and CPU of the first time."""

    first: float
    best: float
    cpu: float
    cold: float

    def __str__(self) -> str:
        return f"{self.cpu:.0f} ms CPU; {self.best:.0f} ms at best later; {self.cold:.0f} ms with the page, cold"


def opened_ms(browser: Browser, server: Server, runs: list[str], view: str, selector: str) -> Opened:
    """Each run is opened once, so nothing of it is known before."""
    times = []
    with new_page(browser) as page:
        page.goto(f"{server.url}/runs")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        for run_id in runs[1:]:
            page.evaluate("selector => window.seen(selector)", ROW)
            page.wait_for_timeout(300 if times else 2_000)  # The page gets ready for the first run.
            path, before = f"/runs/{run_id}?view={view}", _process_seconds(session)
            times.append(page.evaluate("([path, selector]) => window.opened(path, selector)", [path, selector]))
            if len(times) == 1:
                cpu = (_process_seconds(session) - before) * 1_000
            page.evaluate("history.pushState(null, '', '/runs')")
    with new_page(browser) as page:
        page.goto(f"{server.url}/runs/{runs[0]}?view={view}", wait_until="commit")
        cold = page.evaluate("selector => window.seen(selector)", selector)
    return Opened(times[0], min(times[1:]), cpu, cold)


@contextmanager
def new_page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport=DESK)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.add_init_script(OBSERVE)
    yield page
    context.close()


def script_kb(browser: Browser, url: str, selector: str) -> float:
    """Compressed kilobytes of script that the first visit of a route transfers."""
    with new_page(browser) as page:
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        kinds: dict[str, str] = {}
        sizes: dict[str, float] = {}
        session.on("Network.responseReceived", lambda said: kinds.update({said["requestId"]: said["type"]}))
        session.on("Network.loadingFinished", lambda said: sizes.update({said["requestId"]: said["encodedDataLength"]}))
        page.goto(url)
        page.evaluate("selector => window.seen(selector)", selector)
        page.wait_for_timeout(1_500)  # A live page is never without a request.
        return sum(size for request, size in sizes.items() if kinds.get(request) == "Script") / 1024


def longest_frame_ms(page: Page) -> float:
    """Drags the graph and answers the longest time between two frames."""
    page.evaluate(
        """() => { window.frames_ = []; let last = performance.now();
        const next = now => { window.frames_.push(now - last); last = now; requestAnimationFrame(next); };
        requestAnimationFrame(next); }"""
    )
    page.mouse.move(700, 500)
    page.mouse.down()
    for step in range(30):
        page.mouse.move(700 - step * 12, 500 - step * 6)
    page.mouse.up()
    return float(page.evaluate("Math.max(...window.frames_.slice(2))"))


def live_ms(page: Page, server: Server) -> list[float]:
    """From sending a signal to the frame that shows the node as succeeded, with others that follow the run, too."""
    run_id = server.start("listens")
    stop = threading.Event()

    def follow() -> None:
        with urllib.request.urlopen(f"{server.url}/api/v1/runs/{run_id}/stream", timeout=120) as answer:
            while not stop.is_set() and answer.readline():
                pass

    for _ in range(FOLLOWERS):
        threading.Thread(target=follow, daemon=True).start()
    page.goto(f"{server.url}/runs/{run_id}?view=graph")
    page.evaluate("selector => window.seen(selector)", node("s0", "WAITING"))
    delays = []
    for number in range(SIGNALS):
        page.evaluate(
            """selector => { window.arrived = window.seen(selector).then(() => Date.now()); }""",
            node(f"s{number}", "COMPLETED"),
        )
        sent = time.time() * 1_000
        server.post(f"/runs/{run_id}/signal", {"name": f"n{number}"})
        delays.append(page.evaluate("() => window.arrived") - sent)
    stop.set()
    server.post(f"/runs/{run_id}/signal", {"name": f"n{SIGNALS}"})
    return delays


def idle_percent(page: Page, server: Server) -> float:
    """CPU of the page's process while it follows a run in which nothing happens."""
    run_id = server.start("listens")
    page.goto(f"{server.url}/runs/{run_id}?view=graph")
    page.evaluate("selector => window.seen(selector)", node("s0", "WAITING"))
    page.wait_for_timeout(2_000)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    before, began = _process_seconds(session), time.monotonic()
    page.wait_for_timeout(IDLE_SECONDS * 1_000)
    return (_process_seconds(session) - before) / (time.monotonic() - began) * 100


def _process_seconds(session: CDPSession) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "ProcessTime"))


def fill_store(folder: Path) -> None:
    url = f"sqlite:///{folder}/million.db"

    async def run() -> None:
        async with open_engine(url) as engine:
            await fill(engine, RUNS)

    # Playwright has a loop of its own in this thread.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, run()).result()


def figures() -> Iterator[Figure | Note]:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chrome(), args=list(FLAGS))
        yield Note(f"Chromium {browser.version}")
        with served(Path(folder), "--log-level", "error") as server:
            yield from _pages(browser, server)
        fill_store(Path(folder))
        with served(Path(folder), "--log-level", "error", name="million") as server, new_page(browser) as page:
            times = []
            page.goto(f"{server.url}/runs")
            for query in QUERIES:
                page.evaluate("selector => window.seen(selector)", ROW)
                page.evaluate("history.pushState(null, '', '/workers')")
                page.get_by_role("heading", name="Workers").first.wait_for()
                times.append(page.evaluate("([path, row]) => window.opened(path, row)", [f"/runs?q={query}", ROW]))
            yield Figure(f"runs among {RUNS:,}: to the first rows, slowest query", max(times[1:]), "ms", LIST_MUST_MS)
            yield Note(f"{shown_ms(page, f'{server.url}/runs', ROW):.0f} ms with the page itself")
        browser.close()


QUERIES = ("", "status:failed", "workflow:billing", "workflow:billing%20status:completed", "label.region=west")
ROW = 'main a[href*="runs/"]'


def _pages(browser: Browser, server: Server) -> Iterator[Figure | Note]:
    server.publish(chain("chain-300", 300), chain("chain-5000", 5_000), long_history(), LARGE, LISTENS)
    for _ in range(30):
        server.start("chain-300")
    small, large = [[server.start(f"chain-{nodes}") for _ in range(REPEATS)] for nodes in (300, 5_000)]
    history = [server.start("long-history") for _ in range(3)]
    output = server.start("large-output")
    for run_id in (*small, *large, *history, output):
        server.until(run_id, "COMPLETED")
    with new_page(browser) as page:
        shown = shown_ms(page, f"{server.url}/runs", ROW) / 1_000
        yield Figure("first useful paint of the runs, warm", shown, "s", PAINT_MUST_S)
        with new_page(browser) as cold:
            cold.goto(f"{server.url}/runs", wait_until="commit")
            yield Note(f"{cold.evaluate('selector => window.seen(selector)', ROW) / 1_000:.2f} s cold")
        size = script_kb(browser, f"{server.url}/runs", ROW)
        yield Figure("script of the first route, compressed", size, "KB", SCRIPT_MUST_KB)
        opened = opened_ms(browser, server, small, "graph", node("n0"))
        yield Figure("run of 300 nodes: to its graph, first", opened.first, "ms", GRAPH_MUST_MS)
        yield Note(str(opened))
        opened = opened_ms(browser, server, large, "graph", "main [id^=node-n]")
        yield Figure("run of 5,000 nodes: to its graph, first", opened.first, "ms", LARGE_GRAPH_MUST_MS)
        page.goto(f"{server.url}/runs/{large[0]}?view=graph")
        page.evaluate("selector => window.seen(selector)", "main [id^=node-n]")
        yield Note(f"{opened}; {longest_frame_ms(page):.0f} ms for the longest frame while panning")
        events = server.run(history[0])["events"]
        opened = opened_ms(browser, server, history, "history", "[aria-label=Events] [role=listitem]")
        yield Figure(f"history of {events:,} events: first screen, first", opened.first, "ms", HISTORY_MUST_MS)
        yield Note(str(opened))
        page.goto(f"{server.url}/runs/{output}?node=large&tab=output")
        page.get_by_text("a row of a large output").first.wait_for()
        page.wait_for_timeout(1_000)
        yield Figure("10 MB output: longest task", page.evaluate("window.longest"), "ms", TASK_MUST_MS)
        delays = [delay for _ in range(ROUNDS) for delay in live_ms(page, server)]
        yield Figure(
            f"live change to pixels, {FOLLOWERS} followers beside, p95", quantile(delays, 0.95), "ms", LIVE_MUST_MS
        )
        yield Note(f"p50 {quantile(delays, 0.5):.0f} ms")
    with new_page(browser) as page:
        yield Figure("idle live page: CPU", idle_percent(page, server), "%", CPU_MUST)
