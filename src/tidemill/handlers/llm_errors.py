"""What a provider's refusal means for an attempt: which failure it is, whether to try again, and when.

Endpoints that speak the same protocol do not speak it alike, so the status, the code and the words all count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from tidemill.expressions.wording import shorten
from tidemill.handlers.answers import retry_after_ms
from tidemill.handlers.contract import Fail
from tidemill.handlers.raised import clipped

_SAID_MAX = 300
_WORDS_MAX = 2_000
_TOO_LONG = re.compile(
    r"context[ _](length|window|size)|maximum context|too many (input )?tokens|prompt is too long", re.IGNORECASE
)
_REFUSED = re.compile(r"content[ _](filter|policy|management)|safety (system|policy)|moderation", re.IGNORECASE)
_NO_MODEL = re.compile(
    r"model_not_found|\bmodel\b.*\b(not (exist|found|available|supported)|unknown|invalid)", re.IGNORECASE | re.DOTALL
)
_NO_MONEY = re.compile(r"insufficient[ _](quota|funds|balance|credit)", re.IGNORECASE)
_OVERLOADED = re.compile(r"overloaded|rate.?limit", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,12}(\.\d{1,9})?")
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000, 1)
_EPOCH_FROM_SECONDS = 1_000_000_000
"""A number of seconds beyond this is a moment, not a time to wait."""


class ProviderRefused(Exception):
    """The endpoint answered with a status that is no success."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.status, self.headers, self.text = status, headers, body.decode("utf-8", "replace")
        super().__init__(f"{status}: {clipped(self.text, _SAID_MAX)}")

    @property
    def body(self) -> Any:
        """What the endpoint says of the error; without JSON, its text."""
        try:
            said = msgspec.json.decode(self.text)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self.text
        return said.get("error", said) if isinstance(said, dict) else self.text


def failure_of(error: ProviderRefused, now_ms: int) -> Fail:
    """A refusal as the failure of an attempt."""
    return refusal(error.status, error.body, error.headers, now_ms, error.text)


class Fault(NamedTuple):
    """The code of a refusal, whether it is worth another try, and what to do."""

    code: str
    retryable: bool = False
    hint: str = ""


def refusal(status: int, body: Any, headers: Mapping[str, str], now_ms: int, otherwise: str = "") -> Fail:
    """What the provider said instead of an answer; status 0 if it had begun to answer already."""
    said, words = _said(body, otherwise)
    fault = _fault(status, words)
    message = f"the provider answered with {status}: {said}" if status else f"the provider broke off: {said}"
    wait = wait_ms(headers, now_ms) if fault.retryable else None
    return Fail(fault.code, message, retryable=fault.retryable, retry_after_ms=wait, hint=fault.hint)


def _said(body: Any, otherwise: str) -> tuple[str, str]:
    """What to show of a refusal, and all that it says."""
    if isinstance(body, Mapping):
        message, code, kind = (str(body.get(key) or "") for key in ("message", "code", "type"))
        return _short(message or code or otherwise), f"{code} {kind} {message}"[:_WORDS_MAX]
    text = body if isinstance(body, str) else otherwise
    return _short(text), text[:_WORDS_MAX]


def _short(text: str) -> str:
    return shorten(" ".join(clipped(text, _WORDS_MAX).split()), _SAID_MAX) or "nothing more"


def _fault(status: int, words: str) -> Fault:
    if status in (401, 403):
        return Fault("auth_failed", hint="see `api_key`: it is missing, wrong or may not use this model")
    if status == 402 or (_NO_MONEY.search(words) and status < 500):
        return Fault("quota_exhausted", hint="see the account at the provider")
    if status == 429 or (not status and _OVERLOADED.search(words)):
        return Fault("rate_limited", True, "ask less often, e.g. with `limits.max_parallel`, or allow more attempts")
    if status >= 500 or status in (408, 409, 425):
        return Fault("provider_unavailable", True)
    if status == 413 or _TOO_LONG.search(words):
        return Fault("context_too_long", hint="shorten the messages, or use a model with a longer context")
    if _REFUSED.search(words):
        return Fault("content_refused", hint="say it differently")
    if _NO_MODEL.search(words):
        return Fault("model_unknown", hint="see `model`: the provider has none of this name")
    if not status:
        return Fault("provider_unavailable", True)
    wrong_place = status == 404 or status < 400
    hint = "see `base_url`: it mostly ends with /v1, and redirects are not followed" if wrong_place else ""
    return Fault("provider_refused", hint=hint)


def wait_ms(headers: Mapping[str, str], now_ms: int) -> int | None:
    """How long a provider asks to wait, the most exact header first; None if it does not say."""
    exact = _milliseconds(headers.get("retry-after-ms", ""))
    if exact is not None:
        return exact
    after = headers.get("retry-after", "").strip()
    if _NUMBER.fullmatch(after):
        return round(float(after) * 1_000)
    asked = retry_after_ms(after, now_ms) if after else None
    return asked if asked is not None else _reset_ms(headers, now_ms)


def _milliseconds(text: str) -> int | None:
    return round(float(text)) if _NUMBER.fullmatch(text.strip()) else None


def _reset_ms(headers: Mapping[str, str], now_ms: int) -> int | None:
    """When the limit that was hit is lifted; without a hint which one it was, when all of them are."""
    known = {
        name: wait
        for name in ("", "-requests", "-tokens")
        if (wait := duration_ms(headers.get(f"x-ratelimit-reset{name}", ""), now_ms)) is not None
    }
    spent = [wait for name, wait in known.items() if headers.get(f"x-ratelimit-remaining{name}", "").strip() == "0"]
    return max(spent or known.values(), default=None)


def duration_ms(text: str, now_ms: int) -> int | None:
    """A time as these headers write it: `20ms`, `6m0s`, seconds, or the second since 1970 when it is over."""
    text = text.strip()
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        wait = seconds * 1_000 - now_ms if seconds >= _EPOCH_FROM_SECONDS else seconds * 1_000
        return max(0, round(wait))
    found = _DURATION.fullmatch(text)
    if not text or not found:
        return None
    return round(sum(float(part) * unit for part, unit in zip(found.groups(), _UNITS_MS, strict=True) if part))
