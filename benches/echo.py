"""A web server in a process of its own, as bare as can be: every request gets the same short answer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"ok":true}'


class Answering(asyncio.Protocol):
    """Takes every blank line for the end of a request without a body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(ANSWER * data.count(b"\r\n\r\n"))


async def serve() -> None:
    """Serve, and print the port."""
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def echo() -> Iterator[int]:
    """The port of a server that lives as long as the block."""
    with subprocess.Popen([sys.executable, "-m", "benches.echo"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(serve())
