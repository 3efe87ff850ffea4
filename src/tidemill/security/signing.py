"""Webhook signatures according to the Standard Webhooks specification, and signed links to decisions.

A signature is an HMAC-SHA256 over `id.timestamp.body`. While a key is replaced, a sender signs with both keys and a
receiver accepts either. `verify` refuses messages more than five minutes old or early and compares in constant time;
the receiver must remember ids to detect repetitions.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence

import msgspec

from tidemill.errors import Rejected, rejected

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"
KEYS_MAX = 2
WINDOW_MS = 300_000
PREFIX = "whsec_"
_KEY_BYTES = range(24, 65)


def signed_headers(keys: Sequence[str], message_id: str, now_ms: int, body: bytes) -> dict[str, str]:
    timestamp = str(now_ms // 1_000)
    signatures = [f"v1,{_signature(read_key(key), message_id, timestamp, body)}" for key in keys]
    return {ID: message_id, TIMESTAMP: timestamp, SIGNATURE: " ".join(signatures)}


def verify(keys: Sequence[str], headers: Mapping[str, str], body: bytes, now_ms: int) -> str:
    """Verify a received message by its raw body and return its id. Header names are in lower case."""
    message_id, moment = headers.get(ID, ""), headers.get(TIMESTAMP, "")
    if not message_id or not (moment.isascii() and moment.isdecimal() and len(moment) < 13):
        raise _unverified("the message has no id or no timestamp")
    if abs(now_ms - int(moment) * 1_000) > WINDOW_MS:
        raise _unverified("the message is more than five minutes away from now")
    expected = [_signature(read_key(key), message_id, moment, body).encode() for key in keys]
    given = [text for text in headers.get(SIGNATURE, "").split() if text.startswith("v1,")][:16]
    # All pairs are compared, so that the time reveals nothing.
    fits = [hmac.compare_digest(one, other[3:].encode()) for one in expected for other in given]
    if not any(fits):
        raise _unverified("no signature matches the message")
    return message_id


def read_key(text: str) -> bytes:
    """Parse a key: `whsec_` and base64."""
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) not in _KEY_BYTES:
        hint = f"a key is {PREFIX} and {_KEY_BYTES[0]} to {_KEY_BYTES[-1]} bytes in base64"
        raise rejected("signing_key_invalid", "the key for signatures cannot be read", hint=hint)
    return key


def _signature(key: bytes, message_id: str, moment: str, body: bytes) -> str:
    content = f"{message_id}.{moment}.".encode() + body
    return base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()


def _unverified(message: str) -> Rejected:
    return rejected("signature_invalid", message)


# Decision links

LINK_LENGTH_MAX = 4_096
LINK_HOURS = 168.0
"""How long a link holds at most, unless the operator says less."""


class DecisionLink(msgspec.Struct, frozen=True, array_like=True):
    """What a link stands for: one person may decide one approval, until a moment."""

    tenant: str
    run_id: str
    node: str
    visit: int
    index: int
    requested_ms: int
    """When the approval was requested: a link is void once the same visit asks again."""
    person: str
    roles: tuple[str, ...]
    """The roles that the person had when the link was made."""
    expires_ms: int
    key_id: str = ""
    """The API key of the person: a link does not outlive it."""


_LINK = msgspec.json.Decoder(DecisionLink)


class DecisionLinks:
    """Signed tokens in the URLs by which people decide without a key.

    Nothing is stored. A person decides an approval only once, so the first decision uses up the token.
    Processes that share a `secret` accept each other's tokens; without one, those of a process end with it.
    """

    def __init__(self, secret: str = "", hours: float = LINK_HOURS) -> None:
        self._ms = int(hours * 3_600_000)
        self.lasting = bool(secret)
        """Whether tokens outlive this process."""
        self._key = hmac.digest(secret.encode() or secrets.token_bytes(32), b"tidemill decision link", hashlib.sha256)

    def end(self, now_ms: int, *ends_ms: int | None) -> int:
        """When a link that is created now expires: at the earliest of these times, such as the end of its approval."""
        return min([now_ms + self._ms, *(each for each in ends_ms if each is not None)])

    def issue(self, link: DecisionLink) -> str:
        text = _unpadded(msgspec.json.encode(link))
        return f"{text}.{self._signature_of(text)}"

    def read(self, token: str, now_ms: int) -> DecisionLink:
        """What a token stands for. Raises Rejected (`link_invalid`, `link_expired`)."""
        text, _, signature = token.partition(".")
        fits = len(token) <= LINK_LENGTH_MAX and token.isascii()
        if not fits or not hmac.compare_digest(self._signature_of(text), signature):
            raise rejected("link_invalid", "this is not a valid decision link", hint="ask for a new one")
        link = _LINK.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        if link.expires_ms <= now_ms:
            raise rejected("link_expired", "the link has expired", hint="ask for a new one")
        return link

    def _signature_of(self, text: str) -> str:
        return _unpadded(hmac.digest(self._key, text.encode(), hashlib.sha256))


def _unpadded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
