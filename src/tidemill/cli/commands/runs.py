"""Runs list/show/state/events/logs/path/document/compare, why.

`tidemill runs`: find runs and look at them. What can be done to them is in `acts`.

`tidemill why`, which is `tidemill runs why` too: what a run or a node waits for, or why it ended so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tidemill.cli import options
from tidemill.cli.commands.run_actions import ACTS
from tidemill.cli.options import new_group

if TYPE_CHECKING:
    from tidemill.cli.session import StoreSession
    from tidemill.client import Tidemill


@click.command("why")
@options.run
@options.argument("node", "[NODE]", "A node of it: how it ended, and what decided that.", required=False)
@options.on_store()
def why_command(asking: StoreSession, run: str, node: str | None) -> int:
    """Say what a run or a node waits for, or why it ended so.

    With what to do about it: the command that unblocks it, where there is one.
    """
    from tidemill.cli.render.why import NodeReasons, WhyOutput, tell_why, tell_why_node

    if node is not None:
        return asking.ask_and_print(
            lambda mill: NodeReasons(run, mill.why_node(run, node)), lambda found: tell_why_node(asking, found)
        )
    return asking.ask_and_print(lambda mill: WhyOutput(run, mill.why(run)), lambda reasons: tell_why(asking, reasons))


runs = new_group("runs")

EVENTS_PAGE = 200
STATUSES = ("RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED")


@runs.command("list")
@options.option("--status", type=click.Choice(STATUSES, case_sensitive=False), about="How they stand.")
@options.of_workflow
@options.labels
@options.many("--term", "terms", metavar="TERM", about="Any term: live, stuck, suspect, by:ada, parent:RUN…")
@options.limit
@options.after
@options.on_store()
def list_command(
    asking: StoreSession,
    status: str | None,
    workflow: str | None,
    labels: tuple[str, ...],
    terms: tuple[str, ...],
    limit: int,
    after: str | None,
) -> int:
    """List runs, newest first."""
    from tidemill.cli.inputs import read_pairs
    from tidemill.cli.render.lists import Page, tell_runs

    def ask(mill: Tidemill) -> Page:
        wanted = [f"label:{key}={value}" for key, value in read_pairs("--label", labels).items()]
        wanted += [f"status:{status}"] * (status is not None) + [f"workflow:{workflow}"] * (workflow is not None)
        return Page("runs", *mill.find([*wanted, *terms], after=after, limit=limit))

    return asking.ask_and_print(ask, lambda page: tell_runs(asking, page))


@runs.command("show")
@options.run
@options.at
@options.on_store()
def show_command(asking: StoreSession, run: str, at: int | None) -> int:
    """Show a run, its nodes, and what it returned or why not."""
    return _show(asking, run, at)


@runs.command("state")
@options.run
@options.option(
    "--at", metavar="SEQ", type=options.integers(1), required=True, about="After the event with this number."
)
@options.on_store()
def state_command(asking: StoreSession, run: str, at: int) -> int:
    """Show a run as it was after one of its events."""
    return _show(asking, run, at)


def _show(asking: StoreSession, run: str, at: int | None) -> int:
    from tidemill.cli.render.runs import RunDetails, tell_run

    def ask(mill: Tidemill) -> RunDetails:
        view = mill.show(run, at=at)
        # Only people are told why: the object for programs is the one that every view of a run prints.
        return RunDetails(view, past=at is not None, path=() if asking.as_json else mill.path(run, at=at))

    return asking.ask_and_print(ask, lambda sitting: tell_run(asking, sitting))


@runs.command("events")
@options.run
@options.option("--after", metavar="SEQ", type=options.integers(0), default=0, about="Only those behind this number.")
@options.option(
    "--limit", metavar="N", type=options.integers(1, 1000), default=EVENTS_PAGE, about="At most so many rows."
)
@options.option("--last", metavar="N", type=options.integers(1), about="Only the last N so far.")
@options.flag("--follow", "-f", about="Go on until the run ends; with --json, one event per line.")
@options.flag("--live", about="And follow what nodes show meanwhile: parts of results, and progress.")
@options.on_store()
def events_command(
    asking: StoreSession, run: str, after: int, limit: int, last: int | None, follow: bool, live: bool
) -> int:
    """Show what happened in a run, event by event."""
    if follow or live:
        return _follow(asking, run, after, last, live)

    def ask(mill: Tidemill) -> Any:
        from tidemill.cli.render.lists import Page

        if last is not None:
            return Page("events", mill.events(run, after=after)[-last:], None)
        found = mill.events(run, after=after, limit=limit + 1)
        more = str(found[limit - 1]["seq"]) if len(found) > limit else None
        return Page("events", found[:limit], more)

    return asking.ask_and_print(ask, _tell_events)


def _tell_events(page: Any) -> None:
    from tidemill.cli.render.events import Logbook
    from tidemill.cli.render.tables import print_next

    book = Logbook()
    for event in page.rows:
        book.tell(event)
    if not page.rows:
        print("no events behind that one")
    print_next(page.cursor)


def _follow(asking: StoreSession, run: str, after: int, last: int | None, live: bool) -> int:
    """Print events as they are committed; programs get one JSON object per line."""
    from tidemill.cli.render.events import Logbook
    from tidemill.cli.render.terminal import print_json_line

    book = Logbook()

    def ask(mill: Tidemill) -> None:
        begin = after if last is None else max(after, mill.show(run).events - last)
        for event in mill.follow(run, begin, live=live):
            if asking.as_json:
                print_json_line(event)
            else:
                book.tell(event)

    return asking.stream(ask)


@runs.command("logs")
@options.run
@options.argument("node", "[NODE]", "A node of it; all of them by default.", required=False)
@options.option("--attempt", metavar="N", type=options.integers(1), about="Only this attempt.")
@options.option("--visit", metavar="N", type=options.integers(1), about="Only this visit.")
@options.option(
    "--item", "--index", "item", metavar="INDEX", type=options.integers(0), about="Only this item of a map, from 0."
)
@options.flag("--follow", "-f", about="Go on until the run ends; with --json, one line per line.")
@options.flag("--timestamps", "-t", about="When each line was said, in UTC.")
@options.on_store()
def logs_command(asking: StoreSession, **wanted: Any) -> int:
    """Show what the nodes of a run have printed and logged.

    About the last megabyte of each attempt is kept, and written once a second while it runs.
    """
    from tidemill.cli.render.events import LogFilter, tell_logs

    return tell_logs(asking, LogFilter(**wanted))


@runs.command("path")
@options.run
@options.flag("--tokens", about="The tokens that are under way instead.")
@options.at
@options.on_store()
def path_command(asking: StoreSession, run: str, tokens: bool, at: int | None) -> int:
    """Show which way a run went, or where its tokens are."""
    from tidemill.cli.render.events import tell_path, tell_tokens

    if tokens:
        return asking.ask_and_print(lambda mill: mill.tokens(run, at=at), tell_tokens)
    return asking.ask_and_print(lambda mill: mill.path(run, at=at), tell_path)


runs.add_command(why_command)


@runs.command("document")
@options.run
@options.on_store()
def document_command(asking: StoreSession, run: str) -> int:
    """Print the document that a run follows.

    In its normal form, which patches are made for, with the digest they may name.
    """
    return asking.ask_and_print(lambda mill: mill.document(run), _tell_document)


def _tell_document(found: Any) -> None:
    from tidemill.cli.render.documents import tell_document
    from tidemill.cli.render.runs import reference

    named = reference({"workflow": found.workflow, "version": found.version, "revision": found.revision})
    tell_document(f"{named}, {found.digest}", found.document)


@runs.command("compare")
@options.run
@options.argument("other", "OTHER", "The id of another run.")
@options.on_store()
def compare_command(asking: StoreSession, run: str, other: str) -> int:
    """Compare two runs, node by node."""
    from tidemill.cli.render.runs import tell_comparison

    return asking.ask_and_print(lambda mill: mill.compare(run, other), lambda found: tell_comparison(run, other, found))


for act in ACTS:
    runs.add_command(act)
