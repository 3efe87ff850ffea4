"""Numbers about many runs: `runs summary`, `runs failures`, `usage` and `queues`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.cli.render.board import duration
from tidemill.cli.render.tables import (
    Column,
    Line,
    age,
    cost_text,
    dotted,
    iso,
    print_facts,
    print_hint,
    print_rows,
    print_table,
    size_of,
)
from tidemill.cli.session import StoreSession
from tidemill.engine.maintenance.usage import UsageReport
from tidemill.engine.run_query import SUMMARISED_MAX, FailureGroups, RunHistogram, RunSummary
from tidemill.engine.services.workers import QueueView

VALUES_SHOWN = 8
BAR_COLUMNS = 40
NEWEST = f"only the newest {SUMMARISED_MAX:,} were counted"


def _at_least(complete: bool) -> str:
    return "" if complete else "≥ "


def print_summary(session: StoreSession, found: RunSummary) -> None:
    if not found.counted:
        print("no run matches")
        return
    facets, least = found.facets, _at_least(found.complete)
    counted = {f"label {key}": values for key, values in facets.labels.items()}
    groups = {"status": facets.status, "workflow": facets.workflow, "version": facets.version, **counted}
    print_facts(
        [("runs", f"{least}{found.counted:,}"), *((name, _counts(values, least)) for name, values in groups.items())]
    )
    print()
    _print_histogram(found.histogram)
    if found.failures.counted:
        print()
        print_failures(session, found.failures)
    elif not found.complete:
        print_hint(NEWEST)


def _counts(values: Mapping[str, int], least: str) -> str:
    shown = [f"{value} {least}{count:,}" for value, count in list(values.items())[:VALUES_SHOWN]]
    more = len(values) - len(shown)
    return dotted(*shown, f"and {more} more" if more > 0 else "")


def _print_histogram(histogram: RunHistogram) -> None:
    highest = max((bucket.count for bucket in histogram.buckets), default=1)
    columns = (Column("STARTED SINCE"), Column("RUNS", number=True), Column("FAILED", number=True), Column(""))
    # Empty intervals at the end say nothing.
    last = max((number for number, bucket in enumerate(histogram.buckets) if bucket.count), default=-1)
    print_table(
        columns,
        (
            Line(
                (
                    iso(bucket.since_ms),
                    f"{bucket.count:,}",
                    f"{bucket.status.get('FAILED', 0) or ''}",
                    "▇" * -(-bucket.count * BAR_COLUMNS // max(1, highest)),
                )
            )
            for bucket in histogram.buckets[: last + 1]
        ),
    )


def print_failures(session: StoreSession, found: FailureGroups) -> None:
    if not found.groups:
        print("no failed run matches")
        return
    least = _at_least(found.complete)
    columns = (
        Column("FAILURE", lambda group: group.failure or "—"),
        Column("RUNS", lambda group: f"{least}{group.count:,}", number=True),
        Column("NODE", lambda group: f"{group.workflow} {group.node}".strip(), gives=True),
        Column("CODE", "code", gives=True),
        Column("FIRST", lambda group: age(group.first_ms)),
        Column("LAST", lambda group: age(group.last_ms)),
    )
    print_rows(columns, found.groups, lambda group: dotted(group.message, f"e.g. {group.example}"))
    first = found.groups[0]
    if first.failure:
        print_hint(session.command("runs", "list", f"failure:{first.failure}"))
    if not all(group.failure for group in found.groups):
        print_hint("runs of earlier versions have no fingerprint; `tidemill reindex` adds it")
    if not found.complete:
        print_hint(NEWEST)


def print_usage(report: UsageReport) -> None:
    if not report.rows:
        print("no run has ended in that time")
        return
    columns: tuple[Column, ...] = (
        Column("DAY", "day"),
        Column("WORKFLOW", "workflow", gives=True),
        Column("RUNS", lambda row: f"{row.runs:,}", number=True),
        Column("NODE TIME", lambda row: duration(row.node_ms), number=True),
        Column("EVENTS", lambda row: f"{row.events:,}", number=True),
        Column("OUTPUTS", lambda row: size_of(row.bytes), number=True),
        Column("TOKENS", lambda row: f"{row.tokens:,}", number=True),
    )
    if any(row.model_calls for row in report.rows):
        columns += (
            Column("MODEL CALLS", lambda row: f"{row.model_calls:,}", number=True),
            Column("MODEL TOKENS", lambda row: f"{row.model_tokens:,}", number=True),
            Column("CACHED", lambda row: f"{row.cached_tokens:,}", number=True),
            Column("COST", lambda row: cost_text(row.model_cost), number=True),
        )
    print_rows(columns, report.rows)
    if not report.complete:
        print_hint("not all ended runs are counted yet; try again in a moment")


def print_queues(queues: Sequence[QueueView]) -> None:
    if not queues:
        print("no work is queued")
        return
    columns = (
        Column("QUEUE", "queue", gives=True),
        Column("READY", lambda row: f"{row.ready:,}", number=True),
        Column("AT WORK", lambda row: f"{row.leased:,}", number=True),
        Column("LATER", lambda row: f"{row.later:,}", number=True),
        Column("OLDEST", lambda row: "" if row.oldest_ms is None else duration(row.oldest_ms), number=True),
    )
    print_rows(columns, queues)
