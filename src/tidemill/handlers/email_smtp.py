"""The conversation with a mail server, by aiosmtplib over a socket to an address that may be called.

A message is handed over to all of its recipients or to none. Names and passwords only go over an encrypted line, to
the server that they are meant for, and nothing that a server says is quoted with a password in it. Whoever is cut off
while the server takes the message does not know whether it was taken, and says so.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Literal

import msgspec

from tidemill.handlers.contract import Fail
from tidemill.handlers.email_message import Letter
from tidemill.handlers.raised import clipped
from tidemill.security.connections import Dialer, tls_failed
from tidemill.security.egress import TOO_SLOW, CallFailed
from tidemill.security.masking import Mask

if TYPE_CHECKING:
    from aiosmtplib import SMTPResponse

Tls = Literal["starttls", "tls", "none"]
PORTS: dict[Tls, int] = {"starttls": 587, "tls": 465, "none": 25}
QUOTED_MAX = 200
FAREWELL_MS = 1_000
_LINE_END = re.compile(rb"\r\n|\r|\n")
_SILENT = "a server that says nothing at first may want TLS from the beginning: see the port, or set tls to tls"
_METHODS = ("plain", "login")
_CLOSING = 421
_CREDENTIALS_WANTED = frozenset({530, 534, 535, 538})


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A mail server, and as whom to speak to it."""

    host: str
    tls: Tls = "starttls"
    port: int
    username: str = ""
    password: str = ""
    access_token: str = ""
    """Logs in with XOAUTH2 instead of a password."""


async def deliver(letter: Letter, server: Server, dialer: Dialer, total_ms: int) -> str:
    """Hand a message over; answers what the server said to it."""
    session = _Session(server, dialer)
    try:
        async with asyncio.timeout(total_ms / 1_000) as clock, session.opened():
            await session.encrypt()
            if server.username:
                await session.log_in()
            await session.address(letter)
            said = await session.hand_over(letter.data)
            # The server has the message, whatever happens to the connection now.
            clock.reschedule(None)
            await session.quit()
            return said
    except TimeoutError as error:
        message = f"{server.host} did not take the message within {total_ms / 1_000:g} s"
        hint = TOO_SLOW if session.greeted or server.tls == "tls" else _SILENT
        raise Fail("timeout", message, retryable=True, unknown_outcome=session.handing, hint=hint) from error


class _Session:
    """One conversation, held by aiosmtplib over a socket of the dialer's."""

    def __init__(self, server: Server, dialer: Dialer) -> None:
        # The library takes a moment to load, which only nodes pay that send something.
        import aiosmtplib

        self._server, self._dialer = server, dialer
        self._mask = Mask([server.password, server.access_token])
        self._smtp = aiosmtplib.SMTP(
            hostname=server.host,
            timeout=None,
            use_tls=server.tls == "tls",
            start_tls=False,
            tls_context=dialer.trust,
        )
        self.greeted = self.handing = False

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connect and greet; close at once afterwards."""
        sock = await self._dialer.dial(self._server.host, self._server.port)
        try:
            with self._translated("the connection"):
                # EHLO names this side by its address, because it has no name.
                own = _literal(sock.getsockname()[0])
                await self._smtp.connect(sock=sock, local_hostname=own)
                await self._smtp.ehlo()
                self.greeted = True
            yield
        finally:
            transport = self._smtp.transport
            if isinstance(transport, asyncio.Transport):
                transport.abort()
                await asyncio.sleep(0)

    async def encrypt(self) -> None:
        """Go on encrypted where that is wanted: a server that does not offer it is not spoken to."""
        if self._server.tls != "starttls":
            return
        host = self._server.host
        if not self._smtp.supports_extension("starttls"):
            raise CallFailed("tls_failed", f"{host} does not offer to encrypt", hint="set tls to tls, or to none")
        with self._translated("STARTTLS"):
            await self._smtp.starttls()
            await self._smtp.ehlo()

    async def log_in(self) -> None:
        """Log in with one method, once: a second try with the same password could lock the account."""
        server, offered = self._server, self._smtp.server_auth_methods
        method = "xoauth2" if server.access_token else next((each for each in _METHODS if each in offered), "")
        if method not in offered:
            message = f"{server.host} offers none of the methods to log in: {', '.join(_wanted(server))}"
            raise Fail("auth_failed", message, hint="leave out the username, or see the server")
        log_in = getattr(self._smtp, f"auth_{method}")
        with self._translated("the credentials"):
            await log_in(server.username, server.access_token or server.password)

    async def address(self, letter: Letter) -> None:
        """Say from whom and to whom; if one recipient is refused, nobody gets the message."""
        size_max = self._smtp.esmtp_extensions.get("size", "").strip()
        if size_max.isdecimal() and 0 < int(size_max) < len(letter.data):
            message = f"{self._server.host} takes at most {int(size_max):,} bytes"
            raise Fail("message_too_large", message, hint="send a link instead of the file")
        reply = await self._ask(b"MAIL", f"FROM:<{letter.sender}>".encode())
        self._must(reply, 250, f"the sender {letter.sender}")
        refused: dict[str, SMTPResponse] = {}
        for recipient in letter.recipients:
            reply = await self._ask(b"RCPT", f"TO:<{recipient}>".encode())
            if reply.code not in (250, 251):
                refused[recipient] = reply
            if reply.code == _CLOSING:
                break
        if refused:
            told = "; ".join(f"{who}: {self._quoted(*reply)}" for who, reply in refused.items())
            retryable = all(400 <= reply.code < 500 for reply in refused.values())
            raise Fail("recipients_refused", f"{self._server.host} refuses {told}", retryable=retryable)

    async def hand_over(self, data: bytes) -> str:
        """Send the message itself. From its last line on it may have been delivered, until the server says no."""
        self._must(await self._ask(b"DATA"), 354, "the message")
        self.handing = True
        try:
            with self._translated("the message"):
                protocol = self._smtp.protocol
                if protocol is None:
                    raise self._hung_up()
                protocol.write(as_data(data))
                reply = await protocol.read_response()
        except CallFailed as error:
            message = f"{error.message}; the message may have been delivered"
            raise Fail(error.code, message, retryable=True, unknown_outcome=True) from error
        self._must(reply, 250, "the message")
        return self._quoted(*reply)

    async def quit(self) -> None:
        """Say goodbye, and wait a moment for the answer."""
        with suppress(CallFailed, TimeoutError):
            async with asyncio.timeout(FAREWELL_MS / 1_000):
                await self._ask(b"QUIT")

    async def _ask(self, *words: bytes) -> SMTPResponse:
        with self._translated(words[0].decode()):
            return await self._smtp.execute_command(*words)

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """The errors of the library as failures of the attempt."""
        from aiosmtplib import SMTPAuthenticationError, SMTPException, SMTPResponseException, SMTPTimeoutError

        try:
            yield
        except SMTPTimeoutError:
            raise
        except SMTPAuthenticationError as error:
            raise self._no_access(error.code, error.message) from error
        except SMTPResponseException as error:
            if error.code < 0:
                message = f"{self._server.host} does not speak like a mail server"
                raise CallFailed("response_invalid", message, hint="see host, port and tls") from error
            raise self._refused(error.code, error.message, what) from error
        except ssl.SSLError as error:
            raise tls_failed(error, self._server.host) from error
        except (SMTPException, OSError) as error:
            if isinstance(error.__cause__, ssl.SSLError):
                raise tls_failed(error.__cause__, self._server.host) from error
            raise self._hung_up() from error

    def _hung_up(self) -> CallFailed:
        return CallFailed("connection_failed", f"{self._server.host} has hung up", retryable=True)

    def _must(self, reply: SMTPResponse, expected: int, what: str) -> None:
        if reply.code != expected:
            raise self._refused(*reply, what)

    def _refused(self, code: int, said: str, what: str) -> Fail:
        if code in _CREDENTIALS_WANTED:
            return self._no_access(code, said)
        message = f"{self._server.host} refuses {what}: {self._quoted(code, said)}"
        return Fail("smtp_status", message, retryable=400 <= code < 500)

    def _no_access(self, code: int, said: str) -> Fail:
        message = f"{self._server.host} does not accept the credentials: {self._quoted(code, said)}"
        hint = "see username and access_token" if self._server.access_token else "see username and password"
        return Fail("auth_failed", message, retryable=400 <= code < 500, hint=hint)

    def _quoted(self, code: int, said: str) -> str:
        readable = said.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return clipped(f"{code} {self._mask.text(' '.join(readable.split()))}".rstrip(), QUOTED_MAX)


def _wanted(server: Server) -> tuple[str, ...]:
    return ("XOAUTH2",) if server.access_token else tuple(method.upper() for method in _METHODS)


def as_data(data: bytes) -> bytes:
    """A message as it is sent: a line that begins with a dot has one more, and a dot alone is the end.

    Whatever ends a line ends it in the same way, or servers could disagree about where the message ends.
    """
    lines = _LINE_END.split(data.rstrip(b"\r\n"))
    return b"".join((b"." if line.startswith(b".") else b"") + line + b"\r\n" for line in lines) + b".\r\n"


def _literal(address: str) -> str:
    return f"[IPv6:{address}]" if ":" in address else f"[{address}]"
