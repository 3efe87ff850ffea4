"""Connections that are kept: what a server does to them between two calls, and what the second call makes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest

from tests.fixtures.servers.web import Asked, Script, Writer, cut, in_turn, raw, reply, web
from tidemill.net.egress import CallFailed, Egress, Limits
from tidemill.net.http_client import Call, Fetcher

OK = b"HTTP/1.1 200 OK\r\n"
IDLE_SECONDS = 0.05


@pytest.fixture
async def fetcher() -> AsyncIterator[Fetcher]:
    opened = Fetcher(Egress(allow=("127.0.0.1:*",), limits=Limits(total_ms=2_000)))
    yield opened
    await opened.close()


@contextmanager
def impatient() -> Iterator[tuple[str, list[str]]]:
    """A server that closes a connection when nothing follows an answer for a moment; its URL, and what it answered."""
    answered: list[str] = []

    class Deadline(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"] or 0))
            answered.append(self.command)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            self.connection.settimeout(IDLE_SECONDS)

        do_GET = do_PUT = do_DELETE = do_POST  # noqa: N815 - the library looks for these names.

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Deadline) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", answered
        finally:
            server.shutdown()
            thread.join()


def sleep_with_the_loop() -> None:
    """Let the server close the connection while nobody here can notice it."""
    time.sleep(6 * IDLE_SECONDS)


@pytest.mark.parametrize(("method", "repeatable"), [("GET", None), ("PUT", None), ("DELETE", None), ("POST", True)])
async def test_what_may_be_repeated_survives_a_connection_that_was_closed(
    fetcher: Fetcher, method: str, repeatable: bool | None
) -> None:
    with impatient() as (url, answered):
        await fetcher.fetch(Call(url=url))
        sleep_with_the_loop()
        body = b"" if method == "GET" else b"hello"
        assert (await fetcher.fetch(Call(url=url, method=method, body=body, repeatable=repeatable))).status == 200
        assert answered == ["GET", method]


@pytest.mark.parametrize(("method", "repeatable"), [("POST", None), ("PUT", False)])
async def test_what_may_not_be_repeated_fails_with_a_connection_that_was_closed(
    fetcher: Fetcher, method: str, repeatable: bool | None
) -> None:
    with impatient() as (url, answered):
        await fetcher.fetch(Call(url=url))
        sleep_with_the_loop()
        with pytest.raises(CallFailed) as failed:
            await fetcher.fetch(Call(url=url, method=method, body=b"hello", repeatable=repeatable))
        assert (failed.value.code, failed.value.retryable, failed.value.unsent) == ("connection_failed", True, False)
        assert answered == ["GET"]


async def test_a_body_that_is_gone_is_not_sent_again(fetcher: Fetcher) -> None:
    async def once() -> AsyncIterator[bytes]:
        yield b"hello"

    with impatient() as (url, answered):
        await fetcher.fetch(Call(url=url))
        sleep_with_the_loop()
        with pytest.raises(CallFailed):
            await fetcher.transport().handle_async_request(
                httpx2.Request("PUT", url, content=once(), headers={"content-length": "5"})
            )
        assert answered == ["GET"]


def then_cut(data: bytes) -> Script:
    async def script(asked: Asked, write: Writer) -> None:
        await write(data)
        await cut(asked, write)

    return script


@pytest.mark.parametrize(
    ("second", "heard"),
    [(cut, 3), (then_cut(b"HTTP/1.1 2"), 2), (then_cut(b"HTTP/1.1 103 Early Hints\r\n\r\n"), 2)],
    ids=["nothing", "half a line", "a hint"],
)
async def test_a_call_is_repeated_once_and_only_if_nothing_came_back(
    fetcher: Fetcher, second: Script, heard: int
) -> None:
    async with web({"/": in_turn(reply(b"x"), second, cut)}) as served:
        await fetcher.fetch(Call(url=served.url()))
        with pytest.raises(CallFailed) as failed:
            await fetcher.fetch(Call(url=served.url()))
        assert (failed.value.code, len(served.asked)) == ("connection_failed", heard)


EVIL = OK + b"Content-Length: 4\r\n\r\nevil"


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", OK + b"Content-Length: 99\r\n\r\n" + EVIL),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n" + EVIL),
        ("GET", b"HTTP/1.1 304 Not Modified\r\n\r\n" + EVIL),
        ("GET", OK + b"Content-Length: 1\r\n\r\nx" + EVIL),
        ("GET", OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n" + EVIL),
        ("GET", OK + b"Content-Length: 1\r\n\r\nx\r\n"),
    ],
    ids=["head", "204", "304", "length", "chunked", "a line end"],
)
async def test_what_comes_after_an_answer_is_nobodys_answer(fetcher: Fetcher, method: str, answer: bytes) -> None:
    async with web({"/": raw(answer), "/next": reply(b"good")}) as served:
        await fetcher.fetch(Call(url=served.url(), method=method))
        assert (await fetcher.fetch(Call(url=served.url("/next")))).body == b"good"
        assert served.connections == 2
