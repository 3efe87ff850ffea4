"""The fetcher within its limits: redirects, credentials, sizes, times, encodings, TLS, broken connections."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fixtures.servers.certificates import authority
from tests.fixtures.servers.web import (
    Asked,
    Cut,
    Script,
    Web,
    Writer,
    cut,
    json_reply,
    raw,
    redirect,
    reply,
    reply_with,
    web,
)
from tidemill.net.egress import CallFailed, Egress, Limits
from tidemill.net.http_client import Call, Fetcher, read_url, same_origin
from tidemill.net.transport import KEPT_MAX

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
async def served() -> AsyncIterator[Web]:
    async with web() as server:
        yield server


@pytest.fixture
async def fetcher(served: Web) -> AsyncIterator[Fetcher]:
    opened = Fetcher(Egress(allow=("127.0.0.1:*", "localhost:*"), limits=Limits(total_ms=2_000)))
    yield opened
    await opened.close()


async def failing(fetcher: Fetcher, **call: Any) -> CallFailed:
    with pytest.raises(CallFailed) as failed:
        await fetcher.fetch(Call(**call))
    return failed.value


async def test_a_call_and_its_answer(fetcher: Fetcher, served: Web) -> None:
    served.routes["/a"] = json_reply({"n": 1}, X_Two="2")
    call = Call(method="PUT", url=served.url("/a?q=1"), headers={"X-One": "ü"}, credentials={"A": "b"}, body=b"hello")
    answer = await fetcher.fetch(call)
    assert (answer.status, answer.reason, answer.body, answer.url) == (200, "OK", b'{"n":1}', served.url("/a?q=1"))
    assert (answer.header("x-two"), answer.header("x-three")) == ("2", "")
    (asked,) = served.asked
    assert (asked.method, asked.target, asked.body) == ("PUT", "/a?q=1", b"hello")
    assert asked.headers["x-one"].encode("latin-1").decode() == "ü"
    assert (asked.headers["a"], asked.headers["accept-encoding"]) == ("b", "gzip")
    assert "cookie" not in asked.headers


async def test_connections_are_used_again_and_cookies_are_not_kept(fetcher: Fetcher, served: Web) -> None:
    served.routes["/"] = reply(b"x", Set_Cookie="a=b")
    for _ in range(3):
        await fetcher.fetch(Call(url=served.url()))
    assert (served.connections, len(served.asked)) == (1, 3)
    assert not any("cookie" in asked.headers for asked in served.asked)


async def test_a_closed_fetcher_opens_again(fetcher: Fetcher, served: Web) -> None:
    served.routes["/"] = reply(b"x")
    for _ in range(2):
        await fetcher.fetch(Call(url=served.url()))
        await fetcher.close()
    assert served.connections == 2


async def test_a_connection_that_the_server_closed_is_not_used_again(fetcher: Fetcher, served: Web) -> None:
    served.routes["/"] = reply(b"x")
    for _ in range(3):
        assert (await fetcher.fetch(Call(url=served.url(), headers={"X-Close": "1"}))).status == 200
        await asyncio.sleep(0.05)
    assert served.connections == 3


async def test_a_connection_that_says_too_much_is_not_used_again(fetcher: Fetcher, served: Web) -> None:
    """What a server sends unasked would be taken for the answer to the next call."""
    served.routes["/"] = raw(OK + b"Content-Length: 1\r\n\r\nx", 0.05, OK + b"Content-Length: 4\r\n\r\nevil")
    served.routes["/next"] = reply(b"good")
    assert (await fetcher.fetch(Call(url=served.url()))).body == b"x"
    await asyncio.sleep(0.15)
    assert (await fetcher.fetch(Call(url=served.url("/next")))).body == b"good"
    assert served.connections == 2


async def test_a_call_under_way_survives_closing(fetcher: Fetcher, served: Web) -> None:
    served.routes["/"] = raw(0.2, OK + b"Content-Length: 1\r\n\r\nx")
    under_way = asyncio.create_task(fetcher.fetch(Call(url=served.url())))
    await asyncio.sleep(0.1)
    await fetcher.close()
    assert (await under_way).body == b"x"


async def test_no_more_connections_are_kept_than_allowed(served: Web) -> None:
    fetcher = Fetcher(Egress(allow=("127.0.0.1:*",)))
    served.routes["/"] = raw(0.2, OK + b"Content-Length: 1\r\n\r\nx")
    await asyncio.gather(*(fetcher.fetch(Call(url=served.url())) for _ in range(KEPT_MAX + 20)))
    await asyncio.sleep(0.05)
    assert served.connections == KEPT_MAX + 20
    assert served.open == KEPT_MAX
    await fetcher.close()


def test_a_fetcher_serves_one_loop_after_the_other() -> None:
    fetcher = Fetcher(Egress(allow=("127.0.0.1:*",)))

    async def once() -> int:
        async with web({"/": reply(b"x")}) as served:
            answer = await fetcher.fetch(Call(url=served.url()))
            await fetcher.close()
            return answer.status

    assert [asyncio.run(once()) for _ in range(2)] == [200, 200]


async def test_a_client_of_another_library_keeps_the_rules(fetcher: Fetcher, served: Web) -> None:
    served.routes |= {"/": redirect("/b"), "/bomb": reply(bomb(9), Content_Encoding="gzip")}
    served.routes["/long"] = reply(b"x" * 10_000_001)
    async with httpx2.AsyncClient(transport=fetcher.transport(), trust_env=False) as client:
        assert (await client.get(served.url())).status_code == 302
        for url in ("http://10.0.0.1/", "http://127.1/", served.url("/bomb"), served.url("/long")):
            with pytest.raises(CallFailed):
                await client.get(url)


@pytest.mark.parametrize(("hops", "code"), [(1, ""), (3, ""), (4, "too_many_redirects"), (5, "too_many_redirects")])
async def test_three_redirects_are_followed(fetcher: Fetcher, served: Web, hops: int, code: str) -> None:
    served.routes |= {f"/{hop}": redirect(f"/{hop + 1}") for hop in range(hops)} | {f"/{hops}": reply(b"end")}
    if not code:
        assert (await fetcher.fetch(Call(url=served.url("/0")))).url == served.url(f"/{hops}")
    else:
        assert (await failing(fetcher, url=served.url("/0"))).code == code
        assert len(served.asked) == 4


async def test_a_call_may_want_no_redirect(fetcher: Fetcher, served: Web) -> None:
    served.routes["/"] = redirect("/b")
    answer = await fetcher.fetch(Call(url=served.url(), redirects_max=0))
    assert (answer.status, answer.header("location")) == (302, "/b")


@pytest.mark.parametrize(
    ("method", "status", "then", "body"),
    [
        ("POST", 301, "GET", b""), ("POST", 302, "GET", b""), ("POST", 303, "GET", b""), ("PUT", 303, "GET", b""),
        ("POST", 307, "POST", b"data"), ("PUT", 308, "PUT", b"data"), ("HEAD", 303, "HEAD", b"data"),
    ],
)  # fmt: skip
async def test_what_a_redirect_makes_of_a_call(
    fetcher: Fetcher, served: Web, method: str, status: int, then: str, body: bytes
) -> None:
    served.routes |= {"/": redirect("/b", status), "/b": reply(b"")}
    await fetcher.fetch(Call(url=served.url(), method=method, body=b"data", headers={"Content-Type": "x/y"}))
    second = served.asked[1]
    assert (second.method, second.body, "content-type" in second.headers) == (then, body, body != b"")


SECRET = {"Authorization": "Bearer sesame", "X-Api-Key": "sesame", "Cookie": "a=sesame"}


async def test_credentials_stay_with_their_origin(fetcher: Fetcher, served: Web) -> None:
    async with web({"/b": redirect(served.url("/c", host="127.0.0.1"))}) as other:
        served.routes |= {"/": redirect("/a"), "/a": redirect(other.url("/b")), "/c": reply(b"end")}
        call = Call(url=served.url(), headers={"X-Own": "sesame", "Accept": "x/y"}, credentials=SECRET)
        assert (await fetcher.fetch(call)).body == b"end"
        for asked in (served.asked[0], served.asked[1]):
            assert {name: asked.headers.get(name.lower()) for name in SECRET} == SECRET
        for asked in (other.asked[0], served.asked[2]):
            assert "sesame" not in str(asked.headers)
            assert asked.headers["accept"] == "x/y"


async def test_another_origin_gets_no_header_with_a_secret(fetcher: Fetcher, served: Web) -> None:
    """Whatever a header is called, and the others come along."""

    def forbidden_at(origin: str, texts: tuple[str, ...] = ("sesame",)) -> str:
        return "CRM" if origin != served.url("").rstrip("/") and "sesame" in str(texts) else ""

    async with web({"/": reply(b"end")}) as other:
        served.routes["/"] = redirect(other.url())
        headers = {"User-Agent": "sesame", "Accept": "x/y", "Accept-Language": "a sesame b"}
        await fetcher.fetch(Call(url=served.url(), headers=headers, forbidden_at=forbidden_at))
        assert "sesame" in served.asked[0].headers["user-agent"]
        assert "sesame" not in str(other.asked[0].headers) and other.asked[0].headers["accept"] == "x/y"


@pytest.mark.parametrize("status", [307, 308])
async def test_a_body_stays_with_its_origin(fetcher: Fetcher, served: Web, status: int) -> None:
    async with web({"/": reply(b"got it")}) as other:
        served.routes["/"] = redirect(other.url(), status)
        failed = await failing(fetcher, url=served.url(), method="POST", body=b"sesame")
        assert (failed.code, failed.retryable, other.asked) == ("egress_refused", False, [])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://a/x", "http://A:80/y?z", True), ("http://a", "https://a", False), ("http://a", "http://a:8080", False),
        ("http://a", "http://b", False), ("https://a:443", "https://a", True), ("http://a", "http://a.", False),
    ],
)  # fmt: skip
def test_what_one_origin_is(one: str, other: str, same: bool) -> None:
    assert same_origin(one, other) is same


def chunked(*chunks: bytes) -> Script:
    sent = [b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks]
    return raw(OK + b"Transfer-Encoding: chunked\r\n\r\n", *sent, b"0\r\n\r\n")


@pytest.mark.parametrize(
    "script",
    [
        reply(b"x" * 1_001),
        chunked(*[b"x" * 91] * 11),
        reply(gzip.compress(b"x" * 1_001), Content_Encoding="gzip"),
    ],
    ids=["plain", "chunked", "gzip"],
)
async def test_an_answer_that_is_too_long_is_cut_off(fetcher: Fetcher, served: Web, script: Script) -> None:
    served.routes["/"] = script
    failed = await failing(fetcher, url=served.url(), bytes_max=1_000)
    assert (failed.code, failed.retryable) == ("response_too_large", False)
    assert len((await fetcher.fetch(Call(url=served.url(), bytes_max=1_001))).body) == 1_001


async def test_a_call_cannot_raise_the_limit_of_the_deployment(served: Web) -> None:
    fetcher = Fetcher(Egress(allow=("127.0.0.1:*",), limits=Limits(bytes_max=100)))
    served.routes |= {"/": reply(b"x" * 101), "/less": reply(b"x" * 100)}
    assert (await failing(fetcher, url=served.url(), bytes_max=1_000)).code == "response_too_large"
    assert len((await fetcher.fetch(Call(url=served.url("/less"), bytes_max=1_000))).body) == 100
    await fetcher.close()


async def test_an_endless_answer_is_cut_off(fetcher: Fetcher, served: Web) -> None:
    sent = 0

    async def endless(asked: Asked, write: Writer) -> None:
        nonlocal sent
        await write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            await write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
            sent += 65_536

    served.routes["/"] = endless
    assert (await failing(fetcher, url=served.url(), total_ms=10_000)).code == "response_too_large"
    assert 5_000_000 < sent < 30_000_000


def bomb(megabytes: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return b"".join([*(packer.compress(b"\0" * 1_000_000) for _ in range(megabytes)), packer.flush()])


@pytest.mark.parametrize("megabytes", [9, 200])
async def test_a_bomb_is_not_unpacked(fetcher: Fetcher, served: Web, megabytes: int) -> None:
    served.routes["/"] = reply(bomb(megabytes), Content_Encoding="gzip")
    failed = await failing(fetcher, url=served.url())
    assert failed.code == "response_too_large" and "100 times" in failed.message


async def test_nested_and_unknown_encodings_are_refused(fetcher: Fetcher, served: Web) -> None:
    for encoding in ("br", "gzip, gzip", "zstd", "deflate"):
        served.routes["/"] = reply(b"x", Content_Encoding=encoding)
        assert (await failing(fetcher, url=served.url())).code == "response_invalid"


@pytest.mark.parametrize("body", [b"plain " * 1_000, b"", bytes(range(256)) * 300], ids=["text", "nothing", "bytes"])
@pytest.mark.parametrize("members", [1, 2])
async def test_gzip_is_read(fetcher: Fetcher, served: Web, body: bytes, members: int) -> None:
    served.routes["/"] = reply(gzip.compress(body) * members, Content_Encoding="gzip")
    answer = await fetcher.fetch(Call(url=served.url()))
    assert (answer.body, answer.header("content-encoding")) == (body * members, "")


@pytest.mark.parametrize(
    ("packed", "retryable"), [(gzip.compress(b"x" * 999)[:-9], True), (b"not gzip at all", False)], ids=["cut", "not"]
)
async def test_broken_gzip_is_noticed(fetcher: Fetcher, served: Web, packed: bytes, retryable: bool) -> None:
    served.routes["/"] = reply(packed, Content_Encoding="gzip")
    failed = await failing(fetcher, url=served.url())
    assert (failed.code, failed.retryable) == ("response_invalid", retryable)


async def test_long_and_endless_heads_are_refused(fetcher: Fetcher, served: Web) -> None:
    many = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 1_000) for number in range(70))
    served.routes["/long"] = raw(OK + many + b"Content-Length: 0\r\n\r\n")
    served.routes["/endless"] = raw(OK, *[b"X-A: %s\r\n" % (b"y" * 50_000)] * 50)
    for path in ("/long", "/endless"):
        assert (await failing(fetcher, url=served.url(path))).code == "response_too_large"


def dripping(data: bytes) -> list[bytes | float]:
    return [data, 0.05] * 60


@pytest.mark.parametrize(
    "script",
    [
        raw(5.0),
        raw(OK + b"Content-Length: 9\r\n\r\n", 5.0),
        raw(OK + b"Content-Length: 99\r\n\r\n", *dripping(b"x")),
        raw(*dripping(b"HTTP/1.1 103 Early Hints\r\n\r\n")),
        raw(OK, *dripping(b"X-A: b\r\n")),
    ],
    ids=["nothing", "no body", "slow body", "endless hints", "slow head"],
)
async def test_a_slow_answer_is_given_up(fetcher: Fetcher, served: Web, script: Script) -> None:
    served.routes["/"] = script
    failed = await failing(fetcher, url=served.url("/?key=sesame"), total_ms=300)
    assert (failed.code, failed.retryable) == ("timeout", True)
    assert "within 0.3 s" in failed.message and "sesame" not in failed.message


async def test_the_time_of_the_reader_is_its_own(fetcher: Fetcher, served: Web) -> None:
    served.routes["/"] = reply(b"x")
    with pytest.raises(TimeoutError, match="mine"):
        async with fetcher.stream(Call(url=served.url())):
            raise TimeoutError("mine")


async def test_an_answer_can_be_read_as_it_comes(fetcher: Fetcher, served: Web) -> None:
    served.routes["/"] = raw(
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n", 0.1, b"1\r\nb\r\n", 0.1, b"0\r\n\r\n"
    )
    async with fetcher.stream(Call(url=served.url())) as coming:
        assert coming.status == 200
        assert [chunk async for chunk in coming.chunks()] == [b"a", b"b"]


async def test_nobody_listens(fetcher: Fetcher) -> None:
    failed = await failing(fetcher, url="http://127.0.0.1:1/")
    assert (failed.code, failed.retryable) == ("connection_failed", True)
    assert failed.__cause__ is not None


async def test_a_name_that_does_not_exist() -> None:
    fetcher = Fetcher()
    failed = await failing(fetcher, url="http://no-such-host.invalid/")
    assert (failed.code, failed.retryable) == ("host_unreachable", True)
    assert isinstance(failed.__cause__, OSError)
    await fetcher.close()


@pytest.mark.parametrize(
    "script",
    [cut, reply_with(b"half", 200, {}, length=99), raw(b"HTTP/1.1 2"), raw(b"SSH-2.0-OpenSSH\r\n\r\n")],
    ids=["nothing", "half a body", "half a line", "no HTTP"],
)
async def test_a_connection_that_is_cut(fetcher: Fetcher, served: Web, script: Script) -> None:
    served.routes["/"] = script
    failed = await failing(fetcher, url=served.url(), headers={"X-Close": "1"})
    assert (failed.code, failed.retryable) == ("connection_failed", True)
    assert len(served.asked) == 1


async def test_another_address_is_tried_when_one_does_not_answer(served: Web) -> None:
    async def both(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.77", "127.0.0.1"]

    served.routes["/"] = reply(b"x")
    fetcher = Fetcher(Egress(allow=("two.example:*",)), resolver=both)
    assert (await fetcher.fetch(Call(url=served.url(host="two.example")))).status == 200
    await fetcher.close()


async def at_home(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


async def test_a_certificate_must_be_for_the_name_that_was_called(tmp_path: Path) -> None:
    root, stranger = authority(tmp_path), authority(tmp_path)
    egress = Egress(allow=("good.example:*", "bad.example:*"))
    fetcher = Fetcher(egress, resolver=at_home, tls=root.trusting())
    async with web({"/": reply(b"safe")}, root.server("good.example")) as served:
        assert (await fetcher.fetch(Call(url=served.url(host="good.example")))).body == b"safe"
        wrong = await failing(fetcher, url=served.url(host="bad.example"))
        assert "mismatch" in wrong.message
    async with web(tls=root.server("good.example", days=-1)) as served:
        late = await failing(fetcher, url=served.url(host="good.example"))
        assert "expired" in late.message
    async with web(tls=stranger.server("good.example")) as served:
        unknown = await failing(fetcher, url=served.url(host="good.example"))
    async with web() as served:
        served.greeting = b"220 this is not TLS\r\n"
        plain = await failing(fetcher, url=f"https://good.example:{served.port}/")
    for failed in (wrong, late, unknown, plain):
        assert (failed.code, failed.retryable) == ("tls_failed", False)
        assert failed.hint and failed.__cause__ is not None
    await fetcher.close()


@pytest.mark.parametrize(
    ("script", "code"),
    [(raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "tls_failed"), (cut, "connection_failed"), (raw(9.0), "timeout")],
    ids=["answers", "hangs up", "says nothing"],
)
async def test_tls_with_a_port_that_does_not_speak_it(script: Script, code: str) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def write(data: bytes) -> None:
            writer.write(data)

        await reader.read(1)
        with suppress(Cut, asyncio.CancelledError):
            await script(Asked("", "", {}, b""), write)
        writer.close()

    fetcher = Fetcher(Egress(allow=("127.0.0.1:*",), limits=Limits(connect_ms=300)))
    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    failed = await failing(fetcher, url=f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    assert failed.code == code and "does not seem to speak TLS" in failed.hint and "http://" in failed.hint
    assert failed.unsent or code == "tls_failed"
    server.close()


@pytest.mark.parametrize("alert", [b"", b"\x15\x03\x01\x00\x02\x02\x46"], ids=["hangs up", "alert"])
async def test_no_tls_with_a_port_that_speaks_it(fetcher: Fetcher, tmp_path: Path, alert: bytes) -> None:
    async with web(tls=None if alert else authority(tmp_path).server("good.example")) as served:
        served.routes["/"] = raw(alert)
        failed = await failing(fetcher, url=f"http://127.0.0.1:{served.port}/", headers={"X-Close": "1"})
        assert failed.code == "connection_failed"
        assert failed.hint.startswith("it speaks" if alert else "if it speaks") and "https://" in failed.hint


# Requests that cannot be sent


@pytest.mark.parametrize(
    "headers",
    [
        {"X": "a\r\nB: c"}, {"X\r\nB": "c"}, {"X": "a\0"}, {"": "a"}, {"a b": "c"}, {"Host": "b.example"},
        {"content-length": "1"}, {"Transfer-Encoding": "chunked"}, {"Connection": "close"}, {"Upgrade": "h2c"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["headers", "credentials"])
async def test_headers_that_cannot_be_set(fetcher: Fetcher, served: Web, headers: dict[str, str], kind: str) -> None:
    failed = await failing(fetcher, url=served.url(), **{kind: headers})
    assert (failed.code, served.connections) == ("request_invalid", 0)


@pytest.mark.parametrize("rest", ["a\\b", "a b", "a\tb", "\x7f"])
async def test_a_url_that_could_be_read_in_two_ways_is_not_called(fetcher: Fetcher, served: Web, rest: str) -> None:
    assert (await failing(fetcher, url=served.url(f"/{rest}"))).code == "url_invalid"
    assert served.connections == 0


async def test_a_url_with_credentials_is_not_called(fetcher: Fetcher, served: Web) -> None:
    failed = await failing(fetcher, url=f"http://user:sesame@127.0.0.1:{served.port}/")
    assert (failed.code, served.connections) == ("url_invalid", 0)
    assert "sesame" not in failed.message


async def test_a_url_may_be_long_but_not_endless(fetcher: Fetcher, served: Web) -> None:
    served.routes["/"] = reply(b"x")
    assert (await fetcher.fetch(Call(url=served.url("/?" + "a" * 8_000)))).status == 200
    assert (await failing(fetcher, url=served.url("/?" + "a" * 9_000))).code == "url_invalid"


def test_a_url_without_a_scheme_is_told_so() -> None:
    with pytest.raises(CallFailed) as refused:
        read_url("/echo")
    assert (refused.value.code, refused.value.message) == ("url_invalid", "the URL has no scheme")
