"""Audits, rebuilt lists, blobs and the archive in text, and the progress line of long commands."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidemill.blobs.contract import BlobInfo
from tidemill.cli.render.events import EventPrinter
from tidemill.cli.render.runs import say
from tidemill.cli.render.tables import (
    Column,
    age,
    label_words,
    moment,
    names,
    print_facts,
    print_hint,
    print_rows,
    print_title,
    size_of,
)
from tidemill.cli.render.terminal import (
    CYAN,
    DIM,
    GREEN,
    RED,
    YELLOW,
    Styler,
    columns,
    counted,
    folded,
    padded,
    sanitize,
)
from tidemill.cli.session import ALONE, StoreSession
from tidemill.engine.maintenance.archive import ArchiveEntry, ArchivePage
from tidemill.engine.maintenance.blob_gc import GcReport
from tidemill.engine.maintenance.doctor import Diagnosis
from tidemill.engine.maintenance.reindex import Reindexed
from tidemill.engine.maintenance.retention import SweepResult
from tidemill.engine.maintenance.verify import LISTS, AuditReport, Finding

SHOWN_EVERY_SECONDS = 0.2
NAMES_COLUMNS_MAX = 600


class Progress:
    """One line on the terminal that is written over; nothing where errors go into a file, or to a program."""

    def __init__(self, *, as_json: bool) -> None:
        self._on, self._next, self._shown = sys.stderr.isatty() and not as_json, 0.0, False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        self._wipe()

    def show(self, text: str) -> None:
        """Show the progress, a few times a second at most."""
        if self._on and time.monotonic() >= self._next:
            self._next, self._shown = time.monotonic() + SHOWN_EVERY_SECONDS, True
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)

    def above(self, write: Callable[[], None]) -> None:
        """Write lines that stay above the progress line."""
        self._wipe()
        write()
        sys.stdout.flush()

    def _wipe(self) -> None:
        if self._shown:
            self._shown, self._next = False, 0.0
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


_MARKS = {"ok": ("✓", GREEN), "info": ("○", CYAN), "warning": ("!", YELLOW), "error": ("✗", RED)}


def print_diagnosis(store: str, found: Diagnosis) -> None:
    """Print one line per check, by group, and what to do below those that are not well."""
    paint = Styler()
    print_title(store)
    width = max(len(each.code) for each in found.findings)
    indent = " " * (width + 6)
    for group in dict.fromkeys(each.group for each in found.findings):
        print(paint(group, DIM))
        for each in (each for each in found.findings if each.group == group):
            mark, colour = _MARKS[each.severity]
            first, *rest = folded(sanitize(each.message), columns() - len(indent))
            print(f"  {paint(mark, colour)} {padded(each.code, width)}  {first}")
            for line in rest:
                print(indent + line)
            if each.hint:
                print(indent + paint(f"→ {sanitize(each.hint)}", DIM))
    counts = Counter(each.severity for each in found.findings)
    checks = counted(len(found.findings), "check")
    bad = [counted(counts[name], name) for name in ("error", "warning") if counts[name]]
    mark, colour = _MARKS[found.severity if bad else "ok"]
    print(f"{paint(mark, colour)} {checks}: {', '.join(bad) or 'no problems'}")


def print_finding(finding: Finding) -> None:
    where = f" event {finding.seq}" if finding.seq else ""
    print(f"{Styler()('✗', RED)} {sanitize(f'{finding.run}{where}: {finding.message} [{finding.code}]')}")


def print_audit(report: AuditReport) -> None:
    """Print the summary of an audit; its findings were printed as they were made."""
    workflows = f" and {counted(report.workflows, 'workflow')}" if report.workflows else ""
    read = f"{counted(report.runs, 'run')}{workflows}, {counted(report.events, 'record')}"
    if report.clean:
        say(f"no violation found: {read}")
    else:
        ill, logs = len({finding.run for finding in report.findings} - {LISTS}), report.runs + report.workflows
        print(f"{counted(len(report.findings), 'finding')} in {ill:,} of {counted(logs, 'log')}: {read}")
        if any(finding.code.startswith(("row_", "lists_", "places_")) for finding in report.findings):
            print_hint("lists are rebuilt from the logs with `tidemill reindex`")
    if report.newer:
        print_hint(
            f"{counted(report.newer, 'log')} not judged: a newer version has written to it; run its `verify-log`"
        )


def print_reindexed(found: Reindexed) -> None:
    rows = found.missing + found.different + found.surplus
    wrong = " and ".join(counted(n, noun) for n, noun in ((rows, "row"), (found.misplaced, "place")) if n)
    verb = "would be repaired" if found.dry_run else "put right"
    built = "would be built" if found.dry_run else "is built"
    unread = len(found.unreadable)
    said = f"{counted(found.rows, 'row')} of {counted(found.streams - unread, 'log')}"
    if unread:
        print(f"{Styler()('✗', RED)} {unread:,} of {counted(found.streams, 'log')} cannot be read; their rows are left")
    if found.anew:
        print(f"{Styler()('!', YELLOW)} the index of the lists was damaged, and {built} from the logs")
    if not wrong:
        say(f"{said}: {'these lists match their' if unread else 'all lists match the'} logs")
    elif found.dry_run:
        print(f"{Styler()('○', YELLOW)} {said}; {wrong} {verb}; nothing was done")
    else:
        say(f"{said}; {wrong} {verb}")
    if wrong:
        print_facts(
            [(name, getattr(found, name)) for name in ("missing", "different", "surplus", "misplaced")], indent=2
        )
    if found.unreadable:
        print_hint(f"cannot be read: {names(found.unreadable, NAMES_COLUMNS_MAX)}; see `tidemill verify-log`")
    if found.references_unknown:
        listed = names(found.references_unknown, NAMES_COLUMNS_MAX)
        print_hint(f"blobs that they need are unknown: {listed}; repair them, or run `tidemill blobs gc --exclude RUN`")


def print_archive(session: StoreSession, page: ArchivePage, workflow: str | None) -> None:
    """Print archived runs, and which entries cannot be read."""
    if page.runs:
        often = Counter(run.run_id for run in page.runs)

        def note(run: ArchiveEntry) -> str:
            # Where a run is listed more than once, the name of its entry comes first.
            labels = label_words(run.labels)
            return f"{run.entry}  {labels}".rstrip() if often[run.run_id] > 1 else labels

        print_rows(_ENTRY_COLUMNS, page.runs, note)
        if page.more:
            print_hint("there are more: raise --limit, or filter by --workflow")
    elif not page.damaged:
        print(
            "the archive is empty" if workflow is None else f"the archive has no run of workflow {sanitize(workflow)}"
        )
        if session.is_private_store:
            print_hint(ALONE)
    for name in page.damaged:
        print(f"{Styler()('✗', RED)} {sanitize(f'{name} cannot be read')}")
    if page.damaged:
        print_hint("restore them from a backup of the archive; `tidemill archive show ENTRY` shows what is wrong")


_ENTRY_COLUMNS = (
    Column("RUN", "run_id"),
    Column("STATUS", "status", status=True),
    Column("WORKFLOW", lambda run: f"{run.workflow}@{run.version}", gives=True),
    Column("ENDED", lambda run: age(run.ended_ms)),
)


def print_archived_run(session: StoreSession, found: Mapping[str, Any], *, with_events: bool) -> None:
    print_title(f"{found['workflow']}@{found['version']}", f"run {found['run_id']}", found["status"])
    facts = [
        ("started", moment(found["created_ms"])),
        ("ended", moment(found["ended_ms"])),
        ("events", found["seq"]),
        ("labels", label_words(found["labels"])),
        ("submitted by", found["submitted_by"]),
        ("correlation", found["correlation_id"]),
        ("digest", found["digest"]),
        ("entry", found["entry"]),
    ]
    print_facts(facts)
    if with_events:
        print()
        printer = EventPrinter()
        for event in found["events"]:
            printer.print(event)
    print()
    print_other_entries(found["others"])
    print_hint(session.command("archive", "restore", found["entry" if found["others"] else "run_id"]))


def print_other_entries(others: Sequence[str]) -> None:
    """Say which entries of the same run id were not meant."""
    if others:
        print_hint(f"the newest of {len(others) + 1} entries of this id; name another one to have it:")
        for name in others:
            print(f"    {sanitize(name)}")


def print_sweep(swept: SweepResult) -> None:
    if swept.dry_run:
        print(f"{Styler()('○', YELLOW)} {counted(len(swept.retired), 'run')} would be archived; nothing was done")
    else:
        say(f"{counted(len(swept.retired), 'run')} archived")
    if not swept.retired and not swept.left:
        print_hint(
            "no run is due: runs leave at the first midnight (UTC) after their days of retention, if they have any"
        )
    if swept.retired:
        print_facts([("runs", names(swept.retired, NAMES_COLUMNS_MAX))], indent=2)
    for run_id, why in swept.left:
        mark = Styler()("✗", RED) if run_id in swept.failed else Styler()("!", YELLOW)
        print(f"{mark} {sanitize(f'{run_id} stays: {why}')}")


UNREADABLE_SHOWN = 10


def print_blob(session: StoreSession, info: BlobInfo) -> None:
    print_title(info.digest)
    print_facts(
        (
            ("size", f"{info.size} bytes"),
            ("state", info.state),
            ("since", moment(info.since_ms)),
            ("kept", "never garbage-collected" if info.kept else None),
            ("used by", names(info.used_by)),
        )
    )
    print()
    print_hint(session.command("blobs", "get", info.digest, "-o", "FILE"))


def print_gc_report(report: GcReport) -> None:
    would = "would be " if report.dry_run else ""
    left = (
        (report.waiting, "still within their grace period"),
        (report.young, "stored within the last hour"),
        (report.kept, "kept"),
    )
    unreadable, more = report.unreadable[:UNREADABLE_SHOWN], len(report.unreadable) - UNREADABLE_SHOWN
    print_facts(
        (
            ("scanned", f"{report.scanned} blobs; {report.reachable} referenced"),
            ("marked", f"{report.retired} {would}marked for deletion" if report.retired else None),
            ("deleted", f"{report.deleted} {would}deleted, {size_of(report.bytes_freed)}" if report.deleted else None),
            ("brought back", report.restored or None),
            ("left alone", "; ".join(f"{count} {words}" for count, words in left if count)),
            ("unreadable", "\n".join(unreadable) + (f"\nand {more} more; --json has them" if more > 0 else "")),
        )
    )
