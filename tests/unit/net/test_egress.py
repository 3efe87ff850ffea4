"""What the rules let out and what not, and the allow-list that opens more."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address

import pytest

from tests.fixtures.address_spellings import RESOLVED, spellings
from tests.fixtures.servers.web import Web, json_reply, redirect, web
from tidemill.errors import Rejected
from tidemill.net.egress import CallFailed, Egress, Limits, invalid_host, is_private, read_allow_list, read_entry, shown
from tidemill.net.http_client import Call, Fetcher
from tidemill.net.transport import Resolver


def refused(egress: Egress, host: str, port: int, *found: str) -> str:
    """Why a connection is refused; empty if it is not."""
    try:
        egress.check_origin("http", host)
        egress.check_addresses(host, port, [ip_address(each) for each in found or (host,)])
    except CallFailed as failed:
        return failed.code
    return ""


OPEN = ["93.184.215.14", "8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "11.0.0.1", "223.255.255.255", "198.20.0.1"]
OPEN6 = ["2606:2800:21f::1", "2a00:1450:4001::1", "2400:cb00::1", "2001:4860:4860::8888", "2001:200::1", "3000::1"]


@pytest.mark.parametrize("address", OPEN + OPEN6)
def test_the_open_internet_is_open(address: str) -> None:
    assert is_private(ip_address(address)) == ""
    assert refused(Egress(), address, 443) == ""


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("10.0.0.1", "private"), ("192.168.1.1", "private"), ("172.31.0.1", "private"), ("fd00::1", "private"),
        ("127.0.0.1", "loopback"), ("::1", "loopback"), ("169.254.169.254", "link-local"), ("fe80::1", "link-local"),
        ("100.64.0.1", "shared"), ("0.0.0.0", "this network"), ("::", "IPv4-compatible"), ("4000::1", "reserved"),
        ("::ffff:8.8.8.8", "IPv4-mapped"), ("2002::1", "6to4"), ("2001::1", "Teredo"), ("64:ff9b::808:808", "NAT64"),
        ("224.0.0.1", "multicast"), ("ff02::1", "multicast"), ("240.0.0.1", "reserved"),
        ("255.255.255.255", "reserved"),
        ("168.63.129.16", "metadata"), ("100.100.100.200", "metadata"), ("192.0.0.192", "metadata"),
        ("fd00:ec2::254", "metadata"), ("198.18.0.1", "benchmark"), ("203.0.113.1", "documentation"),
        ("2001:db8::1", "documentation"), ("::1.2.3.4", "IPv4-compatible"), ("100::1", "reserved"),
    ],
)  # fmt: skip
def test_everything_else_is_closed(address: str, kind: str) -> None:
    assert is_private(ip_address(address)) == kind
    assert refused(Egress(), address, 443) == "egress_refused"


@pytest.mark.parametrize(
    "host", ["example.com", "a-b.example", "x_y.example.", "xn--bcher-kva.example", "1.example.com"]
)
def test_a_usual_name_is_no_misspelling(host: str) -> None:
    assert invalid_host(host) == ""


@pytest.mark.parametrize(
    "host", ["", "a b", "-a", "a-", "a..b", ".a", "a/b", "a@b", "a%20", "A", "ä", "1", "a.1", "a.0x1", "x" * 64]
)
def test_an_unusual_one_is(host: str) -> None:
    assert invalid_host(host)


@pytest.mark.parametrize("host", ["localhost", "x.localhost", "metadata", "metadata.google.internal.", "instance-data"])
def test_names_of_this_machine_and_its_cloud_are_closed_wherever_they_lead(host: str) -> None:
    assert refused(Egress(), host, 80, "8.8.8.8") == "egress_refused"
    assert refused(Egress(allow=(host,)), host, 80, "8.8.8.8") == ""


def test_one_closed_address_among_many_closes_the_name() -> None:
    assert refused(Egress(), "a.example", 443, "8.8.8.8") == ""
    assert refused(Egress(), "a.example", 443, "8.8.8.8", "10.0.0.1") == "egress_refused"


@pytest.mark.parametrize(("port", "code"), [(80, ""), (443, ""), (8080, "egress_refused"), (22, "egress_refused")])
def test_only_two_ports_are_open(port: int, code: str) -> None:
    assert refused(Egress(), "a.example", port, "8.8.8.8") == code


@pytest.mark.parametrize(
    ("entry", "host", "port", "address", "open_"),
    [
        ("db.internal", "db.internal", 80, "10.0.0.1", True),
        ("db.internal", "DB.internal.", 443, "10.0.0.1", True),
        ("db.internal", "db.internal", 8080, "10.0.0.1", False),
        ("db.internal", "other.internal", 80, "10.0.0.1", False),
        ("db.internal", "x.db.internal", 80, "10.0.0.1", False),
        ("db.internal:8080", "db.internal", 8080, "10.0.0.1", True),
        ("db.internal:8080", "db.internal", 80, "10.0.0.1", False),
        ("db.internal:*", "db.internal", 9, "10.0.0.1", True),
        ("http://db.internal", "db.internal", 80, "10.0.0.1", True),
        ("http://db.internal", "db.internal", 443, "10.0.0.1", False),
        ("https://db.internal/", "db.internal", 443, "10.0.0.1", True),
        ("http://db.internal:8080", "db.internal", 8080, "10.0.0.1", True),
        ("db.internal:*", "db.internal", 80, "169.254.169.254", False),
        ("169.254.169.254", "db.internal", 80, "169.254.169.254", True),
        ("api.example:8443", "api.example", 8443, "8.8.8.8", True),
        ("10.0.0.0/8", "10.1.2.3", 80, "10.1.2.3", True),
        ("10.0.0.0/8", "db.internal", 443, "10.1.2.3", True),
        ("10.0.0.0/8", "10.1.2.3", 8080, "10.1.2.3", False),
        ("10.0.0.0/8:8080", "10.1.2.3", 8080, "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", 22, "11.1.2.3", False),
        ("127.0.0.1:8080", "127.0.0.1", 8080, "127.0.0.1", True),
        ("127.0.0.1:8080", "127.0.0.1", 8080, "::ffff:127.0.0.1", False),
        ("localhost:8080", "localhost", 8080, "127.0.0.1", True),
        ("127.0.0.1:8080", "localhost", 8080, "127.0.0.1", False),
        ("fd00::/8", "db.internal", 80, "fd00::7", True),
        ("[fd00::/8]:8080", "db.internal", 8080, "fd00::7", True),
        ("[::1]:*", "::1", 5, "::1", True),
    ],
)
def test_an_entry_opens_what_it_says_and_nothing_else(
    entry: str, host: str, port: int, address: str, open_: bool
) -> None:
    assert refused(Egress(allow=(entry,)), host.lower(), port, address) == ("" if open_ else "egress_refused")


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "ftp://a",
        "a:b",
        "a:0",
        "a:65536",
        "a:-1",
        "127.1",
        "2130706433",
        "a b",
        "10.0.0.0/33",
        "http://",
        "a/b",
        "*",
        "*.a",
        "a:٣",
        "a:",
        "http://[bad",
        "[bad]:80",
        "[10.0.0.1]:80",
        "[fd00::1]80",
        "[fd00::1]:",
        "fd00::1]:80",
    ],
)
def test_an_entry_that_cannot_be_read_is_refused_at_once(entry: str) -> None:
    with pytest.raises(Rejected) as refusal:
        Egress(allow=(entry,))
    assert refusal.value.code == "egress_entry_invalid"
    assert "HOST:PORT" in refusal.value.problems[0].hint


def test_entries_stand_between_commas_or_spaces() -> None:
    assert read_allow_list(" a, b:80  c,,\n") == ("a", "b:80", "c")
    assert read_entry("A.example.").name == "a.example"


def test_a_refusal_says_how_to_allow_it() -> None:
    with pytest.raises(CallFailed) as failed:
        Egress().check_addresses("db.internal", 8080, [ip_address("10.0.0.1")])
    assert failed.value.message == "db.internal is 10.0.0.1, which is a private address"
    assert failed.value.hint.startswith('the operator adds "db.internal:8080" to `egress`')
    Egress(allow=(failed.value.hint.split('"')[1],)).check_addresses("db.internal", 8080, [ip_address("10.0.0.1")])


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://a.example/p?key=sesame&b=2&c#f", "https://a.example/p?key=***&b=***&***"),
        ("https://user:sesame@a.example:8080/", "https://a.example:8080/"),
        ("http:user:sesame@a.example", "the URL"),
        ("http://[sesame", "the URL"),
        ("user:sesame", "the URL"),
    ],
)
def test_what_is_told_of_a_url(url: str, told: str) -> None:
    assert shown(url) == told


def test_a_refusal_names_the_port_to_open() -> None:
    with pytest.raises(CallFailed) as refused:
        Egress().check_origin("http", "localhost", 18_461)
    assert refused.value.hint.startswith('the operator adds "localhost:18461" to `egress`')


# A listener on loopback that must not be reached, whatever the URL, the resolver or a redirect says


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
        web({"/": redirect("/second"), "/second": redirect(target, status)}) as server,
        fetching(Egress(allow=(f"127.0.0.1:{server.port}",)), liar) as fetcher,
    ):
        with pytest.raises(CallFailed) as failed:
            await fetcher.fetch(Call(url=server.url()))
        assert failed.value.code in ("egress_refused", "url_invalid")
        assert [asked.path for asked in server.asked] == ["/", "/second"]
    assert canary.connections == 0


async def test_proxies_of_the_environment_are_ignored(canary: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, canary.url())
    async with (
        web({"/": json_reply(1)}) as server,
        fetching(Egress(allow=(f"127.0.0.1:{server.port}",))) as fetcher,
    ):
        assert (await fetcher.fetch(Call(url=server.url()))).status == 200
    assert (len(server.asked), canary.connections) == (1, 0)
