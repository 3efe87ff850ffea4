"""Mills on a file: real runs in a real SQLite store, a witness of what was acknowledged, and the checker afterwards."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from tidemill.ambient import RealAmbient
from tidemill.blobs.sqlite import DatabaseBlobs
from tidemill.engine.engine import Engine
from tidemill.engine.index_rows import RUN
from tidemill.engine.versions import WORKFLOW
from tidemill.engine.worker.worker import WorkerOptions
from tidemill.handlers.contract import Fail
from tidemill.kernel.codec import decode_event
from tidemill.node_types import built_in_handlers
from tidemill.stores.contract import Commit, CommitResult, Committed, Stream
from tidemill.stores.sqlite.database import connect, translate_error
from tidemill.stores.sqlite.store import SqliteStore

TENANT = "default"
BIG = "x" * 70_000
"""Longer than a record may hold, so it becomes a blob."""
SECONDS_MAX = 120.0
FRAME = 24 + 4096
WAL_HEADER = 32


def chain(name: str = "chain", length: int = 4, **more: Any) -> dict[str, Any]:
    """Nodes one after another, each with the output of the one before."""
    nodes: list[dict[str, Any]] = [{"id": "n0", "type": "value", "config": {"n": 0}}]
    for i in range(1, length):
        config = {"n": f"{{{{ n{i - 1}.output.n + 1 }}}}"}
        nodes.append({"id": f"n{i}", "type": "value", "config": config, "dependencies": [f"n{i - 1}"]})
    return {"name": name, "nodes": nodes, "outputs": {"n": f"{{{{ n{length - 1}.output.n }}}}"}, **more}


FAN: dict[str, Any] = {
    "name": "fan",
    "nodes": [
        {"id": "list", "type": "value", "config": [1, 2, 3]},
        {
            "id": "each",
            "type": "python",
            "dependencies": ["list"],
            "map": {"over": "{{ list.output }}"},
            "config": {"function": "double", "args": {"n": "{{ item }}"}},
        },
        {"id": "sum", "type": "value", "dependencies": ["each"], "config": "{{ each.output }}"},
    ],
    "outputs": {"all": "{{ sum.output }}"},
}
FLAKY: dict[str, Any] = {
    "name": "flaky",
    "nodes": [
        {
            "id": "try",
            "type": "python",
            "config": {"function": "flaky"},
            "retry": {"max_attempts": 5, "backoff_seconds": 0.01},
        },
        {"id": "nap", "type": "sleep", "dependencies": ["try"], "config": {"seconds": 0.02}},
        {"id": "big", "type": "python", "dependencies": ["nap"], "config": {"function": "big"}},
        {
            "id": "end",
            "type": "python",
            "dependencies": ["big"],
            "config": {"function": "size", "args": {"of": "{{ big.output }}"}},
        },
    ],
    "outputs": {"size": "{{ end.output }}"},
}
ASKING: dict[str, Any] = {
    "name": "asking",
    "nodes": [
        {"id": "first", "type": "value", "config": 1},
        {"id": "go", "type": "signal", "dependencies": ["first"]},
        {"id": "last", "type": "value", "dependencies": ["go"], "config": "{{ go.output }}"},
    ],
    "outputs": {"said": "{{ last.output }}"},
}
STORY = (chain(), FAN, FLAKY, ASKING)


def functions() -> Mapping[str, Callable[..., Any]]:
    """What the nodes call; each table has its own memory of what it did."""
    tried: dict[str, int] = {}

    def flaky() -> str:
        tried["flaky"] = tried.get("flaky", 0) + 1
        if tried["flaky"] % 3:
            raise Fail("flaky", "try again", retryable=True)
        return "ok"

    return {"double": lambda n: 2 * n, "flaky": flaky, "big": lambda: BIG, "size": lambda of: len(of)}


class Acked(NamedTuple):
    """A stream had this version, and its caller was told so when the log was so long."""

    stream: Stream
    version: int
    wal_bytes: int


class RecordingStore(SqliteStore):
    """The store, and what it has acknowledged."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, **options)
        self.acked: list[Acked] = []
        self.asked: dict[Stream, set[int]] = {}
        """The versions that whole commits would lead to."""

    async def commit(self, commits: Sequence[Commit]) -> list[CommitResult]:
        for commit in commits:
            self.asked.setdefault(commit.stream, {0}).add((commit.expected or 0) + len(commit.records))
        results = await super().commit(commits)
        size = wal_of(self.path).stat().st_size
        for commit, result in zip(commits, results, strict=True):
            if isinstance(result, Committed) and commit.records:
                self.acked.append(Acked(commit.stream, result.version, size))
        return results


def wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def engine_on(store: SqliteStore, *, work: bool = True, **options: Any) -> Engine:
    worker = WorkerOptions(name="w", lease_ms=options.pop("lease_ms", 15_000), claim_wait_ms=200, grace_ms=2_000)
    return Engine(
        store=store,
        blobs=DatabaseBlobs(store.path, connect, translate_error),
        ambient=options.pop("ambient", RealAmbient()),
        handlers=built_in_handlers(functions()),
        worker=worker if work else None,
        **options,
    )


@asynccontextmanager
async def mill(
    path: Path, *, work: bool = True, store: SqliteStore | None = None, **options: Any
) -> AsyncIterator[Engine]:
    """An engine at work on a file."""
    engine = engine_on(store or SqliteStore(path), work=work, **options)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


async def begin(engine: Engine, documents: Sequence[dict[str, Any]] = STORY) -> list[str]:
    """Publish some workflows and start each of them."""
    runs = []
    for document in documents:
        published = await engine.publish(document)
        runs.append(await engine.start(published.name, key=f"run-{document['name']}"))
    return runs


async def finish(engine: Engine, runs: Sequence[str] | None = None) -> dict[str, Any]:
    """Let every run of a store come to its end, and answer what each of them came to."""
    if runs is None:
        runs = [stream.key for stream in await engine._store.streams(RUN)]
    ends = {}
    for run in runs:
        await tell(engine, run)
        view = await engine.result(run, timeout_s=SECONDS_MAX)
        ends[run] = (view.status, view.outputs)
    return ends


async def tell(engine: Engine, run: str) -> None:
    """Send the signal for which one of the workflows waits; once is enough."""
    if run.startswith("run-asking"):
        await engine.signal(run, "go", "yes", signal_id="the-only-one")


ENDS = {
    "run-chain": ("COMPLETED", {"n": 3}),
    "run-fan": ("COMPLETED", {"all": [2, 4, 6]}),
    "run-flaky": ("COMPLETED", {"size": len(BIG)}),
    "run-asking": ("COMPLETED", {"said": "yes"}),
}


def copied(path: Path, folder: Path) -> Path:
    """The file and its log as they are now, as a crash would leave them: without the shared memory."""
    folder.mkdir(exist_ok=True)
    target = folder / path.name
    shutil.copyfile(path, target)
    if wal_of(path).exists():
        shutil.copyfile(wal_of(path), wal_of(target))
    return target


async def examined(path: Path) -> dict[Stream, int]:
    """Open a file, see that everything in it is as it must be, and answer the version of every stream."""
    async with mill(path, work=False) as engine:
        verdict = await engine.verify_log()
        assert verdict.clean, verdict.findings
        store = engine._store
        runs, others = await store.streams(RUN), [*await store.streams(WORKFLOW), *await store.streams("store")]
        tails = await store.load(dict.fromkeys([*runs, *others], 0), snapshots=False)
        records = [record for tail in tails for record in tail.records if tail.stream.kind == RUN]
        tokens = [getattr(decode_event(record), "token", 0) or 0 for record in records]
        tokens += [view.token for run in runs for view in await store.jobs(run)]
        assert counter(path, "tokens") >= max(tokens, default=0), "a fence token could be given out twice"
        return {tail.stream: tail.version for tail in tails}


def counter(path: Path, name: str) -> int:
    return int(sql(path, f"SELECT {name} FROM counters")[0][0])


def sql(path: Path, statement: str, values: Sequence[Any] = ()) -> list[Any]:
    """Do something to a file behind the store's back."""
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(5_000)
        return connection.execute(statement, tuple(values)).fetchall()
    finally:
        connection.close()


async def eventually(condition: Callable[[], bool], what: str, seconds: float = SECONDS_MAX) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - nobody rings for it
            await asyncio.sleep(0.01)
