"""A mail server on loopback that says what a test wants it to say, and remembers what it was told."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage

CUT = b""
"""An answer that hangs up."""
SILENCE = b"..."
"""An answer that never comes."""


@dataclass(frozen=True)
class Taken:
    """A message as it was handed over."""

    sender: str
    recipients: tuple[str, ...]
    data: bytes
    login: tuple[str, str] | None
    encrypted: bool

    @property
    def message(self) -> EmailMessage:
        parsed = message_from_bytes(self.data, policy=policy.default)
        assert isinstance(parsed, EmailMessage)
        return parsed


@dataclass
class Mail:
    """The server: answers by command, in the order in which they are given, and the messages that it took."""

    port: int = 0
    tls: ssl.SSLContext | None = None
    offers: tuple[str, ...] = ("PIPELINING", "8BITMIME")
    methods: tuple[str, ...] = ("PLAIN", "LOGIN")
    answers: dict[str, list[bytes]] = field(default_factory=dict)
    """`{"RCPT": [b"450 later"]}`, once each; `DATA.` is the end of the message."""
    taken: list[Taken] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await _Talk(self, reader, writer).held()
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, _HungUp):
            pass
        finally:
            writer.close()


class _HungUp(Exception):
    """The server ends the conversation."""


class _Talk:
    def __init__(self, mail: Mail, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._mail, self._reader, self._writer = mail, reader, writer
        self._sender, self._recipients = "", list[str]()
        self._last = b""
        self._login: tuple[str, str] | None = None
        self._encrypted = writer.get_extra_info("ssl_object") is not None

    async def held(self) -> None:
        await self._answer("CONNECT", b"220 mail.example ESMTP")
        while heard := await self._reader.readline():
            line = heard.decode().rstrip("\r\n")
            self._mail.said.append(line)
            await self._heard(line.partition(" ")[0].upper(), line)

    async def _answer(self, verb: str, usual: bytes) -> bool:
        """Say what the test wants, or what is usual; tells whether it was the latter."""
        scripted = self._mail.answers.get(verb)
        text = scripted.pop(0) if scripted else usual
        self._last = text
        if text == SILENCE:
            await asyncio.sleep(60)
        if text == CUT:
            raise _HungUp
        self._writer.write(text + b"\r\n")
        await self._writer.drain()
        return text is usual

    async def _heard(self, verb: str, line: str) -> None:
        match verb:
            case "EHLO":
                words = ["mail.example", *self._mail.offers]
                if self._mail.tls is not None and not self._encrypted:
                    words.append("STARTTLS")
                elif self._encrypted:
                    words.append(f"AUTH {' '.join(self._mail.methods)}")
                usual = [f"250{'-' if word is not words[-1] else ' '}{word}".encode() for word in words]
                await self._answer(verb, b"\r\n".join(usual))
            case "STARTTLS":
                await self._answer(verb, b"220 go ahead")
                if self._last.startswith(b"220"):
                    await self._writer.start_tls(self._mail.tls or ssl.create_default_context())
                    self._encrypted = True
            case "AUTH":
                await self._logged_in(line.split())
            case "MAIL":
                self._sender, self._recipients = line[line.index("<") + 1 : line.index(">")], []
                await self._answer(verb, b"250 ok")
            case "RCPT":
                self._recipients.append(line[line.index("<") + 1 : line.index(">")])
                await self._answer(verb, b"250 ok")
            case "DATA":
                if await self._answer(verb, b"354 go ahead"):
                    await self._taken()
            case "QUIT":
                await self._answer(verb, b"221 bye")
                raise _HungUp
            case _:
                await self._answer(verb, b"502 what?")

    async def _logged_in(self, words: list[str]) -> None:
        if words[1] == "PLAIN":
            _, name, password = base64.b64decode(words[2]).decode().split("\0")
        elif words[1] == "XOAUTH2":
            user, bearer, _, _ = base64.b64decode(words[2]).decode().split("\1")
            name, password = user.removeprefix("user="), bearer.removeprefix("auth=Bearer ")
        else:
            name = base64.b64decode(words[2]).decode()
            self._writer.write(b"334 UGFzc3dvcmQ6\r\n")
            password = base64.b64decode(await self._reader.readline()).decode()
        if await self._answer("AUTH", b"235 welcome"):
            self._login = (name, password)

    async def _taken(self) -> None:
        lines = []
        while (line := await self._reader.readuntil(b"\r\n")) != b".\r\n":
            lines.append(line.removeprefix(b"."))
        taken = Taken(self._sender, tuple(self._recipients), b"".join(lines), self._login, self._encrypted)
        self._mail.taken.append(taken)
        await self._answer("DATA.", b"250 queued as 17")


@asynccontextmanager
async def mail_server(tls: ssl.SSLContext | None = None, *, at_once: bool = False) -> AsyncIterator[Mail]:
    """A server, as long as the block lasts; `at_once` encrypts from the first byte on."""
    mail = Mail(tls=tls)
    server = await asyncio.start_server(mail.serve, "127.0.0.1", 0, ssl=tls if at_once else None)
    mail.port = server.sockets[0].getsockname()[1]
    try:
        yield mail
    finally:
        server.close()
