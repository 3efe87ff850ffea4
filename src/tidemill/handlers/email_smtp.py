"""The conversation with a mail server (RFC 5321), over a connection to an address that may be called.

A message is handed over to all of its recipients or to none. Names and passwords only go over an encrypted line, to
the server that they are meant for, and nothing that a server says is quoted with a password in it. Whoever is cut off
while the server takes the message does not know whether it was taken, and says so.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal

import msgspec

from tidemill.handlers.contract import Fail
from tidemill.handlers.email_message import Letter
from tidemill.handlers.raised import clipped
from tidemill.security.connections import Connection, Dialer
from tidemill.security.egress import TOO_SLOW, CallFailed
from tidemill.security.masking import Mask

Tls = Literal["starttls", "tls", "none"]
PORTS: dict[Tls, int] = {"starttls": 587, "tls": 465, "none": 25}
REPLY_BYTES_MAX = 65_536
QUOTED_MAX = 200
FAREWELL_MS = 1_000
_LINE = re.compile(rb"(\d{3})([ -]?)(.*)\n", re.DOTALL)
_LINE_END = re.compile(rb"\r\n|\r|\n")
_SILENT = "a server that says nothing at first may want TLS from the beginning: see the port, or set tls to tls"
_SENDERS_FAULT = frozenset({530, 534, 535, 538})
"""Replies that want better credentials."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A mail server, and as whom to speak to it."""

    host: str
    tls: Tls = "starttls"
    port: int
    username: str = ""
    password: str = ""


class Reply(msgspec.Struct, frozen=True):
    """What a server answers: a number, and its lines."""

    code: int
    lines: tuple[str, ...]


async def deliver(letter: Letter, server: Server, dialer: Dialer, total_ms: int) -> str:
    """Hand a message over; answers what the server said to it."""
    greeted = handing = False
    try:
        async with asyncio.timeout(total_ms / 1_000) as clock, _spoken_to(server, dialer) as session:
            await session.greet()
            greeted = True
            if server.username:
                await session.log_in()
            await session.address(letter)
            handing = True
            said = await session.hand_over(letter.data)
            # It has the message, whatever becomes of the farewell.
            clock.reschedule(None)
            await session.part()
            return said
    except TimeoutError as error:
        message = f"{server.host} did not take the message within {total_ms / 1_000:g} s"
        hint = TOO_SLOW if greeted or server.tls == "tls" else _SILENT
        raise Fail("timeout", message, retryable=True, unknown_outcome=handing, hint=hint) from error


@asynccontextmanager
async def _spoken_to(server: Server, dialer: Dialer) -> AsyncIterator[_Session]:
    connection = await dialer.dial(server.host, server.port)
    try:
        if server.tls == "tls":
            await connection.encrypt(dialer.trust)
        yield _Session(server, dialer.trust, connection)
    finally:
        await asyncio.shield(connection.close())


class _Session:
    """One conversation."""

    def __init__(self, server: Server, trust: ssl.SSLContext, connection: Connection) -> None:
        self._server, self._trust, self._connection = server, trust, connection
        self._mask = Mask([server.password])
        self._ahead = bytearray()
        self._offers: dict[str, str] = {}

    async def greet(self) -> None:
        """Begin, and go on encrypted where that is wanted: a server that does not offer it is not spoken to."""
        self._must(await self._reply(), (220,), "the connection")
        await self._introduce()
        if self._server.tls != "starttls":
            return
        host = self._server.host
        if "STARTTLS" not in self._offers:
            raise CallFailed("tls_failed", f"{host} does not offer to encrypt", hint="set tls to tls, or to none")
        self._must(await self.ask("STARTTLS"), (220,), "STARTTLS")
        if self._ahead:
            # Somebody on the way would have put words into the mouth of the encrypted server.
            raise CallFailed("tls_failed", f"{host} said something before it began to encrypt")
        await self._connection.encrypt(self._trust)
        await self._introduce()

    async def log_in(self) -> None:
        """Say who this is."""
        server, offered = self._server, self._offers.get("AUTH", "").upper().split()
        if "PLAIN" in offered:
            reply = await self.ask("AUTH PLAIN " + _base64(f"\0{server.username}\0{server.password}"))
        elif "LOGIN" in offered:
            reply = await self.ask("AUTH LOGIN")
            for word in (server.username, server.password):
                if reply.code == 334:
                    reply = await self.ask(_base64(word))
        else:
            message = f"{server.host} knows neither PLAIN nor LOGIN"
            raise Fail("auth_failed", message, hint="leave out the username, or see the server")
        if reply.code != 235:
            raise self._no_access(reply)

    async def address(self, letter: Letter) -> None:
        """Say from whom and to whom; if one recipient is refused, nobody gets the message."""
        size_max = self._offers.get("SIZE", "").strip()
        if size_max.isdecimal() and 0 < int(size_max) < len(letter.data):
            message = f"{self._server.host} takes at most {int(size_max):,} bytes"
            raise Fail("message_too_large", message, hint="send a link instead of the file")
        self._must(await self.ask(f"MAIL FROM:<{letter.sender}>"), (250,), f"the sender {letter.sender}")
        refused: dict[str, Reply] = {}
        for recipient in letter.recipients:
            reply = await self.ask(f"RCPT TO:<{recipient}>")
            if reply.code not in (250, 251):
                refused[recipient] = reply
        if refused:
            told = "; ".join(f"{who}: {self._quoted(reply)}" for who, reply in refused.items())
            retryable = all(400 <= reply.code < 500 for reply in refused.values())
            raise Fail("recipients_refused", f"{self._server.host} refuses {told}", retryable=retryable)

    async def hand_over(self, data: bytes) -> str:
        """Send the message itself. From its last line on it may have been delivered, until the server says no."""
        self._must(await self.ask("DATA"), (354,), "the message")
        try:
            await self._connection.write(as_data(data))
            reply = await self._reply()
        except CallFailed as error:
            message = f"{error.message}; the message may have been delivered"
            raise Fail(error.code, message, retryable=True, unknown_outcome=True) from error
        self._must(reply, (250,), "the message")
        return self._quoted(reply)

    async def part(self) -> None:
        """Say goodbye, and wait a moment for the answer."""
        with suppress(CallFailed, TimeoutError):
            async with asyncio.timeout(FAREWELL_MS / 1_000):
                await self.ask("QUIT")

    async def ask(self, line: str) -> Reply:
        """Say a line and hear the answer."""
        await self._connection.write(line.encode() + b"\r\n")
        return await self._reply()

    async def _introduce(self) -> None:
        """Name this side by its address, as one does who has no name, and hear what the server can do."""
        reply = self._must(await self.ask(f"EHLO {_literal(self._connection.own_address)}"), (250,), "EHLO")
        pairs = (line.replace("=", " ").partition(" ") for line in reply.lines[1:])
        self._offers = {word.upper(): rest for word, _, rest in pairs}

    async def _reply(self) -> Reply:
        lines: list[str] = []
        size = 0
        while True:
            line = _LINE.fullmatch(await self._line())
            size += 0 if line is None else len(line[0])
            if line is None or size > REPLY_BYTES_MAX:
                message = f"{self._server.host} does not speak like a mail server"
                raise CallFailed("response_invalid", message, hint="see host, port and tls")
            lines.append(line[3].decode("utf-8", "replace").strip())
            if line[2] != b"-":
                return Reply(int(line[1]), tuple(lines))

    async def _line(self) -> bytes:
        while (end := self._ahead.find(b"\n") + 1) == 0 and len(self._ahead) <= REPLY_BYTES_MAX:
            data = await self._connection.read(REPLY_BYTES_MAX)
            if not data:
                raise CallFailed("connection_failed", f"{self._server.host} has hung up", retryable=True)
            self._ahead += data
        line = bytes(self._ahead[:end])
        del self._ahead[:end]
        return line

    def _must(self, reply: Reply, expected: tuple[int, ...], what: str) -> Reply:
        if reply.code in expected:
            return reply
        if reply.code in _SENDERS_FAULT:
            raise self._no_access(reply)
        message = f"{self._server.host} refuses {what}: {self._quoted(reply)}"
        raise Fail("smtp_status", message, retryable=400 <= reply.code < 500)

    def _no_access(self, reply: Reply) -> Fail:
        message = f"{self._server.host} does not accept the credentials: {self._quoted(reply)}"
        hint = "see username and password"
        return Fail("auth_failed", message, retryable=400 <= reply.code < 500, hint=hint)

    def _quoted(self, reply: Reply) -> str:
        said = self._mask.text(" ".join(" ".join(reply.lines).split()))
        return clipped(f"{reply.code} {said}".rstrip(), QUOTED_MAX)


def as_data(data: bytes) -> bytes:
    """A message as it is sent: a line that begins with a dot has one more, and a dot alone is the end.

    Whatever ends a line ends it in the same way, or servers could disagree about where the message ends.
    """
    lines = _LINE_END.split(data.rstrip(b"\r\n"))
    return b"".join((b"." if line.startswith(b".") else b"") + line + b"\r\n" for line in lines) + b".\r\n"


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _literal(address: str) -> str:
    return f"[IPv6:{address}]" if ":" in address else f"[{address}]"
