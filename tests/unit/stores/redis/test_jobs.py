"""Claims among many jobs: what one costs, whose turn it is, and that keys a script touches are declared."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from importlib.resources import files

import pytest
import pytest_asyncio

from tests.conformance.stores.harness import LONG_MS, job, run
from tests.conformance.stores.test_memory import ManualClock
from tests.fixtures.servers.redis_server import PrivateServer, running
from tidemill.stores.contract import Claim, Commit, Lease, Row
from tidemill.stores.redis import rows as stored_rows
from tidemill.stores.redis.database import place_at
from tidemill.stores.redis.scripts import script
from tidemill.stores.redis.store import RedisStore


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with running() as started:
        yield started


@pytest_asyncio.fixture
async def store(server: PrivateServer) -> AsyncIterator[RedisStore]:
    opened = RedisStore(place_at(server.emptied_store()))
    await opened.open()
    yield opened
    await opened.close()


async def claimed(store: RedisStore, limit: int, **fields: object) -> list[Lease]:
    return await store.claim(Claim(queues=(), limit=limit, lease_ms=LONG_MS, **fields))  # type: ignore[arg-type]


async def crowd(store: RedisStore, number: int, **fields: object) -> None:
    """A tenant with many ready jobs, in many queues and under many caps."""
    for start in range(0, number, 1_000):
        jobs = [
            job(f"{index}", queue=f"q{index % 7}", caps=(f"cap{index % 500}",) if index % 2 else (), **fields)
            for index in range(start, start + 1_000)
        ]
        await store.commit([Commit(stream=run(f"r{start}", "crowd"), expected=None, jobs=tuple(jobs))])


def calls(server: PrivateServer) -> int:
    """Commands that scripts have called."""
    stats = server.client().info("commandstats")
    return sum(line["calls"] for name, line in stats.items() if name not in ("cmdstat_info", "cmdstat_evalsha"))


async def cost(store: RedisStore, server: PrivateServer, limit: int) -> int:
    before = calls(server)
    leases = await claimed(store, limit, caps={f"cap{number}": 10 for number in range(500)})
    assert len(leases) == limit
    return calls(server) - before


async def test_a_claim_costs_the_same_among_many_jobs(store: RedisStore, server: PrivateServer) -> None:
    await crowd(store, 1_000)
    few = await cost(store, server, 20)
    await crowd(store, 20_000)
    many = await cost(store, server, 20)
    assert many < 2 * few


async def test_a_single_job_of_another_tenant_need_not_wait(store: RedisStore) -> None:
    await crowd(store, 20_000, priority=9)
    await claimed(store, 10)
    await store.commit([Commit(stream=run("r", "small"), expected=None, jobs=(job("one", queue="q3", priority=0),))])
    tenants = Counter(lease.stream.tenant for lease in await claimed(store, 2))
    assert tenants == {"small": 1, "crowd": 1}


async def test_a_cap_that_is_full_is_passed(store: RedisStore) -> None:
    """Half of the jobs are under caps without room; the other half is found behind them."""
    await crowd(store, 2_000)
    bounds = {f"cap{number}": 0 for number in range(500)}
    leases: list[Lease] = []
    while found := await claimed(store, 300, caps=bounds):
        leases += found
    assert len(leases) == 1_000
    assert all(int(lease.key) % 2 == 0 for lease in leases)
    # One of each cap, then it is full.
    leases = await claimed(store, 2_000, caps=dict.fromkeys(bounds, 1))
    assert len(leases) == 250


@pytest.mark.parametrize("queues", [1, 7])
async def test_jobs_over_a_cap_under_many_keys_stop_no_other(store: RedisStore, queues: int) -> None:
    """A call passes a bounded number of lanes; the next ones serve other tenants, and continue behind those lanes."""
    full = "workflow:w<=1"
    await store.commit([Commit(stream=run("held", "crowd"), expected=None, jobs=(job("held", caps=(full,)),))])
    (held,) = await claimed(store, 1)
    for start in range(0, 14_000, 1_000):
        caps = [(full, f"key:{index}<=1") for index in range(start, start + 1_000)]
        jobs = tuple(job(f"{at}", queue=f"a{at % queues}", caps=each) for at, each in enumerate(caps, start))
        await store.commit([Commit(stream=run(f"r{start}", "crowd"), expected=None, jobs=jobs)])
    await store.commit([Commit(stream=run("r", "crowd"), expected=None, jobs=(job("behind", queue="a0"),))])
    found: list[str] = []
    for number in range(3):
        # It was served last, so that the crowd has the first turn.
        await store.commit([Commit(stream=run(f"{number}", "small"), expected=None, jobs=(job(f"small{number}"),))])
        found += [lease.key for _ in range(2) for lease in await claimed(store, 4)]
        assert f"small{number}" in found
    found += [lease.key for _ in range(40) for lease in await claimed(store, 4)]
    assert sorted(found) == ["behind", "small0", "small1", "small2"]
    await store.commit([Commit(stream=held.stream, expected=None, acks=((held.key, held.token),))])
    assert len([lease for _ in range(4) for lease in await claimed(store, 4)]) == 1


async def test_due_times_are_moved_in_parts(server: PrivateServer) -> None:
    clock = ManualClock()
    store = RedisStore(place_at(server.emptied_store()), clock=clock)
    await store.open()
    jobs = tuple(job(f"{index:05}", ready_at_ms=clock() + 100 + index % 10) for index in range(5_000))
    await store.commit([Commit(stream=run("timers"), expected=None, jobs=jobs)])
    assert await claimed(store, 1) == []
    clock.now += 200
    leases: list[Lease] = []
    while found := await claimed(store, 1_000):
        leases += found
    assert len({lease.key for lease in leases}) == 5_000
    await store.close()


async def test_a_page_visits_a_bounded_number_of_entries(
    store: RedisStore, server: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two terms that hardly coincide: the page is short, and its cursor goes on."""
    monkeypatch.setattr(stored_rows, "WALKED_AT_ONCE", 500)
    for start in range(0, 4_000, 1_000):
        rows = tuple(
            Row(kind="run", key=f"{number:05}", sort=number, terms=("even" if number % 2 == 0 else "odd", "all"))
            for number in range(start, start + 1_000)
        )
        await store.commit([Commit(stream=run("rows"), expected=None, rows=rows)])
    rare = Row(kind="run", key="00000", sort=0, terms=("even", "odd"))
    await store.commit([Commit(stream=run("rows"), expected=None, rows=(rare,))])
    before = calls(server)
    pages = [await store.find("acme", "run", ("even", "odd"))]
    assert pages[0].rows == () and pages[0].after is not None
    assert calls(server) - before < 20
    while pages[-1].after is not None:
        pages.append(await store.find("acme", "run", ("even", "odd"), after=pages[-1].after))
    assert [row.key for page in pages for row in page.rows] == ["00000"]
    assert await store.count("acme", "run", ("even", "odd")) == 1
    before = calls(server)
    assert len((await store.find("acme", "run", ("all", "odd"), limit=50)).rows) == 50
    assert calls(server) - before < 10
    assert len((await store.find("acme", "run", ("all",), limit=20_000)).rows) == 3_999


async def test_rows_of_commits_that_go_together_are_few_commands(store: RedisStore, server: PrivateServer) -> None:
    """Also where a row is written, changed and removed by commits of one call."""
    client = server.client()

    def row(number: int, *terms: str, deleted: bool = False) -> Row:
        return Row(kind="run", key=f"{number}", sort=number, terms=terms, deleted=deleted)

    async def written(*steps: list[Row]) -> int:
        """Commands that change rows, terms and the names of streams."""
        client.config_resetstat()
        await store.commit([Commit(run(f"r{each.key}"), None, rows=(each,)) for step in steps for each in step])
        stats = client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("hset", "hdel", "zadd", "zrem"))

    numbers = range(100)
    # One of them remembers the answer.
    assert await written([row(n, "live", "all") for n in numbers]) <= 3
    assert await written([row(n, "live", "all", "new") for n in numbers], [row(n, "done", "all") for n in numbers]) <= 4
    assert await store.count("acme", "run", ("live",)) == await store.count("acme", "run", ("new",)) == 0
    assert await store.count("acme", "run", ("done", "all")) == len((await store.find("acme", "run", limit=200)).rows)
    again = [row(n, deleted=True) for n in numbers if n % 2], [row(n, "live", "all") for n in numbers if n % 3 == 0]
    assert await written(*again) <= 5
    found = (await store.find("acme", "run", ("all",), limit=200)).rows
    assert [each.sort for each in reversed(found)] == [n for n in numbers if n % 2 == 0 or n % 3 == 0]
    assert await store.count("acme", "run", ("live",)) == 34
    assert await store.count("acme", "run") == len(found)


def test_every_script_says_which_keys_it_touches() -> None:
    """A cluster refuses keys that are not declared, but only if they are in another slot."""
    for file in files("tidemill.stores").joinpath("lua").iterdir():
        text = script(file.name.removesuffix(".lua")).text.decode()
        code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
        assert file.read_text().startswith("-- "), file.name
        for called in re.findall(r"call\('[A-Z]+', ([^,)]+)", code):
            assert re.match(r"KEYS\[|[A-Z]+$|(stream\.)?(records|rest)$|key$|set$|ARGV\[[13]\]|'NUMSUB'$", called), (
                file.name,
                called,
            )
