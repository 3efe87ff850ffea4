"""A signed webhook about approvals: sent to the operator's service when one is requested, delegated and over.

A maintenance task of each tenant compares the rows of approvals with what it has told, which its cursor holds, and
sends what is new. The cursor is written after the messages were sent, so a crash repeats some of them under the same
id: each message arrives at least once. A message that fails is repeated with growing pauses, for about a day.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tidemill.engine.index_rows import APPROVAL, ApprovalRow, read_approval_row
from tidemill.engine.maintenance.schedule import Cursor
from tidemill.engine.views import activation_id, plain
from tidemill.kernel.decide.approvals import DELEGATIONS_MAX, USER, iso
from tidemill.net.egress import SCHEMES, CallFailed, Egress
from tidemill.net.http_client import Call, Fetcher
from tidemill.security.signing import DecisionLink, DecisionLinks, signed_headers
from tidemill.stores.contract import Row, Store

LOG = logging.getLogger(__name__)

TELL_EVERY_MS = 2_000
SENT_MAX = 100
"""Messages of one sweep; the others follow with the next."""
PENDING_MAX = 10_000
PAGE = 500
OVERLAP_MS = 600_000
"""The tolerated clock difference between processes: the task searches this long after an approval's time."""
SINCE_STEP_MS = 60_000
PAUSE_MS, PAUSE_MS_MAX = 2_000, 3_600_000
ATTEMPTS_MAX = 32
"""About a day of attempts."""
FAILURES_MAX = 3
"""A sweep ends after this many failures in a row: the service does not answer."""
TIMEOUT_MS = 10_000
REQUESTED, DELEGATED = "requested", "delegated"
"""Messages that ask for a decision; each delegation of an approval has a number behind the word."""


class ApprovalWebhook:
    """Sends messages about approvals to one URL.

    `public_url` is where people reach the server. With `links` that outlive the process, a message carries for each
    person who is asked by name a URL by which they can decide.
    """

    def __init__(
        self, store: Store, egress: Egress, url: str, keys: Sequence[str], public_url: str, links: DecisionLinks
    ) -> None:
        parts = urlsplit(url)
        port = parts.port or SCHEMES.get(parts.scheme, 443)
        self._fetcher = Fetcher(egress.opening(parts.hostname or "", port))
        self._store, self._url, self._keys, self._links = store, url, tuple(keys), links
        self._public_url = public_url.rstrip("/")

    async def close(self) -> None:
        await self._fetcher.close()

    async def tell(self, tenant: str, cursor: Cursor) -> Cursor:
        """Send what is new; a maintenance task."""
        now_ms = self._store.now_ms()
        sweep = _Sweep(cursor, now_ms)
        rows = await self._rows(tenant, since_ms=cursor.get("since", now_ms) - OVERLAP_MS)
        for key in sweep.retried - rows.keys():
            if (row := await self._row(tenant, key)) is not None:
                rows[key] = row
        for row in sorted(rows.values(), key=lambda each: each.sort):
            shown = read_approval_row(row)
            for what in _messages(shown):
                await self._send(tenant, sweep, row, shown, what)
        for key in [key for key, told in sweep.told.items() if _is_open(told) and key not in rows]:
            ended = await self._row(tenant, key)
            if ended is None:
                # The run is gone, or the same visit has asked again or asks others.
                sweep.told.pop(key)
            elif (shown := read_approval_row(ended)).status != "pending":
                await self._send(tenant, sweep, ended, shown, shown.status)
        return sweep.cursor(rows)

    async def _rows(self, tenant: str, since_ms: int) -> dict[str, Row]:
        """The approvals that are pending, and all that were requested lately, by the key of their request."""
        found: dict[str, Row] = {}
        for terms in (["status:pending"], []):
            after: str | None = None
            while len(found) < PENDING_MAX:
                page = await self._store.find(tenant, APPROVAL, terms, after=after, limit=PAGE)
                lately = [row for row in page.rows if terms or row.sort >= since_ms]
                found.update({_request_key(row): row for row in lately})
                after = page.after
                if after is None or len(lately) < len(page.rows):
                    break
        return found

    async def _row(self, tenant: str, key: str) -> Row | None:
        run_id = key.rsplit("@", 1)[0].rsplit("/", 3)[0]
        after: str | None = None
        while True:
            page = await self._store.find(tenant, APPROVAL, [f"run:{run_id}"], after=after, limit=PAGE)
            found = next((row for row in page.rows if _request_key(row) == key), None)
            after = page.after
            if found is not None or after is None:
                return found

    async def _send(self, tenant: str, sweep: _Sweep, row: Row, shown: ApprovalRow, what: str) -> None:
        key = _request_key(row)
        if not sweep.may_send(key, what):
            return
        try:
            answer = await self._fetcher.fetch(self._call(tenant, key, shown, what))
            problem = "" if 200 <= answer.status < 300 else f"it answered {answer.status}"
        except CallFailed as error:
            problem = error.message
        if problem:
            LOG.warning("the webhook about approval %s was not delivered and will be retried: %s", row.key, problem)
        sweep.note(key, what, delivered=not problem)

    def _call(self, tenant: str, key: str, row: ApprovalRow, what: str) -> Call:
        now_ms = self._store.now_ms()
        approval_id = activation_id(row.run_id, row.node, row.visit, row.index)
        base = f"{self._public_url}/api/v1"
        data: dict[str, Any] = {"approval_id": approval_id, "tenant": tenant, **plain(row)}
        if self._public_url:
            data["approval_url"] = f"{base}/approvals/{approval_id}"
        kind, _, number = what.partition(" ")
        if self._public_url and self._links.lasting and _is_open(what):
            expires_ms = self._links.end(now_ms, row.expires_ms)
            people = sorted(set(row.approvers)) if not number else [row.delegated[int(number) - 1][1]]
            data["decision_urls"] = {
                person: f"{base}/decisions/{self._links.issue(_link(tenant, row, person, expires_ms))}"
                for person in people
                if person.startswith(USER)
            }
        body = msgspec.json.encode({"type": f"approval.{kind}", "timestamp": iso(now_ms), "data": data})
        message_id = "msg_" + hashlib.sha256(f"{tenant}\0{key}\0{what}".encode()).hexdigest()[:32]
        headers = {"content-type": "application/json", **signed_headers(self._keys, message_id, now_ms, body)}
        # A signed message goes only to the URL it was written for.
        return Call(
            url=self._url, method="POST", headers=headers, body=body, repeatable=True, total_ms=TIMEOUT_MS,
            bytes_max=65_536, redirects_max=0,
        )  # fmt: skip


def _link(tenant: str, row: ApprovalRow, person: str, expires_ms: int) -> DecisionLink:
    place = (row.run_id, row.node, row.visit, row.index)
    return DecisionLink(tenant, *place, row.requested_ms, person, (), expires_ms)


def _messages(row: ApprovalRow) -> list[str]:
    """The messages about an approval in order; who was named in a delegation of one that is over is not asked."""
    if row.status != "pending":
        return [REQUESTED, row.status]
    return [REQUESTED, *(f"{DELEGATED} {number}" for number in range(1, len(row.delegated) + 1))]


def _is_open(what: str | None) -> bool:
    """Whether a message asks for a decision, so that others may follow."""
    return what is not None and what.startswith((REQUESTED, DELEGATED))


def _number(what: str | None) -> int:
    """The number of a delegation; 0 for the request, -1 before it; after the end nothing follows."""
    if what is None:
        return -1
    return int(what.partition(" ")[2] or 0) if _is_open(what) else DELEGATIONS_MAX


def _request_key(row: Row) -> str:
    """Distinguishes the requests of one visit: code may make several, and an escalation asks other people."""
    return f"{row.key}@{row.sort}{'+' if read_approval_row(row).escalated else ''}"


class _Sweep:
    """What the webhook reported before, and what it reports now."""

    def __init__(self, cursor: Cursor, now_ms: int) -> None:
        self._now_ms = now_ms
        self.told: dict[str, str] = dict(cursor.get("told", {}))
        """By request: the last message about it."""
        self._retries: dict[str, list[int]] = dict(cursor.get("retries", {}))
        """By request: how often the next message about it failed, and when to try again."""
        self._since: int = cursor.get("since", now_ms)
        self._failures = self.sent = 0

    @property
    def retried(self) -> set[str]:
        return set(self._retries)

    def may_send(self, key: str, what: str) -> bool:
        last = self.told.get(key)
        # The webhook reports delegations after the request, the end after both, and each of them once.
        due = _number(what) == _number(last) + 1 if _is_open(what) else _is_open(last)
        later = self._retries.get(key, [0, 0])[1] > self._now_ms
        return due and not later and self._failures < FAILURES_MAX and self.sent < SENT_MAX

    def note(self, key: str, what: str, *, delivered: bool) -> None:
        self.sent += 1
        attempts = self._retries.pop(key, [0, 0])[0] + 1
        self._failures = 0 if delivered else self._failures + 1
        if not delivered and attempts < ATTEMPTS_MAX:
            pause_ms = min(PAUSE_MS * 2 ** min(attempts, 20), PAUSE_MS_MAX)
            self._retries[key] = [attempts, self._now_ms + pause_ms]
            return
        if not delivered:
            LOG.error("the webhook about approval %s was given up after %d attempts", key, attempts)
        self.told[key] = what

    def cursor(self, rows: dict[str, Row]) -> Cursor:
        """What the next sweep has to know: of requests that are over, only those that it would meet again."""
        told = {key: what for key, what in self.told.items() if _is_open(what) or key in rows}
        behind = self.sent == SENT_MAX or self._failures == FAILURES_MAX
        # Written once a minute: a sweep that finds nothing changes nothing.
        since = self._since if behind or self._now_ms - self._since < SINCE_STEP_MS else self._now_ms
        retries = {key: state for key, state in self._retries.items() if key in rows or key in told}
        return {"since": since, "told": told, "retries": retries}
