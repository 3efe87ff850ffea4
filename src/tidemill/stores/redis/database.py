"""The Redis database: its URL, connections, errors, and the settings that decide what survives.

A connection is a protocol of its own on asyncio: calls are answered in order, nothing is retried behind our back, and a
cancelled caller leaves the connection usable. Every call that changes something may be repeated (see `scripts.py`), so
a link repeats it after a cut. Error messages never quote the URL, which may hold a password.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import hiredis
import msgspec
from msgspec.structs import replace

from tidemill.errors import DiskFull, Rejected, StoreUnusable, TidemillError, Unavailable, rejected

PREFIX = "tidemill"
PORT = 6379
PARTITIONS_MAX = 256
VERSION_MIN = (7, 0)
CONNECT_SECONDS = 5.0
CALL_SECONDS = 30.0
"""How long a call may take before its connection counts as cut."""
PATIENCE_SECONDS = 5.0
"""How long a call waits for a server that cannot be reached before it fails."""
OPTIONS = "prefix, partitions, durability, blobs, ca"

Argument = bytes | str | int
Address = tuple[str, int]


# The URL


class Place(msgspec.Struct, frozen=True):
    """Where a store is."""

    addresses: tuple[Address, ...]
    """The server, or some of a cluster, or a primary and its replicas."""
    user: str = ""
    password: str = ""
    database: int = 0
    tls: bool = False
    ca: str = ""
    prefix: str = PREFIX
    partitions: int = 0
    """0: what the database says, else 1."""
    durable: bool = True
    """A server that forgets everything at a restart is refused."""
    blobs: str = ""
    """The URL of a place for large values outside the database."""

    @property
    def name(self) -> str:
        """For messages: without user and password."""
        host, port = self.addresses[0]
        return f"Redis at {host}:{port}/{self.database}"


def place_at(url: str) -> Place:
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = next((name for name in options if name not in OPTIONS.split(", ")), None)
    if unknown is not None:
        message = f"a Redis store has no option {unknown!r}"
        raise rejected("store_option_unknown", message, hint=f"the options are {OPTIONS}")
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    database = parts.path.strip("/") or "0"
    addresses = tuple(_address(host) for host in hosts.split(","))
    if "@" in login or not database.isdigit():
        raise _bad_url()
    if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,40}", options.get("prefix", PREFIX)):
        message = f"{options['prefix']!r} is not a key prefix: up to 40 letters, digits and _.:-"
        raise rejected("store_option_unknown", message, path="/prefix")
    partitions = options.get("partitions", "0")
    if not re.fullmatch(r"\d{1,3}", partitions) or int(partitions) > PARTITIONS_MAX:
        message = f"partitions is a number from 1 to {PARTITIONS_MAX}, not {partitions!r}"
        raise rejected("store_option_unknown", message, path="/partitions")
    if options.get("durability", "full") not in ("full", "none"):
        message = f"durability is full or none, not {options['durability']!r}"
        raise rejected("store_option_unknown", message, path="/durability")
    return Place(
        addresses,
        unquote(user),
        unquote(password),
        int(database),
        parts.scheme == "rediss",
        options.get("ca", ""),
        options.get("prefix", PREFIX),
        int(partitions),
        options.get("durability", "full") == "full",
        options.get("blobs", ""),
    )


def _address(host: str) -> Address:
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]@]*)(?::(\d{1,5}))?", host)
    if found is None:
        raise _bad_url()
    return found[1].strip("[]") or "127.0.0.1", int(found[2] or PORT)


def _bad_url() -> Rejected:
    hint = "write redis://user:password@host:6379/0, with %40 for an @ in the password"
    return rejected("store_unknown", "the URL of the Redis store cannot be read", hint=hint)


# Errors


class Answer(Exception):
    """An error that the server has answered."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]


class Cut(Exception):
    """The connection is gone, and with it the answer."""


NOT_DONE = frozenset(
    ("LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "ASK", "MOVED", "NOSCRIPT", "READONLY", "NOREPLICAS")
)
"""Answers to a call that was not executed and may succeed soon."""


def translate(error: BaseException, place: Place, *, opened: bool = True) -> TidemillError:
    """The Tidemill error for an answer. While work is under way it waits for the operator; a refusal would fail it."""
    if isinstance(error, TidemillError):
        return error
    found = _meant(error, place)
    if not opened or not isinstance(found, Rejected):
        return found
    (problem,) = found.problems
    # During a failover every server is a replica for a while, and workers wait; a new one is refused.
    return StoreUnusable(replace(problem, code="store_unusable") if found.code == "store_read_only" else problem)


def _meant(error: BaseException, place: Place) -> TidemillError:
    text = " ".join(str(error).split())[:300] or type(error).__name__
    message = f"{place.name}: {text}"
    code = error.code if isinstance(error, Answer) else ""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "name the file with the certificate of its authority, ?ca=FILE, and the server as its certificate does"
        why = error.verify_message.rstrip(".")
        return rejected("store_unusable", f"the certificate of {place.name} is not trusted: {why}", hint=hint)
    if code in ("OOM", "MISCONF"):
        what = "its memory is full (maxmemory)" if code == "OOM" else "it cannot write to its disk"
        return DiskFull(f"{place.name} accepts no writes, because {what}; free some: {text}")
    if code in ("READONLY", "NOREPLICAS"):
        hint = "name the primary server; several may be given as host1:port,host2:port"
        return rejected("store_read_only", f"{place.name} is a replica, or takes no writes: {text}", hint=hint)
    if code in ("NOAUTH", "WRONGPASS") or "without any password" in text or "AUTH <password>" in text:
        hint = "check user and password in the URL, and `requirepass` or the ACL of the server"
        return rejected("store_unusable", f"{place.name} refuses the connection: {text}", hint=hint)
    if code == "NOPERM":
        hint = f"give the user ~{place.prefix}:* &{place.prefix}:* +@all -@dangerous +info +config|get +role"
        return rejected("store_unusable", message, hint=hint)
    if code == "CLUSTERDOWN":
        hint = "give all 16384 hash slots to nodes that run: `redis-cli --cluster check` shows which are missing"
        return rejected("store_unusable", f"{place.name} is a cluster without all its hash slots: {text}", hint=hint)
    if "DB index" in text or "SELECT is not allowed" in text:
        hint = "leave the number out; a cluster has only database 0, other servers as many as `databases` says"
        return rejected("store_missing", f"{place.name}: there is no database {place.database}", hint=hint)
    if code == "EMPTIED":
        return emptied(place)
    if code in ("CROSSSLOT", "ERR", "WRONGTYPE"):
        return rejected("store_damaged", message, hint="another program may use the same keys; choose another prefix")
    return Unavailable(f"{place.name} cannot be reached: {text}; check that the server runs")


def emptied(place: Place) -> Rejected:
    message = f"the store {place.prefix!r} in {place.name} is gone: the database was emptied"
    return rejected("store_emptied", message, hint="restore a backup, or restart with an empty store")


# Connections


# Its own types say that a command has one part.
_packed = cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)


class Connection(asyncio.Protocol):
    """Calls that are answered in order. With `pushed`, what the server sends unasked goes there."""

    def __init__(self, pushed: Callable[[list[Any]], None] | None = None) -> None:
        self._reader = hiredis.Reader(replyError=Answer, protocolError=Cut)
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        """Calls that are not answered, with the time of each."""
        self._watch: asyncio.TimerHandle | None = None
        self._pushed = pushed
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.closed = False
        self.lost: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        found: socket.socket | None = transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        reader, waiting = self._reader, self._waiting
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not False:
                if self._pushed is not None and isinstance(reply, list):
                    self._pushed(reply)
                elif waiting:
                    future, _ = waiting.popleft()
                    if not future.done():
                        future.set_result(reply)
        except Cut:
            self.close()

    def connection_lost(self, error: BaseException | None) -> None:
        self.closed = True
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(Cut(f"the connection was cut: {error}" if error else "the connection was closed"))
        if self._watch is not None:
            self._watch.cancel()
        if not self.lost.done():
            self.lost.set_result(None)

    def _look(self) -> None:
        """Close the connection if a call was not answered for too long. One timer serves all calls."""
        self._watch = None
        if self._waiting:
            left = self._waiting[0][1] + CALL_SECONDS - self._loop.time()
            if left <= 0:
                self.close()
            else:
                self._watch = self._loop.call_later(left, self._look)

    async def call(self, *arguments: Argument) -> Any:
        """Send a command; raises `Answer` or `Cut`."""
        reply = await self.request(arguments)
        if isinstance(reply, Answer):
            raise reply
        return reply

    def request(self, command: tuple[Argument, ...]) -> asyncio.Future[Any]:
        """Send a command. The reply may be an `Answer`; raises `Cut`."""
        if self.closed or self._transport is None or self._transport.is_closing():
            self.closed = True
            raise Cut("the connection was closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append((future, self._loop.time()))
        self._transport.write(_packed(command))
        if self._watch is None:
            self._watch = self._loop.call_later(CALL_SECONDS, self._look)
        return future

    def send(self, *arguments: Argument) -> None:
        """Send a command whose answer comes as a push, or does not matter."""
        if not self.closed and self._transport is not None and not self._transport.is_closing():
            self._transport.write(_packed(arguments))

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()


async def connect(place: Place, address: Address, pushed: Callable[[list[Any]], None] | None = None) -> Connection:
    """A connection that has logged in; raises `Answer`, `Cut` or an error of the socket."""
    tls: ssl.SSLContext | None = None
    if place.tls:
        try:
            tls = ssl.create_default_context(cafile=place.ca or None)
        except OSError as error:
            hint = "name a file of certificates in PEM that this user may read: ?ca=FILE"
            raise rejected("store_unusable", f"{place.ca} holds no certificates: {error.strerror}", hint=hint) from None
    async with asyncio.timeout(CONNECT_SECONDS):
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(lambda: Connection(pushed), *address, ssl=tls)
        try:
            for command in handshake(place):
                await made.call(*command)
        except BaseException:
            made.close()
            raise
    return made


def handshake(place: Place) -> list[tuple[Argument, ...]]:
    commands: list[tuple[Argument, ...]] = []
    if place.password:
        commands.append(("AUTH", place.user, place.password) if place.user else ("AUTH", place.password))
    if place.database:
        commands.append(("SELECT", place.database))
    return commands


class Script(NamedTuple):
    name: str
    text: bytes
    digest: str


class Nodes:
    """Which server serves which partition. A cluster reports it; otherwise it is the server that accepts writes."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._at: dict[int, Address] = {}
        self._first = 0
        self.warnings: dict[str, None] = {}
        """What settings of the servers may lose."""

    def of(self, partition: int) -> Address:
        addresses = self.place.addresses
        return self._at.get(partition) or addresses[self._first % len(addresses)]

    def moved(self, partition: int, text: str) -> None:
        """`MOVED slot host:port`; an empty host is the one that has answered."""
        host, _, port = text.split()[2].rpartition(":")
        self._at[partition] = host or self.of(partition)[0], int(port)

    def failed(self, partition: int) -> None:
        """Try another address."""
        if self._at.pop(partition, None) is None:
            self._first += 1


class Link:
    """A connection to the server of a partition, made when it is needed and replaced after it was cut."""

    def __init__(self, nodes: Nodes, partition: int) -> None:
        self.place = nodes.place
        self._nodes, self.partition = nodes, partition
        self.connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._closed = False

    async def connect(self) -> Connection:
        """Several callers share one attempt."""
        if self._closed:
            raise Unavailable("the store is closed")
        made = self.connection
        if made is not None and not made.closed:
            return made
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(connect(self.place, self._nodes.of(self.partition)))
            self._connecting.add_done_callback(self._connected)
        try:
            return await asyncio.shield(self._connecting)
        except (OSError, TimeoutError) as error:
            raise Cut(str(error) or "it does not answer") from error

    def _connected(self, task: asyncio.Task[Connection]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            self.connection = task.result()

    async def run(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[Argument], *, seconds: float | None = None
    ) -> Any:
        """Execute a script. It is repeated after a cut, so a script must tolerate that."""
        return await self.execute(("EVALSHA", script.digest, len(keys), *keys, *arguments), script, seconds)

    async def call(self, *command: Argument, seconds: float | None = None) -> Any:
        return await self.execute(command, None, seconds)

    async def execute(
        self, command: tuple[Argument, ...], script: Script | None = None, seconds: float | None = None
    ) -> Any:
        """Send a command that may be repeated, with patience for servers that start, move or fail over."""
        until = time.monotonic() + (PATIENCE_SECONDS if seconds is None else seconds)
        pause = 0.02
        while True:
            try:
                made = self.connection
                if made is None or made.closed:
                    made = await self.connect()
                reply = await made.request(command)
                if not isinstance(reply, Answer):
                    return reply
                raise reply
            except Answer as error:
                code = error.code
                if code == "NOSCRIPT" and script is not None and made is not None and not made.closed:
                    await self._load(made, script)
                    continue
                if code not in NOT_DONE or time.monotonic() + pause > until:
                    raise translate(error, self.place) from error
                if code == "MOVED":
                    self._nodes.moved(self.partition, str(error))
                    self.drop()
                elif code == "READONLY":
                    # The server has become a replica: another one may have become the primary.
                    self._nodes.failed(self.partition)
                    self.drop()
            except Cut as error:
                if time.monotonic() + pause > until:
                    raise translate(error, self.place) from error
                self._nodes.failed(self.partition)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)

    async def _load(self, made: Connection, script: Script) -> None:
        try:
            await made.call("SCRIPT", "LOAD", script.text)
        except (Answer, Cut) as error:
            if isinstance(error, Answer) and error.code not in NOT_DONE:
                raise translate(error, self.place) from error

    def drop(self) -> None:
        made, self.connection = self.connection, None
        if made is not None:
            made.close()

    async def close(self) -> None:
        """Close the connection permanently, and wait until its socket is closed."""
        self._closed = True
        if self._connecting is not None:
            await asyncio.gather(self._connecting, return_exceptions=True)
        made = self.connection
        self.drop()
        if made is not None:
            await made.lost
