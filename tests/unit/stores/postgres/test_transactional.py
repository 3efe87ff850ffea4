"""Statements that come along with a commit: both happen or neither does; the store's own tables are out of reach."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
import pytest_asyncio

from tests.conformance.stores.harness import RUN
from tests.fixtures.servers.postgres_server import Server, given_or_running
from tidemill.errors import Rejected
from tidemill.stores.contract import Commit, Committed, LeasesLost, Statement, StatementRefused, VersionConflict
from tidemill.stores.postgres import transactional
from tidemill.stores.postgres.database import place_at
from tidemill.stores.postgres.store import PostgresStore

INSERT = Statement(text="INSERT INTO mine (n) VALUES (?) RETURNING n", parameters=b"[7]", owner="flow")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with given_or_running() as started:
        yield started


@pytest_asyncio.fixture
async def store(server: Server) -> AsyncIterator[PostgresStore]:
    url = server.new_store()
    opened = PostgresStore(place_at(url))
    await opened.open()
    make = await opened.dry_run(Statement(text="CREATE TABLE mine (n integer)", owner="flow"))
    (result,) = await opened.commit([Commit(RUN, 0, (b"made",), statements=(make,))])
    assert result == Committed(version=1)
    yield opened
    await opened.close()
    schema = opened.place.schema
    server.asked(f"DROP SCHEMA {schema} CASCADE; DROP SCHEMA {schema}_tables CASCADE")


def mine(server: Server, store: PostgresStore) -> list[tuple[object, ...]]:
    return server.asked(f"SELECT n FROM {store.place.schema}_tables.mine ORDER BY n")


async def test_both_happen(server: Server, store: PostgresStore) -> None:
    statement = await store.dry_run(INSERT)
    assert statement.answer == b'{"rows":[{"n":7}],"count":1,"changed":1}'
    assert mine(server, store) == [], "a dry run leaves nothing behind"
    assert await store.commit([Commit(RUN, 1, (b"a",), statements=(statement,))]) == [Committed(version=2)]
    assert mine(server, store) == [(7,)]


@pytest.mark.parametrize(
    ("commit", "refusal"),
    [
        (Commit(stream=RUN, expected=3, records=(b"a",), statements=(INSERT,)), VersionConflict),
        (Commit(stream=RUN, expected=1, records=(b"a",), acks=(("j", 9),), statements=(INSERT,)), LeasesLost),
    ],
)
async def test_a_refused_commit_takes_its_statement_along(
    server: Server, store: PostgresStore, commit: Commit, refusal: type[object]
) -> None:
    (result,) = await store.commit([commit])
    assert isinstance(result, refusal)
    assert mine(server, store) == []


async def test_a_changed_answer_takes_its_commit_along(server: Server, store: PostgresStore) -> None:
    count = Statement(text="INSERT INTO mine SELECT count(*) FROM mine RETURNING n", owner="flow")
    first, second = await store.dry_run(count), await store.dry_run(count)
    (result,) = await store.commit([Commit(RUN, 1, (b"a",), statements=(first,))])
    assert result == Committed(version=2)
    (result,) = await store.commit([Commit(RUN, 2, (b"b",), statements=(second,))])
    assert isinstance(result, StatementRefused) and result.changed
    assert (await store.load({RUN: 0}))[0].version == 2
    assert mine(server, store) == [(0,)]
    random = await store.dry_run(Statement(text="INSERT INTO mine VALUES (9) RETURNING random()", owner="flow"))
    (result,) = await store.commit([Commit(RUN, 2, (b"b",), statements=(random,))])
    assert isinstance(result, StatementRefused) and not result.changed


async def test_commits_of_two_processes_take_turns(server: Server, store: PostgresStore) -> None:
    """Two statements that do not see each other's rows would both answer as in their dry runs."""
    other = PostgresStore(store.place)
    await other.open()
    count = Statement(text="INSERT INTO mine SELECT count(*) FROM mine RETURNING n", owner="flow")
    for _ in range(5):
        dry = [await each.dry_run(count) for each in (store, other)]
        both = [
            each.commit([Commit(RUN._replace(key=f"{number}"), None, statements=(statement,))])
            for number, (each, statement) in enumerate(zip((store, other), dry, strict=True))
        ]
        results = [result for (result,) in await asyncio.gather(*both)]
        assert sorted(type(result).__name__ for result in results) == ["Committed", "StatementRefused"]
    await other.close()
    assert mine(server, store) == [(number,) for number in range(5)]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM {schema}.streams",
        "DELETE FROM {schema}.jobs",
        "UPDATE {schema}.statement_tables SET owner = 'me'",
        "SELECT set_config('search_path', '{schema}', false)",
        "SELECT \"set_config\"('a.b', 'c', false)",
        "SELECT query_to_xml('select 1', true, true, '')",
        pytest.param("SELECT pg_read_file('/etc/passwd')", id="file"),
        "SELECT pg_sleep(1)",
        "SELECT rolpassword FROM pg_authid",
        "SELECT * FROM information_schema.tables",
        "SELECT nextval('{schema}.tokens')",
        "SET ROLE postgres",
        "COMMIT",
        "DO $$ BEGIN END $$",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE TABLE t AS SELECT * FROM {schema}.rows",
        "CREATE TABLE t (n integer) INHERITS ({schema}.streams)",
        "CREATE TABLE t (n bigint REFERENCES {schema}.streams (id))",
        "CREATE TABLE {schema}.t (n integer)",
        "ALTER TABLE mine SET SCHEMA {schema}",
        "COPY mine FROM '/etc/passwd'",
        "SELECT 1; SELECT 2",
        "WITH a AS (DELETE FROM {schema}.rows RETURNING 1) SELECT count(*) FROM a",
        "SELECT count(*) FROM generate_series(1, 100000000)",
    ],
)
async def test_what_reaches_beyond_its_tables_is_refused(server: Server, store: PostgresStore, text: str) -> None:
    await store.commit([Commit(RUN._replace(key="kept"), 0, (b"kept",))])
    statement = Statement(text=text.format(schema=store.place.schema), owner="flow")
    with pytest.raises(Rejected) as refused:
        await store.dry_run(statement)
    assert refused.value.code == "statement_refused"
    (result,) = await store.commit([Commit(RUN, 1, (b"a",), statements=(statement,))])
    assert isinstance(result, StatementRefused), "also without a dry run"
    assert [tail.version for tail in await store.load({RUN: 0, RUN._replace(key="kept"): 0})] == [1, 1]


async def test_a_table_belongs_to_the_workflow_that_made_it(store: PostgresStore) -> None:
    foreign = msgspec.structs.replace(INSERT, owner="other")
    with pytest.raises(Rejected, match=r"belongs to the workflow flow.*`mine = \[\"other\"\]`"):
        await store.dry_run(foreign)
    assert (await store.dry_run(msgspec.structs.replace(foreign, shared=("mine",)))).answer


async def test_values_and_names(store: PostgresStore) -> None:
    text = "SELECT :a::text || '%' AS a, substr(:b, 2) AS b, 1.50 AS c, 12::numeric AS d, date '2026-11-16' AS e"
    statement = Statement(text=text, parameters=b'{"a": "x", "b": "yz"}', owner="flow")
    answer = msgspec.json.decode((await store.dry_run(statement)).answer)
    assert answer["rows"] == [{"a": "x%", "b": "z", "c": 1.5, "d": 12, "e": "2026-11-16"}]
    with pytest.raises(Rejected, match="missing"):
        await store.dry_run(Statement(text="SELECT :a", parameters=b"{}", owner="flow"))


async def test_an_answer_that_is_too_large_is_not_read_to_its_end(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    monkeypatch.setattr(transactional, "to_json", lambda value: read.append(value) or value)
    many = Statement(text="SELECT generate_series(1, 100000) AS n", owner="flow")
    with pytest.raises(Rejected, match="more than 10000 rows"):
        await store.dry_run(many)
    assert len(read) == 10_001
    monkeypatch.undo()
    assert (await store.dry_run(INSERT)).answer == b'{"rows":[{"n":7}],"count":1,"changed":1}'
