"""Mail messages and the SMTP session that delivers them, by aiosmtplib over a socket of the `TcpConnector`.

The header is written here, not by the library, which decodes encoded words and writes the line breaks inside them out.
Invariants: no config value can end a header line; credentials only cross an encrypted connection; no server reply is
quoted with a password in it; a message goes to all recipients or to none. When the connection breaks while the server
takes the message, the outcome is unknown and the failure says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tidemill.handlers.contract import Fail, NodeContext, truncate
from tidemill.net.egress import TOO_SLOW, CallFailed, TcpConnector
from tidemill.security.masking import Mask

if TYPE_CHECKING:
    from email.message import EmailMessage

    from aiosmtplib import SMTPResponse


RECIPIENTS_MAX = 100
MESSAGE_BYTES_MAX = 25_000_000
HEADER_QUOTED_MAX = 80
OWN = frozenset(
    {
        *("bcc", "cc", "date", "from", "message-id", "mime-version", "received", "reply-to", "return-path", "sender"),
        *("subject", "to"),
    }
)
"""Headers that other config fields or mail servers set."""
_ADDRESS = re.compile(r"(?P<local>[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64})@(?P<domain>[^\s@<>\"]{1,253})")
_NAMED = re.compile(r"\s*(?:\"(?P<quoted>[^\"]*)\"|(?P<plain>[^<>\"]*?))\s*<(?P<address>[^<>]*)>\s*")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_BREAK = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][\w.+-]*/[A-Za-z0-9][\w.+-]*")


# Messages.


class Mailbox(msgspec.Struct, frozen=True):
    name: str
    address: str

    def to_header(self) -> str:
        if not self.name:
            return self.address
        from email.utils import quote

        name = f'"{quote(self.name)}"' if _is_plain(self.name) else _encode_value(self.name)
        return f"{name} <{self.address}>"


class OutgoingMessage(msgspec.Struct, frozen=True, kw_only=True):
    message_id: str
    sender: str
    recipients: tuple[str, ...]
    data: bytes


async def message_of(context: NodeContext, now_ms: int) -> OutgoingMessage:
    """Build the message of a config. Raises `Fail` if it cannot be sent."""
    config: Mapping[str, Any] = context.config
    sender = mailbox(config["from"], "/from")
    people = {key: mailboxes(config.get(key), f"/{key}") for key in ("to", "cc", "bcc", "reply_to")}
    recipients = tuple(dict.fromkeys(each.address for key in ("to", "cc", "bcc") for each in people[key]))
    if not recipients:
        raise _invalid("/to", "there is no recipient")
    if len(recipients) > RECIPIENTS_MAX:
        hint = "use a mailing list, or send several messages"
        raise _invalid("/to", f"{len(recipients)} recipients, and {RECIPIENTS_MAX} are allowed", hint)
    # All attempts of a visit have the same id, so that a receiver can drop repetitions.
    digest = hashlib.sha256(context.effect_key.encode()).hexdigest()[:32]
    message_id = f"<{digest}@{sender.address.rpartition('@')[2]}>"
    header = _header(config, sender, people, message_id, now_ms)
    data = header + (await _body(config, context)).as_bytes()
    if len(data) > MESSAGE_BYTES_MAX:
        hint = "send a link instead of the file"
        raise Fail("message_too_large", f"the message has more than {MESSAGE_BYTES_MAX:,} bytes", hint=hint)
    return OutgoingMessage(message_id=message_id, sender=sender.address, recipients=recipients, data=data)


def mailboxes(given: Any, path: str) -> list[Mailbox]:
    """Parse a field that holds one address or a list."""
    if given is None:
        return []
    if isinstance(given, str):
        return [mailbox(given, path)]
    return [mailbox(each, f"{path}/{number}") for number, each in enumerate(given)]


def mailbox(text: str, path: str) -> Mailbox:
    """Parse an address with or without a name: `ada@example.com`, `Ada Lovelace <ada@example.com>`."""
    require_one_line(text, path)
    named = _NAMED.fullmatch(text)
    found = _ADDRESS.fullmatch((named["address"] if named else text).strip())
    if found is None:
        hint = "write name@example.com or Name <name@example.com>"
        raise _invalid(path, f"{truncate(text, HEADER_QUOTED_MAX)!r} is not an address", hint)
    try:
        domain = found["domain"].encode("idna").decode()
    except UnicodeError:
        domain = ""
    local = found["local"]
    if not _DOMAIN.fullmatch(domain) or local.startswith(".") or local.endswith(".") or ".." in local:
        raise _invalid(path, f"{truncate(text, HEADER_QUOTED_MAX)!r} is not an address")
    name = (named["quoted"] or named["plain"] or "") if named else ""
    return Mailbox(name.strip(), f"{local}@{domain}")


def require_one_line(text: str, path: str) -> str:
    """Refuse line breaks and control characters, which could add header lines."""
    if _BREAK.search(text):
        raise Fail("header_invalid", f"{path}: line breaks and control characters are not allowed here")
    return text


def headers_of(config: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Path, name and value of the headers that a config adds."""
    headers = config.get("headers")
    for name, value in headers.items() if isinstance(headers, dict) else ():
        yield f"/headers/{name}", name, value


def is_own(name: str) -> bool:
    """Whether a config may not set a header."""
    return name.lower() in OWN or name.lower().startswith("content-")


def _is_plain(text: str) -> bool:
    """Whether a header can hold the text unencoded without a reader decoding it."""
    return text.isascii() and "=?" not in text


def _header(
    config: Mapping[str, Any], sender: Mailbox, people: Mapping[str, list[Mailbox]], message_id: str, now_ms: int
) -> bytes:
    """The header of a message. Recipients of blind copies are not in it."""
    # Imported here because loading it is slow.
    from email.utils import format_datetime

    lines = [("From", sender.to_header())]
    for name, key in (("To", "to"), ("Cc", "cc"), ("Reply-To", "reply_to")):
        if people[key]:
            lines.append((name, ",\r\n ".join(each.to_header() for each in people[key])))
    lines.append(("Subject", _encode_value(require_one_line(config.get("subject") or "", "/subject"))))
    lines.append(("Date", format_datetime(datetime.fromtimestamp(now_ms / 1_000, UTC))))
    lines.append(("Message-ID", message_id))
    for path, name, value in headers_of(config):
        if is_own(name):
            raise Fail("header_invalid", f"{path}: this header cannot be set")
        lines.append((name, _encode_value(require_one_line(value, path))))
    return "".join(f"{name}: {value}\r\n" for name, value in lines).encode("ascii")


def _encode_value(text: str) -> str:
    from email.header import Header

    return Header(text, "us-ascii" if _is_plain(text) else "utf-8").encode(linesep="\r\n")


async def _body(config: Mapping[str, Any], context: NodeContext) -> EmailMessage:
    from email.message import EmailMessage
    from email.policy import SMTP

    message = EmailMessage(policy=SMTP.clone(cte_type="7bit"))
    text, html = config.get("text"), config.get("html")
    if text is not None:
        message.set_content(text)
    if html is not None and text is not None:
        message.add_alternative(html, subtype="html")
    elif html is not None:
        message.set_content(html, subtype="html")
    for number, attachment in enumerate(config.get("attachments") or ()):
        await _attach(message, attachment, f"/attachments/{number}", context)
    return message


async def _attach(message: EmailMessage, attachment: Mapping[str, Any], path: str, context: NodeContext) -> None:
    content = attachment["content"]
    described = content if isinstance(content, dict) else {"media_type": "text/plain"}
    name = attachment.get("name") or described.get("name") or "attachment"
    media_type = attachment.get("media_type") or described.get("media_type") or "application/octet-stream"
    if not _MEDIA_TYPE.fullmatch(media_type):
        raise _invalid(f"{path}/media_type", f"{truncate(media_type, HEADER_QUOTED_MAX)!r} is not a media type")
    if "=?" in name:
        raise Fail("header_invalid", f"{path}/name: this name is ambiguous")
    kind, _, subtype = media_type.partition("/")
    if isinstance(content, str):
        data = content.encode()
    elif context.read is None:
        raise _invalid(f"{path}/content", "files cannot be read here")
    else:
        data = await context.read(content)
    message.add_attachment(data, maintype=kind, subtype=subtype, filename=require_one_line(name, f"{path}/name"))


def _invalid(path: str, message: str, hint: str = "") -> Fail:
    return Fail("config_invalid", f"{path}: {message}", hint=hint)


# SMTP session.

Tls = Literal["starttls", "tls", "none"]
PORTS: dict[Tls, int] = {"starttls": 587, "tls": 465, "none": 25}
_SILENT = "a silent server may expect TLS from the start: check the port, or set tls to tls"
_METHODS = ("plain", "login")
_CREDENTIALS_WANTED = frozenset({530, 534, 535, 538})


class Server(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    tls: Tls = "starttls"
    port: int
    username: str = ""
    password: str = ""
    access_token: str = ""
    """Logs in with XOAUTH2 instead of a password."""


async def deliver(message: OutgoingMessage, server: Server, dialer: TcpConnector, total_ms: int) -> str:
    """Send a message and return the server's reply."""
    session = _Session(server, dialer)
    try:
        async with asyncio.timeout(total_ms / 1_000) as clock, session.opened():
            await session.encrypt()
            if server.username:
                await session.log_in()
            await session.send_envelope(message)
            reply = await session.send_data(message.data)
            # The server has accepted the message, whatever happens to the connection now.
            clock.reschedule(None)
            await session.quit()
            return reply
    except TimeoutError as error:
        why = f"{server.host} did not accept the message within {total_ms / 1_000:g} s"
        hint = TOO_SLOW if session.greeted or server.tls == "tls" else _SILENT
        raise Fail("timeout", why, retryable=True, unknown_outcome=session.sending, hint=hint) from error


class _Session:
    def __init__(self, server: Server, dialer: TcpConnector) -> None:
        # Imported here because loading it is slow.
        import aiosmtplib

        self._server, self._dialer = server, dialer
        self._mask = Mask([server.password, server.access_token])
        host, use_tls, trust = server.host, server.tls == "tls", dialer.trust
        self._smtp = aiosmtplib.SMTP(hostname=host, timeout=None, use_tls=use_tls, start_tls=False, tls_context=trust)
        self.greeted = self.sending = False

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connect and send EHLO; abort the connection at the end."""
        sock = await self._dialer.dial(self._server.host, self._server.port)
        try:
            with self._translate_errors("the connection"):
                # EHLO names the client by its address, because it has no host name.
                address = sock.getsockname()[0]
                own = f"[IPv6:{address}]" if ":" in address else f"[{address}]"
                await self._smtp.connect(sock=sock, local_hostname=own)
                await self._smtp.ehlo()
                self.greeted = True
            yield
        finally:
            if isinstance(self._smtp.transport, asyncio.Transport):
                self._smtp.transport.abort()
                await asyncio.sleep(0)

    async def encrypt(self) -> None:
        """STARTTLS, if configured; fails if the server does not offer it."""
        if self._server.tls != "starttls":
            return
        host = self._server.host
        if not self._smtp.supports_extension("starttls"):
            raise CallFailed("tls_failed", f"{host} does not offer encryption", hint="set tls to tls, or to none")
        with self._translate_errors("STARTTLS"):
            await self._smtp.starttls()
            await self._smtp.ehlo()

    async def log_in(self) -> None:
        """Log in with one method, once: a second try with the same password could lock the account."""
        server, offered = self._server, self._smtp.server_auth_methods
        method = "xoauth2" if server.access_token else next((each for each in _METHODS if each in offered), "")
        if method not in offered:
            wanted = ("XOAUTH2",) if server.access_token else tuple(method.upper() for method in _METHODS)
            message = f"{server.host} offers none of the login methods: {', '.join(wanted)}"
            raise Fail("auth_failed", message, hint="leave out the username, or check the server")
        log_in = getattr(self._smtp, f"auth_{method}")
        with self._translate_errors("the credentials"):
            await log_in(server.username, server.access_token or server.password)

    async def send_envelope(self, message: OutgoingMessage) -> None:
        """Send sender and recipients; if the server refuses one recipient, the delivery fails."""
        size_max = self._smtp.esmtp_extensions.get("size", "").strip()
        if size_max.isdecimal() and 0 < int(size_max) < len(message.data):
            why = f"{self._server.host} takes at most {int(size_max):,} bytes"
            raise Fail("message_too_large", why, hint="send a link instead of the file")
        reply = await self._command(b"MAIL", f"FROM:<{message.sender}>".encode())
        self._require(reply, 250, f"the sender {message.sender}")
        refused: dict[str, SMTPResponse] = {}
        for recipient in message.recipients:
            reply = await self._command(b"RCPT", f"TO:<{recipient}>".encode())
            if reply.code not in (250, 251):
                refused[recipient] = reply
            if reply.code == 421:
                break  # The server closes the connection.
        if refused:
            replies = "; ".join(f"{recipient}: {self._quote(*reply)}" for recipient, reply in refused.items())
            retryable = all(400 <= reply.code < 500 for reply in refused.values())
            raise Fail("recipients_refused", f"{self._server.host} refuses {replies}", retryable=retryable)

    async def send_data(self, data: bytes) -> str:
        """Send the message. Once it is sent it may have been delivered, unless the server refuses it."""
        self._require(await self._command(b"DATA"), 354, "the message")
        self.sending = True
        try:
            with self._translate_errors("the message"):
                protocol = self._smtp.protocol
                if protocol is None:
                    raise self._disconnected()
                protocol.write(as_data(data))
                reply = await protocol.read_response()
        except CallFailed as error:
            message = f"{error.message}; the message may have been delivered"
            raise Fail(error.code, message, retryable=True, unknown_outcome=True) from error
        self._require(reply, 250, "the message")
        return self._quote(*reply)

    async def quit(self) -> None:
        """Send QUIT, and wait a moment for the reply."""
        with suppress(CallFailed, TimeoutError):
            async with asyncio.timeout(1):
                await self._command(b"QUIT")

    async def _command(self, *words: bytes) -> SMTPResponse:
        with self._translate_errors(words[0].decode()):
            return await self._smtp.execute_command(*words)

    @contextmanager
    def _translate_errors(self, what: str) -> Iterator[None]:
        """Raise the errors of the library as failures of the attempt."""
        from aiosmtplib import SMTPAuthenticationError, SMTPException, SMTPResponseException, SMTPTimeoutError

        from tidemill.net.transport import tls_failed

        try:
            yield
        except SMTPTimeoutError:
            raise
        except SMTPAuthenticationError as error:
            raise self._login_refused(error.code, error.message) from error
        except SMTPResponseException as error:
            if error.code < 0:
                message = f"{self._server.host} does not speak SMTP"
                raise CallFailed("response_invalid", message, hint="check host, port and tls") from error
            raise self._refused(error.code, error.message, what) from error
        except ssl.SSLError as error:
            raise tls_failed(error, self._server.host) from error
        except (SMTPException, OSError) as error:
            if isinstance(error.__cause__, ssl.SSLError):
                raise tls_failed(error.__cause__, self._server.host) from error
            raise self._disconnected() from error

    def _disconnected(self) -> CallFailed:
        return CallFailed("connection_failed", f"{self._server.host} closed the connection", retryable=True)

    def _require(self, reply: SMTPResponse, expected: int, what: str) -> None:
        if reply.code != expected:
            raise self._refused(*reply, what)

    def _refused(self, code: int, text: str, what: str) -> Fail:
        if code in _CREDENTIALS_WANTED:
            return self._login_refused(code, text)
        message = f"{self._server.host} refuses {what}: {self._quote(code, text)}"
        return Fail("smtp_status", message, retryable=400 <= code < 500)

    def _login_refused(self, code: int, text: str) -> Fail:
        message = f"{self._server.host} does not accept the credentials: {self._quote(code, text)}"
        hint = "check username and access_token" if self._server.access_token else "check username and password"
        return Fail("auth_failed", message, retryable=400 <= code < 500, hint=hint)

    def _quote(self, code: int, text: str) -> str:
        readable = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return truncate(f"{code} {self._mask.text(' '.join(readable.split()))}".rstrip(), 200)


def as_data(data: bytes) -> bytes:
    """Encode a message for DATA: dots doubled, every line end CRLF (against SMTP smuggling), one dot at the end."""
    lines = re.split(rb"\r\n|\r|\n", data.rstrip(b"\r\n"))
    return b"".join((b"." if line.startswith(b".") else b"") + line + b"\r\n" for line in lines) + b".\r\n"
