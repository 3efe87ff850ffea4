"""A store with a million finished runs beside one with a thousand: are lists, searches and claims as quick?

An empty store has no pages to compare with, so the small one has as many runs as fill every page that is asked for.
`make bench-million RUNS=100000` does the same with fewer; `STORE=postgres` and `STORE=redis` measure a private
server.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

from benches.figures import Figure, Note
from benches.filling import MEETINGS, RUNS_PER_CUSTOMER, VIPS, fill, open_engine
from benches.tape import folder
from tests.fixtures.api_server import api_server
from tests.fixtures.servers import redis_server
from tests.fixtures.servers.postgres_server import running
from tidemill.engine.engine import Engine
from tidemill.stores.contract import Claim, Commit, Job, Stream

RUNS = int(os.environ.get("RUNS") or 1_000_000)
KIND = os.environ.get("STORE") or "sqlite"
SMALL = 2_000
TIMES_MUST = 2.0
PAGE_MUST_MS = 50
ROUNDS = 41
PAGES_DEEP = 40
CLAIMED, CLAIMS = 64, 20
VERIFIED = 50

SEARCHES: dict[str, tuple[str, ...]] = {
    "list the newest 50": (),
    "a large term: status:COMPLETED": ("status:COMPLETED",),
    "a smaller term: status:FAILED": ("status:FAILED",),
    f"a tiny term: one customer's {RUNS_PER_CUSTOMER} runs": ("label:customer=c7",),
    "two large terms that often meet": ("workflow:billing", "status:COMPLETED"),
    f"a large term and one of {VIPS} runs": ("workflow:billing", "label:vip=yes"),
}
RARELY_MEET = ("workflow:billing", "label:region=north")

Measure = Callable[[Engine], Awaitable[float]]


async def page_ms(engine: Engine, terms: tuple[str, ...], after: str | None = None) -> tuple[float, int, str | None]:
    """Milliseconds of one page through the façade, the rows it has, and where the next one begins."""
    begun = time.perf_counter()
    rows, following = await engine.find(terms, after=after, limit=50)
    return (time.perf_counter() - begun) * 1000, len(rows), following


def first_page(terms: tuple[str, ...]) -> Measure:
    async def measure(engine: Engine) -> float:
        return (await page_ms(engine, terms))[0]

    return measure


def deep_page(cursors: dict[Engine, str | None]) -> Measure:
    async def measure(engine: Engine) -> float:
        return (await page_ms(engine, (), cursors[engine]))[0]

    return measure


async def cursor_behind(engine: Engine, pages: int) -> str | None:
    """Where the page behind so many begins."""
    after: str | None = None
    for _ in range(pages):
        after = (await page_ms(engine, (), after))[2]
    return after


async def claim_ms(engine: Engine) -> float:
    """Milliseconds of claiming jobs; they are made for it and removed afterwards."""
    store, stream = engine._store, Stream("default", "bench", "jobs")
    keys = [f"j{number}" for number in range(CLAIMED * 4)]
    await store.commit([Commit(stream=stream, expected=None, jobs=tuple(_job(key) for key in keys))])
    begun = time.perf_counter()
    leases = await store.claim(Claim(queues=("bench",), limit=CLAIMED, lease_ms=60_000))
    took = (time.perf_counter() - begun) * 1000
    assert len(leases) == CLAIMED
    await store.commit([Commit(stream=stream, expected=None, drop=tuple(keys))])
    return took


def _job(key: str) -> Job:
    return Job(key=key, queue="bench", body=b"")


async def run_ms(engine: Engine) -> float:
    """Milliseconds of one small run, from its start to its end."""
    begun = time.perf_counter()
    await engine.result(await engine.start("signup", {"how": "go"}))
    return (time.perf_counter() - begun) * 1000


async def times_small(small: Engine, large: Engine, measure: Measure, rounds: int = ROUNDS) -> tuple[float, float]:
    """How often as long it takes in the large store as in the small one, in turns, and how long that is."""
    pairs = [(await measure(small), await measure(large)) for _ in range(rounds)]
    ratio = statistics.median(of_large / of_small for of_small, of_large in pairs)
    return ratio, statistics.median(of_large for _, of_large in pairs)


async def all_pages(engine: Engine, terms: tuple[str, ...]) -> tuple[list[float], int]:
    """Milliseconds of every page of a search, and all the rows on them."""
    took: list[float] = []
    found, after = 0, None
    while True:
        ms, rows, after = await page_ms(engine, terms, after)
        took.append(ms)
        found += rows
        if after is None:
            return took, found


async def over_http(url: str, cursor: str | None) -> AsyncIterator[Figure | Note]:
    """The same pages as a client of the API gets them: with request, encoding and answer."""
    async with api_server(url, work=False) as server:
        asked = {name: {"query": " ".join(terms)} for name, terms in SEARCHES.items()}
        asked[f"page {RUNS // 100 + 1:,}"] = {"after": cursor or ""}
        for name, params in asked.items():
            took: list[float] = []
            for _ in range(ROUNDS):
                begun = time.perf_counter()
                answer = await server.http.get("/runs", params={"limit": 50, **params})
                took.append((time.perf_counter() - begun) * 1000)
                assert answer.status_code == 200 and answer.json()["items"], answer.text
            yield Figure(f"over HTTP, {name}", statistics.median(took), "ms", PAGE_MUST_MS)
            yield Figure(f"over HTTP, {name}: the worst of {ROUNDS}", max(took), "ms")


async def filled(engine: Engine, runs: int) -> AsyncIterator[Figure | Note]:
    """Fill a store, and see that what was written is what the engine would have written."""
    begun = time.perf_counter()
    await fill(engine, runs)
    seconds = time.perf_counter() - begun
    yield Figure(f"filling the store with {runs:,} runs", seconds, "s")
    rows, _ = await engine.find((), limit=VERIFIED)
    verdict = await engine.verify_log([row.run_id for row in rows])
    assert verdict.clean, verdict.findings[:3]
    yield Note(f"verified the log, jobs and rows of {verdict.runs} of them")


@contextmanager
def two_stores() -> Iterator[tuple[str, str]]:
    """The URLs of two empty stores of the kind that is measured."""
    if KIND == "postgres":
        with running("shared_buffers=512MB", "max_wal_size=4GB") as server:
            yield server.new_store(), server.new_store()
    elif KIND == "redis":
        with redis_server.running("appendfsync everysec") as server:
            yield server.new_store(), server.new_store()
    else:
        with folder() as place:
            yield f"sqlite:///{place / 'small.db'}", f"sqlite:///{place / 'large.db'}"


async def measure(urls: tuple[str, str]) -> AsyncIterator[Figure | Note]:
    """Measure both stores in turns."""
    async with open_engine(urls[0]) as small, open_engine(urls[1]) as large:
        await fill(small, SMALL)
        async for figure in filled(large, RUNS):
            yield figure
        if KIND == "sqlite":
            yield Figure("the file", os.stat(urls[1].removeprefix("sqlite:///")).st_size / 2**20, "MiB")
        for name, terms in SEARCHES.items():
            ratio, ms = await times_small(small, large, first_page(terms))
            yield Figure(f"{name}: times a store of {SMALL:,}", ratio, "×", TIMES_MUST)
            yield Figure(f"{name}", ms, "ms", PAGE_MUST_MS)
        cursors = {small: await cursor_behind(small, 20), large: await cursor_behind(large, RUNS // 100)}
        ratio, ms = await times_small(small, large, deep_page(cursors))
        yield Figure(f"page {RUNS // 100 + 1:,}: times a page of {SMALL:,}", ratio, "×", TIMES_MUST)
        async for figure in over_http(urls[1], cursors[large]):
            yield figure
        took, found = await all_pages(large, RARELY_MEET)
        assert found >= MEETINGS, found
        yield Note(f"two large terms that meet in {found} runs only: {len(took)} pages")
        yield Figure("a page of them, the median", statistics.median(took), "ms")
        yield Figure("a page of them, the worst", max(took), "ms", PAGE_MUST_MS)
        ratio, ms = await times_small(small, large, claim_ms)
        yield Figure(f"claim {CLAIMED} jobs: times a store of {SMALL:,}", ratio, "×", TIMES_MUST)
        yield Figure(f"claim {CLAIMED} jobs", ms, "ms")
        ratio, ms = await times_small(small, large, run_ms)
        yield Figure(f"a run of two nodes: times a store of {SMALL:,}", ratio, "×", TIMES_MUST)
        yield Figure("a run of two nodes", ms, "ms")


def figures() -> Iterator[Figure | Note]:
    """Measure, and tell each figure as soon as it is known."""
    with asyncio.Runner() as runner, two_stores() as urls:
        found = measure(urls)

        async def following() -> Figure | Note | None:
            return await anext(found, None)

        while (figure := runner.run(following())) is not None:
            yield figure
