"""What protects the server before there is a request: bounds of its head, which uvicorn collects without any.

`Protection` sees a request once its head is complete, and bounds the body. Everything else that a client can send, a
head, the trailer of a body or the extension of a chunk, is counted here, and a head that takes too long is given up. So
is a client that takes nothing of an answer: to close its connection would wait for it.
"""

from __future__ import annotations

import asyncio
import socket

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX = 65_536
HEAD_SECONDS = 30.0
STALLED_MS = 60_000


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's connection, closed for a client that sends too much or too slowly."""

    _idle_bytes = 0
    """Bytes that have arrived since a head was complete or a body continued."""
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        connected = transport.get_extra_info("socket")
        if connected is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            # The system gives it up, also when it is being closed.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._idle_bytes += len(data)
        super().data_received(data)
        if self._idle_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response(f"The head of a request is longer than {HEAD_BYTES_MAX} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._end_timer()
        self._idle_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._idle_bytes = 0
        super().on_message_complete()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _end_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
