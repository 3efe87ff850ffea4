"""An HTTP client for a library that brings its own: bound to one origin, under the egress policy, with bounded answers.

Loading the HTTP library is slow: import this module with the first call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

import httpx2

from tidemill.net.egress import CallFailed
from tidemill.net.http_client import Fetcher, origin, read_url

OnStatus = Callable[[int, str], None]
OnFailure = Callable[[CallFailed], None]


def client_of_origin(
    fetcher: Fetcher,
    url: str,
    headers: Mapping[str, str],
    bytes_max: int,
    on_status: OnStatus,
    on_failure: OnFailure,
) -> httpx2.AsyncClient:
    """A client that calls the origin of a URL only. It tells of every status and failure, before the library does."""
    transport = _OriginTransport(fetcher, url, bytes_max, on_status, on_failure)
    # The caller limits the time: a stream may be open for long.
    return httpx2.AsyncClient(transport=transport, headers=dict(headers), timeout=None)


class _OriginTransport(httpx2.AsyncBaseTransport):
    def __init__(self, fetcher: Fetcher, url: str, bytes_max: int, on_status: OnStatus, on_failure: OnFailure) -> None:
        self._fetcher, self._origin, self._bytes_max = fetcher, origin(read_url(url)), bytes_max
        self._on_status, self._on_failure = on_status, on_failure

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            if origin(request.url) != self._origin:
                message = f"the server redirects to {request.url.host}, which is not its own origin"
                raise CallFailed("egress_refused", message, hint="configure the final address")
            response = await self._fetcher.transport().handle_async_request(request)
        except CallFailed as failed:
            self._on_failure(failed)
            raise httpx2.ConnectError(failed.message, request=request) from failed
        self._on_status(response.status_code, response.reason_phrase)
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream), "the transport streams"
        response.stream = _BoundedStream(stream, self._bytes_max, self._on_failure)
        return response

    async def aclose(self) -> None:
        """The owner of the fetcher closes it."""


class _BoundedStream(httpx2.AsyncByteStream):
    """The body of an answer, up to a size."""

    def __init__(self, stream: httpx2.AsyncByteStream, bytes_max: int, on_failure: OnFailure) -> None:
        self._stream, self._bytes_max, self._on_failure = stream, bytes_max, on_failure

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for chunk in self._stream:
                size += len(chunk)
                if size > self._bytes_max:
                    raise CallFailed("response_too_large", f"the answer is longer than {self._bytes_max:,} bytes")
                yield chunk
        except CallFailed as failed:
            self._on_failure(failed)
            raise httpx2.ReadError(failed.message) from failed

    async def aclose(self) -> None:
        await self._stream.aclose()
