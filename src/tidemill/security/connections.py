"""Connections for what does not speak HTTP, under the same rules: checked addresses, resolved once, and no others.

Everything that goes wrong while one is opened is a `CallFailed`.
"""

from __future__ import annotations

import socket
import ssl
from functools import cached_property
from typing import TYPE_CHECKING

from tidemill.security.egress import CallFailed, Egress

if TYPE_CHECKING:
    from tidemill.security.wire import Resolver


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

    async def dial(self, host: str, port: int) -> socket.socket:
        """Connect to a host, if it may be called; its name is resolved once."""
        # The HTTP library, whose errors these are, takes a tenth of a second to load.
        from tidemill.security import wire

        self.egress.check_host(host, port)
        with wire.told(host):
            return await wire.Connector(self.egress, self._resolver or wire.resolve).dial(host, port)


def tls_failed(error: ssl.SSLError, host: str) -> CallFailed:
    """Why there is no secure connection."""
    from tidemill.security import wire

    return wire.tls_failed(error, host)
