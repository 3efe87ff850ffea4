"""URLs, roles and schemas: what is refused with one clear line, and what row-level security shows."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest
import pytest_asyncio

import tidemill
from tests.conformance.stores.harness import LONG_MS, job, row, run
from tests.fixtures.command_line import eventually
from tests.fixtures.servers.postgres_server import PASSWORD, USER, PrivateServer, free_port, running
from tidemill.errors import Rejected, TidemillError, Unavailable
from tidemill.storage_urls import migrated, open_storage, require_store_exists
from tidemill.stores.contract import Claim, Commit, Committed
from tidemill.stores.postgres import jobs
from tidemill.stores.postgres.database import Link, newest_known, place_at
from tidemill.stores.postgres.store import PostgresStore

URL = "postgresql://u:se%40cret@db.example:6543/mill"
GUIDE = Path(__file__).parents[4] / "docs/how-to/postgresql.md"


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with running() as started:
        yield started


@pytest_asyncio.fixture
async def store(server: PrivateServer) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(place_at(server.emptied_store()))
    await opened.open()
    yield opened
    await opened.close()


def test_our_own_options_never_reach_the_driver() -> None:
    place = place_at(f"{URL}?schema=mine&pool=7&connect_timeout=3&blobs=dir%3A%2F%2F%2Ffolder&row_security=on")
    assert (place.schema, place.readers, place.blobs, place.row_security) == ("mine", 7, "dir:///folder", True)
    wanted = {"user": "u", "password": "se@cret", "host": "db.example", "port": "6543", "dbname": "mill"}
    assert place.arguments == wanted | {"connect_timeout": "3"}
    assert place.name == "PostgreSQL at db.example:6543/mill"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?poool=3", "no option 'poool'"),
        ("?pool=0", "from 1 to 99"),
        ("?schema=Bad-Name", "not a schema name"),
        ("?row_security=maybe", "on or off"),
        ("?schema=a&schema=b", "twice"),
    ],
)
def test_an_option_that_cannot_be_is_refused(query: str, words: str) -> None:
    with pytest.raises(Rejected, match=words) as refused:
        open_storage(URL + query)
    assert refused.value.code == "store_option_unknown"
    assert "se%40cret" not in str(refused.value) and "se@cret" not in str(refused.value)


def test_a_missing_driver_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith(("psycopg", "tidemill.stores.postgres"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(Rejected, match=r"pip install 'tidemill\[postgres\]'") as refused:
        open_storage(URL)
    assert refused.value.code == "extra_missing"


async def refusal(url: str) -> TidemillError:
    store = PostgresStore(place_at(url))
    with pytest.raises(TidemillError) as refused:
        await store.open()
    assert PASSWORD not in str(refused.value)
    return refused.value


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ((PASSWORD, "wrong"), "store_unusable", "password authentication failed"),
        (("/postgres", "/nowhere"), "store_missing", "does not exist.*createdb nowhere"),
        ((USER, "stranger"), "store_unusable", "refuses the connection"),
        (("schema=", "sslmode=require&schema="), "store_unusable", "does not support SSL.*sslmode"),
        ((f"{USER}:{PASSWORD}", "weak:weak"), "store_unusable", "permission denied.*let the user own"),
        ((f"{USER}:{PASSWORD}", "frozen:frozen"), "store_read_only", "replica, or read-only"),
    ],
)
async def test_a_server_that_refuses(server: PrivateServer, changed: tuple[str, str], code: str, words: str) -> None:
    server.asked("DROP ROLE IF EXISTS weak; CREATE ROLE weak LOGIN PASSWORD 'weak'")
    server.asked("DROP OWNED BY frozen" if server.asked("SELECT 1 FROM pg_roles WHERE rolname = 'frozen'") else "")
    server.asked("DROP ROLE IF EXISTS frozen; CREATE ROLE frozen LOGIN PASSWORD 'frozen'")
    server.asked("ALTER ROLE frozen SET default_transaction_read_only = on")
    server.asked("GRANT CREATE ON DATABASE postgres TO frozen")
    found = await refusal(server.new_store().replace(*changed))
    assert isinstance(found, Rejected) and found.code == code
    assert re.search(words, str(found)), found


async def test_a_server_that_is_not_there_may_come(server: PrivateServer) -> None:
    found = await refusal(server.url.replace(f":{server.port}/", f":{free_port()}/"))
    assert isinstance(found, Unavailable) and "check that the server runs" in str(found)


async def test_another_schema_than_ours_is_left_alone(server: PrivateServer) -> None:
    server.asked("CREATE SCHEMA newer; CREATE SCHEMA theirs; CREATE TABLE theirs.jobs (n integer)")
    server.asked(
        "CREATE TABLE newer.migrations AS"
        " SELECT 99 AS number, 'x'::text AS name, 'y'::text AS checksum, 1::bigint AS applied_ms"
    )
    for schema, code in (("newer", "store_newer"), ("theirs", "store_foreign")):
        found = await refusal(f"{server.url}?schema={schema}")
        assert isinstance(found, Rejected) and found.code == code
        assert len(server.asked(f"SELECT 1 FROM pg_tables WHERE schemaname = '{schema}'")) == 1


def test_a_list_of_migrations_that_lacks_rows_is_told(server: PrivateServer) -> None:
    url = server.new_store()
    assert all(step.applied_ms for step in migrated(url))
    schema = place_at(url).schema
    server.asked(f"DELETE FROM {schema}.migrations WHERE number = 2")
    assert "lacks number 2" in str(asyncio.run(refusal(url)))
    server.asked(f"DELETE FROM {schema}.migrations")
    assert "its list of migrations is gone" in str(asyncio.run(refusal(url)))


HELLO = {"name": "hello", "nodes": [{"id": "a", "type": "value", "config": "x" * 100_000}]}


@pytest.fixture
def made(server: PrivateServer) -> str:
    """The URL of a store in which one run has ended."""
    url = server.emptied_store()
    with tidemill.open(url) as mill:
        mill.run(HELLO)
    return url


def severities(url: str) -> dict[str, str]:
    found = tidemill.diagnose(url).findings
    assert not any(PASSWORD in f"{each.message} {each.hint}" for each in found)
    assert all(each.hint for each in found if each.severity in ("warning", "error"))
    return {each.code: each.severity for each in found}


def with_setting(url: str, setting: str) -> str:
    return f"{url}&options={quote(f'-c {setting}', safe='')}"


def test_only_what_is_wrong_with_the_server_is_above_info(server: PrivateServer, made: str) -> None:
    assert {code for code, severity in severities(made).items() if severity not in ("ok", "info")} == {"fsync"}
    server.asked("ALTER SYSTEM SET full_page_writes = off")
    server.asked("ALTER SYSTEM SET autovacuum = off")
    server.asked("SELECT pg_reload_conf()")
    try:
        eventually(lambda: severities(made)["full_page_writes"] == "error", "the server does not reload")
        assert severities(made)["autovacuum"] == "warning"
    finally:
        server.asked("ALTER SYSTEM RESET ALL")
        server.asked("SELECT pg_reload_conf()")


def test_commits_that_are_not_waited_for(made: str) -> None:
    assert severities(with_setting(made, "synchronous_commit=off"))["synchronous_commit"] == "error"
    assert severities(with_setting(made, "synchronous_commit=local"))["synchronous_commit"] == "ok"


def test_a_server_that_takes_no_writes_is_checked_to_the_end(server: PrivateServer, made: str) -> None:
    sessions = server.asked(f"SELECT count(*) FROM {place_at(made).schema}.sessions")
    found = severities(with_setting(made, "default_transaction_read_only=on"))
    assert found["read_only"] == "error" and found["orphan_blobs"] == "ok"
    assert server.asked(f"SELECT count(*) FROM {place_at(made).schema}.sessions") == sessions


async def test_a_store_to_read_cannot_write(made: str) -> None:
    link = Link(place_at(made, read_only=True))
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        await link.fetch("DELETE FROM sessions")
    await link.drop()


def test_a_pool_that_the_server_has_no_room_for(made: str) -> None:
    assert severities(made)["connections"] == "ok"
    assert severities(f"{made}&pool=40")["connections"] == "warning"


def test_a_pending_migration_is_told_and_not_applied(server: PrivateServer) -> None:
    url = server.new_store()
    assert all(step.applied_ms for step in migrated(url))
    schema = place_at(url).schema
    server.asked(f"DELETE FROM {schema}.migrations WHERE number = {newest_known()}")
    found = severities(url)
    assert found["migrations"] == "warning" and "stuck_runs" not in found
    assert server.asked(f"SELECT max(number) FROM {schema}.migrations") == [(newest_known() - 1,)]


def test_a_role_that_row_security_binds(server: PrivateServer, made: str) -> None:
    schema = place_at(made).schema
    server.asked("DROP ROLE IF EXISTS clerk; CREATE ROLE clerk LOGIN PASSWORD 'clerk'")
    server.asked(f"GRANT USAGE ON SCHEMA {schema} TO clerk; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO clerk")
    try:
        clerk = made.replace(f"{USER}:{PASSWORD}", "clerk:clerk")
        refused, bound = severities(clerk), severities(f"{clerk}&row_security=on")
        assert refused["row_security"] == "error" and "stuck_runs" not in refused
        assert bound["row_security"] == "ok" and bound["orphan_blobs"] == "ok"
        assert severities(f"{made}&row_security=on")["row_security"] == "error", "the owner is not bound"
    finally:
        server.asked("DROP OWNED BY clerk; DROP ROLE clerk")


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ((PASSWORD, "wrong"), "store_unusable"),
        (("/postgres", "/nowhere"), "store_missing"),
        (("schema=", "schema=no_"), "store_missing"),
        (("@127.0.0.1", "@127.0.0.9"), "store_unavailable"),
    ],
)
def test_a_server_that_cannot_be_checked_is_one_finding(made: str, changed: tuple[str, str], code: str) -> None:
    assert severities(made.replace(*changed)) == {"versions": "ok", code: "error"}


def test_a_lost_job_and_an_orphan_are_found(server: PrivateServer, made: str) -> None:
    schema = place_at(made).schema
    with tidemill.open(made, work=False) as mill:
        mill.publish({"name": "gpu", "nodes": [{"id": "a", "type": "value", "queue": "gpu"}]})
        mill.start("gpu", key="lost")
        mill.start("gpu", key="waiting")
        mill.put_blob(b'{"lonely": true}')
    server.asked(f"DELETE FROM {schema}.jobs USING {schema}.streams s WHERE stream = s.id AND s.key = 'lost'")
    server.asked(f"UPDATE {schema}.blobs SET since_ms = since_ms - 7200000")
    found = {each.code: each for each in tidemill.diagnose(made).findings}
    assert "1 run stuck: lost" in found["stuck_runs"].message
    assert "queue gpu: 1 job ready" in found["unserved_queues"].message
    assert found["orphan_blobs"].severity == "info"


def test_a_command_that_only_reads_makes_no_store(server: PrivateServer) -> None:
    url = server.new_store()
    with pytest.raises(Rejected) as refused:
        require_store_exists(url)
    assert refused.value.code == "store_missing"
    assert all(step.applied_ms is None for step in migrated(url, dry_run=True))
    assert all(step.applied_ms for step in migrated(url))
    require_store_exists(url)


async def test_a_process_is_refused_after_another_version_has_migrated(
    server: PrivateServer, store: PostgresStore
) -> None:
    schema = store.place.schema
    assert await store.commit([Commit(run("a"), 0, (b"1",))]) == [Committed(version=1)]
    server.asked(f"INSERT INTO {schema}.migrations VALUES (99, 'later', 'x', 1); DELETE FROM {schema}.sessions")
    try:
        with pytest.raises(Rejected) as refused:
            await store.commit([Commit(run("a"), 1, (b"2",))])
        assert refused.value.code == "store_newer"
    finally:
        server.asked(f"DELETE FROM {schema}.migrations WHERE number = 99")
    assert await store.commit([Commit(run("a"), 1, (b"2",))]) == [Committed(version=2)]


async def test_records_are_in_the_partition_of_the_month_their_stream_was_created_in(
    server: PrivateServer, store: PostgresStore
) -> None:
    schema = store.place.schema
    await store.commit([Commit(run("old"), 0, (b"1",))])
    server.asked(
        f"CREATE TABLE {schema}.records_202001 PARTITION OF {schema}.records FOR VALUES IN (202001);"
        f"UPDATE {schema}.records SET month = 202001; UPDATE {schema}.streams SET month = 202001"
    )
    await store.commit([Commit(run("old"), 1, (b"2",)), Commit(run("new"), 0, (b"3",))])
    assert server.asked(f"SELECT count(*) FROM {schema}.records_202001") == [(2,)]
    assert (await store.load({run("old"): 0}))[0].records == (b"1", b"2")
    await store.forget(run("old"))
    server.asked(f"DROP TABLE {schema}.records_202001")


async def test_a_month_without_a_partition_gets_one(server: PrivateServer, store: PostgresStore) -> None:
    schema = store.place.schema
    for (name,) in server.asked(
        f"SELECT tablename FROM pg_tables WHERE tablename ~ '^records_' AND schemaname = '{schema}'"
    ):
        server.asked(f"DROP TABLE {schema}.{name}")
    assert await store.commit([Commit(run("a"), 0, (b"1",))]) == [Committed(version=1)]


async def test_a_cache_of_lanes_that_is_emptied_fails_no_commit(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with limits per key, of which there may be more than a process caches."""
    monkeypatch.setattr(jobs, "LANES_MAX", 3)

    async def commit_often(worker: int) -> list[object]:
        found: list[object] = []
        for number in range(30):
            one = job("a", caps=(f"key:{(worker + number) % 20}<=1",))
            found += await store.commit([Commit(run(f"r{worker}-{number}"), 0, (b"1",), jobs=(one,))])
        return found

    found = await asyncio.gather(*(commit_often(worker) for worker in range(10)))
    assert found == [[Committed(version=1)] * 30] * 10


async def test_the_next_due_time_is_looked_for_when_all_lanes_were_looked_at(
    store: PostgresStore, server: PrivateServer
) -> None:
    """A call looks at a part of the lanes; among many whose cap is full, every call would look at all of them."""
    full = "workflow:w<=1"
    await store.commit([Commit(run("held"), None, jobs=(job("held", caps=(full,)),))])
    assert len(await store.claim(Claim(queues=(), limit=1, lease_ms=LONG_MS))) == 1
    waiting = tuple(job(f"{number}", caps=(full, f"key:{number}<=1")) for number in range(5))
    await store.commit([Commit(run("waiting"), None, jobs=waiting)])
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"SET search_path = {store.place.schema}".encode())
        asked = "SELECT lane, ready_at_ms FROM claim_jobs(0, 0, 0, NULL, '{}', 9, 9, '', '', '{}', '{}', %s, 2)"
        lane, found = 0, []
        while not found or lane:
            ((lane, due),) = connection.execute(asked, (lane,)).fetchall()
            found.append(due is not None)
    assert found == [False, False, True]
    assert await store.claim(Claim(queues=(), limit=9, lease_ms=LONG_MS)) == []


async def test_a_role_that_is_bound_sees_and_writes_one_tenant_at_a_time(
    server: PrivateServer, store: PostgresStore
) -> None:
    schema = store.place.schema
    for tenant in ("acme", "zeta"):
        stream = run("r", tenant)
        await store.commit([Commit(stream, 0, (tenant.encode(),), jobs=(job(),), rows=(row("r", 1, "x"),))])
    server.asked("DROP ROLE IF EXISTS api") if not server.asked(
        "SELECT 1 FROM pg_roles WHERE rolname = 'api'"
    ) else None
    # Exactly the rights that the page gives.
    block = re.search(r"```sql\n(CREATE ROLE api.*?)```", GUIDE.read_text(), re.DOTALL)
    assert block is not None
    for statement in block[1].replace("tidemill", schema).replace("'secret'", "'api'").split(";")[:-1]:
        server.asked(statement)
    parts = urlsplit(server.url)
    url = f"postgresql://api:api@{parts.hostname}:{parts.port}{parts.path}?schema={schema}&row_security=on"
    api = PostgresStore(place_at(url))
    await api.open()
    try:
        tails = await api.load({run("r", tenant): 0 for tenant in ("acme", "zeta")})
        assert [tail.records for tail in tails] == [(b"acme",), (b"zeta",)]
        assert len((await api.find("zeta", "run", ["x"])).rows) == 1
        assert len(await api.jobs(run("r", "acme"))) == 1
        both = [Commit(run("r", tenant), 1, (b"2",), rows=(row("s"),)) for tenant in ("acme", "zeta")]
        assert await api.commit(both) == [Committed(version=2)] * 2
        assert await api.backlog() == [], "a question without a tenant shows nothing"
    finally:
        await api.close()
    await asyncio.to_thread(require_store_exists, url)
    # A worker must not take an empty view for an empty store, nor an owner itself for bound.
    assert "as workers do" in str(await refusal(url.replace("&row_security=on", "")))
    assert "does not bind" in str(await refusal(f"{server.url}?schema={schema}&row_security=on"))
    # What a statement of that role sees without the store's help.
    with psycopg.connect(url.partition("?")[0], autocommit=True) as bare:
        bare.execute(f"SET search_path = {schema}".encode())
        assert bare.execute("SELECT count(*) FROM records").fetchall() == [(0,)]
        with bare.transaction():
            bare.execute("SET LOCAL tidemill.tenant = 'acme'")
            assert bare.execute("SELECT DISTINCT tenant FROM records").fetchall() == [("acme",)]
            with pytest.raises(psycopg.errors.InsufficientPrivilege), bare.transaction():
                bare.execute("INSERT INTO tenants VALUES ('zeta', 1)")
    server.asked(f"REVOKE SELECT ON {schema}.migrations FROM api")
    with pytest.raises(Rejected, match="migrations") as lacking:
        await asyncio.to_thread(require_store_exists, url)
    assert lacking.value.problems[0].hint.startswith("GRANT that")
