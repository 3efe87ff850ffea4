"""Audits, rebuilt lists and the archive in text, and the line that says how far something has come."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from tidemill.cli.ages import age, moment
from tidemill.cli.asking import ALONE, Asking
from tidemill.cli.logbook import Logbook
from tidemill.cli.paint import RED, YELLOW, Paint
from tidemill.cli.problems import counted
from tidemill.cli.snippets import names
from tidemill.cli.tables import Column, Line, print_facts, print_hint, print_table, print_title
from tidemill.cli.terminal import clean
from tidemill.cli.verdicts import say
from tidemill.engine.archiving import Header
from tidemill.engine.auditing import Finding, Verdict
from tidemill.engine.indexing import Reindexed
from tidemill.engine.retiring import Swept
from tidemill.engine.upkeep import ArchivePage

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
        """Say how far it has come, a few times a second."""
        if self._on and time.monotonic() >= self._next:
            self._next, self._shown = time.monotonic() + SHOWN_EVERY_SECONDS, True
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)

    def above(self, write: Callable[[], None]) -> None:
        """Write something that stays."""
        self._wipe()
        write()
        sys.stdout.flush()

    def _wipe(self) -> None:
        if self._shown:
            self._shown, self._next = False, 0.0
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def tell_finding(finding: Finding) -> None:
    """Print what is wrong, in one line."""
    where = f" event {finding.seq}" if finding.seq else ""
    print(f"{Paint()('✗', RED)} {clean(f'{finding.run}{where}: {finding.message} [{finding.code}]')}")


def tell_verdict(verdict: Verdict) -> None:
    """Print what an audit came to; its findings were printed as they were made."""
    workflows = f" and {counted(verdict.workflows, 'workflow')}" if verdict.workflows else ""
    read = f"{counted(verdict.runs, 'run')}{workflows}, {counted(verdict.events, 'record')}"
    if verdict.clean:
        say(f"all is as it must be: {read}")
    else:
        runs = len({finding.run for finding in verdict.findings})
        print(f"{counted(len(verdict.findings), 'finding')} in {runs} of {read}")
        if any(finding.code.startswith("row_") for finding in verdict.findings):
            print_hint("lists are rebuilt from the logs with `tidemill reindex`")


def tell_reindexed(found: Reindexed) -> None:
    """Print what was wrong with the lists."""
    wrong = found.missing + found.different + found.surplus
    verb = "would be put right" if found.dry_run else "put right"
    said = f"{counted(found.rows, 'row')} of {counted(found.streams, 'log')}"
    if not wrong:
        say(f"{said}: all lists say what the logs say")
    elif found.dry_run:
        print(f"{Paint()('○', YELLOW)} {said}; {counted(wrong, 'row')} {verb}; nothing was done")
    else:
        say(f"{said}; {counted(wrong, 'row')} {verb}")
    if wrong:
        print_facts([(name, getattr(found, name)) for name in ("missing", "different", "surplus")], indent=2)
    if found.unreadable:
        print_hint(f"cannot be read: {names(found.unreadable, NAMES_COLUMNS_MAX)}; see `tidemill verify-log`")


def tell_archive(asking: Asking, page: ArchivePage) -> None:
    """Print archived runs."""
    if page.damaged:
        print_hint(f"cannot be read: {names(page.damaged, NAMES_COLUMNS_MAX)}")
    if not page.runs:
        print("the archive has no such run")
        if asking.alone:
            print_hint(ALONE)
        return
    heads = (Column("RUN"), Column("STATUS", status=True), Column("WORKFLOW", gives=True), Column("ENDED"))
    lines = (
        Line((run.run_id, run.status, f"{run.workflow}@{run.version}", age(run.ended_ms)), _labels(run))
        for run in page.runs
    )
    print_table(heads, lines)
    if page.more:
        print_hint("there are more: a higher --limit, or --workflow")


def tell_archived(asking: Asking, found: Mapping[str, Any], *, with_events: bool) -> None:
    """Print an archived run, and its events where they are wanted."""
    print_title(f"{found['workflow']}@{found['version']}", f"run {found['run_id']}", found["status"])
    facts = [
        ("started", moment(found["created_ms"])),
        ("ended", moment(found["ended_ms"])),
        ("events", found["seq"]),
        ("labels", names(f"{key}={value}" for key, value in sorted(found["labels"].items())) or None),
        ("submitted by", found["submitted_by"] or None),
        ("correlation", found["correlation_id"] or None),
        ("digest", found["digest"]),
    ]
    print_facts([fact for fact in facts if fact[1] is not None])
    if with_events:
        print()
        book = Logbook()
        for event in found["events"]:
            book.tell(event)
    print()
    print_hint(asking.command("archive", "restore", found["run_id"]))


def tell_swept(swept: Swept) -> None:
    """Print what has left the store, or would."""
    if swept.dry_run:
        print(f"{Paint()('○', YELLOW)} {counted(len(swept.retired), 'run')} would be archived; nothing was done")
    else:
        say(f"{counted(len(swept.retired), 'run')} archived")
    if swept.retired:
        print_facts([("runs", names(swept.retired, NAMES_COLUMNS_MAX))], indent=2)
    for run_id, why in swept.left:
        print(f"{Paint()('!', YELLOW)} {clean(f'{run_id} stays: {why}')}")


def _labels(run: Header) -> str:
    return names(f"{key}={value}" for key, value in sorted(run.labels.items()))
