"""`tidemill migrate`: the schema of a store, and bringing it to the one that this version knows.

Every command does so by itself when it opens a store. This one is for whoever wants to see it first, or to do it at a
moment of their own choice.
"""

from __future__ import annotations

from tidemill.bootstrap import migrated
from tidemill.cli import exits
from tidemill.cli.ages import moment
from tidemill.cli.asking import Asking
from tidemill.cli.problems import counted, print_json
from tidemill.cli.tables import Column, Line, print_table
from tidemill.errors import Rejected
from tidemill.stores.migrate import Step


def migrate(asking: Asking, *, dry_run: bool) -> int:
    """Show the migrations of a store, and apply those that are pending."""
    try:
        before = migrated(asking.store, dry_run=True)
        after = before if dry_run else migrated(asking.store)
    except Rejected as refusal:
        return asking.refused(refusal)
    pending = [step for step in before if step.applied_ms is None]
    if asking.as_json:
        print_json(_plain(after, pending, dry_run))
    else:
        _tell(after, pending, dry_run)
    return exits.OK


def _plain(steps: tuple[Step, ...], pending: list[Step], dry_run: bool) -> object:
    return {
        "migrations": [{"number": step.number, "name": step.name, "applied_ms": step.applied_ms} for step in steps],
        "pending": [step.number for step in pending],
        "dry_run": dry_run,
    }


def _tell(steps: tuple[Step, ...], pending: list[Step], dry_run: bool) -> None:
    if not steps:
        print("a store in memory has no schema to migrate")
        return
    heads = (Column("SCHEMA", number=True), Column("NAME"), Column("APPLIED"))
    print_table(heads, [Line((str(step.number), step.name, _when(step))) for step in steps])
    number = counted(len(pending), "migration")
    if not pending:
        print("✓ nothing is pending")
    elif dry_run:
        print(f"! {number} would be applied")
    else:
        print(f"✓ {number} applied")


def _when(step: Step) -> str:
    return "pending" if step.applied_ms is None else moment(step.applied_ms)
