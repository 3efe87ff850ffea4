"""Signatures of webhooks, as the Standard Webhooks specification has them.

A message has an id, a moment and a body; the signature is an HMAC-SHA256 over `id.moment.body`. While a key is being
replaced a sender signs with both, and a receiver accepts either. A receiver takes no message that is older or newer
than five minutes, compares in constant time, and remembers ids to notice repetitions.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence

from tidemill.errors import Rejected, rejected

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"
KEYS_MAX = 2
WINDOW_MS = 300_000
PREFIX = "whsec_"
_KEY_BYTES = range(24, 65)
_SIGNATURES_MAX = 16


def signed_headers(keys: Sequence[str], message_id: str, now_ms: int, body: bytes) -> dict[str, str]:
    """The headers that a receiver verifies a message by, signed with each of the keys."""
    moment = str(now_ms // 1_000)
    signatures = [f"v1,{_signature(read_key(key), message_id, moment, body)}" for key in keys]
    return {ID: message_id, TIMESTAMP: moment, SIGNATURE: " ".join(signatures)}


def verify(keys: Sequence[str], headers: Mapping[str, str], body: bytes, now_ms: int) -> str:
    """Check a message that was received, by its raw body; answers its id. Header names are in small letters."""
    message_id, moment = headers.get(ID, ""), headers.get(TIMESTAMP, "")
    if not message_id or not (moment.isascii() and moment.isdecimal() and len(moment) < 13):
        raise _unverified("the message has no id or no moment")
    if abs(now_ms - int(moment) * 1_000) > WINDOW_MS:
        raise _unverified("the message is more than five minutes away from now")
    expected = [_signature(read_key(key), message_id, moment, body).encode() for key in keys]
    given = [text for text in headers.get(SIGNATURE, "").split() if text.startswith("v1,")][:_SIGNATURES_MAX]
    # Every pair is compared, so that the time taken tells nothing.
    fits = [hmac.compare_digest(one, other[3:].encode()) for one in expected for other in given]
    if not any(fits):
        raise _unverified("no signature fits the message")
    return message_id


def read_key(text: str) -> bytes:
    """The bytes of a key, written as `whsec_` and base64."""
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
