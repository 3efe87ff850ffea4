"""A listener on loopback that must not be reached, whatever the URL, the resolver or a redirect says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.security.spellings import RESOLVED, spellings
from tests.security.web import Web, json_reply, redirect, web
from tidemill.net.egress import CallFailed, Egress, Limits
from tidemill.net.http_client import Call, Fetcher
from tidemill.net.transport import Resolver

PUBLIC = "93.184.215.14"


async def liar(host: str, port: int) -> Sequence[str]:
    """Knows a few names; all others are whatever the C library makes of them, without asking anybody."""
    if host in RESOLVED:
        return RESOLVED[host]
    if host == "example.com":
        return [PUBLIC]
    flags = socket.AI_NUMERICHOST
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [str(place[0]) for *_, place in found]


@asynccontextmanager
async def fetching(egress: Egress, resolver: Resolver | None = None) -> AsyncIterator[Fetcher]:
    """A fetcher that is closed even when the test goes red."""
    fetcher = Fetcher(egress, resolver=resolver)
    try:
        yield fetcher
    finally:
        await fetcher.close()


@pytest.fixture
async def canary() -> AsyncIterator[Web]:
    async with web({"/": json_reply("reached")}) as served:
        yield served


async def test_no_spelling_reaches_the_canary(canary: Web) -> None:
    harmless = (f"{PUBLIC}:{canary.port}", f"[2606:2800:21f::1]:{canary.port}")
    async with fetching(Egress(allow=harmless), liar) as fetcher:
        urls = spellings(canary.port)
        assert len(set(urls)) >= 120 * 2
        for url in urls:
            with pytest.raises(CallFailed) as failed:
                await fetcher.fetch(Call(url=url, total_ms=3_000))
            assert failed.value.code in ("egress_refused", "url_invalid", "host_unreachable"), url
            assert not failed.value.message.startswith("port"), f"only the port keeps the canary safe from {url}"
        assert canary.connections == 0


async def test_the_canary_can_be_reached_at_all(canary: Web) -> None:
    async with fetching(Egress(allow=(f"127.0.0.1:{canary.port}",)), liar) as fetcher:
        assert (await fetcher.fetch(Call(url=canary.url()))).body == b'"reached"'
        assert canary.connections == 1


class Rebinding:
    """Answers with a public address once, and with loopback from then on."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked = answers, 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        return [self.answers[min(self.asked, len(self.answers)) - 1]]


async def test_a_name_that_changes_its_mind_is_resolved_once(canary: Web) -> None:
    resolver = Rebinding("10.255.255.1", "127.0.0.1")
    egress = Egress(allow=(f"10.255.255.1:{canary.port}",), limits=Limits(connect_ms=200))
    async with fetching(egress, resolver) as fetcher:
        with pytest.raises(CallFailed) as failed:
            await fetcher.fetch(Call(url=canary.url(host="rebind.example")))
        assert failed.value.code == "connection_failed" and failed.value.retryable
        assert (resolver.asked, canary.connections) == (1, 0)
        with pytest.raises(CallFailed, match="loopback"):
            await fetcher.fetch(Call(url=canary.url(host="rebind.example")))
        assert (resolver.asked, canary.connections) == (2, 0)


async def test_the_connection_goes_to_the_address_that_was_checked(canary: Web) -> None:
    """The first answer is the canary's and allowed, the second one is nowhere: one call asks once, and arrives."""
    resolver = Rebinding("127.0.0.1", "10.255.255.1")
    async with fetching(Egress(allow=(f"127.0.0.1:{canary.port}",)), resolver) as fetcher:
        assert (await fetcher.fetch(Call(url=canary.url(host="once.example")))).status == 200
        assert resolver.asked == 1
        assert canary.asked[0].headers["host"] == f"once.example:{canary.port}"


REDIRECTS = [
    "http://127.0.0.1:{canary}/", "http://127.1:{canary}/", "http://[::ffff:127.0.0.1]:{canary}/", "http://[::1",
    "http://0:{canary}/", "http://loop.example:{canary}/", "http://169.254.169.254/", "file:///etc/passwd",
    "http://user:pw@127.0.0.1:{canary}/", "http://example.com:22/", "http://127.0.0.1:{canary}\\@example.com/",
    "//localhost:{canary}/", "ftp://127.0.0.1:{canary}/",
]  # fmt: skip


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("location", REDIRECTS)
async def test_no_redirect_reaches_the_canary(canary: Web, location: str, status: int) -> None:
    target = location.replace("{canary}", str(canary.port))
    async with (
        web({"/": redirect("/second"), "/second": redirect(target, status)}) as door,
        fetching(Egress(allow=(f"127.0.0.1:{door.port}",)), liar) as fetcher,
    ):
        with pytest.raises(CallFailed) as failed:
            await fetcher.fetch(Call(url=door.url()))
        assert failed.value.code in ("egress_refused", "url_invalid")
        assert [asked.path for asked in door.asked] == ["/", "/second"]
    assert canary.connections == 0


async def test_proxies_of_the_environment_are_ignored(canary: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, canary.url())
    async with web({"/": json_reply(1)}) as door, fetching(Egress(allow=(f"127.0.0.1:{door.port}",))) as fetcher:
        assert (await fetcher.fetch(Call(url=door.url()))).status == 200
    assert (len(door.asked), canary.connections) == (1, 0)
