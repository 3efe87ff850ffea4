"""What an answer over HTTP means for an attempt: is it the expected one, is it worth another try, and when?

Shared by the node types that call somebody. A call that came to no answer is a failure too, with the code that the
fetcher gave it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tidemill.handlers.contract import Fail
from tidemill.handlers.raised import clipped
from tidemill.security.egress import CallFailed, shown
from tidemill.security.fetcher import Answer

_SUCCESS = ("2xx",)
_AGAIN = frozenset({408, 425, 429})
_SECONDS = re.compile(r"0*([0-9]+)")
RETRY_AFTER_MS_MAX = 86_400_000
"""A server that asks for more than a day is asked again after one."""
_DIGITS_MAX = 9
_QUOTED_MAX = 200
_HINTS = {
    401: "see `auth`: the credentials are missing or wrong",
    403: "see `auth`: the credentials do not suffice",
    404: "see `url`, or list 404 under `expect` if it is an answer",
}
_HINTS_OF_KINDS = {
    3: "see `max_redirects`, or name the final place as `url`",
    4: "the request is not what the server expects: see what it said, or list the status under `expect`",
    5: "the server has trouble: `retry` tries again later",
}

MAYBE_SENT = frozenset({"timeout", "connection_failed", "response_too_large", "response_invalid"})
"""After these the other side may have done what it was asked."""


def failure(error: CallFailed) -> Fail:
    """A call that came to no answer, as the failure of an attempt."""
    unknown = error.code in MAYBE_SENT and not error.unsent
    return Fail(error.code, error.message, retryable=error.retryable, hint=error.hint, unknown_outcome=unknown)


def check_status(answer: Answer, method: str, expect: Iterable[int | str] | None, now_ms: int) -> None:
    """Fail unless the status is an expected one."""
    if any(_covers(each, answer.status) for each in expect or _SUCCESS):
        return
    said = clipped(" ".join(_beginning(answer.body).split()), _QUOTED_MAX)
    message = f"{method} {shown(answer.url)} was answered with {answer.status} {answer.reason}".rstrip()
    raise Fail(
        "http_status",
        f"{message}: {said}" if said else message,
        retryable=answer.status in _AGAIN or answer.status >= 500,
        retry_after_ms=retry_after_ms(answer.header("retry-after"), now_ms),
        hint=_HINTS.get(answer.status) or _HINTS_OF_KINDS.get(answer.status // 100, ""),
    )


def _beginning(body: bytes) -> str:
    """So much of an answer as may be quoted, and a mark where it was cut."""
    size = 4 * _QUOTED_MAX
    text = body[:size].decode("utf-8", "replace")
    return text if len(body) <= size else f"{text}…"


def _covers(expected: int | str, status: int) -> bool:
    first, _, last = str(expected).partition("-")
    if first.endswith("xx"):
        return status // 100 == int(first[0])
    return int(first) <= status <= int(last or first)


def retry_after_ms(text: str, now_ms: int) -> int | None:
    """How long a server asks to wait, in seconds or until a date, at most a day; None if it does not say."""
    text = text.strip()
    seconds = _SECONDS.fullmatch(text)
    if seconds is not None:
        # A number of any length may come; the first digits tell that it is too long.
        return min(int(seconds[1][:_DIGITS_MAX]) * 1_000, RETRY_AFTER_MS_MAX)
    # It loads slowly, and hardly anybody sends a date.
    from email.utils import parsedate_to_datetime

    try:
        asked_ms = round(parsedate_to_datetime(text).timestamp() * 1_000) - now_ms
        return min(max(0, asked_ms), RETRY_AFTER_MS_MAX)
    except (ValueError, OverflowError):
        return None
