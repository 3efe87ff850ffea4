"""`tidemill runs`: commands that find runs and show them, and `tidemill why`. Actions are in `run_actions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tidemill.cli import options
from tidemill.cli.commands.run_actions import ACTS

if TYPE_CHECKING:
    from tidemill.cli.session import StoreSession
    from tidemill.client import Tidemill
    from tidemill.engine.services.patches import RunDocument


@click.command("why")
@options.run
@options.argument("node", "[NODE]", "A node: how it ended, and which decisions led there.", required=False)
@options.on_store()
def why_command(session: StoreSession, run: str, node: str | None) -> int:
    """Explain what a run or node is waiting for, or why it ended.

    Prints the command that unblocks it, where there is one.
    """
    from tidemill.cli.render.why import NodeReasons, WhyOutput, print_why, print_why_node

    if node is not None:
        return session.ask_and_print(
            lambda mill: NodeReasons(run, mill.why_node(run, node)), lambda found: print_why_node(session, found)
        )
    return session.ask_and_print(
        lambda mill: WhyOutput(run, mill.why(run)), lambda reasons: print_why(session, reasons)
    )


runs = options.new_group("runs")

EVENTS_TIMED_MAX = 20_000
"""Of a longer log `runs show` does not say how long each node took: it would take too long to read."""
STATUSES = ("RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED")
COUNTED_MAX = 10_000

_query = options.argument(
    "query", "[QUERY]...", "Conditions, e.g. status:failed label.team=blue 'started>-2h'.", nargs=-1, required=False
)
_conditions = options.together(
    _query,
    options.option("--status", type=click.Choice(STATUSES, case_sensitive=False), about="Only runs with this status."),
    options.of_workflow,
    options.labels,
    options.option("--since", metavar="TIME", about="Only runs started since then: 2h (ago), or 2026-03-01."),
    options.many("--term", "terms", metavar="TERM", about="Any condition: live, stuck, by:ada, parent:RUN…"),
)


_children = options.flag(
    "--children", about="Include child runs; they are left out unless parent:, root: or workflow:."
)


def _wanted(query: tuple[str, ...], labels: tuple[str, ...], **given: Any) -> dict[str, Any]:
    """What the options above mean, as arguments of `find` and `count`."""
    from tidemill.cli.inputs import read_pairs

    return {"query": " ".join(query), "label": read_pairs("--label", labels), **given}


@runs.command("list")
@_conditions
@_children
@options.page
@options.on_store()
def list_command(session: StoreSession, children: bool, limit: int, after: str | None, **given: Any) -> int:
    """List runs, newest first.

    Child runs are counted beside their parents. A query is conditions that all hold:
    status:failed workflow:billing label.customer=acme waiting:approval 'started>-2h'.
    """
    from tidemill.cli.inputs import asks_for_children
    from tidemill.cli.render.lists import list_runs

    def fetch(mill: Tidemill, after: str | None, limit: int) -> tuple[list[Any], str | None]:
        return mill.find(**_wanted(**given), after=after, limit=limit)

    asked_for = given["workflow"] is not None or asks_for_children((*given["query"], *given["terms"]))
    return list_runs(session, fetch, after, limit, children=children or asked_for)


@runs.command("count")
@_conditions
@_children
@options.on_store()
def count_command(session: StoreSession, children: bool, **given: Any) -> int:
    """Count matching runs, up to 10,000."""
    from tidemill.cli.inputs import without_children

    def show(found: dict[str, int]) -> None:
        print(found["count"] if found["count"] < COUNTED_MAX else f"{COUNTED_MAX} or more")

    children = children or given["workflow"] is not None
    given["terms"] = without_children((*given["query"], *given["terms"]), given["terms"], children)
    return session.ask_and_print(lambda mill: {"count": mill.count(**_wanted(**given), at_most=COUNTED_MAX)}, show)


@runs.command("summary")
@_query
@options.option(
    "--buckets", metavar="N", type=options.Integers(1, 500), default=20, about="Maximum number of histogram intervals."
)
@_children
@options.on_store()
def summary_command(session: StoreSession, query: tuple[str, ...], buckets: int, children: bool) -> int:
    """Count runs by status, workflow and time; group failures.

    Of the newest 10,000 that match; with more, numbers are lower bounds.
    """
    from tidemill.cli.inputs import without_children
    from tidemill.cli.render.summaries import print_summary

    text = " ".join(without_children(query, query, children))
    return session.ask_and_print(
        lambda mill: mill.summary(text, buckets=buckets), lambda found: print_summary(session, found)
    )


@runs.command("failures")
@_query
@_children
@options.on_store()
def failures_command(session: StoreSession, query: tuple[str, ...], children: bool) -> int:
    """Group failed runs by failure, most frequent first.

    `runs list failure:…` lists the runs of a group, and `runs bulk retry failure:…` retries them.
    """
    from tidemill.cli.inputs import without_children
    from tidemill.cli.render.summaries import print_failures

    text = " ".join(without_children(query, query, children))
    return session.ask_and_print(lambda mill: mill.failure_groups(text), lambda found: print_failures(session, found))


@runs.command("show")
@options.run
@options.at
@options.option("--agent", metavar="NODE", about="Show an agent's transcript instead: turns, tool calls, tokens.")
@options.option("--failed-items", "failed_items", metavar="NODE", about="List the failed items of a map instead.")
@options.visit
@options.item
@options.on_store()
def show_command(
    session: StoreSession,
    run: str,
    at: int | None,
    agent: str | None,
    failed_items: str | None,
    visit: int | None,
    item: int | None,
) -> int:
    """Show a run, its nodes, and its outputs or error."""
    if failed_items is not None:
        from tidemill.cli.render.runs import FailedItems, print_failed_items

        if (agent, at, visit, item) != (None,) * 4:
            raise click.UsageError("--failed-items stands alone: it lists the items of the latest visit")
        return session.ask_and_print(
            lambda mill: FailedItems.of(failed_items, mill.show(run), mill.events(run)), print_failed_items
        )
    if agent is None:
        if visit is not None or item is not None:
            raise click.UsageError("--visit and --item select a transcript: add --agent NODE")
        return _show(session, run, at)
    from tidemill.cli.render.transcript import print_transcript

    return session.ask_and_print(lambda mill: mill.transcript(run, agent, visit=visit, index=item), print_transcript)


@runs.command("state")
@options.run
@options.option("--at", metavar="SEQ", type=options.Integers(1), required=True, about="The number of the event.")
@options.on_store()
def state_command(session: StoreSession, run: str, at: int) -> int:
    """Show a run as it was after one of its events."""
    return _show(session, run, at)


def _show(session: StoreSession, run: str, at: int | None) -> int:
    from tidemill.cli.render.runs import RunDetails, print_run

    def ask(mill: Tidemill) -> RunDetails:
        view = mill.show(run, at=at)
        if session.as_json:
            # The JSON of a run is the same in every command.
            return RunDetails(view)
        events = mill.events(run, limit=view.events) if view.events <= EVENTS_TIMED_MAX else []
        return RunDetails(view, past=at is not None, path=mill.path(run, at=at), events=events)

    return session.ask_and_print(ask, lambda details: print_run(session, details))


@runs.command("events")
@options.run
@options.option("--after", metavar="SEQ", type=options.Integers(0), default=0, about="Only events after this number.")
@options.option(
    "--limit", metavar="N", type=options.Integers(1, 1000), default=200, about="Maximum number of rows to print."
)
@options.option("--last", metavar="N", type=options.Integers(1), about="Only the last N events.")
@options.flag("--follow", "-f", about="Follow until the run ends; with --json, one event per line.")
@options.flag("--live", about="Also follow streamed results and progress of nodes.")
@options.on_store()
def events_command(
    session: StoreSession, run: str, after: int, limit: int, last: int | None, follow: bool, live: bool
) -> int:
    """Show what happened in a run, event by event."""
    if follow or live:
        return _follow(session, run, after, last, live)

    def ask(mill: Tidemill) -> Any:
        from tidemill.cli.render.lists import Page

        if last is not None:
            return Page("events", mill.events(run, after=after)[-last:], None)
        found = mill.events(run, after=after, limit=limit + 1)
        more = str(found[limit - 1]["seq"]) if len(found) > limit else None
        return Page("events", found[:limit], more)

    return session.ask_and_print(ask, _print_events)


def _print_events(page: Any) -> None:
    from tidemill.cli.render.events import EventPrinter
    from tidemill.cli.render.tables import print_next

    printer = EventPrinter()
    for event in page.rows:
        printer.print(event)
    if not page.rows:
        print("no events after that one")
    print_next(page.cursor)


def _follow(session: StoreSession, run: str, after: int, last: int | None, live: bool) -> int:
    """Print events as they are committed; programs get one JSON object per line."""
    from tidemill.cli.render.events import EventPrinter
    from tidemill.cli.render.terminal import print_json_line

    printer = EventPrinter()

    def ask(mill: Tidemill) -> None:
        begin = after if last is None else max(after, mill.show(run).events - last)
        for event in mill.follow(run, begin, live=live):
            if session.as_json:
                print_json_line(event)
            else:
                printer.print(event)

    return session.stream(ask)


@runs.command("logs")
@options.run
@options.argument("node", "[NODE]", "Only this node. Default: all.", required=False)
@options.option("--attempt", metavar="N", type=options.Integers(1), about="Only this attempt.")
@options.option("--visit", metavar="N", type=options.Integers(1), about="Only this visit.")
@options.option(
    "--item",
    "--index",
    "item",
    metavar="INDEX",
    type=options.Integers(0),
    about="Only this item of a map, counted from 0.",
)
@options.flag("--follow", "-f", about="Follow until the run ends; with --json, one JSON object per line.")
@options.flag("--timestamps", "-t", about="Prefix each line with its time in UTC.")
@options.on_store()
def logs_command(session: StoreSession, **wanted: Any) -> int:
    """Show what the nodes of a run printed and logged.

    About the last megabyte of each attempt is kept, and written once a second while it runs.
    """
    from tidemill.cli.render.events import LogFilter, print_logs

    return print_logs(session, LogFilter(**wanted))


@runs.command("path")
@options.run
@options.flag("--tokens", about="Show the tokens in flight instead.")
@options.at
@options.on_store()
def path_command(session: StoreSession, run: str, tokens: bool, at: int | None) -> int:
    """Show the path a run took, or where its tokens are."""
    from tidemill.cli.render.events import print_path, print_tokens

    if tokens:
        return session.ask_and_print(lambda mill: mill.tokens(run, at=at), print_tokens)
    return session.ask_and_print(lambda mill: mill.path(run, at=at), print_path)


@runs.command("graph")
@options.run
@options.option(
    "--format",
    "form",
    type=click.Choice(["text", "svg", "html"]),
    about="Text or a picture; html includes the timeline. Default: from the suffix of -o, else text.",
)
@options.flag("--timeline", about="Draw a timeline of queued, running and waiting nodes instead; as svg.")
@options.picture_file
@options.at
@options.on_store()
def graph_command(session: StoreSession, run: str, **given: Any) -> int:
    """Draw a run: its graph with statuses, times and edges taken."""
    from tidemill.cli.render.graph import RunPicture, draw_run_picture, print_drawing

    def show(picture: RunPicture) -> None:
        if picture.drawing is not None:
            print_drawing(*picture.drawing)
        elif picture.file is None:
            print(picture.picture, end="")

    return session.ask_and_print(lambda mill: draw_run_picture(mill, run, **given, as_json=session.as_json), show)


runs.add_command(why_command)


@runs.command("document")
@options.run
@options.on_store()
def document_command(session: StoreSession, run: str) -> int:
    """Print the document that a run follows.

    In its normal form, which patches are made for, with the digest they may name.
    """
    from tidemill.cli.render.documents import print_document
    from tidemill.cli.render.runs import reference

    def show(found: RunDocument) -> None:
        named = reference(found.workflow, found.version, found.revision)
        print_document(f"{named}, {found.digest}", found.document)

    return session.ask_and_print(lambda mill: mill.document(run), show)


@runs.command("compare")
@options.run
@options.argument("other", "OTHER", "Another run.", type=options.RunName())
@options.on_store()
def compare_command(session: StoreSession, run: str, other: str) -> int:
    """Compare two runs, node by node."""
    from tidemill.cli.render.runs import print_comparison

    return session.ask_and_print(
        lambda mill: mill.compare(run, other), lambda found: print_comparison(run, other, found)
    )


for act in ACTS:
    runs.add_command(act)
