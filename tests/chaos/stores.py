"""The stores that a storm can rage on: where each is, what is done to the server behind it, and its own check.

A store joins by an entry of `STORES`. One with a server is a subclass of `ServedStore`, whose faults are the same for
every server: killed, killed again while it recovers, stopped for longer than a lease, connections cut by a proxy.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Protocol
from urllib.parse import urlsplit

import apsw

from tests.chaos.clock import Clock
from tests.fixtures.servers import postgres_server, redis_server
from tests.fixtures.servers.postgres_server import PrivateServer
from tests.fixtures.servers.tcp_proxy import Fault, ProxyThread
from tidemill.storage_urls import Storage, open_storage
from tidemill.stores.sqlite.store import SqliteStore

CUTS: tuple[Fault, ...] = ("request", "reply", "late")
KEYS = (b"-0", b"")
"""What a request must hold to be cut: the number of a run, as commits have it, or anything."""
COMMAND = b"*3\r\n$3\r\nSET\r\n$4\r\ntorn\r\n$4\r\nhalf\r\n"
TORN = "SIGKILL server, amid a write to its log"
NOTHING = re.compile(r"(?!)")


class StoreUnderChaos:
    """A place that processes work on."""

    lease_ms = 1_000
    happenings: ClassVar[Mapping[str, int]] = {}
    """What can happen to it beside what happens to processes; see `HAPPENINGS` of the chaos run."""
    must_fire: ClassVar[tuple[str, ...]] = ()
    """What a storm of full size must lead to beside what every one must."""
    said = NOTHING
    """What processes may write to standard error because of what happened to it."""
    url: str
    """For the judge."""
    work_url: str
    """For the processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def served(self) -> Iterator[None]:
        """Have it there."""
        yield

    def integrity(self) -> Iterator[str]:
        """What it finds wrong with itself."""
        yield from ()

    def keep(self, folder: Path) -> None:
        """Copy what is not in the folder of the storm anyway."""


class SqliteFile(StoreUnderChaos):
    """A file. Leases of a killed process are void at once, so what was lost is soon lost again."""

    must_fire: ClassVar[tuple[str, ...]] = ("SIGKILL client", "lost again while being recovered")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / "chaos.db"
        self.url = self.work_url = f"sqlite:///{self.file}"

    def integrity(self) -> Iterator[str]:
        connection = apsw.Connection(str(self.file), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
            found += [f"foreign key {row}" for row in connection.execute("PRAGMA foreign_key_check")]
        finally:
            connection.close()
        yield from (line for line in found if line != "ok")


class ServerProcess(Protocol):
    """A server that was started for one storm."""

    url: str

    @property
    def port(self) -> int: ...
    def launch(self) -> None: ...
    def accepts(self) -> bool: ...
    def stop(self, how: signal.Signals = ...) -> None: ...
    def send_all(self, number: signal.Signals) -> None: ...
    def processes(self) -> Iterable[int]: ...
    def new_store(self) -> str: ...


class ServedStore(StoreUnderChaos):
    """A store on a server of the storm's own, with a proxy before it."""

    lease_ms = 2_000
    happenings: ClassVar[Mapping[str, int]] = {
        "kill_server": 4,
        "kill_server_twice": 3,
        "stop_server": 2,
        "cut_all": 5,
        "cut": 12,
    }
    must_fire: ClassVar[tuple[str, ...]] = (
        "SIGKILL server",
        "SIGKILL server, recovering",
        "SIGSTOP server",
        "a commit was in flight when the server was killed",
        "connections cut, all at once",
        "connections cut amid a call",
    )
    server: ServerProcess
    proxy: ProxyThread

    @contextmanager
    def served(self) -> Iterator[None]:
        with ExitStack() as stack:
            self.server = stack.enter_context(self.started())
            self.proxy = stack.enter_context(ProxyThread(self.server.port))
            self.url = self.server.new_store()
            self.work_url = self.url.replace(f":{self.server.port}", f":{self.proxy.proxy.port}")
            yield

    def started(self) -> AbstractContextManager[ServerProcess]:
        """Have a server with an empty database."""
        raise NotImplementedError

    def hurt(self, name: str, rng: random.Random) -> str:
        """Do to the server what is done to this kind alone; answers what it was, empty if it was not possible."""
        raise NotImplementedError


class PostgresServer(ServedStore):
    """A PostgreSQL server."""

    happenings: ClassVar[Mapping[str, int]] = {**ServedStore.happenings, "kill_backend": 2}
    must_fire: ClassVar[tuple[str, ...]] = (*ServedStore.must_fire, "SIGKILL server, one backend")
    said = re.compile(
        r"[^\n]*PostgreSQL at 127\.0\.0\.1:\d+/postgres[^\n]*\n|query cancellation failed: [^\n]*\n(?:\t[^\n]*\n)*"
    )
    """One line, which names the server; and what the driver says when a process ends while the server is away."""
    server: PrivateServer

    def started(self) -> AbstractContextManager[PrivateServer]:
        return postgres_server.running("fsync=on", "restart_after_crash=on")

    def hurt(self, name: str, rng: random.Random) -> str:
        """Kill one process of the server that has a client: it ends all others and recovers by itself."""
        backends = [pid for pid, words in self.server.processes().items() if "127.0.0.1(" in words]
        if not backends:
            return ""
        kill(rng.choice(backends))
        return "SIGKILL server, one backend"

    def integrity(self) -> Iterator[str]:
        """What the server's own check of its indexes and heaps finds."""
        schema = urlsplit(self.url).query.partition("schema=")[2]
        self.server.asked("CREATE EXTENSION IF NOT EXISTS amcheck")
        indexes = self.server.asked(
            "SELECT c.oid::int, c.relname FROM pg_class c JOIN pg_am a ON a.oid = c.relam"
            f" WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind = 'i' AND a.amname = 'btree'"
        )
        for number, name in indexes:
            try:
                self.server.asked(f"SELECT bt_index_check({number}, true)")
            except Exception as error:
                yield f"{name}: {error}"

    def keep(self, folder: Path) -> None:
        self.server.stop()
        shutil.copytree(self.server.home, folder / "server")


class RedisServer(ServedStore):
    """A Redis or Valkey server that syncs every commit."""

    happenings: ClassVar[Mapping[str, int]] = {**ServedStore.happenings, "tear_log": 2}
    must_fire: ClassVar[tuple[str, ...]] = (*ServedStore.must_fire, TORN)
    said = re.compile(r"[^\n]*Redis at 127\.0\.0\.1:\d+[^\n]*\n")
    server: redis_server.PrivateServer

    def started(self) -> AbstractContextManager[redis_server.PrivateServer]:
        return redis_server.running("appendfsync always")

    def hurt(self, name: str, rng: random.Random) -> str:
        """Kill the server as if amid a write: the last command of its log is there in part."""
        self.server.stop(signal.SIGKILL)
        log = max((self.server.home / "appendonlydir").glob("*.incr.aof"))
        with log.open("ab") as file:
            file.write(COMMAND[: rng.randrange(1, len(COMMAND))])
        self.server.launch()
        return TORN

    def keep(self, folder: Path) -> None:
        self.server.stop()
        shutil.copytree(self.server.home, folder / "server")


STORES: Mapping[str, type[StoreUnderChaos]] = {"sqlite": SqliteFile, "postgres": PostgresServer, "redis": RedisServer}
SERVED = tuple(name for name, store in STORES.items() if issubclass(store, ServedStore))


def storage(url: str, clock: Path) -> Storage:
    """The store and the blobs as a process of the storm opens them; a file is used by a clock that the storm sets."""
    opened = open_storage(url)
    if isinstance(opened.store, SqliteStore):
        return opened._replace(store=SqliteStore(opened.store.path, clock=Clock(clock)))
    return opened


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
