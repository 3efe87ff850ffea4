"""Connections that are kept for the next request to the same origin.

A connection belongs to one request at a time. The library's own pool looks at all of its connections before and after
each request; this one only at those it takes or puts back. It puts back none over which more has come than the answer,
because the surplus would be taken for the answer to the next request.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Awaitable, Callable

import httpcore2

from tidemill.security.streams import LoopStream

Origin = tuple[bytes, bytes, int | None]
Connect = Callable[[str, int, float | None], Awaitable[LoopStream]]
"""Opens a line to a host and a port within some seconds."""

KEPT_MAX = 100
KEPT_SECONDS = 30


class Connection(httpcore2.AsyncHTTP11Connection):
    """A connection that knows what has passed over it."""

    def __init__(self, origin: httpcore2.Origin, stream: LoopStream) -> None:
        super().__init__(origin=origin, stream=stream, keepalive_expiry=KEPT_SECONDS)
        self._stream, self._before = stream, stream.traffic
        self.used = False
        """Whether it has served a request before this one."""

    async def handle_async_request(self, request: httpcore2.Request) -> httpcore2.Response:
        self._before = self._stream.traffic
        return await super().handle_async_request(request)

    @property
    def unsent(self) -> bool:
        """Whether nothing of the last request was sent."""
        return self._stream.traffic[0] == self._before[0]

    @property
    def unanswered(self) -> bool:
        """Whether nothing came back for it."""
        return self._stream.traffic[1] == self._before[1]

    @property
    def unread(self) -> bytes:
        """What has come and belongs to no answer so far."""
        return self._h11_state.trailing_data[0]

    @property
    def is_good(self) -> bool:
        """Whether the next request can be sent: it is idle, not too old, and silent."""
        return self.is_available() and not self.unread and not self.has_expired()


class Pool:
    """Connections by origin, the one used last in front."""

    def __init__(self, tls: ssl.SSLContext, connect: Connect) -> None:
        tls.set_alpn_protocols(["http/1.1"])
        self._tls, self._connect = tls, connect
        self._kept: dict[Origin, deque[Connection]] = {}
        self._lent: set[Connection] = set()
        self._size = 0

    async def take(self, url: httpcore2.URL, seconds: float | None, *, fresh: bool = False) -> Connection:
        """A connection for one request: one that was kept and is still good, or a new one."""
        lent = self._lent  # The pool may be closed while somebody connects; then this set is no longer its own.
        connection = None if fresh else await self._good(self._kept.get(_origin(url)))
        if connection is None:
            connection = Connection(url.origin, await self._opened(url.origin, seconds))
        lent.add(connection)
        return connection

    async def _opened(self, origin: httpcore2.Origin, seconds: float | None) -> LoopStream:
        host = origin.host.decode("ascii")
        stream = await self._connect(host, origin.port, seconds)
        if origin.scheme == b"https":
            stream = await stream.start_tls(self._tls, server_hostname=host, timeout=seconds)
        return stream

    async def _good(self, kept: deque[Connection] | None) -> Connection | None:
        while kept:
            connection = kept.pop()
            self._size -= 1
            if connection.is_good:
                return connection
            await connection.aclose()
        return None

    async def put_back(self, url: httpcore2.URL, connection: Connection) -> None:
        """Keep a connection whose request is over, unless it broke or the pool was closed meanwhile."""
        if connection not in self._lent or not connection.is_good:
            self._lent.discard(connection)
            await connection.aclose()
            return
        self._lent.discard(connection)
        connection.used = True
        self._kept.setdefault(_origin(url), deque()).append(connection)
        self._size += 1
        await self._tidy()

    async def _tidy(self) -> None:
        """Close the oldest connection of the first origin, if there are too many or it has expired."""
        origin, kept = next(iter(self._kept.items()))
        if not kept:
            del self._kept[origin]
        elif self._size > KEPT_MAX or kept[0].has_expired():
            self._size -= 1
            await kept.popleft().aclose()

    async def close(self) -> None:
        """Close all that are kept; those in use are closed when they are put back."""
        kept, self._kept, self._size, self._lent = self._kept, {}, 0, set()
        for connections in kept.values():
            for connection in connections:
                await connection.aclose()


def _origin(url: httpcore2.URL) -> Origin:
    return url.scheme, url.host, url.port
