"""Blobs in text: one, many, and what a collection did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemill.blobs.contract import BlobInfo
from tidemill.cli.ages import age, moment
from tidemill.cli.asking import Asking
from tidemill.cli.rosters import Page, tell_page
from tidemill.cli.snippets import size_of
from tidemill.cli.tables import Column, Line, print_facts, print_hint, print_title
from tidemill.engine.collecting import Collected

UNREADABLE_SHOWN = 10


def tell_blobs(asking: Asking, page: Page) -> None:
    """Print blobs in the order of their digests."""
    heads = (Column("DIGEST"), Column("SIZE", number=True), Column("STATE"), Column("SINCE"))
    rows: Sequence[BlobInfo] = page.rows
    lines = (Line((row.digest, size_of(row.size), _state(row), age(row.since_ms))) for row in rows)
    tell_page(asking, page, heads, lines, "there is no blob")


def _state(info: BlobInfo) -> str:
    return "kept" if info.kept else info.state


def tell_blob(asking: Asking, info: BlobInfo) -> None:
    """Print what is known of a blob."""
    print_title(info.digest)
    print_facts(
        (
            ("size", f"{info.size} bytes"),
            ("state", info.state),
            ("since", moment(info.since_ms)),
            ("kept", "it is never collected" if info.kept else None),
        )
    )
    print()
    print_hint(asking.command("blobs", "get", info.digest, "-o", "FILE"))


def tell_collected(told: Collected) -> None:
    """Print what a collection did, or would do."""
    would = "would be " if told.dry_run else ""
    print_facts(
        (
            ("looked at", f"{told.scanned} blobs; {told.reachable} are referred to"),
            ("set aside", f"{told.retired} {would}set aside" if told.retired else None),
            ("deleted", f"{told.deleted} {would}deleted, {size_of(told.bytes_freed)}" if told.deleted else None),
            ("brought back", told.restored or None),
            ("left alone", "; ".join(_left(told)) or None),
            ("unreadable", _unreadable(told.unreadable)),
        )
    )


def _left(told: Collected) -> Iterator[str]:
    if told.waiting:
        yield f"{told.waiting} whose grace period is not over"
    if told.young:
        yield f"{told.young} that came within the hour"
    if told.kept:
        yield f"{told.kept} kept"


def _unreadable(digests: Sequence[str]) -> str:
    """Blobs that something refers to and that are missing or damaged, a line each."""
    more = [f"and {len(digests) - UNREADABLE_SHOWN} more; --json has them"] * (len(digests) > UNREADABLE_SHOWN)
    return "\n".join([*digests[:UNREADABLE_SHOWN], *more])
