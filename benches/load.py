"""`make load RATE=n SECONDS=n`: offer starts over HTTP to a server in a process of its own, and say how it answers.

Requests are offered at their times whether the server keeps up or not, and latencies count from those times. The client
is a bare HTTP/1.1 connection, so that little of a second core is its own.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

API = "/api/v1"
COMMAND = (sys.executable, "-c", "from tidemill.cli.main import main; main()")
WITHIN_S = 60
CONNECTIONS = 32
LIMITS = "[server.limits]\nkey_requests_per_second = 0\ntenant_requests_per_second = 0\nbacklog_jobs = 1000000\n"
"""The limits of one client are not what is measured."""
ONE_NODE = {"name": "one", "nodes": [{"id": "a", "type": "value", "config": "{{ inputs.n }}"}]}


class Served(NamedTuple):
    port: int
    pid: int
    ready_s: float
    """From the start of the process to its first answer that it is ready."""

    def rss_mb(self) -> float:
        """The memory of the process."""
        fields = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in fields if line.startswith("VmRSS")) / 1_024


@contextmanager
def serving(*options: str) -> Iterator[Served]:
    """`tidemill serve` on a fresh SQLite file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "tidemill.toml"
        config.write_text(LIMITS)
        words = ("serve", "--store", f"sqlite:///{folder}/store.db", "--port", str(port), "--log-level", "error")
        began = time.perf_counter()
        process = subprocess.Popen(
            [*COMMAND, *words, *options],
            env={**os.environ, "TIDEMILL_CONFIG": str(config)},
            stdout=subprocess.DEVNULL,
        )
        try:
            asyncio.run(_ready(port, process))
            yield Served(port, process.pid, time.perf_counter() - began)
        finally:
            process.terminate()
            process.wait(WITHIN_S)


async def _ready(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + WITHIN_S
    while process.poll() is None and time.monotonic() < until:
        try:
            async with connected(port) as http:
                if (await http.ask("GET", "/readyz"))[0] == 200:
                    return
        except OSError:
            await asyncio.sleep(0.01)
    raise AssertionError("the server is not ready")


class Http:
    """One connection that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """The status and the body of an answer."""
        content = b"" if body is None else json.dumps(body).encode()
        self._writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return int(head[9:12]), await self._reader.readexactly(length)

    async def post(self, path: str, body: Any) -> Any:
        """The JSON of an answer, which must be a success."""
        status, answer = await self.ask("POST", f"{API}{path}", body)
        assert status < 300, (status, answer[:500])
        return json.loads(answer)

    async def frames(self, path: str) -> AsyncIterator[dict[str, Any]]:
        """The data of the frames of a stream that have an id, as they come."""
        self._writer.write(f"GET {API}{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        await self._reader.readuntil(b"\r\n\r\n")
        numbered = False
        while line := await self._reader.readline():
            if line.startswith(b"data: ") and numbered:
                yield json.loads(line[6:])
            numbered = line.startswith(b"id: ")


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Http]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Http(reader, writer)
    finally:
        writer.close()


def quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, math.ceil(part * len(values)) - 1)]


class Offered(NamedTuple):
    rate: float
    """Answers per second."""
    ms: list[float]
    """From the time at which each start was due to its durable answer."""


async def offered(port: int, rate: float, seconds: float) -> Offered:
    """Single starts at a steady rate; `inf` offers the next one as soon as a connection is free."""
    due = iter(range(2**62 if math.isinf(rate) else math.ceil(rate * seconds)))
    latencies: list[float] = []
    began = time.perf_counter()

    async def client() -> None:
        async with connected(port) as http:
            for number in due:
                at = time.perf_counter() if math.isinf(rate) else began + number / rate
                if at - began >= seconds:
                    return
                if (early := at - time.perf_counter()) > 0:
                    await asyncio.sleep(early)
                await http.post("/runs", {"workflow": "one", "inputs": {"n": number}})
                latencies.append((time.perf_counter() - at) * 1_000)

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    return Offered(len(latencies) / (time.perf_counter() - began), latencies)


async def published(port: int, document: Any) -> None:
    async with connected(port) as http:
        await http.post("/workflows", {"document": document})


async def _load(port: int, rate: float, seconds: float) -> Offered:
    await published(port, ONE_NODE)
    return await offered(port, rate, seconds)


def main() -> None:
    rate, seconds = (float(word) for word in sys.argv[1:3])
    with serving() as server:
        found = asyncio.run(_load(server.port, rate, seconds))
    print(f"offered {rate:g} starts/s for {seconds:g} s: {found.rate:,.0f} answered/s, {len(found.ms):,} in all")
    print("durable answer: " + ", ".join(f"p{part} {quantile(found.ms, part / 100):.1f} ms" for part in (50, 95, 99)))


if __name__ == "__main__":
    main()
