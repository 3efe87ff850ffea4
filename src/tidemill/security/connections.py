"""Connections for what does not speak HTTP, under the same rules: checked addresses, resolved once, and no others.

They are those of `wire`, without the requests. Everything that goes wrong with one is a `CallFailed`.
"""

from __future__ import annotations

import ssl
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING

from tidemill.security.egress import Egress

if TYPE_CHECKING:
    import httpcore2

    from tidemill.security.wire import Resolver


class Connection:
    """A line to a host, plain at first."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream, host: str) -> None:
        self._stream, self._host = stream, host

    @property
    def own_address(self) -> str:
        """The address of this side."""
        return str(self._stream.get_extra_info("client_addr")[0])

    async def read(self, bytes_max: int) -> bytes:
        """Wait for bytes; none at all means that the host has ended."""
        with _told(self._host):
            return await self._stream.read(bytes_max)

    async def write(self, data: bytes) -> None:
        """Send, and wait while too much is under way."""
        with _told(self._host):
            await self._stream.write(data)

    async def encrypt(self, trust: ssl.SSLContext) -> None:
        """Go on encrypted, with a host that proves to be who it was called as."""
        with _told(self._host):
            self._stream = await self._stream.start_tls(trust, server_hostname=self._host)

    async def close(self) -> None:
        """Close at once."""
        await self._stream.aclose()


class Dialer:
    """Opens connections, within the rules."""

    def __init__(
        self, egress: Egress, *, resolver: Resolver | None = None, trust: ssl.SSLContext | None = None
    ) -> None:
        self.egress, self._resolver, self._trust = egress, resolver, trust

    @cached_property
    def trust(self) -> ssl.SSLContext:
        """Which certificates are good: those that this machine trusts, unless others are given."""
        return self._trust or ssl.create_default_context()

    def opening(self, host: str, port: int) -> Dialer:
        """The same for somebody who may also call a host that the operator has named."""
        return Dialer(self.egress.opening(host, port), resolver=self._resolver, trust=self._trust)

    async def dial(self, host: str, port: int) -> Connection:
        """Connect to a host, if it may be called; its name is resolved once."""
        # The HTTP library, whose connections these are, takes a tenth of a second to load.
        from tidemill.security import wire

        self.egress.check_host(host, port)
        with _told(host):
            connector = wire.Connector(self.egress, self._resolver or wire.resolve)
            return Connection(await connector.connect(host, port), host)


def _told(host: str) -> AbstractContextManager[None]:
    """Say in our words what the library says."""
    from tidemill.security import wire

    return wire.told(host)
