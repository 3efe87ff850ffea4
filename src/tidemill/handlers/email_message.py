"""From the config of an `email` node to a message: addresses, headers, bodies, attachments.

Nothing of a config can end a line of the header, and nobody is written to whose address is not plainly one. The header
is written here, because the message class of the library decodes encoded words that it is given, and writes the line
ends in them out. All attempts at one visit have the same Message-ID, so that a receiver can drop repetitions.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.handlers.contract import Fail, NodeContext
from tidemill.handlers.raised import clipped

if TYPE_CHECKING:
    from email.message import EmailMessage

RECIPIENTS_MAX = 100
MESSAGE_BYTES_MAX = 25_000_000
QUOTED_MAX = 80
OWN = frozenset(
    {
        *("bcc", "cc", "date", "from", "message-id", "mime-version", "received", "reply-to", "return-path", "sender"),
        *("subject", "to"),
    }
)
"""Headers that are made of other fields of the config, or by those who deliver."""
_ADDRESS = re.compile(r"(?P<local>[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64})@(?P<domain>[^\s@<>\"]{1,253})")
_NAMED = re.compile(r"\s*(?:\"(?P<quoted>[^\"]*)\"|(?P<plain>[^<>\"]*?))\s*<(?P<address>[^<>]*)>\s*")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_BREAK = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][\w.+-]*/[A-Za-z0-9][\w.+-]*")


class Mailbox(msgspec.Struct, frozen=True):
    """An address, and whose it is."""

    name: str
    address: str

    def written(self) -> str:
        """As it stands in a header."""
        if not self.name:
            return self.address
        from email.utils import quote

        name = f'"{quote(self.name)}"' if _is_plain(self.name) else encoded_words(self.name)
        return f"{name} <{self.address}>"


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A message with its envelope."""

    message_id: str
    sender: str
    recipients: tuple[str, ...]
    data: bytes


async def letter_of(context: NodeContext, now_ms: int) -> Letter:
    """The message that a config describes. Raises `Fail` for one that cannot be sent."""
    config: Mapping[str, Any] = context.config
    sender = mailbox(config["from"], "/from")
    people = {key: mailboxes(config.get(key), f"/{key}") for key in ("to", "cc", "bcc", "reply_to")}
    recipients = tuple(dict.fromkeys(each.address for key in ("to", "cc", "bcc") for each in people[key]))
    if not recipients:
        raise _invalid("/to", "nobody is written to")
    if len(recipients) > RECIPIENTS_MAX:
        hint = "write to a list, or in several messages"
        raise _invalid("/to", f"{len(recipients)} recipients, and {RECIPIENTS_MAX} are allowed", hint)
    message_id = message_id_of(context.effect_key, sender.address.rpartition("@")[2])
    header = _header(config, sender, people, message_id, now_ms)
    data = header + (await _body(config, context)).as_bytes()
    if len(data) > MESSAGE_BYTES_MAX:
        hint = "send a link instead of the file"
        raise Fail("message_too_large", f"the message has more than {MESSAGE_BYTES_MAX:,} bytes", hint=hint)
    return Letter(message_id=message_id, sender=sender.address, recipients=recipients, data=data)


def message_id_of(effect_key: str, domain: str) -> str:
    """The same for every attempt at an activation."""
    return f"<{hashlib.sha256(effect_key.encode()).hexdigest()[:32]}@{domain}>"


def mailboxes(given: Any, path: str) -> list[Mailbox]:
    """The addresses of a field, which holds one or a list of them."""
    if given is None:
        return []
    if isinstance(given, str):
        return [mailbox(given, path)]
    return [mailbox(each, f"{path}/{number}") for number, each in enumerate(given)]


def mailbox(text: str, path: str) -> Mailbox:
    """An address, with or without a name: `ada@example.com`, `Ada Lovelace <ada@example.com>`."""
    unbroken(text, path)
    named = _NAMED.fullmatch(text)
    found = _ADDRESS.fullmatch((named["address"] if named else text).strip())
    if found is None:
        raise _invalid(
            path, f"{clipped(text, QUOTED_MAX)!r} is no address", "write name@example.com or Name <name@example.com>"
        )
    try:
        domain = found["domain"].encode("idna").decode()
    except UnicodeError:
        domain = ""
    local = found["local"]
    if not _DOMAIN.fullmatch(domain) or local.startswith(".") or local.endswith(".") or ".." in local:
        raise _invalid(path, f"{clipped(text, QUOTED_MAX)!r} is no address")
    name = (named["quoted"] or named["plain"] or "") if named else ""
    return Mailbox(name.strip(), f"{local}@{domain}")


def unbroken(text: str, path: str) -> str:
    """A text that stays within its line of the header; one that does not could add headers of its own."""
    if _BREAK.search(text):
        raise Fail("header_invalid", f"{path}: the end of a line or a control character cannot stand here")
    return text


def headers_of(config: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The headers that a config adds: path, name, value."""
    headers = config.get("headers")
    for name, value in headers.items() if isinstance(headers, dict) else ():
        yield f"/headers/{name}", name, value


def is_own(name: str) -> bool:
    """Whether a header cannot be set by a config."""
    return name.lower() in OWN or name.lower().startswith("content-")


def encoded_words(text: str) -> str:
    """A text as a header carries it that holds more than ASCII."""
    from email.header import Header

    return Header(text, "utf-8").encode(linesep="\r\n")


def _is_plain(text: str) -> bool:
    """Whether a text can stand in a header as it is, and is not read as an encoded one."""
    return text.isascii() and "=?" not in text


def _header(
    config: Mapping[str, Any], sender: Mailbox, people: Mapping[str, list[Mailbox]], message_id: str, now_ms: int
) -> bytes:
    """The header of a message. Who gets a blind copy is told to the server only."""
    # The library takes a moment to load, which only those pay who send something.
    from email.utils import format_datetime

    lines = [("From", sender.written())]
    for name, key in (("To", "to"), ("Cc", "cc"), ("Reply-To", "reply_to")):
        if people[key]:
            lines.append((name, ",\r\n ".join(each.written() for each in people[key])))
    lines.append(("Subject", _text(unbroken(config.get("subject") or "", "/subject"))))
    lines.append(("Date", format_datetime(datetime.fromtimestamp(now_ms / 1_000, UTC))))
    lines.append(("Message-ID", message_id))
    for path, name, value in headers_of(config):
        if is_own(name):
            raise Fail("header_invalid", f"{path}: this header cannot be set")
        lines.append((name, _text(unbroken(value, path))))
    return "".join(f"{name}: {value}\r\n" for name, value in lines).encode("ascii")


def _text(text: str) -> str:
    """Any text as a header carries it, in lines that are not too long."""
    from email.header import Header

    return Header(text, "us-ascii").encode(linesep="\r\n") if _is_plain(text) else encoded_words(text)


async def _body(config: Mapping[str, Any], context: NodeContext) -> EmailMessage:
    """What stands below the header, with the lines that say what it is."""
    from email.message import EmailMessage
    from email.policy import SMTP

    message = EmailMessage(policy=SMTP.clone(cte_type="7bit"))
    _fill(message, config)
    for number, attachment in enumerate(config.get("attachments") or ()):
        await _attach(message, attachment, f"/attachments/{number}", context)
    return message


def _fill(message: EmailMessage, config: Mapping[str, Any]) -> None:
    """Put the text in, the HTML beside it."""
    text, html = config.get("text"), config.get("html")
    if text is not None:
        message.set_content(text)
    if html is not None and text is not None:
        message.add_alternative(html, subtype="html")
    elif html is not None:
        message.set_content(html, subtype="html")


async def _attach(message: EmailMessage, attachment: Mapping[str, Any], path: str, context: NodeContext) -> None:
    content = attachment["content"]
    described = content if isinstance(content, dict) else {"media_type": "text/plain"}
    name = attachment.get("name") or described.get("name") or "attachment"
    media_type = attachment.get("media_type") or described.get("media_type") or "application/octet-stream"
    if not _MEDIA_TYPE.fullmatch(media_type):
        raise _invalid(f"{path}/media_type", f"{clipped(media_type, QUOTED_MAX)!r} is no media type")
    if "=?" in name:
        raise Fail("header_invalid", f"{path}/name: this could be read as something else")
    kind, _, subtype = media_type.partition("/")
    data = await _bytes(content, path, context)
    message.add_attachment(data, maintype=kind, subtype=subtype, filename=unbroken(name, f"{path}/name"))


async def _bytes(content: Any, path: str, context: NodeContext) -> bytes:
    if isinstance(content, str):
        return content.encode()
    if context.read is None:
        raise _invalid(f"{path}/content", "files cannot be read here")
    return await context.read(content)


def _invalid(path: str, message: str, hint: str = "") -> Fail:
    return Fail("config_invalid", f"{path}: {message}", hint=hint)
