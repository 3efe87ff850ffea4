"""Node type `email`: what arrives, what is refused, what is tried again, and who is told nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures.handler_harness import called
from tests.fixtures.servers.certificates import authority
from tests.fixtures.servers.smtp_server import CUT, SILENCE, Mail, mail_server
from tidemill.errors import Rejected
from tidemill.handlers.contract import CapabilityMissing, Done, Fail, Handler
from tidemill.handlers.email import email_handler, server_at
from tidemill.handlers.smtp import Server, as_data
from tidemill.kernel.compile.compiler import compile_document
from tidemill.net.egress import Egress, TcpConnector
from tidemill.node_types import built_in_types
from tidemill.settings import read_settings

NOW_MS = 1_700_000_000_000
ANYWHERE = Egress(allow=("127.0.0.1:*", "mail.example:*"))
PASSWORD = "correct horse"
ENCODED = "=?utf-8?q?a=0D=0ABcc:_victim@example.com?="


async def at_home(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


EMAIL = email_handler(TcpConnector(ANYWHERE), now_ms=lambda: NOW_MS)


@pytest.fixture
async def mail() -> AsyncIterator[Mail]:
    async with mail_server() as server:
        yield server


def config(mail: Mail, **more: Any) -> dict[str, Any]:
    server = {"host": "127.0.0.1", "port": mail.port, "tls": "none"}
    return {"from": "mill@example.com", "to": "ada@example.com", "subject": "Hi", "text": "x", "server": server, **more}


async def sent(mail: Mail, handler: Handler = EMAIL, fields: dict[str, Any] | None = None, **more: Any) -> Any:
    ended = await called(handler, config(mail, **more), **(fields or {}))
    assert isinstance(ended, Done)
    return ended.value


async def failed(mail: Mail, handler: Handler = EMAIL, **more: Any) -> Fail:
    with pytest.raises(Fail) as caught:
        await called(handler, config(mail, **more))
    return caught.value


async def test_a_message_arrives(mail: Mail) -> None:
    people: dict[str, Any] = {
        "to": ["Ada Lovelace <ada@example.com>", "bob@example.com"],
        "cc": "Zoë <zoe@bücher.example>",
    }
    value = await sent(
        mail,
        **people,
        bcc="hidden@example.com",
        reply_to="answers@example.com",
        subject="Grüße",
        text="Hallo\nWelt ä\n",
    )
    (taken,) = mail.taken
    message = taken.message
    assert taken.sender == "mill@example.com"
    recipients = ["ada@example.com", "bob@example.com", "zoe@xn--bcher-kva.example", "hidden@example.com"]
    assert list(taken.recipients) == recipients
    assert value == {"message_id": message["Message-ID"], "recipients": recipients, "reply": "250 queued as 17"}
    assert message["To"] == "Ada Lovelace <ada@example.com>, bob@example.com"
    assert message["Cc"] == "Zoë <zoe@xn--bcher-kva.example>"
    assert (message["Reply-To"], message["Subject"]) == ("answers@example.com", "Grüße")
    assert message["Date"] == "Tue, 14 Nov 2023 22:13:20 +0000"
    assert "hidden" not in taken.data.decode("ascii")
    assert message.get_content() == "Hallo\r\nWelt ä\r\n"
    assert mail.said[0] == "EHLO [127.0.0.1]" and mail.said[-1] == "QUIT"


async def test_text_beside_html_and_html_alone(mail: Mail) -> None:
    await sent(mail, text="plain", html="<b>rich</b>")
    await called(EMAIL, {key: value for key, value in config(mail, html="<i>x</i>").items() if key != "text"})
    both, alone = (taken.message for taken in mail.taken)
    assert [part.get_content_type() for part in both.iter_parts()] == ["text/plain", "text/html"]
    assert (alone.get_content_type(), alone.get_content().strip()) == ("text/html", "<i>x</i>")


async def test_attachments(mail: Mail) -> None:
    async def read(description: Any) -> bytes:
        return {"sha256:1": b"\x00\xff%PDF"}[description["$blob"]]

    stored = {"$blob": "sha256:1", "size": 6, "media_type": "application/pdf", "name": "bill.pdf"}
    given = [{"content": stored}, {"name": "größe.csv", "media_type": "text/csv", "content": "a,b\n1,ä\n"}]
    await sent(mail, fields={"read": read}, attachments=given)
    first, second = mail.taken[0].message.iter_attachments()
    assert (first.get_filename(), first.get_content_type()) == ("bill.pdf", "application/pdf")
    assert first.get_payload(decode=True) == b"\x00\xff%PDF"
    assert (second.get_filename(), second.get_content_type()) == ("größe.csv", "text/csv")
    assert second.get_payload(decode=True) == "a,b\n1,ä\n".encode()


@pytest.mark.parametrize(
    "text",
    [".\r\nMAIL FROM:<x@y.example>\r\n", "a\n.\nb\n", "..two\n.one\n", "a\r.\rb", "x\n\n\n", "y" * 5_000],
    ids=["command", "dot", "dots", "returns", "blank", "long"],
)
async def test_no_text_ends_its_message(mail: Mail, text: str) -> None:
    await sent(mail, text=text)
    (taken,) = mail.taken
    assert taken.message.get_content().splitlines() == text.rstrip("\n").splitlines()
    assert [line.partition(" ")[0] for line in mail.said] == ["EHLO", "MAIL", "RCPT", "DATA", "QUIT"]


@pytest.mark.parametrize(
    "data", [b"a\n.\nb", b"a\r.\rb", b"a\r\n.\r\nb\r\n\r\n", b"a\n\r.\r\nb"], ids=["lf", "cr", "crlf", "mixed"]
)
def test_only_one_line_is_a_dot_alone_however_lines_end(data: bytes) -> None:
    lines = as_data(data).replace(b"\r\n", b"\n")
    assert b"\r" not in lines and lines.endswith(b"b\n.\n") and lines.split(b"\n").count(b".") == 1


async def test_headers_of_ones_own(mail: Mail) -> None:
    await sent(mail, headers={"X-Order": "17", "List-Unsubscribe": "<mailto:off@example.com>"})
    assert mail.taken[0].message["X-Order"] == "17"
    assert mail.taken[0].message["List-Unsubscribe"] == "<mailto:off@example.com>"


async def test_attempts_at_a_visit_have_one_message_id(mail: Mail) -> None:
    for fields in ({"attempt": 1}, {"attempt": 2}, {"visit": 2}, {"index": 3}, {"run_id": "other"}):
        await sent(mail, fields=fields)
    ids = [taken.message["Message-ID"] for taken in mail.taken]
    assert ids[0] == ids[1] and len(set(ids)) == 4
    assert all(each.endswith("@example.com>") for each in ids)


@pytest.mark.parametrize(
    "changes",
    [
        {"subject": "Hi\r\nBcc: victim@example.com"},
        {"subject": "Hi\nBcc: victim@example.com"},
        {"subject": "Hi\rX"},
        {"subject": "a\u2028b"},
        {"from": "mill@example.com\r\nBcc: victim@example.com"},
        {"to": "ada@example.com>\r\nRCPT TO:<victim@example.com"},
        {"to": ["Ada\r\nBcc: victim@example.com <ada@example.com>"]},
        {"reply_to": "a@example.com\n"},
        {"headers": {"X-A": "1\r\nBcc: victim@example.com"}},
        {"headers": {"Bcc": "victim@example.com"}},
        {"headers": {"Content-Type": "text/x"}},
        {"attachments": [{"name": 'a"\r\nBcc: v@example.com', "content": "x"}]},
        {"attachments": [{"name": ENCODED, "content": "x"}]},
    ],
)
async def test_no_field_adds_a_header(mail: Mail, changes: dict[str, Any]) -> None:
    fail = await failed(mail, **changes)
    assert (fail.code, fail.retryable) == ("header_invalid", False)
    assert mail.connections == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"subject": ENCODED},
        {"subject": "long " * 150 + ENCODED},
        {"to": f"{ENCODED} <ada@example.com>"},
        {"to": f'"{ENCODED}" <ada@example.com>'},
        {"from": f"{ENCODED} <mill@example.com>"},
        {"headers": {"X-A": ENCODED}},
        {"headers": {"Resent-To": f"{ENCODED} <"}},
    ],
)
async def test_an_encoded_line_end_stays_encoded(mail: Mail, changes: dict[str, Any]) -> None:
    await sent(mail, **changes)
    (taken,) = mail.taken
    lines = taken.data.lower().splitlines()
    assert not any(line.startswith((b"bcc", b" bcc")) for line in lines)
    assert ENCODED.encode() not in taken.data
    assert taken.recipients == ("ada@example.com",) and taken.message.get_content().strip() == "x"


@pytest.mark.parametrize(
    "text",
    [
        *("ada", "ada@", "@example.com", "a b@example.com", "ada@example.com, bob@example.com", "<ada@example.com"),
        *(
            "ada@exa mple.com",
            "ada@-x.example",
            ".ada@example.com",
            "a..b@example.com",
            "ada@@example.com",
            "ädä@example.com",
        ),
        *(
            "Ada <ada@example.com> <bob@example.com>",
            "ada@example.com>",
            "a@b<c>.example",
            "ada@" + "x" * 70 + ".example",
        ),
    ],
)
async def test_what_is_no_address(mail: Mail, text: str) -> None:
    for key in ("from", "to", "bcc"):
        changes: dict[str, Any] = {key: text}
        fail = await failed(mail, **changes)
        assert (fail.code, fail.retryable) == ("config_invalid", False)
        assert fail.message.startswith(f"/{key}: ")
    assert mail.connections == 0


async def test_few_recipients_at_a_time(mail: Mail) -> None:
    people = [f"p{number}@example.com" for number in range(60)]
    fail = await failed(mail, to=people, bcc=[f"b{number}@example.com" for number in range(41)])
    assert fail.code == "config_invalid" and "101 recipients" in fail.message
    await sent(mail, to=people, bcc=[*people, *(f"b{number}@example.com" for number in range(40))])
    assert len(mail.taken[0].recipients) == 100
    assert (await failed(mail, to=[])).code == "config_invalid"


async def test_a_message_that_is_too_large(mail: Mail) -> None:
    fail = await failed(mail, attachments=[{"content": "x" * 20_000_000}])
    assert fail.code == "message_too_large" and mail.connections == 0
    mail.offers = ("SIZE 1000",)
    fail = await failed(mail, text="x" * 2_000)
    assert fail.code == "message_too_large" and "1,000 bytes" in fail.message and mail.taken == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "mail.example", "10.0.0.7", "2130706433"])
async def test_a_server_that_may_not_be_called(mail: Mail, host: str) -> None:
    handler = email_handler(TcpConnector(Egress(), resolver=at_home))
    fail = await failed(mail, handler, server={"host": host, "port": mail.port, "tls": "none"})
    assert fail.code == ("url_invalid" if host.isdecimal() else "egress_refused") and not fail.retryable
    assert mail.connections == 0


async def test_mail_ports_are_closed_until_an_operator_opens_them(mail: Mail) -> None:
    async def outside(host: str, port: int) -> Sequence[str]:
        return ["8.8.8.8"]

    handler = email_handler(TcpConnector(Egress(), resolver=outside))
    fail = await failed(mail, handler, server={"host": "mail.example", "port": 25})
    assert fail.code == "egress_refused" and 'adds "mail.example:25" to `egress`' in fail.hint


async def test_the_operators_own_server_may_be_called(mail: Mail) -> None:
    server = Server(host="127.0.0.1", port=mail.port, tls="none")
    handler = email_handler(TcpConnector(Egress()), server)
    plain = {key: value for key, value in config(mail).items() if key != "server"}
    assert isinstance(await called(handler, plain), Done)
    assert (await failed(mail, handler)).code == "egress_refused"
    assert mail.connections == 1


async def test_a_worker_without_a_server_leaves_it_to_others(mail: Mail) -> None:
    with pytest.raises(CapabilityMissing) as caught:
        await called(EMAIL, {"from": "a@example.com", "to": "b@example.com", "text": "x"})
    assert caught.value.code == "smtp_server_missing" and "TIDEMILL_SMTP_URL" in caught.value.hint


@pytest.mark.parametrize(
    ("verb", "answer", "code", "retryable", "unknown"),
    [
        ("CONNECT", b"421 busy", "smtp_status", True, False),
        ("CONNECT", b"554 go away", "smtp_status", False, False),
        ("CONNECT", b"HTTP/1.1 400 Bad Request", "response_invalid", False, False),
        ("CONNECT", b"220-" + b"x" * 70_000, "response_invalid", False, False),
        ("CONNECT", CUT, "connection_failed", True, False),
        ("EHLO", b"502 no", "smtp_status", False, False),
        ("MAIL", b"451-try\r\n451 later", "smtp_status", True, False),
        ("MAIL", b"530 log in first", "auth_failed", False, False),
        ("RCPT", CUT, "connection_failed", True, False),
        ("DATA", b"452 full", "smtp_status", True, False),
        ("DATA", CUT, "connection_failed", True, False),
        ("DATA.", b"451 scanning failed", "smtp_status", True, False),
        ("DATA.", b"554 spam", "smtp_status", False, False),
        ("DATA.", CUT, "connection_failed", True, True),
    ],
)
async def test_answers_of_a_server(
    mail: Mail, verb: str, answer: bytes, code: str, retryable: bool, unknown: bool
) -> None:
    mail.answers[verb] = [answer]
    fail = await failed(mail)
    assert (fail.code, fail.retryable, fail.unknown_outcome) == (code, retryable, unknown)
    assert "127.0.0.1" in fail.message
    assert mail.answers[verb] == [], "the server gave this answer"
    assert ("may have been delivered" in fail.message) is unknown


@pytest.mark.parametrize(("verb", "unknown"), [("MAIL", False), ("DATA.", True)])
async def test_a_server_that_says_nothing(mail: Mail, verb: str, unknown: bool) -> None:
    mail.answers[verb] = [SILENCE]
    fail = await failed(mail, timeout_seconds=0.3)
    assert (fail.code, fail.retryable, fail.unknown_outcome) == ("timeout", True, unknown)
    assert mail.answers[verb] == []


async def test_after_the_message_was_taken_nothing_fails_any_more(mail: Mail) -> None:
    mail.answers["QUIT"] = [CUT]
    assert (await sent(mail))["reply"] == "250 queued as 17"
    mail.answers["QUIT"] = [SILENCE]
    assert (await sent(mail, timeout_seconds=0.5))["reply"] == "250 queued as 17"


async def test_refused_recipients_are_named_and_nobody_gets_it(mail: Mail) -> None:
    people = ["ada@example.com", "bob@example.com", "cy@example.com"]
    mail.answers["RCPT"] = [b"250 ok", b"550 no such user", b"450 mailbox busy"]
    fail = await failed(mail, to=people)
    assert (fail.code, fail.retryable) == ("recipients_refused", False)
    assert "bob@example.com: 550 no such user; cy@example.com: 450 mailbox busy" in fail.message
    mail.answers["RCPT"] = [b"250 ok", b"450 busy"]
    assert (await failed(mail, to=people)).retryable
    assert mail.taken == [] and "ada" not in fail.message


async def test_nobody_listens() -> None:
    async with mail_server() as gone:
        pass
    fail = await failed(gone)
    assert (fail.code, fail.retryable, fail.unknown_outcome) == ("connection_failed", True, False)


def test_a_message_that_was_cut_off_is_sent_again_with_the_same_id(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(delivery: str) -> tuple[Any, Mail]:
        async with mail_server() as mail:
            mail.answers["DATA."] = [CUT]
            monkeypatch.setenv("TIDEMILL_SMTP_URL", f"smtp://127.0.0.1:{mail.port}?tls=none")
            node = {"id": "a", "type": "email", "delivery": delivery, "retry": {"backoff_seconds": 0}}
            node |= {"config": {"from": "mill@example.com", "to": "ada@example.com", "text": "x"}}

            def run() -> Any:
                with tidemill.open("memory://") as mill:
                    return mill.run({"name": "one", "nodes": [node]}, timeout_s=20)

            return await asyncio.to_thread(run), mail

    view, mail = asyncio.run(play("at_least_once"))
    assert view.status == "COMPLETED"
    assert len(mail.taken) == 2 and len({taken.message["Message-ID"] for taken in mail.taken}) == 1
    view, mail = asyncio.run(play("at_most_once"))
    assert (view.status, view.error["code"], len(mail.taken)) == ("FAILED", "unknown_outcome", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


def trusting(folder: Path, name: str = "mail.example") -> tuple[Handler, Any]:
    """A handler that trusts an authority, and what a server of its needs."""
    signer = authority(folder)
    return email_handler(TcpConnector(ANYWHERE, resolver=at_home, trust=signer.trusting())), signer.server(name)


def login(mail: Mail, **more: Any) -> dict[str, Any]:
    return {"host": "mail.example", "port": mail.port, "username": "mill", "password": PASSWORD, **more}


@pytest.mark.parametrize(
    ("tls", "methods"), [("starttls", ("PLAIN", "LOGIN")), ("tls", ("PLAIN",)), ("starttls", ("XOAUTH2", "LOGIN"))]
)
async def test_logging_in_over_an_encrypted_line(folder: Path, tls: str, methods: tuple[str, ...]) -> None:
    handler, server = trusting(folder)
    async with mail_server(server, at_once=tls == "tls") as mail:
        mail.methods = methods
        await sent(mail, handler, server=login(mail, tls=tls))
        (taken,) = mail.taken
        assert (taken.login, taken.encrypted) == (("mill", PASSWORD), True)
        before = mail.said[: mail.said.index("STARTTLS") if tls == "starttls" else 0]
        assert all(line.startswith("EHLO") for line in before)


async def test_who_does_not_encrypt_is_told_nothing(mail: Mail) -> None:
    handler = email_handler(TcpConnector(ANYWHERE, resolver=at_home))
    fail = await failed(mail, handler, server=login(mail))
    assert (fail.code, fail.retryable) == ("tls_failed", False)
    assert [line.partition(" ")[0] for line in mail.said] == ["EHLO"]


async def test_an_encrypted_line_to_a_port_that_begins_without(mail: Mail) -> None:
    """And the other way round: one of both waits for the other, or does not understand it."""
    fail = await failed(mail, server={"host": "127.0.0.1", "port": mail.port, "tls": "tls"})
    assert fail.code == "tls_failed" and "does not seem to speak TLS" in fail.hint and "starttls" in fail.hint

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(wait, "127.0.0.1", 0)
    place = {"host": "127.0.0.1", "port": server.sockets[0].getsockname()[1], "tls": "starttls"}
    fail = await failed(mail, server=place, timeout_seconds=0.2)
    assert fail.code == "timeout" and "set tls to tls" in fail.hint
    server.close()
    await server.wait_closed()


async def test_words_from_before_the_encryption_do_not_count(folder: Path) -> None:
    handler, server = trusting(folder)
    async with mail_server(server) as mail:
        mail.answers["STARTTLS"] = [b"220 go ahead\r\n250-injected\r\n250 AUTH XOAUTH2"]
        await sent(mail, handler, server=login(mail))
        (taken,) = mail.taken
        assert (taken.login, taken.encrypted) == (("mill", PASSWORD), True)
        assert mail.answers["STARTTLS"] == []


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_certificate_for_another_name(folder: Path, at_once: bool) -> None:
    handler, server = trusting(folder, "other.example")
    async with mail_server(server, at_once=at_once) as mail:
        fail = await failed(mail, handler, server=login(mail, tls="tls" if at_once else "starttls"))
        assert fail.code == "tls_failed" and "mail.example" in fail.message
        assert not any("AUTH" in line for line in mail.said)


async def test_a_password_is_in_no_message(folder: Path) -> None:
    handler, server = trusting(folder)
    async with mail_server(server) as mail:
        for answer, retryable in ((f"535 not {PASSWORD}".encode(), False), (b"454 try later", True)):
            mail.answers["AUTH"] = [answer]
            fail = await failed(mail, handler, server=login(mail))
            assert (fail.code, fail.retryable) == ("auth_failed", retryable)
            assert PASSWORD not in fail.message and mail.taken == []


async def test_a_token_logs_in_with_xoauth2_and_is_in_no_message(folder: Path) -> None:
    handler, server = trusting(folder)
    async with mail_server(server) as mail:
        place = {key: value for key, value in login(mail).items() if key != "password"}
        place["access_token"] = "ya29.canary"
        fail = await failed(mail, handler, server=place)
        assert (fail.code, fail.retryable) == ("auth_failed", False) and "XOAUTH2" in fail.message
        mail.methods = ("PLAIN", "XOAUTH2")
        await sent(mail, handler, server=place)
        assert mail.taken[0].login == ("mill", "ya29.canary")
        mail.answers["AUTH"] = [b"334 eyJzdGF0dXMiOiI0MDEifQ=="]
        mail.answers[""] = [b"535 not ya29.canary"]
        fail = await failed(mail, handler, server=place)
        assert fail.code == "auth_failed" and "canary" not in fail.message and "access_token" in fail.hint


async def test_a_password_that_is_refused_is_not_tried_with_another_method(folder: Path) -> None:
    handler, server = trusting(folder)
    async with mail_server(server) as mail:
        mail.answers["AUTH"] = [b"535 no"]
        await failed(mail, handler, server=login(mail))
        assert len([line for line in mail.said if line.startswith("AUTH")]) == 1


async def test_a_password_never_goes_over_an_open_line(mail: Mail) -> None:
    handler = email_handler(TcpConnector(ANYWHERE, resolver=at_home))
    fail = await failed(mail, handler, server=login(mail, tls="none"))
    assert fail.code == "config_invalid" and mail.connections == 0


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("smtp://mail.example", Server(host="mail.example", port=587, tls="starttls")),
        ("smtps://mail.example", Server(host="mail.example", port=465, tls="tls")),
        ("smtp://mail.example:465", Server(host="mail.example", port=465, tls="tls")),
        ("smtp://10.0.0.7:25?tls=none", Server(host="10.0.0.7", port=25, tls="none")),
        (
            "smtp://me%40x:p%2Fw@mail.example:2525?tls=starttls",
            Server(host="mail.example", port=2525, tls="starttls", username="me@x", password="p/w"),
        ),
    ],
)
def test_the_url_of_a_server(url: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_SMTP_URL", url)
    assert read_settings().smtp == server


@pytest.mark.parametrize(
    "url",
    [
        *("mail.example", "http://u:sesame@mail.example", "smtp://u:sesame@", "smtp://u:sesame@mail.example:x"),
        *("smtp://u:sesame@mail.example?tls=some", "smtp://u:sesame@mail.example?tls=none"),
        *(
            "smtp://u:sesame@mail.example?verify=off",
            "smtp://u:sesame@mail.example/path",
            "smtp://u:ses/ame@mail.example",
            "smtp://u:sesame@mail.example:0",
            "smtp://u:sesame@mail.example#x",
            "smtp://:sesame@mail.example",
            "smtps://u:sesame@mail.example?tls=starttls",
        ),
    ],
)
def test_a_url_that_cannot_be_used_is_not_repeated(url: str) -> None:
    with pytest.raises(Rejected) as refused:
        server_at(url)
    assert refused.value.code == "smtp_url_invalid"
    assert "sesame" not in str(refused.value) and "ses/ame" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"to": "nobody"}, "/to"),
        ({"cc": ["ada@example.com", "nobody"]}, "/cc/1"),
        ({"subject": "a\nb"}, "/subject"),
        ({"headers": {"Bcc": "ada@example.com"}}, "/headers/Bcc"),
        ({"headers": {"X-A": "a\nb"}}, "/headers/X-A"),
        ({"headers": {"X A": "b"}}, "/headers"),
        ({"server": {"host": "no host"}}, "/server/host"),
        ({"server": {"host": "a.example", "password": "open"}}, "/server/password"),
        ({"server": {"host": "a.example", "username": "u", "access_token": "open"}}, "/server/access_token"),
        ({"server": {"host": "a.example", "access_token": "{{ secrets.T }}"}}, "/server/access_token"),
        ({"server": {"host": "a.example", "username": "u", "tls": "none"}}, "/server/tls"),
        ({"text": "{{ secrets.X }}"}, "/text"),
        ({"text": None, "body": "x"}, ""),
    ],
)
def test_a_config_that_cannot_work(changes: dict[str, Any], path: str) -> None:
    good = {
        "from": "Mill <mill@example.com>",
        "to": "{{ inputs.to }}",
        "text": "x",
        "server": {"host": "a.example", "username": "u", "password": "{{ secrets.PASSWORD }}"},
    }
    document = {"name": "t", "nodes": [{"id": "a", "type": "email", "config": good}]}
    compile_document(document, built_in_types())
    document["nodes"] = [{"id": "a", "type": "email", "config": good | changes}]
    with pytest.raises(Rejected) as refused:
        compile_document(document, built_in_types())
    assert any(problem.path.startswith(f"/nodes/0/config{path}") for problem in refused.value.problems)
