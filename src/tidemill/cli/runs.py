"""`tidemill runs`: find runs and look at them. What can be done to them is in `acts`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tidemill.cli.acts import ACTS
from tidemill.cli.groups import new_group
from tidemill.cli.options import (
    DEFAULT_STORE,
    PAGE,
    AsJson,
    At,
    Cursor,
    Labels,
    Limit,
    Run,
    Store,
)
from tidemill.cli.why import why_command

if TYPE_CHECKING:
    from tidemill.cli.asking import Asking
    from tidemill.front import Tidemill

runs = new_group("runs", "Find runs, look at them, repair them.")

EVENTS_PAGE = 200
Status = Literal["RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED"]


@runs.command("list")
def list_command(
    status: Annotated[Status | None, typer.Option("--status", case_sensitive=False, help="How they stand.")] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", metavar="NAME", help="Of this workflow.")] = None,
    labels: Labels = None,
    terms: Annotated[
        list[str] | None,
        typer.Option("--term", metavar="TERM", help="Any term: live, stuck, suspect, by:ada, parent:RUN… Repeatable."),
    ] = None,
    limit: Limit = PAGE,
    after: Cursor = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """List runs, newest first."""
    from tidemill.cli.asking import Asking
    from tidemill.cli.rosters import Page, tell_runs
    from tidemill.cli.sources import read_pairs

    asking = Asking(store, as_json)

    def ask(mill: Tidemill) -> Page:
        wanted = [f"label:{key}={value}" for key, value in read_pairs("--label", labels or ()).items()]
        wanted += [f"status:{status}"] * (status is not None) + [f"workflow:{workflow}"] * (workflow is not None)
        return Page("runs", *mill.find([*wanted, *(terms or ())], after=after, limit=limit))

    return asking.answer(ask, lambda page: tell_runs(asking, page))


@runs.command("show")
def show_command(run: Run, at: At = None, store: Store = DEFAULT_STORE, as_json: AsJson = False) -> int:
    """Show a run, its nodes, and what it returned or why not."""
    from tidemill.cli.asking import Asking
    from tidemill.cli.portrait import Sitting, tell_run

    asking = Asking(store, as_json)

    def ask(mill: Tidemill) -> Sitting:
        view = mill.show(run, at=at)
        # Only people are told why: the object for programs is the one that every view of a run prints.
        return Sitting(view, past=at is not None, path=() if as_json else mill.path(run, at=at))

    return asking.answer(ask, lambda sitting: tell_run(asking, sitting))


@runs.command("state")
def state_command(
    run: Run,
    at: Annotated[int, typer.Option("--at", metavar="SEQ", min=1, help="After the event with this number.")],
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Show a run as it was after one of its events."""
    return show_command(run, at, store, as_json)


@runs.command("events")
def events_command(
    run: Run,
    after: Annotated[int, typer.Option("--after", metavar="SEQ", min=0, help="Only those behind this number.")] = 0,
    limit: Limit = EVENTS_PAGE,
    last: Annotated[int | None, typer.Option("--last", metavar="N", min=1, help="Only the last N so far.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run ends; with --json, one event per line.")
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="And follow what nodes show meanwhile: parts of results, and progress.")
    ] = False,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Show what happened in a run, event by event."""
    from tidemill.cli.asking import Asking

    asking = Asking(store, as_json)
    if follow or live:
        return _follow(asking, run, after, last, live)

    def ask(mill: Tidemill) -> Any:
        from tidemill.cli.rosters import Page

        if last is not None:
            return Page("events", mill.events(run, after=after)[-last:], None)
        found = mill.events(run, after=after, limit=limit + 1)
        more = str(found[limit - 1]["seq"]) if len(found) > limit else None
        return Page("events", found[:limit], more)

    return asking.answer(ask, _tell_events)


def _tell_events(page: Any) -> None:
    from tidemill.cli.logbook import Logbook
    from tidemill.cli.tables import print_next

    book = Logbook()
    for event in page.rows:
        book.tell(event)
    if not page.rows:
        print("no events behind that one")
    print_next(page.cursor)


def _follow(asking: Asking, run: str, after: int, last: int | None, live: bool) -> int:
    """Print events as they are committed; programs get one JSON object per line."""
    from tidemill.cli.logbook import Logbook
    from tidemill.cli.problems import print_json_line

    book = Logbook()

    def ask(mill: Tidemill) -> None:
        begin = after if last is None else max(after, mill.show(run).events - last)
        for event in mill.follow(run, begin, live=live):
            if asking.as_json:
                print_json_line(event)
            else:
                book.tell(event)

    return asking.listen(ask)


@runs.command("logs")
def logs_command(
    run: Run,
    node: Annotated[str | None, typer.Argument(metavar="[NODE]", help="A node of it; all of them by default.")] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", metavar="N", min=1, help="Only this attempt.")] = None,
    visit: Annotated[int | None, typer.Option("--visit", metavar="N", min=1, help="Only this visit.")] = None,
    item: Annotated[
        int | None, typer.Option("--item", "--index", metavar="INDEX", min=0, help="Only this item of a map, from 0.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run ends; with --json, one line per line.")
    ] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", "-t", help="When each line was said, in UTC.")] = False,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Show what the nodes of a run have printed and logged.

    About the last megabyte of each attempt is kept, and written once a second while it runs.
    """
    from tidemill.cli.asking import Asking
    from tidemill.cli.sayings import Wanted, tell_logs

    wanted = Wanted(run=run, node=node, visit=visit, item=item, attempt=attempt, follow=follow, timestamps=timestamps)
    return tell_logs(Asking(store, as_json), wanted)


@runs.command("path")
def path_command(
    run: Run,
    tokens: Annotated[bool, typer.Option("--tokens", help="The tokens that are under way instead.")] = False,
    at: At = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Show which way a run went, or where its tokens are."""
    from tidemill.cli.asking import Asking
    from tidemill.cli.logbook import tell_path, tell_tokens

    asking = Asking(store, as_json)
    if tokens:
        return asking.answer(lambda mill: mill.tokens(run, at=at), tell_tokens)
    return asking.answer(lambda mill: mill.path(run, at=at), tell_path)


runs.command("why")(why_command)


@runs.command("document")
def document_command(run: Run, store: Store = DEFAULT_STORE, as_json: AsJson = False) -> int:
    """Print the document that a run follows.

    In its normal form, which patches are made for, with the digest they may name.
    """
    from tidemill.cli.asking import Asking

    return Asking(store, as_json).answer(lambda mill: mill.document(run), _tell_document)


def _tell_document(found: Any) -> None:
    from tidemill.cli.documents import tell_document
    from tidemill.cli.portrait import reference

    named = reference({"workflow": found.workflow, "version": found.version, "revision": found.revision})
    tell_document(f"{named}, {found.digest}", found.document)


@runs.command("compare")
def compare_command(
    run: Run,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The id of another run.")],
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Compare two runs, node by node."""
    from tidemill.cli.asking import Asking
    from tidemill.cli.verdicts import tell_comparison

    asking = Asking(store, as_json)
    return asking.answer(lambda mill: mill.compare(run, other), lambda found: tell_comparison(run, other, found))


for name, act in ACTS.items():
    runs.command(name)(act)
