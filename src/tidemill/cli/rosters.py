"""Lists in text: runs, approvals, dead letters, workflows, versions. Each says how to get its next page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tidemill.cli.ages import age, iso
from tidemill.cli.asking import ALONE, Asking, item_or_none, plain
from tidemill.cli.ballots import DECISIONS
from tidemill.cli.snippets import names
from tidemill.cli.tables import Column, Line, print_hint, print_next, print_table
from tidemill.engine.catalog import TagMoved, Version, WorkflowRow
from tidemill.engine.rows import ApprovalRow, DeadLetterRow, RunRow
from tidemill.kernel.events import NOT_AN_ITEM

DIGEST_SHOWN = 19
"""`sha256:` and twelve digits: enough to tell two apart."""


_ABOUT_VISITS = frozenset({"approvals", "dead_letters"})
"""Lists whose rows may be about an item of a map."""


class Page:
    """A page of a list, and where the next one begins."""

    def __init__(self, kind: str, rows: Sequence[Any], cursor: str | None) -> None:
        self.kind, self.rows, self.cursor = kind, rows, cursor

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        rows = plain(self.rows)
        if self.kind in _ABOUT_VISITS:
            rows = [{**row, "index": item_or_none(row["index"])} for row in rows]
        return {self.kind: rows, "next": self.cursor}


def tell_page(asking: Asking, page: Page, heads: Sequence[Column], lines: Iterable[Line], nothing: str) -> None:
    """Print a page, or one line that says that there is nothing."""
    if not page.rows:
        print(nothing)
        if asking.alone:
            print_hint(ALONE)
        return
    print_table(heads, lines)
    print_next(page.cursor)


def tell_runs(asking: Asking, page: Page) -> None:
    """Print runs, newest first."""
    heads = (Column("RUN"), Column("STATUS", status=True), Column("WORKFLOW", gives=True), Column("STARTED"))
    lines = (Line((row.run_id, row.status, _reference(row), age(row.created_ms)), _run_note(row)) for row in page.rows)
    tell_page(asking, page, heads, lines, "no run matches")


def _reference(row: RunRow) -> str:
    return f"{row.workflow}@{row.version}" + (f"+{row.revision}" if row.revision else "")


def _run_note(row: RunRow) -> str:
    said = []
    if row.status == "FAILED":
        where = f"at {row.failed_node}" if row.failed_node else "as a whole"
        said.append(f"failed {where} [{row.error_code}]")
    if row.suspect:
        said.append(f"suspect [{row.suspect}]")
    if row.stuck:
        said.append(f"stuck [{row.stuck_reason}]" if row.stuck_reason else "stuck")
    if row.waiting_for:
        said.append(f"waits for {names(row.waiting_for)}")
    if row.rollback != "none":
        said.append(f"rollback {row.rollback}")
    if row.tolerated:
        said.append(f"{row.tolerated} tolerated")
    if row.labels:
        said.append(names(f"{key}={value}" for key, value in sorted(row.labels.items())))
    return " · ".join(said)


def tell_approvals(asking: Asking, page: Page) -> None:
    """Print approvals, newest first."""
    heads = (
        Column("RUN"),
        Column("NODE", gives=True),
        Column("STATUS", status=True),
        Column("ASKED"),
    )
    lines = (
        Line(
            (row.run_id, place(row), DECISIONS.get(row.decision, row.status), age(row.requested_ms)),
            _approval_note(row),
        )
        for row in page.rows
    )
    tell_page(asking, page, heads, lines, "no approval matches")


def place(row: ApprovalRow | DeadLetterRow) -> str:
    """A node with its visit and item, as far as they say anything."""
    visit = f" visit {row.visit}" if row.visit > 1 else ""
    return row.node + visit + (f" item {row.index}" if row.index != NOT_AN_ITEM else "")


def _approval_note(row: ApprovalRow) -> str:
    said = [row.title]
    if row.status == "pending":
        said.append(f"asks {names(row.approvers) or 'anyone'}")
        if row.quorum > 1:
            said.append(f"{len(row.votes)} of {row.quorum} agreed")
        if row.expires_ms is not None:
            said.append(f"{row.on_timeout}s {age(row.expires_ms)}")
    elif row.decided_by:
        said.append(f"by {row.decided_by} {age(row.decided_ms)}")
    return " · ".join(said)


def tell_letters(asking: Asking, page: Page) -> None:
    """Print dead letters, newest first."""
    heads = (Column("RUN"), Column("NODE", gives=True), Column("CODE", gives=True), Column("FAILED"))
    lines = (Line((row.run_id, place(row), row.code, age(row.at_ms)), _letter_note(row)) for row in page.rows)
    tell_page(asking, page, heads, lines, "no dead letter matches")


def _letter_note(row: DeadLetterRow) -> str:
    tries = f"{row.attempts} attempt{'s' if row.attempts != 1 else ''}"
    closed = () if row.status == "open" else (f"{row.status} by {row.closed_by}" if row.closed_by else row.status,)
    return " · ".join((*closed, row.workflow, tries, row.message))


def tell_workflows(asking: Asking, page: Page) -> None:
    """Print workflows, those that changed last first."""
    heads = (
        Column("WORKFLOW", gives=True),
        Column("VERSIONS", number=True),
        Column("CHANGED"),
        Column("TAGS", gives=True),
    )
    rows: Sequence[WorkflowRow] = page.rows
    lines = (
        Line((row.name, str(row.versions), age(row.updated_ms), names(_tags(row.tags))), row.description)
        for row in rows
    )
    tell_page(asking, page, heads, lines, "nothing is published")


def _tags(tags: dict[str, int]) -> Iterator[str]:
    return (f"{tag}→{version}" for tag, version in sorted(tags.items()))


def tell_versions(versions: Sequence[Version], tags: dict[str, int]) -> None:
    """Print the versions of a workflow, newest first."""
    heads = (
        Column("VERSION"),
        Column("PUBLISHED"),
        Column("BY", gives=True),
        Column("DIGEST"),
        Column("TAGS", gives=True),
    )
    print_table(heads, (_version_line(version, tags) for version in reversed(versions)))


def _version_line(version: Version, tags: dict[str, int]) -> Line:
    reference = f"{version.name}@{version.version}"
    pointing = names(tag for tag, number in sorted(tags.items()) if number == version.version)
    made = f"patch of @{version.parent}" if version.patch is not None else ""
    note = " · ".join(part for part in (made, version.message) if part)
    return Line((reference, age(version.at_ms), version.author, version.digest[:DIGEST_SHOWN], pointing), note)


def tell_tags(tags: dict[str, int], moves: Sequence[TagMoved]) -> None:
    """Print where tags point, and how they came there."""
    print_table((Column("TAG"), Column("VERSION", number=True)), (Line((t, f"@{v}")) for t, v in sorted(tags.items())))
    if not moves:
        return
    print()
    heads = (Column("WHEN"), Column("TAG"), Column("FROM"), Column("TO"), Column("BY", gives=True))
    print_table(heads, (_move_line(move) for move in reversed(moves)))


def _move_line(move: TagMoved) -> Line:
    was, to = (f"@{number}" if number else "—" for number in (move.was, move.version))
    return Line((iso(move.at_ms), move.tag, was, to, move.actor), move.message)
