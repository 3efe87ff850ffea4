"""Connections that are kept for the next request to the same origin.

A connection belongs to one request at a time. The library's own pool looks at all of its connections before and after
each request; this one only at those it takes or puts back.
"""

from __future__ import annotations

import ssl
from collections import deque

import httpcore2

Origin = tuple[bytes, bytes, int | None]

KEPT_MAX = 100
KEPT_SECONDS = 30


class Pool:
    """Connections by origin, the one used last in front."""

    def __init__(self, tls: ssl.SSLContext, backend: httpcore2.AsyncNetworkBackend) -> None:
        self._tls, self._backend = tls, backend
        self._kept: dict[Origin, deque[httpcore2.AsyncHTTPConnection]] = {}
        self._lent: set[httpcore2.AsyncHTTPConnection] = set()
        self._size = 0

    async def take(self, url: httpcore2.URL) -> httpcore2.AsyncHTTPConnection:
        """A connection for one request: one that was kept and is still good, or a new one."""
        connection = await self._good(self._kept.get(_origin(url)))
        if connection is None:
            connection = httpcore2.AsyncHTTPConnection(
                origin=url.origin, ssl_context=self._tls, keepalive_expiry=KEPT_SECONDS, network_backend=self._backend
            )
        self._lent.add(connection)
        return connection

    async def _good(self, kept: deque[httpcore2.AsyncHTTPConnection] | None) -> httpcore2.AsyncHTTPConnection | None:
        while kept:
            connection = kept.pop()
            self._size -= 1
            if connection.is_available() and not connection.has_expired():
                return connection
            await connection.aclose()
        return None

    async def put_back(self, url: httpcore2.URL, connection: httpcore2.AsyncHTTPConnection) -> None:
        """Keep a connection whose request is over, unless it broke or the pool was closed meanwhile."""
        if connection not in self._lent or not connection.is_available():
            self._lent.discard(connection)
            await connection.aclose()
            return
        self._lent.discard(connection)
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
