"""The keeper's sample: logs of ended runs that are read again, round after round.

All that failed and one in a hundred of the others, every round another one: whoever went wrong deserves a second
look, and damage to what nobody reads any more should not be found by the first person who needs it. It costs less than
a hundredth of the process: however long a look took, the next one comes a hundred times as much later. A run with a
finding is called out once, and marked in its row, so that it is found by the term `suspect`. All that are marked are
looked at again in every round, and the mark is taken back once nothing is wrong any more.
"""

from __future__ import annotations

import logging
import zlib

from tidemill.ambient import Ambient
from tidemill.engine.auditing import Auditor, Finding
from tidemill.engine.indexing import row_like
from tidemill.engine.rows import RUN, SUSPECT, marked_suspect, read_run_row
from tidemill.engine.unfounded import LOG_MISSING
from tidemill.stores.contract import Commit, Row, Store, Stream

LOG = logging.getLogger(__name__)

ONE_IN = {SUSPECT: 1, "status:FAILED": 1, "status:CANCELLED": 100, "status:COMPLETED": 100}
PAGE = 200
AUDITS_MAX = 10
"""Logs that are read in one look."""
EVENTS_MAX = 20_000
"""Longer logs are left to `verify-log`: they would hold up the worker."""
REST_FACTOR = 100
UNSURE = frozenset({"blob_unreadable", "workflow_unreadable", "job_surplus", "lists_unreadable"})
"""Findings that may be an outage rather than damage, or a job that whoever claims it puts away."""
SUSPECTS_MAX = 10_000
"""Runs remembered as called out."""


class Sampler:
    """Goes round the ended runs of a tenant."""

    def __init__(self, *, tenant: str, store: Store, auditor: Auditor, ambient: Ambient) -> None:
        self._tenant, self._store, self._auditor, self._ambient = tenant, store, auditor, ambient
        self._places: dict[str, str | None] = dict.fromkeys(ONE_IN)
        """Where each walk goes on; a walk that has come to its end begins anew with the newest runs."""
        self._round = dict.fromkeys(ONE_IN, 0)
        self._rest_until_ms = 0.0
        self._called_out: dict[str, None] = {}
        self.audited = 0
        self.findings = 0

    async def look(self) -> None:
        """Audit the next few runs, unless the last look is too recent for what it has cost."""
        began = self._ambient.monotonic_ms()
        if began < self._rest_until_ms:
            return
        for term in ONE_IN:
            await self._walk(term)
        ended = self._ambient.monotonic_ms()
        self._rest_until_ms = ended + REST_FACTOR * (ended - began)

    async def _walk(self, term: str) -> None:
        page = await self._store.find(self._tenant, RUN, [term], after=self._places[term], limit=PAGE)
        chosen = [row for row in page.rows if self._chosen(term, row)]
        for row in chosen[:AUDITS_MAX]:
            await self._audit(row)
        if len(chosen) > AUDITS_MAX:
            # The cursor of a page ends behind its last row: look again, just as far as this look has come.
            until = page.rows.index(chosen[AUDITS_MAX - 1]) + 1
            page = await self._store.find(self._tenant, RUN, [term], after=self._places[term], limit=until)
        self._places[term] = page.after
        self._round[term] += page.after is None

    def _chosen(self, term: str, row: Row) -> bool:
        return zlib.crc32(f"{self._round[term]}/{row.key}".encode()) % ONE_IN[term] == 0

    async def _audit(self, row: Row) -> None:
        shown = read_run_row(row)
        if shown.events > EVENTS_MAX:
            return
        self.audited += 1
        stream = Stream(self._tenant, RUN, row.key)
        found = await self._auditor.run(stream, listed=lambda expected: expected.key == row.key)
        if found.events not in (0, shown.events):
            # A row that is behind, or a replica that is: either way this is not the run that was listed.
            return
        if not found.events and not found.findings:
            # It was retired since it was listed, unless the lists still show it.
            if await row_like(self._store, self._tenant, row) is not None:
                self._call_out(Finding(run=row.key, seq=0, code=LOG_MISSING, message="there is no record of it"), "")
            return
        sure = [finding for finding in found.findings if finding.code not in UNSURE]
        if sure and self._call_out(sure[0], f" {row.key}"):
            await self._mark(stream, row, sure[0].code, found.events or None)
        elif shown.suspect and not found.findings:
            self._called_out.pop(row.key, None)
            await self._mark(stream, row, "", found.events)

    async def _mark(self, stream: Stream, row: Row, code: str, version: int | None) -> None:
        marked = marked_suspect(row, code)
        await self._store.commit([Commit(stream=stream, expected=version, rows=(marked,))])

    def _call_out(self, finding: Finding, which: str) -> bool:
        """Say what is wrong with a run, and which audit tells more, unless that was done before."""
        if finding.run in self._called_out:
            return False
        self._called_out[finding.run] = None
        while len(self._called_out) > SUSPECTS_MAX:
            self._called_out.pop(next(iter(self._called_out)))
        self.findings += 1
        LOG.error(
            "the log of run %s is not as it must be: %s at event %s (%s); see `tidemill verify-log%s`",
            finding.run,
            finding.code,
            finding.seq,
            finding.message,
            which,
        )
        return True
