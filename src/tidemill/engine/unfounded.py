"""Rows without a log: what lists show of runs and workflows that there is no record of.

The audit reads every log, and so never meets a run whose log is gone altogether. Here it goes the other way, from the
rows to the logs, a page at a time. A row leaves a list in the same transaction as its log leaves the store, so one that
is still there after its log was found to be gone has lost it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from tidemill.engine.auditing import Found
from tidemill.engine.indexing import all_rows, owner_of, row_pages
from tidemill.engine.rows import APPROVAL, DEAD_LETTER, RUN
from tidemill.engine.versions import WORKFLOW
from tidemill.stores.contract import Row, Store, Stream

LOG_MISSING = "log_missing"
KINDS = (WORKFLOW, RUN, APPROVAL, DEAD_LETTER)
END = 2**53
"""Behind the last record of any stream: only its version is asked for."""


async def unfounded(store: Store, tenant: str) -> AsyncIterator[tuple[Stream, Row]]:
    """Every row of a tenant whose log is not there, with the stream that it should be in."""
    for kind in KINDS:
        gone = set[Stream]()
        async for rows in row_pages(store, tenant, kind):
            owners = {owner_of(tenant, kind, row.key): END for row in rows}
            tails = await store.load(owners, snapshots=False) if owners else []
            gone.update(tail.stream for tail in tails if not tail.version and not tail.damage)
        if not gone:
            continue
        async for row in all_rows(store, tenant, kind):
            owner = owner_of(tenant, kind, row.key)
            if owner in gone:
                yield owner, row


async def lost_logs(store: Store, tenant: str) -> AsyncIterator[Found]:
    """What the audit has to say of them."""
    async for owner, row in unfounded(store, tenant):
        found = Found(f"workflow {owner.key}" if owner.kind == WORKFLOW else owner.key)
        if row.kind == owner.kind:
            found.problem(LOG_MISSING, "the lists show it, and there is no record of it")
        else:
            found.problem("row_surplus", f"{row.kind} {row.key} in the lists has no ground: there is no log")
        yield found
